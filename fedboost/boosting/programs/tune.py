"""Candidates train side by side in the turns of one training, as a program; the worst are dropped.

Each candidate is one output of the round (`objectives.trials`): its trees grow by its own settings, and the
histograms of all candidates travel in one answer.

Promises: a pure function of the terms and the sums; where gradients have public bounds the trees of a
candidate are those of a training with its settings alone.
Refuses: as `boosting`.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedboost.boosting.programs.boosting import end_and_begin, end_query, split_end
from fedboost.boosting.programs.frontier import Frontier, Ground
from fedboost.boosting.programs.initialisation import (
    Scales,
    check_start,
    constant_values,
    count,
    find_base_score,
    find_cut_points,
    known_base_score,
    no_model,
    start_query,
)
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.boosting.queries.union import OfTurn
from fedboost.errors import ConfigError, TrainingStopped
from fedboost.fixedpoint import Int64
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.metrics import registry as metrics
from fedboost.gbdt.metrics.registry import VALIDATION, grows, own_name
from fedboost.gbdt.tree import NO_CHILD, NO_SPLITS, Splits, Tree
from fedboost.protocol.contracts import GrownTrees, Outcome
from fedboost.terms.session import stages, terms_of
from fedboost.terms.terms import Terms


@dataclass
class Candidate:
    """A candidate: its terms, the ground its trees grow on, and the watched metric of each of its rounds."""

    number: int
    terms: Terms
    ground: Ground
    scores: list[float] = field(default_factory=list)

    @classmethod
    def all_of(cls, terms: Terms, cut_points: CutPoints) -> "list[Candidate]":
        """Those of the terms."""
        each = [terms_of(terms, number) for number in range(len(terms.objective.candidates))]
        return [cls(number, own, Ground(own, cut_points)) for number, own in enumerate(each)]


def tune(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Train all candidates, and drop those behind at the end of each stage. `grown`: as in `boosting`."""
    rows, counts, coarse = yield from count(terms)
    scales = Scales.of(terms, counts)
    cut_points = yield from find_cut_points(terms, rows, counts, coarse)
    score = known_base_score(terms)
    start = None if score is None else start_query(rows, cut_points, scales)
    if score is None:
        score = yield from find_base_score(terms, rows, cut_points, scales)
    candidates = Candidate.all_of(terms, cut_points)
    going, ends = list(candidates), stages(terms)
    end = end_query(terms, rows, CONSTANT_TREE, NO_SPLITS, constant_values(terms, score), scales)
    ahead = scales.ahead(terms)
    root = _root_query(terms, rows, 0, going, ahead)
    started, ended, sums = yield from end_and_begin(terms, start, end, root)
    if started is not None:
        check_start(terms, started)
    exponents, _, _ = split_end(terms, ended, scales)
    for number in range(terms.trees.rounds):
        if ahead is None:
            scales = Scales.of(terms, exponents) if terms.needs_exponent_counts else scales
        try:
            if number == len(grown):
                grown.append((yield from _grow(terms, rows, number, going, ahead or scales, sums)))
            tree, splits = grown[number]
            values = tuple((leaf, tree.value[leaf]) for leaf in tree.leaves)
            end = end_query(terms, rows, number, splits, values, scales)
            ahead = scales.ahead(terms, exponents, values)
            is_last = number + 1 in ends or number + 1 == terms.trees.rounds
            root = None if is_last else _root_query(terms, rows, number + 1, going, ahead)
            _, ended, sums = yield from end_and_begin(terms, None, end, root)
        except TrainingStopped:
            break
        exponents, _, by_set = split_end(terms, ended, scales)
        if not number:  # these rows are the same in every round
            _check_rows(terms, ended, scales)
        for candidate in going:
            candidate.scores.append(_score(terms, by_set, candidate.number))
        if number + 1 in ends:
            going = sorted(_best_first(going)[: ends[number + 1]], key=lambda kept: kept.number)
    return Outcome(no_model(terms, terms.objective.loss.xgboost_equivalent), _summary(terms, candidates))


def _check_rows(terms: Terms, ended: Int64, scales: Scales) -> None:
    """ConfigError unless the metrics of the validation rows may be told."""
    told = metrics.published(terms.metrics, terms.sets, ended, scales.weight)
    if f"{VALIDATION}-{terms.metrics[-1]}" not in told:
        raise ConfigError(
            f"candidates are compared on {metrics.MIN_ROWS} validation rows and more (by weight, of rows of "
            f"the largest): give them in the table, or draw a larger share"
        )


def _score(terms: Terms, by_set: dict[str, float], number: int) -> float:
    """The last metric of the validation rows of a candidate, lower is better. ConfigError if it has no
    value."""
    watched = own_name(terms.metrics[-1])
    value = by_set[f"{VALIDATION}-{number}/{watched}"]
    if math.isnan(value):
        raise ConfigError(
            f"{watched} has no value, since the validation rows all have one label: give others, draw a "
            f"larger share, or name another eval_metric last"
        )
    return -value if grows(watched) else value


