"""Kernels for cut points and bins: sort keys of floats, counts of keys, bin codes of values, and groups of
bins."""

import numpy as np

from fedboost.gbdt.kernels import elementwise, load_word, loop

_BLOCK = 256  # rows of a block of `transpose`
MAX_CODES = 256
"""Number of uint8 codes. A feature uses them for its value bins and, if it has missing values, for the
missing bin."""
_MANY_SEARCHES = 1 << 15
"""Minimum number of searches for which a lookup table of 65,536 entries pays off. Building the table takes as
long as a few thousand searches."""


@elementwise
def _key(word):
    """Return the sort key of the float32 number with these bits. The number must not be NaN."""
    # The order of IEEE 754 floats as integers: M. Herf, "Radix tricks", 2001.
    #     float   -inf      -1.0      -0.0      0.0       1.0       inf       NaN
    #     bits    ff800000  bf800000  80000000  00000000  3f800000  7f800000
    #     key     007fffff  407fffff  80000000  80000000  bf800000  ff800000  ffffffff (`float_keys`)
    #
    # Negative floats: all bits are flipped, so that a larger magnitude is a lower key. Others: only the sign
    # bit, so that they come above. The bits of -0.0 happen to be the key of 0.0.
    if word == np.uint32(0x80000000):
        return word
    return ~word if word >> 31 else word | np.uint32(0x80000000)


@loop
def float_keys(values):
    """Convert float32 [N] to sort keys, uint32 [N]: a < b exactly if key(a) < key(b).

    NaN (a missing value) has the highest key. -0.0 has the same key as 0.0."""
    bits = values.view(np.uint32)
    out = np.empty(values.size, np.uint32)
    for i in range(values.size):
        word = bits[i]
        missing = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.uint32(0xFFFFFFFF) if missing else _key(word)
    return out


@loop
def _heads(keys, searches):
    """Build a lookup table that speeds up binary searches. keys: uint32 [n], increasing; searches: number of
    searches. Returns the first key, the table (int64 [H + 1]), and a number of bits.

    A key at distance d from the first one has the head d >> bits, which is below H. Entry h of the table is
    the number of keys with a head below h. A search for a key with head h is limited to the range from entry
    h to entry h + 1, and ends after a step or two. A search through all keys would take about ten steps, each
    with a branch that the processor cannot predict."""
    # The shift is the smallest that leaves fewer than `table_size` heads. The keys below span 2**32 at most,
    # so int64 holds every difference, also that of a searched key below the first one.
    first = np.int64(keys[0]) if keys.size else np.int64(0)
    span = np.int64(keys[-1]) - first if keys.size else np.int64(0)
    table_size = 1 << (16 if searches >= _MANY_SEARCHES else 8)
    shift = 0
    while span >> shift >= table_size:
        shift += 1
    # Counting by head + 1 and summing up turns counts into starts, as in a counting sort.
    table = np.zeros((span >> shift) + 2, np.int64)
    for i in range(keys.size):
        table[((np.int64(keys[i]) - first) >> shift) + 1] += 1
    for head in range(table.size - 1):
        table[head + 1] += table[head]
    return first, table, shift


@loop
def count_cells(keys, units, starts, widths, subdivisions, out):
    """Count keys by subcell. Cells are disjoint and given in increasing order; keys outside all cells are not
    counted.

    Args:
        keys: uint32 [N].
        units: int64 [N], the count of each key; None if every key counts 1.
        starts, widths: uint32 and uint8 [cells], cell c covers 2**widths[c] keys, starting at starts[c].
        subdivisions: uint8 [cells], cell c is divided into 2**subdivisions[c] equal subcells.
        out: int64 [subcells], updated in place: the counts of all subcells, one cell after the other.
    """
    cells = starts.size
    base = np.zeros(cells + 1, np.int64)
    for c in range(cells):
        base[c + 1] = base[c] + (np.int64(1) << np.int64(subdivisions[c]))
    first, table, shift = _heads(starts, keys.size)
    last = np.int64(table.size) - 2
    i = 0
    while i < keys.size:
        key, rows = np.int64(keys[i]), 1 if units is None else units[i]
        i += 1
        while i < keys.size and np.int64(keys[i]) == key:  # columns of 0 and 1 mostly have long runs
            rows += 1 if units is None else units[i]
            i += 1
        head = (key - first) >> shift
        head = min(max(head, 0), last)  # for keys before the first start, or far after the last
        low, high = table[head], table[head + 1]
        while low < high:  # invariant: cells before `low` start at or before the key, from `high` on after it
            middle = (low + high) >> 1
            if np.int64(starts[middle]) <= key:
                low = middle + 1
            else:
                high = middle
        c = low - 1
        if c < 0:  # before all cells
            continue
        into = key - np.int64(starts[c])
        width = np.int64(widths[c])
        if into >> width:  # in the gap after cell c
            continue
        # into < 2**width, so the subcell is its highest `subdivision` bits, below 2**subdivision.
        out[base[c] + (into >> (width - np.int64(subdivisions[c])))] += rows


