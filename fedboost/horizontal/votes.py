"""What a party needs to vote on features: its own histograms of the nodes that may split.

Promises: each is built once, and of two siblings only the one with fewer rows here; they leave this party as
votes, and as the bins of elected features.
Refuses: more of them than would be answered in one vector (Refused).
"""

from collections.abc import Callable

import numpy as np

from fedboost.errors import Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt import histogram
from fedboost.gbdt.binned import BinnedRows
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.partition import RowsOfNodes
from fedboost.gbdt.split import SplitRule
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import Split


class OwnHistograms:
    """One party's histograms of the nodes of a level, as `histogram.build` makes them."""

    def __init__(
        self,
        binned: BinnedRows,
        layout: Layout,
        rows: RowsOfNodes,
        pairs: Callable[[int], Int64],
        limit: int,
        threads: Threads,
    ) -> None:
        """rows: of the tree that grows; pairs, limit: a node's gradients, as `histogram.build` takes them."""
        self._binned = binned
        self._layout = layout
        self._rows = rows
        self._pairs = pairs
        self._limit = limit
        self._threads = threads
        self._known: dict[int, Int64] = {}

    def of(self, node: int) -> Int64:
        """The histogram of a leaf, and the last pair of its sums."""
        if node not in self._known:
            own = np.zeros((1, self._layout.cells + histogram.STATS), np.int64)
            of, pairs = [self._rows.of(node)], [self._pairs(node)]
            histogram.build(self._binned, of, pairs, self._layout, self._limit, own, self._threads)
            self._known[node] = own[0]
        return self._known[node]

    def descend(self, splits: tuple[Split, ...], nodes: tuple[int, ...], most_cells: int) -> None:
        """Keep those of these nodes alone, after these splits; at most so many integers."""
        if len(nodes) * self._layout.cells > most_cells:
            raise Refused(
                f"own histograms of {len(nodes)} nodes, more than {most_cells} integers; lower max_depth"
            )
        for split in splits:
            parent = self._known.pop(split.node, None)
            children = split.left, split.left + 1
            if parent is not None and set(children) <= set(nodes):
                fewer, more = sorted(children, key=lambda child: self._rows.of(child).size)
                self._known[more] = parent - self.of(fewer)
        self._known = {node: own for node, own in self._known.items() if node in nodes}


def vote(own: Int64, layout: Layout, rule: SplitRule, most: int) -> Int64:
    """1 for the features of highest gain, at most so many, 0 for others: int64 [features].

    Ties go to the lowest feature.
    """
    votes = np.zeros(len(layout.features), np.int64)
    gains = rule.gains(own, layout, histogram.node_total(own, layout))
    best = np.argsort(-gains, kind="stable")[:most]
    votes[best[gains[best] > 0]] = 1
    return votes
