"""Parties gather again after a loss: what a hostile party can make of that."""

import dataclasses
import random

import pytest
from gathering import Together, reason_of
from liar import agreed, places

from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import Attempt, Trust
from fedboost.protocol.messages import (
    Ask,
    Attest,
    Close,
    Connected,
    Disconnected,
    Join,
    Leave,
    Offer,
    OpenShare,
    Report,
)
from fedboost.protocol.party import PartySession
from fedboost.protocol.run import MAX_LOSSES_PER_TURN

NUMBERS = (0, 1, 2, 5, 2**31, 2**32 - 1)


def odd(draw, session):
    """A message with odd numbers, or ones that might be right."""

    def number(right):
        return draw.choice([right, right, right, draw.choice(NUMBERS)])

    turn, attempt = number(session.turn), number(session.attempt)
    digest = draw.choice([session.terms.digest, "other"])
    return draw.choice(
        [
            Join(draw.choice(["s", "t"]), digest, attempt, draw.choice([b"", b"x", bytes(200)])),
            Report(turn, attempt, number(0), bytes(draw.choice([0, 8, 1000])), draw.choice([b"", b"x"])),
            OpenShare(turn, attempt, bytes(draw.choice([0, 32]))),
            Attest(attempt, number(3), draw.randbytes(32), draw.randbytes(32), b"", b""),
            Leave("\x1b[2J" + "x" * 5000, draw.choice(["", "s", "t"])),
            Disconnected("its connection closed"),
            Connected(),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["plain", "masked"])
@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
def test_whatever_a_party_says_the_session_ends_or_names_it(protection, on_loss):
    ends = set()
    for seed in range(12):
        draw, said = random.Random(seed), []

        def change(message, draw=draw, said=said):
            if draw.random() < 0.7:
                return None
            return [odd(draw, said[0]) for _ in range(draw.randrange(3))]

        together = Together(change, protection=protection, on_loss=on_loss, turn_timeout=10.0)
        said.append(together.session)
        session = together.play(2000, may_wait=True)
        ends.add(session.phase)
        if session.phase == "failed":
            assert "p3" in reason_of(session), reason_of(session)
        elif session.phase != "done":
            assert on_loss == "wait" or session.attempt == 1
            assert session.awaited == ("p3",)
    assert "failed" in ends


def test_a_party_that_was_left_out_is_not_heard():
    """It still is connected, and talks: no message of any kind changes anything, or fails."""
    left = []

    def change(message):
        session = together.session
        if isinstance(message, Ask) and message.query and session.run.state.tree == 1 and not left:
            left.append(message)
            return [Leave("it has had enough")]
        return None

    together = Together(change, protection="plain", on_loss="shrink")
    handle, draw = together.session.handle, random.Random(1)

    def talking(party, event):
        for _ in range(5 if left and party != "p3" and not isinstance(event, Leave) else 0):
            said = odd(draw, together.session)
            assert handle("p3", said) == [], said
        return handle(party, event)

    together.session.handle = talking
    session = together.play()
    assert session.phase == "done", session.error
    assert session.roster == ("p0", "p1", "p2")
    assert set(session.attestations) == {"p0", "p1", "p2"}


@pytest.mark.parametrize("on_loss", ["stop", "shrink"])
@pytest.mark.parametrize("silent", [False, True])
def test_a_party_that_always_comes_back_and_never_answers_does_not_keep_the_others(on_loss, silent):
    def change(message):
        if isinstance(message, Ask) and together.session.run.state.tree >= 1:
            return [] if silent else [Disconnected("its connection closed"), Connected()]
        return None

    together = Together(change, protection="plain", on_loss=on_loss)
    session = together.play()
    if on_loss == "shrink":
        assert session.phase == "done", session.error
        assert set(session.attestations) == {"p0", "p1", "p2"}
    else:
        assert reason_of(session).startswith("party p3 ")
        assert f"for the {MAX_LOSSES_PER_TURN + 1}th time in turn" in reason_of(session)
    assert session.attempt < 4 * MAX_LOSSES_PER_TURN


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
@pytest.mark.parametrize("silent", [False, True])
def test_nobody_keeps_a_finished_model_from_the_others(on_loss, silent):
    def change(message):
        if isinstance(message, Close):
            return [] if silent else [Disconnected("its connection closed"), Connected()]
        return None

    session = Together(change, protection="plain", on_loss=on_loss).play()
    assert session.phase == "done", session.error
    assert set(session.attestations) == {"p0", "p1", "p2"}


@pytest.mark.parametrize("on_loss", ["wait", "stop", "shrink"])
@pytest.mark.parametrize("does", ["leaves", "joins twice", "reports other rows"])
def test_nor_spoils_it_where_the_last_question_is_asked_again(on_loss, does):
    closed = []

    def change(message):
        if isinstance(message, Close) and not closed:
            closed.append(message)
            return [Disconnected("its connection closed"), Connected()]
        if not (closed and isinstance(message, Ask)):
            return None
        if does == "leaves":
            return [Leave("it has had enough")]
        if does == "joins twice":
            return [Join("s", together.terms.digest, message.attempt, b"other")]
        (report,) = together.ends["p3"].handle(message)
        return [dataclasses.replace(report, cells=bytes([report.cells[0] ^ 1]) + report.cells[1:])]

    together = Together(change, protection="plain", on_loss=on_loss)
    session = together.play()
    assert session.phase == "done", session.error
    assert set(session.attestations) == {"p0", "p1", "p2"}


def trusting(terms):
    """Sites with keys, and whom the aggregator trusts."""
    sites = places(terms)
    credentials = sites["p0"].credentials
    return sites, Trust(credentials.roots, credentials.denied, credentials.clock)


def check_signatures(session, trust):
    assert session.attestations
    for party, attest in session.attestations.items():
        attempt = Attempt("s", session.attempt, session.terms)
        key_exchange.check_attest(trust, attempt, session.digest, party, attest)


def test_signatures_belong_to_the_meeting_they_were_given_in():
    """A party is lost before it signed, joins again, and is lost for good: the others' signatures are those
    of the meeting before."""
    closed, gone = [], []

    def change(message):
        if isinstance(message, Close) and not closed:
            closed.append(message)
            return [Disconnected("its connection closed"), Connected()]
        if isinstance(message, Ask) and closed:
            gone.append(message)
            return [Disconnected("its connection closed")]
        return [] if gone else None

    sites, trust = trusting(agreed())
    session = Together(change, sites=sites).play()
    assert (session.phase, set(session.attestations)) == ("done", {"p0", "p1", "p2"})
    check_signatures(session, trust)


@pytest.mark.parametrize("field", ["turns", "transcript", "structure", "certificate", "signature"])
def test_who_attests_something_else_has_not_signed(field):
    def change(message):
        if not isinstance(message, Close):
            return None
        (attest,) = together.ends["p3"].handle(message)
        wrong = 99 if field == "turns" else b"x" * 32
        return [dataclasses.replace(attest, **{field: wrong})]

    sites, trust = trusting(agreed())
    together = Together(change, sites=sites, trust=trust)
    session = together.play()
    assert (session.phase, set(session.attestations)) == ("done", {"p0", "p1", "p2"})
    check_signatures(session, trust)


def test_who_greets_with_what_nobody_accepts_is_named_itself():
    """Else the others would leave, and the session would end in the name of one of them."""
    sites, trust = trusting(agreed())
    others = {}

    def change(message):
        if not isinstance(message, Offer):
            return None
        (join,) = together.ends["p3"].handle(message)
        return [dataclasses.replace(join, greeting=others.get("greeting", b"nothing"))]

    together = Together(change, sites=sites, trust=trust)
    assert reason_of(together.play()) == ("party p3 broke the protocol: a party's greeting is malformed")
    (join,) = PartySession(sites["p0"]).handle(Offer("s", together.terms, 1))
    others["greeting"] = join.greeting
    together = Together(change, sites=sites, trust=trust)
    assert reason_of(together.play()) == "party p3 broke the protocol: its greeting names party p0"
