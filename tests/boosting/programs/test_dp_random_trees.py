"""Boosting with noise: what it learns, what it costs, and what of rows is in what it asks."""

import math
from itertools import combinations

import numpy as np
import pytest
import xgboost
from inprocess import one_party, randomly, run, shard_of, terms_of
from noisy_trainings import LOCAL, MASKED, RANGES, ROWS, data, trained
from raised import raised
from sklearn.metrics import roc_auc_score

from fedboost.boosting.programs import private
from fedboost.boosting.queries.columns import QuantileQuery, RangeQuery
from fedboost.boosting.queries.labels import RowsQuery, StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, SumsQuery
from fedboost.boosting.state import INITIAL_STATE, structure
from fedboost.errors import PeerError, Refused
from fedboost.gbdt.cut_points import FINE_PARTS, Grids
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy import noise as accounting
from fedboost.terms import hiding


def test_it_learns_what_can_be_learned():
    X, y = data()
    noise = {**LOCAL["noise"], "epsilon": 8.0}
    session = trained(protection="plain", noise=noise)
    assert session.phase == "done"
    assert roc_auc_score(y, session.booster.predict(X)) > 0.8


def test_masked_shares_of_three_parties_learn_as_well():
    X, y = data()
    session = trained(parts=randomly(ROWS, 3), **MASKED)
    assert session.phase == "done", session.error
    assert roc_auc_score(y, session.booster.predict(X)) > 0.8
    assert len(session.booster.trees) == 5 + 10  # one per feature and one per pair
    signed = {attest.structure for attest in session.attestations.values()}
    assert signed == {structure(session.booster.constant, session.booster.trees)}
    assert all(not row.metrics for row in session.history)


@pytest.mark.parametrize("objective", ["multi:softprob", "reg:squarederror", "count:poisson"])
def test_other_objectives(objective):
    kind, more = {
        "multi:softprob": ("classes", {"num_class": 3}),
        "reg:squarederror": ("number", {"label_range": (0, 100)}),
        "count:poisson": ("count", {"label_range": (0, 12)}),
    }[objective]
    X, y = data(kind)
    session = trained(kind, objective=objective, **LOCAL, **more)
    assert session.phase == "done", session.error
    predicted = session.booster.predict(X)
    if objective == "multi:softprob":
        assert np.mean(predicted.argmax(axis=1) == y) > 0.55
    else:
        assert np.corrcoef(predicted, y)[0, 1] > 0.5
        assert predicted.mean() == pytest.approx(y.mean(), rel=0.1)


def test_the_model_is_one_of_xgboost():
    X, _ = data()
    booster = trained(**LOCAL).booster
    theirs = xgboost.Booster()
    theirs.load_model(bytearray(booster.to_xgboost().encode()))
    names, kinds = list(booster.features), ["q"] * 3 + ["c"] * 2
    matrix = xgboost.DMatrix(X, feature_names=names, feature_types=kinds, enable_categorical=True)
    assert np.abs(theirs.predict(matrix) - booster.predict(X)).max() < 1e-6


def test_two_sessions_draw_other_noise():
    one, other = (trained(**LOCAL).booster for _ in range(2))
    assert one.trees[0] != other.trees[0]


# ---- what it costs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [LOCAL, MASKED], ids=["local", "distributed"])
def test_what_is_charged_is_what_was_planned_and_within_epsilon(settings):
    parts = randomly(ROWS, 3) if settings is MASKED else one_party(ROWS)
    session = trained(parts=parts, **settings)
    plan, noise = session.terms.plan, session.terms.noise
    for site in session.sites.values():
        charged = site.memory.charged
        assert math.fsum(charged.values()) == pytest.approx(plan.cost, rel=1e-12)
        assert len(charged) == 1 + 1 + session.terms.trees.rounds
    assert accounting.epsilon_of(math.sqrt(plan.cost), noise.delta) <= noise.epsilon
    assert accounting.epsilon_of(math.sqrt(plan.cost), noise.delta) > 0.999 * noise.epsilon


