"""Binned rows, stored by feature, by row, and, for sparse features, as lists.

Each category of a categorical feature has its own bin. Missing values have their own bin, which is the last.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.kernels import bins as kernels
from fedboost.gbdt.kernels.histogram import WORD, Columns
from fedboost.gbdt.threads import blocks

# ---- Joint codes: features that share a column of bytes, with a code for each combination of bins -------
# Each combination that occurs in this party's rows has its own code, so the sums by bin follow from the sums
# by code. Which features share a column depends only on these rows, and never leaves the party.


Codes = npt.NDArray[np.uint8]

MAX_TRIES = 32
"""Maximum number of existing columns that are tried when a feature is assigned to a column."""
MAX_READS = 2
"""Maximum number of codes that failed joins may read, as a multiple of the total number of codes. A join
fails if it turns out to need more codes than fit into a byte."""
_ROWS_LOOKED_AT = 1 << 13
"""Approximate number of rows in the sample on which a join is tried before it is tried on all rows."""


@dataclass(frozen=True)
class JointColumn:
    """Features that share a column of bytes.

    codes: uint8 [rows]; bins: uint8 [codes, features], the bins that each code stands for (in a column with a
    single feature, each code is a bin); sample: uint8, the codes of some rows; size: number of distinct codes
    in the sample."""

    features: tuple[int, ...]
    codes: Codes
    bins: Codes
    sample: Codes
    size: int


class _Plan:
    """Assignment of features to columns. Features must be added in decreasing order of their number of codes.
    Each feature joins the first column into which it fits."""

    def __init__(self, reads: int, allocate: Callable[[], Codes]) -> None:
        """reads: maximum number of codes that failed joins may read; allocate: function that returns an array
        for the codes of a column."""
        self.columns: list[JointColumn] = []
        self._open: list[int] = []  # indices of the columns with codes left, in order
        self._reads = reads
        self._allocate = allocate
        self._spare: Codes | None = None

    def add(self, feature: JointColumn) -> None:
        for number in islice(self._possible(feature), MAX_TRIES):
            if self._reads < 0:
                break
            column = self.columns[number]
            joined = self._join(column, feature)
            if joined is not None:
                self.columns[number] = joined
                self._spare = column.codes if len(column.features) > 1 else None
                if joined.size == kernels.MAX_CODES > column.size:
                    self._open.remove(number)
                return
        if feature.size < kernels.MAX_CODES:
            self._open.append(len(self.columns))
        self.columns.append(feature)

    def _possible(self, feature: JointColumn) -> Iterable[int]:
        """Return the indices of the columns that a feature may join. Only a constant feature can join a full
        column, i.e. one that uses all codes. A feature that itself uses all codes joins no column: it is
        added early, when all existing columns are full."""
        if feature.size <= 1:
            return range(len(self.columns))
        return self._open if feature.size < kernels.MAX_CODES else ()

    def _join(self, column: JointColumn, feature: JointColumn) -> JointColumn | None:
        sample, parts = np.empty_like(column.sample), np.empty((kernels.MAX_CODES, 2), np.uint8)
        size = kernels.join_codes(column.sample, feature.sample, sample, parts)
        if size < 0:
            return None
        codes = self._allocate() if self._spare is None else self._spare
        self._spare = codes
        count = kernels.join_codes(column.codes, feature.codes, codes, parts)
        if count < 0:
            self._reads += int(count)
            return None
        code, joined = parts[:count].T
        bins = np.hstack([column.bins[code], feature.bins[joined]])
        return JointColumn(column.features + feature.features, codes, bins, sample, int(size))


def plan(by_feature: Codes, features: Int64, allocate: Callable[[], Codes]) -> list[JointColumn]:
    """Combine features into shared columns, starting with those that have the most bins.

    Args:
        by_feature: uint8 [F, rows], bins of all features.
        features: int64, the features to combine.
        allocate: function that returns an array for the codes of a column.

    Returns:
        the columns: first those with a single feature, then the shared ones, both in the order of features.
    """
    rows = by_feature.shape[1]
    sample = by_feature[:, :: max(1, rows // _ROWS_LOOKED_AT)][features]
    bins = np.arange(kernels.MAX_CODES, dtype=np.uint8).reshape(-1, 1)
    sizes = kernels.sample_bins(sample, 1)[:, 2].tolist()
    alone = [
        JointColumn((feature,), by_feature[feature], bins, codes, size)
        for feature, codes, size in zip(features.tolist(), sample, sizes, strict=True)
    ]
    joined = _Plan(MAX_READS * features.size * rows, allocate)
    for column in sorted(alone, key=lambda column: -column.size):
        joined.add(column)
    return sorted(joined.columns, key=lambda column: (len(column.features) > 1, column.features))


# ---- Rows as bin codes: by feature, by row, and sparse bins as lists ------------------------------------


Allocator = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]
"""Allocates an array of a shape and dtype, for arrays with an entry for each row or value."""
CACHE_LINE = 64
SPARSE_SHARE = 0.9
"""Minimum share of rows in a feature's most frequent bin for the feature to be stored as sparse."""
MIN_SPARSE_FEATURES = 40
"""Minimum number of sparse features for which sparse storage pays off. Finding the entries of a row takes as
long as reading about twenty dense bins, and reading an entry takes as long as reading four."""
MAX_FREQUENT_SHARE = 0.1
"""Mean share of rows in a feature's most frequent bin from which on histograms are faster by row."""
_SAMPLED_ROWS = 1 << 16
"""Approximate number of rows that are examined to decide whether a feature is sparse."""