def _best_first(candidates: list[Candidate]) -> list[Candidate]:
    """Candidates by the best of their rounds; of equal ones the first."""
    return sorted(candidates, key=lambda each: (min(each.scores, default=np.inf), each.number))


def _summary(terms: Terms, candidates: list[Candidate]) -> dict[str, Any]:
    """The result, as JSON: the trials in the order of the candidates, and which is the best."""
    watched = own_name(terms.metrics[-1])
    sign = -1.0 if grows(watched) else 1.0
    trials = [
        {
            "settings": dict(terms.objective.candidates[each.number]),
            "rounds": len(each.scores),
            "best_round": int(np.argmin(each.scores)) + 1 if each.scores else 0,
            watched: float(f"{sign * min(each.scores):.{metrics.DIGITS}g}") if each.scores else None,
        }
        for each in candidates
    ]
    longest = max(len(each.scores) for each in candidates)
    finalists = [each for each in candidates if len(each.scores) == longest]
    return {"metric": watched, "trials": trials, "best": _best_first(finalists)[0].number}


# ---- the trees of a round ----------------------------------------------------------------------------


def _root_query(
    terms: Terms, rows: int, number: int, going: list[Candidate], scales: Scales | None
) -> HistogramQuery | None:
    """The query for the roots of the candidates that go on; None without scales."""
    if scales is None:
        return None
    roots, bins = tuple(each.number for each in going), going[0].ground.layout.bins
    asked = rows * terms.draws.max_bootstrap_count, number, NO_SPLITS, roots, bins
    return HistogramQuery(*asked, scales.gradient, scales.hessian)


def _grow(
    terms: Terms, rows: int, number: int, going: list[Candidate], scales: Scales, sums: Int64 | None
) -> Generator[OfTurn, Int64, tuple[Tree, Splits]]:
    """Grow the trees of a round as one; returns it with the splits that no party knows yet."""
    root = _root_query(terms, rows, number, going, scales)
    assert root is not None
    most = rows * terms.draws.max_bootstrap_count
    trees = [_Growing(each, most, number, scales) for each in going]
    forest = _Forest(len(terms.roots), trees)
    total = (yield root) if sums is None else sums
    for tree, cells in zip(trees, np.split(total, len(trees)), strict=True):
        tree.frontier.take_roots(cells)
    growing = forest.split(trees)
    while growing:
        queries = [tree.frontier.query(0.0) for tree in growing]
        nodes = [tree.number[node] for tree, own in zip(growing, queries, strict=True) for node in own.nodes]
        widths, scale = b"".join(own.widths for own in queries), (scales.gradient, scales.hessian)
        query = HistogramQuery(most, number, forest.new_splits, tuple(nodes), root.bins, *scale, widths)
        total = yield query
        forest.new_splits = NO_SPLITS
        ends = np.cumsum([own.cells for own in queries])[:-1]
        for tree, cells in zip(growing, np.split(total, ends), strict=True):
            tree.frontier.take(cells)
        growing = forest.split(growing)
    return forest.tree, forest.new_splits


class _Growing:
    """The tree of a candidate while it grows. number: the node of the round's trees for each of its own."""

    def __init__(self, candidate: Candidate, rows: int, number: int, scales: Scales) -> None:
        own = candidate.terms
        rule = own.rule(scales.gradient, scales.hessian)
        self.frontier = Frontier(own, rows, number, candidate.ground, rule)
        self.number = [candidate.number]


class _Forest:
    """The trees of a round, numbered as one tree: children in the order of the splits, behind the roots."""

    def __init__(self, roots: int, trees: list[_Growing]) -> None:
        self._roots = self._size = roots
        self._trees = trees
        self.new_splits = NO_SPLITS

    def split(self, trees: list[_Growing]) -> list[_Growing]:
        """Split the leaves of these trees whose turn it is; the trees that go on growing."""
        growing = [tree for tree in trees if self._split(tree)]
        return growing

    def _split(self, tree: _Growing) -> bool:
        grows_on = tree.frontier.split()
        own = tree.frontier.growing.new_splits
        columns = own.columns.copy()
        columns[0] = np.array(tree.number, np.int32)[own.node]
        columns[4] = self._size + 2 * np.arange(len(own))
        assert (own.left == len(tree.number) + 2 * np.arange(len(own))).all()
        tree.number += range(self._size, self._size + 2 * len(own))
        self._size += 2 * len(own)
        self.new_splits += Splits(columns, own.categories)
        return grows_on

    @property
    def tree(self) -> Tree:
        """The trees as one; the root of a candidate that was dropped is a leaf of value 0."""
        whole = Tree()
        for _ in range(self._size):
            whole.add_leaf(0.0, 0.0)
        for each in self._trees:
            own = each.frontier.growing.tree
            for name, column in vars(own).items():
                for node, value in enumerate(column):
                    moved = each.number[value] if name == "left" and value != NO_CHILD else value
                    vars(whole)[name][each.number[node]] = moved
        return whole
