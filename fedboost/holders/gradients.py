"""Gradients, which the label holder relays to the others of its block: in plain, or encrypted row by row.

Promises: what a feature holder reports of encrypted gradients is, once it is opened, integer for integer the
histograms of its columns; a party computes with the keys of the attempt that it is in.
Refuses: gradients of other rows or under another key (PeerError).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedboost.boosting.queries.base import View
from fedboost.boosting.queries.trees import EndRoundQuery
from fedboost.boosting.state import Scales
from fedboost.errors import LocalProtocolError, PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt import histogram
from fedboost.gbdt.histogram import Flags
from fedboost.gbdt.kernels.bins import count_bins
from fedboost.gbdt.kernels.level import add_node
from fedboost.gbdt.partition import Bins
from fedboost.gbdt.sampling import Mask
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import NODE, Splits
from fedboost.holders.column_rows import LabelRows, OwnRows
from fedboost.holders.shard import Exchange
from fedboost.privacy.protection import HiddenSums
from fedboost.privacy.rowsums.scheme import Encryption, Node, Slots, Sums
from fedboost.protocol.contracts import Keys, NeedKeys, Receive, Send
from fedboost.terms.terms import Terms
from fedboost.terms.vertical import Block

GRADIENTS, ENCRYPTED = "gradients", "gradients, encrypted"
"""Kinds of relays."""
PAIR_BYTES = 8
"""Bytes of a row's gradient and hessian."""


class GradientExchange:
    """One party's end: that of the label holder, or that of a feature holder."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._made_for: tuple[object, Slots] | None = None
        self._encryption: Encryption | None = None
        self._sums: Sums | None = None

    def send(self, to: tuple[str, ...], pairs: Int64, hidden: HiddenSums | None) -> Exchange:
        """Relay packed gradients, int64 [roots, rows]; hidden: what they are summed to, if that is hidden."""
        if hidden is None:
            yield Send(GRADIENTS, to, pairs.astype("<i8").tobytes(), pairs.shape[1])
            return
        self._prepare((yield NeedKeys()), hidden)
        assert self._encryption is not None
        yield Send(ENCRYPTED, to, self._encryption.encrypt(pairs), pairs.shape[1])

    def receive(self, sender: str, roots: int, rows: int, hidden: HiddenSums | None) -> Exchange:
        """The packed gradients, int64 [roots, rows], or encrypted ones, as `report` takes them."""
        if hidden is None:
            packed = yield Receive(GRADIENTS, sender, PAIR_BYTES * roots * rows)
            return np.frombuffer(packed, "<i8").astype(np.int64).reshape(roots, rows)
        keys: Keys = yield NeedKeys()
        self._prepare(keys, hidden)
        assert self._sums is not None
        content = yield Receive(ENCRYPTED, sender, 2 * keys.public.bytes * roots * rows)
        return self._sums.read(content, roots * rows)

    def report(
        self, gradients: Any, nodes: Sequence[Node], bins: Bins, groups: Flags | None = None
    ) -> Exchange:
        """The encrypted sums of all columns over the rows of these nodes, bytes. groups: bool [nodes, bins],
        of bins whose sums are told together."""
        keys: Keys = yield NeedKeys()
        if self._sums is None or self._made_for is None:
            raise LocalProtocolError("sums of gradients that did not arrive")
        if keys.public.n != self._made_for[0]:
            raise PeerError("the label holder has another key than when it relayed the gradients")
        layout = bins.layout
        sizes = (layout.value_bins + layout.missing).tolist()
        codes = bins.rows.by_feature[: len(sizes)]
        sums = self._sums.sums(gradients, nodes, codes, sizes)
        if groups is not None:
            places = [histogram.places(apart, layout) + at * layout.bins for at, apart in enumerate(groups)]
            sums = self._sums.moved(sums, np.concatenate(places))
        return self._sums.close(sums)

    def _prepare(self, keys: Keys, hidden: HiddenSums) -> None:
        """Make this end for these keys and slots, unless it is."""
        from fedboost.privacy.rowsums.sums import RowEncryption, RowSums

        public = keys.public
        slots = Slots.of(hidden.limit, hidden.rows, public.n.bit_length())
        if self._made_for == (public.n, slots):
            return
        if keys.secret is None:
            self._sums = RowSums(public, slots, self._threads, keys.draw)
        else:
            self._encryption = RowEncryption(keys.secret, slots, self._threads, keys.draw)
        self._made_for = public.n, slots


# ---- The label holder counts again what others reported of gradients that they cannot read --------------
# A feature holder that makes sums up, or an aggregator that changes them, can have splits win that tell it
# labels. The sums over the rows of each leaf are the label holder's own, so it finds values that do not
# follow from them. Inner nodes need no look: their totals come from the label holder's own columns with the
# next level, and the aggregator compares them.
# Promises: values that follow from the rows pass, to the last bit.
# Refuses: others, with who split the leaf's parent (PeerError).
# Not found: sums that win no split; and, where leaf values are not those of sums alone, those of the last
# level of a tree (objectives with quantile leaves, monotone constraints).


def check_leaf_values(
    terms: Terms, rows: LabelRows, scales: Scales | None, splits: Splits, query: EndRoundQuery
) -> None:
    """Raise PeerError unless the values of all leaves follow from the gradients of their rows. splits: all of
    the tree that ends, as the label holder sees them."""
    if query.tree < 0 or scales is None:
        return
    if terms.objective.loss.quantile is not None or terms.trees.monotone(terms.columns):
        return
    rule = terms.rule(scales.gradient, scales.hessian)
    rows.compute_gradients(scales.gradient, scales.hessian)
    found = np.zeros(1, NODE)
    for leaf, value in query.values:
        gradient, hessian = rows.sums_over(leaf)
        add_node(found, 0, gradient, hessian, -np.inf, np.inf, *rule.scales, rule.learning_rate)
        if found[0]["value"] != value:
            raise PeerError(
                f"the value of leaf {leaf} of tree {query.tree} does not follow from its rows: "
                f"{_suspect(terms, splits, leaf)} made up sums, or the aggregator changed them; ask them "
                f"before you train with them again"
            )


def _suspect(terms: Terms, splits: Splits, leaf: int) -> str:
    """Who has the column that the leaf's parent is split by."""
    above = np.flatnonzero((splits.left == leaf) | (splits.left + 1 == leaf))
    features = len(terms.columns.features)
    if above.size and (feature := int(splits.feature[above[0]])) >= features:
        return f"party {terms.parties[feature - features]}"
    return "a party"


