"""Converts dataclasses to protobuf messages and back, by field names, and checks the limits of fields.

A protobuf message has the same field names as its dataclass; types in `HAND_WRITTEN` are converted by
functions. The allowed values of a field are annotated on its type (`Bound`, `Only`). They are checked before
anything is copied, because an item that takes two bytes on the wire takes about a hundred bytes in memory.

Guarantees: every repeated field has a limit, and every dataclass field has a field in its message. Otherwise
importing this module fails. Raises: PeerError for values outside their limits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
from google.protobuf.message import DecodeError

from fedboost.boosting.queries import OfTurn, Query
from fedboost.boosting.queries.base import MAX_NODES, MAX_ROWS
from fedboost.boosting.queries.labels import MAX_SLOTS
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.boosting.state import BoostingState, Scales
from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Int64, Scale
from fedboost.gbdt.cut_points import KEY_BITS, CutPoints, Grids
from fedboost.gbdt.target_means import FOLDS
from fedboost.gbdt.tree import BITMAP_BYTES, NO_SPLITS, SPLIT_COLUMNS, Splits
from fedboost.protocol import contracts
from fedboost.protocol.contracts import MAX_QUERIES, Bound, Only, Several, out_of_bounds
from fedboost.protocol.messages import Request
from fedboost.terms.reading import MAX_FEATURES
from fedboost.terms.terms import Terms
from fedboost.wire.v1 import fedboost_pb2 as pb

Fields = dict[str, Any]
"""Fields of a message by name. Nested messages are dictionaries of the same kind."""

WIRE_VERSION = 6
MAX_TO_AGGREGATOR = 4 << 20
"""Maximum size in bytes of a message to the aggregator. A part of a report takes at most half a megabyte."""
MAX_FROM_AGGREGATOR = 64 << 20
"""Maximum size in bytes of a message from the aggregator. The largest ones contain grids of wide tables."""
MAX_FRAME = 64 << 10
"""Maximum bytes of a frame between an adder and the aggregator, beyond the message in it."""
MAX_TERMS = 16 << 20
"""Maximum length of terms in characters. Terms fit in MAX_TO_AGGREGATOR when an analyst sends them, but
become longer later, when characters are escaped."""
MAX_REQUEST = 64 << 10
"""Maximum size in bytes of an analyst's request. Its certificate chain is the largest part."""


@dataclass(frozen=True)
class FieldCodec:
    """Converts values of a type to a protobuf field and back.

    Args:
        write: converts a value to a field's value.
        read: converts a field's value back, after all checks have passed.
        flat: True if the value consists of several fields of the enclosing message. `write` then returns a
            dictionary of them, and `read` gets the enclosing message.
        checks: functions that raise PeerError if a field's value is not allowed.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    flat: bool = False
    checks: tuple[Callable[[Any], None], ...] = ()


def serialised(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def parsed(kind: Any, data: bytes, limit: int) -> Any:
    if len(data) > limit:
        raise out_of_bounds(f"it has {len(data)} bytes, but at most {limit} are allowed")
    try:
        return kind.FromString(data)
    except DecodeError:
        raise PeerError("wire-not-message", "received bytes that are not a valid fedboost message") from None


def terms_of(text: str) -> Terms:
    Bound(MAX_TERMS, "characters in the terms").check(text)
    try:
        return Terms.from_canonical(text)
    except RecursionError:
        raise ConfigError("terms-too-deep", "the terms nest tables and lists too deeply") from None


def require(condition: bool, what: str) -> None:
    if not condition:
        raise out_of_bounds(what)


# ---- Conversion by field names --------------------------------------------------------------------------


def _itself(value: Any) -> Any:
    return value


SAME = FieldCodec(_itself, _itself)
"""Codec of numbers, strings and bytes, which are not converted."""


def pair_of(kind: Any, message: Any) -> FieldCodec:
    """Return the codec of a dataclass or named tuple, by field names. message: descriptor of its message."""
    hints, names = get_type_hints(kind, include_extras=True), kind.__match_args__
    pairs = [_pair(hints[name], message.fields_by_name.get(name)) for name in names]
    members = [*zip(names, pairs, strict=True)]
    apart = [name for name, pair in members if not pair.flat]
    values_of = _all_of(apart)
    written = [(name, pair.write) for name, pair in members if pair.write is not _itself and not pair.flat]
    flat = [(name, pair.write) for name, pair in members if pair.flat]
    # A value that consists of several fields is read from the whole message; any field holds its place.
    fields_of = _all_of([name if name in apart else message.fields[0].name for name in names])
    steps = [
        (place, pair)
        for place, pair in enumerate(pairs)
        if pair.flat or pair.checks or pair.read is not _itself
    ]

    def write(value: Any) -> Fields:
        out = dict(zip(apart, values_of(value), strict=True))
        for name, convert in written:
            out[name] = convert(out[name])
        for name, convert in flat:
            out |= convert(getattr(value, name))
        return out

    def read(message: Any) -> Any:
        values = [*fields_of(message)]
        for place, pair in steps:
            value = message if pair.flat else values[place]
            for check in pair.checks:
                check(value)
            values[place] = pair.read(value)
        return kind(*values)

    return FieldCodec(write, read)


def _all_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of these attributes."""
    get: Any = attrgetter(*names) if names else None
    return get if len(names) > 1 else lambda value: (get(value),) if names else ()


