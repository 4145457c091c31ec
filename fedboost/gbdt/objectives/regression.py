"""Objectives of numbers: squared error, pseudo-Huber, counts and amounts, quantiles."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.objectives import (
    exps,
    gamma_gradients,
    poisson_gradients,
    pseudo_huber_gradients,
    tweedie_gradients,
)
from fedboost.gbdt.objectives.objective import (
    AMOUNT_BITS,
    LOG,
    ROUNDING,
    Bound,
    LabelKind,
    Objective,
    Sensitivity,
    xgboost_number,
)


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


NUMBERS = SquaredError, PseudoHuber


# ---- Objectives whose prediction is e**margin: counts and amounts, which are never below 0 --------------
# Promises: as `objective`. A base margin of log(exposure) makes the prediction that of so much exposure;
# the constant to start from is the best one whatever the base margins.
# Refuses: labels that are 0 in every row (ConfigError).


class _Amounts(Objective):
    """Base: the best constant is the mean, also from base margins."""

    label_kind = LabelKind.COUNT
    link = LOG
    gradient_bits = AMOUNT_BITS
    has_label_means = True

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        return self.margin(self.base_score(gradient, hessian))


def _clipped_counts(low: float, high: float) -> Bound:
    """Bound of gradient and hessian, both divided by the width of the range and clipped to 1: the norm of
    (g / C, S h / C) is at most sqrt(1 + S**2)."""
    return Bound(0.5, 1.25**0.5, (low + high) / 8.0, high - low, high - low)


@dataclass(frozen=True)
class Poisson(_Amounts):
    """count:poisson: label 0 or more, prediction its mean."""

    max_delta_step: float = 0.7
    """The hessian is e**max_delta_step times the second derivative, as XGBoost has it."""

    name = "count:poisson"
    metrics = "poisson-nloglik", "rmse", "mae", "gamma-nloglik", "tweedie-nloglik"
    sensitivity = Sensitivity(_clipped_counts)

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        return {"poisson_regression_param": {"max_delta_step": xgboost_number(self.max_delta_step)}}

    @property
    def _hessian_factor(self) -> float:
        return float(exps(np.array([self.max_delta_step]))[0])

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = poisson_gradients(margin, label, weight, self._hessian_factor)
        return gradient, hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        moved, grown = _grown(hessian, step, 1.0)
        return gradient + moved / self._hessian_factor, grown

    def base_score(self, gradient: float, hessian: float) -> float:
        """Sum of w y over sum of w e**base_margin."""
        predicted = hessian / self._hessian_factor
        return _mean(predicted - gradient, predicted)

    def typical_row(self, bound: Bound) -> tuple[float, float]:
        return math.sqrt(bound.start), bound.start


@dataclass(frozen=True)
class Gamma(_Amounts):
    """reg:gamma: label above 0, prediction its mean."""

    name = "reg:gamma"
    label_kind = LabelKind.POSITIVE
    metrics = "gamma-deviance", "rmse", "mae", "poisson-nloglik", "gamma-nloglik", "tweedie-nloglik"
    xgboost_params: ClassVar = {"reg_loss_param": {"scale_pos_weight": "1"}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = gamma_gradients(margin, label, weight)
        return gradient, hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        moved, grown = _grown(hessian, step, 1.0)
        return gradient + moved, grown

    def base_score(self, gradient: float, hessian: float) -> float:
        """Mean of y e**-base_margin."""
        return _mean(hessian, gradient + hessian)


@dataclass(frozen=True)
class Tweedie(_Amounts):
    """reg:tweedie: label 0 or more, with a variance of the mean to the power tweedie_variance_power;
    prediction the mean."""

    tweedie_variance_power: float = 1.5

    name = "reg:tweedie"
    metrics = "tweedie-nloglik", "rmse", "mae", "poisson-nloglik", "gamma-nloglik"

    @property
    def default_metric(self) -> str:
        return f"tweedie-nloglik@{self.tweedie_variance_power:g}"

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        power = xgboost_number(self.tweedie_variance_power)
        return {"tweedie_regression_param": {"tweedie_variance_power": power}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = tweedie_gradients(margin, label, weight, self.tweedie_variance_power)
        return gradient, hessian

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float]:
        power = self.tweedie_variance_power
        moved, grown = _grown(hessian, step, max(power - 1.0, 2.0 - power))
        return gradient + moved, grown

    def base_score(self, gradient: float, hessian: float) -> float:
        """Sum of w y e**((1 - power) base_margin) over sum of w e**((2 - power) base_margin)."""
        predicted = hessian + (self.tweedie_variance_power - 1.0) * gradient
        return _mean(predicted - gradient, predicted)


COUNTS = Poisson, Gamma, Tweedie
MAX_STEP = 64.0
"""A step beyond which nothing is said of the gradients after it: e**64 is more than any scale can hold."""


def _grown(hessian: float, step: float, rate: float) -> tuple[float, float]:
    """Bounds of the change of a gradient and of a hessian, which is its slope and a sum of terms that grow
    or fall as e**(rate margin) at most, once the margin moved by at most `step`."""
    if step > MAX_STEP:
        return math.inf, math.inf
    growth = math.expm1(rate * step) * (1.0 + ROUNDING)
    return hessian * growth / rate, hessian * (1.0 + growth)


def _mean(labels: float, predicted: float) -> float:
    """The factor that brings the predictions of margins of 0 to the labels."""
    if labels <= 0.0 < predicted:
        raise ConfigError("the label is 0 in every row of every party: there is nothing to learn")
    if not 0.0 < predicted < math.inf:
        raise PeerError(f"sums of gradients of predictions that come to {predicted:g}")
    return labels / predicted


# ---- Objectives whose best constant is a quantile -------------------------------------------------------
# Of the labels and in each leaf of the residuals there.
# Promises: as `objective`; gradients depend on the side of the label that a margin lies on, and on no
# distance.
# Refuses: labels that are no finite number.


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


QUANTILES = AbsoluteError, QuantileError
