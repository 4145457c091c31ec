"""The phases of a session at the aggregator, and the events besides messages."""

from dataclasses import dataclass
from typing import Literal

from fedboost.protocol.messages import FromParty, ToParty

Outbox = list[tuple[str, ToParty]]
Phase = Literal["joining", "asking", "opening", "closing", "done", "failed"]
PHASES: tuple[Phase, ...] = ("joining", "asking", "opening", "closing")
"""The phases in which events are handled."""


@dataclass(frozen=True)
class Connected:
    """A party is connected."""


@dataclass(frozen=True)
class Disconnected:
    """The connection to a party was lost."""

    reason: str


@dataclass(frozen=True)
class Violation:
    """A party broke the protocol."""

    reason: str


@dataclass(frozen=True)
class Tick:
    """Time has passed: a party past its deadline counts as disconnected."""


FromConnection = FromParty | Connected | Disconnected
"""The events of one party."""
