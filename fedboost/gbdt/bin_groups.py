"""Groups of bins: what a party tells of a node where the terms have a floor under the rows of a bin.

A group of a numeric feature are neighbouring bins, that of missing values behind the last; of a categorical
feature levels are by themselves or in the one group of those that are joined, missing values with them. The
sum of a group stands in its first bin, and the others are 0: then a best split (`gbdt.split`) is by the first
bin of a group, and `whole` and `joined_levels` say what goes with it.

Promises: two siblings have the same groups, made of their parent's by joining; each has, in each of the two,
as many rows as the floor says, or none, if the node has.
Refuses nothing: `fault` says what is wrong with groups that were told.

`apart` is bool [bins]: True for a bin that is not told with those before it, and for a level that is by
itself.
"""

import numpy as np

from fedboost.fixedpoint import Int64
from fedboost.gbdt.histogram import STATS, Flags, Layout
from fedboost.gbdt.kernels.bin_groups import join_bins


def ungrouped(layout: Layout) -> Flags:
    """Each bin by itself."""
    return np.ones(layout.bins, np.bool_)


def joined(apart: Flags, counts: Int64, layout: Layout, least: int) -> Flags:
    """These groups, joined until each has at least `least` rows or none in each node. counts: int64 [nodes,
    bins], the rows of nodes in each bin."""
    out, sizes = apart.copy(), layout.value_bins + layout.missing
    by_bin = np.ascontiguousarray(counts.T)
    join_bins(out, by_bin, layout.offsets, sizes, layout.missing, layout.categorical, least)
    return out


def places(apart: Flags, layout: Layout) -> Int64:
    """The bin in which the sum of each bin stands: int64 [bins]."""
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
    """A histogram, int64 [cells], with the sum of each group where it stands."""
    out = np.zeros((layout.bins, STATS), np.int64)
    np.add.at(out, places(apart, layout), sums.reshape(layout.bins, STATS))
    return out.reshape(-1)


def group_nodes(sums: Int64, groups: Flags | None, layout: Layout) -> None:
    """Put the sums of each group where they stand, in histograms of nodes with a last pair each. groups: bool
    [nodes, bins]; None to leave them by bin."""
    if groups is None:
        return
    for of_node, apart in zip(sums.reshape(len(groups), -1), groups, strict=True):
        of_node[:-STATS] = grouped(of_node[:-STATS], apart, layout)


def fault(marks: Int64, above: Flags | None, sums: Int64, layout: Layout) -> tuple[int, str] | None:
    """The feature, and what cannot be, where the marks of a node cannot be those of groups made of those
    `above` by joining, or sums stand where no mark is; None where all is well.

    marks: int64 [bins], 1 for bins that are apart; above: None for any; sums: int64 [bins, STATS]."""
    apart = marks == 1
    starts = np.zeros(layout.bins, np.bool_)
    starts[layout.offsets[~layout.categorical]] = True
    faults = (
        ((marks >> 1) != 0, "a mark that is neither 0 nor 1"),
        (starts & ~apart, "no mark at the first bin of a column"),
        (apart & ~(above if above is not None else np.True_), "groups that its parent's do not join to"),
        ((places(apart, layout) != np.arange(layout.bins)) & sums.any(axis=1), "a sum where no mark is"),
    )
    for wrong, what in faults:
        if wrong.any():
            return int(np.searchsorted(layout.offsets, np.argmax(wrong), "right")) - 1, what
    return None


def keeps_neighbours(apart: Flags, layout: Layout, feature: int, last: int, missing_left: bool) -> bool:
    """True if a split of a numeric feature, whose bins up to `last` go left, parts no group."""
    first, count = int(layout.offsets[feature]), int(layout.value_bins[feature])
    with_last = bool(layout.missing[feature]) and not apart[first + count]
    if with_last and missing_left != (last >= count - 1):
        return False
    return last >= count - 1 or bool(apart[first + last + 1])


def keeps_levels(apart: Flags, layout: Layout, feature: int, right: Flags, missing_left: bool) -> bool:
    """True if a split of a categorical feature parts no group. right: bool [at least its levels]."""
    levels, with_missing = joined_levels(apart, layout, feature)
    sides = {bool(right[level]) for level in levels} | ({not missing_left} if with_missing else set())
    return len(sides) <= 1


def whole(apart: Flags, layout: Layout, feature: int, bin_: int) -> int:
    """The last bin of the group of a numeric feature that has this bin; missing values aside."""
    first, count = int(layout.offsets[feature]), int(layout.value_bins[feature])
    behind = np.flatnonzero(apart[first + bin_ + 1 : first + count])
    return bin_ + int(behind[0]) if behind.size else count - 1


def joined_levels(apart: Flags, layout: Layout, feature: int) -> tuple[list[int], bool]:
    """The levels of a categorical feature that are joined, and True if missing values are with them."""
    first, count = int(layout.offsets[feature]), int(layout.value_bins[feature])
    levels = np.flatnonzero(~apart[first : first + count]).tolist()
    return levels, bool(layout.missing[feature]) and not apart[first + count]
