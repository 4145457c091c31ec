"""Kernels of element-wise functions, the same bits on every CPU: exp, log, sigmoid, log factorials."""

import math

import numpy as np

from fedboost.gbdt.kernels.compile import elementwise, loop

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
    """e**x, x clipped to +-700: 2**k times the Taylor polynomial of the remainder |r| <= ln2 / 2."""
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
    """ln x for normal x > 0: exponent * ln2 + 2 atanh(s), s = (m - 1) / (m + 1), m in [.7, 1.5)."""
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
    """e**x of each x: float64 [N]."""
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        out[i] = exp(x[i])
    return out


@loop
def logs(x):
    """ln x of each x > 0: float64 [N]."""
    out = np.empty(x.size, np.float64)
    for i in range(x.size):
        out[i] = log(x[i])
    return out


@loop
def sigmoids(margin):
    """1 / (1 + e**-margin): float64 [N]."""
    out = np.empty(margin.size, np.float64)
    for i in range(margin.size):
        out[i] = sigmoid(margin[i])
    return out


@loop
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
        out[i] = (z - 0.5) * log(z) - z + HALF_LOG_2_PI + series - log(product)
    return out
