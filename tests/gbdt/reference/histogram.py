"""Naive references of `fedboost.gbdt.kernels.histogram`."""

import numpy as np


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
