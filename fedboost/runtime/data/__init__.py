"""Tables in files and in memory, read to float32 columns. Functions here raise ConfigError for bad input."""
