"""What is known of the distribution of a feature from the counts of its cells (`cut_points.Quantiles`).

Promises: intervals hold the quantiles of the pooled rows.
Refuses: nothing.
"""

from collections.abc import Sequence

import numpy as np

from fedboost.gbdt.cut_points import Quantiles, keys_to_floats

VALUES_BY_GAP = 10
"""Cells with rows on either side of a gap."""


def intervals(quantiles: Quantiles, feature: int, shares: Sequence[float]) -> list[tuple[float, float]]:
    """For each share of a feature's values, missing ones left out, the interval [low, high] that its quantile
    lies in, ends included: that of pandas with interpolation="lower". The feature has values."""
    starts, widths, rows = quantiles.cells_of(feature)
    ends = np.cumsum(rows)
    at = np.searchsorted(ends, np.floor(np.array(shares) * (ends[-1] - 1)), side="right")
    low, high = keys_to_floats(starts[at]), keys_to_floats(starts[at] + (1 << widths[at]) - 1)
    return [*zip(low.tolist(), high.tolist(), strict=True)]


def gap(quantiles: Quantiles, feature: int, least: int, factor: float) -> tuple[float, float] | None:
    """The ends of the widest gap in the values of a feature that are all above 0, as a ratio: at least
    `factor`, with at least so many rows, and several values, on either side of it."""
    starts, widths, rows = quantiles.cells_of(feature)
    low, high = keys_to_floats(starts), keys_to_floats(starts + (1 << widths) - 1)
    if rows.size < 2 * VALUES_BY_GAP or low[0] <= 0:
        return None
    ends, several = np.cumsum(rows)[:-1], np.arange(1, rows.size)
    fits = (ends >= least) & (rows.sum() - ends >= least)
    fits &= (several >= VALUES_BY_GAP) & (rows.size - several >= VALUES_BY_GAP)
    ratios = np.where(fits, low[1:] / high[:-1], 0.0)
    at = int(np.argmax(ratios))
    return (float(high[at]), float(low[at + 1])) if ratios[at] >= factor else None


def is_constant(quantiles: Quantiles, feature: int) -> bool:
    """True if all values of a feature that are not missing are known to be one number."""
    _, widths, rows = quantiles.cells_of(feature)
    return rows.size == 1 and not widths.any()
