"""Metrics of each party's rows alone: what that party would report of them, and nothing else changes."""

import numpy as np
import pytest
from inprocess import run, shard_of, terms_of
from raised import raised
from trainings import PARTITIONS, ROWS, setting_of

from fedboost.boosting.queries.trees import EndRoundQuery
from fedboost.errors import Refused
from fedboost.fixedpoint import UNIT
from fedboost.gbdt import metrics
from fedboost.holders.whole_rows import HorizontalHolder

PARTS = PARTITIONS["3 at random"]
MANY = {
    "logistic": ["logloss", "error", "auc"],
    "classes, weights": ["mlogloss", "merror"],
    "squared error, weights": ["rmse", "mae"],
    "counts": ["poisson-nloglik"],
    "medians": ["mae"],
}


@pytest.mark.parametrize("protection", ["plain", "masked"])
@pytest.mark.parametrize("name", MANY)
def test_they_are_those_of_the_partys_rows(name, protection):
    X, y, weight, settings = setting_of(name)
    own = {**settings, "eval_metric": MANY[name], "protection": protection}
    session = run(X, y, PARTS, weight, **own, party_metrics=True)
    without = run(X, y, PARTS, weight, **own)
    assert session.booster.to_xgboost() == without.booster.to_xgboost()
    assert [metrics.of_all(done.metrics) for done in session.history] == [
        done.metrics for done in without.history
    ]
    last = metrics.by_party(session.history[-1].metrics)
    assert list(last) == list(session.terms.parties)
    ones = np.ones(ROWS, np.float32) if weight is None else weight
    scale = session.run.pending.weight
    for party, rows in zip(session.terms.parties, PARTS, strict=True):
        margin = np.ascontiguousarray(session.booster.margins(X[rows]))
        sums = metrics.sums(MANY[name], session.terms.objective.loss, margin, y[rows], ones[rows], scale)
        assert last[party] == metrics.values(MANY[name], sums, scale)
    assert len({tuple(of.values()) for of in last.values()}) == len(PARTS)


def ends(terms, **changes):
    """The end of the first tree, as these terms have it."""
    scale = terms.known_weight_scale
    asked = {"metrics": terms.metrics, "weight": scale, "exponents": False, "sets": terms.sets}
    return EndRoundQuery(ROWS, 0, (), ((0, 0.25),), **{**asked, **changes})


def test_validation_rows_of_each_party_have_theirs():
    X, y, _, settings = setting_of("logistic")
    held_out = np.zeros(ROWS, bool)
    held_out[PARTS[0][:20]] = held_out[PARTS[1][:20]] = True
    own = {**settings, "party_metrics": True, "eval_metric": ["error", "logloss"], "early_stopping_rounds": 2}
    session = run(X, y, PARTS, validation=held_out, **{**own, "rounds": 20})
    last = session.history[-1].metrics
    pooled = ["error", "logloss", "validation-error", "validation-logloss"]
    assert list(last)[:4] == pooled
    assert [len(of) for of in metrics.by_party(last).values()] == [4, 4, 2]  # p2 holds none out
    assert list(last)[4:8] == [f"p0:{name}" for name in pooled]
    without = run(X, y, PARTS, validation=held_out, **{**own, "rounds": 20, "party_metrics": False})
    assert session.booster.to_xgboost() == without.booster.to_xgboost()  # stopped by the rows of all
    for party, rows in zip(session.terms.parties[:2], PARTS, strict=False):
        some = np.intersect1d(rows, np.flatnonzero(held_out))
        wrong = np.mean((run_to_end(session, X[some]) > 0.5) != y[some])
        assert last[f"{party}:validation-error"] == pytest.approx(wrong, abs=1e-6)


def run_to_end(session, X):
    """The prediction by all trees of a session, those that early stopping took away too."""
    trees = [tree for grown, _ in session.run.trees.grown for tree in grown.parts(1)]
    booster = session.booster
    return type(booster)(booster.loss, booster.base_score, booster.features, tuple(trees)).predict(X)


def test_a_party_fills_its_own_places_and_no_others():
    """So that what is added to the others' vectors hides nothing and shows nothing of theirs."""
    X, y, _, settings = setting_of("logistic")
    terms = terms_of(X, 3, **settings, party_metrics=True, eval_metric=["logloss", "auc"])
    session = run(X, y, PARTS, **settings)
    size = metrics.cells(terms.metrics)
    for number, name in enumerate(terms.parties):
        party = HorizontalHolder(lambda rows=PARTS[number]: shard_of(X, y, rows=rows), terms, name=name)
        party.go_to(session.run.state.before_tree)
        values = party.answer(of_last_tree(session, terms))
        pooled, *of_parties = values.reshape(-1, size)
        assert [bool(of.any()) for of in of_parties] == [place == number for place in range(3)]
        assert (of_parties[number] == pooled).all()
        assert pooled[0] == terms.known_weight_scale.factor * len(PARTS[number])


def of_last_tree(session, terms):
    """The end of the last tree of a session, under these terms."""
    last = session.run.pending
    done = session.run.state
    splits = done.splits + last.splits
    return EndRoundQuery(ROWS, last.tree, splits, last.values, terms.metrics, last.weight, False, terms.sets)


def test_sets_that_the_terms_do_not_have_are_refused():
    X, _, _, settings = setting_of("logistic")
    closed = terms_of(X, 3, **settings)
    opened = closed.changed(party_metrics=True)
    assert ends(opened).cells == 4 * ends(closed).cells
    ends(opened).check(opened)
    assert ends(opened).name != ends(closed).name == "EndRoundQuery"
    for terms, sets in ((closed, opened.sets), (opened, closed.sets), (opened, ("train", "p0:train"))):
        with raised(Refused, "query-metrics"):
            ends(terms, sets=sets).check(terms)


def test_a_party_that_is_lost_has_none():
    found = metrics.by_set(("error",), ("train", "a:train", "b:train"), np.array([4, 1, 0, 0, 4, 1]), UNIT)
    assert found == {"error": 0.25, "b:error": 0.25}


@pytest.mark.parametrize("name", ["a:b", "validation", ":"])
def test_names_of_parties_are_told_from_those_of_sets(name):
    X, _, _, settings = setting_of("logistic")
    terms = terms_of(X, 3, **settings, party_metrics=True, validation_fraction=0.2)
    terms = terms.with_parties([name, "b", "c"])
    of_one = np.array([2, 1])
    total = np.concatenate([of_one * (place + 1) for place in range(len(terms.sets))])
    found = metrics.by_set(("error",), terms.sets, total, UNIT)
    assert len(found) == 8
    assert metrics.by_party(found)[name] == {"error": 0.5, "validation-error": 0.5}
    assert list(metrics.of_all(found)) == ["error", "validation-error"]
