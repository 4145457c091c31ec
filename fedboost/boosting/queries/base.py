"""Base class of all queries, parties' views of queries, and checks that several queries share.

Guarantees: a query class that lacks a required rule cannot be instantiated. Under terms with noise, only
queries that support it are allowed."""

import functools
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np

from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64, Scale
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import KEY_BITS, CutPoints, Grids, ends_of
from fedboost.gbdt.histogram import STATS, Flags, Layout
from fedboost.gbdt.kernels import level
from fedboost.gbdt.metrics import is_metric
from fedboost.gbdt.tree import NO_SPLITS, NO_VALUES, LeafValues, Splits, Tree
from fedboost.privacy import packing
from fedboost.privacy.packing import Segment
from fedboost.protocol.contracts import MAX_CELLS, Bound, Only, Query
from fedboost.protocol.parts import UNTOLD_SCORE
from fedboost.terms.hiding import ROWS, Release
from fedboost.terms.reading import MAX_FEATURES
from fedboost.terms.session import TRAINING
from fedboost.terms.terms import Terms
from fedboost.terms.training import MAX_DEPTH, MAX_METRICS

# ---- Types of query fields, with their bounds on the wire -----------------------------------------------

CONSTANT_TREE = -1
OF_PARTIES = " by party"
"""End of the name of a query that asks for figures of individual parties."""
MAX_ROWS = 1 << 48
"""Exclusive upper bound on the number of rows in a sum."""
MAX_NODES = 2 << MAX_DEPTH
"""Maximum number of nodes of a tree, and of splits, leaves or cells in one query."""
Rows = Annotated[int, Bound(MAX_ROWS - 1, "rows", least=1)]
TreeNumber = Annotated[int, Bound(math.inf, "the tree", least=CONSTANT_TREE)]
Nodes = Annotated[tuple[int, ...], Bound(MAX_NODES, "nodes")]
Features = Annotated[int, Bound(MAX_FEATURES, "features")]
Metrics = Annotated[
    tuple[Annotated[str, Only(is_metric, "it names a metric that this version does not know")], ...],
    Bound(MAX_METRICS, "metrics"),
]

# ---- A party's view of a query if parties hold different columns ----------------------------------------
# Of a split by another party's column, a party sees the node, the left child and the holder of the column.
# The feature number is then the number of features plus the holder's index; bin, direction and categories are
# 0. Others' cut points are seen as bin numbers, and others' grids as numbers of cells. Only the label holder
# sees leaf values, and the cells of residuals that contain them.
# If the terms hide columns (`Terms.hides_columns`), only the owner of a column knows its cut points: they
# are bin numbers in every view. Then only the label holder sees the exponents of scales.
# Guarantees: the view of a view is the same view. Both ends compute the same one. The public view, common to
# all parties of a block, follows from the view of each.
# Raises: PeerError (`View.check`) for a split by another party's feature that is presented as the party's
# own, or as a feature of a party without features.


