"""Columns that give the label away: how well one column tells it.

Promises: what a column with many categories seems to tell by chance is not counted: the rows of one half are
told by the other half. A column that is far from telling the label is known by a few rows.
Refuses: nothing; of too few rows it says nothing (NaN).
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float64, Int64

MIN_ROWS = 100
"""Rows from which on a figure is more than chance."""
MIN_PER_CLASS = 10
"""Rows of each of two classes that a figure needs."""
MAX_BINS = 256
FEW_ROWS = 1_000
"""Rows that say whether a column is far from the limits."""
FAR = 0.05
"""How far below its limit the figure of these rows is then: ten times its standard error, or more."""
SURPRISES = 0.1
"""Share of the rows of other classes than the most frequent one that may be told wrong."""


class Target(Enum):
    """The kind of label, by the kind of oddity that a column is which tells it."""

    TWO = "gives away"
    CLASSES = "tells classes"
    AMOUNT = "predicts"


LIMITS = {Target.TWO: 0.98, Target.CLASSES: 0.98, Target.AMOUNT: 0.99}
"""The figure above which a column gives the label away: AUC of one split, share of the rows whose class is
told, rank correlation with an amount."""


@dataclass(frozen=True)
class Label:
    """A label: its kind, and the value of each row, or the code of its class; no row is missing."""

    target: Target
    values: Float64

    def told_by(self, column: Float64, categorical: bool) -> float:
        """Return the figure of a column: numbers, or codes of categories, NaN where it is missing."""
        return self._figure(column, categorical, SURPRISES, by_others=True)

    def is_far_from(self, column: Float64, categorical: bool) -> bool:
        """Tell if a column is far from giving the label away, by few rows: they may tell themselves, so that
        the figure of categories is rather too high."""
        figure = self._figure(column, categorical, 5 * SURPRISES, by_others=False)
        return figure < LIMITS[self.target] - FAR

    def _figure(self, column: Float64, categorical: bool, surprises: float, by_others: bool) -> float:
        _, classes, counts = self._classes
        if self.values.size < MIN_ROWS or counts.size < 2:
            return float("nan")
        if self.target is Target.TWO and counts.min() < MIN_PER_CLASS:
            return float("nan")
        if self.target is Target.TWO:
            positive = classes == 1
            if categorical:
                column = _told(_codes(column), positive.astype(np.float64), by_others)
            return one_split_auc(column, positive)
        if self.target is Target.AMOUNT:
            if categorical:
                column = _told(_codes(column), self.values, by_others)
            return _rank_correlation(column, self.values)
        codes = _codes(column) if categorical else _bins(column)
        right = (_told_class(codes, classes, by_others or not categorical) == classes).mean()
        surprise = 1 - counts.max() / counts.sum()
        return float(right) if 1 - right < surprise * surprises else 0.0

    @property
    def few(self) -> Int64:
        """The places of a few rows, evenly spread; of each of two values half of them, or all there are."""
        kinds = [np.arange(self.values.size)]
        if self.target is Target.TWO:
            kinds = [np.flatnonzero(self._classes[1] == code) for code in (0, 1)]
        most = FEW_ROWS // len(kinds)
        return np.sort(np.concatenate([kind[evenly(kind.size, most)] for kind in kinds]))

    @cached_property
    def _classes(self) -> tuple[Float64, Int64, Int64]:
        """The distinct values, the number of each row's, and the rows of each."""
        return np.unique(self.values, return_inverse=True, return_counts=True)


def evenly(size: int, most: int) -> Int64:
    """The places of at most so many of these rows, evenly spread from the first to the last."""
    return np.linspace(0, size - 1, min(size, most)).astype(np.int64)


def one_split_auc(column: Float64, positive: npt.NDArray[np.bool_]) -> float:
    """Return the AUC of the best split of a column in two, rows without a value on either side or alone."""
    missing = np.isnan(column)
    share = np.where(positive, 1 / max(positive.sum(), 1), -1 / max((~positive).sum(), 1))
    none = share[missing].sum()
    values = column[~missing]
    order = np.argsort(values)
    values = values[order]
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], values.size > 0)[: values.size])
    below = share[~missing][order].cumsum()[ends]
    return float(0.5 + np.abs(np.concatenate([below, below + none, [none]])).max() / 2)


def _rank_correlation(column: Float64, values: Float64) -> float:
    """Return the magnitude of Spearman's correlation over the rows that have a value, if these are most."""
    present = ~np.isnan(column)
    if 2 * present.sum() < column.size:
        return float("nan")
    ranks = np.stack([_ranks(column[present]), _ranks(values[present])])
    ranks -= ranks.mean(axis=1, keepdims=True)
    spread = np.sqrt((ranks**2).sum(axis=1).prod())
    return float(abs((ranks[0] * ranks[1]).sum()) / spread) if spread > 0 else float("nan")


def _ranks(values: Float64) -> Float64:
    """The ranks of values, the mean of them where they are equal."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _codes(column: Float64) -> Int64:
    """The categories as codes from 1 on, 0 where it is missing."""
    return np.where(np.isnan(column), 0, column + 1).astype(np.int64)


def _bins(column: Float64) -> Int64:
    """The bins of numbers, about as many rows in each, from 1 on; 0 where it is missing."""
    present = column[~np.isnan(column)]
    if not present.size:
        return np.zeros(column.size, np.int64)
    share = np.linspace(0, 1, min(MAX_BINS, max(column.size // 10, 2)) + 1)[1:-1]
    cuts = np.unique(np.quantile(present, share, method="lower"))
    return np.where(np.isnan(column), 0, np.searchsorted(cuts, column) + 1)


def _told(codes: Int64, values: Float64, by_others: bool) -> Float64:
    """The mean value of each row's code among the rows of the other half, or of both."""
    out = np.empty(values.size)
    for half in (0, 1):
        rest = slice(1 - half, None, 2) if by_others else slice(None)
        counts = np.bincount(codes[rest], minlength=int(codes.max()) + 1)
        sums = np.bincount(codes[rest], values[rest], counts.size)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), values[rest].mean())
        out[half::2] = means[codes[half::2]]
    return out


def _told_class(codes: Int64, classes: Int64, by_others: bool) -> Int64:
    """The most frequent class of each row's code among the rows of the other half, or of both."""
    out = np.empty(classes.size, np.int64)
    for half in (0, 1):
        rest = slice(1 - half, None, 2) if by_others else slice(None)
        shape = int(codes.max()) + 1, int(classes.max()) + 1
        both = codes[rest] * shape[1] + classes[rest]
        counts = np.bincount(both, minlength=shape[0] * shape[1]).reshape(shape)
        counts[counts.sum(axis=1) == 0] = np.bincount(classes[rest], minlength=counts.shape[1])
        out[half::2] = counts.argmax(axis=1)[codes[half::2]]
    return out
