"""Every compiled loop: arrays in, arrays out, no objects. The only importer of numba.

Promises: each kernel computes bit for bit what its numpy twin in tests/gbdt/twins.py computes, on every
CPU: no fastmath, no libm, element-wise functions built from + - * / in a fixed order.
Refuses nothing: callers have validated their arrays.

Shapes: N rows, F features, T bins of all features together. `bins` is uint8 [N, F]; `rows` uint32 row
numbers; `offsets` uint32 [F], where a feature's bins begin among the T.
"""

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_BLOCK = 256  # rows of a block of `transpose`
_AHEAD = 24  # rows between a prefetch and its use: about one memory latency at 50 features a row


@intrinsic
def _prefetch(typingctx, array, index):
    """Ask for the cache line of array[index]; a hint, without effect on any value."""

    def codegen(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        byte = ir.IntType(8).as_pointer()
        place = builder.bitcast(builder.gep(view.data, [args[1]]), byte)
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(hint, [place, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, index), codegen


# ---- element-wise functions -------------------------------------------------------------------------

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 in two parts: k * high is exact for |k| < 2**20
_LN2_LOW = 1.90821492927058770002e-10
_INVERSE_FACTORIALS = tuple(1.0 / math.factorial(i) for i in range(14))
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in the low bits
_EXPONENT_BIAS = 1023
_MANTISSA = (1 << 52) - 1

_PREDICTED = 128
"""Rows that go down a tree together."""
_MANY_SEARCHES = 1 << 15
"""So many are worth a table of 65,536 entries, which takes as long to make as some thousand of them."""

_elementwise = njit(cache=True, nogil=True, inline="always", error_model="numpy")
_loop = njit(cache=True, nogil=True, error_model="numpy")


@_elementwise
def _exp(x):
    """e**x, x clipped to +-700: 2**k times the Taylor polynomial of the remainder |r| <= ln2 / 2."""
    x = x if x < 700.0 else 700.0
    x = x if x > -700.0 else -700.0
    shifted = x * _LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    total = _INVERSE_FACTORIALS[13]
    total = total * r + _INVERSE_FACTORIALS[12]
    total = total * r + _INVERSE_FACTORIALS[11]
    total = total * r + _INVERSE_FACTORIALS[10]
    total = total * r + _INVERSE_FACTORIALS[9]
    total = total * r + _INVERSE_FACTORIALS[8]
    total = total * r + _INVERSE_FACTORIALS[7]
    total = total * r + _INVERSE_FACTORIALS[6]
    total = total * r + _INVERSE_FACTORIALS[5]
    total = total * r + _INVERSE_FACTORIALS[4]
    total = total * r + _INVERSE_FACTORIALS[3]
    total = total * r + _INVERSE_FACTORIALS[2]
    total = total * r + 1.0
    total = total * r + 1.0
    power = np.int64((np.float64(shifted).view(np.int64) + _EXPONENT_BIAS) << 52)
    return total * power.view(np.float64)


@_elementwise
def _log(x):
    """ln x for normal x > 0: exponent * ln2 + 2 atanh(s), s = (m - 1) / (m + 1), m in [.7, 1.5)."""
    word = np.float64(x).view(np.int64)
    e = (word >> 52) - _EXPONENT_BIAS
    m = np.int64((word & _MANTISSA) | (_EXPONENT_BIAS << 52)).view(np.float64)
    high = m > 1.4142135623730951
    m = m * 0.5 if high else m
    e = e + 1 if high else e
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    total = q * (1.0 / 19.0) + 1.0 / 17.0
    total = total * q + 1.0 / 15.0
    total = total * q + 1.0 / 13.0
    total = total * q + 1.0 / 11.0
    total = total * q + 1.0 / 9.0
    total = total * q + 1.0 / 7.0
    total = total * q + 1.0 / 5.0
    total = total * q + 1.0 / 3.0
    total = total * q + 1.0
    k = np.float64(e)
    return k * _LN2_LOW + (2.0 * s * total + k * _LN2_HIGH)


@_elementwise
def _sigmoid(x):
    return 1.0 / (1.0 + _exp(-x))


@_loop
def exps(x):
    """e**x of each x: float64 [N]."""
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        out[i] = _exp(x[i])
    return out


@_loop
def logs(x):
    """ln x of each x > 0: float64 [N]."""
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        out[i] = _log(x[i])
    return out


@_loop
def sigmoids(margin):
    """1 / (1 + e**-margin): float64 [N]."""
    out = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        out[i] = _sigmoid(margin[i])
    return out


@_loop
def logistic_gradients(margin, label, weight):
    """Gradient w (p - y) and hessian w p (1 - p) of the log loss: two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        p = _sigmoid(margin[i])
        gradient[i] = weight[i] * (p - label[i])
        hessian[i] = weight[i] * (p * (1.0 - p))
    return gradient, hessian


@_loop
def log_losses(margin, label, weight):
    """w log(1 + e**-z), z the margin signed by the label: float64 [N]."""
    out = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        z = margin[i] if label[i] > 0.5 else -margin[i]
        loss = (-z if z < 0.0 else 0.0) + _log(1.0 + _exp(-abs(z)))
        out[i] = weight[i] * loss
    return out


# ---- gradients to packed integers -------------------------------------------------------------------


@_loop
def quantise(gradient, hessian, gradient_factor, hessian_factor, limit):
    """(gradient << 32) + hessian, both fixed-point as `Scale.encode` makes them: int64 [N].

    The hessian is never negative, so the low half is a plain sum of hessians as long as fewer than
    2**32 / limit rows are added, and the high half the sum of gradients.
    """
    out = np.empty(gradient.size, np.int64)
    for i in range(gradient.size):
        g = np.rint(gradient[i] * gradient_factor)
        g = g if g < limit else limit
        g = g if g > -limit else -limit
        h = np.rint(hessian[i] * hessian_factor)
        h = h if h < limit else limit
        out[i] = (np.int64(g) << 32) + np.int64(h)
    return out


@_loop
def sum_units(values, factor, limit):
    """The sum of `Scale.encode(values)`: float64 [N] in, one integer out."""
    total = 0
    for i in range(values.size):
        units = np.rint(values[i] * factor)
        units = units if units < limit else limit
        units = units if units > -limit else -limit
        total += np.int64(units)
    return total


# ---- histograms -------------------------------------------------------------------------------------


@_loop
def _unpack_into(packed, out):
    for i in range(packed.size):
        value = packed[i]
        out[2 * i] += value >> 32
        out[2 * i + 1] += value & 0xFFFFFFFF
        packed[i] = 0


@_loop
def build_histogram(bins, rows, pairs, offsets, block, scratch, out):
    """Add the pairs of `rows` into the bin each feature puts them in: out is int64 [2 T] (g, h, g, h ...).

    Pairs are added packed, `block` rows at a time, so that neither 32-bit half can overflow; `scratch` is
    int64 [T], all zero before and after.
    """
    features = offsets.size
    flat = bins.ravel()
    for start in range(0, rows.size, block):
        end = min(start + block, rows.size)
        for i in range(start, end):
            if i + _AHEAD < rows.size:
                ahead = np.int64(rows[i + _AHEAD])
                _prefetch(flat, ahead * features)
                _prefetch(flat, ahead * features + features - 1)
                _prefetch(pairs, ahead)
            row = np.int64(rows[i])
            pair = pairs[row]
            base = row * features
            for f in range(features):
                scratch[offsets[f] + flat[base + f]] += pair
        _unpack_into(scratch, out)


@_loop
def sum_pairs(pairs):
    """Totals of the gradients and of the hessians of all rows."""
    gradient, hessian = 0, 0
    for i in range(pairs.size):
        gradient += pairs[i] >> 32
        hessian += pairs[i] & 0xFFFFFFFF
    return gradient, hessian


@_loop
def sum_positive(rows, pairs):
    """Of the pairs of `rows`: the sum of the gradients that are above 0, and the sum of the hessians."""
    positive, hessian = 0, 0
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            _prefetch(pairs, np.int64(rows[i + _AHEAD]))
        pair = pairs[rows[i]]
        gradient = pair >> 32
        positive += gradient if gradient > 0 else 0
        hessian += pair & 0xFFFFFFFF
    return positive, hessian


@_loop
def bits_of_pairs(sums):
    """Of pairs of sums (g, h, g, h ...): every bit that is set in a g, or in -1 - g where it is negative; and
    every bit that is set in an h. Cells of w bits with a sign hold all g if the first is below 2**(w - 1).
    """
    gradient, hessian = np.int64(0), np.int64(0)
    for i in range(sums.size // 2):
        gradient |= sums[2 * i] ^ (sums[2 * i] >> 63)
        hessian |= sums[2 * i + 1]
    return gradient, hessian


@_loop
def join_pairs(sums, bits, out):
    """out = g * 2**bits + h of each pair of sums (g, h, g, h ...), modulo 2**64: int64 [N / 2]."""
    for i in range(out.size):
        out[i] = (sums[2 * i] << bits) + sums[2 * i + 1]


@_loop
def part_pairs(cells, bits, out):
    """out = the pairs (g, h, g, h ...) of such cells, where 0 <= h < 2**bits: int64 [2 N]."""
    mask = (np.int64(1) << bits) - 1
    for i in range(cells.size):
        out[2 * i] = cells[i] >> bits
        out[2 * i + 1] = cells[i] & mask


# ---- rows of nodes ----------------------------------------------------------------------------------


@_loop
def partition(codes, last_left, missing_bin, missing_left, rows, scratch):
    """Reorder `rows` in place, stably: those that go left first. Returns how many go left.

    `codes` is uint8 [N], the bin of each row for the feature that splits. A row goes left if its bin is at
    most `last_left`; the missing bin goes where `missing_left` says.
    """
    left, right = 0, 0
    for i in range(rows.size):
        row = rows[i]
        code = codes[row]
        goes_left = missing_left if code == missing_bin else code <= last_left
        rows[left] = row  # never overtakes the reader: left <= i
        scratch[right] = row
        left += goes_left
        right += not goes_left
    rows[left:] = scratch[:right]
    return left


@_loop
def add_value(margin, rows, value):
    """margin[rows] += value."""
    for i in range(rows.size):
        margin[rows[i]] += value


# ---- splits -----------------------------------------------------------------------------------------


@_loop
def _score(gradient, hessian, reg_lambda, reg_alpha):
    """The loss a leaf takes away, doubled: T(G)**2 / (H + lambda), T the soft threshold at alpha."""
    if gradient > reg_alpha:
        shrunk = gradient - reg_alpha
    elif gradient < -reg_alpha:
        shrunk = gradient + reg_alpha
    else:
        shrunk = 0.0
    return shrunk * shrunk / (hessian + reg_lambda) if hessian + reg_lambda > 0.0 else 0.0


@_loop
def best_split(histogram, offsets, value_bins, missing, factors, penalties, total):
    """The split of highest gain of one node; ties go to the lowest feature, then bin, then missing right.

    histogram: int64 [2 T]; value_bins: int64 [F], bins without the missing one; missing: bool [F], whether a
    missing bin follows them; factors: units per 1.0 of gradient and hessian; penalties: reg_lambda,
    reg_alpha, min_child_weight; total: the node's own two sums.
    Returns (gain, feature, bin, missing goes left, left gradient, left hessian); feature -1 if none.
    """
    reg_lambda, reg_alpha, min_child_weight = penalties
    root = _score(total[0] / factors[0], total[1] / factors[1], reg_lambda, reg_alpha)
    best_gain, best_feature, best_bin, best_missing_left = 0.0, -1, -1, False
    best_left_gradient, best_left_hessian = 0, 0
    for f in range(offsets.size):
        first, bins = np.int64(offsets[f]), value_bins[f]
        gradient_missing, hessian_missing = 0, 0
        if missing[f]:
            gradient_missing = histogram[2 * (first + bins)]
            hessian_missing = histogram[2 * (first + bins) + 1]
        directions = 2 if hessian_missing != 0 or gradient_missing != 0 else 1
        gradient, hessian = 0, 0
        # A cut after the last value bin parts the present from the missing, so it is tried only with both.
        for b in range(bins if directions == 2 else bins - 1):
            gradient += histogram[2 * (first + b)]
            hessian += histogram[2 * (first + b) + 1]
            for missing_left in range(directions if b < bins - 1 else 1):
                left_gradient = gradient + gradient_missing * missing_left
                left_hessian = hessian + hessian_missing * missing_left
                gl, hl = left_gradient / factors[0], left_hessian / factors[1]
                gr = (total[0] - left_gradient) / factors[0]
                hr = (total[1] - left_hessian) / factors[1]
                if hl < min_child_weight or hr < min_child_weight or hl <= 0.0 or hr <= 0.0:
                    continue
                gain = (_score(gl, hl, reg_lambda, reg_alpha) + _score(gr, hr, reg_lambda, reg_alpha)) - root
                if gain > best_gain:
                    best_gain, best_feature, best_bin = gain, f, b
                    best_missing_left = missing_left == 1
                    best_left_gradient, best_left_hessian = left_gradient, left_hessian
    return best_gain, best_feature, best_bin, best_missing_left, best_left_gradient, best_left_hessian


@_loop
def best_gains(histogram, offsets, value_bins, missing, factors, penalties, total):
    """The highest gain of a split by each feature alone, 0 where none gains: float64 [F]. As `best_split`."""
    out = np.zeros(offsets.size, np.float64)
    for f in range(offsets.size):
        one = slice(f, f + 1)
        best = best_split(histogram, offsets[one], value_bins[one], missing[one], factors, penalties, total)
        out[f] = best[0]
    return out


# ---- cut points and bins ----------------------------------------------------------------------------


@_elementwise
def _key(word):
    """The key of the float32 with these bits, which is a number."""
    if word == np.uint32(0x80000000):
        return word
    return ~word if word >> 31 else word | np.uint32(0x80000000)


@_loop
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


@_loop
def _heads(keys, searches):
    """For so many searches in increasing keys: the first key, a table int64 [H + 1], and a number of bits.

    The distance d of a key from the first one has the head d >> bits, below H. Entry h says how many keys
    have a head below h: a search for a key with head h is over after a step or two between entries h and
    h + 1. A search through all of them takes ten, each a branch that no processor foresees.
    """
    first = np.int64(keys[0]) if keys.size else np.int64(0)
    span = np.int64(keys[-1]) - first if keys.size else np.int64(0)
    most = 1 << (16 if searches >= _MANY_SEARCHES else 8)
    shift = 0
    while span >> shift >= most:
        shift += 1
    table = np.zeros((span >> shift) + 2, np.int64)
    for i in range(keys.size):
        table[((np.int64(keys[i]) - first) >> shift) + 1] += 1
    for head in range(table.size - 1):
        table[head + 1] += table[head]
    return first, table, shift


@_loop
def count_cells(keys, starts, widths, subdivisions, out):
    """Count keys in the subcells of disjoint cells, given in increasing order.

    Cell c covers the 2**widths[c] keys from starts[c] and is cut in 2**subdivisions[c] equal subcells, whose
    counts stand in out one cell after the other. Keys in no cell are not counted.
    """
    cells = starts.size
    base = np.zeros(cells + 1, np.int64)
    for c in range(cells):
        base[c + 1] = base[c] + (1 << subdivisions[c])
    first, table, shift = _heads(starts, keys.size)
    last = np.int64(table.size) - 2
    for i in range(keys.size):
        key = np.int64(keys[i])
        head = (key - first) >> shift
        head = min(max(head, 0), last)  # what lies before the first start, or far behind the last
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
        if into >> widths[c]:
            continue
        out[base[c] + (into >> (widths[c] - subdivisions[c]))] += 1


@_loop
def bin_column(values, cuts, missing_bin, out):
    """out[i] = how many cuts are <= values[i]; NaN goes to `missing_bin`. float32 [N] in, uint8 [N] out."""
    words = values.view(np.uint32)
    keys = float_keys(cuts)
    first, table, shift = _heads(keys, values.size)
    last = np.int64(table.size) - 2
    for i in range(values.size):
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


@_loop
def transpose(by_feature, by_row):
    """by_row[i, f] = by_feature[f, i], in blocks that stay in the cache. uint8 [F, N] in, [N, F] out."""
    features, rows = by_feature.shape
    for start in range(0, rows, _BLOCK):
        end = min(start + _BLOCK, rows)
        for f in range(features):
            for i in range(start, end):
                by_row[i, f] = by_feature[f, i]


# ---- prediction -------------------------------------------------------------------------------------


@_loop
def predict_margins(features, roots, left, right, feature, threshold, default_left, value, margin):
    """Add to margin the leaf value of every tree, tree after tree, for float32 features [N, F].

    The trees stand one after the other in the node columns; `roots` [trees] tells where each begins and
    child numbers, higher than their parent's, count from there. A leaf has left = -1.

    A block of rows goes down a tree together, level by level: the walks of different rows do not wait for
    each other, no branch has to be foreseen, and the tree stays in the cache.
    """
    nodes, rows = left.size, features.shape[0]
    child = np.empty(2 * nodes, np.uint32)  # where to go on: left, right; a leaf stays where it is
    column = feature.astype(np.uint32)
    depth = np.zeros(nodes, np.int32)
    deepest = np.zeros(roots.size, np.int32)
    for t in range(roots.size):
        root = roots[t]
        for node in range(root, roots[t + 1] if t + 1 < roots.size else nodes):
            child[2 * node] = child[2 * node + 1] = node
            if left[node] >= 0:
                child[2 * node], child[2 * node + 1] = root + left[node], root + right[node]
                depth[root + left[node]] = depth[root + right[node]] = depth[node] + 1
                deepest[t] = max(deepest[t], depth[node] + 1)
    at = np.empty(_PREDICTED, np.uint32)
    for start in range(0, rows, _PREDICTED):
        block = features[start : start + _PREDICTED]
        size = block.shape[0]
        missing = False
        for i in range(size):
            for f in range(block.shape[1]):
                missing |= block[i, f] != block[i, f]
        for t in range(roots.size):
            at[:] = roots[t]
            for _ in range(deepest[t]):
                if missing:
                    for i in range(size):
                        node = at[i]
                        x = block[i, column[node]]
                        goes_right = (x >= threshold[node]) | ((x != x) & (not default_left[node]))
                        at[i] = child[2 * node + np.uint32(goes_right)]
                else:
                    for i in range(size):
                        node = at[i]
                        goes_right = block[i, column[node]] >= threshold[node]
                        at[i] = child[2 * node + np.uint32(goes_right)]
            for i in range(size):
                margin[start + i] += value[at[i]]
