"""Metrics as sums that add: each party sums integers over its rows, the totals give the metric of all rows.

Promises: the metric of the sums is the metric of the pooled rows, up to the fixed-point resolution named at
each metric; the AUC is that of scores rounded to 1/32 of a logit.
Refuses: unknown names (at the terms).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float64, Int64, Scale
from fedboost.gbdt import kernels
from fedboost.gbdt.bins import Float32

SCORE_CELLS = 512
SCORE_CELLS_PER_LOGIT = 32
METRIC_BITS = 32


@dataclass(frozen=True)
class MetricScale:
    """The public scales behind metric sums: that of row weights, and a bound of |margin - label|."""

    weight: Scale
    residual_exponent: int


class Metric(Protocol):
    """One metric. `sums` is computed at a party, `value` from the total at the aggregator."""

    @property
    def objectives(self) -> tuple[str, ...]:
        """Objectives whose margins and labels it is for."""
        ...

    @property
    def cells(self) -> int:
        """Integers of `sums`."""
        ...

    def scale(self, of: MetricScale) -> Scale:
        """Scale of the integers a row contributes."""
        ...

    def sums(self, margin: Float64, label: Float32, weight: Float32, of: MetricScale) -> Int64:
        """This party's integers: int64 [cells]."""
        ...

    def value(self, total: Int64, weight: float, of: MetricScale) -> float:
        """The metric, from the total of all parties and the sum of row weights."""
        ...


GROWS = ("auc",)
"""Metrics of which more is better."""


class LogLoss:
    """Mean of -log of the probability given to the label; resolution 2**-21 a row."""

    objectives = ("binary:logistic",)
    cells = 1

    def scale(self, of: MetricScale) -> Scale:
        return Scale(of.weight.exponent + 10, METRIC_BITS)  # the clipped margin keeps it below 2**10

    def sums(self, margin: Float64, label: Float32, weight: Float32, of: MetricScale) -> Int64:
        losses = kernels.log_losses(margin, label, weight)
        return _total(self.scale(of), losses)

    def value(self, total: Int64, weight: float, of: MetricScale) -> float:
        return self.scale(of).decode(int(total[0])) / weight


class Error:
    """Share of rows on the wrong side of probability 1/2."""

    objectives = ("binary:logistic",)
    cells = 1

    def scale(self, of: MetricScale) -> Scale:
        return of.weight

    def sums(self, margin: Float64, label: Float32, weight: Float32, of: MetricScale) -> Int64:
        wrong = (margin > 0.0) != (label > 0.5)
        return _total(of.weight, weight[wrong])

    def value(self, total: Int64, weight: float, of: MetricScale) -> float:
        return of.weight.decode(int(total[0])) / weight


class Auc:
    """Area under the ROC curve, from two histograms of the margin: negatives, then positives."""

    objectives = ("binary:logistic",)
    cells = 2 * SCORE_CELLS

    def scale(self, of: MetricScale) -> Scale:
        return of.weight

    def sums(self, margin: Float64, label: Float32, weight: Float32, of: MetricScale) -> Int64:
        middle = SCORE_CELLS // 2
        near = np.clip(margin, -SCORE_CELLS, SCORE_CELLS)  # far beyond the last cell, without overflow
        cell = np.clip(np.floor(near * SCORE_CELLS_PER_LOGIT) + middle, 0, SCORE_CELLS - 1)
        place = cell.astype(np.int64) + SCORE_CELLS * (label > 0.5)
        out = np.zeros(self.cells, np.int64)
        np.add.at(out, place, of.weight.encode(weight.astype(np.float64)))
        return out

    def value(self, total: Int64, weight: float, of: MetricScale) -> float:
        negatives = total[:SCORE_CELLS].astype(np.float64)
        positives = total[SCORE_CELLS:].astype(np.float64)
        below = np.cumsum(negatives) - negatives
        pairs = float(negatives.sum() * positives.sum())
        return float((positives * (below + negatives / 2)).sum()) / pairs if pairs else math.nan


