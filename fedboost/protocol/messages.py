"""What is said. A party: Join, Report, Leave. The aggregator: Admit, Ask, Bye.

Promises: plain frozen data; `wire.codec` carries each without loss.
"""

from dataclasses import dataclass

from fedboost.protocol.queries import Query
from fedboost.protocol.terms import Terms


@dataclass(frozen=True)
class Admit:
    """A session is open under these terms. Answered by Join, or by Leave if this site cannot or will not."""

    session: str
    terms: Terms


@dataclass(frozen=True)
class Join:
    """This party's data fit the terms with this digest, and it takes part."""

    session: str
    digest: str


@dataclass(frozen=True)
class Ask:
    """Turn number `turn` (from 1, one up each time): answer this query."""

    turn: int
    query: Query


@dataclass(frozen=True)
class Report:
    """Part `part` (from 0, in order) of this party's sealed vector for a turn."""

    turn: int
    part: int
    cells: bytes = b""

    def __repr__(self) -> str:
        return f"Report(turn={self.turn}, part={self.part}, {len(self.cells)} bytes)"


@dataclass(frozen=True)
class Leave:
    """This party ends its part in the session: '' is the one that runs, whatever its name. The reason is
    for the analyst: nothing of the rows."""

    reason: str
    session: str = ""


@dataclass(frozen=True)
class Bye:
    """The session is over. An empty reason means that the model is done."""

    reason: str = ""


FromParty = Join | Report | Leave
ToParty = Admit | Ask | Bye
