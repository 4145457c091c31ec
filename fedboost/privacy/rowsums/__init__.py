"""Sums of ciphertexts over sets of rows, for parties that hold different columns, and their opening."""
