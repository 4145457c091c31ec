"""Attendance: which parties are connected, introduced to the others, away or barred.

Times are seconds of any steady clock; `now` is set by the session.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedboost.errors import quoted
from fedboost.protocol.messages import Disconnected, Leave, Outbox, Violation

if TYPE_CHECKING:
    from fedboost.protocol.aggregator import AggregatorSession

MAX_LOSSES_PER_TURN = 5
"""Losses of a party in one turn before it is barred where the terms do not wait: else a party that always
comes back, and never answers, would keep the others from their model."""


class Attendance:
    """The parties of one session."""

    def __init__(self, parties: Iterable[str]) -> None:
        self.connected: set[str] = set()
        self.introduced: set[str] = set()
        """Parties of the roster that were introduced in this attempt, and have been connected since."""
        self.barred: set[str] = set()
        """Parties that are not taken back: they left, broke the protocol, or were lost too often."""
        self.now = 0.0
        self._parties = frozenset(parties)
        self._away: dict[str, tuple[float, str]] = {}
        """Parties that were lost or are late: since when, and why."""
        self._losses: Counter[str] = Counter()

    def begin(self, connected: Iterable[str] | None) -> None:
        """Start with these parties connected, or with all."""
        self.connected = set(self._parties if connected is None else connected) & self._parties

    def lose(self, party: str) -> None:
        """Take a party off the list of those that are connected."""
        self.connected.discard(party)
        self.introduced.discard(party)

    def mark_away(self, party: str, reason: str) -> None:
        """Note since when a party is away, unless that is known."""
        self._away.setdefault(party, (self.now, reason))

    def mark_late(self, party: str, reason: str) -> None:
        """Note that a party is away from now on."""
        self._away[party] = (self.now, reason)

    def mark_back(self, party: str) -> None:
        """Note that a party takes part again."""
        self._away.pop(party, None)

    def bar(self, party: str, reason: str) -> None:
        """Give a party up for good."""
        self.barred.add(party)
        self._away[party] = (-math.inf, reason)

    def count_loss(self, party: str, turn: int, waits: bool) -> None:
        """Count a loss of a party that is away, and bar it after too many in one turn unless the session
        waits."""
        self._losses[party] += 1
        if self._losses[party] > MAX_LOSSES_PER_TURN and not waits:
            self.bar(party, f"{self.reason(party)}, for the {self._losses[party]}th time in turn {turn}")

    def begin_turn(self) -> None:
        """Forget the losses of the turn before."""
        self._losses.clear()

    def overdue(self, parties: Iterable[str], seconds: float) -> list[str]:
        """The parties among these that have been away for longer than that."""
        since = self.now - seconds
        return [party for party in parties if self._away.get(party, (self.now, ""))[0] < since]

    def reason(self, party: str) -> str:
        """The reason why a party is away."""
        return self._away[party][1]


def leave(session: "AggregatorSession", party: str, event: Leave) -> Outbox:
    """The session fails; where it may shrink, the party counts as lost for good."""
    return expel(session, party, Violation(f"left: {_as_predicate(party, event.reason)}"))


def expel(session: "AggregatorSession", party: str, event: Violation) -> Outbox:
    """The session fails; where it may shrink, the party counts as lost for good."""
    shrinks = session.terms.session.on_loss == "shrink" and bool(session.run.state.rounds)
    if session.booster is None and not shrinks:
        return session.fail(f"party {party} {event.reason}")
    session.attendance.bar(party, event.reason)
    lost = Disconnected(event.reason)
    return session.follow(lost, party, lost)


def note_loss(session: "AggregatorSession", party: str, event: Disconnected) -> bool:
    """Note that a party was lost. True if the roster has it."""
    session.attendance.lose(party)
    if party not in session.roster:
        return False
    session.attendance.mark_away(party, f"was lost: {event.reason}")
    count_loss(session, party)
    return True


def count_loss(session: "AggregatorSession", party: str) -> None:
    """Count a loss of a party of the roster in this turn."""
    waits = session.terms.session.on_loss == "wait" and session.booster is None
    session.attendance.count_loss(party, session.turn, waits)


def _as_predicate(party: str, reason: str) -> str:
    """The reason that a party gave, where its name need not be said twice."""
    reason = quoted(reason).removeprefix(f"party {party}: ")
    if reason.startswith(f"party {party} "):
        return f"it {reason.removeprefix(f'party {party} ')}"
    return reason
