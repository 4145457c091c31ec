"""Rows of a party that holds only some columns, and everything that the party computes from its own columns
alone.

Queries use the party's own feature numbers. They contain no splits, because `RowSets` has already moved the
rows to the child nodes.

Guarantees: histograms and counts are the same as for whole rows, restricted to the party's columns."""

import math
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedboost.boosting.queries import Query
from fedboost.boosting.queries.base import View
from fedboost.boosting.queries.columns import BinsQuery, QuantileQuery
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.state import BoostingState, Scales
from fedboost.errors import LocalProtocolError, PeerError, Refused
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt import histogram
from fedboost.gbdt.binned import Column
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, CutPoints, Quantiles, count_cells
from fedboost.gbdt.gradients import in_units
from fedboost.gbdt.histogram import Flags
from fedboost.gbdt.kernels.bins import count_bins
from fedboost.gbdt.kernels.level import add_node
from fedboost.gbdt.kernels.rows import clear_bits
from fedboost.gbdt.partition import Bins, GrowingRows
from fedboost.gbdt.reach import Decisions, Structure
from fedboost.gbdt.sampling import ALL_ROWS, Mask, Sampler, split_by_masks
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import NO_SPLITS, NODE, Bytes, Int32, LeafValues, Splits, Tree
from fedboost.holders.shard import Exchange, Shard, place_of
from fedboost.holders.whole_rows import GrowingHolder, HorizontalHolder
from fedboost.privacy.protection import HiddenSums
from fedboost.privacy.rowsums.scheme import Node, Slots
from fedboost.protocol.contracts import Keys, NeedKeys, Receive, Send
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.privacy.rowsums.sums import RowEncryption, RowSums
from fedboost.terms.vertical import Block
from fedboost.version import VERSION


class LabelRows(HorizontalHolder):
    """Computes a label holder's answers from its rows: features, labels and margins."""

    _earlier: Float64 | None = None
    """Margins before the last finished tree was added, so that the tree can be undone."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Values of the features, or a column of zeros if the party has no features."""
        return super().columns or (np.zeros(self.rows, np.float32),)

    def begin_margins(self) -> None:
        self._earlier = None
        if self.begun is not None:
            self._gradients.margin[:] = self.begun
        elif self._terms.earlier is None:
            super().begin_margins()

    def take_back(self) -> bool:
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            self._gradients.margin[:] = earlier
        return earlier is not None

    def end_tree(self, tree: int, splits: Splits, values: LeafValues) -> None:
        margin = self._gradients.margin
        self._earlier = np.empty_like(margin) if self._earlier is None else self._earlier
        np.copyto(self._earlier, margin)
        super().end_tree(tree, splits, values)

    def gradients_of(self, query: HistogramQuery) -> Int64:
        """Compute the packed gradients for each tree, int64 [roots, rows]. A row's gradients are multiplied
        by the number of times that the tree has drawn the row, so they are 0 for rows that were not drawn."""
        self._quantise(query)
        pairs, sampled = self._gradients.pairs, self.growing.sampled(query.tree)
        if sampled is None:
            trees = self._terms.trees.num_parallel_tree
            return pairs if trees == 1 else pairs.repeat(trees, axis=0)
        counts = [np.bincount(rows, minlength=self.rows) for rows in sampled]
        # One product multiplies both packed halves. Neither overflows its 32 bits: a gradient or hessian has
        # at most 24 bits (gradient_bits), and is drawn at most MAX_BOOTSTRAP_COUNT = 15 times.
        return np.stack([of_output * times for of_output in pairs for times in counts])

    def sample(self, tree: int) -> Mask:
        """Return masks of the rows that contribute to the sums of each parallel tree of a round, bool [trees,
        rows]. These rows were sampled for the tree and, with `min_rows_per_bin`, have a positive weight."""
        sampled, weight = self.growing.sampled(tree), self._shard.weight
        out = np.full((self._terms.trees.num_parallel_tree, self.rows), sampled is None)
        for mask, rows in zip(out, sampled or (), strict=False):
            mask[rows] = True
        has_floor = self._terms.vertical.min_rows_per_bin > 1
        return out & (weight > 0) if has_floor and weight is not None else out

    def histograms(self, query: HistogramQuery) -> Int64:
        if not self.has_gradients:  # they are not relayed if a tree uses only this party's columns
            self._quantise(query)
        return super().histograms(query)

    def compute_gradients(self, gradient: Scale, hessian: Scale) -> None:
        """Compute the growing tree's gradients in these scales, unless they have already been computed."""
        if not self.has_gradients:
            self._gradients.quantise(self._loss, in_units(gradient, hessian))

    def sums_over(self, node: int) -> tuple[int, int]:
        """Return the sums of gradients and hessians over the sampled rows of a leaf."""
        pairs = self._gradients.pairs[self.growing.output_of(node), self.growing.of(node)]
        return int((pairs >> 32).sum()), int((pairs & 0xFFFFFFFF).sum())


