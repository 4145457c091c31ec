"""A party that holds whole rows: `answer` turns a query into one vector of integers.

Promises: the vector depends on this party's rows and the queries so far alone; adding the vectors of all
parties gives what one party with all rows would have answered, bit for bit.
Refuses: queries out of order or that do not fit the tree (PeerError: they come from outside).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never, cast

import numpy as np

from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.columns import (
    BinCountsQuery,
    BinsQuery,
    QuantileQuery,
    RangeQuery,
    SummaryQuery,
)
from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery, ReachQuery
from fedboost.boosting.queries.labels import (
    RESIDUAL_BITS,
    EvaluationQuery,
    LevelSumsQuery,
    MagnitudesQuery,
    ResidualQuery,
    RowsQuery,
    StartQuery,
)
from fedboost.boosting.queries.trees import Elected, EndRoundQuery, HistogramQuery, SumsQuery, VoteQuery
from fedboost.boosting.queries.union import OfTurn, Query, TreeQuery
from fedboost.boosting.state import NOTHING_YET, BoostingState, Values
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt import histogram, metrics, sampling
from fedboost.gbdt.binned import Column
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import STRETCH, CutPoints, count_cells, count_parts
from fedboost.gbdt.drift import Bins as CountedBins
from fedboost.gbdt.drift import bins_of
from fedboost.gbdt.gradients import Gradients, Quantise, in_units
from fedboost.gbdt.histogram import Layout, Rows
from fedboost.gbdt.kernels.bins import weigh_residuals
from fedboost.gbdt.kernels.histogram import sum_pairs
from fedboost.gbdt.partition import UNBINNED, Bins, GrowingRows
from fedboost.gbdt.sampling import AllRows, Bootstrap, Mask, NormSample, RowSampling, Sampler, Subsample
from fedboost.gbdt.target_means import ALL, EncodedColumn, Folds, Slots, folds_of
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import SplitRule, Splits, Tree
from fedboost.holders.shard import Shard, continue_margins
from fedboost.protocol.contracts import MAX_CELLS, Answering, HeldTable
from fedboost.terms.tasks import bins_in
from fedboost.terms.terms import Terms, have_folds, slots_of
from fedboost.version import VERSION

# ---- A party's part in leaf renewal: weights of residuals by cell ---------------------------------------
# Promises: the weights of parties add to those of the pooled rows, bit for bit.


def residual_weights(
    nodes: Sequence[Rows],
    query: ResidualQuery,
    label: Float32,
    margin: Float64,
    weight: Float32,
    threads: Threads,
) -> Int64:
    """Weights of the rows of each node by the cell of their residual: int64 [nodes, 2**RESIDUAL_BITS]."""
    out = np.zeros((len(nodes), 1 << RESIDUAL_BITS), np.int64)
    scale = query.weight.factor, float(query.weight.limit)

    def weigh(piece: tuple[Rows, int, Int64]) -> None:
        rows, start, cells = piece
        weigh_residuals(label, margin, weight, rows, start, query.width, RESIDUAL_BITS, *scale, cells)

    threads.each(weigh, list(zip(nodes, query.starts, out, strict=True)))
    return out


# ---- A party's votes on features, and its own histograms of the nodes that may split --------------------
# Promises: each histogram is built once, and of two siblings only the one with fewer rows here; they leave
# this party as votes, and as the bins of elected features.
# Refuses: more histograms than fit one vector (Refused); elected features with another number of bins than
# in the query (PeerError).


class OwnHistograms:
    """A party's histograms of the nodes of a level, as `histogram.build` makes them."""

    def __init__(self, growing: GrowingRows, bins: Bins, pairs: Int64) -> None:
        """pairs: the packed gradients of all rows, int64 [outputs, rows], the same while a tree grows."""
        self._growing = growing
        self._bins = bins
        self._pairs = pairs
        self._known: dict[int, Int64] = {}

    def clear(self) -> None:
        """Forget all histograms: those of another tree come next."""
        self._known = {}

    def of(self, node: int, limit: int) -> Int64:
        """Histogram of a leaf, and the last pair of its sums; limit: of the gradients' scale."""
        if node not in self._known:
            self._known[node] = self._growing.histograms([node], self._pairs, self._bins, limit)[0]
        return self._known[node]

    def descend(self, splits: Splits, nodes: tuple[int, ...], limit: int, max_cells: int) -> None:
        """Keep the histograms of these nodes alone, after these splits; max_cells: limit of their
        integers."""
        if len(nodes) * self._bins.layout.cells > max_cells:
            raise Refused(
                f"own histograms of {len(nodes)} nodes, more than {max_cells} integers; lower max_depth"
            )
        for split in splits:
            parent = self._known.pop(split.node, None)
            children = split.left, split.left + 1
            if parent is not None and set(children) <= set(nodes):
                fewer, more = sorted(children, key=lambda child: self._growing.of(child).size)
                self._known[more] = parent - self.of(fewer, limit)
        self._known = {node: cells for node, cells in self._known.items() if node in nodes}

    def of_vote(self, query: VoteQuery) -> Int64:
        """The histograms that a vote is by, after its splits: int64 [nodes, cells]."""
        limit, cells = query.gradient.limit, self._bins.layout.cells
        self.descend(query.splits, query.nodes, limit, MAX_CELLS)
        return np.stack([self.of(node, limit)[:cells] for node in query.nodes])

    def elected(self, query: HistogramQuery) -> Int64:
        """The bins of elected features of each node, after the splits; of all features at the root."""
        layout, parts = self._bins.layout, []
        everything = [Elected(layout.features, layout.bins)] * len(query.nodes)
        for node, elected in zip(query.nodes, query.elected or everything, strict=True):
            sums = self.of(node, query.gradient.limit)
            picked = layout.pick(sums[: layout.cells], elected.features)
            if picked.size != histogram.STATS * elected.bins:
                raise PeerError(f"histograms of {elected.bins} bins, the elected features have others")
            parts += [picked, sums[layout.cells :]]
        return np.concatenate(parts)


