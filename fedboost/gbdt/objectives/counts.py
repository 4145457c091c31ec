"""Objectives whose prediction is e**margin: counts and amounts, which are never below 0.

Promises: as `objective`. A base margin of log(exposure) makes the prediction that of so much exposure; the
constant to start from is the best one whatever the base margins.
Refuses: labels that are 0 in every row (ConfigError).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.elementwise import exps, logs
from fedboost.gbdt.kernels.objectives import gamma_gradients, poisson_gradients, tweedie_gradients
from fedboost.gbdt.objectives.labels import below_zero, not_above_zero

GRADIENT_BITS = 24
"""A few amounts may be ten thousand times the usual ones, and the gradients of those must not round to 0."""


@dataclass(frozen=True)
class Poisson:
    """count:poisson: label 0 or more, prediction its mean."""

    max_delta_step: float = 0.7
    """The hessian is e**max_delta_step times the second derivative, as XGBoost has it."""

    name: ClassVar = "count:poisson"
    outputs: ClassVar = 1
    metric: ClassVar = "poisson-nloglik"
    bounds: ClassVar = None
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        return {"poisson_regression_param": {"max_delta_step": written(self.max_delta_step)}}

    @property
    def start(self) -> Self:
        return self

    @property
    def _boost(self) -> float:
        return float(exps(np.array([self.max_delta_step]))[0])

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = poisson_gradients(margin, label, weight, self._boost)
        return gradient, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        """Sum of w y over sum of w e**base_margin."""
        predicted = hessian / self._boost
        return _mean(predicted - gradient, predicted)

    def shift(self, gradient: float, hessian: float) -> float:
        return margin_of(self.base_score(gradient, hessian), self.name)

    def margin(self, score: float) -> float:
        return margin_of(score, self.name)

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = exps(margin)
        return out

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return below_zero(label)


@dataclass(frozen=True)
class Gamma:
    """reg:gamma: label above 0, prediction its mean."""

    name: ClassVar = "reg:gamma"
    outputs: ClassVar = 1
    in_xgboost: ClassVar = {"reg_loss_param": {"scale_pos_weight": "1"}}
    metric: ClassVar = "gamma-deviance"
    bounds: ClassVar = None
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None

    @property
    def start(self) -> Self:
        return self

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = gamma_gradients(margin, label, weight)
        return gradient, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        """Mean of y e**-base_margin."""
        return _mean(hessian, gradient + hessian)

    def shift(self, gradient: float, hessian: float) -> float:
        return margin_of(self.base_score(gradient, hessian), self.name)

    def margin(self, score: float) -> float:
        return margin_of(score, self.name)

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = exps(margin)
        return out

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return not_above_zero(label)


@dataclass(frozen=True)
class Tweedie:
    """reg:tweedie: label 0 or more, with a variance of the mean to the power tweedie_variance_power;
    prediction the mean."""

    tweedie_variance_power: float = 1.5

    name: ClassVar = "reg:tweedie"
    outputs: ClassVar = 1
    bounds: ClassVar = None
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        power = written(self.tweedie_variance_power)
        return {"tweedie_regression_param": {"tweedie_variance_power": power}}

    @property
    def metric(self) -> str:
        return f"tweedie-nloglik@{self.tweedie_variance_power:g}"

    @property
    def start(self) -> Self:
        return self

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = tweedie_gradients(margin, label, weight, self.tweedie_variance_power)
        return gradient, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        """Sum of w y e**((1 - power) base_margin) over sum of w e**((2 - power) base_margin)."""
        predicted = hessian + (self.tweedie_variance_power - 1.0) * gradient
        return _mean(predicted - gradient, predicted)

    def shift(self, gradient: float, hessian: float) -> float:
        return margin_of(self.base_score(gradient, hessian), self.name)

    def margin(self, score: float) -> float:
        return margin_of(score, self.name)

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = exps(margin)
        return out

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return below_zero(label)


def margin_of(score: float, objective: str) -> float:
    """ln score as float32, as XGBoost has it."""
    if not 0.0 < score < math.inf:
        raise ConfigError(f"base_score {score} must be above 0 for {objective}")
    return float(np.float32(logs(np.array([np.float32(score)], np.float64))[0]))


def written(value: float) -> str:
    """A parameter in XGBoost's model file: the shortest decimal that reads as it."""
    return str(int(value)) if value.is_integer() else repr(value)


def _mean(labels: float, predicted: float) -> float:
    """The factor that brings what margins of 0 predict to the labels."""
    if labels <= 0.0 < predicted:
        raise ConfigError("the label is 0 in every row of every party: there is nothing to learn")
    if not 0.0 < predicted < math.inf:
        raise PeerError(f"sums of gradients of predictions that come to {predicted:g}")
    return labels / predicted
