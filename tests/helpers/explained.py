"""Models to explain, and trees of given nodes."""

import numpy as np
from kernel_cases import random_tree
from list_trees import ListTree

from fedboost.gbdt.booster import Booster
from fedboost.gbdt.objectives.built_in import SquaredError
from fedboost.gbdt.tree import NO_CHILD
from tests.gbdt.reference import shap

VALUES = np.array([-2, -1, -0.0, 0, 0.1, 0.25, 1, 3, 63, 200, 256, np.nan], np.float32)


def tree_of(nodes, covers):
    left, _, feature, threshold, missing_left, value = map(list, zip(*nodes, strict=True))
    gain = [0.0 if child == NO_CHILD else 1.5 for child in left]
    sets = [sum(1 << level for level in one) if isinstance(one, set) else 0 for one in threshold]
    threshold = [0.0 if isinstance(one, set) else one for one in threshold]
    return ListTree(left, feature, threshold, missing_left, value, gain, list(covers), sets).tree


def booster_of(trees, features=4):
    return Booster(SquaredError(), 0.0, tuple(f"f{i}" for i in range(features)), tuple(trees))


def drawn(rng, features, depth):
    """A tree whose covers fit nothing, some of them 0, and whose splits return to features; and its nodes."""
    nodes = random_tree(rng, features, depth, by_level=0.3)
    covers = np.where(rng.random(len(nodes)) < 0.2, 0.0, rng.exponential(size=len(nodes)))
    covers = covers.astype(np.float32).tolist()
    return tree_of(nodes, covers), [(*node, cover) for node, cover in zip(nodes, covers, strict=True)]


def chain(depth, features):
    """A tree whose left children split on and on."""
    tree = ListTree()
    tree.add_leaf(0.0, 2.0 * depth)
    at = 0
    for level in range(depth):
        left = tree.add_leaf(float(np.float32(1 / (level + 1))), 2.0 * depth - level - 1)
        tree.add_leaf(float(np.float32(-0.1 * level)), 1.0)
        tree.left[at], tree.feature[at], tree.threshold[at] = left, level % features, 1.0 - level / 512
        tree.missing_left[at] = level % 2 == 0
        at = left
    return tree.tree


def by_definition(booster, row, holders, parties):
    """What each party contributes to each output of a row, and the bias: over all subsets of the parties,
    from the decisions themselves."""
    out = np.zeros((booster.loss.outputs, parties + 1))
    out[:, -1] = booster.constant
    for number, tree in enumerate(booster.trees):
        test = [{*tree.levels(node)} or threshold for node, threshold in enumerate(tree.threshold)]
        columns = tree.left, tree.left + 1, tree.feature, test, tree.missing_left, tree.value, tree.cover
        values = shap.shapley_values(row, [*zip(*columns, strict=True)], [*holders, parties - 1])
        out[booster.output_of(number)] += np.array(values, np.float64)
    return out if booster.loss.outputs > 1 else out[0]
