"""Kernels of groups of bins (`gbdt.bin_groups`)."""

import numpy as np

from fedboost.gbdt.kernels.compile import loop


@loop
def _holds(counts, least):
    """True if each of these numbers of rows is 0, or `least` at least."""
    few = 0
    for count in counts:
        few += np.int64(0 < count < least)
    return few == 0


@loop
def _join_neighbours(apart, counts, least):
    """Join the groups of the bins of a numeric feature, from the first on, until each holds; what is left
    over at the end goes to those before it.

    apart: bool [bins]; counts: int64 [bins, nodes]."""
    rows, start = counts[0].copy(), 0
    for b in range(1, apart.size):
        if apart[b] and _holds(rows, least):
            start = b
            rows[:] = 0
        apart[b] = start == b
        rows += counts[b]
    while start > 0 and not _holds(rows, least):
        apart[start] = False
        start -= 1
        while not apart[start]:
            rows += counts[start]
            start -= 1
        rows += counts[start]


@loop
def _join_levels(apart, counts, least, missing):
    """Join the levels that do not hold, as `_join_neighbours`; with them missing values, if the last bin has
    these, and, until they hold together, the levels with fewest rows of all nodes, first the lowest."""
    rows, joined = np.zeros(counts.shape[1], np.int64), 0
    for b in range(apart.size):
        apart[b] = apart[b] and _holds(counts[b], least)
        if not apart[b]:
            rows += counts[b]
            joined += 1
    if missing and joined and apart[apart.size - 1]:
        apart[apart.size - 1] = False
        rows += counts[apart.size - 1]
    while joined and not _holds(rows, least):
        fewest, chosen = np.int64(-1), -1
        for b in range(apart.size):
            total = counts[b].sum()
            if apart[b] and total and (chosen < 0 or total < fewest):
                fewest, chosen = total, b
        if chosen < 0:
            break
        apart[chosen] = False
        rows += counts[chosen]


@loop
def join_bins(apart, counts, offsets, sizes, missing, categorical, least):
    """Join groups of bins of all features until, in each node, each has `least` rows or none.

    apart: bool [bins], as in `gbdt.bin_groups`, changed in place; counts: int64 [bins, nodes], rows; sizes:
    bins of each feature, with that of missing values; missing: True if there is one."""
    for f in range(sizes.size):
        first = np.int64(offsets[f])
        own, rows = apart[first : first + sizes[f]], counts[first : first + sizes[f]]
        if categorical[f]:
            _join_levels(own, rows, least, missing[f])
        else:
            _join_neighbours(own, rows, least)


@loop
def count_bins(codes, rows, offsets, out):
    """Count the rows of each bin in `out`, int64 [bins]; a row that is there again behind itself is counted
    once.

    codes: uint8 [features or more, rows of the table], bins; rows: uint32, increasing."""
    for f in range(offsets.size):
        column, first = codes[f], np.int64(offsets[f])
        for i in range(rows.size):
            out[first + column[rows[i]]] += np.int64(i == 0 or rows[i] != rows[i - 1])
