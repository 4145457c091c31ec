"""Sums under pairwise masks: in one leg, or in two where the roster may shrink."""
