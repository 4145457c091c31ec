"""Every kernel of histograms equals its numpy reference bit for bit."""

import numpy as np
import pytest
from kernel_cases import binned, columns_of

from fedboost.gbdt.kernels.histogram import (
    LEVEL_SCRATCH,
    SCRATCH,
    SEGMENT,
    STRIDE,
    build_histogram,
    build_level_by_column,
    sum_pairs,
)
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
    scratch, columns = np.zeros(SCRATCH, np.int64), columns_of(sizes, offsets)
    due = [
        *reference.build_histogram(bins, rows, pairs, offsets, sum(sizes)),
        *reference.sum_positive(rows, pairs),
    ]
    for more in (0, 3, 4):  # what stands behind the codes of a row is no code
        wider = np.full((700, len(sizes) + more), 255, np.uint8)
        wider[:, : len(sizes)] = bins
        for middle in (1, len(sizes) - 1, len(sizes)):
            out = np.full(2 * sum(sizes) + 2, 5, np.int64)
            for first, last in ((0, middle), (middle, len(sizes))):
                build_histogram(wider, rows, pairs, columns, first, last, min(block, 255), scratch, out)
                assert not scratch.any()
            assert (out - 5).tolist() == due


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("block", [7, 255])
def test_build_histogram_of_joint_codes(block, width):
    rng = np.random.default_rng(block)
    sizes, joint = [5, 256, 4, 3, 2, 7, 1], (3, 2)
    columns = columns_of(sizes, np.cumsum([0, *sizes[:-1]]), joint)
    columns.bins[:] = rng.integers(0, sizes[2:], (256, 5))
    codes = rng.integers(0, [5, 256, 256, 256], (400, 4)).astype(np.uint8)
    parts = columns.bins[codes[:, 2], :3], columns.bins[codes[:, 3], 3:]
    bins = np.hstack([codes[:, :2], *parts])
    pairs = (rng.integers(-100, 100, 400) << 32) + rng.integers(0, 100, 400)
    pairs[::5] = 0
    rows = np.sort(rng.choice(400, 300)).astype(np.uint32)  # some several times
    table, scratch = np.full((400, width), 9, np.uint8), np.zeros(SCRATCH, np.int64)
    table[:, :4] = codes
    due = [
        *reference.build_histogram(bins, rows, pairs, columns.begins, sum(sizes)),
        *reference.sum_positive(rows, pairs),
    ]
    for middle in range(5):
        out = np.zeros(2 * sum(sizes) + 2, np.int64)
        for first, last in ((0, middle), (middle, 4)):
            if first < last:
                build_histogram(table, rows, pairs, columns, first, last, block, scratch, out)
            assert not scratch.any()
        assert out.tolist() == due


@pytest.mark.parametrize("sign", [1, -1])
def test_build_histogram_holds_at_the_bounds_of_a_block(sign):
    limit, rows = 1 << 23, 255 * 3 + 1
    bins = np.zeros((rows, 1), np.uint8)
    pairs = np.full(rows, (sign * limit << 32) + limit, np.int64)
    out = np.zeros(4, np.int64)
    everyone, columns = np.arange(rows, dtype=np.uint32), columns_of([1], np.zeros(1, np.uint32))
    build_histogram(bins, everyone, pairs, columns, 0, 1, 255, np.zeros(SCRATCH, np.int64), out)
    assert out.tolist() == [sign * limit * rows, limit * rows, max(sign, 0) * limit * rows, limit * rows]


@pytest.mark.parametrize("rows", [1, 700, SEGMENT, SEGMENT + 700])
@pytest.mark.parametrize("block", [1, 7, 255])
@pytest.mark.parametrize("features", [1, 4, 6, 9])
def test_build_level_by_column(features, block, rows):
    rng = np.random.default_rng(rows + block)
    sizes = rng.integers(1, 257, features).tolist()
    bins, offsets = binned(rng, rows, sizes)
    limit = 1 << 23
    gradient = rng.choice([-limit, limit, 1, -1, 0], (2, rows))
    pairs = (gradient << 32) + rng.choice([0, limit], (2, rows))
    most = min(rows, 900)
    parts = [rng.choice(rows, count) for count in (most, 0, 1, most // 3)]  # some rows several times
    every = np.concatenate([np.sort(part) for part in parts]).astype(np.uint32)
    ends = np.cumsum([0, *map(len, parts)])
    places = np.stack([ends[:-1], ends[1:], [0, 0, 1, 1]], axis=1)
    pieces = np.stack([[0, 0, 2, 3, 1], [0, most // 2, ends[2], ends[3], ends[1]]], axis=1)
    pieces = np.column_stack([pieces, [most // 2, most, ends[3], ends[4], ends[2]]])
    targets = np.array([0, 4, 2, 3, 1])
    order = rng.permutation(features)
    table = np.ascontiguousarray(bins.T)[np.argsort(order)]  # column c is row order[c]
    columns = columns_of(sizes, offsets)
    for middle in {1, features}:
        out = np.full((5, 2 * sum(sizes) + 2), 5, np.int64)
        for first, last in ((0, middle), (middle, features)):
            own = columns, first, last, block, out
            build_level_by_column(table, order, every, pairs, places, pieces, targets, *own)
        for (node, begin, end), target in zip(pieces.tolist(), targets.tolist(), strict=True):
            own, rows_of_piece = pairs[places[node, 2]], every[begin:end]
            due = reference.build_histogram(bins, rows_of_piece, own, offsets, sum(sizes))
            positive = reference.sum_positive(rows_of_piece, own)
            assert (out[target] - 5).tolist() == [*due, *positive]


def test_many_nodes_are_summed_a_few_columns_at_a_time():
    rng, nodes, features = np.random.default_rng(0), LEVEL_SCRATCH // (4 * STRIDE) + 1, 7
    bins, offsets = binned(rng, 2 * nodes, [256] * features)
    pairs = (rng.integers(-100, 100, (1, 2 * nodes)) << 32) + rng.integers(0, 100, (1, 2 * nodes))
    ends = 2 * np.arange(nodes + 1)
    places = np.stack([ends[:-1], ends[1:], 0 * ends[1:]], axis=1)
    pieces = np.column_stack([np.arange(nodes), places[:, :2]])
    out = np.zeros((nodes, 512 * features + 2), np.int64)
    rows, columns = np.arange(2 * nodes, dtype=np.uint32), columns_of([256] * features, offsets)
    table, each = np.ascontiguousarray(bins.T), np.arange(features)
    build_level_by_column(
        table, each, rows, pairs, places, pieces, np.arange(nodes), columns, 0, features, 9, out
    )
    for node in (0, 1, nodes - 1):
        due = reference.build_histogram(
            bins, rows[2 * node : 2 * node + 2], pairs[0], offsets, 256 * features
        )
        assert out[node, :-2].tolist() == due.tolist()


@pytest.mark.parametrize("count", [0, 1, 500])
def test_sum_pairs(count):
    rng = np.random.default_rng(count)
    pairs = (rng.integers(-(1 << 23), 1 << 23, count) << 32) + rng.integers(0, 1 << 23, count)
    assert tuple(sum_pairs(pairs)) == reference.sum_pairs(pairs)
