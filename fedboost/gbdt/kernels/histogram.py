"""Histogram kernels: exact sums of floats, packed gradients, sums by bin, and sums packed into cells."""

import math
from typing import Any, NamedTuple

import numpy as np

from fedboost.gbdt.kernels import load_word, loop, prefetch
from fedboost.gbdt.kernels.objectives import EXPONENT_BIAS, MANTISSA

LIMBS = 12
"""Number of integers (limbs) that together represent a sum of floats of any magnitude without loss
(`add_limbs`)."""
LIMB_BITS = 31
LIMBS_FROM = -184
MAX_IN_LIMBS = math.ldexp(1.0, 127)


@loop
def gradient_norms(gradient, hessian, reg_lambda):
    """Return the gradient norm sqrt(g**2 + reg_lambda h**2) of each row: float64 [N]. If there are several
    outputs, the squares are summed over the outputs in order. gradient, hessian: float64 [outputs, N]."""
    outputs, rows = gradient.shape
    out = np.zeros(rows, np.float64)
    for k in range(outputs):
        for i in range(rows):
            out[i] += gradient[k, i] * gradient[k, i] + reg_lambda * (hessian[k, i] * hessian[k, i])
    for i in range(rows):
        out[i] = math.sqrt(out[i])
    return out


@loop
def add_limbs(values, weight, out):
    """Add the sum of weight * value to the limbs in `out`.

    Each product is truncated towards 0 to a multiple of 2**LIMBS_FROM. Each limb holds LIMB_BITS bits of the
    product, and has the product's sign.

    Args:
        values: float64 [N]. NaN and magnitudes above MAX_IN_LIMBS count as MAX_IN_LIMBS, with their sign.
        weight: float32 or float64 [N], at most 2**60.
        out: int64 [LIMBS], lowest first, updated in place.
    """
    mask = (np.uint64(1) << np.uint64(LIMB_BITS)) - np.uint64(1)
    # The limbs cover 2**-184 up to 2**188, and a product is at most 2**127 * 2**60 = 2**187. Each row adds
    # less than 2**31 to a limb, so int64 limbs are exact for up to 2**32 rows, without propagating carries.
    limbs = np.zeros(LIMBS + 3, np.int64)  # the last three absorb invalid weights
    for i in range(values.size):
        value = values[i] if values[i] < MAX_IN_LIMBS else MAX_IN_LIMBS
        value = weight[i] * (value if value > -MAX_IN_LIMBS else -MAX_IN_LIMBS)
        word = np.float64(value).view(np.int64)
        sign = 1 - 2 * ((word >> 63) & 1)
        exponent = (word >> 52) & 0x7FF
        mantissa = np.uint64((word & MANTISSA) | (MANTISSA + 1))
        position = exponent - (EXPONENT_BIAS + 52 + LIMBS_FROM)  # of the lowest mantissa bit
        if position <= -53:  # the whole mantissa is below 2**LIMBS_FROM
            continue
        if position < 0:
            mantissa >>= np.uint64(-position)
            position = 0
        # A mantissa of 53 bits, shifted by up to 30, spans at most three limbs. The first shift may push bits
        # out of the uint64, but the mask keeps only the lowest 31.
        limb, shift = position // LIMB_BITS, np.uint64(position % LIMB_BITS)
        limbs[limb] += sign * np.int64((mantissa << shift) & mask)
        mantissa >>= np.uint64(LIMB_BITS) - shift
        limbs[limb + 1] += sign * np.int64(mantissa & mask)
        limbs[limb + 2] += sign * np.int64(mantissa >> np.uint64(LIMB_BITS))
    for limb in range(LIMBS):
        out[limb] += limbs[limb]


@loop
def quantise(gradient, hessian, gradient_factor, hessian_factor, limit, out):
    """Write (gradient << 32) + hessian of each row, both in fixed point as returned by `Scale.encode`.

    The hessian is never negative. As long as fewer than 2**32 / limit rows are added, the low half of a sum
    is therefore the sum of hessians, and the high half the sum of gradients.

    Args:
        gradient, hessian: float64 [N].
        gradient_factor, hessian_factor: units per 1.0.
        limit: largest magnitude of an encoded number.
        out: int64 [N], receives the result.
    """
    for i in range(gradient.size):
        g = np.rint(gradient[i] * gradient_factor)
        g = g if g < limit else limit
        g = g if g > -limit else -limit
        h = np.rint(hessian[i] * hessian_factor)
        h = h if h < limit else limit
        out[i] = (np.int64(g) << 32) + np.int64(h)


