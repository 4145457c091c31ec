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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Float64, Int64, Scale
from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.gbdt.histogram import Layout, Total
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
    [("left", np.int64), ("feature", np.int64), ("missing_left", np.bool_)]
    + [(name, np.float64) for name in ("threshold", "value", "gain", "cover")]
)
"""Record of a node of a growing tree. It has the fields of `Tree`, except categories."""
SPLIT_COLUMNS = 5
BITMAP_BYTES = MAX_CODES // 8


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
        bitmaps = b"".join(s.categories.to_bytes(BITMAP_BYTES, "little") for s in listed)
        columns = np.array(rows, np.int32).reshape(-1, SPLIT_COLUMNS).T.copy()
        return cls(columns, np.frombuffer(bitmaps, np.uint8).reshape(-1, BITMAP_BYTES))

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


def _numbers(bitmaps: Bytes) -> list[int]:
    """Convert the bits of each bitmap, lowest first, to an integer."""
    # numpy strips the trailing zero bytes of strings.
    strings = np.ascontiguousarray(bitmaps).view(f"S{BITMAP_BYTES}").ravel().tolist()
    return [int.from_bytes(string, "little") if string else 0 for string in strings]


@dataclass
class Tree:
    """A decision tree as columns that have an entry for each node. While the trees of a round grow, one
    object holds them all, with the roots first. The columns have XGBoost's names, except `value`.

    value: float32 leaf values, after the learning rate (an inner node has the value that a leaf there would
    have); threshold: float32, rows with x < threshold go left; cover: sum of hessians; gain: 0 at leaves;
    categories: as in `Split`, 0 at all nodes by default. A node with categories has threshold 0."""

    left: list[int] = field(default_factory=list)
    feature: list[int] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    missing_left: list[bool] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    cover: list[float] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.categories = self.categories or [0] * len(self.left)

    @classmethod
    def of(cls, nodes: npt.NDArray[np.void], bitmaps: Bytes) -> "Tree":
        """Build a tree from node records (`NODE`). bitmaps: categories of each node (`Splits`), or empty."""
        columns = {name: nodes[name].tolist() for name in NODE.names or ()}
        return cls(**columns, categories=_numbers(bitmaps))

    def add_leaf(self, value: float, cover: float) -> int:
        self.left.append(NO_CHILD)
        self.feature.append(0)
        self.threshold.append(0.0)
        self.missing_left.append(False)
        self.value.append(value)
        self.gain.append(0.0)
        self.cover.append(float(np.float32(cover)))
        self.categories.append(0)
        return len(self.left) - 1

    @property
    def leaves(self) -> list[int]:
        return [node for node, left in enumerate(self.left) if left == NO_CHILD]

    @property
    def leaf_values(self) -> LeafValues:
        leaves = np.flatnonzero(np.array(self.left) == NO_CHILD)
        return LeafValues(leaves, np.array(self.value, np.float64)[leaves])

    def parts(self, roots: int) -> "list[Tree]":
        """Return the tree of each root separately. Nodes keep their order and are numbered from 0."""
        if roots == 1:
            return [self]
        root_of = list(range(roots)) + [0] * (len(self.left) - roots)
        for node, left in enumerate(self.left):  # parents come before their children
            if left != NO_CHILD:
                root_of[left] = root_of[left + 1] = root_of[node]
        nodes: list[list[int]] = [[] for _ in range(roots)]
        number = []
        for node, root in enumerate(root_of):
            number.append(len(nodes[root]))
            nodes[root].append(node)
        return [self._only(root_nodes, number) for root_nodes in nodes]

    def _only(self, nodes: list[int], number: list[int]) -> "Tree":
        columns = {name: [column[node] for node in nodes] for name, column in vars(self).items()}
        columns["left"] = [left if left == NO_CHILD else number[left] for left in columns["left"]]
        return Tree(**columns)

    def regions(self) -> dict[frozenset[Any], int]:
        """Return a dict: rows that reach a leaf -> the leaf. The rows are described by each feature that the
        path uses: its limits, a bitmap of its categories, and whether it may be missing."""
        limits: list[dict[int, tuple[float, float, int, bool]]] = [{} for _ in self.left]
        for node, left in enumerate(self.left):  # parents come before their children
            if left == NO_CHILD:
                continue
            feature, right = self.feature[node], self.categories[node]
            low, high, categories, missing = limits[node].get(feature, (-math.inf, math.inf, -1, True))
            sides = [(low, self.threshold[node], categories), (self.threshold[node], high, categories)]
            if right:
                sides = [(low, high, categories & ~right), (low, high, categories & right)]
            for side, own in enumerate(sides):
                may_lack = missing and self.missing_left[node] == (side == 0)
                limits[left + side] = {**limits[node], feature: (*own, may_lack)}
        return {frozenset(limits[leaf].items()): leaf for leaf in self.leaves}


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
    value, gain, cover = [0.0] * len(tree.left), [0.0] * len(tree.left), tree.cover
    for rows, leaf in regions.items():
        value[leaf] = float(np.float32(math.fsum(each.value[own[rows]] for each, own in trees)))
    for node in reversed(range(len(tree.left))):
        left = tree.left[node]
        if left != NO_CHILD and (both := math.fsum(cover[left : left + 2])) > 0.0:
            share, difference = cover[left + 1] / both, value[left + 1] - value[left]
            value[node] = value[left] + share * difference
            gain[node] = float(np.float32(both * share * (1.0 - share) * difference**2))
    return dataclasses.replace(tree, value=value, gain=gain)


