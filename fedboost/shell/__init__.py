"""Sockets, files, clocks, randomness, logs: the only place with I/O."""