class FeatureRows(GrowingHolder):
    """A feature holder's answers, from rows without labels and gradients that the label holder relays."""

    def __init__(
        self, read: Callable[[], Shard], terms: Terms, nthread: int, name: str, row_sets: int
    ) -> None:
        super().__init__(read, terms, nthread, row_sets)
        shape, every = (self.rows, len(terms.roots), 1), [np.ones(self.rows, np.bool_)]
        sampler = Sampler(2, slice(0, 2), lambda tree: split_by_masks(every))  # until the sample is known
        sampler = sampler if terms.relays_samples else ALL_ROWS
        self.growing = GrowingRows(*shape, sampler, self._threads, self._shard.allocate)
        self.gradients: Any = None
        """Gradients of the growing tree: packed, int64 [roots, rows], or encrypted; None until received."""

    @property
    def has_gradients(self) -> bool:
        return self.gradients is not None

    def rows_hashed(self, key: bytes) -> bytes:
        """Return an HMAC of the rows and the software version, 32 bytes."""
        return self._shard.hashed(key, self.columns, repr((VERSION, None)))

    def begin_margins(self) -> None:
        """Do nothing: only the label holder has margins."""

    def forget_gradients(self) -> None:
        self.gradients = None

    def compute(self, query: Query) -> Int64:
        """Return the answer to a query, int64 [query.cells]. Cells about labels are 0."""
        match query:
            case QuantileQuery(_, grids):
                return count_cells(self.columns[: grids.features], grids, self._threads)
            case StartQuery():
                self.bin(query)
            case EndRoundQuery():
                self.begin_tree(query.tree + 1)
        return np.zeros(query.cells, np.int64)

    def histograms(self, query: HistogramQuery) -> Int64:
        """Return the histograms of the query's nodes, from this party's columns."""
        if self.gradients is None:
            raise PeerError(
                "query-order", "the query asks for histograms before the gradients of the tree were received"
            )
        limit = query.gradient.limit * self._terms.draws.max_bootstrap_count
        return self.growing.histograms(query.nodes, self.gradients, self.bins, limit).reshape(-1)


OwnRows = LabelRows | FeatureRows


def local_rows(
    read: Callable[[Terms], Shard], terms: Terms, name: str, nthread: int, row_sets: int
) -> OwnRows:
    """Read a party's rows as `LabelRows` or `FeatureRows`. Raises Refused if `read` raises it."""
    kind = LabelRows if terms.blocks.has_labels(name) else FeatureRows
    return kind(partial(read, terms), terms, nthread, name, row_sets)


def decisions_of(terms: Terms, name: str, model: Booster) -> Decisions:
    """Return a party's decisions in its part of a model. terms: those under which the model was trained."""
    view, _ = place_of(terms, name)
    structure = Structure.of(model.trees, terms.parties, view.holders)
    return Decisions.of(structure, name, model.trees, view.own_features.tolist())


# ---- Counts of a party's own numeric columns, and cut points that only it knows -------------------------
# Guarantees: the cut points are the same as if rows were counted over one table with all columns, whenever
# they are computed. Other parties learn the number of cut points, and at the end the thresholds of splits.


