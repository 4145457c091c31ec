"""Boosting: the same model, byte for byte, for every partition of the rows; as good a one as XGBoost's."""

import dataclasses
import json
from functools import partial

import numpy as np
import pytest
import xgboost
from inprocess import model_of, one_party, pack, randomly, run, shard_of, terms_of, unpack
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss, roc_auc_score

from fedboost.boosting.programs.boosting import train
from fedboost.boosting.programs.initialisation import Scales
from fedboost.boosting.queries.leaves import ResidualQuery
from fedboost.boosting.queries.start import RowsQuery, StartQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.fixedpoint import exponent_counts
from fedboost.gbdt import sampling
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.metrics import by_set as metrics
from fedboost.gbdt.metrics.registry import grows
from fedboost.horizontal.holder import HorizontalHolder
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
    }
    y = other.get(kind, noisy > 0)
    return X, y.astype(np.float32), rng.exponential(1, ROWS).astype(np.float32)


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


SOME = "3 at random", "skewed", "one party without positives"
"""Partitions for settings beside the first four, which are tried with every one."""


@pytest.mark.parametrize(
    ("name", "partition"),
    [(name, one) for place, name in enumerate(SETTINGS) for one in (PARTITIONS if place < 4 else SOME)],
)
def test_every_partition_gives_the_model_of_the_pooled_rows(name, partition):
    parts = parts_of(name, partition)
    assert sum(map(len, parts)) == ROWS
    assert len(parts) > 1
    X, y, weight, settings = setting_of(name)
    assert model_of(X, y, parts, weight, **settings) == pooled_model(name)


@pytest.mark.parametrize("name", SETTINGS)
def test_masks_change_nothing_of_the_model(name):
    X, y, weight, settings = setting_of(name)
    model = model_of(X, y, parts_of(name, "3 at random"), weight, protection="masked", **settings)
    assert model == pooled_model(name)


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_order_of_delivery_does_not_matter(seed):
    X, y, weight, settings = setting_of("logistic, weights")
    text = model_of(X, y, PARTITIONS["5 at random"], weight, delivery=seed, **settings)
    assert text == pooled_model("logistic, weights")


def test_the_order_of_rows_does_not_matter():
    X, y, weight, settings = setting_of("squared error, weights")
    order = np.random.default_rng(1).permutation(ROWS)
    text = model_of(X[order], y[order], PARTITIONS["in order"], weight[order], **settings)
    assert text == pooled_model("squared error, weights")


def test_the_models_compared_are_models():
    """Equality says nothing of models without splits, or of settings that all give one model."""
    texts = [pooled_model(name) for name in SETTINGS]
    assert len(set(texts)) == len(SETTINGS)
    for text in texts:
        trees = json.loads(text)["learner"]["gradient_booster"]["model"]["trees"]
        assert len(trees) % SMALL["rounds"] == 0
        assert trees
        assert all(len(tree["left_children"]) > 3 for tree in trees)


@pytest.mark.parametrize("name", [name for name, (kind, _, _) in SETTINGS.items() if "levels" in kind])
def test_models_of_levels_split_by_them(name):
    trees = json.loads(pooled_model(name))["learner"]["gradient_booster"]["model"]["trees"]
    sizes = [size for tree in trees for size in tree["categories_sizes"]]
    assert len(sizes) > len(trees)
    assert max(sizes) > 2


def test_nothing_is_asked_of_levels_before_the_cut_points():
    X, y, _, settings = setting_of("levels")
    program = train(terms_of(X, 1, **settings), [])
    next(program)
    query = program.send(
        HorizontalHolder(lambda: shard_of(X, y), terms_of(X, 1, **settings)).answer(RowsQuery())
    )
    assert len(query.grids) == 2
    X, y, _, settings = setting_of("nothing but levels")
    kinds = [type(query) for query in turns_of(X, y, one_party(ROWS), **settings).values()]
    assert kinds[:2] == [RowsQuery, StartQuery]


def test_metrics_of_the_rounds_are_those_of_the_pooled_rows():
    X, y, weight, settings = setting_of("logistic, weights")
    names = ["logloss", "error", "auc"]
    one = run(X, y, one_party(ROWS), weight, eval_metric=names, **settings)
    other = run(X, y, PARTITIONS["skewed"], weight, eval_metric=names, **settings)
    assert [(r.round, r.metrics) for r in one.history] == [(r.round, r.metrics) for r in other.history]
    assert [round_.round for round_ in one.history] == [0, 1, 2, 3]
    losses = [round_.metrics["logloss"] for round_ in one.history]
    assert losses == sorted(losses, reverse=True)
    probability = one.booster.predict(X)
    assert one.history[-1].metrics["error"] == pytest.approx(
        np.average((probability > 0.5) != y, weights=weight), abs=1e-4
    )


# ---- base margins -----------------------------------------------------------------------------------

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
    "forest": ("binary", False, {**SMALL, "num_parallel_tree": 2, "subsample": 0.6}),
}


def matrix(X, y, **more):
    """XGBoost's."""
    if y.ndim == 1:
        return xgboost.DMatrix(X, y, **more)
    return xgboost.DMatrix(X, label_lower_bound=y[0], label_upper_bound=y[1], **more)


def based(name):
    kind, weighted, settings = BASED[name]
    X, y, weight = data(kind)
    base = np.random.default_rng(3).normal(0.5, 1, ROWS).astype(np.float32)
    return X, y, weight if weighted else None, base, settings


@pytest.mark.parametrize("partition", ["one row", "3 at random"])
@pytest.mark.parametrize("name", BASED)
def test_with_base_margins_every_partition_gives_the_model_of_the_pooled_rows(name, partition):
    X, y, weight, base, settings = based(name)
    pooled = model_of(X, y, one_party(ROWS), weight, base_margin=base, **settings)
    for protection in ("plain", "masked"):
        if protection == "plain" or partition == "3 at random":
            many = {"base_margin": base, "protection": protection, **settings}
            assert model_of(X, y, PARTITIONS[partition], weight, **many) == pooled
    assert pooled != model_of(X, y, one_party(ROWS), weight, **settings)


