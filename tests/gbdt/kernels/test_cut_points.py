"""Every kernel of grids equals its reference, feature by feature."""

from itertools import pairwise

import numpy as np
import pytest

from fedboost.gbdt.kernels import bins as kernels
from fedboost.gbdt.kernels.bins import MAX_CODES
from tests.gbdt.reference import cut_points as reference

KEY_BITS = 32


def some_cells(rng, first):
    """Cells of a feature: all keys where its first grid is due, else some that lie apart."""
    if first:
        return [(0, KEY_BITS, int(rng.integers(0, 300)))]
    places = np.sort(rng.choice(64, rng.integers(0, 30), replace=False))
    heavy = rng.choice([1, 2, 3, 50, 1 << 44], places.size)
    return [
        (int(place) << 26, int(rng.integers(0, 27)), int(rows))
        for place, rows in zip(places, heavy, strict=True)
    ]


def flat(features, dtypes):
    """Offsets, and the members of all tuples of all features, behind one another."""
    offsets = np.concatenate([[0], np.cumsum([len(cells) for cells in features])]).astype(np.int64)
    every = [cell for cells in features for cell in cells]
    columns = zip(*every, strict=True) if every else [()] * len(dtypes)
    return offsets, *(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True))


def lists(size, offsets, *columns):
    """The tuples of each feature, of what `flat` made."""
    assert offsets[-1] == size
    every = list(zip(*(column[:size].tolist() for column in columns), strict=True))
    return [every[first:last] for first, last in pairwise(offsets)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("first", "two_rows"), [(True, 2), (False, 2), (False, 1), (False, 51)])
def test_cells_are_refined_chosen_and_cut_as_feature_by_feature(seed, first, two_rows):
    rng = np.random.default_rng(seed)
    features = [some_cells(rng, first) for _ in range(5)]
    known = flat(features, [np.int64] * 3)
    for max_bin, budget in ((4, 256), (16, 300), (256, 2048)):
        chosen = np.zeros(6, np.int64), *(np.empty(known[1].size, d) for d in (np.uint32, np.uint8, np.uint8))
        size = kernels.choose_cells(known, max_bin, budget, two_rows, chosen)
        due = [reference.choose_cells(cells, max_bin, budget, two_rows) for cells in features]
        assert lists(size, *chosen) == due
        sizes, keys = np.zeros(5, np.int64), np.empty(known[1].size, np.int64)
        missing = rng.integers(0, 2, 5)
        count = kernels.cut_keys(known[0], known[1], known[3], missing, max_bin, MAX_CODES, sizes, keys)
        bins = [min(max_bin, MAX_CODES - int(own)) for own in missing]
        due_keys = [reference.cut_keys(cells, most) for cells, most in zip(features, bins, strict=True)]
        assert sizes.tolist() == [len(own) for own in due_keys]
        assert keys[:count].tolist() == [key for own in due_keys for key in own]
    grids = [
        [(start, min(width, 6 + first), rows) for start, width, rows in cells if first or rng.random() < 0.7]
        for cells in features
    ]
    counts = [
        rng.multinomial(rows, np.full(2**bits, 2.0**-bits)).tolist() for own in grids for _, bits, rows in own
    ]
    sums = np.array([count for cell in counts for count in cell], np.int64)
    check_refined(features, grids, known, sums)
    for place in rng.integers(0, max(sums.size, 1), 3) if sums.size else ():
        for change in (1, -1 - int(sums[place])):
            wrong = sums.copy()
            wrong[place] += change
            check_refined(features, grids, known, wrong)


def check_refined(features, grids, known, sums):
    offsets, starts, bits, _ = flat(grids, [np.uint32, np.uint8, np.int64])
    missing = np.zeros(5, np.int64)
    most = known[1].size + np.count_nonzero(sums)
    refined = np.zeros(6, np.int64), *np.empty((3, most), np.int64)
    size = kernels.refine(known, (offsets, starts, bits), sums, KEY_BITS, missing, refined)
    left, due = sums.tolist(), []
    for cells, grid in zip(features, grids, strict=True):
        count = sum(2**own for _, own, _ in grid)
        own, left = left[:count], left[count:]
        due.append(reference.refine(cells, {start: bits for start, bits, _ in grid}, own, KEY_BITS))
    if None in due:
        assert size == -1
        return
    assert lists(size, *refined) == [cells for cells, _ in due]
    assert missing.tolist() == [own for _, own in due]
