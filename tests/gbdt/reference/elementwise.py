"""Naive references of `fedboost.gbdt.kernels.objectives`."""

import math

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


def _one(function, x):
    return float(function(np.array([x], np.float64))[0])


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


def exp(x):
    return float(exps(np.array([float(x)]))[0])


def log(x):
    return float(logs(np.array([float(x)]))[0])
