"""Messages to bytes and back. The only importer of the generated protobuf code.

Promises: `decode(encode(m)) == m` for every message (floats bit for bit); decoding is total: any bytes give
a message or a PeerError.
Refuses: bytes that are no message of this version, values outside their ranges, oversized messages, and
more of anything than there can be: an item of two bytes takes some hundred when it is read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, assert_never

import numpy as np
from google.protobuf.message import DecodeError

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Scale
from fedboost.gbdt.bins import KEY_BITS, CutPoints, Grid
from fedboost.gbdt.kernels import MAX_CODES
from fedboost.gbdt.metrics import is_metric
from fedboost.gbdt.tree import Split
from fedboost.protocol.messages import (
    Admit,
    Ask,
    Assist,
    Attest,
    Bye,
    Close,
    FromParty,
    Join,
    Leave,
    Meet,
    Open,
    Report,
    Request,
    ToParty,
)
from fedboost.protocol.progress import ModelSoFar, Round, Scales
from fedboost.protocol.queries import (
    CONSTANT_TREE,
    MAX_ROWS,
    Elected,
    EndRoundQuery,
    HistogramQuery,
    KllQuery,
    QuantileQuery,
    Query,
    RangeQuery,
    ResidualQuery,
    RowsQuery,
    StartQuery,
    SumsQuery,
    VoteQuery,
)
from fedboost.protocol.terms import (
    MAX_DEPTH,
    MAX_FEATURES,
    MAX_FIGURES,
    MAX_METRICS,
    MAX_PARTIES,
    MAX_ROUNDS,
    Terms,
)
from fedboost.wire.v1 import fedboost_pb2 as pb

WIRE_VERSION = 3
MAX_TO_AGGREGATOR = 4 << 20
"""Bytes of a message to the aggregator: a part of a report is at most half a megabyte."""
MAX_FROM_AGGREGATOR = 64 << 20
"""Bytes of a message from the aggregator: the grids of a wide table are the largest."""
MODEL_PART = 1 << 20
MAX_TERMS = 16 << 20
"""Characters of terms: those of an analyst fit in MAX_TO_AGGREGATOR, and have escapes after that."""
MAX_GREETING = 512 << 10
"""Bytes of a greeting: that of a key holder has the public key in it. Each goes to every party."""
MAX_REQUEST = 64 << 10
"""Bytes of an analyst's request: a certificate with its chain is the most of it."""
MAX_NODES = 2 << MAX_DEPTH
MAX_ELECTED = 1 << 20
"""Features that one question names, of all its nodes."""
MAX_SETS = 2 * (1 + MAX_PARTIES)

Traffic = Mapping[str, tuple[int, int]]
"""Party to bytes it sent and received."""


# ---- party -> aggregator ----------------------------------------------------------------------------


def encode_from_party(message: FromParty) -> bytes:
    """Bytes of a party's message."""
    match message:
        case Join(session, digest, attempt, greeting):
            join = pb.Join(session=session, digest=digest, attempt=attempt, greeting=greeting)
            out = pb.FromParty(join=join)
        case Report(turn, attempt, part, cells, note):
            report = pb.Report(turn=turn, attempt=attempt, part=part, cells=cells, note=note)
            out = pb.FromParty(report=report)
        case Assist(turn, attempt, answer):
            out = pb.FromParty(assist=pb.Assist(turn=turn, attempt=attempt, answer=answer))
        case Attest(attempt, turns, transcript, structure, certificate, signature):
            attest = pb.Attest(
                attempt=attempt,
                turns=turns,
                transcript=transcript,
                structure=structure,
                certificate=certificate,
                signature=signature,
            )
            out = pb.FromParty(attest=attest)
        case Leave(reason, session):
            out = pb.FromParty(leave=pb.Leave(reason=reason, session=session))
        case _:
            assert_never(message)
    return _serialised(out)


def decode_from_party(data: bytes) -> FromParty:
    """The message in these bytes, or PeerError."""
    message = _parsed(pb.FromParty, data, MAX_TO_AGGREGATOR)
    match message.WhichOneof("message"):
        case "join":
            join = message.join
            size = len(join.greeting)
            _require(size <= MAX_GREETING, f"a greeting of {size} bytes; {MAX_GREETING} are allowed")
            return Join(join.session, join.digest, join.attempt, join.greeting)
        case "report":
            report = message.report
            return Report(report.turn, report.attempt, report.part, report.cells, report.note)
        case "assist":
            return Assist(message.assist.turn, message.assist.attempt, message.assist.answer)
        case "attest":
            attest = message.attest
            told = attest.transcript, attest.structure
            return Attest(attest.attempt, attest.turns, *told, attest.certificate, attest.signature)
        case "leave":
            return Leave(message.leave.reason, message.leave.session)
    raise PeerError("an empty message, or one of a newer version of fedboost")


