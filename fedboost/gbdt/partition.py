"""The rows of each leaf of a growing tree.

`RowsOfNodes` reorders one array of row numbers in place and never copies a table. Each step is one compiled
call for all nodes of a level, or one for each thread. Splits come from outside: a split of a node that is not
a leaf raises PeerError.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedboost.errors import PeerError
from fedboost.fixedpoint import Float64, Int64
from fedboost.gbdt import histogram
from fedboost.gbdt.binned import Allocator, BinnedRows, Column, allocate_in_memory
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import Layout, Rows, stretches
from fedboost.gbdt.kernels import rows as kernels
from fedboost.gbdt.kernels.histogram import Columns
from fedboost.gbdt.kernels.rows import NO_LEAF
from fedboost.gbdt.sampling import Mask, Members, Sampler, split_by_masks
from fedboost.gbdt.threads import ONE, Threads
from fedboost.gbdt.tree import NO_SPLITS, Splits

SHARED = 1 << 16
"""Rows of a level from which on its splits are shared among threads."""
LeafValues = Sequence[tuple[int, float]]
"""Leaves and their values."""
_FAULTS = {
    kernels.NODE: "node {node} is not a leaf of the growing tree",
    kernels.CHILDREN: "split of node {node} into child {left}, which is already a leaf",
    kernels.FEATURE: "split of node {node} by the unknown feature {feature}",
    kernels.BIN: "split of node {node} at bin {bin}, but the feature has {bins} bins",
    kernels.CATEGORIES: "split of node {node} by levels that feature {feature} does not have",
}


class RowsOfNodes:
    """The rows of each leaf of a growing tree: an array with a section of row numbers for each root, and a
    range of it for each leaf.

        rows       [ root 0: leaf 5 | leaf 6 | leaf 2     | spare ][ root 1: leaf 1       | spare ]
                    0                                      room

    A split reorders the range of its node, so that its children's ranges partition it."""

    def __init__(
        self, rows: int, roots: int = 1, threads: Threads = ONE, allocate: Allocator = allocate_in_memory
    ) -> None:
        self._threads = threads
        self._allocate = allocate
        self._all = rows
        self._roots = roots
        self._take(rows)
        self._leaves: Int64 = np.empty((2 * roots, 3), np.int64)
        self.begin()

    def _take(self, rows: int) -> None:
        """Allocate room for this many rows of each root."""
        self._room = rows
        self._rows, self._scratch = (
            self._allocate((self._roots * rows,), np.dtype(np.uint32)) for _ in range(2)
        )

    def begin(self, members: Sequence[Rows] | None = None) -> None:
        """Begin a new tree. All rows are in each root, or the given row numbers of each root, increasing; a
        row may be repeated."""
        largest = 0 if members is None else max(root_rows.size for root_rows in members)
        if largest > self._room:
            self._take(largest + largest // 16)  # samples of later trees differ a little in size
        self._leaves.fill(NO_LEAF)
        for root in range(self._roots):
            begin, size = root * self._room, self._all if members is None else members[root].size
            if members is None:
                kernels.count_up(self._rows[begin : begin + size])
            else:
                self._rows[begin : begin + size] = members[root]
            self._leaves[root] = begin, begin + size, root

    @property
    def rows(self) -> Rows:
        return self._rows

    def places(self, nodes: Sequence[int]) -> Int64:
        """Ranges of leaves in `rows`, and their roots: int64 [nodes, 3]."""
        places = np.empty((len(nodes), 3), np.int64)
        known = kernels.find_leaves(np.array(nodes, np.int64), self._leaves, places)
        if known < len(nodes):
            raise PeerError("split-not-a-leaf", _FAULTS[kernels.NODE].format(node=nodes[known]))
        return places

    def of(self, node: int) -> Rows:
        """Row numbers of a leaf, increasing."""
        begin, end, _ = self.places([node])[0].tolist()
        return self._rows[begin:end]

    def root_of(self, node: int) -> int:
        return int(self.places([node])[0, 2])

    def apply(self, splits: Splits, binned: BinnedRows, layout: Layout) -> None:
        """Send the rows of each split node to its children."""
        if not len(splits):
            return
        self._make_room(splits)
        first, arrays = 0, (*_kinds(layout), binned.by_feature, self._rows, self._scratch)
        while first < len(splits):
            # Both ways apply splits up to one that depends on an earlier one (a child's), or that has a
            # fault. They return where they stopped.
            if self._threads.number == 1 or self._all < SHARED:
                first, fault = kernels.split_level(*_arrays(splits), first, self._leaves, *arrays)
            else:
                end, fault = self._check(splits, first, layout)
                self._share(splits[first:end], arrays)
                first = end
            if fault != kernels.SOUND:
                raise _refusal(splits, first, fault, layout)

    def _make_room(self, splits: Splits) -> None:
        more = kernels.last_child(splits.columns) + 1 - len(self._leaves)
        if more > 0:
            self._leaves = np.concatenate([self._leaves, np.full((more, 3), NO_LEAF, np.int64)])

    def _check(self, splits: Splits, first: int, layout: Layout) -> tuple[int, int]:
        """The end of the splits that are sound and independent of each other, and the fault of the next."""
        kinds = layout.value_bins, layout.categorical
        end, fault = kernels.check_splits(*_arrays(splits), first, self._leaves, *kinds)
        return end, fault

    def _share(self, splits: Splits, arrays: tuple[Any, ...]) -> None:
        pieces, shares = self._threads.cut(self._leaves[splits.node], SHARED)
        counts, targets = np.empty(len(pieces), np.int64), np.empty((len(pieces), 2), np.int64)

        def partition(share: slice) -> None:
            kernels.partition_level(*_arrays(splits), *arrays, pieces[share], counts[share])

        def join(share: slice) -> None:
            kernels.join_level(self._rows, self._scratch, pieces[share], counts[share], targets[share])

        # Partition into scratch, then assign targets, then copy back: every thread must have finished reading
        # `rows` before any writes to it.
        self._threads.each(partition, shares)
        kernels.grow_level(splits.columns, self._leaves, pieces, counts, targets)
        self._threads.each(join, shares)

    def move_margins(
        self,
        splits: Splits,
        values: LeafValues,
        binned: BinnedRows,
        layout: Layout,
        margin: Float64,
    ) -> None:
        """Add to each row's margin, float64 [outputs, rows], the value of its leaf after the last splits of
        the tree. Roots are divided evenly among the outputs, those of the first output first. Every leaf must
        have a value. The last splits do not move rows to the children, since another tree comes next."""
        self._make_room(splits)
        if self._check(splits, 0, layout)[0] < len(splits):
            self.apply(splits, binned, layout)
            splits = NO_SPLITS
        value_nodes = np.array([node for node, _ in values], np.int64)
        by_node, own = np.zeros(len(self._leaves)), np.array([value for _, value in values], np.float64)
        if not kernels.match_values(splits.columns, self._leaves, value_nodes, own, by_node):
            raise PeerError("leaf-values-mismatch", "the leaf values do not match the leaves of the tree")
        output_roots = self._roots // margin.shape[0]
        table = *_arrays(splits), *_kinds(layout), binned.by_feature, self._rows
        for tree in range(output_roots):  # one after the other: they add to the same margins
            *leaves, leaf_places = kernels.list_leaves(splits.columns, self._leaves, output_roots, tree)
            listed = *leaves, by_node
            for places in stretches(self._rows, leaf_places, margin.shape[1]):
                pieces, shares = self._threads.cut(places, SHARED)

                def move(share: slice, listed: Any = listed, pieces: Int64 = pieces) -> None:
                    kernels.move_margins(*table, *listed, pieces[share], margin)

                self._threads.each(move, shares)


def _arrays(splits: Splits) -> tuple[Any, ...]:
    return splits.columns, splits.categories


def _kinds(layout: Layout) -> tuple[Any, ...]:
    """The arrays of a layout that the kernels take."""
    return layout.value_bins, layout.missing, layout.categorical


def _refusal(splits: Splits, number: int, fault: int, layout: Layout) -> PeerError:
    node, feature, bin_, _, left = splits.columns[:, number]
    bins = layout.value_bins[feature] if fault == kernels.BIN else 0
    return PeerError(
        "split-invalid", _FAULTS[fault].format(node=node, feature=feature, bin=bin_, left=left, bins=bins)
    )


# ---- The trees of a round at one party: binned rows, sampled rows by leaf, and the other rows -----------
# Rows that a tree does not grow on descend it too, so that every margin is updated.


@dataclass(frozen=True)
class Bins:
    """Binned rows, their cut points, the layout of their histograms, and the layout of the columns that split
    rows: the same, or followed by row sets."""

    rows: BinnedRows
    cut_points: CutPoints
    layout: Layout
    decisions: Layout

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        cut_points: CutPoints,
        threads: Threads,
        allocate: Allocator,
        row_sets: int = 0,
    ) -> "Bins":
        """Bin these columns. row_sets: see `CutPoints.bin_rows`."""
        layout = Layout.of(cut_points)
        decisions = layout.with_row_sets(row_sets) if row_sets else layout
        rows = cut_points.bin_rows(columns, threads, allocate, row_sets)
        return cls(rows, cut_points, layout, decisions)


