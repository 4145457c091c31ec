"""Rows as bin codes: by feature, by row, and sparse bins as lists.

Promises: each category of a categorical feature is a bin; missing values have a bin of their own, the last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.kernels.bins import MAX_CODES, count_sparse, list_sparse, transpose

Allocator = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]
"""Allocates the arrays that have a number for each row or value."""
CACHE_LINE = 64
SPARSE_SHARE = 0.9
"""Share of the rows in the most frequent bin from which on a feature may be sparse."""
MIN_SPARSE_FEATURES = 40
"""Number of sparse features from which on sparse storage pays: to find the entries of a row costs as much as
some twenty dense bins, and each entry as much as four."""
_SAMPLED_ROWS = 1 << 16
"""Approximate number of rows by which a feature is classified as sparse."""


class Column(Protocol):
    """A feature's values: an array, or an object that reads them on demand."""

    @property
    def size(self) -> int:
        """Number of rows."""
        ...

    def __getitem__(self, rows: slice, /) -> Float32:
        """The values of some rows."""
        ...


def allocate_in_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Allocate an array in memory."""
    return np.empty(shape, dtype)


def _whole_lines(rows: int, features: int, allocate: Allocator) -> npt.NDArray[np.uint8]:
    """Allocate a table whose rows cross no more cache lines than needed, if a third more memory suffices."""
    width = (
        1 << (features - 1).bit_length()
        if features <= CACHE_LINE
        else -(-features // CACHE_LINE) * CACHE_LINE
    )
    width = width if 3 * width <= 4 * features else features
    table = allocate((rows * width + CACHE_LINE,), np.dtype(np.uint8))
    start = -table.ctypes.data % CACHE_LINE
    return table[start : start + rows * width].reshape(rows, width)


@dataclass(frozen=True)
class SparseBins:
    """Features with nearly all rows in the most frequent bin: each row lists its other bins only.

    features: int64 [R]; most_frequent: int64 [R], the bin that is not listed; offsets: int64 [R + 1], the
    first bin of each feature in their concatenation; starts: int64 [rows + 1], the first entry of each row;
    entries: uint32, an offset plus a bin each.
    """

    features: Int64
    most_frequent: Int64
    offsets: Int64
    starts: Int64
    entries: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class BinnedRows:
    """The bins of all rows, twice: a histogram reads whole rows, a split reads one feature of many rows.

    by_feature: uint8 [features, rows]; dense: int64 [D], the features that by_row has, uint8 [rows, D or a
    few more, see `_whole_lines`]; sparse: the other features, if there are any.
    """

    by_feature: npt.NDArray[np.uint8]
    dense: Int64
    by_row: npt.NDArray[np.uint8]
    sparse: SparseBins | None

    @classmethod
    def of(
        cls, by_feature: npt.NDArray[np.uint8], codes: Int64, allocate: Allocator = allocate_in_memory
    ) -> "BinnedRows":
        """Arrange bins by feature. codes: int64 [features], the number of bins of each."""
        rows = by_feature.shape[1]
        step = max(1, rows // _SAMPLED_ROWS)
        counts = np.array([np.bincount(column[::step], minlength=MAX_CODES) for column in by_feature])
        most_frequent = counts.argmax(axis=1)
        is_sparse = counts.max(axis=1) >= SPARSE_SHARE * max(int(counts[0].sum()), 1)
        is_sparse &= is_sparse.sum() >= MIN_SPARSE_FEATURES
        is_sparse[0] &= not is_sparse.all()  # one at least is dense
        dense, sparse = np.flatnonzero(~is_sparse), np.flatnonzero(is_sparse)
        by_row = _whole_lines(rows, dense.size, allocate)
        transpose(by_feature, dense, by_row)
        if not sparse.size:
            return cls(by_feature, dense, by_row, None)
        offsets: Int64 = np.concatenate([[0], np.cumsum(codes[sparse])])
        starts = allocate((rows + 1,), np.dtype(np.int64))
        count_sparse(by_feature, sparse, most_frequent[sparse], starts)
        entries = allocate((max(int(starts[-1]), 1),), np.dtype(np.uint32))
        list_sparse(by_feature, sparse, most_frequent[sparse], offsets, starts, entries)
        return cls(
            by_feature, dense, by_row, SparseBins(sparse, most_frequent[sparse], offsets, starts, entries)
        )
