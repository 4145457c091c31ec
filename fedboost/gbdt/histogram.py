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
from fedboost.gbdt.binned import BinnedRows
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.kernels.histogram import (
    SCRATCH,
    TOGETHER,
    bits_of_pairs,
    build_histogram,
    build_rare,
    join_pairs,
    part_pairs,
)
from fedboost.gbdt.threads import Threads

Rows = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
Features = tuple[int, ...]

STATS = 2
STRETCH = 1 << 20
"""Rows of a stretch."""
Total = tuple[int, int]
"""Gradient and hessian of all rows of a node."""
Widths = tuple[int, int]
"""Bits of a sum of gradients, with the sign, and of a sum of hessians, which has none."""


@dataclass(frozen=True)
class Layout:
    """Where each feature's bins stand in a histogram.

    offsets: uint32 [F], first bin; value_bins: int64 [F]; missing: bool [F], whether one bin more follows,
    for missing values; categorical: bool [F], whether the bins are levels; bins: all bins of all features;
    features: the numbers of these features, increasing.
    """

    offsets: npt.NDArray[np.uint32]
    value_bins: Int64
    missing: Flags
    categorical: Flags
    bins: int
    features: Features

    @classmethod
    def of(cls, cut_points: CutPoints) -> "Layout":
        """The layout these cut points give."""
        value_bins = np.array([cuts.size + 1 for cuts in cut_points.cuts], np.int64)
        features = np.arange(value_bins.size)
        kinds = np.array(cut_points.missing, np.bool_), np.isin(features, cut_points.categorical)
        return cls._made(value_bins, *kinds, tuple(features.tolist()))

    @classmethod
    def _made(cls, value_bins: Int64, missing: Flags, categorical: Flags, features: Features) -> "Layout":
        ends = np.cumsum(value_bins + missing)
        offsets = np.concatenate([[0], ends])[:-1].astype(np.uint32)
        return cls(offsets, value_bins, missing, categorical, int(ends[-1]) if ends.size else 0, features)

    def only(self, features: tuple[int, ...]) -> "Layout":
        """The layout of some of these features, increasing."""
        if features == self.features:
            return self
        places = [self.features.index(feature) for feature in features]
        kinds = self.missing[places], self.categorical[places]
        return self._made(self.value_bins[places], *kinds, features)

    def among(self, features: tuple[int, ...]) -> "Layout":
        """Some of these features, increasing, where they stand in a histogram of them all."""
        if features == self.features:
            return self
        places = [self.features.index(feature) for feature in features]
        return Layout(
            self.offsets[places],
            self.value_bins[places],
            self.missing[places],
            self.categorical[places],
            self.bins,
            features,
        )

    def pick(self, histogram: Int64, features: tuple[int, ...]) -> Int64:
        """The part of a histogram that is of some of these features, increasing."""
        if features == self.features:
            return histogram
        ends = (*self.offsets.tolist(), self.bins)
        places = [self.features.index(feature) for feature in features]
        slices = [histogram[STATS * ends[place] : STATS * ends[place + 1]] for place in places]
        return np.concatenate([np.zeros(0, np.int64), *slices])

    @property
    def cells(self) -> int:
        """Integers of one node's histogram."""
        return STATS * self.bins


