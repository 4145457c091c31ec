"""Steps before the first tree: matching rows, and choosing scales, cut points, target means and the constant
from which boosting starts. The module also builds the model, replaces leaf values by quantiles of residuals,
and runs joint predictions.

Guarantees: all results are pure functions of the terms and the sums. Cut points and the constant do not
depend on how the rows are distributed among the parties.
Raises: ConfigError if there is nothing to learn from the labels or weights."""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedboost.boosting.queries import OfTurn, Query, ids, labels, together
from fedboost.boosting.queries.base import CONSTANT_TREE, MAX_ROWS
from fedboost.boosting.queries.columns import BinsQuery, QuantileQuery, are_weighted, weight_scale
from fedboost.errors import ConfigError, PeerError, Refused, TreeAborted, quoted
from fedboost.fixedpoint import EXPONENT_CELLS, Float32, Float64, Int64, Scale, bound_exponent, lower_bound
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import (
    KEY_BITS,
    MAX_REFINEMENTS,
    CutPoints,
    Grids,
    Quantiles,
    keys_to_floats,
)
from fedboost.gbdt.drift import runs_of
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.metrics import DIGITS
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.sampling import MIN_PROBABILITY_FACTOR, mvs_threshold
from fedboost.gbdt.target_means import FOLDS, NO_MEANS, LevelMeans, TargetMeans
from fedboost.gbdt.tree import NO_SPLITS, NO_VALUES, LeafValues, Splits, Tree
from fedboost.privacy.points import TOKEN_WORDS, Tokens, intersect
from fedboost.protocol.contracts import GrownTrees
from fedboost.protocol.parts import UNTOLD_SCORE
from fedboost.terms.tasks import gridded, slots_of
from fedboost.terms.terms import Terms

# ---- Leaf renewal: leaf values that are quantiles of residuals, from counts over finer and finer cells --
# Guarantees: a value depends only on sums of weights over cells of float32 keys, so it does not depend on how
# the rows are distributed among the parties. Its relative precision is 2**-15.


class QuantileSearch:
    """Search for a quantile of each node's residuals. Each turn narrows the cell (a range of float32 keys)
    that contains the quantile.

    Invariant: each node's quantile lies in the cell that begins at the node's entry in `_starts`. `_below` is
    the weight below the cell, `inside` is the weight in the cell, and `total` is the weight of the node, each
    int64 [nodes]."""

    def __init__(self, quantile: float, nodes: tuple[int, ...]) -> None:
        self._quantile = quantile
        self._nodes = nodes
        self._starts: Int64 = np.zeros(len(nodes), np.int64)
        self._width = KEY_BITS
        self._below: Int64 = np.zeros(len(nodes), np.int64)
        self.inside: Int64 = np.zeros(0, np.int64)
        self.total: Int64 = np.zeros(0, np.int64)

    def query(self, rows: int, tree: int, splits: Splits, weight: Scale) -> labels.ResidualQuery:
        starts = tuple(self._starts.tolist())
        return labels.ResidualQuery(rows, tree, splits, self._nodes, starts, self._width, weight)

    def take(self, sums: Int64) -> None:
        """Narrow the cells by the sum of the parties' answers. Raises PeerError if the weights in a cell's
        parts do not sum to the weight of the cell."""
        cells = sums.reshape(len(self._nodes), -1)
        inside = cells.sum(axis=1)
        if not self.total.size:
            self.total, self.inside = inside, inside.copy()
        if (cells < 0).any() or (inside != self.inside).any():
            raise PeerError(
                "sums-inconsistent",
                "the residual weights in a cell's parts do not sum to the weight of the cell",
            )
        until = np.cumsum(cells, axis=1)
        self._width -= labels.RESIDUAL_BITS
        for number, total in enumerate(self.total.tolist()):
            rank = max(math.ceil(self._quantile * total), 1) - int(self._below[number])
            cell = min(int(np.searchsorted(until[number], rank)), cells.shape[1] - 1)
            self._below[number] += until[number, cell] - cells[number, cell]
            self.inside[number] = cells[number, cell]
            self._starts[number] += cell << self._width

    @property
    def values(self) -> list[float]:
        """The quantile of each node: the number nearest to 0 in its cell, or 0 if its rows have no weight."""
        last = self._starts + (1 << self._width) - 1
        keys = np.where(self._starts >> (KEY_BITS - 1), self._starts, last)  # negative numbers have low keys
        numbers: list[float] = np.where(self.total > 0, keys_to_floats(keys), np.float32(0.0)).tolist()
        return numbers


