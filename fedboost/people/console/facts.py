"""Facts that the pages of a console are made from: plain values, which the runtime fills.

Promises: nothing here reads, draws or formats.
Refuses: nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedboost.people.facts import Traffic
from fedboost.wire.services import SessionState, SessionStatus, Status

Row = Mapping[str, float]
"""A round: `round`, metrics by name, `seconds`, `bytes` of all parties, both ways."""
RECENT = 10
"""Rounds whose median time the time left is reckoned from."""


@dataclass(frozen=True)
class LiveFacts:
    """The session under way. phase: what it does now; turn: of the protocol; rounds: those that ended, of
    `status.rounds`; seconds: since it began, or since the aggregator was started again; slowest: the party
    that the others waited for most, with the turns in which it was last and the seconds waited, if any
    was."""

    status: SessionStatus
    phase: str
    turn: int
    rounds: Sequence[Row]
    seconds: float
    traffic: Traffic
    slowest: tuple[str, int, float] | None = None

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the rounds left take if they take as long as the last ones; None before the second
        round. A training that stops early takes less."""
        if len(self.rounds) < 2:
            return None
        recent = sorted(row["seconds"] for row in self.rounds[1:][-RECENT:])
        return recent[len(recent) // 2] * max(self.status.rounds - len(self.rounds), 0)


@dataclass(frozen=True)
class EndedFacts:
    """A session that is over. reason: why it has no model; ended: seconds since 1970; seconds: it took so
    long; rounds: what each brought; model_bytes: of its model file, 0 without one; has_report: its model can
    be read in a report; request: the nonce of the signed request that it used, '' without keys."""

    name: str
    analyst: str
    terms: str
    program: str
    protection: str
    parties: tuple[str, ...]
    ended: int
    seconds: float
    reason: str
    rounds: Sequence[Row] = field(repr=False)
    traffic: Traffic = field(repr=False)
    model_bytes: int = 0
    has_report: bool = False
    request: str = ""


@dataclass(frozen=True)
class ConsoleFacts:
    """An aggregator as its console shows it. ended: the latest first; log: lines, the latest last; caller:
    the name of who logged in, '' for somebody on this machine."""

    status: Status
    live: LiveFacts | None
    ended: Sequence[EndedFacts]
    log: Sequence[str]

    @property
    def queue(self) -> list[SessionStatus]:
        """The sessions that wait to begin."""
        return [session for session in self.status.sessions if session.state is SessionState.WAITING]
