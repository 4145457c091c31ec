"""The rows of a party that holds some of their columns, and what it computes of these columns alone.

A query comes with features numbered as the party's own, and without splits: rows were sent to the children
before (`row_sets`).

Promises: histograms and counts are those of whole rows, restricted to these columns.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.boosting.queries.base import View
from fedboost.boosting.queries.columns import BinsQuery, QuantileQuery
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.queries.union import Query
from fedboost.boosting.state import BoostingState, Values
from fedboost.errors import PeerError
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.binned import Column
from fedboost.gbdt.cut_points import MAX_REFINEMENTS, CutPoints, Quantiles, count_cells
from fedboost.gbdt.gradients import in_units
from fedboost.gbdt.kernels.rows import set_bits
from fedboost.gbdt.partition import GrowingRows
from fedboost.gbdt.sampling import AllRows, Mask
from fedboost.gbdt.tree import Splits, Tree
from fedboost.holders.shard import Exchange, Shard, place_of
from fedboost.holders.whole_rows import GrowingHolder, HorizontalHolder
from fedboost.protocol.contracts import Receive, Send
from fedboost.terms.terms import Terms
from fedboost.version import VERSION


class LabelRows(HorizontalHolder):
    """Rows with labels."""

    _earlier: Float64 | None = None
    """The margins before the last finished tree."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Values of the features; of a party that has none, a column of zeros."""
        return super().columns or (np.zeros(self.rows, np.float32),)

    def begin_margins(self) -> None:
        self._earlier = None
        super().begin_margins()

    def take_back(self) -> bool:
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            self._gradients.margin[:] = earlier
        return earlier is not None

    def end_tree(self, tree: int, splits: Splits, values: Values) -> None:
        self._earlier = self._gradients.margin.copy()
        super().end_tree(tree, splits, values)

    def gradients_of(self, query: HistogramQuery) -> Int64:
        """The packed gradients that each tree grows on, int64 [roots, rows]: 0 for a row that it does not
        grow on, and as often as it is sampled."""
        self._quantise(query)
        pairs, sampled = self._gradients.pairs, self.growing.sampled(query.tree)
        if sampled is None:
            return pairs.repeat(self._terms.trees.num_parallel_tree, axis=0)
        counts = [np.bincount(rows, minlength=self.rows) for rows in sampled]
        return np.stack([of_output * times for of_output in pairs for times in counts])

    def drawn(self, tree: int) -> Mask:
        """The rows whose gradients are in the sums of a tree, bool [rows]: those drawn for it, but for those
        of weight 0."""
        sampled, weight = self.growing.sampled(tree), self._shard.weight
        out = np.full(self.rows, sampled is None)
        if sampled is not None:
            out[sampled[0]] = True
        return out if weight is None else out & (weight > 0)

    def compute_gradients(self, gradient: Scale, hessian: Scale) -> None:
        """Compute the gradients of the tree that grows in these scales, unless they are there."""
        if not self.has_gradients:
            self._gradients.quantise(self._terms.objective.loss, in_units(gradient, hessian))

    def sums_over(self, node: int) -> tuple[int, int]:
        """The sums of gradients and hessians over the sampled rows of a leaf."""
        pairs = self._gradients.pairs[self.growing.output_of(node), self.growing.of(node)]
        return int((pairs >> 32).sum()), int((pairs & 0xFFFFFFFF).sum())


class FeatureRows(GrowingHolder):
    """Rows without labels, whose gradients are relayed."""

    def __init__(
        self, read: Callable[[], Shard], terms: Terms, nthread: int, name: str, row_sets: int
    ) -> None:
        """name: of this party in the terms."""
        super().__init__(read, terms, nthread, row_sets)
        shape = self.rows, len(terms.roots), 1
        self.growing = GrowingRows(*shape, AllRows(), self._threads, self._shard.allocate)
        self.gradients: Any = None
        """The packed gradients of the tree that grows, int64 [roots, rows], or encrypted ones."""

    @property
    def has_gradients(self) -> bool:
        """True if gradients of the tree that grows are here."""
        return self.gradients is not None

    def rows_hashed(self, key: bytes) -> bytes:
        """HMAC of the rows and of the version of the software: 32 bytes."""
        return self._shard.hashed(key, self.columns, repr((VERSION, None)))

    def begin_margins(self) -> None:
        """None: the label holder has them."""

    def forget_gradients(self) -> None:
        self.gradients = None

    def compute(self, query: Query) -> Int64:
        """The integers of a query: 0 for all that is about labels."""
        match query:
            case HistogramQuery():
                return self._histograms(query)
            case QuantileQuery(_, grids):
                return count_cells(self.columns[: grids.features], grids, self._threads)
            case StartQuery():
                self.bin(query)
            case EndRoundQuery():
                self.begin_tree(query.tree + 1)
        return np.zeros(query.cells, np.int64)

    def _histograms(self, query: HistogramQuery) -> Int64:
        if self.gradients is None:
            raise PeerError("histograms before the gradients of the tree")
        limit = query.gradient.limit * self._terms.draws.max_bootstrap_count
        return self.growing.histograms(query.nodes, self.gradients, self.bins, limit).reshape(-1)


