"""Columns that are nearly always 0: only the other values are kept.

Promises: `column[first:last]` is what an array with all values would give; what is computed of several such
columns at once takes time for the values that are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.binned import Column
from fedboost.gbdt.kernels.bins import float_keys


@dataclass(frozen=True)
class SparseColumn:
    """The rows, increasing, that have these values; all others have 0. float32 when it is read."""

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
    """The values that the sparse ones of some columns keep, column after column.

    features: int64 [S], the columns that are sparse; zeros: int64 [S], rows that have 0 for want of a value;
    ends: int64 [S + 1], column i keeps the values from ends[i] to ends[i + 1]; rows, keys: of each value.
    """

    features: Int64
    zeros: Int64
    ends: Int64
    rows: Int64
    keys: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, columns: Sequence[Column]) -> "StoredValues":
        """The values of those that are sparse."""
        sparse = {index: column for index, column in enumerate(columns) if isinstance(column, SparseColumn)}
        sizes = np.array([column.values.size for column in sparse.values()], np.int64)
        every = np.array([column.size for column in sparse.values()], np.int64)
        rows = _joined([column.rows for column in sparse.values()], np.int64)
        values = _joined([column.values for column in sparse.values()], np.float32)
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(np.array([*sparse], np.int64), every - sizes, ends, rows, float_keys(values))

    def counts(self, units: Int64 | None) -> tuple[Int64, Int64 | None]:
        """What the zeros of each column count together, and what each kept value counts. units: of each row,
        int64 [rows]; None where each counts 1, and then so is the second."""
        if units is None:
            return self.zeros, None
        kept = units[self.rows]
        before = np.concatenate([[0], np.cumsum(kept)])
        return units.sum() - np.diff(before[self.ends]), kept


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays])
