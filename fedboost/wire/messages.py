"""Messages of sessions, and those between analysts, sites and aggregator, to bytes and back.

Promises: `decode(encode(m)) == m` for every message (floats bit for bit); decoding is total: any bytes give
a message or a PeerError.
Refuses: bytes that are no message of this version, values outside their ranges, oversized messages, and
more of anything than there can be: an item of two bytes takes some hundred when it is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, assert_never, cast

from fedboost.boosting.state import BoostingState, Round, Scales
from fedboost.errors import ConfigError, FedboostError, PeerError, quoted
from fedboost.protocol.messages import (
    Ask,
    Attest,
    Close,
    FromParty,
    Introduce,
    Join,
    Leave,
    Offer,
    OpenRequest,
    OpenShare,
    Relay,
    Report,
    Request,
    SessionEnded,
    ToParty,
)
from fedboost.terms.objective import MAX_FIGURES
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.trees import MAX_ROUNDS
from fedboost.wire.codec import (
    CONTEXT_BYTES,
    MAX_FROM_AGGREGATOR,
    MAX_GREETING,
    MAX_RELAY_PART,
    MAX_TO_AGGREGATOR,
    bounded,
    by_name,
    out_of_bounds,
    parsed,
    places_from_pb,
    query_to_pb,
    request_from_pb,
    require,
    residual_from_pb,
    scale_from_pb,
    serialised,
    splits_from_pb,
    splits_to_pb,
    start_from_pb,
    terms_of,
    turn_from_pb,
    turn_to_pb,
    values_from_pb,
    values_to_pb,
    with_request,
)
from fedboost.wire.v1 import fedboost_pb2 as pb

Vouched = Callable[[str, Request | None], None]
"""Takes the text of terms, and who asked for a session under them."""


_FIELDS = {
    Join: "join",
    Relay: "relay",
    OpenShare: "assist",
    Attest: "attest",
    Leave: "leave",
    OpenRequest: "open",
    Close: "close",
    SessionEnded: "bye",
}
"""The fields of messages that travel as they are: by the names of their own fields."""


def encode_from_party(message: FromParty) -> bytes:
    """Bytes of a party's message."""
    if not isinstance(message, Report):
        return serialised(pb.FromParty(**{_FIELDS[type(message)]: vars(message)}))
    out = pb.FromParty()  # filled in place: its cells are copied once less
    for name, value in vars(message).items():
        setattr(out.report, name, value)
    return serialised(out)


def decode_from_party(data: bytes) -> FromParty:
    """The message in these bytes, or PeerError."""
    message = parsed(pb.FromParty, data, MAX_TO_AGGREGATOR)
    match message.WhichOneof("message"):
        case "join":
            join = message.join
            size = len(join.greeting)
            require(size <= MAX_GREETING, f"a greeting of {size} bytes; {MAX_GREETING} are allowed")
            return Join(join.session, join.digest, join.attempt, join.greeting)
        case "report":
            report = message.report
            ctx = report.ctx
            if ctx and len(ctx) != CONTEXT_BYTES:
                raise out_of_bounds(f"a context of {len(ctx)} bytes; {CONTEXT_BYTES} are allowed")
            return Report(report.turn, report.attempt, report.part, report.cells, report.note, ctx)
        case "relay":
            return _relay_from_pb(message.relay)
        case "assist":
            return OpenShare(message.assist.turn, message.assist.attempt, message.assist.answer)
        case "attest":
            attest = message.attest
            hashes, signed = (attest.transcript, attest.structure), (attest.certificate, attest.signature)
            return Attest(attest.attempt, attest.turns, *hashes, *signed, attest.thresholds, attest.part)
        case "leave":
            return Leave(message.leave.reason, message.leave.session)
    raise PeerError("an empty message, or one of a newer version of fedboost")


def encode_to_party(message: ToParty) -> bytes:
    """Bytes of a message of the aggregator."""
    match message:
        case Offer(session, terms, attempt, request):
            admit = pb.Offer(session=session, terms=terms.canonical(), attempt=attempt)
            out = pb.ToParty(admit=with_request(admit, request))
        case Introduce(greetings, state):
            out = pb.ToParty(meet=_meet_to_pb(greetings, cast(BoostingState, state)))
        case Ask(turn, attempt, roster, query):
            ask = {"turn": turn, "attempt": attempt, "roster": roster, **turn_to_pb(query)}
            out = pb.ToParty(ask=ask)
        case _:
            out = pb.ToParty(**{_FIELDS[type(message)]: vars(message)})
    return serialised(out)


