"""NDCG: how well the rows of a group are sorted."""

import math
import re
from dataclasses import dataclass

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.kernels.ranking import ndcgs
from fedboost.gbdt.metrics.metric import METRIC_BITS, encoded_sum
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.objectives.ranking import Ranking

NDCG_NAME = re.compile(r"ndcg(?:@([1-9][0-9]{0,8}))?(-?)")


@dataclass(frozen=True)
class Ndcg:
    """Mean over the groups of the NDCG of their first rows by margin; a group weighs what its rows do.
    Resolution 2**-31 a group."""

    top: int | None = None
    """Rows of each group that count, None for all."""
    without: float = 1.0
    """The NDCG of a group whose labels all are 0."""

    grows = True
    cells = 2
    signed = False

    def limit(self, weight: Scale) -> int:
        return self._scale(weight).limit

    def _scale(self, weight: Scale) -> Scale:
        return Scale(weight.exponent, METRIC_BITS)

    def sums(
        self, loss: Objective, margin: Float64, label: Float32, weights: Float32, weight: Scale
    ) -> Int64:
        assert isinstance(loss, Ranking)
        starts, scale = loss.group_starts(label.size), self._scale(weight)
        values = ndcgs(margin, loss.gains(label), starts, self.top or label.size, self.without)
        group_weights = weights[starts[:-1]]
        return np.concatenate([encoded_sum(scale, group_weights * values), encoded_sum(scale, group_weights)])

    def weights(self, total: Int64, weight: Scale) -> float:
        """The weights of the groups."""
        return self._scale(weight).decode(int(total[1]))

    def value(self, total: Int64, weights: float, weight: Scale) -> float:
        return int(total[0]) / int(total[1]) if total[1] else math.nan