@dataclass(frozen=True)
class View:
    """Filter that reduces queries, states and trees to what one party may see, if parties hold different
    columns.

    Args:
        features: number of features.
        parties: number of parties.
        place: index of the party in `terms.parties`; -1 for the public view.
        own: bool [features], True for features that the party holds.
        holders: int64 [features]; for each feature, the index in `terms.parties` of the party in the same
            block that holds it.
        has_labels: True if the party knows leaf values.
        hides: True if the terms hide columns.
    """

    features: int
    parties: int
    place: int
    own: Flags
    holders: Int64
    has_labels: bool
    hides: bool

    @cached_property
    def public(self) -> "View":
        """View that all parties of the block have in common."""
        return replace(self, place=-1, own=np.zeros_like(self.own), has_labels=False)

    @cached_property
    def _splitting(self) -> Flags:
        """bool [features + parties]: the features and parties by which a split may be in this view."""
        others = np.isin(np.arange(self.parties), self.holders[~self.own])
        return np.concatenate([self.own, others])

    @cached_property
    def own_features(self) -> Int64:
        """Numbers of the features that the party holds, in increasing order."""
        return np.flatnonzero(self.own)

    @cached_property
    def _seen(self) -> Int64:
        """Maps each feature number to the number shown in this view. The numbers that represent holders
        follow those of the features and map to themselves, so applying the view again has no effect."""
        seen = np.where(self.own, np.arange(self.features), self.features + self.holders)
        return np.concatenate([seen, self.features + np.arange(self.parties)]).astype(np.int64)

    def splits(self, splits: Splits) -> Splits:
        """Return the splits as seen in this view; the same object if nothing is hidden."""
        if not splits.size:
            return splits
        seen = self._seen[splits.feature]
        columns, categories = splits.columns.copy(), splits.categories.copy()
        hides = level.hide_splits(columns, categories, seen, self.features)
        return Splits(columns, categories) if hides else splits

    def values(self, values: LeafValues) -> LeafValues:
        """Return the leaf values as seen in this view: all 0 for a party without labels."""
        told = self.has_labels or not values.value.any()
        return values if told else LeafValues(values.node, np.zeros(len(values)))

    def cells(self, starts: tuple[int, ...]) -> tuple[int, ...]:
        """Return the starts of residual cells as seen in this view: all 0 for a party without labels, because
        a cell contains the leaf's value."""
        return starts if self.has_labels or not any(starts) else (0,) * len(starts)

    def scale(self, scale: Scale) -> Scale:
        """Return the scale in this view: with exponent 0, if the exponent would reveal labels."""
        told = self.has_labels or not self.hides or scale.exponent == 0
        return scale if told else Scale(0, scale.bits)

    def cut_points(self, cut_points: CutPoints) -> CutPoints:
        """Return the cut points as seen in this view: 1, 2, ... for features of other parties."""
        own = np.repeat(self.own, cut_points.sizes)
        values = np.where(own, cut_points.values, cut_points.numbered.values)
        return replace(cut_points, values=values.astype(np.float32))

    def grids(self, grids: Grids) -> Grids:
        """Return the grids of the numeric features as seen in this view.

        For another party's feature, only the number of counts per cell is kept. Its cells get the narrowest
        possible width and follow each other, starting at the first key. A cell that covers all keys is not
        changed."""
        sizes = np.diff(grids.offsets)
        told = np.repeat(self.own[: grids.features], sizes) | (grids.widths == KEY_BITS)
        widths = np.where(told, grids.widths, grids.subdivisions).astype(np.uint8)
        ends = ends_of(np.int64(1) << widths.astype(np.int64))
        starts = ends[:-1] - np.repeat(ends[grids.offsets[:-1]], sizes)
        return replace(grids, starts=np.where(told, grids.starts, starts).astype(np.uint32), widths=widths)

    def tree(self, tree: Tree) -> Tree:
        """Return a copy of a tree that contains only what this view shows. The tree may be from the model or
        from a round. A party signs the `state.structure` of these copies."""
        feature = tree.feature.copy()
        feature[tree.inner] = self._seen[feature[tree.inner]]
        elsewhere = tree.inner & (feature >= self.features)
        threshold = np.where(elsewhere, np.inf, tree.threshold)
        return tree.changed(
            feature=feature,
            threshold=np.where(np.isfinite(threshold) & self.hides, 0.0, threshold),
            missing_left=tree.missing_left & ~elsewhere,
            categories=np.where(elsewhere[:, None], np.uint8(0), tree.categories),
            value=tree.value if self.has_labels else 0.0,
        )

    def check(self, splits: Splits) -> None:
        """Raise PeerError if a split by another party's feature is presented as this party's own, or as a
        split by a party that does not hold any features."""
        wrong = splits.feature[~self._splitting[splits.feature]]
        if not wrong.size:
            return
        if wrong.min() < self.features:
            raise PeerError("query-splits", "a split uses a column that this party does not hold")
        raise PeerError("query-splits", "a split uses a column of a party that does not hold any columns")


def part_in(booster: Booster, terms: Terms, party: str = "") -> Booster:
    """Return a party's part of a model, or without a party the structure that all parties know."""
    view = view_of(terms, party or terms.parties[0])
    assert view is not None
    view = replace(view if party else view.public, hides=False)
    trees = tuple(map(view.tree, booster.trees))
    if view.has_labels:
        return replace(booster, trees=trees)
    trees = tuple(tree.changed(gain=0.0, cover=0.0) for tree in trees)
    return replace(booster, base_score=UNTOLD_SCORE, trees=trees)


