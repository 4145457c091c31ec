"""What a model predicts with, as one hash: what parties sign.

Promises: parties can compute it from the queries; gains and covers, which change no prediction, are not in
it.
Refuses: nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedboost.fixedpoint import Float32, Float64
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.target_means import LevelMeans
from fedboost.gbdt.tree import Splits, Tree
from fedboost.privacy import fields

Values = tuple[tuple[int, float], ...]


def structure(
    constant: float,
    trees: Iterable[Tree],
    means: Iterable[LevelMeans] = (),
    edges: Iterable[Sequence[float] | Float64] = (),
) -> bytes:
    """Hash of the parts of a model that predict: the constant margin, each tree's decisions and leaf values,
    and the means of levels; and of the edges of the bins of each numeric feature, where it has a reference.

    Parties can compute it from the queries; gains and covers, which change no prediction, are not in it."""
    parts = [np.float64(constant).tobytes()]
    for tree in trees:
        left = np.array(tree.left, np.int32)
        inner = left >= 0
        parts += [
            left.tobytes(),
            np.where(inner, np.array(tree.feature, np.int32), 0).astype(np.int32).tobytes(),
            np.where(inner, np.array(tree.missing_left, np.bool_), False).tobytes(),
            np.where(inner, np.array(tree.threshold, np.float32), 0).astype(np.float32).tobytes(),
            np.where(inner, 0, np.array(tree.value, np.float64)).astype(np.float64).tobytes(),
            b"".join(
                fields.number(node) + c.to_bytes(MAX_CODES // 8, "little")
                for node, c in enumerate(tree.categories)
                if c
            ),
        ]
    parts += [each.packed for each in means]
    parts += [np.array(each, np.float64).tobytes() for each in edges]
    return hashlib.sha256(fields.pack(*parts)).digest()


NO_CUTS = np.zeros(0, np.float32)
"""Cut points of a feature of another party, which are not known."""


def trees_of(
    rounds: Iterable[tuple[Splits, Values]], cuts: tuple[Float32, ...], roots: int
) -> Iterator[Tree]:
    """The trees of finished rounds, by these cut points of each feature: of a round one for each root."""
    for splits, values in rounds:
        yield from tree_of(splits, values, cuts, roots).parts(roots)


def tree_of(splits: Splits, values: Values, cuts: tuple[Float32, ...], roots: int) -> Tree:
    """The tree of these splits and values; without gains, covers and values of inner nodes."""
    tree = Tree()
    for _ in range(roots):
        tree.add_leaf(0.0, 0.0)
    for split in splits:
        while len(tree.left) < split.left + 2:
            tree.add_leaf(0.0, 0.0)
        tree.decide(split, cuts[split.feature] if split.feature < len(cuts) else NO_CUTS)
    for node, value in values:
        tree.value[node] = value
    return tree
