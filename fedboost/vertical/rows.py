"""The rows of a party that holds some of their columns, and what it computes of these columns alone.

A query comes with features numbered as the party's own, and without splits: rows were sent to the children
before (`row_sets`).

Promises: histograms and counts are those of whole rows, restricted to these columns.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedboost.boosting.queries.columns import QuantileQuery
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.queries.union import Query
from fedboost.boosting.state import Round, Values
from fedboost.errors import PeerError
from fedboost.fixedpoint import Float64, Int64, Scale
from fedboost.gbdt.binned import Column
from fedboost.gbdt.cut_points import CutPoints, count_cells
from fedboost.gbdt.gradients import in_units
from fedboost.gbdt.partition import UNBINNED, Bins, GrowingRows
from fedboost.gbdt.sampling import AllRows, Mask
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import NO_SPLITS, Splits
from fedboost.horizontal.holder import HorizontalHolder
from fedboost.horizontal.shard import Shard
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

NO_FEATURE = CutPoints.of([np.zeros(0, np.float32)], [False])
"""Stands for the columns of a label holder that has none: one bin, which all rows are in."""


class LabelRows(HorizontalHolder):
    """Rows with labels. row_sets: see `CutPoints.bin_rows`."""

    def __init__(
        self, read: Callable[[], Shard], terms: Terms, nthread: int, name: str, row_sets: int
    ) -> None:
        self._row_sets = row_sets
        self._earlier: Float64 | None = None
        """The margins before the last finished tree."""
        super().__init__(read, terms, nthread, name)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Values of the features; of a party that has none, a column of zeros."""
        return super().columns or (np.zeros(self.rows, np.float32),)

    @property
    def growing(self) -> GrowingRows:
        """The rows of the leaves of the tree that grows."""
        return self._growing

    @property
    def bins(self) -> Bins:
        """The bins of the columns."""
        return self._bins

    @property
    def has_gradients(self) -> bool:
        """True if gradients are those of the tree that grows."""
        return self._quantised

    def bin(self, start: StartQuery) -> None:
        """Bin the columns by these cut points."""
        self._bin(start)

    def begin_margins(self) -> None:
        """Margins where training begins."""
        self._earlier = None
        self._begin_margins()

    def take_back(self) -> bool:
        """Margins as they were before the last finished tree. False if they are not known."""
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            self._gradients.margin[:] = earlier
        return earlier is not None

    def begin_tree(self, tree: int) -> None:
        """All rows at the roots of a tree, whose gradients are not computed yet."""
        self._growing.begin(tree)
        self._forget_gradients()

    def end_tree(self, tree: int, done: Round) -> None:
        """Move the margins by the leaf values of a finished tree, whose splits were applied."""
        self._end_tree(tree, NO_SPLITS, done.values)

    def _end_tree(self, tree: int, splits: Splits, values: Values) -> None:
        self._earlier = self._gradients.margin.copy()
        super()._end_tree(tree, splits, values)

    def gradients_of(self, query: HistogramQuery) -> Int64:
        """The packed gradients that each tree grows on, int64 [roots, rows]: 0 for a row that it does not
        grow on, and as often as it is sampled."""
        self._quantise(query)
        self._quantised = True
        pairs, sampled = self._gradients.pairs, self._growing.sampled(query.tree)
        if sampled is None:
            return pairs.repeat(self._terms.trees.num_parallel_tree, axis=0)
        counts = [np.bincount(rows, minlength=self.rows) for rows in sampled]
        return np.stack([of_output * times for of_output in pairs for times in counts])

    def drawn(self, tree: int) -> Mask:
        """The rows whose gradients are in the sums of a tree, bool [rows]: those drawn for it, but for those
        of weight 0."""
        sampled, weight = self._growing.sampled(tree), self._shard.weight
        out = np.full(self.rows, sampled is None)
        if sampled is not None:
            out[sampled[0]] = True
        return out if weight is None else out & (weight > 0)

    def compute_gradients(self, gradient: Scale, hessian: Scale) -> None:
        """Compute the gradients of the tree that grows in these scales, unless they are there."""
        if not self._quantised:
            self._gradients.quantise(self._terms.objective.loss, in_units(gradient, hessian))

    def sums_over(self, node: int) -> tuple[int, int]:
        """The sums of gradients and hessians over the sampled rows of a leaf."""
        pairs = self._gradients.pairs[self._growing.output_of(node), self._growing.of(node)]
        return int((pairs >> 32).sum()), int((pairs & 0xFFFFFFFF).sum())

    def _bins_of(self, columns: Sequence[Column], cut_points: CutPoints) -> Bins:
        return Bins.of(
            columns,
            cut_points if cut_points.sizes.size else NO_FEATURE,
            self._threads,
            self._shard.allocate,
            self._row_sets,
        )


