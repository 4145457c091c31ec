"""Kernels for element-wise functions and objectives. Results are bit-identical on every CPU.

Unless stated otherwise, margins are float64 [N], labels and weights float32 [N]. In formulas, y is the label,
w the weight and p the prediction."""

import math

import numpy as np

from fedboost.gbdt.kernels import elementwise, loop

LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 in two parts: k * high is exact for |k| < 2**20
_LN2_LOW = 1.90821492927058770002e-10
INVERSE_FACTORIALS = tuple(1.0 / math.factorial(i) for i in range(14))
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in the low bits
EXPONENT_BIAS = 1023
MANTISSA = (1 << 52) - 1
HALF_LOG_2_PI = 0.9189385332046727


@elementwise
def exp(x):
    """Return e**x, with x clipped to +-700: 2**k times the Taylor polynomial of the remainder r, where |r| <=
    ln2 / 2."""
    x = x if x < 700.0 else 700.0
    x = x if x > -700.0 else -700.0
    shifted = x * LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    total = INVERSE_FACTORIALS[13]
    total = total * r + INVERSE_FACTORIALS[12]
    total = total * r + INVERSE_FACTORIALS[11]
    total = total * r + INVERSE_FACTORIALS[10]
    total = total * r + INVERSE_FACTORIALS[9]
    total = total * r + INVERSE_FACTORIALS[8]
    total = total * r + INVERSE_FACTORIALS[7]
    total = total * r + INVERSE_FACTORIALS[6]
    total = total * r + INVERSE_FACTORIALS[5]
    total = total * r + INVERSE_FACTORIALS[4]
    total = total * r + INVERSE_FACTORIALS[3]
    total = total * r + INVERSE_FACTORIALS[2]
    total = total * r + 1.0
    total = total * r + 1.0
    power = np.int64((np.float64(shifted).view(np.int64) + EXPONENT_BIAS) << 52)
    return total * power.view(np.float64)


@elementwise
def log(x):
    """Return ln x for normal x > 0: exponent * ln2 + 2 atanh(s), where s = (m - 1) / (m + 1) and m is in [.7,
    1.5)."""
    word = np.float64(x).view(np.int64)
    e = (word >> 52) - EXPONENT_BIAS
    m = np.int64((word & MANTISSA) | (EXPONENT_BIAS << 52)).view(np.float64)
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


@elementwise
def sigmoid(x):
    return 1.0 / (1.0 + exp(-x))


@loop
def exps(x):
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        out[i] = exp(x[i])
    return out


@loop
def logs(x):
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        out[i] = log(x[i])
    return out


@loop
def sigmoids(margin):
    out = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        out[i] = sigmoid(margin[i])
    return out


@loop
def log_factorials(x):
    """Return ln Gamma(x + 1) for x >= 0, float64 [N]. Uses Stirling's series for x + 1 >= 12. For smaller x,
    x is first increased by means of (x + 1)! = (x + 1) x!."""
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        z, product = x[i] + 1.0, 1.0
        while z < 12.0:
            product *= z
            z += 1.0
        r = 1.0 / z
        q = r * r
        series = r * (1.0 / 12.0 - q * (1.0 / 360.0 - q * (1.0 / 1260.0 - q * (1.0 / 1680.0 - q / 1188.0))))
        out[i] = (z - 0.5) * log(z) - z + HALF_LOG_2_PI + series - log(product)
    return out


# ---- Kernels for gradients and losses: logistic, softmax, Poisson, gamma, Tweedie, pseudo-Huber ---------


@loop
def logistic_gradients(margin, label, weight):
    """Return the gradient w (p - y) and the hessian w p (1 - p) of the log loss: two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        p = sigmoid(margin[i])
        gradient[i] = weight[i] * (p - label[i])
        hessian[i] = weight[i] * (p * (1.0 - p))
    return gradient, hessian


@loop
def softmaxes(margin):
    """Return the softmax over the outputs, float64 [N, K]. margin: float64 [K, N]."""
    outputs, rows = margin.shape
    out = np.empty((rows, outputs), np.float64)
    for i in range(rows):
        top = margin[0, i]
        for k in range(1, outputs):
            top = max(top, margin[k, i])
        total = 0.0
        for k in range(outputs):
            out[i, k] = exp(margin[k, i] - top)
            total += out[i, k]
        for k in range(outputs):
            out[i, k] /= total
    return out


@loop
def softmax_gradients(margin, label, weight):
    """Return the gradients w (p - y) and hessians 2 w p (1 - p) of the log loss for K classes: two float64
    [K, N]. margin: float64 [K, N]."""
    share = softmaxes(margin)
    gradient = np.empty(margin.shape, np.float64)
    hessian = np.empty(margin.shape, np.float64)
    for k in range(margin.shape[0]):
        for i in range(margin.shape[1]):
            p = share[i, k]
            gradient[k, i] = weight[i] * (p - (1.0 if label[i] == k else 0.0))
            hessian[k, i] = weight[i] * (2.0 * p * (1.0 - p))
    return gradient, hessian


@loop
def softmax_losses(margin, label, weight):
    """Return -w log p of each row's class: float64 [N]. margin: float64 [K, N]."""
    outputs, rows = margin.shape
    out = np.empty(rows, np.float64)
    for i in range(rows):
        top = margin[0, i]
        for k in range(1, outputs):
            top = max(top, margin[k, i])
        total = 0.0
        for k in range(outputs):
            total += exp(margin[k, i] - top)
        out[i] = weight[i] * (log(total) + (top - margin[np.int64(label[i]), i]))
    return out