class UnreadOffer(PeerError):
    """An offer of a session whose terms were not read."""

    def __init__(self, session: str, why: str) -> None:
        super().__init__(why)
        self.session = session


def decode_to_party(data: bytes, vouched: Vouched = lambda text, request: None) -> ToParty:
    """The message in these bytes, or PeerError. vouched: raises a FedboostError unless the terms of an offer
    may be read, which takes long where they are large: the offer is an UnreadOffer then."""
    message = parsed(pb.ToParty, data, MAX_FROM_AGGREGATOR)
    match message.WhichOneof("message"):
        case "admit":
            try:
                require(len(message.admit.session) <= 256, "a session with so long a name")
                return _offer_from_pb(message.admit, vouched)
            except ConfigError as error:
                raise PeerError(f"terms this version of fedboost cannot follow: {error}") from None
        case "meet":
            return _meet_from_pb(message.meet)
        case "ask":
            ask = message.ask
            roster = bounded(ask.roster, MAX_PARTIES, "parties")
            return Ask(ask.turn, ask.attempt, roster, turn_from_pb(ask))
        case "relay":
            return _relay_from_pb(message.relay)
        case "open":
            return OpenRequest(message.open.turn, message.open.attempt, message.open.request)
        case "close":
            return Close(message.close.attempt, message.close.rounds, message.close.numbers)
        case "bye":
            return SessionEnded(message.bye.reason)
    raise PeerError("an empty message, or one of a newer version of fedboost")


def _offer_from_pb(admit: Any, vouched: Vouched) -> Offer:
    request = request_from_pb(admit)
    try:
        vouched(admit.terms, request)
    except FedboostError as error:
        raise UnreadOffer(admit.session, error.public) from None
    return Offer(admit.session, terms_of(admit.terms), admit.attempt, request)


def _relay_from_pb(relay: Any) -> Relay:
    size = len(relay.content)
    require(size <= MAX_RELAY_PART, f"{size} bytes in a part of a relay; {MAX_RELAY_PART} are allowed")
    label = relay.turn, relay.attempt, relay.number
    to = bounded(relay.to, MAX_PARTIES, "parties")
    return Relay(*label, relay.content, relay.last, to, relay.sender)


def _meet_to_pb(greetings: tuple[bytes, ...], state: BoostingState) -> Any:
    rounds = [{"splits": splits_to_pb(r.splits), "values": values_to_pb(r.values)} for r in state.rounds]
    return pb.Introduce(
        greetings=greetings,
        grids=state.grids,
        rounds=rounds,
        splits=splits_to_pb(state.splits),
        levels=state.levels,
        **({} if state.start is None else query_to_pb(state.start)),
        **_scales_to_pb(state.scales),
        **({} if state.residual is None else {"residual": query_to_pb(state.residual)["residuals"]}),
        **({} if state.places is None else query_to_pb(state.places)),
    )


def _scales_to_pb(scales: Scales | None) -> dict[str, Any]:
    if scales is None:
        return {}
    return by_name(scales)


def _scales_from_pb(meet: Any) -> Scales | None:
    if not meet.HasField("gradient"):
        return None
    return Scales(scale_from_pb(meet.gradient), scale_from_pb(meet.hessian), meet.threshold)


def _meet_from_pb(meet: Any) -> Introduce:
    state = BoostingState(
        meet.grids,
        start_from_pb(meet.start) if meet.HasField("start") else None,
        tuple(
            Round(splits_from_pb(done.splits), values_from_pb(done.values))
            for done in bounded(meet.rounds, MAX_ROUNDS + 1, "rounds")
        ),
        splits_from_pb(meet.splits),
        meet.levels,
        _scales_from_pb(meet),
        residual_from_pb(meet.residual) if meet.HasField("residual") else None,
        places_from_pb(meet.places) if meet.HasField("places") else None,
    )
    return Introduce(bounded(meet.greetings, MAX_PARTIES, "greetings"), state)


# ---- Messages between analysts, sites and aggregator: requests and events -------------------------------


MODEL_PART = 1 << 20

Traffic = Mapping[str, tuple[int, int]]
"""Party to bytes it sent and received."""


