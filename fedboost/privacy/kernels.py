"""Compiled loops of the protections: words added, subtracted and taken modulo 2**32 or 2**64.

Promises: what numpy's +=, -= and >> on unsigned words compute, with the shift, without temporary arrays and
several times faster for words narrower than the sum. With gbdt/kernels.py one of the two importers of numba.
"""

import numpy as np
from numba import njit

_loop = njit(cache=True, nogil=True)


@_loop
def add_words(total, low, low_shift, high, high_shift):
    """total += (low << low_shift) + (high << high_shift).

    total uint32 or uint64 [n]; low, high [n] of narrower or the same unsigned types; high may be empty.
    """
    if high.size == 0:
        for i in range(total.size):
            total[i] += np.uint64(low[i]) << np.uint64(low_shift)
    else:
        for i in range(total.size):
            total[i] += (np.uint64(low[i]) << np.uint64(low_shift)) + (
                np.uint64(high[i]) << np.uint64(high_shift)
            )


@_loop
def subtract_words(total, low, low_shift, high, high_shift):
    """total -= (low << low_shift) + (high << high_shift); as `add_words`."""
    if high.size == 0:
        for i in range(total.size):
            total[i] -= np.uint64(low[i]) << np.uint64(low_shift)
    else:
        for i in range(total.size):
            total[i] -= (np.uint64(low[i]) << np.uint64(low_shift)) + (
                np.uint64(high[i]) << np.uint64(high_shift)
            )


@_loop
def take_words(total, shift, words):
    """words = total >> shift, cut to their own width."""
    for i in range(total.size):
        words[i] = np.uint64(total[i]) >> np.uint64(shift)
