"""Gradient histograms: integers of shape [bin, stat], feature after feature, where stat is gradient or
hessian.

Guarantees: a histogram is exact. A child's histogram is therefore its parent's minus its sibling's, and the
bins of every feature add up to the same node total.
Raises: PeerError if the totals of features differ, or a sum of hessians is negative.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.binned import BinnedRows
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.kernels.bins import join_bins
from fedboost.gbdt.kernels.histogram import build_level, build_level_by_column, build_sparse_level
from fedboost.gbdt.threads import ONE, SHARED_CODES, Threads

Rows = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
Features = tuple[int, ...]

STATS = 2
STRETCH = 1 << 20
"""Number of table rows that are read in one pass."""
Total = tuple[int, int]
"""Sums of the gradients and hessians of all rows of a node."""


@dataclass(frozen=True)
class Layout:
    """Positions of each feature's bins in a histogram.

    offsets: uint32 [F], first bin of each feature; value_bins: int64 [F], number of bins for values; missing:
    bool [F], True if a bin for missing values follows; categorical: bool [F], True if the bins are
    categories; bins: number of bins of all features; features: indices of the F features, increasing."""

    offsets: npt.NDArray[np.uint32]
    value_bins: Int64
    missing: Flags
    categorical: Flags
    bins: int
    features: Features

    @classmethod
    def of(cls, cut_points: CutPoints) -> "Layout":
        """Return the layout of these cut points. The layout is cached in the `CutPoints` object."""
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
        """Return this layout with row sets appended, each of which records which rows a split sends left. A
        row set has two bins, left and right. count: number of row sets."""
        apart = np.zeros(count, np.bool_)
        return self._made(
            np.concatenate([self.value_bins, np.full(count, 2, np.int64)]),
            np.concatenate([self.missing, apart]),
            np.concatenate([self.categorical, apart]),
            tuple(range(self.value_bins.size + count)),
        )

    def pick(self, histogram: Int64, features: tuple[int, ...]) -> Int64:
        """Return the part of a histogram that belongs to these features, given in increasing order."""
        if features == self.features:
            return histogram
        ends = (*self.offsets.tolist(), self.bins)
        indices = self._indices(features).tolist()
        slices = [histogram[STATS * ends[index] : STATS * ends[index + 1]] for index in indices]
        return np.concatenate([np.zeros(0, np.int64), *slices])

    def _indices(self, features: Features) -> Int64:
        return np.searchsorted(self.features, features)

    @property
    def cells(self) -> int:
        return STATS * self.bins


def build(
    binned: BinnedRows, rows: Rows, places: Int64, pairs: Int64, layout: Layout, limit: int, threads: Threads
) -> Int64:
    """Build the histogram of each node.

    Args:
        binned: bins of all rows.
        rows: uint32, row numbers, ordered by node.
        places: int64 [nodes, 3], begin and end of each node's rows in `rows`, and its output.
        pairs: int64 [outputs, all rows], packed gradients and hessians (`Gradients.quantise`).
        layout: positions of the bins in a histogram.
        limit: largest magnitude of each half of a pair; up to 2**31 / limit rows are added before the halves
            are unpacked.

    Returns:
        int64 [nodes, layout.cells + STATS], each node's histogram, followed by the sums of the positive
        gradients and of the hessians of all its rows.
    """
    nodes, columns, sparse = len(places), binned.columns.sizes.size, binned.sparse
    by_row = binned.by_row.shape[1] > 0
    if threads.number > 1 and int((places[:, 1] - places[:, 0]).sum()) * columns < SHARED_CODES:
        threads = ONE
    out = np.zeros((nodes + threads.number - 1, layout.cells + STATS), np.int64)
    # block * limit < 2**31: neither half of a packed sum can overflow (`kernels.histogram`).
    block = (1 << 31) // limit - 1

    def add(task: tuple[Int64, Int64, int, int]) -> None:
        pieces, targets, first, last = task
        node_rows = rows, pairs, places, pieces, targets
        of_columns = binned.columns, first, min(last, columns), block, out
        if by_row:
            build_level(binned.by_row, *node_rows, *of_columns)
        else:
            build_level_by_column(binned.by_feature, binned.dense, *node_rows, *of_columns)
        if sparse is not None and last > columns:
            lists = sparse.starts, sparse.entries, sparse.offsets, sparse.most_frequent
            begins = layout.offsets[sparse.features].astype(np.int64)
            build_sparse_level(*lists, *node_rows, begins, block, out)

    for stretch in stretches(rows, places, binned.by_row.shape[0]):
        # Threads share the rows of a level. For a node shared with the previous thread, a thread has separate
        # sums, which are added afterwards. If there are few rows, threads share the columns instead.
        # Sharing the rows of several nodes by column would read every column once per thread.
        by_rows = by_row or nodes == 1 or columns < 8 * threads.number
        pieces, shares = threads.cut(stretch, threads.number * layout.bins if by_rows else 1 << 62)
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
            add, [(pieces[s], targets[s], first, first + together) for s in shares for first in firsts]
        )
        for number, share in enumerate(shares[1:]):
            if targets[share.start] >= nodes:
                out[pieces[share.start, 0]] += out[nodes + number]
                out[nodes + number] = 0
    return out[:nodes]


def stretches(rows: Rows, places: Int64, table_rows: int) -> Iterator[Int64]:
    """Divide the table into stretches of STRETCH rows. For each stretch, yield `places` restricted to the
    rows in this stretch. A table in a file is then read only once, not once per node.

    Args:
        rows: uint32, row numbers, increasing within each node.
        places: int64 [nodes, 3], begin and end of each node's rows in `rows`, and its output or root.
        table_rows: number of rows of the table.
    """
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
    """Return a node's sums of gradients and hessians. Raises PeerError if the totals of two features differ,
    or a bin's sum of hessians is negative. histogram: int64 [layout.cells]."""
    pairs = histogram.reshape(layout.bins, STATS)
    totals = np.add.reduceat(pairs, layout.offsets.astype(np.int64), axis=0)
    if (totals != totals[0]).any():
        feature = int(np.flatnonzero((totals != totals[0]).any(axis=1))[0])
        raise PeerError(
            "histogram-totals-disagree",
            f"the bins of feature {feature} do not sum to the same total as those of feature 0",
        )
    if (pairs[:, 1] < 0).any():
        raise PeerError("histogram-negative-hessian", "a bin has a negative sum of hessians")
    return int(totals[0, 0]), int(totals[0, 1])


