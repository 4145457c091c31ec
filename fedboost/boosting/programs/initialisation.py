"""The queries before the first tree: scales, cut points, the constant to start from; and the model that
begins with it.

Promises: pure functions of the terms and the sums; cut points and constant are the same for every partition
of the rows.
Refuses: labels or weights with nothing to learn (ConfigError).
"""

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass

import numpy as np

from fedboost.boosting.queries.base import CONSTANT_TREE, MAX_ROWS
from fedboost.boosting.queries.columns import BinsQuery, QuantileQuery, are_weighted, weight_scale
from fedboost.boosting.queries.labels import (
    RESIDUAL_BITS,
    RESIDUAL_TURNS,
    START_BITS,
    ResidualQuery,
    RowsQuery,
    StartQuery,
)
from fedboost.boosting.queries.union import OfTurn, Query, together
from fedboost.errors import ConfigError, PeerError, TreeAborted, quoted
from fedboost.fixedpoint import EXPONENT_CELLS, Float32, Int64, Scale, bound_exponent, lower_bound
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import KEY_BITS, MAX_REFINEMENTS, CutPoints, Grids, Quantiles, keys_to_floats
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.sampling import MIN_PROBABILITY_FACTOR, mvs_threshold
from fedboost.gbdt.target_means import NO_MEANS, TargetMeans
from fedboost.gbdt.tree import NO_SPLITS, Splits, Tree
from fedboost.protocol.parts import UNTOLD_SCORE
from fedboost.terms.terms import Terms

# ---- Leaf renewal: leaf values that are quantiles of the residuals, by counts over ever finer cells -----
# Promises: a value depends on sums of weights over cells of float32 keys alone, so it is the same for every
# partition of the rows; it is the quantile to one part in 2**15.
# Refuses: weights that do not add up (PeerError).


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


# ---- The queries before the first tree: scales, cut points, the constant to start from ------------------


NOTHING_TO_LEARN = (
    "the label is the same in every row of every party, but for rounding: there is nothing to learn"
)
MAX_FLOAT64 = float(np.finfo(np.float64).max)
MAX_COARSER_BITS = 1
"""Bits by which the scale of a tree may be coarser than that of its counts, so that a turn is saved."""
VANISHED_BITS = 21
"""Residuals this many bits below the labels are rounding: a float32 has 24."""


@dataclass(frozen=True)
class Scales:
    """The public fixed-point scales of the next tree and of the metrics after it."""

    gradient: Scale
    hessian: Scale
    weight: Scale
    threshold: float = 0.0
    """Threshold by which rows are sampled for the next tree by their gradient norms; 0 for other sampling."""

    @classmethod
    def of(cls, terms: Terms, exponents: Int64) -> "Scales":
        """Make scales from the bounds of the loss, else from the summed exponent counts."""
        gradient, hessian, weight = exponents.reshape(3, EXPONENT_CELLS)
        bounds = terms.objective.loss.bounds or (bound_exponent(gradient), bound_exponent(hessian))
        weight_scale = terms.known_weight_scale or Scale(bound_exponent(weight), terms.bits)
        scales = [Scale(bound + weight_scale.exponent, terms.bits) for bound in bounds]
        return cls(scales[0], scales[1], weight_scale)

    def for_sampling(self, terms: Terms, norms: Int64) -> "Scales":
        """Scales of a tree whose rows are sampled by gradient norms; norms: their counts.

        A row of norm s is divided by its probability, which is s / threshold, or 1, or more than s /
        threshold (the minimum). As |gradient| <= s and sqrt(reg_lambda) hessian <= s, a gradient becomes at
        most the larger of itself and the threshold, a hessian of itself and threshold / sqrt(reg_lambda); and
        neither more than itself over the minimum."""
        if not terms.draws.by_gradient_norm:
            return self
        if (norms < 0).any():
            raise PeerError("sizes of gradients are counted fewer than no times")
        threshold = mvs_threshold(norms, terms.draws.subsample)
        heaviest = math.frexp(1.0 / (MIN_PROBABILITY_FACTOR * terms.draws.subsample))[1]
        root = math.sqrt(terms.trees.reg_lambda)
        bounds = threshold, threshold / root if root else math.inf
        gradient, hessian = (
            Scale(max(scale.exponent, min(scale.exponent + heaviest, _exponent(bound))), scale.bits)
            for scale, bound in zip((self.gradient, self.hessian), bounds, strict=True)
        )
        return Scales(gradient, hessian, self.weight, threshold)

    def ahead(
        self, terms: Terms, exponents: Int64 | None = None, values: tuple[tuple[int, float], ...] = ()
    ) -> "Scales | None":
        """Scales of the next tree that hold before its gradients are counted; None if there are none, or
        much coarser ones than the counts will give.

        exponents, values: the counts before the tree that grows, and its leaf values; without them it is the
        constant, which may bring gradients of any size close to 0."""
        loss = terms.objective.loss
        if not terms.shares_turns or terms.draws.by_gradient_norm:
            return None
        if loss.bounds is not None:
            return self
        if exponents is None:
            return None
        gradient, hessian, _ = exponents.reshape(3, EXPONENT_CELLS)
        counted = bound_exponent(gradient), bound_exponent(hessian)
        step = terms.trees.num_parallel_tree * max(abs(value) for _, value in values)
        bounds = loss.bounds_after(math.ldexp(1.0, counted[0]), math.ldexp(1.0, counted[1]), step)
        if bounds is None:
            return None
        grown = [_tight_exponent(bound) for bound in bounds]
        if any(now > before + MAX_COARSER_BITS for now, before in zip(grown, counted, strict=True)):
            return None
        pair = [Scale(exponent + self.weight.exponent, terms.bits) for exponent in grown]
        return Scales(pair[0], pair[1], self.weight)


