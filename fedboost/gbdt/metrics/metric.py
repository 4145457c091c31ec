"""The contract of a metric, and means of a number of each row."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels.fixedpoint import LIMB_BITS, LIMBS, LIMBS_FROM, add_limbs, sum_units
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.objectives.trials import Trials

METRIC_BITS = 32


class Metric(Protocol):
    """A metric. `sums` is computed at a party, `value` from the total at the aggregator; `weight` is the
    public scale of row weights."""

    @property
    def grows(self) -> bool:
        """True if more of it is better."""
        ...

    @property
    def cells(self) -> int:
        """Integers of `sums`."""
        ...

    @property
    def signed(self) -> bool:
        """True if the sums can be below 0."""
        ...

    def limit(self, weight: Scale) -> int:
        """Largest magnitude of an integer that a row contributes."""
        ...

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        """This party's integers: int64 [cells]."""
        ...

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        """The metric, from the total of all parties and the sum of row weights."""
        ...


@dataclass(frozen=True)
class BoundedLoss:
    """Mean of a loss that is below 2**10, or taken for that; resolution 2**-21 a row."""

    losses: Callable[[Float64, Float32, Float32], Float64]
    """The loss times the weight of each row, from margins, labels and weights."""

    grows = False
    cells = 1
    signed = False

    def limit(self, weight: Scale) -> int:
        return 1 << (METRIC_BITS - 1)

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        return encoded_sum(_scale_of_losses(weight.exponent), self.losses(margin, label, weights))

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return _scale_of_losses(weight.exponent).decode(int(total[0])) / weights


@dataclass(frozen=True)
class Mean:
    """Mean of a number of each row, of any size."""

    losses: Callable[[Objective, Float64, Float32], Float64]
    """The number of each row, from margins and labels: float64 [rows]."""
    signed: bool = False
    grows: bool = False
    transform: Callable[[float], float] = float
    """The metric, from the mean."""
    cap: float = math.inf
    """The largest magnitude that a number counts with."""

    cells = LIMBS

    def limit(self, weight: Scale) -> int:
        return 1 << LIMB_BITS

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        out = np.zeros(self.cells, np.int64)
        with np.errstate(over="ignore"):  # what is infinite counts as the largest that limbs take
            losses = self.losses(loss, margin, label)
            add_limbs(losses if self.cap == math.inf else losses.clip(-self.cap, self.cap), weights, out)
        return out

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        units = sum(int(limb) << LIMB_BITS * number for number, limb in enumerate(total))
        return self.transform(math.ldexp(float(units), LIMBS_FROM) / weights)


@cache
def _scale_of_losses(weight_exponent: int) -> Scale:
    """The scale of the losses of a `BoundedLoss`, by the exponent of the scale of weights."""
    return Scale(weight_exponent + 10, METRIC_BITS)


def encoded_sum(scale: Scale, values: Float64 | Float32) -> Int64:
    """The sum of the values in units of the scale, as the one integer of a vector."""
    return np.array([sum_units(values, scale.factor, float(scale.limit))], np.int64)


OF_TRIAL = "/"
"""Separates the number of a model from the metric, where several train side by side."""


@dataclass(frozen=True)
class OfTrial:
    """A metric of one of the models that train side by side (`objectives.trials`)."""

    metric: Metric
    number: int

    @property
    def grows(self) -> bool:
        """True if more of it is better."""
        return self.metric.grows

    @property
    def cells(self) -> int:
        """Those of the metric."""
        return self.metric.cells

    @property
    def signed(self) -> bool:
        """True if the sums can be below 0."""
        return self.metric.signed

    def limit(self, weight: Scale) -> int:
        """That of the metric."""
        return self.metric.limit(weight)

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        """Those of the metric at the margins of the model."""
        own: Objective = loss.base if isinstance(loss, Trials) else loss
        return self.metric.sums(own, margin[self.number], label, weights, weight)

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        """That of the metric."""
        return self.metric.value(total, weights, weight)
