"""The compiled loops of sums over encrypted rows."""
