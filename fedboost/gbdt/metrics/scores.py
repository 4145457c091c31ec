"""Counts of rows by score and label: ROC curve, calibration, confusion matrix.

Promises: counts add over the parties; a cell of the grid lies on one side of the threshold.
Refuses nothing: labels and margins are checked before.
"""

import math

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels.elementwise import sigmoids
from fedboost.gbdt.metrics.classification import (
    SCORE_CELLS,
    SCORE_CELLS_PER_LOGIT,
    is_positive,
    roc_area,
    score_cells,
)

CELLS = SCORE_CELLS + 1
"""Cells of the grid: those of curves (1/32 of a logit, from -8 to 8), the one with the threshold in two."""
PROBABILITIES = Scale(exponent=0, bits=32)
"""The scale of sums of probabilities: resolution 2**-31 a row."""
OUTCOMES = ("tn", "fp", "fn", "tp")
"""The cells of a confusion matrix of two classes: label 0 and 1, predicted 0 and 1 of each."""


def threshold_cell(threshold: float) -> int:
    """The last cell of the rows that are not predicted positive."""
    logit = math.log(threshold) - math.log1p(-threshold)
    return int(score_cells(np.array([logit]))[0])


def count_scores(margin: Float64, label: Float32, threshold: float) -> Int64:
    """Rows of label 0, rows of label 1, and the sum of probabilities in each cell: int64 [3 * CELLS]."""
    positive, at = is_positive(margin, threshold), threshold_cell(threshold)
    cell = score_cells(margin)
    cell = np.where(positive, np.maximum(cell, at) + 1, np.minimum(cell, at))
    out = np.zeros((3, CELLS), np.int64)
    np.add.at(out, ((label > 0.5).astype(np.int64), cell), 1)
    np.add.at(out[2], cell, PROBABILITIES.encode(sigmoids(margin)))
    return out.reshape(-1)


def count_outcomes(margin: Float64, label: Float32, threshold: float) -> Int64:
    """Rows of each of OUTCOMES, then the sum of probabilities: int64 [5]."""
    outcome = 2 * (label > 0.5) + is_positive(margin, threshold)
    counts = np.bincount(outcome, minlength=len(OUTCOMES))
    return np.append(counts, PROBABILITIES.encode(sigmoids(margin)).sum()).astype(np.int64)


def count_classes(margin: Float64, label: Float32, classes: int) -> Int64:
    """Rows by class and by the most probable class, the lowest of several: int64 [classes**2]."""
    pair = label.astype(np.int64) * classes + np.argmax(margin, axis=0)
    return np.bincount(pair, minlength=classes * classes).astype(np.int64)


def edges(threshold: float) -> Float64:
    """The probabilities between which the cells lie: increasing, float64 [CELLS + 1]."""
    logits = (np.arange(1, SCORE_CELLS) - SCORE_CELLS // 2) / SCORE_CELLS_PER_LOGIT
    inner = np.insert(1 / (1 + np.exp(-logits)), threshold_cell(threshold), threshold)
    return np.concatenate([[0.0], inner, [1.0]])


def area(negatives: Int64, positives: Int64) -> tuple[float, float] | None:
    """The area under the ROC curve, and how far that of unrounded scores may be from it; None where all
    labels are the same."""
    if not (negatives.any() and positives.any()):
        return None
    zeros, ones = negatives.astype(np.float64), positives.astype(np.float64)
    tied = float((zeros * ones).sum()) / float(zeros.sum() * ones.sum())
    return roc_area(zeros, ones), tied / 2
