"""Attendance: which parties are connected, introduced to the others, away or barred.

Times are seconds of any steady clock; `now` is set by the session.
"""

import math
from collections import Counter
from collections.abc import Iterable

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