@loop
def log_losses(margin, label, weight):
    """Return the log loss w log(1 + e**-z), where z is the margin for label 1 and minus the margin for label
    0: float64 [N]."""
    out = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        out[i] = exp(-abs(margin[i]))
    for i in range(margin.size):
        z = margin[i] if label[i] > 0.5 else -margin[i]
        out[i] = weight[i] * ((-z if z < 0.0 else 0.0) + log(1.0 + out[i]))
    return out


@elementwise
def _rate(margin):
    """Return e**margin, with the margin clipped to +-300, so that results are finite for all labels and
    weights."""
    margin = margin if margin < 300.0 else 300.0
    return exp(margin if margin > -300.0 else -300.0)


@loop
def poisson_gradients(margin, label, weight, boost):
    """Return the gradient w (p - y) and the hessian w p boost of the Poisson loss, where p = e**margin: two
    float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        p = _rate(margin[i])
        gradient[i] = weight[i] * (p - label[i])
        hessian[i] = weight[i] * (p * boost)
    return gradient, hessian


@loop
def gamma_gradients(margin, label, weight):
    """Return the gradient w (1 - y / p) and the hessian w y / p of the gamma loss, where p = e**margin: two
    float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        share = label[i] * _rate(-margin[i])
        gradient[i] = weight[i] * (1.0 - share)
        hessian[i] = weight[i] * share
    return gradient, hessian


@loop
def tweedie_gradients(margin, label, weight, power):
    """Return the gradient w (b - a) and the hessian w ((power - 1) a + (2 - power) b) of the Tweedie loss:
    two float64 [N]. Here a = y e**((1 - power) margin) and b = e**((2 - power) margin)."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        a = label[i] * _rate((1.0 - power) * margin[i])
        b = _rate((2.0 - power) * margin[i])
        gradient[i] = weight[i] * (b - a)
        hessian[i] = weight[i] * ((power - 1.0) * a + (2.0 - power) * b)
    return gradient, hessian


@loop
def pseudo_huber_gradients(margin, label, weight, slope):
    """Return the gradient w z / r and the hessian w / (r r r) of the pseudo-Huber loss, where z = margin - y
    and r = sqrt(1 + (z / slope)**2): two float64 [N]."""
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        z = margin[i] - label[i]
        ratio = z / slope
        r = math.sqrt(1.0 + ratio * ratio)
        gradient[i] = weight[i] * (z / r)
        hessian[i] = weight[i] * (1.0 / (r * r * r))
    return gradient, hessian


# ---- Kernels for accelerated failure time: normal, logistic and extreme value times ---------------------


NORMAL, LOGISTIC, EXTREME = range(3)
"""Distributions of the logarithm of a time."""
_END = 1e9
"""Number of standard deviations that stands for infinity."""
_TAIL = 1e4
"""A normal interval that begins at least this many standard deviations from the mean is treated as a point,
because almost all of its probability lies at its beginning."""
_MAX_GRADIENT, _MIN_HESSIAN = 15.0, 1e-16
"""XGBoost's bounds: the largest gradient and hessian of a row, and the smallest hessian."""
_MIN_LIKELIHOOD = 1e-12
"""Smallest likelihood, as in XGBoost."""
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
"""Coefficients of (x + 1) times Mills' ratio for x >= 0, as a polynomial in t = (x - 4) / (x + 4), lowest
power first. They are fitted to values at 60 Chebyshev nodes, computed to 60 digits. The relative error is at
most 5e-16, including rounding."""


@elementwise
def _mills(x):
    """Return Mills' ratio for x >= 0: the normal tail beyond x, divided by the normal density at x."""
    t = (x - 4.0) / (x + 4.0)
    total = _MILLS[23]
    for i in range(22, -1, -1):
        total = total * t + _MILLS[i]
    return total / (x + 1.0)


@loop
def _normal_tail(x):
    far = abs(x)
    tail = _INVERSE_ROOT_2_PI * exp(-0.5 * far * far) * _mills(far)
    return tail if x > 0.0 else 1.0 - tail