def hidden_places(terms: Terms, cut_points: CutPoints, nodes: int) -> dict[str, Int64]:
    """Return, for each feature holder (party without labels), the indices of its gradient sums in a histogram
    answer, int64 [cells]. nodes: number of nodes in the answer."""
    layout, places = Layout.of(cut_points), {}
    (block,) = terms.blocks
    for party in block.feature_holders:
        view = view_of(terms, party)
        assert view is not None
        own = np.flatnonzero(np.repeat(view.own, layout.value_bins + layout.missing))
        by_node = own + (layout.bins + 1) * np.arange(nodes)[:, None]
        places[party] = STATS * by_node.reshape(-1)
    return places


def view_of(terms: Terms, party: str) -> View | None:
    """Return a party's view of queries and states; None if parties have the same columns and see all."""
    views = terms.blocks.views
    if party not in views:
        views[party] = _view_of(terms, party) if terms.blocks else None
    view: View | None = views[party]
    return view


def _view_of(terms: Terms, party: str) -> View:
    block, columns = terms.blocks.of(party), terms.columns
    assert block is not None
    number = {name: place for place, name in enumerate(columns.features)}
    holders = np.full(len(number), terms.parties.index(block.label_holder), np.int64)
    for holder in block.feature_holders:
        holders[[number[name] for name in columns.held[holder]]] = terms.parties.index(holder)
    place = terms.parties.index(party)
    shape = len(number), len(terms.parties), place
    return View(*shape, holders == place, holders, block.label_holder == party, terms.hides_columns)


# ---- The base class of all queries ----------------------------------------------------------------------

if TYPE_CHECKING:
    cached = functools.cached_property
else:

    class cached:
        """Property that is computed on first use, like `functools.cached_property` but without its lock."""

        def __init__(self, compute):
            self._compute, self._name = compute, compute.__name__

        def __get__(self, instance, owner):
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._compute(instance)
            return value


BYTES_PER_CELL = 16
"""Memory in bytes that the aggregator needs per integer: 8 for the running sum and 8 for the opened sum."""


class HasSplits:
    """Base of dataclasses whose `splits` may also be passed as a sequence of `Split` objects."""

    splits: Splits

    def __post_init__(self) -> None:
        if type(self.splits) is not Splits:
            object.__setattr__(self, "splits", Splits.of(self.splits))


class HasValues(HasSplits):
    """Base of dataclasses whose `values` may also be passed as pairs of a node number and a value."""

    values: LeafValues

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.values) is not LeafValues:
            object.__setattr__(self, "values", LeafValues.of(self.values))