@pytest.mark.parametrize("name", BASED)
def test_xgboost_adds_the_trees_to_base_margins_as_training_did(name):
    X, y, weight, base, settings = based(name)
    session = run(X, y, PARTITIONS["3 at random"], weight, base_margin=base, **settings)
    booster = session.booster
    assert len(booster.trees) == (SMALL["rounds"] + 1) * booster.num_parallel_tree
    assert booster.begins_with_a_leaf
    theirs = xgboost.Booster()
    theirs.load_model(bytearray(booster.to_xgboost().encode()))
    names = list(booster.features)
    of_xgboost = matrix(X, y, weight=weight, base_margin=base, feature_names=names)
    margins = theirs.predict(of_xgboost, output_margin=True)
    scale = max(1.0, np.abs(margins).max())
    assert np.abs(booster.margins(X, base) - margins).max() <= 1e-6 * scale
    plain = theirs.predict(xgboost.DMatrix(X, feature_names=names), output_margin=True)
    assert np.abs(booster.margins(X) - plain).max() <= 1e-6 * scale
    (metric,) = session.history[-1].metrics
    if name == "times":  # the file says it to the objective, and not to the metric
        theirs.set_param({"aft_loss_distribution_scale": 0.7, "eval_metric": metric})
    said = float(theirs.eval(of_xgboost).split(":")[-1])
    assert session.history[-1].metrics[metric] == pytest.approx(said, rel=1e-3)
    constant = booster.trees[0].value[0]
    if name == "logistic, base_score":
        assert constant == pytest.approx(np.log(1 / 3))


