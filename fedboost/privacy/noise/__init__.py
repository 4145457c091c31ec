"""Gaussian noise, and the privacy loss of its releases."""