# ---- Groups of bins: what a party reports of a node if the terms set a minimum for the rows of a bin ----
# A group of a numeric feature consists of neighbouring bins, where the bin of missing values comes last. A
# level of a categorical feature is single or in the only joined group, as are missing values. The sum of a
# group is in its first bin, and its other bins are 0. A best split (`kernels.split`) is therefore by the
# first bin of a group; `whole` and `joined_levels` return the rest of the group.
# Guarantees: two siblings have the same groups, made by joining their parent's groups. In each sibling, a
# group has at least the minimum of rows or none, if the node has that many. `fault` checks reported groups.
# `apart` is bool [bins]: True for a bin that begins a group, and for a level that is single.
#
#    bins      0   1   2   3   4   5        apart     1   0   0   1   0   1
#    rows      2   0   4   5   1   9        groups  [ 0 - 2    ][ 3 - 4][ 5 ]      at least 6 rows each


def joined(apart: Flags, counts: Int64, layout: Layout, least: int) -> Flags:
    """Join groups of bins until each group has at least `least` rows, or none, in each node.

    Args:
        apart: bool [bins], the groups so far.
        counts: int64 [nodes, bins], number of rows.
        layout: positions of the bins.
        least: minimum number of rows.

    Returns:
        bool [bins], the new groups.
    """
    out, sizes = apart.copy(), layout.value_bins + layout.missing
    by_bin = np.ascontiguousarray(counts.T)
    join_bins(out, by_bin, layout.offsets, sizes, layout.missing, layout.categorical, least)
    return out


def places(apart: Flags, layout: Layout) -> Int64:
    """Return, for each bin, the bin that holds the sum of its group: int64 [bins]. apart: bool [bins]."""
    own = np.arange(layout.bins)
    out: Int64 = np.maximum.accumulate(np.where(apart, own, 0))
    sizes = layout.value_bins + layout.missing
    for feature in np.flatnonzero(layout.categorical).tolist():
        first = int(layout.offsets[feature])
        bins = slice(first, first + int(sizes[feature]))
        separate = apart[bins]
        out[bins] = np.where(separate, own[bins], first + int(np.argmin(separate)))
    return out


