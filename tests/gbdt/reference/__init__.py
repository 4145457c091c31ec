"""Naive references of `fedboost.gbdt.kernels`, one file each: what a kernel computes, written to be read.

Written from the formulas: plain Python loops, plain Python integers, and numpy where an element-wise function
is nothing but + - * / in a stated order. The tests hold the kernels equal to these with `==`.
"""
