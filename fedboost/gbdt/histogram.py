"""Gradient histograms: integers of shape [bin, stat], features one after the other, stat = gradient, hessian.

Promises: a histogram is exact, so a sibling is its parent minus the child that was asked for, and every
feature's bins sum to the same node total; `check` holds a sum from outside to that.
Refuses: a sum whose features disagree, or with a negative hessian (PeerError).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt import kernels
from fedboost.gbdt.bins import BinnedRows, CutPoints
from fedboost.gbdt.threads import Threads

Rows = npt.NDArray[np.uint32]

STATS = 2
STRETCH = 1 << 20
"""Rows of a stretch."""
Total = tuple[int, int]
"""Gradient and hessian of all rows of a node."""


@dataclass(frozen=True)
class Layout:
    """Where each feature's bins stand in a histogram.

    offsets: uint32 [F], first bin; value_bins: int64 [F]; missing: bool [F], whether one bin more follows,
    for missing values; bins: all bins of all features.
    """

    offsets: npt.NDArray[np.uint32]
    value_bins: Int64
    missing: npt.NDArray[np.bool_]
    bins: int

    @classmethod
    def of(cls, cut_points: CutPoints) -> "Layout":
        """The layout these cut points give."""
        value_bins = np.array([cuts.size + 1 for cuts in cut_points.cuts], np.int64)
        missing = np.array(cut_points.missing, np.bool_)
        ends = np.cumsum(value_bins + missing)
        offsets = np.concatenate([[0], ends[:-1]]).astype(np.uint32)
        return cls(offsets, value_bins, missing, int(ends[-1]))

    @property
    def cells(self) -> int:
        """Integers of one node's histogram."""
        return STATS * self.bins


def build(
    binned: BinnedRows, nodes: Sequence[Rows], pairs: Int64, layout: Layout, limit: int, threads: Threads
) -> Int64:
    """The histograms of nodes, given the rows of each and their packed pairs (`kernels.quantise`).

    `limit` bounds each half of a pair; 2**31 / limit rows may be added before the halves are taken apart.
    Returns int64 [nodes, layout.cells].
    """
    block, features = (1 << 31) // limit - 1, layout.offsets.size
    together = min(kernels.TOGETHER, -(-features // threads.number))
    out = np.zeros((len(nodes), layout.cells), np.int64)

    def add(piece: tuple[Rows, Int64, int]) -> None:
        rows, cells, first = piece
        last, scratch = min(first + together, features), np.zeros(kernels.SCRATCH, np.int64)
        kernels.build_histogram(
            binned.by_row, rows, pairs, layout.offsets, first, last, block, scratch, cells
        )

    firsts = range(0, features, together)
    for parts in passes(nodes, pairs.size):
        pieces = zip(parts, out, strict=True)
        threads.each(add, [(rows, cells, first) for rows, cells in pieces for first in firsts])
    return out


def passes(nodes: Sequence[Rows], rows: int) -> Iterator[list[Rows]]:
    """The rows of nodes, a stretch of the table at a time: a table in a file is read once for them all."""
    for start in range(0, rows, STRETCH):
        ends = np.array([start, min(start + STRETCH, rows)], np.uint32)
        yield [node[slice(*np.searchsorted(node, ends))] for node in nodes]


def node_total(histogram: Int64, layout: Layout) -> Total:
    """Gradient and hessian of the node, after checking that every feature gives the same."""
    pairs = histogram.reshape(layout.bins, STATS)
    totals = np.add.reduceat(pairs, layout.offsets.astype(np.int64), axis=0)
    if (totals != totals[0]).any():
        feature = int(np.flatnonzero((totals != totals[0]).any(axis=1))[0])
        raise PeerError(f"the bins of feature {feature} do not sum to the same total as those of feature 0")
    if (pairs[:, 1] < 0).any():
        raise PeerError("a bin has a negative sum of hessians")
    return int(totals[0, 0]), int(totals[0, 1])
