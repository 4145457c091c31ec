"""XGBoost's JSON: read back without loss; what is no model is one clear error."""

import json

import numpy as np
import pytest
from boosters import EVERY, level_model, load, presence_model, trained_with
from hypothesis import given, settings
from hypothesis import strategies as st
from raised import raised

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster

trained = trained_with(EVERY, rounds=8, max_depth=4)


# ---- to_xgboost and back ----------------------------------------------------------------------------


def test_reading_back_gives_the_same_model_and_attributes(trained):
    X, booster = trained
    text = booster.to_xgboost({"terms": "abc", "best": "7"})
    again, attributes = Booster.from_xgboost(text)
    assert again == booster
    assert attributes == {"terms": "abc", "best": "7"}
    assert again.to_xgboost(attributes) == text
    assert again.predict(X).tolist() == booster.predict(X).tolist()
    assert load(text).attributes() == attributes


def test_a_model_that_xgboost_saved_again_is_read(trained):
    """The parts that matter keep their places and names in XGBoost's own hands."""
    _, booster = trained
    again = json.loads(load(booster.to_xgboost()).save_raw("json"))
    ours = json.loads(booster.to_xgboost())
    theirs_trees = again["learner"]["gradient_booster"]["model"]["trees"]
    for theirs, mine in zip(theirs_trees, ours["learner"]["gradient_booster"]["model"]["trees"], strict=True):
        for key in ("left_children", "right_children", "parents", "split_indices", "default_left"):
            assert theirs[key] == mine[key]


def test_unknown_importance():
    with raised(ConfigError, "importance-unknown"):
        presence_model().importance("gian")


# ---- what is no model -------------------------------------------------------------------------------


MODEL = presence_model().to_xgboost({"note": "x"})
MODEL_BY_LEVELS = level_model().to_xgboost({"note": "x"})


def places(value, at=()):
    """The path of every value in a JSON document."""
    yield at
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from places(child, (*at, key))


PLACES = [
    (model, place) for model in (MODEL, MODEL_BY_LEVELS) for place in places(json.loads(model)) if place
]
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**31, 2**63, 2**64, 10**400, -(2**63)]),
    st.floats(),
    st.sampled_from([1e39, 1e300, -1e300]),
    st.text(max_size=3),
    st.sampled_from(["1e999", "nan", "[5E-1]", "binary:logistic", "reg:squarederror"]),
    st.lists(st.integers(-2, 3), max_size=4),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@pytest.mark.slow
@settings(max_examples=1500)
@given(st.sampled_from(PLACES), ODD_VALUES, st.booleans())
def test_a_changed_model_is_read_or_refused_with_one_line(changed, value, drop):
    model, place = changed
    document = json.loads(model)
    owner = document
    for key in place[:-1]:
        owner = owner[key]
    if drop:
        del owner[place[-1]]
    else:
        owner[place[-1]] = value
    read_or_refused(json.dumps(document))


@given(st.integers(0, len(MODEL)), st.integers(0, 30), st.text(max_size=4))
def test_damaged_text_is_read_or_refused_with_one_line(start, length, put):
    read_or_refused(MODEL[:start] + put + MODEL[start + length :])


def read_or_refused(text):
    message = None
    try:
        booster, _ = Booster.from_xgboost(text, "model.json")
    except ConfigError as error:
        message = str(error)
    if message is None:
        rows = np.zeros((2, len(booster.features)), np.float32)
        assert booster.predict(rows).shape == (2,)
        booster.importance()
        booster.to_xgboost()
    else:
        assert message.startswith("model.json")
        assert "\n" not in message


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "1", "[" * 100_000, '{"learner": 3}', "\x00"])
def test_other_files(text):
    with raised(ConfigError, "model-not-readable"):
        Booster.from_xgboost(text, "old.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"left_children": [0, -1, -1], "right_children": [1, -1, -1]},  # a node that is its own child
        {"left_children": [2, -1, -1], "right_children": [3, -1, -1]},  # a right child beyond the end
        {"left_children": [-2, -1, -1], "right_children": [-1, -1, -1]},
        {"left_children": [-1, -1], "right_children": [-1, -1]},  # shorter than the other columns
        {"left_children": [], "right_children": []},
        {"right_children": [1, -1, -1]},
        {"split_indices": [2, 0, 0]},
        {"split_indices": [-1, 0, 0]},
        {"base_weights": [0.0]},
        {"sum_hessian": [0.0] * 4},
        {"split_type": [1, 0, 0]},  # a split by category
    ],
)
def test_trees_that_are_none(changes):
    document = json.loads(MODEL)
    document["learner"]["gradient_booster"]["model"]["trees"][0].update(changes)
    says = (
        r"^m\.json(: tree 0 is not a valid tree over 2| is not a fedboost model| is not as fedboost wrote it)"
    )
    with pytest.raises(ConfigError, match=says):
        Booster.from_xgboost(json.dumps(document), "m.json")


@pytest.mark.parametrize("objective", ["rank:map", ["binary:logistic"], None])
def test_other_objectives(objective):
    document = json.loads(MODEL)
    document["learner"]["objective"]["name"] = objective
    with raised(ConfigError, "model-objective-unknown"):
        Booster.from_xgboost(json.dumps(document))
