"""Naive references of `fedboost.gbdt.kernels.histogram`."""

from fractions import Fraction

import numpy as np


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


def gradient_norms(gradient, hessian, reg_lambda):
    squares = np.zeros(gradient.shape[1])
    for g, h in zip(gradient, hessian, strict=True):
        squares += g * g + reg_lambda * (h * h)
    return np.sqrt(squares)
