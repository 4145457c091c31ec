"""Objectives of classes: their predictions are probabilities."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.objectives import logistic_gradients, softmax_gradients
from fedboost.gbdt.objectives.objective import (
    LOGIT,
    SOFTMAX,
    Bound,
    LabelKind,
    Objective,
    Sensitivity,
    first,
    xgboost_number,
)

MAX_NEWTON_STEP = 4.0
"""Longest step from base margins: a longer one goes too far, because the hessian changes."""


@dataclass(frozen=True)
class Logistic(Objective):
    """binary:logistic: label 0 or 1, prediction the probability of 1."""

    scale_pos_weight: float = 1.0
    """The factor of the weight of a row of label 1."""

    name = "binary:logistic"
    label_kind = LabelKind.CLASS
    metrics = "logloss", "auc", "error", "aucpr", "ks", "ece"
    link = LOGIT
    classes_key = "positive"
    rows_per_hessian = 4
    has_label_means = True
    sensitivity = Sensitivity(Bound(3.33, 1.0, 0.5))
    """With gradient p - y and hessian h = p (1 - p) the norm of (p - y, S h) is at most the maximum over p of
    p**2 (1 + S**2 (1 - p)**2), which is 1 as long as S <= phi**(5/2) = 3.3302."""

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        return {"reg_loss_param": {"scale_pos_weight": xgboost_number(self.scale_pos_weight)}}

    @property
    def bounds(self) -> tuple[int, int]:
        """|p - y| <= 1 and p (1 - p) <= 1/4. The hessian has a bit to spare, so that at margin 0 a gradient
        w / 2 and a hessian w / 4 round to the same integer and a label that never varies shows exactly."""
        heaviest = math.ceil(math.log2(max(self.scale_pos_weight, 1.0)))
        return heaviest, heaviest - 1

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

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        return max(-MAX_NEWTON_STEP, min(MAX_NEWTON_STEP, -gradient / hessian))

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        return first((label != 0.0) & (label != 1.0), "0 or 1")

    def typical_row(self, bound: Bound) -> tuple[float, float]:
        return 0.5, 0.25


@dataclass(frozen=True)
class Softmax(Objective):
    """multi:softprob: labels 0, 1, ... num_class - 1, prediction the probability of each."""

    num_class: int

    name = "multi:softprob"
    label_kind = LabelKind.CLASS
    metrics = "mlogloss", "merror"
    link = SOFTMAX
    classes_key = "classes"
    rows_per_hessian = 2
    bounds = 0, -1
    """|p - y| <= 1; the hessian is XGBoost's, 2 p (1 - p) <= 1/2."""
    sensitivity = Sensitivity(Bound(1.0, 2.0**0.5, 0.5))
    """The gradients (p - y) have at most the norm sqrt 2, only where some p is 1 and all hessians are 0; with
    the hessians 2 p (1 - p) the norm is at most sqrt 2 everywhere."""

    @property
    def outputs(self) -> int:
        return self.num_class

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        return {"softmax_multiclass_param": {"num_class": str(self.num_class)}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = softmax_gradients(margin, label, weight)
        return gradient, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        return 0.5  # as XGBoost has it; probabilities depend on the differences of margins alone

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        return 0.0

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        valid = (label >= 0) & (label < self.num_class) & (label == np.floor(label))
        return first(~valid, f"whole numbers from 0 to {self.num_class - 1}")

    def typical_row(self, bound: Bound) -> tuple[float, float]:
        share = 1.0 / self.num_class
        return math.sqrt(share * (1.0 - share)), 2.0 * share * (1.0 - share)


BUILT_IN = Logistic, Softmax
