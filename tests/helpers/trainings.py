"""Trainings that several tests share: rows of each label, their partitions, settings, pooled models."""

import dataclasses
from functools import partial

import numpy as np
import xgboost
from inprocess import model_of, one_party, pack, randomly, shard_of, terms_of, unpack

from fedboost.boosting.programs.boosting import train
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.protocol.messages import Report

ROWS = 400
SMALL = {"rounds": 4, "max_depth": 4}
REGRESSION = {"objective": "reg:squarederror", **SMALL}
LEVELS = (4, 30, 255)
"""Of three features behind two numeric ones."""
CLASSES = {"objective": "multi:softprob", "num_class": 3, **SMALL}


def data(kind="binary"):
    rng = np.random.default_rng(11)
    X = rng.normal(size=(ROWS, 5)).astype(np.float32)
    X[:, 3] = rng.integers(0, 4, ROWS)
    X[:, 4] = np.exp(5 * X[:, 4])
    signal = X[:, 0] + np.abs(X[:, 1]) * X[:, 3] - 1
    if kind in ("levels", "only levels"):
        for feature, size in enumerate(LEVELS, 2):
            X[:, feature] = rng.integers(0, size, ROWS)
            signal += rng.normal(size=size)[X[:, feature].astype(int)]
    if kind == "only levels":
        X[:, 0], X[:, 1] = X[:, 0] > 0, np.clip(X[:, 1] + 2, 0, 4).astype(int)
    X[rng.random(X.shape) < 0.1] = np.nan
    noisy = signal + rng.normal(size=ROWS)
    other = {
        "number": 50 + 20 * signal,
        "classes": np.digitize(noisy, [-0.5, 1.0]),
        "relevance": np.digitize(noisy, [-1.5, 0.0, 1.0, 3.0]),
        "count": np.floor(np.exp(noisy / 2)),
        "amount": 30 * np.exp(noisy),
        "amount or nothing": np.where(noisy > 0, 1000 * np.exp(noisy), 0),
        "times": censored(np.exp(noisy), rng),
        "events": events(np.exp(noisy)),
    }
    y = other.get(kind, noisy > 0)
    return X, y.astype(np.float32), rng.exponential(1, ROWS).astype(np.float32)


def events(times):
    """Bounds of times, [2, rows]: of two thirds of the rows known, of one third known to be later."""
    known = np.arange(times.size) % 3 > 0
    return np.stack([times, np.where(known, times, np.inf)]).astype(np.float32)


def censored(time, rng):
    """Bounds of times, [2, rows]: of one third each known, known to be later, known to be between two."""
    kind, apart = rng.integers(0, 3, time.size), rng.exponential(1, (2, time.size))
    lower = np.where(kind == 0, time, time / (1 + apart[0]))
    lower[(kind == 2) & (apart[0] > 2)] = 0
    return np.array([lower, np.where(kind == 0, time, np.where(kind == 1, np.inf, time * (1 + apart[1])))])


def partitions():
    """Ways to hold the 400 rows: at random, in order, skewed, one row, by label so that some lack a class."""
    _, y, _ = data()
    by_label = np.argsort(y, kind="stable")
    parts = {f"{k} at random": randomly(ROWS, k, seed=k) for k in (2, 3, 5, 8)}
    parts["in order"] = np.array_split(np.arange(ROWS), 3)
    parts["skewed"] = np.split(np.random.default_rng(0).permutation(ROWS), [370, 390, 398])
    parts["one row"] = np.split(np.arange(ROWS), [200, 201])
    parts["one party without positives"] = np.array_split(by_label, 4)
    parts["columns of one sign"] = [
        np.flatnonzero(data()[0][:, 0] > 0),
        np.flatnonzero(~(data()[0][:, 0] > 0)),
    ]
    return parts


