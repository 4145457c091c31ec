"""The method that fedboost trained with noise before: trees of random structure, kept for `privacy.py`.

Each tree uses one feature, with random splits, so only its leaf values cost privacy: one release of the noisy
sums in all leaves. A release of counts gives the cut points, and one of all rows the constant.

All rows are in one place here. The releases, their integers and their noise are those of three parties of
which one may subtract its share: the variance is 1.5 times what epsilon and delta require. The noise is a
rounded float Gaussian, which shows the same AUC as an exact one, but protects nobody.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

import fedboost as fb
from fedboost.gbdt.cut_points import range_edges
from fedboost.gbdt.objectives.objective import UNITS
from fedboost.gbdt.sampling import mixed
from fedboost.privacy.noise import mu_of

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

TREES_A_FEATURE, DEPTH, BINS, PARTS = 4, 3, 32, 128
LEARNING_RATE, REG_LAMBDA = 0.3, 1.0
COUNTING = 0.04
"""Share of the cost that is spent on counts."""
HESSIAN_WEIGHT = 3.33
"""Factor of hessians, with which a row's gradient and hessian have a norm of at most 1."""
NOISE_ALONE = 2.0
"""Counts of at most this many standard deviations of their noise are set to 0."""
LEAF_SPREAD, MAX_STEP = 0.5, 2.0
HONEST, DRAWN = 2, 3
"""Shares of the noise that must suffice, and those in a sum."""


class Noise:
    """Draws the noise of releases."""

    def __init__(self, draw: np.random.Generator) -> None:
        self._draw = draw

    def added(self, sums: Float64, sigma: float) -> Float64:
        """Noisy integer sums."""
        return sums + np.rint(self._draw.normal(0.0, sigma, sums.shape))


def sigma_of(sensitivity: float, cost: float) -> float:
    """Standard deviation of the noise in a sum."""
    return math.ceil(sensitivity / math.sqrt(cost * HONEST)) * math.sqrt(DRAWN)


def predict(
    terms: fb.Terms, rows: Float32, label: Float32, others: Float32, seed: int, noise: Noise
) -> Float64:
    """Margins of other rows, by a model of `rows`. seed: of the splits; the terms' own seed is not used."""
    assert terms.noise is not None
    ranges = [terms.columns.ranges[name] for name in terms.columns.numeric]
    words = [len(categories) for categories in terms.columns.categorical.values()]
    number = TREES_A_FEATURE * rows.shape[1]
    cost = mu_of(terms.noise.epsilon, terms.noise.delta) ** 2
    counting = COUNTING * cost if ranges else 0.0
    sigma = sigma_of(float(UNITS), (cost - counting) / (number + 1))
    least = sigma_of(math.sqrt(len(ranges)), counting) if ranges else 0.0
    cuts = [
        equal_cuts(noise.added(counts(column, declared), least), least, declared)
        for column, declared in zip(rows.T, ranges, strict=False)
    ]
    cuts += [np.arange(1, count, dtype=np.float32) for count in words]
    bins, bins_of_others = (
        [bins_of(*pair) for pair in zip(of.T, cuts, strict=True)] for of in (rows, others)
    )
    usable = [feature for feature, own in enumerate(cuts) if own.size]
    start = steps(noise.added(sums_of(np.zeros(len(rows)), label).sum(axis=1), sigma), sigma)
    margin, out = np.full(len(rows), start), np.full(len(others), start)
    for tree in range(number if usable else 0):
        feature = usable[tree % len(usable)]
        leaves = leaves_of(cuts[feature].size + 1, feature >= len(ranges), draws(seed, tree))
        leaf, count = leaves[bins[feature]], int(leaves.max()) + 1
        sums = [np.bincount(leaf, of, count) for of in sums_of(margin, label)]
        values = (LEARNING_RATE * steps(noise.added(np.array(sums), sigma), sigma)).astype(np.float32)
        margin += values[leaf]
        out += values[leaves[bins_of_others[feature]]]
    return out