def one_of(kinds: Any, fields: Any) -> FieldCodec:
    """Return the flat codec of a union. Each class has the oneof's field whose message has its name."""
    named = {kind.__name__: kind for kind in get_args(kinds)}
    by_kind = {}
    for field in fields.fields:
        kind = named.pop(field.message_type.name)
        by_kind[kind] = field.name, _pair(kind, field)
    if named:
        raise TypeError(f"{fields.full_name} has no field for {', '.join(named)}")
    readers = {name: pair.read for name, pair in by_kind.values()}

    def write(value: Any) -> Fields:
        name, pair = by_kind[type(value)]
        return {name: pair.write(value)}

    def read(message: Any) -> Any:
        name = message.WhichOneof(fields.name)
        if name is None:
            raise PeerError(
                "wire-unknown-message",
                f"received an empty {fields.name}, or one that only a newer version of fedboost knows",
            )
        return readers[name](getattr(message, name))

    return FieldCodec(write, read, flat=True)


def _pair(hint: Any, field: Any, bounds: Iterable[Any] = ()) -> FieldCodec:
    """Return the codec of a type in a protobuf field. bounds: annotations of the type."""
    origin, of = get_origin(hint), get_args(hint)
    if hint in HAND_WRITTEN:
        return HAND_WRITTEN[hint]
    if origin is Annotated:
        return replace(_pair(of[0], field, of[1:]), checks=tuple(bound.check for bound in of[1:]))
    if field is None:
        raise TypeError(f"a message lacks a field of type {hint}")
    if hint in (bool, int, float, str, bytes):
        return SAME
    if origin is UnionType:
        return _optional(_pair(of[0], field), field.name)
    if isinstance(hint, type) and issubclass(hint, Enum):
        known = {each.value: each for each in hint}
        unknown = Only(known.__contains__, f"its {field.name} is unknown")
        return FieldCodec(attrgetter("value"), known.__getitem__, checks=(unknown.check,))
    if is_dataclass(hint) or hasattr(hint, "_fields"):  # or a named tuple
        return pair_of(hint, field.message_type)
    if not bounds:
        raise TypeError(f"{field.full_name} may repeat, but has no bound")
    if origin is tuple:
        return _repeated(_pair(of[0], field))
    return _table([each.name for each in field.message_type.fields])


def _optional(pair: FieldCodec, name: str) -> FieldCodec:
    """Return the codec of a message that may be absent (None)."""
    return FieldCodec(
        lambda value: {} if value is None else {name: pair.write(value)},
        lambda message: pair.read(getattr(message, name)) if message.HasField(name) else None,
        flat=True,
    )


