"""Splits and trees: gains, the best split of a node, leaf values, and trees stored as columns.

Guarantees: the best split depends only on integer sums. Ties go to the lowest feature, then to the lowest
bin, then to missing values going right. A split by a categorical feature sends a subset of its categories
right. If the feature has few categories, the subset is a single category. Otherwise it contains the
categories with the lowest leaf values; their number is chosen to maximise the gain. Ties then go to the
fewest categories, then to missing values going left.

Source of the formulas: Chen and Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016, section 2.2.
As in XGBoost, the gain is not halved, and `gamma` is compared with it. Without penalties, no other subset of
categories can gain more than the first or the last ones in the order of their leaf values: Fisher, "On
Grouping for Maximum Homogeneity", JASA 53, 1958."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float64, Int64, Scale
from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.gbdt.histogram import Flags, Layout, Total
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.kernels.split import best_gains

_NUMBERS = (
    "node root depth slot gradient hessian positive feature bin missing_left left_gradient left_hessian"
)
LEAF = np.dtype(
    [(name, np.int64) for name in f"{_NUMBERS} left open_left open_right sign".split()]
    + [(name, np.float64) for name in ["gain", "lower", "upper", "middle"]]
)
"""Record of a leaf of a growing tree.

node, root, depth: its position; slot: index of its histogram; gradient, hessian: sums over its rows;
positive: sum of the positive gradients; lower, upper: bounds of leaf values below it. Its best split: gain;
feature, -1 if no split gains enough; bin, the partition for a categorical feature, and 0 after the split;
missing_left; left_gradient, left_hessian: sums of the left child. After the split: left, the left child;
open_left, open_right: whether a child may split again; sign: monotone constraint of the feature; middle:
midpoint of the children's values."""
Leaves = npt.NDArray[np.void]
MIN_GAIN = 1e-6
"""XGBoost's kRtEps: the gain of a split must exceed this."""


@dataclass(frozen=True)
class SplitRule:
    """Parameters of splits and leaf values, with XGBoost's names, and the fixed-point scales of the sums."""

    reg_lambda: float
    reg_alpha: float
    gamma: float
    min_child_weight: float
    max_delta_step: float
    learning_rate: float
    gradient: Scale
    hessian: Scale
    max_cat_to_onehot: int = 4
    max_cat_threshold: int = 64
    monotone: tuple[int, ...] = ()
    """Monotone constraint of each feature: 1, -1 or 0. Empty if there are no constraints."""

    def scaled(self, share: float) -> "SplitRule":
        """Return the rule for a sample with this share of the rows: penalties are scaled in the same way as
        the sums. If the sample is representative, the returned rule finds the same splits in the sample as
        this rule does in all rows."""
        return dataclasses.replace(
            self,
            reg_lambda=self.reg_lambda * share,
            reg_alpha=self.reg_alpha * share,
            min_child_weight=self.min_child_weight * share,
        )

    def gains(self, histogram: Int64, layout: Layout, total: Total) -> Float64:
        """Compute the highest gain of a split by each feature. Returns float64 [features], 0 if there is no
        valid split.

        histogram: int64 [layout.cells], the node's histogram; total: the node's sums of gradients and
        hessians."""
        features = layout.offsets, layout.value_bins, layout.missing, layout.categorical
        max_categories = self.max_cat_to_onehot, self.max_cat_threshold
        gains: Float64 = best_gains(histogram, *features, *self.scales, max_categories, total)
        return gains

    @cached_property
    def signs(self) -> Int64:
        return np.array(self.monotone, np.int64)

    @cached_property
    def scales(self) -> tuple[tuple[float, float], tuple[float, float, float, float]]:
        """Units per 1.0 of gradients and hessians, and penalties, in the order of the kernels' arguments."""
        penalties = (
            float(self.reg_lambda),
            float(self.reg_alpha),
            float(self.min_child_weight),
            float(self.max_delta_step or math.inf),
        )
        return (self.gradient.factor, self.hessian.factor), penalties


# ---- A tree as columns ----------------------------------------------------------------------------------
# Children are numbered in the order of the splits, left before right, so every party grows the same tree.
# The trees of a round's outputs grow as one tree with several roots, which are numbered first.


Int32 = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

NO_CHILD = -1


