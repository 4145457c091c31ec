"""Objectives that rank: rows of a group are compared with each other, and with no others (LambdaMART).

Promises: as `objective`. The gradients of a group depend on its own rows alone, and on their order only where
margins are equal: then a row comes before those behind it in the table. The formulas are XGBoost's (Burges,
MSR-TR-2010-82; pairs of the top by margin with all below them), but that weights of groups count as they are,
and are not divided by their mean, which no party knows.
Refuses: labels that are no relevance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.kernels.objectives import lambda_gradients
from fedboost.gbdt.objectives.objective import (
    AMOUNT_BITS,
    HasGradients,
    LabelKind,
    Objective,
    first,
    first_below_zero,
)

MAX_RELEVANCE = 31
"""Largest label y whose gain is 2**y - 1."""
MAX_PAIRS = 1 << 20
"""Rows at the top of a group that make pairs."""
_Loss = TypeVar("_Loss", bound=HasGradients)


@dataclass(frozen=True)
class Ranking(Objective):
    """Base: label the relevance of a row, prediction a score to sort the rows of a group by.

    Rows at the top of a group are in pairs with all others, those in turn with the top alone: in groups of
    thousands the gradients of most rows are a thousandth of those of a few.
    """

    lambdarank_pair_method: str = "topk"
    lambdarank_num_pair_per_sample: int = 32
    """The rows of a group, those of the highest margins, that make pairs with all below them."""
    lambdarank_normalization: bool = True
    """Scale the gradients of a group down, the more the larger their sum is."""
    lambdarank_score_normalization: bool = True
    """Let pairs count less the further apart their margins are."""
    ndcg_exp_gain: bool = True
    """Make 2**y - 1 the gain of a label y, else y."""
    starts: Int64 | None = field(default=None, compare=False, repr=False)
    """The first row of each group, and the end of the last one: int64 [groups + 1]; None if all rows are one
    group. No parameter (`in_groups`)."""

    label_kind = LabelKind.RELEVANCE
    metrics = ("ndcg",)
    gradient_bits = AMOUNT_BITS
    by_ndcg: ClassVar[bool]
    """Let a pair count by the change of its group's NDCG if the two changed places; else all count alike."""

    @property
    def default_metric(self) -> str:
        return f"ndcg@{self.lambdarank_num_pair_per_sample}"

    @property
    def xgboost_params(self) -> Mapping[str, Mapping[str, str]]:
        params = {
            "lambdarank_bias_norm": "1",
            "lambdarank_normalization": f"{self.lambdarank_normalization:d}",
            "lambdarank_num_pair_per_sample": f"{self.lambdarank_num_pair_per_sample}",
            "lambdarank_pair_method": self.lambdarank_pair_method,
            "lambdarank_score_normalization": f"{self.lambdarank_score_normalization:d}",
            "lambdarank_unbiased": "0",
            "ndcg_exp_gain": f"{self.ndcg_exp_gain:d}",
        }
        return {"lambdarank_param": params}

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        gradient, hessian = lambda_gradients(
            margin,
            label,
            self.gains(label),
            weight,
            self.group_starts(label.size),
            self.lambdarank_num_pair_per_sample,
            self.by_ndcg,
            self.lambdarank_score_normalization,
            self.lambdarank_normalization,
        )
        return gradient, hessian

    def group_starts(self, rows: int) -> Int64:
        """The first row of each group among N rows, and N."""
        return np.array([0, rows], np.int64) if self.starts is None else self.starts

    def gains(self, label: Float32) -> Float64:
        """The part of each row in the DCG of its group at the very top: float64 [N]."""
        if not self.ndcg_exp_gain:
            return label.astype(np.float64)
        out: Float64 = np.ldexp(1.0, label.astype(np.int64)) - 1.0
        return out

    def base_score(self, gradient: float, hessian: float) -> float:
        return 0.0  # the gradients of a group sum to 0 whatever the constant

    def base_margin_shift(self, gradient: float, hessian: float) -> float:
        return 0.0

    def first_invalid_label(self, label: Float32) -> tuple[int, str] | None:
        if not self.ndcg_exp_gain:
            return first_below_zero(label)
        valid = (label >= 0) & (label <= MAX_RELEVANCE) & (label == np.floor(label))
        return first(
            ~valid,
            f"whole numbers from 0 to {MAX_RELEVANCE}; with ndcg_exp_gain = false any numbers from 0 on",
        )


@dataclass(frozen=True)
class RankNdcg(Ranking):
    """rank:ndcg: pairs count by the change of the NDCG."""

    name = "rank:ndcg"
    by_ndcg = True


@dataclass(frozen=True)
class RankPairwise(Ranking):
    """rank:pairwise: all pairs count alike; ndcg_exp_gain is of the metric."""

    name = "rank:pairwise"
    by_ndcg = False


BUILT_IN = RankNdcg, RankPairwise


def in_groups(loss: _Loss, starts: Int64 | None) -> _Loss:
    """The objective for rows of these groups, if it ranks rows; any other as it is."""
    return replace(loss, starts=starts) if isinstance(loss, Ranking) else loss
