"""Rows as bin codes: by feature, by row, and sparse bins as lists.

Promises: each category of a categorical feature is a bin; missing values have a bin of their own, the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.joint_codes import Codes, JointColumn, plan
from fedboost.gbdt.kernels.bins import MAX_CODES, count_sparse, list_sparse, sample_bins, transpose
from fedboost.gbdt.kernels.histogram import WORD, Columns
from fedboost.gbdt.threads import blocks

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


def _whole_lines(rows: int, columns: int, allocate: Allocator) -> Codes:
    """Allocate a table whose rows are one word, or cross no more cache lines than needed, if a third more
    memory suffices."""
    width = (
        1 << (columns - 1).bit_length() if columns <= CACHE_LINE else -(-columns // CACHE_LINE) * CACHE_LINE
    )
    width = width if 3 * width <= 4 * columns or width == WORD else columns
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

    by_feature: uint8 [features, rows]; by_row: uint8 [rows, C or a few more, see `_whole_lines`], the codes
    of the columns; dense: int64 [D], the features of these, column by column; sparse: the other features, if
    there are any.
    """

    by_feature: Codes
    by_row: Codes
    dense: Int64
    columns: Columns
    sparse: SparseBins | None

    @classmethod
    def of(cls, by_feature: Codes, codes: Int64, allocate: Allocator = allocate_in_memory) -> "BinnedRows":
        """Arrange bins by feature. codes: int64 [features], the number of bins of each."""
        rows = by_feature.shape[1]
        step = max(1, rows // _SAMPLED_ROWS)
        most_frequent, most, _ = sample_bins(by_feature, step).T
        is_sparse = most >= SPARSE_SHARE * max(len(range(0, rows, step)), 1)
        is_sparse &= is_sparse.sum() >= MIN_SPARSE_FEATURES
        is_sparse[:1] &= not is_sparse.all()  # one at least is dense
        joint = plan(by_feature, np.flatnonzero(~is_sparse), lambda: allocate((rows,), np.dtype(np.uint8)))
        dense = np.array([feature for column in joint for feature in column.features], np.int64)
        sparse = _list(by_feature, np.flatnonzero(is_sparse), most_frequent, codes, allocate)
        return cls(
            by_feature, _by_row(by_feature, joint, allocate), dense, _columns(joint, dense, codes), sparse
        )


def _by_row(by_feature: Codes, joint: Sequence[JointColumn], allocate: Allocator) -> Codes:
    """Arrange the codes of columns by row: those of one feature come first."""
    alone = np.array([column.features[0] for column in joint if len(column.features) == 1], np.int64)
    by_row = _whole_lines(by_feature.shape[1], len(joint), allocate)
    transpose(by_feature, alone, by_row)
    for rows in blocks(len(by_row)):
        for number in range(alone.size, len(joint)):
            by_row[rows, number] = joint[number].codes[rows]
    return by_row


def _columns(joint: Sequence[JointColumn], dense: Int64, codes: Int64) -> Columns:
    """The columns in the form of the kernels."""
    shared = [column for column in joint if len(column.features) > 1]
    bins = np.zeros((MAX_CODES, sum(len(column.features) for column in shared)), np.uint8)
    ends = np.cumsum([0, *(len(column.features) for column in joint)])
    alone = len(joint) - len(shared)
    for column, end in zip(shared, ends[alone + 1 :] - alone, strict=True):
        bins[: len(column.bins), end - len(column.features) : end] = column.bins
    sizes = [*codes[dense[:alone]], *(len(column.bins) for column in shared)]
    begins = np.cumsum(codes) - codes
    return Columns(np.array(sizes, np.int64), ends, begins[dense], bins)


def _list(
    by_feature: Codes, sparse: Int64, most_frequent: Int64, codes: Int64, allocate: Allocator
) -> SparseBins | None:
    """List the bins of sparse features, if there are any."""
    if not sparse.size:
        return None
    usual = most_frequent[sparse]
    offsets: Int64 = np.concatenate([[0], np.cumsum(codes[sparse])])
    starts = allocate((by_feature.shape[1] + 1,), np.dtype(np.int64))
    count_sparse(by_feature, sparse, usual, starts)
    entries = allocate((max(int(starts[-1]), 1),), np.dtype(np.uint32))
    list_sparse(by_feature, sparse, usual, offsets, starts, entries)
    return SparseBins(sparse, usual, offsets, starts, entries)