def refresh(
    terms: Terms, rows: int, number: int, splits: Splits, tree: Tree, weight: Scale
) -> Generator[Query, Int64, tuple[Tree, Splits]]:
    """Return a grown tree whose leaf values are quantiles of residuals if the objective requires this, and
    the splits that have still not been sent. The tree keeps its values if its growth is aborted.

    rows: upper bound on the number of rows; number: number of the round; splits: splits not yet sent to any
    party."""
    if terms.objective.loss.quantile is None:
        return tree, splits
    narrowing = QuantileSearch(terms.objective.loss.quantile, tuple(tree.leaves.tolist()))
    for _ in range(labels.RESIDUAL_TURNS):
        try:
            narrowing.take((yield narrowing.query(rows, number, splits, weight)))
        except TreeAborted:
            return tree, splits
        splits = NO_SPLITS
    value = tree.value.copy()
    value[tree.leaves] = np.float32(np.multiply(narrowing.values, terms.trees.leaf_rate))
    return tree.changed(value=value), splits


# ---- The queries before the first tree: scales, cut points, the constant to start from ------------------

NOTHING_TO_LEARN = (
    "there is nothing to learn: the label is the same in every row of every party, except for rounding"
)
MAX_FLOAT64 = float(np.finfo(np.float64).max)
MAX_COARSER_BITS = 1
"""Maximum number of bits by which a tree's scale may be coarser than the scale from exponent counts. A
coarser scale is accepted because it saves a turn."""
VANISHED_BITS = 21
"""Residuals at least this many bits below the labels count as rounding errors (a float32 has 24 bits)."""


@dataclass(frozen=True)
class Scales:
    """Public fixed-point scales of the next tree's sums, and of the metrics computed after that tree."""

    gradient: Scale
    hessian: Scale
    weight: Scale
    threshold: float = 0.0
    """Threshold for sampling rows by their gradient norms; 0 if rows are not sampled by gradient norm."""
    at_risk: labels.Times = ()
    """Sums of the risks in each time bin and later, if the objective has risk sets."""

    @classmethod
    def of(cls, terms: Terms, exponents: Int64) -> "Scales":
        """Compute scales from the bounds on the loss's gradients, or else from the summed exponent counts."""
        gradient, hessian, weight = exponents.reshape(3, EXPONENT_CELLS)
        bounds = terms.objective.loss.bounds or (bound_exponent(gradient), bound_exponent(hessian))
        weight_scale = terms.known_weight_scale or Scale(bound_exponent(weight), terms.bits)
        scales = [Scale(bound + weight_scale.exponent, terms.bits) for bound in bounds]
        return cls(scales[0], scales[1], weight_scale)

    @property
    def pair(self) -> tuple[Scale, Scale]:
        return self.gradient, self.hessian

    @property
    def of_start(self) -> tuple[Scale, Scale]:
        """Scales of the gradient and hessian sums from which the base score is computed."""
        return Scale(self.gradient.exponent, labels.START_BITS), Scale(
            self.hessian.exponent, labels.START_BITS
        )

    def for_sampling(self, terms: Terms, norms: Int64) -> "Scales":
        """Return the scales of the next tree, adjusted if it is sampled. norms: counts of gradient norms."""
        # Gradients of a row with norm s are divided by its probability, which is 1, or s / threshold, or the
        # minimum if that is larger. Since |gradient| <= s and sqrt(reg_lambda) * hessian <= s, a gradient
        # becomes at most max(itself, threshold), and a hessian max(itself, threshold / sqrt(reg_lambda)).
        # Neither becomes more than itself / minimum.
        if not terms.draws.by_gradient_norm:
            return self
        if (norms < 0).any():
            raise PeerError("sums-inconsistent", "a count of gradient norms is negative")
        threshold = mvs_threshold(norms, terms.draws.subsample)
        heaviest = math.frexp(1.0 / (MIN_PROBABILITY_FACTOR * terms.draws.subsample))[1]
        root = math.sqrt(terms.trees.reg_lambda)
        bounds = threshold, min(threshold / root if root else math.inf, MAX_FLOAT64)
        exponents = [math.frexp(bound)[1] for bound in bounds]
        gradient, hessian = (
            Scale(max(scale.exponent, min(scale.exponent + heaviest, exponent)), scale.bits)
            for scale, exponent in zip((self.gradient, self.hessian), exponents, strict=True)
        )
        return Scales(gradient, hessian, self.weight, threshold)

    def with_risk_sets(self, times: labels.TimeGrid, at_risk: labels.Times) -> "Scales":
        """Return the scales of gradients for these risk sets, if these are scales of weight * e**margin."""
        # a hessian is at most weight * e**margin * hazard, and a gradient at most this or the weight
        hazards, _ = times.risk_sets(at_risk).hazards
        hessian = self.hessian.exponent + math.frexp(float(hazards[-1]))[1]
        gradient = max(hessian, self.weight.exponent)
        pair = Scale(gradient, self.gradient.bits), Scale(hessian, self.hessian.bits)
        return Scales(*pair, self.weight, self.threshold, at_risk)

    def ahead(
        self, terms: Terms, exponents: Int64 | None = None, values: LeafValues = NO_VALUES
    ) -> "Scales | None":
        """Return scales for the next tree that can be used before its gradients have been counted. Returns
        None if such scales do not exist, or if they would be much coarser than the scales from counts.

        exponents: exponent counts before the last tree; values: leaf values of the last tree. Both are
        omitted if the last tree is the constant: the constant can reduce gradients of any size to almost 0,
        so bounds derived from earlier gradients would be too coarse."""
        loss = terms.objective.loss
        if not terms.shares_turns or terms.draws.by_gradient_norm:
            return None
        if loss.bounds is not None:
            return self
        if exponents is None:
            return None
        gradient, hessian, _ = exponents.reshape(3, EXPONENT_CELLS)
        counted = bound_exponent(gradient), bound_exponent(hessian)
        step = terms.trees.num_parallel_tree * float(np.abs(values.value).max())
        bounds = loss.bounds_after(math.ldexp(1.0, counted[0]), math.ldexp(1.0, counted[1]), step)
        if bounds is None:
            return None
        # The smallest e with bound <= 2**e.
        fractions, exponents_after = np.frexp(np.minimum(bounds, MAX_FLOAT64))
        grown = (exponents_after - (fractions == 0.5)).tolist()
        if any(now > before + MAX_COARSER_BITS for now, before in zip(grown, counted, strict=True)):
            return None
        pair = [Scale(exponent + self.weight.exponent, terms.bits) for exponent in grown]
        return Scales(pair[0], pair[1], self.weight)


