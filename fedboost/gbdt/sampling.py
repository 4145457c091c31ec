"""Sampling of rows and columns by hashing a seed and row keys, so that all parties draw the same samples.

Guarantees: whether a row is sampled depends on its key, not on its party or on other rows. Samples for
different rounds or purposes are independent, as far as a 64-bit mix of SHA-256 salts allows. If a row's
probability depends on its gradient, the only other input is one threshold for all rows. The draw is public:
anyone who knows the seed and a row's key can repeat it, so sampling does not protect privacy."""

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
"""Maximum count of a row in a bootstrap sample. Larger counts have a probability below 10**-13."""
MIN_PROBABILITY_FACTOR = 0.125
"""Minimum sampling probability of a row, relative to the sampled share of all rows. It limits a row's weight
to 1 / (MIN_PROBABILITY_FACTOR * share), and prevents a threshold that samples only a handful of rows."""
NORM_CELLS = 1024
_CELLS_BITS = 3
"""Number of mantissa bits that determine the cell of a norm. There are eight cells per factor of two,
starting at 2**_MIN_EXPONENT."""
_MIN_EXPONENT = -64
_MANTISSA_BITS, _EXPONENT_BIAS, _UNIFORM_BITS = 52, 1023, 53
_HALVINGS = 30
"""Number of bisection steps for the threshold: a range of 2**128 becomes one part in 10**7."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(keys: Keys, *salt: int | str) -> Keys:
    """Hash each key, uint64 [N], together with a salt. Returns pseudo-random numbers, uint64 [N], uniform
    below 2**64: the finaliser of SplitMix64 applied to key + salt."""
    # The salt (seed, purpose, round, tree) selects one of 2**64 offsets; sums wrap modulo 2**64. The
    # finaliser is a bijection: different keys never get the same number under one salt.
    digest = hashlib.sha256(repr(salt).encode()).digest()
    z: Keys = keys + np.uint64(int.from_bytes(digest[:8])) + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def sampled(keys: Keys, share: float, *salt: int | str) -> npt.NDArray[np.bool_]:
    """Draw a sample of keys, each with probability `share`. Returns bool [N], True for sampled keys.

    keys: uint64 [N]; salt: values that make this draw independent of others, e.g. seed, purpose and round."""
    if share >= 1.0:
        return np.ones(keys.size, np.bool_)
    # share <= 1 - 2**-53, so the product fits a uint64.
    return mixed(keys, *salt) < np.uint64(int(share * 2.0**64))


def _uniform(keys: Keys, *salt: int | str) -> Float64:
    """Return a pseudo-random integer below 2**53 for each key, as a float."""
    return (mixed(keys, *salt) >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64)


def sampled_with(keys: Keys, probabilities: Probabilities, *salt: int | str) -> npt.NDArray[np.bool_]:
    """Draw a sample of keys, uint64 [N], each with its own probability, float64 [N]. Returns bool [N], True
    for sampled keys. salt: as in `sampled`."""
    return _uniform(keys, *salt) < probabilities * 2.0**_UNIFORM_BITS


def bootstrap_counts(keys: Keys, share: float, *salt: int | str) -> BootstrapCounts:
    """Draw how often each key occurs in a bootstrap sample: a Poisson number with mean `share`, at most
    MAX_BOOTSTRAP_COUNT. Returns uint8 [N]. keys: uint64 [N]; salt: as in `sampled`."""
    return np.searchsorted(_poisson(share), _uniform(keys, *salt), side="right").astype(np.uint8)


@cache
def _poisson(mean: float) -> Float64:
    """Return P(X <= k) * 2**53 for k = 0, 1, ... MAX_BOOTSTRAP_COUNT - 1 and a Poisson variable X."""
    probability, below, out = float(exps(np.array([-mean]))[0]), 0.0, []
    for number in range(MAX_BOOTSTRAP_COUNT):
        below += probability
        out.append(below * 2.0**_UNIFORM_BITS)
        probability = probability * mean / (number + 1)
    return np.array(out)


def gradient_norms(gradient: Float64, hessian: Float64, reg_lambda: float) -> Float64:
    """Return sqrt(g**2 + reg_lambda h**2) for each row, float64 [N], where g and h are its gradient and
    hessian. gradient, hessian: float64 [N], or [outputs, N], in which case the squares are summed over the
    outputs."""
    out: Float64 = kernels.gradient_norms(np.atleast_2d(gradient), np.atleast_2d(hessian), reg_lambda)
    return out


def count_norms(norms: Float64) -> Int64:
    """Count gradient norms, float64 [N], in cells of logarithmic width. Returns int64 [NORM_CELLS].

    A norm's exponent and the first _CELLS_BITS bits of its mantissa determine its cell. Norms below the range
    are counted in the first cell, norms above it in the last."""
    cells = np.ascontiguousarray(norms).view(np.int64) >> (_MANTISSA_BITS - _CELLS_BITS)
    cells -= (_EXPONENT_BIAS + _MIN_EXPONENT) << _CELLS_BITS
    return np.bincount(np.clip(cells, 0, NORM_CELLS - 1), minlength=NORM_CELLS).astype(np.int64)


def sampling_probabilities(norms: Float64, threshold: float, share: float) -> Probabilities:
    """Return each row's sampling probability, norm / threshold, clipped to [MIN_PROBABILITY_FACTOR * share,
    1]. norms: float64 [N]; share: share of all rows to sample."""
    return np.maximum(np.minimum(norms, threshold) / threshold, MIN_PROBABILITY_FACTOR * share)


def mvs_threshold(counts: Int64, share: float) -> float:
    """Return the threshold for minimal variance sampling (MVS) of a share of the rows.

    A row is sampled with probability norm / threshold (`sampling_probabilities`), where the norm is taken as
    the middle of its cell. The result is the smallest threshold, to one part in 10**7, at which no more than
    this share is expected to be sampled. Returns 1.0 if there are no rows. counts: int64 [NORM_CELLS], from
    `count_norms`. Source: Ibragimov and Gusev, NeurIPS 2019; XGBoost uses the same method."""
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
    """Return keys for the rows of a site that has no row identifiers. Each key is a hash of the site's name
    and the row's position in the site's table. places: uint64 [N], positions of the rows."""
    return mixed(places, "row", site)


def key_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def sampled_features(features: Sequence[int], share: float, *salt: int | str) -> tuple[int, ...]:
    """Sample a share of these features by their hashes. At least one feature is sampled, and the original
    order is kept. salt: as in `sampled`."""
    if share >= 1.0:
        return tuple(features)
    # The number of drawn features is fixed: those with the lowest hashes are drawn.
    order = np.argsort(mixed(np.array(features, np.uint64), *salt), kind="stable")
    chosen = order[: max(1, int(share * len(features)))]
    return tuple(features[index] for index in sorted(chosen.tolist()))


# ---- Groups of rows, and blocks of rows that do not split groups ----------------------------------------
# A block has whole groups, each with its rows in table order, even if rows of other groups lie between them.


Mask = npt.NDArray[np.bool_]
RowIndex = slice | npt.NDArray[Any]
"""Index that selects some rows from an array of all rows."""


@dataclass(frozen=True)
class Block:
    """Rows that are processed together. If rows are ranked in groups, a block consists of whole groups.
    starts: int64 [groups + 1], position of each group's first row in the block, followed by the number of
    rows; None if there are no groups."""

    rows: RowIndex
    starts: Int64 | None = None

    def only(self, chosen: Mask) -> "Block":
        """Return a block of the chosen rows. chosen: bool [all rows], the same for all rows of a group."""
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
    """Divide all rows into blocks that do not split groups. groups: uint64 [rows], equal for the rows of a
    group; None if the rows have no groups."""
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


# ---- Samplers of the rows that a round's trees are trained on; the other rows only pass through them ----
# A sample follows from the row keys, the seed, the tree's number and, in gradient-based sampling, the
# gradients. It is the same for all outputs, and different for parallel trees.


Members = Sequence[Rows] | None
"""Row numbers sampled for each parallel tree, in increasing order; None if every tree uses all rows."""


@dataclass(frozen=True)
class RowSampling:
    """Row keys and salts for a training run's row samples. Each round and parallel tree has its own salt."""

    keys: Keys
    seed: int
    first_tree: int
    parallel_trees: int

    def salts(self, tree: int) -> list[tuple[int, str, int, int]]:
        round_number = self.first_tree + tree
        return [(self.seed, "subsample", round_number, number) for number in range(self.parallel_trees)]