def votes(query: VoteQuery, terms: Terms, rows: int, layout: Layout, own: Int64) -> Int64:
    """Votes for features of each node, of a party with so many rows and these histograms of them, int64
    [nodes, cells]."""
    rule = terms.rule(query.gradient, query.hessian).scaled(min(rows / query.rows, 1.0))
    return np.concatenate([vote(node, layout, rule, terms.histograms.vote_top_k) for node in own])


def vote(own: Int64, layout: Layout, rule: SplitRule, top: int) -> Int64:
    """1 for the `top` features of highest positive gain, 0 for others: int64 [features].

    Ties go to the lowest feature.
    """
    votes = np.zeros(len(layout.features), np.int64)
    gains = rule.gains(own, layout, histogram.node_total(own, layout))
    best = np.argsort(-gains, kind="stable")[:top]
    votes[best[gains[best] > 0]] = 1
    return votes


# ---- A party's part in target means: sums of its labels by level, and its levels as means ---------------
# Promises: sums are integers, so that those of parties add to those of the pooled rows, bit for bit; the
# mean of a row depends on its level and its fold alone. Refuses nothing: the queries are checked against
# the terms.


_HESSIAN = 0xFFFFFFFF
"""The lower half of a row's pair."""


class LevelColumns:
    """The columns of a party whose levels become means. Among the features they stand behind the numeric
    ones."""

    def __init__(self, shard: Shard, terms: Terms, trained: Mask) -> None:
        """trained: the rows that trees grow on, which are in folds."""
        self._slots = [*slots_of(terms).values()]
        self._first = len(terms.columns.numeric)
        self._weight = shard.weight
        self._folds: Folds | None = None
        if have_folds(terms):
            assert shard.keys is not None
            self._folds = np.where(trained, folds_of(shard.keys, terms.draws.seed), np.uint8(ALL))

    def sums(self, query: LevelSumsQuery, columns: Sequence[Column], pairs: Int64) -> Int64:
        """The answer to the query: int64 [query.cells]. pairs: gradient and hessian of each row."""
        every = [query.all_slots] * (query.counted + (query.weight is not None))
        sums, *counts = [np.zeros((query.all_slots, 2), np.int64), *(np.zeros(n, np.int64) for n in every)]
        begin = 0
        for column, slots in zip(columns[self._first :], self._slots, strict=False):
            end = begin + slots.with_missing
            for start in range(0, column.size, STRETCH):
                rows = slice(start, start + STRETCH)
                of = self._slots_of(column, slots, rows)
                trained = slice(None) if self._folds is None else self._folds[rows] != ALL
                for place, part in enumerate((pairs[rows] >> 32, pairs[rows] & _HESSIAN)):
                    sums[begin:end, place] += _by_slot(of[trained], part[trained], slots)
                if query.counted:
                    counts[0][begin:end] += np.bincount(of, minlength=slots.with_missing)
                if query.weight is not None:
                    units = query.weight.encode(self._weight[rows].astype(np.float64))
                    counts[-1][begin:end] += _by_slot(of, units, slots)
            begin = end
        return np.concatenate([sums.reshape(-1), *counts])

    def encoded(
        self, columns: Sequence[Column], means: Sequence[Float32], trained: bool = True
    ) -> tuple[Column, ...]:
        """The columns, with means in place of levels: float32 [buckets, folds] of each. trained: False
        for the last means, those of the model, in all rows."""
        folds = self._folds if trained else None
        behind = self._first + len(self._slots)
        own = zip(columns[self._first : behind], self._slots, means, strict=True)
        return (
            *columns[: self._first],
            *(EncodedColumn(*column_and_means, folds) for column_and_means in own),
            *columns[behind:],
        )

    def predicted(self, columns: Sequence[Column], state: BoostingState) -> tuple[Column, ...]:
        """The columns as the model of a training that stands here has them."""
        means = () if state.start is None else state.start.means
        return self.encoded(columns, means, trained=False)

    def _slots_of(self, column: Column, slots: Slots, rows: slice) -> Int64:
        return slots.of(column[rows], None if self._folds is None else self._folds[rows])