def count(terms: Terms) -> Generator[OfTurn, Int64, tuple[int, Int64, Int64 | None]]:
    """Count the rows of all parties. Returns the number of rows, the exponent counts of gradients, hessians
    and weights at the initial margins, and the counts over the first grids (None if these are not counted in
    the same turn)."""
    numeric = len(gridded(terms))
    # A shared turn needs cells that are wide enough for any number of rows. Under encryption, such cells cost
    # more than a turn. If rows are weighted, the scale of the grids' weights is not known before this sum.
    alone = terms.protection.uses_key_holder or are_weighted(terms)
    if not numeric or not terms.shares_turns or alone:
        counts = yield labels.RowsQuery()
        return count_rows(counts), counts[1:], None
    grids = QuantileQuery(MAX_ROWS - 1, Grids.first(numeric))
    counts, coarse = yield from together(terms, labels.RowsQuery(), grids)
    return count_rows(counts), counts[1:], coarse


def count_rows(counts: Int64) -> int:
    """Return the rows of all parties, from the sum of a RowsQuery. Raises PeerError for impossible counts."""
    rows = int(counts[0])
    if not 0 < rows < MAX_ROWS or (counts < 0).any():
        raise PeerError(
            "sums-inconsistent",
            f"the parties report an impossible number of rows ({rows} in total) or a negative count",
        )
    return rows


def find_cut_points(
    terms: Terms, rows: int, exponents: Int64, coarse: Int64 | None = None
) -> Generator[OfTurn, Int64, CutPoints]:
    """Find the cut points of numeric features by grid refinement, and of categorical features from the terms.
    If only the owner of a column may know its cut points, numeric features get bin numbers instead.

    exponents: exponent counts from a RowsQuery; coarse: counts over the first grids, if already queried."""
    if terms.hides_columns:
        return (yield from number_bins(terms))
    quantiles, weight = start_quantiles(terms, rows, exponents, len(gridded(terms)))
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
    """Create the quantile search for numeric features. Returns the search, and the scale of row weights (None
    if rows are not weighted).

    exponents: exponent counts from a RowsQuery; features: number of features (default: all numeric ones)."""
    max_bin, numeric = terms.histograms.max_bin, features or len(terms.columns.numeric)
    if not are_weighted(terms):
        return Quantiles(max_bin, rows, numeric), None
    weights = exponents.reshape(3, EXPONENT_CELLS)[2]
    scale = weight_scale(terms, rows, bound_exponent(weights))
    # A cell is cut further only if it has this weight: two rows of the smallest weight, but at most two rows
    # of weight 1. With integer weights, the result is the same as for a table with repeated rows.
    two_rows = max(int(2 * min(lower_bound(weights), 1.0) * scale.factor), 1)
    return Quantiles(max_bin, scale.limit * rows, numeric, two_rows=two_rows), scale


