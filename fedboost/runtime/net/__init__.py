"""Network connections: gRPC channels, TLS and keys."""
