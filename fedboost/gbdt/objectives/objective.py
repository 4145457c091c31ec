"""The interface of objectives: gradients, the constant to start from, and further properties.

Guarantees: gradients are bit-identical on all CPUs, because they are computed by `kernels`. If an objective
states a bound for its gradients, the bound holds for every row, whatever its label. Everything that other
modules need to know about an objective is a property with a default value, so no other module lists
objectives by name."""

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
from fedboost.gbdt.kernels.histogram import quantise_bounded, quantise_scaled
from fedboost.gbdt.kernels.objectives import exps, logs, sigmoids, softmaxes

# ---- Labels: their kinds, how large they may be, and the first one that is invalid for an objective -----
# These functions return the row; the reader of the table writes the error.


MAX_LABEL = math.ldexp(1.0, 60)
"""Upper bound for labels, weights and their inverses, so that exponent counts can bound the gradients."""


class LabelKind(Enum):
    NUMBER = "number"
    """Numbers of any size and sign."""
    COUNT = "count"
    """Numbers that are at least 0: counts, or amounts that may be 0."""
    POSITIVE = "positive"
    """Numbers above 0."""
    CLASS = "class"
    """Class numbers, starting at 0."""
    INTERVAL = "interval"
    """Intervals, whose lower and upper bounds are in two columns."""
    RELEVANCE = "relevance"
    """Relevance of a row within its group, for ranking."""


_LOWEST = {
    LabelKind.COUNT: (0.0, "a number from 0 to 2**60"),
    LabelKind.POSITIVE: (1.0 / MAX_LABEL, "a number above 0, up to 2**60"),
}


def first_beyond(label: Float32, kind: LabelKind) -> tuple[int, str] | None:
    """Find the first label that is not a valid number of this kind. Returns its row and a description of
    valid labels, or None if all labels are valid. label: float32 [N]."""
    lowest, valid_labels = _LOWEST.get(kind, (-MAX_LABEL, "a number of magnitude at most 2**60"))
    return first(~((label >= lowest) & (label <= MAX_LABEL)), valid_labels)


def first(invalid: npt.NDArray[np.bool_], valid_labels: str) -> tuple[int, str] | None:
    """Return the first row where `invalid`, bool [N], is True, and `valid_labels`; None if there is none."""
    rows = np.flatnonzero(invalid)
    return (int(rows[0]), valid_labels) if rows.size else None


# ---- Links: functions between the margin of a row and its prediction ------------------------------------
# Guarantees: `margin` and `predict` return the same bits on every CPU; `margin` is the float32 that XGBoost
# computes from a base score. A score that no margin gives raises ConfigError.


@dataclass(frozen=True)
class Link:
    """Link between a row's margin and its prediction. This base class is the identity."""

    def margin(self, score: float, objective: str) -> float:
        """Return the margin that corresponds to a prediction. score: the prediction; objective: the
        objective's name, for error messages. Raises ConfigError if no margin gives this prediction."""
        return score

    def predict(self, margin: Float64) -> Float64:
        """Return each row's prediction: float64 [N], or [N, outputs] for margins of shape [outputs, N]."""
        return margin


class LogLink(Link):
    """Logarithmic link: the prediction is e**margin."""

    def margin(self, score: float, objective: str) -> float:
        if not 0.0 < score < math.inf:
            raise ConfigError("base-score-range", f"base_score {score} must be above 0 for {objective}")
        return _log(np.float32(score))

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = exps(margin)
        return out


class LogitLink(Link):
    """Logistic link: the prediction is the probability 1 / (1 + e**-margin)."""

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
    """Softmax link: turns the margins of a row's classes into probabilities that sum to 1."""

    def predict(self, margin: Float64) -> Float64:
        out: Float64 = softmaxes(margin)
        return out


IDENTITY, LOG, LOGIT, SOFTMAX = Link(), LogLink(), LogitLink(), SoftmaxLink()


def _log(value: np.float32) -> float:
    return float(np.float32(logs(np.array([value], np.float64))[0]))


