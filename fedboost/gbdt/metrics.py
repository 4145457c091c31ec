"""Metrics as sums that add: each party sums integers over its rows, the totals give the metric of all rows.

Promises: the metric of the sums is the metric of the pooled rows, up to the fixed-point resolution named at
each metric: means of numbers have none to speak of, for their sums lose nothing whatever their size
(`kernels.add_limbs`); curves (auc, aucpr, ks) are those of scores rounded to 1/32 of a logit.
Refuses: unknown names (at the terms).
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels.elementwise import exps, log_factorials, logs, sigmoids
from fedboost.gbdt.kernels.fixedpoint import LIMB_BITS, LIMBS, LIMBS_FROM, add_limbs, sum_units
from fedboost.gbdt.kernels.objectives import log_losses, softmax_losses
from fedboost.gbdt.kernels.ranking import ndcgs
from fedboost.gbdt.lambdarank import RANKINGS, RankNdcg, RankPairwise, gains, starts_of
from fedboost.gbdt.loss import Loss, PseudoHuber
from fedboost.gbdt.times import AcceleratedFailureTime

SCORE_CELLS = 512
SCORE_CELLS_PER_LOGIT = 32
METRIC_BITS = 32
CALIBRATION_BINS = 15
NUMBERS = ("reg:squarederror", "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror")
RATES = ("count:poisson", "reg:gamma", "reg:tweedie")
"""Objectives whose prediction is e**margin."""
TIMES = ("survival:aft",)
"""Those whose labels are intervals."""


class Metric(Protocol):
    """One metric. `sums` is computed at a party, `value` from the total at the aggregator; `weight` is the
    public scale of row weights."""

    @property
    def objectives(self) -> tuple[str, ...]:
        """Objectives whose margins and labels it is for."""
        ...

    @property
    def cells(self) -> int:
        """Integers of `sums`."""
        ...

    @property
    def signed(self) -> bool:
        """Whether they can be below 0."""
        ...

    def limit(self, weight: Scale) -> int:
        """Largest magnitude of an integer that a row contributes."""
        ...

    def sums(self, loss: Loss, margin: Float64, label: Float32, weights: Float32, weight: Scale) -> Int64:
        """This party's integers: int64 [cells]."""
        ...

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        """The metric, from the total of all parties and the sum of row weights."""
        ...


TRAIN, VALIDATION = "train", "validation"
"""The sets of rows that metrics are of: those trees grow on, and the others."""
OF_PARTY = ":"
"""Stands between a party's name and the set, or the metric, that is of its rows alone."""
MIN_ROWS = 10
"""Rows of a set whose metrics are published: as many as `min_rows_per_leaf` of a site's policy is by default,
for the aggregator does not know what the sites' policies say."""
DIGITS = 4
"""Significant digits of a metric that is published: exact sums of a few rows could be read off all digits."""
_GROWS = ("auc", "aucpr", "ks", "interval-regression-accuracy", "ndcg", "ndcg-")
_NDCG = re.compile(r"ndcg(?:@([1-9][0-9]{0,8}))?(-?)")


def grows(name: str) -> bool:
    """Whether more of this metric is better."""
    return name.partition("@")[0] in _GROWS


@dataclass(frozen=True)
class BoundedLoss:
    """Mean of a loss that is below 2**10, or taken for that; resolution 2**-21 a row."""

    objectives: tuple[str, ...]
    losses: Callable[[Float64, Float32, Float32], Float64]
    """Of margins, labels and weights."""

    cells = 1
    signed = False

    def limit(self, weight: Scale) -> int:
        return self._scale(weight).limit

    def _scale(self, weight: Scale) -> Scale:
        return Scale(weight.exponent + 10, METRIC_BITS)

    def sums(self, loss: Loss, margin: Float64, label: Float32, weights: Float32, weight: Scale) -> Int64:
        return _total(self._scale(weight), self.losses(margin, label, weights))

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return self._scale(weight).decode(int(total[0])) / weights


@dataclass(frozen=True)
class Error:
    """Share of rows on the wrong side of a probability."""

    threshold: float = 0.5

    objectives = ("binary:logistic",)
    cells = 1
    signed = False

    def limit(self, weight: Scale) -> int:
        return weight.limit

    def sums(self, loss: Loss, margin: Float64, label: Float32, weights: Float32, weight: Scale) -> Int64:
        positive = margin > 0.0 if self.threshold == 0.5 else sigmoids(margin) > self.threshold
        return _total(weight, weights[positive != (label > 0.5)])

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return weight.decode(int(total[0])) / weights


