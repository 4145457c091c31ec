"""Sampling of rows and columns by hashing a seed and a key, so that all parties agree on the samples.

Promises: whether a row is sampled depends on its key, not on its party or on other rows. Samples of other
rounds, or of another kind, are independent of it, as far as a 64-bit mix of SHA-256 salts is. Where a row's
probability depends on its gradient, the only other input is one number for all rows, the threshold. The draw
is public: anyone who knows the seed and a row's key can repeat it. Sampling hides nothing, and need not.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float64, Int64
from fedboost.gbdt.histogram import Rows
from fedboost.gbdt.kernels import histogram as kernels
from fedboost.gbdt.kernels.objectives import exps
from fedboost.gbdt.threads import BLOCK
from fedboost.gbdt.threads import blocks as _blocks

Keys = npt.NDArray[np.uint64]
Probabilities = npt.NDArray[np.float64]
BootstrapCounts = npt.NDArray[np.uint8]

MAX_BOOTSTRAP_COUNT = 15
"""Largest count of a row in a bootstrap: larger ones have a probability below 10**-13."""
MIN_PROBABILITY_FACTOR = 0.125
"""Smallest probability of a row, relative to the share of all rows. So no row is weighted more than 1 /
(MIN_PROBABILITY_FACTOR * share) times, and no threshold samples only a handful of rows."""
NORM_CELLS = 1024
_CELLS_BITS = 3
"""Eight cells per octave of norms, from 2**_MIN_EXPONENT on."""
_MIN_EXPONENT = -64
_MANTISSA_BITS, _EXPONENT_BIAS, _UNIFORM_BITS = 52, 1023, 53
_HALVINGS = 30
"""Steps of the search for the threshold: they narrow a range of 2**128 to one part in 10**7."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(keys: Keys, *salt: int | str) -> Keys:
    """Pseudo-random numbers, uniform below 2**64, one for each key: the finaliser of SplitMix64 over key +
    salt."""
    # The salt (seed, purpose, round, tree) selects one of 2**64 offsets; sums wrap modulo 2**64. The
    # finaliser is a bijection: different keys never get the same number under one salt.
    digest = hashlib.sha256(repr(salt).encode()).digest()
    z: Keys = keys + np.uint64(int.from_bytes(digest[:8])) + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def sampled(keys: Keys, share: float, *salt: int | str) -> npt.NDArray[np.bool_]:
    """True for the keys that are sampled, each with probability `share`: bool [N]."""
    if share >= 1.0:
        return np.ones(keys.size, np.bool_)
    # share <= 1 - 2**-53, so the product fits a uint64.
    return mixed(keys, *salt) < np.uint64(int(share * 2.0**64))


def _uniform(keys: Keys, *salt: int | str) -> Float64:
    """Pseudo-random integers below 2**53, one for each key, as floats."""
    return (mixed(keys, *salt) >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64)


def sampled_with(keys: Keys, probabilities: Probabilities, *salt: int | str) -> npt.NDArray[np.bool_]:
    """True for the keys that are sampled, each with its own probability: bool [N]."""
    return _uniform(keys, *salt) < probabilities * 2.0**_UNIFORM_BITS


def bootstrap_counts(keys: Keys, share: float, *salt: int | str) -> BootstrapCounts:
    """Bootstrap counts of each key: Poisson numbers with mean `share`, at most MAX_BOOTSTRAP_COUNT."""
    return np.searchsorted(_poisson(share), _uniform(keys, *salt), side="right").astype(np.uint8)


@cache
def _poisson(mean: float) -> Float64:
    """The probability, times 2**53, that a Poisson number is at most 0, 1, ... MAX_BOOTSTRAP_COUNT - 1."""
    probability, below, out = float(exps(np.array([-mean]))[0]), 0.0, []
    for number in range(MAX_BOOTSTRAP_COUNT):
        below += probability
        out.append(below * 2.0**_UNIFORM_BITS)
        probability = probability * mean / (number + 1)
    return np.array(out)