def number_bins(terms: Terms) -> Generator[OfTurn, Int64, CutPoints]:
    """Return cut points 1, 2, ... for each numeric feature, as many as its owner reports. Raises PeerError if
    a report is impossible."""
    numeric = len(terms.columns.numeric)
    sizes, missing = np.zeros((2, numeric), np.int64)
    if numeric:
        sizes, missing = (yield BinsQuery(numeric)).reshape(2, numeric)
    most = np.minimum(terms.histograms.max_bin, MAX_CODES - missing)
    wrong = np.flatnonzero((sizes < 0) | (sizes >= most) | (missing & 1 != missing))
    if wrong.size:
        name = terms.columns.numeric[wrong[0]]
        raise PeerError(
            "sums-inconsistent",
            f"the owner of column {quoted(name)} reported an invalid number of cut points "
            f"({sizes[wrong[0]]}) or an invalid missing-value flag",
        )
    unnumbered = CutPoints(np.zeros(sizes.sum(), np.float32), sizes, missing > 0)
    return unnumbered.numbered.with_categories(terms.columns.category_counts)


def known_base_score(terms: Terms) -> float | None:
    """Return the base score (constant prediction) of the model from which training continues, or else the
    base score in the terms. Returns None if the base score has yet to be computed."""
    score = terms.objective.base_score if terms.earlier is None else terms.earlier.base_score
    return None if score is None else float(np.float32(score))


def constant_values(terms: Terms, score: float) -> LeafValues:
    """Return the constant as leaf values: the margin of `score` at the first root of each output, and 0 at
    all other roots. All are 0 if training continues from a model, which already contains the constant."""
    constant = terms.objective.loss.margin(score) if terms.earlier is None else 0.0
    first = terms.roots[:: terms.trees.num_parallel_tree]
    return LeafValues.of((root, constant if root in first else 0.0) for root in terms.roots)


def check_start(terms: Terms, total: Int64) -> None:
    """Raise ConfigError if the sums of a StartQuery show that there is nothing to learn."""
    if total[1] <= 0 and terms.columns.group is not None:
        raise ConfigError(
            "data-nothing-to-learn",
            "there is nothing to learn: every group of every party has weight 0 or equal labels",
        )
    if total[1] <= 0:
        raise ConfigError(
            "data-nothing-to-learn",
            "there is nothing to learn: the row weights of all parties sum to zero"
            if terms.columns.base_margin is None and terms.earlier is None
            else "there is nothing to learn: the row weights of all parties sum to zero, or the initial "
            "margins already fit the labels",
        )


def mean_label(terms: Terms, gradient: float, hessian: float) -> float:
    """Return the best constant prediction for these sums of gradients and hessians. With base margins, it is
    the prediction for a row whose base margin is 0."""
    loss = terms.objective.loss
    if terms.columns.base_margin is not None:
        return float(loss.predict(np.array([loss.base_margin_shift(gradient, hessian)]))[0])
    return loss.base_score(gradient, hessian)


def find_base_score(
    terms: Terms,
    rows: int,
    cut_points: CutPoints,
    scales: Scales,
    means: tuple[Float32, ...] = (),
    times: labels.TimeGrid | None = None,
) -> Generator[OfTurn, Int64, float]:
    """Send the cut points, and determine the base score (the constant prediction from which boosting starts).

    The base score is taken from the terms, or from the model from which training continues. If neither sets
    it, it is the best constant for all rows: `mean_label`, or a quantile. means, times: target means and
    time bins to send (`StartQuery`)."""
    query = labels.StartQuery(rows, cut_points, *scales.of_start, means, times)
    gradient, hessian = query.gradient, query.hessian
    total = yield query
    check_start(terms, total)
    sums = gradient.decode(int(total[0])), hessian.decode(int(total[1]))
    quantile = terms.objective.loss.quantile
    known = known_base_score(terms)
    if known is not None:
        score = known
    elif quantile is not None:
        narrowing = QuantileSearch(quantile, (0,))
        for _ in range(labels.RESIDUAL_TURNS):
            narrowing.take((yield narrowing.query(rows, CONSTANT_TREE, NO_SPLITS, scales.weight)))
        if (narrowing.inside == narrowing.total).all():  # all residuals are in one cell
            raise ConfigError("data-nothing-to-learn", NOTHING_TO_LEARN)
        (score,) = narrowing.values
    else:
        score = mean_label(terms, *sums)
    return float(np.float32(score))