@dataclass(frozen=True)
class Curve:
    """What is read off two histograms of the margin: negatives, then positives."""

    read: Callable[[Float64, Float64], float]
    """From the negatives and the positives in each cell, both float64 [SCORE_CELLS], scores increasing."""

    objectives = ("binary:logistic",)
    cells = 2 * SCORE_CELLS
    signed = False

    def limit(self, weight: Scale) -> int:
        return weight.limit

    def sums(self, loss: Loss, margin: Float64, label: Float32, weights: Float32, weight: Scale) -> Int64:
        middle = SCORE_CELLS // 2
        near = np.clip(margin, -SCORE_CELLS, SCORE_CELLS)  # far beyond the last cell, without overflow
        cell = np.clip(np.floor(near * SCORE_CELLS_PER_LOGIT) + middle, 0, SCORE_CELLS - 1)
        place = cell.astype(np.int64) + SCORE_CELLS * (label > 0.5)
        out = np.zeros(self.cells, np.int64)
        np.add.at(out, place, weight.encode(weights.astype(np.float64)))
        return out

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        negatives, positives = total.astype(np.float64).reshape(2, SCORE_CELLS) / weight.factor
        if not (negatives.any() and positives.any()):
            return math.nan
        return self.read(negatives, positives)


def _roc(negatives: Float64, positives: Float64) -> float:
    """Area under the ROC curve: the pairs in order."""
    below = np.cumsum(negatives) - negatives
    pairs = float(negatives.sum() * positives.sum())
    return float((positives * (below + negatives / 2)).sum()) / pairs


def _precision_recall(negatives: Float64, positives: Float64) -> float:
    """Area under the curve of precision over recall, between two points as XGBoost has it: true and false
    positives grow in proportion (Davis and Goadrich, ICML 2006)."""
    area, false, true, every = 0.0, 0.0, 0.0, float(positives.sum())
    for more_false, more_true in zip(negatives[::-1].tolist(), positives[::-1].tolist(), strict=True):
        if more_true > 0.0:
            slope = 1.0 + more_false / more_true
            start = (false - (slope - 1.0) * true) / every
            before, after = true / every, (true + more_true) / every
            bend = 0.0
            if start != 0.0:
                bend = start / slope * math.log((slope * after + start) / (slope * before + start))
            area += (after - before - bend) / slope
        false, true = false + more_false, true + more_true
    return area


def _furthest_apart(negatives: Float64, positives: Float64) -> float:
    """The Kolmogorov-Smirnov distance of the scores of the two classes."""
    apart = np.cumsum(negatives) / negatives.sum() - np.cumsum(positives) / positives.sum()
    return float(np.abs(apart).max())


