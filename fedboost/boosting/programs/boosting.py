"""Gradient boosting as a program. It reads like centralised boosting, except that each `yield` sends a query
and receives the sum of the parties' answers.

Guarantees: the program is a pure function of the terms and the sums, so the model does not depend on how the
rows are distributed among the parties.
Raises: PeerError for inconsistent sums, ConfigError if there is nothing to learn from the labels."""

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedboost.boosting.programs.frontier import Frontier, GrowthSettings
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
    find_times,
    known_base_score,
    model_of,
    no_model,
    refresh,
    residuals_vanish,
    risk_scale,
    told,
)
from fedboost.boosting.programs.tasks import after_training
from fedboost.boosting.queries import OfTurn, together
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.labels import StartQuery, TimeGrid, Times
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.errors import ConfigError, TrainingStopped, TreeAborted
from fedboost.fixedpoint import Int64
from fedboost.gbdt import metrics
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.metrics import VALIDATION, grows, own_name
from fedboost.gbdt.sampling import NORM_CELLS
from fedboost.gbdt.tree import NO_CHILD, NO_SPLITS, LeafValues, Splits, Tree, new_leaves
from fedboost.protocol.contracts import GrownTrees, Outcome
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class TrainingStart:
    """Results of the queries before the first tree.

    Args:
        rows: number of rows of all parties.
        first: exponent counts (how many gradients, hessians and weights have each binary exponent) at the
            initial margins.
        exponents: exponent counts at the margins after the constant is added.
        norms: counts of gradient norms at the same margins.
        at_risk: sums of the risks in each time bin and later, as parties receive them.
        times: time bins; None for objectives without risk sets.
        cut_points: cut points of all features.
        levels: target means, and the cut points between them.
        score: constant prediction from which boosting starts.
        scales: scales of gradients, hessians and weights.
        ahead: scales of the first tree if its root was queried together with the last of these queries, else
            None.
        root_sums: answers to that early query, summed; None if it was not sent.
    """

    rows: int
    first: Int64
    exponents: Int64
    norms: Int64
    at_risk: Times
    cut_points: CutPoints
    levels: Levels
    score: float
    scales: Scales
    ahead: Scales | None
    root_sums: Int64 | None
    times: TimeGrid | None = None


def begin(terms: Terms) -> Generator[OfTurn, Int64, TrainingStart]:
    """Send all queries that come before the first tree."""
    if terms.vertical.aligns:
        yield from align(terms)
    rows, counts, coarse = yield from count(terms)
    scales = Scales.of(terms, counts)
    cut_points = yield from find_cut_points(terms, rows, counts, coarse)
    levels = yield from find_levels(terms, rows, scales, counts)
    cut_points = levels.among(cut_points, terms)
    cut_points, times = yield from find_times(terms, rows, cut_points, scales.weight)
    score = known_base_score(terms)
    # If the constant is known, cut points, constant and (if its scales are known) the first root share a
    # turn. Otherwise the constant follows from the sums of the StartQuery, which needs its own turn.
    start = None if score is None else StartQuery(rows, cut_points, *scales.of_start, levels.means, times)
    if score is None:
        score = yield from find_base_score(terms, rows, cut_points, scales, levels.means, times)
    end = end_query(
        terms, rows, CONSTANT_TREE, NO_SPLITS, constant_values(terms, score), scales, times, counts
    )
    ahead = scales.ahead(terms)
    root = root_ahead(terms, rows, 0, GrowthSettings(terms, cut_points), ahead)
    started, ended, root_sums = yield from end_and_begin(terms, start, end, root)
    if started is not None:
        check_start(terms, started)
    exponents, norms, at_risk, _ = split_end(terms, end, ended)
    found = rows, counts, exponents, norms, at_risk, cut_points, levels, score, scales, ahead, root_sums
    return TrainingStart(*found, times)


