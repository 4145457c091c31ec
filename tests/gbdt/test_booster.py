"""The model: XGBoost reads what is written and predicts the same."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xgboost
from boosters import EVERY, OBJECTIVES, RATES, level_model, load, presence_model, trained_with
from inprocess import randomly, run
from raised import raised

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.built_in import Logistic
from fedboost.gbdt.tree import NO_CHILD, Tree

trained = trained_with(EVERY, rounds=8, max_depth=4)


def strictly(text):
    """JSON as the standard has it: no Infinity, no NaN."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


# ---- XGBoost reads it -------------------------------------------------------------------------------


def test_xgboost_predicts_the_same(trained):
    X, booster = trained
    loaded = load(booster.to_xgboost())
    everything_missing = np.full((1, 5), np.nan, np.float32)
    extremes = np.array([[s * np.finfo(np.float32).max] * 5 for s in (1, -1)], np.float32)
    rows = np.concatenate([X, everything_missing, extremes])
    of_xgboost = xgboost.DMatrix(rows, feature_names=list(booster.features))
    rate = booster.objective in RATES  # of which e**margin shows the last bit of a float32 ten times as large
    theirs = loaded.predict(of_xgboost, output_margin=rate)
    ours = booster.margins(rows) if rate else booster.predict(rows)
    assert np.abs(ours - theirs).max() <= 1e-6 * max(1.0, np.abs(theirs).max())
    assert np.std(ours[:-3]) > 0.1


def test_both_directions_and_presence_splits_occur(trained):
    _, booster = trained
    splits = [(t, n) for t in booster.trees for n, left in enumerate(t.left) if left != NO_CHILD]
    assert {t.missing_left[n] for t, n in splits} == {False, True}
    assert any(math.isinf(t.threshold[n]) for t, n in splits)


def test_xgboost_reads_names_covers_and_gains(trained):
    _, booster = trained
    loaded = load(booster.to_xgboost())
    assert loaded.feature_names == list(booster.features)
    assert loaded.num_boosted_rounds() == len(booster.trees) // booster.roots == 8
    for kind in ("gain", "cover", "weight"):
        theirs = loaded.get_score(importance_type=kind)
        ours = booster.importance(kind)
        assert ours == pytest.approx(theirs, rel=1e-6)
        assert list(ours.values()) == sorted(ours.values(), reverse=True)


def test_a_split_into_present_and_missing():
    booster = presence_model()
    rows = np.array([[0, 1], [0, np.nan], [0, -3e38], [0, np.finfo(np.float32).max]], np.float32)
    assert booster.predict(rows).tolist() == [10.5, 9.5, 10.5, 10.5]
    theirs = load(booster.to_xgboost()).predict(xgboost.DMatrix(rows, feature_names=["a", "b"]))
    assert theirs.tolist() == [10.5, 9.5, 10.5, 10.5]
    assert Booster.from_xgboost(booster.to_xgboost())[0] == booster


def test_xgboost_takes_frames_with_names_of_every_script():
    booster = replace(presence_model(), features=("größe", 'a "b"\\ 年齢 😀'))
    rows = np.array([[0, 1], [0, np.nan]], np.float32)
    frame = pd.DataFrame(rows, columns=list(booster.features))
    theirs = load(booster.to_xgboost()).predict(xgboost.DMatrix(frame))
    assert theirs.tolist() == booster.predict(rows).tolist() == [10.5, 9.5]
    assert Booster.from_xgboost(booster.to_xgboost())[0] == booster


def test_the_file_is_json_for_a_strict_parser(trained):
    _, booster = trained
    for one in (booster, presence_model()):
        text = one.to_xgboost()
        assert strictly(text)["version"] == [2, 0, 0]


def test_a_model_of_no_trees_is_its_constant():
    booster = Booster(Logistic(), 0.25, ("a",), ())
    rows = np.zeros((2, 1), np.float32)
    assert booster.predict(rows) == pytest.approx([0.25, 0.25], rel=1e-7)
    assert booster.importance() == {}
    assert Booster.from_xgboost(booster.to_xgboost())[0] == booster


@pytest.mark.parametrize("score", [1e-6, 0.2, 0.9936, 0.99996, 0.9999999])
def test_a_base_score_near_0_or_1_is_the_margin_xgboost_makes_of_it(score):
    booster = Booster(Logistic(), float(np.float32(score)), ("a",), (Tree.leaf(),))
    rows = np.zeros((1, 1), np.float32)
    theirs = load(booster.to_xgboost()).predict(
        xgboost.DMatrix(rows, feature_names=["a"]), output_margin=True
    )
    assert booster.margins(rows) == pytest.approx(theirs, rel=2e-7)


# ---- levels -----------------------------------------------------------------------------------------


LEVELS = (3, 12, 255)
"""Levels of the categorical features; the first are few enough for splits of one level."""


@pytest.fixture(scope="module", params=["binary:logistic", "multi:softprob"])
def by_levels(request):
    """Rows, and a model of them whose last features are categorical."""
    rng = np.random.default_rng(9)
    X = np.column_stack([rng.normal(size=2000), *(rng.integers(0, size, 2000) for size in LEVELS)])
    signal = X[:, 0] + sum(rng.normal(size=size)[X[:, f].astype(int)] for f, size in enumerate(LEVELS, 1))
    X[rng.random(X.shape) < 0.1] = np.nan
    settings = {"objective": request.param, **OBJECTIVES[request.param]}
    y = np.digitize(signal, [-1.0, 1.0] if settings.get("num_class") else [0.0]).astype(np.float32)
    session = run(
        X.astype(np.float32), y, randomly(2000, 2), rounds=6, max_depth=5, levels=LEVELS, **settings
    )
    assert session.error is None
    return X.astype(np.float32), session.booster


