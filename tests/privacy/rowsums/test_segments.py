"""Segments: products over them are the sums by node, column and bin, with few products."""

import numpy as np
import pytest

from fedboost.privacy.rowsums.scheme import Segments, cut, plan, shares


def added(values, segments):
    """Sums in the place of products."""
    edges = zip(segments.starts[:-1], segments.starts[1:], strict=True)
    return np.array([values[segments.members[a:b]].sum() for a, b in edges], np.int64)


@pytest.mark.parametrize("bins", [[4], [4, 3], [4, 1, 256], [256, 256, 2, 5]])
def test_folded_joint_bins_are_the_bins_of_each_column(bins):
    rng = np.random.default_rng(len(bins))
    rows, roots = 300, 2
    values = rng.integers(-1000, 1000, rows * roots)
    codes = np.stack([rng.integers(0, size, rows) for size in bins]).astype(np.uint8)
    codes[0, :3] = 0, bins[0] - 1, 0
    parts = [np.sort(rng.choice(rows, k, False)).astype(np.uint32) for k in (300, 100, 1, 0)]
    nodes = [(i % roots, part) for i, part in enumerate(parts)]
    joint, folds = plan(nodes, codes, bins)
    found = added(added(values, joint), folds)
    due = [
        np.bincount(codes[column, part], values[root * rows + part], size)
        for root, part in nodes
        for column, size in enumerate(bins)
    ]
    assert found.tolist() == np.concatenate(due).astype(int).tolist()


def test_two_columns_cost_the_rows_and_the_joint_bins_in_use():
    codes = np.stack([np.arange(1000) % 4, np.arange(1000) % 3]).astype(np.uint8)
    joint, folds = plan([(0, np.arange(1000, dtype=np.uint32))], codes, [4, 3])
    products = sum(np.maximum(np.diff(part.starts) - 1, 0).sum() for part in (joint, folds))
    assert products == (1000 - 12) + (12 - 4) + (12 - 3)


def test_no_nodes_and_no_columns_are_no_segments():
    codes = np.zeros((0, 5), np.uint8)
    for nodes in ([], [(0, np.arange(5, dtype=np.uint32))]):
        assert [part.starts.tolist() for part in plan(nodes, codes, [])] == [[0], [0]]


@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 8, 1], [4, 4], [0, 0, 9, 0], [17]])
def test_pieces_are_no_longer_than_asked_and_their_products_are_the_segments(sizes):
    values = np.random.default_rng(0).integers(0, 100, sum(sizes))
    starts = np.append(0, np.cumsum(sizes)).astype(np.int64)
    pieces, ends = cut(starts, 4)
    assert (np.diff(pieces) <= 4).all()
    every = np.arange(values.size)
    of_pieces = added(values, Segments(every, pieces))
    whole = added(of_pieces, Segments(np.arange(of_pieces.size), ends))
    assert whole.tolist() == added(values, Segments(every, starts)).tolist()


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("sizes", [[], [0, 0], [1, 2, 3, 100, 1], [5] * 20])
def test_each_segment_is_in_one_share(sizes, number):
    starts = np.append(0, np.cumsum(sizes)).astype(np.int64)
    taken = [i for share in shares(starts, number) for i in range(share.start, share.stop)]
    assert taken == [*range(len(sizes))]
    assert len(shares(starts, number)) <= number
