"""Metrics as integer sums that add over the parties."""
