"""Metrics of classes: shares of rows, curves and calibration.

Curves (auc, aucpr, ks) are those of rounded scores: to 1/32 of a logit in a training, to 1/128 where a model
is evaluated."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.groups import Mask
from fedboost.gbdt.kernels.elementwise import sigmoids
from fedboost.gbdt.metrics.metric import METRIC_BITS, encoded_sum
from fedboost.gbdt.objectives.objective import Objective

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