class BaseQuery(HasSplits, Query, ABC):
    """Base class of all boosting queries.

    Each query is a frozen dataclass with the fields `rows`, `tree` and `splits`, or a subclass of
    `BeforeTrees`. Class and field names are hashed into transcripts: never rename them."""

    rows: int
    tree: int
    splits: Splits
    description: ClassVar[str]
    """Content of an answer in plain words, at most 42 characters, as shown by `fedboost audit`."""
    of_tree: ClassVar[bool] = False
    """True if the query is about a tree that is still growing."""
    ends_tree: ClassVar[bool] = False
    """True if the query ends a tree, and thereby the round."""
    only_turn: ClassVar[int | None] = None
    """Number of the turn that the query must have to itself, or None if any turn will do. Set only for
    queries that are sent once in a session."""
    with_noise: ClassVar[tuple[bool, ...]] = (False,)
    """Whether the query is allowed under terms without noise (False), with noise (True), or both."""
    released: ClassVar[str | None] = None
    """Name of the answer's release in `Terms.plan` with noise; None if the answer ignores the rows."""
    views: ClassVar[tuple[tuple[str, Callable[[View, Any], Any]], ...]] = (("splits", View.splits),)
    """Fields of which a party may see only a part, each with the function that returns this part. The
    function returns the same object if nothing is hidden."""
    scales: ClassVar[tuple[str, ...]] = ()
    """Fields with scales, which are hidden, too, if the terms hide columns."""
    tasks: ClassVar[frozenset[str]] = TRAINING
    """Names of the tasks whose sessions send the query."""

    @classmethod
    @abstractmethod
    def max_count(cls, terms: Terms) -> int:
        """Return the maximum number of queries of this kind that a fedboost program sends in one session."""

    @property
    @abstractmethod
    def cells(self) -> int:
        """Number of integers in an answer."""

    @property
    @abstractmethod
    def cell_bits(self) -> int:
        """Bits per cell, enough for the sum of each integer over all rows. Sums are modulo 2**bits."""

    @abstractmethod
    def check_terms(self, terms: Terms) -> None:
        """Raise Refused if the terms do not allow the values of this query's fields."""

    @abstractmethod
    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless this query may come next in the state (`boosting.state.BoostingState`)."""

    @abstractmethod
    def applied_to(self, state: Any) -> Any:
        """Return the state (`boosting.state.BoostingState`) after the query has been answered."""

    def turn_under(self, terms: Terms) -> int | None:
        """Return the turn of which the query must be the only one, or None if it may come in any turn."""
        return self.only_turn

    @classmethod
    def serves(cls, terms: Terms) -> bool:
        """Return True if the task of the terms uses this kind of query."""
        return terms.task.name in cls.tasks

    @property
    def parts(self) -> "tuple[BaseQuery, ...]":
        return (self,)

    @property
    def name(self) -> str:
        """Name in logs, which shows whether the query asks for figures of individual parties."""
        return type(self).__name__ + OF_PARTIES * bool(getattr(self, "sites", ()))

    @cached
    def segments(self) -> tuple[Segment, ...]:
        return (Segment(self.cells, self.cell_bits),)

    @cached
    def digest(self) -> bytes:
        """SHA-256 hash of the whole query, 32 bytes. Fields that are `APART` count if they are used."""
        own: Any = self
        apart = [
            (one.name, getattr(self, one.name))
            for one in fields(own)
            if one.metadata == APART and getattr(self, one.name) != one.default
        ]
        return digest_of((self, *chain.from_iterable(apart)) if apart else self)

    def check(self, terms: Terms) -> None:
        """Raise Refused if the terms do not allow this query, whatever the training state."""
        if not self.serves(terms):
            raise Refused(
                "query-task", f"query {self.name} is not allowed in a session with task {terms.task.name}"
            )
        if self.cells > MAX_CELLS:
            raise Refused(
                "query-size",
                f"an answer would have {self.cells} integers, but at most {MAX_CELLS} are allowed; lower "
                f"max_depth",
            )
        if (has_noise := terms.noise is not None) not in self.with_noise:
            raise Refused("query-noise", f"the query is not allowed with{'' if has_noise else 'out'} noise")
        # With noise the number of rows is secret. If the query contained one, accepting or refusing the query
        # would reveal whether the party has more rows.
        if has_noise and self.rows != ROWS:
            raise Refused(
                "query-noise",
                "the query reveals the number of rows, which must be secret under terms with noise",
            )
        self.check_terms(terms)

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> Self:
        """Return the query as a party sees it (`View`). publicly: as all parties of its block see it."""
        view = view_of(terms, party)
        if view is None:
            return self
        return self.in_view(view.public if publicly else view)

    def in_view(self, view: View) -> Self:
        kind: Any = type(self)
        scales = [(name, View.scale) for name in self.scales] if view.hides else ()
        hidden = {}
        for name, of in (*self.views, *scales):
            value = getattr(self, name)
            seen = of(view, value)
            if seen is not value:
                hidden[name] = seen
        if not hidden:
            return self
        fields = vars(self) | hidden
        told: Self = kind.__new__(kind)  # not initialised, which would take longer and change nothing
        vars(told).update({name: fields[name] for name in kind.__match_args__})
        return told

    def bytes_needed(self, parties: int) -> int:
        """Return the maximum bytes that the aggregator needs from sending this query until the next."""
        return BYTES_PER_CELL * self.cells

    def release(self, terms: Terms) -> Release | None:
        """Return the planned release (noise and cost) of an answer, or None if it does not need noise."""
        return None if self.released is None else terms.plan.releases[self.released]


class BeforeTrees:
    """Base of queries that come before the first tree."""

    tree = CONSTANT_TREE
    splits = NO_SPLITS


class Stateless(BeforeTrees):
    """Base of queries before the first tree that do not change the training state."""

    def applied_to(self, state: Any) -> Any:
        return state


class Counted(BeforeTrees):
    """Base of queries before the cut points. Each adds `steps` to `grids` of the training state."""

    steps: ClassVar[int] = 1

    def applied_to(self, state: Any) -> Any:
        return replace(state, grids=state.grids + self.steps)


def digest_of(value: object) -> bytes:
    """Return the 32-byte SHA-256 hash of a dataclass that consists of queries, splits, numbers and arrays.

    The hashed bytes are a header, followed by the bytes of each array, each preceded by its length. The
    header is the repr of the class name and all fields, in which an array is replaced by its dtype and
    shape."""
    arrays: list[bytes] = []
    header = repr(_header(value, arrays)).encode()
    return hashlib.sha256(packing.pack(header, *arrays)).digest()


APART = {"hashed": "apart"}
"""Metadata of a rarely used field, which is part of a query's `digest` only if it is used (`digest_of`)."""
_TEXT = {bool, int, float, str, bytes, type(None)}
"""Types whose repr contains their full value."""
_MEMBERS: dict[type, Any] = {}
"""Maps dataclass -> function that returns its field values in order."""


