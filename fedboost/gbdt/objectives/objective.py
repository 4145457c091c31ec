"""The contract of an objective: gradients, the constant to start from, and facts.

Promises: gradients have the same bits on every CPU (they use `kernels`). An objective's bound of a gradient,
if it has one, is valid for every row, whatever its label. Everything the rest of the package needs to know
about an objective is a fact here, with a default: no other module lists objectives by name.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels.histogram import quantise_bounded
from fedboost.gbdt.kernels.objectives import exps, logs, sigmoids, softmaxes

# ---- Labels: their kinds, how large they may be, and the first one that is invalid for an objective -----
# These functions return the row; the reader of the table writes the error.


MAX_LABEL = math.ldexp(1.0, 60)
"""Labels, weights and their inverses stay below this bound, so that exponent counts can bound their
gradients."""


class LabelKind(Enum):
    NUMBER = "number"
    """Any size and sign."""
    COUNT = "count"
    """0 or more: counts, and amounts that may be 0."""
    POSITIVE = "positive"
    """Above 0."""
    CLASS = "class"
    """The number of a class, from 0."""
    INTERVAL = "interval"
    """A lower and an upper bound, from two columns."""
    RELEVANCE = "relevance"
    """The relevance of a row in its group."""


_LOWEST = {
    LabelKind.COUNT: (0.0, "a number from 0 to 2**60"),
    LabelKind.POSITIVE: (1.0 / MAX_LABEL, "a number above 0, up to 2**60"),
}


def first_beyond(label: Float32, kind: LabelKind) -> tuple[int, str] | None:
    """The first row whose label is not a valid number for this kind, and which labels are valid."""
    lowest, valid_labels = _LOWEST.get(kind, (-MAX_LABEL, "a number of magnitude at most 2**60"))
    return first(~((label >= lowest) & (label <= MAX_LABEL)), valid_labels)


def first(invalid: npt.NDArray[np.bool_], valid_labels: str) -> tuple[int, str] | None:
    """The first invalid row, if there is one, and which labels are valid."""
    rows = np.flatnonzero(invalid)
    return (int(rows[0]), valid_labels) if rows.size else None


# ---- Links: functions between the margin of a row and its prediction ------------------------------------
# Promises: `margin` and `predict` return the same bits on every CPU; `margin` is the float32 that XGBoost
# computes from a base score. A score that no margin predicts raises ConfigError.


@dataclass(frozen=True)
class Link:
    """The identity, and the base of the other links: the prediction is the margin."""

    def margin(self, score: float, objective: str) -> float:
        """The margin of a prediction; `objective` is for error messages."""
        return score

    def predict(self, margin: Float64) -> Float64:
        """The prediction of each row: float64 [N], or [N, outputs] for margins [outputs, N]."""
        return margin


class LogLink(Link):
    """The prediction is e**margin."""

    def margin(self, score: float, objective: str) -> float:
        if not 0.0 < score < math.inf:
            raise ConfigError("base-score-range", f"base_score {score} must be above 0 for {objective}")
        return _log(np.float32(score))

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = exps(margin)
        return out


class LogitLink(Link):
    """The prediction is a probability, 1 / (1 + e**-margin)."""

    def margin(self, score: float, objective: str) -> float:
        if not 0.0 < score < 1.0:
            raise ConfigError(
                "base-score-range", f"base_score {score} must lie strictly between 0 and 1 for {objective}"
            )
        # XGBoost's steps and bounds, each rounded to 32 bits: near 1, the exact logit differs.
        near = np.clip(np.float32(score), np.float32(1e-6), np.float32(1.0) - np.float32(1e-6))
        return -_log(np.float32(1.0) / near - np.float32(1.0))

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = sigmoids(margin)
        return out


class SoftmaxLink(Link):
    """The predictions of a row are probabilities that sum to 1."""

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = softmaxes(margin)
        return out


IDENTITY, LOG, LOGIT, SOFTMAX = Link(), LogLink(), LogitLink(), SoftmaxLink()


def _log(value: np.float32) -> float:
    return float(np.float32(logs(np.array([value], np.float64))[0]))


# ---- A row's contribution to sums that get noise: gradient and hessian with a joint bound ---------------
# Promises: for every possible row, its integers (gradient and hessian of all outputs) have a Euclidean norm
# of at most `UNITS * sensitivity`; rounding is toward zero, so it never increases the norm. The bounds are
# proved at each objective and checked by a property test. Objectives without a bound raise ConfigError.


NOISE_BITS = 21
SCALE = Scale(0, NOISE_BITS)
UNITS = SCALE.limit
"""Integer of the largest possible gradient."""


@dataclass(frozen=True)
class Bound:
    """A row's contribution to a sum: gradient / clip, and hessian / hessian_clip * weight; each quotient is
    first clipped to 1.

    sensitivity: the largest norm of these numbers, over all outputs; start: the prediction that boosting
    starts from."""

    weight: float
    sensitivity: float
    start: float
    clip: float = 1.0
    hessian_clip: float = 1.0

    def quantise(self, gradient: Float64, hessian: Float64, out: Int64) -> None:
        """(gradient << 32) + hessian of each row, in units: int64 [N]."""
        quantise_bounded(
            gradient, hessian, 1.0 / self.clip, 1.0 / self.hessian_clip, self.weight, float(UNITS), out
        )

    def gradient(self, units: float) -> float:
        return units / UNITS * self.clip

    def hessian(self, units: float) -> float:
        return units / UNITS * self.hessian_clip / self.weight


@dataclass(frozen=True)
class Sensitivity:
    """The bound of an objective, or a function that returns it for the lowest and the highest label."""

    bound: Bound | Callable[[float, float], Bound]

    @property
    def needs_label_range(self) -> bool:
        """True if the bound follows from the declared range of the labels."""
        return not isinstance(self.bound, Bound)


def bound_of(objective: "Objective", label_range: tuple[float, float] | None) -> Bound:
    """The bound of an objective for labels in this range. ConfigError if it has none."""
    if objective.sensitivity is None:
        raise ConfigError("objective-no-bound", f"{objective.name} has no bound")
    bound = objective.sensitivity.bound
    if isinstance(bound, Bound):
        return bound
    if label_range is None:
        raise ConfigError("label-range-missing", f"{objective.name} has no bound without columns.label_range")
    return bound(*label_range)


# ---- The contract of an objective: gradients, the constant to start from, and facts ---------------------


AMOUNT_BITS = 24
"""Bits of gradients if those of a few rows may be ten thousand times the usual ones, which must not round to
0."""


ROUNDING = 2.0**-30
"""More than the relative error of any gradient."""


class HasGradients(Protocol):
    """The gradients of a loss. Margins are float64 [N], or [outputs, N] if a row has several; weights float32
    [N]; labels float32 [N], or [2, N] if they are intervals."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """First and second derivative of the loss in each margin, times the weight, in the shape of the
        margins."""


class Objective(ABC):
    """An objective: a frozen dataclass. Its fields are parameters of the terms; its facts are attributes."""

    name: ClassVar[str]
    """Its name in the terms and in XGBoost."""
    label_kind: ClassVar[LabelKind]
    metrics: ClassVar[tuple[str, ...]]
    """The metrics that fit it, the default first. A name includes its variants with a parameter."""
    link: ClassVar[Link] = IDENTITY
    gradient_bits: ClassVar[int] = 16
    """Bits of a row's gradient and hessian unless the terms set them. More are needed if the gradients of a
    few rows far exceed those of most."""
    classes_key: ClassVar[str | None] = None
    """The key of [columns] with the label's values, if it is a class: positive or classes."""
    rows_per_hessian: ClassVar[int | None] = None
    """The fewest rows of weight 1 whose rounded hessians sum to 1; None if there is no such guarantee."""
    has_label_means: ClassVar[bool] = False
    """True if `base_score` from the sums over any rows is about the mean of their labels."""
    sensitivity: ClassVar[Sensitivity | None] = None
    """The bound of a row's contribution to sums that get noise; None if there is none."""
    xgboost_table: ClassVar[str] = ""
    """The table in XGBoost's model file with its parameters; '' if it has none."""

    @property
    def outputs(self) -> int:
        """Number of margins of a row, each with its own trees."""
        return 1

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Binary exponents that bound |gradient| and hessian of a row of weight 1; None if there are no
        bounds."""
        return None

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float] | None:
        """Bounds of |gradient| and hessian of a row of weight 1 after its margin has moved by at most `step`,
        from those before; None if they imply none."""
        return None

    @property
    def quantile(self) -> float | None:
        """The quantile of the residuals in a leaf that is its value; None if the value is a step along the
        gradient."""
        return None

    @property
    def default_metric(self) -> str:
        """The metric that XGBoost reports for this objective by default."""
        return self.metrics[0]

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        own = fields(self) if self.xgboost_table else ()  # type: ignore[arg-type]  # a dataclass
        values = {each.name: xgboost_text(getattr(self, each.name)) for each in own}
        return {self.xgboost_table: values} if self.xgboost_table else {}

    @property
    def xgboost_equivalent(self) -> "Objective":
        """The XGBoost objective with the same predictions that the model file names: another one if XGBoost
        does not have this one."""
        return self

    @property
    def start(self) -> HasGradients:
        """The objective whose gradients determine the initial constant: this one, or one whose best constant
        is a single step away."""
        return self

    @abstractmethod
    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """First and second derivative of the loss: see `HasGradients`."""

    def base_score(self, gradient: float, hessian: float) -> float:
        """The constant prediction, from the sums of the gradients and hessians of `start` at margin 0."""
        return float(self.predict(np.array([-gradient / hessian]))[0])

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        """The number added to every base margin, from those sums at the base margins."""
        return -gradient / hessian

    def margin(self, score: float) -> float:
        return self.link.margin(score, self.name)

    def predict(self, margin: Float64) -> Float64:
        """The prediction of each row: float64 [N], or [N, outputs]."""
        return self.link.predict(margin)

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        """The first row with an invalid label for this objective, and which labels are valid."""
        return first_beyond(label, self.label_kind)

    def typical_row(self, bound: Bound) -> tuple[float, float]:
        """If there is a bound: the standard deviation of the gradient, and the hessian, of a row whose
        prediction is undecided and whose label is uniform over its range."""
        return bound.clip / math.sqrt(3.0), 1.0


def xgboost_text(value: float | str) -> str:
    """A parameter as in XGBoost's model file; a number as the shortest decimal that reads back as it."""
    return (
        str(value) if isinstance(value, str | int) else str(int(value)) if value.is_integer() else repr(value)
    )
