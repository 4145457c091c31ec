"""Counts of a party's own numeric columns, and their cut points where nobody else is told them.

Promises: the same cut points as counts over the rows of one table with all columns give, whenever they are
found; others learn their numbers, and at the end the thresholds of splits.
Refuses: numbers of bins of own columns that are not those of its rows (PeerError).
"""

from dataclasses import replace

import numpy as np

from fedboost.boosting.queries.base import View
from fedboost.boosting.queries.columns import BinsQuery, QuantileQuery
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.state import BoostingState
from fedboost.errors import PeerError
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, CutPoints, Quantiles
from fedboost.gbdt.tree import Tree
from fedboost.terms.terms import Terms
from fedboost.vertical.rows import FeatureRows, LabelRows


class OwnCuts:
    """The cut points of the party with this view."""

    def __init__(self, terms: Terms, view: View) -> None:
        self._terms = terms
        self._view = view
        self._numeric = view.own_features[view.own_features < len(terms.columns.numeric)]
        self._found: tuple[LabelRows | FeatureRows, CutPoints] | None = None
        """The cut points, and the rows that they are of."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._numeric.size} features)"

    def of(self, rows: LabelRows | FeatureRows) -> CutPoints:
        """The cut points of the numeric columns of these rows."""
        if self._found is None or self._found[0] is not rows:
            self._found = rows, self._find(rows)
        return self._found[1]

    def _find(self, rows: LabelRows | FeatureRows) -> CutPoints:
        if not self._numeric.size:
            return CutPoints.of([], [])
        max_bin, every = self._terms.histograms.max_bin, len(self._terms.columns.numeric)
        quantiles = Quantiles(max_bin, rows.rows, self._numeric.size, every)
        for _ in range(MAX_REFINEMENTS):
            if not quantiles.grids.cells:
                break
            quantiles.refine(rows.compute(QuantileQuery(rows.rows, quantiles.grids)))
        return quantiles.cut_points()

    def count_rows(self, query: QuantileQuery, rows: LabelRows | FeatureRows) -> Int64:
        """Rows in the subcells of own columns, 0 elsewhere."""
        grids, out = query.grids, np.zeros(query.cells, np.int64)
        if self._numeric.size:
            own = np.zeros(grids.features, np.bool_)
            own[self._numeric] = True
            counts = rows.compute(QuantileQuery(query.rows, grids.pick(self._numeric)))
            out[np.repeat(own, grids.cells_by_feature)] = counts
        return out

    def count_bins(self, query: BinsQuery, rows: LabelRows | FeatureRows) -> Int64:
        """The number of cuts of each own feature, and if it has missing values; 0 elsewhere."""
        own, out = self.of(rows), np.zeros((2, query.features), np.int64)
        out[:, self._numeric] = own.sizes, own.missing
        return out.reshape(-1)

    def put_into(self, start: StartQuery, rows: LabelRows | FeatureRows) -> StartQuery:
        """A question that has the cut points of own features alone, with those of these rows."""
        own, told = self.of(rows), start.cut_points
        numeric = told.head(self._numeric.size)
        if not (np.array_equal(numeric.sizes, own.sizes) and np.array_equal(numeric.missing, own.missing)):
            raise PeerError("told of other numbers of bins than the columns here have")
        values = np.concatenate([own.values, told.values[own.values.size :]])
        return replace(start, cut_points=replace(told, values=values))

    def trees(self, state: BoostingState, rounds: int, rows: LabelRows | FeatureRows) -> tuple[Tree, ...]:
        """The trees after this number of rounds, with the thresholds of own columns."""
        if state.start is None or not state.rounds:
            return ()
        cuts: list[Float32] = [np.zeros(0, np.float32)] * self._view.features
        own = self.of(rows).cuts if self._view.hides else state.start.cut_points.pick(self._numeric).cuts
        for feature, values in zip(self._numeric.tolist(), own, strict=True):
            cuts[feature] = values
        return tuple(state.trees(rounds, tuple(cuts)))
