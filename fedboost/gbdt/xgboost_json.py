"""Trees to the JSON of XGBoost's model file and back."""

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.gbdt.tree import NO_CHILD, Tree

_NO_PARENT = 2147483647
_BEYOND_FLOAT32 = 1e39
"""Stands for infinity, which JSON lacks: as a float32 it is infinite."""


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
    """The float64 of the shortest decimal that names the same float32: as exact, and half as long in JSON."""
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
        raise ValueError(f"a level beyond the {MAX_CATEGORIES} a feature can have")
    out = [0] * size
    columns = (tree[f"categories_{name}"] for name in ("nodes", "segments", "sizes"))
    for node, begin, length in zip(*columns, strict=True):
        out[node] = sum(1 << int(category) for category in {*tree["categories"][begin : begin + length]})
    return out