# ---- A row's contribution to sums that get noise: gradient and hessian with a joint bound ---------------
# Guarantees: for every possible row, its integers (gradient and hessian of all outputs) have a Euclidean norm
# of at most `UNITS * sensitivity`; rounding is toward zero, so it never increases the norm. The bounds are
# proved at each objective and checked by a property test. Objectives without a bound raise ConfigError.


NOISE_BITS = 21
SCALE = Scale(0, NOISE_BITS)
UNITS = SCALE.limit
"""Integer that encodes the largest possible gradient."""


@dataclass(frozen=True)
class Bound:
    """Bound for one row's contribution to sums with noise.

    A row contributes gradient / clip and hessian / hessian_clip, both clipped to 1 in magnitude. The clipped
    hessian is then multiplied by `weight`. sensitivity: largest Euclidean norm of a row's contributions over
    all outputs; start: prediction from which boosting starts; is_scaled: True if a row's gradient p - y and
    hessian are instead multiplied by 1 / sqrt(max(p, 1 - p)**2 + hessian**2), so that each row uses the whole
    sensitivity. Rows with the same prediction have the same factor, so a Newton step of theirs is the
    same."""

    weight: float
    sensitivity: float
    start: float
    clip: float = 1.0
    hessian_clip: float = 1.0
    is_scaled: bool = False

    def quantise(self, gradient: Float64, hessian: Float64, out: Int64) -> None:
        """Write each row's contribution to `out`, int64 [N], as (gradient << 32) + hessian. Both are
        fixed-point numbers with scale `SCALE`. gradient, hessian: float64 [N]."""
        if self.is_scaled:
            quantise_scaled(gradient, hessian, float(UNITS), out)
            return
        quantise_bounded(
            gradient, hessian, 1.0 / self.clip, 1.0 / self.hessian_clip, self.weight, float(UNITS), out
        )

    def gradient(self, units: float) -> float:
        return units / UNITS * self.clip

    def hessian(self, units: float) -> float:
        return units / UNITS * self.hessian_clip / self.weight


@dataclass(frozen=True)
class Sensitivity:
    """An objective's bound, or a function of the lowest and the highest possible label that returns it."""

    bound: Bound | Callable[[float, float], Bound]

    @property
    def needs_label_range(self) -> bool:
        """True if the bound depends on the declared range of the labels."""
        return not isinstance(self.bound, Bound)


def bound_of(objective: "Objective", label_range: tuple[float, float] | None) -> Bound:
    """Return an objective's bound for labels in this range. Raises ConfigError if the objective has no bound,
    or if its bound requires a range and label_range is None."""
    if objective.sensitivity is None:
        raise ConfigError(
            "objective-no-bound",
            f"objective {objective.name} has no bound on a row's influence; with noise, use a different "
            f"objective",
        )
    bound = objective.sensitivity.bound
    if isinstance(bound, Bound):
        return bound
    if label_range is None:
        raise ConfigError(
            "label-range-missing",
            f"objective {objective.name} has no bound on a row's influence unless columns.label_range is set",
        )
    return bound(*label_range)


# ---- The contract of an objective: gradients, the constant to start from, and facts ---------------------


AMOUNT_BITS = 24
"""Number of bits of gradients for objectives in which a few rows may have gradients ten thousand times larger
than usual. The usual gradients must not be rounded to 0."""


ROUNDING = 2.0**-30
"""Upper bound for the relative rounding error of any gradient."""