@loop
def _clipped(value, least):
    """Return the value, clipped to the range from `least` to 1. NaN becomes 1: `min` and `max` would return
    NaN, whose integer is far beyond any bound."""
    value = value if value < 1.0 else 1.0
    return value if value > least else least


@loop
def quantise_bounded(gradient, hessian, gradient_factor, hessian_factor, weight, units, out):
    """Like `quantise`, but clips both numbers and rounds toward zero, so that the norm of a row's result is
    bounded.

    Args:
        gradient, hessian: float64 [N].
        gradient_factor, hessian_factor: factors for the gradient and the hessian. The products are clipped to
            1 in magnitude.
        weight: factor for the clipped hessian.
        units: units per 1.0 of the result.
        out: int64 [N], receives the result.
    """
    for i in range(gradient.size):
        g = _clipped(gradient[i] * gradient_factor, -1.0)
        h = _clipped(hessian[i] * hessian_factor, 0.0)
        out[i] = (np.int64(g * units) << 32) + np.int64(h * weight * units)


BELOW_ONE = 1.0 - 2.0**-40
"""Factor that keeps a norm below 1 in spite of the rounding errors of its steps, which are below 2**-50."""


@loop
def quantise_scaled(gradient, hessian, units, out):
    """Like `quantise_bounded`, but for a gradient p - y with a label y of 0 or 1: multiplies each row's
    gradient and hessian by a function of p, such that the norm of the two is 1 for one of the labels, and at
    most 1 for the other one. Together they must be at most 1 in magnitude; gradient, hessian, units, out: as
    there."""
    for i in range(gradient.size):
        g = _clipped(gradient[i], -1.0)
        h = _clipped(hessian[i], 0.0)
        larger = max(abs(g), 1.0 - abs(g))  # max(p, 1 - p)
        scale = BELOW_ONE / math.sqrt(larger * larger + h * h) * units
        out[i] = (np.int64(g * scale) << 32) + np.int64(h * scale)


@loop
def sum_units(values, factor, limit):
    """Return the sum of `Scale.encode(values)` as an integer. values: float64 or float32 [N]; factor: units
    per 1.0; limit: largest magnitude of an encoded value."""
    total = 0
    for i in range(values.size):
        units = np.rint(values[i] * factor)
        units = units if units < limit else limit
        units = units if units > -limit else -limit
        # |units| <= limit <= 2**31: int64 is exact for up to 2**32 values.
        total += np.int64(units)
    return total


# ---- Histogram kernels: packed pairs of gradient and hessian summed by bin ------------------------------
# A pair is one int64, and one addition adds both halves:
#
#    bit 63          32 31           0
#     +----------------+--------------+   |sum of g| < 2**31 and 0 <= sum of h < 2**31
#     |  sum of g      |  sum of h    |   for at most `block` rows, since `histogram.build`
#     +----------------+--------------+   sets block = 2**31 // limit - 1.
#
# As the low half never carries or borrows, `pair >> 32` is the sum of g and `pair & 0xFFFFFFFF` that of h.
# After each block the packed sums are added to plain int64 sums. A block adds less than 2**31 to one of
# those, so that 2**32 blocks fit.


TOGETHER = 64
"""Number of columns processed at a time when a histogram is built, so that their sums stay in the cache."""
STRIDE = 264
"""Distance between the sums of one column and those of the next: 256 codes plus one cache line. Without the
extra line, the first codes of all columns would compete for the same few cache lines."""
SCRATCH = TOGETHER * STRIDE
SEGMENT, LEVEL_SCRATCH = 1 << 16, 1 << 19
"""Number of rows, and approximate maximum number of sums of all nodes, that are processed at a time if a
histogram is built by column, so that they stay in the cache."""
WORD = 8
"""Number of bytes loaded at once."""


