"""Metrics as sums that add: each party sums integers over its rows, the totals give the metric of all rows.

Promises: the metric of the sums is the metric of the pooled rows, up to the fixed-point resolution named at
each metric: means of numbers have none to speak of, for their sums lose nothing whatever their size
(`kernels.add_limbs`); curves (auc, aucpr, ks) are those of scores rounded to 1/32 of a logit.
Refuses: unknown names (at the terms).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.metrics.metric import Metric, encoded_sum
from fedboost.gbdt.metrics.registry import metric_of
from fedboost.gbdt.objectives.objective import Objective

Find = Callable[[str], Metric]
"""The metric of a name: `registry.metric_of`, or `exact_metric_of`."""
TRAIN, VALIDATION = "train", "validation"
"""The sets of rows of metrics: those that trees grow on, and the others."""
OF_PARTY = ":"
"""Separates a party's name from the set, or the metric, of its rows alone."""
MIN_ROWS = 10
"""Rows of a set whose metrics are published: as many as `min_rows_per_leaf` of a site's policy is by default,
for the aggregator does not know what the sites' policies say."""
DIGITS = 4
"""Significant digits of a published metric: all digits could reveal exact sums of a few rows."""


def limit(names: Iterable[str], weight: Scale, find: Find = metric_of) -> int:
    """Largest magnitude of an integer that one row contributes to any cell."""
    return max([weight.limit, *(find(name).limit(weight) for name in names)])


@lru_cache(maxsize=256)
def cells(names: tuple[str, ...], find: Find = metric_of) -> int:
    """Integers of `sums`."""
    return 1 + sum(find(name).cells for name in names)


def sums(
    names: Iterable[str],
    loss: Objective,
    margin: Float64,
    label: Float32,
    weights: Float32,
    weight: Scale,
    find: Find = metric_of,
) -> Int64:
    """This party's integers: the sum of weights, then the metrics in the order of the names."""
    own = (find(name).sums(loss, margin, label, weights, weight) for name in names)
    return np.concatenate([encoded_sum(weight, weights), *own])


def by_set(
    names: tuple[str, ...], sets: tuple[str, ...], total: Int64, weight: Scale, min_rows: int = 0
) -> dict[str, float]:
    """Metric by name, those of another set than the first behind its own name, those of a party behind the
    party's; none of a party without such rows, nor of a set that may have fewer than `min_rows`: its sum of
    weights is less than that of `min_rows` rows of the largest weight. PeerError as `values`."""
    out: dict[str, float] = {}
    size = cells(names)
    for number, set_name in enumerate(sets):
        part = total[number * size : (number + 1) * size]
        party, colon, rows = set_name.rpartition(OF_PARTY)
        if (not part[0] and colon) or 0 <= part[0] < min_rows * weight.limit:
            continue
        if not part[0] and number:
            raise ConfigError(f"no party has {rows} rows: give them in the table, or draw a larger share")
        prefix = party + colon + ("" if rows == TRAIN else f"{rows}-")
        out |= {prefix + name: value for name, value in values(names, part, weight).items()}
    return out


def published(names: tuple[str, ...], sets: tuple[str, ...], total: Int64, weight: Scale) -> dict[str, float]:
    """The same for the analyst: of no set that may have fewer than MIN_ROWS rows, to DIGITS significant
    digits."""
    exact = by_set(names, sets, total, weight, MIN_ROWS)
    return {name: float(f"{value:.{DIGITS}g}") for name, value in exact.items()}


def of_all(row: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a round that are over the rows of all parties."""
    return {name: value for name, value in row.items() if OF_PARTY not in name}


def by_party(row: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The metrics of a round that are of single parties: party to metric by name."""
    out: dict[str, dict[str, float]] = {}
    for full_name, value in row.items():
        party, colon, name = full_name.rpartition(OF_PARTY)
        if colon:
            out.setdefault(party, {})[name] = value
    return out


def values(names: Iterable[str], total: Int64, weight: Scale, find: Find = metric_of) -> dict[str, float]:
    """Metric by name, from the total of all parties. PeerError for sums that cannot be."""
    weights, start, out = weight.decode(int(total[0])), 1, {}
    for name in names:
        metric = find(name)
        own = total[start : start + metric.cells]
        if weights <= 0 or (not metric.signed and own.min() < 0):
            raise PeerError("metric sums that cannot be: no weight, or less than nothing")
        out[name] = metric.value(own, weights, weight)
        start += metric.cells
    return out
