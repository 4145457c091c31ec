"""Scales of a tree whose root is asked for before its gradients are counted: nothing is ever clipped."""

import numpy as np
import pytest
from inprocess import randomly, run, terms_of

from fedboost.boosting.programs.initialisation import MAX_COARSER_BITS, Scales
from fedboost.fixedpoint import EXPONENT_CELLS
from fedboost.gbdt.tree import LeafValues
from fedboost.holders import whole_rows

ROWS = 300
RNG = np.random.default_rng(2)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
AMOUNT = np.exp(X[:, 0] + RNG.normal(size=ROWS)).astype(np.float32)
WEIGHT = RNG.exponential(3, ROWS).astype(np.float32)
SETTINGS = {
    "squared error": {"objective": "reg:squarederror", "learning_rate": 1.0},
    "forest": {"objective": "reg:squarederror", "num_parallel_tree": 3, "subsample": 0.7},
    "slopes": {"objective": "reg:pseudohubererror", "huber_slope": 0.5},
    "counts": {"objective": "count:poisson"},
    "amounts": {"objective": "reg:gamma", "learning_rate": 0.1},
    "amounts or nothing": {"objective": "reg:tweedie", "learning_rate": 0.1},
    "logistic": {"objective": "binary:logistic"},
}


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
@pytest.mark.parametrize("name", SETTINGS)
def test_no_gradient_is_clipped(monkeypatch, name, weight):
    def checked(gradient, hessian):
        quantise = in_units(gradient, hessian)

        def within(gradients, hessians, pairs):
            assert np.abs(gradients).max(initial=0) * gradient.factor <= gradient.limit + 0.5
            assert hessians.max(initial=0) * hessian.factor <= hessian.limit + 0.5
            return quantise(gradients, hessians, pairs)

        return within

    in_units = whole_rows.in_units
    monkeypatch.setattr(whole_rows, "in_units", checked)
    label = AMOUNT > 1 if name == "logistic" else AMOUNT
    session = run(X, label, randomly(ROWS, 2), weight, rounds=8, max_depth=3, **SETTINGS[name])
    assert session.phase == "done", session.error
    assert len(session.history) == 8


def counts(gradient, hessian):
    """Exponent counts of one row, whose gradient and hessian are below 2 to these powers."""
    cells = np.zeros((3, EXPONENT_CELLS), np.int64)
    cells[0, gradient + 63] = cells[1, hessian + 63] = cells[2, 1 + 63] = 1
    return cells.reshape(-1)


def ahead(value, gradient=4, hessian=1, **settings):
    terms = terms_of(X, 3, **settings)
    counted = counts(gradient, hessian)
    return Scales.of(terms, counted).ahead(terms, counted, LeafValues.of([(0, value), (1, 0.0)]))


def test_the_scale_of_squared_error_grows_by_the_leaves():
    settings = {"objective": "reg:squarederror"}
    assert ahead(0.0, **settings).gradient.exponent == 4
    assert ahead(1e-9, **settings).gradient.exponent == 5
    assert ahead(16.0, **settings).gradient.exponent == 5
    assert ahead(16.1, **settings) is None  # more than MAX_COARSER_BITS
    assert ahead(9.0, num_parallel_tree=2, **settings) is None
    assert MAX_COARSER_BITS == 1


def test_where_each_query_has_its_turn_no_scale_is_needed_ahead():
    assert ahead(0.0, objective="reg:squarederror", on_loss="shrink") is None
    drawn = {"objective": "reg:squarederror", "sampling_method": "gradient_based", "subsample": 0.5}
    assert ahead(0.0, **drawn) is None
    assert ahead(0.0, objective="survival:aft") is None
    bounded = ahead(1e9)
    assert (bounded.gradient.exponent, bounded.hessian.exponent) == (0, -1)


def test_the_first_root_waits_for_the_counts_where_gradients_have_no_bound():
    """The constant may bring labels of a million within one of each other."""
    for objective, known in (("reg:squarederror", False), ("binary:logistic", True)):
        terms = terms_of(X, 3, objective=objective)
        assert (Scales.of(terms, counts(20, 1)).ahead(terms) is not None) == known