PARTITIONS = partitions()
GROUP = np.random.default_rng(8).integers(0, 40, ROWS)
"""Of each row, where rows are ranked."""
COX = {**SMALL, "objective": "survival:cox"}
RANKING = {**SMALL, "group": GROUP}
SETTINGS = {
    "logistic": ("binary", False, SMALL),
    "logistic, weights": ("binary", True, SMALL),
    "squared error": ("number", False, REGRESSION),
    "squared error, weights": ("number", True, REGRESSION),
    "classes": ("classes", False, CLASSES),
    "classes, weights": ("classes", True, CLASSES),
    "counts": ("count", False, {**SMALL, "objective": "count:poisson"}),
    "counts, weights": ("count", True, {**SMALL, "objective": "count:poisson", "max_delta_step": 0.2}),
    "amounts": ("amount", False, {**SMALL, "objective": "reg:gamma"}),
    "amounts or nothing": ("amount or nothing", True, {**SMALL, "objective": "reg:tweedie"}),
    "slopes": ("number", False, {**SMALL, "objective": "reg:pseudohubererror", "huber_slope": 8}),
    "medians": ("number", False, {**SMALL, "objective": "reg:absoluteerror"}),
    "medians, weights": ("number", True, {**SMALL, "objective": "reg:absoluteerror"}),
    "quantiles": ("number", True, {**SMALL, "objective": "reg:quantileerror", "quantile_alpha": 0.8}),
    "ranked by ndcg": ("relevance", False, {**RANKING, "objective": "rank:ndcg"}),
    "ranked by ndcg, weights": (
        "relevance",
        True,
        {**RANKING, "objective": "rank:ndcg", "lambdarank_num_pair_per_sample": 3, "ndcg_exp_gain": False},
    ),
    "ranked by pairs": (
        "relevance",
        False,
        {**RANKING, "objective": "rank:pairwise", "validation_fraction": 0.3, "subsample": 0.8},
    ),
    "ranked, rows drawn by gradients": (
        "relevance",
        True,
        {
            **RANKING,
            "objective": "rank:ndcg",
            "subsample": 0.4,
            "sampling_method": "gradient_based",
            "validation_fraction": 0.2,
        },
    ),
    "ranked, bootstrap": (
        "relevance",
        False,
        {**RANKING, "objective": "rank:pairwise", "sampling_method": "bootstrap"},
    ),
    "times": ("times", False, {**SMALL, "objective": "survival:aft"}),
    "times, weights": (
        "times",
        True,
        {**SMALL, "objective": "survival:aft", "aft_loss_distribution": "extreme", "subsample": 0.7},
    ),
    "times, logistic": (
        "times",
        False,
        {
            **SMALL,
            "objective": "survival:aft",
            "aft_loss_distribution": "logistic",
            "aft_loss_distribution_scale": 0.4,
            "validation_fraction": 0.3,
        },
    ),
    "risks": ("events", False, COX),
    "risks, weights": ("events", True, {**COX, "subsample": 0.7, "min_child_weight": 0.0}),
    "risks, forest": ("events", False, {**COX, "num_parallel_tree": 2, "validation_fraction": 0.3}),
    "heavier positives": ("binary", False, {**SMALL, "scale_pos_weight": 3.0, "max_delta_step": 0.5}),
    "strong penalties": (
        "binary",
        False,
        {**SMALL, "reg_alpha": 1.0, "reg_lambda": 0.0, "gamma": 0.5, "min_child_weight": 5.0, "max_bin": 16},
    ),
    "best leaves first": (
        "binary",
        False,
        {**SMALL, "grow_policy": "lossguide", "max_leaves": 7, "max_depth": 6},
    ),
    "best leaves first, classes": ("classes", True, {**CLASSES, "grow_policy": "lossguide", "max_leaves": 4}),
    "symmetric": ("binary", True, {**SMALL, "grow_policy": "symmetric"}),
    "symmetric, medians": (
        "number",
        False,
        {**SMALL, "objective": "reg:absoluteerror", "grow_policy": "symmetric"},
    ),
    "symmetric, constrained": (
        "binary",
        False,
        {
            **SMALL,
            "grow_policy": "symmetric",
            "interaction_constraints": [["f0", "f1"], ["f1", "f3"]],
            "colsample_bylevel": 0.8,
        },
    ),
    "symmetric, forests of classes": (
        "classes",
        True,
        {**CLASSES, "grow_policy": "symmetric", "num_parallel_tree": 2, "subsample": 0.6},
    ),
    "constrained": ("binary", False, {**SMALL, "interaction_constraints": [["f0", "f1"], ["f1", "f3"]]}),
    "columns drawn, levels": (
        "levels",
        False,
        {**SMALL, "levels": LEVELS, "colsample_bynode": 0.3, "num_parallel_tree": 2},
    ),
    "monotone": (
        "number",
        False,
        {**REGRESSION, "max_depth": 6, "monotone_constraints": {"f0": 1, "f3": -1}},
    ),
    "few leaves": ("number", False, {**REGRESSION, "max_leaves": 6}),
    "forests": (
        "number",
        True,
        {**REGRESSION, "num_parallel_tree": 3, "subsample": 0.6, "colsample_bynode": 0.7},
    ),
    "forests, classes": ("classes", False, {**CLASSES, "num_parallel_tree": 2, "subsample": 0.6}),
    "rows drawn": ("binary", True, {**SMALL, "subsample": 0.6, "seed": 5}),
    "rows drawn, classes": ("classes", False, {**CLASSES, "subsample": 0.6}),
    "rows drawn by gradients": (
        "binary",
        True,
        {**SMALL, "subsample": 0.4, "sampling_method": "gradient_based", "reg_lambda": 0.0},
    ),
    "rows drawn by gradients, number": (
        "number",
        False,
        {**REGRESSION, "subsample": 0.3, "sampling_method": "gradient_based", "num_parallel_tree": 2},
    ),
    "rows drawn by gradients, classes": (
        "classes",
        False,
        {**CLASSES, "subsample": 0.4, "sampling_method": "gradient_based", "validation_fraction": 0.2},
    ),
    "bootstrap": (
        "binary",
        True,
        {**SMALL, "sampling_method": "bootstrap", "num_parallel_tree": 3, "learning_rate": 0.5},
    ),
    "bootstrap, classes": (
        "classes",
        False,
        {**CLASSES, "sampling_method": "bootstrap", "subsample": 0.7, "validation_fraction": 0.2},
    ),
    "bootstrap, medians": (
        "number",
        True,
        {**SMALL, "objective": "reg:absoluteerror", "sampling_method": "bootstrap"},
    ),
    "rows held out": ("number", True, {**REGRESSION, "validation_fraction": 0.3, "subsample": 0.8}),
    "columns drawn": (
        "binary",
        False,
        {**SMALL, "colsample_bytree": 0.8, "colsample_bylevel": 0.8, "colsample_bynode": 0.7},
    ),
    "few bits": ("binary", True, {**SMALL, "gradient_bits": 8}),
    "levels": ("levels", False, {**SMALL, "levels": LEVELS}),
    "levels, weights, penalties": (
        "levels",
        True,
        {**SMALL, "levels": LEVELS, "reg_alpha": 0.3, "min_child_weight": 0.0, "max_cat_threshold": 3},
    ),
    "nothing but levels": ("only levels", False, {**SMALL, "levels": (2, 5, *LEVELS)}),
}
_pooled = {}


