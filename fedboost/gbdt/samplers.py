"""Samplers: which rows the trees of a round grow on, and which only go down them.

Promises: what is drawn follows from the keys of the rows, the seed, the number of the tree and, where the
sizes of gradients decide, the gradients; it is the same for all outputs, and different for parallel trees.
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
class RowDraws:
    """Random draws of rows by their keys: different in each round and parallel tree."""

    keys: Keys
    seed: int
    first_tree: int
    parallel_trees: int

    def salts(self, tree: int) -> list[tuple[int, str, int, int]]:
        """What tells the draws of the parallel trees of a round from all other draws."""
        round_number = self.first_tree + tree
        return [(self.seed, "subsample", round_number, number) for number in range(self.parallel_trees)]


class Sampler(Protocol):
    """Sampling of the rows that trees grow on. moved: the sets of `draw` that have each row once together."""

    sets: ClassVar[int]
    moved: ClassVar[slice]

    def draw(self, tree: int) -> Sequence[Members]:
        """The rows that the trees of a round grow on, then, as a second set, those that only go down them."""
        ...


@dataclass(frozen=True)
class EveryRow:
    """No sampling: trees grow on all rows."""

    sets: ClassVar = 1
    moved: ClassVar = slice(0, 1)

    def draw(self, tree: int) -> Sequence[Members]:
        return (None,)


@dataclass(frozen=True)
class Subsample:
    """A share of the training rows, each counted once."""

    training: Mask
    draws: RowDraws
    share: float

    sets: ClassVar = 2
    moved: ClassVar = slice(0, 2)

    def draw(self, tree: int) -> Sequence[Members]:
        keys, salts = self.draws.keys, self.draws.salts(tree)
        return parted([self.training & sampling.drawn(keys, self.share, *salt) for salt in salts])


@dataclass(frozen=True)
class Bootstrap:
    """Training rows drawn with replacement, each counted as often as it is drawn, beside all rows."""

    training: Mask
    draws: RowDraws
    share: float

    sets: ClassVar = 2
    moved: ClassVar = slice(1, 2)

    def draw(self, tree: int) -> Sequence[Members]:
        keys, rows = self.draws.keys, np.arange(self.training.size, dtype=np.uint32)
        copies = [sampling.copies(keys, self.share, *salt) for salt in self.draws.salts(tree)]
        return [np.repeat(rows, counts * self.training) for counts in copies], None


class SizeSample:
    """Training rows sampled by the sizes of their gradients, for each parallel tree: bool [rows] masks."""

    def __init__(
        self,
        training: Mask,
        draws: RowDraws,
        tree: int,
        share: float,
        reg_lambda: float,
        threshold: float,
    ) -> None:
        """threshold: what sizes are measured by (`sampling.chances`)."""
        self.masks = [np.zeros(training.size, np.bool_) for _ in range(draws.parallel_trees)]
        self._training = training
        self._keys = draws.keys
        self._salts = draws.salts(tree)
        self._share = share
        self._reg_lambda = reg_lambda
        self._threshold = threshold

    def reweigh(self, rows: RowIndex, gradient: Float64, hessian: Float64) -> tuple[Float64, Float64]:
        """Sample among these rows; their gradients and hessians divided by their probabilities."""
        sizes = sampling.sizes(gradient, hessian, self._reg_lambda)
        probabilities = sampling.chances(sizes, self._threshold, self._share)
        for mask, salt in zip(self.masks, self._salts, strict=True):
            drawn = sampling.drawn_with(self._keys[rows], probabilities, *salt)
            mask[rows] = drawn & self._training[rows]
        return gradient / probabilities, hessian / probabilities


def parted(masks: Sequence[Mask]) -> Sequence[Members]:
    """Row numbers of those that are in each mask, and of the others."""
    return [[np.flatnonzero(mask == wanted).astype(np.uint32) for mask in masks] for wanted in (True, False)]
