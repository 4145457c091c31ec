"""Journals that cannot be."""

import dataclasses

import numpy as np
import pytest
from gathering import Together, begun, reason_of
from inprocess import session_of, shard_of, sites_of, terms_of
from liar import ROWS, Left, Liar, X, Y, never, root_of

from fedboost.boosting.programs import boosting
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import ConfigError
from fedboost.gbdt.tree import NO_SPLITS, Tree
from fedboost.protocol import run
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.messages import Ask, Close, Disconnected
from fedboost.protocol.run import AttemptStarted, Begun, Opened, TreeGrown
from fedboost.runtime.aggregator.programs import program_of
from fedboost.terms.tasks import terms_to_describe


@pytest.fixture(scope="module")
def honest():
    """The records of a training with a tree that was cut short because p3 was lost."""
    lost = []

    def change(message):
        query = message.query if isinstance(message, Ask) else None
        if isinstance(query, HistogramQuery) and query.tree == 1 and query.splits:
            lost.append(message)
            return [Disconnected("its connection closed")]
        return [] if lost else None

    together = Together(change, protection="plain", on_loss="shrink")
    session = together.play()
    assert session.phase == "done", session.error
    records = [run.decode(data) for data in together.written]
    assert any(isinstance(record, TreeGrown) for record in records)
    return together.terms, records, session.booster.to_xgboost()


def resumed(terms, records):
    return AggregatorSession("s", terms, boosting.train, INITIAL_STATE, past=records)


def test_a_journal_is_believed_wherever_it_ends(honest):
    terms, records, _ = honest
    for size in range(len(records) + 1):
        session = resumed(terms, records[:size])
        assert session.start() != []
        assert session.phase == "joining"


def place_of(records, kind, number=0):
    return [place for place, record in enumerate(records) if isinstance(record, kind)][number]


def changed(records, kind, number=0, **fields):
    place = place_of(records, kind, number)
    return [*records[:place], dataclasses.replace(records[place], **fields), *records[place + 1 :]]


def moved(records, kind, to):
    place = place_of(records, kind)
    rest = records[:place] + records[place + 1 :]
    return [*rest[:to], records[place], *rest[to:]]


def in_disorder(splits, *rest):
    return [splits[::-1] * 2, *rest]


HAND_MADE = {
    "begun twice": lambda r, t: [Begun("s", t, "analyst"), *r],
    "sums swapped": lambda r, t: [r[0], r[2], r[1], *r[3:]],
    "a sum missing": lambda r, t: [r[0], *r[2:]],
    "a sum twice": lambda r, t: [*r[:2], r[1], *r[2:]],
    "a sum too short": lambda r, t: changed(r, Opened, 1, total=r[2].total[:-1]),
    "a sum of nothing": lambda r, t: changed(r, Opened, 0, total=np.zeros(0, np.int64)),
    "a sum too long": lambda r, t: changed(r, Opened, 0, total=np.ones(10**6, np.int64)),
    "other counts": lambda r, t: changed(r, Opened, 1, total=r[2].total + 1),
    "no rows": lambda r, t: changed(r, Opened, 0, total=r[1].total * 0),
    "attempts that go back": lambda r, t: changed(r, AttemptStarted, 1, attempt=1),
    "attempt 0": lambda r, t: changed(r, AttemptStarted, 0, attempt=0),
    "attempt -1": lambda r, t: changed(r, AttemptStarted, 0, attempt=-1),
    "an attempt beyond all numbers": lambda r, t: changed(r, AttemptStarted, 0, attempt=2**70),
    "never gathered": lambda r, t: r[1:],
    "strangers": lambda r, t: changed(r, AttemptStarted, 0, roster=("p0", "p1", "p2", "x")),
    "one twice": lambda r, t: changed(r, AttemptStarted, 0, roster=("p0", "p0", "p1", "p2")),
    "nobody": lambda r, t: changed(r, AttemptStarted, 0, roster=()),
    "too few": lambda r, t: changed(r, AttemptStarted, -1, roster=("p0",)),
    "fewer from the beginning": lambda r, t: changed(r, AttemptStarted, 0, roster=("p0", "p1", "p2")),
    "a tree before its time": lambda r, t: moved(r, TreeGrown, 1),
    "a tree after its end": lambda r, t: moved(r, TreeGrown, place_of(r, TreeGrown) + 1),
    "a tree twice": lambda r, t: [
        *r[: place_of(r, TreeGrown)],
        r[place_of(r, TreeGrown)],
        *r[place_of(r, TreeGrown) :],
    ],
    "a tree missing": lambda r, t: [one for one in r if one is not r[place_of(r, TreeGrown)]],
    "a tree after the last": lambda r, t: [*r, r[place_of(r, TreeGrown)]],
    "a tree without leaves": lambda r, t: changed(r, TreeGrown, tree=Tree.of_columns([])),
    "a tree of other splits": lambda r, t: changed(r, TreeGrown, known=[[], 1, None, None], last=NO_SPLITS),
    "splits in disorder": lambda r, t: changed(
        r, TreeGrown, known=in_disorder(*r[place_of(r, TreeGrown)].known)
    ),
    "a tree of no level": lambda r, t: changed(
        r, TreeGrown, known=[r[place_of(r, TreeGrown)].known[0], 0, None, None]
    ),
    "a tree in another turn": lambda r, t: changed(r, TreeGrown, turn=10**6),
    "turns that go back": lambda r, t: changed(r, Opened, -1, turn=1),
    "more sums after the end": lambda r, t: [*r, next(x for x in reversed(r) if isinstance(x, Opened))],
}


