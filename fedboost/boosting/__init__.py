"""Boosting as a sequence of queries: queries, training state and programs, shared by all kinds of holders."""
