"""Holders for parties with whole rows, i.e. all columns: `answer` computes a vector of integers per query.

Guarantees: the vector depends only on this party's rows and the queries so far. The vectors of all parties
sum to the answer of a single party with all rows, bit for bit.
Raises: PeerError for queries that are out of order or do not fit the tree."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

import numpy as np

from fedboost.boosting.queries import Query, labels, trees
from fedboost.boosting.queries.base import CONSTANT_TREE
from fedboost.boosting.queries.columns import (
    BinCountsQuery,
    BinsQuery,
    LevelsQuery,
    QuantileQuery,
    RangeQuery,
    SummaryQuery,
)
from fedboost.boosting.queries.ids import AlignQuery, IdCountQuery, PlacesQuery, ReachQuery
from fedboost.boosting.state import BoostingState
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt import histogram, metrics
from fedboost.gbdt.binned import Column
from fedboost.gbdt.cut_points import STRETCH, CutPoints, count_cells
from fedboost.gbdt.gradients import Gradients, Quantise, in_units
from fedboost.gbdt.histogram import Layout, Rows
from fedboost.gbdt.kernels.bins import weigh_residuals
from fedboost.gbdt.kernels.histogram import sum_pairs
from fedboost.gbdt.objectives.built_in import Cox, RiskSets, sum_risks
from fedboost.gbdt.partition import UNBINNED, Bins, GrowingRows
from fedboost.gbdt.sampling import ALL_ROWS, Mask, NormSample, RowSampling, Sampler, bootstrap, subsample
from fedboost.gbdt.target_means import ALL, EncodedColumn, Folds, Slots, folds_of
from fedboost.gbdt.tree import LeafValues, SplitRule, Splits
from fedboost.holders.other_tasks import count_bins, count_ranges
from fedboost.holders.shard import RowsHolder, Shard, continue_margins, holds_out, row_sets
from fedboost.protocol.contracts import MAX_CELLS, HeldTable
from fedboost.terms.tasks import have_folds, slots_of
from fedboost.terms.terms import Terms

# ---- Votes on features, and a party's own histograms of the nodes that may split ------------------------
# Guarantees: each histogram is built once. Of two siblings, only the histogram with fewer rows is built, and
# the other is the difference. Only votes, and the bins of elected features, leave the party.


class OwnHistograms:
    """Cache of a party's own histograms for the nodes of a level, as returned by `histogram.build`."""

    def __init__(self, growing: GrowingRows, bins: Bins, pairs: Int64) -> None:
        """Start without any histograms. pairs: packed gradients of all rows, int64 [outputs, rows], which
        stay the same for a whole tree."""
        self._growing = growing
        self._bins = bins
        self._pairs = pairs
        self._known: dict[int, Int64] = {}

    def clear(self) -> None:
        self._known = {}

    def of(self, node: int, limit: int) -> Int64:
        """Return the histogram of a leaf, followed by one last pair: the sums of positive gradients and
        hessians over all rows of the leaf. limit: largest magnitude of a gradient in the query's scale."""
        if node not in self._known:
            self._known[node] = self._growing.histograms([node], self._pairs, self._bins, limit)[0]
        return self._known[node]

    def descend(self, splits: Splits, nodes: tuple[int, ...], limit: int, max_cells: int) -> None:
        """Apply splits, and keep only the histograms of the given nodes. Raises Refused if these histograms
        need more than `max_cells` integers in total.

        splits: splits since the last call; nodes: nodes to keep; limit: as in `of`."""
        if len(nodes) * self._bins.layout.cells > max_cells:
            raise Refused(
                "query-size",
                f"a party's own histograms of {len(nodes)} nodes would need more than {max_cells} integers; "
                f"lower max_depth",
            )
        for split in splits:
            parent = self._known.pop(split.node, None)
            children = split.left, split.left + 1
            if parent is not None and set(children) <= set(nodes):
                fewer, more = sorted(children, key=lambda child: self._growing.of(child).size)
                self._known[more] = parent - self.of(fewer, limit)
        self._known = {node: cells for node, cells in self._known.items() if node in nodes}

    def of_vote(self, query: trees.VoteQuery) -> Int64:
        """Return the histograms that a vote is based on, after the query's splits: int64 [nodes, cells]."""
        limit, cells = query.gradient.limit, self._bins.layout.cells
        self.descend(query.splits, query.nodes, limit, MAX_CELLS)
        return np.stack([self.of(node, limit)[:cells] for node in query.nodes])

    def elected(self, query: trees.HistogramQuery) -> Int64:
        """Return histograms after the query's splits: of each node's elected features, or all at the root."""
        layout, parts = self._bins.layout, []
        everything = [trees.Elected(layout.features, layout.bins)] * len(query.nodes)
        for node, elected in zip(query.nodes, query.elected or everything, strict=True):
            sums = self.of(node, query.gradient.limit)
            picked = layout.pick(sums[: layout.cells], elected.features)
            if picked.size != histogram.STATS * elected.bins:
                raise PeerError(
                    "query-bins",
                    f"the query has {elected.bins} bins, but the elected features have a different number "
                    f"of bins",
                )
            parts += [picked, sums[layout.cells :]]
        return np.concatenate(parts)