@pytest.mark.parametrize("what", HAND_MADE)
def test_a_journal_that_cannot_be_is_refused(honest, what):
    terms, records, _ = honest
    with pytest.raises(ConfigError) as caught:
        resumed(terms, HAND_MADE[what](list(records), terms))
    assert "\n" not in str(caught.value)


def test_sums_with_which_the_program_failed_fail_again(honest):
    """The process died after it had recorded the sum that nothing can be learnt from: the session ends with
    the program's sentence, and the aggregator starts."""
    terms, records, _ = honest
    session = resumed(terms, [records[0], dataclasses.replace(records[1], total=records[1].total * 0)])
    session.start()
    assert session.phase == "failed"
    assert "impossible number of rows (0 in total)" in reason_of(session)


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
def test_turns_of_earlier_trees_are_no_way_to_ask_about_a_tree_again(on_loss):
    """A restarted aggregator begins the tree again, by the numbers that its turns had. Others would not be
    compared with what was asked: so the children of any split could be asked for, one after the other."""
    liar = Liar(on_loss=on_loss)
    first = liar.train(never, before=root_of(1))
    tree_begins, turn = liar.state, liar.turn + 1
    liar.ask(first)
    liar.gather(tree_begins)
    liar.ask(first, turn)  # as an honest one does
    liar.gather(tree_begins)
    with pytest.raises(Left, match="the aggregator sent turn 1 after turn"):
        liar.ask(first, 1)


def test_a_party_that_was_away_comes_back_where_a_tree_begins():
    """In the midst of one it would have to believe how gradients were rounded, and which rows were drawn."""
    liar = Liar(on_loss="shrink")
    liar.train(root_of(1))
    begun().gather(liar.state.before_tree)
    with pytest.raises(Left, match="a state that contradicts this site's earlier answers"):
        begun().gather(liar.state)


def test_before_a_tree_split_no_party_was_away():
    liar = Liar(on_loss="shrink")
    liar.train(root_of(0))
    with pytest.raises(Left, match="a state that contradicts this site's earlier answers"):
        begun().gather(liar.state.before_tree)


def test_turns_beyond_those_of_the_terms_are_not_asked():
    liar = Liar(rounds=1, max_depth=1)
    liar.gather()
    for _ in range(liar.terms.max_turns):
        liar.ask(RowsQuery())
    with pytest.raises(Left, match="but the terms allow only"):
        liar.ask(RowsQuery())


def test_signatures_are_collected_after_a_crash_with_noise_that_is_the_same():
    """The last turn is repeated for the signatures; its sum is the recorded one."""
    noise = {"epsilon": 1.0, "delta": 1e-6, "placement": "local"}
    terms = terms_to_describe(terms_of(X, 3, ranges=[[-3, 3]] * 2, noise=noise))
    shards = {name: shard_of(X, Y, rows=slice(place, ROWS, 3)) for place, name in enumerate(terms.parties)}
    sites, records = sites_of(terms, shards), []

    def killed(name, message):
        if isinstance(message, Close):
            raise ConnectionError
        return message

    with pytest.raises(ConnectionError):
        session_of(terms, sites, program_of(terms, ()), record=records.append, told=killed)
    session = session_of(terms, sites, program_of(terms, ()), past=records)
    assert (session.phase, session.error, len(session.attestations)) == ("done", None, 3)
