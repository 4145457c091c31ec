"""Gradient boosting as a program: reads like centralised boosting, where each `yield` is a turn.

Promises: a pure function of the terms and the sums, so the model is the same for every partition of the
rows; parties are asked for the smaller child only, the sibling is the parent minus it.
Refuses: sums that contradict each other (PeerError), a label with nothing to learn (ConfigError).
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedboost.boosting.programs.frontier import Frontier, Ground
from fedboost.boosting.programs.initialisation import (
    NOTHING_TO_LEARN,
    Levels,
    Scales,
    align,
    check_start,
    constant_values,
    count,
    find_base_score,
    find_cut_points,
    find_levels,
    known_base_score,
    model_of,
    no_model,
    refresh,
    residuals_vanish,
)
from fedboost.boosting.programs.tasks import after_training
from fedboost.boosting.queries import OfTurn, together
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.labels import StartQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.errors import ConfigError, TrainingStopped, TreeAborted
from fedboost.fixedpoint import Int64
from fedboost.gbdt import metrics
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.metrics import VALIDATION, grows, own_name
from fedboost.gbdt.sampling import NORM_CELLS
from fedboost.gbdt.tree import NO_CHILD, NO_SPLITS, Splits, Tree
from fedboost.protocol.contracts import GrownTrees, Outcome
from fedboost.terms.terms import Terms, stages


@dataclass(frozen=True)
class Begun:
    """A training before its first tree: the number of rows; the counts of exponents where margins begin, and
    after the constant; those of norms; cut points, means of levels, the constant and the scales; and the
    scales of the first tree with the sums of its root, if that was asked for ahead."""

    rows: int
    first: Int64
    exponents: Int64
    norms: Int64
    cut_points: CutPoints
    levels: Levels
    score: float
    scales: Scales
    ahead: Scales | None
    root_sums: Int64 | None


def begin(terms: Terms) -> Generator[OfTurn, Int64, Begun]:
    """Ask for what comes before the first tree."""
    rows, counts, coarse = yield from count(terms)
    scales = Scales.of(terms, counts)
    cut_points = yield from find_cut_points(terms, rows, counts, coarse)
    levels = yield from find_levels(terms, rows, scales, counts)
    cut_points = levels.among(cut_points, terms)
    score = known_base_score(terms)
    start = None if score is None else StartQuery(rows, cut_points, *scales.of_start, levels.means)
    if score is None:
        score = yield from find_base_score(terms, rows, cut_points, scales, levels.means)
    end = end_query(terms, rows, CONSTANT_TREE, NO_SPLITS, constant_values(terms, score), scales)
    ahead = scales.ahead(terms)
    root = root_ahead(terms, rows, 0, Ground(terms, cut_points), ahead)
    started, ended, root_sums = yield from end_and_begin(terms, start, end, root)
    if started is not None:
        check_start(terms, started)
    exponents, norms, _ = split_end(terms, ended, scales)
    return Begun(rows, counts, exponents, norms, cut_points, levels, score, scales, ahead, root_sums)


def train(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Booster | Outcome]:
    """Boost terms.rounds trees. `grown`: see `grow_tree`."""
    if terms.vertical.aligns:
        yield from align(terms)
    begun = yield from begin(terms)
    rows, scales, ahead, root_sums = begun.rows, begun.scales, begun.ahead, begun.root_sums
    exponents, norms, ground = begun.exponents, begun.norms, Ground(terms, begun.cut_points)
    if terms.needs_exponent_counts and terms.earlier is None and residuals_vanish(begun.first, exponents):
        raise ConfigError(NOTHING_TO_LEARN)
    trees, scores, patience = list[Tree](), list[float](), terms.evaluation.early_stopping_rounds
    for number in range(terms.trees.rounds):
        if ahead is None:
            scales = Scales.of(terms, exponents) if terms.needs_exponent_counts else scales
        own = ahead or scales.for_sampling(terms, norms)
        try:
            tree, splits = yield from grow_tree(terms, rows, number, ground, own, grown, root_sums)
            leaves = tree.leaves
            values = tuple(zip(leaves, map(tree.value.__getitem__, leaves), strict=True))
            end = end_query(terms, rows, number, splits, values, scales)
            ahead = scales.ahead(terms, exponents, values)
            root = root_ahead(terms, rows, number + 1, ground, ahead)
            _, ended, root_sums = yield from end_and_begin(terms, None, end, root)
        except TrainingStopped:
            break
        exponents, norms, round_metrics = split_end(terms, ended, scales)
        trees += tree.parts(len(terms.roots))
        scores.append(watched(terms, round_metrics))
        if patience and number - best(scores) >= patience:
            break
    kept = best(scores) + 1 if patience else len(scores)
    means = begun.levels.of_model(terms)
    model = model_of(terms, begun.score, trees[: kept * len(terms.roots)], means)
    return (yield from after_training(terms, model, begun.cut_points, kept))


def watched(terms: Terms, round_metrics: dict[str, float]) -> float:
    """The value that early stopping watches, lower is better: the last metric of the last set of rows."""
    name, value = [*metrics.of_all(round_metrics).items()][-1]
    if terms.evaluation.early_stopping_rounds and math.isnan(value):
        raise ConfigError(f"{name} has no value, so that nothing can be stopped by it: watch another metric")
    return -value if grows(terms.metrics[-1]) else value


def best(scores: list[float]) -> int:
    """The first round with the best score."""
    return min(range(len(scores)), key=scores.__getitem__)


def end_round(
    terms: Terms,
    rows: int,
    number: int,
    splits: Splits,
    values: tuple[tuple[int, float], ...],
    scales: Scales,
) -> Generator[OfTurn, Int64, tuple[Int64, Int64, dict[str, float]]]:
    """Move the margins. Returns what `split_end` does."""
    total = yield end_query(terms, rows, number, splits, values, scales)
    return split_end(terms, total, scales)


def end_query(
    terms: Terms,
    rows: int,
    number: int,
    splits: Splits,
    values: tuple[tuple[int, float], ...],
    scales: Scales,
) -> EndRoundQuery:
    """The query that moves the margins by these leaf values."""
    measured = terms.metrics, scales.weight, terms.needs_exponent_counts, terms.sets
    return EndRoundQuery(rows, number, splits, values, *measured, terms.draws.by_gradient_norm)


def split_end(terms: Terms, total: Int64, scales: Scales) -> tuple[Int64, Int64, dict[str, float]]:
    """The exponent counts of the new gradients and the counts of their norms (empty if the terms need none),
    and the metrics, from the sum of an EndRoundQuery."""
    round_metrics = metrics.by_set(terms.metrics, terms.sets, total, scales.weight)
    counts = total[len(terms.sets) * metrics.cells(terms.metrics) :]
    norms = NORM_CELLS * terms.draws.by_gradient_norm
    return counts[: counts.size - norms], counts[counts.size - norms :], round_metrics


def end_and_begin(
    terms: Terms, start: StartQuery | None, end: EndRoundQuery, root: HistogramQuery | None
) -> Generator[OfTurn, Int64, tuple[Int64 | None, Int64, Int64 | None]]:
    """Ask for the end of a round, and in the same turn for the start of boosting before it and the root of
    the next tree after it, where they are given. Returns the sum of each."""
    queries = [query for query in (start, end, root) if query is not None]
    sums = yield from together(terms, *queries)
    ended = int(start is not None)
    return sums[0] if start else None, sums[ended], sums[-1] if root else None


def root_ahead(
    terms: Terms,
    rows: int,
    number: int,
    ground: Ground,
    scales: Scales | None,
    roots: tuple[int, ...] = (),
) -> HistogramQuery | None:
    """The query for the root of a tree that is asked before the round before it ended; None without scales,
    and behind the last tree."""
    if scales is None or number == terms.trees.rounds:
        return None
    return root_query(terms, rows, number, ground, scales, roots)


def root_query(
    terms: Terms, rows: int, number: int, ground: Ground, scales: Scales, roots: tuple[int, ...] = ()
) -> HistogramQuery:
    """The query for the root of a tree, or of those trees of a round with these roots."""
    sampled_rows, bins = rows * terms.draws.max_bootstrap_count, ground.of_tree(number).layout.bins
    asked = sampled_rows, number, NO_SPLITS, roots or terms.roots, bins, *scales.pair
    grouped = terms.vertical.min_rows_per_bin > 1
    return HistogramQuery(*asked, threshold=scales.threshold, grouped=grouped)


def grow_tree(
    terms: Terms,
    rows: int,
    number: int,
    ground: Ground | CutPoints,
    scales: Scales,
    grown: GrownTrees,
    root: Int64 | None = None,
) -> Generator[OfTurn, Int64, tuple[Tree, Splits]]:
    """Grow one tree level by level; returns it with the splits not yet sent to any party.

    A tree that is cut short, because the roster has to change, ends with the leaves it has. `grown`: the
    trees so far, each with those splits; one that is there already, from before a restart, is not grown
    again. ground: or the cut points that it is made of; root: the sum of `root_query`, if it was asked
    before."""
    if number == len(grown):
        ground = Ground(terms, ground) if isinstance(ground, CutPoints) else ground
        grown.append((yield from _grow(terms, rows, number, ground, scales, root)))
    return grown[number]


def _grow(
    terms: Terms, rows: int, number: int, ground: Ground, scales: Scales, root: Int64 | None
) -> Generator[OfTurn, Int64, tuple[Tree, Splits]]:
    sampled_rows = rows * terms.draws.max_bootstrap_count
    frontier = Frontier(terms, sampled_rows, number, ground, scales)
    growing = frontier.growing
    frontier.take_roots((yield root_query(terms, rows, number, ground, scales)) if root is None else root)
    while frontier.split():
        try:
            if terms.histograms.vote_top_k:
                frontier.elect((yield frontier.vote_query(rows)))
            frontier.take((yield frontier.query()))
        except TreeAborted:
            return growing.tree, growing.new_splits
    tree = growing.tree
    splits = yield from refresh(terms, sampled_rows, number, growing.new_splits, tree, scales.weight)
    return tree, splits


# ---- Candidates train side by side in the turns of one training, as a program; the worst are dropped ----
# Each candidate is one output of the round (`registry.Trials`): its trees grow by its own settings, and the
# histograms of all candidates travel in one answer.
# Promises: a pure function of the terms and the sums; where gradients have public bounds the trees of a
# candidate are those of a training with its settings alone.
# Refuses: as `boosting`.


@dataclass
class Candidate:
    """A candidate: its terms, the ground its trees grow on, and the watched metric of each of its rounds."""

    number: int
    terms: Terms
    ground: Ground
    scores: list[float] = field(default_factory=list)


def tune(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Train all candidates, and drop those behind at the end of each stage. `grown`: as in `boosting`."""
    begun = yield from begin(terms)
    rows, scales, ahead, sums = begun.rows, begun.scales, begun.ahead, begun.root_sums
    each = [terms.candidate(number) for number in range(len(terms.objective.candidates))]
    candidates = [Candidate(place, own, Ground(own, begun.cut_points)) for place, own in enumerate(each)]
    going, ends, exponents = list(candidates), stages(terms), begun.exponents
    for number in range(terms.trees.rounds):
        if ahead is None:
            scales = Scales.of(terms, exponents) if terms.needs_exponent_counts else scales
        try:
            if number == len(grown):
                grown.append(
                    (yield from _grow_side_by_side(terms, rows, number, going, ahead or scales, sums))
                )
            tree, splits = grown[number]
            values = tuple((leaf, tree.value[leaf]) for leaf in tree.leaves)
            end = end_query(terms, rows, number, splits, values, scales)
            ahead = scales.ahead(terms, exponents, values)
            root = None
            if number + 1 not in ends:
                root = root_ahead(terms, rows, number + 1, going[0].ground, ahead, _roots_of(going))
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


