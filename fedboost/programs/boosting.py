"""THE LOOP: gradient boosting as a program. It reads like centralised boosting; each `yield` is a turn.

Promises: a pure function of the terms and the sums, so the model is the same for every partition of the
rows; parties are asked for the smaller child only, the sibling is the parent minus it.
Refuses: sums that violate what must hold of them (PeerError), a label with nothing to learn (ConfigError).
"""

from collections.abc import Generator
from dataclasses import dataclass

from fedboost.errors import ConfigError, CutShort, PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt import metrics
from fedboost.gbdt.bins import CutPoints
from fedboost.gbdt.histogram import Layout, Total, node_total
from fedboost.gbdt.model import Booster
from fedboost.gbdt.split import BestSplit, SplitRule
from fedboost.gbdt.tree import ROOT, Split, Tree
from fedboost.programs.start import Scales, count_rows, find_base_score, find_cut_points, residuals_vanish
from fedboost.protocol.progress import Grown
from fedboost.protocol.queries import CONSTANT_TREE, EndRoundQuery, HistogramQuery, Query, RowsQuery
from fedboost.protocol.terms import Terms


def train(terms: Terms, grown: Grown) -> Generator[Query, Int64, Booster]:
    """Boost terms.rounds trees. `grown`: see `grow_tree`."""
    counts = yield RowsQuery()
    rows, scales = count_rows(counts), Scales.of(terms, counts[1:])
    cut_points = yield from find_cut_points(terms, rows)
    score = yield from find_base_score(terms, rows, cut_points, scales)
    constant = terms.loss.margin(score)
    exponents = yield from end_round(terms, rows, CONSTANT_TREE, (), ((ROOT, constant),), scales)
    if terms.asks_for_exponents and residuals_vanish(counts[1:], exponents):
        raise ConfigError(
            "the label is the same in every row of every party, but for rounding: there is nothing to learn"
        )
    trees = []
    for number in range(terms.rounds):
        scales = Scales.of(terms, exponents) if terms.asks_for_exponents else scales
        tree, splits = yield from grow_tree(terms, rows, number, cut_points, scales, grown)
        values = tuple((leaf, tree.value[leaf]) for leaf in tree.leaves)
        exponents = yield from end_round(terms, rows, number, splits, values, scales)
        trees.append(tree)
    return Booster(terms.objective, score, terms.columns.features, tuple(trees))


def end_round(
    terms: Terms,
    rows: int,
    number: int,
    splits: tuple[Split, ...],
    values: tuple[tuple[int, float], ...],
    scales: Scales,
) -> Generator[Query, Int64, Int64]:
    """Move the margins; the exponent counts of the new gradients (empty if the terms ask for none)."""
    exponents = terms.asks_for_exponents
    total = yield EndRoundQuery(rows, number, splits, values, terms.metrics, scales.metric, exponents)
    return total[metrics.cells(terms.metrics) :]


@dataclass(frozen=True)
class Leaf:
    """A leaf that may still split: its number, its sums, its depth, and its histogram."""

    node: int
    total: Total
    depth: int
    histogram: Int64


def grow_tree(
    terms: Terms, rows: int, number: int, cut_points: CutPoints, scales: Scales, grown: Grown
) -> Generator[Query, Int64, tuple[Tree, tuple[Split, ...]]]:
    """Grow one tree level by level; returns it with the splits no party has heard of yet.

    A tree that is cut short, because the roster has to change, ends with the leaves it has. `grown`: the
    trees so far, each with those splits; one that is there already, from before a restart, is not asked for.
    """
    if number == len(grown):
        grown.append((yield from _grow(terms, rows, number, cut_points, scales)))
    return grown[number]


def _grow(
    terms: Terms, rows: int, number: int, cut_points: CutPoints, scales: Scales
) -> Generator[Query, Int64, tuple[Tree, tuple[Split, ...]]]:
    rule = SplitRule(
        terms.reg_lambda,
        terms.reg_alpha,
        terms.gamma,
        terms.min_child_weight,
        terms.learning_rate,
        scales.gradient,
        scales.hessian,
    )
    layout = Layout.of(cut_points)

    def ask(splits: tuple[Split, ...], nodes: tuple[int, ...]) -> HistogramQuery:
        return HistogramQuery(rows, number, splits, nodes, layout.bins, rule.gradient, rule.hessian)

    tree = Tree()
    histogram = yield ask((), (ROOT,))
    total = node_total(histogram, layout)
    tree.add_leaf(rule.leaf_value(total), rule.hessian.decode(total[1]))
    frontier = [Leaf(ROOT, total, 0, histogram)]
    while True:
        splits, pairs = [], []
        for leaf in frontier:
            best = rule.best_split(leaf.histogram, layout, leaf.total)
            if best is not None:
                splits.append(add_children(tree, leaf, best, cut_points, rule))
                pairs.append((leaf, best))
        wanted = [
            (leaf, best, split.left)
            for (leaf, best), split in zip(pairs, splits, strict=True)
            if leaf.depth + 1 < terms.max_depth and (rule.may_split(best.left) or rule.may_split(best.right))
        ]
        if not wanted:
            return tree, tuple(splits)
        smaller = [left if best.left[1] <= best.right[1] else left + 1 for _, best, left in wanted]
        try:
            sums = yield ask(tuple(splits), tuple(smaller))
        except CutShort:
            return tree, tuple(splits)
        frontier = []
        for (leaf, best, left), asked, cells in zip(
            wanted, smaller, sums.reshape(len(wanted), -1), strict=True
        ):
            due = best.left if asked == left else best.right
            if node_total(cells, layout) != due:
                raise PeerError(
                    f"tree {number}: the sums of node {asked} are not those its parent's split gave"
                )
            sibling = leaf.histogram - cells
            of_left, of_right = (cells, sibling) if asked == left else (sibling, cells)
            for node, child, histogram in ((left, best.left, of_left), (left + 1, best.right, of_right)):
                if rule.may_split(child):
                    frontier.append(Leaf(node, child, leaf.depth + 1, histogram))


def add_children(tree: Tree, leaf: Leaf, best: BestSplit, cut_points: CutPoints, rule: SplitRule) -> Split:
    """Split a leaf of the tree; the decision the parties will hear."""
    left = tree.add_leaf(rule.leaf_value(best.left), rule.hessian.decode(best.left[1]))
    tree.add_leaf(rule.leaf_value(best.right), rule.hessian.decode(best.right[1]))
    return tree.split(leaf.node, best, cut_points, left)