def test_exposures_make_a_rate_of_counts():
    """Twice the exposure, twice the count: the trees learn the rate, the constant is counts by exposure."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(2000, 3)).astype(np.float32)
    exposure = rng.uniform(0.05, 1, 2000)
    y = rng.poisson(exposure * np.exp(X[:, 0] - 1))
    base = np.log(exposure).astype(np.float32)
    session = run(
        X, y, randomly(2000, 3), base_margin=base, objective="count:poisson", rounds=20, max_depth=3
    )
    booster = session.booster
    assert np.exp(booster.trees[0].value[0]) == pytest.approx(y.sum() / exposure.sum(), rel=1e-5)
    rates = booster.predict(X, np.zeros(2000, np.float32))
    assert booster.predict(X, base) == pytest.approx(rates * exposure, rel=1e-6)
    assert np.corrcoef(np.log(rates), X[:, 0])[0, 1] > 0.9


# ---- rows that are ranked ----------------------------------------------------------------------------

RANKED = [name for name, (_, _, settings) in SETTINGS.items() if "group" in settings]


@pytest.mark.parametrize("name", RANKED)
def test_the_order_of_groups_does_not_matter(name):
    """Nor what stands between the rows of a group."""
    X, y, weight, settings = setting_of(name)
    order = np.argsort(np.random.default_rng(1).permutation(40)[GROUP], kind="stable")
    settings = {**settings, "group": GROUP[order], "subsample": 1.0, "sampling_method": "uniform"}
    sorted_by_group = model_of(
        X[order], y[order], one_party(ROWS), None if weight is None else weight[order], **settings
    )
    as_it_was = model_of(X, y, one_party(ROWS), weight, **{**settings, "group": GROUP})
    assert sorted_by_group == as_it_was


@pytest.mark.parametrize("name", RANKED)
def test_xgboost_ranks_the_same_with_the_model_file(name):
    X, y, weight, settings = setting_of(name)
    settings = {**settings, "validation_fraction": 0.0}
    session = run(X, y, parts_of(name, "3 at random"), weight, **settings)
    text = session.booster.to_xgboost()
    assert Booster.from_xgboost(text)[0] == session.booster
    theirs = xgboost.Booster()
    theirs.load_model(bytearray(text.encode()))
    assert (
        json.loads(theirs.save_config())["learner"]["objective"] == json.loads(text)["learner"]["objective"]
    )
    order = np.argsort(GROUP, kind="stable")
    names = list(session.booster.features)
    of_groups = xgboost.DMatrix(X[order], y[order], qid=GROUP[order], feature_names=names)
    assert np.abs(theirs.predict(of_groups) - session.booster.predict(X)[order]).max() <= 1e-6
    if weight is None:
        (metric,) = session.history[-1].metrics
        theirs.set_param({"eval_metric": metric})
        said = float(theirs.eval(of_groups).split(":")[-1])
        assert session.history[-1].metrics[metric] == pytest.approx(said, abs=2e-4)


def test_ranking_learns_and_stops_when_it_grows_no_more():
    X, y, _, settings = setting_of("ranked by ndcg")
    settings = {**settings, "eval_metric": ["ndcg", "ndcg@3"], "validation_fraction": 0.3}
    parts = parts_of("ranked by ndcg", "3 at random")
    session = run(X, y, parts, **{**settings, "rounds": 40, "early_stopping_rounds": 3})
    seen = [row.metrics["validation-ndcg@3"] for row in session.history]
    assert len(seen) == int(np.argmax(seen)) + 4 < 40
    assert len(session.booster.trees) == int(np.argmax(seen)) + 1
    train = [row.metrics["ndcg"] for row in session.history]
    assert train[-1] > train[0] > 0.7
    assert list(session.history[0].metrics) == ["ndcg", "ndcg@3", "validation-ndcg", "validation-ndcg@3"]


def test_validation_groups_are_whole_and_not_learned_from():
    X, y, _, settings = setting_of("ranked by ndcg")
    settings = {**settings, "validation_fraction": 0.3, "seed": 4}
    terms = terms_of(X, 1, **settings)
    held_out = HorizontalHolder(lambda: shard_of(X, y, group=GROUP), terms)._sets[metrics.VALIDATION]
    assert 0 < held_out.sum() < ROWS
    assert all(len({*held_out[np.flatnonzero(group == GROUP)]}) == 1 for group in range(40))
    model = model_of(X, y, one_party(ROWS), **settings)
    assert model == model_of(X, np.where(held_out, 4 - y, y), one_party(ROWS), **settings)
    flags = {**settings, "validation_fraction": 0.0, "validation": held_out}
    trees = run(X, y, parts_of("ranked by ndcg", "3 at random"), **flags).booster.trees
    assert trees == Booster.from_xgboost(model)[0].trees


def test_groups_of_one_label_have_nothing_to_learn():
    X, _, _, settings = setting_of("ranked by ndcg")
    session = run(X, GROUP % 4, parts_of("ranked by ndcg", "3 at random"), **settings)
    assert "no group of any party has rows of different labels" in str(session.error)


def test_base_margins_of_a_ranking():
    X, y, _, settings = setting_of("ranked by ndcg")
    base = np.random.default_rng(3).normal(0.5, 1, ROWS).astype(np.float32)
    pooled = model_of(X, y, one_party(ROWS), base_margin=base, **settings)
    assert model_of(X, y, parts_of("ranked by ndcg", "skewed"), base_margin=base, **settings) == pooled
    assert pooled != pooled_model("ranked by ndcg")


# ---- rows that are drawn, and rows that are held out -------------------------------------------------


def test_validation_rows_are_watched_and_not_learned_from():
    X, y, weight = data()
    held_out = np.random.default_rng(3).random(ROWS) < 0.4
    settings = {**SMALL, "eval_metric": ["error", "logloss"]}
    session = run(X, y, PARTITIONS["3 at random"], weight, validation=held_out, **settings)
    without = run(
        X, np.where(held_out, 1 - y, y), PARTITIONS["3 at random"], weight, validation=held_out, **settings
    )
    assert session.booster.trees == without.booster.trees
    last = session.history[-1].metrics
    assert list(last) == ["error", "logloss", "validation-error", "validation-logloss"]
    for rows, prefix in ((~held_out, ""), (held_out, "validation-")):
        probability = np.clip(session.booster.predict(X[rows]), 1e-9, 1 - 1e-9)
        due = log_loss(y[rows], probability, sample_weight=weight[rows])
        assert last[prefix + "logloss"] == pytest.approx(due, rel=1e-3)


@pytest.mark.parametrize("metric", ["aft-nloglik", "interval-regression-accuracy"])
def test_times_stop_early(metric):
    X, y, _ = data("times")
    settings = {"objective": "survival:aft", "validation_fraction": 0.4, "early_stopping_rounds": 2}
    settings |= {"eval_metric": [metric], "rounds": 40}
    one, other = (run(X, y, parts, **settings) for parts in (one_party(ROWS), PARTITIONS["3 at random"]))
    assert one.booster == other.booster
    watched = [round_.metrics["validation-" + metric] for round_ in one.history]
    best = (max if grows(metric) else min)(watched)
    assert len(one.booster.trees) == watched.index(best) + 1 == len(watched) - 2 < 38


def test_a_share_of_the_rows_is_held_out_and_the_seed_says_which():
    X, y, _ = data()
    one, other = (
        run(X, y, PARTITIONS["3 at random"], validation_fraction=0.25, seed=seed, **SMALL) for seed in (0, 1)
    )
    assert one.booster.trees != other.booster.trees
    assert one.history[-1].metrics["validation-logloss"] > one.history[-1].metrics["logloss"]


def test_early_stopping_keeps_the_best_round():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 5)).astype(np.float32)
    y = (X[:, 0] + 2 * rng.normal(size=ROWS) > 0).astype(np.float32)  # soon nothing but noise is left
    settings = {"validation_fraction": 0.3, "rounds": 40, "max_depth": 3}
    parts = randomly(ROWS, 3)
    everything = run(X, y, parts, **settings)
    losses = [row.metrics["validation-logloss"] for row in everything.history]
    best = losses.index(min(losses))
    assert best < 20
    stopped = run(X, y, parts, early_stopping_rounds=5, **settings)
    assert [row.metrics["validation-logloss"] for row in stopped.history] == losses[: best + 6]
    assert stopped.booster.trees == everything.booster.trees[: best + 1]
    assert len({attest.structure for attest in stopped.attestations.values()}) == 1


def test_early_stopping_of_a_metric_that_grows():
    X, y, _ = data()
    settings = {**SMALL, "rounds": 30, "validation_fraction": 0.4, "eval_metric": ["logloss", "auc"]}
    session = run(X, y, PARTITIONS["3 at random"], early_stopping_rounds=3, **settings)
    found = [row.metrics["validation-auc"] for row in session.history]
    assert len(session.booster.trees) == found.index(max(found)) + 1 == len(found) - 3


def test_a_model_that_stops_early_is_signed_with_its_rounds_where_there_are_base_margins():
    X, y, _ = data("count")
    base = np.linspace(-0.5, 0.5, ROWS).astype(np.float32)
    settings = {
        "objective": "count:poisson",
        "rounds": 30,
        "validation_fraction": 0.4,
        "num_parallel_tree": 2,
    }
    session = run(X, y, PARTITIONS["3 at random"], base_margin=base, early_stopping_rounds=2, **settings)
    assert session.error is None
    kept = len(session.history) - 2
    assert len(session.booster.trees) == 2 * (kept + 1)  # and the constant, a leaf for each tree of a round
    (told,) = {attest.structure for attest in session.attestations.values()}
    assert told == session.run.structure
    assert session.run.rounds == kept


def test_a_metric_without_a_value_stops_nothing():
    X, y, _ = data()
    held_out = np.zeros(ROWS, bool)
    held_out[np.flatnonzero(y == 1)[:20]] = True
    settings = {**SMALL, "eval_metric": "auc", "early_stopping_rounds": 2}
    session = run(X, y, PARTITIONS["3 at random"], validation=held_out, **settings)
    assert "validation-auc has no value" in str(session.error)


def test_no_validation_rows_fail_and_say_so():
    X, y, _ = data()
    session = run(X, y, PARTITIONS["3 at random"], validation=np.zeros(ROWS), **SMALL)
    assert "no party has validation rows" in str(session.error)


def test_trees_of_a_share_of_the_rows_cover_that_share():
    X, y, _ = data()
    trees = run(X, y, one_party(ROWS), subsample=0.5, objective="reg:squarederror", **SMALL).booster.trees
    covers = [tree.cover[0] for tree in trees]
    assert len(set(covers)) == SMALL["rounds"]
    assert all(0.4 * ROWS < cover < 0.6 * ROWS for cover in covers)


@pytest.mark.parametrize("method", ["gradient_based", "bootstrap"])
def test_what_rows_weigh_makes_up_for_those_that_are_not_drawn(method):
    """Squared error: hessians are 1, so the cover of a root is the rows, each as often as it counts."""
    X, y, _ = data("number")
    settings = {"objective": "reg:squarederror", "sampling_method": method, "subsample": 0.5}
    rounds = {"rounds": 20, "max_depth": 2, "reg_lambda": 0.01}
    trees = run(X, y, PARTITIONS["3 at random"], **settings, **rounds).booster.trees
    covers = np.array([tree.cover[0] for tree in trees])
    due = ROWS if method == "gradient_based" else ROWS / 2
    assert len(set(covers)) > 10
    assert abs(covers.mean() - due) < 4 * covers.std() / np.sqrt(20)
    assert 2 < covers.std() < 0.2 * due


@pytest.mark.parametrize("reg_lambda", [0.0, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
def test_scales_hold_gradients_that_are_divided_by_the_chances_of_their_rows(reg_lambda, spread):
    rng = np.random.default_rng(2)
    gradient = np.exp(spread * rng.normal(size=3000)) * rng.choice([-1, 1], 3000)
    hessian = np.exp(spread * rng.normal(size=3000))
    settings = {"sampling_method": "gradient_based", "subsample": 0.2, "reg_lambda": reg_lambda}
    terms = terms_of(np.zeros((1, 1)), 1, objective="reg:gamma", **settings)
    exponents = [exponent_counts(values) for values in (gradient, hessian, np.ones(1))]
    before = Scales.of(terms, np.concatenate(exponents))
    sizes = sampling.gradient_norms(gradient, hessian, reg_lambda)
    after = before.for_sampling(terms, sampling.count_norms(sizes))
    chances = sampling.probabilities(sizes, after.threshold, 0.2)
    for values, scale, narrow in (
        (np.abs(gradient), after.gradient, before.gradient),
        (hessian, after.hessian, before.hessian),
    ):
        assert (values / chances).max() <= 2.0**scale.exponent
        assert 0 <= scale.exponent - narrow.exponent <= 6  # 2**6 is beyond 8 / 0.2
        assert scale.bits == narrow.bits


@pytest.mark.parametrize("method", ["gradient_based", "bootstrap"])
def test_margins_move_once_and_validation_rows_are_not_drawn(method):
    X, y, _ = data()
    held_out = np.random.default_rng(3).random(ROWS) < 0.4
    settings = {"validation": held_out, "sampling_method": method, "subsample": 0.5, **SMALL}
    session = run(X, y, PARTITIONS["3 at random"], **settings)
    other = run(X, np.where(held_out, 1 - y, y), PARTITIONS["3 at random"], **settings)
    assert session.booster.trees == other.booster.trees
    for rows, name in ((~held_out, "logloss"), (held_out, "validation-logloss")):
        due = log_loss(y[rows], session.booster.predict(X[rows]))
        assert session.history[-1].metrics[name] == pytest.approx(due, rel=1e-3)


def test_rows_of_large_gradients_teach_more_than_rows_drawn_alike():
    """At a share at which most rows of a uniform draw say little."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(6000, 6)).astype(np.float32)
    y = (np.abs(X[:, 0]) + X[:, 1] * X[:, 2] > 2.2).astype(np.float32)
    X, y, X_test, y_test = split_in_two(X, y)
    lost = {}
    for method in ("uniform", "gradient_based"):
        settings = {"subsample": 0.1, "sampling_method": method, "rounds": 40, "max_depth": 4}
        lost[method] = []
        for seed in range(3):
            booster = run(X, y, one_party(len(y)), seed=seed, **settings).booster
            lost[method].append(log_loss(y_test, booster.predict(X_test)))
    assert max(lost["gradient_based"]) < min(lost["uniform"])


