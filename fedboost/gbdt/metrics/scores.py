"""Counts of rows by score and label: ROC curve, calibration, confusion matrix.

Promises: counts add over the parties; the edges of bins are the same for every model and all rows, so that
two evaluations have no rows between two near edges; a bin lies on one side of the threshold.
Refuses nothing: labels and margins are checked before.
"""

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels.elementwise import sigmoids
from fedboost.gbdt.metrics.classification import (
    FINE_CELLS_PER_LOGIT,
    LOGITS,
    is_positive,
    roc_area,
    score_cells,
)

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
