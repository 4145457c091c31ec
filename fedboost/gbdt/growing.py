"""The trees that grow in a round at one party: binned rows, sampled rows by leaf, and the other rows.

Promises: rows that a tree does not grow on move down it, too, so that every margin moves.
Refuses: splits of nodes that are not leaves (PeerError).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedboost.fixedpoint import Float64, Int64
from fedboost.gbdt import histogram
from fedboost.gbdt.binned import Allocator, BinnedRows, Column, allocate_in_memory
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.groups import Mask
from fedboost.gbdt.histogram import Layout, Rows
from fedboost.gbdt.kernels.histogram import Columns
from fedboost.gbdt.partition import LeafValues, RowsOfNodes
from fedboost.gbdt.samplers import Members, Sampler, split_by_masks
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import Splits


@dataclass(frozen=True)
class Bins:
    """Binned rows, the cut points that made them, the layout of their histograms, and that of the columns
    that rows are split by: the same, or with row sets behind them."""

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
        """The bins of these columns. row_sets: see `CutPoints.bin_rows`."""
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
"""Stands for the bins before there are cut points: it has no features to split by."""


class GrowingRows:
    """The rows of each leaf of the trees that grow in a round: num_parallel_tree roots for each output."""

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
        """The rows that the trees grow on, and any others."""
        self.begin(0)

    def begin(self, tree: int) -> None:
        """Sample the rows of the trees of a round, all of them at their roots."""
        self._begin(self._sampler.sample(tree))

    def begin_on(self, masks: Sequence[Mask]) -> None:
        """Begin the trees again on these rows, bool [rows] for each parallel tree; there are two sets."""
        self._begin(split_by_masks(masks))

    def _begin(self, sets: Sequence[Members]) -> None:
        for nodes, members in zip(self._sets, sets, strict=True):
            nodes.begin(None if members is None else [*members] * self._outputs)

    def apply(self, splits: Splits, bins: Bins) -> None:
        """Send the rows of split nodes to their children."""
        for nodes in self._sets:
            nodes.apply(splits, bins.rows, bins.decisions)

    def of(self, node: int) -> Rows:
        """Numbers of the sampled rows of a leaf, increasing."""
        return self._sets[0].of(node)

    def all_of(self, node: int) -> Rows:
        """Numbers of all rows of a leaf, of those that trees grow on and of the others; some may be there
        twice."""
        return np.concatenate([nodes.of(node) for nodes in self._sets])

    def sampled(self, tree: int) -> Members:
        """The rows that the trees of a round grow on, wherever these stand."""
        return self._sampler.sample(tree)[0]

    def output_of(self, node: int) -> int:
        """The output whose tree a leaf is in."""
        return self._sets[0].root_of(node) // self._parallel_trees

    def histograms(self, nodes: Sequence[int], pairs: Int64, bins: Bins, limit: int) -> Int64:
        """Histograms of some leaves: int64 [nodes, cells + STATS], as `histogram.build` makes them of the
        packed gradients of all rows, int64 [outputs, rows]."""
        places = self._sets[0].places(nodes)
        if self._parallel_trees > 1:
            places[:, 2] //= self._parallel_trees
        rows = self._sets[0].rows
        return histogram.build(bins.rows, rows, places, pairs, bins.layout, limit, self._threads)

    def move_margins(self, splits: Splits, values: LeafValues, bins: Bins, margin: Float64) -> None:
        """Move every row's margin, float64 [outputs, rows], by the values of its leaves after the last
        splits. Other trees come next."""
        for nodes in self._sets[self._sampler.moved]:
            nodes.move_margins(splits, values, bins.rows, bins.decisions, margin)