def _tight_exponent(bound: float) -> int:
    """The smallest e with bound <= 2**e."""
    fraction, exponent = math.frexp(min(bound, MAX_FLOAT64))
    return exponent - (fraction == 0.5)


def _exponent(bound: float) -> int:
    """The smallest e with bound <= 2**e, or one more."""
    return math.frexp(min(bound, MAX_FLOAT64))[1]


def count(terms: Terms) -> Generator[OfTurn, Int64, tuple[int, Int64, Int64 | None]]:
    """The rows of all parties; exponent counts of gradients, hessians and weights where margins begin; the
    counts over the first grids, if they share the turn."""
    numeric = len(terms.columns.numeric)
    # Where cells are encrypted their bits cost more than a turn; where rows are weighed these tell the scale.
    alone = terms.protection.uses_key_holder or are_weighted(terms)
    if not numeric or not terms.shares_turns or alone:
        counts = yield RowsQuery()
        return count_rows(counts), counts[1:], None
    # The rows are not known yet, so that the cells of the grids hold any number of them.
    grids = QuantileQuery(MAX_ROWS - 1, Grids.first(numeric))
    counts, coarse = yield from together(terms, RowsQuery(), grids)
    return count_rows(counts), counts[1:], coarse


def count_rows(counts: Int64) -> int:
    """The rows of all parties, from the sum of a RowsQuery. PeerError for counts that cannot be."""
    rows = int(counts[0])
    if not 0 < rows < MAX_ROWS or (counts < 0).any():
        raise PeerError(f"the parties count {rows} rows in all, or fewer than none of some exponent")
    return rows


def find_cut_points(
    terms: Terms, rows: int, exponents: Int64, coarse: Int64 | None = None
) -> Generator[OfTurn, Int64, CutPoints]:
    """Cut points of every feature: of numeric ones by grid refinement, of the others by the categories of the
    terms, in rows or not. exponents: those of a RowsQuery; coarse: the counts over the first grids, if
    they were asked before. Where the owners of columns alone know cut points, those of numeric ones are bin
    numbers."""
    if terms.hides_columns:
        return (yield from number_bins(terms))
    quantiles, weight = start_quantiles(terms, rows, exponents)
    for _ in range(MAX_REFINEMENTS):
        if not quantiles.grids.cells:
            break
        counts = (yield QuantileQuery(rows, quantiles.grids, weight)) if coarse is None else coarse
        coarse = None
        quantiles.refine(counts)
    return quantiles.cut_points().with_categories(terms.columns.category_counts)


def start_quantiles(
    terms: Terms, rows: int, exponents: Int64, features: int | None = None
) -> tuple[Quantiles, Scale | None]:
    """The quantiles of numeric features before any count, and the scale of weights if rows count by them.
    features: in place of the number of numeric ones."""
    max_bin, numeric = terms.histograms.max_bin, features or len(terms.columns.numeric)
    if not are_weighted(terms):
        return Quantiles(max_bin, rows, numeric), None
    weights = exponents.reshape(3, EXPONENT_CELLS)[2]
    scale = weight_scale(terms, rows, bound_exponent(weights))
    # Where all weights are whole numbers, as in a table with each row as often as it weighs.
    two_rows = max(int(2 * min(lower_bound(weights), 1.0) * scale.factor), 1)
    return Quantiles(max_bin, scale.limit * rows, numeric, two_rows=two_rows), scale


def number_bins(terms: Terms) -> Generator[OfTurn, Int64, CutPoints]:
    """Cut points 1, 2, ... of every numeric feature, as many as its owner says it has. PeerError for more
    bins than there can be."""
    numeric = len(terms.columns.numeric)
    sizes, missing = np.zeros((2, numeric), np.int64)
    if numeric:
        sizes, missing = (yield BinsQuery(numeric)).reshape(2, numeric)
    most = np.minimum(terms.histograms.max_bin, MAX_CODES - missing)
    wrong = np.flatnonzero((sizes < 0) | (sizes >= most) | (missing & 1 != missing))
    if wrong.size:
        name = terms.columns.numeric[wrong[0]]
        raise PeerError(
            f"column {quoted(name)} is said to have {sizes[wrong[0]]} cut points, or no such bins"
        )
    unnumbered = CutPoints(np.zeros(sizes.sum(), np.float32), sizes, missing > 0)
    return unnumbered.numbered.with_categories(terms.columns.category_counts)


