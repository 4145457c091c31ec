"""Naive twins of `fedboost.gbdt.kernels`: what each kernel computes, written for reading, not for speed.

Written from the formulas: plain Python loops, plain Python integers, and numpy where an element-wise function
is nothing but + - * / in a stated order. The tests hold the kernels equal to these with `==`.
"""

import math
import struct
from fractions import Fraction
from itertools import combinations

import numpy as np

LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # ln 2 cut after 32 bits, and the rest
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
LOG2_E = float.fromhex("0x1.71547652b82fep+0")


def exps(x):
    """2**k * (Taylor polynomial of degree 13 of e**r), x = k ln 2 + r, with x clipped to +-700."""
    x = np.clip(x, -700.0, 700.0)
    k = np.rint(x * LOG2_E)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    total = np.full(x.shape, 1.0 / math.factorial(13))
    for i in range(12, -1, -1):
        total = total * r + 1.0 / math.factorial(i)
    return np.ldexp(total, k.astype(np.int64))


def logs(x):
    """e ln 2 + 2 atanh(s), s = (m - 1) / (m + 1), x = m 2**e with m in (sqrt(1/2), sqrt(2)]."""
    half, e = np.frexp(x)
    m, e = 2.0 * half, e - 1
    high = m > math.sqrt(2.0)
    m, k = np.where(high, half, m), np.where(high, e + 1, e).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    total = np.full(x.shape, 1.0 / 19.0)
    for odd in range(17, 0, -2):
        total = total * q + 1.0 / odd
    return k * LN2_LOW + (2.0 * s * total + k * LN2_HIGH)


def sigmoids(margin):
    return 1.0 / (1.0 + exps(-margin))


def logistic_gradients(margin, label, weight):
    p = sigmoids(margin)
    return weight * (p - label), weight * (p * (1.0 - p))


def log_losses(margin, label, weight):
    z = np.where(label == 1, margin, -margin)
    return weight * (np.maximum(-z, 0.0) + logs(1.0 + exps(-np.abs(z))))


def _one(function, x):
    return float(function(np.array([x], np.float64))[0])


def discount(place):
    return 1.0 / (_one(logs, place + 2.0) * LOG2_E)


def dcg(gains, most):
    total = 0.0
    for place, gain in enumerate(gains[:most]):
        total += gain * discount(place)
    return total


def groups_of(starts):
    return [range(first, end) for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]


def by_margin(rows, margin):
    """The rows, those of the highest margin first, equal ones as they stand."""
    return sorted(rows, key=lambda row: -margin[row])


def lambda_gradients(margin, label, gain, weight, starts, most, by_ndcg, score_normalization, normalization):
    margin, gain = margin.tolist(), gain.tolist()
    gradient, hessian = [0.0] * len(margin), [0.0] * len(margin)
    for rows in groups_of(starts):
        order, total = by_margin(rows, margin), 0.0
        ideal = dcg(sorted((gain[row] for row in rows), reverse=True), most)
        for i, upper in enumerate(order[:most]):
            for j, lower in enumerate(order[i + 1 :], i + 1):
                if label[upper] == label[lower]:
                    continue
                high, low = (upper, lower) if label[upper] > label[lower] else (lower, upper)
                counts = 1.0
                if by_ndcg:
                    counts = (gain[high] - gain[low]) * (discount(i) - discount(j)) * (1.0 / ideal)
                if score_normalization and len({margin[row] for row in rows}) > 1:
                    counts /= abs(margin[high] - margin[low]) + 0.01
                p = _one(sigmoids, margin[high] - margin[low])
                pull, bend = (1.0 - p) * counts, max(p * (1.0 - p), 1e-16) * counts * 2.0
                gradient[high] -= pull
                gradient[low] += pull
                hessian[high] += bend
                hessian[low] += bend
                total += 2.0 * pull
        factor = _one(logs, 1.0 + total) * LOG2_E / total if normalization and total > 0 else 1.0
        for row in rows:
            gradient[row] = gradient[row] * factor * float(weight[row])
            hessian[row] = hessian[row] * factor * float(weight[row])
    return gradient, hessian


def ndcgs(margin, gain, starts, most, without):
    out = []
    for rows in groups_of(starts):
        ideal = dcg(sorted(gain[rows].tolist(), reverse=True), most)
        out.append(
            dcg([float(gain[row]) for row in by_margin(rows, margin)], most) / ideal if ideal else without
        )
    return out