def test_a_forest_of_bootstraps_is_as_good_as_one_of_all_rows_and_no_tree_is_like_another():
    X, y, _ = data()
    X_train, y_train, X_test, y_test = split_in_two(X, y)
    forest = {"rounds": 1, "learning_rate": 1.0, "sampling_method": "bootstrap", "max_depth": 8}
    found = []
    for trees in (1, 60):
        settings = {"num_parallel_tree": trees, "colsample_bynode": 0.6, **forest}
        booster = run(X_train, y_train, randomly(len(y_train), 3), **settings).booster
        assert len({tuple(tree.threshold) for tree in booster.trees}) == trees
        found.append(roc_auc_score(y_test, booster.predict(X_test)))
    assert found[1] > found[0] + 0.02


def test_sums_of_rows_that_count_most_often_fit_their_cells(monkeypatch):
    """Were every row drawn as often as any can be, of gradients that all are the largest."""
    monkeypatch.setattr(
        sampling,
        "bootstrap_counts",
        lambda keys, *_: np.full(keys.size, sampling.MAX_BOOTSTRAP_COUNT, np.uint8),
    )
    X, _, _ = data()
    y = np.arange(ROWS) % 2
    settings = {"sampling_method": "bootstrap", "gradient_bits": 24, "base_score": 0.999999, **SMALL}
    pooled = model_of(X, y, one_party(ROWS), **settings)
    assert model_of(X, y, PARTITIONS["3 at random"], protection="masked", **settings) == pooled
    covers = [tree.cover[0] for tree in run(X, y, one_party(ROWS), **settings).booster.trees]
    monkeypatch.undo()
    once = run(X, y, one_party(ROWS), **{**settings, "sampling_method": "uniform"}).booster.trees[0].cover[0]
    assert covers[0] == pytest.approx(sampling.MAX_BOOTSTRAP_COUNT * once, rel=1e-6)


@pytest.mark.parametrize("leaves", [2, 5, 12])
@pytest.mark.parametrize("policy", ["depthwise", "lossguide"])
def test_trees_have_at_most_so_many_leaves(policy, leaves):
    X, y, _ = data("classes")
    settings = {**CLASSES, "max_depth": 8, "grow_policy": policy, "max_leaves": leaves}
    trees = run(X, y, PARTITIONS["3 at random"], **settings).booster.trees
    assert len(trees) == CLASSES["rounds"] * CLASSES["num_class"]
    assert {len(tree.leaves) for tree in trees} == {leaves}


def test_best_first_trees_grow_where_they_gain_most():
    """Of the same number of leaves they fit the training rows better, in fewer turns than leaves."""
    X, y, _ = data("number")
    losses, turns = {}, {}
    for policy in ("depthwise", "lossguide"):
        settings = {**REGRESSION, "max_depth": 10, "max_leaves": 16, "grow_policy": policy}
        session = run(X, y, PARTITIONS["3 at random"], **settings)
        losses[policy], turns[policy] = session.history[-1].metrics["rmse"], session.turn
    assert losses["lossguide"] < losses["depthwise"]
    assert turns["lossguide"] < 16 * REGRESSION["rounds"]


def test_a_forest_is_a_round_of_parallel_trees_and_better_than_one():
    X, y, _ = data()
    X_train, y_train, X_test, y_test = split_in_two(X, y)
    forest = {"rounds": 1, "learning_rate": 1.0, "subsample": 0.6, "colsample_bynode": 0.6, "max_depth": 8}
    found = []
    for trees in (1, 100):
        session = run(X_train, y_train, randomly(len(y_train), 3), num_parallel_tree=trees, **forest)
        assert len(session.booster.trees) == trees
        found.append(roc_auc_score(y_test, session.booster.predict(X_test)))
    assert found[1] > found[0] + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
