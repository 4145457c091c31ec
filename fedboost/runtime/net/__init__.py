"""Connections: the gRPC channel, keys, TLS, health."""