def rates(margin):
    return exps(np.clip(margin, -300.0, 300.0))


def poisson_gradients(margin, label, weight, boost):
    p = rates(margin)
    return weight * (p - label), weight * (p * boost)


def gamma_gradients(margin, label, weight):
    share = label * rates(-margin)
    return weight * (1.0 - share), weight * share


def tweedie_gradients(margin, label, weight, power):
    a, b = label * rates((1.0 - power) * margin), rates((2.0 - power) * margin)
    return weight * (b - a), weight * ((power - 1.0) * a + (2.0 - power) * b)


def pseudo_huber_gradients(margin, label, weight, slope):
    z = margin - label
    ratio = z / slope
    r = np.sqrt(1.0 + ratio * ratio)
    return weight * (z / r), weight * (1.0 / (r * r * r))


def log_factorials(x):
    out = []
    for value in x.tolist():
        z, product = value + 1.0, 1.0
        while z < 12.0:
            product, z = product * z, z + 1.0
        r = 1.0 / z
        q = r * r
        series = r * (1 / 12 - q * (1 / 360 - q * (1 / 1260 - q * (1 / 1680 - q / 1188))))
        log_z, log_product = logs(np.array([z, product])).tolist()
        out.append((z - 0.5) * log_z - z + 0.9189385332046727 + series - log_product)
    return np.array(out)


MILLS = (
    1.1832619145678034,
    -0.2423996705218081,
    0.03509188023476339,
    0.07169048120143744,
    -0.08070800967978549,
    0.04495912907706981,
    -0.01253910360671188,
    -0.0007159509052838121,
    0.001741848641757937,
    -0.00023670175882712258,
    -0.00022021482490664187,
    5.3266970938315365e-05,
    3.4156106940806135e-05,
    -8.606187876096938e-06,
    -6.546928120500802e-06,
    1.0194890870987357e-06,
    1.3805876779523012e-06,
    -3.101083609757584e-09,
    -2.7628944223830873e-07,
    -4.494916382038613e-08,
    4.372207364651429e-08,
    1.3723059452459651e-08,
    -3.874300207686973e-09,
    -1.6952996818880583e-09,
)


def mills(x):
    """A polynomial in t = (x - 4) / (x + 4), over x + 1."""
    t, total = (x - 4.0) / (x + 4.0), 0.0
    for power in reversed(MILLS):
        total = total * t + power
    return total / (x + 1.0)


def exp(x):
    return float(exps(np.array([float(x)]))[0])


def log(x):
    return float(logs(np.array([float(x)]))[0])


def density(x):
    return exp(-0.5 * x * x) * 0.3989422804014327


def normal_tail(x):
    tail = density(abs(x)) * mills(abs(x))
    return tail if x > 0 else 1.0 - tail


def normal_slopes(low, high):
    if low + high < 0:
        slope, bend = normal_slopes(-high, -low)
        return -slope, bend
    between = 0.0
    if low != high and 0 <= low < 1e4:
        at_low, at_high = 1.0, exp(-0.5 * (high - low) * (high + low))
        between = mills(low) - at_high * mills(high)
    elif low != high and low < 0:
        at_low, at_high = density(low), density(high)
        between = 1.0 - at_low * mills(-low) - at_high * mills(high)
    if between <= 0.0:
        return -low, 1.0
    slope = (at_high - at_low) / between
    return slope, slope * slope + (high * at_high - low * at_low) / between


def logistic_slopes(low, high):
    above, below = sigmoids(np.array([high, low])).tolist()
    return 1.0 - above - below, above * (1.0 - above) + below * (1.0 - below)


def extreme_slopes(low, high):
    w = exp(low)
    d = exp(high) - w
    if d >= 700.0:
        share = 0.0
    elif d > 0.5:
        share = d / (exp(d) - 1.0)
    else:
        total = 0.0
        for i in range(13, 0, -1):
            total = total * d + 1.0 / math.factorial(i)
        share = 1.0 / total
    return share - w, w + share * (share + d - 1.0)


