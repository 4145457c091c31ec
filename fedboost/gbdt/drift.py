"""Bins in which rows are counted, to detect later whether other rows are distributed differently.

Counts add over the parties: the same rows and bins give the same counts, regardless of who has them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.binned import Column
from fedboost.gbdt.cut_points import STRETCH, CutPoints
from fedboost.gbdt.tree import NO_CHILD, Tree

BINS = 10
"""Most bins of a numeric feature, and of the score."""
SCORE_CELLS = 512
"""Cells of the score from which its bins are made."""


@dataclass(frozen=True)
class Bins:
    """The bins of the features and of the score.

    numeric: the edges of each numeric feature, increasing: bin b is [edge[b-1], edge[b]); levels: the number
    of levels of each categorical feature; score: the edges of the score; classes: the number of classes, of
    which the most probable is then the score; 0 if there are not several."""

    numeric: tuple[Float64, ...]
    levels: tuple[int, ...]
    score: Float64
    classes: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of bins of each feature, including that of missing values, the last."""
        return (*(edges.size + 2 for edges in self.numeric), *(levels + 1 for levels in self.levels))

    @property
    def of_score(self) -> int:
        return self.classes or self.score.size + 1

    def count(self, columns: Sequence[Column], margin: Float64) -> Int64:
        """Rows in each bin of each feature, then of the score: int64. margin: float64 [outputs, rows]."""
        kinds: list[Float64 | None] = [*self.numeric, *(None for _ in self.levels)]
        counts = [
            _count(column, edges, size)
            for column, edges, size in zip(columns, kinds, self.sizes, strict=True)
        ]
        if self.classes:
            places = np.argmax(margin, axis=0)
        else:
            places = np.searchsorted(self.score, margin[0], side="right")
        return np.concatenate([*counts, np.bincount(places, minlength=self.of_score).astype(np.int64)])

    def parts(self, counts: Int64) -> list[Int64]:
        """The counts of each feature, then of the score."""
        return np.split(counts, np.cumsum(self.sizes))


def _count(column: Column, edges: Float64 | None, size: int) -> Int64:
    out = np.zeros(size, np.int64)
    for start in range(0, column.size, STRETCH):
        values = np.asarray(column[start : start + STRETCH], np.float64)
        places = values if edges is None else np.searchsorted(edges, values, side="right")
        places = np.where(np.isnan(values), size - 1, places).astype(np.int64)
        out += np.bincount(places, minlength=size)
    return out


def bins_of(
    cut_points: CutPoints,
    numeric: int,
    levels: Sequence[int],
    start: float,
    trees: Iterable[Tree],
    outputs: int,
) -> Bins:
    """The bins of a training: about BINS for each numeric feature, and SCORE_CELLS for the score. start,
    trees: of the model."""
    edges = tuple(edges_of(cuts) for cuts in cut_points.cuts[:numeric])
    if outputs > 1:
        return Bins(edges, tuple(levels), np.zeros(0), outputs)
    return Bins(edges, tuple(levels), score_edges(start, trees))


def score_edges(start: float, trees: Iterable[Tree]) -> Float64:
    """The edges between the cells of the score, from which its bins are made."""
    low = high = start
    for tree in trees:
        leaves = [value for value, left in zip(tree.value, tree.left, strict=True) if left == NO_CHILD]
        # Every margin lies between the sums of the lowest and of the highest leaf values.
        low, high = low + min(leaves), high + max(leaves)
    edges: Float64 = np.linspace(low, high, SCORE_CELLS + 1)[1:-1]
    return edges


def edges_of(cuts: Float32) -> Float64:
    """The edges between BINS bins with about equally many cuts; all cuts if there are fewer than BINS."""
    every: Float64 = cuts.astype(np.float64)
    return every if every.size < BINS else every[np.arange(1, BINS) * (every.size + 1) // BINS - 1]


def runs(counts: Int64, floor: int, empty: bool = True) -> list[list[int]]:
    """Join neighbouring bins until each group has `floor` rows, or none if it may be `empty`."""
    out: list[list[int]] = []
    held: list[int] = []
    for place in range(counts.size):
        held.append(place)
        rows = int(counts[held].sum())
        if rows >= floor or (empty and rows == 0):
            out.append(held)
            held = []
    # Too few rows are left at the end: they join the last group, and others before it until these suffice.
    while held and out:
        held = out.pop() + held
        if counts[held].sum() >= floor:
            out.append(held)
            held = []
    return out or ([held] if held else [])


def joined(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> list[list[int]]:
    """The finest partition of the bins of which both groupings are refinements."""
    out: list[set[int]] = []
    for group in (*first, *second):
        together = {*group}
        apart = []
        for known in out:
            if known & together:
                together |= known
            else:
                apart.append(known)
        out = [*apart, together]
    return sorted(sorted(group) for group in out)


def stability_index(before: Int64, after: Int64) -> float:
    """The population stability index of two counts by bin. Half a row is added to each bin, so that empty
    bins have a share."""
    shares = [(counts + 0.5) / (counts.sum() + 0.5 * counts.size) for counts in (before, after)]
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def by_chance(before: int, after: int, bins: int) -> float:
    """The 99.9 % quantile of the stability index between random samples of so many rows from the same rows.
    The index is about chi-squared, times the sum of the inverse row numbers (Yurdakul, Western Michigan
    University 2018). The quantile is approximated as by Wilson and Hilferty."""
    freedom = max(bins - 1, 1)
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.0902 * (2 / (9 * freedom)) ** 0.5) ** 3
    return float(quantile * (1 / before + 1 / after))
