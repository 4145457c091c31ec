"""The report of a model: one HTML page, from facts."""
