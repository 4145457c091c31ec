"""Keeps track of which rows are in which leaf while a tree grows.

`RowsOfNodes` reorders one array of row numbers in place and never copies a table. Each step is one compiled
call per level, or one per thread. Splits are received from the aggregator, so they are validated. Raises
PeerError if a split is invalid, e.g. if it refers to a node that is not a leaf."""

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
from fedboost.gbdt.threads import ONE, SHARED, Threads
from fedboost.gbdt.tree import NO_SPLITS, Bytes, LeafValues, Splits

_FAULTS = {
    kernels.NODE: "node {node} is not a leaf of the growing tree",
    kernels.CHILDREN: "the split of node {node} creates child {left} and its sibling, "
    "but one of them is already a leaf",
    kernels.FEATURE: "node {node} is split by feature {feature}, which does not exist",
    kernels.BIN: "node {node} is split at bin {bin}, but the feature has {bins} bins",
    kernels.CATEGORIES: "node {node} is split by levels that feature {feature} does not have",
}


class RowsOfNodes:
    """Row numbers of one or several growing trees, ordered by leaf. One array has a section for each root,
    and each leaf has a range of its root's section.

        rows       [ root 0: leaf 5 | leaf 6 | leaf 2     | spare ][ root 1: leaf 1       | spare ]
                    0                                      room

    A split reorders its node's range so that the ranges of the children partition it."""

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
        """Allocate room for this many rows at each root."""
        self._room = rows
        self._rows, self._scratch = (
            self._allocate((self._roots * rows,), np.dtype(np.uint32)) for _ in range(2)
        )

    def begin(self, members: Sequence[Rows] | None = None) -> None:
        """Start a new tree. members: row numbers at each root, uint32, increasing, possibly with repetitions;
        None puts all rows at every root."""
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
        """Return where each leaf's rows are in `rows`: begin, end and root, int64 [nodes, 3]. Raises
        PeerError if a node is not a leaf."""
        places = np.empty((len(nodes), 3), np.int64)
        known = kernels.find_leaves(np.array(nodes, np.int64), self._leaves, places)
        if known < len(nodes):
            raise PeerError("split-not-a-leaf", _FAULTS[kernels.NODE].format(node=nodes[known]))
        return places

    def of(self, node: int) -> Rows:
        """Return the row numbers of a leaf, uint32, in increasing order."""
        begin, end, _ = self.places([node])[0].tolist()
        return self._rows[begin:end]

    def is_leaf(self, node: int) -> bool:
        return 0 <= node < len(self._leaves) and bool(self._leaves[node, 0] != NO_LEAF)

    def root_of(self, node: int) -> int:
        return int(self.places([node])[0, 2])

    def apply(self, splits: Splits, binned: BinnedRows, layout: Layout) -> None:
        """Move the rows of each split node to its children. Raises PeerError if a split does not fit the tree
        or the features. layout: the features that can split rows."""
        if not splits.size:
            return
        self._make_room(splits)
        first, arrays = 0, (*_kinds(layout), binned.by_feature, self._rows, self._scratch)
        while first < splits.size:
            # Both branches apply splits until one depends on an earlier split (it splits a child), or has a
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
        """Check the splits, starting with number `first`. Returns the end of the splits that are valid and
        independent of each other, and the fault of the next split."""
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
        self, splits: Splits, values: LeafValues, binned: BinnedRows, layout: Layout, margin: Float64
    ) -> None:
        """Add to each row's margin the value of its leaf in the finished tree.

        The last splits are not applied to the row numbers, since the next tree starts over.

        Args:
            splits: the tree's last splits, which have not been applied yet.
            values: the value of every leaf after these splits.
            binned, layout: bins of all rows, and the features that can split them.
            margin: float64 [outputs, rows], updated in place. Roots are divided evenly among outputs, in
                order.

        Raises:
            PeerError: if the values do not match the leaves, or a split does not fit the tree.
        """
        self._make_room(splits)
        if self._check(splits, 0, layout)[0] < len(splits):
            self.apply(splits, binned, layout)
            splits = NO_SPLITS
        by_node = np.zeros(len(self._leaves))
        if not kernels.match_values(splits.columns, self._leaves, values.node, values.value, by_node):
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
    """Return the arrays of a layout that the kernels take as arguments."""
    return layout.value_bins, layout.missing, layout.categorical


def _refusal(splits: Splits, number: int, fault: int, layout: Layout) -> PeerError:
    node, feature, bin_, _, left = splits.columns[:, number]
    bins = layout.value_bins[feature] if fault == kernels.BIN else 0
    return PeerError(
        "split-invalid", _FAULTS[fault].format(node=node, feature=feature, bin=bin_, left=left, bins=bins)
    )


# ---- The trees of a round at one party: binned rows, sampled rows by leaf, and the other rows -----------
# Rows that a tree is not trained on pass through its splits, too, so that every margin is updated.


