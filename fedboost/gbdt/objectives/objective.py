"""The contract of an objective."""

from collections.abc import Mapping
from typing import Protocol

from fedboost.fixedpoint import Float32, Float64


class Slopes(Protocol):
    """What has a gradient. Margins are float64 [N], or [outputs, N] where a row has several; weights float32
    [N]; labels float32 [N], or [2, N] where they are intervals."""

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """First and second derivative of the loss in each margin, times the weight: as the margins."""
        ...


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
