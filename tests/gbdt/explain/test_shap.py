"""Contributions: by definition, and as XGBoost's."""

from dataclasses import replace

import numpy as np
import pytest
import xgboost
from boosters import PLAIN_AND_ONE_FOREST, load, presence_model, trained_with
from explained import VALUES, booster_of, chain, drawn
from inprocess import randomly, run
from raised import raised

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.built_in import Logistic
from fedboost.gbdt.tree import Tree
from fedboost.views.charts import tree_svg, tree_text
from tests.gbdt.reference import shap as reference

trained = trained_with(PLAIN_AND_ONE_FOREST, rounds=6, max_depth=5)


def matrix(X, booster, base_margin=None):
    return xgboost.DMatrix(X, feature_names=list(booster.features), base_margin=base_margin)


# ---- contributions ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("features", [1, 2, 5])
@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_contributions_are_shapleys_values(features, depth):
    rng = np.random.default_rng(8 * depth + features)
    trees, naive = zip(*[drawn(rng, features, depth) for _ in range(5)], strict=True)
    rows = rng.choice(VALUES, (12, features))
    found = booster_of(trees, features).contributions(rows)
    assert found.shape == (12, features + 1)
    for row, one in zip(rows, found, strict=True):
        due = [
            float(sum(parts))
            for parts in zip(*[reference.shapley_values(row, t) for t in naive], strict=True)
        ]
        assert one == pytest.approx(due, rel=1e-12, abs=1e-12)


def test_contributions_are_xgboosts(trained):
    X, booster = trained
    rows = np.concatenate([X, np.full((1, 5), np.nan, np.float32), np.full((1, 5), 3e38, np.float32)])
    theirs = load(booster.to_xgboost()).predict(matrix(rows, booster), pred_contribs=True)
    ours = booster.contributions(rows)
    assert ours.shape == theirs.shape == (len(rows), *[3] * (booster.loss.outputs == 3), 6)
    assert ours.dtype == np.float64
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    moved = np.abs(ours).reshape(-1, 6).max(axis=0)[:-1] > 0
    assert {name for name, found in zip(booster.features, moved, strict=True) if found} == {
        *booster.importance()
    }


def test_base_margins_are_part_of_the_bias(trained):
    X, booster = trained
    if booster.loss.outputs > 1:
        return
    base = np.linspace(-2, 2, len(X)).astype(np.float32)
    ours = booster.contributions(X, base)
    theirs = load(booster.to_xgboost()).predict(matrix(X, booster, base), pred_contribs=True)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert np.abs(ours.sum(axis=1) - booster.margins(X, base)).max() <= 1e-12 * np.abs(theirs).max()


def test_contributions_add_up_to_the_margin(trained):
    X, booster = trained
    margins = booster.margins(X)
    sums = booster.contributions(X).sum(axis=-1).T
    assert np.abs(sums - margins).max() <= 1e-13 * max(1.0, np.abs(margins).max())


def test_rows_of_very_many_features_are_explained():
    booster = booster_of([drawn(np.random.default_rng(1), 4, 4)[0]], 60_000)
    X = np.random.default_rng(2).choice(VALUES, (200, 4))
    wide = np.zeros((200, 60_000), np.float32)
    wide[:, :4] = X
    found = booster.contributions(wide)
    assert found[:, [0, 1, 2, 3, -1]].tolist() == booster_of(booster.trees).contributions(X).tolist()
    assert not found[:, 4:-1].any()


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 4096, 4097])
def test_a_row_is_explained_the_same_among_others(rows):
    rng = np.random.default_rng(rows)
    booster = booster_of([drawn(rng, 4, 4)[0] for _ in range(3)])
    X = rng.choice(VALUES, (rows, 4))
    whole = booster.contributions(X)
    assert whole.shape == (rows, 5)
    for row in {0, rows // 2, rows - 1} if rows else ():
        assert booster.contributions(X[row : row + 1]).tolist() == [whole[row].tolist()]
    assert booster.contributions(X[::-1]).tolist() == whole[::-1].tolist()


def test_a_split_into_present_and_missing_contributes():
    booster = presence_model()
    rows = np.array([[0, 1], [0, np.nan], [np.nan, 3e38]], np.float32)
    assert booster.contributions(rows).tolist() == [[0, 0.25, 10.25], [0, -0.75, 10.25], [0, 0.25, 10.25]]
    theirs = load(booster.to_xgboost()).predict(matrix(rows, booster), pred_contribs=True)
    assert theirs.tolist() == booster.contributions(rows).tolist()


def test_a_model_of_no_trees_contributes_its_constant():
    booster = Booster(Logistic(), 0.25, ("a", "b"), ())
    assert booster.contributions(np.zeros((2, 2), np.float32)).tolist() == [[0, 0, booster.constant]] * 2


def test_a_deep_tree():
    """A chain of splits as deep as terms allow, and a good deal deeper."""
    for depth, features in ((16, 16), (16, 3), (400, 2)):
        tree = chain(depth, features)
        booster = booster_of([tree], features)
        rows = np.random.default_rng(depth).choice(VALUES, (70, features))
        found = booster.contributions(rows)
        assert np.abs(found.sum(axis=1) - booster.margins(rows)).max() <= 1e-12 * depth
        if depth == 16:
            theirs = load(booster.to_xgboost()).predict(matrix(rows, booster), pred_contribs=True)
            assert np.abs(found - theirs).max() <= 1e-4 * np.abs(theirs).max()


# ---- what is no tree --------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [[1, 3, 3, -1, -1], [1, -1, -1, -1, -1], [3, -1, -1, -1, -1]])
def test_nodes_with_two_parents_or_none_are_refused(left):
    columns = {name: [0] * 5 for name in ("feature", "threshold", "value", "gain", "cover")}
    booster = replace(presence_model(), trees=(Tree.of_columns(left, **columns),))
    with raised(ConfigError, "model-bad-tree"):
        Booster.from_xgboost(booster.to_xgboost(), "m.json")


# ---- categorical splits -----------------------------------------------------------------------------


def test_splits_by_levels_are_explained_and_written_as_xgboosts():
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(size=600), rng.integers(0, 3, 600), rng.integers(0, 12, 600)])
    y = np.isin(X[:, 2], [1, 4, 7]) + 0.5 * (X[:, 1] == 2) + 0.2 * X[:, 0] > 0.6
    X[rng.random(X.shape) < 0.1] = np.nan
    X = X.astype(np.float32)
    settings = {"rounds": 5, "max_depth": 4, "levels": (3, 12)}
    booster = run(X, y.astype(np.float32), randomly(600, 2), **settings).booster
    assert any(tree.by_category.any() for tree in booster.trees)
    kinds = {"feature_types": ["q", "c", "c"], "enable_categorical": True}
    theirs = load(booster.to_xgboost())
    found = theirs.predict(
        xgboost.DMatrix(X, feature_names=list(booster.features), **kinds), pred_contribs=True
    )
    ours = booster.contributions(X)
    assert np.abs(ours - found).max() <= 1e-5 * np.abs(found).max()
    assert np.abs(ours.sum(axis=1) - booster.margins(X)).max() <= 1e-12
    dump = theirs.get_dump(with_stats=True)
    assert [tree_text(tree, booster.features) for tree in booster.trees] == dump
    levels = {"f1": ["a", "b", "c"], "f2": [f"level {code}" for code in range(12)]}
    pictures = [tree_svg(tree, booster.features, levels, "tree") for tree in booster.trees]
    assert any("level " in picture for picture in pictures)