class OwnCuts:
    """Cut points of one party's own numeric columns, computed from its rows on first use."""

    def __init__(self, terms: Terms, view: View) -> None:
        self._terms = terms
        self._view = view
        self._numeric = view.own_features[view.own_features < len(terms.columns.numeric)]
        self._found: tuple[OwnRows, CutPoints] | None = None
        """Rows for which cut points were computed, and these cut points."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._numeric.size} features)"

    def of(self, rows: OwnRows) -> CutPoints:
        """Return the cut points of the party's numeric columns for these rows."""
        if self._found is None or self._found[0] is not rows:
            self._found = rows, self._find(rows)
        return self._found[1]

    def _find(self, rows: OwnRows) -> CutPoints:
        if not self._numeric.size:
            return CutPoints.of([], [])
        max_bin, every = self._terms.histograms.max_bin, len(self._terms.columns.numeric)
        quantiles = Quantiles(max_bin, rows.rows, self._numeric.size, every)
        for _ in range(MAX_REFINEMENTS):
            if not quantiles.grids.cells:
                break
            quantiles.refine(rows.compute(QuantileQuery(rows.rows, quantiles.grids)))
        return quantiles.cut_points()

    def count_rows(self, query: QuantileQuery, rows: OwnRows) -> Int64:
        """Count rows by subcell of the party's own columns, int64 [query.cells]; 0 for other columns."""
        grids, out = query.grids, np.zeros(query.cells, np.int64)
        if self._numeric.size:
            own = np.zeros(grids.features, np.bool_)
            own[self._numeric] = True
            counts = rows.compute(QuantileQuery(query.rows, grids.pick(self._numeric)))
            out[np.repeat(own, grids.cells_by_feature)] = counts
        return out

    def count_bins(self, query: BinsQuery, rows: OwnRows) -> Int64:
        """Return the answer to the query: for each of the party's features, the number of cut points and
        whether values are missing (1 or 0). Other features have 0."""
        own, out = self.of(rows), np.zeros((2, query.features), np.int64)
        out[:, self._numeric] = own.sizes, own.missing
        return out.reshape(-1)

    def put_into(self, start: StartQuery, rows: OwnRows) -> StartQuery:
        """Return the query `start` with the party's own cut points filled in. The aggregator knows only the
        number of cut points. Raises PeerError if the number of bins does not match the cut points."""
        own, told = self.of(rows), start.cut_points
        numeric = told.head(self._numeric.size)
        if not (np.array_equal(numeric.sizes, own.sizes) and np.array_equal(numeric.missing, own.missing)):
            raise PeerError(
                "query-cuts", "the query has a different number of bins from this party's columns"
            )
        values = np.concatenate([own.values, told.values[own.values.size :]])
        return replace(start, cut_points=replace(told, values=values))

    def trees(self, state: BoostingState, rounds: int, rows: OwnRows) -> tuple[Tree, ...]:
        """Return the first `rounds` finished trees, with thresholds only for this party's columns."""
        if state.start is None or not state.rounds:
            return ()
        cuts: list[Float32] = [np.zeros(0, np.float32)] * self._view.features
        own = self.of(rows).cuts if self._view.hides else state.start.cut_points.pick(self._numeric).cuts
        for feature, values in zip(self._numeric.tolist(), own, strict=True):
            cuts[feature] = values
        return tuple(state.trees(rounds, tuple(cuts)))


# ---- Row sets: which rows of split nodes go left, a bit per row and root --------------------------------
# The party with a split's column relays the row set to other parties of its block. These parties treat the
# row set as a column with two bins, and use it to send their rows to the child nodes.
# Bit root * rows + row is about the one node below that root that contains the row. The bit is 1 if the node
# is split by a column of the sender and the row goes left, else 0. One row set covers all of the sender's
# splits in a query.
# Guarantees: a row set has a bit for every row and root, so its size reveals nothing about nodes. Every party
# of a block has the same rows in the same nodes.

ROW_SET = "which rows go left"
"""Name of this kind of relay in logs."""


