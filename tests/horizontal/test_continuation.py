"""Training that continues a model: five rounds, then five more, are the ten of one go, bit for bit."""

import json
import re

import numpy as np
import pytest
import xgboost
from inprocess import model_of, one_party, randomly, run, terms_of
from raised import raised
from trainings import BASED, LEVELS, ROWS, SETTINGS, based, parts_of, setting_of

from fedboost.boosting.queries.labels import RESIDUAL_TURNS
from fedboost.errors import ConfigError
from fedboost.gbdt.booster import Booster
from fedboost.terms import continuation

PARTS = randomly(ROWS, 3, seed=3)
DRAWS = (
    *("rows drawn", "rows drawn, classes", "forests, classes", "columns drawn, levels", "rows held out"),
    *("rows drawn by gradients", "rows drawn by gradients, number", "bootstrap", "bootstrap, medians"),
)
KINDS = (
    *("logistic", "logistic, weights", "squared error, weights", "classes", "counts, weights", "slopes"),
    *(
        "medians, weights",
        "quantiles",
        "amounts or nothing",
        "levels, weights, penalties",
        "times",
        "ranked by ndcg",
        *DRAWS,
    ),
)
"""Of the settings of test_boosting: of each objective one, and of what depends on the number of the tree."""
WITHOUT_BOUND = "squared error, weights", "counts, weights", "slopes", "amounts or nothing", "rows held out"
PART, WHOLE = {"rounds": 3}, {"rounds": 6}


def text_of(session):
    assert session.error is None
    return continuation.written(session.booster, session.terms.columns)


def continued(X, y, parts, *args, then=PARTS, protection="plain", **settings):
    """The model of three rounds over some parts, continued for three over others."""
    settings.pop("rounds")
    first = run(X, y, parts, *args, **settings, **PART)
    settings |= {"protection": protection, "xgb_model": text_of(first)}
    return run(X, y, then, *args, **settings, **PART)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_five_rounds_and_five_more_are_ten(name):
    """Where gradients have no bound, a tree that shares the turn of the one before it has another scale than
    the first of a session; so each query has a turn of its own."""
    X, y, weight, settings = setting_of(name)
    settings = {**settings, "on_loss": "shrink"} if name in WITHOUT_BOUND else settings
    whole = model_of(X, y, PARTS if name in WITHOUT_BOUND else one_party(ROWS), weight, **settings | WHOLE)
    parts = parts_of(name, "3 at random")
    alone = parts if name in WITHOUT_BOUND else one_party(ROWS)
    pooled = continued(X, y, alone, weight, then=alone, **settings)
    federated = continued(X, y, parts, weight, then=parts, **settings)
    assert pooled.booster.to_xgboost() == whole
    assert federated.booster.to_xgboost() == whole
    assert [done.round for done in federated.history] == [0, 1, 2]


@pytest.mark.parametrize("name", WITHOUT_BOUND)
def test_where_gradients_have_no_bound_they_are_but_for_a_scale(name):
    X, y, weight, settings = setting_of(name)
    whole = run(X, y, PARTS, weight, **{**settings, **WHOLE}).booster.predict(X)
    more = continued(X, y, PARTS, weight, **settings).booster.predict(X)
    assert np.abs(more - whole).mean() < 1e-2 * np.abs(whole - whole.mean()).mean()


@pytest.mark.parametrize("name", ["logistic, weights", "classes", "quantiles", "levels, weights, penalties"])
def test_masks_change_nothing_of_a_continued_model(name):
    X, y, weight, settings = setting_of(name)
    masked = continued(X, y, PARTS, weight, protection="masked", **settings)
    assert masked.booster.to_xgboost() == model_of(X, y, one_party(ROWS), weight, **{**settings, **WHOLE})