class Columns(NamedTuple):
    """Columns of a table of codes. Columns with a single feature come first; their codes are bins. The other
    columns hold joint codes of several features.

    sizes: int64 [C], number of codes of each column; starts: int64 [C + 1], index of each column's first
    feature among the D features of all columns; begins: int64 [D], first bin of each feature in a histogram;
    bins: uint8 [256, J], the bin that a joint code stands for, for each of the last J features."""

    sizes: Any
    starts: Any
    begins: Any
    bins: Any


@loop
def _unpack_into(packed, out):
    for i in range(packed.size):
        value = packed[i]
        out[2 * i] += value >> 32
        out[2 * i + 1] += value & 0xFFFFFFFF
        packed[i] = 0


@loop
def _take_apart(packed, begins, bins, out):
    """Add the sum of each joint code to the bins in `out` that the code stands for, and reset the sum to 0.
    packed: int64 [codes]; begins: int64 [M]; bins: uint8 [256, M]; out: int64 [2 T]."""
    # Every row with this joint code is in the same bin of each of its features, so the sum by code belongs to
    # one bin of each. The packed sums return to 0 on the way, ready for the next block.
    for code in range(packed.size):
        pair = packed[code]
        if pair != 0:
            packed[code] = 0
            for feature in range(begins.size):
                cell = 2 * (begins[feature] + bins[code, feature])
                out[cell] += pair >> 32
                out[cell + 1] += pair & 0xFFFFFFFF


@loop
def _empty(scratch, columns, first, last, out):
    """Add packed sums to their bins, and reset them to 0. The arguments are as in `build_histogram`."""
    alone = columns.begins.size - columns.bins.shape[1]
    for column in range(first, last):
        slot, size = (column - first) * STRIDE, columns.sizes[column]
        packed, feature = scratch[slot : slot + size], columns.starts[column]
        if feature < alone:
            begin = columns.begins[feature]
            _unpack_into(packed, out[2 * begin : 2 * (begin + size)])
        else:
            end = columns.starts[column + 1]
            bins = columns.bins[:, feature - alone : end - alone]
            _take_apart(packed, columns.begins[feature:end], bins, out)


@loop
def _add_word(word, pair, slot, scratch):
    """Add a row's pair to the sums of its codes in WORD columns. word: the eight codes; slot: index of the
    first column's sums."""
    byte = np.uint64(0xFF)
    scratch[slot + (word & byte)] += pair
    scratch[slot + np.uint64(STRIDE) + (word >> np.uint64(8) & byte)] += pair
    scratch[slot + np.uint64(2 * STRIDE) + (word >> np.uint64(16) & byte)] += pair
    scratch[slot + np.uint64(3 * STRIDE) + (word >> np.uint64(24) & byte)] += pair
    scratch[slot + np.uint64(4 * STRIDE) + (word >> np.uint64(32) & byte)] += pair
    scratch[slot + np.uint64(5 * STRIDE) + (word >> np.uint64(40) & byte)] += pair
    scratch[slot + np.uint64(6 * STRIDE) + (word >> np.uint64(48) & byte)] += pair
    scratch[slot + np.uint64(7 * STRIDE) + (word >> np.uint64(56))] += pair


@loop
def _add_words(codes, rows, pairs, scratch):
    """Like `_add_pairs`, but for a table of exactly WORD columns."""
    flat, ahead, width = codes.ravel(), 32, np.uint64(WORD)
    positive, hessian = 0, 0
    for i in range(rows.size):
        if i + ahead < rows.size:
            soon = np.uint64(rows[np.uint64(i + ahead)])
            prefetch(pairs, soon)
            prefetch(flat, soon * width)
        row = np.uint64(rows[np.uint64(i)])
        pair = pairs[row]
        positive += max(pair >> 32, 0)
        hessian += pair & 0xFFFFFFFF
        _add_word(load_word(flat, row * width), pair, np.uint64(0), scratch)
    return positive, hessian


