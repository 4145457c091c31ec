"""Rows as bin codes: by feature, by row, and rare bins as lists.

Promises: each category of a categorical feature is a bin; missing values have a bin of their own, the last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.kernels.bins import MAX_CODES, count_rare, list_rare, transpose

Room = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]
"""Makes the arrays that have a number for each row or value."""
CACHE_LINE = 64
COMMON = 0.9
"""Share of the rows in one bin from which on the others may be listed instead."""
MIN_SPARSE_FEATURES = 40
"""Such features from which on listing pays: to find a row's list costs as much as some twenty bins in their
places, and each that is listed as much as four."""
_LOOKED_AT = 1 << 16
"""About so many rows tell whether a feature is like that."""


class Column(Protocol):
    """A feature's values: an array, or what reads them when they are wanted."""

    @property
    def size(self) -> int:
        """Number of rows."""
        ...

    def __getitem__(self, rows: slice, /) -> Float32:
        """The values of some rows."""
        ...


def in_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Room where numpy finds it."""
    return np.empty(shape, dtype)


def _whole_lines(rows: int, features: int, room: Room) -> npt.NDArray[np.uint8]:
    """A table in which no row lies across lines of the cache that it need not, if a third more room does."""
    width = (
        1 << (features - 1).bit_length()
        if features <= CACHE_LINE
        else -(-features // CACHE_LINE) * CACHE_LINE
    )
    width = width if 3 * width <= 4 * features else features
    table = room((rows * width + CACHE_LINE,), np.dtype(np.uint8))
    start = -table.ctypes.data % CACHE_LINE
    return table[start : start + rows * width].reshape(rows, width)


@dataclass(frozen=True)
class RareBins:
    """Features with nearly all rows in one bin: of each row only the bins that are not that one are listed.

    features: int64 [R]; common: int64 [R], the bin that is not listed; places: int64 [R + 1], where the bins
    of each begin if they stand one after the other; starts: int64 [rows + 1], where the entries of each row
    begin; entries: uint32, a place each.
    """

    features: Int64
    common: Int64
    places: Int64
    starts: Int64
    entries: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class BinnedRows:
    """The bins of all rows, twice: a histogram reads whole rows, a split reads one feature of many rows.

    by_feature: uint8 [features, rows]; dense: int64 [D], the features that by_row has, uint8 [rows, D or a
    few more, see `_whole_lines`]; rare: the others, if there are any.
    """

    by_feature: npt.NDArray[np.uint8]
    dense: Int64
    by_row: npt.NDArray[np.uint8]
    rare: RareBins | None

    @classmethod
    def of(cls, by_feature: npt.NDArray[np.uint8], codes: Int64, room: Room = in_memory) -> "BinnedRows":
        """From the bins by feature, and how many each feature has: int64 [features]."""
        rows = by_feature.shape[1]
        step = max(1, rows // _LOOKED_AT)
        counts = np.array([np.bincount(column[::step], minlength=MAX_CODES) for column in by_feature])
        common = counts.argmax(axis=1)
        is_rare = counts.max(axis=1) >= COMMON * max(int(counts[0].sum()), 1)
        is_rare &= is_rare.sum() >= MIN_SPARSE_FEATURES
        is_rare[0] &= not is_rare.all()  # one at least is dense
        dense, rare = np.flatnonzero(~is_rare), np.flatnonzero(is_rare)
        by_row = _whole_lines(rows, dense.size, room)
        transpose(by_feature, dense, by_row)
        if not rare.size:
            return cls(by_feature, dense, by_row, None)
        places: Int64 = np.concatenate([[0], np.cumsum(codes[rare])])
        starts = room((rows + 1,), np.dtype(np.int64))
        count_rare(by_feature, rare, common[rare], starts)
        entries = room((max(int(starts[-1]), 1),), np.dtype(np.uint32))
        list_rare(by_feature, rare, common[rare], places, starts, entries)
        return cls(by_feature, dense, by_row, RareBins(rare, common[rare], places, starts, entries))
