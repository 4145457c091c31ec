"""Gradient boosting as a program: reads like centralised boosting, where each `yield` is a turn.

Promises: a pure function of the terms and the sums, so the model is the same for every partition of the
rows; parties are asked for the smaller child only, the sibling is the parent minus it.
Refuses: sums that contradict each other (PeerError), a label with nothing to learn (ConfigError).
"""

import math
from collections.abc import Generator

from fedboost.boosting.programs.alignment import align
from fedboost.boosting.programs.asking import together
from fedboost.boosting.programs.drift import with_reference
from fedboost.boosting.programs.frontier import Frontier, Ground
from fedboost.boosting.programs.initialisation import (
    NOTHING_TO_LEARN,
    Scales,
    check_start,
    constant_values,
    count,
    find_base_score,
    find_cut_points,
    known_base_score,
    model_of,
    residuals_vanish,
    start_query,
)
from fedboost.boosting.programs.leaf_renewal import refresh
from fedboost.boosting.programs.target_means import find_levels
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.rounds import EndRoundQuery
from fedboost.boosting.queries.start import StartQuery
from fedboost.boosting.queries.trees import HistogramQuery
from fedboost.boosting.queries.union import OfTurn
from fedboost.errors import ConfigError, TrainingStopped, TreeAborted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.metrics import registry as metrics
from fedboost.gbdt.metrics.registry import grows
from fedboost.gbdt.sampling import NORM_CELLS
from fedboost.gbdt.tree import NO_SPLITS, Splits, Tree
from fedboost.protocol.contracts import GrownTrees, Outcome
from fedboost.terms.terms import Terms


def train(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Booster | Outcome]:
    """Boost terms.rounds trees. `grown`: see `grow_tree`."""
    if terms.vertical.aligns:
        yield from align(terms)
    rows, counts, coarse = yield from count(terms)
    scales = Scales.of(terms, counts)
    cut_points = yield from find_cut_points(terms, rows, counts, coarse)
    levels = yield from find_levels(terms, rows, scales, counts)
    cut_points = levels.among(cut_points, terms)
    score = known_base_score(terms)
    start = None if score is None else start_query(rows, cut_points, scales, levels.means)
    if score is None:
        score = yield from find_base_score(terms, rows, cut_points, scales, levels.means)
    end = end_query(terms, rows, CONSTANT_TREE, NO_SPLITS, constant_values(terms, score), scales)
    ahead, ground = scales.ahead(terms), Ground(terms, cut_points)
    root = root_ahead(terms, rows, 0, ground, ahead)
    started, ended, root_sums = yield from end_and_begin(terms, start, end, root)
    if started is not None:
        check_start(terms, started)
    exponents, norms, _ = split_end(terms, ended, scales)
    if terms.needs_exponent_counts and terms.earlier is None and residuals_vanish(counts, exponents):
        raise ConfigError(NOTHING_TO_LEARN)
    trees: list[Tree] = []
    scores: list[float] = []
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
        if (
            terms.evaluation.early_stopping_rounds
            and number - best(scores) >= terms.evaluation.early_stopping_rounds
        ):
            break
    kept = best(scores) + 1 if terms.evaluation.early_stopping_rounds else len(scores)
    model = model_of(terms, score, trees[: kept * len(terms.roots)], levels.of_model(terms))
    return (
        (yield from with_reference(terms, model, cut_points, kept)) if terms.evaluation.reference else model
    )


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
    settings = (
        terms.metrics,
        scales.weight,
        terms.needs_exponent_counts,
        terms.sets,
        terms.draws.by_gradient_norm,
    )
    return EndRoundQuery(rows, number, splits, values, *settings)


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
    terms: Terms, rows: int, number: int, ground: Ground, scales: Scales | None
) -> HistogramQuery | None:
    """The query for the root of a tree that is asked before the round before it ended; None without scales,
    and behind the last tree."""
    if scales is None or number == terms.trees.rounds:
        return None
    return root_query(terms, rows, number, ground, scales)


def root_query(terms: Terms, rows: int, number: int, ground: Ground, scales: Scales) -> HistogramQuery:
    """The query for the root of a tree."""
    sampled_rows, bins = rows * terms.draws.max_bootstrap_count, ground.of_tree(number).layout.bins
    pair, grouped = (scales.gradient, scales.hessian), terms.vertical.min_rows_per_bin > 1
    asked = sampled_rows, number, NO_SPLITS, terms.roots, bins, *pair
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
    rule = terms.rule(scales.gradient, scales.hessian)
    sampled_rows, threshold = rows * terms.draws.max_bootstrap_count, scales.threshold
    frontier = Frontier(terms, sampled_rows, number, ground, rule)
    growing = frontier.growing
    frontier.take_roots((yield root_query(terms, rows, number, ground, scales)) if root is None else root)
    while frontier.split():
        try:
            if terms.histograms.vote_top_k:
                frontier.elect((yield frontier.vote_query(rows)))
            frontier.take((yield frontier.query(threshold)))
        except TreeAborted:
            return growing.tree, growing.new_splits
    tree = growing.tree
    splits = yield from refresh(terms, sampled_rows, number, growing.new_splits, tree, scales.weight)
    return tree, splits