def train(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Booster | Outcome]:
    """Train all rounds. Returns the model. grown: rounds whose trees grew before a restart (`grow_tree`)."""
    begun = yield from begin(terms)
    rows, scales, ahead, root_sums = begun.rows, begun.scales, begun.ahead, begun.root_sums
    exponents, norms, ground = begun.exponents, begun.norms, GrowthSettings(terms, begun.cut_points)
    if terms.needs_exponent_counts and terms.earlier is None and residuals_vanish(begun.first, exponents):
        raise ConfigError("data-nothing-to-learn", NOTHING_TO_LEARN)
    # A round is: the levels of its tree (`grow_tree`), then the query that ends it. If the next tree's scales
    # are known by then (`ahead`), its root shares the last turn; else the exponent counts in the sum of the
    # ending query determine them, and the root costs a turn. A root ahead of a stop is thrown away.
    trees, scores, patience = list[Tree](), list[float](), terms.evaluation.early_stopping_rounds
    at_risk, times = begun.at_risk, begun.times
    for number in range(terms.trees.rounds):
        if ahead is None:
            scales = Scales.of(terms, exponents) if terms.needs_exponent_counts else scales
        own = ahead or scales.for_sampling(terms, norms)
        if times is not None:
            own = own.with_risk_sets(times, at_risk)
        try:
            tree, splits = yield from grow_tree(terms, rows, number, ground, own, grown, root_sums)
            values = tree.leaf_values
            end = end_query(terms, rows, number, splits, values, scales, times, exponents)
            ahead = scales.ahead(terms, exponents, values)
            root = root_ahead(terms, rows, number + 1, ground, ahead)
            _, ended, root_sums = yield from end_and_begin(terms, None, end, root)
        except TrainingStopped:
            break
        exponents, norms, at_risk, round_metrics = split_end(terms, end, ended)
        trees += tree.parts(len(terms.roots))
        scores.append(watched(terms, round_metrics))
        if patience and number - best(scores) >= patience:
            break
    kept = best(scores) + 1 if patience else len(scores)
    means = begun.levels.of_model(terms)
    model = model_of(terms, begun.score, trees[: kept * len(terms.roots)], means)
    return (yield from after_training(terms, model, begun.cut_points, kept))


def watched(terms: Terms, round_metrics: dict[str, float]) -> float:
    """Return the value that early stopping watches: the last metric on the last set of rows, negated if
    higher values of the metric are better. Raises ConfigError if early stopping needs this metric and the
    metric is undefined."""
    name, value = [*metrics.of_all(round_metrics).items()][-1]
    if terms.evaluation.early_stopping_rounds and math.isnan(value):
        raise ConfigError(
            "metric-undefined", f"{name} is undefined, so early stopping cannot use it: choose another metric"
        )
    return -value if grows(terms.metrics[-1]) else value


def best(scores: list[float]) -> int:
    """Return the index of the first round with the lowest (best) score."""
    return min(range(len(scores)), key=scores.__getitem__)


def end_query(
    terms: Terms,
    rows: int,
    number: int,
    splits: Splits,
    values: LeafValues,
    scales: Scales,
    times: TimeGrid | None = None,
    exponents: Int64 | None = None,
) -> EndRoundQuery:
    """Return the query that ends a round: it moves the margins by the leaf values and asks for metrics.
    times, exponents: time bins by which risks are summed, too, and exponent counts of e**margin before."""
    measured = terms.metrics, scales.weight, terms.needs_exponent_counts, terms.sets
    asked = rows, number, splits, values, *measured, terms.draws.by_gradient_norm
    if times is None or exponents is None:
        return EndRoundQuery(*asked)
    bins = tuple(times.of(name).size + 1 for name in terms.sets)
    return EndRoundQuery(*asked, risk_scale(terms, exponents, values), bins)


def split_end(terms: Terms, end: EndRoundQuery, total: Int64) -> tuple[Int64, Int64, Times, dict[str, float]]:
    """Split the sum of an EndRoundQuery into exponent counts of the new gradients, counts of their norms, the
    risks in each time bin and later as parties receive them, and metrics. Parts that are not needed are
    empty."""
    counts = total[len(terms.sets) * metrics.cells(terms.metrics) : total.size - 2 * sum(end.bins)]
    norms = NORM_CELLS * terms.draws.by_gradient_norm
    at_risk = () if end.risk is None else told(end.risks(total)[0][0], end.rows)
    return counts[: counts.size - norms], counts[counts.size - norms :], at_risk, end.metrics_of(total)[0]


def end_and_begin(
    terms: Terms, start: StartQuery | None, end: EndRoundQuery, root: HistogramQuery | None
) -> Generator[OfTurn, Int64, tuple[Int64 | None, Int64, Int64 | None]]:
    """Send the queries at the end of a round in one turn: the start of boosting (if any), the end of the
    round, and the root of the next tree (if any). Returns, for each query, the sum of the answers.

    Parties apply the queries in this order: the start sets the bins, the end moves the margins, and the
    answer about the root depends on both."""
    queries = [query for query in (start, end, root) if query is not None]
    sums = yield from together(terms, *queries)
    ended = int(start is not None)
    return sums[0] if start else None, sums[ended], sums[-1] if root else None