def start_query(
    rows: int, cut_points: CutPoints, scales: Scales, means: tuple[Float32, ...] = ()
) -> StartQuery:
    """The query that sends the cut points, and means of levels, and asks for the sums that boosting starts
    from."""
    gradient = Scale(scales.gradient.exponent, START_BITS)
    hessian = Scale(scales.hessian.exponent, START_BITS)
    return StartQuery(rows, cut_points, gradient, hessian, means)


def known_base_score(terms: Terms) -> float | None:
    """The constant prediction of the terms, or of the model they continue; None if it has to be found."""
    score = terms.objective.base_score if terms.earlier is None else terms.earlier.base_score
    return None if score is None else float(np.float32(score))


def constant_values(terms: Terms, score: float) -> tuple[tuple[int, float], ...]:
    """The constant as leaf values: of each output's first tree. Where a model is continued, margins have it
    already."""
    constant = terms.objective.loss.margin(score) if terms.earlier is None else 0.0
    first = terms.roots[:: terms.trees.num_parallel_tree]
    return tuple((root, constant if root in first else 0.0) for root in terms.roots)


def check_start(terms: Terms, total: Int64) -> None:
    """Raise ConfigError unless these sums of a StartQuery leave something to learn."""
    if total[1] <= 0 and terms.columns.group is not None:
        raise ConfigError(
            "no group of any party has rows of different labels, and a weight: nothing to learn"
        )
    if total[1] <= 0:
        raise ConfigError(
            "the row weights of all parties sum to zero: there is nothing to learn"
            if terms.columns.base_margin is None and terms.earlier is None
            else "the row weights of all parties sum to zero, or the margins they begin at leave nothing to "
            "learn"
        )


def mean_label(terms: Terms, gradient: float, hessian: float) -> float:
    """The best constant prediction of rows, from their sums; with base margins that of a row whose own is
    0."""
    loss = terms.objective.loss
    if terms.columns.base_margin is not None:
        return float(loss.predict(np.array([loss.base_margin_shift(gradient, hessian)]))[0])
    return loss.base_score(gradient, hessian)


def find_base_score(
    terms: Terms, rows: int, cut_points: CutPoints, scales: Scales, means: tuple[Float32, ...] = ()
) -> Generator[OfTurn, Int64, float]:
    """The constant prediction: the one of the terms or of the model they continue, or the best for all rows;
    with base margins that of a row whose own is 0. Sends the cut points."""
    query = start_query(rows, cut_points, scales, means)
    gradient, hessian = query.gradient, query.hessian
    total = yield query
    check_start(terms, total)
    sums = gradient.decode(int(total[0])), hessian.decode(int(total[1]))
    quantile = terms.objective.loss.quantile
    known = known_base_score(terms)
    if known is not None:
        score = known
    elif quantile is not None:
        narrowing = Narrowing(quantile, (0,))
        for _ in range(RESIDUAL_TURNS):
            narrowing.take((yield narrowing.query(rows, CONSTANT_TREE, NO_SPLITS, scales.weight)))
        if narrowing.all_alike:
            raise ConfigError(NOTHING_TO_LEARN)
        (score,) = narrowing.values
    else:
        score = mean_label(terms, *sums)
    return float(np.float32(score))


def model_of(terms: Terms, score: float, trees: Iterable[Tree], means: TargetMeans = NO_MEANS) -> Booster:
    """The model of these trees, which started from this constant prediction, behind the trees of the model
    that is continued. means: of levels.

    XGBoost adds base margins instead of the base score. So where there are any, the constant is a tree
    of one leaf, the first of a round of its own, and the base score the prediction of margin 0.
    """
    columns = terms.columns
    kind = terms.trees.num_parallel_tree, tuple(columns.categorical), means
    if terms.earlier is not None:
        trees = *terms.earlier.trees, *trees
    if columns.base_margin is None or terms.earlier is not None:
        return Booster(terms.objective.loss, score, columns.features, tuple(trees), *kind)
    leaves = [Tree() for _ in range(terms.trees.num_parallel_tree)]
    for number, leaf in enumerate(leaves):
        leaf.add_leaf(0.0 if number else terms.objective.loss.margin(score), 0.0)
    neutral = float(terms.objective.loss.predict(np.zeros(1))[0])
    return Booster(terms.objective.loss, neutral, columns.features, (*leaves, *trees), *kind)


def no_model(terms: Terms, loss: Objective | None = None) -> Booster:
    """The model without trees of a session that trains none. loss: in place of that of the terms."""
    kind = terms.trees.num_parallel_tree, tuple(terms.columns.categorical)
    return Booster(loss or terms.objective.loss, UNTOLD_SCORE, terms.columns.features, (), *kind)


def residuals_vanish(before: Int64, after: Int64) -> bool:
    """True if the constant left gradients no larger than the rounding of float32 labels."""
    first, now = before[:EXPONENT_CELLS], after[:EXPONENT_CELLS]
    return not now.any() or bound_exponent(now) < bound_exponent(first) - VANISHED_BITS