def _repeated(pair: FieldCodec) -> FieldCodec:
    if pair is SAME:
        return FieldCodec(SAME.write, tuple)

    def checked(item: Any) -> Any:
        for check in pair.checks:
            check(item)
        return pair.read(item)

    read = checked if pair.checks else pair.read
    return FieldCodec(lambda items: [*map(pair.write, items)], lambda items: (*map(read, items),))


def _table(names: list[str]) -> FieldCodec:
    """Return the codec of a mapping: the first field is the key, the others are the value or tuple."""
    first, *others = names
    key, value = attrgetter(first), attrgetter(*others)

    def write(table: Mapping[Any, Any]) -> list[Fields]:
        values = table.values() if len(others) > 1 else zip(table.values())
        return [dict(zip(names, (k, *items), strict=True)) for k, items in zip(table, values, strict=True)]

    return FieldCodec(write, lambda items: {key(item): value(item) for item in items})


# ---- Types that travel in other forms -------------------------------------------------------------------

_INT32, _UINT32, _FLOAT32, _BYTE = map(np.dtype, ("<i4", "<u4", "<f4", "u1"))
_MISSING, _CATEGORICAL = 1, 2
"""Bits of the byte that describes a feature: whether it has missing values, and whether it is categorical."""


def _terms_from_pb(text: str) -> Terms:
    try:
        return terms_of(text)
    except ConfigError as error:
        raise PeerError(
            "wire-bad-terms", f"this version of fedboost cannot use these terms: {error}"
        ) from None


def _request_from_pb(request: Any) -> Request:
    Bound(MAX_REQUEST, "bytes in the request").check(request.ByteSize())
    return Request(request.nonce, request.time, request.certificate, request.signature)


def _scale_from_pb(scale: Any) -> Scale:
    return _scale(scale.exponent, scale.bits)


@lru_cache(maxsize=64)
def _scale(exponent: int, bits: int) -> Scale:
    require(abs(exponent) <= 256 and 1 <= bits <= 32, "the scale is out of range")
    return Scale(exponent, bits)


def _splits_to_pb(splits: Splits) -> Fields:
    columns, levels = splits.columns.astype(_INT32, copy=False).tobytes(), splits.categories.tobytes()
    return {"columns": columns, "categories": b"" if levels == bytes(len(levels)) else levels}


def _splits_from_pb(splits: Any) -> Splits:
    """Decode splits. The training state checks later whether their nodes, features and bins exist."""
    data, levels = splits.columns, splits.categories
    if not data and not levels:
        return NO_SPLITS
    number, rest = divmod(len(data), _INT32.itemsize * SPLIT_COLUMNS)
    if rest or number > MAX_NODES:
        raise out_of_bounds(f"its splits have {len(data)} bytes, which is not a valid size")
    if len(levels) not in (0, number * BITMAP_BYTES):
        raise out_of_bounds(
            f"its categories have {len(levels)} bytes, which is not valid for {number} splits"
        )
    missing_left = data[12 * number : 16 * number]
    flags = missing_left.count(0) + missing_left[::4].count(1)
    # isascii: the high byte of each little-endian int32 is below 128, so that no number is negative. The
    # count of zero bytes, plus low bytes that are 1, is the length only if each missing_left is 0 or 1.
    if not data[3::4].isascii() or flags != len(missing_left):
        raise out_of_bounds("a split is out of range")
    columns = np.frombuffer(data, _INT32).astype(np.int32, copy=False).reshape(SPLIT_COLUMNS, number)
    if not levels:
        return Splits(columns)
    return Splits(columns, np.frombuffer(levels, np.uint8).reshape(number, BITMAP_BYTES))


def _places_from_pb(q: Any) -> Int64:
    places = _array(q.places, _INT32, "row indices")
    require(places.size == sum(q.sizes), f"it has {places.size} row indices instead of {sum(q.sizes)}")
    told: Int64 = places.astype(np.int64)
    return told


