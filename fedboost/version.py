"""The version of fedboost, in one place."""

VERSION = "0.1.0"