class RowSets:
    """Exchange of row sets (which rows go left at a split) between one party and the others of its block."""

    def __init__(self, terms: Terms, name: str) -> None:
        view, block = place_of(terms, name)
        self._me = name
        self._view = view
        self._own = view.own_features
        self._roots = len(terms.roots)
        self._parties = terms.parties
        self._label_holder = block.label_holder
        self.others = tuple(party for party in block.parties if party != name)
        """Other parties of the block."""
        self._column_of = self._columns_of_splits()
        self._root_of: dict[int, int] = {}
        self._terms = terms
        self._alone = False
        """True if the tree uses only the label holder's columns: others do not learn their rows' nodes."""

    @property
    def columns(self) -> int:
        """Number of row-set columns: one per other party and root."""
        return len(self.others) * self._roots

    def _columns_of_splits(self) -> Int64:
        """Map each feature number in this party's view to the binned column that splits rows: the party's own
        column, or the row-set column of another party's first root."""
        #     columns   own features | roots 0, 1, ... of others[0] | roots 0, 1, ... of others[1] | ...
        column_of, own = np.zeros(self._view.features + len(self._parties), np.int64), self._own.size
        column_of[self._own] = np.arange(own)
        others = [self._view.features + self._parties.index(other) for other in self.others]
        column_of[others] = own + self._roots * np.arange(len(others))
        return column_of

    def begin_tree(self, tree: int) -> None:
        """Start a tree with all rows at its roots. tree: number of the round."""
        self._alone = self._terms.vertical.grows_alone(tree)
        self._root_of = {root: root for root in range(self._roots)}

    def split(self, rows: OwnRows, splits: Splits, to_all: bool) -> Exchange:
        """Move rows to the children of split nodes, exchanging row sets with the other parties.

        rows: the party's rows; splits: the splits in the party's view; to_all: True to send row sets to all
        parties of the block, False to send them only to the label holder. A party that receives no row set
        leaves its rows in the split node. For a tree with only the label holder's columns, no row sets are
        sent. Raises PeerError for invalid splits."""
        if not splits.size:
            return
        # Before a bit is sent, check which party's column each split uses, that each split is of an existing
        # leaf, and that `alone_rounds` use no other party's column.
        self._view.check(splits)
        roots, holder = self._follow(splits), splits.feature - self._view.features
        columns, is_label_holder = splits.columns.copy(), self._me == self._label_holder
        columns[1] = self._column_of[splits.feature]
        if self._roots > 1:
            columns[1] += np.where(holder < 0, 0, roots)
        of = partial(_some, columns, splits.categories)
        own = of(holder < 0)
        if self._alone:
            place = self._parties.index(self._label_holder)
            if not (holder < 0 if is_label_holder else holder == place).all():
                raise PeerError(
                    "query-splits",
                    f"a split uses another party's column in a round that may use only columns of label "
                    f"holder {self._label_holder}",
                )
        # Every party sends its own row sets before it waits for other parties' row sets, to avoid deadlocks.
        if own.size:
            rows.growing.apply(own, rows.bins)
            told = [party for party in self.others if to_all or party == self._label_holder]
            if told and not self._alone:
                yield Send(ROW_SET, tuple(told), self._packed(rows, own), rows.rows)
        if self._alone or not (to_all or is_label_holder):
            return
        for other in self.others:
            foreign = of(holder == self._parties.index(other))
            if foreign.size:
                packed = yield Receive(ROW_SET, other, self.size(rows.rows))
                self._take(rows, other, packed)
                rows.growing.apply(foreign, rows.bins)

    def root_of(self, node: int) -> int:
        """Return the root above a node. Raises PeerError if the node does not exist."""
        if node not in self._root_of:
            raise PeerError(
                "query-nodes", f"the query asks for a histogram of node {node}, which the tree does not have"
            )
        return self._root_of[node]

    def size(self, rows: int) -> int:
        return -(-self._roots * rows // 8)

    def _follow(self, splits: Splits) -> list[int]:
        """Record the root of each new child node, and return the root of each split. Raises PeerError if a
        split's node does not exist yet."""
        # Children are added after the loop: the splits of a query are of leaves before it.
        known, root_of = {}, self._root_of
        for node, left in zip(splits.node.tolist(), splits.left.tolist(), strict=True):
            if node not in root_of:
                raise PeerError("query-splits", f"the query splits node {node}, which is not a leaf")
            known[left] = known[left + 1] = root_of[node]
        root_of.update(known)
        return [root_of[node] for node in splits.node.tolist()]

    def _packed(self, rows: OwnRows, splits: Splits) -> bytes:
        """Return the packed row set of this party's splits, which must already have been applied."""
        #     bits      root 0: row 0, row 1, ...  | root 1: row 0, row 1, ...  | ... | 0 to 7 unused
        #
        # Below each root a row is in one node at a time, so a bit per row and root is enough for all splits
        # of a query.
        flags = np.zeros((self._roots, rows.rows), np.uint8)
        rows.growing.mark(splits.left.tolist(), flags)
        return np.packbits(flags).tobytes()

    def _take(self, rows: OwnRows, other: str, packed: bytes) -> None:
        """Write another party's row set to its row-set columns: bin 0 goes left and bin 1 goes right."""
        first = self._column_of[self._view.features + self._parties.index(other)]
        clear_bits(np.frombuffer(packed, np.uint8), rows.bins.rows.by_feature[first : first + self._roots])


def some(splits: Splits, chosen: Mask) -> Splits:
    return _some(splits.columns, splits.categories, chosen)


def _some(columns: Int32, categories: Bytes, chosen: Mask) -> Splits:
    at = chosen.nonzero()[0]
    return Splits(columns.take(at, axis=1), categories.take(at, axis=0)) if at.size else NO_SPLITS


def levels(splits: Splits) -> Iterator[Mask]:
    """Yield a mask of the splits at each depth of a tree, from the roots down."""
    depth: dict[int, int] = {}
    depths = []
    for node, left in zip(splits.node.tolist(), splits.left.tolist(), strict=True):
        depths.append(depth.get(node, 0))
        depth[left] = depth[left + 1] = depths[-1] + 1
    for level in range(max(depths, default=-1) + 1):
        yield np.array(depths) == level


# ---- Gradients, which the label holder relays to its block: unencrypted, or encrypted row by row --------
# Guarantees: sums over encrypted gradients, once decrypted, are exactly the histograms of the feature
# holder's columns. A party computes with the keys of its current attempt.

GRADIENTS, ENCRYPTED = "gradients", "gradients, encrypted"
SAMPLE = "which rows are sampled"
"""Names of these kinds of relays in logs."""
PAIR_BYTES = 8
"""Size in bytes of a row's packed gradient and hessian."""


class Sample(NamedTuple):
    """Rows whose gradients are relayed for a round's trees.

    masks: sampled rows of each root, bool [roots, rows]; members: the same as indices, int64 [members], root
    * rows + row, in increasing order."""

    masks: Mask
    members: Int64

    @property
    def rows(self) -> int:
        """Number of rows that any of the trees uses."""
        return int(self.masks.any(axis=0).sum())

    def place(self, node: Node) -> Node:
        """Return the node with its rows numbered by their place in `members`, as rows of root 0."""
        root, rows = node
        own = rows.astype(np.int64) + root * self.masks.shape[1]
        return 0, np.searchsorted(self.members, own).astype(np.uint32)


class GradientExchange:
    """A party's end of the gradient relay: the label holder sends gradients, feature holders receive."""

    def __init__(self, roots: int, threads: Threads) -> None:
        """roots: number of roots of a round's trees; threads: threads that share the work."""
        self._roots = roots
        self._threads = threads
        self._made_for: tuple[object, Slots] | None = None
        self._encryption: RowEncryption | None = None
        self._sums: RowSums | None = None
        self._drawn: Mask | None = None
        self._sample: Sample | None = None
        """Rows whose gradients are relayed for the growing tree; None for all rows."""

    def share_sample(self, block: Block, masks: Mask | None, shape: tuple[int, int]) -> Exchange:
        """Relay (label holder) or receive (feature holder) the sample of a round, and return it. From now on,
        only gradients of these rows are relayed.

        masks: sampled rows of each parallel tree, bool [trees, rows]; None at a feature holder; shape: of the
        masks."""
        if masks is not None:
            rows = int(masks.any(axis=0).sum())
            yield Send(SAMPLE, block.feature_holders, np.packbits(masks).tobytes(), rows)
        else:
            packed = yield Receive(SAMPLE, block.label_holder, -(-math.prod(shape) // 8))
            bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=math.prod(shape))
            masks = bits.reshape(shape) != 0
        self._drawn = np.tile(masks, (self._roots // len(masks), 1))
        self._sample = Sample(self._drawn, np.flatnonzero(self._drawn))
        return masks

    def keep_roots(self, roots: AbstractSet[int], rows: int) -> None:
        """Relay only gradients of these roots for the growing tree."""
        masks = np.repeat(np.isin(np.arange(self._roots), [*roots]), rows).reshape(-1, rows)
        if self._drawn is not None:
            masks &= self._drawn
        self._sample = Sample(masks, np.flatnonzero(masks))

    def send(self, to: tuple[str, ...], pairs: Int64, hidden: HiddenSums | None) -> Exchange:
        """Relay packed gradients to other parties. The gradients are encrypted unless `hidden` is None.

        to: receiving parties; pairs: packed gradients, int64 [roots, rows]; hidden: the sums that the
        receivers will compute from encrypted gradients."""
        about, sample = pairs.shape[1], self._sample
        if sample is not None:
            about, pairs = sample.rows, pairs[sample.masks]
        if hidden is None:
            yield Send(GRADIENTS, to, pairs.astype("<i8", copy=False).tobytes(), about)
            return
        self._prepare((yield NeedKeys()), hidden)
        assert self._encryption is not None
        yield Send(ENCRYPTED, to, self._encryption.encrypt(pairs), about)

    def receive(self, sender: str, rows: int, hidden: HiddenSums | None) -> Exchange:
        """Receive packed gradients, int64 [roots, rows], or encrypted gradients in the form that `report`
        accepts. sender: the label holder; rows: number of rows; hidden: as in `send`."""
        shape, sample = (self._roots, rows), self._sample
        members = math.prod(shape) if sample is None else sample.members.size
        if hidden is None:
            packed = yield Receive(GRADIENTS, sender, PAIR_BYTES * members)
            own = np.frombuffer(packed, "<i8").astype(np.int64)
            if sample is None:
                return own.reshape(shape)
            pairs = np.zeros(shape, np.int64)
            pairs[sample.masks] = own
            return pairs
        keys: Keys = yield NeedKeys()
        self._prepare(keys, hidden)
        assert self._sums is not None
        content = yield Receive(ENCRYPTED, sender, 2 * keys.public.bytes * members)
        return self._sums.read(content, members)

    def report(
        self, gradients: Any, nodes: Sequence[Node], bins: Bins, groups: Flags | None = None
    ) -> Exchange:
        """Return the encrypted histograms of these nodes over the party's columns, as bytes.

        Args:
            gradients: encrypted gradients from `receive`.
            nodes: root and row indices of each node.
            bins: the binned rows.
            groups: groups of bins whose sums are reported together, bool [nodes, bins]; None if bins are not
                grouped.

        Raises:
            PeerError: if the label holder's key has changed since it relayed the gradients.
        """
        keys: Keys = yield NeedKeys()
        if self._sums is None or self._made_for is None:
            raise LocalProtocolError("gradients-missing", "sums were requested before gradients arrived")
        # Otherwise the sums would be products of ciphertexts under two keys, and decrypt to random numbers.
        if keys.public.n != self._made_for[0]:
            raise PeerError(
                "key-changed", "the label holder's key has changed since it relayed the gradients"
            )
        layout = bins.layout
        sizes = (layout.value_bins + layout.missing).tolist()
        codes = bins.rows.by_feature[: len(sizes)]
        if (sample := self._sample) is not None:
            codes = codes[:, sample.members % codes.shape[1]]
            nodes = [sample.place(node) for node in nodes]
        sums = self._sums.sums(gradients, nodes, codes, sizes)
        if groups is not None:
            places = [histogram.places(apart, layout) + at * layout.bins for at, apart in enumerate(groups)]
            sums = self._sums.moved(sums, np.concatenate(places))
        return self._sums.close(sums)

    def _prepare(self, keys: Keys, hidden: HiddenSums) -> None:
        """Set up encryption for these keys and slots, unless that has already been done."""
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


# ---- The label holder checks what others reported about gradients that they cannot read -----------------
# A feature holder that makes up sums, or an aggregator that changes sums, can cause splits that reveal labels
# to it. The label holder has the rows and gradients of each leaf, so it recomputes all leaf values.
# Inner nodes need no check: their totals come from the label holder's own columns with the next level, and
# the aggregator compares them.
# Guarantees: values that follow from the rows are accepted, to the last bit.
# Raises: PeerError for any other value, naming the party that split the leaf's parent.
# Not detected: made-up sums that change no split. Made-up sums of a tree's last level are not detected either
# if leaf values do not follow from sums alone (objectives with quantile leaves, monotone constraints).


def check_leaf_values(
    terms: Terms,
    rows: LabelRows,
    scales: Scales | None,
    splits: Splits,
    query: EndRoundQuery,
    grown: Sequence[Terms],
    dropped: AbstractSet[int],
) -> None:
    """Raise PeerError unless each leaf value follows from the gradients of the leaf's rows. Nothing is
    checked if leaf values depend on more than sums of gradients.

    Args:
        rows: the label holder's rows.
        scales: scales of the tree's gradients.
        splits: all splits of the ending tree, in the label holder's view.
        query: the query that ends the tree.
        grown: terms that the trees of each output grow under.
        dropped: outputs whose value may also be 0: candidates that a tuning has dropped.
    """
    if query.tree < 0 or scales is None:
        return
    if terms.objective.loss.quantile is not None or terms.trees.monotone(terms.columns):
        return
    rules = [own.rule(scales.gradient, scales.hessian) for own in grown]
    rows.compute_gradients(scales.gradient, scales.hessian)
    found = np.zeros(1, NODE)
    for leaf, value in query.values:
        output = rows.growing.output_of(leaf)
        ends = *rules[output].scales, rules[output].learning_rate
        add_node(found, 0, *rows.sums_over(leaf), -np.inf, np.inf, *ends)
        if value != found[0]["value"] and (value or output not in dropped):
            above = splits.feature[(splits.left == leaf) | (splits.left + 1 == leaf)]
            holders = [terms.parties[at] for at in above - len(terms.columns.features) if at >= 0]
            suspect = f"party {holders[0]}" if holders else "a party"
            raise PeerError(
                "party-wrong-sums",
                f"the value of leaf {leaf} of tree {query.tree} does not follow from its rows: {suspect} "
                f"made up sums, or the aggregator changed them; contact both before you train again",
            )


# ---- The groups of bins whose sums a party reports for a node (`min_rows_per_bin`) ----------------------
# Each group has at least `min_rows_per_bin` rows of the node, or none.
# The groups of a node are made by merging its parent's groups until each group has the minimum in both
# children, because the sibling's sums follow by subtraction, group by group. The groups of roots are made
# from the groups of all rows, which are the same for all trees.
# Guarantees: groups depend only on the rows that a tree is trained on and on its splits, so they are the same
# after a restart.
# Raises: Refused if a tree would be trained on fewer rows than a group needs. PeerError for splits inside a
# group, which would reveal a part of its sums, and for splits of a tree whose rows are not known.
class BinFloor:
    """Groups of a party's bins at the nodes of a tree. Each has at least min_rows_per_bin rows, or none."""

    def __init__(self, terms: Terms, view: View) -> None:
        """Start without a tree. view: this party's view."""
        self._least = terms.vertical.min_rows_per_bin
        self._view = view
        self._first: tuple[Bins, Flags] | None = None
        """Binned rows, and the groups of bins made from all of them."""
        self._drawn: Mask | None = None
        """Rows that the tree is trained on, bool [rows], once they are known."""
        self._of: dict[int, tuple[Flags, Int64]] = {}
        """Maps node -> (groups of bins, number of distinct ids in each of this party's bins)."""

    def __repr__(self) -> str:
        return f"BinFloor({self._least})"

    def forget(self) -> None:
        """Forget the current tree, because the next one begins. The next tree's rows are not known yet."""
        self._drawn, self._of = None, {}

    def begin_tree(self, drawn: Mask) -> None:
        """Start a tree that is trained on these rows, bool [rows]. Raises Refused if they are too few."""
        if self._least == 1:
            return
        self._drawn, self._of = drawn, {}
        if np.count_nonzero(drawn) < self._least:
            raise Refused(
                "data-few-rows",
                f"a tree would be trained on only {np.count_nonzero(drawn)} rows, but the terms have "
                f"min_rows_per_bin = {self._least}: lower it, or use more common rows",
            )

    def groups(self, nodes: tuple[int, ...], splits: Splits, rows: OwnRows) -> Flags | None:
        """Return the groups of this party's bins at each of these nodes, bool [nodes, bins], in the form of
        `histogram.joined`. Returns None if the terms do not set min_rows_per_bin. splits: all splits of the
        growing tree, which must already have been applied."""
        if self._least == 1:
            return None
        family = _Family(splits)
        return np.array([self._node(node, family, rows)[0] for node in nodes])

    def check(self, new: Splits, splits: Splits, rows: OwnRows) -> None:
        """Raise PeerError if a new split on one of this party's columns separates the bins of a group. new:
        the new splits; splits: as in `groups`."""
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
                    "query-splits",
                    f"a split of node {node} separates bins that min_rows_per_bin = {self._least} keeps "
                    f"together",
                )

    def _node(self, node: int, family: "_Family", rows: OwnRows) -> tuple[Flags, Int64]:
        if node not in self._of:
            # Siblings get the same groups, based on the counts of both. Only one sibling is counted; the
            # other count is the difference from the parent.
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
            made = histogram.joined(np.ones(layout.bins, np.bool_), counts[None], layout, self._least)
            self._first = rows.bins, made
        return self._first[1]

    def _count(self, node: int, family: "_Family", rows: OwnRows) -> Int64:
        """Count the distinct ids of a node in each of this party's bins, int64 [bins]. Counts only rows that
        the tree is trained on."""
        # A node that was split no longer has rows of its own, unless another party's split ends the tree:
        # then only the label holder knows which rows go left.
        if node in family.left and not rows.growing.is_leaf(node):
            left = family.left[node]
            return self._count(left, family, rows) + self._count(left + 1, family, rows)
        if self._drawn is None:
            raise PeerError(
                "query-order", "the query splits a tree before the sums of its root were requested"
            )
        members = rows.growing.of(node)
        return _ids_by_bin(rows.bins, members[self._drawn[members]])


class _Family:
    """The parent and the left child of each node of a tree, taken from the tree's splits."""

    def __init__(self, splits: Splits) -> None:
        self.left: dict[int, int] = dict(zip(splits.node.tolist(), splits.left.tolist(), strict=True))
        self.parent = {child: node for node, left in self.left.items() for child in (left, left + 1)}

    def sibling(self, node: int) -> int:
        left = self.left[self.parent[node]]
        return left + (node == left)


def _ids_by_bin(bins: Bins, members: Any) -> Int64:
    """Count the distinct rows in each bin, int64 [bins]. members: row indices, uint32, sorted, repeats
    allowed. A row is one id, because terms cannot combine min_rows_per_bin with `repeated_ids`."""
    out = np.zeros(bins.layout.bins, np.int64)
    count_bins(bins.rows.by_feature, members, bins.layout.offsets, out)
    return out