# ---- aggregator -> party ----------------------------------------------------------------------------


def encode_to_party(message: ToParty) -> bytes:
    """Bytes of a message of the aggregator."""
    match message:
        case Admit(session, terms, attempt, request):
            admit = pb.Admit(session=session, terms=terms.canonical(), attempt=attempt)
            out = pb.ToParty(admit=_with_request(admit, request))
        case Meet(greetings, so_far):
            out = pb.ToParty(meet=_meet_to_pb(greetings, so_far))
        case Ask(turn, attempt, roster, query):
            ask = pb.Ask(turn=turn, attempt=attempt, roster=roster, **_query_to_pb(query))
            out = pb.ToParty(ask=ask)
        case Open(turn, attempt, request):
            out = pb.ToParty(open=pb.Open(turn=turn, attempt=attempt, request=request))
        case Close(attempt, rounds):
            out = pb.ToParty(close=pb.Close(attempt=attempt, rounds=rounds))
        case Bye(reason):
            out = pb.ToParty(bye=pb.Bye(reason=reason))
        case _:
            assert_never(message)
    return _serialised(out)


def decode_to_party(data: bytes) -> ToParty:
    """The message in these bytes, or PeerError."""
    message = _parsed(pb.ToParty, data, MAX_FROM_AGGREGATOR)
    match message.WhichOneof("message"):
        case "admit":
            try:
                _require(len(message.admit.session) <= 256, "a session with so long a name")
                admit = message.admit
                return Admit(admit.session, _terms(admit.terms), admit.attempt, _request_from_pb(admit))
            except ConfigError as error:
                raise PeerError(f"terms this version of fedboost cannot follow: {error}") from None
        case "meet":
            return _meet_from_pb(message.meet)
        case "ask":
            ask = message.ask
            roster = _few(ask.roster, MAX_PARTIES, "parties")
            return Ask(ask.turn, ask.attempt, roster, _query_from_pb(ask))
        case "open":
            return Open(message.open.turn, message.open.attempt, message.open.request)
        case "close":
            return Close(message.close.attempt, message.close.rounds)
        case "bye":
            return Bye(message.bye.reason)
    raise PeerError("an empty message, or one of a newer version of fedboost")


def _meet_to_pb(greetings: tuple[bytes, ...], so_far: ModelSoFar) -> Any:
    rounds = [
        pb.Round(splits=map(_split_to_pb, r.splits), values=_values_to_pb(r.values)) for r in so_far.rounds
    ]
    return pb.Meet(
        greetings=greetings,
        grids=so_far.grids,
        rounds=rounds,
        splits=map(_split_to_pb, so_far.splits),
        levels=so_far.levels,
        **({} if so_far.start is None else _query_to_pb(so_far.start)),
        **_scales_to_pb(so_far.scales),
        **({} if so_far.residual is None else {"residual": _query_to_pb(so_far.residual)["residuals"]}),
    )


def _scales_to_pb(scales: Scales | None) -> dict[str, Any]:
    if scales is None:
        return {}
    pair = {"gradient": _scale_to_pb(scales.gradient), "hessian": _scale_to_pb(scales.hessian)}
    return {**pair, "threshold": scales.threshold}


def _scales_from_pb(meet: Any) -> Scales | None:
    if not meet.HasField("gradient"):
        return None
    return Scales(_scale_from_pb(meet.gradient), _scale_from_pb(meet.hessian), meet.threshold)


def _meet_from_pb(meet: Any) -> Meet:
    so_far = ModelSoFar(
        meet.grids,
        _start_from_pb(meet.start) if meet.HasField("start") else None,
        tuple(
            Round(_splits_from_pb(done.splits), _values_from_pb(done.values))
            for done in _few(meet.rounds, MAX_ROUNDS + 1, "rounds")
        ),
        _splits_from_pb(meet.splits),
        meet.levels,
        _scales_from_pb(meet),
        _residual_from_pb(meet.residual) if meet.HasField("residual") else None,
    )
    return Meet(_few(meet.greetings, MAX_PARTIES, "greetings"), so_far)


