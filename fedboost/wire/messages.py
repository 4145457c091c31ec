"""Messages of sessions, and those between analysts, sites and aggregator, to bytes and back.

Promises: `decode(encode(m)) == m` for every message (floats bit for bit); decoding is total: any bytes give
a message or a PeerError.
Refuses: bytes that are no message of this version, values outside their ranges, oversized messages, and
more of anything than there can be: an item of two bytes takes some hundred when it is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar

from fedboost.errors import FedboostError, PeerError, quoted
from fedboost.protocol.contracts import Bound
from fedboost.protocol.messages import SESSION_NAME, FromParty, Parties, Report, Request, ToParty
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.training import MAX_FIGURES
from fedboost.wire.codec import (
    HAND_WRITTEN,
    MAX_FROM_AGGREGATOR,
    MAX_TO_AGGREGATOR,
    one_of,
    pair_of,
    parsed,
    serialised,
)
from fedboost.wire.v1 import fedboost_pb2 as pb

T = TypeVar("T")
Coded = tuple[Callable[[T], bytes], Callable[[bytes], T]]
"""Messages to bytes, and bytes to the message in them, or PeerError."""
Vouched = Callable[[str, Request | None], None]
"""Takes the text of terms, and who asked for a session under them."""


def _coded(kind: type[T] | UnionType, message: Any, limit: int) -> Coded[T]:
    """Both ways of a dataclass, or a union of them, that travels as this message of protobuf, of at most so
    many bytes."""
    oneofs = message.DESCRIPTOR.oneofs
    pair = one_of(kind, *oneofs) if oneofs else pair_of(kind, message.DESCRIPTOR)
    return (
        lambda value: serialised(message(**pair.write(value))),
        lambda data: pair.read(parsed(message, data, limit)),
    )


_FROM_PARTY: Coded[FromParty] = _coded(FromParty, pb.FromParty, MAX_TO_AGGREGATOR)
_encode_from_party, decode_from_party = _FROM_PARTY


def encode_from_party(message: FromParty) -> bytes:
    """Bytes of a party's message."""
    if not isinstance(message, Report):
        return _encode_from_party(message)
    out = pb.FromParty()  # filled in place: its cells are copied once less
    for name, value in vars(message).items():
        setattr(out.report, name, value)
    return serialised(out)


_TO_PARTY = one_of(ToParty, *pb.ToParty.DESCRIPTOR.oneofs)


def encode_to_party(message: ToParty) -> bytes:
    """Bytes of a message of the aggregator."""
    return serialised(pb.ToParty(**_TO_PARTY.write(message)))


class UnreadOffer(PeerError):
    """An offer of a session whose terms were not read."""

    def __init__(self, session: str, why: str) -> None:
        super().__init__(why)
        self.session = session


def decode_to_party(data: bytes, vouched: Vouched = lambda text, request: None) -> ToParty:
    """The message in these bytes, or PeerError. vouched: raises a FedboostError unless the terms of an offer
    may be read, which takes long where they are large: the offer is an UnreadOffer then."""
    message = parsed(pb.ToParty, data, MAX_FROM_AGGREGATOR)
    if message.WhichOneof("message") == "admit":
        _check_vouched(message.admit, vouched)
    read: ToParty = _TO_PARTY.read(message)
    return read


def _check_vouched(admit: Any, vouched: Vouched) -> None:
    SESSION_NAME.check(admit.session)
    request = HAND_WRITTEN[Request].read(admit.request) if admit.HasField("request") else None
    try:
        vouched(admit.terms, request)
    except FedboostError as error:
        raise UnreadOffer(admit.session, error.public) from None


# ---- Messages between analysts, sites and aggregator: requests and events -------------------------------


MODEL_PART = 1 << 20

Traffic = Annotated[Mapping[str, tuple[int, int]], Bound(MAX_PARTIES, "parties")]
"""Party to bytes it sent and received."""


@dataclass(frozen=True)
class Waiting:
    """The session waits for these parties; for another session to end, if there are none. absent: those of
    them that are not connected, with when they last were (seconds since 1970, 0 for never); nothing from an
    older aggregator."""

    parties: Parties
    absent: Annotated[Mapping[str, int], Bound(MAX_PARTIES, "parties")] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundDone:
    """A finished round: number from 0, metrics, seconds and traffic since the session began."""

    round: int
    metrics: Annotated[dict[str, float], Bound(MAX_FIGURES, "metrics")]
    seconds: float
    traffic: Traffic


@dataclass(frozen=True)
class ModelPart:
    """A piece of the model file; with the last one the session's traffic."""

    data: bytes = field(repr=False)
    last: bool
    traffic: Traffic


@dataclass(frozen=True)
class Failed:
    """The session ended without a model."""

    reason: str


TrainEvent = Waiting | RoundDone | ModelPart | Failed


class TrainCommand(Enum):
    """A command of an analyst for the session under the terms: follow it, or start one; return to it after a
    lost connection, even to its failure; stop it; finish it with the model after the current round."""

    FOLLOW = 0
    RETURN = 1
    STOP = 2
    FINISH = 3


class TrainRequest(NamedTuple):
    """An analyst's command. terms: JSON, as they were sent, unread (`codec.terms_of`); wish: the command for
    their session; request: the signed request for it."""

    terms: str
    wish: TrainCommand = TrainCommand.FOLLOW
    request: Request | None = None