# ---- Trees as the JSON of XGBoost's model file, and back ------------------------------------------------


_NO_PARENT = 2147483647
_BEYOND_FLOAT32 = 1e39
"""Stands for infinity, which JSON cannot represent. It becomes infinite as a float32."""


def tree_to_json(number: int, tree: Tree, features: int) -> dict[str, Any]:
    size = len(tree.left)
    parents = [_NO_PARENT] * size
    for node, left in enumerate(tree.left):
        if left != NO_CHILD:
            parents[left] = parents[left + 1] = node
    inner = [left != NO_CHILD for left in tree.left]
    sets = {node: _members(c) for node, c in enumerate(tree.categories) if c}
    sizes = [len(members) for members in sets.values()]
    return {
        "base_weights": [_shortest(v) for v in tree.value],
        "categories": [category for members in sets.values() for category in members],
        "categories_nodes": [*sets],
        "categories_segments": [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)],
        "categories_sizes": sizes,
        "default_left": [int(left) for left in tree.missing_left],
        "id": number,
        "left_children": tree.left,
        "loss_changes": [_shortest(v) for v in tree.gain],
        "parents": parents,
        "right_children": [left + 1 if left != NO_CHILD else NO_CHILD for left in tree.left],
        "split_conditions": [
            _shortest(t if is_inner else v)
            for t, v, is_inner in zip(tree.threshold, tree.value, inner, strict=True)
        ],
        "split_indices": tree.feature,
        "split_type": [int(c > 0) for c in tree.categories],
        "sum_hessian": [_shortest(v) for v in tree.cover],
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(features),
            "num_nodes": str(size),
            "size_leaf_vector": "1",
        },
    }


def _shortest(value: float) -> float:
    """Return the shortest decimal that reads back as the same float32: half the space in JSON."""
    return float(str(np.float32(value))) if math.isfinite(value) else _BEYOND_FLOAT32


def tree_from_json(tree: Mapping[str, Any]) -> Tree:
    left = [int(v) for v in tree["left_children"]]
    right = [int(v) for v in tree["right_children"]]
    if right != [child + 1 if child != NO_CHILD else NO_CHILD for child in left]:
        raise ValueError("a right child does not follow its left sibling")
    conditions = [float(np.float32(v)) for v in tree["split_conditions"]]
    inner = [child != NO_CHILD for child in left]
    return Tree(
        left=left,
        feature=[int(v) for v in tree["split_indices"]],
        threshold=[c if is_inner else 0.0 for c, is_inner in zip(conditions, inner, strict=True)],
        missing_left=[bool(v) for v in tree["default_left"]],
        value=[
            float(np.float32(weight)) if is_inner else c
            for weight, c, is_inner in zip(tree["base_weights"], conditions, inner, strict=True)
        ],
        gain=[float(np.float32(v)) for v in tree["loss_changes"]],
        cover=[float(np.float32(v)) for v in tree["sum_hessian"]],
        categories=_categories_from_json(tree, len(left)),
    )


def _members(categories: int) -> list[int]:
    return [category for category in range(categories.bit_length()) if categories >> category & 1]


def _categories_from_json(tree: Mapping[str, Any], size: int) -> list[int]:
    if any(not 0 <= category < MAX_CATEGORIES for category in tree["categories"]):
        raise ValueError(f"a split uses a level beyond the {MAX_CATEGORIES} that a feature can have")
    out = [0] * size
    columns = (tree[f"categories_{name}"] for name in ("nodes", "segments", "sizes"))
    for node, begin, length in zip(*columns, strict=True):
        out[node] = sum(1 << int(category) for category in {*tree["categories"][begin : begin + length]})
    return out
