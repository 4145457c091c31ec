"""Converts between protobuf messages and dataclasses. `make protos` generates the code in v1."""