class Calibration:
    """Expected calibration error (Guo and others, ICML 2017): how far the mean probability is from the share
    of positives in each of 15 equal bins of the probability, weighed by the rows in it. So of each bin the
    sum of probabilities less labels is enough; resolution 2**-32 a row."""

    objectives = ("binary:logistic",)
    cells = CALIBRATION_BINS
    signed = True

    def limit(self, weight: Scale) -> int:
        return self._scale(weight).limit

    def _scale(self, weight: Scale) -> Scale:
        return Scale(weight.exponent, METRIC_BITS)

    def sums(self, loss: Loss, margin: Float64, label: Float32, weights: Float32, weight: Scale) -> Int64:
        probability = sigmoids(margin)
        of = np.minimum((probability * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        out = np.zeros(CALIBRATION_BINS, np.int64)
        np.add.at(out, of, self._scale(weight).encode(weights * (probability - label)))
        return out

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return self._scale(weight).decode(int(np.abs(total).sum())) / weights


class MultiError:
    """Share of rows whose most probable class, the lowest of several, is another than theirs."""

    objectives = ("multi:softprob",)
    cells = 1
    signed = False

    def limit(self, weight: Scale) -> int:
        return weight.limit

    def sums(self, loss: Loss, margin: Float64, label: Float32, weights: Float32, weight: Scale) -> Int64:
        return _total(weight, weights[np.argmax(margin, axis=0) != label])

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return weight.decode(int(total[0])) / weights


@dataclass(frozen=True)
class Ndcg:
    """Mean over the groups of the NDCG of their first rows by margin; a group weighs what its rows do.
    Resolution 2**-31 a group."""

    most: int | None = None
    """Rows of each group that count, None for all."""
    without: float = 1.0
    """The NDCG of a group whose labels all are 0."""

    objectives = RANKINGS
    cells = 2
    signed = False

    def limit(self, weight: Scale) -> int:
        return self._scale(weight).limit

    def _scale(self, weight: Scale) -> Scale:
        return Scale(weight.exponent, METRIC_BITS)

    def sums(self, loss: Loss, margin: Float64, label: Float32, weights: Float32, weight: Scale) -> Int64:
        assert isinstance(loss, RankNdcg | RankPairwise)
        starts, scale = starts_of(loss, label.size), self._scale(weight)
        found = ndcgs(margin, gains(loss, label), starts, self.most or label.size, self.without)
        of_groups = weights[starts[:-1]]
        return np.concatenate([_total(scale, of_groups * found), _total(scale, of_groups)])

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return int(total[0]) / int(total[1]) if total[1] else math.nan


@dataclass(frozen=True)
class Mean:
    """Mean of a number of each row, of any size."""

    of: Callable[[Loss, Float64, Float32], Float64]
    """From margins and labels: float64 [rows]."""
    objectives: tuple[str, ...]
    signed: bool = False
    then: Callable[[float], float] = float
    """What is made of the mean."""

    cells = LIMBS

    def limit(self, weight: Scale) -> int:
        return 1 << LIMB_BITS

    def sums(self, loss: Loss, margin: Float64, label: Float32, weights: Float32, weight: Scale) -> Int64:
        out = np.zeros(self.cells, np.int64)
        with np.errstate(over="ignore"):  # what is infinite counts as the largest that limbs take
            add_limbs(self.of(loss, margin, label), weights, out)
        return out

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        units = sum(int(limb) << LIMB_BITS * place for place, limb in enumerate(total))
        return self.then(math.ldexp(float(units), LIMBS_FROM) / weights)


def _absolute(loss: Loss, margin: Float64, label: Float32) -> Float64:
    out: Float64 = np.abs(loss.predict(margin) - label)
    return out


def _squared(loss: Loss, margin: Float64, label: Float32) -> Float64:
    residual = loss.predict(margin) - label
    return residual * residual


def _pseudo_huber(loss: Loss, margin: Float64, label: Float32) -> Float64:
    slope = loss.huber_slope if isinstance(loss, PseudoHuber) else 1.0
    ratio = (margin - label) / slope
    out: Float64 = slope * slope * (np.sqrt(1.0 + ratio * ratio) - 1.0)
    return out


def _pinball(loss: Loss, margin: Float64, label: Float32) -> Float64:
    above, quantile = label - margin, 0.5 if loss.quantile is None else loss.quantile
    out: Float64 = np.where(above >= 0.0, quantile * above, (quantile - 1.0) * above)
    return out


def _poisson(loss: Loss, margin: Float64, label: Float32) -> Float64:
    """-log of the probability of a count; for other labels the gamma function stands in for factorials."""
    out: Float64 = exps(margin) - label * margin + log_factorials(label.astype(np.float64))
    return out


def _gamma(loss: Loss, margin: Float64, label: Float32) -> Float64:
    """-log of the density of a gamma distribution of shape 1."""
    out: Float64 = label * exps(-margin) + margin
    return out


def _gamma_deviance(loss: Loss, margin: Float64, label: Float32) -> Float64:
    share = np.maximum(label * exps(-margin), np.finfo(np.float64).tiny)
    out: Float64 = 2.0 * (share - logs(share) - 1.0)
    return out


def _tweedie(power: float) -> Callable[[Loss, Float64, Float32], Float64]:
    def losses(loss: Loss, margin: Float64, label: Float32) -> Float64:
        amount = label * exps((1.0 - power) * margin) / (power - 1.0)
        out: Float64 = amount + exps((2.0 - power) * margin) / (2.0 - power)
        return out

    return losses


def _aft(loss: Loss, margin: Float64, label: Float32) -> Float64:
    known = loss if isinstance(loss, AcceleratedFailureTime) else AcceleratedFailureTime()
    return known.losses(margin, label)


def _within(loss: Loss, margin: Float64, label: Float32) -> Float64:
    """1 where the prediction lies in the interval."""
    time = loss.predict(margin)
    out: Float64 = ((label[0] <= time) & (time <= label[1])).astype(np.float64)
    return out


_UNBOUNDED = NUMBERS + RATES
METRICS: dict[str, Metric] = {
    "logloss": BoundedLoss(("binary:logistic",), log_losses),
    "error": Error(),
    "auc": Curve(_roc),
    "aucpr": Curve(_precision_recall),
    "ks": Curve(_furthest_apart),
    "ece": Calibration(),
    "rmse": Mean(_squared, _UNBOUNDED, then=math.sqrt),
    "mae": Mean(_absolute, _UNBOUNDED),
    "mphe": Mean(_pseudo_huber, NUMBERS),
    "quantile": Mean(_pinball, ("reg:quantileerror",)),
    "poisson-nloglik": Mean(_poisson, RATES, signed=True),
    "gamma-nloglik": Mean(_gamma, RATES, signed=True),
    "gamma-deviance": Mean(_gamma_deviance, ("reg:gamma",), signed=True),
    "aft-nloglik": Mean(_aft, TIMES, signed=True),
    "interval-regression-accuracy": Mean(_within, TIMES),
    "mlogloss": BoundedLoss(("multi:softprob",), softmax_losses),
    "merror": MultiError(),
    "ndcg": Ndcg(),
    "ndcg-": Ndcg(without=0.0),
}
"""Those without a parameter."""
SHAPES: dict[str, tuple[Callable[[float], Metric], float, float]] = {
    "error": (Error, 0.0, 1.0),
    "tweedie-nloglik": (lambda power: Mean(_tweedie(power), RATES), 1.0, 2.0),
}
"""Those with a parameter behind an @, and what it lies between."""


def metric_of(name: str) -> Metric:
    """The metric of that name, such as rmse, error@0.3 or ndcg@5-. KeyError if there is none."""
    kind, at, parameter = name.partition("@")
    if not at:
        return METRICS[name]
    if of_top := _NDCG.fullmatch(name):
        return Ndcg(int(of_top[1]), 0.0 if of_top[2] else 1.0)
    make, above, below = SHAPES[kind]
    try:
        value = float(parameter)
    except ValueError:
        raise KeyError(name) from None
    if not above < value < below:
        raise KeyError(name)
    return make(value)


def is_metric(name: str) -> bool:
    """Whether there is a metric of that name."""
    try:
        metric_of(name)
    except KeyError:
        return False
    return True


def is_at_threshold(name: str) -> bool:
    """Whether whoever names this metric chooses a number behind its @ (0.5 is what error has without one):
    the differences of two of them are sums over the few rows between the numbers."""
    return "@" in name and metric_of(name) != Error()


def metrics_for(objective: str) -> list[str]:
    """The names of the metrics that fit an objective, a parameter as @t, a number of rows as @k."""
    with_parameter = {name: make((low + high) / 2) for name, (make, low, high) in SHAPES.items()}
    names = [name for name, one in METRICS.items() if objective in one.objectives]
    names += [f"{name}@t" for name, one in with_parameter.items() if objective in one.objectives]
    return names + (["ndcg@k", "ndcg@k-"] if objective in RANKINGS else [])


def _total(scale: Scale, values: Float64 | Float32) -> Int64:
    return np.array([sum_units(values, scale.factor, float(scale.limit))], np.int64)


def limit(names: Iterable[str], weight: Scale) -> int:
    """Largest magnitude of an integer that one row contributes to any cell."""
    return max([weight.limit, *(metric_of(name).limit(weight) for name in names)])


def cells(names: Iterable[str]) -> int:
    """Integers of `sums`."""
    return 1 + sum(metric_of(name).cells for name in names)


def sums(
    names: Iterable[str], loss: Loss, margin: Float64, label: Float32, weights: Float32, weight: Scale
) -> Int64:
    """This party's integers: the sum of weights, then the metrics in the order of the names."""
    of_names = (metric_of(name).sums(loss, margin, label, weights, weight) for name in names)
    return np.concatenate([_total(weight, weights), *of_names])


def by_set(
    names: tuple[str, ...], sets: tuple[str, ...], total: Int64, weight: Scale, min_rows: int = 0
) -> dict[str, float]:
    """Metric by name, those of another set than the first behind its own name, those of a party behind the
    party's; none of a party without such rows, nor of a set that may have fewer than `min_rows`: its sum of
    weights is less than so many rows of the largest weight have (without weights, the number of rows).
    PeerError as `values`."""
    out: dict[str, float] = {}
    for number, of in enumerate(sets):
        part = total[number * cells(names) : (number + 1) * cells(names)]
        party, colon, rows = of.rpartition(OF_PARTY)
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
    found = by_set(names, sets, total, weight, MIN_ROWS)
    return {name: float(f"{value:.{DIGITS}g}") for name, value in found.items()}


def of_all(found: Mapping[str, float]) -> dict[str, float]:
    """Of the metrics of a round those over the rows of all parties."""
    return {name: value for name, value in found.items() if OF_PARTY not in name}


def by_party(found: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Of the metrics of a round those of single parties: party to metric by name."""
    out: dict[str, dict[str, float]] = {}
    for of, value in found.items():
        party, colon, name = of.rpartition(OF_PARTY)
        if colon:
            out.setdefault(party, {})[name] = value
    return out


def values(names: Iterable[str], total: Int64, weight: Scale) -> dict[str, float]:
    """Metric by name, from the total of all parties. PeerError for sums that cannot be."""
    weights, start, out = weight.decode(int(total[0])), 1, {}
    for name in names:
        metric = metric_of(name)
        own = total[start : start + metric.cells]
        if weights <= 0 or (not metric.signed and (own < 0).any()):
            raise PeerError("metric sums that cannot be: no weight, or less than nothing")
        out[name] = metric.value(own, weights, weight)
        start += metric.cells
    return out
