"""Trees: bins, histograms, splits, models. Pure: numpy in, numpy out; this package does not know about
parties."""
