"""Published figures of survival times: curves and numbers at risk, C-index, AUC and Brier scores.

Guarantees: figures are pure functions of the terms and the sums. A curve is computed from rounded counts
(`coarse`), so it reveals nothing beyond them. The rounded number of events until a time does not depend on
which other times are published."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fedboost.boosting.programs import rounding
from fedboost.errors import PeerError
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.metrics import OfSurvival, metric_of
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.survival import MAX_TIMES, SurvivalTable, public_times
from fedboost.terms.terms import Terms

Figures = dict[str, Any]
GROUPS = "all", "low", "middle", "high"
"""Names of the groups of rows that have curves: all rows, and thirds by predicted risk."""


def check_events(events: Int64, every: Int64, rows: int) -> None:
    """Raise PeerError unless counts of events, and of all rows with a known time, fit the number of rows."""
    counts = np.concatenate([events, every])
    if ((counts < 0) | (counts > rows)).any() or not events.sum() <= every.sum() <= rows:
        raise PeerError("sums-inconsistent", "the counts of events do not fit the number of rows")


def time_edges(times: Float32, events: Int64, chosen: Sequence[float], unit: int) -> list[float]:
    """Choose the edges by which rows are counted: public times, with at least `rows_of_bin` events between
    them, chosen times, and finer times with at least one unit of events between them.

    Args:
        times: `survival.time_grid`.
        events: int64 [times + 1], number of events until each time, and after the last.
        chosen: times that are edges in any case.
        unit: unit to which counts are rounded.
    """
    fine = np.setdiff1d(times, np.union1d(public_times(), chosen))
    grids = (public_times(), rounding.rows_of_bin(unit)), (fine, unit)
    found = [_merged(grid, times, events, least, unit) for grid, least in grids]
    edges: list[float] = np.unique(np.concatenate([*found, np.array(chosen, np.float32)])).tolist()
    return edges


def _merged(grid: Float32, times: Float32, events: Int64, least: int, unit: int) -> Float32:
    """Return at most MAX_TIMES + 1 times of a grid, with at least `least` events, as rounded, until each from
    the one before. The last one is that of the last event, which may have fewer."""
    counts = _regrouped(events, times, grid)
    told = np.array(rounding.coarse(counts.tolist(), unit, int(counts.sum()) // unit * unit) or [0], np.int64)
    places, ends, held = np.flatnonzero(told[:-1]), list[int](), 0
    least = max(least, -(-int(told.sum()) // MAX_TIMES))
    for place in places.tolist():
        held += int(told[place])
        if held >= least or place == places[-1]:
            ends.append(place)
            held = 0
    return grid[ends]


def _regrouped(counts: Int64, times: Float32, some: Float32) -> Int64:
    """Return counts by bins between some of the times instead of all: int64 [some + 1]."""
    until = np.cumsum(counts)[np.searchsorted(times, some)]
    return np.diff(np.append(until, counts.sum()), prepend=0)


def curve(name: str, edges: Float32, events: Int64, left: Int64, told: int, unit: int) -> Figures:
    """Return the survival curve of a group of rows, as JSON values.

    It is the Kaplan-Meier estimate for times in bins: rows that are censored in a bin are at risk during half
    of it. It ends where fewer than `rows_of_bin` rows are at risk.

    Args:
        edges: float32, the times of its points.
        events, left: int64 [edges + 1], number of events, and of rows, until each time and after the last.
        told: published number of rows of the group.
        unit: unit to which counts are rounded.
    """
    at_risk, share, points = told, 1.0, list[Figures]()
    points.append({"time": 0.0, "at_risk": told, "survival": 1.0})
    deaths, gone = (
        rounding.coarse(each.tolist(), unit, most) or [] for each, most in ((events, None), (left, told))
    )
    for edge, died, lost in zip(edges.tolist(), deaths or [0] * left.size, gone, strict=False):
        if at_risk < rounding.rows_of_bin(unit):
            break
        share *= 1.0 - min(died / (at_risk - max(lost - died, 0) / 2), 1.0)
        at_risk -= lost
        points.append({"time": float(f"{edge:.7g}"), "at_risk": at_risk, "survival": rounding.rounded(share)})
    return {"name": name, "rows": told, "events": rounding.nearest(int(events.sum()), unit), "points": points}


def coarse_by_time(counts: Int64, terms: Terms, rows: int) -> Int64:
    """Round `survival.counts_by_time`. A second call changes nothing. rows: number of all rows."""
    unit = rounding.unit_of(terms.evaluation.min_count)
    totals = None, rounding.part(int(counts[1].sum()), rows, unit)
    told = (rounding.coarse(each.tolist(), unit, total) for each, total in zip(counts, totals, strict=True))
    return np.array([each or [0] * counts.shape[1] for each in told], np.int64)


def described(counts: Int64, terms: Terms, rows: int) -> Figures:
    """Return the curve of all rows. counts: `survival.counts_by_time` at public times, which may be rounded;
    rows: number of all rows."""
    unit, times = rounding.unit_of(terms.evaluation.min_count), public_times()
    told = coarse_by_time(counts, terms, rows)
    edges = _merged(times, times, told[0], rounding.rows_of_bin(unit), unit)
    events, left = (_regrouped(each, times, edges) for each in told)
    return curve(GROUPS[0], edges, events, left, int(left.sum()), unit)


def curves(table: SurvivalTable, chosen: Sequence[float], rows: int, unit: int) -> list[Figures]:
    """Return the curves of GROUPS, or only of all rows if there are too few.

    Args:
        table: counts of the rows with a known time.
        chosen: times at which curves have points, besides public times.
        rows: number of all rows.
        unit: unit to which counts are rounded.
    """
    edges = np.intersect1d(table.edges, np.union1d(public_times(), chosen)).astype(np.float32)

    def of_group(name: str, counts: Int64, told: int) -> Figures:
        by_time = counts[:, 1].sum(axis=1), counts.sum(axis=(1, 2))
        events, left = (_regrouped(each, table.edges, edges) for each in by_time)
        return curve(name, edges, events, left, told, unit)

    told = rounding.part(int(table.left.sum()), rows, unit)
    every, whole = of_group(GROUPS[0], table.counts, told), rounding.nearest(told, unit)
    until = [*accumulate(rounding.coarse(table.counts.sum(axis=(0, 1)).tolist(), unit, whole) or [whole])]
    ends = [next(n for n, rows in enumerate(until, 1) if 3 * rows >= third * whole) for third in (1, 2)]
    thirds = [table.counts[:, :, low:high] for low, high in pairwise([0, *ends, table.grid.cells])]
    sizes = rounding.coarse([int(each.sum()) for each in thirds], unit, whole) or [0]
    return [every, *map(of_group, GROUPS[1:], thirds, sizes)][
        : 4 if min(sizes) >= rounding.rows_of_group(unit) else 1
    ]


def figure(name: str, loss: Objective, table: SurvivalTable, unit: int) -> tuple[float | None, float | None]:
    """Return the published value of a metric, and its maximum error; both None if there are too few rows."""
    metric = metric_of(name)
    assert isinstance(metric, OfSurvival)
    time = metric.time
    groups = table.groups(time) if time else (int(table.events.sum()),)
    if min(groups) < unit:
        return None, None
    found = table.concordance() if not time else table.area(time) if metric.grows else table.brier(loss, time)
    # A unit of rows changes a share of pairs about as much as the smaller group of a pair.
    return rounding.with_ties(*found, rounding.step_of(min(1.0, unit / min(groups))) if unit > 1 else 0.0)