def offsets(margin, lower, upper, scale):
    """How far the bounds of each row are off, in scales; an open end is a billion of them off."""
    for m, low, high in zip(margin.tolist(), lower.tolist(), upper.tolist(), strict=True):
        off = [(log(bound) - m) / scale if 0 < bound < math.inf else None for bound in (low, high)]
        off = [end if one is None else one for one, end in zip(off, (-1e9, 1e9), strict=True)]
        yield [max(min(one, 1e9), -1e9) for one in off]


def aft_gradients(margin, lower, upper, weight, distribution, scale):
    slopes_of = (normal_slopes, logistic_slopes, extreme_slopes)[distribution]
    found = [slopes_of(*off) for off in offsets(margin, lower, upper, scale)]
    gradient = np.array([max(min(slope / scale, 15.0), -15.0) for slope, _ in found])
    hessian = np.array([max(min(bend / (scale * scale), 15.0), 1e-16) for _, bend in found])
    return weight * gradient, weight * hessian


def aft_losses(margin, lower, upper, distribution, scale):
    out = []
    for (low, high), first, last in zip(offsets(margin, lower, upper, scale), lower, upper, strict=True):
        if distribution == 0 and low + high > 0:
            of_interval, of_point = normal_tail(low) - normal_tail(high), density(low)
        elif distribution == 0:
            of_interval, of_point = normal_tail(-high) - normal_tail(-low), density(low)
        elif distribution == 1:
            of_point = float(np.prod(sigmoids(np.array([high, -low]))))
            of_interval = of_point * (1.0 - exp(low - high))
        else:
            of_interval, of_point = exp(-exp(low)) - exp(-exp(high)), exp(low) * exp(-exp(low))
        exact = first == last
        out.append(-log(max(of_point / (scale * float(first)) if exact else of_interval, 1e-12)))
    return np.array(out)


def add_limbs(values, weight):
    """12 limbs of 31 bits, with the sign of each row's product, cut to a multiple of 2**-184."""
    limbs = [0] * 12
    for value, of_row in zip(values.tolist(), weight.tolist(), strict=True):
        product = of_row * (min(max(value, -(2.0**127)), 2.0**127) if value == value else 2.0**127)
        units = int(Fraction(product) * 2**184)
        for place in range(12):
            limb = (abs(units) >> 31 * place) % 2**31
            limbs[place] += limb if units > 0 else -limb
    return limbs


def softmaxes(margin):
    powers = exps(margin - margin.max(axis=0))
    total = np.zeros(margin.shape[1])
    for of_output in powers:  # one after the other: the order of a sum matters
        total = total + of_output
    return (powers / total).T


def softmax_gradients(margin, label, weight):
    p = softmaxes(margin).T
    own = label == np.arange(margin.shape[0])[:, None]
    return weight * (p - own), weight * (2.0 * p * (1.0 - p))


def softmax_losses(margin, label, weight):
    top, total = margin.max(axis=0), np.zeros(margin.shape[1])
    for of_output in margin:
        total = total + exps(of_output - top)
    own = margin[label.astype(int), np.arange(label.size)]
    return weight * (logs(total) + (top - own))


def quantise(gradient, hessian, gradient_factor, hessian_factor, limit):
    out = []
    for g, h in zip(gradient.tolist(), hessian.tolist(), strict=True):
        g_units = max(-int(limit), min(int(limit), round(g * gradient_factor)))  # round: ties to even
        h_units = min(int(limit), round(h * hessian_factor))
        out.append(g_units * 2**32 + h_units)
    return np.array(out, np.int64)


def sum_units(values, factor, limit):
    units = [max(-limit, min(limit, value * factor)) for value in values.tolist()]
    return sum(round(unit) for unit in units)  # round: ties to even


def unpack(pair):
    """(gradient, hessian) of one packed pair."""
    hessian = pair % 2**32
    return (pair - hessian) // 2**32, hessian


def build_histogram(bins, rows, pairs, offsets, bins_of_all):
    out = [0] * (2 * bins_of_all)
    for row in rows.tolist():
        gradient, hessian = unpack(int(pairs[row]))
        for feature, offset in enumerate(offsets.tolist()):
            cell = offset + int(bins[row, feature])
            out[2 * cell] += gradient
            out[2 * cell + 1] += hessian
    return np.array(out, np.int64)


def sum_pairs(pairs):
    apart = [unpack(int(pair)) for pair in pairs]
    return sum(g for g, _ in apart), sum(h for _, h in apart)


