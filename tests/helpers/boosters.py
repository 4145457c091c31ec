"""Models of every objective."""

import math

import numpy as np
import pytest
import xgboost
from inprocess import randomly, run

from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.built_in import SquaredError
from fedboost.gbdt.tree import Tree

OBJECTIVES = {
    "binary:logistic": {"scale_pos_weight": 1.5},
    "reg:squarederror": {"max_delta_step": 9.0},
    "multi:softprob": {"num_class": 3},
    "count:poisson": {},
    "reg:gamma": {},
    "reg:tweedie": {"tweedie_variance_power": 1.3},
    "reg:pseudohubererror": {"huber_slope": 2.5},
    "reg:absoluteerror": {},
    "reg:quantileerror": {"quantile_alpha": 0.3},
    "survival:aft": {"aft_loss_distribution": "logistic", "aft_loss_distribution_scale": 0.3},
}
RATES = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:aft")
FOREST = {"num_parallel_tree": 3, "subsample": 0.5, "colsample_bynode": 0.6}
"""Beside each of them: three trees for each output in each round."""


def data(objective):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(800, 5)).astype(np.float32)
    X[:, 3] = rng.integers(0, 4, 800)
    X[rng.random((800, 5)) < 0.15] = np.nan
    X[:, 4] = np.where(rng.random(800) < 0.5, 1.0, np.nan)  # nothing to learn but whether it is there
    signal = np.nan_to_num(X[:, 0]) * 2 + np.nan_to_num(X[:, 1]) ** 2 + 1.5 * np.isnan(X[:, 4]) - 1.5
    if objective == "multi:softprob":
        return X, np.digitize(signal, [-1.5, 1.5]).astype(np.float32)
    if objective == "binary:logistic":
        return X, (rng.random(800) < 1 / (1 + np.exp(-signal))).astype(np.float32)
    if objective == "survival:aft":
        time = np.exp(signal + rng.normal(size=800)).astype(np.float32)
        return X, np.array([time, np.where(rng.random(800) < 0.3, np.inf, time)])
    if objective in RATES:
        return X, np.ceil(np.exp(signal / 2)).astype(np.float32)
    return X, (100 + 10 * signal).astype(np.float32)


EVERY = [(name, more) for name in OBJECTIVES for more in ({}, FOREST)]
PLAIN_AND_ONE_FOREST = [*((name, {}) for name in OBJECTIVES), ("multi:softprob", FOREST)]


def trained_with(kinds, **settings):
    """A fixture: the rows and the booster of each kind, an objective and what is beside its settings."""

    @pytest.fixture(scope="module", params=kinds, ids=str)
    def trained(request):
        objective, more = request.param
        X, y = data(objective)
        known = {"objective": objective, **OBJECTIVES[objective], **more, **settings}
        session = run(X, y, randomly(len(X), 2), **known)
        assert session.error is None
        return X, session.booster

    return trained


def load(text):
    booster = xgboost.Booster()
    booster.load_model(bytearray(text.encode()))
    return booster


def presence_model(left=0.5, right=-0.5):
    """One split that parts the present from the missing, by hand."""
    columns = {"feature": [1, 0, 0], "gain": [2.0, 0, 0], "cover": [4.0, 3.0, 1.0]}
    tree = Tree.of_columns([1, -1, -1], threshold=[math.inf, 0, 0], value=[0, left, right], **columns)
    return Booster(SquaredError(), 10.0, ("a", "b"), (tree,))


def level_model(categories=0b1010):
    """One split by the levels of the second feature, by hand."""
    columns = {"feature": [1, 0, 0], "missing_left": [True, False, False], "cover": [4.0, 3.0, 1.0]}
    of_nodes = {"threshold": [0.0] * 3, "gain": [2.0, 0, 0], "categories": [categories, 0, 0], **columns}
    tree = Tree.of_columns([1, -1, -1], value=[0, 0.5, -0.5], **of_nodes)
    return Booster(SquaredError(), 10.0, ("a", "b"), (tree,), categorical=("b",))