@dataclass(frozen=True)
class Sampler:
    """Rule that selects the rows on which each round's trees are trained.

    sample: function that returns a round's row sets. The first contains the rows that the trees are trained
    on; the second, if any, contains rows that only pass through the finished splits, so that their margins
    are updated. sets: number of these row sets. moved: slice of the row sets that together contain every row
    exactly once."""

    sets: int
    moved: slice
    sample: Callable[[int], Sequence[Members]]


ALL_ROWS = Sampler(1, slice(0, 1), lambda tree: (None,))
"""Sampler that trains every tree on all rows."""


def subsample(training: Mask, draws: RowSampling, share: float) -> Sampler:
    """Return a sampler that draws a share of the training rows without replacement. training: bool [rows]."""

    def sample(tree: int) -> Sequence[Members]:
        keys, salts = draws.keys, draws.salts(tree)
        return split_by_masks([training & sampled(keys, share, *salt) for salt in salts])

    return Sampler(2, slice(0, 2), sample)


def bootstrap(training: Mask, draws: RowSampling, share: float) -> Sampler:
    """Return a sampler that draws a share of the training rows with replacement. A row counts as often as it
    is drawn. The sampler's second row set contains all rows. training: bool [rows], True for training rows.
    """

    def sample(tree: int) -> Sequence[Members]:
        rows = np.arange(training.size, dtype=np.uint32)
        counts_of_trees = [bootstrap_counts(draws.keys, share, *salt) for salt in draws.salts(tree)]
        return [np.repeat(rows, counts * training) for counts in counts_of_trees], None  # increasing

    return Sampler(2, slice(1, 2), sample)