@dataclass(frozen=True)
class Bins:
    """A party's binned rows. layout: positions of the features' bins in histograms; decisions: layout of all
    columns that can split rows, i.e. the features, followed by row sets (one bit per row, for splits on other
    parties' columns)."""

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
        by_row: bool = True,
    ) -> "Bins":
        """Bin the rows of these columns.

        Args:
            columns: float32 values of each feature.
            cut_points: bins of the features.
            allocate: function that allocates the arrays.
            row_sets, by_row: as in `CutPoints.bin_rows`.
        """
        layout = Layout.of(cut_points)
        decisions = layout.with_row_sets(row_sets) if row_sets else layout
        rows = cut_points.bin_rows(columns, threads, allocate, row_sets, by_row)
        return cls(rows, cut_points, layout, decisions)


_NO_CODES, _NONE, _NO_FEATURES = np.zeros((0, 0), np.uint8), np.zeros(0, np.int64), CutPoints.of((), ())
_NO_COLUMNS = Columns(_NONE, _NONE, _NONE, _NO_CODES)
_NO_LAYOUT = Layout.of(_NO_FEATURES)
UNBINNED = Bins(
    BinnedRows(_NO_CODES, _NO_CODES, _NONE, _NO_COLUMNS, None), _NO_FEATURES, _NO_LAYOUT, _NO_LAYOUT
)
"""Placeholder that is used before cut points are known. It has no features, so no row can be split."""


class GrowingRows:
    """Row numbers of one round's trees, ordered by leaf. There are num_parallel_tree roots per output."""

    def __init__(
        self,
        rows: int,
        outputs: int,
        parallel_trees: int,
        sampler: Sampler,
        threads: Threads,
        allocate: Allocator = allocate_in_memory,
    ) -> None:
        self._roots = roots = outputs * parallel_trees
        self._parallel_trees = parallel_trees
        self._sampler = sampler
        self._threads = threads
        self._sets = [RowsOfNodes(rows, roots, threads, allocate) for _ in range(sampler.sets)]
        """The rows that the trees are trained on, followed by the other rows, if any."""
        self.begin(0)

    def begin(self, tree: int) -> None:
        """Start the trees of a round: sample their rows, and put all rows at the roots. tree: the round."""
        self._begin(self._sampler.sample(tree))

    def begin_on(self, masks: Sequence[Mask]) -> None:
        """Restart the trees of a round with the given samples, bool [rows] for each parallel tree or root.
        Requires a sampler with two row sets."""
        self._begin(split_by_masks(masks))

    def _begin(self, sets: Sequence[Members]) -> None:
        for nodes, members in zip(self._sets, sets, strict=True):
            nodes.begin(None if members is None else [*members] * (self._roots // len(members)))

    def apply(self, splits: Splits, bins: Bins) -> None:
        for nodes in self._sets:
            nodes.apply(splits, bins.rows, bins.decisions)

    def of(self, node: int) -> Rows:
        return self._sets[0].of(node)

    def mark(self, nodes: Sequence[int], flags: Bytes) -> None:
        """Write 1 for every row of these leaves, sampled or not. flags: uint8 [roots, rows], updated in
        place."""
        for of_set in self._sets:
            kernels.mark_rows(of_set.rows, of_set.places(nodes), flags)

    def is_leaf(self, node: int) -> bool:
        return self._sets[0].is_leaf(node)

    def sampled(self, tree: int) -> Members:
        """Return the rows sampled to train the trees of a round, regardless of the leaf that they are in now.
        tree: number of the round."""
        return self._sampler.sample(tree)[0]

    def output_of(self, node: int) -> int:
        """Return the output to which the tree of this leaf belongs."""
        return self._sets[0].root_of(node) // self._parallel_trees

    def histograms(self, nodes: Sequence[int], pairs: Int64, bins: Bins, limit: int) -> Int64:
        """Build the gradient histograms of several leaves, from their sampled rows.

        Args:
            nodes: node numbers of the leaves.
            pairs: int64 [outputs, rows], packed gradients and hessians of all rows (`Gradients.quantise`).
            bins: the binned rows.
            limit: largest magnitude of a gradient or hessian in `pairs`.

        Returns:
            int64 [nodes, cells + STATS], as returned by `histogram.build`.
        """
        places = self._sets[0].places(nodes)
        if self._parallel_trees > 1:
            places[:, 2] //= self._parallel_trees
        rows = self._sets[0].rows
        return histogram.build(bins.rows, rows, places, pairs, bins.layout, limit, self._threads)

    def move_margins(self, splits: Splits, values: LeafValues, bins: Bins, margin: Float64) -> None:
        """Add the leaf values of the finished trees to every row's margin, whether the row was sampled or
        not. margin: float64 [outputs, rows], updated in place. The other arguments are as in
        `RowsOfNodes.move_margins`."""
        for nodes in self._sets[self._sampler.moved]:
            nodes.move_margins(splits, values, bins.rows, bins.decisions, margin)