@loop
def weigh_residuals(label, margin, weight, rows, start, width, bits, factor, limit, out):
    """Add up row weights in the subcells of the residuals, float32(label - margin). Residuals whose keys are
    outside the range are ignored.

    Args:
        label, margin, weight: float32, float64 and float32 [N].
        rows: uint32 [n], rows to count.
        start, width, bits: 2**width keys, starting at `start`, are divided into 2**bits equal subcells.
        factor, limit: units per 1.0 of a weight, and the largest encoded weight, as in `Scale.encode`.
        out: int64 [2**bits], updated in place.
    """
    for i in range(rows.size):
        row = rows[i]
        key = np.int64(_key(np.float32(label[row] - margin[row]).view(np.uint32)))
        into = key - start
        if into < 0 or into >> width:
            continue
        units = np.rint(weight[row] * factor)
        out[into >> (width - bits)] += np.int64(units if units < limit else limit)


@loop
def bin_column(values, cuts, missing_bin, out):
    """Write the bin of each value: the number of cuts at or below it.

    values: float32 [N]; cuts: float32, increasing; missing_bin: bin of NaN; out: uint8 [N], receives the
    bins."""
    words = values.view(np.uint32)
    keys = float_keys(cuts)
    first, table, shift = _heads(keys, values.size)
    last = np.int64(table.size) - 2
    for i in range(values.size):
        if i and words[i] == words[i - 1]:
            out[i] = out[i - 1]
            continue
        if values[i] != values[i]:
            out[i] = missing_bin
            continue
        key = np.int64(_key(words[i]))
        # A key outside the table's range is searched under its first or last head, and ends at 0 cuts or at
        # all of them. The invariant is that of `count_cells`.
        head = (key - first) >> shift
        head = min(max(head, 0), last)
        low, high = table[head], table[head + 1]
        while low < high:
            middle = (low + high) >> 1
            if np.int64(keys[middle]) <= key:
                low = middle + 1
            else:
                high = middle
        out[i] = low


@loop
def transpose(by_feature, features, by_row):
    """Write the bins of some features row by row: by_row[i, d] = by_feature[features[d], i]. Works in blocks
    that stay in the cache.

    by_feature: uint8 [F, N]; features: int64 [D]; by_row: uint8 [N, D or more], receives the result."""
    rows = by_feature.shape[1]
    for start in range(0, rows, _BLOCK):
        end = min(start + _BLOCK, rows)
        for d in range(features.size):
            column = by_feature[features[d]]
            for i in range(start, end):
                by_row[i, d] = column[i]


@loop
def _all_equal(column, i, code):
    """Return whether the eight rows starting at row i all have this code."""
    # The product repeats the code in each of the eight bytes: 255 * 0x01 is the largest digit, so no carry.
    ones = np.uint64(0x0101010101010101)
    return i + 8 <= column.size and load_word(column, np.uint64(i)) == np.uint64(code) * ones


@loop
def sample_bins(by_feature, step):
    """Find the most frequent bin of each feature, using every `step`-th row. by_feature: uint8 [F, N].

    Returns int64 [F, 3]: the most frequent bin (the lowest one in a tie), its number of rows, and the number
    of bins with rows."""
    out = np.zeros((by_feature.shape[0], 3), np.int64)
    counts = np.empty(MAX_CODES, np.int64)
    for f in range(by_feature.shape[0]):
        counts[:] = 0
        column, i = by_feature[f], 0
        while i < column.size:
            if step == 1 and _all_equal(column, i, column[i]):
                counts[column[i]] += 8
                i += 8
            else:
                counts[column[i]] += 1
                i += step
        for b in range(MAX_CODES):
            if counts[b] > out[f, 1]:
                out[f, 0], out[f, 1] = b, counts[b]
            out[f, 2] += counts[b] > 0
    return out