def _header(value: Any, arrays: list[bytes]) -> object:
    kind = type(value)
    if kind is tuple:
        if _TEXT.issuperset(map(type, value)):
            return value
        if {*map(type, value)} == {tuple} and _TEXT.issuperset(map(type, chain.from_iterable(value))):
            return value
        return tuple([_header(member, arrays) for member in value])
    if kind is Splits:
        arrays.append(value.packed)
        return "Splits", len(value)
    if kind is np.ndarray:
        arrays.append(value.tobytes())
        return value.dtype.str, value.shape
    if kind in _TEXT:
        return value
    if kind is LeafValues:
        return (*value,)
    if kind not in _MEMBERS:
        names = [name for name, member in kind.__dataclass_fields__.items() if member.metadata != APART]
        every = (*kind.__dataclass_fields__,)
        several = len(names) > 1
        _MEMBERS[kind] = attrgetter(*names) if several else lambda value: [getattr(value, n) for n in every]
    members = _MEMBERS[kind](value)
    return kind.__name__, *[m if type(m) in _TEXT else _header(m, arrays) for m in members]


# ---- Checks of trees, nodes and scales, for several queries ---------------------------------------------

MAX_LEAF_VALUE = float(np.finfo(np.float32).max)
"""Maximum magnitude of a leaf value, which is a float32 in the model. Squares of margins, which are sums of
such values, fit into float64."""


def check_started(state: Any) -> None:
    """Raise PeerError if the cut points are not known yet."""
    if state.start is None:
        raise PeerError("query-order", "the query came before the cut points were sent")


def check_nodes(terms: Terms, tree: int, splits: Splits, nodes: tuple[int, ...]) -> None:
    """Raise Refused unless the nodes can be one level of the tree after the splits have been applied."""
    check_tree(terms, tree, splits)
    if tree == CONSTANT_TREE:
        raise Refused("query-nodes", "the query asks for histograms before the first tree")
    check_several(terms, nodes)


def check_several(terms: Terms, nodes: tuple[int, ...]) -> None:
    """Raise Refused if there are no nodes, too many, or repeated ones: no tree has such a level."""
    if not nodes or len(nodes) > terms.max_leaves_per_round or len(set(nodes)) != len(nodes):
        raise Refused(
            "query-nodes",
            f"the query's list of {len(nodes)} nodes is not a level of a tree of depth "
            f"{terms.trees.max_depth}: the list is empty or too long, or names a node twice",
        )


