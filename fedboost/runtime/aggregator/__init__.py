"""The aggregator's process: server, sessions, limits, store."""
