"""Explanations of a model: each feature's contribution to a prediction, and partial dependence."""
