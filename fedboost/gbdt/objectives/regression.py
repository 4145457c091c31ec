"""Objectives of numbers of any size: squared error and pseudo-Huber."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.objectives import (
    pseudo_huber_gradients,
)
from fedboost.gbdt.objectives.classification import GRADIENT_BITS
from fedboost.gbdt.objectives.counts import written as _written
from fedboost.gbdt.objectives.labels import beyond
from fedboost.gbdt.objectives.objective import Loss


@dataclass(frozen=True)
class SquaredError:
    """reg:squarederror: any finite label, prediction the conditional mean."""

    name: ClassVar = "reg:squarederror"
    outputs: ClassVar = 1
    in_xgboost: ClassVar = {"reg_loss_param": {"scale_pos_weight": "1"}}
    metric: ClassVar = "rmse"
    bounds: ClassVar = None
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None

    @property
    def start(self) -> "Loss":
        return self

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        return hessian * (margin - label), hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        return -gradient / hessian

    def shift(self, gradient: float, hessian: float) -> float:
        return -gradient / hessian

    def margin(self, score: float) -> float:
        return score

    def predict(self, margin: Float64) -> Float64:
        return margin

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return beyond(label)


@dataclass(frozen=True)
class PseudoHuber:
    """reg:pseudohubererror: any finite label; squared error near it, a slope of huber_slope far off."""

    huber_slope: float = 1.0

    name: ClassVar = "reg:pseudohubererror"
    outputs: ClassVar = 1
    metric: ClassVar = "mphe"
    bounds: ClassVar = None
    """The slope bounds the gradient, but residuals may be far smaller."""
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None
    start: ClassVar = SquaredError()
    """The mean: a Newton step from a margin far from the labels goes many times too far."""

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        return {"pseudo_huber_param": {"huber_slope": _written(self.huber_slope)}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = pseudo_huber_gradients(margin, label, weight, self.huber_slope)
        return gradient, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        return -gradient / hessian

    def shift(self, gradient: float, hessian: float) -> float:
        return -gradient / hessian

    def margin(self, score: float) -> float:
        return score

    def predict(self, margin: Float64) -> Float64:
        return margin

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return beyond(label)