def votes(query: trees.VoteQuery, terms: Terms, rows: int, layout: Layout, own: Int64) -> Int64:
    """Compute a party's votes for features, int64 [nodes * features]. rows: number of the party's rows; own:
    the party's histograms, int64 [nodes, cells]."""
    # Penalties such as min_child_weight are for all rows: scale them by this party's share.
    rule = terms.rule(query.gradient, query.hessian).scaled(min(rows / query.rows, 1.0))
    return np.concatenate([vote(node, layout, rule, terms.histograms.vote_top_k) for node in own])


def vote(own: Int64, layout: Layout, rule: SplitRule, top: int) -> Int64:
    """Return 1 for the `top` features with the highest gains, and 0 for all others: int64 [features].
    Features without a positive gain also get 0. Ties go to the lowest feature number."""
    votes = np.zeros(len(layout.features), np.int64)
    gains = rule.gains(own, layout, histogram.node_total(own, layout))
    best = np.argsort(-gains, kind="stable")[:top]
    votes[best[gains[best] > 0]] = 1
    return votes


# ---- Target means: sums of a party's labels by level, and its levels as means ---------------------------
# Guarantees: sums are integers, so the parties' sums add up to the sums over the pooled rows, bit for bit.
# The mean of a row depends only on its level and its fold.

_HESSIAN = 0xFFFFFFFF
"""Mask of the hessian, the lower half of a row's packed pair."""


class LevelColumns:
    """Target-mean columns of a party, which come after the numeric features."""

    def __init__(self, shard: Shard, terms: Terms, trained: Mask) -> None:
        """Divide the training rows into folds, if the terms need folds. trained: bool [rows]."""
        self._slots = [*slots_of(terms).values()]
        self._first = len(terms.columns.numeric)
        self._weight = shard.weight
        self._folds: Folds | None = None
        if have_folds(terms):
            assert shard.keys is not None
            self._folds = np.where(trained, folds_of(shard.keys, terms.draws.seed), np.uint8(ALL))

    def sums(self, query: labels.LevelSumsQuery, columns: Sequence[Column], pairs: Int64) -> Int64:
        """Return the answer to the query, int64 [query.cells]. pairs: packed gradients, int64 [rows]."""
        every = [query.all_slots] * (query.counted + (query.weight is not None))
        sums, *counts = [np.zeros((query.all_slots, 2), np.int64), *(np.zeros(n, np.int64) for n in every)]
        begin = 0
        for column, slots in zip(columns[self._first :], self._slots, strict=False):
            end = begin + slots.with_missing
            for start in range(0, column.size, STRETCH):
                rows = slice(start, start + STRETCH)
                folds = None if self._folds is None else self._folds[rows]
                of = slots.of(column[rows], folds)
                trained = slice(None) if folds is None else folds != ALL
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
        """Return the columns with target means in place of levels. means: float32 [buckets, folds] for each
        target-mean column. trained: False to use the means of the last fold, which the model stores, for all
        rows."""
        folds = self._folds if trained else None
        behind = self._first + len(self._slots)
        own = zip(columns[self._first : behind], self._slots, means, strict=True)
        return (
            *columns[: self._first],
            *(EncodedColumn(*column_and_means, folds) for column_and_means in own),
            *columns[behind:],
        )

    def predicted(self, columns: Sequence[Column], state: BoostingState) -> tuple[Column, ...]:
        """Return the columns, encoded as for predictions by the model in this state of training."""
        means = () if state.start is None else state.start.means
        return self.encoded(columns, means, trained=False)


