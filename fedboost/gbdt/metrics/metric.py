"""Metrics: their contract, means, errors, curves, calibration, NDCG."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels.histogram import LIMB_BITS, LIMBS, LIMBS_FROM, add_limbs, sum_units
from fedboost.gbdt.kernels.objectives import exps, log_factorials, logs, ndcgs, sigmoids
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.objectives.ranking import Ranking
from fedboost.gbdt.objectives.registry import Trials
from fedboost.gbdt.objectives.regression import PseudoHuber
from fedboost.gbdt.objectives.survival import AcceleratedFailureTime
from fedboost.gbdt.sampling import Mask

METRIC_BITS = 32


class Metric(Protocol):
    """A metric. `sums` is computed at a party, `value` from the total at the aggregator; `weight` is the
    public scale of row weights."""

    @property
    def grows(self) -> bool:
        """True if more of it is better."""
        ...

    @property
    def cells(self) -> int:
        """Integers of `sums`."""
        ...

    @property
    def signed(self) -> bool:
        """True if the sums can be below 0."""
        ...

    def limit(self, weight: Scale) -> int:
        """Largest magnitude of an integer that a row contributes."""
        ...

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        """This party's integers: int64 [cells]."""
        ...

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        """The metric, from the total of all parties and the sum of row weights."""
        ...


@dataclass(frozen=True)
class BoundedLoss:
    """Mean of a loss that is below 2**10, or taken for that; resolution 2**-21 a row."""

    losses: Callable[[Float64, Float32, Float32], Float64]
    """The loss times the weight of each row, from margins, labels and weights."""

    grows = False
    cells = 1
    signed = False

    def limit(self, weight: Scale) -> int:
        return 1 << (METRIC_BITS - 1)

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        return encoded_sum(_scale_of_losses(weight.exponent), self.losses(margin, label, weights))

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return _scale_of_losses(weight.exponent).decode(int(total[0])) / weights


@dataclass(frozen=True)
class Mean:
    """Mean of a number of each row, of any size."""

    losses: Callable[[Objective, Float64, Float32], Float64]
    """The number of each row, from margins and labels: float64 [rows]."""
    signed: bool = False
    grows: bool = False
    transform: Callable[[float], float] = float
    """The metric, from the mean."""
    cap: float = math.inf
    """The largest magnitude that a number counts with."""

    cells = LIMBS

    def limit(self, weight: Scale) -> int:
        return 1 << LIMB_BITS

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        out = np.zeros(self.cells, np.int64)
        with np.errstate(over="ignore"):  # what is infinite counts as the largest that limbs take
            losses = self.losses(loss, margin, label)
            add_limbs(losses if self.cap == math.inf else losses.clip(-self.cap, self.cap), weights, out)
        return out

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        units = sum(int(limb) << LIMB_BITS * number for number, limb in enumerate(total))
        return self.transform(math.ldexp(float(units), LIMBS_FROM) / weights)


@cache
def _scale_of_losses(weight_exponent: int) -> Scale:
    """The scale of the losses of a `BoundedLoss`, by the exponent of the scale of weights."""
    return Scale(weight_exponent + 10, METRIC_BITS)


def encoded_sum(scale: Scale, values: Float64 | Float32) -> Int64:
    """The sum of the values in units of the scale, as the one integer of a vector."""
    return np.array([sum_units(values, scale.factor, float(scale.limit))], np.int64)


OF_TRIAL = "/"
"""Separates the number of a model from the metric, where several train side by side."""


@dataclass(frozen=True)
class OfTrial:
    """A metric of one of the models that train side by side (`objectives.trials`)."""

    metric: Metric
    number: int

    @property
    def grows(self) -> bool:
        """True if more of it is better."""
        return self.metric.grows

    @property
    def cells(self) -> int:
        """Those of the metric."""
        return self.metric.cells

    @property
    def signed(self) -> bool:
        """True if the sums can be below 0."""
        return self.metric.signed

    def limit(self, weight: Scale) -> int:
        """That of the metric."""
        return self.metric.limit(weight)

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        """Those of the metric at the margins of the model."""
        own: Objective = loss.base if isinstance(loss, Trials) else loss
        return self.metric.sums(own, margin[self.number], label, weights, weight)

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        """That of the metric."""
        return self.metric.value(total, weights, weight)


