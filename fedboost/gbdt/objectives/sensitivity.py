"""What of a row enters a sum that gets noise: a gradient and a hessian whose joint size is bounded.

Promises: whatever a row says, its integers (gradient, hessian, of all outputs together) have a Euclidean norm
of at most `UNITS * sensitivity`; rounding is toward zero, so it never adds to that. The bounds are proved at
each objective and held by a property test.
Refuses: objectives without such a bound (ConfigError).
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
        """What a sum of gradients stands for."""
        return units / UNITS * self.clip

    def hessian(self, units: float) -> float:
        """What a sum of hessians stands for."""
        return units / UNITS * self.hessian_clip / self.weight


def bound_of(objective: str, label_range: tuple[float, float] | None) -> Bound:
    """The bound of an objective; of some it follows from the declared range of the labels.

    binary:logistic: with gradient p - y and hessian h = p (1 - p) the norm of (p - y, S h) is at most
    max over p of p**2 (1 + S**2 (1 - p)**2), which is 1 as long as S <= phi**(5/2) = 3.3302.
    multi:softprob: the gradients (p - y) have at most the norm sqrt 2, only where some p is 1 and all
    hessians are 0; with S = 2 the norm is at most sqrt 2 everywhere. Its hessian here is 2 p (1 - p).
    Clipped ones: (g / C, S h / C) with both quotients clipped to 1 has at most the norm sqrt(1 + S**2).
    """
    if objective == "binary:logistic":
        return Bound(3.33, 1.0, 0.5)
    if objective == "multi:softprob":
        return Bound(1.0, 2.0**0.5, 0.5)
    if label_range is None:
        raise ConfigError(f"{objective} has no bound without columns.label_range")
    low, high = label_range
    if objective == "reg:squarederror":
        return Bound(0.5, 1.25**0.5, (low + high) / 2.0, (high - low) / 2.0)
    if objective == "count:poisson":
        return Bound(0.5, 1.25**0.5, (low + high) / 8.0, high - low, high - low)
    raise ConfigError(f"{objective} has no bound")


OBJECTIVES: Mapping[str, bool] = {
    "binary:logistic": False,
    "multi:softprob": False,
    "reg:squarederror": True,
    "count:poisson": True,
}
"""Those with a bound, and whether it follows from the range of labels."""