def _by_slot(slots_of_rows: Int64, values: Int64, slots: Slots) -> Int64:
    """Sums of integers by slot. Those of a stretch of rows are exact in float64."""
    sums = np.bincount(slots_of_rows, values.astype(np.float64), slots.with_missing)
    return sums.astype(np.int64)


# ---- A party of a session that describes rows: it counts them -------------------------------------------
# Promises: counts depend on this party's rows alone; adding those of all parties gives the counts of one
# party with all rows.
# Refuses: queries out of order, and those of other sessions (PeerError).


UNDECLARED = -1.0
"""The value of a category that the terms do not declare."""


class CountingHolder(ABC):
    """The rows of a party in one session that trains nothing, and where it stands (`state`)."""

    def __init__(self, read: Callable[[], Shard], terms: Terms, nthread: int = 1) -> None:
        self.state = NOTHING_YET
        self._terms = terms
        self._threads = Threads(nthread)
        self._shard = read()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._shard.rows

    @property
    def table(self) -> HeldTable | None:
        """None: no later session needs to know it."""
        return None

    def rows_hashed(self, key: bytes) -> bytes:
        """HMAC of all that answers depend on: 32 bytes."""
        return self._shard.hashed(key, self._shard.columns, repr((VERSION, self._terms.objective.package)))

    def go_to(self, state: BoostingState) -> None:
        """Move to this state: counts do not depend on it."""
        self.state = state

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """None: nothing is trained."""
        return ()

    def answering(self, query: OfTurn) -> Answering:
        """This party's counts: int64 [query.cells]."""
        yield from ()
        answers = []
        for part in cast(tuple[Query, ...], query.parts):
            part.check_order(self._terms, self.state)
            answers.append(self._counts(part))
            self.state = self.state.after(part)
        return np.concatenate(answers)

    @abstractmethod
    def _counts(self, query: Query) -> Int64:
        """The integers of one query. PeerError for those of other sessions."""


class SummaryHolder(CountingHolder):
    """The rows of a party in one session that describes them: `UNDECLARED` stands for categories that the
    terms do not declare."""

    def _counts(self, query: Query) -> Int64:
        match query:
            case SummaryQuery():
                return self._summary(query)
            case QuantileQuery(_, grids):
                numeric = len(self._terms.columns.numeric)
                columns = [*self._shard.columns[:numeric], self._shard.label]
                return count_cells(columns[: grids.features], grids, self._threads)
            case RangeQuery():
                schema = self._terms.columns
                ranges = [schema.ranges[name] for name in schema.numeric]
                pairs = zip(self._shard.columns[: len(ranges)], ranges, strict=True)
                return np.concatenate(self._threads.each(lambda pair: count_parts(*pair), pairs))
            case _:
                raise PeerError(f"{query.description}: asked where rows are described")

    def _summary(self, query: SummaryQuery) -> Int64:
        columns, classes = self._shard.columns, query.classes
        numeric = self._threads.each(_missing, columns[: query.numeric])
        levels = zip(columns[query.numeric :], query.levels, strict=True)
        parts = [np.array([self.rows, *numeric], np.int64)]
        parts += self._threads.each(lambda pair: _by_level(*pair), levels)
        label = self._shard.label.astype(np.int64) if classes else np.zeros(0, np.int64)
        return np.concatenate([*parts, np.bincount(label, minlength=classes)[:classes]])


