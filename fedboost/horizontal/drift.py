"""Counts of a party's rows by bin of each feature and of the score.

Promises: counts depend on this party's rows and the model alone; adding those of all parties gives the counts
of one party with all rows.
Refuses: queries of other sessions, and of other bins (PeerError).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedboost.boosting.queries.columns import BinCountsQuery
from fedboost.boosting.queries.union import Query
from fedboost.boosting.state import BoostingState
from fedboost.errors import PeerError
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.binned import Column
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.drift import Bins, bins_of
from fedboost.horizontal.shard import continue_margins
from fedboost.horizontal.summary import CountingHolder
from fedboost.terms.tasks import bins_in
from fedboost.terms.terms import Terms


class DriftHolder(CountingHolder):
    """The rows of a party in one session that holds them against the reference of a model."""

    def _counts(self, query: Query) -> Int64:
        if not isinstance(query, BinCountsQuery):
            raise PeerError(f"{query.description}: asked where rows are held against a reference")
        model, shard = self._terms.earlier, self._shard
        assert model is not None
        return _count(query, bins_in(self._terms), model, shard.columns, shard.base_margin)


def count_bins(
    query: BinCountsQuery,
    terms: Terms,
    state: BoostingState,
    columns: Sequence[Column],
    base_margin: Float32 | None,
) -> Int64:
    """The counts at the end of a training that stands here. base_margin: where it began."""
    assert state.start is not None
    cut_points, constant = state.start.cut_points, state.rounds[0].values[0][1]
    trees, earlier = tuple(state.trees(query.rounds, cut_points.cuts)), terms.earlier
    shape = len(terms.columns.ordered), terms.columns.category_counts
    outputs = terms.objective.loss.outputs
    if earlier is not None:
        model = replace(earlier, trees=(*earlier.trees, *trees))
        bins = bins_of(cut_points, *shape, model.constant, model.trees, outputs)
        return _count(query, bins, model, columns, base_margin)
    kind = terms.trees.num_parallel_tree, tuple(terms.columns.categorical)
    model = Booster(terms.objective.loss, 0.5, terms.columns.features, trees, *kind)
    bins = bins_of(cut_points, *shape, constant, trees, outputs)
    based = np.full(columns[0].size, constant) + (0.0 if base_margin is None else base_margin)
    return _count(query, bins, model, columns, based)


def _count(
    query: BinCountsQuery,
    bins: Bins,
    model: Booster,
    columns: Sequence[Column],
    base: Float64 | Float32 | None,
) -> Int64:
    if (query.sizes, query.score) != (bins.sizes, bins.of_score):
        raise PeerError("rows by other bins than those of the model")
    margin = np.empty((model.loss.outputs, columns[0].size), np.float64)
    continue_margins(margin, base, model, columns)
    return bins.count(columns, margin)
