"""Partial dependence: the mean of predictions."""

import numpy as np
import pytest
from explained import VALUES, booster_of, drawn
from raised import raised

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import MAX_GRID_VALUES, mean_predictions, usual_grid


def test_partial_dependence_is_the_mean_of_predictions():
    rng = np.random.default_rng(3)
    booster = booster_of([drawn(rng, 4, 4)[0] for _ in range(3)])
    X = rng.choice(VALUES, (50, 4))
    kept = X.copy()
    grid = np.array([-1.5, 0.25, np.nan], np.float32)
    found = mean_predictions(booster.predict, [(X[:20], None), (X[20:], None)], 2, grid)
    for value, mean in zip(grid, found, strict=True):
        rows = [[*row[:2], value, row[3]] for row in X.tolist()]
        assert mean == pytest.approx(np.mean(booster.predict(np.array(rows, np.float32))), rel=1e-14)
    assert len({*found.tolist()}) > 1
    assert np.array_equal(X, kept, equal_nan=True)
    for none in ([], [(X[:0], None)]):
        with raised(ConfigError, "prediction-no-rows"):
            mean_predictions(booster.predict, none, 2, grid)


def test_the_usual_grid():
    few = np.array([3, 1, np.nan, 1, 2, np.nan], np.float32)
    assert usual_grid(few) == [1, 2, 3]
    assert usual_grid(np.full(3, np.nan, np.float32)) == []
    many = np.append(np.arange(1001), np.nan).astype(np.float32)
    assert usual_grid(many) == np.linspace(50, 950, MAX_GRID_VALUES).astype(np.float32).tolist()