def _query_to_pb(query: Query) -> dict[str, Any]:
    match query:
        case RowsQuery():
            return {"rows": pb.RowsQuery()}
        case QuantileQuery(rows, grids):
            return {"quantiles": pb.QuantileQuery(rows=rows, grids=map(_grid_to_pb, grids))}
        case RangeQuery(rows, features):
            return {"ranges": pb.RangeQuery(rows=rows, features=features)}
        case SumsQuery(rows, tree, splits, nodes):
            sums = pb.SumsQuery(rows=rows, tree=tree, splits=map(_split_to_pb, splits), nodes=nodes)
            return {"sums": sums}
        case KllQuery(rows, features, max_bin):
            return {"kll": pb.KllQuery(rows=rows, features=features, max_bin=max_bin)}
        case StartQuery(rows, cut_points, gradient, hessian):
            categorical = {*cut_points.categorical}
            cuts = [
                pb.Cuts(cuts=c.tolist(), missing=m, categorical=feature in categorical)
                for feature, (c, m) in enumerate(zip(cut_points.cuts, cut_points.missing, strict=True))
            ]
            start = pb.StartQuery(
                rows=rows, features=cuts, gradient=_scale_to_pb(gradient), hessian=_scale_to_pb(hessian)
            )
            return {"start": start}
        case VoteQuery(rows, tree, splits, nodes, features, parties, gradient, hessian):
            votes = pb.VoteQuery(
                rows=rows,
                tree=tree,
                splits=map(_split_to_pb, splits),
                nodes=nodes,
                features=features,
                parties=parties,
                gradient=_scale_to_pb(gradient),
                hessian=_scale_to_pb(hessian),
            )
            return {"votes": votes}
        case HistogramQuery(rows, tree, splits, nodes, bins, gradient, hessian, widths, elected, threshold):
            histograms = pb.HistogramQuery(
                rows=rows,
                tree=tree,
                splits=map(_split_to_pb, splits),
                nodes=nodes,
                bins=bins,
                gradient=_scale_to_pb(gradient),
                hessian=_scale_to_pb(hessian),
                widths=bytes(width for of_node in widths for width in of_node),
                elected=(pb.Elected(features=one.features, bins=one.bins) for one in elected),
                threshold=threshold,
            )
            return {"histograms": histograms}
        case ResidualQuery(rows, tree, splits, nodes, starts, width, weight):
            residuals = pb.ResidualQuery(
                rows=rows,
                tree=tree,
                splits=map(_split_to_pb, splits),
                nodes=nodes,
                starts=starts,
                width=width,
                weight=_scale_to_pb(weight),
            )
            return {"residuals": residuals}
        case EndRoundQuery(rows, tree, splits, values, metrics, weight, exponents, sets, sizes):
            end_round = pb.EndRoundQuery(
                rows=rows,
                tree=tree,
                splits=map(_split_to_pb, splits),
                values=_values_to_pb(values),
                metrics=metrics,
                weight=_scale_to_pb(weight),
                exponents=exponents,
                sets=sets,
                sizes=sizes,
            )
            return {"end_round": end_round}
        case _:
            assert_never(query)


def _query_from_pb(ask: Any) -> Query:
    match ask.WhichOneof("query"):
        case "rows":
            return RowsQuery()
        case "quantiles":
            q = ask.quantiles
            return QuantileQuery(_rows(q), tuple(map(_grid_from_pb, _few(q.grids, MAX_FEATURES, "grids"))))
        case "kll":
            q = ask.kll
            return KllQuery(_rows(q), q.features, q.max_bin)
        case "start":
            return _start_from_pb(ask.start)
        case "ranges":
            q = ask.ranges
            return RangeQuery(_rows(q), q.features)
        case "sums":
            q = ask.sums
            nodes = _few(q.nodes, MAX_NODES, "nodes")
            return SumsQuery(_rows(q), q.tree, _splits_from_pb(q.splits), nodes)
        case "histograms":
            q = ask.histograms
            return HistogramQuery(
                _rows(q),
                q.tree,
                _splits_from_pb(q.splits),
                _few(q.nodes, MAX_NODES, "nodes"),
                q.bins,
                _scale_from_pb(q.gradient),
                _scale_from_pb(q.hessian),
                _widths_from_pb(q.widths),
                _elected_from_pb(q.elected),
                q.threshold,
            )
        case "votes":
            q = ask.votes
            return VoteQuery(
                _rows(q),
                q.tree,
                _splits_from_pb(q.splits),
                _few(q.nodes, MAX_NODES, "nodes"),
                q.features,
                q.parties,
                _scale_from_pb(q.gradient),
                _scale_from_pb(q.hessian),
            )
        case "residuals":
            return _residual_from_pb(ask.residuals)
        case "end_round":
            q = ask.end_round
            _require(q.tree >= CONSTANT_TREE, f"tree {q.tree}")
            _require(all(map(is_metric, q.metrics)), "a metric this version does not know")
            return EndRoundQuery(
                _rows(q),
                q.tree,
                _splits_from_pb(q.splits),
                _values_from_pb(q.values),
                _few(q.metrics, MAX_METRICS, "metrics"),
                _scale_from_pb(q.weight),
                q.exponents,
                _few(q.sets, MAX_SETS, "sets of rows"),
                q.sizes,
            )
    raise PeerError("an empty query, or one of a newer version of fedboost")


