"""Parts of descriptions that sites must allow: each site's rows, and the union of the levels of all sites."""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from fedboost.boosting.queries import OfTurn
from fedboost.boosting.queries.columns import CELLS, GROUPS, HASHES, SLOT, LevelsQuery, level_in
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.terms.tasks import MISSING, sites_of
from fedboost.terms.terms import Terms


def of_sites(terms: Terms, counts: Int64, told: Callable[[int, int], int]) -> dict[str, Any]:
    """Return the summary of each site. counts: int64 [sites, 1 + features], its rows, and those without a
    declared value; told: maps a count, and the site's rows, to the reported count."""
    names = *terms.columns.numeric, *terms.columns.categorical
    known = [[told(each, own[0]) for each in own] for own in counts.tolist()]
    found = ({"rows": own[0], MISSING: dict(zip(names, own[1:], strict=True))} for own in known)
    return {"sites": dict(zip(sites_of(terms), found, strict=True))}


def union_of_levels(
    terms: Terms, rows: int, told: Callable[[int], int]
) -> Generator[OfTurn, Int64, dict[str, Any]]:
    """Return the levels of each column in `level_names`, with their row counts, as JSON values. rows: number
    of all rows; told: maps a count to the reported count. Raises PeerError for inconsistent sums."""
    columns = terms.evaluation.level_names
    counts, checks = (yield LevelsQuery(len(columns))).reshape(GROUPS, 2, -1).swapaxes(0, 1)
    both = counts.sum(axis=0)
    valued = both.reshape(len(columns), HASHES, CELLS).sum(axis=2)
    if (counts < 0).any() or (valued != valued[:, :1]).any() or valued.max() > rows:
        raise PeerError("sums-inconsistent", "the row counts of a column's levels have different totals")
    places = np.flatnonzero((counts >= terms.evaluation.min_count).all(axis=0))
    named: list[dict[str, int]] = [{} for _ in columns]
    if places.size:
        sums = (tuple(each[:, places].ravel().tolist()) for each in (counts, checks))
        slots = yield LevelsQuery(len(columns), tuple(places.tolist()), *sums)
        for place, slot in zip(places.tolist(), slots.reshape(-1, SLOT).tolist(), strict=True):
            if level := level_in(slot):
                # Other levels may add rows to one of a level's cells, but hardly to all of them.
                known = named[place // (HASHES * CELLS)]
                known[level] = min(known.get(level, rows), int(both[place]))
    summary = {}
    for column, known, total in zip(columns, named, valued[:, 0].tolist(), strict=True):
        levels = {level: told(known[level]) for level in sorted(known, key=lambda name: (-known[name], name))}
        summary[column] = {"levels": levels, "others": told(max(total - sum(known.values()), 0))}
    return {"level_names": summary}