@pytest.mark.parametrize("name", BASED)
def test_base_margins_are_continued_from(name):
    X, y, weight, base, settings = based(name)
    if name not in ("medians", "risks"):
        settings = {**settings, "on_loss": "shrink"}  # each query in a turn of its own: see above
    session = continued(X, y, PARTS, weight, base_margin=base, **settings)
    whole = model_of(X, y, PARTS, weight, base_margin=base, **{**settings, **WHOLE})
    assert session.booster.to_xgboost() == whole


def test_a_model_is_continued_on_rows_it_has_not_seen():
    """Missing values that the earlier rows had not, and a federation that differs from that of the model."""
    X, y, _, settings = setting_of("logistic")
    filled = np.nan_to_num(X)
    text = text_of(run(filled, 1 - y, PARTS, **settings))
    again = {**settings, "xgb_model": text, "rounds": 2}
    one = run(X, y, one_party(ROWS), **again)
    assert run(X, y, PARTS, **again).booster.to_xgboost() == one.booster.to_xgboost()
    first = continuation.read(text)
    assert one.booster.trees[: len(first.trees)] == first.trees
    assert len(one.booster.trees) == len(first.trees) + 2
    before = np.mean((first.predict(X) > 0.5) != y)
    assert np.mean((one.booster.predict(X) > 0.5) != y) < before


def test_a_model_without_a_residual_is_continued():
    """It has nothing more to learn, which is no reason to refuse in the middle of a training either."""
    X = np.arange(64, dtype=np.float32).reshape(-1, 1) % 4
    y, parts = X[:, 0] * 8, randomly(64, 3)
    own = {"objective": "reg:squarederror", "learning_rate": 1.0, "reg_lambda": 0.0, "max_depth": 2}
    session = continued(X, y, parts, then=parts, rounds=0, **own)
    assert session.history[-1].metrics["rmse"] == 0.0
    assert session.booster.to_xgboost() == model_of(X, y, one_party(64), **own, **WHOLE)


def test_a_model_of_xgboost_is_continued():
    X, y, _, settings = setting_of("logistic")
    rows = xgboost.DMatrix(X, y, feature_names=[f"f{i}" for i in range(X.shape[1])])
    theirs = xgboost.train({"objective": "binary:logistic", "max_depth": 3}, rows, 4)
    booster, _ = Booster.from_any_xgboost(theirs.save_raw("json").decode())
    assert np.abs(booster.predict(X) - theirs.predict(rows)).max() < 1e-6
    session = run(X, y, PARTS, **{**settings, "xgb_model": continuation.written(booster, None)})
    assert len(session.booster.trees) == 4 + settings["rounds"]
    ours = xgboost.Booster()
    ours.load_model(bytearray(session.booster.to_xgboost().encode()))
    assert np.abs(ours.predict(rows) - session.booster.predict(X)).max() < 1e-6
    losses = [done.metrics["logloss"] for done in session.history]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < float(theirs.eval(rows).split(":")[-1]) + 1e-9 or losses[-1] < losses[0]


def test_no_constant_is_asked_for():
    X, y, weight, settings = setting_of("quantiles")
    first = run(X, y, PARTS, weight, **settings)
    session = run(X, y, PARTS, weight, **{**settings, "xgb_model": text_of(first)})
    turns = [number.turn for number in (first.run, session.run)]
    assert turns[0] - turns[1] == RESIDUAL_TURNS + 1  # the cut points need no turn of their own, either


def test_early_stopping_counts_the_new_rounds():
    X, y, _, settings = setting_of("logistic")
    watched = {**settings, "validation_fraction": 0.3, "learning_rate": 1.0, "max_depth": 6}
    text = text_of(run(X, y, PARTS, **watched))
    again = {**watched, "rounds": 40, "early_stopping_rounds": 3, "xgb_model": text}
    session = run(X, y, PARTS, **again)
    losses = [done.metrics["validation-logloss"] for done in session.history]
    best = losses.index(min(losses))
    assert len(losses) == best + 4 < 40
    assert len(session.booster.trees) == settings["rounds"] + best + 1
    assert session.run.rounds == best + 1