def _missing(column: Column) -> int:
    """Missing values of a column."""
    steps = range(0, column.size, STRETCH)
    return sum(int(np.isnan(column[start : start + STRETCH]).sum()) for start in steps)


def _by_level(column: Column, levels: int) -> Int64:
    """Rows of a categorical column: missing, of each level, of no declared one: int64 [levels + 2]."""
    out = np.zeros(levels + 2, np.int64)
    for start in range(0, column.size, STRETCH):
        values = column[start : start + STRETCH]
        places = np.where(values == UNDECLARED, levels, values) + 1
        out += np.bincount(np.where(np.isnan(values), 0, places).astype(np.int64), minlength=levels + 2)
    return out


# ---- Counts of a party's rows by bin of each feature and of the score -----------------------------------
# Promises: counts depend on this party's rows and the model alone; adding those of all parties gives the
# counts of one party with all rows.
# Refuses: queries of other sessions, and of other bins (PeerError).


class DriftHolder(CountingHolder):
    """The rows of a party in one session that holds them against the reference of a model."""

    def _counts(self, query: Query) -> Int64:
        if not isinstance(query, BinCountsQuery):
            raise PeerError(f"{query.description}: asked where rows are held against a reference")
        model, shard = self._terms.earlier, self._shard
        assert model is not None
        return _count(query, bins_in(self._terms), model, shard.columns, shard.base_margin)


def count_bins(
    query: BinCountsQuery,
    terms: Terms,
    state: BoostingState,
    columns: Sequence[Column],
    base_margin: Float32 | None,
) -> Int64:
    """The counts at the end of a training that stands here. base_margin: where it began."""
    assert state.start is not None
    cut_points, constant = state.start.cut_points, state.rounds[0].values[0][1]
    trees, earlier = tuple(state.trees(query.rounds, cut_points.cuts)), terms.earlier
    shape = len(terms.columns.ordered), terms.columns.category_counts
    outputs = terms.objective.loss.outputs
    if earlier is not None:
        model = replace(earlier, trees=(*earlier.trees, *trees))
        bins = bins_of(cut_points, *shape, model.constant, model.trees, outputs)
        return _count(query, bins, model, columns, base_margin)
    kind = terms.trees.num_parallel_tree, tuple(terms.columns.categorical)
    model = Booster(terms.objective.loss, 0.5, terms.columns.features, trees, *kind)
    bins = bins_of(cut_points, *shape, constant, trees, outputs)
    based = np.full(columns[0].size, constant) + (0.0 if base_margin is None else base_margin)
    return _count(query, bins, model, columns, based)


def _count(
    query: BinCountsQuery,
    bins: CountedBins,
    model: Booster,
    columns: Sequence[Column],
    base: Float64 | Float32 | None,
) -> Int64:
    if (query.sizes, query.score) != (bins.sizes, bins.of_score):
        raise PeerError("rows by other bins than those of the model")
    margin = np.empty((model.loss.outputs, columns[0].size), np.float64)
    continue_margins(margin, base, model, columns)
    return bins.count(columns, margin)


# ---- A party that holds whole rows: `answer` turns a query into one vector of integers ------------------


MAX_ROWS_OF_TREES = 1 << 31
"""Most rows times trees of a round: each takes 8 bytes, or 16 where rows are sampled."""


