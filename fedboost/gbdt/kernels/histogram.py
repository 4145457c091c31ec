"""Kernels of histograms: packed pairs of gradient and hessian summed by bin."""

import numpy as np

from fedboost.gbdt.kernels.compile import load_word, loop, prefetch

_GATHERED = 256
"""Pairs that are gathered before they are added."""
TOGETHER = 64
"""Features a histogram is built of at a time, so that their sums stay in the cache."""
STRIDE = 264
"""Elements from the sums of one feature to the next: enough for 256 bins, and a cache line more, so that the
first bins of all features do not compete for the same few cache lines."""
SCRATCH = TOGETHER * STRIDE


@loop
def _unpack_into(packed, out):
    for i in range(packed.size):
        value = packed[i]
        out[2 * i] += value >> 32
        out[2 * i + 1] += value & 0xFFFFFFFF
        packed[i] = 0


@loop
def _add_pairs(bins, rows, pairs, first, last, ahead, scratch):
    """scratch[STRIDE * f + the bin of feature first + f] += the pair, for each row and feature.

    Returns the sum of the gradients above 0, and that of the hessians.
    """
    flat, width = bins.ravel(), np.uint64(bins.shape[1])
    byte, start_of, count = np.uint64(0xFF), np.uint64(first), np.uint64(last - first)
    gathered = np.empty(_GATHERED, np.int64)
    positive, hessian = 0, 0
    for start in range(0, rows.size, _GATHERED):
        size = min(_GATHERED, rows.size - start)
        for i in range(start, start + size):  # separate from the rows' bins: fewer cache misses at once
            if i + _GATHERED < rows.size:
                prefetch(pairs, np.uint64(rows[np.uint64(i + _GATHERED)]))
            pair = pairs[np.uint64(rows[np.uint64(i)])]
            gathered[np.uint64(i - start)] = pair
            positive += max(pair >> 32, 0)
            hessian += pair & 0xFFFFFFFF
        for i in range(start, start + size):
            if i + ahead < rows.size:
                soon = np.uint64(rows[np.uint64(i + ahead)]) * width + start_of
                prefetch(flat, soon)
                prefetch(flat, soon + count - np.uint64(1))
            pair, codes = gathered[np.uint64(i - start)], np.uint64(rows[np.uint64(i)]) * width + start_of
            f = np.uint64(0)
            while f + np.uint64(7) < count:  # unsigned throughout: numba then looks for no negative index
                eight, slot = load_word(flat, codes + f), f * np.uint64(STRIDE)
                scratch[slot + (eight & byte)] += pair
                scratch[slot + np.uint64(STRIDE) + (eight >> np.uint64(8) & byte)] += pair
                scratch[slot + np.uint64(2 * STRIDE) + (eight >> np.uint64(16) & byte)] += pair
                scratch[slot + np.uint64(3 * STRIDE) + (eight >> np.uint64(24) & byte)] += pair
                scratch[slot + np.uint64(4 * STRIDE) + (eight >> np.uint64(32) & byte)] += pair
                scratch[slot + np.uint64(5 * STRIDE) + (eight >> np.uint64(40) & byte)] += pair
                scratch[slot + np.uint64(6 * STRIDE) + (eight >> np.uint64(48) & byte)] += pair
                scratch[slot + np.uint64(7 * STRIDE) + (eight >> np.uint64(56))] += pair
                f += np.uint64(8)
            while f < count:
                scratch[f * np.uint64(STRIDE) + np.uint64(flat[codes + f])] += pair
                f += np.uint64(1)
    return positive, hessian


@loop
def build_histogram(bins, rows, pairs, begins, ends, first, last, block, scratch, out):
    """Add the pairs of `rows` into the bins of the features from `first` to before `last`, at most TOGETHER.

    begins, ends: int64 [F], the first of a feature's bins among the T and their end; out: int64 [2 T + 2] (g,
    h, g, h ...), with the first features also the last pair, the sums of the gradients above 0 and of the
    hessians of all rows; scratch: int64 [SCRATCH], all zero before and after. Pairs are added packed, `block`
    rows at a time, so that neither 32-bit half can overflow, and then unpacked."""
    bins_of_all = out.size // 2 - 1
    ahead = max(8, 512 // begins.size)
    for start in range(0, rows.size, block):
        sums = _add_pairs(bins, rows[start : start + block], pairs, first, last, ahead, scratch)
        if first == 0:
            out[2 * bins_of_all] += sums[0]
            out[2 * bins_of_all + 1] += sums[1]
        for feature in range(first, last):
            begin, end, slot = begins[feature], ends[feature], (feature - first) * STRIDE
            _unpack_into(scratch[slot : slot + end - begin], out[2 * begin : 2 * end])


@loop
def build_sparse(starts, entries, rows, pairs, offsets, most_frequent, begins, block, out):
    """Add the pairs of `rows` into the bins of sparse features (`SparseBins`).

    begins: int64 [R], the first bin of each in out, int64 [2 T] (g, h, g, h ...). A row without an entry of a
    feature is in its most frequent bin.
    """
    packed, listed = np.zeros(offsets[-1], np.int64), np.zeros(2 * offsets[-1], np.int64)
    gradient, hessian = 0, 0
    for start in range(0, rows.size, block):
        for i in range(start, min(start + block, rows.size)):
            row = rows[i]
            pair = pairs[row]
            gradient += pair >> 32
            hessian += pair & 0xFFFFFFFF
            for entry in range(starts[row], starts[row + 1]):
                packed[entries[entry]] += pair
        _unpack_into(packed, listed)
    for r in range(most_frequent.size):
        cells = out[2 * begins[r] : 2 * (begins[r] + offsets[r + 1] - offsets[r])]
        gradient_left, hessian_left = gradient, hessian
        for b in range(cells.size // 2):
            g, h = listed[2 * (offsets[r] + b)], listed[2 * (offsets[r] + b) + 1]
            cells[2 * b] += g
            cells[2 * b + 1] += h
            gradient_left -= g
            hessian_left -= h
        cells[2 * most_frequent[r]] += gradient_left
        cells[2 * most_frequent[r] + 1] += hessian_left


@loop
def sum_pairs(pairs):
    """Totals of the gradients and of the hessians of all rows."""
    gradient, hessian = 0, 0
    for i in range(pairs.size):
        gradient += pairs[i] >> 32
        hessian += pairs[i] & 0xFFFFFFFF
    return gradient, hessian
