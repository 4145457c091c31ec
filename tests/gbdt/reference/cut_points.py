"""References of `fedboost.gbdt.kernels.bins`, one feature at a time."""

import numpy as np


def refine(cells, grid, counts, key_bits):
    """The cells of one feature, each (start, width, rows), and its missing values; None where counts do not
    fit. grid: start to subdivision."""
    counts, refined, missing = iter(counts), [], 0
    for start, width, rows in cells:
        if start not in grid:
            refined.append((start, width, rows))
            continue
        bits = grid[start]
        own = [next(counts) for _ in range(2**bits)]
        if min(own) < 0 or sum(own) != rows:
            return None
        if width == key_bits:
            missing, own[-1] = own[-1], 0
        step = width - bits
        refined += [(start + (place << step), step, count) for place, count in enumerate(own) if count]
    return refined, missing


def choose_cells(cells, max_bin, budget, two_rows):
    """(start, width, subdivision) of each cell of one feature that is to be cut finer."""
    left_over = len(cells) < max_bin
    limit = 2 * sum(rows for *_, rows in cells) / budget
    coarse = [
        cell for cell in cells if cell[1] > 0 and cell[2] >= two_rows and (left_over or cell[2] > limit)
    ]
    total = sum(rows for *_, rows in coarse)
    chosen = []
    for start, width, rows in coarse:
        share = budget * rows // total
        if left_over:
            share = (share + budget // len(coarse)) // 2
        chosen.append((start, width, min(max(share.bit_length() - 1, 1), width)))
    return chosen


def cut_keys(cells, bins):
    """Keys of the cuts of one feature."""
    starts = np.array([start for start, *_ in cells], np.int64)
    if starts.size <= bins:
        return starts[1:].tolist()
    until = np.cumsum([rows for *_, rows in cells])
    places = np.unique(np.searchsorted(until, np.arange(1, bins) * (until[-1] / bins), side="left"))
    return starts[places[places > 0]].tolist()
