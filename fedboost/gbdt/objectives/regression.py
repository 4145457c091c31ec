"""Objectives of numbers of any size: squared error and pseudo-Huber."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.objectives import pseudo_huber_gradients
from fedboost.gbdt.objectives.labels import LabelKind
from fedboost.gbdt.objectives.objective import ROUNDING, Objective, xgboost_number
from fedboost.gbdt.objectives.sensitivity import Bound, Sensitivity


def _clipped_to_range(low: float, high: float) -> Bound:
    """Bound of a gradient, divided by half the width of the range, and of a hessian, both clipped to 1:
    the norm of (g / C, S h) is at most sqrt(1 + S**2)."""
    return Bound(0.5, 1.25**0.5, (low + high) / 2.0, (high - low) / 2.0)


@dataclass(frozen=True)
class SquaredError(Objective):
    """reg:squarederror: any finite label, prediction the conditional mean."""

    name = "reg:squarederror"
    label_kind = LabelKind.NUMBER
    metrics = "rmse", "mae", "mphe"
    has_label_means = True
    rows_per_hessian = 1
    sensitivity = Sensitivity(_clipped_to_range)
    xgboost_params: ClassVar = {"reg_loss_param": {"scale_pos_weight": "1"}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        return hessian * (margin - label), hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        """The gradient is the distance from the label."""
        return gradient + step, hessian


@dataclass(frozen=True)
class PseudoHuber(Objective):
    """reg:pseudohubererror: any finite label; squared error near it, a slope of huber_slope far off.

    The slope bounds the gradient, but residuals may be far smaller.
    """

    huber_slope: float = 1.0

    name = "reg:pseudohubererror"
    label_kind = LabelKind.NUMBER
    metrics = "mphe", "rmse", "mae"
    has_label_means = True
    start = SquaredError()
    """The mean: a Newton step from a margin far from the labels goes many times too far."""

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        return {"pseudo_huber_param": {"huber_slope": xgboost_number(self.huber_slope)}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = pseudo_huber_gradients(margin, label, weight, self.huber_slope)
        return gradient, hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        """The hessian falls with the distance from the label, which the bound says, and is the slope of the
        gradient; that is below huber_slope."""
        slope = self.huber_slope
        distance = slope * math.sqrt(max(hessian ** (-2.0 / 3.0) - 1.0, 0.0)) * (1.0 - ROUNDING)
        ratio = max(distance - step, 0.0) / slope
        steepest = min((1.0 + ratio * ratio) ** -1.5 * (1.0 + ROUNDING), 1.0)
        return min(gradient + steepest * step, slope), steepest


BUILT_IN = SquaredError, PseudoHuber
