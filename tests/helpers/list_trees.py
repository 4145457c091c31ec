"""Trees as lists that grow and change node by node, for tests. fedboost's own trees are arrays."""

from dataclasses import dataclass, field

import numpy as np

from fedboost.gbdt.tree import NO_CHILD, Tree


@dataclass
class ListTree:
    """The columns of a `Tree` as lists."""

    left: list[int] = field(default_factory=list)
    feature: list[int] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    missing_left: list[bool] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    cover: list[float] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)

    def add_leaf(self, value, cover):
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
    def leaves(self):
        return [node for node, left in enumerate(self.left) if left == NO_CHILD]

    @property
    def tree(self):
        return Tree.of_columns(**vars(self))


def changed_tree(tree, change):
    """A copy of a tree, after `change` was called with its `ListTree`."""
    lists = ListTree(**tree.to_columns())
    change(lists)
    return lists.tree
