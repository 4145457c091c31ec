"""Objectives whose best constant is a quantile: of the labels, and in each leaf of the residuals there.

Promises: as `objective`; gradients depend on the side of the label that a margin lies on, and on no distance.
Refuses: labels that are no finite number.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.objectives.labels import LabelKind
from fedboost.gbdt.objectives.objective import Objective


class _Quantile(Objective):
    """Base: the constant is a quantile that the session asks for."""

    label_kind = LabelKind.NUMBER
    rows_per_hessian = 1
    bounds = 0, 0

    def base_score(self, gradient: float, hessian: float) -> float:
        return 0.0

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        return 0.0


@dataclass(frozen=True)
class AbsoluteError(_Quantile):
    """reg:absoluteerror: any finite label, prediction the conditional median."""

    name = "reg:absoluteerror"
    metrics = "mae", "rmse", "mphe"
    quantile = 0.5

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        return hessian * np.sign(margin - label), hessian


@dataclass(frozen=True)
class QuantileError(_Quantile):
    """reg:quantileerror: any finite label, prediction the conditional quantile quantile_alpha."""

    quantile_alpha: float

    name = "reg:quantileerror"
    metrics = "quantile", "rmse", "mae", "mphe"

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        return {"quantile_loss_param": {"quantile_alpha": f"[{self.quantile_alpha!r}]"}}

    @property
    def quantile(self) -> float:
        return self.quantile_alpha

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        slope = np.where(margin >= label, 1.0 - self.quantile_alpha, -self.quantile_alpha)
        return hessian * slope, hessian


BUILT_IN = AbsoluteError, QuantileError