class HorizontalHolder:
    """The rows of a party in one session, and the state of the training (`state`)."""

    def __init__(self, read: Callable[[], Shard], terms: Terms, nthread: int = 1, name: str = "") -> None:
        """read: returns the rows; called again if their values are needed after binning; name: of this party
        in the terms."""
        self.state = NOTHING_YET
        self._name = name
        self._read = read
        self._terms = terms
        self._threads = threads = Threads(nthread)
        self._shard = shard = read()
        self.rows = shard.rows
        """Number of rows."""
        if len(terms.roots) * shard.rows > MAX_ROWS_OF_TREES:
            many = f"{len(terms.roots)} trees a round are too many for the rows of a party"
            raise Refused(f"{many}; lower num_class or num_parallel_tree")
        objective, labels = terms.objective.loss, (shard.label, shard.weight, shard.group)
        self._gradients = Gradients(objective, *labels, threads, shard.allocate)
        self._begin_margins()
        self._sets = row_sets(shard, terms)
        """The rows of each set of metrics: bool [rows]."""
        self._levels = LevelColumns(shard, terms, self._sets[metrics.TRAIN])
        self._draws = _draws_of(shard, terms)
        shape = shard.rows, objective.outputs, terms.trees.num_parallel_tree
        self._growing = GrowingRows(*shape, self._sampler(), threads, shard.allocate)
        self._use(UNBINNED)
        self._quantised = False
        """True if gradients are those of the tree that grows: from its first histogram on."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Values of the features, read again if they were binned before."""
        return self._shard.columns or self._read().columns

    @property
    def table(self) -> HeldTable:
        """The table, and the rows that are held out."""
        held_out = self._sets[metrics.VALIDATION] if _holds_out(self._terms) else None
        return HeldTable(self.rows, lambda key: self._shard.hashed(key, self.columns), held_out)

    def rows_hashed(self, key: bytes) -> bytes:
        """HMAC of all that answers depend on: the rows in the form of the terms, and the versions of the
        software. 32 bytes."""
        return self._shard.hashed(key, self.columns, repr((VERSION, self._terms.objective.package)))

    def answering(self, query: OfTurn) -> Answering:
        """This party's integers, for which it needs nothing of others: int64 [query.cells]."""
        yield from ()
        return self.answer(query)

    def answer(self, query: OfTurn) -> Int64:
        """This party's integers: int64 [query.cells]."""
        answers = []
        for part in cast(tuple[Query, ...], query.parts):
            part.check_order(self._terms, self.state)
            answers.append(self.compute(part))
            self.state = self.state.after(part)
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    def own_histograms(self, query: VoteQuery) -> Int64:
        """The histograms that a vote is by, for a party whose rows are shared out: int64 [nodes, cells]."""
        query.check_order(self._terms, self.state)
        histograms = self._of_vote(query)
        self.state = self.state.after(query)
        return histograms

    def go_to(self, state: BoostingState) -> None:
        """Move to this state, whatever was answered before. PeerError if its splits are invalid."""
        if state.position == self.state.position:
            return
        finished = len(self.state.rounds)
        starts = [None if each.start is None else each.start.digest for each in (state, self.state)]
        if starts[0] != starts[1]:
            finished = 0
            self._use(UNBINNED)
            if state.start is not None:
                self._bin(state.start)
        if not finished or self.state.rounds != state.rounds[:finished]:
            finished = 0
            self._begin_margins()
        self._growing.begin(finished - 1)
        for tree, done in enumerate(state.rounds[finished:], finished - 1):
            self._end_tree(tree, done.splits, done.values)
        self._split(state.splits)
        self._forget_gradients()
        self.state = state

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """None: all parties are told the same."""
        return ()

    def compute(self, query: Query) -> Int64:
        """The integers of one query, wherever the training stands: int64 [query.cells]."""
        match query:  # the most frequent first
            case HistogramQuery():
                return self._histograms(query)
            case EndRoundQuery():
                return self._end_round(query)
            case RowsQuery():
                return np.append(self.rows, self._gradients.count_exponents(self._terms.objective.loss.start))
            case QuantileQuery(_, grids, weight):
                units = None if weight is None else weight.encode(self._shard.weight.astype(np.float64))
                return count_cells(self.columns[: grids.features], grids, self._threads, units)
            case RangeQuery():
                return _count_parts(self.columns, self._terms, self._threads)
            case StartQuery():
                return self._start(query)
            case VoteQuery():
                return votes(query, self._terms, self.rows, self._bins.layout, self._of_vote(query))
            case SumsQuery():
                return self._leaf_sums(query)
            case ResidualQuery():
                return self._residuals(query)
            case IdCountQuery() | AlignQuery() | PlacesQuery() | ReachQuery() | BinsQuery():
                raise PeerError(f"{query.description}: asked where all parties hold the same columns")
            case LevelSumsQuery():
                _quantise_start(self._gradients, self._terms, self._quantiser(query))
                return self._levels.sums(query, self.columns, self._gradients.pairs[0])
            case BinCountsQuery():
                columns = self._levels.predicted(self.columns, self.state)
                return count_bins(query, self._terms, self.state, columns, self._shard.base_margin)
            case SummaryQuery() | MagnitudesQuery() | EvaluationQuery():
                raise PeerError(f"{query.description}: asked where a model is trained")
            case _:
                assert_never(query)

    def _start(self, query: StartQuery) -> Int64:
        self._bin(query)
        _quantise_start(self._gradients, self._terms, self._quantiser(query))
        return self._gradients.sum_pairs(self._sets[metrics.TRAIN])

    def _histograms(self, query: HistogramQuery) -> Int64:
        bins = self._bins.layout.bins
        if query.bins != bins:
            raise PeerError(f"histograms of {query.bins} bins, the cut points make {bins}")
        self._grow(query)
        if self._terms.histograms.vote_top_k:
            return self._own.elected(query)
        pairs, limit = self._gradients.pairs, query.gradient.limit
        return self._growing.histograms(query.nodes, pairs, self._bins, limit).reshape(-1)

    def _of_vote(self, query: VoteQuery) -> Int64:
        self._grow(query)
        return self._own.of_vote(query)

    def _leaf_sums(self, query: SumsQuery) -> Int64:
        """Sums of gradients and hessians over the rows of each leaf."""
        self._gradients.quantise(self._terms.objective.loss, self._quantiser(query))
        self._split(query.splits)
        growing, pairs = self._growing, self._gradients.pairs
        leaf_pairs = (pairs[growing.output_of(node)][growing.of(node)] for node in query.nodes)
        return np.array([sum_pairs(rows) for rows in leaf_pairs], np.int64).reshape(-1)

    def _residuals(self, query: ResidualQuery) -> Int64:
        """Weights of the residuals of each node, by cell."""
        self._split(query.splits)
        if query.tree == CONSTANT_TREE:
            nodes = [np.flatnonzero(self._sets[metrics.TRAIN]).astype(np.uint32)]
        else:
            nodes = [self._growing.of(node) for node in query.nodes]
        shard, margin = self._shard, self._gradients.margin[0]
        return residual_weights(nodes, query, shard.label, margin, shard.weight, self._threads).reshape(-1)

    def _end_round(self, query: EndRoundQuery) -> Int64:
        self._end_tree(query.tree, query.splits, query.values)
        parts = self._metrics(query)
        if query.exponents:
            parts.append(self._gradients.count_exponents(self._terms.objective.loss))
        if query.sizes:
            parts.append(self._gradients.count_norms(self._terms.trees.reg_lambda, self._sets[metrics.TRAIN]))
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])

    def _metrics(self, query: EndRoundQuery) -> list[Int64]:
        """Metric sums of each set that is asked for; zeros for the sets of other parties."""
        sets = [name.rpartition(metrics.OF_PARTY) for name in query.sets]
        sums = {
            rows: self._gradients.sum_metrics(query.metrics, query.weight, self._sets[rows])
            for rows in dict.fromkeys(rows for _, _, rows in sets)
        }
        zeros = np.zeros(metrics.cells(query.metrics), np.int64)
        return [sums[rows] if not sep or party == self._name else zeros for party, sep, rows in sets]

    def _begin_margins(self) -> None:
        """Margins where training begins: 0, the base margins, or those of the model that is continued."""
        margin, base, earlier = self._gradients.margin, self._shard.base_margin, self._terms.earlier
        if earlier is not None:
            continue_margins(margin, base, earlier, self.columns)
        else:
            margin[:] = 0.0 if base is None else base

    def _bin(self, query: StartQuery) -> None:
        """Bin the columns, and drop their values: four bytes each that are seldom needed again."""
        self._use(self._bins_of(self._levels.encoded(self.columns, query.means), query.cut_points))
        self._shard = self._shard.without_columns()

    def _bins_of(self, columns: Sequence[Column], cut_points: CutPoints) -> Bins:
        return Bins.of(columns, cut_points, self._threads, self._shard.allocate)

    def _use(self, bins: Bins) -> None:
        """Grow trees on these bins."""
        self._bins = bins
        self._own = OwnHistograms(self._growing, bins, self._gradients.pairs)

    def _grow(self, query: TreeQuery) -> None:
        """Apply the splits of a query about the tree that grows, whose gradients are computed at its root."""
        if not self._quantised:
            self._quantise(query)
        self._quantised = True
        self._split(query.splits)

    def _quantise(self, query: TreeQuery) -> None:
        """Compute the gradients of the tree that grows; in gradient-based sampling, sample its rows."""
        terms, quantise = self._terms, self._quantiser(query)
        if not terms.draws.by_gradient_norm:
            self._gradients.quantise(terms.objective.loss, quantise)
            return
        assert isinstance(query, HistogramQuery)  # the terms allow no votes
        training, settings = (
            self._sets[metrics.TRAIN],
            (terms.draws.subsample, terms.trees.reg_lambda, query.threshold),
        )
        sample = NormSample(training, self._draws, query.tree, *settings)
        self._gradients.quantise(terms.objective.loss, quantise, reweigh=sample.reweigh)
        self._growing.begin_on(sample.masks)
        self._split(self.state.splits)

    def _quantiser(self, query: StartQuery | LevelSumsQuery | TreeQuery | SumsQuery) -> Quantise:
        """Quantisation for a query; bounded where its answer gets noise."""
        if self._terms.noise is not None:
            return self._terms.bound.quantise
        return in_units(query.gradient, query.hessian)

    def _split(self, splits: Splits) -> None:
        """Send rows to the children of nodes of the tree that grows."""
        self._growing.apply(splits, self._bins)

    def _end_tree(self, tree: int, splits: Splits, values: Values) -> None:
        """Split the last nodes of a tree, and move each row's margin by its leaf's value; the next begins."""
        self._growing.move_margins(splits, values, self._bins, self._gradients.margin)
        self._growing.begin(tree + 1)
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        """Have gradients computed again, and own histograms built again, when they are next needed."""
        self._quantised = False
        self._own.clear()

    def _sampler(self) -> Sampler:
        """The sampler of the terms; gradient-based sampling begins only once gradients are known."""
        terms, sample = self._terms, (self._sets[metrics.TRAIN], self._draws)
        if terms.draws.max_bootstrap_count > 1:
            return Bootstrap(*sample, terms.draws.subsample)
        if terms.draws.draws_for_trees or _holds_out(terms):
            return Subsample(*sample, 1.0 if terms.draws.by_gradient_norm else terms.draws.subsample)
        return AllRows()