@loop
def join_codes(codes, bins, out, parts):
    """Replace each pair of a code and a bin by a joint code, numbered by first occurrence.

    Args:
        codes, bins: uint8 [N] each.
        out: uint8 [N], receives the joint codes.
        parts: uint8 [MAX_CODES, 2], receives the pair that each joint code stands for.

    Returns:
        the number of joint codes. If more than MAX_CODES are needed, -1 minus the number of leading rows for
        which MAX_CODES suffice.
    """
    # A table with an entry for each of the 65,536 possible pairs, 128 KB, replaces hashing. Numbers by first
    # occurrence depend on the order of rows, but only within a party: histograms are by bin, not by joint
    # code.
    unknown = np.uint16(MAX_CODES)
    numbers, count = np.full(MAX_CODES * MAX_CODES, unknown, np.uint16), 0
    for i in range(codes.size):
        key = np.uint32(codes[i]) << np.uint32(8) | np.uint32(bins[i])
        number = numbers[key]
        if number == unknown:
            if count == MAX_CODES:
                return -1 - i
            number = numbers[key] = np.uint16(count)
            parts[count, 0], parts[count, 1] = codes[i], bins[i]
            count += 1
        out[i] = number
    return count


@loop
def count_sparse(by_feature, features, most_frequent, starts):
    """Count the entries of sparse storage: starts[i + 1] becomes the number of values in rows 0 to i that are
    not in their feature's most frequent bin.

    by_feature: uint8 [F, N]; features, most_frequent: int64 [R]; starts: int64 [N + 1]."""
    # With `list_sparse` this is a counting sort by row, in compressed sparse rows:
    #     row        0         1    2
    #     starts     0         2    2         5
    #     entries    [ e   e ] [ ]  [ e  e  e ]
    # `list_sparse` advances starts[i] while it fills row i. In the end starts[i] is where row i + 1 begins,
    # and one shift to the right restores it. Columns are read one after the other, so entries ascend within a
    # row.
    starts[:] = 0
    for r in range(features.size):
        column, usual = by_feature[features[r]], np.uint8(most_frequent[r])
        for i in range(column.size):
            starts[i + 1] += np.int64(column[i] != usual)
    for i in range(starts.size - 1):
        starts[i + 1] += starts[i]


@loop
def list_sparse(by_feature, features, most_frequent, offsets, starts, entries):
    """Write the entries of sparse storage, row by row: offsets[r] + bin for each feature r for which the row
    is not in the most frequent bin.

    by_feature, features, most_frequent, starts: as for `count_sparse`, which must be called first; offsets:
    int64 [R + 1]; entries: uint32 [starts[N]], receives the result."""
    for r in range(features.size):
        column, usual = by_feature[features[r]], np.uint8(most_frequent[r])
        for i in range(column.size):
            if column[i] != usual:
                entries[starts[i]] = offsets[r] + column[i]
                starts[i] += 1
    for i in range(starts.size - 1, 0, -1):  # each has advanced to the start of the next row
        starts[i] = starts[i - 1]
    starts[0] = 0


# ---- Kernels for grids and cut points: one call for all features ----------------------------------------
# Cells lie one feature after the other: those of feature f are offsets[f] to offsets[f + 1].


ZERO_KEY = 1 << 31


@loop
def _cells_until(key, starts, first, last):
    """Return the first cell from `first` to `last` - 1 that starts after the key, or `last` if there is none.
    starts: increasing keys."""
    while first < last:
        middle = (first + last) >> 1
        if np.int64(starts[middle]) <= key:
            first = middle + 1
        else:
            last = middle
    return first