def check_scales(terms: Terms, gradient: Scale, hessian: Scale, threshold: float) -> None:
    """Raise Refused if the terms forbid these gradient and hessian scales, or this sampling threshold."""
    check_bits(terms.bits, gradient, hessian)
    if not (0.0 < threshold < math.inf if terms.draws.by_gradient_norm else threshold == 0.0):
        raise Refused(
            "query-sampling",
            f"the query samples rows with gradient threshold {threshold:g}, which the terms do not allow",
        )


def check_bits(bits: int, *scales: Scale) -> None:
    for scale in scales:
        if scale.bits != bits:
            raise Refused("query-scale", f"this query must use {bits}-bit gradients, as the terms require")


def check_tree(terms: Terms, tree: int, splits: Splits, values: LeafValues = NO_VALUES) -> None:
    """Raise Refused if a model trained under these terms cannot contain this tree.

    Args:
        tree: number of the tree's round; -1 for the constant from which boosting starts.
        splits: splits of the tree so far.
        values: values of the leaves, if the tree is finished.
    """
    nodes, size = 2 * terms.max_leaves_per_round, len(splits)
    left = splits.left.tolist() if 0 < size <= nodes else ()
    if size > nodes or (left and not 0 < min(left) <= max(left) < nodes):
        raise Refused("query-splits", f"a tree of depth {terms.trees.max_depth} cannot have these splits")
    if tree == CONSTANT_TREE and size:
        raise Refused("query-splits", "the constant that boosting starts from cannot have splits")
    if values is not NO_VALUES:
        _check_values(terms, values)
    if not CONSTANT_TREE <= tree < terms.trees.rounds:
        raise Refused(
            "query-tree",
            f"the query is about tree {tree}, but the terms have rounds = {terms.trees.rounds}",
        )


def _check_values(terms: Terms, values: LeafValues) -> None:
    if len(values) > terms.max_leaves_per_round:
        raise Refused(
            "query-leaves",
            f"{len(values)} leaves are more than a tree of depth {terms.trees.max_depth} can have",
        )
    if len({*values.node.tolist()}) != len(values):
        raise Refused("query-leaves", "a leaf has two values")
    if not (np.abs(values.value) <= MAX_LEAF_VALUE).all():
        raise Refused("query-leaves", "a leaf value is not a finite float32")


def check_splits(terms: Terms, splits: Splits) -> None:
    """Raise Refused unless these are the splits of a whole tree, in order.

    Each split must apply to an existing leaf, no deeper than the terms allow. Its children must have the next
    two node numbers, starting after the roots. It must use categories if and only if its feature is
    categorical. If arbitrary node numbers were allowed, a message with few splits could make the receiver
    allocate a tree of the largest size."""
    holders = len(terms.parties) if terms.blocks else 0
    counts = _category_counts(len(terms.columns.ordered), terms.columns.category_counts, holders)
    shape = len(terms.roots), terms.deepest, counts
    reason, number = level.check_splits(splits.columns, splits.categories, *shape)
    if not reason:
        return
    (split,) = splits[number : number + 1]
    if reason == 1:
        raise Refused(
            "query-splits",
            f"split {number + 1} (node {split.node}, left child {split.left}) cannot occur in a tree of "
            f"depth {terms.trees.max_depth}",
        )
    raise Refused("query-splits", f"split {number + 1} is not valid for feature {split.feature} of the terms")


def check_leaves(terms: Terms, splits: Splits, values: LeafValues) -> None:
    """Raise Refused unless exactly the leaves of the tree with these splits have values. The splits must have
    passed `check_splits`. Key holders without rows need this check, because they have no tree of their own to
    compare with."""
    is_leaf = np.ones(len(terms.roots) + 2 * len(splits), np.bool_)
    is_leaf[splits.node] = False
    if not np.array_equal(np.flatnonzero(is_leaf), np.sort(values.node)):
        raise Refused("leaf-values-mismatch", "the leaf values do not match the leaves of the tree")


@lru_cache(maxsize=8)
def _category_counts(numeric: int, counts: tuple[int, ...], holders: int) -> Int64:
    """Return the number of categories of each feature (0 if numeric), followed by 0 for each holder that a
    view may show instead of a feature."""
    return np.array((0,) * numeric + counts + (0,) * holders, np.int64)
