"""Naive references of `fedboost.gbdt.kernels.histogram` and `level`."""

import numpy as np


def _by_node(sums, pairs_of, widths):
    pairs = iter(zip(sums[::2].tolist(), sums[1::2].tolist(), strict=True))
    for count, (gradient, hessian) in zip(pairs_of, widths, strict=True):
        yield [next(pairs) for _ in range(count)], gradient, hessian


def fit_level(sums, pairs_of, widths):
    return all(
        -(2 ** (gradient - 1)) <= g < 2 ** (gradient - 1) and 0 <= h < 2**hessian
        for pairs, gradient, hessian in _by_node(sums, pairs_of, widths)
        for g, h in pairs
    )


def pack_level(sums, pairs_of, widths):
    cells = []
    for pairs, gradient, hessian in _by_node(sums, pairs_of, widths):
        for g, h in pairs:
            cells += [g * 2**hessian + h] if gradient + hessian <= 64 else [g, h]
    return [(cell + 2**63) % 2**64 - 2**63 for cell in cells]


def hide_splits(columns, categories, seen, features):
    """Whether something changes, and both arrays as they become."""
    told, levels = columns.copy(), categories.copy()
    foreign = np.array(seen, np.int64) >= features
    told[1] = seen
    told[2:4, foreign] = levels[foreign] = 0
    changed = not (np.array_equal(told, columns) and np.array_equal(levels, categories))
    return changed, told.tolist(), levels.tolist()