def root_ahead(
    terms: Terms,
    rows: int,
    number: int,
    ground: GrowthSettings,
    scales: Scales | None,
    roots: tuple[int, ...] = (),
) -> HistogramQuery | None:
    """Return the query for the next round's roots, which is sent together with the end of the current round.
    Returns None if the scales are not known, or if the current round is the last."""
    if scales is None or number == terms.trees.rounds:
        return None
    return root_query(terms, rows, number, ground, scales, roots)


def root_query(
    terms: Terms, rows: int, number: int, ground: GrowthSettings, scales: Scales, roots: tuple[int, ...] = ()
) -> HistogramQuery:
    """Return the query for the roots of a round, or only for those in `roots`."""
    # A bootstrap draws a row up to max_bootstrap_count times: cells need room for that many rows.
    sampled_rows, bins = rows * terms.draws.max_bootstrap_count, ground.of_tree(number).layout.bins
    asked = sampled_rows, number, NO_SPLITS, roots or terms.roots, bins, *scales.pair
    grouped = terms.vertical.min_rows_per_bin > 1
    return HistogramQuery(*asked, threshold=scales.threshold, grouped=grouped, at_risk=scales.at_risk)


def grow_tree(
    terms: Terms,
    rows: int,
    number: int,
    ground: GrowthSettings | CutPoints,
    scales: Scales,
    grown: GrownTrees,
    root: Int64 | None = None,
) -> Generator[OfTurn, Int64, tuple[Tree, Splits]]:
    """Grow the trees of a round level by level. Returns the trees of all roots as one `Tree`, and the splits
    not yet sent to any party.

    If the roster (the parties in the sums) has to change, growth stops early and the trees keep their current
    leaves.

    Args:
        rows: number of rows of all parties.
        number: number of the round.
        ground: growth settings, or the cut points from which to derive them.
        scales: scales of gradients and hessians.
        grown: rounds whose trees have been grown so far, to which this round is added. If the round is
            already in the list, because it was completed before a restart, its trees are not grown again.
        root: sum of the answers to `root_query`, if that query was sent early.
    """
    if number == len(grown):
        ground = GrowthSettings(terms, ground) if isinstance(ground, CutPoints) else ground
        grown.append((yield from _grow(terms, rows, number, ground, scales, root)))
    return grown[number]


def _grow(
    terms: Terms, rows: int, number: int, ground: GrowthSettings, scales: Scales, root: Int64 | None
) -> Generator[OfTurn, Int64, tuple[Tree, Splits]]:
    sampled_rows = rows * terms.draws.max_bootstrap_count
    frontier = Frontier(terms, sampled_rows, number, ground, scales)
    growing = frontier.growing
    frontier.take_roots((yield root_query(terms, rows, number, ground, scales)) if root is None else root)
    # Each pass of the loop is a level: `split` finds splits from known sums without a turn; the query sends
    # these splits and asks for the sums of children. The splits of the last level are sent with the query
    # that ends the round.
    while frontier.split():
        try:
            if terms.histograms.vote_top_k:
                frontier.elect((yield frontier.vote_query(rows)))
            frontier.take((yield frontier.query()))
        except TreeAborted:
            return growing.tree, growing.new_splits
    grown = growing.new_splits, growing.tree
    return (yield from refresh(terms, sampled_rows, number, *grown, scales.weight))


# ---- Candidates that are trained in parallel in one session; the worst are dropped ----------------------
# Each candidate is one output of the round (`registry.Trials`). Its trees grow with its own settings, and the
# histograms of all candidates travel in one answer.
# Guarantees: a pure function of the terms and the sums. If gradients have public bounds, a candidate's trees
# are those of a separate training run with its settings.


SHARES = (0.1, 0.2, 0.4, 0.6)
"""Points at which candidates are dropped, as fractions of all rounds."""
KEPT = (2, 3)
"""Fraction (2/3) of the candidates that continue. A smaller fraction would favour candidates that converge
fast (decision 0028)."""