@pytest.mark.parametrize(("parties", "colluding"), [(3, None), (5, None), (5, 2)])
def test_honest_shares_alone_have_the_noise_that_is_promised(parties, colluding):
    X, _ = data(rows=10)
    settings = {**MASKED, **({} if colluding is None else {"colluding": colluding})}
    terms = terms_of(X, parties, levels=(3, 8), ranges=RANGES, **settings)
    honest = parties - (colluding or 1)
    due = accounting.mu_of(1.0, 1e-5)
    releases = terms.plan.releases.values()
    mu = math.sqrt(sum(one.times * (one.sensitivity / one.share) ** 2 / honest for one in releases))
    assert mu <= due
    assert mu > 0.995 * due  # counts get noise of a few dozens, in whole numbers


# ---- what is asked ----------------------------------------------------------------------------------


def asked(**settings):
    """The questions of a session, each once."""
    found = []
    X, y = data(rows=300)

    def spied(terms, grown):
        program = private.train(terms, grown)
        query = next(program)
        while True:
            found.append(query)
            try:
                query = program.send((yield query))
            except StopIteration as end:
                return end.value

    run(X, y, one_party(300), program=spied, levels=(3, 8), ranges=RANGES, **LOCAL, **settings)
    return found


def test_nothing_of_rows_is_asked_without_noise():
    found = asked(rounds=3)
    assert [type(query) for query in found] == [
        RangeQuery,
        StartQuery,
        EndRoundQuery,
        *[SumsQuery, EndRoundQuery] * 3,
    ]
    assert all(query.cells == 0 for query in found if isinstance(query, EndRoundQuery))


def played(terms, answers, grown):
    """The questions of a program that gets these answers, and its model."""
    program, found, left = private.train(terms, grown), [], iter(answers)
    query = next(program)
    while True:
        found.append(query.digest)
        try:
            query = program.send(next(left))
        except StopIteration as end:
            return found, end.value


def answered(**settings):
    """Terms, and a session's questions and answers."""
    X, y = data(rows=300)
    terms = terms_of(X, 1, levels=(3, 8), ranges=RANGES, **LOCAL, **settings)
    party, found, draw = HorizontalHolder(lambda: shard_of(X, y), terms), [], np.random.default_rng(1)
    program = private.train(terms, [])
    query = next(program)
    while True:
        answer = party.answer(query)
        found.append((query, answer + draw.integers(-9, 10, answer.size)))
        try:
            query = program.send(found[-1][1])
        except StopIteration as end:
            return terms, found, end.value


def test_questions_and_model_follow_from_the_answers_alone():
    terms, found, booster = answered()
    asked_for, again = played(terms, [answer for _, answer in found], [])
    assert asked_for == [query.digest for query, _ in found]
    assert again == booster


@pytest.mark.parametrize("known", [1, 7, 25, 39])
def test_a_training_that_goes_on_from_its_trees_asks_and_learns_the_same(known):
    terms, found, booster = answered()
    grown = []
    played(terms, [answer for _, answer in found], grown)
    known_sums = {query.digest for query, _ in found if isinstance(query, SumsQuery) and query.tree < known}
    left = [(query.digest, answer) for query, answer in found if query.digest not in known_sums]
    asked_for, again = played(terms, [answer for _, answer in left], grown[:known])
    assert asked_for == [digest for digest, _ in left]
    assert again == booster


@pytest.mark.parametrize("size", [0, 1 << 30, 1 << 60])
@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_any_sums_lead_to_questions_that_are_allowed(size, sign):
    """A party can report any integers. Without a limit on groups, sums of 2**60 filled the memory."""
    X, _ = data(rows=10)
    terms, draw = terms_of(X, 1, levels=(3, 60), ranges=RANGES, rounds=24, **LOCAL), np.random.default_rng(0)
    program, state = private.train(terms, []), INITIAL_STATE
    query = next(program)
    while True:
        query.check(terms)
        query.check_order(terms, state)
        if query.of_tree or query.ends_tree:
            state.check_next(terms, query)
        state = state.after(query)
        sums = draw.integers(-size, size + 1, query.cells)
        try:
            query = program.send(np.abs(sums) * sign if sign else sums)
        except StopIteration as end:
            model = end.value
            break
    assert all(np.isfinite([tree.value, tree.cover]).all() for tree in model.trees)


