"""Every kernel of histograms equals its numpy reference bit for bit."""

import numpy as np
import pytest
from kernel_cases import binned

from fedboost.gbdt.kernels.histogram import SCRATCH, build_histogram, sum_pairs
from tests.gbdt.reference import histogram as reference

SIZES = {
    "few features": [1, 256, 3, 17],
    "eight": [2, 256, 256, 5, 255, 1, 9, 256],
    "as many as fit": [256, 3, 255, 7] * 15 + [256, 1, 2, 256],
}


@pytest.mark.parametrize("block", [1, 7, 255, 10_000])
@pytest.mark.parametrize("count", [0, 1, 60, 600])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_build_histogram(block, count, sizes):
    rng = np.random.default_rng(block + count)
    bins, offsets = binned(rng, 700, sizes)
    limit = 1 << 23
    # Full bounds: with the block of 24-bit gradients (255 rows) a half must not overflow.
    gradient = rng.choice([-limit, limit, 1, -1, 0], 700)
    pairs = (gradient << 32) + rng.choice([0, limit], 700)
    rows = np.sort(rng.choice(700, count, replace=False)).astype(np.uint32)
    scratch, begins = np.zeros(SCRATCH, np.int64), offsets.astype(np.int64)
    due = [
        *reference.build_histogram(bins, rows, pairs, offsets, sum(sizes)),
        *reference.sum_positive(rows, pairs),
    ]
    wider = np.full((700, len(sizes) + 3), 255, np.uint8)
    wider[:, : len(sizes)] = bins
    for table in (bins, wider):  # what stands behind the bins of a row is no bin
        for middle in (1, len(sizes) - 1, len(sizes)):
            out = np.full(2 * sum(sizes) + 2, 5, np.int64)
            for first, last in ((0, middle), (middle, len(sizes))):
                build_histogram(
                    table, rows, pairs, begins, begins + sizes, first, last, min(block, 255), scratch, out
                )
                assert not scratch.any()
            assert (out - 5).tolist() == due


@pytest.mark.parametrize("sign", [1, -1])
def test_build_histogram_holds_at_the_bounds_of_a_block(sign):
    limit, rows = 1 << 23, 255 * 3 + 1
    bins = np.zeros((rows, 1), np.uint8)
    pairs = np.full(rows, (sign * limit << 32) + limit, np.int64)
    out = np.zeros(4, np.int64)
    everyone = np.arange(rows, dtype=np.uint32)
    scratch = np.zeros(SCRATCH, np.int64)
    build_histogram(bins, everyone, pairs, np.array([0]), np.array([1]), 0, 1, 255, scratch, out)
    assert out.tolist() == [sign * limit * rows, limit * rows, max(sign, 0) * limit * rows, limit * rows]


@pytest.mark.parametrize("count", [0, 1, 500])
def test_sum_pairs(count):
    rng = np.random.default_rng(count)
    pairs = (rng.integers(-(1 << 23), 1 << 23, count) << 32) + rng.integers(0, 1 << 23, count)
    assert tuple(sum_pairs(pairs)) == reference.sum_pairs(pairs)
