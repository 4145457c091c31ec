"""Gradient boosting as a program: reads like centralised boosting, where each `yield` is a turn.

Promises: a pure function of the terms and the sums, so the model is the same for every partition of the
rows; parties are asked for the smaller child only, the sibling is the parent minus it.
Refuses: sums that contradict each other (PeerError), a label with nothing to learn (ConfigError).
"""

import math
from collections.abc import Generator

from fedboost.boosting.programs.frontier import Frontier
from fedboost.boosting.programs.initialisation import (
    NOTHING_TO_LEARN,
    Scales,
    count_rows,
    find_base_score,
    find_cut_points,
    model_of,
    residuals_vanish,
)
from fedboost.boosting.programs.leaf_renewal import refresh
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.rounds import EndRoundQuery
from fedboost.boosting.queries.start import RowsQuery
from fedboost.boosting.queries.union import Query
from fedboost.errors import ConfigError, TrainingStopped, TreeAborted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.metrics import by_set as metrics
from fedboost.gbdt.metrics.registry import grows
from fedboost.gbdt.sampling import NORM_CELLS
from fedboost.gbdt.tree import NO_SPLITS, Splits, Tree
from fedboost.protocol.contracts import GrownTrees
from fedboost.terms.terms import Terms


def train(terms: Terms, grown: GrownTrees) -> Generator[Query, Int64, Booster]:
    """Boost terms.rounds trees. `grown`: see `grow_tree`."""
    counts = yield RowsQuery()
    rows, scales = count_rows(counts), Scales.of(terms, counts[1:])
    cut_points = yield from find_cut_points(terms, rows)
    score = yield from find_base_score(terms, rows, cut_points, scales)
    first = slice(None, None, terms.trees.num_parallel_tree)
    constant = (
        terms.objective.loss.margin(score) if terms.earlier is None else 0.0
    )  # the margins have it already
    values = tuple((root, constant if root in terms.roots[first] else 0.0) for root in terms.roots)
    exponents, norms, _ = yield from end_round(terms, rows, CONSTANT_TREE, NO_SPLITS, values, scales)
    if terms.needs_exponent_counts and terms.earlier is None and residuals_vanish(counts[1:], exponents):
        raise ConfigError(NOTHING_TO_LEARN)
    trees: list[Tree] = []
    scores: list[float] = []
    for number in range(terms.trees.rounds):
        scales = Scales.of(terms, exponents) if terms.needs_exponent_counts else scales
        tree_scales = scales.for_sampling(terms, norms)
        try:
            tree, splits = yield from grow_tree(terms, rows, number, cut_points, tree_scales, grown)
        except TrainingStopped:
            break
        values = tuple((leaf, tree.value[leaf]) for leaf in tree.leaves)
        exponents, norms, round_metrics = yield from end_round(terms, rows, number, splits, values, scales)
        trees += tree.parts(len(terms.roots))
        scores.append(watched(terms, round_metrics))
        if (
            terms.evaluation.early_stopping_rounds
            and number - best(scores) >= terms.evaluation.early_stopping_rounds
        ):
            break
    kept = best(scores) + 1 if terms.evaluation.early_stopping_rounds else len(scores)
    return model_of(terms, score, trees[: kept * len(terms.roots)])


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
) -> Generator[Query, Int64, tuple[Int64, Int64, dict[str, float]]]:
    """Move the margins. Returns the exponent counts of the new gradients and the counts of their norms (empty
    if the terms need none), and the metrics."""
    settings = (
        terms.metrics,
        scales.weight,
        terms.needs_exponent_counts,
        terms.sets,
        terms.draws.by_gradient_norm,
    )
    total = yield EndRoundQuery(rows, number, splits, values, *settings)
    round_metrics = metrics.by_set(terms.metrics, terms.sets, total, scales.weight)
    counts = total[len(terms.sets) * metrics.cells(terms.metrics) :]
    norms = NORM_CELLS * terms.draws.by_gradient_norm
    return counts[: counts.size - norms], counts[counts.size - norms :], round_metrics


def grow_tree(
    terms: Terms, rows: int, number: int, cut_points: CutPoints, scales: Scales, grown: GrownTrees
) -> Generator[Query, Int64, tuple[Tree, Splits]]:
    """Grow one tree level by level; returns it with the splits not yet sent to any party.

    A tree that is cut short, because the roster has to change, ends with the leaves it has. `grown`: the
    trees so far, each with those splits; one that is there already, from before a restart, is not grown
    again."""
    if number == len(grown):
        grown.append((yield from _grow(terms, rows, number, cut_points, scales)))
    return grown[number]


def _grow(
    terms: Terms, rows: int, number: int, cut_points: CutPoints, scales: Scales
) -> Generator[Query, Int64, tuple[Tree, Splits]]:
    rule = terms.rule(scales.gradient, scales.hessian)
    sampled_rows, threshold = rows * terms.draws.max_bootstrap_count, scales.threshold
    frontier = Frontier(terms, sampled_rows, number, cut_points, rule)
    growing = frontier.growing
    frontier.take_roots((yield frontier.root_query(threshold)))
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
