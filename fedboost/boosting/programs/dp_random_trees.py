"""Boosting with noise: trees whose structure is drawn without a look at rows, so only leaves cost privacy.

A tree's splits follow from the seed of the terms alone: features in turn, thresholds at random over bins of
about equally many rows. One question a tree then opens the noisy sums of gradients and hessians in all its
leaves at once; a row is in one leaf, so it can change that vector by no more than its own bound. Trees of one
feature each (`additive`) do best wherever epsilon is small; `random` takes any feature at every split;
`staged` grows the first half of the trees by one feature each, the others by three. `hist` is in `noisy`.

Promises: a pure function of the terms and the noisy sums; nothing is asked that has no noise.
Refuses: nothing; noise can make no sum impossible.

Source of trees with random splits: Maddock, Cormode, Wang, Maple and Jha, "Federated boosted decision trees
with differential privacy", CCS 2022.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedboost.boosting.programs import dp_histograms
from fedboost.boosting.programs.dp_target_means import find_noisy_levels
from fedboost.boosting.programs.initialisation import model_of
from fedboost.boosting.programs.noisy_sums import NOISE_ALONE, Sums, newton_step
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.cut_points import RangeQuery
from fedboost.boosting.queries.noisy import SumsQuery
from fedboost.boosting.queries.rounds import EndRoundQuery
from fedboost.boosting.queries.start import StartQuery
from fedboost.boosting.queries.union import Query
from fedboost.errors import TrainingStopped
from fedboost.fixedpoint import UNIT, Float32, Int64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import RANGE_PARTS, CutPoints, range_edges
from fedboost.gbdt.objectives.objective import SCALE
from fedboost.gbdt.sampling import mixed
from fedboost.gbdt.tree import NO_CHILD, NO_SPLITS, Split, Splits, Tree
from fedboost.protocol.contracts import GrownTrees
from fedboost.terms.noise import CUT_POINTS, ROWS, START, TREES
from fedboost.terms.terms import Terms

MAX_NOISY_BINS = 32
"""Most bins of a numeric feature: finer than trees of this depth need, coarse enough for equal row counts."""
STAGED_FEATURES = 3


def train(terms: Terms, grown: GrownTrees) -> Generator[Query, Int64, Booster]:
    """Boost terms.rounds trees. `grown`: the trees so far, which are not asked for again."""
    cut_points = yield from lay_cut_points(terms)
    levels = yield from find_noisy_levels(terms, min(terms.histograms.max_bin, MAX_NOISY_BINS))
    cut_points = levels.among(cut_points, terms)
    total = yield StartQuery(ROWS, cut_points, SCALE, SCALE, levels.means)
    score = base_score(terms, total)
    constant = terms.objective.loss.margin(score)
    values = tuple((root, constant) for root in terms.roots)
    yield end_of(CONSTANT_TREE, values)
    for number in range(terms.trees.rounds):
        if number == len(grown):
            try:
                grown.append((yield from grow(terms, number, cut_points)))
            except TrainingStopped:
                break
        tree, splits = grown[number]
        yield end_of(number, tuple((leaf, tree.value[leaf]) for leaf in tree.leaves), splits)
    parts = [part for tree, _ in grown for part in tree.parts(len(terms.roots))]
    return model_of(terms, score, parts, levels.of_model(terms))


def grow(terms: Terms, number: int, cut_points: CutPoints) -> Generator[Query, Int64, tuple[Tree, Splits]]:
    """The trees of a round, with the splits not yet sent to any party."""
    assert terms.noise is not None
    if terms.noise.method == "hist":
        tree, new_splits, sums = yield from dp_histograms.grow(terms, number, cut_points)
    else:
        splits, leaves = draw_splits(terms, number, cut_points)
        tree, new_splits, sigma = (
            drawn_tree(terms, splits, cut_points),
            NO_SPLITS,
            terms.plan.releases[TREES].sigma,
        )
        pairs = (yield SumsQuery(ROWS, number, splits, leaves)).reshape(-1, 2).tolist()
        sums = {leaf: Sums(g, h, sigma) for leaf, (g, h) in zip(leaves, pairs, strict=True)}
    give_values(tree, terms, sums)
    return tree, new_splits


def end_of(number: int, values: tuple[tuple[int, float], ...], splits: Splits = NO_SPLITS) -> EndRoundQuery:
    """Move the margins; the answer is empty."""
    return EndRoundQuery(ROWS, number, splits, values, (), UNIT, False, ())


def lay_cut_points(terms: Terms) -> Generator[Query, Int64, CutPoints]:
    """Cut points between the declared ends of each numeric feature: evenly, or at equal shares of noisy
    counts. Every feature has a bin for missing values."""
    ranges = [terms.columns.ranges[name] for name in terms.columns.numeric]
    bins = min(terms.histograms.max_bin, MAX_NOISY_BINS)
    if terms.histograms.cut_points == "grid" and ranges:
        noisy = yield RangeQuery(ROWS, len(ranges))
        least = NOISE_ALONE * terms.plan.releases[CUT_POINTS].sigma
        counts = np.where(noisy > least, noisy, 0).reshape(len(ranges), RANGE_PARTS)
        cuts = tuple(equal_cuts(*feature, bins) for feature in zip(counts, ranges, strict=True))
    else:
        cuts = tuple(even_cuts(declared, bins) for declared in ranges)
    return CutPoints.of(cuts, (True,) * len(cuts)).with_categories(terms.columns.category_counts)


def even_cuts(declared: tuple[float, float], bins: int) -> Float32:
    """Cuts between bins of equal width."""
    return np.unique(np.linspace(*declared, bins + 1)[1:-1].astype(np.float32))


def equal_cuts(counts: Int64, declared: tuple[float, float], bins: int) -> Float32:
    """Edges of the parts that were counted, such that the bins between hold about equally many rows."""
    if not counts.any():
        return even_cuts(declared, bins)
    until = np.cumsum(counts)
    ranks = np.arange(1, bins) * (until[-1] / bins)
    parts = np.searchsorted(until, ranks, side="left")
    return np.unique(range_edges(declared)[parts[parts < RANGE_PARTS - 1]])


def base_score(terms: Terms, total: Int64) -> float:
    """The constant prediction: the one of the terms, or a Newton step from where boosting would start."""
    bound = terms.bound
    if terms.objective.base_score is not None:
        return float(np.float32(terms.objective.base_score))
    if terms.objective.loss.outputs > 1:
        return bound.start
    start = terms.objective.loss.margin(bound.start)
    step = newton_step(terms, Sums(int(total[0]), int(total[1]), terms.plan.releases[START].sigma))
    return float(np.float32(terms.objective.loss.predict(np.array([start + step]))[0]))


@dataclass
class _Open:
    """A node that may split: the bins, or the categories, that each feature still has in it."""

    node: int
    features: tuple[int, ...]
    bins: dict[int, range]
    categories: dict[int, tuple[int, ...]]

    def wide(self) -> list[int]:
        """Features that can split it."""
        return [f for f in self.features if len(self.bins.get(f) or self.categories.get(f) or ()) > 1]


def draw_splits(terms: Terms, number: int, cut_points: CutPoints) -> tuple[Splits, tuple[int, ...]]:
    """The splits of a round's trees, and their leaves."""
    draws = _draws(terms.draws.seed, number)
    first = {f: range(cuts.size + 1) for f, cuts in enumerate(cut_points.cuts)}
    bins = {f: own for f, own in first.items() if f not in cut_points.categorical}
    categories = {f: tuple(first[f]) for f in cut_points.categorical}
    usable = [f for f in first if len(first[f]) > 1]
    splits: list[Split] = []
    frontier = [
        _Open(root, features_of(terms, number, usable, draws), bins, categories) for root in terms.roots
    ]
    leaves: list[int] = []
    for depth in range(terms.trees.max_depth + 1):
        below: list[_Open] = []
        for node in frontier:
            wide = node.wide()
            if depth == terms.trees.max_depth or not wide:
                leaves.append(node.node)
                continue
            feature = wide[next(draws) % len(wide)]
            left = len(terms.roots) + 2 * len(splits)
            split, *sides = _split(node, feature, left, draws)
            splits.append(split)
            below += sides
        frontier = below
    return Splits.of(splits), tuple(sorted(leaves))


