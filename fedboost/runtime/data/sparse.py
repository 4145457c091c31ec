"""Tables of very many columns that are nearly always 0: only the other values are kept.

Promises: a value that is not written down is 0, not missing; a column is made dense some rows at a time, when
it is wanted; LIBSVM files and scipy's sparse matrices become the same table.
Refuses: a line that is no row of a LIBSVM file (ConfigError, with its number).
"""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.binned import SparseColumn

LABEL = "label"
"""The column of a LIBSVM file's first number; its features are f0, f1, ..., as XGBoost names them."""
QID = "qid"
"""The column of what stands behind qid: in a LIBSVM file, if it does."""
DENSE = 1 << 24
"""So many values are dense at a time: 64 MB."""
MAX_SPARSE_COLUMNS = 1 << 16
"""Of a LIBSVM file: as many features as terms may have."""


@dataclass(frozen=True)
class SparseTable:
    """Dense columns, and sparse ones, column after column: of column c the rows[starts[c]:starts[c + 1]],
    increasing, that have these values; all others have 0."""

    num_rows: int
    dense: "pa.Table"
    names: tuple[str, ...]
    starts: Int64
    rows: Int64
    values: Float32
    open_ended: bool = False
    """True if f0, f1, ... go on for ever, with nothing but 0 beyond the last that was written down."""

    def __post_init__(self) -> None:
        twice = {*self.dense.column_names} & {*self.names}
        if twice:
            raise ConfigError(f"there are two columns named {min(twice)!r}: rename one, or the matrix")
        if np.isinf(self.values).any():
            column = int(np.searchsorted(self.starts, np.flatnonzero(np.isinf(self.values))[0], "right")) - 1
            what = "has a value that is infinite or too large for a 32-bit float"
            raise ConfigError(f"column {self.names[column]!r} {what}")

    @property
    def column_names(self) -> list[str]:
        """The names of all columns."""
        return [*self.dense.column_names, *self.names]

    def column(self, name: str) -> "SparseColumn | None":
        """A sparse column, or None if there is none of that name."""
        index = self._places.get(name)
        if index is None and self.open_ended and re.fullmatch(r"f(0|[1-9][0-9]{0,4})", name):
            return SparseColumn(self.num_rows, self.rows[:0], self.values[:0])
        if index is None:
            return None
        part = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return SparseColumn(self.num_rows, self.rows[part], self.values[part])

    def take(self, rows: Int64) -> "SparseTable":
        """These rows, each at most once, in this order."""
        new_row = np.full(self.num_rows, -1, np.int64)
        new_row[rows] = np.arange(rows.size)
        stored = np.flatnonzero(new_row[self.rows] >= 0)
        starts, new_rows = np.searchsorted(stored, self.starts), new_row[self.rows[stored]]
        column = np.repeat(np.arange(len(self.names)), np.diff(starts))
        order = np.lexsort((new_rows, column))
        dense = self.dense.take(rows)
        return SparseTable(
            rows.size, dense, self.names, starts, new_rows[order], self.values[stored][order], self.open_ended
        )

    def parts(self) -> "Iterator[SparseTable]":
        """Yield the table in parts, each of as many rows as may be made dense."""
        step = max(1, DENSE // max(len(self.names), 1))
        for first in range(0, max(self.num_rows, 1), step):
            stored = np.flatnonzero((self.rows >= first) & (self.rows < first + step))
            starts = np.searchsorted(stored, self.starts)
            rows, values = self.rows[stored] - first, self.values[stored]
            size = min(step, self.num_rows - first)
            yield SparseTable(
                size, self.dense.slice(first, size), self.names, starts, rows, values, self.open_ended
            )

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @classmethod
    def from_matrices(cls, dense: "pa.Table", matrices: Mapping[str, Any]) -> "SparseTable":
        """Dense columns and scipy's sparse matrices: the columns of matrix `f` are called f0, f1, ..."""
        names, starts, rows, values, end = [], [np.zeros(1, np.int64)], [], [], 0
        size = dense.num_rows if dense.num_columns else int(next(iter(matrices.values())).shape[0])
        for prefix, matrix in matrices.items():
            if matrix.dtype.kind not in "biuf":
                raise ConfigError(f"{prefix!r} is a matrix of {matrix.dtype}, not of numbers")
            columns = matrix.tocsc(copy=True)
            columns.sum_duplicates()
            columns.sort_indices()
            if columns.shape[0] != size:
                raise ConfigError(f"{prefix!r} has {columns.shape[0]} rows, other columns {size}")
            names += [f"{prefix}{index}" for index in range(columns.shape[1])]
            starts.append(columns.indptr[1:].astype(np.int64) + end)
            rows.append(columns.indices.astype(np.int64))
            values.append(_float32(columns.data))
            end += columns.nnz
        entries = np.concatenate(starts), np.concatenate(rows), np.concatenate(values)
        return cls(size, dense, tuple(names), *entries)


def read_libsvm(file: "pa.NativeFile", path: str) -> SparseTable:
    """Lines `label qid:group index:value index:value ...`, indices from 0 or 1, qid in all lines or in none;
    a remark begins with #."""
    labels: list[float] = []
    places: list[int] = []
    values: list[float] = []
    counts: list[int] = []
    groups: list[int] = []
    with io.TextIOWrapper(io.BufferedReader(file)) as lines:
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                labels.append(float(words[0]))
                groups += [_index(word[4:]) for word in words[1:2] if word.startswith("qid:")]
                pairs = [word.partition(":")[::2] for word in words[1:] if not word.startswith("qid:")]
                places += [_index(index) for index, _ in pairs]
                values += [float(value) for _, value in pairs]
            except ValueError:
                what = "no line of a LIBSVM file: a label, then index:value after index:value"
                raise ConfigError(f"{path}: line {number} is {what}") from None
            counts.append(len(pairs))
    if not labels:
        raise ConfigError(f"{path}: has no rows")
    column_of_value, rows = np.array(places, np.int64), np.repeat(np.arange(len(labels)), counts)
    width = int(column_of_value.max(initial=-1)) + 1
    if column_of_value.min(initial=0) < 0 or width > MAX_SPARSE_COLUMNS:
        raise ConfigError(f"{path}: an index below 0, or above {MAX_SPARSE_COLUMNS - 1:,}")
    order = np.lexsort((rows, column_of_value))
    if (np.diff(column_of_value[order]) == 0)[np.diff(rows[order]) == 0].any():
        raise ConfigError(f"{path}: a row has two values of one index")
    starts = np.concatenate([[0], np.cumsum(np.bincount(column_of_value, minlength=width))]).astype(np.int64)
    by_column = _float32(np.array(values, np.float64))[order]
    names = tuple(f"f{index}" for index in range(width))
    if groups and len(groups) != len(labels):
        raise ConfigError(f"{path}: some lines have a qid behind the label, and others have none")
    dense, row_of_value = (
        pa.table({LABEL: labels, **({QID: groups} if groups else {})}),
        rows[order].astype(np.int64),
    )
    return SparseTable(len(labels), dense, names, starts, row_of_value, by_column, open_ended=True)


def _index(text: str) -> int:
    """Parse an index of a LIBSVM file; ValueError if it is none."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError(text)
    return int(text)


def _float32(values: npt.NDArray[Any]) -> Float32:
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused
        return values.astype(np.float32)
