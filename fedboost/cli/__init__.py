"""The command line: `fedboost`, with a sub-command for each task."""
