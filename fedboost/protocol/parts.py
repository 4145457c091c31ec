"""The parts of a model that parties keep, where nobody is to have the whole (`Terms.keeps_parts`).

A part is the model as its party was told it: its own splits whole, those of others by the number of their
holder, which stands behind those of all features; leaf values at the label holder alone, which is also given
the gains, covers and values of inner nodes, all of which follow from gradients that it knows.

Promises: each party signs a hash of its part, which tells nothing of it without the part's salt.
Refuses: numbers of nodes that are not as many as the trees have, or not finite; leaf values and a base score
other than those that were told (PeerError).
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import numpy as np

from fedboost.errors import ConfigError, PeerError, quoted
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.tree import NO_CHILD, Tree
from fedboost.privacy import packing
from fedboost.terms.terms import Terms

UNTOLD_SCORE = 0.5
"""Base score of a model without leaf values, with which nobody predicts: XGBoost's default."""
_FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True)
class Part:
    """The part of a party. session: its name; booster: with feature numbers of holders behind those of all
    features; salt: 32 bytes that nobody else knows."""

    party: str
    session: str
    terms: Terms
    booster: Booster = field(repr=False)
    salt: bytes = field(repr=False)

    @property
    def digest(self) -> bytes:
        """The hash that its party signs: 32 bytes."""
        return digest_of(self.booster, self.salt)


def digest_of(booster: Booster, salt: bytes) -> bytes:
    """The hash of a part: 32 bytes."""
    return hashlib.sha256(packing.pack(salt, bytes.fromhex(booster.fingerprint))).digest()


def model_id(session: str, terms: Terms, structure: bytes) -> str:
    """The name of a model that parties have parts of, in hex. structure: of what all of them were told."""
    content = packing.pack(session.encode(), terms.digest.encode(), structure)
    return hashlib.sha256(b"fedboost/1/model" + content).hexdigest()


def numbers_for(terms: Terms, booster: Booster) -> dict[str, bytes]:
    """The numbers that the label holder is given, by its name, where parties keep parts of this model:
    float32, little-endian: the base score, then of each tree the gain, cover and value of its nodes."""
    holder = terms.vertical.label_holder
    if not terms.keeps_parts or holder is None:
        return {}
    columns = [column for tree in booster.trees for column in (tree.gain, tree.cover, tree.value)]
    numbers = booster.base_score, *(number for column in columns for number in column)
    return {holder: np.array(numbers, _FLOAT32).tobytes()}


def part_of(
    session: str,
    terms: Terms,
    party: str,
    trees: Iterable[Tree],
    numbers: bytes,
    salt: bytes,
    constant: Sequence[float] = (),
) -> Part:
    """The part of a party, from the trees as it was told them. numbers: `numbers_for` it, at the label
    holder; constant: the values of each root that boosting started from, as it was told them."""
    loss, columns = terms.objective.loss, terms.columns
    first = [Tree() for _ in range(terms.constant_rounds * len(terms.roots))]
    for leaf in first:
        leaf.add_leaf(0.0, 0.0)
    score, told = UNTOLD_SCORE, (*first, *trees)
    if terms.blocks.has_labels(party):
        score, told = _with_numbers(told, numbers, len(first))
        _check_constant(terms, score, [tree.value[0] for tree in told[: len(first)]], constant)
    elif numbers:
        raise PeerError("told of gains and leaf values without labels")
    shape = terms.trees.num_parallel_tree, tuple(columns.categorical)
    booster = Booster(loss, score, columns.features, told, *shape)
    return Part(party, session, terms, booster, salt)


def _with_numbers(trees: tuple[Tree, ...], numbers: bytes, constant: int) -> tuple[float, tuple[Tree, ...]]:
    """The base score, and the trees with these numbers. constant: trees at the beginning whose leaves were
    not told before."""
    sizes = [len(tree.left) for tree in trees]
    if len(numbers) != _FLOAT32.itemsize * (1 + 3 * sum(sizes)):
        raise PeerError(f"{len(numbers)} bytes of gains and values, where the trees have {sum(sizes)} nodes")
    told = np.frombuffer(numbers, _FLOAT32).astype(np.float64)
    if not np.isfinite(told).all():
        raise PeerError("told of a gain, a cover or a value that is no finite number")
    score, *columns = np.split(told, np.cumsum([1, *(size for size in sizes for _ in range(3))])[:-1])
    complete = []
    for number, tree in enumerate(trees):
        gain, cover, value = (column.tolist() for column in columns[3 * number : 3 * number + 3])
        if number >= constant and any(value[leaf] != tree.value[leaf] for leaf in tree.leaves):
            raise PeerError(f"told of other leaf values of tree {number} at the end than before")
        complete.append(replace(tree, gain=gain, cover=cover, value=value))
    return float(score[0]), tuple(complete)


def _check_constant(terms: Terms, score: float, first: Sequence[float], constant: Sequence[float]) -> None:
    """PeerError for a base score, or leaves of the constant, that are not the constant that was told."""
    loss = terms.objective.loss
    try:
        margin = loss.margin(score)
    except ConfigError:
        raise PeerError(f"told of base score {score}, which {loss.name} cannot have") from None
    due, told = [*constant[: len(first) or 1]], [*(first or (margin,))]
    if (first and margin) or np.array(told, _FLOAT32).tolist() != np.array(due, _FLOAT32).tolist():
        raise PeerError("told of another base score at the end than before")


# ---- Thresholds of a model, where the owner of a column alone knows its cut points ----------------------
# The trees that the aggregator grows have numbers of bins in the place of thresholds: that above bin b is b
# + 1. With its signature each party gives the thresholds of the splits by its own numeric columns, and with
# them the trees are those of a table with all columns. A split that parts missing values from all others
# has the threshold infinity, which needs nobody to give it.
# Promises: equal bins have equal thresholds, and higher bins higher ones; a party changes no other
# threshold.
# Refuses: thresholds that are not as many as the splits, not finite or in another order than the bins
# (PeerError).


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
