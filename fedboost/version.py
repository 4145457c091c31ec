"""The version number of fedboost."""

VERSION = "0.2.0"
