"""The leaves of a growing tree that may split again, and what is asked for when one did.

Promises: of two siblings the one with the smaller sum of hessians is asked for, the other is the parent minus
it; cells are as wide as the parent's sums say they must be.
Refuses: sums of a child that are not those its parent's split gave (PeerError).
"""

from dataclasses import dataclass

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.bins import CutPoints
from fedboost.gbdt.histogram import Layout, NodeSums, Total, Widths
from fedboost.gbdt.split import BestSplit, SplitRule
from fedboost.gbdt.tree import Split, Tree


@dataclass(frozen=True)
class Leaf:
    """A leaf that may still split: its number, its depth, and its sums."""

    node: int
    depth: int
    sums: NodeSums


@dataclass(frozen=True)
class Parted:
    """A leaf that was split into `left` and left + 1, which may split again: of the two, the one with the
    smaller sum of hessians is asked for."""

    leaf: Leaf
    best: BestSplit
    left: int

    @property
    def asks_left(self) -> bool:
        """Whether the left child is asked for."""
        return self.best.left[1] <= self.best.right[1]

    @property
    def asked(self) -> int:
        """Number of the child that is asked for."""
        return self.left if self.asks_left else self.left + 1

    @property
    def totals(self) -> tuple[Total, Total]:
        """Sums of the child that is asked for, and of the other."""
        children = self.best.left, self.best.right
        return children if self.asks_left else children[::-1]

    @property
    def widths(self) -> Widths:
        """Bits for the sums of the child that is asked for."""
        return self.leaf.sums.widths(*self.totals)

    def children(self, cells: Int64, layout: Layout) -> tuple[Leaf, Leaf]:
        """Both children, from the sum that was asked for."""
        child = NodeSums.read(cells, layout)
        if child.total != self.totals[0]:
            raise PeerError(f"the sums of node {self.asked} are not those its parent's split gave")
        both = child, self.leaf.sums.sibling(child)
        left, right = both if self.asks_left else both[::-1]
        depth = self.leaf.depth + 1
        return Leaf(self.left, depth, left), Leaf(self.left + 1, depth, right)


def add_children(tree: Tree, leaf: Leaf, best: BestSplit, cut_points: CutPoints, rule: SplitRule) -> Split:
    """Split a leaf of the tree; the decision the parties will hear."""
    left = tree.add_leaf(rule.leaf_value(best.left), rule.hessian.decode(best.left[1]))
    tree.add_leaf(rule.leaf_value(best.right), rule.hessian.decode(best.right[1]))
    return tree.split(leaf.node, best, cut_points, left)