@loop
def count_stored(features, zeros, units, ends, keys, offsets, starts, widths, subdivisions, bases, out):
    """Count the values of sparse columns by subcell, as `count_cells` does. Sparse columns store only values
    other than 0.

    Args:
        features: int64 [C], the feature of each sparse column.
        zeros: int64 [C], count of each column's zeros.
        units: int64 [V], count of each stored value; None if every value counts 1.
        ends: int64 [C + 1], column i stores the values ends[i] to ends[i + 1] - 1.
        keys: uint32 [V], keys of the stored values.
        offsets: int64 [F + 1], feature f has the cells offsets[f] to offsets[f + 1] - 1.
        starts, widths, subdivisions: uint32, uint8 and uint8 [cells], as in `count_cells`.
        bases: int64 [cells + 1], index in `out` of each cell's first count.
        out: int64 [subcells], updated in place.
    """
    for i in range(features.size):
        first, last = offsets[features[i]], offsets[features[i] + 1]
        for v in range(ends[i], ends[i + 1] + 1):  # the last pass counts the zeros
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
    """Write the bins of sparse columns. Missing values get the last value bin, or the bin after it if
    missing[f] is True.

    Args:
        features: int64 [C], the feature of each sparse column.
        ends: int64 [C + 1], column i stores the values ends[i] to ends[i + 1] - 1; its other rows are 0.
        rows, keys: int64 and uint32 [V], row and key of each stored value.
        offsets: int64 [F + 1], feature f has the cuts offsets[f] to offsets[f + 1] - 1.
        cut_keys: uint32, keys of the cuts.
        missing: bool [F], True if the feature has a bin for missing values.
        by_feature: uint8 [F, N], receives the bins.
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
    """Replace the cells of a grid by their subcells that contain rows.

    Args:
        known: offsets, starts, widths and row counts of all known cells: int64 [F + 1] and three times int64
            [cells].
        grid: offsets, starts and subdivisions of the cells that were counted: int64 [F + 1], uint32 and
            uint8.
        sums: int64, counts of the subcells of these cells.
        key_bits: width of a cell that covers all keys; the last subcell of such a cell contains the missing
            values.
        missing: int64 [F], receives each feature's number of missing values, if these were counted.
        refined: arrays like `known`, which receive the new cells and must be long enough.

    Returns:
        the number of new cells, or -1 if the counts of a cell's subcells do not add up to its rows.
    """
    offsets, starts, widths, rows = known
    grid_offsets, grid_starts, subdivisions = grid
    new_offsets, new_starts, new_widths, new_rows = refined
    n, base = 0, 0
    # The cells of the grid are among the known ones, in the same order: g is the next of them. A cell without
    # a match is copied; a matched one becomes its subcells with rows:
    #
    #     known cell     [ starts[c], starts[c] + 2**width )             rows[c]
    #     subcells       |  3  |  0  |  8  |  1  |                      2**subdivision of them
    #     new cells      |  3  |     |  8  |  1  |                      each 2**(width - subdivision) keys
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
                # Counts by weight are below 2**52, and a cell has at most 2**11 subcells (2**FIRST_BITS, or
                # the largest budget, 8 * 256). A larger count is refused, so `total` remains below 2**63.
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
    """Choose the cells to refine and the number of subcells of each (see `Quantiles`). Returns the number of
    chosen cells.

    Args:
        known: offsets, starts, widths and row counts of all known cells, as in `refine`.
        max_bin: maximum number of bins of a feature.
        budget: number of subcells that a feature may use.
        two_rows: smallest possible sum of two positive row counts.
        chosen: offsets, starts, widths and subdivisions, which receive the result: int64 [F + 1], uint32,
            uint8 and uint8, with room for all known cells.
    """
    offsets, starts, widths, rows = known
    out_offsets, out_starts, out_widths, out_subdivisions = chosen
    n = 0
    for f in range(offsets.size - 1):
        first, last = offsets[f], offsets[f + 1]
        # left_over: fewer cells with rows than bins, so that each further cut point would be used.
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
                share = budget * rows[c] // coarse_rows  # a feature's counts times the budget are below 2**63
                if left_over:
                    share = (share + budget // (n - begin)) // 2
                # The largest power of two within the share, at least two subcells, at most one for each key.
                bits = max(_bit_length(share) - 1, 1)
                # Unless cells are left over, a chosen cell has more than 2 / budget of the rows, so fewer
                # than budget / 2 cells are chosen. The minimum of two adds at most 2 for each: a feature has
                # fewer than 2 * budget subcells.
                out_subdivisions[g] = np.uint8(min(bits, widths[c]))
                g += 1
    return n


@loop
def cut_keys(offsets, starts, rows, missing, max_bin, max_codes, sizes, keys):
    """Choose the cut points of each feature and write their sort keys. Returns the total number of cuts.

    If a feature has no more cells than bins, it is cut between all cells; otherwise, it is cut at quantiles
    of its rows.

    Args:
        offsets: int64 [F + 1], feature f has the cells offsets[f] to offsets[f + 1] - 1.
        starts, rows: int64 [cells], first key and row count of each cell.
        missing: int64 [F], number of missing values; a bin is reserved for them unless it is 0.
        max_bin, max_codes: maximum number of value bins, and of all bins.
        sizes: int64 [F], receives the number of cuts of each feature.
        keys: int64 [cells], receives the keys, feature after feature.
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
        # A cut is the start of the first cell at whose end at least b / bins of the rows have passed. For
        # example, 23 rows in 3 bins (step 7.67):
        #     rows      3    1    4    1    5    9
        #     until     3    4    8    9   14   23
        #     cuts             |              |           cells 2 (8 >= 7.67) and 5 (23 >= 15.33)
        # Totals are below 2**53, so the floats are exact up to the rounding of b * step. That is below the
        # total for b < bins, so c stops at the last cell at the latest.
        step = total / bins
        c, until, latest = first, rows[first], first
        for b in range(1, bins):
            # Invariant: `until` is the number of rows in the cells up to and including c. A cell that spans
            # several ranks yields one cut: `latest` skips repetitions.
            while until < b * step:  # the first cell that ends at this rank, or beyond
                c += 1
                until += rows[c]
            if c != latest:
                keys[n], latest = starts[c], c
                n += 1
        sizes[f] = n - begin
    return n


