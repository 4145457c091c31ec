"""Published figures of survival times: curves and numbers at risk, C-index, AUC and Brier scores.

Guarantees: figures are pure functions of the terms and the sums. A curve is computed from rounded counts
(`coarse`), so it reveals nothing beyond them. The rounded number of events until a time does not depend on
which other times are published."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fedboost.boosting.programs.rounding import (
    coarse,
    nearest,
    part,
    rounded,
    rows_of_bin,
    rows_of_group,
    step_of,
    unit_of,
    with_ties,
)
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.drift import runs
from fedboost.gbdt.metrics import OfSurvival, metric_of
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.survival import MAX_TIMES, SurvivalTable, time_grid
from fedboost.terms.terms import Terms

Figures = dict[str, Any]
GROUPS = "all", "low", "middle", "high"
"""Names of the groups of rows that have curves: all rows, and thirds by predicted risk."""


def time_edges(times: Float32, events: Int64, chosen: Sequence[float], unit: int) -> list[float]:
    """Choose at most MAX_TIMES edges, between which lie at least one unit of events, as rounded.

    Args:
        times: times to choose from.
        events: int64 [times + 1], number of events until each time, and after the last.
        chosen: times that are edges in any case.
        unit: unit to which counts are rounded.
    """
    told = np.array(coarse(events.tolist(), unit) or [0], np.int64)
    groups = runs(told, max(unit, -(-int(told.sum()) // MAX_TIMES)), empty=False) if told.any() else []
    ends = [max(place for place in group if told[place]) for group in groups]
    edges: list[float] = np.union1d(times[[end for end in ends if end < times.size]], chosen).tolist()
    return edges


def curve(name: str, edges: Float32, events: Int64, left: Int64, told: int, unit: int) -> Figures:
    """Return the Kaplan-Meier curve of a group of rows, as JSON values.

    The curve ends where fewer than `rows_of_bin` rows are at risk.

    Args:
        name: name of the group.
        edges: float32, the times of its points.
        events, left: int64 [edges + 1], number of events, and of rows, until each time and after the last.
        told: published number of rows of the group.
        unit: unit to which counts are rounded.
    """
    at_risk, share, points = told, 1.0, list[Figures]()
    points.append({"time": 0.0, "at_risk": told, "survival": 1.0})
    deaths, gone = (coarse(each.tolist(), unit, most) or [] for each, most in ((events, None), (left, told)))
    for edge, died, lost in zip(edges.tolist(), deaths or [0] * left.size, gone, strict=False):
        if at_risk < rows_of_bin(unit):
            break
        share *= 1.0 - min(died / at_risk, 1.0)
        at_risk -= lost
        points.append({"time": float(f"{edge:.7g}"), "at_risk": at_risk, "survival": rounded(share)})
    return {"name": name, "rows": told, "events": nearest(int(events.sum()), unit), "points": points}


def coarse_by_time(counts: Int64, terms: Terms, rows: int) -> Int64:
    """Round `survival.counts_by_time`. A second call changes nothing. rows: number of all rows."""
    unit = unit_of(terms.evaluation.min_count)
    totals = None, part(int(counts[1].sum()), rows, unit)
    told = (coarse(each.tolist(), unit, total) for each, total in zip(counts, totals, strict=True))
    return np.array([each or [0] * counts.shape[1] for each in told], np.int64)


def described(counts: Int64, terms: Terms, rows: int) -> Figures:
    """Return the curve of all rows from `survival.counts_by_time`, which may be rounded."""
    unit, (events, left) = unit_of(terms.evaluation.min_count), coarse_by_time(counts, terms, rows)
    edges = np.array(time_edges(time_grid(), events, (), unit), np.float32)
    ends = np.append(np.searchsorted(time_grid(), edges), -1)
    events, left = (np.diff(np.cumsum(each)[ends], prepend=0) for each in (events, left))
    return curve(GROUPS[0], edges, events, left, int(left.sum()), unit)


def curves(table: SurvivalTable, rows: int, unit: int) -> list[Figures]:
    """Return the curves of GROUPS, or only of all rows if there are too few. rows: number of all rows, also
    of those that are not in the table; unit: unit to which counts are rounded."""
    told = part(int(table.left.sum()), rows, unit)
    every = curve(GROUPS[0], table.edges, table.events, table.left, told, unit)
    whole = nearest(told, unit)
    by_risk = coarse(table.counts.sum(axis=(0, 1)).tolist(), unit, whole) or [0]
    until = [*accumulate(by_risk)]
    ends = [
        next(place + 1 for place, own in enumerate(until) if 3 * own >= third * whole) for third in (1, 2)
    ]
    thirds = [table.counts[:, :, low:high] for low, high in pairwise([0, *ends, table.grid.cells])]
    sizes = coarse([int(each.sum()) for each in thirds], unit, whole) or [0]
    if min(sizes) < rows_of_group(unit):
        return [every]
    parts = ((each[:, 1].sum(axis=1), each.sum(axis=(1, 2))) for each in thirds)
    named = zip(GROUPS[1:], parts, sizes, strict=True)
    return [every, *(curve(name, table.edges, *counts, size, unit) for name, counts, size in named)]


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
    return with_ties(*found, step_of(min(1.0, unit / min(groups))) if unit > 1 else 0.0)