OwnRows = LabelRows | FeatureRows


def local_rows(
    read: Callable[[Terms], Shard], terms: Terms, name: str, nthread: int, row_sets: int
) -> OwnRows:
    """The rows of a party. `read` raises Refused."""
    kind = LabelRows if terms.blocks.has_labels(name) else FeatureRows
    return kind(partial(read, terms), terms, nthread, name, row_sets)


# ---- Counts of a party's own numeric columns, and their cut points where nobody else is told them -------
# Promises: the same cut points as counts over the rows of one table with all columns give, whenever they
# are found; others learn their numbers, and at the end the thresholds of splits.
# Refuses: numbers of bins of own columns that are not those of its rows (PeerError).


class OwnCuts:
    """The cut points of the party with this view."""

    def __init__(self, terms: Terms, view: View) -> None:
        self._terms = terms
        self._view = view
        self._numeric = view.own_features[view.own_features < len(terms.columns.numeric)]
        self._found: tuple[OwnRows, CutPoints] | None = None
        """The cut points, and the rows that they are of."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._numeric.size} features)"

    def of(self, rows: OwnRows) -> CutPoints:
        """The cut points of the numeric columns of these rows."""
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
        """Rows in the subcells of own columns, 0 elsewhere."""
        grids, out = query.grids, np.zeros(query.cells, np.int64)
        if self._numeric.size:
            own = np.zeros(grids.features, np.bool_)
            own[self._numeric] = True
            counts = rows.compute(QuantileQuery(query.rows, grids.pick(self._numeric)))
            out[np.repeat(own, grids.cells_by_feature)] = counts
        return out

    def count_bins(self, query: BinsQuery, rows: OwnRows) -> Int64:
        """The number of cuts of each own feature, and if it has missing values; 0 elsewhere."""
        own, out = self.of(rows), np.zeros((2, query.features), np.int64)
        out[:, self._numeric] = own.sizes, own.missing
        return out.reshape(-1)

    def put_into(self, start: StartQuery, rows: OwnRows) -> StartQuery:
        """A question that has the cut points of own features alone, with those of these rows."""
        own, told = self.of(rows), start.cut_points
        numeric = told.head(self._numeric.size)
        if not (np.array_equal(numeric.sizes, own.sizes) and np.array_equal(numeric.missing, own.missing)):
            raise PeerError("told of other numbers of bins than the columns here have")
        values = np.concatenate([own.values, told.values[own.values.size :]])
        return replace(start, cut_points=replace(told, values=values))

    def trees(self, state: BoostingState, rounds: int, rows: OwnRows) -> tuple[Tree, ...]:
        """The trees after this number of rounds, with the thresholds of own columns."""
        if state.start is None or not state.rounds:
            return ()
        cuts: list[Float32] = [np.zeros(0, np.float32)] * self._view.features
        own = self.of(rows).cuts if self._view.hides else state.start.cut_points.pick(self._numeric).cuts
        for feature, values in zip(self._numeric.tolist(), own, strict=True):
            cuts[feature] = values
        return tuple(state.trees(rounds, tuple(cuts)))


# ---- Row sets: which rows of a split node go left, a bit for each row and root --------------------------
# The party that holds the column of a split tells the others of its block; they send their rows to the
# children as by a column of two bins.
# Promises: a row set has a bit for every row, 0 for rows that no node of its splits has, so that its size
# tells nothing; every party of a block has the same rows in the same nodes.
# Refuses: splits of nodes that are no leaves, and row sets of another size (PeerError).


ROW_SET = "which rows go left"
"""The kind of a relay."""


class RowSets:
    """The exchange of row sets of one party with the others of its block."""

    def __init__(self, terms: Terms, name: str) -> None:
        view, block = place_of(terms, name)
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

    def split(self, rows: OwnRows, splits: Splits, to_all: bool) -> Exchange:
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

    def _packed(self, rows: OwnRows, splits: Splits) -> bytes:
        """The row set of splits that were applied."""
        bits = np.zeros(self.size(rows.rows), np.uint8)
        for left in splits.left.tolist():
            set_bits(rows.growing.all_of(left), self._root_of[left] * rows.rows, bits)
        return bits.tobytes()

    def _split_foreign(self, rows: OwnRows, splits: Splits, slot: int, packed: bytes) -> None:
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
