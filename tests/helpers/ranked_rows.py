"""Ranked rows drawn at random, with settings of the objectives."""

import numpy as np

SIZES = (40, 1, 9, 100, 2)
STARTS = np.cumsum([0, *SIZES]).astype(np.int64)
ROWS = int(STARTS[-1])


def rows(margins="apart"):
    rng = np.random.default_rng(3)
    margin = {
        "apart": rng.normal(size=ROWS),
        "equal": np.zeros(ROWS),
        "tied": rng.integers(0, 4, ROWS).astype(np.float64),
        "far": 1e3 * rng.normal(size=ROWS),
    }[margins]
    label = rng.integers(0, 5, ROWS).astype(np.float32)
    label[STARTS[2] : STARTS[3]] = 0  # nothing to rank there
    weight = np.repeat(rng.uniform(0.5, 2, len(SIZES)), SIZES).astype(np.float32)
    return margin.astype(np.float32).astype(np.float64), label, weight
