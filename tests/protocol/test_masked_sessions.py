"""Whole sessions under `masked`: losses, and what an aggregator that lies can make of them."""

import dataclasses
from collections import deque

import numpy as np
import pytest
from inprocess import model_of, randomly, shard_of, sites_of, terms_of

from fedboost.boosting.queries.ids import IdCountQuery
from fedboost.boosting.queries.labels import RowsQuery
from fedboost.boosting.state import INITIAL_STATE, BoostingState
from fedboost.gbdt.booster import Booster
from fedboost.privacy import pairwise
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.messages import (
    Ask,
    Attest,
    Close,
    Connected,
    Disconnected,
    Introduce,
    Leave,
    OpenRequest,
    Report,
    digest_of_roster,
)
from fedboost.protocol.party import PartySession

ROWS = 200
RNG = np.random.default_rng(5)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(np.float32)
SMALL = {"rounds": 3, "max_depth": 3, "max_bin": 16}


class Played:
    """A session of so many parties; `change(party, message)` gives what goes down to one in its place."""

    def __init__(self, parties, change=None, **settings):
        self.terms = terms_of(X, parties, protection="masked", **{**SMALL, **settings})
        parts = randomly(ROWS, parties)
        shards = {n: shard_of(X, Y, rows=rows) for n, rows in zip(self.terms.parties, parts, strict=True)}
        self.sums = []
        self.said = []
        self._sites = sites_of(self.terms, shards)
        self.ends = {name: PartySession(site) for name, site in self._sites.items()}
        self.session = AggregatorSession("s", self.terms, self.two_counts, INITIAL_STATE)
        self._change = change or (lambda party, message: [message])

    def two_counts(self, terms, grown):
        """A program that counts the rows twice."""
        for _ in range(2):
            self.sums.append(int((yield RowsQuery())[0]))
        return Booster(terms.objective.loss, 0.5, terms.columns.features, ())

    def play(self, lost=lambda party, message: False):
        """To the end. `lost(party, message)`: the party is gone after the aggregator got this message."""
        self._gone = set()
        return self._play(self.session.start(), lost)

    def back(self, party, restarted=False):
        """A lost party is back, and the session goes on; its process may have been started anew."""
        self._gone.discard(party)
        if restarted:
            self.ends[party] = PartySession(self._sites[party])
        return self._play(self.session.handle(party, Connected()))

    def _play(self, outbox, lost=lambda party, message: False):
        waiting = deque(outbox)
        while waiting:
            party, message = waiting.popleft()
            if party in self._gone:
                continue
            for changed in self._change(party, message):
                for reply in self.ends[party].handle(changed):
                    self.said.append((party, reply))
                    waiting.extend(self.session.handle(party, reply))
                    if lost(party, reply):
                        self._gone.add(party)
                        waiting.extend(self.session.handle(party, Disconnected("its connection closed")))
                        break
        return self.session


def after_report(turn, *parties):
    return lambda party, message: party in parties and isinstance(message, Report) and message.turn == turn


@pytest.mark.parametrize(
    ("parties", "on_loss"),
    [(3, "wait"), (4, "stop"), (4, "shrink"), (5, "wait"), (10, "wait"), (10, "shrink")],
)
def test_the_model_is_that_of_plain(parties, on_loss):
    parts, masked = randomly(ROWS, parties), {"protection": "masked", "on_loss": on_loss}
    assert model_of(X, Y, parts, **masked, **SMALL) == model_of(X, Y, parts, **SMALL)


def test_two_parties_where_the_terms_allow_it():
    parts = randomly(ROWS, 2)
    both = {"protection": "masked", "allow_two_parties": True}
    assert model_of(X, Y, parts, **both, **SMALL) == model_of(X, Y, parts, **SMALL)


def test_regression_with_weights():
    parts, weight = randomly(ROWS, 4), RNG.choice([0.5, 2.0], ROWS)
    regression = {**SMALL, "objective": "reg:squarederror"}
    masked = model_of(X, X[:, 0], parts, weight, protection="masked", **regression)
    assert masked == model_of(X, X[:, 0], parts, weight, **regression)


# ---- losses -----------------------------------------------------------------------------------------


