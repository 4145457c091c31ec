"""A party's votes on features, and its own histograms of the nodes that may split.

Promises: each histogram is built once, and of two siblings only the one with fewer rows here; they leave this
party as votes, and as the bins of elected features.
Refuses: more histograms than fit one vector (Refused); elected features with another number of bins than in
the query (PeerError).
"""

import numpy as np

from fedboost.boosting.queries.trees import Elected, HistogramQuery, VoteQuery
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt import histogram
from fedboost.gbdt.histogram import Layout
from fedboost.gbdt.partition import Bins, GrowingRows
from fedboost.gbdt.split import SplitRule
from fedboost.gbdt.tree import Splits
from fedboost.protocol.contracts import MAX_CELLS
from fedboost.terms.terms import Terms


class OwnHistograms:
    """A party's histograms of the nodes of a level, as `histogram.build` makes them."""

    def __init__(self, growing: GrowingRows, bins: Bins, pairs: Int64) -> None:
        """pairs: the packed gradients of all rows, int64 [outputs, rows], the same while a tree grows."""
        self._growing = growing
        self._bins = bins
        self._pairs = pairs
        self._known: dict[int, Int64] = {}

    def clear(self) -> None:
        """Forget all histograms: those of another tree come next."""
        self._known = {}

    def of(self, node: int, limit: int) -> Int64:
        """Histogram of a leaf, and the last pair of its sums; limit: of the gradients' scale."""
        if node not in self._known:
            self._known[node] = self._growing.histograms([node], self._pairs, self._bins, limit)[0]
        return self._known[node]

    def descend(self, splits: Splits, nodes: tuple[int, ...], limit: int, max_cells: int) -> None:
        """Keep the histograms of these nodes alone, after these splits; max_cells: limit of their
        integers."""
        if len(nodes) * self._bins.layout.cells > max_cells:
            raise Refused(
                f"own histograms of {len(nodes)} nodes, more than {max_cells} integers; lower max_depth"
            )
        for split in splits:
            parent = self._known.pop(split.node, None)
            children = split.left, split.left + 1
            if parent is not None and set(children) <= set(nodes):
                fewer, more = sorted(children, key=lambda child: self._growing.of(child).size)
                self._known[more] = parent - self.of(fewer, limit)
        self._known = {node: cells for node, cells in self._known.items() if node in nodes}

    def of_vote(self, query: VoteQuery) -> Int64:
        """The histograms that a vote is by, after its splits: int64 [nodes, cells]."""
        limit, cells = query.gradient.limit, self._bins.layout.cells
        self.descend(query.splits, query.nodes, limit, MAX_CELLS)
        return np.stack([self.of(node, limit)[:cells] for node in query.nodes])

    def elected(self, query: HistogramQuery) -> Int64:
        """The bins of elected features of each node, after the splits; of all features at the root."""
        layout, parts = self._bins.layout, []
        everything = [Elected(layout.features, layout.bins)] * len(query.nodes)
        for node, elected in zip(query.nodes, query.elected or everything, strict=True):
            sums = self.of(node, query.gradient.limit)
            picked = layout.pick(sums[: layout.cells], elected.features)
            if picked.size != histogram.STATS * elected.bins:
                raise PeerError(f"histograms of {elected.bins} bins, the elected features have others")
            parts += [picked, sums[layout.cells :]]
        return np.concatenate(parts)


def votes(query: VoteQuery, terms: Terms, rows: int, layout: Layout, own: Int64) -> Int64:
    """Votes for features of each node, of a party with so many rows and these histograms of them, int64
    [nodes, cells]."""
    rule = terms.rule(query.gradient, query.hessian).scaled(min(rows / query.rows, 1.0))
    return np.concatenate([vote(node, layout, rule, terms.histograms.vote_top_k) for node in own])


def vote(own: Int64, layout: Layout, rule: SplitRule, top: int) -> Int64:
    """1 for the `top` features of highest positive gain, 0 for others: int64 [features].

    Ties go to the lowest feature.
    """
    votes = np.zeros(len(layout.features), np.int64)
    gains = rule.gains(own, layout, histogram.node_total(own, layout))
    best = np.argsort(-gains, kind="stable")[:top]
    votes[best[gains[best] > 0]] = 1
    return votes
