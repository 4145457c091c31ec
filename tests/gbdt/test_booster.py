"""The model: XGBoost reads what is written and predicts the same; what is no model is one clear error."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess import randomly, run

from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.classification import Logistic
from fedboost.gbdt.objectives.regression import SquaredError
from fedboost.gbdt.tree import NO_CHILD, Tree

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


@pytest.fixture(
    scope="module", params=[(name, more) for name in OBJECTIVES for more in ({}, FOREST)], ids=str
)
def trained(request):
    objective, more = request.param
    X, y = data(objective)
    settings = {"objective": objective, **OBJECTIVES[objective], **more}
    session = run(X, y, randomly(len(X), 2), rounds=8, max_depth=4, **settings)
    assert session.error is None
    return X, session.booster


def load(text):
    booster = xgboost.Booster()
    booster.load_model(bytearray(text.encode()))
    return booster


def strictly(text):
    """JSON as the standard has it: no Infinity, no NaN."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def presence_model(left=0.5, right=-0.5):
    """One split that parts the present from the missing, by hand."""
    columns = {"feature": [1, 0, 0], "missing_left": [False] * 3, "cover": [4.0, 3.0, 1.0]}
    tree = Tree([1, -1, -1], threshold=[math.inf, 0, 0], value=[0, left, right], gain=[2.0, 0, 0], **columns)
    return Booster(SquaredError(), 10.0, ("a", "b"), (tree,))


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
    tree = Tree()
    tree.add_leaf(0.0, 1.0)
    booster = Booster(Logistic(), float(np.float32(score)), ("a",), (tree,))
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


def level_model(categories=0b1010):
    """One split by the levels of the second feature, by hand."""
    columns = {"feature": [1, 0, 0], "missing_left": [True, False, False], "cover": [4.0, 3.0, 1.0]}
    of_nodes = {"threshold": [0.0] * 3, "gain": [2.0, 0, 0], "categories": [categories, 0, 0], **columns}
    tree = Tree([1, -1, -1], value=[0, 0.5, -0.5], **of_nodes)
    return Booster(SquaredError(), 10.0, ("a", "b"), (tree,), categorical=("b",))


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
    with pytest.raises(ConfigError, match=r"^m\.json: "):
        Booster.from_xgboost(json.dumps(document), "m.json")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_leaves_whose_value_is_no_number(value):
    document = json.loads(level_model().to_xgboost())
    document["learner"]["gradient_booster"]["model"]["trees"][0]["split_conditions"][2] = value
    with pytest.raises(ConfigError, match=r"^m\.json: tree 0 has a leaf whose value is no finite number"):
        Booster.from_xgboost(json.dumps(document), "m.json")


@pytest.mark.parametrize("kinds", [["float", "float"], ["c", "c"], ["float", "q"], ["float"], [], None])
def test_kinds_of_features_that_do_not_fit_the_splits(kinds):
    document = json.loads(level_model().to_xgboost())
    first, *_ = document["learner"]["gradient_booster"]["model"]["trees"]
    if kinds == ["c", "c"]:  # a split by number of a feature that has levels
        presence = json.loads(presence_model().to_xgboost())
        first.update(presence["learner"]["gradient_booster"]["model"]["trees"][0])
    document["learner"]["feature_types"] = kinds
    with pytest.raises(ConfigError, match=r"^m\.json: "):
        Booster.from_xgboost(json.dumps(document), "m.json")


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
    with pytest.raises(ConfigError, match="'gian'; known: gain, cover, weight"):
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
        assert message.startswith("model.json: ")
        assert "\n" not in message


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "1", "[" * 100_000, '{"learner": 3}', "\x00"])
def test_other_files(text):
    with pytest.raises(ConfigError, match=r"^old\.json: not a fedboost model"):
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
    says = r"^m\.json: (tree 0 is not a tree over 2|not a fedboost model|not as fedboost wrote it)"
    with pytest.raises(ConfigError, match=says):
        Booster.from_xgboost(json.dumps(document), "m.json")


@pytest.mark.parametrize("objective", ["rank:map", ["binary:logistic"], None])
def test_other_objectives(objective):
    document = json.loads(MODEL)
    document["learner"]["objective"]["name"] = objective
    with pytest.raises(ConfigError, match="objective"):
        Booster.from_xgboost(json.dumps(document))