encode_train_request, decode_train_request = _coded(TrainRequest, pb.TrainRequest, MAX_TO_AGGREGATOR)
_TRAIN_EVENT: Coded[TrainEvent] = _coded(TrainEvent, pb.TrainEvent, MAX_FROM_AGGREGATOR)
encode_train_event, decode_train_event = _TRAIN_EVENT


# ---- The status of an aggregator: who is connected, and which sessions there are ------------------------


MAX_MEMBERS = 8192
"""Members in a status: those connected, and those remembered."""
MAX_SESSIONS = 64
"""Sessions in a status: one is active, some wait, some are finished."""


@dataclass(frozen=True)
class Member:
    """A party or an analyst. since: connected since, 0 if it is not; seen: when it was connected last, 0 for
    a party that never was; times are seconds since 1970. version: of its software, as it says, '' where it
    says none."""

    role: str
    name: str
    since: int = 0
    seen: int = 0
    version: str = ""


class SessionState(Enum):
    """The state of a session: it waits to begin; it runs; it is over, and its analyst has not fetched the
    end."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


@dataclass(frozen=True)
class SessionStatus:
    """A session. name: '' while it waits to begin; analyst: '' where analysts have no keys; terms: their
    digest; done: finished rounds; since: when it was asked for; awaited: the parties that it waits for, and
    none of a waiting session if another one runs."""

    state: SessionState
    name: str
    analyst: str
    terms: str
    program: str
    protection: str
    done: int
    rounds: int
    since: int
    parties: Parties
    awaited: Parties = ()


@dataclass(frozen=True)
class Status:
    """The status of an aggregator, as one of its callers may see it. version: of its software; since: when it
    was started; now: its clock; others: sessions that the caller may not see."""

    version: str
    since: int
    now: int
    members: Annotated[tuple[Member, ...], Bound(MAX_MEMBERS, "members")]
    sessions: Annotated[tuple[SessionStatus, ...], Bound(MAX_SESSIONS, "sessions")]
    others: int = 0

    @property
    def summary(self) -> dict[str, Any]:
        """The status as JSON; times are seconds since 1970, 0 for never."""
        sessions = [{**asdict(session), "state": session.state.name.lower()} for session in self.sessions]
        return {**asdict(self), "sessions": sessions}


encode_status, decode_status = _coded(Status, pb.StatusReply, MAX_FROM_AGGREGATOR)


# ---- Checks of terms, outside of sessions ---------------------------------------------------------------
# From an analyst to the aggregator, from there to each party, and what the parties have against the terms.


MAX_SENTENCES = 64
"""Reasons or notes of one site."""
MAX_SENTENCE_LENGTH = 1000
"""Characters of each."""
MAX_OBJECTIONS = 4 * 2 * MAX_SENTENCES * (MAX_SENTENCE_LENGTH + 8)
"""Bytes of all that a site has to say: four a character at most."""
Sentences = Annotated[
    tuple[Annotated[str, Bound(MAX_SENTENCE_LENGTH, "characters of a sentence")], ...],
    Bound(MAX_SENTENCES, "sentences"),
]


@dataclass(frozen=True)
class Review:
    """A check that the aggregator hands on to a party. terms: JSON, as the analyst sent it; request: who
    checks them, None where nothing is signed."""

    number: int
    terms: str
    request: Request | None = None


@dataclass(frozen=True)
class Objections:
    """A party's answer to the review of this number. reasons: why it would not take part; notes: what else
    the analyst should know."""

    number: int
    reasons: Sentences = ()
    notes: Sentences = ()


@dataclass(frozen=True)
class SiteReply:
    """A site's part of a check. answered: the reasons are its own; else they are the aggregator's, for which
    there is no answer."""

    party: str
    answered: bool
    reasons: Sentences = ()
    notes: Sentences = ()

    @property
    def would(self) -> bool:
        """True if the site says that it would take part."""
        return self.answered and not self.reasons

    @property
    def summary(self) -> dict[str, Any]:
        """The answer as JSON."""
        return {**asdict(self), "would": self.would}


class CheckRequest(NamedTuple):
    """An analyst's check. terms: JSON, as they were sent, unread; request: the signed request for it, where
    analysts have keys."""

    terms: str
    request: Request | None = None


class CheckReply(NamedTuple):
    """The answers of all sites to a check."""

    sites: Annotated[tuple[SiteReply, ...], Bound(MAX_PARTIES, "sites")]


encode_check_request, decode_check_request = _coded(CheckRequest, pb.CheckRequest, MAX_TO_AGGREGATOR)
encode_review, decode_review = _coded(Review, pb.Review, MAX_FROM_AGGREGATOR)
_encode_objections, decode_objections = _coded(Objections, pb.Objections, MAX_OBJECTIONS)
encode_check_reply, decode_check_reply = _coded(CheckReply, pb.CheckReply, MAX_FROM_AGGREGATOR)


def encode_objections(objections: Objections) -> bytes:
    """Bytes of a party's answer, of sentences that are cut to what is allowed."""
    cut = _cut(objections.reasons), _cut(objections.notes)
    return _encode_objections(Objections(objections.number, *cut))


def _cut(sentences: Sequence[str]) -> tuple[str, ...]:
    length = MAX_SENTENCE_LENGTH  # again after escapes, which make it longer
    return tuple([quoted(sentence, length - 1)[:length] for sentence in sentences[:MAX_SENTENCES]])