class NormSample:
    """Sample of the training rows in which rows with large gradients are more likely. masks: bool [rows] for
    each parallel tree, True for sampled rows. `reweigh` fills these masks block by block."""

    def __init__(
        self, training: Mask, draws: RowSampling, tree: int, share: float, reg_lambda: float, threshold: float
    ) -> None:
        """Start with an empty sample.

        Args:
            training: bool [rows], True for training rows.
            draws: row keys and salts.
            tree: number of the round.
            share: share of the training rows to sample.
            reg_lambda: XGBoost's parameter; here, the weight of squared hessians in the norm.
            threshold: gradient norm at which a row is certain to be sampled (`mvs_threshold`).
        """
        self.masks = [np.zeros(training.size, np.bool_) for _ in range(draws.parallel_trees)]
        self._training = training
        self._keys = draws.keys
        self._salts = draws.salts(tree)
        self._share = share
        self._reg_lambda = reg_lambda
        self._threshold = threshold

    def reweigh(self, rows: RowIndex, gradient: Float64, hessian: Float64) -> tuple[Float64, Float64]:
        """Sample some of these rows and record the result in `masks`. Returns the gradients and hessians of
        all these rows, divided by the sampling probabilities, so that sums over the sample are unbiased."""
        norms = gradient_norms(gradient, hessian, self._reg_lambda)
        probabilities = sampling_probabilities(norms, self._threshold, self._share)
        for mask, salt in zip(self.masks, self._salts, strict=True):
            sampled = sampled_with(self._keys[rows], probabilities, *salt)
            mask[rows] = sampled & self._training[rows]
        return gradient / probabilities, hessian / probabilities


def split_by_masks(masks: Sequence[Mask]) -> Sequence[Members]:
    """Return two row sets: the numbers of the rows inside each mask, bool [rows], and of all other rows."""
    return [[np.flatnonzero(mask == member).astype(np.uint32) for mask in masks] for member in (True, False)]