def model_of(terms: Terms, score: float, trees: Iterable[Tree], means: TargetMeans = NO_MEANS) -> Booster:
    """Build the model from the constant prediction `score`, the trees, and the target means to store. If
    training continues from a model, the trees are added to those of that model.

    In XGBoost, base margins replace the base score. With base margins, the constant is therefore stored in a
    separate first round, in trees with a single leaf. The base score is then the prediction at margin 0."""
    columns = terms.columns
    kind = terms.trees.num_parallel_tree, tuple(columns.categorical), means
    if terms.earlier is not None:
        trees = *terms.earlier.trees, *trees
    if columns.base_margin is None or terms.earlier is not None:
        return Booster(terms.objective.loss, score, columns.features, tuple(trees), *kind)
    constant = Tree.leaf(terms.objective.loss.margin(score))
    leaves = constant, *[Tree.leaf()] * (terms.trees.num_parallel_tree - 1)
    neutral = float(terms.objective.loss.predict(np.zeros(1))[0])
    return Booster(terms.objective.loss, neutral, columns.features, (*leaves, *trees), *kind)


def no_model(terms: Terms, loss: Objective | None = None) -> Booster:
    """Return a model without trees, the result of a session that does not train. loss: objective to use
    instead of the objective in the terms."""
    kind = terms.trees.num_parallel_tree, tuple(terms.columns.categorical)
    return Booster(loss or terms.objective.loss, UNTOLD_SCORE, terms.columns.features, (), *kind)


def residuals_vanish(before: Int64, after: Int64) -> bool:
    """Return True if the gradients after adding the constant are no larger than rounding errors of float32
    labels. before, after: exponent counts before and after the constant is added."""
    first, now = before[:EXPONENT_CELLS], after[:EXPONENT_CELLS]
    return not now.any() or bound_exponent(now) < bound_exponent(first) - VANISHED_BITS


# ---- Target means: one query for the sums by level, from which means and cut points are computed --------
# A bucket's mean is smoothed: SMOOTHING rows with the overall mean are added. Rows of a fold get the mean
# over the other folds. Label sums can be derived from means by subtraction: of a fold from its whole bucket,
# and of all buckets with means from all rows. Therefore:
# - a bucket with fewer than `min_count` rows gets the overall mean;
# - folds with fewer rows are joined to others of their bucket;
# - the rows without a mean of their own are none, or at least `min_count`. So from the means of one column,
#   no label sum over fewer than `min_count` rows can be derived. Columns whose levels cover nearly the same
#   rows are not compared with each other.

SMOOTHING = 10.0
"""Each target mean is computed as if there were this many more rows, with the overall mean as their label.
This value was the best of 1, 3, 5, 10 and 20 for 20,000 levels with ten rows each."""


@dataclass(frozen=True)
class Levels:
    """Means, float32 [buckets, folds], and cut points of each target-mean column."""

    means: tuple[Float32, ...] = ()
    cut_points: tuple[CutPoints, ...] = ()

    def among(self, cut_points: CutPoints, terms: Terms) -> CutPoints:
        """Return the cut points of all features, including the target-mean columns. cut_points: cut points of
        the other features."""
        if not self.cut_points:
            return cut_points
        head = cut_points.head(len(terms.columns.numeric))
        parts = (head, *self.cut_points)
        values, sizes, missing = (np.concatenate([getattr(p, name) for p in parts]) for name in _ARRAYS)
        return CutPoints(values, sizes, missing).with_categories(terms.columns.category_counts)

    def of_model(self, terms: Terms) -> TargetMeans:
        """Return the means that the model stores, i.e. the means of the last fold."""
        names = terms.columns.target_means
        return {name: LevelMeans.of(means[:, -1]) for name, means in zip(names, self.means, strict=True)}


_ARRAYS = "values", "sizes", "missing"