# ---- what cannot be continued ------------------------------------------------------------------------


def refused(session, X, **settings):
    if "xgb_model" not in settings:
        settings["xgb_model"] = text_of(session)
    with pytest.raises(ConfigError) as error:
        terms_of(X, 3, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_differs_is_said():
    X, y, _, settings = setting_of("logistic")
    session = run(X, y, PARTS, **{**settings, "rounds": 1})
    assert "xgb_model cannot be continued: its objective is binary:logistic" in refused(
        session, X, objective="reg:squarederror"
    )
    assert "num_parallel_tree is 1, but the terms have 2" in refused(session, X, num_parallel_tree=2)
    assert "it has 5 features, but the terms have 4" in refused(session, X[:, :4])
    assert "feature 'f4' has levels in the terms, but is numeric in it" in refused(session, X, levels=(3,))
    assert "does not start from base_score 0.25: remove base_score" in refused(session, X, base_score=0.25)
    assert terms_of(X, 3, xgb_model=text_of(session), base_score=session.booster.base_score)
    assert "columns.base_margin is set in the terms" in refused(session, X, base_margin=y)
    assert "program boosting, not by 'own:train'" in refused(session, X, program="own:train")
    told = text_of(session).replace('"f2"', '"age"')
    assert "its feature 3 is 'age', but the terms have 'f2' there" in refused(session, X, xgb_model=told)


def test_classes_and_levels_must_stand_for_the_same():
    X, y, _, settings = setting_of("classes")
    session = run(X, y, PARTS, **{**settings, "rounds": 1})
    assert "xgb_model cannot be continued: it has 3 classes, but the terms have 4" in refused(
        session, X, **{**settings, "num_class": 4}
    )
    X, y, _, settings = setting_of("levels")
    session = run(X, y, PARTS, **{**settings, "rounds": 1})
    text = text_of(session)
    terms = terms_of(X, 3, **settings, xgb_model=text)
    columns = terms.columns.model_dump(mode="json")
    columns["categorical"]["f2"].reverse()
    with pytest.raises(ConfigError, match="its levels of 'f2', or their order, differ from the terms"):
        terms.changed(columns=columns)
    assert len(LEVELS) == len(columns["categorical"])
    columns = {**terms.columns.model_dump(mode="json"), "positive": "yes"}
    with pytest.raises(ConfigError, match=re.escape("its columns.positive is null")):
        terms.changed(columns=columns)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + " ",
        lambda text: text[:-1],
        lambda text: text.replace('"default_left":[0', '"default_left":[false', 1),
        lambda text: json.dumps(json.loads(text)),
        lambda text: "{}",
        lambda text: text.replace("fedboost.columns", "fedboost.other"),
        lambda text: text.replace('\\"classes\\"', '\\"klasses\\"'),
        lambda text: re.sub(r'\\"categorical\\":\{.*?\}', r'\\"categorical\\":7', text),
    ],
)
def test_another_text_than_fedboost_writes_is_refused(change):
    """So that a model has one text, and terms that continue it one digest."""
    X, y, _, settings = setting_of("levels")
    session = run(X, y, PARTS, **{**settings, "rounds": 1})
    text = text_of(session)
    assert change(text) != text
    assert "xgb_model" in refused(session, X, **settings, xgb_model=change(text))


def test_a_model_beyond_the_limit_is_refused(monkeypatch):
    X, y, _, settings = setting_of("logistic")
    session = run(X, y, PARTS, **{**settings, "rounds": 1})
    text = text_of(session)
    monkeypatch.setattr(continuation, "MAX_MODEL", len(json.dumps(text)) - 1)
    continuation.read.cache_clear()
    assert "fit into terms; use a model with fewer rounds" in refused(session, X, xgb_model=text)
    with raised(ConfigError, "model-too-large"):
        continuation.written(session.booster, session.terms.columns)


def test_the_settings_of_other_tests_are_known():
    assert set(KINDS) <= set(SETTINGS)
