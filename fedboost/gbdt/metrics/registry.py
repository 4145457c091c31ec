"""The metrics by name."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels.objectives import log_losses, sigmoids, softmax_losses
from fedboost.gbdt.metrics.metric import (
    FINE_CELLS_PER_LOGIT,
    LOGITS,
    NDCG_NAME,
    OF_TRIAL,
    BoundedLoss,
    Calibration,
    Curve,
    Error,
    Mean,
    Metric,
    MultiError,
    Ndcg,
    OfTrial,
    absolute_losses,
    aft_losses,
    encoded_sum,
    gamma_deviance_losses,
    gamma_losses,
    is_positive,
    kolmogorov_smirnov,
    pinball_losses,
    poisson_losses,
    precision_recall_area,
    pseudo_huber_losses,
    roc_area,
    score_cells,
    squared_losses,
    tweedie_losses,
    within_losses,
)
from fedboost.gbdt.objectives.objective import Objective

METRICS: dict[str, Metric] = {
    "logloss": BoundedLoss(log_losses),
    "error": Error(),
    "auc": Curve(roc_area),
    "aucpr": Curve(precision_recall_area),
    "ks": Curve(kolmogorov_smirnov, is_distance=True),
    "ece": Calibration(),
    "rmse": Mean(squared_losses, transform=math.sqrt),
    "mae": Mean(absolute_losses),
    "mphe": Mean(pseudo_huber_losses),
    "quantile": Mean(pinball_losses),
    "poisson-nloglik": Mean(poisson_losses, signed=True),
    "gamma-nloglik": Mean(gamma_losses, signed=True),
    "gamma-deviance": Mean(gamma_deviance_losses, signed=True),
    "aft-nloglik": Mean(aft_losses, signed=True),
    "interval-regression-accuracy": Mean(within_losses, grows=True),
    "mlogloss": BoundedLoss(softmax_losses),
    "merror": MultiError(),
    "ndcg": Ndcg(),
    "ndcg-": Ndcg(without=0.0),
}
"""Metrics without a parameter."""
SHAPES: dict[str, tuple[Callable[[float], Metric], float, float]] = {
    "error": (Error, 0.0, 1.0),
    "tweedie-nloglik": (lambda power: Mean(tweedie_losses(power)), 1.0, 2.0),
}
"""Metrics with a parameter behind an @, and the numbers between which it lies."""


@lru_cache(maxsize=256)
def metric_of(name: str) -> Metric:
    """The metric of that name, such as rmse, error@0.3 or ndcg@5-. KeyError if there is none."""
    number, of, own = name.partition(OF_TRIAL)
    if of and number.isdecimal():
        return OfTrial(metric_of(own), int(number))
    kind, at, parameter = name.partition("@")
    if not at:
        return METRICS[name]
    if top := NDCG_NAME.fullmatch(name):
        return Ndcg(int(top[1]), 0.0 if top[2] else 1.0)
    make, above, below = SHAPES[kind]
    try:
        value = float(parameter)
    except ValueError:
        raise KeyError(name) from None
    if not above < value < below:
        raise KeyError(name)
    return make(value)


@lru_cache(maxsize=256)
def exact_metric_of(name: str) -> Metric:
    """The metric of that name, whose sum loses nothing where it is a mean, and of finer cells where it is a
    curve. KeyError if there is none."""
    metric = metric_of(name)
    if isinstance(metric, Curve):
        return replace(metric, per_logit=FINE_CELLS_PER_LOGIT)
    if not isinstance(metric, BoundedLoss):
        return metric
    losses = metric.losses
    return Mean(lambda loss, margin, label: losses(margin, label, np.ones_like(label)))


def is_metric(name: str) -> bool:
    """True if there is a metric of that name."""
    try:
        metric_of(name)
    except KeyError:
        return False
    return True


def is_at_threshold(name: str) -> bool:
    """True if the terms choose a number behind the metric's @ (0.5 is that of error without one): the
    differences of two such metrics are sums over the few rows between the numbers."""
    return "@" in name and metric_of(own_name(name)) != Error()


def grows(name: str) -> bool:
    """True if more of this metric is better."""
    return metric_of(name).grows


def fits(name: str, objective: Objective | type[Objective]) -> bool:
    """True if the metric of that name, with or without a parameter, fits the objective."""
    return own_name(name).partition("@")[0].removesuffix("-") in objective.metrics


def own_name(name: str) -> str:
    """The name of a metric without the number of a trial."""
    number, of, own = name.partition(OF_TRIAL)
    return own if of and number.isdecimal() else name


def metrics_for(objective: Objective | type[Objective]) -> list[str]:
    """The names of the metrics that fit an objective, a parameter as @t, a number of rows as @k."""
    names = [*METRICS, *(f"{name}@t" for name in SHAPES), "ndcg@k", "ndcg@k-"]
    return [name for name in names if fits(name, objective)]


# ---- Metrics as sums that add: each party sums integers over its rows -----------------------------------
# The totals give the metric of all rows.
# Promises: the metric of the sums is the metric of the pooled rows, up to the fixed-point resolution named
# at each metric: means of numbers have none to speak of, for their sums lose nothing whatever their size
# (`kernels.add_limbs`); curves (auc, aucpr, ks) are those of scores rounded to 1/32 of a logit.
# Refuses: unknown names (at the terms).


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


# ---- Counts of rows by score and label: ROC curve, calibration, confusion matrix ------------------------
# Promises: counts add over the parties; the edges of bins are the same for every model and all rows, so
# that two evaluations have no rows between two near edges; a bin lies on one side of the threshold. Refuses
# nothing: labels and margins are checked before.


EDGES = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    *(0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999),
)
"""The probabilities between which bins lie: (0, 0.001], (0.001, 0.002], ..."""
FINE_CELLS = LOGITS * FINE_CELLS_PER_LOGIT
"""Cells of scores, for the area under the curve."""
PROBABILITIES = Scale(exponent=0, bits=32)
"""The scale of sums of probabilities: resolution 2**-31 a row."""
OUTCOMES = ("tn", "fp", "fn", "tp")
"""The cells of a confusion matrix of two classes: label 0 and 1, predicted 0 and 1 of each."""


def edges(threshold: float) -> tuple[float, ...]:
    """The edges of bins, one of which is the threshold."""
    return tuple(sorted({*EDGES, threshold}))


def bins(threshold: float) -> int:
    """Number of bins."""
    return len(edges(threshold)) + 1


def count_bins(margin: Float64, label: Float32, threshold: float) -> Int64:
    """Rows of label 0, rows of label 1, and the sum of probabilities in each bin: int64 [3 * bins]."""
    probability, borders = sigmoids(margin), edges(threshold)
    place, at = np.searchsorted(borders, probability, side="left"), borders.index(threshold)
    positive = is_positive(margin, threshold)
    place = np.where(positive, np.maximum(place, at + 1), np.minimum(place, at))
    out = np.zeros((3, len(borders) + 1), np.int64)
    np.add.at(out, ((label > 0.5).astype(np.int64), place), 1)
    np.add.at(out[2], place, PROBABILITIES.encode(probability))
    return out.reshape(-1)


def count_cells(margin: Float64, label: Float32) -> Int64:
    """Rows of label 0, then rows of label 1 in each fine cell of the score: int64 [2 * FINE_CELLS]."""
    cell = score_cells(margin, FINE_CELLS_PER_LOGIT) + FINE_CELLS * (label > 0.5)
    return np.bincount(cell, minlength=2 * FINE_CELLS).astype(np.int64)


def count_outcomes(margin: Float64, label: Float32, threshold: float) -> Int64:
    """Rows of each of OUTCOMES, then the sum of probabilities: int64 [5]."""
    outcome = 2 * (label > 0.5) + is_positive(margin, threshold)
    counts = np.bincount(outcome, minlength=len(OUTCOMES))
    return np.append(counts, PROBABILITIES.encode(sigmoids(margin)).sum()).astype(np.int64)


def count_classes(margin: Float64, label: Float32, classes: int) -> Int64:
    """Rows by class and by the most probable class, the lowest of several: int64 [classes**2]."""
    pair = label.astype(np.int64) * classes + np.argmax(margin, axis=0)
    return np.bincount(pair, minlength=classes * classes).astype(np.int64)


def area(negatives: Int64, positives: Int64) -> tuple[float, float]:
    """The area under the ROC curve of rows of both labels in fine cells, and how far that of unrounded scores
    may be from it."""
    zeros, ones = negatives.astype(np.float64), positives.astype(np.float64)
    tied = float((zeros * ones).sum()) / float(zeros.sum() * ones.sum())
    return roc_area(zeros, ones), tied / 2
