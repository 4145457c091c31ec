"""The base of all queries.

Promises: a class without a rule cannot be instantiated; with noise, only queries that support it are allowed.
"""

import functools
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import numpy as np

from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64, Scale
from fedboost.gbdt.cut_points import KEY_BITS, CutPoints, Grids, ends_of
from fedboost.gbdt.histogram import STATS, Flags, Layout
from fedboost.gbdt.kernels import level
from fedboost.gbdt.metrics import is_metric
from fedboost.gbdt.tree import NO_CHILD, NO_SPLITS, Splits, Tree
from fedboost.privacy import packing
from fedboost.privacy.packing import Segment
from fedboost.protocol.contracts import MAX_CELLS, Bound, Only, Query
from fedboost.terms.hiding import ROWS, Release
from fedboost.terms.reading import MAX_FEATURES
from fedboost.terms.session import TRAINING
from fedboost.terms.terms import Terms
from fedboost.terms.training import MAX_DEPTH, MAX_METRICS

# ---- Members of queries, with their bounds on the wire --------------------------------------------------


CONSTANT_TREE = -1
MAX_ROWS = 1 << 48
"""Limit of the rows of a sum, exclusive."""
MAX_NODES = 2 << MAX_DEPTH
"""Nodes of a tree, and splits, leaves or cells that one query names."""
Rows = Annotated[int, Bound(MAX_ROWS - 1, "rows", least=1)]
TreeNumber = Annotated[int, Bound(math.inf, "as the number of a tree", least=CONSTANT_TREE)]
Nodes = Annotated[tuple[int, ...], Bound(MAX_NODES, "nodes")]
Values = Annotated[tuple[tuple[int, float], ...], Bound(MAX_NODES, "leaves")]
"""The value of each leaf, behind its node."""
Features = Annotated[int, Bound(MAX_FEATURES, "features")]
Metrics = Annotated[
    tuple[Annotated[str, Only(is_metric, "a metric this version does not know")], ...],
    Bound(MAX_METRICS, "metrics"),
]

# ---- What a party is told of a question where parties hold different columns ----------------------------
# A split by a column of another party is seen as (node, left, holder): its feature is a number behind those
# of all features, which stands for the holder, and bin, direction and categories are 0. Cut points of
# others are seen as bin numbers, and their grids as numbers of cells. The label holder alone sees leaf
# values, and the cells of residuals that they are in.
# Where the terms hide columns (`Terms.hides_columns`) nobody but its owner knows a cut point: all are bin
# numbers, in every view. And the label holder alone sees the exponents of scales.
# Promises: the view of a view is the view itself; both ends compute the same; the public view, which a
# block's parties share, follows from the view of each.
# Refuses: splits by features of others that are told as if they were a party's own, or as of a party that
# holds none (PeerError, `check`).


T = TypeVar("T")


