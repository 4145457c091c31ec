"""Boosting as a sequence of queries: the queries themselves, the programs that send them, and the training
state."""
