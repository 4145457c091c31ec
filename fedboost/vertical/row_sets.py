"""Row sets: which rows of a split node go left, a bit for each row and root.

The party that holds the column of a split tells the others of its block; they send their rows to the children
as by a column of two bins.

Promises: a row set has a bit for every row, 0 for rows that no node of its splits has, so that its size tells
nothing; every party of a block has the same rows in the same nodes.
Refuses: splits of nodes that are no leaves, and row sets of another size (PeerError).
"""

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.boosting.queries.base import View
from fedboost.errors import PeerError
from fedboost.gbdt.kernels.rows import set_bits
from fedboost.gbdt.sampling import Mask
from fedboost.gbdt.tree import Splits
from fedboost.protocol.contracts import NeedKeys, Receive, Send
from fedboost.terms.terms import Terms
from fedboost.vertical.rows import FeatureRows, LabelRows

ROW_SET = "which rows go left"
"""The kind of a relay."""
Exchange = Generator[Send | Receive | NeedKeys, Any, None]


class RowSets:
    """The exchange of row sets of one party with the others of its block."""

    def __init__(self, terms: Terms, name: str, view: View) -> None:
        block = terms.blocks.of(name)
        assert block is not None
        self._me = name
        self._view = view
        self._own = view.own_features
        self._roots = len(terms.roots)
        self._parties = terms.parties
        self._label_holder = block.label_holder
        self.others = tuple(party for party in block.parties if party != name)
        """The other parties of the block."""
        self._root_of: dict[int, int] = {}
        self._terms = terms
        self._alone = False
        """True if the tree grows on the label holder's columns alone: nobody else is told where rows are."""

    @property
    def columns(self) -> int:
        """Columns of row sets: one for each other party and root."""
        return len(self.others) * self._roots

    def begin_tree(self, tree: int) -> None:
        """All rows are at the roots of this tree."""
        self._alone = self._terms.vertical.grows_alone(tree)
        self._root_of = {root: root for root in range(self._roots)}

    def split(self, rows: LabelRows | FeatureRows, splits: Splits, to_all: bool) -> Exchange:
        """Send rows to the children of split nodes. to_all: all others of the block are told, else the label
        holder alone, and a party that is not told leaves the rows where they are. Of a tree that grows
        on the label holder's columns alone nobody is told."""
        if not len(splits):
            return
        self._view.check(splits)
        self._follow(splits)
        holder = splits.feature - self._view.features
        own, is_label_holder = some(splits, holder < 0), self._me == self._label_holder
        if self._alone:
            place = self._parties.index(self._label_holder)
            self._check_alone(holder < 0 if is_label_holder else holder == place)
        if len(own):
            rows.growing.apply(_by_features(own, np.searchsorted(self._own, own.feature)), rows.bins)
            told = [party for party in self.others if to_all or party == self._label_holder]
            if told and not self._alone:
                yield Send(ROW_SET, tuple(told), self._packed(rows, own), rows.rows)
        if self._alone or not (to_all or is_label_holder):
            return
        for slot, other in enumerate(self.others):
            foreign = some(splits, holder == self._parties.index(other))
            if len(foreign):
                packed = yield Receive(ROW_SET, other, self.size(rows.rows))
                self._split_foreign(rows, foreign, slot, packed)

    def _check_alone(self, by_label_holder: Mask) -> None:
        """Raise PeerError unless all splits are by columns of the label holder."""
        if not by_label_holder.all():
            raise PeerError(
                f"a split by a column of another party in a round that grows on those of label holder "
                f"{self._label_holder} alone"
            )

    def root_of(self, node: int) -> int:
        """The root that a node is below. PeerError for one that is none."""
        if node not in self._root_of:
            raise PeerError(f"histograms of node {node}, which the tree does not have")
        return self._root_of[node]

    def size(self, rows: int) -> int:
        """Bytes of a row set."""
        return -(-self._roots * rows // 8)

    def _follow(self, splits: Splits) -> None:
        """Note the roots of the children of these splits. PeerError for splits of nodes that are none, or
        that others of these splits make."""
        known, root_of = {}, self._root_of
        for node, left in zip(splits.node.tolist(), splits.left.tolist(), strict=True):
            if node not in root_of:
                raise PeerError(f"a split of node {node}, which is no leaf")
            known[left] = known[left + 1] = root_of[node]
        root_of.update(known)

    def _packed(self, rows: LabelRows | FeatureRows, splits: Splits) -> bytes:
        """The row set of splits that were applied."""
        bits = np.zeros(self.size(rows.rows), np.uint8)
        for left in splits.left.tolist():
            set_bits(rows.growing.all_of(left), self._root_of[left] * rows.rows, bits)
        return bits.tobytes()

    def _split_foreign(self, rows: LabelRows | FeatureRows, splits: Splits, slot: int, packed: bytes) -> None:
        """Send rows to the children of the splits of another party, by its row set."""
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=self._roots * rows.rows)
        first = self._own.size + slot * self._roots
        rows.bins.rows.by_feature[first : first + self._roots] = 1 - bits.reshape(self._roots, rows.rows)
        roots = np.array([self._root_of[node] for node in splits.node.tolist()], np.int32)
        rows.growing.apply(_by_features(splits, first + roots), rows.bins)


def some(splits: Splits, chosen: Mask) -> Splits:
    """The splits where `chosen` is True."""
    return Splits(splits.columns[:, chosen], splits.categories[chosen])


def _by_features(splits: Splits, features: npt.NDArray[np.integer[Any]]) -> Splits:
    """The same splits by features of these numbers."""
    columns = splits.columns.copy()
    columns[1] = features
    return Splits(columns, splits.categories.copy())


def levels(splits: Splits) -> Iterator[Mask]:
    """The splits of each depth, from the roots of a tree down."""
    depth: dict[int, int] = {}
    depths = []
    for node, left in zip(splits.node.tolist(), splits.left.tolist(), strict=True):
        depths.append(depth.get(node, 0))
        depth[left] = depth[left + 1] = depths[-1] + 1
    for level in range(max(depths, default=-1) + 1):
        yield np.array(depths) == level
