"""Rows that belong together, and rows in blocks that do not take them apart.

Promises: a block has whole groups, the rows of each in the order of the table; the same groups whatever other
rows stand between theirs.
Refuses nothing: whoever reads tables says which rows make a group.
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
"""What picks rows from an array of all rows."""


@dataclass(frozen=True)
class Block:
    """Rows that are looked at together. starts: where each group begins among them, and the last one ends,
    int64 [groups + 1]; None where rows are of no groups."""

    rows: RowIndex
    starts: Int64 | None = None

    def only(self, chosen: Mask) -> "Block":
        """Those of these rows that are chosen, of a group all or none; bool [all rows]."""
        kept = chosen[self.rows]
        if kept.all():
            return self
        of = self.rows
        rows = np.arange(of.start, of.stop) if isinstance(of, slice) else of
        if self.starts is None:
            return Block(rows[kept])
        sizes = np.diff(self.starts)[kept[self.starts[:-1]]]
        return Block(rows[kept], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def blocks(rows: int, groups: Keys | None) -> list[Block]:
    """So many rows in blocks; groups: uint64 [rows], the same in each row of a group."""
    if groups is None:
        return [Block(one) for one in _blocks(rows)]
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
