"""Symmetric trees: the split of a level is that of the highest sum of gains over the nodes of pooled rows."""

import numpy as np
import pytest
import xgboost
from inprocess import model_of, one_party, randomly, run, terms_of
from naive_symmetric import train as train_naively
from trainings import LEVELS, ROWS, SMALL, data, turns_of

from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.gbdt.booster import Booster

SHAPE = {"grow_policy": "symmetric", "rounds": 2, "max_depth": 3, "max_bin": 8, "min_child_weight": 2.0}
SETTINGS = {
    "logistic": ("binary", {}),
    "light leaves": ("binary", {"min_child_weight": 0.0, "reg_lambda": 0.0, "max_depth": 4}),
    "heavy leaves": ("binary", {"min_child_weight": 12.0, "max_depth": 5}),
    "squared error": ("number", {"objective": "reg:squarederror", "min_child_weight": 20.0}),
    "gamma": ("binary", {"gamma": 6.0, "max_depth": 5}),
    "penalties": ("binary", {"reg_alpha": 2.0, "max_delta_step": 0.3, "min_child_weight": 0.5}),
    "classes": ("classes", {"objective": "multi:softprob", "num_class": 3}),
    "few levels": ("levels", {"levels": (4, 30, 255), "max_depth": 2, "rounds": 1, "max_cat_to_onehot": 5}),
    "levels": ("levels", {"levels": LEVELS}),
    "levels, penalties": ("levels", {"levels": LEVELS, "reg_alpha": 0.3, "max_cat_threshold": 3}),
    "monotone": ("binary", {"monotone_constraints": {"f0": 1, "f3": -1}, "max_depth": 4}),
    "columns drawn": ("binary", {"colsample_bytree": 0.8, "colsample_bylevel": 0.5}),
    "forest": (
        "classes",
        {"objective": "multi:softprob", "num_class": 3, "num_parallel_tree": 2, "rounds": 1},
    ),
}
_whole = {}


def whole(name):
    """Rows, labels, settings, and the model of one party that has all rows."""
    if name not in _whole:
        kind, settings = SETTINGS[name]
        X, y, _ = data(kind)
        settings = {**SHAPE, **settings}
        _whole[name] = X, y, settings, run(X, y, one_party(ROWS), **settings).booster
    return _whole[name]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_trees_are_those_of_every_split_tried_on_pooled_rows(name):
    X, y, settings, booster = whole(name)
    asked = turns_of(X, y, one_party(ROWS), **settings)
    due = train_naively(X, y, terms_of(X, 1, **settings), asked)
    assert len(booster.trees) == len(due)
    for tree, expected in zip(booster.trees, due, strict=True):
        assert tree == expected


@pytest.mark.parametrize("protection", ["plain", "masked"])
@pytest.mark.parametrize("parties", [3, 7])
@pytest.mark.parametrize("name", SETTINGS)
def test_any_number_of_parties_grows_them(name, parties, protection):
    X, y, settings, booster = whole(name)
    text = model_of(X, y, randomly(ROWS, parties, parties), protection=protection, **settings)
    assert text == booster.to_xgboost()


def by_level(tree):
    """(feature, threshold, missing left, categories) of the split nodes at each depth."""
    depth, levels = {0: 0}, {}
    for node, left in enumerate(tree.left):
        if left >= 0:
            depth[left] = depth[left + 1] = depth[node] + 1
            decision = (
                tree.feature[node],
                tree.threshold[node],
                tree.missing_left[node],
                *tree.levels(node),
            )
            levels.setdefault(depth[node], []).append(decision)
    return levels


@pytest.mark.parametrize("name", SETTINGS)
def test_each_level_has_one_split_and_no_leaf_is_too_light(name):
    _, _, settings, booster = whole(name)
    assert max(len(by_level(tree)) for tree in booster.trees) > 1
    for tree in booster.trees:
        assert all(len({*decisions}) == 1 for decisions in by_level(tree).values())
        if len(tree) > 1:
            assert all(tree.cover[node] >= settings["min_child_weight"] for node in tree.leaves)