def build(
    binned: BinnedRows,
    nodes: Sequence[Rows],
    pairs: Sequence[Int64],
    layout: Layout,
    limit: int,
    out: Int64,
    threads: Threads,
) -> None:
    """What `NodeSums.read` reads of each node: out, int64 [nodes, layout.cells + STATS], all zero before.

    pairs: for each node the gradients and hessians of all rows, packed (`kernels.quantise`).
    `limit` bounds each half of a pair; 2**31 / limit rows may be added before the halves are taken apart.
    """
    block, features = (1 << 31) // limit - 1, binned.dense.size
    begins = layout.offsets.astype(np.int64)
    ends = begins + layout.value_bins + layout.missing
    dense = begins[binned.dense], ends[binned.dense]

    def add(piece: tuple[Rows, Int64, Int64, int, int]) -> None:
        rows, of_all, cells, first, together = piece
        if first < features:
            last, scratch = min(first + together, features), np.zeros(SCRATCH, np.int64)
            build_histogram(binned.by_row, rows, of_all, *dense, first, last, block, scratch, cells)
        elif rare is not None:
            at = begins[rare.features]
            build_rare(rare.starts, rare.entries, rows, of_all, rare.places, rare.common, at, block, cells)

    rare = binned.rare
    for parts in passes(nodes, binned.by_row.shape[0]):
        pieces, extra = [], []
        for rows, of_all, cells in zip(parts, pairs, out, strict=True):
            # Threads share the rows of a large node, whose sums they add up; else its features.
            shares = threads.shares(rows, layout.bins)
            together = min(TOGETHER, features if len(shares) > 1 else -(-features // threads.number))
            for number, share in enumerate(shares):
                into = np.zeros_like(cells) if number else cells
                extra += [(cells, into)] if number else []
                firsts = [*range(0, features, together), *([features] if rare is not None else [])]
                pieces += [(share, of_all, into, first, together) for first in firsts]
        threads.each(add, pieces)
        for cells, more in extra:
            cells += more


def passes(nodes: Sequence[Rows], rows: int) -> Iterator[list[Rows]]:
    """The rows of nodes, a stretch of the table at a time: a table in a file is read once for them all."""
    if rows <= STRETCH:
        yield list(nodes)
        return
    for start in range(0, rows, STRETCH):
        ends = np.array([start, min(start + STRETCH, rows)], np.uint32)
        yield [node[slice(*np.searchsorted(node, ends))] for node in nodes]


@dataclass(frozen=True)
class NodeSums:
    """What is known of a node: the histogram, int64 [layout.cells], of the features of the layout; the sums
    of gradients and hessians over all its rows; and the sum of those gradients that are above 0, which bounds
    what any bin of its children can hold."""

    layout: Layout
    histogram: Int64
    total: Total
    positive: int

    @classmethod
    def read(cls, cells: Int64, layout: Layout) -> "NodeSums":
        """From a node's part of an opened sum: the bins, and a last pair of the sums over all rows, of the
        gradients above 0 and of the hessians. PeerError if they cannot be."""
        total = node_total(cells[:-STATS], layout)
        positive, hessian = (int(cell) for cell in cells[-STATS:])
        if hessian != total[1] or positive < max(total[0], 0):
            raise PeerError("the sums over a node's rows are not those of its bins")
        return cls(layout, cells[:-STATS], total, positive)

    def sibling(self, child: "NodeSums") -> "NodeSums":
        """Of the other child, for features known of both. PeerError if the gradients above 0 cannot be."""
        total = self.total[0] - child.total[0], self.total[1] - child.total[1]
        positive = self.positive - child.positive
        if positive < max(total[0], 0):
            raise PeerError("the gradients above 0 of a node's rows are more than its parent has")
        both = self.layout.features
        if child.layout is not self.layout:
            both = tuple(sorted({*self.layout.features} & {*child.layout.features}))
        mine, its = self.layout.pick(self.histogram, both), child.layout.pick(child.histogram, both)
        return NodeSums(self.layout.only(both), mine - its, total, positive)

    def joined(self, other: "NodeSums", layout: Layout) -> "NodeSums":
        """The same node with the features of both, all of the layout. PeerError if they are of two nodes."""
        if (other.total, other.positive) != (self.total, self.positive):
            raise PeerError("the sums of a node are not its parent's less its sibling's")
        knows = set(self.layout.features)
        parts = [(self if f in knows else other).of_feature(f) for f in layout.features]
        return NodeSums(layout, np.concatenate(parts), self.total, self.positive)

    def of_feature(self, feature: int) -> Int64:
        """The bins of one feature."""
        return self.layout.pick(self.histogram, (feature,))

    def widths(self, child: Total, sibling: Total) -> Widths:
        """Bits for the sums of a child's bins, when only the sums over all rows of both children are known.

        All hessians are at least 0, so no bin's sum is beyond the child's. The gradients above 0 sum to at
        most the parent's, less what the sibling has of them for sure; those below 0 to that less the child's
        total; and no bin's sum is beyond the larger of the two.
        """
        positive = self.positive - max(sibling[0], 0)
        if min(positive, positive - child[0]) < 0:
            raise PeerError("the gradients above 0 of a node's rows are fewer than its children have")
        return max(positive, positive - child[0]).bit_length() + 1, max(child[1].bit_length(), 1)


def join(sums: Int64, bits: int, out: Int64) -> None:
    """Pairs of sums (g, h, g, h ...) as cells: g * 2**bits + h, or as they are if there are as many.

    Such cells add like the pairs, as long as every h of the sum is at least 0 and below 2**bits.
    """
    if out.size == sums.size:
        out[:] = sums
    else:
        join_pairs(sums, bits, out)


def part(cells: Int64, bits: int, out: Int64) -> None:
    """The pairs of sums that `join` made cells of."""
    if out.size == cells.size:
        out[:] = cells
    else:
        part_pairs(cells, bits, out)


def fit(sums: Int64, widths: Widths) -> bool:
    """Whether cells of these widths hold each of the pairs of sums."""
    gradient, hessian = bits_of_pairs(sums)
    return bool(gradient < 1 << (widths[0] - 1) and 0 <= hessian < 1 << widths[1])


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
