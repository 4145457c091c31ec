"""The pace of the parties of a session: who is slow now, and for whom the others waited most.

Promises: a party that alone is awaited is named; of each turn the party whose answer came last is known, and
how long after the one before it. No clock here: the time comes in.
Refuses: nothing.
"""

from dataclasses import dataclass, field

STRAGGLER_SECONDS = 10.0
"""A party that is awaited for longer than this is slow."""


@dataclass
class Waits:
    """Turns in which a party answered last, and the seconds from the answer before to its own."""

    turns: int = 0
    seconds: float = 0.0


@dataclass
class Pace:
    """The pace of one session. slow: the parties that are awaited for longer than STRAGGLER_SECONDS."""

    slow: tuple[str, ...] = ()
    waits: dict[str, Waits] = field(default_factory=dict)
    _awaited: tuple[str, ...] = ()
    _since: float = 0.0
    _last: str = ""
    _heard: float = 0.0
    """When the party `_last` was heard."""
    _others: float = 0.0
    """When another than that was heard last."""

    def look(self, awaited: tuple[str, ...], now: float) -> bool:
        """Look at who is awaited now; True if other parties are slow than before."""
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now
        slow = awaited if now - self._since >= STRAGGLER_SECONDS else ()
        changed, self.slow = slow != self.slow, slow
        return changed

    def heard(self, party: str, now: float, ends_turn: bool) -> None:
        """Note a part of an answer; ends_turn: it was the last one of the turn."""
        if party != self._last:
            self._last, self._others = party, self._heard
        self._heard = now
        if ends_turn:
            waits = self.waits.setdefault(party, Waits())
            waits.turns += 1
            waits.seconds += now - self._others if self._others else 0.0

    @property
    def slowest(self) -> str:
        """The party that the others waited for most; '' while nobody waited."""
        return max(self.waits, key=lambda party: self.waits[party].seconds, default="")