@dataclass(frozen=True)
class Split:
    """A split, as sent to parties: rows of `node` with bin <= `bin` go to child `left`, the others to left +
    1.

    For a categorical feature, rows go to left + 1 if the bit of their category is set in `categories`, else
    to `left`. Category c has the c-th lowest bit, and bin is 0. For a numeric feature, categories is 0."""

    node: int
    feature: int
    bin: int
    missing_left: bool
    left: int
    categories: int = 0


NODE = np.dtype(
    [("left", np.int64), ("feature", np.int64), ("threshold", np.float64), ("missing_left", np.bool_)]
    + [(name, np.float64) for name in ("value", "gain", "cover")]
)
"""Record of a node of a tree.

left: node number of the left child (the right child is left + 1), NO_CHILD for leaves; feature: number of the
feature; threshold: float32, rows with x < threshold go left; missing_left: whether missing values go left;
value: float32 leaf value, after the learning rate (an inner node has the value that a leaf there would have);
gain: 0 at leaves; cover: sum of hessians."""
Nodes = npt.NDArray[np.void]
Column = Sequence[float] | npt.NDArray[Any]
SPLIT_COLUMNS = 5
BITMAP_BYTES = MAX_CODES // 8


def _bitmaps(numbers: Iterable[int]) -> Bytes:
    """Convert integers to bitmaps, uint8 [numbers, 32]; the inverse of `_numbers`."""
    packed = b"".join(int.to_bytes(number, BITMAP_BYTES, "little") for number in numbers)
    return np.frombuffer(packed, np.uint8).reshape(-1, BITMAP_BYTES)


def _numbers(bitmaps: Bytes) -> list[int]:
    """Convert the bits of each bitmap, lowest first, to an integer."""
    # numpy strips the trailing zero bytes of strings.
    strings = np.ascontiguousarray(bitmaps).view(f"S{BITMAP_BYTES}").ravel().tolist()
    return [int.from_bytes(string, "little") if string else 0 for string in strings]


