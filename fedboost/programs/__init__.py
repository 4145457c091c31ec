"""What to ask, in which order: each program is a generator that yields queries and returns the model."""