def gradient_norms(gradient: Float64, hessian: Float64, reg_lambda: float) -> Float64:
    """sqrt(g**2 + reg_lambda h**2) of each row, the squares summed over its outputs: float64 [N], of
    float64 [N] or [outputs, N]."""
    out: Float64 = kernels.gradient_norms(np.atleast_2d(gradient), np.atleast_2d(hessian), reg_lambda)
    return out


def count_norms(norms: Float64) -> Int64:
    """Counts of gradient norms by cell: int64 [NORM_CELLS]. Norms outside the range count in the first or
    last cell.

    A cell is an exponent with the first _CELLS_BITS bits of the mantissa."""
    cells = np.ascontiguousarray(norms).view(np.int64) >> (_MANTISSA_BITS - _CELLS_BITS)
    cells -= (_EXPONENT_BIAS + _MIN_EXPONENT) << _CELLS_BITS
    return np.bincount(np.clip(cells, 0, NORM_CELLS - 1), minlength=NORM_CELLS).astype(np.int64)


def sampling_probabilities(norms: Float64, threshold: float, share: float) -> Probabilities:
    """Probability of each row: norm / threshold, from MIN_PROBABILITY_FACTOR * share to 1."""
    return np.maximum(np.minimum(norms, threshold) / threshold, MIN_PROBABILITY_FACTOR * share)


