"""The tree that grows, and which rows are in which of its leaves."""

import json
import pickle

import numpy as np
import pytest
from list_trees import ListTree
from naive_trees import BestSplit, split_node
from raised import raised

from fedboost.errors import PeerError
from fedboost.gbdt import partition
from fedboost.gbdt.binned import BinnedRows
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.partition import RowsOfNodes
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import NO_CHILD, NO_SPLITS, LeafValues, Split, Splits, Tree

ROOT = 0

CUTS = CutPoints.of(
    (np.arange(9, dtype=np.float32), np.arange(3, dtype=np.float32), np.zeros(0, np.float32)),
    (False, True, True),
).with_categories((5, 255))
LAYOUT = Layout.of(CUTS)


def table(rows, seed=0):
    rng = np.random.default_rng(seed)
    sizes = [cuts.size + 1 + missing for cuts, missing in zip(CUTS.cuts, CUTS.missing, strict=True)]
    by_feature = np.stack([rng.integers(0, size, rows) for size in sizes]).astype(np.uint8)
    return BinnedRows.of(by_feature, np.array(sizes))


def goes_left(split, bins, row):
    code = bins.by_feature[split.feature, row]
    if CUTS.missing[split.feature] and code == CUTS.cuts[split.feature].size + 1:
        return split.missing_left
    return code <= split.bin if split.feature < 3 else not split.categories >> int(code) & 1


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [0, 1, 7, 500])
def test_rows_follow_the_splits(rows, threads, monkeypatch):
    monkeypatch.setattr(partition, "SHARED", 20)  # threads share larger nodes
    rng, bins = np.random.default_rng(rows), table(rows)
    nodes, leaf_of = RowsOfNodes(rows, threads=Threads(threads)), dict.fromkeys(range(rows), ROOT)
    leaves, free = [ROOT], 1
    for _ in range(5):
        splits = []
        for node in rng.permutation(leaves)[: max(1, len(leaves) * 2 // 3)].tolist():
            feature = int(rng.integers(5))
            at, levels = int(rng.integers(CUTS.cuts[feature].size + 1)), 0
            if feature > 2:
                at, levels = 0, int.from_bytes(rng.bytes(32), "little") % (2 ** (at + 1) - 1) + 1
            splits.append(Split(node, feature, at, bool(rng.integers(2)), free, levels))
            free += 2
        nodes.apply(Splits.of(splits), bins, LAYOUT)
        for split in splits:
            leaves.remove(split.node)
            leaves += [split.left, split.left + 1]
            for row in [row for row, leaf in leaf_of.items() if leaf == split.node]:
                leaf_of[row] = split.left + (not goes_left(split, bins, row))
        for leaf in leaves:
            assert nodes.of(leaf).tolist() == [row for row in range(rows) if leaf_of[row] == leaf]
    margin, values = np.zeros((1, rows)), [(leaf, leaf / 8) for leaf in leaves]
    nodes.move_margins(NO_SPLITS, LeafValues.of(values), bins, LAYOUT, margin)
    assert margin.tolist() == [[leaf_of[row] / 8 for row in range(rows)]]


@pytest.mark.parametrize(
    ("split", "says"),
    [
        (Split(1, 0, 0, False, 5), "node 1 is not a leaf"),
        (Split(-1, 0, 0, False, 5), "node -1 is not a leaf"),
        (Split(3, 0, 0, False, 3), "already a leaf"),
        (Split(3, 0, 0, False, 1), "already a leaf"),  # its right child would be leaf 2
        (Split(3, 0, 0, False, 4), "already a leaf"),
        (Split(3, 5, 0, False, 5), "feature 5"),
        (Split(3, 3, 0, False, 5), "by levels that feature 3 does not have"),
        (Split(3, 3, 1, False, 5), "by levels that feature 3 does not have"),
        (Split(3, 3, 1, False, 5, 0b1), "by levels that feature 3 does not have"),
        (Split(3, 3, 0, False, 5, 1 << 5), "by levels that feature 3 does not have"),
        (Split(3, 0, 0, False, 5, 0b1), "by levels that feature 0 does not have"),
        (Split(3, -1, 0, False, 5), "feature -1"),
        (Split(3, 0, 10, False, 5), "bin 10, but the feature has 10 bins"),
        (Split(3, 0, -1, False, 5), "bin -1, but the feature has 10 bins"),
        (Split(3, 1, 4, False, 5), "bin 4, but the feature has 4 bins"),
    ],
)
def test_a_split_that_does_not_fit_the_tree(split, says):
    nodes, bins = RowsOfNodes(20), table(20)
    nodes.apply(Splits.of([Split(ROOT, 0, 4, False, 1), Split(1, 0, 1, False, 3)]), bins, LAYOUT)
    before = {leaf: nodes.of(leaf).tolist() for leaf in (2, 3, 4)}
    with pytest.raises(PeerError, match=says):
        nodes.apply(Splits.of([split]), bins, LAYOUT)
    assert {leaf: nodes.of(leaf).tolist() for leaf in (2, 3, 4)} == before


@pytest.mark.parametrize(
    "values", [{}, {1: 0.5}, {1: 0.5, 2: 1.0, 3: 0.0}, {ROOT: 1.0}, {ROOT: 1, 1: 1, 2: 1}]
)
def test_values_must_be_those_of_the_leaves(values):
    nodes, margin = RowsOfNodes(20), np.zeros((1, 20))
    nodes.apply(Splits.of([Split(ROOT, 0, 4, False, 1)]), table(20), LAYOUT)
    with raised(PeerError, "leaf-values-mismatch"):
        nodes.move_margins(NO_SPLITS, LeafValues.of(values.items()), table(20), LAYOUT, margin)
    assert not margin.any()


def test_a_tree_grows():
    tree = ListTree()
    assert tree.add_leaf(0.25, 7.1) == ROOT
    assert (tree.leaves, tree.cover, tree.gain) == ([ROOT], [float(np.float32(7.1))], [0.0])
    left = tree.add_leaf(-1.0, 3.0)
    tree.add_leaf(1.0, 4.0)
    best = BestSplit(0.1, 1, 2, True, (0, 0), (0, 0))
    assert split_node(tree, ROOT, best, CUTS, left) == Split(ROOT, 1, 2, True, left)
    assert tree.leaves == [1, 2]
    assert tree.left == [1, NO_CHILD, NO_CHILD]
    assert (tree.feature[ROOT], tree.threshold[ROOT], tree.missing_left[ROOT]) == (1, 2.0, True)
    assert tree.gain[ROOT] == float(np.float32(0.1))
    assert tree.value == [0.25, -1.0, 1.0]


def test_a_tree_grows_by_levels():
    tree = ListTree()
    for value in (0.0, 1.0, 2.0):
        tree.add_leaf(value, 1.0)
    split = split_node(tree, ROOT, BestSplit(0.5, 3, 0, True, (0, 0), (0, 0), 0b1011), CUTS, 1)
    assert split == Split(ROOT, 3, 0, True, 1, 0b1011)
    assert (tree.feature[ROOT], tree.categories, tree.threshold) == (3, [0b1011, 0, 0], [0.0] * 3)
    assert tree.tree.levels(ROOT) == [0, 1, 3]
    assert Tree.of_columns([1, -1, -1]).levels(ROOT) == []


def test_a_gain_beyond_float32_stays_finite():
    tree = ListTree()
    tree.add_leaf(0.0, 1.0)
    split_node(tree, ROOT, BestSplit(1e300, 1, 2, False, (0, 0), (0, 0)), CUTS, 1)
    assert tree.gain == [float(np.finfo(np.float32).max)]


def test_a_split_after_the_last_bin_has_no_finite_threshold():
    tree = ListTree()
    tree.add_leaf(0.0, 1.0)
    split_node(tree, ROOT, BestSplit(1.0, 1, 3, False, (0, 0), (0, 0)), CUTS, 1)
    assert tree.threshold[ROOT] == float("inf")


def test_trees_with_roots_of_their_own_grow_as_one_and_part():
    nodes, bins = RowsOfNodes(20, roots=2), table(20)
    splits = Split(1, 0, 4, False, 2), Split(0, 1, 1, True, 4), Split(3, 2, 0, False, 6)
    nodes.apply(Splits.of(splits), bins, LAYOUT)
    assert [nodes.root_of(node) for node in (2, 4, 5, 6, 7)] == [1, 0, 0, 1, 1]
    for root, leaves in ((0, (4, 5)), (1, (2, 6, 7))):
        assert sorted(row for leaf in leaves for row in nodes.of(leaf).tolist()) == list(range(20))
        for leaf in leaves:
            assert nodes.root_of(leaf) == root
    margin = np.zeros((2, 20))
    values = LeafValues.of([(2, 1.0), (4, 2.0), (5, 3.0), (6, 4.0), (7, 5.0)])
    nodes.move_margins(NO_SPLITS, values, bins, LAYOUT, margin)
    assert set(margin[0]) <= {2.0, 3.0}
    assert set(margin[1]) <= {1.0, 4.0, 5.0}

    tree = ListTree()
    for number in range(8):
        tree.add_leaf(number / 8, 1.0)
    for node, feature, left, levels in ((1, 0, 2, 0), (0, 1, 4, 0), (3, 3, 6, 0b101)):
        split_node(tree, node, BestSplit(1.0, feature, 0, False, (0, 0), (0, 0), levels), CUTS, left)
    first, second = (ListTree(**part.to_columns()) for part in tree.tree.parts(2))
    assert (first.categories, second.categories) == ([0, 0, 0], [0, 0, 0b101, 0, 0])
    assert (first.left, first.feature, first.value) == ([1, -1, -1], [1, 0, 0], [0, 0.5, 0.625])
    assert second.left == [1, -1, 3, -1, -1]
    assert (second.feature, second.value) == ([0, 0, 3, 0, 0], [0.125, 0.25, 0.375, 0.75, 0.875])
    assert tree.tree.parts(1) == [tree.tree]


def test_a_tree_cannot_change_and_is_the_same_in_another_process():
    tree = Tree.of_columns(
        [1, -1, -1], [0b101, 0, 0], value=[0.0, 0.25, -0.0], missing_left=[True, False, False]
    )
    for one in (tree, pickle.loads(pickle.dumps(tree)), eval(repr(tree)), tree.changed(cover=0.0)):
        assert one == tree
        assert json.loads(json.dumps(one.to_columns())) == tree.to_columns()
        for column in (one.nodes, one.value, one.categories, Tree.leaf().categories):
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 0
    assert tree.changed(value=[0.0, 0.25, 0.0]) != tree  # 0.0 is not -0.0
    assert tree.changed(np.zeros((3, 32), np.uint8)) != tree


@pytest.mark.parametrize(
    "columns",
    [
        {"value": [1.0]},
        {"categories": [1]},
        {"feature": [[0], [0]]},
        {"depth": [0, 0]},
        {"gain": [None, "a"]},
    ],
)
def test_columns_that_are_no_tree(columns):
    with pytest.raises((TypeError, ValueError)):
        Tree.of_columns([-1, -1], **columns)
