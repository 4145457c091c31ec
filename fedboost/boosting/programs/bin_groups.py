"""The groups of bins in which the parties told the sums of the nodes of trees that grow.

Promises: a sibling's sums are the parent's less the child's, group by group; a split is by whole groups, and
missing values that are told with a group go with it.
Refuses: groups that are not made of the parent's, and sums that stand elsewhere (PeerError, with the party
that has the column).
"""

import numpy as np

from fedboost.boosting.queries.views import view_of
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt import histogram
from fedboost.gbdt.histogram import STATS, Flags, Layout
from fedboost.gbdt.split import Leaves
from fedboost.gbdt.tree import Bytes, Int32
from fedboost.terms.terms import Terms


class ToldGroups:
    """The groups of each node that is known; siblings have the same."""

    def __init__(self, terms: Terms, layout: Layout, numbers: Int64) -> None:
        """layout: of the features of these numbers."""
        view = view_of(terms, terms.vertical.label_holder or "")
        assert view is not None
        self._holders = [terms.parties[place] for place in view.holders[numbers].tolist()]
        self._layout = layout
        self._of: dict[int, Flags] = {}

    def __repr__(self) -> str:
        return f"ToldGroups({len(self._of)} nodes)"

    @classmethod
    def where_due(cls, terms: Terms, layout: Layout, numbers: Int64) -> "ToldGroups | None":
        """None where the terms have no floor under the rows of a bin."""
        return cls(terms, layout, numbers) if terms.vertical.min_rows_per_bin > 1 else None

    def take_roots(self, answer: Int64, roots: int) -> Int64:
        """The sums of an answer on the roots, whose groups are noted."""
        sums, marks = self._parts(answer, roots)
        for root, own in enumerate(marks):
            self._of[root] = self._checked(root, own, None, sums.reshape(roots, -1)[root])
        return sums

    def take(self, answer: Int64, asks: Int64, families: Leaves, histograms: Int64) -> Int64:
        """The sums of an answer on children (`level.ask_level`), whose groups are noted for them and their
        siblings; the sums of their parents, in `histograms`, are joined to the same groups."""
        sums, marks = self._parts(answer, len(asks))
        told = zip(marks, sums.reshape(len(asks), -1), families[asks[:, 1]], strict=True)
        for own, of_node, family in told:
            node, left = int(family["node"]), int(family["left"])
            apart = self._checked(node, own, self._of[node], of_node)
            self._of[left] = self._of[left + 1] = apart
            parent = histograms[family["slot"]]
            parent[:] = histogram.grouped(parent, apart, self._layout)
        return sums

    def widen(self, columns: Int32, bitmaps: Bytes, features: Int32) -> None:
        """Make splits, columns and bitmaps of `tree.Splits`, by whole groups. features: of each split its
        feature among those of the layout; bitmaps: empty where none is categorical."""
        layout = self._layout
        for number, feature in enumerate(features.tolist()):
            apart, column = self._of[int(columns[0, number])], columns[:, number]
            if not layout.categorical[feature]:
                column[2] = histogram.whole(apart, layout, feature, int(column[2]))
                continue
            levels, with_missing = histogram.joined_levels(apart, layout, feature)
            if not levels:
                continue
            right = bool(bitmaps[number, levels[0] >> 3] >> (levels[0] & 7) & 1)
            for level in levels:
                bit = np.uint8(1 << (level & 7))
                bitmaps[number, level >> 3] = bitmaps[number, level >> 3] & ~bit | bit * right
            if with_missing:
                column[3] = not right

    def _parts(self, answer: Int64, nodes: int) -> tuple[Int64, Int64]:
        """Sums, and the marks of each node: int64 [nodes, bins]."""
        sums = answer.size - nodes * self._layout.bins
        return answer[:sums], answer[sums:].reshape(nodes, -1)

    def _checked(self, node: int, marks: Int64, above: Flags | None, sums: Int64) -> Flags:
        """The groups of these marks of a node, or of a child of it."""
        fault = histogram.fault(marks, above, sums[:-STATS].reshape(-1, STATS), self._layout)
        if fault is not None:
            feature, what = fault
            raise PeerError(
                f"party {self._holders[feature]} told sums by groups of bins that cannot be, at or below "
                f"node {node}: {what}; ask there before you train with it again"
            )
        apart: Flags = marks == 1
        return apart
