"""Trainings with noise."""

import numpy as np
from inprocess import one_party, run

from fedboost.boosting.programs import private

ROWS = 6000
RANGES = [(-4, 4), (-4, 4), (0, 1000)]
LOCAL = {"protection": "plain", "noise": {"epsilon": 1.0, "delta": 1e-5, "placement": "local"}}
MASKED = {"protection": "masked", "noise": {"epsilon": 1.0, "delta": 1e-5}}


def data(kind="binary", rows=ROWS):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(rows, 5)).astype(np.float32)
    X[:, 2] = np.exp(3 + X[:, 2])
    X[:, 3], X[:, 4] = rng.integers(0, 3, rows), rng.integers(0, 8, rows)
    signal = X[:, 0] + np.log(X[:, 2]) - 3 + np.where(X[:, 4] > 4, 1.5, -0.5)
    X[rng.random(X.shape) < 0.05] = np.nan
    noisy = signal + rng.normal(size=rows)
    y = {
        "binary": noisy > 0,
        "classes": np.digitize(noisy, [-1, 1]),
        "number": 50 + 10 * noisy,
        "count": rng.poisson(np.exp(np.clip(signal / 2, -3, 2))),
    }[kind]
    return X, y.astype(np.float32)


def trained(kind="binary", parts=None, **settings):
    X, y = data(kind)
    parts = parts or one_party(ROWS)
    return run(X, y, parts, program=private.train, levels=(3, 8), ranges=RANGES, **settings)