# ---- The groups of bins in which a party tells the sums of a node ---------------------------------------
# Each of as many rows as the terms say, or of none.
# Promises: groups follow from the rows that a tree grows on and from its splits alone, so after a restart
# they are what they were; first groups are made of all rows, for all trees the same; a group that has rows
# has, in both children of a split, the rows of as many ids as the floor says, or of none.
# Refuses: trees that grow on fewer rows than a group has (Refused); splits between the bins of one group,
# which show a part of its sums, and splits of a tree whose rows are not known (PeerError).


DRAWN = "which rows a tree grows on"
"""The kind of a relay."""


class BinFloor:
    """The groups of own bins at the nodes of the tree that grows; none without a floor in the terms."""

    def __init__(self, terms: Terms, view: View, block: Block) -> None:
        """view: of the party; block: that it is in."""
        self._least = terms.vertical.min_rows_per_bin
        self._grows_alone = terms.vertical.grows_alone
        self._view = view
        self._block = block
        self._first: tuple[Bins, Flags] | None = None
        """The groups that all rows make, and the bins that they are of."""
        self._drawn: Mask | None = None
        """The rows that the tree grows on, once they are known."""
        self._of: dict[int, tuple[Flags, Int64]] = {}
        """The groups of a node, and its ids in each own bin."""

    def __repr__(self) -> str:
        return f"BinFloor({self._least})"

    def share(self, rows: OwnRows, tree: int) -> Exchange:
        """Know the rows that a tree grows on: the label holder relays them to the others, but for a tree that
        grows on its columns alone."""
        alone, size = self._grows_alone(tree), -(-rows.rows // 8)
        if self._least == 1:
            return
        if isinstance(rows, LabelRows):
            drawn = rows.drawn(tree)
            self._begin_tree(drawn)
            if not alone:
                yield Send(DRAWN, self._block.feature_holders, np.packbits(drawn).tobytes(), rows.rows)
        elif not alone:
            packed = yield Receive(DRAWN, self._block.label_holder, size)
            self._begin_tree(np.unpackbits(np.frombuffer(packed, np.uint8), count=rows.rows) != 0)

    def forget(self) -> None:
        """Another tree comes, and its rows are not known yet."""
        self._drawn, self._of = None, {}

    def _begin_tree(self, drawn: Mask) -> None:
        self._drawn, self._of = drawn, {}
        if np.count_nonzero(drawn) < self._least:
            raise Refused(
                f"a tree would grow on {np.count_nonzero(drawn)} rows, and the terms have min_rows_per_bin = "
                f"{self._least}: lower it, or have more rows in common"
            )

    def groups(self, nodes: tuple[int, ...], splits: Splits, rows: OwnRows) -> Flags | None:
        """The groups of own bins at each of these nodes: bool [nodes, bins]; None without a floor. splits:
        all of the tree that grows, whose rows were sent to the children."""
        if self._least == 1:
            return None
        family = _Family(splits)
        return np.array([self._node(node, family, rows)[0] for node in nodes])

    def check(self, new: Splits, splits: Splits, rows: OwnRows) -> None:
        """Raise PeerError unless those of the new splits that are by own columns are by whole groups. splits:
        as in `groups`."""
        if self._least == 1 or not len(new):
            return
        layout, family = rows.bins.layout, _Family(splits)
        for place in np.flatnonzero(new.feature < self._view.features).tolist():
            node, feature, last, missing_left, _ = new.columns[:, place].tolist()
            own = int(np.searchsorted(self._view.own_features, feature))
            apart, _ = self._node(node, family, rows)
            if layout.categorical[own]:
                right = np.unpackbits(new.categories[place], bitorder="little") != 0
                is_whole = histogram.keeps_levels(apart, layout, own, right, bool(missing_left))
            else:
                is_whole = histogram.keeps_neighbours(apart, layout, own, last, bool(missing_left))
            if not is_whole:
                raise PeerError(
                    f"a split of node {node} within a group of bins, which min_rows_per_bin = {self._least} "
                    f"of the terms keeps together"
                )

    def _node(self, node: int, family: "_Family", rows: OwnRows) -> tuple[Flags, Int64]:
        if node not in self._of:
            if node in family.parent:
                above, of_parent = self._node(family.parent[node], family, rows)
                own = self._count(node, family, rows)
                counts = {node: own, family.sibling(node): of_parent - own}
            else:
                above, counts = self._of_all(rows), {node: self._count(node, family, rows)}
            told = np.stack([*counts.values()])
            made = histogram.joined(above, told, rows.bins.layout, self._least)
            self._of.update({member: (made, count) for member, count in counts.items()})
        return self._of[node]

    def _of_all(self, rows: OwnRows) -> Flags:
        if self._first is None or self._first[0] is not rows.bins:
            layout = rows.bins.layout
            counts = _ids_by_bin(rows.bins, np.arange(rows.rows, dtype=np.uint32))
            made = histogram.joined(histogram.ungrouped(layout), counts[None], layout, self._least)
            self._first = rows.bins, made
        return self._first[1]

    def _count(self, node: int, family: "_Family", rows: OwnRows) -> Int64:
        """The ids of a node in each own bin, of the rows that the tree grows on: int64 [bins]."""
        if node in family.left:
            left = family.left[node]
            return self._count(left, family, rows) + self._count(left + 1, family, rows)
        if self._drawn is None:
            raise PeerError("splits of a tree before the sums of its root were told")
        members = rows.growing.of(node)
        return _ids_by_bin(rows.bins, members[self._drawn[members]])


class _Family:
    """The parent and the left child of nodes of a tree, by these splits."""

    def __init__(self, splits: Splits) -> None:
        self.left: dict[int, int] = dict(zip(splits.node.tolist(), splits.left.tolist(), strict=True))
        self.parent = {child: node for node, left in self.left.items() for child in (left, left + 1)}

    def sibling(self, node: int) -> int:
        """The other child of the parent."""
        left = self.left[self.parent[node]]
        return left + (node == left)


def _ids_by_bin(bins: Bins, members: Any) -> Int64:
    """Numbers of the distinct ids of these rows, uint32, increasing, in each bin: int64 [bins].

    A row may be there several times, and is one id: the terms allow no floor where ids repeat."""
    out = np.zeros(bins.layout.bins, np.int64)
    count_bins(bins.rows.by_feature, members, bins.layout.offsets, out)
    return out
