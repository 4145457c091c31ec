"""The description of rows whose counts get noise: two releases, by level and by part of a range.

Promises: a pure function of the terms and the noisy sums; a count that is not well above its noise, or
below `min_count`, is not in the result.
Refuses: nothing.
"""

import math
from collections.abc import Generator
from itertools import islice
from typing import Any

import numpy as np

from fedboost.boosting.queries.cut_points import RangeQuery
from fedboost.boosting.queries.summary import SummaryQuery
from fedboost.boosting.queries.union import OfTurn
from fedboost.fixedpoint import Int64
from fedboost.gbdt.cut_points import RANGE_PARTS, range_edges
from fedboost.terms.noise import CUT_POINTS, ROWS, SUMMARY
from fedboost.terms.tasks import MISSING, SHARES, class_names, columns_of_levels
from fedboost.terms.terms import Terms

ABOVE_NOISE = 3.0
"""Standard deviations of the noise of a count that a count needs to be told."""


def summarise(terms: Terms) -> Generator[OfTurn, Int64, dict[str, Any]]:
    """The summary, as that of `describe`, and the standard deviation of the noise of a count, `noise`."""
    schema, releases = terms.columns, terms.plan.releases
    query = SummaryQuery.of(terms)
    noise = releases[SUMMARY].sigma
    floor = max(math.ceil(ABOVE_NOISE * noise), terms.evaluation.min_count)
    counts = map(int, (yield query).tolist())
    rows = max(next(counts), 0)
    missing = [*islice(counts, query.numeric)]
    levels = [[*islice(counts, size + 2)] for size in query.levels]
    ranges = [schema.ranges[name] for name in schema.numeric]
    parts = np.zeros((0, RANGE_PARTS), np.int64)
    if ranges:
        parts = (yield RangeQuery(ROWS, len(ranges))).reshape(len(ranges), RANGE_PARTS)
    columns: list[dict[str, Any]] = []
    for place, name in enumerate(schema.numeric):
        quantiles = _quantiles(parts[place], ranges[place], releases[CUT_POINTS].sigma)
        known = {"quantiles": quantiles, "constant": False}
        columns.append({"name": name, "kind": "numeric", MISSING: _told(missing[place], floor), **known})
    columns += columns_of_levels(terms, levels, lambda count: _told(count, floor))
    label: dict[str, Any] = {"name": schema.label}
    if query.classes:
        told = (_told(count, floor) for count in counts)
        label["levels"] = dict(zip(class_names(terms), told, strict=True))
    return {"rows": rows, "min_count": floor, "noise": noise, "columns": columns, "label": label}


def _told(count: int, floor: int) -> int | None:
    """A noisy count, unless it is below the floor."""
    return count if count >= floor else None


def _quantiles(counts: Int64, declared: tuple[float, float], noise: float) -> dict[str, Any]:
    """The part of a declared range that each quantile lies in, by noisy counts; None where noise decides."""
    known: dict[str, Any] = dict.fromkeys(f"{share:g}" for share in SHARES)
    kept = np.where(counts > ABOVE_NOISE * noise, counts, 0)
    total = int(kept.sum())
    if not total:
        return known
    edges = [declared[0], *range_edges(declared).tolist(), declared[1]]
    until, error = np.cumsum(kept), ABOVE_NOISE * noise * math.sqrt(RANGE_PARTS)
    for share in SHARES:
        if min(share, 1 - share) * total < error:
            continue
        part = int(np.searchsorted(until, share * total, side="left"))
        known[f"{share:g}"] = [edges[part], edges[part + 1]]
    return known
