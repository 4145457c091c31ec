"""The wire: protobuf to dataclasses and back. Generated code in v1 is committed; `make protos` renews it."""
