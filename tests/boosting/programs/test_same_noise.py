"""Boosting with noise: what is said again is the same, and nothing else says anything of rows."""

import itertools

import numpy as np
from inprocess import one_party, randomly, run, shard_of, terms_of
from noisy_trainings import LOCAL, MASKED, RANGES, ROWS, data, trained
from raised import raised
from sklearn.metrics import roc_auc_score

from fedboost.boosting.programs import private
from fedboost.boosting.queries.columns import RangeQuery
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import SumsQuery
from fedboost.boosting.state import INITIAL_STATE, BoostingState, Round
from fedboost.errors import Refused
from fedboost.gbdt.cut_points import FINE_PARTS, CutPoints, range_edges
from fedboost.gbdt.objectives.objective import SCALE
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy.protection import Tag
from fedboost.protocol.messages import Report
from fedboost.protocol.site import Limits, SessionOffer, Spending, TransientMemory
from fedboost.terms import hiding


def spending_of(terms, memory, session="s"):
    return Spending(terms, memory.begin(SessionOffer(session, terms), Limits()))


def tagged(query, roster, turn=1):
    return Tag(turn, 1, roster, b"", query.segments)


def test_the_same_answer_has_the_same_noise_and_is_charged_once():
    X, _ = data(rows=10)
    terms = terms_of(X, 3, levels=(3, 8), ranges=RANGES, **MASKED)
    ledger, query = TransientMemory(lambda size: bytes(size)), RangeQuery(1 << 40, 3, FINE_PARTS)
    spending, values = spending_of(terms, ledger), np.arange(query.cells)
    roster = ("p0", "p1", "p2")
    one, again = (
        spending.release(query, INITIAL_STATE, tagged(query, roster, turn), values)[0] for turn in (1, 2)
    )
    assert (one == again).all()
    assert len(ledger.charged) == 1
    others = [
        spending.release(query, INITIAL_STATE, tagged(query, roster[:2]), values)[0],
        spending.release(query, INITIAL_STATE, tagged(query, roster), values + 1)[0],
        spending.release(query, BoostingState(grids=1), tagged(query, roster), values)[0],
        spending.release(RangeQuery(1 << 39, 3, FINE_PARTS), INITIAL_STATE, tagged(query, roster), values)[0],
        spending_of(terms, TransientMemory(lambda size: b"x" * size), "other").release(
            query, INITIAL_STATE, tagged(query, roster), values
        )[0],
    ]
    for first, second in itertools.combinations([one - values, *(other - values for other in others)], 2):
        assert np.mean(first == second) < 0.5
    assert len(ledger.charged) == 5


def test_noise_in_shares_is_less_than_that_of_each_alone():
    X, y = data()
    noise = {**MASKED["noise"], "placement": "distributed"}
    session = trained(parts=randomly(ROWS, 3), protection="masked", noise=noise)
    assert roc_auc_score(y, session.booster.predict(X)) > 0.8
    values = [
        release.sigma
        for placement in ("distributed", "local")
        for what, release in terms_of(
            X, 3, levels=(3, 8), ranges=RANGES, protection="masked", noise={**noise, "placement": placement}
        ).plan.releases.items()
        if what == "sums of all rows"
    ]
    assert values == sorted(values)
    one, other = (
        trained(parts=randomly(ROWS, 3), protection="masked", noise=noise).booster for _ in range(2)
    )
    assert one.trees[0] != other.trees[0]


def told(party, terms, spending, state, query):
    """What a party that has forgotten the session says, if it is told that it stands there."""
    party = HorizontalHolder(party, terms)
    party.go_to(state)
    values = party.answer(query)
    return spending.release(query, state, tagged(query, ("p0",)), values)[0]


def test_whether_two_answers_have_the_same_noise_says_nothing_of_rows():
    """An aggregator that lies asks for the same sums after trees that move a single row, if it is there: the
    same bytes would say that it is not."""
    X, y = data(rows=50)
    terms = terms_of(X, 1, levels=(3, 8), ranges=RANGES, **LOCAL)
    ledger = TransientMemory(bytes)
    spending = spending_of(terms, ledger)
    cuts = CutPoints.of(tuple(range_edges(of, 8) for of in RANGES), (True,) * 3).with_categories((3, 8))
    start = StartQuery(1 << 40, cuts, SCALE, SCALE)
    query = SumsQuery(1 << 40, 0, (), (0,))
    places = [BoostingState(0, start, (Round((), ((0, value),)),)) for value in (0.25, 0.5)]
    nobody = lambda: shard_of(X, y, rows=slice(0, 0))  # noqa: E731 - so that no sum depends on margins
    one, again, other = (told(nobody, terms, spending, place, query) for place in (places[0], *places))
    assert (one == again).all()
    assert (one != other).any()
    assert len(ledger.charged) == 2


def test_a_number_of_rows_cannot_be_found_out_by_what_is_refused():
    X, _ = data(rows=10)
    terms = terms_of(X, 1, levels=(3, 8), ranges=RANGES, **LOCAL)
    RangeQuery(hiding.ROWS, 3, FINE_PARTS).check(terms)
    for query in (RangeQuery(5, 3, FINE_PARTS), SumsQuery(1 << 39, 0, (), (0,))):
        with raised(Refused, "query-noise"):
            query.check(terms)


def test_how_long_a_plain_answer_is_says_nothing_of_rows():
    """The analyst is told how many bytes each party sent."""
    X, y = data(rows=40)
    lengths = set()

    for rows in (slice(0, 3), slice(None)):
        seen = []

        def keep(party, message, seen=seen):
            if isinstance(message, Report):
                seen.append(len(message.cells))
            return message

        run(
            X[rows],
            y[rows],
            one_party(len(X[rows])),
            program=private.train,
            spoil=keep,
            levels=(3, 8),
            ranges=RANGES,
            rounds=2,
            **LOCAL,
        )
        lengths.add(tuple(seen))
    assert len(lengths) == 1
