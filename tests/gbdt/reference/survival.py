"""Naive references of `fedboost.gbdt.kernels.objectives`."""

import math

import numpy as np

from tests.gbdt.reference.elementwise import exp, log, sigmoids

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
