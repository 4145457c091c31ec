"""Gradient-boosted trees: bins, histograms, splits, objectives, metrics and models. This package works only
on numpy arrays, and does not communicate with other parties."""
