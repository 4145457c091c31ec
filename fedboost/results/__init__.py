"""Types of the results of fedboost; `--json` prints their JSON."""
