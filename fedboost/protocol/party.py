"""A party's rows and the tree that grows on them; `answer` turns a query into one vector of integers.

Promises: the vector depends on this party's rows and the queries so far alone; adding the vectors of all
parties gives what one party with all rows would have answered, bit for bit.
Refuses: queries out of order or that do not fit the tree (PeerError: they come from outside).
"""

from dataclasses import dataclass
from typing import assert_never

import numpy as np

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64, exponent_counts
from fedboost.gbdt import bins, histogram, kernels, metrics
from fedboost.gbdt.bins import MAX_REFINEMENTS, BinnedRows, CutPoints, Float32, Grid
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.tree import ROOT, RowsOfNodes, Split
from fedboost.protocol import queries
from fedboost.protocol.progress import NOTHING_YET, ModelSoFar, Values
from fedboost.protocol.queries import (
    Elected,
    EndRoundQuery,
    HistogramQuery,
    KllQuery,
    QuantileQuery,
    Query,
    RowsQuery,
    StartQuery,
    TreeQuery,
    VoteQuery,
)
from fedboost.protocol.terms import Terms
from fedboost.protocol.voting import OwnHistograms, vote


@dataclass(frozen=True)
class Shard:
    """One party's rows as the terms want them: a float32 column a feature (NaN = missing), label, weight."""

    columns: tuple[Float32, ...]
    label: Float32
    weight: Float32

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.label.size)


