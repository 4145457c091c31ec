"""Kernels of rows of nodes: row numbers, their partition, leaf values added to margins."""

import numpy as np

from fedboost.gbdt.kernels.compile import loop


@loop
def count_up(rows):
    """rows = 0, 1, 2, ..."""
    for i in range(rows.size):
        rows[i] = i


@loop
def partition(codes, goes_left, rows, scratch):
    """Reorder `rows` in place, stably: those that go left first. Returns how many go left.

    `codes` is uint8 [N], the bin of each row for the feature that splits; `goes_left` is uint8 [MAX_CODES], 1
    for the bins that go left and 0 for the others.
    """
    left = np.uint64(0)
    for i in range(rows.size):
        row = rows[i]
        rows[left] = row  # never overtakes the reader: left <= i
        scratch[np.uint64(i) - left] = row
        left += np.uint64(goes_left[codes[row]])
    rows[left:] = scratch[: np.uint64(rows.size) - left]
    return left


@loop
def add_value(margin, rows, value):
    """margin[rows] += value."""
    for i in range(rows.size):
        margin[rows[i]] += value