def test_xgboost_predicts_the_same_by_levels(by_levels):
    X, booster = by_levels
    rng = np.random.default_rng(0)
    no_levels = np.array([-1e30, -1, -0.5, -0.0, 0.5, 1.5, 254.7, 255, 256, 2**24, 1e30, np.nan], np.float32)
    odd = np.column_stack([np.zeros(500), rng.choice(no_levels, (500, 3))]).astype(np.float32)
    rows = np.concatenate([X, odd, np.full((1, 4), np.nan, np.float32)])
    kinds = {"feature_types": ["q", "c", "c", "c"], "enable_categorical": True}
    matrix = xgboost.DMatrix(rows, feature_names=list(booster.features), **kinds)
    theirs, ours = load(booster.to_xgboost()).predict(matrix), booster.predict(rows)
    assert np.abs(ours - theirs).max() <= 1e-6
    assert np.std(ours[2000:], axis=0).max() > 0.05


def test_a_model_by_levels_is_read_back_and_xgboost_saves_the_same(by_levels):
    X, booster = by_levels
    text = booster.to_xgboost()
    again, _ = Booster.from_xgboost(text)
    assert again == booster
    assert again.to_xgboost() == text
    assert again.predict(X).tolist() == booster.predict(X).tolist()
    trees = json.loads(text)["learner"]["gradient_booster"]["model"]["trees"]
    kept = json.loads(load(text).save_raw("json"))["learner"]
    assert kept["feature_types"] == ["float", "c", "c", "c"]
    for theirs, mine in zip(kept["gradient_booster"]["model"]["trees"], trees, strict=True):
        for key in (
            "split_type",
            "categories",
            "categories_nodes",
            "categories_segments",
            "categories_sizes",
        ):
            assert theirs[key] == mine[key]
    sizes = {size for tree in trees for size in tree["categories_sizes"]}
    assert 1 in sizes
    assert max(sizes) > 64


def test_levels_of_the_set_go_right_and_all_else_where_missing_values_or_left():
    booster = level_model()
    rows = np.array([[0, b] for b in (0, 1, 2, 3, 4, 254, 300, -1, np.nan)], np.float32)
    assert booster.predict(rows).tolist() == [10.5, 9.5, 10.5, 9.5, 10.5, 10.5, 10.5, 10.5, 10.5]
    assert Booster.from_xgboost(booster.to_xgboost())[0] == booster
    document = json.loads(booster.to_xgboost())["learner"]["gradient_booster"]["model"]["trees"][0]
    assert [document[f"categories{key}"] for key in ("", "_nodes", "_segments", "_sizes")] == [
        [1, 3],
        [0],
        [0],
        [2],
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"split_type": [0, 0, 0]},
        {"split_type": [1, 1, 0]},
        {"split_indices": [0, 0, 0]},  # a numeric feature
        {"categories": [1, 255]},
        {"categories": [-1, 3]},
        {"categories": [3, 1]},
        {"categories": [1, 1]},
        {"categories": [1.5, 3]},
        {"categories": [1, 10**30]},
        {"categories": [], "categories_sizes": [0]},  # nothing goes right
        {"categories": [], "categories_nodes": [], "categories_segments": [], "categories_sizes": []},
        {"categories_nodes": [1]},  # a leaf
        {"categories_nodes": [3]},
        {"categories_nodes": [-3]},
        {"categories_segments": [1]},
        {"categories_sizes": [3]},
        {"categories_sizes": []},
    ],
)
def test_sets_of_levels_that_are_none(changes):
    document = json.loads(level_model().to_xgboost())
    document["learner"]["gradient_booster"]["model"]["trees"][0].update(changes)
    with raised(ConfigError, "model-altered", "model-not-readable", "model-split-kind"):
        Booster.from_xgboost(json.dumps(document), "m.json")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_leaves_whose_value_is_no_number(value):
    document = json.loads(level_model().to_xgboost())
    document["learner"]["gradient_booster"]["model"]["trees"][0]["split_conditions"][2] = value
    with raised(ConfigError, "model-leaf-value"):
        Booster.from_xgboost(json.dumps(document), "m.json")


@pytest.mark.parametrize("kinds", [["float", "float"], ["c", "c"], ["float", "q"], ["float"], [], None])
def test_kinds_of_features_that_do_not_fit_the_splits(kinds):
    document = json.loads(level_model().to_xgboost())
    first, *_ = document["learner"]["gradient_booster"]["model"]["trees"]
    if kinds == ["c", "c"]:  # a split by number of a feature that has levels
        presence = json.loads(presence_model().to_xgboost())
        first.update(presence["learner"]["gradient_booster"]["model"]["trees"][0])
    document["learner"]["feature_types"] = kinds
    with raised(ConfigError, "model-not-readable", "model-split-kind"):
        Booster.from_xgboost(json.dumps(document), "m.json")
