"""Types of fedboost's results; `--json` prints them as JSON."""
