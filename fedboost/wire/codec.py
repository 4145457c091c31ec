"""Queries, states and terms to protobuf and back, within limits.

A message has the fields of its query, by the same names (`by_name`), unless a function says otherwise. What
is decoded has its ranges and lengths checked, and is refused beyond them (PeerError).
"""

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fedboost.boosting.queries.base import CONSTANT_TREE, MAX_ROWS
from fedboost.boosting.queries.columns import (
    BinCountsQuery,
    BinsQuery,
    QuantileQuery,
    RangeQuery,
    SummaryQuery,
)
from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery, ReachQuery
from fedboost.boosting.queries.labels import (
    EvaluationQuery,
    LevelSumsQuery,
    MagnitudesQuery,
    ResidualQuery,
    RowsQuery,
    StartQuery,
)
from fedboost.boosting.queries.trees import Elected, EndRoundQuery, HistogramQuery, SumsQuery, VoteQuery
from fedboost.boosting.queries.union import OfTurn, Query
from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Int64, Scale
from fedboost.gbdt.cut_points import KEY_BITS, MAX_CATEGORIES, CutPoints, Grids
from fedboost.gbdt.metrics import is_metric
from fedboost.gbdt.target_means import FOLDS, MAX_BUCKETS, MIN_BUCKETS
from fedboost.gbdt.tree import BITMAP_BYTES, NO_SPLITS, SPLIT_COLUMNS, Splits
from fedboost.protocol.contracts import MAX_QUERIES, Several
from fedboost.protocol.messages import Request
from fedboost.terms.columns import MAX_CLASSES
from fedboost.terms.objective import MAX_METRICS, MAX_SUBGROUPS
from fedboost.terms.reading import MAX_FEATURES
from fedboost.terms.session import MAX_PARTIES
from fedboost.terms.terms import Terms
from fedboost.terms.trees import MAX_DEPTH, MAX_ROUNDS

Fields = dict[str, Any]
"""The fields of a message by name, those of messages in it as such a dictionary."""

WIRE_VERSION = 4
MAX_TO_AGGREGATOR = 4 << 20
"""Bytes of a message to the aggregator: a part of a report is at most half a megabyte."""
MAX_FROM_AGGREGATOR = 64 << 20
"""Bytes of a message from the aggregator: the grids of a wide table are the largest."""
MAX_TERMS = 16 << 20
"""Characters of terms: those of an analyst fit in MAX_TO_AGGREGATOR, and have escapes after that."""
MAX_GREETING = 512 << 10
"""Bytes of a greeting: that of a key holder has the public key in it. Each goes to every party."""
MAX_RELAY_PART = 1 << 20
"""Bytes of a part of what parties relay to each other."""
CONTEXT_BYTES = 32
"""Bytes of the context in the first part of a report, if there is one."""
MAX_REQUEST = 64 << 10
"""Bytes of an analyst's request: a certificate with its chain is the most of it."""


def with_request(message: Any, request: Request | None) -> Any:
    """A message with an analyst's request in it, if there is one."""
    if request is not None:
        message.request.nonce = request.nonce
        message.request.time = request.time
        message.request.certificate = request.certificate
        message.request.signature = request.signature
    return message


def request_from_pb(message: Any) -> Request | None:
    if not message.HasField("request"):
        return None
    request = message.request
    size = request.ByteSize()
    require(size <= MAX_REQUEST, f"a request of {size} bytes; {MAX_REQUEST} are allowed")
    return Request(request.nonce, request.time, request.certificate, request.signature)


def terms_of(text: str) -> Terms:
    require(len(text) <= MAX_TERMS, f"terms of {len(text)} characters; {MAX_TERMS} are allowed")
    try:
        return Terms.from_canonical(text)
    except RecursionError:
        raise ConfigError("terms: nested too deeply") from None