def setting_of(name):
    kind, weighted, settings = SETTINGS[name]
    X, y, weight = data(kind)
    if "group" in settings:
        weight = weight[GROUP]
    return X, y, weight if weighted else None, settings


def parts_of(name, partition):
    """The rows of each party; where they are ranked whole groups of them, in the order of the table."""
    parts = PARTITIONS[partition]
    if "group" not in SETTINGS[name][2]:
        return parts
    owner = np.empty(ROWS, np.int64)
    for party, rows in enumerate(parts):
        owner[rows] = party
    return [part for party in range(len(parts)) if (part := np.flatnonzero(owner[GROUP] == party)).size]


def pooled_model(name):
    """The model of one party that has all rows."""
    if name not in _pooled:
        X, y, weight, settings = setting_of(name)
        _pooled[name] = model_of(X, y, one_party(ROWS), weight, **settings)
    return _pooled[name]


BASED = {
    "logistic": ("binary", False, SMALL),
    "logistic, base_score": ("binary", False, {**SMALL, "base_score": 0.25}),
    "squared error": ("number", True, REGRESSION),
    "slopes": ("number", False, {**SMALL, "objective": "reg:pseudohubererror"}),
    "counts": ("count", False, {**SMALL, "objective": "count:poisson"}),
    "amounts": ("amount", True, {**SMALL, "objective": "reg:gamma"}),
    "amounts or nothing": ("amount or nothing", False, {**SMALL, "objective": "reg:tweedie"}),
    "medians": ("number", True, {**SMALL, "objective": "reg:absoluteerror"}),
    "times": ("times", True, {**SMALL, "objective": "survival:aft", "aft_loss_distribution_scale": 0.7}),
    "risks": ("events", False, {**COX, "min_count": 1, "max_bin": 256}),
    "forest": ("binary", False, {**SMALL, "num_parallel_tree": 2, "subsample": 0.6}),
}


def matrix(X, y, **more):
    """XGBoost's."""
    if y.ndim == 1:
        return xgboost.DMatrix(X, y, **more)
    if ((y[1] == y[0]) | np.isinf(y[1])).all():  # XGBoost's survival:cox marks censored rows by a sign
        return xgboost.DMatrix(X, np.where(np.isinf(y[1]), -y[0], y[0]), **more)
    return xgboost.DMatrix(X, label_lower_bound=y[0], label_upper_bound=y[1], **more)


def based(name):
    kind, weighted, settings = BASED[name]
    X, y, weight = data(kind)
    base = np.random.default_rng(3).normal(0.5, 1, ROWS).astype(np.float32)
    return X, y, weight if weighted else None, base, settings


def split_in_two(X, y):
    order = np.random.default_rng(0).permutation(len(X))
    train, test = np.split(order, [int(0.7 * len(X))])
    return X[train], y[..., train], X[test], y[..., test]


def one_by_one(program):
    """The queries of a program, each alone, whatever shares a turn."""
    query = next(program)
    while True:
        sums = []
        for part in query.parts:
            sums.append((yield part))
        try:
            query = program.send(np.concatenate(sums))
        except StopIteration as end:
            return end.value


def spoiling(turn, query, cell, by=1):
    """Change one cell of what party p1 reports in one turn, in which this is asked."""
    of_query = [(run.cells, run.bits) for run in query.segments]

    def spoil(party, message):
        if party != "p1" or not isinstance(message, Report) or message.turn != turn:
            return message
        values = unpack(message.cells, *of_query)
        values[cell] += by
        return dataclasses.replace(message, cells=pack(values, *of_query))

    return spoil


def turns_of(X, y, parts, **settings):
    """The query of each turn of a training, from a party's answers added up in one place."""
    terms = terms_of(X, len(parts), **settings)
    parties = [HorizontalHolder(partial(shard_of, X, y, rows=rows), terms) for rows in parts]
    program, asked = train(terms, []), {}
    query = next(program)
    while query:
        asked[len(asked) + 1] = query
        try:
            query = program.send(sum(party.answer(query) for party in parties))
        except StopIteration:
            query = None
    return asked