def features_of(tree):
    return {feature for feature, left in zip(tree.feature, tree.left, strict=True) if left >= 0}


def test_each_feature_has_one_tree_and_so_has_each_pair():
    booster = trained(**LOCAL).booster
    of_trees = [features_of(tree) for tree in booster.trees]
    assert of_trees[:5] == [{number} for number in range(5)]
    assert {*map(frozenset, of_trees[5:])} == {*map(frozenset, combinations(range(5), 2))}


@pytest.mark.parametrize(
    ("rounds", "pairs", "expected"), [(20, None, 0), (24, None, 2), (40, 3, 3), (60, None, 10)]
)
def test_features_come_before_pairs(rounds, pairs, expected):
    X, _ = data(rows=10)
    noise = {**LOCAL["noise"], "pairs": pairs}
    terms = terms_of(X, 1, levels=(3, 8), ranges=RANGES, protection="plain", noise=noise, rounds=rounds)
    assert terms.pairs == expected


def test_a_lone_value_is_a_category_of_its_own_and_a_feature_may_have_one_value():
    X, y = data()
    X[:, 0], X[:, 3] = 0.0, 0.0
    session = run(X, y, one_party(ROWS), program=private.train, levels=(1, 8), ranges=RANGES, **LOCAL)
    assert session.phase == "done", session.error


def test_a_party_gives_nothing_without_noise():
    X, y = data(rows=50)
    terms = terms_of(X, 1, levels=(3, 8), ranges=RANGES, **LOCAL)
    for query in (RowsQuery(), QuantileQuery(50, Grids.first(3))):
        with raised(Refused, "query-noise"):
            query.check(terms)
    without = terms_of(X, 1, levels=(3, 8))
    with raised(Refused, "query-noise"):
        RangeQuery(1 << 40, 3, FINE_PARTS).check(without)
    party = HorizontalHolder(lambda: shard_of(X, y), terms)
    party.answer(RangeQuery(1 << 40, 3, FINE_PARTS))
    with raised(PeerError, "query-order"):
        party.answer(RangeQuery(1 << 40, 3, FINE_PARTS))


def test_one_row_moves_a_sum_by_no_more_than_its_bound():
    """The whole way from rows to integers: each tree's sums with a row more, or without it."""
    X, y = data(rows=200)
    X[7], y[7] = np.nan, 1.0
    terms = terms_of(X, 1, levels=(3, 8), ranges=RANGES, rounds=6, protection="plain", noise=LOCAL["noise"])
    rest = np.delete(np.arange(200), 7)
    parties = [
        HorizontalHolder(lambda rows=rows: shard_of(X, y, rows=rows), terms) for rows in (slice(None), rest)
    ]
    program = private.train(terms, [])
    query, moved = next(program), {"CUT_POINTS": [], "START": [], "TREES": []}
    while True:
        answers = [party.answer(query) for party in parties]
        if not isinstance(query, EndRoundQuery):
            what = query.release(terms).what
            name = next(name for name in moved if getattr(hiding, name) == what)
            moved[name].append(math.dist(*answers))
        try:
            query = program.send(answers[0])
        except StopIteration:
            break
    plan = [release.sensitivity for release in terms.plan.releases.values()]
    for kind, most in zip(moved.values(), plan, strict=True):
        assert max(kind) <= most
    assert len(moved["TREES"]) >= 6
    assert min(moved["TREES"]) > 0
    assert max(moved["TREES"]) > 0.4 * plan[-1]  # no bound much below this one would hold