def test_a_party_lost_after_its_last_report_costs_nothing_but_its_signature():
    played = Played(5)
    session = played.play(after_report(2, "p1"))
    assert played.sums == [ROWS, ROWS]
    assert (session.phase, session.awaited) == ("joining", ("p1",))  # for its signature
    session.tick(session.terms.session.rejoin_timeout + 1)
    assert session.phase == "done"
    assert set(session.attestations) == {"p0", "p2", "p3", "p4"}


@pytest.mark.parametrize("memory", [True, False])
def test_a_party_lost_after_its_report_is_waited_for_after_the_turn(memory):
    played = Played(5)
    session = played.play(after_report(1, "p1"))
    assert played.sums == [ROWS]  # its rows are in the sum of the turn
    assert (session.phase, session.awaited) == ("joining", ("p1",))
    assert played.back("p1", memory).phase == "done"
    assert played.sums == [ROWS, ROWS]
    assert set(session.attestations) == set(session.terms.parties)


def test_too_few_signatures_are_waited_for():
    played = Played(3)
    session = played.play(after_report(2, "p1"))
    session.tick(10 * session.terms.session.rejoin_timeout)
    assert (session.phase, session.awaited) == ("joining", ("p1",))
    assert played.back("p1", restarted=True).phase == "done"
    assert set(session.attestations) == set(session.terms.parties)


def test_three_of_five_lost_after_their_reports_cost_nothing_in_one_leg():
    """The sum needs nobody's help; three sign once they are back."""
    played = Played(5)
    session = played.play(after_report(2, "p1", "p2", "p3"))
    assert played.sums == [ROWS, ROWS]
    assert (session.phase, session.awaited) == ("joining", ("p1", "p2", "p3"))
    for party in ("p1", "p2", "p3"):
        played.back(party)
    assert (session.phase, len(session.attestations)) == ("done", 5)


def test_three_of_five_lost_after_their_reports_end_the_turn_in_two_legs():
    played = Played(5, on_loss="shrink")
    session = played.play(after_report(2, "p1", "p2", "p3"))
    assert played.sums == [ROWS]
    assert (session.phase, session.awaited) == ("joining", ("p1", "p2", "p3"))
    for party in ("p1", "p2", "p3"):
        played.back(party)
    assert played.sums == [ROWS, ROWS]


def test_a_party_lost_before_its_report_is_waited_for():
    played = Played(5)
    session = played.play(lambda party, message: party == "p1")
    assert (session.phase, session.awaited, played.sums) == ("joining", ("p1",), [])
    assert played.back("p1").phase == "done"
    assert played.sums == [ROWS, ROWS]


def test_a_lost_party_whose_shares_are_wrong_is_named_and_no_helper(monkeypatch):
    split = pairwise.split

    def wrong(*arguments):
        return [share ^ 1 for share in split(*arguments)]

    monkeypatch.setattr(pairwise, "split", wrong)
    session = Played(5, on_loss="shrink").play(after_report(2, "p1"))
    assert session.phase == "failed"
    said = str(session.error)
    assert said.startswith("turn 2: the self mask of lost party p1 cannot be recovered: ")
    assert not any(party in said for party in ("p0", "p2", "p3", "p4"))


# ---- an aggregator that lies ------------------------------------------------------------------------


def sums_until_one_leaves(played, says):
    """The session ends because an honest party leaves it for this reason; the sums opened by then."""
    session = played.play()
    assert session.phase == "failed"
    leaving = [message.reason for _, message in played.said if isinstance(message, Leave)]
    assert any(says in reason for reason in leaving), leaving
    return played.sums


def changing(kind, changed, only=None):
    def change(party, message):
        hit = isinstance(message, kind) and party in (only or [party])
        return [changed(message) if hit else message]

    return change


def test_another_key_in_the_place_of_a_partys():
    strangers = Played(3)
    strangers.play()
    foreign = strangers.session.introduction.greetings["p0"]
    alien = strangers._sites["p0"].credentials.signer.certificate
    swapped = {"greetings": foreign, "certificates": alien}

    def swaps(message):
        fields = {name: (value, *getattr(message, name)[1:]) for name, value in swapped.items()}
        return dataclasses.replace(message, **fields)

    swap = changing(Introduce, swaps)
    assert sums_until_one_leaves(Played(3, swap), "issued by another consortium") == []


