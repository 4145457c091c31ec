"""The messages of a session: plain frozen data, which `wire.messages` carries without loss.

A party sends Join, Relay, Report, OpenShare, Attest, Leave; the aggregator sends Offer, Introduce, Ask,
Relay, OpenRequest, Close, SessionEnded.

`attempt` numbers the times that the parties of a session were called together, from 1. Messages of an earlier
attempt are ignored."""

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Literal

from fedboost.privacy import packing
from fedboost.privacy.protection import Tag
from fedboost.protocol.contracts import Bound, Only, Query, TrainingState
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.terms import Terms

PART_BYTES = 1 << 20
"""Most bytes in one part of a relay."""
MAX_GREETING = 512 << 10
"""Most bytes of a greeting, which goes to every party. A key holder's contains the public key."""
CONTEXT_BYTES = 32
"""Bytes of the context in the first part of a report, if there is one."""
SESSION_NAME = Bound(256, "characters of a session's name")
Parties = Annotated[tuple[str, ...], Bound(MAX_PARTIES, "parties")]
"""Party names in a message."""


@dataclass(frozen=True)
class Request:
    """An analyst's request for one session under some terms: a fresh nonce of 32 bytes, the time (seconds
    since 1970, UTC), the analyst's certificate in PEM, and its signature (`key_exchange.request`)."""

    nonce: bytes
    time: int
    certificate: bytes = field(repr=False)
    signature: bytes = field(repr=False)


@dataclass(frozen=True)
class Offer:
    """A session is open under these terms, or its parties start a new attempt. A site answers with Join, or
    with Leave if it cannot or will not take part. request: the analyst's; None where nothing is signed."""

    session: Annotated[str, SESSION_NAME]
    terms: Terms
    attempt: int = 1
    request: Request | None = None


@dataclass(frozen=True)
class Join:
    """This party takes part: its data fit the terms with this digest. greeting: for the other parties."""

    session: str
    digest: str
    attempt: int = 1
    greeting: Annotated[bytes, Bound(MAX_GREETING, "bytes of a greeting")] = b""


@dataclass(frozen=True)
class Introduce:
    """The greetings of the roster, including the receiver's, and the state of the training."""

    greetings: Annotated[tuple[bytes, ...], Bound(MAX_PARTIES, "greetings")]
    state: TrainingState


@dataclass(frozen=True)
class Ask:
    """Answer this query, together with the parties of the roster. turn: from 1, one higher each time."""

    turn: int
    attempt: int
    roster: Parties
    query: Query


@dataclass(frozen=True)
class Report:
    """Part `part` (from 0, in order) of this party's sealed vector. The first part has the context under
    which it was sealed, the last the sealer's note."""

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
    """A part of one party's bytes for others of its block, which the aggregator passes on. number: of the
    sender's relay in this turn, from 1; last: True for the relay's last part; to: the receivers, on the way
    to the aggregator; sender: on the way to a party."""

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
    """A request to help to open the sum of this turn, in the protection's format."""

    turn: int
    attempt: int
    request: bytes


@dataclass(frozen=True)
class OpenShare:
    """The help that an OpenRequest asked for, in the protection's format."""

    turn: int
    attempt: int
    answer: bytes

    def __repr__(self) -> str:
        return f"OpenShare(turn={self.turn}, attempt={self.attempt}, {len(self.answer)} bytes)"


@dataclass(frozen=True)
class Close:
    """The model is complete: the constant and this many rounds. A party answers with Attest. numbers: only
    for the label holder, where parties keep parts of the model (`parts.numbers_for`)."""

    attempt: int
    rounds: int
    numbers: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Attest:
    """This party's signature on what it did and on its view of the model (`key_exchange.attestation`).

    turns: number of queries it answered; structure: `state.structure`; certificate: PEM; thresholds: of the
    splits by its columns, where only it knows them (`parts.packed`), signed as well; part: the hash of the
    part of the model that it keeps, where it does (`parts.Part`), signed as well."""

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
    """This party leaves the session; '' is the session that runs, regardless of its name. reason: for the
    analyst, so it contains nothing about rows."""

    reason: str
    session: str = ""


@dataclass(frozen=True)
class SessionEnded:
    """The session is over. An empty reason means that the model is complete."""

    reason: str = ""


FromParty = Join | Relay | Report | OpenShare | Attest | Leave
ToParty = Offer | Introduce | Ask | Relay | OpenRequest | Close | SessionEnded


# ---- The phases of a session at the aggregator, and events other than messages --------------------------


Outbox = list[tuple[str, ToParty]]
Phase = Literal["joining", "asking", "opening", "closing", "done", "failed"]
PHASES: tuple[Phase, ...] = ("joining", "asking", "opening", "closing")
"""The phases in which events are handled."""


@dataclass(frozen=True)
class Connected:
    """A party has connected."""


@dataclass(frozen=True)
class Disconnected:
    """The connection to a party is lost."""

    reason: str


@dataclass(frozen=True)
class Violation:
    """A party has violated the protocol."""

    reason: str


@dataclass(frozen=True)
class Tick:
    """Time has passed: a party past its deadline is considered disconnected."""


FromConnection = FromParty | Connected | Disconnected
"""The events of one party."""


# ---- The transcript of a session ------------------------------------------------------------------------
# One hash over the parties that were introduced, the state of the training then, and every query since. Both
# ends extend it, and answers are sealed under it. So nothing opens unless both ends have seen the same
# queries.


def first_transcript(session: bytes, state: TrainingState) -> bytes:
    """Return the first hash of a transcript: of the session's digest and the state of the training."""
    return hashlib.sha256(packing.pack(session, state.position.digest)).digest()


def next_transcript(before: bytes, query: Query) -> bytes:
    """Return the hash of all queries up to and including this one."""
    return hashlib.sha256(packing.pack(before, query.digest)).digest()


def tag_of(ask: Ask, transcript: bytes) -> Tag:
    """Return the tag under which the answer to a query is sealed."""
    return Tag(ask.turn, ask.attempt, ask.roster, transcript, ask.query.segments)


class Transcripts:
    """The transcripts of all parties, at the aggregator: a single one unless views differ."""

    def __init__(self, terms: Terms, session: bytes, state: TrainingState) -> None:
        self._terms = terms
        self.whole = first_transcript(session, state)
        """The transcript of the whole queries, as the aggregator asked them."""
        self._own = {
            party: first_transcript(session, state.seen_by(terms, party))
            for party in (terms.parties if terms.blocks else ())
        }
        first, *_ = terms.parties
        self._public = first_transcript(session, state.seen_by(terms, first, publicly=True))

    def of(self, party: str) -> bytes:
        """Return the transcript of a party's view."""
        return self._own.get(party, self.whole)

    def signed(self, party: str) -> bytes:
        """Return the transcript that a party signs. Where parties keep parts of the model, it is that of the
        public view: the few possible splits of a party could be tried on a hash of its own view."""
        return self._public if self._terms.keeps_parts else self.of(party)

    def extend(self, query: Query) -> None:
        """Add a query to all transcripts, as each party sees it."""
        self.whole = next_transcript(self.whole, query)
        for party, before in self._own.items():
            self._own[party] = next_transcript(before, query.seen_by(self._terms, party))
        if self._terms.keeps_parts:
            seen = query.seen_by(self._terms, self._terms.parties[0], publicly=True)
            self._public = next_transcript(self._public, seen)