@dataclass(frozen=True)
class Waiting:
    """The session waits for these parties; for another session to end, if there are none. absent: those of
    them that are not connected, with when they last were (seconds since 1970, 0 for never); nothing from an
    older aggregator."""

    parties: tuple[str, ...]
    absent: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundDone:
    """A finished round: number from 0, metrics, seconds and traffic since the session began."""

    round: int
    metrics: dict[str, float]
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


def encode_train_request(
    terms: str, wish: TrainCommand = TrainCommand.FOLLOW, request: Request | None = None
) -> bytes:
    """Bytes of an analyst's command: the terms as JSON, the command for their session, and the signed request
    for it."""
    return serialised(with_request(pb.TrainRequest(terms=terms, wish=wish.name), request))


def decode_train_request(data: bytes) -> tuple[str, TrainCommand, Request | None]:
    """The terms of an analyst as they were sent, unread (`codec.terms_of`), the command for their session,
    and the signed request for it. Raises PeerError."""
    message = parsed(pb.TrainRequest, data, MAX_TO_AGGREGATOR)
    require(message.wish in (wish.value for wish in TrainCommand), f"wish {message.wish}")
    return message.terms, TrainCommand(message.wish), request_from_pb(message)


def encode_train_event(event: TrainEvent) -> bytes:
    """Bytes of an event for the analyst."""
    match event:
        case Waiting(parties, absent):
            absences = [pb.Absence(party=party, seen=seen) for party, seen in absent.items()]
            out = pb.TrainEvent(waiting=pb.Waiting(parties=parties, absent=absences))
        case RoundDone(number, metrics, seconds, traffic):
            values = [pb.MetricValue(name=name, value=value) for name, value in metrics.items()]
            out = pb.TrainEvent(
                round=pb.RoundDone(
                    round=number, metrics=values, seconds=seconds, traffic=_traffic_to_pb(traffic)
                )
            )
        case ModelPart(data, last, traffic):
            out = pb.TrainEvent(model=pb.ModelPart(data=data, last=last, traffic=_traffic_to_pb(traffic)))
        case Failed(reason):
            out = pb.TrainEvent(failed=pb.Failed(reason=reason))
        case _:
            assert_never(event)
    return serialised(out)


def decode_train_event(data: bytes) -> TrainEvent:
    """The event in these bytes, or PeerError."""
    event = parsed(pb.TrainEvent, data, MAX_FROM_AGGREGATOR)
    match event.WhichOneof("event"):
        case "waiting":
            absences = bounded(event.waiting.absent, MAX_PARTIES, "parties")
            absent = {absence.party: absence.seen for absence in absences}
            return Waiting(bounded(event.waiting.parties, MAX_PARTIES, "parties"), absent)
        case "round":
            done = event.round
            metrics = {value.name: value.value for value in bounded(done.metrics, MAX_FIGURES, "metrics")}
            return RoundDone(done.round, metrics, done.seconds, _traffic_from_pb(done.traffic))
        case "model":
            part = event.model
            return ModelPart(part.data, part.last, _traffic_from_pb(part.traffic))
        case "failed":
            return Failed(event.failed.reason)
    raise PeerError("an empty event, or one of a newer version of fedboost")


def _traffic_to_pb(traffic: Traffic) -> list[Any]:
    return [pb.PartyTraffic(party=p, sent=sent, received=got) for p, (sent, got) in traffic.items()]


def _traffic_from_pb(traffic: Any) -> dict[str, tuple[int, int]]:
    return {t.party: (t.sent, t.received) for t in bounded(traffic, MAX_PARTIES, "parties")}


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
    parties: tuple[str, ...]
    awaited: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """The status of an aggregator, as one of its callers may see it. version: of its software; since: when it
    was started; now: its clock; others: sessions that the caller may not see."""

    version: str
    since: int
    now: int
    members: tuple[Member, ...]
    sessions: tuple[SessionStatus, ...]
    others: int = 0

    @property
    def summary(self) -> dict[str, Any]:
        """The status as JSON; times are seconds since 1970, 0 for never."""
        sessions = [{**asdict(session), "state": session.state.name.lower()} for session in self.sessions]
        return {**asdict(self), "sessions": sessions}


def encode_status(status: Status) -> bytes:
    """Bytes of a status."""
    members = [vars(member) for member in status.members]
    sessions = [{**vars(session), "state": session.state.name} for session in status.sessions]
    return serialised(pb.StatusReply(**{**vars(status), "members": members, "sessions": sessions}))


