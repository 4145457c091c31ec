"""Sums and means of labels by level to protobuf and back.

Refuses: values outside their ranges, and more levels than there can be (PeerError).
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedboost.boosting.queries.labels import LevelSumsQuery
from fedboost.fixedpoint import Float32
from fedboost.gbdt.target_means import FOLDS, MAX_BUCKETS, MIN_BUCKETS
from fedboost.wire.bounds import bounded, require, rows_of, scale_from_pb, scale_to_pb

Fields = dict[str, Any]

MAX_COLUMNS = MAX_BUCKETS // MIN_BUCKETS
MAX_SLOTS = MAX_BUCKETS * (FOLDS + 1)
_FLOAT32 = np.dtype("<f4")


def level_sums_to_pb(query: LevelSumsQuery) -> Fields:
    return {
        "rows": query.rows,
        "slots": query.slots,
        "gradient": scale_to_pb(query.gradient),
        "hessian": scale_to_pb(query.hessian),
        "counted": query.counted,
        "weight": None if query.weight is None else scale_to_pb(query.weight),
    }


def level_sums_from_pb(q: Any) -> LevelSumsQuery:
    """The query for sums of labels by level."""
    slots = bounded(q.slots, MAX_COLUMNS, "columns of target means")
    require(sum(slots) <= MAX_SLOTS + (FOLDS + 1) * len(slots), f"{sum(slots)} slots of levels")
    weight = scale_from_pb(q.weight) if q.HasField("weight") else None
    scales = scale_from_pb(q.gradient), scale_from_pb(q.hessian)
    return LevelSumsQuery(rows_of(q), slots, *scales, q.counted, weight)


def means_to_pb(means: Iterable[Float32]) -> list[Fields]:
    return [{"folds": each.shape[1], "values": each.astype(_FLOAT32).tobytes()} for each in means]


def means_from_pb(means: Any) -> tuple[Float32, ...]:
    """The means of each column: float32 [buckets, folds]."""
    return tuple(_means_from_pb(each) for each in bounded(means, MAX_COLUMNS, "columns of target means"))


def _means_from_pb(means: Any) -> Float32:
    require(means.folds in (1, FOLDS + 1), f"means of {means.folds} folds")
    step = means.folds * _FLOAT32.itemsize
    size = len(means.values)
    require(size % step == 0 and size <= MAX_SLOTS * _FLOAT32.itemsize, f"{size} bytes of means of levels")
    return np.frombuffer(means.values, _FLOAT32).astype(np.float32).reshape(-1, means.folds)