class Rmse:
    """Root of the mean squared residual; resolution 2**-31 of the squared bound a row."""

    objectives = ("reg:squarederror",)
    cells = 1

    def scale(self, of: MetricScale) -> Scale:
        return Scale(of.weight.exponent + 2 * of.residual_exponent, METRIC_BITS)

    def sums(self, margin: Float64, label: Float32, weight: Float32, of: MetricScale) -> Int64:
        residual = margin - label
        return _total(self.scale(of), weight * (residual * residual))

    def value(self, total: Int64, weight: float, of: MetricScale) -> float:
        return math.sqrt(self.scale(of).decode(int(total[0])) / weight)


class MultiLogLoss:
    """Mean of -log of the probability given to the row's class; resolution 2**-21 a row."""

    objectives = ("multi:softprob",)
    cells = 1

    def scale(self, of: MetricScale) -> Scale:
        return Scale(of.weight.exponent + 10, METRIC_BITS)  # beyond 2**10 it is taken for that

    def sums(self, margin: Float64, label: Float32, weight: Float32, of: MetricScale) -> Int64:
        return _total(self.scale(of), kernels.softmax_losses(margin, label, weight))

    def value(self, total: Int64, weight: float, of: MetricScale) -> float:
        return self.scale(of).decode(int(total[0])) / weight


class MultiError:
    """Share of rows whose most probable class, the lowest of several, is another than theirs."""

    objectives = ("multi:softprob",)
    cells = 1

    def scale(self, of: MetricScale) -> Scale:
        return of.weight

    def sums(self, margin: Float64, label: Float32, weight: Float32, of: MetricScale) -> Int64:
        return _total(of.weight, weight[np.argmax(margin, axis=0) != label])

    def value(self, total: Int64, weight: float, of: MetricScale) -> float:
        return of.weight.decode(int(total[0])) / weight


METRICS: dict[str, Metric] = {
    "logloss": LogLoss(),
    "error": Error(),
    "auc": Auc(),
    "rmse": Rmse(),
    "mlogloss": MultiLogLoss(),
    "merror": MultiError(),
}


def _total(scale: Scale, values: Float64 | Float32) -> Int64:
    return np.array([kernels.sum_units(values, scale.factor, float(scale.limit))], np.int64)


def limit(names: tuple[str, ...], of: MetricScale) -> int:
    """Largest magnitude of an integer that one row contributes to any cell."""
    return max([of.weight.limit, *(METRICS[name].scale(of).limit for name in names)])


def cells(names: tuple[str, ...]) -> int:
    """Integers of `sums`."""
    return 1 + sum(METRICS[name].cells for name in names)


def sums(names: tuple[str, ...], margin: Float64, label: Float32, weight: Float32, of: MetricScale) -> Int64:
    """This party's integers: the sum of weights, then the metrics in the order of the names."""
    weights = _total(of.weight, weight)
    return np.concatenate([weights, *(METRICS[name].sums(margin, label, weight, of) for name in names)])


def by_set(names: tuple[str, ...], sets: tuple[str, ...], total: Int64, of: MetricScale) -> dict[str, float]:
    """Metric by name, those of another set than the first behind its own name. PeerError as `values`."""
    out: dict[str, float] = {}
    for number, rows in enumerate(sets):
        part = total[number * cells(names) : (number + 1) * cells(names)]
        if not part[0] and number:
            raise ConfigError(f"no party has {rows} rows: give them in the table, or draw a larger share")
        prefix = f"{rows}-" if number else ""
        out |= {prefix + name: value for name, value in values(names, part, of).items()}
    return out


def values(names: tuple[str, ...], total: Int64, of: MetricScale) -> dict[str, float]:
    """Metric by name, from the total of all parties. PeerError for sums that cannot be."""
    weight, start, out = of.weight.decode(int(total[0])), 1, {}
    if weight <= 0 or (total < 0).any():
        raise PeerError("metric sums that cannot be: no weight, or less than nothing")
    for name in names:
        metric = METRICS[name]
        out[name] = metric.value(total[start : start + metric.cells], weight, of)
        start += metric.cells
    return out
