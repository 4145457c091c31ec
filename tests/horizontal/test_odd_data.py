"""Rows that teach nothing, or hardly anything: constant labels, absent features, extreme sizes."""

import json

import numpy as np
import pytest
from inprocess import model_of, one_party, run
from trainings import PARTITIONS, REGRESSION, ROWS, SMALL, data


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
    assert all(len(tree) == 1 for tree in session.booster.trees)
    assert session.booster.predict(np.ones((1, 5), np.float32))[0] == pytest.approx(y.mean(), abs=1e-4)


CONSTANT = [("binary:logistic", label, weighted) for label in (0, 1) for weighted in (False, True)]
CONSTANT += [(objective, 0, False) for objective in ("count:poisson", "reg:tweedie")]
EQUAL = [("reg:squarederror", label, w) for label in (0.0, 7.5, -1e9, 0.1) for w in (False, True)]
EQUAL += [("reg:absoluteerror", label, False) for label in (0.0, -7.5)]


@pytest.mark.parametrize(("objective", "label", "weighted"), [*CONSTANT, *EQUAL])
def test_a_constant_label_fails_and_says_so(objective, label, weighted):
    X, y, weight = data()
    given, settings = weight if weighted else None, {**SMALL, "objective": objective}
    session = run(X, np.full_like(y, label), PARTITIONS["3 at random"], given, **settings)
    assert session.booster is None
    assert session.phase == "failed"
    which = "the same" if (objective, label, weighted) in EQUAL else label
    assert f"the label is {which} in every row of every party" in str(session.error)


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
