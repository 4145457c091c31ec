"""Messages of a session, as plain immutable data. `fedboost.wire` encodes them without loss.

A party sends Join, Relay, Report, OpenShare, Attest and Leave. The aggregator sends Offer, Introduce, Ask,
Relay, OpenRequest, Close and SessionEnded.

The field `attempt` of a message is the number of the attempt, starting at 1. A new attempt starts whenever
the parties need fresh keys, e.g. after a disconnection. Messages of an earlier attempt are ignored."""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal

from fedboost.privacy import packing
from fedboost.privacy.protection import Tag
from fedboost.protocol.contracts import Bound, Only, Query, TrainingState
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.terms import Terms

PART_BYTES = 1 << 20
"""Maximum size in bytes of one part of a relay."""
MAX_GREETING = 512 << 10
"""Maximum size in bytes of a greeting, which is sent to every party. The key holder's greeting also contains
the key with which sums are encrypted."""
MAX_CERTIFICATE = 32 << 10
"""Maximum size in bytes of a party's certificate chain."""
CONTEXT_BYTES = 32
"""Size in bytes of a report's context, which only the first part contains."""
SESSION_NAME = Bound(256, "characters in the session name")
Parties = Annotated[tuple[str, ...], Bound(MAX_PARTIES, "parties")]
"""Party names in a message."""


@dataclass(frozen=True)
class Request:
    """An analyst's signed request for one session under given terms.

    nonce: 32 fresh bytes; time: seconds since 1970, UTC; certificate: the analyst's certificate, in PEM;
    signature: see `key_exchange.request`."""

    nonce: bytes
    time: int
    certificate: bytes = field(repr=False)
    signature: bytes = field(repr=False)


@dataclass(frozen=True)
class Offer:
    """Offers a site a session under these terms, or a new attempt of a session that it has joined. The site
    answers with Join, or with Leave if it cannot or will not take part. request: the analyst's request, or
    None if requests are not signed."""

    session: Annotated[str, SESSION_NAME]
    terms: Terms
    attempt: int = 1
    request: Request | None = None


@dataclass(frozen=True)
class Join:
    """Accepts an offer: this party's data fit the terms with this digest. greeting: signed name and keys, for
    the other parties; certificate: the party's certificate, in PEM; known: digest of the certificates that
    the party has from an earlier attempt (`key_exchange.digest_of_certificates`)."""

    session: str
    digest: str
    attempt: int = 1
    greeting: Annotated[bytes, Bound(MAX_GREETING, "bytes in the greeting")] = b""
    certificate: Annotated[bytes, Bound(MAX_CERTIFICATE, "bytes in the certificate")] = field(
        default=b"", repr=False
    )
    known: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Introduce:
    """Carries the greetings of all parties in the roster, including the receiver's, and the state of the
    training run. certificates: the parties' certificates, unless the receiver knows them."""

    greetings: Annotated[tuple[bytes, ...], Bound(MAX_PARTIES, "greetings")]
    state: TrainingState
    certificates: Annotated[tuple[bytes, ...], Bound(MAX_PARTIES, "certificates")] = field(
        default=(), repr=False
    )


@dataclass(frozen=True)
class Ask:
    """Asks the parties of the roster to answer a query. turn: number of the query in the session, starting at
    1; roster: digest of the parties whose vectors are added, which the introduction named
    (`digest_of_roster`)."""

    turn: int
    attempt: int
    roster: bytes
    query: Query


@dataclass(frozen=True)
class Report:
    """One part of a party's sealed vector. part: number of the part; parts are sent in order, starting at 0.
    ctx: context under which the vector was sealed, only in the first part; note: additional bytes for the
    aggregator, only in the last part."""

    turn: int
    attempt: int
    part: int
    cells: bytes = b""
    note: bytes = b""
    ctx: Annotated[
        bytes, Only(lambda ctx: len(ctx) in (0, CONTEXT_BYTES), "its context has an invalid length")
    ] = b""

    def __repr__(self) -> str:
        size = len(self.cells) + len(self.note)
        return f"Report(turn={self.turn}, attempt={self.attempt}, part={self.part}, {size} bytes)"


@dataclass(frozen=True)
class Relay:
    """One part of the bytes that a party sends to other parties of its block through the aggregator.

    number: number of the sender's relay in this turn, starting at 1; last: True for the relay's last part;
    to: the receivers, set only on the way to the aggregator; sender: the sending party, set only on the way
    to a receiver."""

    turn: int
    attempt: int
    number: int
    content: Annotated[bytes, Bound(PART_BYTES, "bytes in this part of the relay")]
    last: bool
    to: Parties = ()
    sender: str = ""

    def __repr__(self) -> str:
        label = f"turn={self.turn}, attempt={self.attempt}, number={self.number}"
        return f"Relay({label}, to={self.to}, sender={self.sender!r}, {len(self.content)} bytes)"


@dataclass(frozen=True)
class OpenRequest:
    """Requests data that the aggregator needs from a party to open the sum of this turn. request: bytes in
    the protection's format."""

    turn: int
    attempt: int
    request: bytes