class Party:
    """The state of one session at one party: its rows, and where the session stands (`so_far`)."""

    def __init__(self, shard: Shard, terms: Terms) -> None:
        self.so_far = NOTHING_YET
        self._shard = shard
        self._terms = terms
        self._loss = terms.loss
        self._margin = np.zeros(shard.rows, np.float64)
        self._nodes = RowsOfNodes(shard.rows)
        self._pairs: Int64 | None = None
        """Quantised gradients of the tree that grows, once its first histogram was asked for."""
        self._own: OwnHistograms | None = None
        """Where features are voted for: this party's own histograms of that tree."""
        self._binned: tuple[BinnedRows, CutPoints, Layout] | None = None

    def answer(self, query: Query) -> Int64:
        """This party's integers: int64 [query.cells]."""
        values = self._answer(query)
        self.so_far = self.so_far.after(query)
        return values

    def go_to(self, so_far: ModelSoFar) -> None:
        """Stand where the session stands, whatever was answered here. PeerError if the splits cannot be."""
        if so_far.same(self.so_far):
            return
        finished = len(self.so_far.rounds)
        if not queries.same(so_far.start, self.so_far.start):
            self._binned, finished = None, 0
            if so_far.start is not None:
                self._bin(so_far.start)
        if not finished or self.so_far.rounds != so_far.rounds[:finished]:
            self._margin, finished = np.zeros(self._shard.rows, np.float64), 0
        self._nodes = RowsOfNodes(self._shard.rows)
        for done in so_far.rounds[finished:]:
            self._end_tree(done.splits, done.values)
        if so_far.splits:
            binned, cut_points, _ = self._started()
            self._nodes.apply(so_far.splits, binned, cut_points)
        self._pairs = self._own = None
        self.so_far = so_far

    def _answer(self, query: Query) -> Int64:
        match query:
            case RowsQuery():
                if self._binned is not None:
                    raise PeerError("the count of rows comes before the cut points")
                return np.concatenate([[self._shard.rows], self._exponents()])
            case QuantileQuery(_, grids):
                self._check_grids(grids)
                columns = zip(self._shard.columns, grids, strict=True)
                return np.concatenate([bins.count_cells(column, grid) for column, grid in columns])
            case KllQuery():
                raise PeerError("a sketch is not a vector of integers")
            case StartQuery():
                return self._start(query)
            case HistogramQuery():
                return self._histograms(query)
            case VoteQuery():
                return self._votes(query)
            case EndRoundQuery():
                return self._end_round(query)
            case _:
                assert_never(query)

    def _check_grids(self, grids: tuple[Grid, ...]) -> None:
        """Counts over ever finer grids find any single value: no more of them than cut points need."""
        if self._binned is not None or self.so_far.grids == MAX_REFINEMENTS:
            raise PeerError(f"counts over grids are given {MAX_REFINEMENTS} times, before the cut points")
        if self.so_far.grids == 0 and any(grid.shape != Grid.first().shape for grid in grids):
            raise PeerError("the first grid is not the coarse one over all numbers")

    def _exponents(self) -> Int64:
        shard = self._shard
        unit = np.ones(shard.rows, np.float32)
        gradient, hessian = self._loss.gradients(self._margin, shard.label, unit)
        return np.concatenate(
            [exponent_counts(v) for v in (gradient, hessian, shard.weight.astype(np.float64))]
        )

    def _quantise(self, query: StartQuery | TreeQuery) -> Int64:
        """(gradient << 32) + hessian of each row, as fixed-point numbers."""
        gradient, hessian = self._loss.gradients(self._margin, self._shard.label, self._shard.weight)
        factors = query.gradient.factor, query.hessian.factor
        pairs: Int64 = kernels.quantise(gradient, hessian, *factors, float(query.gradient.limit))
        return pairs

    def _bin(self, query: StartQuery) -> None:
        binned = query.cut_points.bin_rows(self._shard.columns)
        self._binned = binned, query.cut_points, Layout.of(query.cut_points)

    def _start(self, query: StartQuery) -> Int64:
        if self._binned is not None:
            raise PeerError("the cut points were given already")
        self._bin(query)
        return np.array(kernels.sum_pairs(self._quantise(query)), np.int64)

    def _histograms(self, query: HistogramQuery) -> Int64:
        binned, _, layout = self._started()
        if query.bins != layout.bins:
            raise PeerError(f"histograms of {query.bins} bins, the cut points make {layout.bins}")
        if self._terms.vote_top_k:
            return self._elected(query)
        pairs = self._grow(query)
        out = np.zeros((len(query.nodes), layout.cells + histogram.STATS), np.int64)
        for node, cells in zip(query.nodes, out, strict=True):
            rows = self._nodes.of(node)
            sums, last = cells[: layout.cells], cells[layout.cells :]
            histogram.build(binned, rows, pairs, layout, query.gradient.limit, sums)
            last[:] = histogram.sum_positive(rows, pairs)
        return out.reshape(-1)

    def _grow(self, query: TreeQuery) -> Int64:
        """Apply the splits of a question about the tree that grows; the pairs of its rows."""
        binned, cut_points, _ = self._started()
        tree, levels = self.so_far.tree, self.so_far.levels
        if query.tree != tree:
            raise PeerError(f"a query for tree {query.tree} while tree {tree} grows")
        if (levels == 0) != (query.nodes == (ROOT,)):
            raise PeerError(f"tree {tree}: the root must be asked for once, and first")
        if levels == self._terms.levels:
            raise PeerError(f"tree {tree}: more levels than the terms allow")
        if self._terms.vote_top_k and isinstance(query, VoteQuery) != bool(levels % 2):
            raise PeerError(f"tree {tree}: votes and histograms take turns")
        if self._pairs is None:
            self._pairs = self._quantise(query)
        self._nodes.apply(query.splits, binned, cut_points)
        return self._pairs

    def _votes(self, query: VoteQuery) -> Int64:
        own, (_, _, layout) = self._own_of(query, self._grow(query)), self._started()
        own.descend(query.splits, query.nodes, queries.MAX_CELLS)
        share = min(self._shard.rows / query.rows, 1.0)
        rule = self._terms.rule(query.gradient, query.hessian).scaled(share)
        most = self._terms.vote_top_k
        return np.concatenate([vote(own.of(node), layout, rule, most) for node in query.nodes])

    def _elected(self, query: HistogramQuery) -> Int64:
        """The bins of some features of each node; of all at the root."""
        pairs = self._grow(query)
        own, (_, _, layout) = self._own_of(query, pairs), self._started()
        out = []
        everything = Elected(layout.features, layout.bins)
        for node, elected in zip(query.nodes, query.elected or (everything,), strict=True):
            picked = layout.pick(own.of(node), elected.features)
            if picked.size != histogram.STATS * elected.bins:
                raise PeerError(f"histograms of {elected.bins} bins, the elected features have others")
            out += [picked, np.array(histogram.sum_positive(self._nodes.of(node), pairs), np.int64)]
        return np.concatenate(out)

    def _own_of(self, query: TreeQuery, pairs: Int64) -> OwnHistograms:
        """This party's own histograms of the tree that grows."""
        if self._own is None:
            binned, _, layout = self._started()
            self._own = OwnHistograms(binned, layout, self._nodes, pairs, query.gradient.limit)
        return self._own

    def _end_round(self, query: EndRoundQuery) -> Int64:
        self._started()
        if query.tree != self.so_far.tree:
            raise PeerError(f"the end of tree {query.tree} while tree {self.so_far.tree} grows")
        self._end_tree(query.splits, query.values)
        shard = self._shard
        sums = metrics.sums(query.metrics, self._margin, shard.label, shard.weight, query.scale)
        return np.concatenate([sums, self._exponents()]) if query.exponents else sums

    def _end_tree(self, splits: tuple[Split, ...], values: Values) -> None:
        """Split the last nodes of a tree, and move each row's margin by its leaf's value."""
        binned, cut_points, _ = self._started()
        self._nodes.apply(splits, binned, cut_points)
        self._nodes.add_values(dict(values), self._margin)
        self._nodes, self._pairs, self._own = RowsOfNodes(self._shard.rows), None, None

    def _started(self) -> tuple[BinnedRows, CutPoints, Layout]:
        if self._binned is None:
            raise PeerError("no cut points were given yet")
        return self._binned