@loop
def _normal_derivatives(low, high):
    """Return the first and second derivatives, with respect to -s at s = 0, of -log of the normal probability
    of [low + s, high + s]. If low equals high, the density replaces the probability."""
    mirrored = low + high < 0.0  # so that the smaller tail is subtracted from 1
    a = -high if mirrored else low
    b = -low if mirrored else high
    gradient, hessian = -a, 1.0
    if a < b and a < _TAIL:
        if a >= 0.0:  # all relative to the density at a
            at_a, at_b = 1.0, exp(-0.5 * (b - a) * (b + a))
            between = _mills(a) - at_b * _mills(b)
        else:
            at_a = _INVERSE_ROOT_2_PI * exp(-0.5 * a * a)
            at_b = _INVERSE_ROOT_2_PI * exp(-0.5 * b * b)
            between = 1.0 - at_a * _mills(-a) - at_b * _mills(b)
        if between > 0.0:
            gradient = (at_b - at_a) / between
            hessian = gradient * gradient + (b * at_b - a * at_a) / between
    return -gradient if mirrored else gradient, hessian


@loop
def _logistic_derivatives(low, high):
    """Like `_normal_derivatives`, but for the logistic distribution F. F(high) - F(low) is F(high) (1 -
    F(low)) times a factor that does not depend on s."""
    above, below = sigmoid(high), sigmoid(low)
    return 1.0 - above - below, above * (1.0 - above) + below * (1.0 - below)


@loop
def _extreme_derivatives(low, high):
    """Like `_normal_derivatives`, but for the extreme value distribution 1 - e**-w, where w = e**x. The
    probability is e**-w(low) times 1 - e**-d, where d = w(high) - w(low)."""
    w = exp(low)
    d = exp(high) - w
    if d > 0.5:
        share = d / (exp(d) - 1.0) if d < 700.0 else 0.0
    else:  # the Taylor series of (e**d - 1) / d
        total = INVERSE_FACTORIALS[13]
        for i in range(12, 0, -1):
            total = total * d + INVERSE_FACTORIALS[i]
        share = 1.0 / total
    return share - w, w + share * (share + d - 1.0)


@elementwise
def _standardised(bound, margin, scale):
    """Return the distance of a time's logarithm from the margin, in units of the scale."""
    return max(min((log(bound) - margin) / scale, _END), -_END)


@loop
def aft_gradients(margin, lower, upper, weight, distribution, scale):
    """Compute the gradient and hessian of the accelerated failure time loss: w times -log of the probability
    that the time lies in [lower, upper]. Returns two float64 [N].

    The logarithm of the time is the margin plus scale times a variable of the distribution. If both bounds
    are equal, the density at this time replaces the probability.

    Args:
        margin, weight: float64 and float32 [N].
        lower, upper: float32 [N]; 0 and infinity mean that there is no bound.
        distribution: NORMAL, LOGISTIC or EXTREME.
        scale: factor for the distribution's variable.
    """
    gradient = np.empty(margin.size, np.float64)
    hessian = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        low = _standardised(lower[i], margin[i], scale) if lower[i] > 0.0 else -_END
        high = _standardised(upper[i], margin[i], scale) if upper[i] < np.inf else _END
        if distribution == NORMAL:
            g, h = _normal_derivatives(low, high)
        elif distribution == LOGISTIC:
            g, h = _logistic_derivatives(low, high)
        else:
            g, h = _extreme_derivatives(low, high)
        g, h = g / scale, h / (scale * scale)
        gradient[i] = weight[i] * max(min(g, _MAX_GRADIENT), -_MAX_GRADIENT)
        hessian[i] = weight[i] * max(min(h, _MAX_GRADIENT), _MIN_HESSIAN)
    return gradient, hessian


@loop
def aft_losses(margin, lower, upper, distribution, scale):
    """Return the loss that `aft_gradients` differentiates, at weight 1: float64 [N]. If both bounds are
    equal, the density of the time is used, not the density of its logarithm. The arguments are as in
    `aft_gradients`."""
    out = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        low = _standardised(lower[i], margin[i], scale) if lower[i] > 0.0 else -_END
        high = _standardised(upper[i], margin[i], scale) if upper[i] < np.inf else _END
        exact = lower[i] == upper[i]
        if distribution == NORMAL:
            if exact:
                likelihood = _INVERSE_ROOT_2_PI * exp(-0.5 * low * low)
            elif low + high > 0.0:
                likelihood = _normal_tail(low) - _normal_tail(high)
            else:
                likelihood = _normal_tail(-high) - _normal_tail(-low)
        elif distribution == LOGISTIC:
            likelihood = sigmoid(high) * sigmoid(-low)
            likelihood *= 1.0 if exact else 1.0 - exp(low - high)
        else:
            w = exp(low)
            likelihood = w * exp(-w) if exact else exp(-w) - exp(-exp(high))
        likelihood = likelihood / (scale * lower[i]) if exact else likelihood
        out[i] = -log(max(likelihood, _MIN_LIKELIHOOD))
    return out