@dataclass(frozen=True)
class View:
    """features, parties: their numbers; place: the party's among those of the terms, -1 for none; own: bool
    [features], the party's; holders: int64 [features], the place in `terms.parties` of the holder of each in
    the party's block; has_labels: the party knows leaf values; hides: the terms hide columns."""

    features: int
    parties: int
    place: int
    own: Flags
    holders: Int64
    has_labels: bool
    hides: bool

    @property
    def public(self) -> "View":
        """The view that all parties of the block have in common."""
        return replace(self, place=-1, own=np.zeros_like(self.own), has_labels=False)

    @cached_property
    def own_features(self) -> Int64:
        """The numbers of the party's features, increasing."""
        return np.flatnonzero(self.own)

    @cached_property
    def _seen(self) -> Int64:
        """The number under which a feature is seen, of features and of holders behind them."""
        seen = np.where(self.own, np.arange(self.features), self.features + self.holders)
        return np.concatenate([seen, self.features + np.arange(self.parties)]).astype(np.int64)

    def splits(self, splits: Splits) -> Splits:
        """These splits as they are seen; the same object where nothing of them is hidden."""
        features = self._seen[splits.feature]
        elsewhere = features >= self.features
        if (features == splits.feature).all() and not (
            splits.columns[2:4, elsewhere].any() or splits.categories[elsewhere].any()
        ):
            return splits
        columns, categories = splits.columns.copy(), splits.categories.copy()
        columns[1] = features
        columns[2:4, elsewhere] = 0
        categories[elsewhere] = 0
        return Splits(columns, categories)

    def values(self, values: Values) -> Values:
        """These leaf values as they are seen: 0 without labels."""
        told = self.has_labels or not any(value for _, value in values)
        return values if told else tuple((node, 0.0) for node, _ in values)

    def cells(self, starts: tuple[int, ...]) -> tuple[int, ...]:
        """The starts of these cells of residuals as they are seen: 0 without labels, as leaf values are in
        them."""
        return starts if self.has_labels or not any(starts) else (0,) * len(starts)

    def scale(self, scale: Scale) -> Scale:
        """This scale as it is seen: its bits alone, where its exponent would tell of labels."""
        told = self.has_labels or not self.hides or scale.exponent == 0
        return scale if told else Scale(0, scale.bits)

    def cut_points(self, cut_points: CutPoints) -> CutPoints:
        """These cut points as they are seen: 1, 2, ... for features of others."""
        own = np.repeat(self.own, cut_points.sizes)
        values = np.where(own, cut_points.values, cut_points.numbered.values)
        return replace(cut_points, values=values.astype(np.float32))

    def grids(self, grids: Grids) -> Grids:
        """These grids of the numeric features as they are seen: of those of others only how many counts each
        cell has, in cells as narrow as these allow, from the first key on; and the cell of all keys."""
        sizes = np.diff(grids.offsets)
        told = np.repeat(self.own[: grids.features], sizes) | (grids.widths == KEY_BITS)
        widths = np.where(told, grids.widths, grids.subdivisions).astype(np.uint8)
        ends = ends_of(np.int64(1) << widths.astype(np.int64))
        starts = ends[:-1] - np.repeat(ends[grids.offsets[:-1]], sizes)
        return replace(grids, starts=np.where(told, grids.starts, starts).astype(np.uint32), widths=widths)

    def tree(self, tree: Tree) -> Tree:
        """A tree of the model, or those of a round, as they are seen: what `state.structure` hashes of it."""
        seen = [
            int(self._seen[feature]) if left != NO_CHILD else feature
            for feature, left in zip(tree.feature, tree.left, strict=True)
        ]
        inner = [left != NO_CHILD for left in tree.left]
        elsewhere = [is_inner and f >= self.features for is_inner, f in zip(inner, seen, strict=True)]
        thresholds = _masked(tree.threshold, elsewhere, float("inf"))
        if self.hides:
            thresholds = [0.0 if isfinite(threshold) else threshold for threshold in thresholds]
        return replace(
            tree,
            feature=seen,
            threshold=thresholds,
            missing_left=_masked(tree.missing_left, elsewhere, False),
            categories=_masked(tree.categories, elsewhere, 0),
            value=tree.value if self.has_labels else [0.0] * len(tree.value),
        )

    def check(self, splits: Splits) -> None:
        """Raise PeerError for a split by a feature of another party that is told as this party's own, or by
        one of a party that holds none of those that this party lacks."""
        elsewhere = splits.feature >= self.features
        if not self.own[splits.feature[~elsewhere]].all():
            raise PeerError("a split by a column that this party does not hold")
        if not np.isin(splits.feature[elsewhere] - self.features, self.holders[~self.own]).all():
            raise PeerError("a split by a column of a party that holds none")


def hidden_places(terms: Terms, cut_points: CutPoints, nodes: int) -> dict[str, Int64]:
    """Of each feature holder, the cells of the gradients' sums of its columns in the histograms of so many
    nodes: int64 [nodes * its bins]."""
    layout, places = Layout.of(cut_points), {}
    (block,) = terms.blocks
    for party in block.feature_holders:
        view = view_of(terms, party)
        assert view is not None
        own = np.flatnonzero(np.repeat(view.own, layout.value_bins + layout.missing))
        by_node = own + (layout.bins + 1) * np.arange(nodes)[:, None]
        places[party] = STATS * by_node.reshape(-1)
    return places


def _masked(values: list[T], where: list[bool], value: T) -> list[T]:
    return [value if masked else own for own, masked in zip(values, where, strict=True)]


def view_of(terms: Terms, party: str) -> View | None:
    """The view of a party; None where all parties have the same columns, and are told all."""
    return _view_of(terms, party) if terms.blocks else None


