"""Histograms of the training rows, used to detect later whether other rows have a different distribution
(drift).

The counts of all parties are added together. The totals do not depend on which party has which row."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.binned import Column
from fedboost.gbdt.cut_points import STRETCH, CutPoints
from fedboost.gbdt.tree import Tree

BINS = 10
"""Maximum number of bins of a numeric feature, and of the score."""
SCORE_CELLS = 512
"""Number of fine cells in which scores are counted. These cells are later joined into bins."""


@dataclass(frozen=True)
class Bins:
    """Bins of the features and of the score, i.e. the model's margin or its most probable class.

    numeric: increasing edges for each numeric feature, where bin b is [edge[b-1], edge[b]); levels: number of
    levels of each categorical feature; score: edges for the margin; classes: number of classes if there are
    several, else 0. With several classes, the score is the most probable one."""

    numeric: tuple[Float64, ...]
    levels: tuple[int, ...]
    score: Float64
    classes: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of bins of each feature. The last one is for missing values."""
        return (*(edges.size + 2 for edges in self.numeric), *(levels + 1 for levels in self.levels))

    @property
    def of_score(self) -> int:
        return self.classes or self.score.size + 1

    def count(self, columns: Sequence[Column], margin: Float64) -> Int64:
        """Count rows in each bin of each feature and of the score. Returns int64 [total number of bins], with
        the score's bins last. margin: float64 [outputs, rows]."""
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
        """Split the flat result of `count` into an array per feature, followed by the score's array."""
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
    """Choose the bins for a trained model: about BINS for each numeric feature, and SCORE_CELLS for the
    score.

    Args:
        cut_points: cut points of the features, numeric ones first.
        numeric: number of numeric features.
        levels: number of levels of each categorical feature.
        start: margin from which boosting starts.
        trees: the model's trees.
        outputs: number of the model's outputs.
    """
    edges = tuple(edges_of(cuts) for cuts in cut_points.cuts[:numeric])
    if outputs > 1:
        return Bins(edges, tuple(levels), np.zeros(0), outputs)
    return Bins(edges, tuple(levels), score_edges(start, trees))


def score_edges(start: float, trees: Iterable[Tree]) -> Float64:
    """Return the edges between SCORE_CELLS equal cells that cover all possible margins of the trees: float64
    [SCORE_CELLS - 1]. start: margin from which boosting starts."""
    low = high = start
    for tree in trees:
        leaves = tree.leaf_values.value
        # Every margin lies between the sums of the lowest and of the highest leaf values.
        low, high = low + leaves.min(), high + leaves.max()
    edges: Float64 = np.linspace(low, high, SCORE_CELLS + 1)[1:-1]
    return edges


def edges_of(cuts: Float32) -> Float64:
    """Choose some of a feature's cut points as edges between BINS bins, each containing about the same number
    of cut points. Returns all cut points if there are fewer than BINS."""
    every: Float64 = cuts.astype(np.float64)
    return every if every.size < BINS else every[np.arange(1, BINS) * (every.size + 1) // BINS - 1]


def runs(counts: Int64, floor: int, empty: bool = True) -> list[list[int]]:
    """Join neighbouring bins into groups with enough rows. Returns the bin numbers in each group. counts:
    int64 [bins]; floor: minimum number of rows; empty: if True, a group may also have no rows."""
    return runs_of(counts, lambda rows: rows >= floor or (empty and rows == 0))


def runs_of(counts: Int64, suffices: Callable[[Any], bool]) -> list[list[int]]:
    """Join neighbouring bins into groups. Returns the bin numbers in each group. counts: int64 [..., bins];
    suffices: returns whether bins with these total counts may be a group."""
    out: list[list[int]] = []
    held: list[int] = []
    for place in range(counts.shape[-1]):
        held.append(place)
        if suffices(counts[..., held].sum(axis=-1)):
            out.append(held)
            held = []
    # Too few rows are left at the end: they join the last group, and others before it until these suffice.
    while held and out:
        held = out.pop() + held
        if suffices(counts[..., held].sum(axis=-1)):
            out.append(held)
            held = []
    return out or ([held] if held else [])


def joined(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the finest grouping of the bins that keeps all groups of both groupings whole."""
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
    """Compute the population stability index between two row counts by bin, int64 [bins] each. Half a row is
    added to every bin, so that no share is 0."""
    shares = [(counts + 0.5) / (counts.sum() + 0.5 * counts.size) for counts in (before, after)]
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def by_chance(before: int, after: int, bins: int) -> float:
    """Return the stability index that two random samples of the same population exceed with a probability of
    0.1%.

    The index is approximately the sum of the inverse sample sizes times a chi-squared variable (Yurdakul,
    Western Michigan University 2018). The quantile is computed with the Wilson-Hilferty approximation.
    before, after: sample sizes; bins: number of bins."""
    freedom = max(bins - 1, 1)
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.0902 * (2 / (9 * freedom)) ** 0.5) ** 3
    return float(quantile * (1 / before + 1 / after))
