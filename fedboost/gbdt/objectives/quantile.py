"""Objectives whose best constant is a quantile: of the labels, and in each leaf of the residuals there.

Promises: as `objective`; gradients say on which side of its label a margin lies, and nothing of how far.
Refuses: labels that are no finite number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.objectives.labels import beyond

GRADIENT_BITS = 16


@dataclass(frozen=True)
class AbsoluteError:
    """reg:absoluteerror: any finite label, prediction the conditional median."""

    name: ClassVar = "reg:absoluteerror"
    outputs: ClassVar = 1
    in_xgboost: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    metric: ClassVar = "mae"
    bounds: ClassVar = (0, 0)
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = 0.5

    @property
    def start(self) -> Self:
        return self

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        return hessian * np.sign(margin - label), hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        return 0.0  # the median is asked for

    def shift(self, gradient: float, hessian: float) -> float:
        return 0.0

    def margin(self, score: float) -> float:
        return score

    def predict(self, margin: Float64) -> Float64:
        return margin

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return beyond(label)


@dataclass(frozen=True)
class QuantileError:
    """reg:quantileerror: any finite label, prediction the conditional quantile that quantile_alpha says."""

    quantile_alpha: float

    name: ClassVar = "reg:quantileerror"
    outputs: ClassVar = 1
    metric: ClassVar = "quantile"
    bounds: ClassVar = (0, 0)
    gradient_bits: ClassVar = GRADIENT_BITS

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        return {"quantile_loss_param": {"quantile_alpha": f"[{self.quantile_alpha!r}]"}}

    @property
    def quantile(self) -> float:
        return self.quantile_alpha

    @property
    def start(self) -> Self:
        return self

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        slope = np.where(margin >= label, 1.0 - self.quantile_alpha, -self.quantile_alpha)
        return hessian * slope, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        return 0.0  # the quantile is asked for

    def shift(self, gradient: float, hessian: float) -> float:
        return 0.0

    def margin(self, score: float) -> float:
        return score

    def predict(self, margin: Float64) -> Float64:
        return margin

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return beyond(label)
