"""Every kernel of groups of bins equals its reference, and groups are what they promise."""

import numpy as np
import pytest

from fedboost.gbdt.kernels import bins as kernels
from tests.gbdt.reference import bin_groups as reference

SIZES = np.array([7, 1, 5, 4, 9])
MISSING = np.array([True, False, True, False, False])
CATEGORICAL = np.array([False, False, True, True, False])
MOST = 15
"""The largest floor."""
OFFSETS = np.append(0, np.cumsum(SIZES)[:-1]).astype(np.uint32)


def some_counts(draw, nodes):
    """Rows of each bin and node, none in some, few in some: of each feature at least MOST in all."""
    counts = [
        draw.multinomial(draw.integers(MOST, 60), draw.dirichlet(np.full(n, 0.4)), nodes) for n in SIZES
    ]
    return np.concatenate([of_feature.T for of_feature in counts])


def joined(apart, counts, least):
    out = apart.copy()
    kernels.join_bins(out, counts, OFFSETS, SIZES, MISSING, CATEGORICAL, least)
    return out


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_bins_are_joined(nodes, seed):
    draw = np.random.default_rng(seed)
    counts, least = some_counts(draw, nodes), int(draw.integers(1, MOST + 1))
    apart = joined(np.ones(SIZES.sum(), np.bool_), some_counts(draw, 1), least)
    made = joined(apart, counts, least)
    assert made.tolist() == reference.join_bins(apart, counts, SIZES, MISSING, CATEGORICAL, least)
    assert not (made & ~apart).any()
    for f, (first, size) in enumerate(zip(OFFSETS.astype(int), SIZES, strict=True)):
        marks, own = made[first : first + size], counts[first : first + size]
        group = np.where(marks, np.arange(size), -1) if CATEGORICAL[f] else np.cumsum(marks)
        sums = np.array([own[group == g].sum(axis=0) for g in np.unique(group)])
        assert not ((sums > 0) & (sums < least)).any()


def test_rows_are_counted_once():
    draw = np.random.default_rng(0)
    codes = np.stack([draw.integers(0, n, 50) for n in SIZES]).astype(np.uint8)
    rows = np.sort(draw.integers(0, 50, 40)).astype(np.uint32)
    assert len(set(rows.tolist())) < 40
    out = np.zeros(SIZES.sum(), np.int64)
    kernels.count_bins(codes, rows, OFFSETS, out)
    assert out.tolist() == reference.count_bins(codes.tolist(), rows.tolist(), SIZES)
