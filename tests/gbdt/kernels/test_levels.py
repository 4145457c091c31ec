"""Every kernel of a level equals its numpy reference bit for bit."""

import numpy as np
import pytest
from kernel_cases import binned, columns_of

from fedboost.gbdt.kernels.histogram import build_level, fit_level, pack_level, spread_level, unpack_level
from fedboost.gbdt.kernels.level import hide_splits
from tests.gbdt.reference import histogram, levels

WIDTHS = [[(20, 12), (31, 33), (40, 25), (1, 1)], [(64, 63)], [(2, 62), (60, 4), (33, 32)], []]


def sums_of(rng, widths, counts):
    """Pairs of sums that just fit, a node after the other."""
    out = []
    for (gradient, hessian), count in zip(widths, counts, strict=True):
        least, most = -(1 << (gradient - 1)), (1 << (gradient - 1)) - 1
        for number in range(count):
            out += [least if number == 0 else most if number == 1 else int(rng.integers(least, most))]
            out += [(1 << hessian) - 1 if number < 2 else int(rng.integers(1 << hessian, dtype=np.uint64))]
    return np.array(out, np.int64)


@pytest.mark.parametrize("widths", WIDTHS)
def test_cells_of_a_level(widths):
    rng = np.random.default_rng(len(widths))
    counts = rng.permutation([0, 1, 2, 40])[: len(widths)]
    columns = counts.astype(np.int64), np.array(widths, np.int64).reshape(-1, 2)
    sums = sums_of(rng, widths, counts)
    due = levels.pack_level(sums, counts, widths)
    cells, again = np.empty(len(due), np.int64), np.empty(sums.size, np.int64)
    pack_level(sums, *columns, cells)
    assert cells.tolist() == due
    unpack_level(cells, *columns, again)
    assert again.tolist() == sums.tolist()
    assert fit_level(sums, *columns)
    for place in range(sums.size):
        for value in (-1, 0, 1 << 11, 1 << 12, 1 << 40, -(1 << 40)):
            other = sums.copy()
            other[place] = value
            assert fit_level(other, *columns) == levels.fit_level(other, counts, widths)


@pytest.mark.parametrize("features", [1, 64, 70, 130])
def test_build_level(features):
    rng = np.random.default_rng(features)
    sizes = rng.integers(1, 257, features).tolist()
    bins, offsets = binned(rng, 300, sizes)
    pairs = (rng.integers(-(1 << 15), 1 << 15, (2, 300)) << 32) + rng.integers(0, 1 << 15, (2, 300))
    rows = rng.permutation(300).astype(np.uint32)
    pieces = np.array([[0, 0, 120], [1, 120, 120], [1, 120, 200], [2, 200, 300]])
    places = np.array([[0, 120, 1], [120, 200, 0], [200, 300, 1]])
    targets = np.array([0, 3, 3, 1])
    columns = columns_of(sizes, offsets)
    out = np.zeros((4, 2 * sum(sizes) + 2), np.int64)
    for first, last in ((0, features // 2), (features // 2, features)):
        table = rows, pairs, places, pieces, targets, columns
        build_level(bins, *table, first, last, 1 << 15, out)
    due = np.zeros_like(out)
    for (number, begin, end), target in zip(pieces, targets, strict=True):
        own, own_pairs = rows[begin:end], pairs[places[number, 2]]
        due[target, :-2] += histogram.build_histogram(bins, own, own_pairs, offsets, sum(sizes))
        due[target, -2:] += histogram.sum_positive(own, own_pairs) if features > 1 else 0
    if features == 1:
        due[:, -2:] = out[:, -2:]
    assert out.tolist() == due.tolist()


@pytest.mark.parametrize("seen", [[], [0, 1, 2], [0, 1, 5], [4, 4, 4], [2, 5, 5]])
@pytest.mark.parametrize("bin_", [0, 3])
@pytest.mark.parametrize("level", [0, 1])
def test_hide_splits(seen, bin_, level):
    count, features = len(seen), 4
    columns = np.array([[0, 2, 3], [0, 1, 5], [bin_, bin_, 0], [1, 0, 0], [1, 3, 5]], np.int32)[
        :, :count
    ].copy()
    categories = np.full((count, 32), level, np.uint8)
    due = levels.hide_splits(columns, categories, seen, features)
    changed = hide_splits(columns, categories, np.array(seen, np.int64), features)
    assert (changed, columns.tolist(), categories.tolist()) == due


@pytest.mark.parametrize("places", [[], [0, 1, 4], [3, 2]])
def test_spread_level(places):
    sums = np.arange(2 * 4 * 2).reshape(2, 4, 2)
    out, due = np.zeros((2, 6, 2), np.int64), np.zeros((2, 6, 2), np.int64)
    spread_level(sums, np.array(places, np.int64), out)
    due[:, places] = sums[:, : len(places)]
    assert out.tolist() == due.tolist()
