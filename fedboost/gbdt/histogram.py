"""Gradient histograms: integers of shape [bin, stat], features one after the other, stat = gradient, hessian.

Promises: a histogram is exact, so a sibling is its parent minus the other child, and the bins of every
feature sum to the same node total. Refuses: a sum whose features disagree, or with a negative hessian
(PeerError)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.binned import BinnedRows
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.kernels.levels import build_level, build_sparse_level
from fedboost.gbdt.threads import Threads

Rows = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
Features = tuple[int, ...]

STATS = 2
STRETCH = 1 << 20
"""Rows of the table that a pass reads."""
Total = tuple[int, int]
"""Gradient and hessian of all rows of a node."""
Widths = tuple[int, int]
"""Bits of a sum of gradients, with the sign, and of a sum of hessians, which has none."""


@dataclass(frozen=True)
class Layout:
    """Positions of each feature's bins in a histogram.

    offsets: uint32 [F], first bin; value_bins: int64 [F]; missing: bool [F], True if one bin more follows,
    for missing values; categorical: bool [F], True if the bins are categories; bins: all bins of all
    features; features: the numbers of these features, increasing."""

    offsets: npt.NDArray[np.uint32]
    value_bins: Int64
    missing: Flags
    categorical: Flags
    bins: int
    features: Features

    @classmethod
    def of(cls, cut_points: CutPoints) -> "Layout":
        """The layout of these cut points; they keep it, as their cached properties."""
        kept: Layout | None = vars(cut_points).get("_layout")
        if kept is not None:
            return kept
        value_bins = np.array([cuts.size + 1 for cuts in cut_points.cuts], np.int64)
        missing, categorical = np.array(cut_points.missing, np.bool_), np.zeros(value_bins.size, np.bool_)
        categorical[[*cut_points.categorical]] = True
        layout = cls._made(value_bins, missing, categorical, tuple(range(value_bins.size)))
        vars(cut_points)["_layout"] = layout
        return layout

    @classmethod
    def _made(cls, value_bins: Int64, missing: Flags, categorical: Flags, features: Features) -> "Layout":
        ends = np.cumsum(value_bins + missing)
        offsets = np.concatenate([[0], ends])[:-1].astype(np.uint32)
        return cls(offsets, value_bins, missing, categorical, int(ends[-1]) if ends.size else 0, features)

    def with_row_sets(self, count: int) -> "Layout":
        """The layout of these features, with so many behind them of two bins each, left and right."""
        apart = np.zeros(count, np.bool_)
        return self._made(
            np.concatenate([self.value_bins, np.full(count, 2, np.int64)]),
            np.concatenate([self.missing, apart]),
            np.concatenate([self.categorical, apart]),
            tuple(range(self.value_bins.size + count)),
        )

    def pick(self, histogram: Int64, features: tuple[int, ...]) -> Int64:
        """The bins of these features in a histogram; features: increasing."""
        if features == self.features:
            return histogram
        ends = (*self.offsets.tolist(), self.bins)
        indices = self._indices(features).tolist()
        slices = [histogram[STATS * ends[index] : STATS * ends[index + 1]] for index in indices]
        return np.concatenate([np.zeros(0, np.int64), *slices])

    def _indices(self, features: Features) -> Int64:
        """The positions of these features, which the layout has, among its own."""
        return np.searchsorted(self.features, features)

    @property
    def cells(self) -> int:
        """Integers of one node's histogram."""
        return STATS * self.bins


def build(
    binned: BinnedRows, rows: Rows, places: Int64, pairs: Int64, layout: Layout, limit: int, threads: Threads
) -> Int64:
    """Sums of each node, and a last pair of the sums over all its rows, of the gradients above 0 and of the
    hessians: int64 [nodes, layout.cells + STATS].

    places: int64 [nodes, 3], the begin and end of a node's rows in `rows`, and its output; pairs: int64
    [outputs, all rows], packed gradients and hessians (`kernels.quantise`). `limit` bounds each half of a
    pair; 2**31 / limit rows may be added before the halves are unpacked.
    """
    nodes, columns, sparse = len(places), binned.columns.sizes.size, binned.sparse
    out = np.zeros((nodes + threads.number - 1, layout.cells + STATS), np.int64)
    block = (1 << 31) // limit - 1

    def add(task: tuple[Int64, Int64, int, int]) -> None:
        pieces, targets, first, last = task
        node_rows = rows, pairs, places, pieces, targets
        build_level(binned.by_row, *node_rows, binned.columns, first, min(last, columns), block, out)
        if sparse is not None and last > columns:
            lists = sparse.starts, sparse.entries, sparse.offsets, sparse.most_frequent
            begins = layout.offsets[sparse.features].astype(np.int64)
            build_sparse_level(*lists, *node_rows, begins, block, out)

    for stretch in stretches(rows, places, binned.by_row.shape[0]):
        # Threads share the rows of a level, each with sums of its own for a node that it shares with the
        # thread before it; of few rows, they share the columns.
        pieces, shares = threads.cut(stretch, threads.number * layout.bins)
        targets = pieces[:, 0].copy()
        if threads.number == 1:
            add((pieces, targets, 0, columns + 1))
            continue
        for number, share in enumerate(shares[1:]):
            if targets[share.start] == pieces[share.start - 1, 0]:
                targets[share.start] = nodes + number
        together = -(-(columns + 1) // (threads.number if len(shares) == 1 else 1))
        firsts = range(0, columns + 1, together)
        threads.each(
            add,
            [(pieces[s], targets[s], first, first + together) for s in shares for first in firsts],
        )
        for number, share in enumerate(shares[1:]):
            if targets[share.start] >= nodes:
                out[pieces[share.start, 0]] += out[nodes + number]
                out[nodes + number] = 0
    return out[:nodes]


def stretches(rows: Rows, places: Int64, table_rows: int) -> Iterator[Int64]:
    """The places of nodes (`kernels.rows`), STRETCH rows of the table at a time: a table in a file is read
    once for all nodes."""
    if table_rows <= STRETCH:
        yield places
        return
    starts = places[:, 0].tolist()
    for limit in range(STRETCH, table_rows + STRETCH, STRETCH):
        part = places.copy()
        for number, (start, end) in enumerate(zip(starts, places[:, 1].tolist(), strict=True)):
            starts[number] = start + int(np.searchsorted(rows[start:end], min(limit, table_rows)))
            part[number, :2] = start, starts[number]
        yield part


def node_total(histogram: Int64, layout: Layout) -> Total:
    """Gradient and hessian of the node. PeerError unless every feature gives the same."""
    pairs = histogram.reshape(layout.bins, STATS)
    totals = np.add.reduceat(pairs, layout.offsets.astype(np.int64), axis=0)
    if (totals != totals[0]).any():
        feature = int(np.flatnonzero((totals != totals[0]).any(axis=1))[0])
        raise PeerError(f"the bins of feature {feature} do not sum to the same total as those of feature 0")
    if (pairs[:, 1] < 0).any():
        raise PeerError("a bin has a negative sum of hessians")
    return int(totals[0, 0]), int(totals[0, 1])
