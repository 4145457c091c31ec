"""The aggregator's process: server, sessions, limits, archive."""
