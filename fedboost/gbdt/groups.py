"""Groups of rows, and blocks of rows that do not split groups.

Promises: a block has whole groups, the rows of each in the order of the table, also where rows of other
groups are between them.
Refuses nothing: the reader of the table gives the group of each row.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Int64
from fedboost.gbdt.sampling import Keys
from fedboost.gbdt.threads import BLOCK
from fedboost.gbdt.threads import blocks as _blocks

Mask = npt.NDArray[np.bool_]
RowIndex = slice | npt.NDArray[Any]
"""An index of rows into an array of all rows."""


@dataclass(frozen=True)
class Block:
    """Rows that are processed together. starts: the first row of each group, and the end of the last one,
    int64 [groups + 1]; None where rows have no groups."""

    rows: RowIndex
    starts: Int64 | None = None

    def only(self, chosen: Mask) -> "Block":
        """The chosen rows of the block, whole groups. chosen: bool [all rows]."""
        kept = chosen[self.rows]
        if kept.all():
            return self
        rows = self.rows
        rows = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        if self.starts is None:
            return Block(rows[kept])
        sizes = np.diff(self.starts)[kept[self.starts[:-1]]]
        return Block(rows[kept], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def blocks(rows: int, groups: Keys | None) -> list[Block]:
    """All rows in blocks. groups: uint64 [rows], equal in the rows of a group."""
    if groups is None:
        return [Block(rows_of_block) for rows_of_block in _blocks(rows)]
    _, begins, group = np.unique(groups, return_index=True, return_inverse=True)
    first_row = begins[group]  # groups in the order of these: rows that lie together stay together
    order = np.argsort(first_row, kind="stable")
    starts = np.append(np.flatnonzero(np.diff(first_row[order], prepend=-1)), rows)
    ends = np.flatnonzero(np.diff(starts[:-1] // BLOCK)) + 1  # groups before which a block begins
    edges = [0, *ends.tolist(), starts.size - 1]
    return [
        Block(order[starts[low] : starts[high]], starts[low : high + 1] - starts[low])
        for low, high in pairwise(edges)
    ]
