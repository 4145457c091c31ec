"""Parties that hold whole rows."""
