"""The queries before the first tree: matched rows, means of levels, scales, cut points, the constant to start
from; and the model that begins with it. Also joint predictions, which match rows first.

Promises: pure functions of the terms and the sums; cut points and constant are the same for every partition
of the rows.
Refuses: labels or weights with nothing to learn (ConfigError).
"""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedboost.boosting.queries import OfTurn, Query, together
from fedboost.boosting.queries.base import CONSTANT_TREE, MAX_ROWS
from fedboost.boosting.queries.columns import BinsQuery, QuantileQuery, are_weighted, weight_scale
from fedboost.boosting.queries.ids import (
    UNKNOWN,
    AlignQuery,
    IdCountQuery,
    PlacesQuery,
    ReachQuery,
    check_predicted,
    few_in_common,
    hash_of,
)
from fedboost.boosting.queries.labels import (
    RESIDUAL_BITS,
    RESIDUAL_TURNS,
    START_BITS,
    LevelSumsQuery,
    ResidualQuery,
    RowsQuery,
    StartQuery,
)
from fedboost.errors import ConfigError, PeerError, Refused, TreeAborted, quoted
from fedboost.fixedpoint import EXPONENT_CELLS, Float32, Float64, Int64, Scale, bound_exponent, lower_bound
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import (
    KEY_BITS,
    MAX_REFINEMENTS,
    CutPoints,
    Grids,
    Quantiles,
    count_cells,
    keys_to_floats,
)
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.metrics import DIGITS
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.sampling import MIN_PROBABILITY_FACTOR, mvs_threshold
from fedboost.gbdt.target_means import FOLDS, NO_MEANS, LevelMeans, TargetMeans
from fedboost.gbdt.tree import NO_SPLITS, Splits, Tree
from fedboost.privacy.points import TOKEN_WORDS, Tokens, intersect
from fedboost.protocol.contracts import GrownTrees
from fedboost.protocol.parts import UNTOLD_SCORE
from fedboost.terms.terms import Terms, slots_of

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
        self.inside: Int64 = np.zeros(0, np.int64)
        self.total: Int64 = np.zeros(0, np.int64)

    def query(self, rows: int, tree: int, splits: Splits, weight: Scale) -> ResidualQuery:
        """The next query."""
        starts = tuple(self._starts.tolist())
        return ResidualQuery(rows, tree, splits, self._nodes, starts, self._width, weight)

    def take(self, sums: Int64) -> None:
        """Take in the answer. PeerError if the weights of the subcells do not sum to that of the cell."""
        cells = sums.reshape(len(self._nodes), -1)
        inside = cells.sum(axis=1)
        if not self.total.size:
            self.total, self.inside = inside, inside.copy()
        if (cells < 0).any() or (inside != self.inside).any():
            raise PeerError("the weights of residuals do not sum to those of the cell they are in")
        until = np.cumsum(cells, axis=1)
        self._width -= RESIDUAL_BITS
        for number, total in enumerate(self.total.tolist()):
            rank = max(math.ceil(self._quantile * total), 1) - int(self._below[number])
            cell = min(int(np.searchsorted(until[number], rank)), cells.shape[1] - 1)
            self._below[number] += until[number, cell] - cells[number, cell]
            self.inside[number] = cells[number, cell]
            self._starts[number] += cell << self._width

    @property
    def values(self) -> list[float]:
        """The number of each cell that is nearest to 0; 0 where no row has a weight."""
        last = self._starts + (1 << self._width) - 1
        keys = np.where(self._starts >> (KEY_BITS - 1), self._starts, last)  # numbers below 0 come first
        numbers: list[float] = np.where(self.total > 0, keys_to_floats(keys), np.float32(0.0)).tolist()
        return numbers


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

    @property
    def pair(self) -> tuple[Scale, Scale]:
        """Those of gradients and hessians."""
        return self.gradient, self.hessian

    @property
    def of_start(self) -> tuple[Scale, Scale]:
        """Those of gradients and hessians in the sums that boosting starts from."""
        return Scale(self.gradient.exponent, START_BITS), Scale(self.hessian.exponent, START_BITS)

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
        bounds = threshold, min(threshold / root if root else math.inf, MAX_FLOAT64)
        exponents = [math.frexp(bound)[1] for bound in bounds]
        gradient, hessian = (
            Scale(max(scale.exponent, min(scale.exponent + heaviest, exponent)), scale.bits)
            for scale, exponent in zip((self.gradient, self.hessian), exponents, strict=True)
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
        # The smallest e with bound <= 2**e.
        fractions, exponents_after = np.frexp(np.minimum(bounds, MAX_FLOAT64))
        grown = (exponents_after - (fractions == 0.5)).tolist()
        if any(now > before + MAX_COARSER_BITS for now, before in zip(grown, counted, strict=True)):
            return None
        pair = [Scale(exponent + self.weight.exponent, terms.bits) for exponent in grown]
        return Scales(pair[0], pair[1], self.weight)


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
    query = StartQuery(rows, cut_points, *scales.of_start, means)
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
        if (narrowing.inside == narrowing.total).all():  # all residuals are in one cell
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


# ---- Levels as means of the label: one query for the sums by level, and means and cut points from them --
# A bucket's mean is smoothed: SMOOTHING rows of the overall mean are added to it. Rows of a fold get the
# mean over the other folds. Means tell sums of labels by subtraction: each from all of a bucket, and all
# told buckets from all rows. So a bucket of fewer rows than `min_count` has the overall mean, folds with
# fewer are joined to others of their bucket, and the rows without a mean of their own are none, or as many.
# So of one column no sum of labels over fewer than `min_count` rows follows from the means. Columns whose
# levels are nearly the same rows are not held against each other.


SMOOTHING = 10.0
"""Rows of the overall mean in each mean: of 1, 3, 5, 10 and 20 the best where 200,000 rows had 20,000
levels."""


@dataclass(frozen=True)
class Levels:
    """What columns of levels become: means of each, float32 [buckets, folds], and their cut points."""

    means: tuple[Float32, ...] = ()
    cut_points: tuple[CutPoints, ...] = ()

    def among(self, cut_points: CutPoints, terms: Terms) -> CutPoints:
        """The cut points of all features, from those of the others."""
        if not self.cut_points:
            return cut_points
        head = cut_points.head(len(terms.columns.numeric))
        parts = (head, *self.cut_points)
        values, sizes, missing = (np.concatenate([getattr(p, name) for p in parts]) for name in _ARRAYS)
        return CutPoints(values, sizes, missing).with_categories(terms.columns.category_counts)

    def of_model(self, terms: Terms) -> TargetMeans:
        """The means that a model has."""
        names = terms.columns.target_means
        return {name: LevelMeans.of(means[:, -1]) for name, means in zip(names, self.means, strict=True)}


_ARRAYS = "values", "sizes", "missing"


def find_levels(
    terms: Terms, rows: int, scales: Scales, exponents: Int64
) -> Generator[OfTurn, Int64, Levels]:
    """The means of levels, and the cut points among them. exponents: those of a RowsQuery."""
    slots = slots_of(terms)
    if not slots:
        return Levels()
    sizes = tuple(each.with_missing for each in slots.values())
    _, weight = start_quantiles(terms, rows, exponents, features=1)
    query = LevelSumsQuery(rows, sizes, *scales.of_start, weight=weight)
    sums, *counts = parts_of(query, (yield query))
    totals = [own.sum(axis=0).tolist() for own in by_column(query, sums)]
    if any(total != totals[0] for total in totals):
        raise PeerError("the labels of one column of levels sum to others than those of another")
    check_start(terms, np.array(totals[0], np.int64))
    if any((each < 0).any() for each in counts) or any(
        own.sum() != rows for own in by_column(query, counts[0])
    ):
        raise PeerError(f"the rows of all levels of a column are not the {rows} rows there are")
    columns = zip(*(by_column(query, each) for each in (sums, counts[0], counts[-1])), strict=True)
    means, cut_points = [], []
    for own_sums, own_counts, units in columns:
        own = _means(terms, query, own_sums.reshape(-1, FOLDS + 1, STATS), own_counts.reshape(-1, FOLDS + 1))
        means.append(own)
        quantiles, _ = start_quantiles(terms, rows, exponents, features=1)
        cut_points.append(lay_cut_points(own, units, quantiles))
    return Levels(tuple(means), tuple(cut_points))


def parts_of(query: LevelSumsQuery, total: Int64) -> list[Int64]:
    """Sums of gradients and hessians [slots, 2], then counts of rows [slots], then of their weights."""
    pairs, *counts = np.split(total, np.cumsum([segment.cells for segment in query.segments])[:-1])
    return [pairs.reshape(-1, STATS), *counts]


def by_column(query: LevelSumsQuery, values: Int64) -> list[Int64]:
    return np.split(values, np.cumsum(query.slots)[:-1])


def _means(terms: Terms, query: LevelSumsQuery, sums: Int64, counts: Int64) -> Float32:
    """The means of a column, float32 [buckets, FOLDS + 1]. sums: int64 [buckets + 1, FOLDS + 1, 2]; counts:
    int64 [buckets + 1, FOLDS + 1], the last bucket of missing values."""
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
    """The buckets that have means of their own: those of `floor` rows or more, but for the first if the other
    rows are too few. rows: of each bucket, and last those with missing values."""
    told = np.flatnonzero(rows[:-1] >= floor)
    rest = int(rows.sum() - rows[told].sum())
    return told[1:] if 0 < rest < floor else told


def _of_groups(pairs: Int64, rows: Int64, floor: int) -> Int64:
    """Sums over the group of folds that each fold is in: int64 [buckets, FOLDS, 2]. A group has `floor`
    rows, or is all folds of its bucket."""
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
    """To as many significant digits as published metrics: all could tell exact sums of a few rows."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in values.reshape(-1)]).reshape(values.shape)


def lay_cut_points(means: Float32, units: Int64, quantiles: Quantiles) -> CutPoints:
    """Cut points as counts over grids of the encoded column would give. units: what the rows of each slot
    count."""
    values = np.append(means, np.full(units.size - means.size, np.float32(np.nan)))
    for _ in range(MAX_REFINEMENTS):
        if not quantiles.grids.cells:
            break
        quantiles.refine(count_cells([values], quantiles.grids, units=units))
    return quantiles.cut_points()


# ---- Matched rows: the queries that match rows by their ids before all others, and joint predictions ----
# The places of a party's rows do not depend on what other blocks have. Lists that no parties can have told
# are refused (PeerError), and too many ids or too few common rows (Refused).


def align(terms: Terms) -> Generator[OfTurn, Int64, None]:
    """Have the parties of each block agree on the rows that all of them have."""
    counts = yield IdCountQuery(len(terms.parties))
    query = AlignQuery(tuple(counts.tolist()))
    query.check(terms)
    places = places_of(terms, query, (yield query))
    if int((yield places)[0]) != places.total:
        raise PeerError(f"the label holders have other rows than the {places.total} in common")


def places_of(terms: Terms, query: AlignQuery, tokens: Int64) -> PlacesQuery:
    """The places of the common rows, or of all rows of the label holder, from the tokens of all lists."""
    lists = lists_of(terms, query, tokens)
    if terms.vertical.takes_all_rows:
        of_all = PlacesQuery(*known_places(terms, lists))
        of_all.check(terms)
        return of_all
    places: dict[str, Int64] = {}
    total = 0
    for block in terms.blocks:
        common = matched(lists, block.parties)
        rows, fewest = common[0].size, terms.vertical.fewest_common_rows
        if rows < fewest:
            raise Refused(few_in_common(rows, fewest, block.parties))
        places |= dict(zip(block.parties, common, strict=True))
        total += rows
    told = [places[party] for party in terms.parties]
    return PlacesQuery(total, tuple(own.size for own in told), np.concatenate(told))


def known_places(terms: Terms, lists: Mapping[str, Tokens]) -> tuple[int, tuple[int, ...], Int64]:
    """The fields of places of all rows of the label holder, in the order of its list: how many they are, how
    many places are told of each party, and the places, UNKNOWN where a feature holder does not have the
    row; of the label holder a hash of which rows each of these has."""
    (block,) = terms.blocks
    holder = block.label_holder
    rows = len(lists[holder])
    places: dict[str, Int64] = {}
    for party in block.feature_holders:
        own, theirs = matched(lists, (holder, party))
        places[party] = np.full(rows, UNKNOWN, np.int64)
        places[party][own] = theirs
    places[holder] = np.concatenate([hash_of(own != UNKNOWN) for own in places.values()])
    told = [places[party] for party in terms.parties]
    return rows, tuple(own.size for own in told), np.concatenate(told)


def lists_of(terms: Terms, query: AlignQuery, tokens: Int64) -> dict[str, Tokens]:
    """The tokens of each party's list: uint32 [ids, 4]."""
    ends = np.cumsum(query.sizes)[:-1]
    words = tokens.astype(np.uint32).reshape(-1, TOKEN_WORDS)
    return dict(zip(terms.parties, np.split(words, ends), strict=True))


def matched(lists: Mapping[str, Tokens], parties: Sequence[str]) -> list[Int64]:
    """The places in the lists of these parties of the tokens that all of them have: int64 [common] each.
    PeerError, which names the parties, for a list with a token twice."""
    try:
        return intersect([lists[party] for party in parties])
    except PeerError as error:
        raise PeerError(f"row ids of parties {', '.join(parties)}: {error}") from None


# ---- The prediction of rows by parties that hold different columns: three turns, whatever the trees -----


def predict(terms: Terms, grown: GrownTrees) -> Generator[OfTurn, Int64, Booster]:
    """Have the feature holders tell the label holder which leaves its rows reach. A model without trees: the
    aggregator has none."""
    counts = yield IdCountQuery(len(terms.parties))
    query = AlignQuery(tuple(counts.tolist()))
    (block,) = terms.blocks
    check_predicted(terms, query.sizes[terms.parties.index(block.label_holder)])
    query.check(terms)
    reach = reach_of(terms, query, (yield query))
    reach.check(terms)
    if int((yield reach)[0]) != reach.total:
        raise PeerError(f"the label holder has predicted other rows than the {reach.total} there are")
    return no_model(terms)


def reach_of(terms: Terms, query: AlignQuery, tokens: Int64) -> ReachQuery:
    """The places of the rows that are predicted, from the tokens of all lists."""
    return ReachQuery(*known_places(terms, lists_of(terms, query, tokens)))
