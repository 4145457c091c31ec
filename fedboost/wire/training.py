"""Messages between analyst and aggregator to bytes and back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, assert_never

from fedboost.errors import PeerError
from fedboost.protocol.messages import (
    Request,
)
from fedboost.terms.objective import MAX_FIGURES
from fedboost.terms.session import MAX_PARTIES
from fedboost.wire.bounds import (
    MAX_FROM_AGGREGATOR,
    MAX_TO_AGGREGATOR,
    bounded,
    parsed,
    request_from_pb,
    require,
    serialised,
    with_request,
)
from fedboost.wire.v1 import fedboost_pb2 as pb

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
    """The terms of an analyst as they were sent, unread (`bounds.terms_of`), the command for their session,
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
