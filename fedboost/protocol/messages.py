"""The messages of a session.

A party sends Join, Relay, Report, OpenShare, Attest, Leave; the aggregator sends Offer, Introduce, Ask,
Relay, OpenRequest, Close, SessionEnded.

Promises: plain frozen data; `wire.messages` carries each without loss.

`attempt` counts how often the parties of a session were called together, from 1; what belongs to an earlier
attempt is ignored.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Literal

from fedboost.privacy import packing
from fedboost.privacy.protection import Tag
from fedboost.protocol.contracts import Bound, Only, Query, TrainingState
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.terms import Terms

PART_BYTES = 1 << 20
"""Bytes of a part of relayed bytes."""
MAX_GREETING = 512 << 10
"""Bytes of a greeting: that of a key holder has the public key in it. Each goes to every party."""
CONTEXT_BYTES = 32
"""Bytes of the context in the first part of a report, if there is one."""
SESSION_NAME = Bound(256, "characters of a session's name")
Parties = Annotated[tuple[str, ...], Bound(MAX_PARTIES, "parties")]
"""Names of parties, of a message."""


@dataclass(frozen=True)
class Request:
    """An analyst asked for one session under some terms: a fresh nonce of 32 bytes, when (seconds since 1970,
    UTC), and the analyst's signature of both with its certificate in PEM (`key_exchange.request`)."""

    nonce: bytes
    time: int
    certificate: bytes = field(repr=False)
    signature: bytes = field(repr=False)


@dataclass(frozen=True)
class Offer:
    """A session is open under these terms, or its parties start a new attempt. Answered by Join, or by Leave
    if this site cannot or will not. request: who asked for it; None where nothing is signed."""

    session: Annotated[str, SESSION_NAME]
    terms: Terms
    attempt: int = 1
    request: Request | None = None


@dataclass(frozen=True)
class Join:
    """This party's data fit the terms with this digest, and it takes part; its greeting to the others."""

    session: str
    digest: str
    attempt: int = 1
    greeting: Annotated[bytes, Bound(MAX_GREETING, "bytes of a greeting")] = b""


@dataclass(frozen=True)
class Introduce:
    """The greetings of the roster, this party's among them, and where the session stands."""

    greetings: Annotated[tuple[bytes, ...], Bound(MAX_PARTIES, "greetings")]
    state: TrainingState


@dataclass(frozen=True)
class Ask:
    """Turn number `turn` (from 1, one up each time): answer this query, with these parties."""

    turn: int
    attempt: int
    roster: Parties
    query: Query


@dataclass(frozen=True)
class Report:
    """Part `part` (from 0, in order) of this party's sealed vector; with the first the context that it was
    sealed under, with the last the sealer's note."""

    turn: int
    attempt: int
    part: int
    cells: bytes = b""
    note: bytes = b""
    ctx: Annotated[bytes, Only(lambda ctx: len(ctx) in (0, CONTEXT_BYTES), "a cut context")] = b""

    def __repr__(self) -> str:
        size = len(self.cells) + len(self.note)
        return f"Report(turn={self.turn}, attempt={self.attempt}, part={self.part}, {size} bytes)"


@dataclass(frozen=True)
class Relay:
    """Bytes of one party for others of its block, which the aggregator passes on, in parts: relay `number`
    (from 1) of its sender in this turn, `last` with the last part. From a party it names the receivers, to a
    party the sender."""

    turn: int
    attempt: int
    number: int
    content: Annotated[bytes, Bound(PART_BYTES, "bytes in a part of a relay")]
    last: bool
    to: Parties = ()
    sender: str = ""

    def __repr__(self) -> str:
        label = f"turn={self.turn}, attempt={self.attempt}, number={self.number}"
        return f"Relay({label}, to={self.to}, sender={self.sender!r}, {len(self.content)} bytes)"


