"""The rows of each leaf of the tree that grows.

Promises: `RowsOfNodes` reorders one array of row numbers in place and never copies a table.
Refuses: a split of a node that is not a leaf (PeerError: splits come from outside).
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError
from fedboost.fixedpoint import Float64
from fedboost.gbdt.binned import Allocator, BinnedRows, allocate_in_memory
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import Rows, passes
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.kernels.rows import add_value, count_up, partition
from fedboost.gbdt.threads import ONE, Threads
from fedboost.gbdt.tree import Split, Splits

SHARED = 1 << 16
"""Rows of a node from which on threads share its split."""


def _goes_left(split: Split, cut_points: CutPoints) -> npt.NDArray[np.uint8]:
    """1 for each code that goes left, 0 for the others."""
    if split.categories:
        right = np.frombuffer(split.categories.to_bytes(MAX_CODES // 8, "little"), np.uint8)
        table = 1 - np.unpackbits(right, bitorder="little")
    else:
        table = np.zeros(MAX_CODES, np.uint8)
        table[: split.bin + 1] = 1
    if cut_points.missing[split.feature]:
        table[cut_points.cuts[split.feature].size + 1] = split.missing_left
    return table


class RowsOfNodes:
    """The rows of each leaf of the tree that grows: an array of row numbers for each of its roots, a range
    for each leaf."""

    def __init__(
        self, rows: int, roots: int = 1, threads: Threads = ONE, allocate: Allocator = allocate_in_memory
    ) -> None:
        self._threads = threads
        self._allocate = allocate
        self._all = rows
        self._rows: Rows = allocate((roots, rows), np.dtype(np.uint32))
        self._scratch: Rows = allocate((roots, rows), np.dtype(np.uint32))
        self.begin()

    def begin(self, members: Sequence[Rows] | None = None) -> None:
        """A new tree: all rows are in each root, or those of these numbers in each, increasing; a row may be
        there several times."""
        self._ranges = {}
        largest = 0 if members is None else max(root_rows.size for root_rows in members)
        if largest > self._rows.shape[1]:
            shape = len(self._rows), largest + largest // 16
            self._rows, self._scratch = (self._allocate(shape, np.dtype(np.uint32)) for _ in range(2))
        for root, root_rows in enumerate(self._rows):
            size = self._all if members is None else members[root].size
            if members is None:
                count_up(root_rows[:size])
            else:
                root_rows[:size] = members[root]
            self._ranges[root] = (root, 0, size)

    def of(self, node: int) -> Rows:
        """Row numbers of a leaf, increasing."""
        root, start, end = self._range(node)
        return self._rows[root, start:end]

    def root_of(self, node: int) -> int:
        """The root that a leaf is below."""
        return self._range(node)[0]

    def _range(self, node: int) -> tuple[int, int, int]:
        if node not in self._ranges:
            raise PeerError(f"node {node} is not a leaf of the tree that grows")
        return self._ranges[node]

    def apply(self, splits: Splits, binned: BinnedRows, cut_points: CutPoints) -> None:
        """Send the rows of each split node to its children."""
        ready: list[Split] = []
        touched: set[int] = set()
        for split in splits:
            touches = {split.node, split.left, split.left + 1}
            if touches & touched:  # such as a child of one that waits
                self._apply(ready, binned, cut_points)
                ready, touched = [], set()
            self._check(split, cut_points)
            ready.append(split)
            touched |= touches
        self._apply(ready, binned, cut_points)

    def _check(self, split: Split, cut_points: CutPoints) -> None:
        self.of(split.node)
        if split.left in self._ranges or split.left + 1 in self._ranges:
            raise PeerError(f"split of node {split.node} into {split.left}, which is a leaf already")
        if not (0 <= split.feature < len(cut_points.cuts)):
            raise PeerError(f"split of node {split.node} by feature {split.feature}, which is unknown")
        value_bins = cut_points.cuts[split.feature].size + 1
        if not 0 <= split.bin < value_bins:
            raise PeerError(f"split of node {split.node} at bin {split.bin} of {value_bins}")
        category_count = value_bins if split.feature in cut_points.categorical else 0
        if not split.fits(category_count):
            raise PeerError(f"split of node {split.node} by levels that feature {split.feature} has not")

    def _apply(self, splits: list[Split], binned: BinnedRows, cut_points: CutPoints) -> None:
        def split_rows(piece: tuple[Split, Rows, Rows]) -> int:
            split, rows, scratch = piece
            codes = binned.by_feature[split.feature]
            return int(partition(codes, _goes_left(split, cut_points), rows, scratch))

        pieces = []
        for split in splits:
            root, start, end = self._ranges[split.node]
            shares = (
                self._threads.shares(array[root, start:end], SHARED) for array in (self._rows, self._scratch)
            )
            pieces += [(split, rows, scratch) for rows, scratch in zip(*shares, strict=True)]
        counts = iter(zip(pieces, self._threads.each(split_rows, pieces), strict=True))
        for split, split_counts in groupby(counts, key=lambda count: count[0][0]):
            root, start, end = self._ranges.pop(split.node)
            left = _joined(
                self._rows[root, start:end], [(rows, count) for (_, rows, _), count in split_counts]
            )
            self._ranges[split.left] = (root, start, start + left)
            self._ranges[split.left + 1] = (root, start + left, end)

    def add_values(self, values: dict[int, float], margin: Float64) -> None:
        """Move the margins of each row, float64 [outputs, rows], by the values of its leaves: each output has
        equally many roots, those of the first output first. Every leaf must have a value."""
        if set(values) != set(self._ranges):
            raise PeerError("the leaf values are not those of the leaves of the tree that grew")
        output_roots = self._rows.shape[0] // margin.shape[0]

        def add(piece: tuple[Rows, int, float]) -> None:
            rows, node, value = piece
            add_value(margin[self.root_of(node) // output_roots], rows, value)

        for tree in range(output_roots):  # one after the other: they move the same margins
            nodes = [node for node in values if self.root_of(node) % output_roots == tree]
            for parts in passes([self.of(node) for node in nodes], margin.shape[1]):
                self._threads.each(
                    add, [(rows, node, values[node]) for rows, node in zip(parts, nodes, strict=True)]
                )


def _joined(rows: Rows, shares: list[tuple[Rows, int]]) -> int:
    """Join shares of `rows`, each partitioned, into one: rows that go left first. Returns their number."""
    if len(shares) == 1:
        return shares[0][1]
    right = np.concatenate([share[left:] for share, left in shares])
    end = 0
    for share, left in shares:
        rows[end : end + left] = share[:left]  # never ahead of what is still to be moved
        end += left
    rows[end:] = right
    return end
