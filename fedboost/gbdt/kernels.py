"""Every compiled loop: arrays in, arrays out, no objects. The only importer of numba.

Promises: each kernel computes bit for bit what its numpy twin in tests/gbdt/twins.py computes, on every
CPU: no fastmath, no libm, element-wise functions built from + - * / in a fixed order.
Refuses nothing: callers have validated their arrays.

Shapes: N rows, F features, T bins of all features together. `bins` is uint8 [N, F or more]; `rows` uint32
row numbers; `offsets` uint32 [F], where a feature's bins begin among the T.
"""

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_BLOCK = 256  # rows of a block of `transpose`
MAX_CODES = 256
"""uint8 codes: value bins and, where a feature has missing values, the missing bin."""
_GATHERED = 256
"""Pairs that are brought together before they are added."""
TOGETHER = 64
"""Features a histogram is built of at a time, so that their sums stay in the cache."""
STRIDE = 264
"""Places between the sums of one feature and the next: enough for 256 bins, and a line of the cache more,
so that the first bins of all features do not compete for the same few lines."""
SCRATCH = TOGETHER * STRIDE


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


@intrinsic
def _load_word(typingctx, array, index):
    """The eight bytes from array[index] of a uint8 array as one uint64, the first of them lowest."""

    def codegen(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.bitcast(builder.gep(view.data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(array, index), codegen


# ---- element-wise functions -------------------------------------------------------------------------

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 in two parts: k * high is exact for |k| < 2**20
_LN2_LOW = 1.90821492927058770002e-10
_INVERSE_FACTORIALS = tuple(1.0 / math.factorial(i) for i in range(14))
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in the low bits
_EXPONENT_BIAS = 1023
_MANTISSA = (1 << 52) - 1
_HALF_LOG_2_PI = 0.9189385332046727

LIMBS = 12
"""Integers that hold the sum of floats of any size without loss (`add_limbs`)."""
LIMB_BITS = 31
LIMBS_FROM = -184
LARGEST_IN_LIMBS = math.ldexp(1.0, 127)

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
def softmaxes(margin):
    """e**margin of each output over their sum: float64 [N, K] of margins [K, N]."""
    outputs, rows = margin.shape
    out = np.empty((rows, outputs), np.float64)
    for i in range(rows):
        top = margin[0, i]
        for k in range(1, outputs):
            top = max(top, margin[k, i])
        total = 0.0
        for k in range(outputs):
            out[i, k] = _exp(margin[k, i] - top)
            total += out[i, k]
        for k in range(outputs):
            out[i, k] /= total
    return out


@_loop
def softmax_gradients(margin, label, weight):
    """Gradients w (p - y) and hessians 2 w p (1 - p) of the log loss of K classes: two float64 [K, N]."""
    share = softmaxes(margin)
    gradient = np.empty(margin.shape, np.float64)
    hessian = np.empty(margin.shape, np.float64)
    for k in range(margin.shape[0]):
        for i in range(margin.shape[1]):
            p = share[i, k]
            gradient[k, i] = weight[i] * (p - (1.0 if label[i] == k else 0.0))
            hessian[k, i] = weight[i] * (2.0 * p * (1.0 - p))
    return gradient, hessian


@_loop
def softmax_losses(margin, label, weight):
    """-w log p of the class a row has: float64 [N]."""
    outputs, rows = margin.shape
    out = np.empty(rows, np.float64)
    for i in range(rows):
        top = margin[0, i]
        for k in range(1, outputs):
            top = max(top, margin[k, i])
        total = 0.0
        for k in range(outputs):
            total += _exp(margin[k, i] - top)
        out[i] = weight[i] * (_log(total) + (top - margin[np.int64(label[i]), i]))
    return out


@_loop
def log_losses(margin, label, weight):
    """w log(1 + e**-z), z the margin signed by the label: float64 [N]."""
    out = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        out[i] = _exp(-abs(margin[i]))
    for i in range(margin.size):
        z = margin[i] if label[i] > 0.5 else -margin[i]
        out[i] = weight[i] * ((-z if z < 0.0 else 0.0) + _log(1.0 + out[i]))
    return out


@_elementwise
def _rate(margin):
    """e**margin for margins of rates, clipped to +-300: no label and weight make an infinity of it."""
    margin = margin if margin < 300.0 else 300.0
    return _exp(margin if margin > -300.0 else -300.0)


@_loop
def poisson_gradients(margin, label, weight, boost):
    """Gradient w (p - y) and hessian w p boost of Poisson counts, p = e**margin: two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        p = _rate(margin[i])
        gradient[i] = weight[i] * (p - label[i])
        hessian[i] = weight[i] * (p * boost)
    return gradient, hessian


@_loop
def gamma_gradients(margin, label, weight):
    """Gradient w (1 - y / p) and hessian w y / p of gamma amounts, p = e**margin: two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        share = label[i] * _rate(-margin[i])
        gradient[i] = weight[i] * (1.0 - share)
        hessian[i] = weight[i] * share
    return gradient, hessian


@_loop
def tweedie_gradients(margin, label, weight, power):
    """Gradient w (b - a) and hessian w ((power - 1) a + (2 - power) b) of Tweedie amounts: two float64 [N];
    a = y e**((1 - power) margin), b = e**((2 - power) margin)."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        a = label[i] * _rate((1.0 - power) * margin[i])
        b = _rate((2.0 - power) * margin[i])
        gradient[i] = weight[i] * (b - a)
        hessian[i] = weight[i] * ((power - 1.0) * a + (2.0 - power) * b)
    return gradient, hessian


@_loop
def pseudo_huber_gradients(margin, label, weight, slope):
    """Gradient w z / r and hessian w / (r r r) of the pseudo-Huber loss, z = margin - y and
    r = sqrt(1 + (z / slope)**2): two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        z = margin[i] - label[i]
        ratio = z / slope
        r = math.sqrt(1.0 + ratio * ratio)
        gradient[i] = weight[i] * (z / r)
        hessian[i] = weight[i] * (1.0 / (r * r * r))
    return gradient, hessian


@_loop
def log_factorials(x):
    """ln of the gamma function of x + 1, for x >= 0: float64 [N]. Stirling's series from 12 on; below, one
    step of (x + 1)! = (x + 1) x! after the other."""
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        z, product = x[i] + 1.0, 1.0
        while z < 12.0:
            product *= z
            z += 1.0
        r = 1.0 / z
        q = r * r
        series = r * (1.0 / 12.0 - q * (1.0 / 360.0 - q * (1.0 / 1260.0 - q * (1.0 / 1680.0 - q / 1188.0))))
        out[i] = (z - 0.5) * _log(z) - z + _HALF_LOG_2_PI + series - _log(product)
    return out


@_loop
def _discounts(starts):
    """1 / log2(place + 2) for each place in the largest of these groups."""
    most = 0
    for g in range(starts.size - 1):
        most = max(most, starts[g + 1] - starts[g])
    out = np.empty(most, np.float64)
    for place in range(most):
        out[place] = 1.0 / (_log(place + 2.0) * _LOG2_E)
    return out


@_loop
def _best_dcg(gain, most, discount):
    """The DCG of the first `most` rows where those of the highest gain come first."""
    best, total = np.sort(gain), 0.0
    for place in range(min(most, gain.size)):
        total += best[gain.size - 1 - place] * discount[place]
    return total


@_loop
def lambda_gradients(margin, label, gain, weight, starts, most, by_ndcg, score_normalization, normalization):
    """Gradients and hessians of LambdaMART: two float64 [N]. Group g has the rows from starts[g] to
    starts[g + 1].

    Each of the first `most` rows of a group, by margin, makes a pair with each row behind it of another
    label. Equal margins: the earlier row comes first. What a pair counts: with by_ndcg how much the NDCG of
    the group changes if the two change places, over the DCG of the best first `most` rows, else 1; with
    score_normalization over the distance of their margins plus 1/100, unless all margins are equal. With
    normalization all of a group is times log2(1 + s) / s, s the sum of the magnitudes of its pairs' parts of
    gradients.
    """
    gradient = np.zeros(margin.size, np.float64)
    hessian = np.zeros(margin.size, np.float64)
    discount = _discounts(starts)
    for g in range(starts.size - 1):
        first, size = starts[g], starts[g + 1] - starts[g]
        order = first + np.argsort(-margin[first : first + size], kind="mergesort")
        scale = 1.0
        if by_ndcg:
            ideal = _best_dcg(gain[first : first + size], most, discount)
            scale = 1.0 / ideal if ideal > 0.0 else 0.0
        by_distance = score_normalization and margin[order[0]] != margin[order[size - 1]]
        total = 0.0
        for i in range(min(most, size)):
            for j in range(i + 1, size):
                high, low = order[i], order[j]
                if label[high] == label[low]:
                    continue
                if label[high] < label[low]:
                    high, low = low, high
                distance = margin[high] - margin[low]
                counts = 1.0
                if by_ndcg:
                    counts = (gain[high] - gain[low]) * (discount[i] - discount[j]) * scale
                if by_distance:
                    counts /= abs(distance) + 0.01
                p = _sigmoid(distance)
                pull = (1.0 - p) * counts
                bend = max(p * (1.0 - p), 1e-16) * counts * 2.0
                gradient[high] -= pull
                gradient[low] += pull
                hessian[high] += bend
                hessian[low] += bend
                total += 2.0 * pull
        factor = 1.0
        if normalization and total > 0.0:
            factor = _log(1.0 + total) * _LOG2_E / total
        for i in range(first, first + size):
            gradient[i] = gradient[i] * factor * weight[i]
            hessian[i] = hessian[i] * factor * weight[i]
    return gradient, hessian


@_loop
def ndcgs(margin, gain, starts, most, without):
    """The NDCG of the first `most` rows of each group, by margin, equal ones in their order: float64
    [groups]; `without` for groups without a gain."""
    out = np.empty(starts.size - 1, np.float64)
    discount = _discounts(starts)
    for g in range(out.size):
        first, size = starts[g], starts[g + 1] - starts[g]
        ideal = _best_dcg(gain[first : first + size], most, discount)
        order = first + np.argsort(-margin[first : first + size], kind="mergesort")
        total = 0.0
        for place in range(min(most, size)):
            total += gain[order[place]] * discount[place]
        out[g] = total / ideal if ideal > 0.0 else without
    return out


@_loop
def gradient_sizes(gradient, hessian, reg_lambda):
    """sqrt(g**2 + reg_lambda h**2) of each row, the squares summed over its outputs, the first one first:
    float64 [N] of [outputs, N]."""
    outputs, rows = gradient.shape
    out = np.zeros(rows, np.float64)
    for k in range(outputs):
        for i in range(rows):
            out[i] += gradient[k, i] * gradient[k, i] + reg_lambda * (hessian[k, i] * hessian[k, i])
    for i in range(rows):
        out[i] = math.sqrt(out[i])
    return out


# ---- times until an event ---------------------------------------------------------------------------

NORMAL, LOGISTIC, EXTREME = range(3)
"""Distributions of the logarithm of a time."""
_END = 1e9
"""So many standard deviations off is as far as infinity."""
_TAIL = 1e4
"""From here on a normal tail ends where it begins, to the digits there are."""
_MOST_SLOPE, _LEAST_BEND = 15.0, 1e-16
"""XGBoost's: the largest gradient and hessian of a row, and the smallest hessian."""
_LEAST_LIKELIHOOD = 1e-12
"""XGBoost's, too: what is less likely counts as this."""
_INVERSE_ROOT_2_PI = 0.3989422804014327
_MILLS = (
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
"""(x + 1) times Mills' ratio of x >= 0, as a polynomial in t = (x - 4) / (x + 4), lowest power first. Made
from its values at 60 Chebyshev nodes, of 60 digits; the relative error is at most 5e-16, with rounding."""


@_elementwise
def _mills(x):
    """Mills' ratio, for x >= 0: the normal tail beyond x over the normal density at x."""
    t = (x - 4.0) / (x + 4.0)
    total = _MILLS[23]
    for i in range(22, -1, -1):
        total = total * t + _MILLS[i]
    return total / (x + 1.0)


@_loop
def _normal_tail(x):
    """The probability that a standard normal number is above x."""
    far = abs(x)
    tail = _INVERSE_ROOT_2_PI * _exp(-0.5 * far * far) * _mills(far)
    return tail if x > 0.0 else 1.0 - tail


@_loop
def normal_tails(x):
    """The probability that a standard normal number is above each x: float64 [N]."""
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        out[i] = _normal_tail(x[i])
    return out


@_loop
def _normal_slopes(low, high):
    """First and second derivative of -log of the normal probability of [low + s, high + s] in -s at 0; of the
    density where low is high."""
    turned = low + high < 0.0  # so that what is subtracted from 1 is the smaller tail
    a = -high if turned else low
    b = -low if turned else high
    slope, bend = -a, 1.0
    if a < b and a < _TAIL:
        if a >= 0.0:  # everything over the density at a
            at_a, at_b = 1.0, _exp(-0.5 * (b - a) * (b + a))
            between = _mills(a) - at_b * _mills(b)
        else:
            at_a = _INVERSE_ROOT_2_PI * _exp(-0.5 * a * a)
            at_b = _INVERSE_ROOT_2_PI * _exp(-0.5 * b * b)
            between = 1.0 - at_a * _mills(-a) - at_b * _mills(b)
        if between > 0.0:
            slope = (at_b - at_a) / between
            bend = slope * slope + (b * at_b - a * at_a) / between
    return -slope if turned else slope, bend


@_loop
def _logistic_slopes(low, high):
    """As `_normal_slopes`, of the logistic distribution F: F(high) - F(low) is F(high) (1 - F(low)) times
    something that s does not change."""
    above, below = _sigmoid(high), _sigmoid(low)
    return 1.0 - above - below, above * (1.0 - above) + below * (1.0 - below)


@_loop
def _extreme_slopes(low, high):
    """As `_normal_slopes`, of the distribution 1 - e**-w of the least of many, w = e**x: the probability is
    e**-w(low) times 1 - e**-d, d = w(high) - w(low)."""
    w = _exp(low)
    d = _exp(high) - w
    if d > 0.5:
        share = d / (_exp(d) - 1.0) if d < 700.0 else 0.0
    else:  # the Taylor series of (e**d - 1) / d
        total = _INVERSE_FACTORIALS[13]
        for i in range(12, 0, -1):
            total = total * d + _INVERSE_FACTORIALS[i]
        share = 1.0 / total
    return share - w, w + share * (share + d - 1.0)


@_elementwise
def _off(bound, margin, scale):
    """How many scales the logarithm of a time is off a margin."""
    return max(min((_log(bound) - margin) / scale, _END), -_END)


@_loop
def aft_gradients(margin, lower, upper, weight, distribution, scale):
    """Gradient and hessian of w times -log of the probability of a time in [lower, upper], whose logarithm is
    margin + scale times a number of that distribution: two float64 [N].

    lower 0 and upper infinity are open ends; where both are the same, it is of the density there.
    """
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        low = _off(lower[i], margin[i], scale) if lower[i] > 0.0 else -_END
        high = _off(upper[i], margin[i], scale) if upper[i] < np.inf else _END
        if distribution == NORMAL:
            slope, bend = _normal_slopes(low, high)
        elif distribution == LOGISTIC:
            slope, bend = _logistic_slopes(low, high)
        else:
            slope, bend = _extreme_slopes(low, high)
        slope, bend = slope / scale, bend / (scale * scale)
        gradient[i] = weight[i] * max(min(slope, _MOST_SLOPE), -_MOST_SLOPE)
        hessian[i] = weight[i] * max(min(bend, _MOST_SLOPE), _LEAST_BEND)
    return gradient, hessian


@_loop
def aft_losses(margin, lower, upper, distribution, scale):
    """-log of the probability that `aft_gradients` speaks of, or where lower is upper of the density of the
    time: float64 [N]."""
    out = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        low = _off(lower[i], margin[i], scale) if lower[i] > 0.0 else -_END
        high = _off(upper[i], margin[i], scale) if upper[i] < np.inf else _END
        exact = lower[i] == upper[i]
        if distribution == NORMAL:
            if exact:
                likelihood = _INVERSE_ROOT_2_PI * _exp(-0.5 * low * low)
            elif low + high > 0.0:
                likelihood = _normal_tail(low) - _normal_tail(high)
            else:
                likelihood = _normal_tail(-high) - _normal_tail(-low)
        elif distribution == LOGISTIC:
            likelihood = _sigmoid(high) * _sigmoid(-low)
            likelihood *= 1.0 if exact else 1.0 - _exp(low - high)
        else:
            w = _exp(low)
            likelihood = w * _exp(-w) if exact else _exp(-w) - _exp(-_exp(high))
        likelihood = likelihood / (scale * lower[i]) if exact else likelihood
        out[i] = -_log(max(likelihood, _LEAST_LIKELIHOOD))
    return out


# ---- sums of floats that lose nothing ---------------------------------------------------------------


@_loop
def add_limbs(values, weight, out):
    """out += the sum of weight * value in limbs, the lowest first: int64 [LIMBS].

    Each product is cut to a multiple of 2**LIMBS_FROM, towards 0; a limb holds LIMB_BITS of its bits, with
    its sign. Values of magnitude above LARGEST_IN_LIMBS, and what is no number, are taken for that; weights
    are at most 2**60.
    """
    mask = (np.uint64(1) << np.uint64(LIMB_BITS)) - np.uint64(1)
    limbs = np.zeros(LIMBS + 3, np.int64)  # the last for weights that are none
    for i in range(values.size):
        value = values[i] if values[i] < LARGEST_IN_LIMBS else LARGEST_IN_LIMBS
        value = weight[i] * (value if value > -LARGEST_IN_LIMBS else -LARGEST_IN_LIMBS)
        word = np.float64(value).view(np.int64)
        sign = 1 - 2 * ((word >> 63) & 1)
        exponent = (word >> 52) & 0x7FF
        mantissa = np.uint64((word & _MANTISSA) | (_MANTISSA + 1))
        place = exponent - (_EXPONENT_BIAS + 52 + LIMBS_FROM)  # of the lowest bit of the mantissa
        if place <= -53:
            continue
        if place < 0:
            mantissa >>= np.uint64(-place)
            place = 0
        limb, shift = place // LIMB_BITS, np.uint64(place % LIMB_BITS)
        limbs[limb] += sign * np.int64((mantissa << shift) & mask)
        mantissa >>= np.uint64(LIMB_BITS) - shift
        limbs[limb + 1] += sign * np.int64(mantissa & mask)
        limbs[limb + 2] += sign * np.int64(mantissa >> np.uint64(LIMB_BITS))
    for limb in range(LIMBS):
        out[limb] += limbs[limb]


# ---- gradients to packed integers -------------------------------------------------------------------


@_loop
def quantise(gradient, hessian, gradient_factor, hessian_factor, limit, out):
    """out = (gradient << 32) + hessian, both fixed-point as `Scale.encode` makes them: int64 [N].

    The hessian is never negative, so the low half is a plain sum of hessians as long as fewer than
    2**32 / limit rows are added, and the high half the sum of gradients.
    """
    for i in range(gradient.size):
        g = np.rint(gradient[i] * gradient_factor)
        g = g if g < limit else limit
        g = g if g > -limit else -limit
        h = np.rint(hessian[i] * hessian_factor)
        h = h if h < limit else limit
        out[i] = (np.int64(g) << 32) + np.int64(h)


@_loop
def quantise_bounded(gradient, hessian, gradient_factor, hessian_factor, weight, units, out):
    """As `quantise`: gradient and hessian times their factors, clipped to 1; times the weight the hessian,
    then in units. Rounded toward zero."""
    for i in range(gradient.size):
        g = min(max(gradient[i] * gradient_factor, -1.0), 1.0)
        h = min(max(hessian[i] * hessian_factor, 0.0), 1.0)
        out[i] = (np.int64(g * units) << 32) + np.int64(h * weight * units)


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
def _take_apart(packed, out):
    for i in range(packed.size):
        value = packed[i]
        out[2 * i] += value >> 32
        out[2 * i + 1] += value & 0xFFFFFFFF
        packed[i] = 0


@_loop
def _add_pairs(bins, rows, pairs, first, last, ahead, scratch):
    """scratch[STRIDE * f + the bin of feature first + f] += the pair, for each row and feature.

    Returns the sum of the gradients above 0, and that of the hessians.
    """
    flat, width = bins.ravel(), np.uint64(bins.shape[1])
    byte, start_of, wanted = np.uint64(0xFF), np.uint64(first), np.uint64(last - first)
    gathered = np.empty(_GATHERED, np.int64)
    positive, hessian = 0, 0
    for start in range(0, rows.size, _GATHERED):
        size = min(_GATHERED, rows.size - start)
        for i in range(start, start + size):  # apart from the rows' bins: fewer places to wait for at once
            if i + _GATHERED < rows.size:
                _prefetch(pairs, np.uint64(rows[np.uint64(i + _GATHERED)]))
            pair = pairs[np.uint64(rows[np.uint64(i)])]
            gathered[np.uint64(i - start)] = pair
            positive += max(pair >> 32, 0)
            hessian += pair & 0xFFFFFFFF
        for i in range(start, start + size):
            if i + ahead < rows.size:
                soon = np.uint64(rows[np.uint64(i + ahead)]) * width + start_of
                _prefetch(flat, soon)
                _prefetch(flat, soon + wanted - np.uint64(1))
            pair, codes = gathered[np.uint64(i - start)], np.uint64(rows[np.uint64(i)]) * width + start_of
            f = np.uint64(0)
            while f + np.uint64(7) < wanted:  # unsigned throughout: numba then looks for no negative index
                eight, place = _load_word(flat, codes + f), f * np.uint64(STRIDE)
                scratch[place + (eight & byte)] += pair
                scratch[place + np.uint64(STRIDE) + (eight >> np.uint64(8) & byte)] += pair
                scratch[place + np.uint64(2 * STRIDE) + (eight >> np.uint64(16) & byte)] += pair
                scratch[place + np.uint64(3 * STRIDE) + (eight >> np.uint64(24) & byte)] += pair
                scratch[place + np.uint64(4 * STRIDE) + (eight >> np.uint64(32) & byte)] += pair
                scratch[place + np.uint64(5 * STRIDE) + (eight >> np.uint64(40) & byte)] += pair
                scratch[place + np.uint64(6 * STRIDE) + (eight >> np.uint64(48) & byte)] += pair
                scratch[place + np.uint64(7 * STRIDE) + (eight >> np.uint64(56))] += pair
                f += np.uint64(8)
            while f < wanted:
                scratch[f * np.uint64(STRIDE) + np.uint64(flat[codes + f])] += pair
                f += np.uint64(1)
    return positive, hessian


@_loop
def build_histogram(bins, rows, pairs, begins, ends, first, last, block, scratch, out):
    """Add the pairs of `rows` into the bins of the features from `first` to before `last`, at most TOGETHER.

    begins, ends: int64 [F], where a feature's bins begin and end among the T; out: int64 [2 T + 2] (g, h, g,
    h ...), with the first features also the last pair, the sums of the gradients above 0 and of the hessians
    of all rows; scratch: int64 [SCRATCH], all zero before and after. Pairs are added packed, `block` rows at
    a time, so that neither 32-bit half can overflow, and then taken apart.
    """
    bins_of_all = out.size // 2 - 1
    ahead = max(8, 512 // begins.size)
    for start in range(0, rows.size, block):
        sums = _add_pairs(bins, rows[start : start + block], pairs, first, last, ahead, scratch)
        if first == 0:
            out[2 * bins_of_all] += sums[0]
            out[2 * bins_of_all + 1] += sums[1]
        for feature in range(first, last):
            begin, end, place = begins[feature], ends[feature], (feature - first) * STRIDE
            _take_apart(scratch[place : place + end - begin], out[2 * begin : 2 * end])


@_loop
def build_rare(starts, entries, rows, pairs, places, common, begins, block, out):
    """Add the pairs of `rows` into the bins of features of which rare bins alone are listed (`RareBins`).

    begins: int64 [R], where the bins of each begin in out, int64 [2 T] (g, h, g, h ...). What no listed bin
    has of a row is in the common one.
    """
    packed, listed = np.zeros(places[-1], np.int64), np.zeros(2 * places[-1], np.int64)
    gradient, hessian = 0, 0
    for start in range(0, rows.size, block):
        for i in range(start, min(start + block, rows.size)):
            row = rows[i]
            pair = pairs[row]
            gradient += pair >> 32
            hessian += pair & 0xFFFFFFFF
            for entry in range(starts[row], starts[row + 1]):
                packed[entries[entry]] += pair
        _take_apart(packed, listed)
    for r in range(common.size):
        cells = out[2 * begins[r] : 2 * (begins[r] + places[r + 1] - places[r])]
        gradient_left, hessian_left = gradient, hessian
        for b in range(cells.size // 2):
            g, h = listed[2 * (places[r] + b)], listed[2 * (places[r] + b) + 1]
            cells[2 * b] += g
            cells[2 * b + 1] += h
            gradient_left -= g
            hessian_left -= h
        cells[2 * common[r]] += gradient_left
        cells[2 * common[r] + 1] += hessian_left


@_loop
def sum_pairs(pairs):
    """Totals of the gradients and of the hessians of all rows."""
    gradient, hessian = 0, 0
    for i in range(pairs.size):
        gradient += pairs[i] >> 32
        hessian += pairs[i] & 0xFFFFFFFF
    return gradient, hessian


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
def count_up(rows):
    """rows = 0, 1, 2, ..."""
    for i in range(rows.size):
        rows[i] = i


@_loop
def partition(codes, goes_left, rows, scratch):
    """Reorder `rows` in place, stably: those that go left first. Returns how many go left.

    `codes` is uint8 [N], the bin of each row for the feature that splits; `goes_left` is uint8 [MAX_CODES], 1
    for the bins that go left and 0 for the others.
    """
    left = np.uint64(0)
    for i in range(rows.size):
        row = rows[i]
        rows[left] = row  # never overtakes the reader: left <= i
        scratch[np.uint64(i) - left] = row
        left += np.uint64(goes_left[codes[row]])
    rows[left:] = scratch[: np.uint64(rows.size) - left]
    return left


@_loop
def add_value(margin, rows, value):
    """margin[rows] += value."""
    for i in range(rows.size):
        margin[rows[i]] += value


# ---- splits -----------------------------------------------------------------------------------------


@_elementwise
def _shrunk(gradient, reg_alpha):
    """The soft threshold at alpha."""
    above, below = gradient - reg_alpha, gradient + reg_alpha
    return above if above > 0.0 else (below if below < 0.0 else 0.0)


@_elementwise
def _score(gradient, hessian, reg_lambda, reg_alpha, max_delta_step):
    """The loss a leaf takes away, doubled: T(G)**2 / (H + lambda), T the soft threshold at alpha; less where
    the step would be beyond max_delta_step."""
    shrunk = _shrunk(gradient, reg_alpha)
    curve = hessian + reg_lambda
    best = shrunk * shrunk / curve if curve > 0.0 else 0.0
    most = max_delta_step * curve
    beyond = (curve > 0.0) & (abs(shrunk) > most)
    return max_delta_step * (2.0 * abs(shrunk) - most) if beyond else best


@_loop
def _order_levels(cells, factors, penalties):
    """The levels of a feature by the value a leaf of each alone would have, lowest first: int64 [B].

    cells: int64 [2 B], their sums. Equal ones stay in their order. A level with less than min_child_weight,
    or with no rows, has the value 0, as in XGBoost.
    """
    reg_lambda, reg_alpha, min_child_weight, _ = penalties
    g_unit, h_unit = 1.0 / factors[0], 1.0 / factors[1]
    order, values = np.empty(cells.size // 2, np.int64), np.empty(cells.size // 2, np.float64)
    for level in range(order.size):
        hessian, value = cells[2 * level + 1] * h_unit, 0.0
        if hessian >= min_child_weight and hessian > 0.0:
            value = -_shrunk(cells[2 * level] * g_unit, reg_alpha) / (hessian + reg_lambda)
        values[level] = value
    for level in range(order.size):  # counting has no branch that must be foreseen, as sorting has
        value, place = values[level], 0
        for other in values[:level]:
            place += np.int64(other <= value)
        for other in values[level + 1 :]:
            place += np.int64(other < value)
        order[place] = level
    return order


@_loop
def levels_right(cells, way, one_hot, factors, penalties):
    """The levels that go right in one way to part them, in increasing number or that of `_order_levels`.

    One-hot: way b sends level b right, and the way after the last all. Else way b sends the first b + 1.
    """
    if one_hot:
        return np.arange(way, way + 1) if way < cells.size // 2 else np.arange(cells.size // 2)
    return _order_levels(cells, factors, penalties)[: way + 1]


@_loop
def _sum_levels(cells, one_hot, factors, penalties, gradient, hessian):
    """gradient, hessian = the sums of the levels that stay left, for each way to part them: int64 [B + 1]."""
    levels = cells.size // 2
    all_gradient, all_hessian = 0, 0
    for level in range(levels):
        all_gradient += cells[2 * level]
        all_hessian += cells[2 * level + 1]
    gradient[levels], hessian[levels] = 0, 0
    if one_hot:
        for level in range(levels):
            gradient[level] = all_gradient - cells[2 * level]
            hessian[level] = all_hessian - cells[2 * level + 1]
        return
    order = _order_levels(cells, factors, penalties)
    for way in range(levels):
        all_gradient -= cells[2 * order[way]]
        all_hessian -= cells[2 * order[way] + 1]
        gradient[way], hessian[way] = all_gradient, all_hessian


@_elementwise
def _step(gradient, hessian, reg_lambda, reg_alpha, max_delta_step, lower, upper):
    """The best value of a leaf, before the learning rate, from `lower` to `upper`."""
    best = -_shrunk(gradient, reg_alpha) / (hessian + reg_lambda) if hessian + reg_lambda > 0.0 else 0.0
    best = min(max(best, -max_delta_step), max_delta_step)
    return min(max(best, lower), upper)


@_elementwise
def _score_of(gradient, hessian, step, reg_lambda, reg_alpha):
    """The loss a leaf of this value takes away, doubled."""
    return -(2.0 * gradient * step + (hessian + reg_lambda) * step * step + 2.0 * reg_alpha * abs(step))


@_loop
def best_split(
    histogram, offsets, value_bins, missing, categorical, factors, penalties, most_levels, total, limits
):
    """The split of highest gain of one node; ties go to the lowest feature, then bin, then missing right.

    histogram: int64 [2 T]; value_bins: int64 [F], bins without the missing one; missing: bool [F], whether a
    missing bin follows them; categorical: bool [F], whether the bins are levels, of which a split sends some
    right; factors: units per 1.0 of gradient and hessian; penalties: reg_lambda, reg_alpha, min_child_weight,
    max_delta_step (infinite for none); most_levels: features of fewer levels than the first split one level
    from all others, a side of other splits has fewer than the second, or all; total: the node's own two sums;
    limits: None, or the least and the largest value of leaves below this node, before the learning rate, and
    int64 [F], 1 for a feature with which they may not fall, -1 for one with which they may not rise.
    Returns (gain, feature, bin, missing goes left, left gradient, left hessian); feature -1 if none. For a
    categorical feature the bin is the number of the way to part its levels, see `levels_right`, and equal
    gains send missing values left: with the levels that are not chosen.
    """
    reg_lambda, reg_alpha, min_child_weight, max_delta_step = penalties
    g_unit, h_unit = 1.0 / factors[0], 1.0 / factors[1]  # powers of two: as exact as dividing, and faster
    step = max_delta_step
    if limits is None:
        root = _score(total[0] * g_unit, total[1] * h_unit, reg_lambda, reg_alpha, step)
    else:
        lower, upper, signs = limits
        g, h = total[0] * g_unit, total[1] * h_unit
        own = _step(g, h, reg_lambda, reg_alpha, step, lower, upper)
        root = _score_of(g, h, own, reg_lambda, reg_alpha)
    best_gain, best_feature, best_bin, best_missing_left = 0.0, -1, -1, False
    best_left_gradient, best_left_hessian = 0, 0
    gradient, hessian = np.empty(MAX_CODES, np.int64), np.empty(MAX_CODES, np.int64)
    gain = np.empty(MAX_CODES, np.float64)
    for f in range(offsets.size):
        first, bins = np.int64(offsets[f]), value_bins[f]
        cells = histogram[2 * first : 2 * (first + bins)]
        # What goes left in each way to part the bins, but for missing values.
        ways = reach = bins
        if categorical[f]:
            one_hot = bins < most_levels[0]
            _sum_levels(cells, one_hot, factors, penalties, gradient, hessian)
            if one_hot:
                ways += 1
            else:
                reach = min(bins, most_levels[1])
        else:
            gradient_below, hessian_below = 0, 0
            for b in range(bins):
                gradient_below += cells[2 * b]
                hessian_below += cells[2 * b + 1]
                gradient[b], hessian[b] = gradient_below, hessian_below
        absent_gradient, absent_hessian = 0, 0
        if missing[f]:
            absent_gradient = histogram[2 * (first + bins)]
            absent_hessian = histogram[2 * (first + bins) + 1]
        directions = 2 if absent_gradient != 0 or absent_hessian != 0 or reach < bins else 1
        for direction in range(directions):
            missing_left = 1 - direction if categorical[f] else direction
            # The last way parts the present from the missing: tried only with both.
            begin, end = 0, ways if directions == 2 and direction == 0 else ways - 1
            if reach < bins:
                begin, end = (0, reach - 1) if direction == 0 else (bins - reach, bins - 1)
            top = 0.0
            for b in range(end):  # from 0 and without branches: several gains are then computed together
                left_gradient = gradient[b] + absent_gradient * missing_left
                left_hessian = hessian[b] + absent_hessian * missing_left
                gl, hl = left_gradient * g_unit, left_hessian * h_unit
                gr = (total[0] - left_gradient) * g_unit
                hr = (total[1] - left_hessian) * h_unit
                allowed = (hl >= min_child_weight) & (hr >= min_child_weight) & (hl > 0.0) & (hr > 0.0)
                if limits is None:
                    both = _score(gl, hl, reg_lambda, reg_alpha, step)
                    both += _score(gr, hr, reg_lambda, reg_alpha, step)
                else:
                    left = _step(gl, hl, reg_lambda, reg_alpha, step, lower, upper)
                    right = _step(gr, hr, reg_lambda, reg_alpha, step, lower, upper)
                    both = _score_of(gl, hl, left, reg_lambda, reg_alpha)
                    both += _score_of(gr, hr, right, reg_lambda, reg_alpha)
                    allowed &= (right - left) * signs[f] >= 0.0
                gain[b] = both - root if allowed else 0.0
            for b in range(begin, end):
                top = max(top, gain[b])
            if top < best_gain or top == 0.0:
                continue
            for b in range(begin, end):
                if gain[b] == top:
                    if top > best_gain or (f == best_feature and b < best_bin):
                        best_gain, best_feature, best_bin = top, f, b
                        best_missing_left = missing_left == 1
                        best_left_gradient = gradient[b] + absent_gradient * missing_left
                        best_left_hessian = hessian[b] + absent_hessian * missing_left
                    break
    return best_gain, best_feature, best_bin, best_missing_left, best_left_gradient, best_left_hessian


@_loop
def best_gains(histogram, offsets, value_bins, missing, categorical, factors, penalties, most_levels, total):
    """The highest gain of a split by each feature alone, 0 where none gains: float64 [F]. As `best_split`."""
    out = np.zeros(offsets.size, np.float64)
    for f in range(offsets.size):
        one = slice(f, f + 1)
        of = offsets[one], value_bins[one], missing[one], categorical[one]
        out[f] = best_split(histogram, *of, factors, penalties, most_levels, total, None)[0]
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
def weigh_residuals(label, margin, weight, rows, start, width, bits, factor, limit, out):
    """out[c] += the weights, as `Scale.encode` makes them, of these rows with a residual in subcell c.

    The residual is float32(label - margin). The 2**width keys from `start` are cut in 2**bits equal subcells;
    residuals with other keys count nowhere.
    """
    for i in range(rows.size):
        row = rows[i]
        key = np.int64(_key(np.float32(label[row] - margin[row]).view(np.uint32)))
        into = key - start
        if into < 0 or into >> width:
            continue
        units = np.rint(weight[row] * factor)
        out[into >> (width - bits)] += np.int64(units if units < limit else limit)


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


@_loop
def count_rare(by_feature, features, common, starts):
    """starts[i + 1] = how many of these features are not in their common bin in the rows up to i."""
    starts[:] = 0
    for r in range(features.size):
        column, usual = by_feature[features[r]], np.uint8(common[r])
        for i in range(column.size):
            starts[i + 1] += np.int64(column[i] != usual)
    for i in range(starts.size - 1):
        starts[i + 1] += starts[i]


@_loop
def list_rare(by_feature, features, common, places, starts, entries):
    """entries[starts[i]:] = places[r] + bin of each feature r that is not in its common bin in row i."""
    for r in range(features.size):
        column, usual = by_feature[features[r]], np.uint8(common[r])
        for i in range(column.size):
            if column[i] != usual:
                entries[starts[i]] = places[r] + column[i]
                starts[i] += 1
    for i in range(starts.size - 1, 0, -1):  # each has come to where the next one began
        starts[i] = starts[i - 1]
    starts[0] = 0


# ---- prediction -------------------------------------------------------------------------------------


@_loop
def predict_margins(
    features, roots, left, right, feature, threshold, default_left, value, set_of, sets, margin
):
    """Add to margin the leaf value of every tree, tree after tree, for float32 features [N, F].

    The trees stand one after the other in the node columns; `roots` [trees] tells where each begins and
    child numbers, higher than their parent's, count from there. A leaf has left = -1. set_of: uint64, the row
    of `sets` that has the levels a node sends right; sets: uint64 [S, 4], bit l of the 256 is set for level
    l. A node with a threshold has row 0, which is empty, one with levels NaN for a threshold. A value that is
    no level at all goes left, as in XGBoost.

    A block of rows goes down a tree together, level by level: the walks of different rows do not wait for
    each other, no branch has to be foreseen, and the tree stays in the cache.
    """
    nodes, rows = left.size, features.shape[0]
    child = np.empty(2 * nodes, np.uint32)  # where to go on: left, right; a leaf stays where it is
    column = feature.astype(np.uint32)
    depth = np.zeros(nodes, np.int32)
    deepest = np.zeros(roots.size, np.int32)
    has_sets = np.zeros(roots.size, np.bool_)
    for t in range(roots.size):
        root = roots[t]
        for node in range(root, roots[t + 1] if t + 1 < roots.size else nodes):
            has_sets[t] |= set_of[node] > 0
            child[2 * node] = child[2 * node + 1] = node
            if left[node] >= 0:
                child[2 * node], child[2 * node + 1] = root + left[node], root + right[node]
                depth[root + left[node]] = depth[root + right[node]] = depth[node] + 1
                deepest[t] = max(deepest[t], depth[node] + 1)
    words, per_set = sets.ravel(), np.uint64(MAX_CODES // 64)
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
                if has_sets[t]:
                    for i in range(size):
                        node = at[i]
                        x = block[i, column[node]]
                        within = x if x > 0.0 else np.float32(0.0)
                        level = np.uint64(within if within < MAX_CODES - 1 else np.float32(MAX_CODES - 1))
                        bit = words[set_of[node] * per_set + (level >> np.uint64(6))] >> (
                            level & np.uint64(63)
                        )
                        chosen = (bit & np.uint64(1) != 0) & (x >= 0.0) & (x < MAX_CODES)
                        missing_right = (x != x) & (not default_left[node])
                        goes_right = (x >= threshold[node]) | missing_right | chosen
                        at[i] = child[2 * node + np.uint32(goes_right)]
                elif missing:
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