def _count_parts(columns: Sequence[Column], terms: Terms, threads: Threads) -> Int64:
    """Rows in each part of the declared range of each numeric feature."""
    ranges = [terms.columns.ranges[name] for name in terms.columns.numeric]
    pieces = zip(columns[: len(ranges)], ranges, strict=True)
    return np.concatenate(threads.each(lambda piece: count_parts(*piece), pieces))


def _quantise_start(gradients: Gradients, terms: Terms, quantise: Quantise) -> None:
    """Compute the gradients that boosting starts from."""
    shift = 0.0 if terms.noise is None else terms.objective.loss.margin(terms.bound.start)
    gradients.quantise(terms.objective.loss.start, quantise, shift)


def _holds_out(terms: Terms) -> bool:
    """True if there are rows that no tree grows on."""
    return terms.columns.validation is not None or terms.evaluation.validation_fraction > 0.0


def row_sets(shard: Shard, terms: Terms) -> dict[str, Mask]:
    """The rows that trees grow on, and those held out: by a column, or sampled by whole groups."""
    if not _holds_out(terms):
        return {
            metrics.TRAIN: np.ones(shard.rows, np.bool_),
            metrics.VALIDATION: np.zeros(shard.rows, np.bool_),
        }
    held_out = shard.validation
    if terms.columns.validation is None:
        keys = shard.keys if shard.group is None else shard.group
        assert keys is not None
        held_out = sampling.sampled(
            keys, terms.evaluation.validation_fraction, terms.draws.seed, "validation"
        )
    assert held_out is not None
    return {metrics.TRAIN: ~held_out, metrics.VALIDATION: held_out}


def _draws_of(shard: Shard, terms: Terms) -> RowSampling:
    """The row sampling of a session; without keys where trees sample no rows."""
    assert shard.keys is not None or not terms.draws.draws_for_trees
    keys = np.broadcast_to(np.uint64(0), shard.rows) if shard.keys is None else shard.keys
    return RowSampling(keys, terms.draws.seed, terms.first_tree, terms.trees.num_parallel_tree)


def holder_of(
    read: Callable[[Terms], Shard], name: str, nthread: int = 1
) -> Callable[[Terms, bytes], HorizontalHolder]:
    """A `Site.holder`: reads the rows of party `name` and holds them. `read` raises Refused."""
    return lambda terms, secret: HorizontalHolder(partial(read, terms), terms, nthread, name)
