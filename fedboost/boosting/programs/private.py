"""Differentially private training: cut points, trees and leaf values from noisy sums.

Guarantees: all results are pure functions of the terms and the noisy sums. The larger the share of noise in a
sum, the smaller the leaf step. Sums are never rejected as inconsistent, since noise makes any sum possible.

Privacy budget. `Terms.plan` (`terms.hiding.plan_of`) fixes the noise of each kind of release before the first
query. The programs below send at most as many queries as the plan contains:

- CUT_POINTS: one RangeQuery, if there are numeric features and cut_points is "grid"; 6% of the total cost.
- LEVELS: one LevelSumsQuery, if there are target means; half of the total cost.
- START and TREES: one StartQuery; and per round one SumsQuery (`additive`), or one HistogramQuery per level
  (`hist`), at most max_depth per round. The rest of the cost is divided equally among these queries.

Under terms with noise, an EndRoundQuery has no metrics, so its answer is empty and costs nothing. Everything
else that is published (structure, means, leaf values) is computed from these releases and the terms, at no
cost."""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedboost.boosting.programs.additive import Effects, Release, cuts_of, shrunken
from fedboost.boosting.programs.initialisation import Levels, by_column, lay_cut_points, model_of, parts_of
from fedboost.boosting.queries import Query
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.columns import RangeQuery
from fedboost.boosting.queries.labels import LevelSumsQuery, StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery, SumsQuery
from fedboost.errors import TrainingStopped
from fedboost.fixedpoint import UNIT, Float32, Float64, Int64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import FINE_PARTS, CutPoints, Quantiles
from fedboost.gbdt.histogram import STATS, Layout
from fedboost.gbdt.objectives.objective import IDENTITY, SCALE, UNITS, Bound
from fedboost.gbdt.tree import NO_CHILD, NO_SPLITS, BestSplit, Split, SplitRule, Splits, Tree
from fedboost.protocol.contracts import GrownTrees
from fedboost.terms.hiding import CUT_POINTS, LEVELS, MAX_HIST_BINS, MAX_NOISY_BINS, ROWS, START, TREES
from fedboost.terms.terms import Terms, slots_of

NOISE_ALONE = 2.0
"""Counts that do not exceed this many standard deviations of their noise are set to 0."""
LEAF_SPREAD = 0.5
"""Prior standard deviation of leaf values (tau). A smaller one shrinks noisy values more toward 0."""
MAX_LEAF_STEP = 2.0
"""Maximum magnitude of a leaf's step, before the learning rate."""


@dataclass(frozen=True)
class Sums:
    """Noisy integer sums of a node's gradients and hessians, and the standard deviation of their noise."""

    gradient: int
    hessian: int
    sigma: float


def newton_step(terms: Terms, sums: Sums) -> float:
    """Return the leaf step -G H / (H**2 + lambda H + (sigma_G / tau)**2), where tau is `LEAF_SPREAD`. The
    noisier the sums are, the closer the step is to 0. If the link is the identity, tau and the maximum step
    are multiplied by the bound to which gradients are clipped."""
    bound, unit = terms.bound, terms.bound.clip if terms.objective.loss.link == IDENTITY else 1.0
    G, H = bound.gradient(sums.gradient), max(bound.hessian(sums.hessian), 0.0)
    spread = bound.gradient(sums.sigma) / (LEAF_SPREAD * unit)
    below = H * H + terms.trees.reg_lambda * H + spread * spread
    step = -G * H / below if below > 0.0 else 0.0
    return max(-MAX_LEAF_STEP * unit, min(MAX_LEAF_STEP * unit, step))


# ---- Target means from noisy sums: one release, without folds -------------------------------------------
# Noise already hides what a row adds to the mean of its own level, so no fold has to leave it out. And each
# fold would need its own noise: with 20,000 levels of ten rows each, one sum per level was better as soon as
# the noise was that of two rows.