@lru_cache(maxsize=64)
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


# ---- The base of all queries ----------------------------------------------------------------------------


if TYPE_CHECKING:
    once = functools.cached_property
else:

    class once:
        """A property that is computed at first use, without the lock of `cached_property`."""

        def __init__(self, compute):
            self._compute, self._name = compute, compute.__name__

        def __get__(self, instance, owner):
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._compute(instance)
            return value


BYTES_PER_CELL = 16
"""Bytes that the aggregator needs for each integer: of the running sum, and of the opened sum."""


class HasSplits:
    """A dataclass whose splits may be given as `Split` objects, too."""

    splits: Splits

    def __post_init__(self) -> None:
        if type(self.splits) is not Splits:
            object.__setattr__(self, "splits", Splits.of(self.splits))


class BaseQuery(HasSplits, Query, ABC):
    """A query of boosting. Each is a frozen dataclass with the fields `rows`, `tree` and `splits` (made of
    `Split` objects, or columns), or with `BeforeTrees`."""

    rows: int
    tree: int
    splits: Splits
    description: ClassVar[str]
    """The contents of an answer, for people: at most 42 characters."""
    of_tree: ClassVar[bool] = False
    """True if it is about a tree before its end."""
    ends_tree: ClassVar[bool] = False
    """True if it ends a tree, and the round with it."""
    only_turn: ClassVar[int | None] = None
    """The turn that it is asked in, alone, if it is asked once in a session."""
    needs_noise: ClassVar[bool] = False
    """True if only answers with noise are allowed."""
    suits: ClassVar[tuple[str, ...]] = ()
    """The methods of `Noise` with which it is allowed where answers get noise."""
    released: ClassVar[str | None] = None
    """The release that an answer is, where the terms have noise; None if it does not depend on rows."""
    views: ClassVar[tuple[tuple[str, Callable[[View, Any], Any]], ...]] = (("splits", View.splits),)
    """The fields of which a party may be told less, and how each is seen: the same object where nothing of it
    is hidden."""
    tasks: ClassVar[frozenset[str]] = TRAINING
    """Names of the tasks whose sessions send it."""

    @classmethod
    @abstractmethod
    def max_count(cls, terms: Terms) -> int:
        """The most queries of this kind in one session, by a program of fedboost."""

    @property
    @abstractmethod
    def cells(self) -> int:
        """Integers of the answer."""

    @property
    @abstractmethod
    def cell_bits(self) -> int:
        """Bits in which the sum of each integer over all rows fits."""

    @abstractmethod
    def check_terms(self, terms: Terms) -> None:
        """Raise Refused if the terms do not allow it."""

    @abstractmethod
    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next in that state (`boosting.state`)."""

    @abstractmethod
    def applied_to(self, state: Any) -> Any:
        """The state (`boosting.state`) after its answer."""

    @classmethod
    def serves(cls, terms: Terms) -> bool:
        """True if it is for what a session under these terms does."""
        return terms.task.name in cls.tasks

    @property
    def parts(self) -> "tuple[BaseQuery, ...]":
        """The query itself: it is not made of others."""
        return (self,)

    @once
    def segments(self) -> tuple[Segment, ...]:
        """The cells in which an answer travels."""
        return (Segment(self.cells, self.cell_bits),)

    @once
    def digest(self) -> bytes:
        """Hash of all its content: 32 bytes."""
        return digest_of(self)

    def check(self, terms: Terms) -> None:
        """Raise Refused if the terms do not allow it."""
        if not self.serves(terms):
            raise Refused(f"{self.name} is asked, and the terms {terms.task.name}, and do nothing else")
        if self.cells > MAX_CELLS:
            raise Refused(
                f"an answer of {self.cells} integers, at most {MAX_CELLS} are given; lower max_depth"
            )
        if terms.noise is None and self.needs_noise:
            raise Refused("sums that would need noise, and the terms have none")
        if terms.noise is not None:
            if terms.noise.method not in self.suits:
                raise Refused(
                    "sums without noise, or about trees of another method, and the terms say otherwise"
                )
            if self.rows != ROWS:  # else a refusal would reveal whether there are that many
                raise Refused("sums over a number of rows, which nobody may know where they get noise")
        self.check_terms(terms)

    def seen_by(self, terms: Terms, party: str, publicly: bool = False) -> Self:
        """The query as a party is told it, or as all parties of its block are (`views`)."""
        view = view_of(terms, party)
        if view is None:
            return self
        seen: dict[tuple[str, bool], Self] = self.__dict__.setdefault("_seen", {})
        if (party, publicly) not in seen:
            seen[party, publicly] = self.in_view(view.public if publicly else view)
        return seen[party, publicly]

    def in_view(self, view: View) -> Self:
        """The query as it is told in this view."""
        hidden = {
            name: seen
            for name, of in self.views
            if (seen := of(view, getattr(self, name))) is not getattr(self, name)
        }
        return replace(self, **hidden) if hidden else self  # type: ignore[type-var]  # a dataclass

    def bytes_needed(self, parties: int) -> int:
        """Most bytes that the aggregator needs from this query until the next."""
        return BYTES_PER_CELL * self.cells

    def release(self, terms: Terms) -> Release | None:
        """The release of an answer, where the terms have noise (`released`)."""
        return None if self.released is None else terms.plan.releases[self.released]


class BeforeTrees:
    """A query before the first tree."""

    tree = CONSTANT_TREE
    splits = NO_SPLITS


class Stateless(BeforeTrees):
    """A query before the first tree that changes nothing."""

    def applied_to(self, state: Any) -> Any:
        """The same state."""
        return state


class Counted(BeforeTrees):
    """A query that counts for `steps` among those before the cut points."""

    steps: ClassVar[int] = 1

    def applied_to(self, state: Any) -> Any:
        """The state with so many counts more."""
        return replace(state, grids=state.grids + self.steps)


def digest_of(value: object) -> bytes:
    """Hash of all content of a dataclass of queries, splits, numbers and arrays: 32 bytes.

    Hashed are a header and the bytes of each array, each behind its length. The header is the text of the
    members under the name of their type, with the type and shape of arrays in the place of these."""
    arrays: list[bytes] = []
    header = repr(_header(value, arrays)).encode()
    return hashlib.sha256(packing.pack(header, *arrays)).digest()


APART = {"hashed": "apart"}
"""Metadata of a member that `digest_of` leaves out, since most sessions do not have it; the query's own
`digest` has it where it says something."""


_TEXT = {bool, int, float, str, bytes, type(None)}
"""Types whose text says all."""
_MEMBERS: dict[type, Any] = {}
"""For each dataclass the function to its members, in order."""


def _header(value: Any, arrays: list[bytes]) -> object:
    kind = type(value)
    if kind in _TEXT:
        return value
    if kind is tuple:
        types = set(map(type, value))
        if types <= _TEXT or (types == {tuple} and _TEXT.issuperset(map(type, chain.from_iterable(value)))):
            return value
        return tuple([_header(member, arrays) for member in value])
    if kind is Splits:
        arrays.append(value.packed)
        return "Splits", len(value)
    if kind is np.ndarray:
        arrays.append(value.tobytes())
        return value.dtype.str, value.shape
    if kind not in _MEMBERS:
        names = [name for name, member in kind.__dataclass_fields__.items() if member.metadata != APART]
        every = (*kind.__dataclass_fields__,)
        several = len(names) > 1
        _MEMBERS[kind] = attrgetter(*names) if several else lambda value: [getattr(value, n) for n in every]
    members = _MEMBERS[kind](value)
    if _TEXT.issuperset(map(type, members)):
        return kind.__name__, *members
    return kind.__name__, *[
        member if type(member) in _TEXT else _header(member, arrays) for member in members
    ]


# ---- Checks of trees, nodes and scales for several queries ----------------------------------------------
# They raise Refused.


MAX_LEAF_VALUE = float(np.finfo(np.float32).max)
"""Largest value of a leaf, a float32 in the model. Squares of margins moved by such values fit float64."""


def check_started(state: Any) -> None:
    """Raise PeerError before the cut points are known."""
    if state.start is None:
        raise PeerError("no cut points were given yet")


def check_nodes(terms: Terms, tree: int, splits: Splits, nodes: tuple[int, ...]) -> None:
    """Raise Refused unless the nodes can be a level of that tree after these splits."""
    check_tree(terms, tree, splits, ())
    if tree == CONSTANT_TREE:
        raise Refused("histograms before the first tree")
    check_several(terms, nodes)


def check_several(terms: Terms, nodes: tuple[int, ...]) -> None:
    """Raise Refused unless the nodes can be a level of a tree."""
    if not nodes or len(nodes) > terms.max_leaves_per_round or len(set(nodes)) != len(nodes):
        raise Refused(
            f"{len(nodes)} nodes in one query, or one twice: not a level of depth {terms.trees.max_depth}"
        )


def check_scales(terms: Terms, gradient: Scale, hessian: Scale, threshold: float) -> None:
    """Raise Refused if the terms do not allow these scales of gradients, or this sampling of rows."""
    check_bits(terms.bits, gradient, hessian)
    if not (0.0 < threshold < math.inf if terms.draws.by_gradient_norm else threshold == 0.0):
        raise Refused(f"rows drawn by gradients of size {threshold:g}, the terms say otherwise")


def check_bits(bits: int, *scales: Scale) -> None:
    """Raise Refused unless all scales have that many bits."""
    for scale in scales:
        if scale.bits != bits:
            raise Refused(f"the terms allow gradients of {bits} bits here, no others")


def check_tree(terms: Terms, tree: int, splits: Splits, values: tuple[tuple[int, float], ...]) -> None:
    """Raise Refused for a tree (or the constant) that a model of these terms cannot have."""
    nodes, size = 2 * terms.max_leaves_per_round, len(splits)
    left = splits.left.tolist() if 0 < size <= nodes else ()
    if size > nodes or (left and not 0 < min(left) <= max(left) < nodes):
        raise Refused(f"splits that a tree of depth {terms.trees.max_depth} cannot have")
    if tree == CONSTANT_TREE and size:
        raise Refused("splits of the constant that boosting starts from")
    if len(values) > terms.max_leaves_per_round:
        raise Refused(f"{len(values)} leaves; a tree of depth {terms.trees.max_depth} has not so many")
    if values:
        if len(dict(values)) != len(values):
            raise Refused("a leaf with two values")
        if [value for _, value in values if not -MAX_LEAF_VALUE <= value <= MAX_LEAF_VALUE]:
            raise Refused("a leaf value is not finite")
    if not CONSTANT_TREE <= tree < terms.trees.rounds:
        raise Refused(f"tree {tree} is asked for, the terms allow {terms.trees.rounds} rounds")


def check_splits(terms: Terms, splits: Splits) -> None:
    """Raise Refused unless these are the splits of a whole tree, in order: each of an existing leaf, no
    deeper than the terms allow, its children numbered next, behind the roots, and by categories if and only
    if the feature is categorical. Other numbers could make a tree of a few splits, which travels in a few
    bytes, as large as the largest."""
    holders = len(terms.parties) if terms.blocks else 0
    counts = _category_counts(len(terms.columns.ordered), terms.columns.category_counts, holders)
    shape = len(terms.roots), terms.trees.max_depth, counts
    reason, number = level.check_splits(splits.columns, splits.categories, *shape)
    if not reason:
        return
    (split,) = splits[number : number + 1]
    if reason == 1:
        raise Refused(
            f"split {number + 1}, of node {split.node} into {split.left}, cannot be in a tree of depth "
            f"{terms.trees.max_depth}"
        )
    raise Refused(f"split {number + 1} is not one by feature {split.feature} of the terms")


def check_leaves(terms: Terms, splits: Splits, values: tuple[tuple[int, float], ...]) -> None:
    """Raise Refused unless each leaf of a tree of these splits, which `check_splits` allows, has a value, and
    no other node has. A key holder without rows has no leaves of its own to compare with."""
    leaves = set(range(len(terms.roots) + 2 * len(splits))).difference(splits.node.tolist())
    if leaves != dict(values).keys() or len(leaves) != len(values):
        raise Refused("the leaf values are not those of the leaves of the tree that grew")


@lru_cache(maxsize=8)
def _category_counts(numeric: int, counts: tuple[int, ...], holders: int) -> Int64:
    """The number of categories of each feature, 0 for a numeric one; then 0 for each holder of columns that
    a split may name in the place of a feature (`views`)."""
    return np.array((0,) * numeric + counts + (0,) * holders, np.int64)
