"""Holders: the objects that compute a party's answers from its rows, or from some columns of them."""
