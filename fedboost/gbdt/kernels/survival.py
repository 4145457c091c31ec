"""Kernels of accelerated failure time: gradients and losses of normal, logistic and extreme value times."""

import numpy as np

from fedboost.gbdt.kernels.compile import elementwise, loop
from fedboost.gbdt.kernels.elementwise import INVERSE_FACTORIALS, exp, log, sigmoid

NORMAL, LOGISTIC, EXTREME = range(3)
"""Distributions of the logarithm of a time."""
_END = 1e9
"""Standard deviations that stand for infinity."""
_TAIL = 1e4
"""From here on the whole normal tail is at its beginning, to float64 precision."""
_MAX_GRADIENT, _MIN_HESSIAN = 15.0, 1e-16
"""XGBoost's: the largest gradient and hessian of a row, and the smallest hessian."""
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
"""(x + 1) times Mills' ratio of x >= 0, as a polynomial in t = (x - 4) / (x + 4), lowest power first. Made
from its values at 60 Chebyshev nodes, of 60 digits; the relative error is at most 5e-16, with rounding."""


@elementwise
def _mills(x):
    """Mills' ratio, for x >= 0: the normal tail beyond x over the normal density at x."""
    t = (x - 4.0) / (x + 4.0)
    total = _MILLS[23]
    for i in range(22, -1, -1):
        total = total * t + _MILLS[i]
    return total / (x + 1.0)


@loop
def _normal_tail(x):
    """The probability that a standard normal number is above x."""
    far = abs(x)
    tail = _INVERSE_ROOT_2_PI * exp(-0.5 * far * far) * _mills(far)
    return tail if x > 0.0 else 1.0 - tail


@loop
def normal_tails(x):
    """The probability that a standard normal number is above each x: float64 [N]."""
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        out[i] = _normal_tail(x[i])
    return out


@loop
def _normal_derivatives(low, high):
    """First and second derivative of -log of the normal probability of [low + s, high + s] in -s at 0; of the
    density where low is high."""
    mirrored = low + high < 0.0  # so that what is subtracted from 1 is the smaller tail
    a = -high if mirrored else low
    b = -low if mirrored else high
    gradient, hessian = -a, 1.0
    if a < b and a < _TAIL:
        if a >= 0.0:  # everything over the density at a
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
    """As `_normal_derivatives`, of the logistic distribution F: F(high) - F(low) is F(high) (1 - F(low))
    times something that s does not change."""
    above, below = sigmoid(high), sigmoid(low)
    return 1.0 - above - below, above * (1.0 - above) + below * (1.0 - below)


@loop
def _extreme_derivatives(low, high):
    """As `_normal_derivatives`, of the distribution 1 - e**-w of the smallest of many, w = e**x: the
    probability is e**-w(low) times 1 - e**-d, d = w(high) - w(low)."""
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
    """Distance of the logarithm of a time from a margin, in scales."""
    return max(min((log(bound) - margin) / scale, _END), -_END)


@loop
def aft_gradients(margin, lower, upper, weight, distribution, scale):
    """Gradient and hessian of w times -log of the probability of a time in [lower, upper], whose logarithm is
    margin + scale times a number of that distribution: two float64 [N].

    lower 0 and upper infinity are open ends; where both are the same, it is of the density there.
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
    """-log of the probability in `aft_gradients`, or where lower is upper of the density of the
    time: float64 [N]."""
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
