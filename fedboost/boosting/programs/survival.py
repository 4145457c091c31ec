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
    with_ties,
)
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt import metrics, survival
from fedboost.gbdt.drift import runs
from fedboost.gbdt.survival import MAX_TIMES, SurvivalTable
from fedboost.terms import tasks
from fedboost.terms.terms import Terms

Figures = dict[str, Any]
THIRDS = "low", "middle", "high"
"""Names of the groups of rows by predicted risk."""


def time_edges(grid: Float32, events: Int64, chosen: Sequence[float], unit: int) -> tuple[float, ...]:
    """Choose at most MAX_TIMES edges of times, between which lie about equal numbers of events.

    They follow from rounded counts, and at least one unit of events, as rounded, lies between two of them.

    Args:
        grid: times to choose from.
        events: number of events until each time of the grid, from the one before, and after the last.
        chosen: times that are edges in any case.
        unit: unit to which counts are rounded.
    """
    told = np.array(coarse(events.tolist(), unit) or [0], np.int64)
    groups = runs(told, max(unit, -(-int(told.sum()) // MAX_TIMES)), empty=False) if told.any() else []
    ends = [max(place for place in group if told[place]) for group in groups]
    edges = np.union1d(grid[[end for end in ends if end < grid.size]], np.array(chosen, np.float32))
    return tuple(edges.astype(np.float32).tolist())


def curve(edges: Float32, events: Int64, left: Int64, told: int, unit: int) -> list[Figures]:
    """Return the points of a Kaplan-Meier curve, from the counts of a group of rows.

    The curve ends where fewer than `rows_of_bin` rows are at risk.

    Args:
        edges: float32, the times of the points.
        events: int64 [edges + 1], number of events until each time, and after the last.
        left: int64 [edges + 1], number of rows whose time is until then.
        told: published number of rows of the group.
        unit: unit to which counts are rounded.
    """
    deaths, ends = (coarse(each.tolist(), unit, whole) for each, whole in ((events, None), (left, told)))
    at_risk, share, points = told, 1.0, [_point(0.0, told, 0, 1.0)]
    none = [0] * left.size
    for edge, died, gone in zip(edges.tolist(), deaths or none, ends or none, strict=False):
        if at_risk < rows_of_bin(unit):
            break
        died = min(died, at_risk)
        share *= 1.0 - died / at_risk
        at_risk -= gone
        points.append(_point(edge, at_risk, died, share))
    return points


def _point(time: float, at_risk: int, events: int, share: float) -> Figures:
    known = {"time": float(f"{time:.7g}"), "at_risk": at_risk, "events": events}
    return {**known, "survival": rounded(share)}


def summary(terms: Terms, table: SurvivalTable, rows: int, unit: int) -> tuple[Figures, Figures]:
    """Return the curves as JSON values, and each figure with its maximum error.

    Args:
        terms: terms of the session.
        table: counts of the rows with a known time.
        rows: number of all rows.
        unit: unit to which counts are rounded.
    """
    known, all_events = int(table.left.sum()), int(table.events.sum())
    told = part(known, rows, unit)
    every = {"name": "all", "rows": told, "events": nearest(all_events, unit)}
    every["points"] = curve(table.edges, table.events, table.left, told, unit)
    found = {name: _figure(name, terms, table, unit) for name in tasks.survival_metrics(terms)}
    return {"curves": [every, *_thirds(table, told, unit)]}, found


def _thirds(table: SurvivalTable, told: int, unit: int) -> list[Figures]:
    """Return the curves of three groups by risk with about as many rows each; [] if there are too few."""
    by_risk = coarse(table.counts.sum(axis=(0, 1)).tolist(), unit, nearest(told, unit)) or [0]
    until = [*accumulate(by_risk)]
    ends = [next((n + 1 for n, rows in enumerate(until) if rows >= until[-1] * k / 3), 0) for k in range(4)]
    parts = [table.counts[:, :, low:high] for low, high in pairwise([0, *ends[1:3], table.grid.cells])]
    sizes = coarse([int(each.sum()) for each in parts], unit, nearest(told, unit))
    if sizes is None or min(sizes) < rows_of_group(unit):
        return []
    out = []
    for name, each, rows in zip(THIRDS, parts, sizes, strict=True):
        events, left = each[:, 1].sum(axis=1), each.sum(axis=(1, 2))
        points = curve(table.edges, events, left, rows, unit)
        out.append({"name": name, "rows": rows, "events": nearest(int(events.sum()), unit), "points": points})
    return out


def _figure(name: str, terms: Terms, table: SurvivalTable, unit: int) -> tuple[float | None, float | None]:
    metric = metrics.metric_of(name)
    assert isinstance(metric, metrics.OfSurvival)
    groups = table.groups(metric.time) if metric.time else (int(table.events.sum()),)
    if min(groups) < unit:
        return None, None
    if not metric.time:
        found = table.concordance()
    elif metric.grows:
        found = table.area(metric.time)
    else:
        found = table.brier(terms.objective.loss, metric.time)
    # A unit of rows changes a share of pairs about as much as the smaller group of a pair.
    step = step_of(min(1.0, unit / min(groups))) if unit > 1 else 0.0
    return (None, None) if found is None else with_ties(*found, step)


def table_of(counts: Int64, edges: Float32, grid: survival.RiskGrid) -> SurvivalTable:
    return SurvivalTable(counts.reshape(edges.size + 1, 2, grid.cells), edges, grid)