# ---- Kernels for groups of bins (`gbdt.histogram`) ------------------------------------------------------


@loop
def _holds(counts, least):
    """Return True if each of these row counts is either 0 or at least `least`."""
    few = 0
    for count in counts:
        few += np.int64(0 < count < least)
    return few == 0


@loop
def _join_neighbours(apart, counts, least):
    """Join neighbouring groups of a numeric feature's bins, starting with the first, until each passes
    `_holds`. If the last group does not pass, it is joined with the groups before it. apart: bool [bins];
    counts: int64 [bins, nodes]."""
    # Invariant: bins from `start` on are the group that is growing, `rows` its rows in each node. The first
    # bin always begins a group. A group ends as soon as it passes.
    rows, start = counts[0].copy(), 0
    for b in range(1, apart.size):
        if apart[b] and _holds(rows, least):
            start = b
            rows[:] = 0
        apart[b] = start == b
        rows += counts[b]
    # Joining one passing group may not suffice: it passes in a node without rows, too, where the rest still
    # has too few. So groups are joined from the right until the sum passes. The inner loop walks to the
    # first bin of the group before.
    while start > 0 and not _holds(rows, least):
        apart[start] = False
        start -= 1
        while not apart[start]:
            rows += counts[start]
            start -= 1
        rows += counts[start]


@loop
def _join_levels(apart, counts, least, missing):
    """Join the levels of a categorical feature that fail `_holds`, along with missing values if the feature
    has a bin for these. Until the joined levels together pass, the remaining level with the fewest rows over
    all nodes is added. apart: bool [bins]; counts: int64 [bins, nodes]."""
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
        # Each pass sums up all levels: quadratic in the levels, of which there are at most 255.
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
    """Join groups of bins until each group has at least `least` rows, or none, in each node.

    Args:
        apart: bool [T], True for a bin that begins a group and for a level that is not joined with others;
            updated in place.
        counts: int64 [T, nodes], number of rows.
        offsets: uint32 [F], first bin of each feature.
        sizes: int64 [F], number of bins, including the missing bin.
        missing: bool [F], True if the feature has a bin for missing values.
        categorical: bool [F], True if the feature's bins are categories.
        least: minimum number of rows.
    """
    for f in range(sizes.size):
        first = np.int64(offsets[f])
        own, rows = apart[first : first + sizes[f]], counts[first : first + sizes[f]]
        if categorical[f]:
            _join_levels(own, rows, least, missing[f])
        else:
            _join_neighbours(own, rows, least)


@loop
def count_bins(codes, rows, offsets, out):
    """Add the number of rows in each bin to `out`. Consecutive repetitions of a row count once.

    codes: uint8 [F or more, N]; rows: uint32 [n], increasing; offsets: uint32 [F]; out: int64 [T], updated in
    place."""
    for f in range(offsets.size):
        column, first = codes[f], np.int64(offsets[f])
        for i in range(rows.size):
            out[first + column[rows[i]]] += np.int64(i == 0 or rows[i] != rows[i - 1])
