"""Trees: bins, histograms, splits, models. Pure: numpy in, numpy out; nothing here knows of parties."""
