"""Levels as means of the label: one query for the sums by level, then means and cut points from these alone.

A bucket's mean is smoothed: SMOOTHING rows of the overall mean are added to it. Rows of a fold get the mean
over the other folds. Means tell sums of labels by subtraction: each from all of a bucket, and all told
buckets from all rows. So a bucket of fewer rows than `min_count` has the overall mean, folds with fewer are
joined to others of their bucket, and the rows without a mean of their own are none, or as many.

Promises: pure functions of the terms and the sums; of one column no sum of labels over fewer than `min_count`
rows follows from the means. Columns whose levels are nearly the same rows are not held against each other.
Refuses: sums that contradict each other (PeerError).
"""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from fedboost.boosting.programs.initialisation import Scales, check_start, mean_label, start_quantiles
from fedboost.boosting.queries.labels import START_BITS, LevelSumsQuery
from fedboost.boosting.queries.union import OfTurn
from fedboost.errors import PeerError
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, CutPoints, Quantiles, count_cells
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.metrics import DIGITS
from fedboost.gbdt.target_means import FOLDS, LevelMeans, TargetMeans
from fedboost.terms.terms import Terms, slots_of

SMOOTHING = 10.0
"""Rows of the overall mean in each mean: of 1, 3, 5, 10 and 20 the best where 200,000 rows had 20,000
levels."""


@dataclass(frozen=True)
class Levels:
    """What columns of levels become: means of each, float32 [buckets, folds], and their cut points."""

    means: tuple[Float32, ...] = ()
    cut_points: tuple[CutPoints, ...] = ()

    def among(self, cut_points: CutPoints, terms: Terms) -> CutPoints:
        """The cut points of all features, from those of the others."""
        if not self.cut_points:
            return cut_points
        head = cut_points.head(len(terms.columns.numeric))
        parts = (head, *self.cut_points)
        values, sizes, missing = (np.concatenate([getattr(p, name) for p in parts]) for name in _ARRAYS)
        return CutPoints(values, sizes, missing).with_categories(terms.columns.category_counts)

    def of_model(self, terms: Terms) -> TargetMeans:
        """The means that a model has."""
        names = terms.columns.target_means
        return {name: LevelMeans.of(means[:, -1]) for name, means in zip(names, self.means, strict=True)}


_ARRAYS = "values", "sizes", "missing"


def find_levels(
    terms: Terms, rows: int, scales: Scales, exponents: Int64
) -> Generator[OfTurn, Int64, Levels]:
    """The means of levels, and the cut points among them. exponents: those of a RowsQuery."""
    slots = slots_of(terms)
    if not slots:
        return Levels()
    sizes = tuple(each.with_missing for each in slots.values())
    _, weight = start_quantiles(terms, rows, exponents, features=1)
    gradient = Scale(scales.gradient.exponent, START_BITS)
    hessian = Scale(scales.hessian.exponent, START_BITS)
    query = LevelSumsQuery(rows, sizes, gradient, hessian, weight=weight)
    sums, *counts = parts_of(query, (yield query))
    totals = [own.sum(axis=0).tolist() for own in by_column(query, sums)]
    if any(total != totals[0] for total in totals):
        raise PeerError("the labels of one column of levels sum to others than those of another")
    check_start(terms, np.array(totals[0], np.int64))
    if any((each < 0).any() for each in counts) or any(
        own.sum() != rows for own in by_column(query, counts[0])
    ):
        raise PeerError(f"the rows of all levels of a column are not the {rows} rows there are")
    columns = zip(*(by_column(query, each) for each in (sums, counts[0], counts[-1])), strict=True)
    means, cut_points = [], []
    for own_sums, own_counts, units in columns:
        own = _means(terms, query, own_sums.reshape(-1, FOLDS + 1, STATS), own_counts.reshape(-1, FOLDS + 1))
        means.append(own)
        quantiles, _ = start_quantiles(terms, rows, exponents, features=1)
        cut_points.append(lay_cut_points(own, units, quantiles))
    return Levels(tuple(means), tuple(cut_points))


def parts_of(query: LevelSumsQuery, total: Int64) -> list[Int64]:
    """Sums of gradients and hessians [slots, 2], then counts of rows [slots], then of their weights."""
    pairs, *counts = np.split(total, np.cumsum([segment.cells for segment in query.segments])[:-1])
    return [pairs.reshape(-1, STATS), *counts]


def by_column(query: LevelSumsQuery, values: Int64) -> list[Int64]:
    return np.split(values, np.cumsum(query.slots)[:-1])


def _means(terms: Terms, query: LevelSumsQuery, sums: Int64, counts: Int64) -> Float32:
    """The means of a column, float32 [buckets, FOLDS + 1]. sums: int64 [buckets + 1, FOLDS + 1, 2]; counts:
    int64 [buckets + 1, FOLDS + 1], the last bucket of missing values."""
    factors, floor = np.array([query.gradient.factor, query.hessian.factor]), terms.evaluation.min_count
    trained, everything = counts[:, :FOLDS], sums.sum(axis=(0, 1)) / factors
    overall, prior = mean_label(terms, *everything.tolist()), SMOOTHING * everything / trained.sum()
    told = _told(trained.sum(axis=1), floor)
    pairs = sums[told, :FOLDS]
    whole = pairs.sum(axis=1, keepdims=True)
    of_others = np.concatenate([whole - _of_groups(pairs, trained[told], floor), whole], axis=1)
    others = of_others / factors + prior
    out = np.full((counts.shape[0] - 1, FOLDS + 1), overall)
    own = [mean_label(terms, *pair) for pair in others.reshape(-1, STATS).tolist()]
    out[told] = overall + _rounded(np.array(own).reshape(-1, FOLDS + 1) - overall)
    return out.astype(np.float32)


def _told(rows: Int64, floor: int) -> Int64:
    """The buckets that have means of their own: those of `floor` rows or more, but for the first if the other
    rows are too few. rows: of each bucket, and last those with missing values."""
    told = np.flatnonzero(rows[:-1] >= floor)
    rest = int(rows.sum() - rows[told].sum())
    return told[1:] if 0 < rest < floor else told


def _of_groups(pairs: Int64, rows: Int64, floor: int) -> Int64:
    """Sums over the group of folds that each fold is in: int64 [buckets, FOLDS, 2]. A group has `floor`
    rows, or is all folds of its bucket."""
    group, last, held = np.zeros_like(rows), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for fold in range(FOLDS):
        is_full = held >= floor
        last, held = last + is_full, np.where(is_full, 0, held) + rows[:, fold]
        group[:, fold] = last
    too_few = (held < floor)[:, np.newaxis] & (group == last[:, np.newaxis])
    group = np.maximum(group - too_few, 0)
    same = group[:, :, np.newaxis] == group[:, np.newaxis, :]
    joined: Int64 = np.einsum("bij,bjs->bis", same.astype(np.int64), pairs)
    return joined


def _rounded(values: Float64) -> Float64:
    """To as many significant digits as published metrics: all could tell exact sums of a few rows."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in values.reshape(-1)]).reshape(values.shape)


def lay_cut_points(means: Float32, units: Int64, quantiles: Quantiles) -> CutPoints:
    """Cut points as counts over grids of the encoded column would give. units: what the rows of each slot
    count."""
    values = np.append(means, np.full(units.size - means.size, np.float32(np.nan)))
    for _ in range(MAX_REFINEMENTS):
        if not quantiles.grids.cells:
            break
        quantiles.refine(count_cells([values], quantiles.grids, units=units))
    return quantiles.cut_points()
