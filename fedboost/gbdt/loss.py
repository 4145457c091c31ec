"""Objectives: gradient, hessian, their public bounds, and the way between margin and prediction.

Promises: gradients are the same bits on every CPU (built on `kernels`); the bound of a gradient, where a
loss has one, holds for every row whatever its label says.
Refuses: labels an objective cannot have.
(Those whose prediction is e**margin are in `rates` and `times`, those of quantiles in `ranks`, those that
rank rows in `lambdarank`.)
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.kernels.elementwise import logs, sigmoids
from fedboost.gbdt.kernels.objectives import (
    logistic_gradients,
    pseudo_huber_gradients,
    softmax_gradients,
    softmaxes,
)
from fedboost.gbdt.labels import beyond, first
from fedboost.gbdt.lambdarank import RankNdcg, RankPairwise
from fedboost.gbdt.ranks import AbsoluteError, QuantileError
from fedboost.gbdt.rates import Gamma, Poisson, Tweedie
from fedboost.gbdt.rates import written as _written
from fedboost.gbdt.times import AcceleratedFailureTime

GRADIENT_BITS = 16
MOST_NEWTON_STEP = 4.0
"""From base margins in one step: beyond, where the loss bends, such steps go too far."""


class Slopes(Protocol):
    """What has a gradient. Margins are float64 [N], or [outputs, N] where a row has several; weights float32
    [N]; labels float32 [N], or [2, N] where they are intervals."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """First and second derivative of the loss in each margin, times the weight: as the margins."""
        ...


_Any = TypeVar("_Any", bound=Slopes)


class Loss(Slopes, Protocol):
    """One objective; its fields are parameters of the terms."""

    @property
    def name(self) -> str:
        """As the terms and XGBoost name it."""
        ...

    @property
    def outputs(self) -> int:
        """Margins of a row, each with trees of its own."""
        ...

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str] | str]:
        """Its parameters in XGBoost's model file; of one that XGBoost does not have, also the `name` of one
        that predicts the same."""
        ...

    @property
    def metric(self) -> str:
        """The metric XGBoost reports for this objective unless told otherwise."""
        ...

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Binary exponents bounding |gradient| and hessian of a row of weight 1; None if nothing does."""
        ...

    @property
    def gradient_bits(self) -> int:
        """Bits of a row's gradient and hessian unless the terms say otherwise: more where gradients of a few
        rows are far beyond those of most."""
        ...

    @property
    def quantile(self) -> float | None:
        """Which quantile of the residuals in it a leaf's value is; None where that is a step along the
        gradient."""
        ...

    @property
    def start(self) -> Slopes:
        """The objective from whose gradients the constant to start from is found: this one, or one whose
        best constant is a single step away."""
        ...

    def base_score(self, gradient: float, hessian: float) -> float:
        """The constant prediction, from the sums of gradients and hessians of `start` at margin 0."""
        ...

    def shift(self, gradient: float, hessian: float) -> float:
        """What is added to every base margin, from those sums at the base margins."""
        ...

    def margin(self, score: float) -> float:
        """The margin of a prediction."""
        ...

    def predict(self, margin: Float64) -> Float64:
        """The prediction of each row: float64 [N], or [N, outputs]."""
        ...

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        """The first row whose label this objective cannot have, and what it takes instead."""
        ...


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
class SquaredError:
    """reg:squarederror: any finite label, prediction the conditional mean."""

    name: ClassVar = "reg:squarederror"
    outputs: ClassVar = 1
    in_xgboost: ClassVar = {"reg_loss_param": {"scale_pos_weight": "1"}}
    metric: ClassVar = "rmse"
    bounds: ClassVar = None
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None

    @property
    def start(self) -> "Loss":
        return self

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        hessian = weight.astype(np.float64)
        return hessian * (margin - label), hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        return -gradient / hessian

    def shift(self, gradient: float, hessian: float) -> float:
        return -gradient / hessian

    def margin(self, score: float) -> float:
        return score

    def predict(self, margin: Float64) -> Float64:
        return margin

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return beyond(label)


@dataclass(frozen=True)
class PseudoHuber:
    """reg:pseudohubererror: any finite label; squared error near it, a slope of huber_slope far off."""

    huber_slope: float = 1.0

    name: ClassVar = "reg:pseudohubererror"
    outputs: ClassVar = 1
    metric: ClassVar = "mphe"
    bounds: ClassVar = None
    """The slope bounds the gradient, but residuals may be far smaller."""
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None
    start: ClassVar = SquaredError()
    """The mean: a Newton step from a margin far from the labels goes many times too far."""

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        return {"pseudo_huber_param": {"huber_slope": _written(self.huber_slope)}}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = pseudo_huber_gradients(margin, label, weight, self.huber_slope)
        return gradient, hessian

    def base_score(self, gradient: float, hessian: float) -> float:
        return -gradient / hessian

    def shift(self, gradient: float, hessian: float) -> float:
        return -gradient / hessian

    def margin(self, score: float) -> float:
        return score

    def predict(self, margin: Float64) -> Float64:
        return margin

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return beyond(label)


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


Kind = (
    type[Logistic]
    | type[SquaredError]
    | type[PseudoHuber]
    | type[AbsoluteError]
    | type[QuantileError]
    | type[Poisson]
    | type[Gamma]
    | type[Tweedie]
    | type[AcceleratedFailureTime]
    | type[Softmax]
    | type[RankNdcg]
    | type[RankPairwise]
)
_KINDS: tuple[Kind, ...] = (
    Logistic,
    SquaredError,
    PseudoHuber,
    AbsoluteError,
    QuantileError,
    Poisson,
    Gamma,
    Tweedie,
    AcceleratedFailureTime,
    Softmax,
    RankNdcg,
    RankPairwise,
)
LOSSES: dict[str, Kind] = {kind.name: kind for kind in _KINDS}


def in_groups(loss: _Any, starts: Int64 | None) -> _Any:
    """The objective for rows of these groups, if it ranks rows; any other as it is."""
    return replace(loss, starts=starts) if isinstance(loss, RankNdcg | RankPairwise) else loss


def _parameters(name: str) -> list[Field[Any]]:
    """What an objective is compared by: a field that is not is no parameter."""
    return [one for one in fields(LOSSES[name]) if one.compare]


def parameters_of(name: str) -> dict[str, bool]:
    """The parameters of the objective of that name, and whether they must be given."""
    return {one.name: one.default is MISSING for one in _parameters(name)}


def loss_of(name: str, parameters: Mapping[str, object]) -> Loss:
    """The objective of that name, with those of the parameters that are its own and not None. LookupError,
    TypeError or ValueError if it lacks one, or for what is none."""
    own = {one.name: (one.type, parameters.get(one.name)) for one in _parameters(name)}
    kinds = {key: (kind, value) for key, (kind, value) in own.items() if value is not None}
    return LOSSES[name](**{key: number(kind, value) for key, (kind, value) in kinds.items()})


def number(kind: object, value: object) -> Any:
    """A parameter of this kind (int, float, bool, str) from how it was written. ValueError if it is none."""
    if kind is str:
        return str(value)
    if kind is bool:
        return bool(("False", "True", "0", "1").index(str(value)) % 2)  # in the terms and in XGBoost's file
    return int(str(value)) if kind is int else float(str(value).strip("[]"))  # XGBoost writes some as lists
