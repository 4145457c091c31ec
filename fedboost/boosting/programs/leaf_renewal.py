"""Leaf renewal: leaf values that are quantiles of the residuals, by counts over ever finer cells.

Promises: a value depends on sums of weights over cells of float32 keys alone, so it is the same for every
partition of the rows; it is the quantile to one part in 2**15.
Refuses: weights that do not add up (PeerError).
"""

import math
from collections.abc import Generator

import numpy as np

from fedboost.boosting.queries.leaves import RESIDUAL_BITS, RESIDUAL_TURNS, ResidualQuery
from fedboost.boosting.queries.union import Query
from fedboost.errors import PeerError, TreeAborted
from fedboost.fixedpoint import Int64, Scale
from fedboost.gbdt.cut_points import KEY_BITS, keys_to_floats
from fedboost.gbdt.tree import NO_SPLITS, Splits, Tree
from fedboost.terms.terms import Terms


class Narrowing:
    """Search for a quantile of the residuals of each node: in a cell of keys, narrower each turn."""

    def __init__(self, quantile: float, nodes: tuple[int, ...]) -> None:
        self._quantile = quantile
        self._nodes = nodes
        self._starts: Int64 = np.zeros(len(nodes), np.int64)
        self._width = KEY_BITS
        self._below: Int64 = np.zeros(len(nodes), np.int64)
        self._inside: Int64 = np.zeros(0, np.int64)
        self._total: Int64 = np.zeros(0, np.int64)

    def query(self, rows: int, tree: int, splits: Splits, weight: Scale) -> ResidualQuery:
        """The next query."""
        starts = tuple(self._starts.tolist())
        return ResidualQuery(rows, tree, splits, self._nodes, starts, self._width, weight)

    def take(self, sums: Int64) -> None:
        """Take in the answer. PeerError if the weights of the subcells do not sum to that of the cell."""
        cells = sums.reshape(len(self._nodes), -1)
        inside = cells.sum(axis=1)
        if not self._total.size:
            self._total, self._inside = inside, inside.copy()
        if (cells < 0).any() or (inside != self._inside).any():
            raise PeerError("the weights of residuals do not sum to those of the cell they are in")
        until = np.cumsum(cells, axis=1)
        self._width -= RESIDUAL_BITS
        for number, total in enumerate(self._total.tolist()):
            rank = max(math.ceil(self._quantile * total), 1) - int(self._below[number])
            cell = min(int(np.searchsorted(until[number], rank)), cells.shape[1] - 1)
            self._below[number] += until[number, cell] - cells[number, cell]
            self._inside[number] = cells[number, cell]
            self._starts[number] += cell << self._width

    @property
    def values(self) -> list[float]:
        """The number of each cell that is nearest to 0; 0 where no row has a weight."""
        last = self._starts + (1 << self._width) - 1
        keys = np.where(self._starts >> (KEY_BITS - 1), self._starts, last)  # numbers below 0 come first
        numbers: list[float] = np.where(self._total > 0, keys_to_floats(keys), np.float32(0.0)).tolist()
        return numbers

    @property
    def all_alike(self) -> bool:
        """True if all residuals are in the same cell, for each of the nodes."""
        return bool((self._inside == self._total).all())


def refresh(
    terms: Terms, rows: int, number: int, splits: Splits, tree: Tree, weight: Scale
) -> Generator[Query, Int64, Splits]:
    """Renew the leaf values of a grown tree, where the objective needs it. Returns the splits not yet sent to
    any party. A tree that is cut short keeps the values it has."""
    if terms.objective.loss.quantile is None:
        return splits
    leaves = tree.leaves
    narrowing = Narrowing(terms.objective.loss.quantile, tuple(leaves))
    for _ in range(RESIDUAL_TURNS):
        try:
            narrowing.take((yield narrowing.query(rows, number, splits, weight)))
        except TreeAborted:
            return splits
        splits = NO_SPLITS
    for leaf, value in zip(leaves, narrowing.values, strict=True):
        tree.value[leaf] = float(np.float32(value * terms.trees.leaf_rate))
    return splits
