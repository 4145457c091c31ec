"""SHAP values: what each feature contributes to the margin of each row.

Promises: Shapley values of the game in which a row's unknown features follow the training rows (by the
covers of the tree's nodes), as XGBoost's `pred_contribs`, in float64; the contributions of a row add up to
its margin.
Refuses nothing.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels import shap


def add_contributions(
    features: Float32, nodes: tuple[npt.NDArray[Any], ...], cover: Float64, output: int, out: Float64
) -> None:
    """Add the contributions to one output to out: float64 [rows, outputs, features + 1], the last of them the
    bias.

    features: float32 [rows, features]; nodes: the trees of this output, in the columns that
    `gbdt.kernels.predict_margins` takes; cover: the cover of each node.
    """
    roots, left, *_ = nodes
    factors = min(int(shap.depth_of(roots, left)), features.shape[1])
    points, weights = np.polynomial.legendre.leggauss(max(1, (factors + 1) // 2))  # exact for as many factors
    add: Any = shap.add_contributions
    add(features, *nodes, cover, (points + 1.0) / 2.0, weights / 2.0, output, out)