@dataclass(frozen=True)
class OpenShare:
    """A party's reply to an OpenRequest. answer: bytes in the protection's format."""

    turn: int
    attempt: int
    answer: bytes

    def __repr__(self) -> str:
        return f"OpenShare(turn={self.turn}, attempt={self.attempt}, {len(self.answer)} bytes)"


@dataclass(frozen=True)
class Close:
    """Announces that the model is complete. A party replies with Attest. rounds: number of rounds that the
    session trained, excluding the constant; numbers: node values for the label holder if parties keep model
    parts (`parts.numbers_for`), otherwise empty."""

    attempt: int
    rounds: int
    numbers: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Attest:
    """A party's signature on its answers and on its view of the model (`key_exchange.attestation`).

    Args:
        turns: number of queries that the party answered.
        transcript: hash of these queries.
        structure: hash of the model (`TrainingState.structure`).
        certificate: the party's certificate, in PEM.
        thresholds: thresholds of the splits on the party's columns, if only the party knows them
            (`parts.packed`).
        part: hash of the model part that the party keeps, if any (`parts.Part`)."""

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
    """Announces that this party leaves a session. reason: shown to the analyst, so it contains nothing about
    rows; session: name of the session, or '' for the current one."""

    reason: str
    session: str = ""


@dataclass(frozen=True)
class SessionEnded:
    """Announces the end of the session. reason: empty if the model is complete."""

    reason: str = ""


FromParty = Join | Relay | Report | OpenShare | Attest | Leave
ToParty = Offer | Introduce | Ask | Relay | OpenRequest | Close | SessionEnded


# ---- The phases of a session at the aggregator, and events other than messages --------------------------


Outbox = list[tuple[str, ToParty]]
Phase = Literal["joining", "asking", "opening", "closing", "done", "failed"]
PHASES: tuple[Phase, ...] = ("joining", "asking", "opening", "closing")
"""Phases in which the aggregator handles events."""


@dataclass(frozen=True)
class Connected:
    """Event: a party has connected."""


@dataclass(frozen=True)
class Disconnected:
    """Event: the connection to a party was lost."""

    reason: str


@dataclass(frozen=True)
class Violation:
    """Event: a party has violated the protocol."""

    reason: str


@dataclass(frozen=True)
class Tick:
    """Event: time has passed. Parties that exceeded their deadline count as disconnected."""


@dataclass(frozen=True)
class Summed:
    """Event: an adder has sent a part of the sum of these parties' reports."""

    parties: tuple[str, ...]
    report: Report


FromConnection = FromParty | Connected | Disconnected
"""Events that concern one party."""


# ---- The transcript of a session ------------------------------------------------------------------------
# One hash of the introduced parties, the training state at their introduction, and every query since. Both
# ends extend it, and answers are sealed under it. So no sum can be opened unless both ends have the same
# queries.


def first_transcript(session: bytes, state: TrainingState) -> bytes:
    """Return the initial transcript: a hash of the session's digest and the state of the training run."""
    return hashlib.sha256(packing.pack(session, state.position.digest)).digest()


def next_transcript(before: bytes, query: Query) -> bytes:
    """Return the transcript (the hash of all queries so far) extended by this query."""
    return hashlib.sha256(packing.pack(before, query.digest)).digest()


def tag_of(ask: Ask, roster: tuple[str, ...], transcript: bytes) -> Tag:
    """Return the unique label (`Tag`) under which the answer to a query is sealed. roster: the parties whose
    vectors are added."""
    return Tag(ask.turn, ask.attempt, roster, transcript, ask.query.segments)


@lru_cache(maxsize=8)  # the same in every turn of an attempt
def digest_of_roster(roster: tuple[str, ...]) -> bytes:
    """Return the SHA-256 hash of the names of these parties, in any order."""
    return hashlib.sha256(packing.pack(*(party.encode() for party in sorted(roster)))).digest()


class Transcripts:
    """The aggregator's record of every party's transcript: one for all parties, or one per party if their
    views differ."""

    def __init__(self, terms: Terms, session: bytes, state: TrainingState) -> None:
        self._terms = terms
        self._own = {
            viewer: first_transcript(session, state.seen_by(terms, viewer))
            for viewer in {*map(terms.blocks.viewer, terms.parties)}
        }
        first, *_ = terms.parties
        self._public = first_transcript(session, state.seen_by(terms, first, publicly=True))

    def of(self, party: str) -> bytes:
        """Return the transcript of the party's view."""
        return self._own[self._terms.blocks.viewer(party)]

    def signed(self, party: str) -> bytes:
        """Return the transcript that a party signs. If parties keep model parts, this is the transcript of
        the public view. A hash of the party's own view would let others guess its splits, because few splits
        are possible."""
        return self._public if self._terms.keeps_parts else self.of(party)

    def extend(self, query: Query) -> dict[str, Query]:
        """Extend each party's transcript by that party's view of the query. Returns the views: viewer
        (`Blocks.viewer`) -> view."""
        terms = self._terms
        views = {viewer: query.seen_by(terms, viewer) for viewer in self._own}
        self._own = {viewer: next_transcript(self._own[viewer], seen) for viewer, seen in views.items()}
        if terms.keeps_parts:
            seen = query.seen_by(terms, terms.parties[0], publicly=True)
            self._public = next_transcript(self._public, seen)
        return views