def _by_slot(slots_of_rows: Int64, values: Int64, slots: Slots) -> Int64:
    # Exact in float64: values are below 2**32, and a stretch has 2**20 rows, so sums are at most 2**52.
    sums = np.bincount(slots_of_rows, values.astype(np.float64), slots.with_missing)
    return sums.astype(np.int64)


# ---- A party with whole rows ----------------------------------------------------------------------------

MAX_ROWS_OF_TREES = 1 << 31
"""Maximum product of the number of rows and the number of trees in a round. Each row of each tree takes 8
bytes, or 16 if rows are sampled."""
MAX_DEPTH_BY_COLUMN = 6
"""Maximum depth of trees whose histograms may be built by column. Rows of deeper leaves are too far apart."""
NO_FEATURE = CutPoints.of([np.zeros(0, np.float32)], [False])
"""Placeholder for the columns of a label holder without features: one bin that contains all rows."""


class GrowingHolder(RowsHolder):
    """Base of holders in a training session: keeps the binned rows, and tracks which leaf each row is in."""

    growing: GrowingRows
    """Indices of the rows in each leaf of the growing tree."""
    bins = UNBINNED
    """Binned columns, followed by the row-set columns (other parties' splits, one bit per row)."""
    begun: Float64 | None = None
    """Margins of the model that is continued, once known, if parties hold different columns."""

    def __init__(self, read: Callable[[], Shard], terms: Terms, nthread: int, sets: int) -> None:
        """Read the rows. sets: number of row-set columns (other parties' splits; `CutPoints.bin_rows`)."""
        super().__init__(read, terms, nthread)
        self._relayed = sets

    @abstractmethod
    def begin_margins(self) -> None:
        """Set the margins from which training starts."""

    @abstractmethod
    def forget_gradients(self) -> None:
        """Drop the gradients, because another tree is about to start."""

    def begin_tree(self, tree: int) -> None:
        """Put all rows at the roots of a tree. tree: number of the round."""
        self.growing.begin(tree)
        self.forget_gradients()

    def end_tree(self, tree: int, splits: Splits, values: LeafValues) -> None:
        """Apply the last splits of a tree, add its leaf values to the margins, and start the next tree."""
        self.begin_tree(tree + 1)

    def take_back(self) -> bool:
        """Restore the margins from before the last finished tree. Returns False if these are not stored."""
        return False

    def encoded(self, start: labels.StartQuery) -> tuple[Column, ...]:
        """Return the columns to bin."""
        return self.columns

    def use(self, bins: Bins) -> None:
        self.bins = bins

    def bin(self, start: labels.StartQuery) -> None:
        """Bin the columns, and drop their values. Each value takes four bytes, and is seldom needed again."""
        cut_points = start.cut_points if start.cut_points.sizes.size else NO_FEATURE
        trees, terms = self._terms.trees, self._terms
        small_leaves = trees.max_depth > MAX_DEPTH_BY_COLUMN or trees.grow_policy == "lossguide"
        by_row = small_leaves or terms.draws.draws_for_trees or terms.histograms.vote_top_k > 0
        settings = self._threads, self._shard.allocate, self._relayed, by_row
        self.use(Bins.of(self.encoded(start), cut_points, *settings))
        self._shard = replace(self._shard, columns=())


NO_RISK_SETS = RiskSets(np.zeros(0, np.float32), np.zeros(1), np.ones(1))
"""Placeholder until a tree's sums of risks are known."""


