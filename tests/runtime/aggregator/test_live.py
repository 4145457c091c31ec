"""What an aggregator shows of itself on its terminal: who is slow, who is away, and how far it is."""

from types import SimpleNamespace

import pytest
from sites import terms

from fedboost.people.live import ANSWERED, AWAITED, AWAY, PRESENT
from fedboost.runtime.aggregator import live
from fedboost.runtime.aggregator.live import AggregatorProgress
from fedboost.runtime.aggregator.sessions import Pace

NAMES = ("north", "south", "east")


@pytest.fixture
def server():
    """An aggregator with a session of three parties, as the display sees it: south was lost, east is slow."""
    agreed = terms(NAMES, rounds=20)
    session = SimpleNamespace(name="session-1f3a", turn=7, attempt=1, roster=NAMES, awaited=("east",))
    rows = [{"round": 0, "logloss": 0.5, "seconds": 0.2, "bytes": 10}]
    meter = SimpleNamespace(history=rows, traffic={"north": (200, 10), "east": (100, 20)})
    active = SimpleNamespace(
        session=session, terms=agreed, meter=meter, analyst="marie#key", analyst_name="marie", pace=Pace()
    )
    absent = {"south": 0}
    connected = SimpleNamespace(
        names={"north", "east"}, absent=lambda names: {name: absent[name] for name in names if name in absent}
    )
    return SimpleNamespace(
        address="127.0.0.1:7070",
        connected=connected,
        analysts=SimpleNamespace(waiters=[]),
        sessions=SimpleNamespace(active=active),
    )


def test_a_session_that_runs(server):
    facts = AggregatorProgress(server).facts()
    assert facts.title == "aggregator on 127.0.0.1:7070"
    assert facts.session.startswith("session-1f3a of marie, 3 parties, terms ")
    assert (facts.done, facts.rounds, facts.received, facts.sent) == (1, 20, 300, 30)
    assert [(party.name, party.state) for party in facts.parties] == [
        ("north", ANSWERED),
        ("south", AWAY),
        ("east", AWAITED),
    ]
    assert facts.parties[1].note == "never here"
    assert facts.curve.values == (0.5,)


def test_who_keeps_a_turn_waiting_is_named(server, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    progress = AggregatorProgress(server)
    assert progress.facts().waiting == ""
    now[0] += 5.0
    assert progress.facts().waiting == "east (5 s)"
    server.sessions.active.session.turn += 1
    assert progress.facts().waiting == ""


def test_the_slowest_is_for_whom_the_others_waited_most(server):
    progress, pace = AggregatorProgress(server), server.sessions.active.pace
    assert progress.facts().slowest == ""
    for turn in range(10):
        pace.heard("north", 2.0 * turn, False)
        pace.heard("east", 2.0 * turn + (0.05 if turn < 9 else 1.5), True)
        assert progress.facts().slowest == ("" if turn < 9 else "slowest: east (the others waited 1 s)")


def test_no_session_and_one_that_waits(server):
    server.sessions.active = None
    progress = AggregatorProgress(server)
    facts = progress.facts()
    assert (facts.now, facts.waiting) == ("no session runs or waits", "")
    assert [(party.name, party.state) for party in facts.parties] == [("east", PRESENT), ("north", PRESENT)]
    server.analysts.waiters = [SimpleNamespace(terms=terms(NAMES))]
    facts = progress.facts()
    assert facts.waiting == "south"
    assert "1 analyst waiting" in facts.about
    assert (facts.parties[0].name, facts.parties[0].state) == ("south", AWAY)