@dataclass(frozen=True)
class OpenRequest:
    """Help to open the sum of this turn, in the way of the protection."""

    turn: int
    attempt: int
    request: bytes


@dataclass(frozen=True)
class OpenShare:
    """The help that was asked for."""

    turn: int
    attempt: int
    answer: bytes

    def __repr__(self) -> str:
        return f"OpenShare(turn={self.turn}, attempt={self.attempt}, {len(self.answer)} bytes)"


@dataclass(frozen=True)
class Close:
    """The model is done: the constant and so many rounds. numbers: for the label holder alone, where parties
    keep parts of the model (`parts.numbers_for`). Answered by Attest."""

    attempt: int
    rounds: int
    numbers: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Attest:
    """This party's signature on what it did and on the model as it was told (`key_exchange.attestation`),
    with its certificate in PEM. turns: how many questions it has answered; structure: `state.structure`;
    thresholds: of the splits by its columns, where it alone knows them (`parts.packed`), signed too, as
    is part: the hash of the part of the model that it keeps, where it does (`parts.Part`)."""

    attempt: int
    turns: int
    transcript: bytes
    structure: bytes
    certificate: bytes
    signature: bytes
    thresholds: bytes = field(default=b"", repr=False)
    part: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Leave:
    """This party ends its part in the session: '' is the one that runs, whatever its name. The reason is
    for the analyst: nothing of the rows."""

    reason: str
    session: str = ""


@dataclass(frozen=True)
class SessionEnded:
    """The session is over. An empty reason means that the model is done."""

    reason: str = ""


FromParty = Join | Relay | Report | OpenShare | Attest | Leave
ToParty = Offer | Introduce | Ask | Relay | OpenRequest | Close | SessionEnded


# ---- The phases of a session at the aggregator, and the events besides messages -------------------------


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


# ---- The transcript of a session ------------------------------------------------------------------------
# One hash over who has met, where the training stood, and every query since.
# Both ends extend it; answers are sealed under it, so nothing opens unless both asked and heard the same.


def first_transcript(session: bytes, state: TrainingState) -> bytes:
    """The hash that a transcript begins with: the session's digest, and where the training stands."""
    return hashlib.sha256(packing.pack(session, state.position.digest)).digest()


def next_transcript(before: bytes, query: Query) -> bytes:
    """The hash of all queries up to this one."""
    return hashlib.sha256(packing.pack(before, query.digest)).digest()


def tag_of(ask: Ask, transcript: bytes) -> Tag:
    """The tag under which the answer to a query is sealed."""
    return Tag(ask.turn, ask.attempt, ask.roster, transcript, ask.query.segments)


class Transcripts:
    """The transcripts of all parties at the aggregator: one, unless they are told different things."""

    def __init__(self, terms: Terms, session: bytes, state: TrainingState) -> None:
        self._terms = terms
        self.whole = first_transcript(session, state)
        """The transcript of what the aggregator asked."""
        self._own = {
            party: first_transcript(session, state.seen_by(terms, party))
            for party in (terms.parties if terms.blocks else ())
        }
        first, *_ = terms.parties
        self._public = first_transcript(session, state.seen_by(terms, first, publicly=True))

    def of(self, party: str) -> bytes:
        """The transcript of a party."""
        return self._own.get(party, self.whole)

    def signed(self, party: str) -> bytes:
        """The transcript that a party signs: where parties keep parts, of what all were told, since who knows
        that could try the few splits of a party on a hash of them."""
        return self._public if self._terms.keeps_parts else self.of(party)

    def extend(self, query: Query) -> None:
        """Add a query, as each party is told it."""
        self.whole = next_transcript(self.whole, query)
        for party, before in self._own.items():
            self._own[party] = next_transcript(before, query.seen_by(self._terms, party))
        if self._terms.keeps_parts:
            seen = query.seen_by(self._terms, self._terms.parties[0], publicly=True)
            self._public = next_transcript(self._public, seen)
