"""Kernels of exact sums: sums of floats without loss, and gradients to packed integers."""

import math

import numpy as np

from fedboost.gbdt.kernels.compile import loop
from fedboost.gbdt.kernels.elementwise import EXPONENT_BIAS, MANTISSA

LIMBS = 12
"""Integers that hold the sum of floats of any size without loss (`add_limbs`)."""
LIMB_BITS = 31
LIMBS_FROM = -184
MAX_IN_LIMBS = math.ldexp(1.0, 127)


@loop
def gradient_norms(gradient, hessian, reg_lambda):
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


@loop
def add_limbs(values, weight, out):
    """out += the sum of weight * value in limbs, the lowest first: int64 [LIMBS].

    Each product is cut to a multiple of 2**LIMBS_FROM, towards 0; a limb holds LIMB_BITS of its bits, with
    its sign. Values of magnitude above MAX_IN_LIMBS, and NaN, are replaced by it; weights
    are at most 2**60.
    """
    mask = (np.uint64(1) << np.uint64(LIMB_BITS)) - np.uint64(1)
    limbs = np.zeros(LIMBS + 3, np.int64)  # the last three for invalid weights
    for i in range(values.size):
        value = values[i] if values[i] < MAX_IN_LIMBS else MAX_IN_LIMBS
        value = weight[i] * (value if value > -MAX_IN_LIMBS else -MAX_IN_LIMBS)
        word = np.float64(value).view(np.int64)
        sign = 1 - 2 * ((word >> 63) & 1)
        exponent = (word >> 52) & 0x7FF
        mantissa = np.uint64((word & MANTISSA) | (MANTISSA + 1))
        position = exponent - (EXPONENT_BIAS + 52 + LIMBS_FROM)  # of the mantissa's lowest bit
        if position <= -53:
            continue
        if position < 0:
            mantissa >>= np.uint64(-position)
            position = 0
        limb, shift = position // LIMB_BITS, np.uint64(position % LIMB_BITS)
        limbs[limb] += sign * np.int64((mantissa << shift) & mask)
        mantissa >>= np.uint64(LIMB_BITS) - shift
        limbs[limb + 1] += sign * np.int64(mantissa & mask)
        limbs[limb + 2] += sign * np.int64(mantissa >> np.uint64(LIMB_BITS))
    for limb in range(LIMBS):
        out[limb] += limbs[limb]


@loop
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


@loop
def quantise_bounded(gradient, hessian, gradient_factor, hessian_factor, weight, units, out):
    """As `quantise`: gradient and hessian times their factors, clipped to 1; times the weight the hessian,
    then in units. Rounded toward zero."""
    for i in range(gradient.size):
        g = min(max(gradient[i] * gradient_factor, -1.0), 1.0)
        h = min(max(hessian[i] * hessian_factor, 0.0), 1.0)
        out[i] = (np.int64(g * units) << 32) + np.int64(h * weight * units)


@loop
def sum_units(values, factor, limit):
    """The sum of `Scale.encode(values)`: float64 [N] in, one integer out."""
    total = 0
    for i in range(values.size):
        units = np.rint(values[i] * factor)
        units = units if units < limit else limit
        units = units if units > -limit else -limit
        total += np.int64(units)
    return total