def test_predictions_never_fall_with_a_feature_that_is_constrained_and_are_xgboosts(sign):
    ratios = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(2000, 4)).astype(np.float32)
        y = sign * X[:, 0] + np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=2000)
        X, y, X_test, y_test = split_in_two(X, y.astype(np.float32))
        settings = {"objective": "reg:squarederror", "rounds": 20, "max_depth": 5, "learning_rate": 0.3}
        session = run(X, y, randomly(len(y), 3), monotone_constraints={"f0": sign}, **settings)
        free = run(X, y, randomly(len(y), 3), **settings)
        lines = np.repeat(X_test[:50], 60, axis=0)
        lines[:, 0] = np.tile(np.linspace(-3, 3, 60), 50)
        steps = [sign * np.diff(s.booster.predict(lines).reshape(50, 60), axis=1) for s in (session, free)]
        assert steps[0].min() >= 0
        assert steps[1].min() < 0
        same = {
            "objective": "reg:squarederror",
            "max_depth": 5,
            "eta": 0.3,
            "tree_method": "hist",
            "nthread": 1,
        }
        constrained = {**same, "monotone_constraints": (sign, 0, 0, 0)}
        theirs = xgboost.train(constrained, xgboost.DMatrix(X, y), 20).predict(xgboost.DMatrix(X_test))
        losses = [np.mean((found - y_test) ** 2) for found in (session.booster.predict(X_test), theirs)]
        ratios.append(losses[0] / losses[1])
    assert abs(np.mean(ratios) - 1) < 0.05


def test_features_meet_on_a_path_only_where_they_may():
    """As XGBoost's constraint of the same name; a feature of no group meets none."""
    X, y, _ = data()
    groups = [["f0", "f1"], ["f1", "f3"]]
    session = run(
        X, y, PARTITIONS["3 at random"], interaction_constraints=groups, **{**SMALL, "max_depth": 6}
    )
    allowed = [{0, 1}, {1, 3}, {2}, {4}]
    paths = {path for tree in session.booster.trees for path in paths_of(tree)}
    assert all(any(path <= group for group in allowed) for path in paths)
    assert {frozenset({0, 1}), frozenset({1, 3})} <= paths
    free = {
        path
        for tree in run(X, y, PARTITIONS["3 at random"], **SMALL).booster.trees
        for path in paths_of(tree)
    }
    assert not all(any(path <= group for group in allowed) for path in free)


def paths_of(tree):
    """The features of the splits above each leaf."""
    above = {0: frozenset()}
    for node, left in enumerate(tree.left):
        if left >= 0:
            above[left] = above[left + 1] = above.pop(node) | {tree.feature[node]}
    return above.values()


def test_trees_split_by_the_columns_that_were_drawn():
    X, y, _ = data()
    session = run(X, y, one_party(ROWS), colsample_bytree=0.4, **{**SMALL, "rounds": 20})
    used = [
        {f for f, left in zip(t.feature, t.left, strict=True) if left >= 0} for t in session.booster.trees
    ]
    assert all(len(features) <= 2 for features in used)
    assert len(set().union(*used)) == 5


NOT_WITH_VOTES = "colsample_bytree", "colsample_bylevel", "colsample_bynode", "monotone_constraints"
BY_GRADIENTS = [name for name in SETTINGS if SETTINGS[name][2].get("sampling_method") == "gradient_based"]
VOTED_ON = [
    name for name in SETTINGS if name not in BY_GRADIENTS and not {*NOT_WITH_VOTES} & {*SETTINGS[name][2]}
]

# ---- votes ------------------------------------------------------------------------------------------

VOTED = {**SMALL, "vote_top_k": 2}


@pytest.mark.parametrize("kind", ["binary", "levels"])
def test_a_model_of_elected_features_is_the_same_for_every_protection_and_order(kind):
    X, y, weight = data(kind)
    levels = {"levels": LEVELS if kind == "levels" else ()}
    parts = PARTITIONS["3 at random"]
    models = {
        model_of(X, y, parts, weight, delivery=seed, protection=protection, **levels, **VOTED)
        for protection in ("plain", "masked")
        for seed in range(3)
    }
    assert len(models) == 1
    assert models != {model_of(X, y, parts, weight, **levels, **SMALL)}
    assert models != {model_of(X, y, PARTITIONS["skewed"], weight, **levels, **VOTED)}  # votes are of parties


@pytest.mark.parametrize("partition", ["one row", "columns of one sign"])
@pytest.mark.parametrize("name", VOTED_ON)
def test_with_all_features_elected_the_model_is_that_of_the_pooled_rows(name, partition):
    X, y, weight, settings = setting_of(name)
    every = {**settings, "vote_top_k": X.shape[1]}
    assert model_of(X, y, parts_of(name, partition), weight, **every) == pooled_model(name)


def test_one_party_with_all_rows_elects_what_it_splits_by():
    """Its own gains are those of all rows: the feature of highest gain is among the elected ones."""
    X, y, _ = data()
    alone = model_of(X, y, one_party(ROWS), vote_top_k=4, rounds=4, max_depth=2)
    assert alone == model_of(X, y, one_party(ROWS), rounds=4, max_depth=2)


def test_only_the_histograms_of_elected_features_are_asked_for():
    X, y, _ = data()
    asked = turns_of(X, y, PARTITIONS["3 at random"], **VOTED)
    kinds = [type(query).__name__ for query in asked.values() if hasattr(query, "nodes")]
    first = kinds[:7]
    assert first == ["HistogramQuery", *["VoteQuery", "HistogramQuery"] * 3]
    for query in asked.values():
        if isinstance(query, HistogramQuery) and query.nodes != (0,):
            assert len(query.elected) == len(query.nodes)
            assert all(1 <= len(one.features) <= 2 for one in query.elected)
        elif isinstance(query, HistogramQuery):
            assert not query.elected


# ---- quality ----------------------------------------------------------------------------------------


def split_in_two(X, y):
    order = np.random.default_rng(0).permutation(len(X))
    train, test = np.split(order, [int(0.7 * len(X))])
    return X[train], y[..., train], X[test], y[..., test]


def test_auc_is_xgboosts_on_breast_cancer():
    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    X[::7, 3] = np.nan
    X, y, X_test, y_test = split_in_two(X, y)
    session = run(X, y, randomly(len(y), 3), rounds=30)
    ours = roc_auc_score(y_test, session.booster.predict(X_test))
    same = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.3, "tree_method": "hist", "nthread": 1}
    theirs_model = xgboost.train(same, xgboost.DMatrix(X, y), 30)
    theirs = roc_auc_score(y_test, theirs_model.predict(xgboost.DMatrix(X_test)))
    assert theirs > 0.97
    assert abs(ours - theirs) < 0.01


