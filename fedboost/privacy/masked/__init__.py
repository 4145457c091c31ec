"""Sums under pairwise masks, with shares for parties that are lost."""
