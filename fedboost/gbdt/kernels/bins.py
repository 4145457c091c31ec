"""Kernels of cut points and bins: keys of floats, counts of keys, codes of values."""

import numpy as np

from fedboost.gbdt.kernels.compile import elementwise, load_word, loop

_BLOCK = 256  # rows of a block of `transpose`
MAX_CODES = 256
"""uint8 codes: value bins and, where a feature has missing values, the missing bin."""
_MANY_SEARCHES = 1 << 15
"""Searches that are worth a table of 65,536 entries, which takes as long to make as some thousand
searches."""


@elementwise
def _key(word):
    """The key of the float32 with these bits, which is a number."""
    if word == np.uint32(0x80000000):
        return word
    return ~word if word >> 31 else word | np.uint32(0x80000000)


@loop
def float_keys(values):
    """The order-preserving uint32 key of each float32: a < b exactly if key(a) < key(b).

    NaN (missing) has the highest key of all; -0.0 has that of 0.0. `values` is float32 [N].
    """
    bits = values.view(np.uint32)
    out = np.empty(values.size, np.uint32)
    for i in range(values.size):
        word = bits[i]
        missing = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.uint32(0xFFFFFFFF) if missing else _key(word)
    return out


@loop
def _heads(keys, searches):
    """Lookup table for `searches` searches in increasing keys: the first key, int64 [H + 1], a number of
    bits.

    The distance d of a key from the first one has the head d >> bits, below H. Entry h is the number of keys
    with a head below h: a search for a key with head h is over after a step or two between entries h and
    h + 1. A search through all of them takes ten, each a branch that no processor predicts.
    """
    first = np.int64(keys[0]) if keys.size else np.int64(0)
    span = np.int64(keys[-1]) - first if keys.size else np.int64(0)
    table_size = 1 << (16 if searches >= _MANY_SEARCHES else 8)
    shift = 0
    while span >> shift >= table_size:
        shift += 1
    table = np.zeros((span >> shift) + 2, np.int64)
    for i in range(keys.size):
        table[((np.int64(keys[i]) - first) >> shift) + 1] += 1
    for head in range(table.size - 1):
        table[head + 1] += table[head]
    return first, table, shift


@loop
def count_cells(keys, units, starts, widths, subdivisions, out):
    """Count keys in the subcells of disjoint cells, given in increasing order.

    Cell c covers the 2**widths[c] keys from starts[c] and is cut in 2**subdivisions[c] equal subcells, whose
    counts are in `out`, one cell after the other. Keys in no cell are not counted. units: int64 [N], what
    each key counts; None where each counts 1.
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
        while i < keys.size and np.int64(keys[i]) == key:  # most columns of 0 and 1 have long runs
            rows += 1 if units is None else units[i]
            i += 1
        head = (key - first) >> shift
        head = min(max(head, 0), last)  # for keys before the first start, or far behind the last
        low, high = table[head], table[head + 1]
        while low < high:  # the first cell that starts beyond the key
            middle = (low + high) >> 1
            if np.int64(starts[middle]) <= key:
                low = middle + 1
            else:
                high = middle
        c = low - 1
        if c < 0:
            continue
        into = key - np.int64(starts[c])
        width = np.int64(widths[c])
        if into >> width:
            continue
        out[base[c] + (into >> (width - np.int64(subdivisions[c])))] += rows


@loop
def weigh_residuals(label, margin, weight, rows, start, width, bits, factor, limit, out):
    """out[c] += the weights, as `Scale.encode` makes them, of these rows with a residual in subcell c.

    The residual is float32(label - margin). The 2**width keys from `start` are cut in 2**bits equal subcells;
    residuals with other keys are not counted.
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
    """out[i] = the number of cuts <= values[i]; NaN goes to `missing_bin`. float32 [N] in, uint8 [N] out."""
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
    """by_row[i, d] = by_feature[features[d], i], in blocks that stay in the cache. uint8 [F, N] in, [N, D]
    out."""
    rows = by_feature.shape[1]
    for start in range(0, rows, _BLOCK):
        end = min(start + _BLOCK, rows)
        for d in range(features.size):
            column = by_feature[features[d]]
            for i in range(start, end):
                by_row[i, d] = column[i]


@loop
def _all_equal(column, i, code):
    """True if eight rows from i on have this code."""
    ones = np.uint64(0x0101010101010101)
    return i + 8 <= column.size and load_word(column, np.uint64(i)) == np.uint64(code) * ones


@loop
def sample_bins(by_feature, step):
    """The most frequent bin of each feature in every `step`-th row, the lowest of several; the number of
    these rows in it; and the number of bins that they show: int64 [F, 3]."""
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
    """out = the joint code of each pair of a code and a bin, from 0 in the order of their first rows;
    parts[joint code] = the pair: uint8 [N] each, and [MAX_CODES, 2].

    Returns the number of joint codes; or where there are too many, -1 - the rows that MAX_CODES suffice for.
    """
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
    """starts[i + 1] = the number of values outside their most frequent bin in the rows up to i."""
    starts[:] = 0
    for r in range(features.size):
        column, usual = by_feature[features[r]], np.uint8(most_frequent[r])
        for i in range(column.size):
            starts[i + 1] += np.int64(column[i] != usual)
    for i in range(starts.size - 1):
        starts[i + 1] += starts[i]


@loop
def list_sparse(by_feature, features, most_frequent, offsets, starts, entries):
    """entries[starts[i]:] = offsets[r] + bin of each feature r not in its most frequent bin in row i."""
    for r in range(features.size):
        column, usual = by_feature[features[r]], np.uint8(most_frequent[r])
        for i in range(column.size):
            if column[i] != usual:
                entries[starts[i]] = offsets[r] + column[i]
                starts[i] += 1
    for i in range(starts.size - 1, 0, -1):  # each has advanced to the start of the next row
        starts[i] = starts[i - 1]
    starts[0] = 0
