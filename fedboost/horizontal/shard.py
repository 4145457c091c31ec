"""The rows of one party, in the form of the terms.

Promises: arrays of a fixed type, one number a row; the hash covers all that answers depend on.
Refuses nothing: the reader of tables checks them against the terms.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.binned import Allocator, Column, allocate_in_memory
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.sampling import Keys, Mask
from fedboost.horizontal.row_hash import Values, hash_rows, words_of

RowIds = Sequence[bytes]
"""The ids of rows, as they are compared."""
Ranges = Sequence[tuple[int, int]]
"""First row, and the row behind the last, of each stretch of rows."""
_MAX_VALUES = 1 << 22
"""Values of features that are read at a time."""


@dataclass(frozen=True)
class Shard:
    """Rows of a party in the form of the terms: a float32 column a feature (NaN = missing), label, weight;
    and the allocator of derived arrays. Labels that are intervals are float32 [2, N].

    keys: uint64, by which rows are sampled, where the terms sample any; validation: bool, the rows that no
    tree grows on, where the terms name such a column; base_margin: float32, the initial margins, 0 without;
    group: uint64, the key of each row's group, where the terms rank rows; ids: of each row, distinct, where
    rows are matched by them; subgroups: float32, the level of each column of subgroups; ranges: the places of
    the rows in the whole table, where these are a share of it.
    """

    columns: tuple[Column, ...]
    label: Float32
    weight: Float32
    allocate: Allocator = allocate_in_memory
    keys: Keys | None = None
    validation: Mask | None = None
    base_margin: Float32 | None = None
    group: Keys | None = None
    ids: RowIds | None = None
    subgroups: tuple[Float32, ...] = ()
    ranges: Ranges | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.weight.size)

    def without_columns(self) -> "Shard":
        """The same rows once their values are binned."""
        return replace(self, columns=())

    def pick(self, rows: Int64) -> "Shard":
        """These rows, in this order, without their ids; a row -1 has missing values in all columns, which is
        for rows without labels alone."""
        beside: dict[str, Any] = {
            name: None if values is None else values[rows]
            for name, values in vars(self).items()
            if name in ("keys", "validation", "base_margin", "group")
        }
        beside["subgroups"] = tuple(codes[rows] for codes in self.subgroups)
        columns = tuple(column[0 : column.size][rows] for column in self.columns)
        if (unknown := rows < 0).any():
            for values in columns:
                values[unknown] = np.nan
        label = self.label[..., rows] if self.label.size else self.label
        return replace(self, columns=columns, label=label, weight=self.weight[rows], ids=None, **beside)

    def first(self, rows: int) -> "Shard":
        """The rows before this one."""
        return self if rows == self.rows else self.pick(np.arange(rows))

    def hashed(self, key: bytes, columns: Sequence[Column], software: str = "") -> bytes:
        """Keyed hash of the rows, with these columns, and of the versions of the software: 32 bytes."""
        places = places_of(self.ranges or ((0, self.rows),))
        return hash_rows(key, software, self._named(columns), places)

    def _named(self, columns: Sequence[Column]) -> Iterator[tuple[str, Values]]:
        """All that there is of the rows."""
        for name in ("weight", "keys", "validation", "base_margin", "group"):
            if (values := getattr(self, name)) is not None:
                yield name, values
        if self.ids is not None:
            yield "ids", words_of(self.ids)
        if self.label.size:
            yield from zip(("label", "upper bound"), np.atleast_2d(self.label), strict=False)
        yield from ((f"subgroups {number}", codes) for number, codes in enumerate(self.subgroups))
        yield from ((f"feature {number}", column) for number, column in enumerate(columns))


def places_of(ranges: Ranges) -> Keys:
    """The places of the rows in these stretches: uint64 [rows]."""
    return np.concatenate([np.arange(first, last, dtype=np.uint64) for first, last in ranges])


def continue_margins(
    margin: Float64, base_margin: Float64 | Float32 | None, earlier: Booster, columns: Sequence[Column]
) -> None:
    """Write the margins of an earlier model that starts from the base margins: float64 [outputs, rows]."""
    step = _MAX_VALUES // len(columns) + 1
    for start in range(0, margin.shape[1], step):
        rows = slice(start, start + step)
        features = np.column_stack([column[rows] for column in columns])
        margin[:, rows] = earlier.margins(features, None if base_margin is None else base_margin[rows])
