"""Encodes and decodes the messages of sessions, and messages between analysts, sites and the aggregator.

Guarantees: `decode(encode(m)) == m` for every message (floats bit for bit). Decoding arbitrary bytes returns
a message or raises PeerError. Raises: PeerError for bytes that are not a message of this version, values out
of range, oversized messages, and too many items (an item that takes two bytes on the wire takes about a
hundred bytes in memory)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar

from fedboost.errors import FedboostError, PeerError, quoted
from fedboost.protocol.adding import FromAdder, ToAdder
from fedboost.protocol.contracts import Bound
from fedboost.protocol.messages import SESSION_NAME, FromParty, Parties, Relay, Report, Request, ToParty
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.training import MAX_FIGURES
from fedboost.wire import codec
from fedboost.wire.v1 import fedboost_pb2 as pb

T = TypeVar("T")
Coded = tuple[Callable[[T], bytes], Callable[[bytes], T]]
"""An encoder, and a decoder that returns the message or raises PeerError."""
Vouched = Callable[[str, Request | None], None]
"""Function that is called with the text of terms and the request for a session under these terms."""


def _coded(kind: type[T] | UnionType, message: Any, limit: int) -> Coded[T]:
    """Return the encoder and decoder of a class or union. message: its protobuf class; limit: in bytes."""
    oneofs = message.DESCRIPTOR.oneofs
    pair = codec.one_of(kind, *oneofs) if oneofs else codec.pair_of(kind, message.DESCRIPTOR)
    return (
        lambda value: codec.serialised(message(**pair.write(value))),
        lambda data: pair.read(codec.parsed(message, data, limit)),
    )


_FROM_PARTY: Coded[FromParty] = _coded(FromParty, pb.FromParty, codec.MAX_TO_AGGREGATOR)
_encode_from_party, decode_from_party = _FROM_PARTY


def encode_from_party(message: FromParty) -> bytes:
    """Encode a party's message to the aggregator."""
    return _encoded(pb.FromParty, message) if type(message) in _BULK else _encode_from_party(message)


