"""One objective for several models that train side by side: each has a margin of its own for every row.

Promises: the gradients of each model are those of the objective at its own margins.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.objectives.objective import HasGradients, Objective

_FACTS = (
    *("name", "label_kind", "metrics", "link", "gradient_bits", "classes_key", "rows_per_hessian"),
    "sensitivity",
)


@dataclass(frozen=True)
class Trials(Objective):
    """The objective `base`, of one output, for so many models. Margins are float64 [number, N]."""

    base: Any
    """An `Objective`, or what boosting starts from."""
    number: int

    def __post_init__(self) -> None:
        for fact in _FACTS:
            object.__setattr__(self, fact, getattr(self.base, fact, None))

    @property
    def outputs(self) -> int:
        """One a model."""
        return self.number

    @property
    def default_metric(self) -> str:
        """That of the objective."""
        name: str = self.base.default_metric
        return name

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Those of the objective."""
        bounds: tuple[int, int] | None = self.base.bounds
        return bounds

    @property
    def quantile(self) -> float | None:
        """That of the objective."""
        quantile: float | None = self.base.quantile
        return quantile

    def bounds_after(self, gradient: float, hessian: float, step: float) -> tuple[float, float] | None:
        """Those of the objective."""
        bounds: tuple[float, float] | None = self.base.bounds_after(gradient, hessian, step)
        return bounds

    @property
    def xgboost_equivalent(self) -> Objective:
        """That of the objective."""
        equivalent: Objective = self.base.xgboost_equivalent
        return equivalent

    @property
    def start(self) -> HasGradients:
        """What the objective starts from, for all models."""
        return self if self.base.start is self.base else Trials(self.base.start, self.number)

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        """Gradients and hessians, float64 [number, N] each."""
        both = [self.base.gradients(own, label, weight) for own in margin]
        return np.stack([gradient for gradient, _ in both]), np.stack([hessian for _, hessian in both])

    def base_score(self, gradient: float, hessian: float) -> float:
        """That of the objective: all models start from one constant."""
        score: float = self.base.base_score(gradient, hessian)
        return score