def decode_status(data: bytes) -> Status:
    """The status in these bytes, or PeerError."""
    message = parsed(pb.StatusReply, data, MAX_FROM_AGGREGATOR)
    return Status(
        message.version,
        message.since,
        message.now,
        tuple(
            Member(member.role, member.name, member.since, member.seen, member.version)
            for member in bounded(message.members, MAX_MEMBERS, "members")
        ),
        tuple(map(_session_from_pb, bounded(message.sessions, MAX_SESSIONS, "sessions"))),
        message.others,
    )


def _session_from_pb(session: Any) -> SessionStatus:
    require(session.state in (state.value for state in SessionState), f"state {session.state}")
    return SessionStatus(
        SessionState(session.state),
        session.name,
        session.analyst,
        session.terms,
        session.program,
        session.protection,
        session.done,
        session.rounds,
        session.since,
        bounded(session.parties, MAX_PARTIES, "parties"),
        bounded(session.awaited, MAX_PARTIES, "parties"),
    )


# ---- Checks of terms, outside of sessions ---------------------------------------------------------------
# From an analyst to the aggregator, from there to each party, and what the parties have against the terms.


MAX_SENTENCES = 64
"""Reasons or notes of one site."""
MAX_SENTENCE_LENGTH = 1000
"""Characters of each."""
MAX_OBJECTIONS = 4 * 2 * MAX_SENTENCES * (MAX_SENTENCE_LENGTH + 8)
"""Bytes of all that a site has to say: four a character at most."""


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
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteReply:
    """A site's part of a check. answered: the reasons are its own; else they are the aggregator's, for which
    there is no answer."""

    party: str
    answered: bool
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def would(self) -> bool:
        """True if the site says that it would take part."""
        return self.answered and not self.reasons

    @property
    def summary(self) -> dict[str, Any]:
        """The answer as JSON."""
        return {**asdict(self), "would": self.would}


def encode_check_request(terms: str, request: Request | None = None) -> bytes:
    """Bytes of an analyst's check: the terms as JSON, signed where analysts have keys."""
    return serialised(with_request(pb.CheckRequest(terms=terms), request))


def decode_check_request(data: bytes) -> tuple[str, Request | None]:
    """The terms of a check as they were sent, unread, and who signed it. Raises PeerError."""
    message = parsed(pb.CheckRequest, data, MAX_TO_AGGREGATOR)
    return message.terms, request_from_pb(message)


def encode_review(review: Review) -> bytes:
    """Bytes of a review."""
    out = pb.Review(number=review.number, terms=review.terms)
    return serialised(with_request(out, review.request))


def decode_review(data: bytes) -> Review:
    """The review in these bytes, its terms unread, or PeerError."""
    message = parsed(pb.Review, data, MAX_FROM_AGGREGATOR)
    return Review(message.number, message.terms, request_from_pb(message))


def encode_objections(objections: Objections) -> bytes:
    """Bytes of a party's answer, of sentences that are cut to what is allowed."""
    sentences = _cut(objections.reasons), _cut(objections.notes)
    return serialised(pb.Objections(number=objections.number, reasons=sentences[0], notes=sentences[1]))


def decode_objections(data: bytes) -> Objections:
    """The answer in these bytes, or PeerError."""
    message = parsed(pb.Objections, data, MAX_OBJECTIONS)
    return Objections(message.number, _sentences(message.reasons), _sentences(message.notes))


def encode_check_reply(sites: Sequence[SiteReply]) -> bytes:
    """Bytes of the answers of all sites."""
    return serialised(pb.CheckReply(sites=[vars(site) for site in sites]))


def decode_check_reply(data: bytes) -> tuple[SiteReply, ...]:
    """The answers in these bytes, or PeerError."""
    message = parsed(pb.CheckReply, data, MAX_FROM_AGGREGATOR)
    return tuple(
        SiteReply(site.party, site.answered, _sentences(site.reasons), _sentences(site.notes))
        for site in bounded(message.sites, MAX_PARTIES, "sites")
    )


def _cut(sentences: Sequence[str]) -> list[str]:
    length = MAX_SENTENCE_LENGTH  # again after escapes, which make it longer
    return [quoted(sentence, length - 1)[:length] for sentence in sentences[:MAX_SENTENCES]]


def _sentences(sentences: Sequence[str]) -> tuple[str, ...]:
    for sentence in bounded(sentences, MAX_SENTENCES, "sentences"):
        length = len(sentence)
        require(length <= MAX_SENTENCE_LENGTH, f"a sentence of {length} characters")
    return tuple(sentences)
