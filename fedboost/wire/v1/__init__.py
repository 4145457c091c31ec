"""Generated from protos/ by `make protos`; a test checks that it is up to date."""
