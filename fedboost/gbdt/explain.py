"""Explanations of a model: each feature's contribution to a prediction, and partial dependence."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels import predict

# ---- SHAP values: what each feature contributes to the margin of each row -------------------------------
# Promises: Shapley values of the game in which a row's unknown features follow the training rows (by the
# covers of the tree's nodes), as XGBoost's `pred_contribs`, in float64; the contributions of a row add up
# to its margin. Refuses nothing.


def add_contributions(
    features: Float32, nodes: tuple[npt.NDArray[Any], ...], cover: Float64, output: int, out: Float64
) -> None:
    """Add the contributions to one output to out: float64 [rows, outputs, features + 1], the last of them the
    bias.

    features: float32 [rows, features]; nodes: the trees of this output, in the columns that
    `gbdt.kernels.predict_margins` takes; cover: the cover of each node.
    """
    roots, left, *_ = nodes
    factors = min(int(predict.depth_of(roots, left)), features.shape[1])
    points, weights = np.polynomial.legendre.leggauss(max(1, (factors + 1) // 2))  # exact for as many factors
    add: Any = predict.add_contributions
    add(features, *nodes, cover, (points + 1.0) / 2.0, weights / 2.0, output, out)


# ---- Partial dependence: the mean prediction as one feature changes and the others stay -----------------
# Promises: the definition itself, which scikit-learn calls brute force: at each value of the grid, the mean
# prediction of all rows with that value in their column.
# Refuses: no rows (ConfigError).


Rows: TypeAlias = tuple[Float32, Float32 | None]
"""Features, float32 [rows, features], and base margins, float32 [rows], where there are any."""
MAX_GRID_VALUES = 100
"""Values of a default grid."""
_BETWEEN = (0.05, 0.95)


def usual_grid(values: Float32) -> list[float]:
    """The distinct values of a column (NaN, missing, excluded), if at most MAX_GRID_VALUES; else
    that many in even steps between its 5 % and 95 % quantiles."""
    present = values[~np.isnan(values)]
    distinct = np.unique(present)
    if distinct.size > MAX_GRID_VALUES:
        low, high = np.quantile(present, _BETWEEN)
        distinct = np.linspace(low, high, MAX_GRID_VALUES).astype(np.float32)
    grid: list[float] = distinct.tolist()
    return grid


def mean_predictions(
    predict: Callable[[Float32, Float32 | None], Float64], parts: Iterable[Rows], column: int, grid: Float32
) -> Float64:
    """The mean of `predict` over all rows, which come in parts, with each value of the grid in column
    `column`: float64 [grid], or [grid, outputs]."""
    rows, totals = 0, None
    for features, base_margin in parts:
        changed, sums = features.copy(), []
        for value in grid:
            changed[:, column] = value
            sums.append(predict(changed, base_margin).sum(axis=0))
        rows += len(features)
        totals = np.array(sums, np.float64) + (0.0 if totals is None else totals)
    if totals is None or not rows:
        raise ConfigError("there are no rows to predict")
    means: Float64 = totals / rows
    return means
