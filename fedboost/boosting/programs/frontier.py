"""The leaves of a growing tree that may split again, and the queries after splits.

Promises: of two siblings the one with the smaller sum of hessians is asked for, the other is the parent minus
it, for every feature that is known of the parent; cells are as wide as the parent's sums require.
Refuses: sums of a child that differ from those of its parent's split (PeerError).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from fedboost.boosting.queries.trees import Elected, HistogramQuery
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt import sampling
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import Layout, NodeSums, Total
from fedboost.gbdt.split import FREE, BestSplit, Bounds, SplitRule
from fedboost.gbdt.tree import Split, Splits, Tree
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class Leaf:
    """A leaf that may still split: its number, the root it is below, the features its path splits by, its
    sums, and the bounds of the values of leaves below it."""

    node: int
    root: int
    path: tuple[int, ...]
    sums: NodeSums
    bounds: Bounds = FREE

    @property
    def depth(self) -> int:
        """Splits above it."""
        return len(self.path)


class Columns:
    """Features by which the nodes of a round's trees may split: shares of shares, sampled as in XGBoost, and
    within the interaction constraints."""

    def __init__(self, terms: Terms, tree: int) -> None:
        self._terms, self._tree = terms, terms.first_tree + tree
        shares = terms.draws.colsample_bytree, terms.draws.colsample_bylevel, terms.draws.colsample_bynode
        self._all = min(shares) == 1.0 and not terms.trees.interaction_constraints
        self._groups: list[set[int]] = []
        if terms.trees.interaction_constraints:
            numbers = {name: number for number, name in enumerate(terms.columns.features)}
            self._groups = [
                {numbers[name] for name in group} for group in terms.trees.interaction_constraints
            ]

    def of(self, leaf: Leaf) -> Layout:
        """The layout of the allowed features among those known of a leaf."""
        layout = leaf.sums.layout
        if self._all:
            return layout
        allowed = {*self._sampled(leaf)} & {*layout.features}
        if self._groups and leaf.path:
            groups = [group for group in self._groups if {*leaf.path} <= group]
            allowed &= {*leaf.path}.union(*groups)
        return layout.among(tuple(sorted(allowed)))

    def _sampled(self, leaf: Leaf) -> tuple[int, ...]:
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

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._max_leaves = terms.max_leaves_per_round // len(terms.roots)
        self._waiting: list[tuple[Leaf, BestSplit]] = []
        self._leaves = Counter(terms.roots)

    def add(self, leaf: Leaf, best: BestSplit) -> None:
        """Add a leaf that could be split."""
        self._waiting.append((leaf, best))

    @property
    def goes_on(self) -> bool:
        """True if any leaf is still to be split."""
        return any(self._leaves[leaf.root] < self._max_leaves for leaf, _ in self._waiting)

    def next(self) -> list[tuple[Leaf, BestSplit]]:
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

    def total(self, node: int) -> Total:
        """Sums of a child."""
        return self.best.left if node == self.left else self.best.right

    def other(self, node: int) -> int:
        """The sibling of a child."""
        return 2 * self.left + 1 - node

    @cached_property
    def open(self) -> tuple[int, ...]:
        """The children that may split again."""
        children = self.left, self.left + 1
        return tuple(node for node in children if self.rule.may_split(self.total(node)))

    @property
    def smaller(self) -> int:
        """The child with the smaller sum of hessians."""
        return self.left if self.best.left[1] <= self.best.right[1] else self.left + 1

    def asks(self, elected: Layout) -> list[tuple[int, Layout]]:
        """Children to ask for, each with its features, so that the elected features are known of all children
        that may split."""
        known = self.leaf.sums.layout
        unknown = () if elected is known else tuple(sorted({*elected.features} - {*known.features}))
        if not unknown:
            return [(self.smaller, elected)]
        if len(self.open) == 1:
            return [(self.open[0], elected)]
        return [(self.smaller, elected), (self.other(self.smaller), elected.only(unknown))]

    def leaves(self, answers: Sequence[NodeSums], elected: Layout) -> list[Leaf]:
        """Children that may split, from the sums of `asks`."""
        asks = [node for node, _ in self.asks(elected)]
        for node, sums in zip(asks, answers, strict=True):
            if sums.total != self.total(node):
                raise PeerError(f"the sums of node {node} are not those its parent's split gave")
        known = {asks[0]: answers[0]}
        if self.other(asks[0]) in self.open:
            sibling = self.leaf.sums.sibling(answers[0])
            known[self.other(asks[0])] = sibling.joined(answers[1], elected) if len(answers) > 1 else sibling
        path = (*self.leaf.path, self.best.feature)
        bounds = self.rule.bounds(self.best, self.leaf.bounds)
        return [Leaf(node, self.leaf.root, path, known[node], bounds[node - self.left]) for node in self.open]


@dataclass(frozen=True)
class Level:
    """The leaves of a level that were split, and the features elected for the children of each."""

    split_leaves: Sequence[SplitLeaf]
    elected: Sequence[Layout]

    @property
    def asks(self) -> list[tuple[SplitLeaf, int, Layout]]:
        """Each node to ask for, with its features."""
        families = zip(self.split_leaves, self.elected, strict=True)
        return [(split_leaf, *ask) for split_leaf, elected in families for ask in split_leaf.asks(elected)]

    def query(
        self,
        terms: Terms,
        rows: int,
        tree: int,
        splits: Splits,
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
        return HistogramQuery(rows, tree, splits, nodes, layout.bins, *scales, bytes(w for pair in widths for w in pair), elected, threshold)

    def leaves(self, cells: Sequence[Int64]) -> list[Leaf]:
        """Leaves of the next level that may split, from the cells of each node in the query."""
        answers = iter([NodeSums.read(own, ask[2]) for own, ask in zip(cells, self.asks, strict=True)])
        families = zip(self.split_leaves, self.elected, strict=True)
        return [
            leaf
            for split_leaf, elected in families
            for leaf in split_leaf.leaves([next(answers) for _ in split_leaf.asks(elected)], elected)
        ]


def elect(split_leaves: Sequence[SplitLeaf], votes: Int64, layout: Layout, top_k: int) -> list[Layout]:
    """The features with most votes for the children of each leaf that was split; ties go to the lowest."""
    by_node = iter(votes.reshape(-1, len(layout.features)))
    elected = []
    for split_leaf in split_leaves:
        total = sum((next(by_node) for _ in split_leaf.open), np.zeros(len(layout.features), np.int64))
        first = np.argsort(-total, kind="stable")[:top_k]
        elected.append(layout.only(tuple(sorted(first.tolist()))))
    return elected


def add_children(tree: Tree, leaf: Leaf, best: BestSplit, cut_points: CutPoints, rule: SplitRule) -> Split:
    """Split a leaf of the tree. Returns the decision for the parties."""
    value = partial(rule.leaf_value, bounds=leaf.bounds)
    left = tree.add_leaf(value(best.left), rule.hessian.decode(best.left[1]))
    tree.add_leaf(value(best.right), rule.hessian.decode(best.right[1]))
    return tree.split(leaf.node, best, cut_points, left)
