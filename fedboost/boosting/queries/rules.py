"""Checks of trees, nodes and scales for several queries. They raise Refused."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64, Scale
from fedboost.gbdt.kernels import level
from fedboost.gbdt.tree import Splits
from fedboost.terms.terms import Terms

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