def find_noisy_levels(terms: Terms, bins: int) -> Generator[LevelSumsQuery, Int64, Levels]:
    """Find target means and cut points as in `find_levels`, but from noisy sums. bins: maximum number of bins
    per column, excluding the missing-value bin."""
    slots = slots_of(terms)
    if not slots:
        return Levels()
    query = LevelSumsQuery(ROWS, tuple(each.with_missing for each in slots.values()), SCALE, SCALE, False)
    (sums,) = parts_of(query, (yield query))
    means, cut_points = [], []
    for own in by_column(query, sums):
        means.append(_noisy_means(terms, own))
        # Row counts come from the released hessians as well: a slot whose hessian may be all noise counts 0.
        clear = own[:, 1] > NOISE_ALONE * terms.plan.releases[LEVELS].sigma
        units = np.where(clear, own[:, 1] // UNITS, 0)
        quantiles = Quantiles(bins, max(int(units.sum()), 1))
        cut_points.append(lay_cut_points(means[-1], units, quantiles))
    every = tuple(replace(own, missing=np.ones(1, np.bool_)) for own in cut_points)
    return Levels(tuple(means), every)


def _noisy_means(terms: Terms, sums: Int64) -> Float32:
    """Return the target means of a column, float32 [buckets, 1]: for each bucket, the prediction after a
    Newton step from the overall mean, as in a leaf with the bucket's rows.

    Gradients at the overall mean are approximately those at the start of boosting, plus hessian x step."""
    loss, sigma, bound = terms.objective.loss, terms.plan.releases[LEVELS].sigma, terms.bound
    start = loss.margin(bound.start)
    total, every = sums.sum(axis=0).tolist(), sigma * np.sqrt(len(sums))
    overall = newton_step(terms, Sums(total[0], total[1], every))
    per_unit = bound.hessian(1.0) / bound.gradient(1.0) * overall
    steps = [
        newton_step(terms, Sums(round(gradient + per_unit * max(hessian, 0)), hessian, sigma))
        for gradient, hessian in sums[:-1].tolist()
    ]
    means = loss.predict(start + overall + np.array(steps))
    return means.astype(np.float32).reshape(-1, 1)


# ---- Trees grown on noisy histograms, level by level (`hist`) -------------------------------------------
# Every level releases histograms of all features. The L2 norm of a row's contribution grows as the square
# root of the number of features, and so does the noise. Below epsilon 4, trees of random structure
# (`grow_random_trees`) do better unless there are many rows. Histograms are not computed as parent minus
# sibling, because the difference would have the noise of both.

BEYOND_NOISE = 4.0
"""Minimum sum of hessians in a child, in standard deviations of a bin's noise."""


def grow_noisy_histograms(
    terms: Terms, number: int, cut_points: CutPoints
) -> Generator[Query, Int64, tuple[Tree, Splits, dict[int, Sums]]]:
    """Grow a round's trees from noisy histograms. Returns the tree without leaf values, the splits of its
    last level, and the sums in its leaves."""
    layout, tree, bound = Layout.of(cut_points), Tree(), terms.bound
    sigma = terms.plan.releases[TREES].sigma
    rule = replace(
        terms.rule(SCALE, SCALE),
        min_child_weight=max(terms.trees.min_child_weight, BEYOND_NOISE * bound.hessian(sigma)),
    )
    for _ in terms.roots:
        tree.add_leaf(0.0, 0.0)
    frontier, new_splits, sums = list(terms.roots), list[Split](), dict[int, Sums]()
    for _ in range(terms.trees.max_depth):
        query = HistogramQuery(
            ROWS, number, Splits.of(new_splits), tuple(frontier), layout.bins, SCALE, SCALE
        )
        answers = query.by_node((yield query))
        parents, frontier, new_splits = frontier, [], []
        for node, cells in zip(parents, answers, strict=True):
            pairs = cells[:-STATS].reshape(layout.bins, STATS)
            # Each of F features estimates the node's totals, with variance sigma**2 per bin. Their mean has
            # variance sigma**2 * (all bins) / F**2.
            feature_totals = np.add.reduceat(pairs, layout.offsets.astype(np.int64), axis=0)
            gradient, hessian = np.rint(feature_totals.mean(axis=0)).astype(np.int64).tolist()
            total = gradient, hessian
            sums.setdefault(node, Sums(*total, sigma * np.sqrt(layout.bins) / len(layout.features)))
            best = best_split(rule, pairs, total, layout, bound)
            if best is None:
                continue
            left = len(tree.left)
            tree.add_leaf(0.0, 0.0), tree.add_leaf(0.0, 0.0)
            split = tree.split(node, best, cut_points, left)
            new_splits.append(split)
            children = child_sums(pairs, total, split, layout, sums.pop(node).sigma, sigma)
            sums |= dict(zip((left, left + 1), children, strict=True))
            frontier += [left, left + 1]
        if not frontier:
            break
    return tree, Splits.of(new_splits), sums


def best_split(
    rule: SplitRule, pairs: Int64, total: tuple[int, int], layout: Layout, bound: Bound
) -> BestSplit | None:
    """Return the split with the highest gain, or None if no split gains enough. Negative sums of hessians are
    first set to 0, and all sums of hessians are converted to the units of gradients.

    Args:
        rule: split rule of the terms.
        pairs: int64 [bins, 2], noisy sums of gradients and hessians.
        total: sums over the node.
        layout: positions of the features' bins.
        bound: bounds on a row's gradient and hessian.
    """
    as_gradients = bound.hessian_clip / bound.weight / bound.clip
    whole = np.array([*pairs.tolist(), total], np.float64)
    whole[:, 1] = np.maximum(whole[:, 1], 0.0) * as_gradients
    units = np.rint(whole).astype(np.int64)
    return rule.best_split(np.ascontiguousarray(units[:-1]).reshape(-1), layout, tuple(units[-1].tolist()))


def child_sums(
    pairs: Int64, total: tuple[int, int], split: Split, layout: Layout, node_sigma: float, bin_sigma: float
) -> tuple[Sums, Sums]:
    """Return the sums of the left and the right child. The child with fewer bins, which has less noise, is
    summed directly. The sums of the other child are the total minus these sums.

    Args:
        pairs: int64 [bins, 2], noisy sums of the parent.
        total: sums over the parent.
        split: the split of the parent.
        layout: positions of the features' bins.
        node_sigma, bin_sigma: standard deviations of the noise of `total` and of one bin.
    """
    index = layout.features.index(split.feature)
    first, values = int(layout.offsets[index]), int(layout.value_bins[index])
    bins = np.arange(values + int(layout.missing[index]))
    if split.categories:
        right = np.array([split.categories >> category & 1 == 1 for category in bins.tolist()])
    else:
        right = bins > split.bin
    goes_left = np.where(bins < values, ~right, split.missing_left)
    own = pairs[first : first + bins.size]
    smaller = goes_left if 2 * goes_left.sum() <= bins.size else ~goes_left
    gradient, hessian = own[smaller].sum(axis=0).tolist()
    sigma = bin_sigma * float(np.sqrt(smaller.sum()))
    smaller_sums = Sums(gradient, hessian, sigma)
    larger_sums = Sums(total[0] - gradient, total[1] - hessian, float(np.hypot(sigma, node_sigma)))
    return (smaller_sums, larger_sums) if smaller is goes_left else (larger_sums, smaller_sums)


# ---- Boosting with noise --------------------------------------------------------------------------------


def train(terms: Terms, grown: GrownTrees) -> Generator[Query, Int64, Booster]:
    """Train all rounds and return the model. grown: rounds whose trees were grown before a restart. These
    rounds are not queried again, because each query costs privacy."""
    assert terms.noise is not None
    is_hist = terms.noise.method == "hist"
    most = min(terms.histograms.max_bin, MAX_HIST_BINS if is_hist else MAX_NOISY_BINS)
    most = most if is_hist else min(most, (1 << terms.trees.max_depth) - 1)
    cut_points, rows = yield from lay_noisy_cut_points(terms, most)
    levels = yield from find_noisy_levels(terms, most)
    cut_points = levels.among(cut_points, terms)
    total = yield StartQuery(ROWS, cut_points, SCALE, SCALE, levels.means)
    score = base_score(terms, total)
    constant = terms.objective.loss.margin(score)
    values = tuple((root, constant) for root in terms.roots)
    yield end_of(CONSTANT_TREE, values)
    known = terms.bound.hessian(int(total[1])) / hessians_at(terms, terms.bound.start, of_start=True)[0]
    effects = Effects(terms, cut_points, rows, hessians_at(terms, score), float(known))
    for number in range(terms.trees.rounds):
        release = None if is_hist else effects.release(number)
        if number == len(grown):
            try:
                if release is None:
                    tree, splits, sums = yield from grow_noisy_histograms(terms, number, cut_points)
                    give_values(tree, terms, sums)
                    grown.append((tree, splits))
                else:
                    sums_of_groups = yield from ask(release, number)
                    grown.append((effects.grown(release, sums_of_groups), release.further))
            except TrainingStopped:
                break
        tree, splits = grown[number]
        if release is not None:
            effects.learn(release, tree)
        yield end_of(number, tuple((leaf, tree.value[leaf]) for leaf in tree.leaves), splits)
    without = (tree if is_hist else replace(tree, gain=[0.0] * len(tree.gain)) for tree, _ in grown)
    parts = [part for tree in without for part in tree.parts(len(terms.roots))]
    return model_of(terms, score, parts, levels.of_model(terms))


def ask(release: Release, number: int) -> Generator[Query, Int64, Int64]:
    """Ask for the noisy sums in the groups of a round. Returns int64 [roots, groups, 2]."""
    leaves = [leaf for of_root in release.leaves for leaf in of_root]
    nodes = sorted(leaves)
    sums = (yield SumsQuery(ROWS, number, release.splits, tuple(nodes))).reshape(-1, 2)
    return sums[np.searchsorted(nodes, leaves)].reshape(len(release.leaves), -1, 2)


def hessians_at(terms: Terms, score: float, of_start: bool = False) -> Float64:
    """Return a row's hessian where the prediction is the constant `score`, as a row adds it to sums: float64
    [outputs]. of_start: True for the hessian from which the constant is computed."""
    loss, label = terms.objective.loss, np.zeros(1, np.float32)
    margin = np.full((loss.outputs, 1), loss.margin(score))
    slopes = loss.start if of_start else loss
    found = slopes.gradients(margin if loss.outputs > 1 else margin[0], label, np.ones(1, np.float32))
    units = np.empty((loss.outputs, 1), np.int64)
    for gradient, hessian, out in zip(*map(np.atleast_2d, found), units, strict=True):
        terms.bound.quantise(gradient, hessian, out)
    return terms.bound.hessian(1.0) * (units[:, 0] & 0xFFFFFFFF).astype(np.float64)


def end_of(number: int, values: tuple[tuple[int, float], ...], splits: Splits = NO_SPLITS) -> EndRoundQuery:
    """Return the query that ends a round: it moves the margins, and its answer is empty."""
    return EndRoundQuery(ROWS, number, splits, values, (), UNIT, False, ())


def lay_noisy_cut_points(
    terms: Terms, bins: int
) -> Generator[Query, Int64, tuple[CutPoints, Sequence[Float64]]]:
    """Choose at most `bins` bins within each numeric feature's declared range: evenly spaced, or at quantiles
    of noisy row counts. Every feature gets a bin for missing values. Also returns the estimated rows in the
    bins of each feature whose rows were counted."""
    ranges, rows = [terms.columns.ranges[name] for name in terms.columns.numeric], list[Float64]()
    if terms.histograms.cut_points == "grid" and ranges:
        noisy = (yield RangeQuery(ROWS, len(ranges), FINE_PARTS)).reshape(len(ranges), FINE_PARTS)
        sigma = terms.plan.releases[CUT_POINTS].sigma
        found = [
            cuts_of(shrunken(counts, sigma), own, bins) for counts, own in zip(noisy, ranges, strict=True)
        ]
        cuts, rows = tuple(own for own, _ in found), [own for _, own in found]
    else:
        cuts = tuple(even_cuts(declared, bins) for declared in ranges)
    return CutPoints.of(cuts, (True,) * len(cuts)).with_categories(terms.columns.category_counts), rows


def even_cuts(declared: tuple[float, float], bins: int) -> Float32:
    """Return the cut points between bins of equal width."""
    return np.unique(np.linspace(*declared, bins + 1)[1:-1].astype(np.float32))


def base_score(terms: Terms, total: Int64) -> float:
    """Return the base score (constant prediction) in the terms, if set. Otherwise, return the prediction
    after a Newton step from the default start, or the default start if there are several outputs."""
    bound = terms.bound
    if terms.objective.base_score is not None:
        return float(np.float32(terms.objective.base_score))
    if terms.objective.loss.outputs > 1:
        return bound.start
    start = terms.objective.loss.margin(bound.start)
    step = newton_step(terms, Sums(int(total[0]), int(total[1]), terms.plan.releases[START].sigma))
    return float(np.float32(terms.objective.loss.predict(np.array([start + step]))[0]))


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