class FeatureRows:
    """Rows without labels, whose gradients are relayed."""

    def __init__(
        self, read: Callable[[], Shard], terms: Terms, nthread: int, name: str, row_sets: int
    ) -> None:
        """name: of this party in the terms."""
        self._read = read
        self._terms = terms
        self._row_sets = row_sets
        self._threads = Threads(nthread)
        self._shard = shard = read()
        self.rows = shard.rows
        """Number of rows."""
        roots = len(terms.roots)
        self.growing = GrowingRows(shard.rows, roots, 1, AllRows(), self._threads, shard.allocate)
        self.bins = UNBINNED
        self.gradients: Any = None
        """The packed gradients of the tree that grows, int64 [roots, rows], or encrypted ones."""

    @property
    def has_gradients(self) -> bool:
        """True if gradients of the tree that grows are here."""
        return self.gradients is not None

    def rows_hashed(self, key: bytes) -> bytes:
        """HMAC of the rows and of the version of the software: 32 bytes."""
        return self._shard.hashed(key, self._columns, repr((VERSION, None)))

    def bin(self, start: StartQuery) -> None:
        """Bin the columns by these cut points, and drop their values."""
        settings = self._threads, self._shard.allocate, self._row_sets
        self.bins = Bins.of(self._columns, start.cut_points, *settings)
        self._shard = self._shard.without_columns()

    def begin_tree(self, tree: int) -> None:
        """All rows at the roots of a tree, whose gradients are not here yet."""
        self.growing.begin(tree)
        self.gradients = None

    def take_gradients(self, gradients: Any) -> None:
        """Take the gradients of the tree that grows."""
        self.gradients = gradients

    def compute(self, query: Query) -> Int64:
        """The integers of a query: 0 for all that is about labels."""
        match query:
            case HistogramQuery():
                return self._histograms(query)
            case QuantileQuery(_, grids):
                return count_cells(self._columns[: grids.features], grids, self._threads)
            case StartQuery():
                self.bin(query)
            case EndRoundQuery():
                self.begin_tree(query.tree + 1)
        return np.zeros(query.cells, np.int64)

    def _histograms(self, query: HistogramQuery) -> Int64:
        if self.gradients is None:
            raise PeerError("histograms before the gradients of the tree")
        limit = query.gradient.limit * self._terms.draws.max_bootstrap_count
        sums = self.growing.histograms(query.nodes, self.gradients, self.bins, limit)
        return sums.reshape(-1)

    @property
    def _columns(self) -> tuple[Column, ...]:
        """Values of the features, read again if they were binned before."""
        return self._shard.columns or self._read().columns


def local_rows(
    read: Callable[[Terms], Shard], terms: Terms, name: str, nthread: int, row_sets: int
) -> LabelRows | FeatureRows:
    """The rows of a party. `read` raises Refused."""
    kind = LabelRows if terms.blocks.has_labels(name) else FeatureRows
    return kind(partial(read, terms), terms, nthread, name, row_sets)
