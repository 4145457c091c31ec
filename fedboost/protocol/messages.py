"""What is said. A party: Join, Report, Assist, Attest, Leave. The aggregator: Admit, Meet, Ask, Open, Close,
Bye.

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
    """This party's data fit the terms with this digest, and it takes part; its greeting to the others."""

    session: str
    digest: str
    greeting: bytes = b""


@dataclass(frozen=True)
class Meet:
    """The greetings of all parties, this one's among them."""

    greetings: tuple[bytes, ...]


@dataclass(frozen=True)
class Ask:
    """Turn number `turn` (from 1, one up each time): answer this query, with these parties."""

    turn: int
    attempt: int
    roster: tuple[str, ...]
    query: Query


@dataclass(frozen=True)
class Report:
    """Part `part` (from 0, in order) of this party's sealed vector; the sealer's note with the last part."""

    turn: int
    part: int
    cells: bytes = b""
    note: bytes = b""

    def __repr__(self) -> str:
        return f"Report(turn={self.turn}, part={self.part}, {len(self.cells)}+{len(self.note)} bytes)"


@dataclass(frozen=True)
class Open:
    """Help to open the sum of this turn, in the way of the protection."""

    turn: int
    request: bytes


@dataclass(frozen=True)
class Assist:
    """The help that was asked for."""

    turn: int
    answer: bytes

    def __repr__(self) -> str:
        return f"Assist(turn={self.turn}, {len(self.answer)} bytes)"


@dataclass(frozen=True)
class Close:
    """The model is done; its fingerprint. Answered by Attest."""

    fingerprint: str


@dataclass(frozen=True)
class Attest:
    """This party's signature on what it did (`meeting.attestation`), with its certificate in PEM."""

    turns: int
    transcript: bytes
    certificate: bytes
    signature: bytes


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


FromParty = Join | Report | Assist | Attest | Leave
ToParty = Admit | Meet | Ask | Open | Close | Bye
