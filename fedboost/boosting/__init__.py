"""Boosting as a sequence of queries: the queries, the training state, and the programs that send them."""
