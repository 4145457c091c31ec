"""Objectives of classes: their predictions are probabilities."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.elementwise import logs, sigmoids
from fedboost.gbdt.kernels.objectives import (
    logistic_gradients,
    softmax_gradients,
    softmaxes,
)
from fedboost.gbdt.objectives.counts import written as _written
from fedboost.gbdt.objectives.labels import first
from fedboost.gbdt.objectives.objective import Loss

GRADIENT_BITS = 16
MOST_NEWTON_STEP = 4.0
"""From base margins in one step: beyond, where the loss bends, such steps go too far."""


@dataclass(frozen=True)
class Logistic:
    """binary:logistic: label 0 or 1, prediction the probability of 1."""

    scale_pos_weight: float = 1.0
    """What a row of label 1 weighs, times its weight."""

    name: ClassVar = "binary:logistic"
    outputs: ClassVar = 1
    metric: ClassVar = "logloss"
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        return {"reg_loss_param": {"scale_pos_weight": _written(self.scale_pos_weight)}}

    @property
    def bounds(self) -> tuple[int, int]:
        """|p - y| <= 1 and p (1 - p) <= 1/4. The hessian has a bit to spare, so that at margin 0 a gradient
        w / 2 and a hessian w / 4 round to the same integer and a label that never varies shows exactly."""
        heaviest = math.ceil(math.log2(max(self.scale_pos_weight, 1.0)))
        return heaviest, heaviest - 1

    @property
    def start(self) -> "Loss":
        return self

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        if self.scale_pos_weight != 1.0:
            weight = np.where(label > 0.5, weight * np.float32(self.scale_pos_weight), weight)
        gradient, hessian = logistic_gradients(margin, label, weight)
        return gradient, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        # At margin 0 a row has gradient w (1/2 - y) and hessian w / 4; so this is the mean label.
        mean = 0.5 - gradient / (4.0 * hessian)
        if mean in (0.0, 1.0):
            raise ConfigError(
                f"the label is {round(mean)} in every row of every party: there is nothing to learn"
            )
        if not 0.0 < mean < 1.0:
            raise PeerError(f"sums of gradients that make the mean label {mean:g}")
        return mean

    def shift(self, gradient: float, hessian: float) -> float:
        return max(-MOST_NEWTON_STEP, min(MOST_NEWTON_STEP, -gradient / hessian))

    def margin(self, score: float) -> float:
        if not 0.0 < score < 1.0:
            raise ConfigError(f"base_score {score} must lie strictly between 0 and 1 for binary:logistic")
        # XGBoost's own steps and bounds, each rounded to 32 bits: near 1 the exact logit is another number.
        near = np.clip(np.float32(score), np.float32(1e-6), np.float32(1.0) - np.float32(1e-6))
        odds = np.float32(1.0) / near - np.float32(1.0)
        return -float(np.float32(logs(np.array([odds], np.float64))[0]))

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = sigmoids(margin)
        return out

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return first((label != 0.0) & (label != 1.0), "0 or 1")


@dataclass(frozen=True)
class Softmax:
    """multi:softprob: labels 0, 1, ... num_class - 1, prediction the probability of each."""

    num_class: int

    name: ClassVar = "multi:softprob"
    metric: ClassVar = "mlogloss"
    bounds: ClassVar = (0, -1)
    """|p - y| <= 1; the hessian is XGBoost's, 2 p (1 - p) <= 1/2."""
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None

    @property
    def start(self) -> "Loss":
        return self

    @property
    def outputs(self) -> int:
        return self.num_class

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        return {"softmax_multiclass_param": {"num_class": str(self.num_class)}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = softmax_gradients(margin, label, weight)
        return gradient, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        return 0.5  # as XGBoost has it; probabilities depend on the differences of margins alone

    def shift(self, gradient: float, hessian: float) -> float:
        return 0.0

    def margin(self, score: float) -> float:
        return score

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = softmaxes(margin)
        return out

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        known = (label >= 0) & (label < self.num_class) & (label == np.floor(label))
        return first(~known, f"whole numbers from 0 to {self.num_class - 1}")