class _Columns(Iterable[Any]):
    """Base of sequences that are stored as columns. Two are equal if their bytes are."""

    __slots__ = ()
    packed: Any

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.packed == other.packed

    def __hash__(self) -> int:
        return hash(self.packed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({[*self]})"


class Splits(_Columns):
    """A sequence of splits, stored as immutable columns.

    columns: int32 [5, splits]: node, feature, bin, missing_left (1 or 0) and left of each `Split`;
    categories: uint8 [splits, 32], the bits of `Split.categories`, lowest first."""

    __slots__ = ("_packed", "_sum", "bin", "categories", "columns", "feature", "left", "node", "size")

    def __init__(self, columns: Int32, categories: Bytes | None = None) -> None:
        """Wrap both arrays, which become read-only. categories: None if all features are numeric."""
        if categories is None:
            categories = np.zeros((columns.shape[1], BITMAP_BYTES), np.uint8)
        columns = np.ascontiguousarray(columns)  # one array type for numba
        columns.setflags(write=False)
        categories.setflags(write=False)
        self.columns = columns
        self.size: int = columns.shape[1]
        """Number of splits."""
        self.node: Int32 = columns[0]
        self.feature: Int32 = columns[1]
        self.bin: Int32 = columns[2]
        self.left: Int32 = columns[4]
        self.categories = categories
        self._packed: bytes | None = None
        self._sum: tuple[Splits, Splits] | None = None
        """The `Splits` that were last added to this object, and the result."""

    @classmethod
    def of(cls, splits: "Splits | Iterable[Split]") -> "Splits":
        if isinstance(splits, Splits):
            return splits
        listed = [*splits]
        rows = [(s.node, s.feature, s.bin, s.missing_left, s.left) for s in listed]
        columns = np.array(rows, np.int32).reshape(-1, SPLIT_COLUMNS).T.copy()
        return cls(columns, _bitmaps(s.categories for s in listed))

    @property
    def packed(self) -> bytes:
        if self._packed is None:
            rows = np.empty((self.columns.shape[1], SPLIT_COLUMNS + BITMAP_BYTES // 4), "<i4")
            rows[:, :SPLIT_COLUMNS] = self.columns.T
            rows[:, SPLIT_COLUMNS:] = self.categories.view("<i4")
            self._packed = rows.tobytes()
        return self._packed

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Split]:
        rows = zip(self.columns.T.tolist(), _numbers(self.categories), strict=True)
        for (node, feature, bin_, missing_left, left), categories in rows:
            yield Split(node, feature, bin_, bool(missing_left), left, categories)

    def __getitem__(self, part: slice) -> "Splits":
        return Splits(self.columns[:, part], self.categories[part])

    def __add__(self, other: "Splits") -> "Splits":
        if not self.size or not other.size:
            return self if self.size else other
        if self._sum is None or self._sum[0] is not other:
            columns = np.concatenate([self.columns, other.columns], axis=1)
            self._sum = other, Splits(columns, np.concatenate([self.categories, other.categories]))
        return self._sum[1]


NO_SPLITS = Splits.of(())


class LeafValues(_Columns):
    """Node numbers of a tree's leaves, int64 [leaves], and their values, float64 [leaves]."""

    __slots__ = ("node", "value")

    def __init__(self, node: Int64, value: Float64) -> None:
        self.node, self.value = node, value

    @classmethod
    def of(cls, values: "LeafValues | Iterable[tuple[int, float]]") -> "LeafValues":
        if isinstance(values, LeafValues):
            return values
        node, value = np.array([*values], np.float64).reshape(-1, 2).T
        return cls(node.astype(np.int64), value.copy())

    @property
    def packed(self) -> bytes:
        """All leaves as bytes: the node, then its value, eight bytes each, most significant first."""
        leaves = np.empty(self.node.size, [("node", ">i8"), ("value", ">f8")])
        leaves["node"], leaves["value"] = self.node, self.value
        return leaves.tobytes()

    def __len__(self) -> int:
        return self.node.size

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.node.tolist(), self.value.tolist(), strict=True)


NO_VALUES = LeafValues.of(())


class Tree:
    """A decision tree as immutable arrays that have an entry for each node. While the trees of a round grow,
    one object holds them all, with the roots first. The columns have XGBoost's names, except `value`.

    nodes: `NODE` [nodes]; categories: uint8 [nodes, 32], as in `Splits`. If no node has categories, all
    entries are one zero byte in memory. A node with categories has threshold 0."""

    def __init__(self, nodes: Nodes, categories: Bytes | None = None) -> None:
        """Wrap both arrays, which become read-only. categories: None or empty if no node has categories."""
        if categories is None or not categories.any():
            categories = np.ndarray((len(nodes), BITMAP_BYTES), np.uint8, bytes(1), 0, (0, 0))
        nodes.setflags(write=False)
        categories.setflags(write=False)
        self.nodes, self.categories = nodes, categories
        self.left: Int64 = nodes["left"]
        self.feature: Int64 = nodes["feature"]
        self.threshold: Float64 = nodes["threshold"]
        self.missing_left: Flags = nodes["missing_left"]
        self.value: Float64 = nodes["value"]
        self.gain: Float64 = nodes["gain"]
        self.cover: Float64 = nodes["cover"]
        self.inner: Flags = nodes["left"] != NO_CHILD
        """Whether each node is split."""

    @classmethod
    def leaf(cls, value: float = 0.0) -> "Tree":
        """Return a tree that consists of one leaf, with cover 0."""
        return cls(*new_leaves(1)).changed(value=value)

    @classmethod
    def of_columns(cls, left: Column, categories: Sequence[int] = (), **columns: Column) -> "Tree":
        """Build a tree from the numbers of each column, as in `to_columns`. Columns that are left out are 0.
        Raises ValueError, TypeError or OverflowError if the columns do not form a table of numbers."""
        if {len(column) for column in (*columns.values(), categories or left)} - {len(left)}:
            raise ValueError("the columns of a tree have different lengths")
        nodes = np.zeros(len(left), NODE)
        for name, column in {"left": left, **columns}.items():
            nodes[name] = column
        return cls(nodes, _bitmaps(categories))

    def to_columns(self) -> dict[str, list[Any]]:
        """Return the columns as lists of Python numbers. categories: as in `Split`."""
        columns = {name: self.nodes[name].tolist() for name in NODE.names or ()}
        return {**columns, "categories": _numbers(self.categories)}

    def changed(self, categories: Bytes | None = None, **columns: npt.ArrayLike) -> "Tree":
        """Return a copy in which these columns have other values. A scalar applies to all nodes."""
        nodes = self.nodes.copy()
        for name, column in columns.items():
            nodes[name] = column
        return Tree(nodes, self.categories if categories is None else categories)

    def __len__(self) -> int:
        return len(self.nodes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree) or self.nodes.tobytes() != other.nodes.tobytes():
            return False
        return self.categories.tobytes() == other.categories.tobytes()

    def __repr__(self) -> str:
        return f"Tree.of_columns(**{self.to_columns()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Tree, (self.nodes, self.categories)

    @property
    def leaves(self) -> Int64:
        """Node numbers of the leaves, int64 [leaves]."""
        return np.flatnonzero(~self.inner)

    @property
    def leaf_values(self) -> LeafValues:
        return LeafValues(self.leaves, self.value[self.leaves])

    @property
    def parents(self) -> Int64:
        """Node number of each node's parent, int64 [nodes]; NO_CHILD for roots."""
        parents, inner = np.full(len(self), NO_CHILD, np.int64), np.flatnonzero(self.inner)
        parents[self.left[inner]] = parents[self.left[inner] + 1] = inner
        return parents

    @cached_property
    def by_category(self) -> Flags:
        """bool [nodes]: whether the node is split by categories."""
        by_category: Flags = self.categories.max(axis=1) > 0
        return by_category

    def levels(self, node: int) -> list[int]:
        """Return the categories whose rows go right at a node, in increasing order."""
        right: list[int] = np.flatnonzero(np.unpackbits(self.categories[node], bitorder="little")).tolist()
        return right

    def parts(self, roots: int) -> "list[Tree]":
        """Return the tree of each root separately. Nodes keep their order and are numbered from 0."""
        if roots == 1:
            return [self]
        root, number, parts = np.maximum(self.parents, 0), np.zeros(len(self), np.int64), []
        root[:roots] = np.arange(roots)
        while (root >= roots).any():
            root = root[root]  # each pass doubles the number of generations up to the node in `root`
        for own in (np.flatnonzero(root == each) for each in range(roots)):
            number[own], nodes = np.arange(own.size), self.nodes[own]
            nodes["left"] = np.where(self.inner[own], number[self.left[own]], NO_CHILD)
            parts.append(Tree(nodes, self.categories[own]))
        return parts

    def regions(self) -> dict[frozenset[Any], int]:
        """Return a dict: rows that reach a leaf -> the leaf. The rows are described by each feature that the
        path uses: its limits, a bitmap of its categories, and whether it may be missing."""
        limits: list[dict[int, tuple[float, float, int, bool]]] = [{} for _ in self.nodes]
        nodes = zip(self.nodes.tolist(), _numbers(self.categories), strict=True)
        for node, ((left, feature, threshold, missing_left, *_), right) in enumerate(nodes):
            if left == NO_CHILD:
                continue
            low, high, categories, missing = limits[node].get(feature, (-math.inf, math.inf, -1, True))
            sides = [(low, threshold, categories), (threshold, high, categories)]
            if right:
                sides = [(low, high, categories & ~right), (low, high, categories & right)]
            for side, own in enumerate(sides):  # parents come before their children
                may_lack = missing and missing_left == (side == 0)
                limits[left + side] = {**limits[node], feature: (*own, may_lack)}
        return {frozenset(limits[leaf].items()): leaf for leaf in self.leaves.tolist()}


def new_leaves(size: int) -> tuple[Nodes, Bytes]:
    """Return the arrays of a `Tree`, writable, whose nodes are all leaves with value 0."""
    nodes = np.zeros(size, NODE)
    nodes["left"] = NO_CHILD
    return nodes, np.zeros((size, BITMAP_BYTES), np.uint8)


def all_nodes(trees: Iterable[Tree]) -> Nodes:
    """Return the nodes of all trees, one tree after another."""
    return np.concatenate([np.zeros(0, NODE), *(tree.nodes for tree in trees)])


def inner_nodes(trees: Iterable[Tree]) -> Nodes:
    """Return all nodes that are split, one tree after another."""
    return np.concatenate([np.zeros(0, NODE), *(tree.nodes[tree.inner] for tree in trees)])


def merged(trees: Iterable[Tree], roots: int) -> list[Tree]:
    """Join trees whose leaves divide the rows alike. The joined tree has the shape and the covers of the last
    of them, and the sums of their leaf values, rounded to float32. trees: `roots` trees for each round."""
    every, alike = [(tree, tree.regions()) for tree in trees], dict[frozenset[Any], list[int]]()
    for first in range(0, len(every), roots):
        alike.setdefault(frozenset(every[first][1]), []).append(first)
    return [
        _sum_of([every[first + root] for first in own]) for own in alike.values() for root in range(roots)
    ]


def _sum_of(trees: list[tuple[Tree, dict[frozenset[Any], int]]]) -> Tree:
    tree, regions = trees[-1]
    value, gain, cover = [0.0] * len(tree), [0.0] * len(tree), tree.cover.tolist()
    for rows, leaf in regions.items():
        value[leaf] = float(np.float32(math.fsum(each.value[own[rows]] for each, own in trees)))
    for node, left in reversed([*enumerate(tree.left.tolist())]):
        if left != NO_CHILD and (both := math.fsum(cover[left : left + 2])) > 0.0:
            share, difference = cover[left + 1] / both, value[left + 1] - value[left]
            value[node] = value[left] + share * difference
            gain[node] = float(np.float32(both * share * (1.0 - share) * difference**2))
    return tree.changed(value=value, gain=gain)


# ---- Trees as the JSON of XGBoost's model file, and back ------------------------------------------------


_NO_PARENT = 2147483647
_BEYOND_FLOAT32 = 1e39
"""Stands for infinity, which JSON cannot represent. It becomes infinite as a float32."""


def tree_to_json(number: int, tree: Tree, features: int) -> dict[str, Any]:
    nodes, parents = np.flatnonzero(tree.by_category), tree.parents
    levels = np.unpackbits(tree.categories[nodes], axis=1, bitorder="little")
    sizes = levels.sum(axis=1, dtype=np.int64)
    return {
        "base_weights": _shortest(tree.value),
        "categories": levels.nonzero()[1].tolist(),
        "categories_nodes": nodes.tolist(),
        "categories_segments": (sizes.cumsum() - sizes).tolist(),
        "categories_sizes": sizes.tolist(),
        "default_left": tree.missing_left.astype(np.int64).tolist(),
        "id": number,
        "left_children": tree.left.tolist(),
        "loss_changes": _shortest(tree.gain),
        "parents": np.where(parents == NO_CHILD, _NO_PARENT, parents).tolist(),
        "right_children": (tree.left + tree.inner).tolist(),
        "split_conditions": _shortest(np.where(tree.inner, tree.threshold, tree.value)),
        "split_indices": tree.feature.tolist(),
        "split_type": tree.by_category.astype(np.int64).tolist(),
        "sum_hessian": _shortest(tree.cover),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(features),
            "num_nodes": str(len(tree)),
            "size_leaf_vector": "1",
        },
    }


