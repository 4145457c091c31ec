"""A party that holds whole rows: `answer` turns a query into one vector of integers.

Promises: the vector depends on this party's rows and the queries so far alone; adding the vectors of all
parties gives what one party with all rows would have answered, bit for bit.
Refuses: queries out of order or that do not fit the tree (PeerError: they come from outside).
"""

from collections.abc import Callable, Sequence
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
    EvaluationQuery,
    LevelSumsQuery,
    MagnitudesQuery,
    ResidualQuery,
    RowsQuery,
    StartQuery,
)
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery, SumsQuery, VoteQuery
from fedboost.boosting.queries.union import OfTurn, Query, TreeQuery
from fedboost.boosting.state import NOTHING_YET, BoostingState, Values
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt import sampling
from fedboost.gbdt.binned import Column
from fedboost.gbdt.cut_points import CutPoints, count_cells, count_parts
from fedboost.gbdt.gradients import Gradients, Quantise, in_units
from fedboost.gbdt.kernels.histogram import sum_pairs
from fedboost.gbdt.metrics import registry as metrics
from fedboost.gbdt.partition import UNBINNED, Bins, GrowingRows
from fedboost.gbdt.sampling import AllRows, Bootstrap, Mask, NormSample, RowSampling, Sampler, Subsample
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import Splits, Tree
from fedboost.horizontal.drift import count_bins
from fedboost.horizontal.leaf_values import residual_weights
from fedboost.horizontal.shard import Shard, continue_margins
from fedboost.horizontal.target_means import LevelColumns
from fedboost.horizontal.votes import OwnHistograms, votes
from fedboost.protocol.contracts import Answering, HeldTable
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

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
