"""Rows that are ranked: whole groups of them are learned from, and XGBoost ranks the same with the model."""

import json

import numpy as np
import pytest
import xgboost
from inprocess import model_of, one_party, run, shard_of, terms_of
from trainings import GROUP, ROWS, SETTINGS, parts_of, pooled_model, setting_of

from fedboost.gbdt import metrics
from fedboost.gbdt.booster import Booster
from fedboost.holders.whole_rows import HorizontalHolder

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
    assert "every group of every party has weight 0 or equal labels" in str(session.error)


def test_base_margins_of_a_ranking():
    X, y, _, settings = setting_of("ranked by ndcg")
    base = np.random.default_rng(3).normal(0.5, 1, ROWS).astype(np.float32)
    pooled = model_of(X, y, one_party(ROWS), base_margin=base, **settings)
    assert model_of(X, y, parts_of("ranked by ndcg", "skewed"), base_margin=base, **settings) == pooled
    assert pooled != pooled_model("ranked by ndcg")