def _shortest(values: Float64) -> list[float]:
    """Return the shortest decimals that read back as the same float32: half the space in JSON."""
    return [float(str(v)) if math.isfinite(v) else _BEYOND_FLOAT32 for v in values.astype(np.float32)]


def tree_from_json(tree: Mapping[str, Any]) -> Tree:
    left, right = (np.array(tree[f"{side}_children"], np.int64) for side in ("left", "right"))
    inner = left != NO_CHILD
    if not np.array_equal(right, left + inner):
        raise ValueError("a right child does not follow its left sibling")
    names = "split_conditions", "base_weights", "loss_changes", "sum_hessian"
    numbers = (np.array(tree[name], np.float32) for name in names)
    columns: dict[str, Any] = dict(zip(("threshold", "value", "gain", "cover"), numbers, strict=True))
    columns |= {"feature": tree["split_indices"], "missing_left": tree["default_left"]}
    read = Tree.of_columns(left, _categories_from_json(tree, len(left)), **columns)
    value = np.where(inner, read.value, read.threshold)
    return read.changed(value=value, threshold=np.where(inner, read.threshold, 0.0))


def _categories_from_json(tree: Mapping[str, Any], size: int) -> list[int]:
    if any(not 0 <= category < MAX_CATEGORIES for category in tree["categories"]):
        raise ValueError(f"a split uses a level beyond the {MAX_CATEGORIES} that a feature can have")
    out = [0] * size if tree["categories_nodes"] else []
    columns = (tree[f"categories_{name}"] for name in ("nodes", "segments", "sizes"))
    for node, begin, length in zip(*columns, strict=True):
        out[node] = sum(1 << int(category) for category in {*tree["categories"][begin : begin + length]})
    return out