class HorizontalHolder(GrowingHolder):
    """Holder for a party that has all columns, in one training session."""

    def __init__(
        self, read: Callable[[], Shard], terms: Terms, nthread: int = 1, name: str = "", sets: int = 0
    ) -> None:
        """Read the rows, and set their initial margins. name: of this party; sets: see `GrowingHolder`."""
        super().__init__(read, terms, nthread, sets)
        self._name = name
        shard, threads = self._shard, self._threads
        if len(terms.roots) * shard.rows > MAX_ROWS_OF_TREES:
            many = f"{len(terms.roots)} trees per round are too many for a party's number of rows"
            raise Refused("terms-too-many-trees", f"{many}; lower num_class or num_parallel_tree")
        self._sets = row_sets(shard, terms)
        """Maps the name of a set of rows -> its mask, bool [rows]."""
        objective, group = terms.objective.loss, shard.group
        if isinstance(objective, Cox) and not terms.sums_risk:  # all rows at risk are here, in one block
            objective = replace(objective, trained=self._sets[metrics.TRAIN])
            group = np.zeros(shard.rows, np.uint64)
        elif isinstance(objective, Cox):
            objective = replace(objective, sets=NO_RISK_SETS)
        self._loss = objective
        self._gradients = Gradients(objective, shard.label, shard.weight, group, threads, shard.allocate)
        self.begin_margins()
        self._levels = LevelColumns(shard, terms, self._sets[metrics.TRAIN])
        assert shard.keys is not None or not terms.draws.draws_for_trees
        keys = np.broadcast_to(np.uint64(0), shard.rows) if shard.keys is None else shard.keys
        of_trees = terms.draws.seed, terms.first_tree, terms.trees.num_parallel_tree
        self._draws = RowSampling(keys, *of_trees)
        shape = shard.rows, objective.outputs, terms.trees.num_parallel_tree
        self.growing = GrowingRows(*shape, self._sampler(), threads, shard.allocate)
        self.use(UNBINNED)
        self.has_gradients = False
        """True if the growing tree's gradients have been computed, i.e. after its first histogram."""

    @property
    def table(self) -> HeldTable:
        """Table of the session, with a mask of its held-out rows if any are held out."""
        held_out = self._sets[metrics.VALIDATION] if holds_out(self._terms) else None
        return HeldTable(self.rows, lambda key: self._shard.hashed(key, self.columns), held_out)

    def own_histograms(self, query: trees.VoteQuery) -> Int64:
        """Return the histograms that a vote is based on, int64 [nodes, cells]. Used on a worker: the party
        adds the histograms of its workers before it votes."""
        query.check_order(self._terms, self.state)
        histograms = self._of_vote(query)
        self.state = self.state.after(query)
        return histograms

    def go_to(self, state: BoostingState) -> None:
        """Move to this state from any other state. Raises PeerError if the new state's splits are invalid."""
        if state.position == self.state.position:
            return
        # Keep what both states share: bins if the cut points are the same, margins if finished rounds are a
        # prefix of the new ones. Everything else is computed again.
        finished = len(self.state.rounds)
        starts = [None if each.start is None else each.start.digest for each in (state, self.state)]
        if starts[0] != starts[1]:
            finished = 0
            self.use(UNBINNED)
            if state.start is not None:
                self.bin(state.start)
        if not finished or self.state.rounds != state.rounds[:finished]:
            finished = 0
            self.begin_margins()
        self.growing.begin(finished - 1)
        for tree, done in enumerate(state.rounds[finished:], finished - 1):
            self.end_tree(tree, done.splits, done.values)
        self.growing.apply(state.splits, self.bins)
        self.forget_gradients()
        self.state = state

    def compute(self, query: Query) -> Int64:
        match query:  # the most frequent first
            case trees.HistogramQuery():
                return self._histograms(query)
            case trees.EndRoundQuery():
                return self._end_round(query)
            case labels.RowsQuery():
                return np.append(self.rows, self._gradients.count_exponents(self._terms.objective.loss.start))
            case QuantileQuery(_, grids, weight):
                units = None if weight is None else weight.encode(self._shard.weight.astype(np.float64))
                columns = self.columns[: grids.features - self._terms.sums_risk]
                if self._terms.sums_risk:  # censored rows have no event time
                    time, end = self._shard.label
                    columns = *columns, np.where(end < np.inf, time, np.float32(np.nan))
                return count_cells(columns, grids, self._threads, units)
            case labels.TimesQuery():
                return self._times(query)
            case RangeQuery():
                return count_ranges(query, self.columns, self._terms, self._threads)
            case labels.StartQuery():
                self.bin(query)
                self._quantise_start(query)
                return self._gradients.sum_pairs(self._sets[metrics.TRAIN])
            case trees.VoteQuery():
                return votes(query, self._terms, self.rows, self.bins.layout, self._of_vote(query))
            case trees.SumsQuery():
                self._gradients.quantise(self._terms.objective.loss, self._quantiser(query))
                self.growing.apply(query.splits, self.bins)
                growing, pairs = self.growing, self._gradients.pairs
                leaves = (pairs[growing.output_of(node)][growing.of(node)] for node in query.nodes)
                return np.array([sum_pairs(rows) for rows in leaves], np.int64).reshape(-1)
            case labels.ResidualQuery():
                return self._residuals(query)
            case IdCountQuery() | AlignQuery() | PlacesQuery() | ReachQuery() | BinsQuery():
                raise PeerError(
                    "query-task",
                    f"the query ({query.description}) is only for parties with different columns",
                )
            case labels.LevelSumsQuery():
                self._quantise_start(query)
                return self._levels.sums(query, self.columns, self._gradients.pairs[0])
            case BinCountsQuery():
                columns = self._levels.predicted(self.columns, self.state)
                return count_bins(query, self._terms, self.state, columns, self._shard.base_margin)
            case SummaryQuery() | labels.MagnitudesQuery() | labels.EvaluationQuery() | LevelsQuery():
                raise PeerError(
                    "query-task", f"the query ({query.description}) is not part of a training session"
                )
            case _:
                assert_never(query)

    def _histograms(self, query: trees.HistogramQuery) -> Int64:
        bins = self.bins.layout.bins
        if query.bins != bins:
            raise PeerError(
                "query-bins", f"the query has {query.bins} bins, but the cut points define {bins}"
            )
        self._grow(query)
        if self._terms.histograms.vote_top_k:
            return self._own.elected(query)
        return self.histograms(query)

    def histograms(self, query: trees.HistogramQuery) -> Int64:
        """Return the histograms of the query's nodes, which the tree must have, without its other fields."""
        pairs, limit = self._gradients.pairs, query.gradient.limit
        return self.growing.histograms(query.nodes, pairs, self.bins, limit).reshape(-1)

    def _of_vote(self, query: trees.VoteQuery) -> Int64:
        self._grow(query)
        return self._own.of_vote(query)

    def _residuals(self, query: labels.ResidualQuery) -> Int64:
        """Return the total weight of each node's rows with residuals in each part of the node's cell."""
        self.growing.apply(query.splits, self.bins)
        if query.tree == CONSTANT_TREE:
            nodes = [np.flatnonzero(self._sets[metrics.TRAIN]).astype(np.uint32)]
        else:
            nodes = [self.growing.of(node) for node in query.nodes]
        out = np.zeros((len(nodes), 1 << labels.RESIDUAL_BITS), np.int64)
        own = self._shard.label, self._gradients.margin[0], self._shard.weight
        cell = query.width, labels.RESIDUAL_BITS, query.weight.factor, float(query.weight.limit)

        def weigh(piece: tuple[Rows, int, Int64]) -> None:
            rows, start, cells = piece
            weigh_residuals(*own, rows, start, *cell, cells)

        self._threads.each(weigh, list(zip(nodes, query.starts, out, strict=True)))
        return out.reshape(-1)

    def _end_round(self, query: trees.EndRoundQuery) -> Int64:
        self.end_tree(query.tree, query.splits, query.values)
        parts, loss = self._metrics(query), self._loss
        if query.exponents:
            parts.append(self._gradients.count_exponents(loss.start if self._terms.sums_risk else loss))
        if query.sizes:
            parts.append(self._gradients.count_norms(self._terms.trees.reg_lambda, self._sets[metrics.TRAIN]))
        if query.risk is not None:
            for rows in query.sets:
                sums = partial(sum_risks, self._time_grid.of(rows), query.risk, query.weight)
                parts.append(self._gradients.sum_rows(sums, self._sets[rows]))
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])

    @property
    def _time_grid(self) -> labels.TimeGrid:
        assert self.state.start is not None
        assert self.state.start.times is not None
        return self.state.start.times

    def _times(self, query: labels.TimesQuery) -> Int64:
        """Count events, censored rows and the weight of events of each set of rows by time."""
        (time, end), weight = self._shard.label, self._shard.weight
        bins = np.searchsorted(query.starts, time, side="right")
        size, is_event = len(query.starts) + 1, end < np.inf
        units = query.weight.encode(weight * is_event)
        out = []
        for among in map(self._sets.__getitem__, query.sets):
            out += [np.bincount(bins[among & kind], minlength=size) for kind in (is_event, ~is_event)]
            out.append(np.bincount(bins[among], units[among], size))
        return np.concatenate(out).astype(np.int64)

    def _metrics(self, query: trees.EndRoundQuery) -> list[Int64]:
        """Return the metric sums of each set of rows in the query, with zeros for sets of other parties."""
        sets = [name.rpartition(metrics.OF_PARTY) for name in query.sets]
        sums = {
            rows: self._gradients.sum_metrics(query.metrics, query.weight, self._sets[rows])
            for rows in dict.fromkeys(rows for _, _, rows in sets)
        }
        zeros = np.zeros(metrics.cells(query.metrics), np.int64)
        return [sums[rows] if not sep or party == self._name else zeros for party, sep, rows in sets]

    def begin_margins(self) -> None:
        """Set the margins to 0, to the base margins, or to the margins of the model to continue from."""
        margin, base, earlier = self._gradients.margin, self._shard.base_margin, self._terms.earlier
        if earlier is not None:
            continue_margins(margin, base, earlier, self.columns)
        else:
            margin[:] = 0.0 if base is None else base

    def encoded(self, start: labels.StartQuery) -> tuple[Column, ...]:
        return self._levels.encoded(self.columns, start.means)

    def use(self, bins: Bins) -> None:
        super().use(bins)
        self._own = OwnHistograms(self.growing, bins, self._gradients.pairs)

    def _grow(self, query: trees.TreeQuery) -> None:
        """Apply the splits of a query about the growing tree. At the root, compute the gradients first."""
        if not self.has_gradients:
            self._quantise(query)
        self.growing.apply(query.splits, self.bins)

    def _quantise(self, query: trees.TreeQuery) -> None:
        """Compute the gradients of the growing tree. With gradient-based sampling, also sample its rows."""
        terms, quantise, loss = self._terms, self._quantiser(query), self._loss
        if terms.sums_risk:
            at_risk = () if self.state.scales is None else self.state.scales.at_risk
            if isinstance(query, trees.HistogramQuery):
                at_risk = query.at_risk or at_risk
            assert isinstance(loss, Cox)
            loss = replace(loss, sets=self._time_grid.risk_sets(at_risk))
        if terms.draws.by_gradient_norm:
            assert isinstance(query, trees.HistogramQuery)  # the terms allow no votes
            settings = terms.draws.subsample, terms.trees.reg_lambda, query.threshold
            sample = NormSample(self._sets[metrics.TRAIN], self._draws, query.tree, *settings)
            self._gradients.quantise(loss, quantise, reweigh=sample.reweigh)
            self.growing.begin_on(sample.masks)
            self.growing.apply(self.state.splits, self.bins)
        else:
            self._gradients.quantise(loss, quantise)
        self.has_gradients = True

    def _quantise_start(self, query: labels.StartQuery | labels.LevelSumsQuery) -> None:
        """Compute the gradients from which the base score and the target means are computed."""
        loss, noise = self._terms.objective.loss, self._terms.noise
        shift = 0.0 if noise is None else loss.margin(self._terms.bound.start)
        self._gradients.quantise(loss.start, self._quantiser(query), shift)

    def _quantiser(
        self, query: labels.StartQuery | labels.LevelSumsQuery | trees.TreeQuery | trees.SumsQuery
    ) -> Quantise:
        """Return the function that quantises gradients for a query. Under terms with noise, the function
        also clips the gradients of each row to a bound."""
        if self._terms.noise is not None:
            return self._terms.bound.quantise
        return in_units(query.gradient, query.hessian)

    def end_tree(self, tree: int, splits: Splits, values: LeafValues) -> None:
        self.growing.move_margins(splits, values, self.bins, self._gradients.margin)
        super().end_tree(tree, splits, values)

    def forget_gradients(self) -> None:
        """Drop the gradients and this party's histograms, so that they are computed again when needed."""
        self.has_gradients = False
        self._own.clear()

    def _sampler(self) -> Sampler:
        """Return the sampler of rows. With gradient-based sampling, the sampler selects all rows at first,
        because gradients are not known yet."""
        terms, sample = self._terms, (self._sets[metrics.TRAIN], self._draws)
        if terms.draws.max_bootstrap_count > 1:
            return bootstrap(*sample, terms.draws.subsample)
        if terms.draws.draws_for_trees or holds_out(terms):
            return subsample(*sample, 1.0 if terms.draws.by_gradient_norm else terms.draws.subsample)
        return ALL_ROWS
