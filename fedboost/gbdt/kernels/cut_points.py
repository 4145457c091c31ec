"""Kernels of grids and cut points: one call for all features, whose cells lie one feature after the other.

Cells of feature f are those from offsets[f] to offsets[f + 1].
"""

import numpy as np

from fedboost.gbdt.kernels.compile import elementwise, loop

ZERO_KEY = 1 << 31


@loop
def _cells_until(key, starts, first, last):
    """The number of the first of these cells that starts beyond the key."""
    while first < last:
        middle = (first + last) >> 1
        if np.int64(starts[middle]) <= key:
            first = middle + 1
        else:
            last = middle
    return first


@loop
def count_stored(features, zeros, units, ends, keys, offsets, starts, widths, subdivisions, bases, out):
    """Count the values of columns that are nearly all 0 in subcells of grids, as `bins.count_cells` does.

    Column i is feature features[i]: its zeros count zeros[i], and it has the values with the keys from
    ends[i] to ends[i + 1], each of which counts units[v], or 1 where `units` is None. The counts of cell c
    begin at out[bases[c]].
    """
    for i in range(features.size):
        first, last = offsets[features[i]], offsets[features[i] + 1]
        for v in range(ends[i], ends[i + 1] + 1):  # the last time the zeros
            key, rows = np.int64(ZERO_KEY), zeros[i]
            if v < ends[i + 1]:
                key, rows = np.int64(keys[v]), 1 if units is None else units[v]
            c = _cells_until(key, starts, first, last) - 1
            if c < first:
                continue
            into = key - np.int64(starts[c])
            if into >> np.int64(widths[c]) == 0:
                out[bases[c] + (into >> (np.int64(widths[c]) - np.int64(subdivisions[c])))] += rows


@loop
def bin_stored(features, ends, rows, keys, offsets, cut_keys, missing, by_feature):
    """Bins of columns that are nearly all 0; uint8 [features, rows] out.

    Column i is feature features[i]: it has the values with the keys from ends[i] to ends[i + 1] in these
    rows, and 0 in all others. The cuts of feature f have the keys from offsets[f] to offsets[f + 1]. Missing
    values have the bin after the last, or the one behind it where missing[f].
    """
    for i in range(features.size):
        feature = features[i]
        first, last = offsets[feature], offsets[feature + 1]
        codes = by_feature[feature]
        codes[:] = np.uint8(_cells_until(np.int64(ZERO_KEY), cut_keys, first, last) - first)
        for v in range(ends[i], ends[i + 1]):
            code = _cells_until(np.int64(keys[v]), cut_keys, first, last) - first
            if keys[v] == np.uint32(0xFFFFFFFF):
                code = last - first + missing[feature]
            codes[rows[v]] = np.uint8(code)


@loop
def refine(known, grid, sums, key_bits, missing, refined):
    """Replace the cells of a grid by those of their subcells that hold rows: the number of cells, or -1 if
    the subcells of a cell do not hold its rows.

    known: offsets, starts, widths, rows of the cells of each feature; grid: offsets, starts, subdivisions of
    some of them; sums: of their subcells. refined: as known, long enough. The last subcell of all keys holds
    missing values, and becomes missing[f].
    """
    offsets, starts, widths, rows = known
    grid_offsets, grid_starts, subdivisions = grid
    new_offsets, new_starts, new_widths, new_rows = refined
    n, base = 0, 0
    for f in range(offsets.size - 1):
        g = grid_offsets[f]
        for c in range(offsets[f], offsets[f + 1]):
            if g == grid_offsets[f + 1] or np.int64(grid_starts[g]) != starts[c]:
                new_starts[n], new_widths[n], new_rows[n] = starts[c], widths[c], rows[c]
                n += 1
                continue
            subcells = 1 << np.int64(subdivisions[g])
            width, total = widths[c] - np.int64(subdivisions[g]), 0
            for s in range(subcells):
                count = sums[base + s]
                total += count
                if count < 0 or count > rows[c]:
                    return -1
                if count == 0:
                    continue
                if s == subcells - 1 and widths[c] == key_bits:
                    missing[f] = count
                    continue
                new_starts[n], new_widths[n], new_rows[n] = starts[c] + (s << width), width, count
                n += 1
            if total != rows[c]:
                return -1
            base += subcells
            g += 1
        new_offsets[f + 1] = n
    return n


@elementwise
def _bit_length(number):
    bits = 0
    while number:
        number >>= 1
        bits += 1
    return bits


@loop
def choose_cells(known, max_bin, budget, two_rows, chosen):
    """The cells to cut finer, and into how many subcells: `Quantiles` says which. The number of cells.

    known: offsets, starts, widths, rows of the cells of each feature; two_rows: the least count of two rows;
    chosen: offsets, starts, widths, subdivisions, long enough. The counts of a feature times the budget are
    below 2**63.
    """
    offsets, starts, widths, rows = known
    out_offsets, out_starts, out_widths, out_subdivisions = chosen
    n = 0
    for f in range(offsets.size - 1):
        first, last = offsets[f], offsets[f + 1]
        left_over = last - first < max_bin
        total = 0
        for c in range(first, last):
            total += rows[c]
        begin, coarse_rows = n, 0
        for c in range(first, last):
            if rows[c] >= two_rows and widths[c] > 0 and (left_over or rows[c] > 2 * total / budget):
                out_starts[n], out_widths[n] = np.uint32(starts[c]), np.uint8(widths[c])
                out_subdivisions[n] = 0
                coarse_rows += rows[c]
                n += 1
        out_offsets[f + 1] = n
        g = begin
        for c in range(first, last):
            if g < n and np.int64(out_starts[g]) == starts[c]:
                share = budget * rows[c] // coarse_rows
                if left_over:
                    share = (share + budget // (n - begin)) // 2
                bits = max(_bit_length(share) - 1, 1)
                out_subdivisions[g] = np.uint8(min(bits, widths[c]))
                g += 1
    return n


@loop
def cut_keys(offsets, starts, rows, missing, max_bin, max_codes, sizes, keys):
    """The keys of the cuts of each feature, and their number in sizes[f]; returns the number of all.

    Cuts lie at quantiles of the rows, or between all cells where there are bins enough.
    """
    n = 0
    for f in range(offsets.size - 1):
        first, last = offsets[f], offsets[f + 1]
        begin, bins = n, min(max_bin, max_codes - (1 if missing[f] else 0))
        if last - first <= bins:
            for c in range(first + 1, last):
                keys[n] = starts[c]
                n += 1
            sizes[f] = n - begin
            continue
        total = 0
        for c in range(first, last):
            total += rows[c]
        step = total / bins
        c, until, latest = first, rows[first], first
        for b in range(1, bins):
            while until < b * step:  # the first cell that ends at this rank, or beyond
                c += 1
                until += rows[c]
            if c != latest:
                keys[n], latest = starts[c], c
                n += 1
        sizes[f] = n - begin
    return n