def size_from_party(message: FromParty) -> int:
    """Return the size in bytes of a party's encoded message. Much content is not copied for this."""
    name, bulk = _BULK.get(type(message), ("", ""))
    if not (size := len(getattr(message, bulk, b""))):
        return len(encode_from_party(message))
    # A field is a byte with its number, the size of its content in groups of seven bits, and its content.
    rest: int = getattr(pb.FromParty(**{name: {**vars(message), bulk: b""}}), name).ByteSize()
    size += rest + 1 - (-size.bit_length() // 7)
    return size + 1 - (-size.bit_length() // 7)


_TO_PARTY = codec.one_of(ToParty, *pb.ToParty.DESCRIPTOR.oneofs)
_BULK: dict[type, tuple[str, str]] = {Report: ("report", "cells"), Relay: ("relay", "content")}
"""Message with much content -> its field, and the field of its content."""


def encode_to_party(message: ToParty) -> bytes:
    """Encode a message from the aggregator to a party."""
    if type(message) in _BULK:
        return _encoded(pb.ToParty, message)
    return codec.serialised(pb.ToParty(**_TO_PARTY.write(message)))


def _encoded(kind: Any, message: object) -> bytes:
    """Encode a message with much content. Its content is set apart, which copies it one time less."""
    name, bulk = _BULK[type(message)]
    fields = vars(message)
    out = kind(**{name: {**fields, bulk: b""}})
    setattr(getattr(out, name), bulk, fields[bulk])
    return codec.serialised(out)


class UnreadOffer(PeerError):
    """An offer whose terms were not parsed, because `vouched` rejected them. session: its name."""

    def __init__(self, session: str, error: FedboostError) -> None:
        super().__init__(error.code, error.public)
        self.session = session


def decode_to_party(data: bytes, vouched: Vouched = lambda text, request: None) -> ToParty:
    """Decode a message from the aggregator. Raises PeerError if it is not valid.

    vouched: function that raises a FedboostError if the terms of an offer must not be parsed; UnreadOffer is
    then raised. It is called before parsing, because parsing large terms takes a long time."""
    message = codec.parsed(pb.ToParty, data, codec.MAX_FROM_AGGREGATOR)
    if message.WhichOneof("message") == "admit":
        _check_vouched(message.admit, vouched)
    read: ToParty = _TO_PARTY.read(message)
    return read


def _check_vouched(admit: Any, vouched: Vouched) -> None:
    SESSION_NAME.check(admit.session)
    request = codec.HAND_WRITTEN[Request].read(admit.request) if admit.HasField("request") else None
    try:
        vouched(admit.terms, request)
    except FedboostError as error:
        raise UnreadOffer(admit.session, error) from None


# ---- Frames between adders and the aggregator -----------------------------------------------------------

_FROM_ADDER: Coded[FromAdder] = _coded(FromAdder, pb.FromAdder, codec.MAX_TO_AGGREGATOR + codec.MAX_FRAME)
encode_from_adder, decode_from_adder = _FROM_ADDER
_TO_ADDER: Coded[ToAdder] = _coded(ToAdder, pb.ToAdder, codec.MAX_FROM_AGGREGATOR + codec.MAX_FRAME)
encode_to_adder, decode_to_adder = _TO_ADDER


# ---- Frames that a scoring service's parties send each other through the aggregator ---------------------

MAX_LINK_FRAME = 1 << 20
"""Maximum number of bytes of a frame."""


class LinkFrame(NamedTuple):
    """A frame from one party to another.

    party: the receiver, or the sender if the aggregator sends it; '' in the first frame of a call, whose
    content is the model's id. content: sealed bytes, or b'' if the aggregator reports that the party has
    connected. gone: True if the party is not connected."""

    party: str
    content: bytes = b""
    gone: bool = False


encode_link, decode_link = _coded(LinkFrame, pb.LinkFrame, MAX_LINK_FRAME)


# ---- Messages between analysts, sites and aggregator: requests and events -------------------------------

MODEL_PART = 1 << 20

_MOST, _WAYS = Bound(MAX_PARTIES, "parties"), ("sent", "received")
Traffic = Annotated[Mapping[str, tuple[int, int]], _MOST]
"""Maps party -> number of bytes that it sent and received."""


def _traffic_from_pb(traffic: Any) -> Traffic:
    columns = traffic.parties, traffic.sent, traffic.received
    _MOST.check(columns[0])
    codec.require(len({*map(len, columns)}) == 1, "its lists of traffic have different lengths")
    return {party: (sent, received) for party, sent, received in zip(*columns, strict=True)}


# As lists: a message for each of a thousand parties took most of the time of a round's report.
codec.HAND_WRITTEN[Traffic] = codec.FieldCodec(
    lambda told: dict(zip(_WAYS, zip(*told.values(), strict=True), strict=False)) | {"parties": [*told]},
    _traffic_from_pb,
)


@dataclass(frozen=True)
class Waiting:
    """Reports that the session is waiting for these parties or, if there are none, for another session to
    end.

    absent: for each of these parties that is not connected, the time when it was last connected, in seconds
    since 1970 (0: never). It is empty if the aggregator runs an older version."""

    parties: Parties
    absent: Annotated[Mapping[str, int], Bound(MAX_PARTIES, "parties")] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundDone:
    """Reports a finished round, counted from 0. seconds, traffic: time and bytes since the session began."""

    round: int
    metrics: Annotated[dict[str, float], Bound(MAX_FIGURES, "metrics")]
    seconds: float
    traffic: Traffic


@dataclass(frozen=True)
class ModelPart:
    """Carries a piece of the model file. The last piece also contains the session's traffic."""

    data: bytes = field(repr=False)
    last: bool
    traffic: Traffic


@dataclass(frozen=True)
class Failed:
    """Reports that the session ended without a model."""

    reason: str


TrainEvent = Waiting | RoundDone | ModelPart | Failed


class TrainCommand(Enum):
    """An analyst's command for the session with the given terms.

    FOLLOW: start it, or follow it if it exists. RETURN: follow it after a disconnection, even if it has
    failed. STOP: stop it. FINISH: end it after the current round, with the model trained so far."""

    FOLLOW = 0
    RETURN = 1
    STOP = 2
    FINISH = 3


class TrainRequest(NamedTuple):
    """Carries an analyst's command. terms: unparsed JSON as sent, see `codec.terms_of`; wish: the command;
    request: signed request, or None if analysts have no keys."""

    terms: str
    wish: TrainCommand = TrainCommand.FOLLOW
    request: Request | None = None


encode_train_request, decode_train_request = _coded(TrainRequest, pb.TrainRequest, codec.MAX_TO_AGGREGATOR)
_TRAIN_EVENT: Coded[TrainEvent] = _coded(TrainEvent, pb.TrainEvent, codec.MAX_FROM_AGGREGATOR)
encode_train_event, decode_train_event = _TRAIN_EVENT


# ---- The status of an aggregator: who is connected, and which sessions there are ------------------------

MAX_MEMBERS = 8192
"""Maximum number of members in a status: those connected now and those seen before."""
MAX_SESSIONS = 64
"""Maximum number of sessions in a status: one is active, the others are waiting or finished."""


@dataclass(frozen=True)
class Member:
    """A party or an analyst in a status. Times are in seconds since 1970.

    since: time when the member connected, or 0 if it is not connected; seen: time when it was last connected,
    or 0 for never; version: software version that it reports, or ''; adder: adder through which it is
    connected, or ''."""

    role: str
    name: str
    since: int = 0
    seen: int = 0
    version: str = ""
    adder: str = ""


class SessionState(Enum):
    """State of a session. FINISHED: it has ended, but its analyst has not fetched the result."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


@dataclass(frozen=True)
class SessionStatus:
    """A session in a status.

    Args:
        state: whether it is waiting, running or finished.
        name: name of the session, '' until it begins.
        analyst: name of its analyst, '' if analysts have no keys.
        terms: digest of its terms.
        program: name of its algorithm.
        protection: name of its protection.
        done: number of finished rounds.
        rounds: planned number of rounds.
        since: when it was requested, in seconds since 1970.
        parties: names of its parties.
        awaited: parties for which it is waiting; empty if it is waiting for another session to end.
    """

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
    """What a caller may see of an aggregator's state. version: its software; since: its start; now: its
    current time; others: number of sessions that the caller may not see. Times are in seconds since 1970."""

    version: str
    since: int
    now: int
    members: Annotated[tuple[Member, ...], Bound(MAX_MEMBERS, "members")]
    sessions: Annotated[tuple[SessionStatus, ...], Bound(MAX_SESSIONS, "sessions")]
    others: int = 0

    @property
    def summary(self) -> dict[str, Any]:
        """The status as JSON. Times are in seconds since 1970, or 0 for never."""
        sessions = [{**asdict(session), "state": session.state.name.lower()} for session in self.sessions]
        return {**asdict(self), "sessions": sessions}


encode_status, decode_status = _coded(Status, pb.StatusReply, codec.MAX_FROM_AGGREGATOR)


# ---- Checks of terms, outside of sessions ---------------------------------------------------------------
# An analyst sends terms to the aggregator, which forwards them to each party and returns the parties'
# objections.

MAX_SENTENCES = 64
"""Maximum number of reasons from one site, and also the maximum number of notes."""
MAX_SENTENCE_LENGTH = 1000
"""Maximum length of a reason or note in characters."""
MAX_OBJECTIONS = 4 * 2 * MAX_SENTENCES * (MAX_SENTENCE_LENGTH + 8)
"""Maximum bytes of a site's reasons and notes: four per character, and eight more characters a sentence."""
Sentences = Annotated[
    tuple[Annotated[str, Bound(MAX_SENTENCE_LENGTH, "characters in a sentence")], ...],
    Bound(MAX_SENTENCES, "sentences"),
]


@dataclass(frozen=True)
class Review:
    """Asks a party whether it would accept terms. The aggregator forwards this message for an analyst. terms:
    JSON as the analyst sent it; request: the analyst's signed request, or None if analysts have no keys."""

    number: int
    terms: str
    request: Request | None = None


@dataclass(frozen=True)
class Objections:
    """A party's answer to a `Review`. reasons: why it would not take part; notes: other remarks."""

    number: int
    reasons: Sentences = ()
    notes: Sentences = ()


@dataclass(frozen=True)
class SiteReply:
    """A site's answer in a `CheckReply`. answered: True if the reasons are from the site, False if they are
    from the aggregator and state why the site did not answer."""

    party: str
    answered: bool
    reasons: Sentences = ()
    notes: Sentences = ()

    @property
    def would(self) -> bool:
        """True if the site answered that it would take part."""
        return self.answered and not self.reasons

    @property
    def summary(self) -> dict[str, Any]:
        """The answer as JSON."""
        return {**asdict(self), "would": self.would}


class CheckRequest(NamedTuple):
    """Asks all sites whether they would accept terms. Fields: as in `TrainRequest`."""

    terms: str
    request: Request | None = None


class CheckReply(NamedTuple):
    """The answers of all sites to a `CheckRequest`."""

    sites: Annotated[tuple[SiteReply, ...], Bound(MAX_PARTIES, "sites")]


encode_check_request, decode_check_request = _coded(CheckRequest, pb.CheckRequest, codec.MAX_TO_AGGREGATOR)
encode_review, decode_review = _coded(Review, pb.Review, codec.MAX_FROM_AGGREGATOR)
_encode_objections, decode_objections = _coded(Objections, pb.Objections, MAX_OBJECTIONS)
encode_check_reply, decode_check_reply = _coded(CheckReply, pb.CheckReply, codec.MAX_FROM_AGGREGATOR)


def encode_objections(objections: Objections) -> bytes:
    """Encode a party's answer to a review. Excess sentences, and the ends of long ones, are cut off."""
    cut = _cut(objections.reasons), _cut(objections.notes)
    return _encode_objections(Objections(objections.number, *cut))


def _cut(sentences: Sequence[str]) -> tuple[str, ...]:
    length = MAX_SENTENCE_LENGTH  # cut again after quoting, as escapes make a sentence longer
    return tuple([quoted(sentence, length - 1)[:length] for sentence in sentences[:MAX_SENTENCES]])
