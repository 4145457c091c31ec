"""Facts in, text out: what people read. No training, no files."""