def sums_of(margin: Float64, label: Float32) -> Float64:
    """Each row's gradient and hessian in whole units, rounded toward zero, [2, rows]."""
    p = 1.0 / (1.0 + np.exp(-margin))
    return np.trunc(np.array([p - label, HESSIAN_WEIGHT * p * (1.0 - p)]) * UNITS)


def steps(sums: Float64, sigma: float) -> Float64:
    """Newton steps from noisy sums of gradients and hessians, the smaller the noisier these are."""
    gradient, hessian = sums[0] / UNITS, np.maximum(sums[1] / UNITS / HESSIAN_WEIGHT, 0.0)
    spread = sigma / UNITS / LEAF_SPREAD
    step = -gradient * hessian / (hessian * hessian + REG_LAMBDA * hessian + spread * spread)
    return np.clip(step, -MAX_STEP, MAX_STEP)


def counts(column: Float32, declared: tuple[float, float]) -> Float64:
    """Rows in each part of a declared range."""
    parts = np.searchsorted(range_edges(declared, PARTS), column[~np.isnan(column)], side="right")
    return np.bincount(parts, minlength=PARTS).astype(np.float64)


def equal_cuts(noisy: Float64, sigma: float, declared: tuple[float, float]) -> Float32:
    """Cut points between bins with about the same number of rows; of equal width if no count is clear."""
    clear = np.where(noisy > NOISE_ALONE * sigma, noisy, 0.0)
    if not clear.any():
        return np.unique(np.linspace(*declared, BINS + 1)[1:-1].astype(np.float32))
    until = np.cumsum(clear)
    parts = np.searchsorted(until, np.arange(1, BINS) * (until[-1] / BINS), side="left")
    return np.unique(range_edges(declared, PARTS)[parts[parts < PARTS - 1]])


def bins_of(column: Float32, cuts: Float32) -> Int64:
    """The bin of each row; rows without a value are in the last one."""
    return np.where(np.isnan(column), cuts.size + 1, np.searchsorted(cuts, column, side="right"))


def leaves_of(bins: int, is_categorical: bool, drawn: Iterator[int]) -> Int64:
    """Draw the splits of a tree, and return the leaf of each bin, int64 [bins + 1]."""
    frontier: list[tuple[Sequence[int], bool]] = [(range(bins), True)]
    leaves = []
    for depth in range(DEPTH + 1):
        below = list[tuple[Sequence[int], bool]]()
        for values, missing in frontier:
            if depth == DEPTH or len(values) < 2:
                leaves.append([*values, *([bins] if missing else [])])
                continue
            next(drawn)  # seeds draw the trees that they always drew
            missing_left = next(drawn) % 2 == 1
            left, right = (by_coins if is_categorical else by_threshold)(values, drawn)
            below += [(left, missing and missing_left), (right, missing and not missing_left)]
        frontier = below
    found = np.empty(bins + 1, np.int64)
    for leaf, own in enumerate(leaves):
        found[own] = leaf
    return found


def by_threshold(values: Sequence[int], drawn: Iterator[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Split bins at a random threshold."""
    first = 1 + next(drawn) % (len(values) - 1)
    return values[:first], values[first:]


def by_coins(values: Sequence[int], drawn: Iterator[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Send each category to a side by a coin, and at least one to each."""
    right = [next(drawn) % 2 == 1 for _ in values]
    if len(set(right)) == 1:
        other = next(drawn) % len(values)
        right[other] = not right[other]
    tossed = list(zip(values, right, strict=True))
    return [one for one, goes in tossed if not goes], [one for one, goes in tossed if goes]


def draws(seed: int, number: int) -> Iterator[int]:
    """Endless pseudo-random integers below 2**64."""
    block = 0
    while True:
        yield from mixed(np.arange(1024, dtype=np.uint64), seed, "structure", number, block).tolist()
        block += 1
