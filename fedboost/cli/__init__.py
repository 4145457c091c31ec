"""Command line: `fedboost`, with one sub-command per task."""
