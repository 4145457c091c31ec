"""Holders compute a party's answers from its data, whether it has all columns or only some."""
