"""Thresholds of a model, where the owner of a column alone knows its cut points.

The trees that the aggregator grows have numbers of bins in the place of thresholds: that above bin b is
b + 1. With its signature each party gives the thresholds of the splits by its own numeric columns, and with
them the trees are those of a table with all columns. A split that parts missing values from all others has
the threshold infinity, which needs nobody to give it.

Promises: equal bins have equal thresholds, and higher bins higher ones; a party changes no other threshold.
Refuses: thresholds that are not as many as the splits, not finite or in another order than the bins
(PeerError).
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from math import isfinite

import numpy as np

from fedboost.errors import PeerError, quoted
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.tree import NO_CHILD, Tree
from fedboost.terms.terms import Terms

_FLOAT32 = np.dtype("<f4")


def packed(terms: Terms, party: str, trees: Iterable[Tree]) -> bytes:
    """The finite thresholds of the splits by a party's numeric columns: float32, little-endian, in the order
    of trees and nodes."""
    places = _places(trees, _numeric(terms, party))
    return np.array([tree.threshold[node] for tree, node in places], _FLOAT32).tobytes()


def _places(trees: Iterable[Tree], numeric: Collection[int]) -> list[tuple[Tree, int]]:
    """The tree and node of each split by these features that has a finite threshold."""
    return [
        (tree, node)
        for tree in trees
        for node, left in enumerate(tree.left)
        if left != NO_CHILD and tree.feature[node] in numeric and isfinite(tree.threshold[node])
    ]


def _numeric(terms: Terms, party: str) -> set[int]:
    """The numbers of a party's numeric features."""
    own = {*terms.blocks.columns_of(party).numeric}
    return {number for number, name in enumerate(terms.columns.numeric) if name in own}


class Thresholds:
    """The thresholds that the parties of a session give. booster: the model with numbers of bins in their
    place."""

    def __init__(self, terms: Terms, booster: Booster) -> None:
        self._terms = terms
        self._booster = booster
        self._given: dict[str, list[float]] = {}

    def lacks(self, party: str) -> bool:
        """True if the model needs thresholds that this party has not given: none where parties keep parts."""
        return party not in self._given and bool(self._places(party))

    def take(self, party: str, thresholds: bytes) -> None:
        """Take the thresholds of a party. PeerError for what cannot be those of its splits."""
        places, size = self._places(party), _FLOAT32.itemsize
        if len(thresholds) != size * len(places):
            raise PeerError(f"{len(thresholds)} bytes of thresholds, where {len(places)} splits are its own")
        given = np.frombuffer(thresholds, _FLOAT32)
        if not np.isfinite(given).all():
            raise PeerError("a threshold that is not finite")
        features, bins = (
            np.array([(tree.feature[node], tree.threshold[node]) for tree, node in places], np.int64)
            .reshape(-1, 2)
            .T
        )
        order = np.lexsort((bins, features))
        same = np.diff(features[order]) == 0
        steps = np.sign(np.diff(given[order]))
        wrong = np.flatnonzero(same & (steps != np.sign(np.diff(bins[order]))))
        if wrong.size:
            name = self._terms.columns.features[features[order][wrong[0]]]
            raise PeerError(f"thresholds of column {quoted(name)} in another order than its bins")
        self._given[party] = given.astype(np.float64).tolist()

    def of_model(self) -> Booster:
        """The model with the thresholds that were given."""
        if not self._are_due:
            return self._booster
        trees = [replace(tree, threshold=[*tree.threshold]) for tree in self._booster.trees]
        for party, given in self._given.items():
            for (tree, node), threshold in zip(
                _places(trees, _numeric(self._terms, party)), given, strict=True
            ):
                tree.threshold[node] = threshold
        return replace(self._booster, trees=tuple(trees))

    def _places(self, party: str) -> list[tuple[Tree, int]]:
        """The splits whose thresholds a party gives: the tree and node of each."""
        return _places(self._booster.trees, _numeric(self._terms, party)) if self._are_due else []

    @property
    def _are_due(self) -> bool:
        """True if parties give thresholds: not where they keep parts of the model."""
        return self._terms.hides_columns and not self._terms.keeps_parts