def find_levels(
    terms: Terms, rows: int, scales: Scales, exponents: Int64
) -> Generator[OfTurn, Int64, Levels]:
    """Find the target means and the cut points between them. exponents: exponent counts from a RowsQuery."""
    slots = slots_of(terms)
    if not slots:
        return Levels()
    sizes = tuple(each.with_missing for each in slots.values())
    _, weight = start_quantiles(terms, rows, exponents, features=1)
    query = labels.LevelSumsQuery(rows, sizes, *scales.of_start, weight=weight)
    sums, *counts = parts_of(query, (yield query))
    totals = [own.sum(axis=0).tolist() for own in by_column(query, sums)]
    if any(total != totals[0] for total in totals):
        raise PeerError(
            "sums-inconsistent", "the label sums of two target-mean columns have different totals"
        )
    check_start(terms, np.array(totals[0], np.int64))
    if any((each < 0).any() for each in counts) or any(
        own.sum() != rows for own in by_column(query, counts[0])
    ):
        raise PeerError("sums-inconsistent", f"the row counts of the levels of a column do not sum to {rows}")
    columns = zip(*(by_column(query, each) for each in (sums, counts[0], counts[-1])), strict=True)
    means, cut_points = [], []
    for own_sums, own_counts, units in columns:
        own = _means(terms, query, own_sums.reshape(-1, FOLDS + 1, STATS), own_counts.reshape(-1, FOLDS + 1))
        means.append(own)
        quantiles, _ = start_quantiles(terms, rows, exponents, features=1)
        cut_points.append(lay_cut_points(own, units, quantiles))
    return Levels(tuple(means), tuple(cut_points))


def parts_of(query: labels.LevelSumsQuery, total: Int64) -> list[Int64]:
    """Split the sum of a LevelSumsQuery into gradient and hessian sums [slots, 2] and, if the query asks for
    them, row counts [slots] and weights [slots]."""
    pairs, *counts = np.split(total, np.cumsum([segment.cells for segment in query.segments])[:-1])
    return [pairs.reshape(-1, STATS), *counts]


def by_column(query: labels.LevelSumsQuery, values: Int64) -> list[Int64]:
    return np.split(values, np.cumsum(query.slots)[:-1])


def _means(terms: Terms, query: labels.LevelSumsQuery, sums: Int64, counts: Int64) -> Float32:
    """Return the means of a column, float32 [buckets, FOLDS + 1]. sums: int64 [buckets + 1, FOLDS + 1, 2];
    counts: int64 [buckets + 1, FOLDS + 1]. In both, the last bucket is for missing values."""
    factors, floor = np.array([query.gradient.factor, query.hessian.factor]), terms.evaluation.min_count
    trained, everything = counts[:, :FOLDS], sums.sum(axis=(0, 1)) / factors
    overall, prior = mean_label(terms, *everything.tolist()), SMOOTHING * everything / trained.sum()
    told = _told(trained.sum(axis=1), floor)
    pairs = sums[told, :FOLDS]
    whole = pairs.sum(axis=1, keepdims=True)
    of_others = np.concatenate([whole - _of_groups(pairs, trained[told], floor), whole], axis=1)
    others = of_others / factors + prior
    out = np.full((counts.shape[0] - 1, FOLDS + 1), overall)
    own = [mean_label(terms, *pair) for pair in others.reshape(-1, STATS).tolist()]
    out[told] = overall + _rounded(np.array(own).reshape(-1, FOLDS + 1) - overall)
    return out.astype(np.float32)


def _told(rows: Int64, floor: int) -> Int64:
    """Return the indices of the buckets that get their own means: all buckets with at least `floor` rows. The
    first of these is left out if the overall mean would otherwise be given to at least one row but to fewer
    than `floor` rows. rows: number of rows of each bucket, missing values last."""
    told = np.flatnonzero(rows[:-1] >= floor)
    rest = int(rows.sum() - rows[told].sum())
    return told[1:] if 0 < rest < floor else told


def _of_groups(pairs: Int64, rows: Int64, floor: int) -> Int64:
    """Return, for each fold, the sums over its group of folds, int64 [buckets, FOLDS, 2]. A group has at
    least `floor` rows, or consists of all folds of its bucket."""
    # Fill groups in the order of folds: a group is complete once it has `floor` rows. A last group that stays
    # incomplete is joined to the previous group.
    group, last, held = np.zeros_like(rows), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for fold in range(FOLDS):
        is_full = held >= floor
        last, held = last + is_full, np.where(is_full, 0, held) + rows[:, fold]
        group[:, fold] = last
    too_few = (held < floor)[:, np.newaxis] & (group == last[:, np.newaxis])
    group = np.maximum(group - too_few, 0)
    same = group[:, :, np.newaxis] == group[:, np.newaxis, :]
    joined: Int64 = np.einsum("bij,bjs->bis", same.astype(np.int64), pairs)
    return joined


