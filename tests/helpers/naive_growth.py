"""Trees grown node by node, an object each: the reference of `programs.frontier` and of the kernels of
levels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from list_trees import ListTree
from naive_trees import FREE, BestSplit, best_split, split_node
from splits import among, only

from fedboost.boosting.queries.trees import Elected, HistogramQuery, VoteQuery
from fedboost.errors import TreeAborted
from fedboost.fixedpoint import Int64
from fedboost.gbdt import sampling
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import STATS, Layout, Total, node_total
from fedboost.gbdt.tree import Split, SplitRule, Splits
from fedboost.terms.terms import Terms


def step(rule, total, bounds):
    """-T(G) / (H + lambda), T the soft threshold at reg_alpha, of magnitude at most max_delta_step unless
    that is 0, and within the bounds."""
    gradient, hessian = rule.gradient.decode(total[0]), rule.hessian.decode(total[1])
    thresholded = max(gradient - rule.reg_alpha, 0.0) + min(gradient + rule.reg_alpha, 0.0)
    denominator = hessian + rule.reg_lambda
    best = -thresholded / denominator if denominator > 0 else 0.0
    most = rule.max_delta_step or np.inf
    best = max(-most, min(most, best))
    return max(bounds[0], min(bounds[1], best))


def leaf_value(rule, total, bounds=FREE):
    """The learning rate times `step`, as float32."""
    return float(np.float32(step(rule, total, bounds) * rule.learning_rate))


def bounds_below(rule, best, within):
    """Bounds of leaf values below the two children of a split: where the feature has a constraint, none
    is beyond the middle of the two."""
    sign = rule.monotone[best.feature] if rule.monotone else 0
    middle = (step(rule, best.left, within) + step(rule, best.right, within)) / 2.0
    low, high = (within[0], middle), (middle, within[1])
    return (low, high) if sign > 0 else (high, low) if sign < 0 else (within, within)


def may_split(rule, total):
    """True if both children could reach min_child_weight."""
    return rule.hessian.decode(total[1]) >= 2.0 * rule.min_child_weight


@dataclass(frozen=True)
class NodeSums:
    """Known sums of a node: the histogram, int64 [layout.cells], of the features of the layout; the sums of
    gradients and hessians over all its rows; and the sum of the gradients above 0, which bounds the bins of
    its children."""

    layout: Layout
    histogram: Int64
    total: Total
    positive: int

    @classmethod
    def read(cls, cells: Int64, layout: Layout):
        """Read a node's cells of an opened sum: the bins, and a last pair of the sums over all rows, of the
        gradients above 0 and of the hessians."""
        return cls(layout, cells[:-STATS], node_total(cells[:-STATS], layout), int(cells[-STATS]))

    def sibling(self, child: "NodeSums"):
        """Sums of the other child, for features known of both."""
        total = self.total[0] - child.total[0], self.total[1] - child.total[1]
        both = self.layout.features
        if child.layout is not self.layout:
            both = tuple(sorted({*self.layout.features} & {*child.layout.features}))
        parent, known = self.layout.pick(self.histogram, both), child.layout.pick(child.histogram, both)
        return NodeSums(only(self.layout, both), parent - known, total, self.positive - child.positive)

    def joined(self, other: "NodeSums", layout: Layout):
        """The same node with the features of both, all of the layout."""
        known = set(self.layout.features)
        bins = [(self if f in known else other).of_feature(f) for f in layout.features]
        return NodeSums(layout, np.concatenate(bins), self.total, self.positive)

    def of_feature(self, feature: int):
        """The bins of one feature."""
        return self.layout.pick(self.histogram, (feature,))

    def widths(self, child: Total, sibling: Total):
        """Bits for the sums of a child's bins, when only the sums over all rows of both children are known.

        All hessians are at least 0, so no bin's sum is beyond the child's. The gradients above 0 sum to at
        most the parent's, less what the sibling has of them for sure; those below 0 to that less the child's
        total; and no bin's sum is beyond the larger of the two.
        """
        positive = self.positive - max(sibling[0], 0)
        return max(positive, positive - child[0]).bit_length() + 1, max(child[1].bit_length(), 1)


@dataclass(frozen=True)
class Leaf:
    """A leaf that may still split: its number, the root it is below, the features its path splits by, its
    sums, and the bounds of the values of leaves below it."""

    node: int
    root: int
    path: tuple[int, ...]
    sums: NodeSums
    bounds: tuple[float, float] = FREE

    @property
    def depth(self):
        """Splits above it."""
        return len(self.path)


class Columns:
    """Features by which the nodes of a round's trees may split: shares of shares, sampled as in XGBoost, and
    within the interaction constraints."""

    def __init__(self, terms: Terms, tree: int):
        self._terms, self._tree = terms, terms.first_tree + tree
        shares = terms.draws.colsample_bytree, terms.draws.colsample_bylevel, terms.draws.colsample_bynode
        self._all = min(shares) == 1.0 and not terms.trees.interaction_constraints
        self._groups: list[set[int]] = []
        if terms.trees.interaction_constraints:
            numbers = {name: number for number, name in enumerate(terms.columns.features)}
            self._groups = [
                {numbers[name] for name in group} for group in terms.trees.interaction_constraints
            ]

    def of(self, leaf: Leaf):
        """The layout of the allowed features among those known of a leaf."""
        layout = leaf.sums.layout
        if self._all:
            return layout
        allowed = {*self._sampled(leaf)} & {*layout.features}
        if self._groups and leaf.path:
            groups = [group for group in self._groups if {*leaf.path} <= group]
            allowed &= {*leaf.path}.union(*groups)
        return among(layout, tuple(sorted(allowed)))

    def _sampled(self, leaf: Leaf):
        terms, at = self._terms, (self._terms.draws.seed, self._tree)
        features: tuple[int, ...] = tuple(range(len(terms.columns.features)))
        features = sampling.sampled_features(features, terms.draws.colsample_bytree, *at, "tree", leaf.root)
        features = sampling.sampled_features(
            features, terms.draws.colsample_bylevel, *at, "level", leaf.root, leaf.depth
        )
        return sampling.sampled_features(features, terms.draws.colsample_bynode, *at, "node", leaf.node)


class Growth:
    """The leaves that gain by a split, and the order in which they are split.

    depthwise: all of them, in the order of their numbers. lossguide: of each tree the better half, so that a
    tree takes few turns though it grows where it gains most.
    """

    def __init__(self, terms: Terms):
        self._terms = terms
        self._max_leaves = terms.max_leaves_per_round // len(terms.roots)
        self._waiting: list[tuple[Leaf, BestSplit]] = []
        self._leaves = Counter(terms.roots)

    def add(self, leaf: Leaf, best: BestSplit):
        """Add a leaf that could be split."""
        self._waiting.append((leaf, best))

    @property
    def goes_on(self):
        """True if any leaf is still to be split."""
        return any(self._leaves[leaf.root] < self._max_leaves for leaf, _ in self._waiting)

    def next(self):
        """Leaves to split now, in the order of their numbers."""
        lossguide = self._terms.trees.grow_policy == "lossguide"
        ranked = sorted(
            self._waiting, key=lambda candidate: (-candidate[1].gain if lossguide else 0.0, candidate[0].node)
        )
        budget = Counter(leaf.root for leaf, _ in ranked)
        for root, waiting in budget.items():
            better = -(-waiting // 2) if lossguide else waiting
            budget[root] = min(better, self._max_leaves - self._leaves[root])
        chosen: list[tuple[Leaf, BestSplit]] = []
        self._waiting = []
        for leaf, best in ranked:
            (chosen if budget[leaf.root] > 0 else self._waiting).append((leaf, best))
            budget[leaf.root] -= 1
        self._leaves += Counter(leaf.root for leaf, _ in chosen)
        return sorted(chosen, key=lambda candidate: candidate[0].node)


@dataclass(frozen=True)
class SplitLeaf:
    """A leaf that was split into `left` and left + 1."""

    leaf: Leaf
    best: BestSplit
    left: int
    rule: SplitRule

    def total(self, node: int):
        """Sums of a child."""
        return self.best.left if node == self.left else self.best.right

    def other(self, node: int):
        """The sibling of a child."""
        return 2 * self.left + 1 - node

    @cached_property
    def open(self):
        """The children that may split again."""
        children = self.left, self.left + 1
        return tuple(node for node in children if may_split(self.rule, self.total(node)))

    @property
    def smaller(self):
        """The child with the smaller sum of hessians."""
        return self.left if self.best.left[1] <= self.best.right[1] else self.left + 1

    def asks(self, elected: Layout):
        """Children to ask for, each with its features, so that the elected features are known of all children
        that may split."""
        known = self.leaf.sums.layout
        unknown = () if elected is known else tuple(sorted({*elected.features} - {*known.features}))
        if not unknown:
            return [(self.smaller, elected)]
        if len(self.open) == 1:
            return [(self.open[0], elected)]
        return [(self.smaller, elected), (self.other(self.smaller), only(elected, unknown))]

    def leaves(self, answers: Sequence[NodeSums], elected: Layout):
        """Children that may split, from the sums of `asks`."""
        asks = [node for node, _ in self.asks(elected)]
        known = {asks[0]: answers[0]}
        if self.other(asks[0]) in self.open:
            sibling = self.leaf.sums.sibling(answers[0])
            known[self.other(asks[0])] = sibling.joined(answers[1], elected) if len(answers) > 1 else sibling
        path = (*self.leaf.path, self.best.feature)
        bounds = bounds_below(self.rule, self.best, self.leaf.bounds)
        return [Leaf(node, self.leaf.root, path, known[node], bounds[node - self.left]) for node in self.open]


@dataclass(frozen=True)
class Level:
    """The leaves of a level that were split, and the features elected for the children of each."""

    split_leaves: Sequence[SplitLeaf]
    elected: Sequence[Layout]

    @property
    def asks(self):
        """Each node to ask for, with its features."""
        families = zip(self.split_leaves, self.elected, strict=True)
        return [(split_leaf, *ask) for split_leaf, elected in families for ask in split_leaf.asks(elected)]

    def query(
        self,
        terms: Terms,
        rows: int,
        tree: int,
        splits: tuple[Split, ...],
        layout: Layout,
        threshold: float,
    ) -> HistogramQuery:
        """The query for all of them."""
        widths = tuple(
            split_leaf.leaf.sums.widths(split_leaf.total(node), split_leaf.total(split_leaf.other(node)))
            for split_leaf, node, _ in self.asks
        )
        nodes = tuple(node for _, node, _ in self.asks)
        elected = (
            tuple(Elected(features.features, features.bins) for _, _, features in self.asks)
            if terms.histograms.vote_top_k
            else ()
        )
        rule = self.split_leaves[0].rule
        scales = rule.gradient, rule.hessian
        return HistogramQuery(
            rows,
            tree,
            splits,
            nodes,
            layout.bins,
            *scales,
            bytes(w for pair in widths for w in pair),
            elected,
            threshold,
        )

    def leaves(self, cells: Sequence[Int64]):
        """Leaves of the next level that may split, from the cells of each node in the query."""
        answers = iter([NodeSums.read(own, ask[2]) for own, ask in zip(cells, self.asks, strict=True)])
        families = zip(self.split_leaves, self.elected, strict=True)
        return [
            leaf
            for split_leaf, elected in families
            for leaf in split_leaf.leaves([next(answers) for _ in split_leaf.asks(elected)], elected)
        ]


def elect(split_leaves: Sequence[SplitLeaf], votes: Int64, layout: Layout, top_k: int):
    """The features with most votes for the children of each leaf that was split; ties go to the lowest."""
    by_node = iter(votes.reshape(-1, len(layout.features)))
    elected = []
    for split_leaf in split_leaves:
        total = sum((next(by_node) for _ in split_leaf.open), np.zeros(len(layout.features), np.int64))
        first = np.argsort(-total, kind="stable")[:top_k]
        elected.append(only(layout, tuple(sorted(first.tolist()))))
    return elected


def add_children(tree: ListTree, leaf: Leaf, best: BestSplit, cut_points: CutPoints, rule: SplitRule):
    """Split a leaf of the tree. Returns the decision for the parties."""
    value = partial(leaf_value, rule, bounds=leaf.bounds)
    left = tree.add_leaf(value(best.left), rule.hessian.decode(best.left[1]))
    tree.add_leaf(value(best.right), rule.hessian.decode(best.right[1]))
    return split_node(tree, leaf.node, best, cut_points, left)


def grow(terms, rows, number, cut_points, scales):
    """As `programs.boosting.grow_tree`, without leaf renewal."""
    rule = terms.rule(scales.gradient, scales.hessian)
    layout = Layout.of(cut_points)

    scale, sampled_rows = (rule.gradient, rule.hessian), rows * terms.draws.max_bootstrap_count
    query = HistogramQuery(
        sampled_rows, number, (), terms.roots, layout.bins, *scale, threshold=scales.threshold
    )
    sums = [NodeSums.read(cells, layout) for cells in query.by_node((yield query))]
    tree = ListTree()
    for root in sums:
        tree.add_leaf(leaf_value(rule, root.total), rule.hessian.decode(root.total[1]))
    frontier = [Leaf(node, node, (), root) for node, root in zip(terms.roots, sums, strict=True)]
    columns, growth = Columns(terms, number), Growth(terms)
    new_splits: tuple[Split, ...] = ()
    while True:
        for leaf in frontier:
            best = best_split(rule, leaf.sums.histogram, columns.of(leaf), leaf.sums.total, leaf.bounds)
            if best is not None:
                growth.add(leaf, best)
        split_leaves: list[SplitLeaf] = []
        while growth.goes_on and not split_leaves:
            for leaf, best in growth.next():
                split = add_children(tree, leaf, best, cut_points, rule)
                new_splits += (split,)
                split_leaf = SplitLeaf(leaf, best, split.left, rule)
                if leaf.depth + 1 < terms.trees.max_depth and split_leaf.open:
                    split_leaves.append(split_leaf)
        if not split_leaves:
            return tree.tree, Splits.of(new_splits)
        try:
            elected = [layout] * len(split_leaves)
            if terms.histograms.vote_top_k:
                voters = tuple(node for split_leaf in split_leaves for node in split_leaf.open)
                features = len(layout.features), len(terms.parties)
                votes = yield VoteQuery(rows, number, new_splits, voters, *features, *scale)
                new_splits, elected = (), elect(split_leaves, votes, layout, terms.histograms.vote_top_k)
            level = Level(split_leaves, elected)
            query = level.query(terms, sampled_rows, number, new_splits, layout, scales.threshold)
            frontier = level.leaves(query.by_node((yield query)))
            new_splits = ()
        except TreeAborted:
            return tree.tree, Splits.of(new_splits)
