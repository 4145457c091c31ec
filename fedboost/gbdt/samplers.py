"""Samplers of the rows that the trees of a round grow on; the other rows only move down the trees.

Promises: a sample follows from the keys of the rows, the seed, the number of the tree and, in gradient-based
sampling, the gradients; it is the same for all outputs, and different for parallel trees.
Refuses nothing: shares are those of the terms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedboost.fixedpoint import Float64
from fedboost.gbdt import sampling
from fedboost.gbdt.groups import Mask, RowIndex
from fedboost.gbdt.histogram import Rows
from fedboost.gbdt.sampling import Keys

Members = Sequence[Rows] | None
"""Row numbers for each parallel tree, increasing; None: all rows in each."""


@dataclass(frozen=True)
class RowSampling:
    """The keys and salts that rows are sampled by: different in each round and parallel tree."""

    keys: Keys
    seed: int
    first_tree: int
    parallel_trees: int

    def salts(self, tree: int) -> list[tuple[int, str, int, int]]:
        """Salts of the samples of the parallel trees of a round."""
        round_number = self.first_tree + tree
        return [(self.seed, "subsample", round_number, number) for number in range(self.parallel_trees)]


class Sampler(Protocol):
    """Sampling of the rows that trees grow on. moved: the sets of `sample` that together have each row
    once."""

    sets: ClassVar[int]
    moved: ClassVar[slice]

    def sample(self, tree: int) -> Sequence[Members]:
        """The rows that the trees of a round grow on, then, as a second set, those that only go down them."""
        ...


@dataclass(frozen=True)
class AllRows:
    """No sampling: trees grow on all rows."""

    sets: ClassVar = 1
    moved: ClassVar = slice(0, 1)

    def sample(self, tree: int) -> Sequence[Members]:
        return (None,)


@dataclass(frozen=True)
class Subsample:
    """A share of the training rows, each counted once."""

    training: Mask
    draws: RowSampling
    share: float

    sets: ClassVar = 2
    moved: ClassVar = slice(0, 2)

    def sample(self, tree: int) -> Sequence[Members]:
        keys, salts = self.draws.keys, self.draws.salts(tree)
        return split_by_masks([self.training & sampling.sampled(keys, self.share, *salt) for salt in salts])


@dataclass(frozen=True)
class Bootstrap:
    """Training rows sampled with replacement, each counted as often as it is sampled, beside all rows."""

    training: Mask
    draws: RowSampling
    share: float

    sets: ClassVar = 2
    moved: ClassVar = slice(1, 2)

    def sample(self, tree: int) -> Sequence[Members]:
        keys, rows = self.draws.keys, np.arange(self.training.size, dtype=np.uint32)
        counts_of_trees = [
            sampling.bootstrap_counts(keys, self.share, *salt) for salt in self.draws.salts(tree)
        ]
        return [np.repeat(rows, counts * self.training) for counts in counts_of_trees], None


class NormSample:
    """Training rows sampled by their gradient norms, for each parallel tree: bool [rows] masks."""

    def __init__(
        self,
        training: Mask,
        draws: RowSampling,
        tree: int,
        share: float,
        reg_lambda: float,
        threshold: float,
    ) -> None:
        """threshold: the norm of probability 1 (`sampling.probabilities`)."""
        self.masks = [np.zeros(training.size, np.bool_) for _ in range(draws.parallel_trees)]
        self._training = training
        self._keys = draws.keys
        self._salts = draws.salts(tree)
        self._share = share
        self._reg_lambda = reg_lambda
        self._threshold = threshold

    def reweigh(self, rows: RowIndex, gradient: Float64, hessian: Float64) -> tuple[Float64, Float64]:
        """Sample among these rows; their gradients and hessians divided by their probabilities."""
        norms = sampling.gradient_norms(gradient, hessian, self._reg_lambda)
        probabilities = sampling.probabilities(norms, self._threshold, self._share)
        for mask, salt in zip(self.masks, self._salts, strict=True):
            sampled = sampling.sampled_with(self._keys[rows], probabilities, *salt)
            mask[rows] = sampled & self._training[rows]
        return gradient / probabilities, hessian / probabilities


def split_by_masks(masks: Sequence[Mask]) -> Sequence[Members]:
    """Row numbers of those that are in each mask, and of the others."""
    return [[np.flatnonzero(mask == member).astype(np.uint32) for mask in masks] for member in (True, False)]
