"""Boosting: the same model, byte for byte, for every partition of the rows."""

import json

import numpy as np
import pytest
from inprocess import model_of, one_party, run, shard_of, terms_of
from trainings import (
    PARTITIONS,
    ROWS,
    SETTINGS,
    SMALL,
    data,
    one_by_one,
    parts_of,
    pooled_model,
    setting_of,
    turns_of,
)

from fedboost.boosting.programs.boosting import train
from fedboost.boosting.queries.labels import RowsQuery, StartQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.protocol.contracts import Several

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
    rows, grids = next(train(terms_of(X, 1, **settings), [])).parts
    assert rows == RowsQuery()
    assert grids.grids.features == 2
    X, y, _, settings = setting_of("nothing but levels")
    kinds = [type(query) for query in turns_of(X, y, one_party(ROWS), **settings).values()]
    assert kinds[:3] == [RowsQuery, StartQuery, Several]


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


# ---- quality ----------------------------------------------------------------------------------------


def test_masks_hide_counts_as_well():
    X, y, weight, settings = setting_of("counts, weights")
    parts = PARTITIONS["3 at random"]
    assert model_of(X, y, parts, weight, protection="masked", **settings) == pooled_model("counts, weights")


# ---- odd data ---------------------------------------------------------------------------------------


def test_parties_are_asked_for_the_smaller_child():
    X, y, _ = data()
    own = X[:, :1].copy()
    terms = terms_of(own, 1, rounds=5, max_depth=2)
    party, program = HorizontalHolder(lambda: shard_of(own, y), terms), one_by_one(train(terms, []))
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
