"""The aggregator's process: gRPC server, sessions, limits and archive of ended sessions."""
