"""Trees grown on noisy histograms, level by level: as boosting without noise, but expensive in privacy.

Every level opens the histograms of all features, so a row's part of it is as large as the root of their
number, and so is the noise. Below epsilon 4 trees of random structure (`dp_random_trees`) do better unless
rows are many; no histogram is its parent minus its sibling here, since that would have the noise of both.

Promises: a pure function of the terms and the noisy sums; every query gets noise.
Refuses nothing: with noise, any sum is possible.
"""

import dataclasses
from collections.abc import Generator

import numpy as np

from fedboost.boosting.programs.noisy_sums import Sums
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.boosting.queries.union import Query
from fedboost.fixedpoint import Int64
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import STATS, Layout
from fedboost.gbdt.objectives.objective import SCALE, Bound
from fedboost.gbdt.split import BestSplit, SplitRule
from fedboost.gbdt.tree import Split, Splits, Tree
from fedboost.terms.noise import ROWS, TREES
from fedboost.terms.terms import Terms

BEYOND_NOISE = 4.0
"""Smallest sum of hessians of a child, in standard deviations of its noise."""


def grow(
    terms: Terms, number: int, cut_points: CutPoints
) -> Generator[Query, Int64, tuple[Tree, Splits, dict[int, Sums]]]:
    """The tree without values, the splits of its last level, and the sums in its leaves."""
    layout, tree, bound = Layout.of(cut_points), Tree(), terms.bound
    sigma = terms.plan.releases[TREES].sigma
    rule = dataclasses.replace(
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
            total = mean_total(pairs, layout)
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


def mean_total(pairs: Int64, layout: Layout) -> tuple[int, int]:
    """Sums over a node's rows: the mean over the features, whose bins differ in noise."""
    feature_totals = np.add.reduceat(pairs, layout.offsets.astype(np.int64), axis=0)
    gradient, hessian = np.rint(feature_totals.mean(axis=0)).astype(np.int64).tolist()
    return gradient, hessian


def best_split(
    rule: SplitRule, pairs: Int64, total: tuple[int, int], layout: Layout, bound: Bound
) -> BestSplit | None:
    """The split of highest gain, by hessians in units of the gradients', none below 0."""
    as_gradients = bound.hessian_clip / bound.weight / bound.clip
    whole = np.array([*pairs.tolist(), total], np.float64)
    whole[:, 1] = np.maximum(whole[:, 1], 0.0) * as_gradients
    units = np.rint(whole).astype(np.int64)
    return rule.best_split(np.ascontiguousarray(units[:-1]).reshape(-1), layout, tuple(units[-1].tolist()))


def child_sums(
    pairs: Int64, total: tuple[int, int], split: Split, layout: Layout, node_sigma: float, bin_sigma: float
) -> tuple[Sums, Sums]:
    """Sums of the two children: of the side with fewer bins those bins, of the other side the rest."""
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