@loop
def _add_pairs(codes, rows, pairs, first, last, scratch):
    """Add the pair of each row to scratch[STRIDE * c + code], for each code of the row in column first + c.

    Returns the sum of the positive gradients and the sum of the hessians. codes: uint8 [N, C or more]; rows:
    uint32 [n]; pairs: int64 [N]; scratch: int64, see `build_histogram`."""
    flat, width = codes.ravel(), np.uint64(codes.shape[1])
    start_of, count = np.uint64(first), np.uint64(last - first)
    ahead = min(max(8, 512 // codes.shape[1]), 32)
    positive, hessian = 0, 0
    for i in range(rows.size):
        if i + ahead < rows.size:
            soon = np.uint64(rows[np.uint64(i + ahead)])
            prefetch(pairs, soon)
            prefetch(flat, soon * width + start_of)
            prefetch(flat, soon * width + start_of + count - np.uint64(1))
        row = np.uint64(rows[np.uint64(i)])
        pair, place = pairs[row], row * width + start_of
        # Plain int64 sums, each below 2**31 in a block.
        positive += max(pair >> 32, 0)
        hessian += pair & 0xFFFFFFFF
        c = np.uint64(0)
        while c + np.uint64(WORD - 1) < count:  # unsigned, so that numba does not check for negative indices
            _add_word(load_word(flat, place + c), pair, c * np.uint64(STRIDE), scratch)
            c += np.uint64(WORD)
        while c < count:
            scratch[c * np.uint64(STRIDE) + np.uint64(flat[place + c])] += pair
            c += np.uint64(1)
    return positive, hessian


@loop
def build_histogram(codes, rows, pairs, columns, first, last, block, scratch, out):
    """Add the pairs of `rows` to the bins of the features in columns `first` to `last` - 1, at most TOGETHER
    columns.

    Pairs are added in packed form, `block` rows at a time, so that neither 32-bit half can overflow, and then
    unpacked.

    Args:
        codes: uint8 [N, C or more].
        rows: uint32 [n], row numbers.
        pairs: int64 [N], packed gradients and hessians.
        columns: `Columns`.
        first, last: range of columns.
        block: number of rows that can be added in packed form.
        scratch: int64 [STRIDE * the larger of WORD and the number of columns], all zero before and after the
            call.
        out: int64 [2 T + 2], the sums (g, h, g, h ...) of T bins, updated in place. If `first` is 0, the last
            pair receives the sums of the positive gradients and of the hessians of all rows.
    """
    in_words = codes.shape[1] == WORD and first == 0
    for start in range(0, rows.size, block):
        part = rows[start : start + block]
        if in_words:
            sums = _add_words(codes, part, pairs, scratch)
            scratch[last * STRIDE : WORD * STRIDE] = 0  # the bytes after a row's columns are not codes
        else:
            sums = _add_pairs(codes, part, pairs, first, last, scratch)
        if first == 0:
            out[-2] += sums[0]
            out[-1] += sums[1]
        _empty(scratch, columns, first, last, out)


@loop
def build_sparse(starts, entries, rows, pairs, offsets, most_frequent, begins, block, out):
    """Add the pairs of `rows` to the bins of sparse features. A row without an entry for a feature is in its
    most frequent bin.

    Args:
        starts, entries, offsets, most_frequent: int64 [N + 1], uint32, int64 [R + 1] and int64 [R]
            (`SparseBins`).
        rows, pairs, block: as in `build_histogram`.
        begins: int64 [R], first bin of each feature in `out`.
        out: int64 [2 T or more], the sums (g, h, g, h ...) of T bins, updated in place.
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
    # The most frequent bin is never listed: its sum is the total of the rows less the listed bins.
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
    gradient, hessian = 0, 0
    for i in range(pairs.size):
        gradient += pairs[i] >> 32
        hessian += pairs[i] & 0xFFFFFFFF
    return gradient, hessian


# ---- Level kernels: the histograms of all its nodes, and packing pairs of sums into cells ---------------
# A level's sums are those of its nodes one after the other, pairs (g, h, g, h ...). `pairs_of` is int64
# [nodes], the number of pairs of each; `widths` is int64 [nodes, 2], the bits of a g, with the sign, and of
# an h. If both widths together are at most MAX_BITS, a pair is one cell, g * 2**(bits of h) + h modulo
# 2**64. Otherwise it is two cells.


MAX_BITS = 64


@loop
def build_level(by_row, rows, pairs, places, pieces, targets, columns, first, last, block, out):
    """Add the pairs of nodes' pieces (ranges of a node's rows) to the bins of the features in columns `first`
    to `last` - 1.

    Args:
        by_row: uint8 [N, C or more], codes of the columns.
        rows: uint32, row numbers of all nodes.
        pairs: int64 [outputs, N], packed gradients and hessians.
        places: int64 [nodes, 3], with the node's output in the last column.
        pieces: int64 [P, 3], index of the node in `places`, begin and end in `rows`.
        targets: int64 [P], row of `out` for each piece.
        columns, first, last, block: as in `build_histogram`; any number of columns.
        out: int64 [histograms, 2 T + 2], updated in place.
    """
    scratch = np.zeros(STRIDE * min(max(last - first, WORD), TOGETHER), np.int64)
    for piece in range(pieces.shape[0]):
        own, cells = rows[pieces[piece, 1] : pieces[piece, 2]], out[targets[piece]]
        own_pairs = pairs[places[pieces[piece, 0], 2]]
        for start in range(first, last, TOGETHER):
            end = min(start + TOGETHER, last)
            build_histogram(by_row, own, own_pairs, columns, start, end, block, scratch, cells)


@loop
def _add_four(by_feature, features, rows, pairs, sums):
    """Add pair i to the sums of row rows[i]'s bins of four features. sums: int64 [4 * STRIDE]."""
    a, b = by_feature[features[0]], by_feature[features[1]]
    c, d = by_feature[features[2]], by_feature[features[3]]
    for i in range(rows.size):
        row, pair = np.uint64(rows[np.uint64(i)]), pairs[np.uint64(i)]
        sums[np.uint64(a[row])] += pair
        sums[np.uint64(STRIDE) + np.uint64(b[row])] += pair
        sums[np.uint64(2 * STRIDE) + np.uint64(c[row])] += pair
        sums[np.uint64(3 * STRIDE) + np.uint64(d[row])] += pair


@loop
def build_level_by_column(
    by_feature, features, rows, pairs, places, pieces, targets, columns, first, last, block, out
):
    """Like `build_level`, but reads the codes of columns with a single feature each from uint8 [F, N], where
    column c is row features[c]. Memory is read in segments: four columns and all nodes' sums stay in the
    cache."""
    count, total = pieces.shape[0], (pieces[:, 2] - pieces[:, 1]).sum()
    together = 4 * max(min(LEVEL_SCRATCH // (4 * STRIDE * max(count, 1)), -(-(last - first) // 4)), 1)
    scratch, filled = np.empty((count, together * STRIDE), np.int64), np.empty(count, np.int64)
    own, room = np.empty(min(total, SEGMENT * count), np.int64), min(SEGMENT, block)
    padded = np.append(features, np.full(3, features[0]))  # the sums of what is added are not used
    lowest = min([np.int64(rows[p[1]]) if p[1] < p[2] else by_feature.shape[1] for p in pieces])
    for low in range(first, last, together):
        high, left, limit, ends = min(low + together, last), total, lowest, pieces[:, 1].copy()
        begins = ends.copy()
        scratch[:], filled[:] = 0, 0
        while left:
            # A piece takes its next rows below `limit`, but at most `room`. It takes the others later.
            limit, taken = limit + SEGMENT, 0
            for piece in range(count):
                node_pairs, cells = pairs[places[pieces[piece, 0], 2]], out[targets[piece]]
                i = begins[piece] = ends[piece]
                end, positive, hessian = min(pieces[piece, 2], i + room), 0, 0
                while i < end and rows[i] < limit:
                    if i + 64 < end:
                        prefetch(node_pairs, rows[i + 64])
                    pair = own[taken] = node_pairs[rows[i]]
                    positive += max(pair >> 32, 0)
                    hessian += pair & 0xFFFFFFFF
                    i, taken = i + 1, taken + 1
                if low == 0:
                    cells[-2] += positive
                    cells[-1] += hessian
                ends[piece], filled[piece] = i, filled[piece] + i - begins[piece]
                if filled[piece] > block:
                    _empty(scratch[piece], columns, low, high, cells)
                    filled[piece] = i - begins[piece]
            left -= taken
            for column in range(low, high, 4):
                slot, begin = (column - low) * STRIDE, 0
                for piece in range(count):
                    own_rows = rows[begins[piece] : ends[piece]]
                    end, sums = begin + own_rows.size, scratch[piece, slot : slot + 4 * STRIDE]
                    _add_four(by_feature, padded[column : column + 4], own_rows, own[begin:end], sums)
                    begin = end
        for piece in range(count):
            _empty(scratch[piece], columns, low, high, out[targets[piece]])


@loop
def build_sparse_level(
    starts, entries, offsets, most_frequent, rows, pairs, places, pieces, targets, begins, block, out
):
    """Like `build_level`, but for sparse features.

    Args:
        starts, entries, offsets, most_frequent, begins: as in `build_sparse`.
        rows, pairs, places, pieces, targets, block, out: as in `build_level`.
    """
    for piece in range(pieces.shape[0]):
        own, cells = rows[pieces[piece, 1] : pieces[piece, 2]], out[targets[piece]]
        own_pairs = pairs[places[pieces[piece, 0], 2]]
        build_sparse(starts, entries, own, own_pairs, offsets, most_frequent, begins, block, cells)


@loop
def spread_level(sums, places, out):
    """Write a party's sums of several nodes among those of all parties. sums: int64 [nodes, own bins or more,
    2]; places: int64 [own bins], index of each own bin among all bins; out: int64 [nodes, bins or more, 2],
    updated in place."""
    for node in range(out.shape[0]):
        for own in range(places.size):
            place = places[own]
            out[node, place, 0], out[node, place, 1] = sums[node, own, 0], sums[node, own, 1]


@loop
def fit_level(sums, pairs_of, widths):
    """Return whether all pairs of gradient and hessian sums fit into cells of these widths. sums: int64 [2 *
    sum of pairs_of]; pairs_of: int64 [nodes], number of pairs of each node; widths: int64 [nodes, 2], bits of
    the gradient and of the hessian sums."""
    start = 0
    for node in range(pairs_of.size):
        gradient, hessian = np.int64(0), np.int64(0)
        own = sums[start : start + 2 * pairs_of[node]]
        for pair in range(own.size // 2):
            gradient |= own[2 * pair] ^ (own[2 * pair] >> 63)  # -1 - g if g is negative
            hessian |= own[2 * pair + 1]
        # A g of w bits with the sign lies in [-2**(w - 1), 2**(w - 1) - 1]; folded, both ends are below
        # 2**(w - 1). The OR of all has a higher bit exactly if one of them has it.
        if gradient >> (widths[node, 0] - 1) or hessian < 0 or hessian >> widths[node, 1]:
            return False
        start += own.size
    return True


@loop
def pack_level(sums, pairs_of, widths, cells):
    """Pack a level's pairs of sums into cells. sums, pairs_of, widths: as in `fit_level`; cells: int64 [one
    or two per pair], receives the result."""
    start, cell = 0, 0
    for node in range(pairs_of.size):
        own, bits = sums[start : start + 2 * pairs_of[node]], widths[node, 1]
        together = widths[node, 0] + bits <= MAX_BITS
        packed = cells[cell : cell + (pairs_of[node] if together else own.size)]
        if together:
            for pair in range(packed.size):
                # Cells add modulo 2**64: a total that fits these widths is recovered exactly.
                packed[pair] = (own[2 * pair] << bits) + own[2 * pair + 1]
        else:
            packed[:] = own
        start, cell = start + own.size, cell + packed.size


@loop
def unpack_level(cells, pairs_of, widths, sums):
    """Reverse `pack_level`: write the pairs in `cells` to `sums`. Sums of hessians are read as unsigned
    numbers. The arguments are as in `pack_level`."""
    start, cell = 0, 0
    for node in range(pairs_of.size):
        own, bits = sums[start : start + 2 * pairs_of[node]], widths[node, 1]
        together = widths[node, 0] + bits <= MAX_BITS
        packed = cells[cell : cell + (pairs_of[node] if together else own.size)]
        mask = (np.int64(1) << bits) - 1
        if together:
            for pair in range(packed.size):
                # The arithmetic shift floors: with 0 <= h < 2**bits that is g, for negative g, too.
                own[2 * pair], own[2 * pair + 1] = packed[pair] >> bits, packed[pair] & mask
        else:
            own[:] = packed
        start, cell = start + own.size, cell + packed.size