class Column(Protocol):
    """Values of a feature: an array, or an object that reads them on demand."""

    @property
    def size(self) -> int:
        """Number of rows."""

    def __getitem__(self, rows: slice, /) -> Float32:
        """Return the values of a range of rows, float32."""


def allocate_in_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.empty(shape, dtype)


def _whole_lines(rows: int, columns: int, allocate: Allocator) -> Codes:
    """Allocate a table of codes, uint8 [rows, columns or more]. Rows are padded to one word, or so that they
    cross as few cache lines as possible. Longer rows are not padded if padding would require over a third
    more memory."""
    width = (
        1 << (columns - 1).bit_length() if columns <= CACHE_LINE else -(-columns // CACHE_LINE) * CACHE_LINE
    )
    width = width if 3 * width <= 4 * columns or width == WORD else columns
    table = allocate((rows * width + CACHE_LINE,), np.dtype(np.uint8))
    start = -table.ctypes.data % CACHE_LINE
    return table[start : start + rows * width].reshape(rows, width)


@dataclass(frozen=True)
class SparseBins:
    """Sparse storage of features for which nearly all rows are in one bin: each row lists only the features
    for which it is in a different bin.

    features: int64 [R]; most_frequent: int64 [R], the bin that is not listed; offsets: int64 [R + 1], the
    number of each feature's first bin, where the bins of all these features are numbered consecutively;
    starts: int64 [rows + 1], the first entry of each row; entries: uint32, each a feature's offset plus a
    bin."""

    features: Int64
    most_frequent: Int64
    offsets: Int64
    starts: Int64
    entries: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class BinnedRows:
    """Bins of all rows by feature, because a split reads one feature of many rows, and also by row if
    histograms are faster by row.

    by_feature: uint8 [features, rows]; by_row: uint8 [rows, C or slightly more (`_whole_lines`)], codes of
    the columns, or [rows, 0]; dense: int64 [D], the features in these columns, column by column; columns: the
    bins that codes stand for; sparse: bins of the other features, None if there are none."""

    by_feature: Codes
    by_row: Codes
    dense: Int64
    columns: Columns
    sparse: SparseBins | None

    @classmethod
    def of(
        cls, by_feature: Codes, codes: Int64, allocate: Allocator = allocate_in_memory, by_row: bool = True
    ) -> "BinnedRows":
        """Arrange binned rows for histograms. by_feature: uint8 [features, rows], bins; codes: int64
        [features], number of bins of each feature; by_row: False if leaves have many rows."""
        rows = by_feature.shape[1]
        step = max(1, rows // _SAMPLED_ROWS)
        looked_at = max(len(range(0, rows, step)), 1)
        most_frequent, most, _ = kernels.sample_bins(by_feature, step).T
        is_sparse = most >= SPARSE_SHARE * looked_at
        is_sparse &= is_sparse.sum() >= MIN_SPARSE_FEATURES
        is_sparse[:1] &= not is_sparse.all()  # at least one is dense
        joint = plan(by_feature, np.flatnonzero(~is_sparse), lambda: allocate((rows,), np.dtype(np.uint8)))
        dense = np.array([feature for column in joint for feature in column.features], np.int64)
        sparse = _list(by_feature, np.flatnonzero(is_sparse), most_frequent, codes, allocate)
        # By column, additions to the same sum follow each other closely, and wait for each other.
        by_row |= len(joint) < dense.size or most[dense].mean() >= MAX_FREQUENT_SHARE * looked_at
        table = _by_row(by_feature, joint, allocate) if by_row else np.empty((rows, 0), np.uint8)
        return cls(by_feature, table, dense, _columns(joint, dense, codes), sparse)


def _by_row(by_feature: Codes, joint: Sequence[JointColumn], allocate: Allocator) -> Codes:
    """Arrange the codes of columns by row. Columns of a single feature come first."""
    alone = np.array([column.features[0] for column in joint if len(column.features) == 1], np.int64)
    by_row = _whole_lines(by_feature.shape[1], len(joint), allocate)
    kernels.transpose(by_feature, alone, by_row)
    for rows in blocks(len(by_row)):
        for number in range(alone.size, len(joint)):
            by_row[rows, number] = joint[number].codes[rows]
    return by_row


def _columns(joint: Sequence[JointColumn], dense: Int64, codes: Int64) -> Columns:
    shared = [column for column in joint if len(column.features) > 1]
    bins = np.zeros((kernels.MAX_CODES, sum(len(column.features) for column in shared)), np.uint8)
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
    if not sparse.size:
        return None
    usual = most_frequent[sparse]
    offsets: Int64 = np.concatenate([[0], np.cumsum(codes[sparse])])
    starts = allocate((by_feature.shape[1] + 1,), np.dtype(np.int64))
    kernels.count_sparse(by_feature, sparse, usual, starts)
    entries = allocate((max(int(starts[-1]), 1),), np.dtype(np.uint32))
    kernels.list_sparse(by_feature, sparse, usual, offsets, starts, entries)
    return SparseBins(sparse, usual, offsets, starts, entries)


# ---- Columns that are nearly always 0: only the other values are stored ---------------------------------
# `column[first:last]` returns the same values as an array that stores all values. Computations on several
# such columns at once take time only for the stored values.


@dataclass(frozen=True)
class SparseColumn:
    """A column that is 0 in nearly all rows and stores only the other values. Indexing returns all values, as
    float32.

    size: number of rows; rows: int64, rows with a stored value, increasing; values: float32, their values."""

    size: int
    rows: Int64
    values: Float32

    def __getitem__(self, part: slice) -> Float32:
        first, last, _ = part.indices(self.size)
        out = np.zeros(last - first, np.float32)
        low, high = np.searchsorted(self.rows, [first, last])
        out[self.rows[low:high] - first] = self.values[low:high]
        return out


@dataclass(frozen=True)
class StoredValues:
    """The stored values of all sparse columns, column after column.

    features: int64 [S], indices of the sparse columns; zeros: int64 [S], number of rows without a stored
    value; ends: int64 [S + 1], column i stores the values ends[i] to ends[i + 1] - 1; rows: int64, row number
    of each value; keys: uint32, sort key of each value."""

    features: Int64
    zeros: Int64
    ends: Int64
    rows: Int64
    keys: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, columns: Sequence[Column]) -> "StoredValues":
        sparse = {index: column for index, column in enumerate(columns) if isinstance(column, SparseColumn)}
        sizes = np.array([column.values.size for column in sparse.values()], np.int64)
        every = np.array([column.size for column in sparse.values()], np.int64)
        rows = _joined([column.rows for column in sparse.values()], np.int64)
        values = _joined([column.values for column in sparse.values()], np.float32)
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(np.array([*sparse], np.int64), every - sizes, ends, rows, kernels.float_keys(values))

    def counts(self, units: Int64 | None) -> tuple[Int64, Int64 | None]:
        """Return the total count of each column's zeros, int64 [S], and the count of each stored value.

        units: int64 [rows], the count of each row. If it is None, every row counts 1, and the second result
        is None."""
        if units is None:
            return self.zeros, None
        kept = units[self.rows]
        before = np.concatenate([[0], np.cumsum(kept)])
        return units.sum() - np.diff(before[self.ends]), kept


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays])
