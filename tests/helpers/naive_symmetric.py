"""Symmetric trees grown from pooled rows, where each split is tried on the rows of each node: the reference
of `grow_policy = "symmetric"`."""

from dataclasses import dataclass

import numpy as np
from list_trees import ListTree
from naive_growth import bounds_below, leaf_value, may_split, step
from naive_trees import FREE, BestSplit, decide

from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.gbdt import sampling
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.tree import MIN_GAIN, Split
from tests.gbdt.reference.fixedpoint import quantise
from tests.gbdt.reference.split import candidates_by_level, score, ways_to_part


@dataclass(frozen=True)
class Pooled:
    """All rows: bins of each feature, the number of bins that hold values, which features are categorical,
    and gradients and hessians as integers."""

    codes: list
    sizes: list
    by_level: list
    gradient: np.ndarray
    hessian: np.ndarray

    def sums(self, rows, among=slice(None)):
        return int(self.gradient[rows][among].sum()), int(self.hessian[rows][among].sum())

    def by_bin(self, feature, rows):
        """The sums of each bin, and of the missing values."""
        codes = self.codes[feature][rows]
        *values, absent = [self.sums(rows, codes == bin_) for bin_ in range(self.sizes[feature] + 1)]
        return values, absent

    def decisions(self, feature, rows, rule):
        """(bin, missing left, categories that go right) of each split to try, in the order of ties; rows:
        those of all nodes of the level."""
        if not self.by_level[feature]:
            for bin_ in range(self.sizes[feature]):
                yield from ((bin_, missing_left, ()) for missing_left in (False, True))
            return
        penalties = rule.reg_lambda, rule.reg_alpha, rule.min_child_weight, None
        limits = rule.max_cat_to_onehot, rule.max_cat_threshold
        pairs, absent = self.by_bin(feature, rows)
        asked = (rule.gradient.factor, rule.hessian.factor), penalties, limits
        ways = ways_to_part(pairs, *asked)[1]
        for way, missing_left, *_ in candidates_by_level(pairs, absent, *asked):
            yield 0, missing_left, tuple(ways[way])

    def left(self, feature, decision, rows):
        """Which of these rows go left."""
        bin_, missing_left, right = decision
        codes = self.codes[feature][rows]
        below = ~np.isin(codes, right) if self.by_level[feature] else codes <= bin_
        return np.where(codes == self.sizes[feature], missing_left, below)


def loss_of(rule, total, value):
    g, h = rule.gradient.decode(total[0]), rule.hessian.decode(total[1])
    return -(2.0 * g * value + (h + rule.reg_lambda) * value * value + 2.0 * rule.reg_alpha * abs(value))


def gain_of(rule, feature, left, right, bounds):
    """The gain of a split of one node, or None where it may not be split so."""
    if min(left[1], right[1]) <= 0:
        return None
    if rule.hessian.decode(min(left[1], right[1])) < rule.min_child_weight:
        return None
    whole = left[0] + right[0], left[1] + right[1]
    if rule.monotone:
        values = [step(rule, total, bounds) for total in (left, right, whole)]
        if (values[1] - values[0]) * rule.monotone[feature] < 0:
            return None
        losses = [
            loss_of(rule, total, value) for total, value in zip((left, right, whole), values, strict=True)
        ]
    else:
        penalties = rule.reg_lambda, rule.reg_alpha, rule.max_delta_step or np.inf
        losses = [
            score(rule.gradient.decode(g), rule.hessian.decode(h), *penalties)
            for g, h in (left, right, whole)
        ]
    return losses[0] + losses[1] - losses[2]


def best_decision(pooled, level, rule, features):
    """(feature, decision) with the highest sum of gains over the nodes of a level, or None."""
    every = np.concatenate([rows for _, rows, _ in level])
    best, found = 0.0, None
    for feature in features:
        for decision in pooled.decisions(feature, every, rule):
            gains = []
            for _, rows, bounds in level:
                left, total = pooled.sums(rows, pooled.left(feature, decision, rows)), pooled.sums(rows)
                right = total[0] - left[0], total[1] - left[1]
                gains.append(gain_of(rule, feature, left, right, bounds))
            total_gain, parted = sum(gain or 0.0 for gain in gains), len(gains) - gains.count(None)
            if total_gain > best:
                best, found = total_gain, (feature, decision, total_gain >= rule.gamma * parted)
    return found[:2] if found and best > MIN_GAIN and found[2] else None


