"""Reads tables from files, databases or memory into float32 columns. Unusable input raises ConfigError."""
