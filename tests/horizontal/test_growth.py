"""How trees grow: leaves, forests, constraints, drawn columns."""

import numpy as np
import pytest
import xgboost
from inprocess import one_party, randomly, run
from sklearn.metrics import roc_auc_score
from trainings import CLASSES, PARTITIONS, REGRESSION, ROWS, SMALL, data, split_in_two


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