def sum_positive(rows, pairs):
    apart = [unpack(int(pairs[row])) for row in rows]
    return sum(g for g, _ in apart if g > 0), sum(h for _, h in apart)


def pair_bits(sums):
    gradient = hessian = 0
    for g, h in zip(sums[::2].tolist(), sums[1::2].tolist(), strict=True):
        gradient |= g if g >= 0 else -1 - g
        hessian |= h
    return gradient, hessian


def pack_pairs(sums, bits):
    cells = [int(g) * 2**bits + int(h) for g, h in zip(sums[::2], sums[1::2], strict=True)]
    return [(cell + 2**63) % 2**64 - 2**63 for cell in cells]


def partition(codes, goes_left, rows):
    """The rows that go left, and those that go right, each in the old order."""
    left = [row for row in rows.tolist() if goes_left[codes[row]]]
    return left, [row for row in rows.tolist() if not goes_left[codes[row]]]


def score(gradient, hessian, reg_lambda, reg_alpha, max_delta_step):
    """Twice the loss that the best step of at most max_delta_step takes away: -2 T s - (H + lambda) s**2."""
    shrunk, curve = max(abs(gradient) - reg_alpha, 0.0), hessian + reg_lambda
    if curve <= 0:
        return 0.0
    if shrunk <= max_delta_step * curve:
        return shrunk * shrunk / curve
    return max_delta_step * (2 * shrunk - max_delta_step * curve)


def ways_to_part(pairs, factors, penalties, most_levels):
    """Of the sums of the levels of a feature: whether one level goes right at a time, and which levels go
    right in each way to part them."""
    reg_lambda, reg_alpha, min_child_weight, _ = penalties
    every = [*range(len(pairs))]
    if len(pairs) < most_levels[0]:
        return True, [*([level] for level in every), every]

    def leaf_value(level):
        gradient, hessian = pairs[level][0] / factors[0], pairs[level][1] / factors[1]
        if hessian < min_child_weight or hessian <= 0:
            return 0.0
        return -math.copysign(max(abs(gradient) - reg_alpha, 0.0), gradient) / (hessian + reg_lambda)

    order = sorted(every, key=leaf_value)
    return False, [order[: way + 1] for way in every]


def candidates_by_level(pairs, absent, factors, penalties, most_levels):
    """(way, missing left, left gradient, left hessian) for each way to part levels that is tried."""
    one_hot, ways = ways_to_part(pairs, factors, penalties, most_levels)
    most = len(pairs) if one_hot else min(most_levels[1], len(pairs))
    for way, right in enumerate(ways):
        left = [level for level in range(len(pairs)) if level not in right]
        stays = tuple(sum(pairs[level][stat] for level in left) for stat in (0, 1))
        few = one_hot or most == len(pairs) or len(right) < most
        if few and (left or absent != (0, 0)):
            yield way, True, stays[0] + absent[0], stays[1] + absent[1]
        if (one_hot or len(left) < most) and left and (absent != (0, 0) or not few):
            yield way, False, *stays


def candidates(histogram, value_bins, missing, categorical, factors, penalties, most_levels):
    """Every way to part a node: (feature, bin, missing left, left gradient, left hessian)."""
    first = 0
    features = zip(value_bins.tolist(), missing.tolist(), categorical.tolist(), strict=True)
    for feature, (size, has_missing, by_level) in enumerate(features):
        pairs = [(int(histogram[2 * b]), int(histogram[2 * b + 1])) for b in range(first, first + size)]
        first += size
        absent = (0, 0)
        if has_missing:
            absent = int(histogram[2 * first]), int(histogram[2 * first + 1])
            first += 1
        if by_level:
            for one in candidates_by_level(pairs, absent, factors, penalties, most_levels):
                yield feature, *one
            continue
        for b in range(size):
            below = tuple(sum(stat) for stat in zip(*pairs[: b + 1], strict=True))
            last = b == size - 1
            if not last or absent != (0, 0):
                yield feature, b, False, *below
            if not last and absent != (0, 0):
                yield feature, b, True, below[0] + absent[0], below[1] + absent[1]


