"""Boosting as questions: queries, the state of a training, programs. Shared by all ways to hold data."""