_NO_CODES, _NONE, _NO_FEATURES = np.zeros((0, 0), np.uint8), np.zeros(0, np.int64), CutPoints.of((), ())
_NO_COLUMNS = Columns(_NONE, _NONE, _NONE, _NO_CODES)
_NO_LAYOUT = Layout.of(_NO_FEATURES)
UNBINNED = Bins(
    BinnedRows(_NO_CODES, _NO_CODES, _NONE, _NO_COLUMNS, None), _NO_FEATURES, _NO_LAYOUT, _NO_LAYOUT
)
"""The bins before there are cut points: no features to split by."""


class GrowingRows:
    """The rows of each leaf of the trees of a round: num_parallel_tree roots for each output."""

    def __init__(
        self,
        rows: int,
        outputs: int,
        parallel_trees: int,
        sampler: Sampler,
        threads: Threads,
        allocate: Allocator = allocate_in_memory,
    ) -> None:
        roots = outputs * parallel_trees
        self._outputs = outputs
        self._parallel_trees = parallel_trees
        self._sampler = sampler
        self._threads = threads
        self._sets = [RowsOfNodes(rows, roots, threads, allocate) for _ in range(sampler.sets)]
        """The rows that the trees grow on, and the others, if any."""
        self.begin(0)

    def begin(self, tree: int) -> None:
        """Sample the rows of the trees of a round and put all of them at the roots."""
        self._begin(self._sampler.sample(tree))

    def begin_on(self, masks: Sequence[Mask]) -> None:
        """Begin the trees again on these rows, bool [rows] for each parallel tree. There must be two sets."""
        self._begin(split_by_masks(masks))

    def _begin(self, sets: Sequence[Members]) -> None:
        for nodes, members in zip(self._sets, sets, strict=True):
            nodes.begin(None if members is None else [*members] * self._outputs)

    def apply(self, splits: Splits, bins: Bins) -> None:
        for nodes in self._sets:
            nodes.apply(splits, bins.rows, bins.decisions)

    def of(self, node: int) -> Rows:
        return self._sets[0].of(node)

    def all_of(self, node: int) -> Rows:
        """Row numbers of all rows of a leaf, sampled or not; some may be repeated."""
        return np.concatenate([nodes.of(node) for nodes in self._sets])

    def sampled(self, tree: int) -> Members:
        """The rows that the trees of a round grow on, independent of their current leaves."""
        return self._sampler.sample(tree)[0]

    def output_of(self, node: int) -> int:
        """The output of the tree that contains this leaf."""
        return self._sets[0].root_of(node) // self._parallel_trees

    def histograms(self, nodes: Sequence[int], pairs: Int64, bins: Bins, limit: int) -> Int64:
        """Histograms of some leaves, int64 [nodes, cells + STATS], as `histogram.build` makes them from the
        packed gradients of all rows, int64 [outputs, rows]."""
        places = self._sets[0].places(nodes)
        if self._parallel_trees > 1:
            places[:, 2] //= self._parallel_trees
        rows = self._sets[0].rows
        return histogram.build(bins.rows, rows, places, pairs, bins.layout, limit, self._threads)

    def move_margins(self, splits: Splits, values: LeafValues, bins: Bins, margin: Float64) -> None:
        """Add leaf values to every row's margin, float64 [outputs, rows], after the last splits. Other trees
        come next."""
        for nodes in self._sets[self._sampler.moved]:
            nodes.move_margins(splits, values, bins.rows, bins.decisions, margin)
