"""Naive references of `fedboost.gbdt.kernels.predict`."""

import math

import numpy as np


def goes_left(x, threshold, default_left):
    """The threshold may be the set of the levels that go right."""
    if math.isnan(x):
        return default_left
    if isinstance(threshold, set):
        return x < 0 or float(np.floor(x)) not in threshold
    return x < np.float32(threshold)


def predict_margins(features, trees, margin):
    """`trees`: for each tree the list of its nodes (left, right, feature, threshold, default left, value).
    The threshold may be the set of the levels that go right."""
    out = []
    for row, total in zip(features, margin.tolist(), strict=True):
        for tree in trees:
            left, right, feature, threshold, default_left, value = tree[0]
            while left >= 0:
                on = left if goes_left(row[feature], threshold, default_left) else right
                left, right, feature, threshold, default_left, value = tree[on]
            total += value
        out.append(total)
    return out
