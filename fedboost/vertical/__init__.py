"""Parties that hold different columns of the same rows."""
