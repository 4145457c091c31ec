"""The questions that a program can ask, one family a file; `union` is the closed set of them.

A query says how many integers answer it and how large one row's share of any of them can be, so both ends
know the bits of a cell before anything is computed. `rows` is the number of rows behind the sum, a public
number; it bounds the cells. `check` raises Refused for what the terms do not allow.
"""
