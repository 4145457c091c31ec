"""Trees that grow one split at a time, for tests: the best split of one node, and a leaf that becomes an
inner node. fedboost itself grows whole levels (`gbdt.kernels.level`)."""

import math
from dataclasses import dataclass

import numpy as np

from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.kernels import split as split_kernels
from fedboost.gbdt.tree import MIN_GAIN, Split

FREE = (-math.inf, math.inf)
"""Bounds that do not restrict leaf values."""


@dataclass(frozen=True)
class BestSplit:
    """A node's best split, and the sums of the two children. bin and categories are as in `Split`."""

    gain: float
    feature: int
    bin: int
    missing_left: bool
    left: tuple[int, int]
    right: tuple[int, int]
    categories: int = 0


def best_split(rule, histogram, layout, total, bounds=FREE):
    """The split with the highest gain, or None if no split gains enough.

    histogram: int64 [layout.cells], the node's; total: its sums of gradients and hessians; bounds: of leaf
    values below it, used with monotone constraints only."""
    limits = None
    if rule.monotone:
        limits = (*bounds, np.array([rule.monotone[feature] for feature in layout.features], np.int64))
    features = layout.offsets, layout.value_bins, layout.missing, layout.categorical
    most = rule.max_cat_to_onehot, rule.max_cat_threshold
    best = split_kernels.best_split(histogram, *features, *rule.scales, most, total, limits)
    gain, feature, bin_, missing_left, *left = best
    if feature < 0 or gain <= MIN_GAIN or gain < rule.gamma:
        return None
    left = tuple(map(int, left))
    right = total[0] - left[0], total[1] - left[1]
    number, categories = layout.features[feature], 0
    if layout.categorical[feature]:
        first, count = int(layout.offsets[feature]), int(layout.value_bins[feature])
        cells, one_hot = histogram[STATS * first : STATS * (first + count)], count < rule.max_cat_to_onehot
        levels = split_kernels.categories_right(cells, bin_, one_hot, *rule.scales)
        bin_, categories = 0, sum(1 << level for level in levels.tolist())
    return BestSplit(float(gain), number, int(bin_), bool(missing_left), left, right, categories)


def split_node(tree, node, best, cut_points, left):
    """Turn a leaf into an inner node, and return the split. left: number of the left child. The caller adds
    both children, the right one as left + 1."""
    split = Split(node, best.feature, best.bin, best.missing_left, left, best.categories)
    decide(tree, split, cut_points.cuts[best.feature])
    tree.gain[node] = float(np.float32(min(best.gain, float(np.finfo(np.float32).max))))
    return split


def decide(tree, split, cuts):
    """Turn a leaf into an inner node with this split. cuts: cut points of the split's feature."""
    tree.left[split.node] = split.left
    tree.feature[split.node] = split.feature
    tree.missing_left[split.node] = split.missing_left
    tree.categories[split.node] = split.categories
    # After the last value bin there is no cut point: no number reaches infinity.
    above = float(cuts[split.bin]) if split.bin < cuts.size else math.inf
    tree.threshold[split.node] = 0.0 if split.categories else above