@pytest.mark.slow
def test_rmse_is_xgboosts_on_a_regression():
    """The mean over paired seeds: a single one of these small tables scatters by 8 %."""
    ratios = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3000, 6)).astype(np.float32)
        y = (3 * X[:, 0] + X[:, 1] ** 2 + X[:, 2] * X[:, 3] + 0.3 * rng.normal(size=3000)).astype(np.float32)
        X, y, X_test, y_test = split_in_two(X, y)
        session = run(X, y, randomly(len(y), 3), rounds=30, objective="reg:squarederror")
        same = {
            "objective": "reg:squarederror",
            "max_depth": 6,
            "eta": 0.3,
            "tree_method": "hist",
            "nthread": 1,
        }
        theirs = xgboost.train(same, xgboost.DMatrix(X, y), 30).predict(xgboost.DMatrix(X_test))
        ours_rmse, theirs_rmse = (
            float(np.sqrt(np.mean((predicted - y_test) ** 2)))
            for predicted in (session.booster.predict(X_test), theirs)
        )
        assert theirs_rmse < np.std(y_test) / 2
        ratios.append(ours_rmse / theirs_rmse)
    assert abs(np.mean(ratios) - 1) < 0.05


@pytest.mark.slow
def test_probabilities_of_classes_are_xgboosts():
    """The mean over paired seeds of the log loss; three classes, one of them rare."""
    ratios = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3000, 6)).astype(np.float32)
        y = np.digitize(X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=3000), [-1.0, 2.0])
        X, y, X_test, y_test = split_in_two(X, y.astype(np.float32))
        settings = {"objective": "multi:softprob", "num_class": 3}
        session = run(X, y, randomly(len(y), 3), rounds=20, **settings)
        same = {**settings, "max_depth": 6, "eta": 0.3, "tree_method": "hist", "nthread": 1}
        theirs = xgboost.train(same, xgboost.DMatrix(X, y), 20).predict(xgboost.DMatrix(X_test))
        losses = [log_loss(y_test, p) for p in (session.booster.predict(X_test), theirs)]
        assert losses[1] < 0.5
        ratios.append(losses[0] / losses[1])
    assert abs(np.mean(ratios) - 1) < 0.05


def drawn(objective, rate, rng):
    """Labels for an objective, about these rates."""
    match objective:
        case "count:poisson":
            return rng.poisson(rate)
        case "reg:gamma":
            return np.maximum(rng.gamma(2, rate), 1e-3)
        case "reg:tweedie":
            return rng.poisson(rate) * rng.gamma(4, 100 * np.sqrt(rate))
        case "reg:pseudohubererror" | "reg:absoluteerror" | "reg:quantileerror":
            return np.log(rate) + 0.3 * rng.standard_t(2, rate.size)
        case "binary:logistic":
            return np.log(rate) + rng.normal(size=rate.size) > 1
        case "survival:aft":
            return censored(rate * rng.exponential(1, rate.size), rng)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "own", "metric"),
    [
        ("count:poisson", {}, "poisson-nloglik"),
        ("reg:gamma", {}, "gamma-deviance"),
        ("reg:tweedie", {"tweedie_variance_power": 1.3}, "tweedie-nloglik@1.3"),
        ("reg:pseudohubererror", {"huber_slope": 0.5}, "mphe"),
        ("reg:absoluteerror", {}, "mae"),
        ("reg:quantileerror", {"quantile_alpha": 0.2}, "quantile"),
        ("binary:logistic", {"scale_pos_weight": 5.0}, "aucpr"),
        ("binary:logistic", {"max_delta_step": 0.3}, "logloss"),
        ("survival:aft", {"aft_loss_distribution_scale": 0.8}, "aft-nloglik"),
        ("survival:aft", {"aft_loss_distribution": "logistic"}, "aft-nloglik"),
        ("survival:aft", {"aft_loss_distribution": "extreme"}, "interval-regression-accuracy"),
    ],
)
def test_other_losses_are_as_good_as_xgboosts(objective, own, metric):
    """The mean over paired seeds of XGBoost's own metric, on rows neither saw, of both model files."""
    ratios, settings = [], {"objective": objective, **own}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3000, 6)).astype(np.float32)
        y = drawn(objective, np.exp(X[:, 0] + X[:, 1] * X[:, 2] / 2), rng)
        X, y, X_test, y_test = split_in_two(X, y.astype(np.float32))
        session = run(X, y, randomly(len(X), 3), rounds=20, eval_metric=[metric], **settings)
        same = {**settings, "max_depth": 6, "eta": 0.3, "tree_method": "hist", "nthread": 1}
        theirs = xgboost.train(same, matrix(X, y), 20)
        ours = xgboost.Booster()
        ours.load_model(bytearray(session.booster.to_xgboost().encode()))
        theirs.feature_names = list(session.booster.features)
        wanted = {**own, "eval_metric": metric, "disable_default_eval_metric": 1}

        def score(booster, X, y, wanted=wanted, names=theirs.feature_names):
            booster.set_param(wanted)
            return float(booster.eval(matrix(X, y, feature_names=names)).split(":")[-1])

        assert session.history[-1].metrics[metric] == pytest.approx(score(ours, X, y), rel=1e-3)
        ratios.append(score(ours, X_test, y_test) / score(theirs, X_test, y_test))
    better = [1 / ratio for ratio in ratios] if grows(metric) else ratios
    assert 0.8 < np.mean(better) < 1.03  # XGBoost's Tweedie overfits so few rows more than ours