def serialised(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def parsed(kind: Any, data: bytes, limit: int) -> Any:
    if len(data) > limit:
        raise out_of_bounds(f"a message of {len(data)} bytes; {limit} are allowed")
    try:
        return kind.FromString(data)
    except DecodeError:
        raise PeerError("bytes that are not a message of fedboost") from None


def bounded(items: Any, most: int, what: str) -> tuple[Any, ...]:
    """A repeated field, once it is known to be short: its items take more memory here than on the wire."""
    if len(items) > most:
        raise out_of_bounds(f"{len(items)} {what}; {most} are allowed")
    return tuple(items)


def rows_of(query: Any) -> int:
    """The number of rows that a query is about."""
    rows: int = query.rows
    require(0 < rows < MAX_ROWS, f"{rows} rows")
    return rows


def require(condition: bool, what: str) -> None:
    if not condition:
        raise out_of_bounds(what)


def out_of_bounds(what: str) -> PeerError:
    return PeerError(f"a message out of bounds: {what}")


def by_name(query: Any) -> Fields:
    """The fields of a message that has the same names as this dataclass."""
    return {name: _member(getattr(query, name)) for name in _names(query.__class__)}


@lru_cache(maxsize=64)
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _member(value: Any) -> Any:
    if isinstance(value, Splits):
        return splits_to_pb(value)
    return by_name(value) if isinstance(value, Scale) else value


def scale_from_pb(scale: Any) -> Scale:
    return _scale(scale.exponent, scale.bits)


@lru_cache(maxsize=64)
def _scale(exponent: int, bits: int) -> Scale:
    require(abs(exponent) <= 256 and 1 <= bits <= 32, "a scale out of range")
    return Scale(exponent, bits)


# ---- Queries about the values of columns ----------------------------------------------------------------


def _bins_from_pb(q: Any) -> BinsQuery:
    require(q.features <= MAX_FEATURES, f"{q.features} features; {MAX_FEATURES} are allowed")
    return BinsQuery(q.features)


def _ranges_from_pb(q: Any) -> RangeQuery:
    return RangeQuery(rows_of(q), q.features)


def _bin_counts_from_pb(q: Any) -> BinCountsQuery:
    sizes = tuple(bounded(q.sizes, MAX_FEATURES, "features"))
    require(all(0 < size <= MAX_CATEGORIES + 1 for size in sizes), "bins of a feature")
    require(0 < q.score <= MAX_CLASSES and q.rounds <= MAX_ROUNDS, "bins of the score")
    return BinCountsQuery(sizes, q.score, q.rounds)


def _summary_from_pb(q: Any) -> SummaryQuery:
    levels = tuple(bounded(q.levels, MAX_FEATURES, "categorical features"))
    require(q.numeric <= MAX_FEATURES, f"{q.numeric} features; {MAX_FEATURES} are allowed")
    require(max(levels, default=0) <= MAX_CATEGORIES, f"{max(levels, default=0)} levels")
    require(q.classes <= MAX_CLASSES, f"{q.classes} classes; {MAX_CLASSES} are allowed")
    return SummaryQuery(q.numeric, levels, q.classes)


# ---- Queries that match rows, or have them predicted ----------------------------------------------------


_PLACES = np.dtype("<i4")


def _id_count_from_pb(q: Any) -> IdCountQuery:
    require(0 < q.parties <= MAX_PARTIES, f"{q.parties} parties")
    return IdCountQuery(q.parties)


def _align_from_pb(q: Any) -> AlignQuery:
    return AlignQuery(bounded(q.sizes, MAX_PARTIES, "parties"))


def places_to_pb(query: PlacesQuery) -> Fields:
    """The fields of places, of rows in common or of rows that are predicted."""
    return by_name(query) | {"places": query.places.astype(_PLACES).tobytes()}


def places_from_pb(q: Any) -> PlacesQuery:
    """The query with the places of common rows."""
    return PlacesQuery(q.total, *_told(q))


def _reach_from_pb(q: Any) -> ReachQuery:
    return ReachQuery(q.total, *_told(q))


def _told(q: Any) -> tuple[tuple[int, ...], Int64]:
    """How many places are told of each party, and the places."""
    sizes = bounded(q.sizes, MAX_PARTIES, "parties")
    require(_PLACES.itemsize * sum(sizes) == len(q.places), f"{len(q.places)} bytes of {sum(sizes)} places")
    return sizes, np.frombuffer(q.places, _PLACES).astype(np.int64)


# ---- The queries that measure a model -------------------------------------------------------------------


MAX_SETS_OF_ROWS = 1 + MAX_SUBGROUPS * (1 + MAX_CATEGORIES)


def _magnitudes_from_pb(q: Any) -> MagnitudesQuery:
    return MagnitudesQuery(_metrics(q))


def _metrics(q: Any) -> tuple[str, ...]:
    require(all(map(is_metric, q.metrics)), "a metric this version does not know")
    return tuple(bounded(q.metrics, MAX_METRICS, "metrics"))


def _evaluation_from_pb(q: Any) -> EvaluationQuery:
    require(q.classes <= MAX_CLASSES, f"{q.classes} classes; {MAX_CLASSES} are allowed")
    require(0 < q.threshold < 1, f"the threshold {q.threshold:g}")
    return EvaluationQuery(
        rows_of(q),
        _metrics(q),
        bounded(q.sets, MAX_SETS_OF_ROWS, "sets of rows"),
        bounded(q.sites, MAX_PARTIES, "sites"),
        q.scores,
        q.classes,
        q.threshold,
        scale_from_pb(q.weight),
        tuple(bounded(q.caps, MAX_METRICS, "caps")),
    )


# ---- Sums and means of labels by level ------------------------------------------------------------------


MAX_COLUMNS = MAX_BUCKETS // MIN_BUCKETS
MAX_SLOTS = MAX_BUCKETS * (FOLDS + 1)
_MEANS = np.dtype("<f4")


def _level_sums_from_pb(q: Any) -> LevelSumsQuery:
    slots = bounded(q.slots, MAX_COLUMNS, "columns of target means")
    require(sum(slots) <= MAX_SLOTS + (FOLDS + 1) * len(slots), f"{sum(slots)} slots of levels")
    weight = scale_from_pb(q.weight) if q.HasField("weight") else None
    scales = scale_from_pb(q.gradient), scale_from_pb(q.hessian)
    return LevelSumsQuery(rows_of(q), slots, *scales, q.counted, weight)


def means_to_pb(means: Iterable[Float32]) -> list[Fields]:
    return [{"folds": each.shape[1], "values": each.astype(_MEANS).tobytes()} for each in means]


def means_from_pb(means: Any) -> tuple[Float32, ...]:
    """The means of each column: float32 [buckets, folds]."""
    return tuple(_means_from_pb(each) for each in bounded(means, MAX_COLUMNS, "columns of target means"))


def _means_from_pb(means: Any) -> Float32:
    require(means.folds in (1, FOLDS + 1), f"means of {means.folds} folds")
    step = means.folds * _MEANS.itemsize
    size = len(means.values)
    require(size % step == 0 and size <= MAX_SLOTS * _MEANS.itemsize, f"{size} bytes of means of levels")
    return np.frombuffer(means.values, _MEANS).astype(np.float32).reshape(-1, means.folds)


# ---- The queries of a turn, and those about trees -------------------------------------------------------


MAX_NODES = 2 << MAX_DEPTH
MAX_ELECTED = 1 << 20
"""Features that one query names, over all its nodes."""
MAX_SETS = 2 * (1 + MAX_PARTIES)
_UINT32, _FLOAT32, _INT32 = "<u4", "<f4", np.dtype("<i4")
_MISSING, _CATEGORICAL = 1, 2
"""Kinds of features."""


def turn_to_pb(query: Any) -> Fields:
    """The fields of a question for all queries of a turn (`OfTurn`)."""
    first, *further = query.parts
    asked = query_to_pb(first)
    if further:
        asked["then"] = [query_to_pb(part) for part in further]
    return asked


def turn_from_pb(ask: Any) -> OfTurn:
    """All queries of a question. PeerError for one that is unknown or out of range, and for too many."""
    further = bounded(ask.then, MAX_QUERIES - 1, "further queries")
    first = query_from_pb(ask)
    return Several((first, *map(query_from_pb, further))) if further else first


def query_to_pb(query: Query) -> Fields:
    """The field of a question for a query."""
    field, encode, _ = _CODECS[type(query)]
    return {field: encode(query)}


def query_from_pb(ask: Any) -> Query:
    """A query of a question. PeerError for one that is unknown or out of range."""
    field = ask.WhichOneof("query")
    if field not in _DECODERS:
        raise PeerError("an empty query, or one of a newer version of fedboost")
    query: Query = _DECODERS[field](getattr(ask, field))
    return query


def _quantiles_to_pb(query: QuantileQuery) -> Fields:
    grids = query.grids
    return {
        "rows": query.rows,
        "sizes": np.diff(grids.offsets).astype(_UINT32).tobytes(),
        "starts": grids.starts.astype(_UINT32).tobytes(),
        "widths": grids.widths.tobytes(),
        "subdivisions": grids.subdivisions.tobytes(),
        "weight": None if query.weight is None else by_name(query.weight),
    }


def _quantiles_from_pb(q: Any) -> QuantileQuery:
    sizes = _array(q.sizes, _UINT32, "sizes of grids").astype(np.int64)
    require(sizes.size <= MAX_FEATURES, f"{sizes.size} grids; {MAX_FEATURES} are allowed")
    weight = scale_from_pb(q.weight) if q.HasField("weight") else None
    return QuantileQuery(rows_of(q), _grids_from_pb(q, sizes), weight)


def _start_to_pb(query: StartQuery) -> Fields:
    cut_points = query.cut_points
    kinds = cut_points.missing.astype(np.uint8)
    kinds[[*cut_points.categorical]] += _CATEGORICAL
    return {
        "rows": query.rows,
        "sizes": cut_points.sizes.astype(np.uint8).tobytes(),
        "cuts": cut_points.values.astype(_FLOAT32).tobytes(),
        "kinds": kinds.tobytes(),
        "means": means_to_pb(query.means),
        "gradient": by_name(query.gradient),
        "hessian": by_name(query.hessian),
    }


def start_from_pb(q: Any) -> StartQuery:
    """The query with the cut points."""
    scales = scale_from_pb(q.gradient), scale_from_pb(q.hessian)
    return StartQuery(rows_of(q), _cut_points_from_pb(q), *scales, means_from_pb(q.means))


def _sums_from_pb(q: Any) -> SumsQuery:
    return SumsQuery(*_tree_from_pb(q), bounded(q.nodes, MAX_NODES, "nodes"))


def _histograms_to_pb(query: HistogramQuery) -> Fields:
    return by_name(query) | {"elected": [by_name(node) for node in query.elected]}


def _histograms_from_pb(q: Any) -> HistogramQuery:
    return HistogramQuery(
        *_tree_from_pb(q),
        bounded(q.nodes, MAX_NODES, "nodes"),
        q.bins,
        scale_from_pb(q.gradient),
        scale_from_pb(q.hessian),
        _widths_from_pb(q.widths),
        _elected_from_pb(q.elected),
        q.threshold,
        q.grouped,
    )


def _votes_from_pb(q: Any) -> VoteQuery:
    nodes = bounded(q.nodes, MAX_NODES, "nodes")
    scales = scale_from_pb(q.gradient), scale_from_pb(q.hessian)
    return VoteQuery(*_tree_from_pb(q), nodes, q.features, q.parties, *scales)


def residual_from_pb(q: Any) -> ResidualQuery:
    """The query for residuals."""
    require(q.tree >= CONSTANT_TREE, f"tree {q.tree}")
    return ResidualQuery(
        *_tree_from_pb(q),
        bounded(q.nodes, MAX_NODES, "nodes"),
        bounded(q.starts, MAX_NODES, "cells"),
        q.width,
        scale_from_pb(q.weight),
    )


def _end_round_to_pb(query: EndRoundQuery) -> Fields:
    return by_name(query) | {"values": values_to_pb(query.values)}


def _end_round_from_pb(q: Any) -> EndRoundQuery:
    require(q.tree >= CONSTANT_TREE, f"tree {q.tree}")
    require(all(map(is_metric, q.metrics)), "a metric this version does not know")
    return EndRoundQuery(
        *_tree_from_pb(q),
        values_from_pb(q.values),
        bounded(q.metrics, MAX_METRICS, "metrics"),
        scale_from_pb(q.weight),
        q.exponents,
        bounded(q.sets, MAX_SETS, "sets of rows"),
        q.sizes,
    )


_CODECS: dict[type[Query], tuple[str, Callable[[Any], Any], Callable[[Any], Query]]] = {
    IdCountQuery: ("id_count", by_name, _id_count_from_pb),
    AlignQuery: ("align", by_name, _align_from_pb),
    PlacesQuery: ("places", places_to_pb, places_from_pb),
    ReachQuery: ("reach", places_to_pb, _reach_from_pb),
    RowsQuery: ("rows", by_name, lambda q: RowsQuery()),
    QuantileQuery: ("quantiles", _quantiles_to_pb, _quantiles_from_pb),
    BinCountsQuery: ("bin_counts", by_name, _bin_counts_from_pb),
    BinsQuery: ("bins", by_name, _bins_from_pb),
    RangeQuery: ("ranges", by_name, _ranges_from_pb),
    SummaryQuery: ("summary", by_name, _summary_from_pb),
    LevelSumsQuery: ("level_sums", by_name, _level_sums_from_pb),
    StartQuery: ("start", _start_to_pb, start_from_pb),
    SumsQuery: ("sums", by_name, _sums_from_pb),
    HistogramQuery: ("histograms", _histograms_to_pb, _histograms_from_pb),
    VoteQuery: ("votes", by_name, _votes_from_pb),
    ResidualQuery: ("residuals", by_name, residual_from_pb),
    EvaluationQuery: ("evaluation", by_name, _evaluation_from_pb),
    MagnitudesQuery: ("magnitudes", by_name, _magnitudes_from_pb),
    EndRoundQuery: ("end_round", _end_round_to_pb, _end_round_from_pb),
}
"""For each query its field of a question, and the functions to protobuf and back."""
_DECODERS = {field: decode for field, _, decode in _CODECS.values()}


# ---- their members --------------------------------------------------------------------------------------


def _tree_from_pb(q: Any) -> tuple[int, int, Splits]:
    return rows_of(q), q.tree, splits_from_pb(q.splits)


def _widths_from_pb(widths: bytes) -> bytes:
    if len(widths) % 2 or len(widths) > 2 * MAX_NODES:
        raise out_of_bounds(f"{len(widths)} widths")
    return widths


def _elected_from_pb(elected: Any) -> tuple[Elected, ...]:
    if not elected:
        return ()
    nodes = bounded(elected, MAX_NODES, "nodes")
    features = sum(len(node.features) for node in nodes)
    require(features <= MAX_ELECTED, f"{features} elected features; {MAX_ELECTED} are allowed")
    return tuple(Elected(tuple(node.features), node.bins) for node in nodes)


def splits_to_pb(splits: Splits) -> Fields:
    columns, levels = splits.columns.astype(_INT32, copy=False).tobytes(), splits.categories.tobytes()
    return {"columns": columns, "categories": b"" if levels == bytes(len(levels)) else levels}


def splits_from_pb(splits: Any) -> Splits:
    """Splits of any nodes, features and bins: whether they can be is for the state to say."""
    data, levels = splits.columns, splits.categories
    if not data and not levels:
        return NO_SPLITS
    number, rest = divmod(len(data), _INT32.itemsize * SPLIT_COLUMNS)
    if rest or number > MAX_NODES:
        raise out_of_bounds(f"{len(data)} bytes of splits")
    if len(levels) not in (0, number * BITMAP_BYTES):
        raise out_of_bounds(f"{len(levels)} bytes of levels")
    missing_left = data[12 * number : 16 * number]
    flags = missing_left.count(0) + missing_left[::4].count(1)
    if not data[3::4].isascii() or flags != len(missing_left):  # a sign, or another number than 0 and 1
        raise out_of_bounds("a split out of range")
    columns = np.frombuffer(data, _INT32).astype(np.int32, copy=False).reshape(SPLIT_COLUMNS, number)
    if not levels:
        return Splits(columns)
    return Splits(columns, np.frombuffer(levels, np.uint8).reshape(number, BITMAP_BYTES))


def values_to_pb(values: Iterable[tuple[int, float]]) -> list[Fields]:
    return [{"node": node, "value": value} for node, value in values]


def values_from_pb(values: Any) -> tuple[tuple[int, float], ...]:
    return tuple([(value.node, value.value) for value in bounded(values, MAX_NODES, "leaves")])


def _array(data: bytes, dtype: str, what: str) -> Any:
    """The numbers in these bytes, as numpy has them."""
    numbers = np.dtype(dtype)
    require(len(data) % numbers.itemsize == 0, f"{len(data)} bytes of {what}")
    return np.frombuffer(data, numbers).astype(numbers.newbyteorder("="))


def _cut_points_from_pb(q: Any) -> CutPoints:
    sizes, kinds = _array(q.sizes, "u1", "sizes"), _array(q.kinds, "u1", "kinds")
    require(sizes.size <= MAX_FEATURES, f"{sizes.size} features; {MAX_FEATURES} are allowed")
    require(sizes.size == kinds.size and bool((kinds < 4).all()), "features of unknown kinds")
    cut_points = CutPoints(
        _array(q.cuts, _FLOAT32, "cuts"),
        sizes.astype(np.int64),
        kinds & _MISSING != 0,
        tuple(np.flatnonzero(kinds & _CATEGORICAL).tolist()),
    )
    cuts, ends = cut_points.values, cut_points.offsets
    require(int(ends[-1]) == cuts.size, f"{cuts.size} cut points of {int(ends[-1])}")
    increase = _within_features(cuts[1:] > cuts[:-1], ends)
    require(bool(np.isfinite(cuts).all() and increase), "cut points that do not increase")
    return cut_points


def _grids_from_pb(q: Any, sizes: Any) -> Grids:
    grids = Grids(
        np.concatenate([[0], np.cumsum(sizes)]),
        _array(q.starts, _UINT32, "starts"),
        _array(q.widths, "u1", "widths"),
        _array(q.subdivisions, "u1", "subdivisions"),
    )
    starts, widths, subdivisions = grids.starts, grids.widths, grids.subdivisions
    lengths = {starts.size, widths.size, subdivisions.size, int(grids.offsets[-1])}
    require(len(lengths) == 1, "grids with columns of different lengths")
    require(bool((subdivisions <= widths).all() and (widths <= KEY_BITS).all()), "a grid out of range")
    first = starts.astype(np.int64)
    ends = first + (np.int64(1) << widths.astype(np.int64))
    apart = _within_features(first[1:] >= ends[:-1], grids.offsets)
    require(bool(apart and (ends <= 1 << KEY_BITS).all()), "overlapping cells")
    require(bool((subdivisions < 24).all()), "a grid with too many subcells")
    return grids


def _within_features(holds: Any, offsets: Any) -> bool:
    """True if it holds of each pair of neighbours of one feature: `holds` has those of all neighbours."""
    begins = offsets[(offsets > 0) & (offsets <= holds.size)]
    holds[begins - 1] = True
    return bool(holds.all())