def _means_from_pb(means: Any) -> Float32:
    """Decode the target means of a column. Returns float32 [buckets, folds]."""
    require(means.folds in (1, FOLDS + 1), f"it has target means for {means.folds} folds")
    values = _array(means.values, _FLOAT32, "target means")
    require(values.size % means.folds == 0 and values.size <= MAX_SLOTS, f"it has {values.size} target means")
    by_bucket: Float32 = values.reshape(-1, means.folds)
    return by_bucket


def _array(data: bytes, kind: np.dtype[Any], what: str) -> Any:
    """Return the numbers encoded in these bytes, in native byte order."""
    require(len(data) % kind.itemsize == 0, f"it has {len(data)} bytes of {what}, which is not a valid size")
    return np.frombuffer(data, kind).astype(kind.newbyteorder("="))


def _cut_points_to_pb(cut_points: CutPoints) -> Fields:
    kinds = cut_points.missing.astype(np.uint8)
    kinds[[*cut_points.categorical]] += _CATEGORICAL
    sizes, cuts = cut_points.sizes.astype(np.uint8), cut_points.values.astype(_FLOAT32)
    return {"sizes": sizes.tobytes(), "cuts": cuts.tobytes(), "kinds": kinds.tobytes()}


def _cut_points_from_pb(q: Any) -> CutPoints:
    sizes, kinds = _array(q.sizes, _BYTE, "sizes"), _array(q.kinds, _BYTE, "kinds")
    require(
        sizes.size <= MAX_FEATURES, f"it has {sizes.size} features, but at most {MAX_FEATURES} are allowed"
    )
    require(sizes.size == kinds.size and bool((kinds < 4).all()), "a feature has an unknown kind")
    cut_points = CutPoints(
        _array(q.cuts, _FLOAT32, "cuts"),
        sizes.astype(np.int64),
        kinds & _MISSING != 0,
        tuple(np.flatnonzero(kinds & _CATEGORICAL).tolist()),
    )
    cuts, ends = cut_points.values, cut_points.offsets
    require(int(ends[-1]) == cuts.size, f"it has {cuts.size} cut points instead of {int(ends[-1])}")
    increase = _within_features(cuts[1:] > cuts[:-1], ends)
    require(bool(np.isfinite(cuts).all() and increase), "the cut points do not increase")
    return cut_points


def _grids_to_pb(grids: Grids) -> Fields:
    sizes, starts = np.diff(grids.offsets).astype(_UINT32), grids.starts.astype(_UINT32)
    widths, subdivisions = grids.widths.tobytes(), grids.subdivisions.tobytes()
    return {
        "sizes": sizes.tobytes(),
        "starts": starts.tobytes(),
        "widths": widths,
        "subdivisions": subdivisions,
    }


def _grids_from_pb(q: Any) -> Grids:
    sizes = _array(q.sizes, _UINT32, "grid sizes").astype(np.int64)
    require(sizes.size <= MAX_FEATURES, f"it has {sizes.size} grids, but at most {MAX_FEATURES} are allowed")
    grids = Grids(
        np.concatenate([[0], np.cumsum(sizes)]),
        _array(q.starts, _UINT32, "starts"),
        _array(q.widths, _BYTE, "widths"),
        _array(q.subdivisions, _BYTE, "subdivisions"),
    )
    starts, widths, subdivisions = grids.starts, grids.widths, grids.subdivisions
    lengths = {starts.size, widths.size, subdivisions.size, int(grids.offsets[-1])}
    require(len(lengths) == 1, "the arrays of the grids have different lengths")
    require(bool((subdivisions <= widths).all() and (widths <= KEY_BITS).all()), "a grid is out of range")
    first = starts.astype(np.int64)
    ends = first + (np.int64(1) << widths.astype(np.int64))  # at most 2**33, as widths are checked above
    apart = _within_features(first[1:] >= ends[:-1], grids.offsets)
    require(bool(apart and (ends <= 1 << KEY_BITS).all()), "cells of a grid overlap")
    require(bool((subdivisions < 24).all()), "a grid has too many subcells")
    return grids


