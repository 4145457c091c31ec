"""Messages of a session to bytes and back.

Promises: `decode(encode(m)) == m` for every message (floats bit for bit); decoding is total: any bytes give
a message or a PeerError.
Refuses: bytes that are no message of this version, values outside their ranges, oversized messages, and
more of anything than there can be: an item of two bytes takes some hundred when it is read.
"""

from collections.abc import Callable
from typing import Any, assert_never, cast

from fedboost.boosting.state import BoostingState, Round, Scales
from fedboost.errors import ConfigError, FedboostError, PeerError
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
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.trees import MAX_ROUNDS
from fedboost.wire.codec import (
    CONTEXT_BYTES,
    MAX_FROM_AGGREGATOR,
    MAX_GREETING,
    MAX_RELAY_PART,
    MAX_TO_AGGREGATOR,
    bounded,
    out_of_bounds,
    parsed,
    places_from_pb,
    query_to_pb,
    request_from_pb,
    require,
    residual_from_pb,
    scale_from_pb,
    scale_to_pb,
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


def encode_from_party(message: FromParty) -> bytes:
    """Bytes of a party's message."""
    match message:
        case Join(session, digest, attempt, greeting):
            join = pb.Join(session=session, digest=digest, attempt=attempt, greeting=greeting)
            out = pb.FromParty(join=join)
        case Report(turn, attempt, part, cells, note, ctx):
            out = pb.FromParty()  # filled in place: its cells are copied once less
            report = out.report
            report.turn, report.attempt, report.part = turn, attempt, part
            report.cells, report.note, report.ctx = cells, note, ctx
        case Relay():
            out = pb.FromParty(relay=_relay_to_pb(message))
        case OpenShare(turn, attempt, answer):
            out = pb.FromParty(assist=pb.OpenShare(turn=turn, attempt=attempt, answer=answer))
        case Attest(attempt, turns, transcript, structure, certificate, signature, thresholds, part):
            attest = pb.Attest(
                attempt=attempt,
                turns=turns,
                transcript=transcript,
                structure=structure,
                certificate=certificate,
                signature=signature,
                thresholds=thresholds,
                part=part,
            )
            out = pb.FromParty(attest=attest)
        case Leave(reason, session):
            out = pb.FromParty(leave=pb.Leave(reason=reason, session=session))
        case _:
            assert_never(message)
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
        case Relay():
            out = pb.ToParty(relay=_relay_to_pb(message))
        case OpenRequest(turn, attempt, request):
            out = pb.ToParty(open=pb.OpenRequest(turn=turn, attempt=attempt, request=request))
        case Close(attempt, rounds, numbers):
            out = pb.ToParty(close=pb.Close(attempt=attempt, rounds=rounds, numbers=numbers))
        case SessionEnded(reason):
            out = pb.ToParty(bye=pb.SessionEnded(reason=reason))
        case _:
            assert_never(message)
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


def _relay_to_pb(relay: Relay) -> Any:
    return pb.Relay(
        turn=relay.turn,
        attempt=relay.attempt,
        number=relay.number,
        content=relay.content,
        last=relay.last,
        to=relay.to,
        sender=relay.sender,
    )


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
    pair = {"gradient": scale_to_pb(scales.gradient), "hessian": scale_to_pb(scales.hessian)}
    return {**pair, "threshold": scales.threshold}


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