def stages(terms: Terms) -> dict[int, int]:
    """Return a dict: number of rounds after which candidates are dropped -> number of candidates that
    continue."""
    left, ends = len(terms.objective.candidates), {}
    for share in SHARES:
        if rounds := int(share * terms.trees.rounds):
            ends[rounds] = left = -(-left * KEPT[0] // KEPT[1])
    return ends


@dataclass
class Candidate:
    """A candidate of a tuning session: its terms, growth settings, and watched metric in each round."""

    number: int
    terms: Terms
    ground: GrowthSettings
    scores: list[float] = field(default_factory=list)


def tune(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Outcome]:
    """Train all candidates in parallel and drop the worst at the end of each stage. grown: rounds whose trees
    were grown before a restart (see `grow_tree`)."""
    begun = yield from begin(terms)
    rows, scales, ahead, sums = begun.rows, begun.scales, begun.ahead, begun.root_sums
    each = [terms.candidate(number) for number in range(len(terms.objective.candidates))]
    cuts = begun.cut_points
    candidates = [Candidate(place, own, GrowthSettings(own, cuts)) for place, own in enumerate(each)]
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
            values = tree.leaf_values
            end = end_query(terms, rows, number, splits, values, scales)
            ahead = scales.ahead(terms, exponents, values)
            root = None
            # At the end of a stage the metrics of this round decide which candidates' roots are queried next.
            if number + 1 not in ends:
                root = root_ahead(terms, rows, number + 1, going[0].ground, ahead, _roots_of(going))
            _, ended, sums = yield from end_and_begin(terms, None, end, root)
        except TrainingStopped:
            break
        exponents, _, _, by_set = split_end(terms, end, ended)
        if not number:  # validation rows are the same in every round
            _check_rows(terms, ended, scales)
        for candidate in going:
            candidate.scores.append(_score(terms, by_set, candidate.number))
        if number + 1 in ends:
            going = sorted(_best_first(going)[: ends[number + 1]], key=lambda kept: kept.number)
    return Outcome(no_model(terms, terms.objective.loss.xgboost_equivalent), _summary(terms, candidates))


def _check_rows(terms: Terms, ended: Int64, scales: Scales) -> None:
    """Raise ConfigError unless there are enough validation rows to publish their metrics."""
    told = metrics.published(terms.metrics, terms.sets, ended, scales.weight)
    if f"{VALIDATION}-{terms.metrics[-1]}" not in told:
        raise ConfigError(
            "tune-few-rows",
            f"comparing candidates requires at least {metrics.MIN_ROWS} validation rows (weighted rows count "
            f"as fractions of the heaviest row): mark more rows in the table, or draw a larger share",
        )


def _score(terms: Terms, by_set: dict[str, float], number: int) -> float:
    """Return a candidate's last metric on the validation rows, negated if higher values are better. Raises
    ConfigError if the metric is undefined."""
    watched = own_name(terms.metrics[-1])
    value = by_set[f"{VALIDATION}-{number}/{watched}"]
    if math.isnan(value):
        raise ConfigError(
            "metric-undefined",
            f"{watched} is undefined, because all validation rows have the same label: mark other rows, draw "
            f"a larger share, or put another eval_metric last",
        )
    return -value if grows(watched) else value


def _best_first(candidates: list[Candidate]) -> list[Candidate]:
    """Sort candidates by the score of their best round; ties go to the lower candidate number."""
    return sorted(candidates, key=lambda each: (min(each.scores, default=np.inf), each.number))


def _summary(terms: Terms, candidates: list[Candidate]) -> dict[str, Any]:
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


# ---- The trees of a round of candidates -----------------------------------------------------------------


def _roots_of(going: list[Candidate]) -> tuple[int, ...]:
    return tuple(each.number for each in going)


def _grow_side_by_side(
    terms: Terms, rows: int, number: int, going: list[Candidate], scales: Scales, sums: Int64 | None
) -> Generator[OfTurn, Int64, tuple[Tree, Splits]]:
    """Grow the trees of all remaining candidates. Returns them as one `Tree`, and the splits not yet sent."""
    # Each candidate grows its own tree, with its own node numbers. Parties see one tree: `_Forest` renumbers
    # nodes, and answers are concatenated in the order of the candidates that still grow.
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
    """The growing tree of one candidate."""

    frontier: Frontier
    number: list[int]
    """Maps node number in this tree -> node number in the whole round."""


class _Forest:
    """Trees of all candidates in a round. Their nodes are numbered as in a single tree: first the roots, then
    children in the order of splits."""

    def __init__(self, roots: int, trees: list[_Growing]) -> None:
        self._roots = self._size = roots
        self._trees = trees
        self.new_splits = NO_SPLITS

    def split(self, trees: list[_Growing]) -> list[_Growing]:
        """Split the leaves whose turn it is in each of these trees. Returns the trees that can still grow."""
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
        """All trees combined into one `Tree`. The root of a dropped candidate is a leaf with value 0."""
        nodes, categories = new_leaves(self._size)
        for each in self._trees:
            own, number = each.frontier.growing.tree, np.array(each.number)
            nodes[number], categories[number] = own.nodes, own.categories
            nodes["left"][number] = np.where(own.inner, number[own.left], NO_CHILD)
        return Tree(nodes, categories)