def mvs_threshold(counts: Int64, share: float) -> float:
    """The smallest threshold, to one part in 10**7, at which the expected sample is at most this share of the
    rows. Each row's norm is taken as the middle of its cell. Returns 1 if there are no rows.

    Minimal variance sampling (Ibragimov and Gusev, NeurIPS 2019), as in XGBoost."""
    used = np.flatnonzero(counts)
    if not used.size:
        return 1.0
    rows, octave = counts[used].astype(np.float64), 1 << _CELLS_BITS
    middle = np.ldexp(1.0 + (used % octave + 0.5) / octave, used // octave + _MIN_EXPONENT)
    expected = share * math.fsum(rows)
    # Bisection in the logarithm. Invariant: `high` samples at most the expected rows; a threshold up to `low`
    # samples more. At the start, norm / high <= share for each row, and all rows have probability 1 at `low`.
    low, high = float(middle[0]), float(middle[-1]) / share
    for _ in range(_HALVINGS):
        between = math.sqrt(low) * math.sqrt(high)
        if math.fsum(rows * sampling_probabilities(middle, between, share)) > expected:
            low = between
        else:
            high = between
    return high


def keys_of(site: str, places: Keys) -> Keys:
    """Keys for the rows of a site without row identifiers: the site's name and the position in its table."""
    return mixed(places, "row", site)


def key_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def sampled_features(features: Sequence[int], share: float, *salt: int | str) -> tuple[int, ...]:
    """A share of these features, at least one, in their order."""
    if share >= 1.0:
        return tuple(features)
    # A fixed number is drawn, not each with a probability: those with the lowest hashes.
    order = np.argsort(mixed(np.array(features, np.uint64), *salt), kind="stable")
    chosen = order[: max(1, int(share * len(features)))]
    return tuple(features[index] for index in sorted(chosen.tolist()))


# ---- Groups of rows, and blocks of rows that do not split groups ----------------------------------------
# A block has whole groups, each with its rows in table order, even if rows of other groups lie between them.


Mask = npt.NDArray[np.bool_]
RowIndex = slice | npt.NDArray[Any]
"""An index of rows into an array of all rows."""


@dataclass(frozen=True)
class Block:
    """Rows that are processed together. starts: the first row of each group, and the end of the last one,
    int64 [groups + 1]; None if rows have no groups."""

    rows: RowIndex
    starts: Int64 | None = None

    def only(self, chosen: Mask) -> "Block":
        """The chosen rows of the block, in whole groups. chosen: bool [all rows]."""
        kept = chosen[self.rows]
        if kept.all():
            return self
        rows = self.rows
        rows = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        if self.starts is None:
            return Block(rows[kept])
        sizes = np.diff(self.starts)[kept[self.starts[:-1]]]
        return Block(rows[kept], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def blocks(rows: int, groups: Keys | None) -> list[Block]:
    """All rows in blocks. groups: uint64 [rows], equal for the rows of a group."""
    if groups is None:
        return [Block(rows_of_block) for rows_of_block in _blocks(rows)]
    _, begins, group = np.unique(groups, return_index=True, return_inverse=True)
    first_row = begins[group]  # groups are ordered by it: adjacent rows stay together
    order = np.argsort(first_row, kind="stable")
    starts = np.append(np.flatnonzero(np.diff(first_row[order], prepend=-1)), rows)
    ends = np.flatnonzero(np.diff(starts[:-1] // BLOCK)) + 1  # groups before which a block begins
    edges = [0, *ends.tolist(), starts.size - 1]
    return [
        Block(order[starts[low] : starts[high]], starts[low : high + 1] - starts[low])
        for low, high in pairwise(edges)
    ]


# ---- Samplers of the rows that the trees of a round grow on; the other rows only descend the trees ------
# A sample follows from the row keys, the seed, the tree's number and, in gradient-based sampling, the
# gradients. It is the same for all outputs, and different for parallel trees.


Members = Sequence[Rows] | None
"""Row numbers for each parallel tree, increasing; None: all rows in each."""


@dataclass(frozen=True)
class RowSampling:
    """The keys and salts of row samples, different for each round and parallel tree."""

    keys: Keys
    seed: int
    first_tree: int
    parallel_trees: int

    def salts(self, tree: int) -> list[tuple[int, str, int, int]]:
        round_number = self.first_tree + tree
        return [(self.seed, "subsample", round_number, number) for number in range(self.parallel_trees)]


@dataclass(frozen=True)
class Sampler:
    """Samples the rows that trees grow on.

    sets: number of row sets that `sample` returns; moved: those that together contain each row once; sample:
    maps a round to the rows its trees grow on and, as a second set, the rows that only descend them."""

    sets: int
    moved: slice
    sample: Callable[[int], Sequence[Members]]


ALL_ROWS = Sampler(1, slice(0, 1), lambda tree: (None,))
"""No sampling: trees grow on all rows."""


def subsample(training: Mask, draws: RowSampling, share: float) -> Sampler:
    """Sample a share of the training rows, each counted once."""

    def sample(tree: int) -> Sequence[Members]:
        keys, salts = draws.keys, draws.salts(tree)
        return split_by_masks([training & sampled(keys, share, *salt) for salt in salts])

    return Sampler(2, slice(0, 2), sample)


def bootstrap(training: Mask, draws: RowSampling, share: float) -> Sampler:
    """Sample training rows with replacement, each counted as often as it is drawn. The second set is all
    rows."""

    def sample(tree: int) -> Sequence[Members]:
        rows = np.arange(training.size, dtype=np.uint32)
        counts_of_trees = [bootstrap_counts(draws.keys, share, *salt) for salt in draws.salts(tree)]
        return [np.repeat(rows, counts * training) for counts in counts_of_trees], None  # increasing

    return Sampler(2, slice(1, 2), sample)


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
        """threshold: the norm with probability 1 (`sampling_probabilities`)."""
        self.masks = [np.zeros(training.size, np.bool_) for _ in range(draws.parallel_trees)]
        self._training = training
        self._keys = draws.keys
        self._salts = draws.salts(tree)
        self._share = share
        self._reg_lambda = reg_lambda
        self._threshold = threshold

    def reweigh(self, rows: RowIndex, gradient: Float64, hessian: Float64) -> tuple[Float64, Float64]:
        """Sample among these rows, and divide their gradients and hessians by their probabilities."""
        norms = gradient_norms(gradient, hessian, self._reg_lambda)
        probabilities = sampling_probabilities(norms, self._threshold, self._share)
        for mask, salt in zip(self.masks, self._salts, strict=True):
            sampled = sampled_with(self._keys[rows], probabilities, *salt)
            mask[rows] = sampled & self._training[rows]
        return gradient / probabilities, hessian / probabilities


def split_by_masks(masks: Sequence[Mask]) -> Sequence[Members]:
    """The row numbers in each mask, then those outside each."""
    return [[np.flatnonzero(mask == member).astype(np.uint32) for mask in masks] for member in (True, False)]