def best_split(histogram, value_bins, missing, categorical, factors, penalties, most_levels, total):
    reg_lambda, reg_alpha, min_child_weight, step = penalties
    root = score(total[0] / factors[0], total[1] / factors[1], reg_lambda, reg_alpha, step)
    found = []
    kinds = value_bins, missing, categorical
    tried = candidates(histogram, *kinds, factors, penalties, most_levels)
    for feature, b, missing_left, g_left, h_left in tried:
        gl, hl = g_left / factors[0], h_left / factors[1]
        gr, hr = (total[0] - g_left) / factors[0], (total[1] - h_left) / factors[1]
        if min(hl, hr) < min_child_weight or min(hl, hr) <= 0:
            continue
        children = [score(g, h, reg_lambda, reg_alpha, step) for g, h in ((gl, hl), (gr, hr))]
        gain = sum(children) - root
        if gain > 0:
            last = missing_left != bool(categorical[feature])  # of two directions that gain the same
            found.append((-gain, feature, b, last, missing_left, g_left, h_left))
    if not found:
        return 0.0, -1, -1, False, 0, 0
    gain, feature, b, _, *rest = min(found)
    return -gain, feature, b, *rest


def float_keys(values):
    out = []
    for value in values:
        (word,) = struct.unpack("<I", value.tobytes())
        if math.isnan(value):
            out.append(2**32 - 1)
        elif value == 0:
            out.append(2**31)
        else:
            out.append(2**32 - 1 - word if value < 0 else 2**31 + word)
    return out


def count_cells(keys, starts, widths, subdivisions):
    out = []
    for start, width, bits in zip(starts.tolist(), widths.tolist(), subdivisions.tolist(), strict=True):
        step = 2 ** (width - bits)
        for low in range(start, start + 2**width, step):
            out.append(sum(low <= key < low + step for key in keys.tolist()))
    return out


def weigh_residuals(label, margin, weight, rows, start, width, bits, factor, limit):
    out = [0] * 2**bits
    for row in rows.tolist():
        with np.errstate(over="ignore"):
            residual = (np.float64(label[row]) - margin[row]).astype(np.float32)
        (key,) = float_keys([residual])
        if start <= key < start + 2**width:
            out[(key - start) // 2 ** (width - bits)] += min(round(float(weight[row]) * factor), limit)
    return out


def bin_column(values, cuts, missing_bin):
    return [missing_bin if math.isnan(v) else sum(bool(cut <= v) for cut in cuts) for v in values]


def goes_left(x, threshold, default_left):
    """The threshold may be the set of the levels that go right."""
    if math.isnan(x):
        return default_left
    if isinstance(threshold, set):
        return x < 0 or float(np.floor(x)) not in threshold
    return x < np.float32(threshold)


def predict_margins(features, trees, margin):
    """`trees`: for each tree the list of its nodes (left, right, feature, threshold, default left, value).
    The threshold may be the set of the levels that go right."""
    out = []
    for row, total in zip(features, margin.tolist(), strict=True):
        for tree in trees:
            left, right, feature, threshold, default_left, value = tree[0]
            while left >= 0:
                on = left if goes_left(row[feature], threshold, default_left) else right
                left, right, feature, threshold, default_left, value = tree[on]
            total += value
        out.append(total)
    return out


def shapley_values(row, tree):
    """What each feature adds to the value a row gets from a tree, and what a row gets of which nothing is
    known: the definition of Shapley's values, in fractions. `tree`: as above, each node with its cover at the
    end.
    """

    def value(known, number=0):
        left, right, feature, threshold, default_left, leaf, _ = tree[number]
        if left < 0:
            return Fraction(leaf)
        if feature in known:
            return value(known, left if goes_left(row[feature], threshold, default_left) else right)
        covers = Fraction(tree[left][6]), Fraction(tree[right][6])
        share = covers[0] / sum(covers) if sum(covers) else Fraction(1, 2)
        return share * value(known, left) + (1 - share) * value(known, right)

    features = len(row)
    out = []
    for feature in range(features):
        others = [other for other in range(features) if other != feature]
        total = Fraction(0)
        for count in range(features):
            orders = math.factorial(count) * math.factorial(features - 1 - count)
            for known in combinations(others, count):
                total += orders * (value({*known, feature}) - value(known))
        out.append(total / math.factorial(features))
    return [*out, value(())]


def gradient_norms(gradient, hessian, reg_lambda):
    squares = np.zeros(gradient.shape[1])
    for g, h in zip(gradient, hessian, strict=True):
        squares += g * g + reg_lambda * (h * h)
    return np.sqrt(squares)
