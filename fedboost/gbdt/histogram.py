"""Gradient histograms: integers of shape [bin, stat], features one after the other, stat = gradient, hessian.

Promises: a histogram is exact, so a sibling is its parent minus the other child, and the bins of every
feature sum to the same node total. Refuses: a sum whose features disagree, or with a negative hessian
(PeerError)."""

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
    build_histogram,
    build_sparse,
    pack_pairs,
    pair_bits,
    unpack_pairs,
)
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
        """The layout of these cut points."""
        value_bins = np.array([cuts.size + 1 for cuts in cut_points.cuts], np.int64)
        missing, categorical = np.array(cut_points.missing, np.bool_), np.zeros(value_bins.size, np.bool_)
        categorical[[*cut_points.categorical]] = True
        return cls._made(value_bins, missing, categorical, tuple(range(value_bins.size)))

    @classmethod
    def _made(cls, value_bins: Int64, missing: Flags, categorical: Flags, features: Features) -> "Layout":
        ends = np.cumsum(value_bins + missing)
        offsets = np.concatenate([[0], ends])[:-1].astype(np.uint32)
        return cls(offsets, value_bins, missing, categorical, int(ends[-1]) if ends.size else 0, features)

    def pick(self, histogram: Int64, features: tuple[int, ...]) -> Int64:
        """The bins of these features in a histogram; features: increasing."""
        if features == self.features:
            return histogram
        ends = (*self.offsets.tolist(), self.bins)
        indices = [self.features.index(feature) for feature in features]
        slices = [histogram[STATS * ends[index] : STATS * ends[index + 1]] for index in indices]
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
    """Sums of each node, and a last pair of the sums over all its rows, of the gradients above 0 and of the
    hessians: out, int64 [nodes, layout.cells + STATS], zero
    before.

    pairs: for each node the gradients and hessians of all rows, packed (`kernels.quantise`).
    `limit` bounds each half of a pair; 2**31 / limit rows may be added before the halves are unpacked.
    """
    block, features = (1 << 31) // limit - 1, binned.dense.size
    begins = layout.offsets.astype(np.int64)
    ends = begins + layout.value_bins + layout.missing
    dense = begins[binned.dense], ends[binned.dense]

    def add(piece: tuple[Rows, Int64, Int64, int, int]) -> None:
        rows, row_pairs, cells, first, together = piece
        if first < features:
            last, scratch = min(first + together, features), np.zeros(SCRATCH, np.int64)
            build_histogram(binned.by_row, rows, row_pairs, *dense, first, last, block, scratch, cells)
        elif sparse is not None:
            sparse_begins = begins[sparse.features]
            build_sparse(
                sparse.starts,
                sparse.entries,
                rows,
                row_pairs,
                sparse.offsets,
                sparse.most_frequent,
                sparse_begins,
                block,
                cells,
            )

    sparse = binned.sparse
    for pass_rows in passes(nodes, binned.by_row.shape[0]):
        pieces, extra = [], []
        for rows, row_pairs, cells in zip(pass_rows, pairs, out, strict=True):
            # Threads share the rows of a large node and add up their sums; else they share its features.
            shares = threads.shares(rows, layout.bins)
            together = min(TOGETHER, features if len(shares) > 1 else -(-features // threads.number))
            for number, share in enumerate(shares):
                target = np.zeros_like(cells) if number else cells
                extra += [(cells, target)] if number else []
                firsts = [*range(0, features, together), *([features] if sparse is not None else [])]
                pieces += [(share, row_pairs, target, first, together) for first in firsts]
        threads.each(add, pieces)
        for cells, more in extra:
            cells += more


def passes(nodes: Sequence[Rows], rows: int) -> Iterator[list[Rows]]:
    """The rows of nodes, STRETCH rows of the table at a time: a table in a file is read once for all
    nodes."""
    if rows <= STRETCH:
        yield list(nodes)
        return
    for start in range(0, rows, STRETCH):
        ends = np.array([start, min(start + STRETCH, rows)], np.uint32)
        yield [node[slice(*np.searchsorted(node, ends))] for node in nodes]


def pack_sums(sums: Int64, bits: int, out: Int64) -> None:
    """Pack pairs of sums (g, h, g, h ...) into cells: g * 2**bits + h; copy them if there are as many cells.

    Such cells add like the pairs, as long as every h of the sum is at least 0 and below 2**bits.
    """
    if out.size == sums.size:
        out[:] = sums
    else:
        pack_pairs(sums, bits, out)


def unpack_sums(cells: Int64, bits: int, out: Int64) -> None:
    """Unpack the cells of `pack_sums`."""
    if out.size == cells.size:
        out[:] = cells
    else:
        unpack_pairs(cells, bits, out)


def fit(sums: Int64, widths: Widths) -> bool:
    """True if cells of these widths hold each of the pairs of sums."""
    gradient, hessian = pair_bits(sums)
    return bool(gradient < 1 << (widths[0] - 1) and 0 <= hessian < 1 << widths[1])


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