def _within_features(holds: Any, offsets: Any) -> bool:
    """Return True if all flags of neighbouring numbers within a feature are True. holds: one flag per pair of
    neighbours, overwritten; offsets: index of each feature's first number, and the total."""
    begins = offsets[(offsets > 0) & (offsets <= holds.size)]
    holds[begins - 1] = True
    return bool(holds.all())


HAND_WRITTEN: dict[Any, FieldCodec] = {
    tuple[int, float]: FieldCodec(
        lambda leaf: {"node": leaf[0], "value": leaf[1]}, attrgetter("node", "value")
    ),
    Terms: FieldCodec(Terms.canonical, _terms_from_pb),
    Request: FieldCodec(vars, _request_from_pb),
    Scale: FieldCodec(vars, _scale_from_pb),
    Splits: FieldCodec(_splits_to_pb, _splits_from_pb),
    Int64: FieldCodec(lambda places: {"places": places.astype(_INT32).tobytes()}, _places_from_pb, flat=True),
    Float32: FieldCodec(
        lambda means: {"folds": means.shape[1], "values": means.astype(_FLOAT32).tobytes()}, _means_from_pb
    ),
    CutPoints: FieldCodec(_cut_points_to_pb, _cut_points_from_pb, flat=True),
    Grids: FieldCodec(_grids_to_pb, _grids_from_pb, flat=True),
}
"""Codecs of types that are not converted by field names."""


# ---- The queries of a turn, and the state that parties are introduced to --------------------------------

_HISTOGRAMS = pair_of(HistogramQuery, pb.HistogramQuery.DESCRIPTOR)


def _histograms_from_pb(q: Any) -> HistogramQuery:
    """Decode a histogram query, the query that parties receive most often. Common forms take a fast path, and
    other forms are converted by field names."""
    rows, nodes, widths = q.rows, q.nodes, q.widths
    within = 0 < rows < MAX_ROWS and len(nodes) <= MAX_NODES and len(widths) <= 2 * MAX_NODES
    if not within or len(widths) % 2 or q.elected or q.at_risk:
        query: HistogramQuery = _HISTOGRAMS.read(q)
        return query
    splits, scales = _splits_from_pb(q.splits), (_scale_from_pb(q.gradient), _scale_from_pb(q.hessian))
    shape = rows, q.tree, splits, tuple(nodes), q.bins
    return HistogramQuery(*shape, *scales, widths, (), q.threshold, q.grouped)


HAND_WRITTEN[HistogramQuery] = FieldCodec(_HISTOGRAMS.write, _histograms_from_pb)
_QUERY = one_of(Query, pb.Ask.DESCRIPTOR.oneofs_by_name["query"])
_SCALES = pair_of(Scales, pb.Introduce.DESCRIPTOR)


def _turn_to_pb(query: Any) -> Fields:
    """Return the fields of an `Ask` message for the queries of a turn (`OfTurn`)."""
    first, *further = map(_QUERY.write, query.parts)
    return {**first, "then": further}


def _turn_from_pb(ask: Any) -> OfTurn:
    """Decode all queries of an `Ask`. Raises PeerError for too many, unknown or too large ones."""
    first: Query = _QUERY.read(ask)
    if not ask.then:
        return first
    _FURTHER.check(ask.then)
    return Several((first, *map(_QUERY.read, ask.then)))


_FURTHER = Bound(MAX_QUERIES - 1, "further queries")
HAND_WRITTEN |= {
    contracts.Query: FieldCodec(_turn_to_pb, _turn_from_pb, flat=True),
    Scales | None: FieldCodec(
        lambda scales: {} if scales is None else _SCALES.write(scales),
        lambda meet: _SCALES.read(meet) if meet.HasField("gradient") else None,
        flat=True,
    ),
}
HAND_WRITTEN[contracts.TrainingState] = replace(pair_of(BoostingState, pb.Introduce.DESCRIPTOR), flat=True)