def grow(pooled, rule, depth, cuts, features_of):
    """(tree, leaf of each row); features_of: depth to the features of that level."""
    tree, everything = ListTree(), np.arange(pooled.gradient.size)
    leaf = np.zeros(everything.size, np.int64)
    whole = pooled.sums(everything)
    tree.add_leaf(leaf_value(rule, whole), rule.hessian.decode(whole[1]))
    level = [(0, everything, FREE)]
    for above in range(depth):
        found = best_decision(pooled, level, rule, features_of(above)) if level else None
        if found is None:
            break
        (feature, decision), children = found, []
        bin_, missing_left, right = decision
        categories = sum(1 << category for category in right)
        for node, rows, bounds in level:
            to_left = pooled.left(feature, decision, rows)
            sums = pooled.sums(rows, to_left), pooled.sums(rows, ~to_left)
            gain = gain_of(rule, feature, *sums, bounds)
            if gain is None:
                continue
            best = BestSplit(gain, feature, bin_, missing_left, *sums, categories)
            below = bounds_below(rule, best, bounds)
            first = len(tree.left)
            for total in sums:
                tree.add_leaf(leaf_value(rule, total, bounds), rule.hessian.decode(total[1]))
            decide(tree, Split(node, feature, bin_, missing_left, first, categories), cuts[feature])
            tree.gain[node] = float(np.float32(gain))
            for child, among in enumerate((to_left, ~to_left)):
                leaf[rows[among]] = first + child
                if may_split(rule, sums[child]):
                    children.append((first + child, rows[among], below[child]))
        level = children
    return tree.tree, leaf


def train(X, y, terms, turns):
    """The trees of a training on these rows. turns: its queries, of which the cut points, the constant and
    the scales of gradients are taken."""
    queries = [part for query in turns.values() for part in query.parts]
    (cut_points,) = [query.cut_points for query in queries if isinstance(query, StartQuery)]
    constant = next(query for query in queries if isinstance(query, EndRoundQuery))
    roots = [q for q in queries if isinstance(q, HistogramQuery) and q.nodes == terms.roots]
    layout, loss, trees = Layout.of(cut_points), terms.objective.loss, []
    sizes, by_level = layout.value_bins.tolist(), layout.categorical.tolist()
    codes = []
    for column, size, cuts, by in zip(X.T, sizes, cut_points.cuts, by_level, strict=True):
        bins = np.nan_to_num(column) if by else np.searchsorted(cuts, column, side="right")
        codes.append(np.where(np.isnan(column), size, bins).astype(np.int64))
    margin = np.zeros((loss.outputs, len(X)))
    for root, value in constant.values:
        margin[root // terms.trees.num_parallel_tree] += value
    for query in roots[: terms.trees.rounds]:
        rule = terms.rule(query.gradient, query.hessian)
        ones = np.ones(len(X), np.float32)
        slopes = np.atleast_3d(loss.gradients(margin if loss.outputs > 1 else margin[0], y, ones))
        slopes = slopes if loss.outputs > 1 else slopes.transpose(0, 2, 1)
        moves = np.zeros_like(margin)
        for root in terms.roots:
            output = root // terms.trees.num_parallel_tree
            own = np.ascontiguousarray(slopes[0][output]), np.ascontiguousarray(slopes[1][output])
            factors = rule.gradient.factor, rule.hessian.factor
            pairs = quantise(*own, *factors, rule.gradient.limit)
            hessian = pairs & 0xFFFFFFFF
            pooled = Pooled(codes, sizes, by_level, (pairs - hessian) >> 32, hessian)
            drawn = (terms.draws, query.tree, root, len(sizes))
            tree, leaf = grow(
                pooled,
                rule,
                terms.trees.max_depth,
                cut_points.cuts,
                lambda above, d=drawn: drawn_at(above, *d),
            )
            trees.append(tree)
            moves[output] += tree.value[leaf]
        margin += moves
    return trees


def drawn_at(above, draws, tree, root, features):
    """The features that the nodes below so many splits may be split by."""
    at = draws.seed, tree
    drawn = sampling.sampled_features(tuple(range(features)), draws.colsample_bytree, *at, "tree", root)
    return sampling.sampled_features(drawn, draws.colsample_bylevel, *at, "level", root, above)
