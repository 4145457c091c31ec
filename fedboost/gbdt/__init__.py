"""Gradient-boosted trees: bins, histograms, splits, objectives, metrics and models. Computes on numpy arrays
only, and knows nothing of parties."""
