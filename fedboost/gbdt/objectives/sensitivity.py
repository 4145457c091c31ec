"""The part of a row in sums that get noise: a gradient and a hessian whose joint size is bounded.

Promises: whatever a row holds, its integers (gradient and hessian of all outputs) have a Euclidean norm
of at most `UNITS * sensitivity`; rounding is toward zero, so it never adds to that. The bounds are proved at
each objective and held by a property test.
Refuses: objectives without such a bound (ConfigError).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float64, Int64, Scale
from fedboost.gbdt.kernels.fixedpoint import quantise_bounded

NOISE_BITS = 21
SCALE = Scale(0, NOISE_BITS)
UNITS = SCALE.limit
"""Integers of a gradient that is as large as can be."""


@dataclass(frozen=True)
class Bound:
    """A row's part of a sum: gradient / clip, and hessian / hessian_clip * weight; both clipped to 1 before.

    sensitivity: the largest norm of these numbers, over all outputs; start: the prediction that boosting
    starts from.
    """

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
        """The sum of gradients that these units stand for."""
        return units / UNITS * self.clip

    def hessian(self, units: float) -> float:
        """The sum of hessians that these units stand for."""
        return units / UNITS * self.hessian_clip / self.weight


@dataclass(frozen=True)
class Sensitivity:
    """The bound of an objective, or the function that gives it for the lowest and the highest label."""

    bound: Bound | Callable[[float, float], Bound]

    @property
    def needs_label_range(self) -> bool:
        """True if the bound follows from the declared range of the labels."""
        return not isinstance(self.bound, Bound)


class _Named(Protocol):
    """An objective, as `bound_of` takes it."""

    name: ClassVar[str]
    sensitivity: ClassVar[Sensitivity | None]


def bound_of(objective: _Named, label_range: tuple[float, float] | None) -> Bound:
    """The bound of an objective for labels of this range. ConfigError if it has none."""
    if objective.sensitivity is None:
        raise ConfigError(f"{objective.name} has no bound")
    bound = objective.sensitivity.bound
    if isinstance(bound, Bound):
        return bound
    if label_range is None:
        raise ConfigError(f"{objective.name} has no bound without columns.label_range")
    return bound(*label_range)