def features_of(terms: Terms, number: int, usable: Sequence[int], draws: Iterator[int]) -> tuple[int, ...]:
    """The features that a tree may split by."""
    assert terms.noise is not None
    method = terms.noise.method
    if not usable or method == "random":
        return tuple(usable)
    own = usable[number % len(usable)]
    if method == "additive" or number < terms.trees.rounds // 2:
        return (own,)
    others = [feature for feature in usable if feature != own]
    chosen = {own}
    while len(chosen) < min(STAGED_FEATURES, len(usable)):
        chosen.add(others[next(draws) % len(others)])
    return tuple(sorted(chosen))


def _split(node: _Open, feature: int, left: int, draws: Iterator[int]) -> tuple[Split, _Open, _Open]:
    missing_left = bool(next(draws) % 2)
    if feature in node.bins:
        own = node.bins[feature]
        bin_ = own.start + next(draws) % (len(own) - 1)
        sides = range(own.start, bin_ + 1), range(bin_ + 1, own.stop)
        split = Split(node.node, feature, bin_, missing_left, left)
        children = [({**node.bins, feature: side}, node.categories) for side in sides]
    else:
        categories = node.categories[feature]
        goes_right = [next(draws) % 2 == 1 for _ in categories]
        if len(set(goes_right)) == 1:
            other = next(draws) % len(categories)
            goes_right[other] = not goes_right[other]
        right = tuple(c for c, goes in zip(categories, goes_right, strict=True) if goes)
        rest = tuple(c for c in categories if c not in right)
        split = Split(node.node, feature, 0, missing_left, left, sum(1 << c for c in right))
        children = [(node.bins, {**node.categories, feature: side}) for side in (rest, right)]
    low, high = (_Open(left + side, node.features, *child) for side, child in enumerate(children))
    return split, low, high


def _draws(seed: int, number: int) -> Iterator[int]:
    """Whole numbers below 2**64, without end: hashes of the seed, as rows and columns are drawn by."""
    block = 0
    while True:
        yield from mixed(np.arange(1024, dtype=np.uint64), seed, "structure", number, block).tolist()
        block += 1


def drawn_tree(terms: Terms, splits: Splits, cut_points: CutPoints) -> Tree:
    """The tree of these splits, without values."""
    tree = Tree()
    for _ in range(2 * len(splits) + len(terms.roots)):
        tree.add_leaf(0.0, 0.0)
    for split in splits:
        tree.decide(split, cut_points.cuts[split.feature])
    return tree


def give_values(tree: Tree, terms: Terms, sums: Mapping[int, Sums]) -> None:
    """Set the values and covers of a tree from the noisy sums in its leaves."""
    for leaf, leaf_sums in sums.items():
        step = newton_step(terms, leaf_sums)
        tree.value[leaf] = float(np.float32(terms.trees.learning_rate * step))
        tree.cover[leaf] = float(np.float32(max(terms.bound.hessian(leaf_sums.hessian), 0.0)))
    for node in reversed(range(len(tree.left))):
        left = tree.left[node]
        if left != NO_CHILD:
            tree.cover[node] = float(np.float32(math.fsum(tree.cover[left : left + 2])))