# ---- Losses of single rows whose means are metrics: of numbers, counts, amounts and times ---------------


def absolute_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    out: Float64 = np.abs(loss.predict(margin) - label)
    return out


def squared_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    residual = loss.predict(margin) - label
    return residual * residual


def pseudo_huber_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    slope = loss.huber_slope if isinstance(loss, PseudoHuber) else 1.0
    ratio = (margin - label) / slope
    out: Float64 = slope * slope * (np.sqrt(1.0 + ratio * ratio) - 1.0)
    return out


def pinball_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    above, quantile = label - margin, 0.5 if loss.quantile is None else loss.quantile
    out: Float64 = np.where(above >= 0.0, quantile * above, (quantile - 1.0) * above)
    return out


def poisson_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    """-log of the probability of a count; for other labels the gamma function stands in for factorials."""
    out: Float64 = exps(margin) - label * margin + log_factorials(label.astype(np.float64))
    return out


def gamma_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    """-log of the density of a gamma distribution of shape 1."""
    out: Float64 = label * exps(-margin) + margin
    return out


def gamma_deviance_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    share = np.maximum(label * exps(-margin), np.finfo(np.float64).tiny)
    out: Float64 = 2.0 * (share - logs(share) - 1.0)
    return out


def tweedie_losses(power: float) -> Callable[[Objective, Float64, Float32], Float64]:
    def losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
        amount = label * exps((1.0 - power) * margin) / (power - 1.0)
        out: Float64 = amount + exps((2.0 - power) * margin) / (2.0 - power)
        return out

    return losses


def aft_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    known = loss if isinstance(loss, AcceleratedFailureTime) else AcceleratedFailureTime()
    return known.losses(margin, label)


def within_losses(loss: Objective, margin: Float64, label: Float32) -> Float64:
    """1 where the prediction lies in the interval."""
    time = loss.predict(margin)
    out: Float64 = ((label[0] <= time) & (time <= label[1])).astype(np.float64)
    return out


# ---- Metrics of classes: shares of rows, curves and calibration -----------------------------------------
# Curves (auc, aucpr, ks) are those of rounded scores: to 1/32 of a logit in a training, to 1/128 where a
# model is evaluated.


LOGITS = 16
"""The width of the grid of scores: from -8 to 8, scores beyond them in its first and last cell."""
CELLS_PER_LOGIT = 32
FINE_CELLS_PER_LOGIT = 128
"""Where a model is evaluated: once, and not in each round."""
CALIBRATION_BINS = 15


def is_positive(margin: Float64, threshold: float) -> Mask:
    """True where the probability is above the threshold: bool [rows]."""
    return margin > 0.0 if threshold == 0.5 else sigmoids(margin) > threshold


def score_cells(margin: Float64, per_logit: int) -> Int64:
    """The cell of each score, from 0 to LOGITS * per_logit - 1: int64 [rows]."""
    near = np.clip(margin, -LOGITS, LOGITS)  # without overflow
    cell = np.floor(near * per_logit) + LOGITS // 2 * per_logit
    out: Int64 = np.clip(cell, 0, LOGITS * per_logit - 1).astype(np.int64)
    return out


@dataclass(frozen=True)
class Error:
    """Share of rows on the wrong side of a probability."""

    threshold: float = 0.5

    grows = False
    cells = 1
    signed = False

    def limit(self, weight: Scale) -> int:
        return weight.limit

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        return encoded_sum(weight, weights[is_positive(margin, self.threshold) != (label > 0.5)])

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return weight.decode(int(total[0])) / weights


@dataclass(frozen=True)
class Curve:
    """A number that is read off two histograms of the margin: negatives, then positives."""

    read: Callable[[Float64, Float64], float]
    """The function of the negatives and the positives in each cell, both float64 [cells / 2], by score."""
    per_logit: int = CELLS_PER_LOGIT
    is_distance: bool = False
    """True where it is read at one score, and not an area."""

    grows = True
    signed = False

    @property
    def cells(self) -> int:
        return 2 * LOGITS * self.per_logit

    def limit(self, weight: Scale) -> int:
        return weight.limit

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        index = score_cells(margin, self.per_logit) + self.cells // 2 * (label > 0.5)
        out = np.zeros(self.cells, np.int64)
        np.add.at(out, index, weight.encode(weights.astype(np.float64)))
        return out

    def weights(self, total: Int64, weight: Scale) -> tuple[Float64, Float64]:
        """The weights of the negatives and the positives in each cell."""
        negatives, positives = total.astype(np.float64).reshape(2, -1) / weight.factor
        return negatives, positives

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        negatives, positives = self.weights(total, weight)
        if not (negatives.any() and positives.any()):
            return math.nan
        return self.read(negatives, positives)