class HasGradients(Protocol):
    """Protocol of a loss that has gradients. Margins are float64 [N], or [outputs, N] if there are several
    outputs; weights are float32 [N]; labels are float32 [N], or [2, N] if they are intervals."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """Compute the first and second derivatives of the loss with respect to each margin, multiplied by the
        weight. Returns two float64 arrays, shaped like `margin`."""


class Objective(ABC):
    """Base class of objectives: frozen dataclasses whose fields are the parameters that terms can set."""

    name: ClassVar[str]
    """Name in the terms and in XGBoost."""
    label_kind: ClassVar[LabelKind]
    metrics: ClassVar[tuple[str, ...]]
    """Names of the metrics that can be computed, the default first, including variants with a parameter."""
    link: ClassVar[Link] = IDENTITY
    gradient_bits: ClassVar[int] = 16
    """Number of bits of a row's gradient and hessian, unless set in the terms. More bits are needed if the
    gradients of a few rows are far larger than those of most rows."""
    classes_key: ClassVar[str | None] = None
    """Key in the [columns] table of the terms that lists the values of a class label (`positive` or
    `classes`); None for other labels."""
    rows_per_hessian: ClassVar[int | None] = None
    """Minimum number of weight-1 rows whose rounded hessians sum to at least 1; None if not guaranteed."""
    has_label_means: ClassVar[bool] = False
    """True if `base_score`, from the sums over some rows, is approximately the mean of their labels."""
    has_risk_sets: ClassVar[bool] = False
    """True if a row's gradient depends on all rows that are at risk at its time."""
    sensitivity: ClassVar[Sensitivity | None] = None
    """Bound for a row's contribution to sums with noise; None if there is none."""
    risk_sign: ClassVar[int] = 0
    """For survival times: 1 if rows with a higher margin have earlier events, -1 if later ones; otherwise
    0."""
    xgboost_table: ClassVar[str] = ""
    """Name of the table that contains the parameters in XGBoost's model file; empty if there is none."""

    @property
    def outputs(self) -> int:
        """Number of margins per row. Each output has its own trees."""
        return 1

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Exponents (g, h) such that |gradient| <= 2**g and hessian <= 2**h for every row with weight 1; None
        if there is no bound."""
        return None

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float] | None:
        """Bound |gradient| and the hessian of a row with weight 1 after its margin has changed by at most
        `step`.

        gradient, hessian: bounds before the change. Returns None if no bounds follow from these."""
        return None

    @property
    def quantile(self) -> float | None:
        """Quantile of a leaf's residuals used as the leaf's value; None if leaf values are Newton steps."""
        return None

    @property
    def default_metric(self) -> str:
        """Metric that XGBoost reports for this objective by default."""
        return self.metrics[0]

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        own = fields(self) if self.xgboost_table else ()  # type: ignore[arg-type]  # a dataclass
        values = {each.name: xgboost_text(getattr(self, each.name)) for each in own}
        return {self.xgboost_table: values} if self.xgboost_table else {}

    @property
    def xgboost_equivalent(self) -> "Objective":
        """XGBoost objective that is written to the model file and makes the same predictions. If XGBoost has
        this objective, the equivalent is the objective itself."""
        return self

    @property
    def start(self) -> HasGradients:
        """Loss whose gradients determine the initial constant: this objective, or a loss whose optimal
        constant is found in a single step."""
        return self

    @abstractmethod
    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """Compute the first and second derivatives of the loss (see `HasGradients`)."""

    def base_score(self, gradient: float, hessian: float) -> float:
        """Return the initial constant prediction. gradient, hessian: sums of the gradients and hessians of
        `start` at margin 0."""
        return float(self.predict(np.array([-gradient / hessian]))[0])

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        """Return the number to add to every base margin. gradient, hessian: sums of the gradients and
        hessians of `start` at the base margins."""
        return -gradient / hessian

    def margin(self, score: float) -> float:
        return self.link.margin(score, self.name)

    def predict(self, margin: Float64) -> Float64:
        """Return each row's prediction: float64 [N], or [N, outputs] for margins of shape [outputs, N]."""
        return self.link.predict(margin)

    def survival(self, time: float, margin: Float64) -> Float64 | None:
        """Return the probability of having no event until a time, for each margin: float64 [N]. Returns None
        if it depends on a baseline hazard, which the model does not have."""
        return None

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        """Find the first label that is invalid for this objective. Returns its row and a description of valid
        labels, or None if all labels are valid."""
        return first_beyond(label, self.label_kind)

    def typical_row(self, bound: Bound) -> tuple[float, float]:
        """Return the standard deviation of a typical row's gradient, and the row's hessian. A typical row has
        an undecided prediction and a label that is uniformly distributed over the label range. bound: the
        objective's bound."""
        return bound.clip / math.sqrt(3.0), 1.0


def xgboost_text(value: float | str) -> str:
    """Return the text of a parameter in XGBoost's model file. A number becomes the shortest decimal that
    reads back as the same number."""
    return (
        str(value) if isinstance(value, str | int) else str(int(value)) if value.is_integer() else repr(value)
    )