def _rounded(values: Float64) -> Float64:
    """Round values like published metrics, because more digits could reveal exact sums over a few rows."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in values.reshape(-1)]).reshape(values.shape)


def lay_cut_points(means: Float32, units: Int64, quantiles: Quantiles) -> CutPoints:
    """Return the cut points of a column that is encoded by these means, computed from the row weight in each
    slot. means: float32 [buckets, folds]; units: int64 [slots], the row weights, missing values last."""
    values = np.append(means, np.full(units.size - means.size, np.float32(np.nan)))
    quantiles.count([values], units=units)
    return quantiles.cut_points()


# ---- Risk sets: time bins for objectives whose gradients depend on all rows at risk ---------------------
# Guarantees: each bin has at least `min_count` events of training rows, and no or at least `min_count`
# censored training rows. Bins of validation rows are joined until the same holds for them. What parties
# receive are the sums of the risks in each bin and later, rounded (`told`), so that they hardly depend on any
# single row.

RISK_BITS = 8
"""Maximum number of significant bits of a sum of risks that parties receive."""


def find_times(
    terms: Terms, rows: int, cut_points: CutPoints, weight: Scale
) -> Generator[OfTurn, Int64, tuple[CutPoints, labels.TimeGrid | None]]:
    """Split the cut points of event times off, count events between them, and join them to time bins. Returns
    the cut points of the features, and the time bins (None for objectives without risk sets). weight: scale
    of row weights. Raises ConfigError if there are too few events."""
    if not terms.sums_risk:
        return cut_points, None
    features = cut_points.head(len(terms.columns.numeric)).with_categories(terms.columns.category_counts)
    starts = cut_points.head(len(gridded(terms))).cuts[-1]
    query = labels.TimesQuery(rows, tuple(starts.tolist()), weight, terms.sets)
    counts = (yield query).reshape(len(terms.sets), 3, -1)
    least = terms.evaluation.min_count
    if counts.min() < 0 or counts[:, :2].max() > rows or counts[:, :2].sum() > rows:
        raise PeerError("sums-inconsistent", "the counts of events by time are negative, or exceed the rows")
    if (counts[:, 0].sum(axis=1) < least).any():
        raise ConfigError(
            "survival-few-events",
            f"{terms.objective.name} needs at least {least} events (min_count) among the training rows and "
            f"among the validation rows: use more rows, or another validation_fraction",
        )
    bins = _joined(counts[0, :2], least)
    firsts = np.append(0, bins)
    events = np.add.reduceat(counts[0, 2], firsts) / weight.factor
    others = [np.add.reduceat(own[:2], firsts, axis=1) for own in counts[1:]]
    grids = [bins, *(bins[_joined(own, least) - 1] for own in others)]
    grid, *validation = [tuple(starts[own - 1].tolist()) for own in grids]
    return features, labels.TimeGrid(grid, tuple(events.tolist()), *validation)


def _joined(counts: Int64, least: int) -> Int64:
    """Join neighbouring bins until each has at least `least` events, and no or at least `least` other rows.
    Returns the first bin of each group but the first. counts: int64 [2, bins], events and censored rows."""
    groups = runs_of(counts, lambda held: held[0] >= least and (held[1] == 0 or held[1] >= least))
    return np.array([group[0] for group in groups[1:]], np.int64)


def risk_scale(terms: Terms, exponents: Int64, values: LeafValues) -> Scale:
    """Return the scale of the sums of risks after a tree. exponents: exponent counts of e**margin before the
    tree; values: leaf values of the tree."""
    margin, _, weight = exponents.reshape(3, EXPONENT_CELLS)
    step = terms.trees.num_parallel_tree * max(0.0, float(values.value.max())) / math.log(2.0)
    exponent = bound_exponent(margin) + math.ceil(min(step, MAX_RISK_EXPONENT)) + bound_exponent(weight)
    return Scale(min(exponent, MAX_RISK_EXPONENT), labels.START_BITS)


MAX_RISK_EXPONENT = 200
"""Largest exponent of a scale of risks; larger risks are clipped."""


def told(at_risk: Float64, rows: int) -> tuple[float, ...]:
    """Round the risks in each time bin and later to RISK_BITS significant bits, and to multiples of a power
    of two that is at least the mean risk of a row. rows: number of rows of all parties."""
    # A later number is never rounded above an earlier one, as the steps are powers of two.
    least = np.frexp(at_risk[0] / rows)[1]
    steps = np.ldexp(1.0, np.maximum(np.frexp(at_risk)[1] - RISK_BITS, least))
    return tuple(np.maximum(np.rint(at_risk / steps) * steps, steps).tolist())


# ---- Matched rows: the queries that match rows by their ids, before all others --------------------------
# The row indices that a party receives do not depend on other blocks. Impossible lists raise PeerError; too
# many ids and too few common rows raise Refused.


def align(terms: Terms) -> Generator[OfTurn, Int64, None]:
    """Match each block's rows by id, and send each party the indices of the matched rows in its own list."""
    counts = yield ids.IdCountQuery(len(terms.parties))
    query = ids.AlignQuery(tuple(counts.tolist()))
    query.check(terms)
    places = places_of(terms, query, (yield query))
    if int((yield places)[0]) != places.total:
        raise PeerError(
            "sums-inconsistent",
            f"the row counts of the label holders do not sum to the {places.total} common rows",
        )