def test_a_node_stays_a_leaf_where_a_child_would_be_too_light():
    """And later levels leave it out."""
    X, y, settings, booster = whole("heavy leaves")
    kept = [len(tree.leaves) < 1 << len(by_level(tree)) for tree in booster.trees]
    assert all(kept)
    settings = {**settings, "min_child_weight": 0.0, "reg_lambda": 1.0}
    light = run(X, y, one_party(ROWS), **settings).booster
    assert len(light.trees[0].leaves) > len(booster.trees[0].leaves)


def test_parallel_trees_and_classes_have_splits_of_their_own():
    _, _, _, booster = whole("forest")
    X, y, _ = data("classes")
    settings = {**SETTINGS["forest"][1], **SHAPE, "subsample": 0.5, "num_class": 3}
    trees = run(X, y, one_party(ROWS), **settings).booster.trees
    assert len({tuple(by_level(tree)[0]) for tree in trees}) > 2
    assert len({tuple(by_level(tree)[0]) for tree in booster.trees}) == 3


def test_one_level_is_that_of_other_trees():
    """A level of one node has the split of that node."""
    X, y, _ = data()
    one = {**SMALL, "max_depth": 1}
    symmetric = run(X, y, one_party(ROWS), **one, grow_policy="symmetric").booster
    assert symmetric == run(X, y, one_party(ROWS), **one).booster
    deep = [
        run(X, y, one_party(ROWS), **SMALL, grow_policy=policy).booster
        for policy in ("symmetric", "depthwise")
    ]
    assert deep[0] != deep[1]


def test_a_gain_that_gamma_asks_for_is_that_of_each_split():
    """The sum over a level is at least gamma times the nodes that are split."""
    _, _, settings, booster = whole("gamma")
    for tree in booster.trees:
        depth, gains = {0: 0}, {}
        for node, left in enumerate(tree.left):
            if left >= 0:
                depth[left] = depth[left + 1] = depth[node] + 1
                gains.setdefault(depth[node], []).append(tree.gain[node])
        assert all(np.mean(own) >= settings["gamma"] * (1 - 1e-6) for own in gains.values())
    X, y, _ = data()
    free = run(X, y, one_party(ROWS), **{**settings, "gamma": 0.0}).booster
    assert len(free.trees[0].leaves) > len(booster.trees[0].leaves)


@pytest.mark.parametrize("name", ["logistic", "squared error", "classes", "levels", "monotone", "forest"])
def test_xgboost_loads_them_and_predicts_the_same(name):
    X, _, _, booster = whole(name)
    theirs = xgboost.Booster()
    theirs.load_model(bytearray(booster.to_xgboost().encode()))
    kinds = ["c" if feature in booster.categorical else "float" for feature in booster.features]
    rows = xgboost.DMatrix(X, feature_names=[*booster.features], feature_types=kinds, enable_categorical=True)
    np.testing.assert_allclose(theirs.predict(rows), booster.predict(X), rtol=1e-5, atol=1e-5)
    assert Booster.from_xgboost(booster.to_xgboost())[0] == booster


def test_features_meet_on_a_path_only_where_they_may():
    X, y, _ = data()
    groups = [{0, 1}, {1, 3}]
    named = [[f"f{feature}" for feature in sorted(group)] for group in groups]
    settings = {**SHAPE, "max_depth": 5, "rounds": 6, "interaction_constraints": named}
    trees = run(X, y, one_party(ROWS), **settings).booster.trees
    used = [{decision[0] for own in by_level(tree).values() for decision in own} for tree in trees]
    assert all(any(features <= group for group in [*groups, {2}, {4}]) for features in used)
    assert any(len(features) == 2 for features in used)


def test_parties_are_asked_for_the_smaller_child_alone():
    """The other one is the parent minus it."""
    X, y, settings, _ = whole("logistic")
    asked = [part for query in turns_of(X, y, one_party(ROWS), **settings).values() for part in query.parts]
    levels = [part for part in asked if isinstance(part, HistogramQuery) and part.nodes != (0,)]
    assert levels
    assert all(len(query.nodes) == len(query.splits) for query in levels)