@pytest.mark.parametrize("restarted", [False, True])
def test_certificates_travel_once_a_session(restarted):
    """In a further attempt only to a party that was started anew."""
    told = []

    def notes(party, message):
        if isinstance(message, Introduce):
            told.append((party, len(message.certificates), sum(map(len, message.greetings))))
        return [message]

    played = Played(3, notes)
    played.play(after_report(1, "p1"))
    played.back("p1", restarted)
    assert played.session.phase == "done"
    first, again = dict.fromkeys(played.terms.parties, 3), dict.fromkeys(played.terms.parties, 0)
    assert {party: certificates for party, certificates, _ in told[:3]} == first
    assert {party: certificates for party, certificates, _ in told[3:]} == again | {"p1": 3 * restarted}
    assert max(size for *_, size in told) < 3 * 250


def test_a_certificate_that_a_party_knows_no_longer_is_missed():
    """An aggregator that lies says nothing of a party's certificate, in the first attempt."""
    bare = changing(Introduce, lambda m: dataclasses.replace(m, certificates=()))
    assert sums_until_one_leaves(Played(3, bare), "was not sent with its greeting") == []


LIES = {
    "a party less in the introduction": (
        changing(Introduce, lambda m: dataclasses.replace(m, greetings=m.greetings[:2])),
        "introduced parties do not match",
    ),
    "a sum over fewer parties": (
        changing(Ask, lambda m: dataclasses.replace(m, roster=digest_of_roster(("p0", "p1")))),
        "roster does not match the introduced parties",
    ),
    "where the session stands, to a party that knows better": (
        changing(Introduce, lambda m: dataclasses.replace(m, state=BoostingState(grids=1)), only=["p1"]),
        "a state that contradicts this site's earlier answers",
    ),
    "a question of another attempt": (
        changing(Ask, lambda m: dataclasses.replace(m, attempt=m.attempt + 1), only=["p1"]),
        "a query of attempt 2 during attempt 1",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_sum_opens_where_the_aggregator_lies(lie):
    change, says = LIES[lie]
    assert sums_until_one_leaves(Played(3, change), says) == []


def test_different_stories_to_different_parties_open_nothing():
    """One that was restarted is told that the session stands elsewhere: its site remembers, and no mask is
    given away."""
    other = changing(Introduce, lambda m: dataclasses.replace(m, state=BoostingState(grids=1)), only=["p1"])
    played = Played(3)
    played.play(after_report(1, "p1"))
    played._change = other
    played.back("p1", restarted=True)
    leaving = [message.reason for _, message in played.said if isinstance(message, Leave)]
    assert any("a state that contradicts this site's earlier answers" in reason for reason in leaving), (
        leaving
    )
    assert (played.session.phase, played.sums) == ("failed", [ROWS])


def test_help_is_asked_for_with_another_turn():
    later = changing(OpenRequest, lambda m: dataclasses.replace(m, turn=m.turn + 1))
    played = Played(4, later, on_loss="shrink")
    assert (
        sums_until_one_leaves(
            played, "the aggregator requested data to open the sum of turn 2, which is not the current turn"
        )
        == []
    )


def test_a_question_asked_again_gets_the_same_bytes():
    def again(party, message):
        return [message, message] if isinstance(message, Ask) and party == "p1" else [message]

    played = Played(3, again)
    played.play()
    twice = [m for p, m in played.said if p == "p1" and isinstance(m, Report) and m.turn == 1]
    assert len(twice) == 2
    assert twice[0] == twice[1]


def test_another_question_in_a_turn_that_was_answered():
    def another(party, message):
        twice = isinstance(message, Ask) and party == "p1" and message.turn == 1
        return [message, dataclasses.replace(message, query=IdCountQuery(3))] if twice else [message]

    played = Played(3, another)
    played.play()
    reasons = [m.reason for p, m in played.said if p == "p1" and isinstance(m, Leave)]
    assert reasons == ["turn 1 was repeated with a different query or position"]


def test_a_model_is_signed_once_and_only_after_questions():
    played = Played(3)
    (party, *_) = played.terms.parties
    early = Played(3, changing(Ask, lambda m: Close(m.attempt, 1), only=[party]))
    assert sums_until_one_leaves(early, "a model before any query") == []
    twice = Played(3, lambda party, message: [message, message] if isinstance(message, Close) else [message])
    assert twice.play().phase == "done"
    signed = [m for p, m in twice.said if p == party and isinstance(m, Attest)]
    assert len(signed) == 2
    assert signed[0] == signed[1]