def _residual_from_pb(q: Any) -> ResidualQuery:
    _require(q.tree >= CONSTANT_TREE, f"tree {q.tree}")
    return ResidualQuery(
        _rows(q),
        q.tree,
        _splits_from_pb(q.splits),
        _few(q.nodes, MAX_NODES, "nodes"),
        _few(q.starts, MAX_NODES, "cells"),
        q.width,
        _scale_from_pb(q.weight),
    )


def _widths_from_pb(widths: bytes) -> tuple[tuple[int, int], ...]:
    _require(len(widths) % 2 == 0 and len(widths) <= 2 * MAX_NODES, f"{len(widths)} widths")
    return tuple(zip(widths[::2], widths[1::2], strict=True))


def _elected_from_pb(elected: Any) -> tuple[Elected, ...]:
    nodes = _few(elected, MAX_NODES, "nodes")
    features = sum(len(one.features) for one in nodes)
    _require(features <= MAX_ELECTED, f"{features} elected features; {MAX_ELECTED} are allowed")
    return tuple(Elected(tuple(one.features), one.bins) for one in nodes)


def _rows(query: Any) -> int:
    _require(0 < query.rows < MAX_ROWS, f"{query.rows} rows")
    return int(query.rows)


def _scale_to_pb(scale: Scale) -> Any:
    return pb.Scale(exponent=scale.exponent, bits=scale.bits)


def _scale_from_pb(scale: Any) -> Scale:
    _require(abs(scale.exponent) <= 256 and 1 <= scale.bits <= 32, "a scale out of range")
    return Scale(scale.exponent, scale.bits)