def roc_area(negatives: Float64, positives: Float64) -> float:
    """Area under the ROC curve: the pairs in order."""
    below = np.cumsum(negatives) - negatives
    pairs = float(negatives.sum() * positives.sum())
    return float((positives * (below + negatives / 2)).sum()) / pairs


def precision_recall_area(negatives: Float64, positives: Float64) -> float:
    """Area under the curve of precision over recall, between two points as XGBoost has it: true and false
    positives grow in proportion (Davis and Goadrich, ICML 2006)."""
    area, false, true, every = 0.0, 0.0, 0.0, float(positives.sum())
    for more_false, more_true in zip(negatives[::-1].tolist(), positives[::-1].tolist(), strict=True):
        if more_true > 0.0:
            slope = 1.0 + more_false / more_true
            start = (false - (slope - 1.0) * true) / every
            before, after = true / every, (true + more_true) / every
            log_term = 0.0
            if start != 0.0:
                log_term = start / slope * math.log((slope * after + start) / (slope * before + start))
            area += (after - before - log_term) / slope
        false, true = false + more_false, true + more_true
    return area


def kolmogorov_smirnov(negatives: Float64, positives: Float64) -> float:
    """The Kolmogorov-Smirnov distance of the scores of the two classes."""
    apart = np.cumsum(negatives) / negatives.sum() - np.cumsum(positives) / positives.sum()
    return float(np.abs(apart).max())


class Calibration:
    """Expected calibration error (Guo and others, ICML 2017): how far the mean probability is from the share
    of positives in each of 15 equal bins of the probability, weighed by the rows in it. So of each bin the
    sum of probabilities less labels is enough; resolution 2**-32 a row."""

    grows = False
    cells = CALIBRATION_BINS
    signed = True

    def limit(self, weight: Scale) -> int:
        return self._scale(weight).limit

    def _scale(self, weight: Scale) -> Scale:
        return Scale(weight.exponent, METRIC_BITS)

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        probability = sigmoids(margin)
        bins = np.minimum((probability * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        out = np.zeros(CALIBRATION_BINS, np.int64)
        np.add.at(out, bins, self._scale(weight).encode(weights * (probability - label)))
        return out

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return self._scale(weight).decode(int(np.abs(total).sum())) / weights


class MultiError:
    """Share of rows whose most probable class, the lowest of several, is another than theirs."""

    grows = False
    cells = 1
    signed = False

    def limit(self, weight: Scale) -> int:
        return weight.limit

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        return encoded_sum(weight, weights[np.argmax(margin, axis=0) != label])

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return weight.decode(int(total[0])) / weights


# ---- NDCG: how well the rows of a group are sorted ------------------------------------------------------


NDCG_NAME = re.compile(r"ndcg(?:@([1-9][0-9]{0,8}))?(-?)")


@dataclass(frozen=True)
class Ndcg:
    """Mean over the groups of the NDCG of their first rows by margin; a group weighs what its rows do.
    Resolution 2**-31 a group."""

    top: int | None = None
    """Rows of each group that count, None for all."""
    without: float = 1.0
    """The NDCG of a group whose labels all are 0."""

    grows = True
    cells = 2
    signed = False

    def limit(self, weight: Scale) -> int:
        return self._scale(weight).limit

    def _scale(self, weight: Scale) -> Scale:
        return Scale(weight.exponent, METRIC_BITS)

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        assert isinstance(loss, Ranking)
        starts, scale = loss.group_starts(label.size), self._scale(weight)
        values = ndcgs(margin, loss.gains(label), starts, self.top or label.size, self.without)
        group_weights = weights[starts[:-1]]
        return np.concatenate([encoded_sum(scale, group_weights * values), encoded_sum(scale, group_weights)])

    def weights(self, total: Int64, weight: Scale) -> float:
        """The weights of the groups."""
        return self._scale(weight).decode(int(total[1]))

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return int(total[0]) / int(total[1]) if total[1] else math.nan
