"""Generated from protos/ by `make protos`; a test holds it fresh."""