# ---- Kernels for ranking: lambda gradients and NDCG of groups of rows -----------------------------------


@loop
def _discounts(starts):
    """Return 1 / log2(rank + 2) for each rank in the largest group, starting at 0."""
    top = 0
    for g in range(starts.size - 1):
        top = max(top, starts[g + 1] - starts[g])
    out = np.empty(top, np.float64)
    for rank in range(top):
        out[rank] = 1.0 / (log(rank + 2.0) * LOG2_E)
    return out


@loop
def _best_dcg(gain, top, discount):
    """Return the DCG of the first `top` rows when sorted by decreasing gain."""
    best, total = np.sort(gain), 0.0
    for rank in range(min(top, gain.size)):
        total += best[gain.size - 1 - rank] * discount[rank]
    return total


@loop
def lambda_gradients(margin, label, gain, weight, starts, top, by_ndcg, score_normalization, normalization):
    """Compute the gradients and hessians of LambdaMART. Returns two float64 [N].

    Rows of a group are ordered by decreasing margin; among equal margins, the earlier row comes first. Each
    of the first `top` rows forms a pair with each later row that has a different label.

    Args:
        margin, label, gain, weight: float64, float32, float64 and float32 [N].
        starts: int64 [groups + 1], group g has the rows starts[g] to starts[g + 1] - 1.
        top: number of rows of a group that form pairs with later rows.
        by_ndcg: if True, a pair's weight is the change in the group's NDCG if the two rows swapped ranks,
            relative to the best DCG of the first `top` rows; otherwise, the weight is 1.
        score_normalization: if True, a pair's weight is divided by the distance between the two margins plus
            1/100, unless all margins of the group are equal.
        normalization: if True, all results of a group are multiplied by log2(1 + s) / s, where s is the sum
            of the magnitudes of the pairs' gradients.
    """
    gradient = np.zeros(margin.size, np.float64)
    hessian = np.zeros(margin.size, np.float64)
    discount = _discounts(starts)
    for g in range(starts.size - 1):
        first, size = starts[g], starts[g + 1] - starts[g]
        order = first + np.argsort(-margin[first : first + size], kind="mergesort")
        scale = 1.0
        if by_ndcg:
            ideal = _best_dcg(gain[first : first + size], top, discount)
            scale = 1.0 / ideal if ideal > 0.0 else 0.0
        by_distance = score_normalization and margin[order[0]] != margin[order[size - 1]]
        total = 0.0
        for i in range(min(top, size)):
            for j in range(i + 1, size):
                high, low = order[i], order[j]
                if label[high] == label[low]:
                    continue
                if label[high] < label[low]:
                    high, low = low, high
                distance = margin[high] - margin[low]
                pair_weight = 1.0
                if by_ndcg:
                    pair_weight = (gain[high] - gain[low]) * (discount[i] - discount[j]) * scale
                if by_distance:
                    pair_weight /= abs(distance) + 0.01
                p = sigmoid(distance)
                pair_gradient = (1.0 - p) * pair_weight
                pair_hessian = max(p * (1.0 - p), 1e-16) * pair_weight * 2.0
                gradient[high] -= pair_gradient
                gradient[low] += pair_gradient
                hessian[high] += pair_hessian
                hessian[low] += pair_hessian
                total += 2.0 * pair_gradient
        factor = 1.0
        if normalization and total > 0.0:
            factor = log(1.0 + total) * LOG2_E / total
        for i in range(first, first + size):
            gradient[i] = gradient[i] * factor * weight[i]
            hessian[i] = hessian[i] * factor * weight[i]
    return gradient, hessian


@loop
def ndcgs(margin, gain, starts, top, without):
    """Return the NDCG of the first `top` rows of each group, ranked by margin: float64 [groups]. Rows with
    equal margins keep their order.

    Args:
        margin, gain: float64 [N].
        starts: int64 [groups + 1], group g has the rows starts[g] to starts[g + 1] - 1.
        top: number of rows of a group that are counted.
        without: NDCG of a group in which no row has a gain.
    """
    out = np.empty(starts.size - 1, np.float64)
    discount = _discounts(starts)
    for g in range(out.size):
        first, size = starts[g], starts[g + 1] - starts[g]
        ideal = _best_dcg(gain[first : first + size], top, discount)
        order = first + np.argsort(-margin[first : first + size], kind="mergesort")
        total = 0.0
        for rank in range(min(top, size)):
            total += gain[order[rank]] * discount[rank]
        out[g] = total / ideal if ideal > 0.0 else without
    return out
