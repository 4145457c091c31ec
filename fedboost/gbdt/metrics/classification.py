"""Metrics of classes: shares of rows, curves and calibration.

Curves (auc, aucpr, ks) are those of scores rounded to 1/32 of a logit."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.groups import Mask
from fedboost.gbdt.kernels.elementwise import sigmoids
from fedboost.gbdt.metrics.metric import METRIC_BITS, encoded_sum
from fedboost.gbdt.objectives.objective import Objective

SCORE_CELLS = 512
SCORE_CELLS_PER_LOGIT = 32
CALIBRATION_BINS = 15


def is_positive(margin: Float64, threshold: float) -> Mask:
    """True where the probability is above the threshold: bool [rows]."""
    return margin > 0.0 if threshold == 0.5 else sigmoids(margin) > threshold


def score_cells(margin: Float64) -> Int64:
    """The cell of each score, from 0 to SCORE_CELLS - 1: int64 [rows]."""
    near = np.clip(margin, -SCORE_CELLS, SCORE_CELLS)  # far beyond the last cell, without overflow
    cell = np.floor(near * SCORE_CELLS_PER_LOGIT) + SCORE_CELLS // 2
    out: Int64 = np.clip(cell, 0, SCORE_CELLS - 1).astype(np.int64)
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
    """The function of the negatives and the positives in each cell, both float64 [SCORE_CELLS], by score."""

    grows = True
    cells = 2 * SCORE_CELLS
    signed = False

    def limit(self, weight: Scale) -> int:
        return weight.limit

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        index = score_cells(margin) + SCORE_CELLS * (label > 0.5)
        out = np.zeros(self.cells, np.int64)
        np.add.at(out, index, weight.encode(weights.astype(np.float64)))
        return out

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        negatives, positives = total.astype(np.float64).reshape(2, SCORE_CELLS) / weight.factor
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