def _split_to_pb(split: Split) -> Any:
    return pb.Split(
        node=split.node,
        feature=split.feature,
        bin=split.bin,
        missing_left=split.missing_left,
        left=split.left,
        categories=split.categories.to_bytes(-(-split.categories.bit_length() // 8), "little"),
    )


def _splits_from_pb(splits: Any) -> tuple[Split, ...]:
    few = _few(splits, MAX_NODES, "splits")
    return tuple(
        Split(s.node, s.feature, s.bin, s.missing_left, s.left, _categories_from_pb(s.categories))
        for s in few
    )


def _categories_from_pb(bitmap: bytes) -> int:
    _require(len(bitmap) <= MAX_CODES // 8, f"{len(bitmap)} bytes of levels")
    return int.from_bytes(bitmap, "little")


def _values_to_pb(values: Iterable[tuple[int, float]]) -> list[Any]:
    return [pb.LeafValue(node=node, value=value) for node, value in values]


def _values_from_pb(values: Any) -> tuple[tuple[int, float], ...]:
    return tuple((value.node, value.value) for value in _few(values, MAX_NODES, "leaves"))


def _start_from_pb(q: Any) -> StartQuery:
    features = _few(q.features, MAX_FEATURES, "features")
    categorical = tuple(number for number, feature in enumerate(features) if feature.categorical)
    cuts, missing = tuple(map(_cuts_from_pb, features)), tuple(f.missing for f in features)
    cut_points = CutPoints(cuts, missing, categorical)
    return StartQuery(_rows(q), cut_points, _scale_from_pb(q.gradient), _scale_from_pb(q.hessian))


def _cuts_from_pb(feature: Any) -> Any:
    cuts = np.array(feature.cuts, np.float32)
    _require(
        bool(np.isfinite(cuts).all() and (cuts[1:] > cuts[:-1]).all()), "cut points that do not increase"
    )
    return cuts


def _grid_to_pb(grid: Grid) -> Any:
    return pb.Grid(
        starts=grid.starts.tolist(), widths=grid.widths.tobytes(), subdivisions=grid.subdivisions.tobytes()
    )


def _grid_from_pb(grid: Any) -> Grid:
    starts = np.array(grid.starts, np.uint32)
    widths = np.frombuffer(grid.widths, np.uint8)
    subdivisions = np.frombuffer(grid.subdivisions, np.uint8)
    _require(starts.size == widths.size == subdivisions.size, "a grid with columns of different lengths")
    _require(bool((subdivisions <= widths).all() and (widths <= KEY_BITS).all()), "a grid out of range")
    first = starts.astype(np.int64)
    ends = first + (np.int64(1) << widths.astype(np.int64))
    _require(bool((first[1:] >= ends[:-1]).all() and (ends <= 1 << KEY_BITS).all()), "overlapping cells")
    _require(bool((subdivisions < 24).all()), "a grid with too many subcells")
    return Grid(starts, widths, subdivisions)


# ---- analyst ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Waiting:
    """The session waits for these parties; for another session to end, if there are none."""

    parties: tuple[str, ...]


@dataclass(frozen=True)
class RoundDone:
    """One round: number from 0, metrics, seconds and traffic since the session began."""

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


class Wish(Enum):
    """What an analyst wants of the session under the terms: to follow it, or a new one; to return to it after
    the connection was lost, even to its failure; to stop it; to have its model after the round under way."""

    FOLLOW = 0
    RETURN = 1
    STOP = 2
    FINISH = 3


def encode_train_request(terms: str, wish: Wish = Wish.FOLLOW, request: Request | None = None) -> bytes:
    """Bytes of an analyst's wish: the terms as JSON, what is wanted of their session, and the signed request
    for it."""
    return _serialised(_with_request(pb.TrainRequest(terms=terms, wish=wish.name), request))


def decode_train_request(data: bytes) -> tuple[Terms, Wish, Request | None]:
    """The terms an analyst submits, what is wanted of their session, and the signed request for it. Raises
    PeerError, or ConfigError for terms that cannot be."""
    message = _parsed(pb.TrainRequest, data, MAX_TO_AGGREGATOR)
    _require(message.wish in (wish.value for wish in Wish), f"wish {message.wish}")
    return _terms(message.terms), Wish(message.wish), _request_from_pb(message)


def _with_request(message: Any, request: Request | None) -> Any:
    """A message with an analyst's request in it, if there is one."""
    if request is not None:
        message.request.nonce = request.nonce
        message.request.time = request.time
        message.request.certificate = request.certificate
        message.request.signature = request.signature
    return message


def _request_from_pb(message: Any) -> Request | None:
    if not message.HasField("request"):
        return None
    request = message.request
    size = request.ByteSize()
    _require(size <= MAX_REQUEST, f"a request of {size} bytes; {MAX_REQUEST} are allowed")
    return Request(request.nonce, request.time, request.certificate, request.signature)


def encode_train_event(event: TrainEvent) -> bytes:
    """Bytes of an event for the analyst."""
    match event:
        case Waiting(parties):
            out = pb.TrainEvent(waiting=pb.Waiting(parties=parties))
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
    return _serialised(out)


def decode_train_event(data: bytes) -> TrainEvent:
    """The event in these bytes, or PeerError."""
    event = _parsed(pb.TrainEvent, data, MAX_FROM_AGGREGATOR)
    match event.WhichOneof("event"):
        case "waiting":
            return Waiting(_few(event.waiting.parties, MAX_PARTIES, "parties"))
        case "round":
            done = event.round
            metrics = {value.name: value.value for value in _few(done.metrics, MAX_FIGURES, "metrics")}
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
    return {t.party: (t.sent, t.received) for t in _few(traffic, MAX_PARTIES, "parties")}


# ---- both -------------------------------------------------------------------------------------------


def _terms(text: str) -> Terms:
    _require(len(text) <= MAX_TERMS, f"terms of {len(text)} characters; {MAX_TERMS} are allowed")
    try:
        return Terms.from_canonical(text)
    except RecursionError:
        raise ConfigError("terms: nested too deeply") from None


def _serialised(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _parsed(kind: Any, data: bytes, limit: int) -> Any:
    _require(len(data) <= limit, f"a message of {len(data)} bytes; {limit} are allowed")
    try:
        return kind.FromString(data)
    except DecodeError:
        raise PeerError("bytes that are not a message of fedboost") from None


def _few(items: Any, most: int, what: str) -> tuple[Any, ...]:
    """A repeated field, once it is known to be short: its items take more memory here than on the wire."""
    _require(len(items) <= most, f"{len(items)} {what}; {most} are allowed")
    return tuple(items)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise PeerError(f"a message out of bounds: {what}")
