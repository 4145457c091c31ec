"""Every kernel of the rows of nodes equals its numpy reference bit for bit."""

from itertools import pairwise

import numpy as np
import pytest

from fedboost.gbdt.kernels import rows as kernels
from tests.gbdt.reference import rows as reference

KINDS = [(9, False, False), (4, True, False), (1, True, False), (6, False, True), (255, True, True)]
"""Values, missing and categorical of each feature."""
COLUMNS = tuple(
    np.array(column, dtype) for column, dtype in zip(zip(*KINDS, strict=True), (int, bool, bool), strict=True)
)
SPLITS = [(0, 3, 0, 0, 2, 0b10110), (1, 0, 4, 1, 4, 0)]
NEXT = [(2, 4, 0, 1, 6, 1 << 254 | 0xFFFF), (3, 1, 2, 1, 8, 0), (4, 1, 3, 0, 10, 0), (5, 2, 0, 0, 12, 0)]


def columns_of(splits):
    bits = b"".join(split[5].to_bytes(32, "little") for split in splits)
    numbers = np.array([split[:5] for split in splits], np.int32).reshape(-1, 5).T.copy()
    return numbers.copy(), np.frombuffer(bits, np.uint8).reshape(-1, 32)


def table_of(count):
    rng = np.random.default_rng(count)
    by_feature = np.stack([rng.integers(0, values + missing, 400) for values, missing, _ in KINDS])
    rows = rng.permutation(400)[:count].astype(np.uint32)
    leaves = np.full((20, 3), kernels.NO_LEAF)
    leaves[0], leaves[1] = (0, count // 3, 0), (count // 3, count, 1)
    return by_feature.astype(np.uint8), rows, leaves


def leaves_of(rows, leaves):
    return {
        node: rows[begin:end].tolist() for node, (begin, end, _) in enumerate(leaves.tolist()) if begin >= 0
    }


@pytest.mark.parametrize("count", [0, 1, 40, 400])
@pytest.mark.parametrize("shares", [0, 1, 3])
def test_rows_go_to_the_children(count, shares):
    by_feature, rows, leaves = table_of(count)
    due, scratch = leaves_of(rows, leaves), np.empty_like(rows)
    arrays = *COLUMNS, by_feature, rows, scratch
    if not shares:
        columns = columns_of(SPLITS + NEXT)
        assert kernels.split_level(*columns, 0, leaves, *arrays) == (6, kernels.SOUND)
    for splits in (SPLITS, NEXT) if shares else ():
        columns = columns_of(splits)
        places = leaves[columns[0][kernels.PARENT]]
        pieces, edges = np.empty((len(splits) + shares, 3), np.int64), np.empty(shares + 1, np.int64)
        kernels.cut_pieces(places, 0, pieces, edges)
        pieces, counts = pieces[: edges[-1]], np.zeros(edges[-1], np.int64)
        targets = np.empty((edges[-1], 2), np.int64)
        kernels.partition_level(*columns, *arrays, pieces, counts)
        kernels.grow_level(columns[0], leaves, pieces, counts, targets)
        kernels.join_level(rows, scratch, pieces, counts, targets)
    assert leaves_of(rows, leaves) == reference.split(due, SPLITS + NEXT, by_feature, KINDS)
    assert leaves[2:14, 2].tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("whole", [0, 1000])
@pytest.mark.parametrize("shares", [1, 2, 5])
@pytest.mark.parametrize("sizes", [[], [0], [7], [3, 0, 90, 1], [1, 1, 1], [0, 0, 0, 2]])
def test_shares_are_all_rows_and_as_large_as_each_other(sizes, shares, whole):
    ends = np.cumsum([0, *sizes])
    places = np.stack([ends[:-1], ends[1:], ends[1:]], axis=1)
    pieces, edges = np.empty((len(sizes) + shares, 3), np.int64), np.empty(shares + 1, np.int64)
    kernels.cut_pieces(places, whole, pieces, edges)
    pieces = pieces[: edges[-1]].tolist()
    for number, (begin, end, _) in enumerate(places.tolist()):
        own = [piece[1:] for piece in pieces if piece[0] == number]
        assert [own[0][0], own[-1][1]] == [begin, end]
        assert all(before[1] == after[0] for before, after in pairwise(own))
    assert edges[0] == 0
    assert (np.diff(edges) >= 0).all()
    rows = [sum(end - begin for _, begin, end in pieces[a:b]) for a, b in pairwise(edges)]
    if whole:
        assert rows == [sum(sizes)] + [0] * (shares - 1)
    elif sizes:
        assert max(rows) - min(rows) <= 1


def test_splits_are_checked_up_to_those_that_depend_on_them():
    leaves = table_of(40)[2]
    kinds = COLUMNS[0], COLUMNS[2]
    assert kernels.check_splits(*columns_of(SPLITS + NEXT), 0, leaves, *kinds) == (2, kernels.SOUND)
    wrong = [
        (0, 3, 0, 0, 2, 1 << 6),
        (0, 9, 0, 0, 2, 0),
        (0, 0, 9, 0, 2, 0),
        (0, 0, 0, 0, 0, 0),
        (9, 0, 0, 0, 6, 0),
    ]
    faults = [kernels.CATEGORIES, kernels.FEATURE, kernels.BIN, kernels.CHILDREN, kernels.NODE]
    for split, fault in zip(wrong, faults, strict=True):
        assert kernels.check_splits(*columns_of([split]), 0, leaves, *kinds) == (0, fault)


def test_places_of_leaves():
    leaves, places = table_of(40)[2], np.zeros((3, 3), np.int64)
    assert kernels.find_leaves(np.array([1, 0]), leaves, places) == 2
    assert places.tolist() == [[13, 40, 1], [0, 13, 0], [0, 0, 0]]
    for unknown in (2, 20, -1):
        assert kernels.find_leaves(np.array([1, unknown, 0]), leaves, places) == 1


@pytest.mark.parametrize("splits", [[], SPLITS])
def test_margins_move_by_the_values_of_leaves(splits):
    by_feature, rows, leaves = table_of(300)
    due, columns = reference.split(leaves_of(rows, leaves), splits, by_feature, KINDS), columns_of(splits)
    nodes = np.array(sorted(due, reverse=True))
    values, by_node = nodes / 7.0, np.zeros(20)
    assert kernels.match_values(columns[0], leaves, nodes, values, by_node)
    margin = np.arange(800.0).reshape(2, 400) / 3.0
    expected = margin.copy()
    for node, members in due.items():
        expected[int(node in (1, 4, 5)), members] += node / 7.0
    split_of = np.arange(2) if splits else np.full(2, kernels.NO_LEAF)
    listed = split_of, np.arange(2), np.arange(2), by_node
    pieces = np.array([[1, 100, 150], [0, 0, 100], [1, 150, 300]])
    kernels.move_margins(*columns, *COLUMNS, by_feature, rows, *listed, pieces, margin)
    assert margin.tolist() == expected.tolist()
    for other in (nodes[1:], np.append(nodes, nodes[0]), np.append(nodes[1:], 19), np.append(nodes[1:], -1)):
        assert not kernels.match_values(columns[0], leaves, other, other / 7.0, by_node)


def test_count_up():
    rows = np.full(5, 9, np.uint32)
    kernels.count_up(rows)
    assert rows.tolist() == [0, 1, 2, 3, 4]


def test_mark_rows():
    draw, size = np.random.default_rng(0), 1_003
    rows = np.concatenate([draw.permutation(size) for _ in range(2)]).astype(np.uint32)
    places = np.array([[0, 100, 0], [300, 300, 0], [700, size, 0], [size + 5, 2 * size - 9, 1]])
    flags, due = np.zeros((2, size), np.uint8), np.zeros((2, size), np.uint8)
    kernels.mark_rows(rows, places, flags)
    for begin, end, root in places:
        due[root, rows[begin:end]] = 1
    assert flags.tolist() == due.tolist()


@pytest.mark.parametrize("roots", [1, 3])
def test_clear_bits(roots):
    draw, size = np.random.default_rng(roots), 1_003
    out, due = np.full((roots, size), 7, np.uint8), draw.integers(0, 2, (roots, size), np.uint8)
    kernels.clear_bits(np.packbits(1 - due), out)
    assert out.tolist() == due.tolist()
