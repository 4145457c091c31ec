"""The version number of fedboost."""

VERSION = "0.1.0"
