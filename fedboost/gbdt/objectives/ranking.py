"""Objectives that rank: rows of a group are compared with each other, and with no others (LambdaMART).

Promises: as `objective`. The gradients of a group depend on its own rows alone, and on their order only where
margins are equal: then a row comes before those behind it in the table. The formulas are XGBoost's (Burges,
MSR-TR-2010-82; pairs of the top by margin with all below them), but that weights of groups count as they are,
and are not divided by their mean, which no party knows.
Refuses: labels that are no relevance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt.kernels.ranking import lambda_gradients
from fedboost.gbdt.objectives.labels import below_zero, first

GRADIENT_BITS = 24
"""Rows at the top of a group are in pairs with all others, those in turn with the top alone: in groups of
thousands the gradients of most rows are a thousandth of those of a few."""
HIGHEST_RELEVANCE = 31
"""Of labels y whose gain is 2**y - 1."""
MOST_PAIRS = 1 << 20
"""Rows at the top of a group that make pairs."""


@dataclass(frozen=True)
class RankNdcg:
    """rank:ndcg: label the relevance of a row, prediction a score to sort the rows of a group by; a pair
    counts by how much the NDCG of its group would change if the two changed places."""

    lambdarank_pair_method: str = "topk"
    lambdarank_num_pair_per_sample: int = 32
    """So many rows of a group, those of the highest margins, make pairs with all below them."""
    lambdarank_normalization: bool = True
    """Whether the gradients of a group are scaled down the more the larger their sum is."""
    lambdarank_score_normalization: bool = True
    """Whether pairs count less the further apart their margins are."""
    ndcg_exp_gain: bool = True
    """Whether the gain of a label y is 2**y - 1, else y."""
    starts: Int64 | None = field(default=None, compare=False, repr=False)
    """Where each group begins among the rows that are given, and the last one ends: int64 [groups + 1]; None
    if all are one group. No parameter (`registry.in_groups`)."""

    name: ClassVar = "rank:ndcg"
    outputs: ClassVar = 1
    bounds: ClassVar = None
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        return _written(self)

    @property
    def metric(self) -> str:
        return f"ndcg@{self.lambdarank_num_pair_per_sample}"

    @property
    def start(self) -> Self:
        return self

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        return _gradients(self, True, margin, label, weight)

    def base_score(self, gradient: float, hessian: float) -> float:
        return 0.0  # the gradients of a group sum to 0 whatever the constant

    def shift(self, gradient: float, hessian: float) -> float:
        return 0.0

    def margin(self, score: float) -> float:
        return score

    def predict(self, margin: Float64) -> Float64:
        return margin

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return _bad_label(self, label)


@dataclass(frozen=True)
class RankPairwise:
    """rank:pairwise: as rank:ndcg, but all pairs count alike."""

    lambdarank_pair_method: str = "topk"
    lambdarank_num_pair_per_sample: int = 32
    lambdarank_normalization: bool = True
    lambdarank_score_normalization: bool = True
    ndcg_exp_gain: bool = True
    """Of the metric."""
    starts: Int64 | None = field(default=None, compare=False, repr=False)

    name: ClassVar = "rank:pairwise"
    outputs: ClassVar = 1
    bounds: ClassVar = None
    gradient_bits: ClassVar = GRADIENT_BITS
    quantile: ClassVar = None

    @property
    def in_xgboost(self) -> Mapping[str, Mapping[str, str]]:
        return _written(self)

    @property
    def metric(self) -> str:
        return f"ndcg@{self.lambdarank_num_pair_per_sample}"

    @property
    def start(self) -> Self:
        return self

    def gradients(self, margin: Float64, label: Float32, weight: Float32) -> tuple[Float64, Float64]:
        return _gradients(self, False, margin, label, weight)

    def base_score(self, gradient: float, hessian: float) -> float:
        return 0.0

    def shift(self, gradient: float, hessian: float) -> float:
        return 0.0

    def margin(self, score: float) -> float:
        return score

    def predict(self, margin: Float64) -> Float64:
        return margin

    def bad_label(self, label: Float32) -> tuple[int, str] | None:
        return _bad_label(self, label)


Ranking = RankNdcg | RankPairwise
RANKINGS = (RankNdcg.name, RankPairwise.name)


def starts_of(loss: Ranking, rows: int) -> Int64:
    """Where each group begins among so many rows, and the last one ends."""
    return np.array([0, rows], np.int64) if loss.starts is None else loss.starts


def gains(loss: Ranking, label: Float32) -> Float64:
    """What each row adds to the DCG of its group at the very top: float64 [N]."""
    if not loss.ndcg_exp_gain:
        return label.astype(np.float64)
    out: Float64 = np.ldexp(1.0, label.astype(np.int64)) - 1.0
    return out


def _gradients(
    loss: Ranking, by_ndcg: bool, margin: Float64, label: Float32, weight: Float32
) -> tuple[Float64, Float64]:
    gradient, hessian = lambda_gradients(
        margin,
        label,
        gains(loss, label),
        weight,
        starts_of(loss, label.size),
        loss.lambdarank_num_pair_per_sample,
        by_ndcg,
        loss.lambdarank_score_normalization,
        loss.lambdarank_normalization,
    )
    return gradient, hessian


def _written(loss: Ranking) -> Mapping[str, Mapping[str, str]]:
    of_pairs = {
        "lambdarank_bias_norm": "1",
        "lambdarank_normalization": f"{loss.lambdarank_normalization:d}",
        "lambdarank_num_pair_per_sample": f"{loss.lambdarank_num_pair_per_sample}",
        "lambdarank_pair_method": loss.lambdarank_pair_method,
        "lambdarank_score_normalization": f"{loss.lambdarank_score_normalization:d}",
        "lambdarank_unbiased": "0",
        "ndcg_exp_gain": f"{loss.ndcg_exp_gain:d}",
    }
    return {"lambdarank_param": of_pairs}


def _bad_label(loss: Ranking, label: Float32) -> tuple[int, str] | None:
    if not loss.ndcg_exp_gain:
        return below_zero(label)
    known = (label >= 0) & (label <= HIGHEST_RELEVANCE) & (label == np.floor(label))
    takes = f"whole numbers from 0 to {HIGHEST_RELEVANCE}; with ndcg_exp_gain = false any numbers from 0 on"
    return first(~known, takes)
