"""Objectives of times until an event, of which some are only known to lie between two bounds.

Promises: as `objective`; gradients and hessians are XGBoost's, within its bounds, but keep their digits where
a time is far from its prediction.
Refuses: bounds that are no interval.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.objectives import EXTREME, LOGISTIC, NORMAL, aft_gradients, aft_losses, logs
from fedboost.gbdt.objectives.objective import LOG, MAX_LABEL, LabelKind, Objective, first, xgboost_number

DISTRIBUTIONS = {"normal": NORMAL, "logistic": LOGISTIC, "extreme": EXTREME}


@dataclass(frozen=True)
class LogTime:
    """The start of boosting: squared error of the logarithm, of the bound where there is one alone, and of
    their geometric mean where there are two."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        lower, upper = label.astype(np.float64)
        known = np.where(lower > 0.0, lower, upper), np.where(upper < np.inf, upper, lower)
        low, high = map(logs, known)
        hessian = weight.astype(np.float64)
        return hessian * (margin - 0.5 * (low + high)), hessian


@dataclass(frozen=True)
class AcceleratedFailureTime(Objective):
    """survival:aft: a row's time lies between two bounds above 0, and its logarithm is the margin plus noise;
    prediction e**margin. Labels are float32 [2, N]: lower bounds, 0 where there is none, and upper bounds,
    infinite where there is none. 15 bounds all gradients and hessians, but most are far smaller."""

    aft_loss_distribution: str = "normal"
    """The distribution of the noise: one of DISTRIBUTIONS."""
    aft_loss_distribution_scale: float = 1.0
    """The factor of the noise."""

    name = "survival:aft"
    label_kind = LabelKind.INTERVAL
    metrics = "aft-nloglik", "interval-regression-accuracy"
    link = LOG
    start = LogTime()

    def __post_init__(self) -> None:
        if self.aft_loss_distribution not in DISTRIBUTIONS:
            raise ValueError(f"aft_loss_distribution {self.aft_loss_distribution!r}")

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        scale = xgboost_number(self.aft_loss_distribution_scale)
        noise = {"aft_loss_distribution": self.aft_loss_distribution, "aft_loss_distribution_scale": scale}
        return {"aft_loss_param": noise}

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

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        lower, upper = label
        has_lower = (lower >= 1.0 / MAX_LABEL) & (lower <= MAX_LABEL)
        has_upper = (upper >= 1.0 / MAX_LABEL) & (upper <= MAX_LABEL)
        both = has_lower & has_upper & (lower <= upper)
        valid = both | (has_lower & (upper == math.inf)) | (has_upper & (lower == 0.0))
        return first(
            ~valid,
            "a lower bound from 0 to 2**60 and an upper one above 0 that is not below it, or infinite or "
            "missing; not 0 and infinity, which say nothing",
        )


BUILT_IN = (AcceleratedFailureTime,)
