"""Rows that are held out: they are watched, not learned from, and training stops by them."""

import numpy as np
import pytest
from inprocess import one_party, randomly, run
from sklearn.metrics import log_loss
from trainings import PARTITIONS, ROWS, SMALL, data

from fedboost.gbdt.metrics import grows


def test_validation_rows_are_watched_and_not_learned_from():
    X, y, weight = data()
    held_out = np.random.default_rng(3).random(ROWS) < 0.4
    settings = {**SMALL, "eval_metric": ["error", "logloss"]}
    session = run(X, y, PARTITIONS["3 at random"], weight, validation=held_out, **settings)
    without = run(
        X, np.where(held_out, 1 - y, y), PARTITIONS["3 at random"], weight, validation=held_out, **settings
    )
    assert session.booster.trees == without.booster.trees
    last = session.history[-1].metrics
    assert list(last) == ["error", "logloss", "validation-error", "validation-logloss"]
    for rows, prefix in ((~held_out, ""), (held_out, "validation-")):
        probability = np.clip(session.booster.predict(X[rows]), 1e-9, 1 - 1e-9)
        due = log_loss(y[rows], probability, sample_weight=weight[rows])
        assert last[prefix + "logloss"] == pytest.approx(due, rel=1e-3)


@pytest.mark.parametrize("metric", ["aft-nloglik", "interval-regression-accuracy"])
def test_times_stop_early(metric):
    X, y, _ = data("times")
    settings = {"objective": "survival:aft", "validation_fraction": 0.4, "early_stopping_rounds": 2}
    settings |= {"eval_metric": [metric], "rounds": 40}
    one, other = (run(X, y, parts, **settings) for parts in (one_party(ROWS), PARTITIONS["3 at random"]))
    assert one.booster == other.booster
    watched = [round_.metrics["validation-" + metric] for round_ in one.history]
    best = (max if grows(metric) else min)(watched)
    assert len(one.booster.trees) == watched.index(best) + 1 == len(watched) - 2 < 38


def test_a_share_of_the_rows_is_held_out_and_the_seed_says_which():
    X, y, _ = data()
    one, other = (
        run(X, y, PARTITIONS["3 at random"], validation_fraction=0.25, seed=seed, **SMALL) for seed in (0, 1)
    )
    assert one.booster.trees != other.booster.trees
    assert one.history[-1].metrics["validation-logloss"] > one.history[-1].metrics["logloss"]


def test_early_stopping_keeps_the_best_round():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 5)).astype(np.float32)
    y = (X[:, 0] + 2 * rng.normal(size=ROWS) > 0).astype(np.float32)  # soon nothing but noise is left
    settings = {"validation_fraction": 0.3, "rounds": 40, "max_depth": 3}
    parts = randomly(ROWS, 3)
    everything = run(X, y, parts, **settings)
    losses = [row.metrics["validation-logloss"] for row in everything.history]
    best = losses.index(min(losses))
    assert best < 20
    stopped = run(X, y, parts, early_stopping_rounds=5, **settings)
    assert [row.metrics["validation-logloss"] for row in stopped.history] == losses[: best + 6]
    assert stopped.booster.trees == everything.booster.trees[: best + 1]
    assert len({attest.structure for attest in stopped.attestations.values()}) == 1


def test_early_stopping_of_a_metric_that_grows():
    X, y, _ = data()
    settings = {**SMALL, "rounds": 30, "validation_fraction": 0.4, "eval_metric": ["logloss", "auc"]}
    session = run(X, y, PARTITIONS["3 at random"], early_stopping_rounds=3, **settings)
    found = [row.metrics["validation-auc"] for row in session.history]
    assert len(session.booster.trees) == found.index(max(found)) + 1 == len(found) - 3


def test_a_model_that_stops_early_is_signed_with_its_rounds_where_there_are_base_margins():
    X, y, _ = data("count")
    base = np.linspace(-0.5, 0.5, ROWS).astype(np.float32)
    settings = {
        "objective": "count:poisson",
        "rounds": 30,
        "validation_fraction": 0.4,
        "num_parallel_tree": 2,
    }
    session = run(X, y, PARTITIONS["3 at random"], base_margin=base, early_stopping_rounds=2, **settings)
    assert session.error is None
    kept = len(session.history) - 2
    assert len(session.booster.trees) == 2 * (kept + 1)  # and the constant, a leaf for each tree of a round
    (told,) = {attest.structure for attest in session.attestations.values()}
    assert told == session.run.structure("")
    assert session.run.rounds == kept


def test_a_metric_without_a_value_stops_nothing():
    X, y, _ = data()
    held_out = np.zeros(ROWS, bool)
    held_out[np.flatnonzero(y == 1)[:20]] = True
    settings = {**SMALL, "eval_metric": "auc", "early_stopping_rounds": 2}
    session = run(X, y, PARTITIONS["3 at random"], validation=held_out, **settings)
    assert "validation-auc is undefined" in str(session.error)


def test_no_validation_rows_fail_and_say_so():
    X, y, _ = data()
    session = run(X, y, PARTITIONS["3 at random"], validation=np.zeros(ROWS), **SMALL)
    assert "no party has validation rows" in str(session.error)