def places_of(terms: Terms, query: ids.AlignQuery, tokens: Int64) -> ids.PlacesQuery:
    """Build the query that sends the indices of the common rows, or of all rows of the label holder. tokens:
    sum of the answers to `query`, i.e. the tokens of all lists."""
    lists = lists_of(terms, query, tokens)
    if terms.vertical.takes_all_rows:
        of_all = ids.PlacesQuery(*known_places(terms, lists))
        of_all.check(terms)
        return of_all
    places: dict[str, Int64] = {}
    total = 0
    for block in terms.blocks:
        common = matched(lists, block.parties)
        rows, fewest = common[0].size, terms.vertical.fewest_common_rows
        if rows < fewest:
            raise Refused("align-few-common", ids.few_in_common(rows, fewest, block.parties))
        places |= dict(zip(block.parties, common, strict=True))
        total += rows
    told = [places[party] for party in terms.parties]
    return ids.PlacesQuery(total, tuple(own.size for own in told), np.concatenate(told))


def known_places(terms: Terms, lists: Mapping[str, Tokens]) -> tuple[int, tuple[int, ...], Int64]:
    """Return the fields of a query (`ToldPlaces`) that selects all rows of the label holder, in the order of
    its list.

    The fields are the number of rows, the number of entries for each party, and the entries. For a feature
    holder, the entries are row indices, or UNKNOWN for rows that the party does not have. For the label
    holder, the entries are one hash per feature holder (`hash_of`)."""
    (block,) = terms.blocks
    holder = block.label_holder
    rows = len(lists[holder])
    places: dict[str, Int64] = {}
    for party in block.feature_holders:
        own, theirs = matched(lists, (holder, party))
        places[party] = np.full(rows, ids.UNKNOWN, np.int64)
        places[party][own] = theirs
    places[holder] = np.concatenate([ids.hash_of(own != ids.UNKNOWN) for own in places.values()])
    told = [places[party] for party in terms.parties]
    return rows, tuple(own.size for own in told), np.concatenate(told)


def lists_of(terms: Terms, query: ids.AlignQuery, tokens: Int64) -> dict[str, Tokens]:
    """Return the tokens of each party's list, uint32 [ids, 4]. tokens: sum of the answers to `query`."""
    ends = np.cumsum(query.sizes)[:-1]
    words = tokens.astype(np.uint32).reshape(-1, TOKEN_WORDS)
    return dict(zip(terms.parties, np.split(words, ends), strict=True))


def matched(lists: Mapping[str, Tokens], parties: Sequence[str]) -> list[Int64]:
    """Return, for each party, the indices of the tokens that all these parties have, int64 [common]. Raises
    PeerError, naming the parties, if a list contains a token twice."""
    try:
        return intersect([lists[party] for party in parties])
    except PeerError as error:
        raise PeerError("align-repeated-ids", f"row ids of parties {', '.join(parties)}: {error}") from None


# ---- Joint prediction by parties that hold different columns: three turns, whatever the trees -----------


def predict(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Booster]:
    """Predict jointly: the label holder learns which leaves its rows reach. Returns a model without trees.
    An evaluation begins in the same way."""
    counts = yield ids.IdCountQuery(len(terms.parties))
    query = ids.AlignQuery(tuple(counts.tolist()))
    (block,) = terms.blocks
    ids.check_predicted(terms, query.sizes[terms.parties.index(block.label_holder)])
    query.check(terms)
    reach = reach_of(terms, query, (yield query))
    reach.check(terms)
    if int((yield reach)[0]) != reach.total:
        raise PeerError("sums-inconsistent", f"the label holder did not predict exactly {reach.total} rows")
    return no_model(terms)


def reach_of(terms: Terms, query: ids.AlignQuery, tokens: Int64) -> ids.ReachQuery:
    """Build the query with the indices of the rows to predict. tokens: sum of the answers to `query`."""
    return ids.ReachQuery(*known_places(terms, lists_of(terms, query, tokens)))