def test_amounts_far_beyond_the_others_leave_them_their_gradients():
    """One row of ten thousand times the usual amount: in 16 bits the gradients of the others would be 0."""
    X, y, _ = data("amount or nothing")
    settings = {**SMALL, "objective": "reg:tweedie", "eval_metric": "tweedie-nloglik@1.5", "rounds": 20}
    y[0] = 1e5 * y.mean()
    weight = np.ones(ROWS, np.float32)
    weight[0] = 1e-6
    found = run(X, y, PARTITIONS["3 at random"], weight, **settings)
    without = run(X[1:], y[1:], one_party(ROWS - 1), **settings)
    losses = [session.history[-1].metrics["tweedie-nloglik@1.5"] for session in (found, without)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_masks_hide_counts_as_well():
    X, y, weight, settings = setting_of("counts, weights")
    parts = PARTITIONS["3 at random"]
    assert model_of(X, y, parts, weight, protection="masked", **settings) == pooled_model("counts, weights")


@pytest.mark.parametrize("objective", ["count:poisson", "reg:tweedie"])
def test_counts_that_are_all_zero_fail_and_say_so(objective):
    X, y, _ = data()
    settings = {**SMALL, "objective": objective}
    session = run(X, np.zeros_like(y), PARTITIONS["3 at random"], **settings)
    assert session.booster is None
    assert "the label is 0 in every row of every party" in str(session.error)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
def test_leaf_values_are_quantiles_of_the_residuals_in_the_leaf(alpha, weighted):
    """The constant of the labels, the values of a tree of what that leaves, both to one part in 2**15."""
    X, y, weight = data("number")
    weight = np.ceil(weight).astype(np.float32)
    settings = {"objective": "reg:quantileerror", "quantile_alpha": alpha, "rounds": 1, "learning_rate": 1.0}
    given = weight if weighted else None
    booster = run(X, y, PARTITIONS["3 at random"], given, max_depth=2, gradient_bits=24, **settings).booster
    weight = weight if weighted else np.ones(ROWS)

    def lower_quantile(values, weight):
        order = np.argsort(values)
        until = np.cumsum(weight[order])
        return values[order][np.searchsorted(until, alpha * until[-1] * (1 - 1e-6))]

    assert booster.base_score == pytest.approx(lower_quantile(y, weight), rel=2**-15)
    leaf = booster.margins(X) - booster.constant
    values = np.unique(leaf)
    assert 3 <= values.size <= 4
    for value in values:
        rows = leaf == value
        residual = (y - np.float32(booster.constant))[rows]
        assert value == pytest.approx(lower_quantile(residual, weight[rows]), rel=2**-14, abs=1e-5)


@pytest.mark.parametrize("label", [0.0, -7.5])
def test_a_constant_label_has_no_quantiles_to_learn(label):
    X, y, _ = data()
    settings = {**SMALL, "objective": "reg:absoluteerror"}
    session = run(X, np.full_like(y, label), PARTITIONS["3 at random"], **settings)
    assert "the label is the same in every row of every party" in str(session.error)


def test_weights_of_residuals_that_do_not_add_up_fail_the_session():
    X, y, _ = data("number")
    parts = PARTITIONS["3 at random"]
    settings = {**SMALL, "objective": "reg:absoluteerror"}
    asked = turns_of(X, y, parts, **settings)
    turns = [turn for turn, query in asked.items() if isinstance(query, ResidualQuery)]
    assert len(turns) == 3 * (SMALL["rounds"] + 1)
    for turn in (turns[1], turns[5]):
        session = run(X, y, parts, spoil=spoiling(turn, asked[turn], 3), **settings)
        assert f"turn {turn}: the weights of residuals do not sum" in str(session.error)


@pytest.mark.slow
def test_auc_is_xgboosts_where_sets_of_levels_tell_the_label():
    """Means over paired seeds; as numbers the levels tell less in as many trees."""
    ours, theirs, as_numbers = [], [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = np.column_stack([rng.normal(size=3000), *(rng.integers(0, size, 3000) for size in (3, 20, 60))])
        effect = [rng.normal(size=size) for size in (3, 20, 60)]
        signal = sum(of[X[:, f].astype(int)] for f, of in enumerate(effect, 1)) + 0.3 * X[:, 0]
        X[rng.random(X.shape) < 0.05] = np.nan
        y = (signal + 0.5 * rng.normal(size=3000) > 0).astype(np.float32)
        X, y, X_test, y_test = split_in_two(X.astype(np.float32), y)
        for levels, scores in (((3, 20, 60), ours), ((), as_numbers)):
            session = run(X, y, randomly(len(y), 3), rounds=10, max_depth=4, levels=levels)
            scores.append(roc_auc_score(y_test, session.booster.predict(X_test)))
        same = {"objective": "binary:logistic", "max_depth": 4, "tree_method": "hist", "nthread": 1}
        kinds = {"feature_types": ["q", "c", "c", "c"], "enable_categorical": True}
        model = xgboost.train(same, xgboost.DMatrix(X, y, **kinds), 10)
        theirs.append(roc_auc_score(y_test, model.predict(xgboost.DMatrix(X_test, **kinds))))
    assert np.mean(theirs) > 0.85
    assert abs(np.mean(ours) - np.mean(theirs)) < 0.005
    assert np.mean(ours) > np.mean(as_numbers) + 0.02


def test_each_round_learns_what_the_last_one_left():
    X, y, _ = data("number")
    session = run(X, y, PARTITIONS["5 at random"], **{**REGRESSION, "rounds": 12})
    rmse = [round_.metrics["rmse"] for round_ in session.history]
    assert rmse == sorted(rmse, reverse=True)
    assert rmse[-1] < np.std(y) / 3


# ---- odd data ---------------------------------------------------------------------------------------


def test_a_feature_that_is_missing_everywhere():
    X, y, _ = data()
    X[:, 2] = np.nan
    text = model_of(X, y, PARTITIONS["3 at random"], **SMALL)
    assert text == model_of(X, y, one_party(ROWS), **SMALL)
    trees = json.loads(text)["learner"]["gradient_booster"]["model"]["trees"]
    inner = [
        f for t in trees for f, left in zip(t["split_indices"], t["left_children"], strict=True) if left > 0
    ]
    assert inner
    assert 2 not in inner


def test_a_feature_that_is_missing_at_one_party_only():
    X, y, _ = data()
    parts = PARTITIONS["3 at random"]
    X[parts[1], 0] = np.nan
    assert model_of(X, y, parts, **SMALL) == model_of(X, y, one_party(ROWS), **SMALL)


def test_nothing_but_constant_features_gives_the_base_score():
    X, y, _ = data()
    session = run(np.ones_like(X), y, PARTITIONS["3 at random"], **SMALL)
    assert all(tree.left == [-1] for tree in session.booster.trees)
    assert session.booster.predict(np.ones((1, 5), np.float32))[0] == pytest.approx(y.mean(), abs=1e-4)


@pytest.mark.parametrize("label", [0, 1])
def test_a_constant_label_fails_and_says_so(label):
    X, y, _ = data()
    session = run(X, np.full_like(y, label), PARTITIONS["3 at random"], **SMALL)
    assert session.booster is None
    assert session.phase == "failed"
    assert f"the label is {label} in every row of every party" in str(session.error)


@pytest.mark.parametrize("label", [0, 1])
def test_a_constant_label_with_weights_fails_and_says_so(label):
    X, y, weight = data()
    session = run(X, np.full_like(y, label), PARTITIONS["3 at random"], weight, **SMALL)
    assert session.booster is None
    assert f"the label is {label} in every row of every party" in str(session.error)


@pytest.mark.parametrize("label", [0.0, 7.5, -1e9, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_constant_label_of_a_regression_fails_and_says_so(label, weighted):
    X, y, weight = data()
    parts = PARTITIONS["3 at random"]
    session = run(X, np.full_like(y, label), parts, weight if weighted else None, **REGRESSION)
    assert session.booster is None
    assert "the label is the same in every row of every party" in str(session.error)


@pytest.mark.parametrize("far", [1e4, -1e5])
def test_labels_far_from_zero_are_learned(far):
    X, y, _ = data("number")
    session = run(X, (y + far).astype(np.float32), PARTITIONS["3 at random"], **{**REGRESSION, "rounds": 12})
    assert session.history[-1].metrics["rmse"] < np.std(y) / 3


def test_weights_that_are_all_zero_fail_and_say_so():
    X, y, weight = data()
    session = run(X, y, PARTITIONS["3 at random"], np.zeros_like(weight), **SMALL)
    assert session.booster is None
    assert "weights of all parties sum to zero" in str(session.error)


def test_a_base_score_of_the_terms_is_taken():
    X, y, _ = data()
    session = run(X, y, PARTITIONS["3 at random"], base_score=0.25, **SMALL)
    assert session.booster.base_score == 0.25


def test_rows_of_weight_zero_count_for_nothing():
    """They move no cut point that matters here: the features have few values."""
    X, y, _ = data()
    X = np.nan_to_num(np.round(X[:, :4]))
    weight = (np.arange(ROWS) % 4 > 0).astype(np.float32)
    kept = weight > 0
    flipped = np.where(kept, y, 1 - y)
    parts = PARTITIONS["3 at random"]
    assert model_of(X, y, parts, weight, **SMALL) == model_of(X, flipped, parts, weight, **SMALL)


@pytest.mark.parametrize("size", [1e-30, 1e16])
def test_labels_of_any_size(size):
    X, y, _ = data("number")
    y = (y * size).astype(np.float32)
    session = run(X, y, PARTITIONS["3 at random"], **{**REGRESSION, "rounds": 8})
    assert session.error is None
    assert np.isfinite(session.booster.predict(X)).all()
    if size > 1:
        assert np.std(session.booster.predict(X) - y) < np.std(y.astype(np.float64)) / 2


def test_parties_are_asked_for_the_smaller_child():
    X, y, _ = data()
    own = X[:, :1].copy()
    terms = terms_of(own, 1, rounds=5, max_depth=2)
    party, program = HorizontalHolder(lambda: shard_of(own, y), terms), train(terms, [])
    query, hessians = next(program), []
    while query:
        total = party.answer(query)
        if isinstance(query, HistogramQuery):
            hessians.append((query.nodes, int(total[1::2].sum())))  # one feature: its bins are all bins
        try:
            query = program.send(total)
        except StopIteration:
            query = None
    roots = [hessian for nodes, hessian in hessians if nodes == (0,)]
    children = [hessian for nodes, hessian in hessians if nodes != (0,)]
    assert len(roots) == len(children) == 5
    assert all(2 * child <= root for root, child in zip(roots, children, strict=True))


# ---- reports that cannot be -------------------------------------------------------------------------


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


def test_a_report_that_breaks_an_invariant_fails_the_session_and_names_the_turn():
    X, y, _ = data()
    parts = PARTITIONS["3 at random"]
    asked = turns_of(X, y, parts, **SMALL)
    kinds = {}
    for turn, query in asked.items():
        kinds.setdefault(type(query).__name__, []).append(turn)
    spoilt = {
        "a grid": kinds["QuantileQuery"][0],
        "a finer grid": kinds["QuantileQuery"][1],
        "a root": kinds["HistogramQuery"][0],
        "a child": kinds["HistogramQuery"][1],
    }
    for what, turn in spoilt.items():
        last = sum(run.cells for run in asked[turn].segments) - 1
        for cell, by in ((3, 1), (3, -1), (3, 1 << 5), (last, 1), (last, -1)):
            session = run(X, y, parts, spoil=spoiling(turn, asked[turn], cell, by), **SMALL)
            assert session.phase == "failed", (what, cell, by)
            assert session.booster is None
            assert f"turn {turn}:" in str(session.error), what


@pytest.mark.parametrize(
    ("kind", "cell", "by", "says"),
    [
        ("RowsQuery", 0, -(10**6), "the parties count"),
        ("RowsQuery", 0, 1 << 62, "the parties count"),
        ("RowsQuery", 1, -(10**6), "the parties count"),
        ("StartQuery", 0, 1 << 38, "make the mean label"),
        ("EndRoundQuery", 0, -(10**8), "metric sums that cannot be"),
        ("EndRoundQuery", 1, -(1 << 36), "metric sums that cannot be"),
    ],
)
def test_a_sum_that_cannot_be_fails_the_session_with_a_sentence(kind, cell, by, says):
    X, y, _ = data()
    parts = PARTITIONS["3 at random"]
    asked = turns_of(X, y, parts, **SMALL)
    turn = max(turn for turn, query in asked.items() if type(query).__name__ == kind)
    session = run(X, y, parts, spoil=spoiling(turn, asked[turn], cell, by), **SMALL)
    assert session.phase == "failed"
    assert str(session.error).startswith(f"turn {turn}: ")
    assert says in str(session.error)


@pytest.mark.parametrize("fewer", [(6, 0), (0, 6), (6, 6)])
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_cells_that_are_too_narrow_never_give_a_model(protection, fewer):
    """Parties see that their own sums do not fit where the aggregator may know it, and all is masked else:
    then the total of the bins shows it."""

    def narrow(terms, grown):
        program = train(terms, grown)
        query = next(program)
        while True:
            if isinstance(query, HistogramQuery):
                widths = tuple((g - fewer[0], h - fewer[1]) for g, h in query.widths)
                query = dataclasses.replace(query, widths=widths)
            try:
                query = program.send((yield query))
            except StopIteration as end:
                return end.value

    X, y, _ = data()
    session = run(X, y, PARTITIONS["3 at random"], program=narrow, protection=protection, **SMALL)
    assert session.phase == "failed"
    assert session.booster is None
    says = "too narrow for the sums" if protection == "plain" else "sum to the same total"
    assert says in str(session.error)


def test_a_party_of_too_few_bytes_is_named():
    X, y, _ = data()

    def cut(party, message):
        return (
            dataclasses.replace(message, cells=message.cells[:-1]) if isinstance(message, Report) else message
        )

    session = run(X, y, one_party(ROWS), spoil=cut, **SMALL)
    assert str(session.error).startswith("party p0 broke the protocol: 87 bytes")