# ---- the trees of a round -------------------------------------------------------------------------------


def _roots_of(going: list[Candidate]) -> tuple[int, ...]:
    """The roots of the candidates that go on."""
    return tuple(each.number for each in going)


def _grow_side_by_side(
    terms: Terms, rows: int, number: int, going: list[Candidate], scales: Scales, sums: Int64 | None
) -> Generator[OfTurn, Int64, tuple[Tree, Splits]]:
    """Grow the trees of a round as one; returns it with the splits that no party knows yet."""
    root = root_query(terms, rows, number, going[0].ground, scales, _roots_of(going))
    most = rows * terms.draws.max_bootstrap_count
    frontiers = [Frontier(each.terms, most, number, each.ground, scales) for each in going]
    trees = [_Growing(own, [each.number]) for own, each in zip(frontiers, going, strict=True)]
    forest = _Forest(len(terms.roots), trees)
    total = (yield root) if sums is None else sums
    for tree, cells in zip(trees, np.split(total, len(trees)), strict=True):
        tree.frontier.take_roots(cells)
    growing = forest.split(trees)
    while growing:
        queries = [tree.frontier.query() for tree in growing]
        nodes = [tree.number[node] for tree, own in zip(growing, queries, strict=True) for node in own.nodes]
        asked = most, number, forest.new_splits, tuple(nodes), root.bins, *scales.pair
        total = yield HistogramQuery(*asked, b"".join(own.widths for own in queries))
        forest.new_splits = NO_SPLITS
        ends = np.cumsum([own.cells for own in queries])[:-1]
        for tree, cells in zip(growing, np.split(total, ends), strict=True):
            tree.frontier.take(cells)
        growing = forest.split(growing)
    return forest.tree, forest.new_splits


@dataclass
class _Growing:
    """The tree of a candidate while it grows."""

    frontier: Frontier
    number: list[int]
    """The node of the round's trees for each of its own."""


class _Forest:
    """The trees of a round, numbered as one tree: children in the order of the splits, behind the roots."""

    def __init__(self, roots: int, trees: list[_Growing]) -> None:
        self._roots = self._size = roots
        self._trees = trees
        self.new_splits = NO_SPLITS

    def split(self, trees: list[_Growing]) -> list[_Growing]:
        """Split the leaves of these trees whose turn it is; the trees that go on growing."""
        return [tree for tree in trees if self._split(tree)]

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