def grouped(sums: Int64, apart: Flags, layout: Layout) -> Int64:
    """Add up the bins of each group. Returns a histogram, int64 [cells], that has each sum in the first bin
    of its group and 0 in the others. sums: int64 [cells]; apart: bool [bins]."""
    out = np.zeros((layout.bins, STATS), np.int64)
    np.add.at(out, places(apart, layout), sums.reshape(layout.bins, STATS))
    return out.reshape(-1)


def group_nodes(sums: Int64, groups: Flags | None, layout: Layout) -> None:
    """Replace bin sums by group sums in the histograms of several nodes, in place.

    sums: int64, for each node its histogram and the pair of sums that follows it; groups: bool [nodes, bins].
    If groups is None, nothing changes."""
    if groups is None:
        return
    for of_node, apart in zip(sums.reshape(len(groups), -1), groups, strict=True):
        of_node[:-STATS] = grouped(of_node[:-STATS], apart, layout)


def fault(marks: Int64, above: Flags | None, sums: Int64, layout: Layout) -> tuple[int, str] | None:
    """Find what is wrong with the groups that a party reports for a node.

    Args:
        marks: int64 [bins], 1 for a bin that begins a group and for a level that is not joined with others,
            else 0.
        above: bool [bins], the parent's groups; None if any groups are allowed.
        sums: int64 [bins, STATS].
        layout: positions of the bins.

    Returns:
        the feature and a description of the fault; None if the groups are valid.
    """
    apart = marks == 1
    starts = np.zeros(layout.bins, np.bool_)
    starts[layout.offsets[~layout.categorical]] = True
    faults = (
        ((marks >> 1) != 0, "a mark is neither 0 nor 1"),
        (starts & ~apart, "the first bin of a column has no mark"),
        (
            apart & ~(above if above is not None else np.True_),
            "groups are not joined from those of the parent node",
        ),
        (
            (places(apart, layout) != np.arange(layout.bins)) & sums.any(axis=1),
            "a bin without a mark has a sum",
        ),
    )
    for wrong, what in faults:
        if wrong.any():
            return int(np.searchsorted(layout.offsets, np.argmax(wrong), "right")) - 1, what
    return None


def keeps_neighbours(apart: Flags, layout: Layout, feature: int, last: int, missing_left: bool) -> bool:
    """Return whether a split of a numeric feature keeps all groups whole. The split sends bins up to `last`
    (inclusive) left. apart: bool [bins]."""
    first, count = int(layout.offsets[feature]), int(layout.value_bins[feature])
    with_last = bool(layout.missing[feature]) and not apart[first + count]
    if with_last and missing_left != (last >= count - 1):
        return False
    return last >= count - 1 or bool(apart[first + last + 1])


def keeps_levels(apart: Flags, layout: Layout, feature: int, right: Flags, missing_left: bool) -> bool:
    """Return whether a split of a categorical feature keeps all groups whole. apart: bool [bins]; right: bool
    [levels or more], True for levels that go right."""
    levels, with_missing = joined_levels(apart, layout, feature)
    sides = {bool(right[level]) for level in levels} | ({not missing_left} if with_missing else set())
    return len(sides) <= 1


def whole(apart: Flags, layout: Layout, feature: int, bin_: int) -> int:
    """Return the last value bin of the group that contains a numeric feature's bin. apart: bool [bins]."""
    first, count = int(layout.offsets[feature]), int(layout.value_bins[feature])
    behind = np.flatnonzero(apart[first + bin_ + 1 : first + count])
    return bin_ + int(behind[0]) if behind.size else count - 1


def joined_levels(apart: Flags, layout: Layout, feature: int) -> tuple[list[int], bool]:
    """Return the levels of a categorical feature that are joined, and whether missing values are joined with
    these levels. apart: bool [bins]."""
    first, count = int(layout.offsets[feature]), int(layout.value_bins[feature])
    levels = np.flatnonzero(~apart[first : first + count]).tolist()
    return levels, bool(layout.missing[feature]) and not apart[first + count]
