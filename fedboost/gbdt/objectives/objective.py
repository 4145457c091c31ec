"""The contract of an objective: gradients, the constant to start from, and facts.

Promises: gradients are the same bits on every CPU (built on `kernels`); the bound of a gradient, where an
objective has one, holds for every row whatever its label is. What the rest of the package needs to know of an
objective is a fact here, with a default: nothing else lists objectives by name.
Refuses: labels an objective cannot have.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.objectives.labels import (
    LabelKind,
    first_below_zero,
    first_invalid_number,
    first_not_positive,
)
from fedboost.gbdt.objectives.links import IDENTITY, Link
from fedboost.gbdt.objectives.sensitivity import Bound, Sensitivity

AMOUNT_BITS = 24
"""Bits of gradients where those of a few rows may be ten thousand times the usual ones, which must not round
to 0."""


ROUNDING = 2.0**-30
"""More than the relative error of any gradient."""


class HasGradients(Protocol):
    """The gradients of a loss. Margins are float64 [N], or [outputs, N] where a row has several; weights
    float32 [N]; labels float32 [N], or [2, N] where they are intervals."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """First and second derivative of the loss in each margin, times the weight: as the margins."""
        ...


class Objective(ABC):
    """An objective: a frozen dataclass. Its fields are parameters of the terms, its facts attributes."""

    name: ClassVar[str]
    """Its name in the terms and in XGBoost."""
    label_kind: ClassVar[LabelKind]
    metrics: ClassVar[tuple[str, ...]]
    """The metrics that fit it, the default first; a name stands for those with a parameter, too."""
    link: ClassVar[Link] = IDENTITY
    gradient_bits: ClassVar[int] = 16
    """Bits of a row's gradient and hessian unless the terms set them: more where gradients of a few rows are
    far beyond those of most."""
    classes_key: ClassVar[str | None] = None
    """The key of [columns] that names the label's values, where it is a class: positive or classes."""
    rows_per_hessian: ClassVar[int | None] = None
    """The fewest rows of weight 1 whose hessians, as they are rounded, sum to 1; None if nothing is sure."""
    has_label_means: ClassVar[bool] = False
    """True if `base_score` of the sums over any rows is about the mean of their labels."""
    sensitivity: ClassVar[Sensitivity | None] = None
    """The bound of a row's part in sums that get noise; None if there is none."""

    @property
    def outputs(self) -> int:
        """Margins of a row, each with trees of its own."""
        return 1

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Binary exponents bounding |gradient| and hessian of a row of weight 1; None if nothing does."""
        return None

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float] | None:
        """Bounds of |gradient| and hessian of a row of weight 1 once its margin moved by at most `step`, from
        those before; None if nothing follows from them."""
        return None

    @property
    def quantile(self) -> float | None:
        """The quantile of the residuals in a leaf that is its value; None where that is a step along the
        gradient."""
        return None

    @property
    def default_metric(self) -> str:
        """The metric XGBoost reports for this objective unless others are set."""
        return self.metrics[0]

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        """Its parameters in XGBoost's model file."""
        return {}

    @property
    def xgboost_equivalent(self) -> "Objective":
        """The objective of XGBoost that predicts the same and stands in the model file: another one where
        XGBoost does not have this one."""
        return self

    @property
    def start(self) -> HasGradients:
        """The objective from whose gradients the constant to start from is found: this one, or one whose
        best constant is a single step away."""
        return self

    @abstractmethod
    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """First and second derivative of the loss: see `HasGradients`."""

    def base_score(self, gradient: float, hessian: float) -> float:
        """The constant prediction, from the sums of gradients and hessians of `start` at margin 0."""
        return float(self.predict(np.array([-gradient / hessian]))[0])

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        """The number that is added to every base margin, from those sums at the base margins."""
        return -gradient / hessian

    def margin(self, score: float) -> float:
        """The margin of a prediction."""
        return self.link.margin(score, self.name)

    def predict(self, margin: Float64) -> Float64:
        """The prediction of each row: float64 [N], or [N, outputs]."""
        return self.link.predict(margin)

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        """The first row whose label this objective cannot have, and which labels it can have."""
        match self.label_kind:
            case LabelKind.COUNT:
                return first_below_zero(label)
            case LabelKind.POSITIVE:
                return first_not_positive(label)
            case _:
                return first_invalid_number(label)

    def typical_row(self, bound: Bound) -> tuple[float, float]:
        """The standard deviation of the gradient and the hessian of a row whose prediction is undecided and
        whose label is spread evenly over its range, where there is a bound."""
        return bound.clip / math.sqrt(3.0), 1.0


def xgboost_number(value: float) -> str:
    """A parameter in XGBoost's model file: the shortest decimal that reads as it."""
    return str(int(value)) if value.is_integer() else repr(value)
