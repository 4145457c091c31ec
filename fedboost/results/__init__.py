"""Results of fedboost: one type each, whose JSON is what `--json` prints."""
