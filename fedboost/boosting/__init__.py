"""Boosting as a sequence of queries: the queries, the programs that send them, and the training state."""
