"""Model parts, which the parties keep if no one may have the whole model (`Terms.keeps_parts`).

A part is its party's view of the model. It contains the party's own splits in full. For a split on another
party's column, it contains only a number that identifies the column's holder. These numbers start after the
last feature number. Only the label holder has leaf values. The label holder also receives the gains, covers
and values of inner nodes, all of which can be computed from gradients that it knows.

Guarantees: each party signs a hash of its part. Without the part's salt, the hash reveals nothing.
Raises: PeerError for node numbers that do not match the trees or are not finite, and for leaf values or a
base score that differ from those received before."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from fedboost.errors import ConfigError, PeerError, quoted
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.tree import NO_CHILD, Nodes, Tree, all_nodes
from fedboost.privacy import packing
from fedboost.terms.terms import Terms

UNTOLD_SCORE = 0.5
"""Base score of a part without leaf values: XGBoost's default. Such a part cannot predict."""
_FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True)
class Part:
    """The part of a model that one party keeps.

    session: name of the session that trained the model; booster: the trees in the party's view; salt: 32
    secret bytes that only this party knows."""

    party: str
    session: str
    terms: Terms
    booster: Booster = field(repr=False)
    salt: bytes = field(repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 hash of the part, 32 bytes, which the party signs."""
        return digest_of(self.booster, self.salt)


def digest_of(booster: Booster, salt: bytes) -> bytes:
    """Return the SHA-256 hash of a model part, 32 bytes. The salt prevents others from guessing the part."""
    return hashlib.sha256(packing.pack(salt, bytes.fromhex(booster.fingerprint))).digest()


def model_id(session: str, terms: Terms, structure: bytes) -> str:
    """Return the id, in hex, of a model that is kept in parts. structure: hash of its public view."""
    content = packing.pack(session.encode(), terms.digest.encode(), structure)
    return hashlib.sha256(b"fedboost/1/model" + content).hexdigest()


def numbers_for(terms: Terms, booster: Booster) -> dict[str, bytes]:
    """Return the node values that the label holder receives if parties keep model parts, as a dict: label
    holder -> values. The values are little-endian float32: the base score, then the gains, covers and values
    of each tree's nodes. The dict is empty if parties do not keep parts."""
    holder = terms.vertical.label_holder
    if not terms.keeps_parts or holder is None:
        return {}
    columns = [column for tree in booster.trees for column in (tree.gain, tree.cover, tree.value)]
    return {holder: np.concatenate([[booster.base_score], *columns]).astype(_FLOAT32).tobytes()}


def part_of(
    session: str,
    terms: Terms,
    party: str,
    trees: Iterable[Tree],
    numbers: bytes,
    salt: bytes,
    constant: Sequence[float] = (),
    earlier: Booster | None = None,
) -> Part:
    """Build the part of a model that a party keeps.

    Args:
        session: name of the session that trained the model.
        trees: the trees in this party's view.
        numbers: output of `numbers_for` at the label holder, empty at other parties.
        salt: 32 secret bytes that only this party knows.
        constant: leaf value of the initial constant for each root, as received at the start.
        earlier: the party's part of the model that is continued.

    Raises PeerError if `numbers` contradicts the values received before."""
    loss, columns = terms.objective.loss, terms.columns
    leaves = (Tree.leaf(),) * (terms.constant_rounds * len(terms.roots))
    first = leaves if earlier is None else earlier.trees
    score, told = UNTOLD_SCORE, (*first, *trees)
    if terms.blocks.has_labels(party):
        score, told = _with_numbers(told, numbers, len(first))
        if earlier is None:
            _check_constant(terms, score, [float(tree.value[0]) for tree in told[: len(first)]], constant)
        elif any(constant):
            raise PeerError("part-score", "a constant was added to the model that is continued")
    elif numbers:
        raise PeerError(
            "part-unexpected", "the aggregator sent gains and leaf values to a party without labels"
        )
    if earlier is not None:
        score, told = earlier.base_score, (*earlier.trees, *told[len(first) :])
    shape = terms.trees.num_parallel_tree, tuple(columns.categorical)
    booster = Booster(loss, score, columns.features, told, *shape)
    return Part(party, session, terms, booster, salt)


def _with_numbers(trees: tuple[Tree, ...], numbers: bytes, constant: int) -> tuple[float, tuple[Tree, ...]]:
    """Return the base score, and the trees with the node values in `numbers`. constant: number of leading
    trees whose leaf values were not received before."""
    sizes = [*map(len, trees)]
    if len(numbers) != _FLOAT32.itemsize * (1 + 3 * sum(sizes)):
        raise PeerError(
            "part-length", f"the aggregator sent {len(numbers)} bytes of values for {sum(sizes)} nodes"
        )
    told = np.frombuffer(numbers, _FLOAT32).astype(np.float64)
    if not np.isfinite(told).all():
        raise PeerError(
            "part-number-not-finite", "the aggregator sent a gain, cover or value that is not finite"
        )
    score, *columns = np.split(told, np.cumsum([1, *(size for size in sizes for _ in range(3))])[:-1])
    complete = []
    for number, tree in enumerate(trees):
        gain, cover, value = columns[3 * number : 3 * number + 3]
        if number >= constant and (value != tree.value)[tree.leaves].any():
            raise PeerError("part-leaves", f"the leaf values of tree {number} are not those sent before")
        if cover.min() < 0:
            raise PeerError("part-cover", f"the aggregator sent a negative cover for a node of tree {number}")
        complete.append(tree.changed(gain=gain, cover=cover, value=value))
    return float(score[0]), tuple(complete)


def _check_constant(terms: Terms, score: float, first: Sequence[float], constant: Sequence[float]) -> None:
    """Raise PeerError if the base score or the constant's leaf values differ from those received before."""
    loss = terms.objective.loss
    try:
        margin = loss.margin(score)
    except ConfigError:
        raise PeerError("part-score", f"base score {score} is not possible for {loss.name}") from None
    due, told = [*constant[: len(first) or 1]], [*(first or (margin,))]
    if (first and margin) or np.array(told, _FLOAT32).tolist() != np.array(due, _FLOAT32).tolist():
        raise PeerError("part-score", "the base score differs from the base score sent at the start")


# ---- Thresholds of a model, where only the owner of a column knows its cut points -----------------------
# The trees that the aggregator grows have bin numbers instead of thresholds: b + 1 above bin b.
# With its signature, each party sends the thresholds of the splits on its own numeric columns. With them, the
# trees are the same as for a table with all columns. A split that separates missing values from all others
# has the threshold infinity, which no party needs to send.
# Guarantees: equal bins have equal thresholds, and higher bins have higher ones; a party cannot change the
# threshold of another's split.
# Raises: PeerError for thresholds that do not match the number of splits, are not finite, or are not in the
# order of the bins.


def packed(terms: Terms, party: str, trees: Iterable[Tree]) -> bytes:
    """Encode the finite thresholds of the splits on a party's numeric columns, as little-endian float32 in
    the order of trees and nodes."""
    nodes = all_nodes(trees)
    return nodes["threshold"][_places(terms, party, nodes)].astype(_FLOAT32).tobytes()


def _places(terms: Terms, party: str, nodes: Nodes) -> Int64:
    """Return the indices of the splits on a party's numeric columns that have a finite threshold."""
    own = {*terms.blocks.columns_of(party).numeric}
    numeric = [number for number, name in enumerate(terms.columns.numeric) if name in own]
    is_split = np.isin(nodes["feature"], numeric) & (nodes["left"] != NO_CHILD)
    return np.flatnonzero(is_split & np.isfinite(nodes["threshold"]))


class Thresholds:
    """Collects the thresholds that parties send at the end. booster: the model, with bin numbers instead."""

    def __init__(self, terms: Terms, booster: Booster) -> None:
        self._terms = terms
        self._booster = booster
        self._given: dict[str, Float32] = {}
        first = len(terms.roots) * terms.constant_rounds
        due = terms.hides_columns and not terms.keeps_parts
        self._trees = booster.trees[first:] if due else ()
        self._nodes = all_nodes(self._trees)

    def lacks(self, party: str) -> bool:
        """Return whether this party still has to send thresholds. Parties that keep parts send none."""
        return party not in self._given and len(_places(self._terms, party, self._nodes)) > 0

    def take(self, party: str, thresholds: bytes) -> None:
        """Check and store a party's thresholds. Raises PeerError if they cannot belong to its splits."""
        places, size = _places(self._terms, party, self._nodes), _FLOAT32.itemsize
        if len(thresholds) != size * len(places):
            raise PeerError(
                "thresholds-number", f"it sent {len(thresholds)} bytes for {len(places)} thresholds"
            )
        given = np.frombuffer(thresholds, _FLOAT32)
        if not np.isfinite(given).all():
            raise PeerError("thresholds-not-finite", "it sent a threshold that is not finite")
        features, bins = self._nodes["feature"][places], self._nodes["threshold"][places]
        order = np.lexsort((bins, features))
        same = np.diff(features[order]) == 0
        steps = np.sign(np.diff(given[order]))
        wrong = np.flatnonzero(same & (steps != np.sign(np.diff(bins[order]))))
        if wrong.size:
            name = self._terms.columns.features[features[order][wrong[0]]]
            raise PeerError("thresholds-order", f"its thresholds of column {quoted(name)} are not in order")
        self._given[party] = given

    def of_model(self) -> Booster:
        """Return the model with thresholds, as sent by the parties, in place of bin numbers."""
        thresholds, trees = self._nodes["threshold"].copy(), self._booster.trees
        for party, given in self._given.items():
            thresholds[_places(self._terms, party, self._nodes)] = given
        ends = zip(self._trees, accumulate(map(len, self._trees)), strict=True)
        changed = [tree.changed(threshold=thresholds[end - len(tree) : end]) for tree, end in ends]
        return replace(self._booster, trees=(*trees[: len(trees) - len(changed)], *changed))
