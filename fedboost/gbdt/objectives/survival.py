"""Objectives of times until an event, of which some are only known to lie between two bounds.

Promises: as `objective`; gradients and hessians are XGBoost's, within its bounds, but keep their digits where
a time is far from its prediction.
Refuses: bounds that are no interval.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.elementwise import exps, logs
from fedboost.gbdt.kernels.survival import EXTREME, LOGISTIC, NORMAL, aft_gradients, aft_losses
from fedboost.gbdt.objectives.counts import margin_of, written
from fedboost.gbdt.objectives.labels import LARGEST_LABEL, first

DISTRIBUTIONS = {"normal": NORMAL, "logistic": LOGISTIC, "extreme": EXTREME}
GRADIENT_BITS = 16


@dataclass(frozen=True)
class LogTime:
    """What a constant is found from: squared error of the logarithm, of the bound where there is one alone,
    and of their geometric mean where there are two."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        lower, upper = label.astype(np.float64)
        known = np.where(lower > 0.0, lower, upper), np.where(upper < np.inf, upper, lower)
        low, high = map(logs, known)
        hessian = weight.astype(np.float64)
        return hessian * (margin - 0.5 * (low + high)), hessian


@dataclass(frozen=True)
class AcceleratedFailureTime:
    """survival:aft: a row's time lies between two bounds above 0, and its logarithm is the margin plus noise;
    prediction e**margin. Labels are float32 [2, N]: lower bounds, 0 where there is none, and upper bounds,
    infinite where there is none."""

    aft_loss_distribution: str = "normal"
    """Of the noise: one of DISTRIBUTIONS."""
    aft_loss_distribution_scale: float = 1.0
    """What it is multiplied with."""

    name: ClassVar = "survival:aft"
    outputs: ClassVar = 1
    metric: ClassVar = "aft-nloglik"
    bounds: ClassVar = None
    """15 bounds them all, but most are far smaller."""
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None
    start: ClassVar = LogTime()

    def __post_init__(self) -> None:
        if self.aft_loss_distribution not in DISTRIBUTIONS:
            raise ValueError(f"aft_loss_distribution {self.aft_loss_distribution!r}")

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        scale = written(self.aft_loss_distribution_scale)
        told = {"aft_loss_distribution": self.aft_loss_distribution, "aft_loss_distribution_scale": scale}
        return {"aft_loss_param": told}

    @property
    def noise(self) -> tuple[int, float]:
        """The distribution and its scale, as kernels take them."""
        return DISTRIBUTIONS[self.aft_loss_distribution], self.aft_loss_distribution_scale

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        lower, upper = np.ascontiguousarray(label)
        gradient, hessian = aft_gradients(margin, lower, upper, weight, *self.noise)
        return gradient, hessian

    def losses(self, margin: Float64, label: Float32) -> Float64:
        """-log of the likelihood of each row: float64 [N]."""
        lower, upper = np.ascontiguousarray(label)
        out: Float64 = aft_losses(margin, lower, upper, *self.noise)
        return out

    def base_score(self, gradient: float, hessian: float) -> float:
        """e to the mean logarithm."""
        return float(self.predict(np.array([-gradient / hessian]))[0])

    def shift(self, gradient: float, hessian: float) -> float:
        return -gradient / hessian

    def margin(self, score: float) -> float:
        return margin_of(score, self.name)

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = exps(margin)
        return out

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        lower, upper = label
        has_lower = (lower >= 1.0 / LARGEST_LABEL) & (lower <= LARGEST_LABEL)
        has_upper = (upper >= 1.0 / LARGEST_LABEL) & (upper <= LARGEST_LABEL)
        both = has_lower & has_upper & (lower <= upper)
        good = both | (has_lower & (upper == math.inf)) | (has_upper & (lower == 0.0))
        return first(
            ~good,
            "a lower bound from 0 to 2**60 and an upper one above 0 that is not below it, or infinite or "
            "missing; not 0 and infinity, which say nothing",
        )
