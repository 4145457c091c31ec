"""Holders for parties that have only some of the columns: `answering` computes an integer vector per query.

The vector covers the party's own columns and is 0 elsewhere; the label holder's vector also covers labels.
What a party needs from other parties of its block is relayed to it: gradients at the root of a tree, and row
sets (which rows go left) of the other parties' splits (`column_rows.RowSets`).

Guarantees: the vectors of all parties sum to the answer of a single party with all rows and columns, bit for
bit. After a restart, the parties of a block relay again what one of them lost. That party receives nothing
that it had not received before.
Raises: PeerError for queries that are out of order or do not fit the tree, and for gradients and row sets
that belong to other rows."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np

from fedboost.boosting.queries import OfTurn, Query, ids, labels
from fedboost.boosting.queries.columns import BinsQuery, QuantileQuery, SummaryQuery
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.state import INITIAL_STATE, BoostingState, Round, structure
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Float32, Float64, Int64
from fedboost.gbdt import histogram, reach
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import CutPoints
from fedboost.gbdt.histogram import STATS, Flags, Layout
from fedboost.gbdt.kernels.histogram import spread_level
from fedboost.gbdt.sampling import Mask
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import NO_SPLITS, Splits, Tree
from fedboost.holders import column_rows, other_tasks
from fedboost.holders.alignment import Alignment, CommonRows
from fedboost.holders.shard import BaseHolder, Exchange, Shard, place_of
from fedboost.holders.whole_rows import HorizontalHolder
from fedboost.privacy import packing
from fedboost.protocol.contracts import Answered, Answering, HeldTable, Holder, Receive, Send
from fedboost.terms.continuation import id_of
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

# ---- A session that predicts: feature holders relay to the label holder which leaves rows can reach -----
# A party's model is its view of the model (`queries.base.View`): its own splits in full, the holders of all
# other splits, and at the label holder the leaf values.
# Bits are sent in this order, and a repeated query gets the same bytes:
# 1. feature holder -> label holder: which of the label holder's rows it knows, a bit per row (KNOWN);
# 2. label holder -> feature holder: a keyed hash of their ids, once the bits match the aggregator's hash;
# 3. feature holder -> label holder: leaf bits of all rows (LEAF_BITS), once its own ids have that hash. So
#    nothing about values leaves unless both mean the same rows, and the number of leaf bits does not depend
#    on values: rows that it does not know are sent as rows of missing values.
# Guarantees: margins equal the whole model's margins on a table with all columns, to the last bit.

LEAF_BITS = "leaf bits"
"""Name of this kind of relay in logs."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions for the label holder's rows, in the order of its table.

    Args:
        margins: float64 [rows] or [outputs, rows].
        values: probabilities, or predicted values of other objectives, float64 [rows] or [rows, outputs].
        known: bool [feature holders, rows], True if the feature holder has the row's id. Feature holders are
            in the order of `Block.feature_holders`.
        reasons: contribution of each party in `Terms.parties` to the margin (`reach.reasons`), float64 [rows,
            parties + 1] or [rows, outputs, parties + 1]; None unless requested.
    """

    margins: Float64 = field(repr=False)
    values: Float64 = field(repr=False)
    known: Mask = field(repr=False)
    reasons: Float64 | None = field(repr=False)


class LeafBits:
    """Exchange of leaf bits, from which the label holder computes the margins of a model.

    All parties cut the same list of rows into the same batches, and each feature holder relays its batches in
    order. So memory is bounded by a batch, and a relay's position determines its rows."""

    def __init__(self, terms: Terms, name: str, model: Booster, threads: Threads) -> None:
        self._me, self._model, self._threads = name, model, threads
        _, self._block = place_of(terms, name)
        self._decisions = column_rows.decisions_of(terms, name, model)

    def exchange(
        self, times: Int64, features: Callable[[slice], Float32], base: Float32 | None, explains: bool = False
    ) -> Exchange:
        """Relay this party's leaf bits to the label holder, or, at the label holder, return the margins,
        float64 [rows] or [outputs, rows], and the reasons (`Prediction.reasons`) if `explains`.

        times: number of the label holder's rows for each relayed row, int64 [relayed rows]; features: returns
        the party's columns in a slice of its rows; base: initial margins of the label holder's rows."""
        structure, holder = self._decisions.structure, self._block.label_holder
        step = ids.rows_of_batch(max(map(structure.size, structure.parties)))
        ends, margins, why = np.concatenate([[0], np.cumsum(times)]), list[Float64](), list[Float64]()
        for first in range(0, times.size, step):
            each = times[first : first + step]
            batch = slice(ends[first], ends[first + each.size])
            bits = {self._me: self._decisions.leaf_bits(features(batch), self._threads).tobytes()}
            if self._me != holder:
                if structure.size(self._me):
                    yield Send(LEAF_BITS, (holder,), bits[self._me], each.size)
                continue
            for other in self._block.feature_holders:
                if size := structure.size(other):
                    told = yield Receive(LEAF_BITS, other, each.size * size)
                    by_row = np.frombuffer(told, np.uint8).reshape(each.size, size)
                    bits[other] = np.repeat(by_row, each, axis=0).tobytes()
            rows, own_base = int(each.sum()), None if base is None else base[batch]
            leaves = reach.joined(structure, bits, rows, self._threads)
            margins.append(reach.margins(self._model, leaves, own_base))
            if explains:
                why.append(reach.reasons(self._model, structure, bits, rows, own_base, self._threads))
        if self._me == holder:
            return np.concatenate(margins, axis=-1), np.concatenate(why) if explains else None


class PredictionHolder(BaseHolder):
    """Holder in a session that predicts. Answers from a party's columns and its part of the model."""

    def __init__(
        self,
        read: Callable[[Terms], Shard],
        terms: Terms,
        name: str,
        secret: bytes,
        model: Booster,
        nthread: int = 1,
        explains: bool = False,
    ) -> None:
        """Read the rows, and check that the model fits them. Raises Refused if it does not. read, secret: see
        `VerticalHolder`; model: the party's part of the model; explains: True to compute reasons."""
        super().__init__(terms, nthread)
        view, block = place_of(terms, name)
        self.prediction: Prediction | None = None
        """The result; set only at the label holder, once the rows are predicted."""
        self._me, self._block, self._explains = name, block, explains
        self._holder = terms.parties.index(block.label_holder)
        if model.features != terms.columns.features:
            raise Refused(
                "model-columns-differ", f"the model of party {name} has different columns from the terms"
            )
        ids.check_batch(terms)
        self._shard = shard = read(terms)
        assert shard.ids is not None
        self._alignment = Alignment(terms, name, shard.ids, secret)
        if view.has_labels:
            ids.check_predicted(terms, self._alignment.size)
        self._model = model
        self._leaf_bits = LeafBits(terms, name, model, self._threads)

    @property
    def rows(self) -> int:
        return self._shard.rows

    def rows_hashed(self, key: bytes) -> bytes:
        """Return an HMAC of the table and of the party's part of the model, 32 bytes."""
        model = structure(self._model.base_score, self._model.trees)
        hashed = self._shard.hashed(key, self._shard.columns, VERSION)
        return hmac.digest(key, packing.pack(hashed, model), "sha256")

    def answering(self, query: OfTurn) -> Answering:
        """Return this party's answer, int64 [query.cells], as a generator that exchanges relays."""
        match query:
            case ids.IdCountQuery():
                return self._alignment.count(query)
            case ids.AlignQuery():
                ids.check_predicted(self._terms, query.sizes[self._holder])
                return (yield from self._alignment.tokens(query))
            case ids.ReachQuery() if self._me == self._block.label_holder:
                yield from self._predict(query)
                return np.array([query.total])
            case ids.ReachQuery():
                yield from self._tell(query)
                return np.zeros(query.cells, np.int64)
        raise PeerError("query-task", f"query {query.name} is not part of a prediction session")

    # ---- At a feature holder ------------------------------------------------------------------------

    def _tell(self, query: ids.ReachQuery) -> Exchange:
        """Send the label holder a mask of the rows that this party has. Check that the ids of these rows
        match, then relay the leaf bits of all rows."""
        rows = yield from self._alignment.tell_known(query)
        known = rows != ids.UNKNOWN
        features = np.full((query.total, len(self._shard.columns)), np.nan, np.float32)
        features[known] = self._shard.values(rows[known])
        each = np.ones(query.total, np.int64)
        yield from self._leaf_bits.exchange(each, features.__getitem__, None)

    # ---- At the label holder ------------------------------------------------------------------------

    def _predict(self, query: ids.ReachQuery) -> Exchange:
        """Predict the rows by combining the leaf bits of all parties. Before that, receive a mask of the rows
        that each feature holder has, and send it a hash of the ids of these rows. Feature holders relay leaf
        bits once per id, and these are repeated for each row with that id."""
        order = self._alignment.repeated(query, None)
        times = self._alignment.rows_of_each(self._alignment.rows_at(query))
        by_id = yield from self._alignment.show(query)
        self._check_common(by_id)
        known = np.repeat(by_id, times, axis=1)
        base = None if self._shard.base_margin is None else self._shard.base_margin[order]
        features = self._shard.values(order)
        listed, why = yield from self._leaf_bits.exchange(times, features.__getitem__, base, self._explains)
        margins, has = np.empty_like(listed), np.empty_like(known)
        margins[..., order], has[:, order] = listed, known
        reasons = None if why is None else why[np.argsort(order)]
        self.prediction = Prediction(margins, self._model.loss.predict(margins), has, reasons)

    def _check_common(self, known: Mask) -> None:
        """Raise Refused if a model would be evaluated on too few common ids. known: bool [feature holders,
        ids]. To predict, the check of `ReachQuery` at each feature holder is enough."""
        common, fewest = int(known.all(axis=0).sum()), self._terms.vertical.fewest_common_rows
        if self._measures_common and common < fewest:
            raise Refused("align-few-common", ids.few_in_common(common, fewest, self._block.parties))

    @property
    def _measures_common(self) -> bool:
        """True if the rows are predicted to evaluate a model on those that all parties have."""
        return self._terms.evaluates_jointly and self._terms.vertical.rows != "label_holder"


class JointEvaluationHolder(PredictionHolder):
    """Holder in a session that evaluates a model of parties with different columns.

    The rows are predicted first, as in a session that predicts. Then the label holder answers the queries of
    an evaluation (`EvaluationHolder`), from its labels and the margins, and the others answer with zeros.
    Rows are evaluated if all parties have them, or all rows of the label holder with `rows =
    "label_holder"`. Labels have the noise that the terms require, as in training (`label_epsilon`)."""

    _measured: other_tasks.EvaluationHolder | None = None

    @property
    def rows(self) -> int:
        """Number of rows that the answers are about: 0 at feature holders."""
        if self._me != self._block.label_holder:
            return 0
        return super().rows if self._measured is None else self._measured.rows

    @property
    def table(self) -> HeldTable | None:
        """The label holder's rows and which of them are evaluated, once they are matched, unless all are."""
        if self._measured is None or self.prediction is None or not self._measures_common:
            return None
        return HeldTable(self._shard.rows, self.rows_hashed, np.asarray(self.prediction.known.all(axis=0)))

    def answering(self, query: OfTurn) -> Answering:
        """Return this party's answer, int64 [query.cells], as a generator that exchanges relays."""
        if not isinstance(query, labels.MagnitudesQuery | labels.EvaluationQuery):
            answer = yield from super().answering(query)
            if isinstance(query, ids.ReachQuery) and self.prediction is not None:
                self._measured = self._measure(self.prediction)
            return answer
        query.check_order(self._terms, self.state)
        if self._me != self._block.label_holder:
            return np.zeros(query.cells, np.int64)
        if self._measured is None:
            raise PeerError(
                "query-order",
                f"label holder {self._me} has no predictions of its rows: they were not requested, or it was "
                f"restarted since; evaluate again",
            )
        return self._measured.compute(query)

    def _measure(self, done: Prediction) -> other_tasks.EvaluationHolder:
        shard, margins = self._shard, done.margins
        if self._measures_common:
            chosen = np.flatnonzero(done.known.all(axis=0))
            shard, margins = shard.pick(chosen), margins[..., chosen]
        nthread = self._threads.number
        return other_tasks.EvaluationHolder(
            lambda terms: shard, self._terms, nthread, self._me, margins=margins
        )


# ---- A training: the columns of a party, and the relays of its block ------------------------------------
# What leaves a party in addition to its answers and the matching of rows (`alignment`), and when:
# - label holder -> feature holders, before the histograms of a tree's root: which rows are sampled
#   (`Terms.relays_samples`), then gradients, encrypted if the terms hide columns. Not in `alone_rounds`.
# - feature holders -> label holder, after the rows are matched: leaf bits in a model that is continued.
# - holder of a split -> others of its block: the row set of the split, before anything is computed after it.
#   To all parties if histograms follow, since all must know the rows of the new nodes. If the tree ends, only
#   to the label holder, because only the label holder has margins.
# - each party, after a restart: how far it has progressed, then the same bytes again (`_catch_up`).
# A row set is sent only if the query is in order in this state, each split is of an existing leaf, and its
# column is this party's own (`RowSets.split`). All parties of a block go through the same relays in the same
# order, so none waits for a party that waits for it.

STANDING = "how far it has come"
"""Name of this kind of relay in logs."""
_WHOLE = np.dtype("<i8")


class OwnBins(NamedTuple):
    """Positions of a party's own bins among the bins of all parties.

    places: index of each own bin among the bins of all features, int64 [own bins]; all: number of bins of all
    features; alone: number of the label holder's bins."""

    places: Int64
    all: int
    alone: int

    def among_all(self, query: HistogramQuery, sums: Int64, has_labels: bool) -> Int64:
        """Expand histograms of this party's columns to all columns, with 0 for columns of other parties."""
        # Example: a party has columns a and c, and another party has column b.
        #
        #     all bins     a0 a1 a2 | b0 b1 | c0 c1 | last pair     places   0 1 2 5 6
        #     this party   a0 a1 a2 |  0  0 | c0 c1 | 0 without labels
        #
        # In each block, only one party has a nonzero number at each index. So sums over parties put columns
        # side by side, and sums over blocks add rows.
        nodes = len(query.nodes)
        own = sums.reshape(nodes, -1, STATS)
        out = np.zeros((nodes, query.bins + 1, STATS), np.int64)
        spread_level(own, self.places, out)
        if has_labels:
            out[:, -1] = own[:, -1]
        return out.reshape(-1)

    def with_marks(self, query: HistogramQuery, sums: Int64, groups: Flags | None) -> Int64:
        """Return the sums, followed by marks of the groups if the query is for groups of bins. groups: see
        `BinFloor.groups`."""
        if not query.grouped:
            return sums
        marks = np.zeros((len(query.nodes), query.bins), np.int64)
        if groups is not None:
            own = self.places if query.bins == self.all else np.arange(query.bins)
            marks[:, own] = groups[:, : own.size]
        return np.concatenate([sums, marks.reshape(-1)])


class VerticalHolder(BaseHolder):
    """Holder for a party that has only some of the columns, in one training session."""

    def __init__(
        self, read: Callable[[Terms], Shard], terms: Terms, name: str, secret: bytes, nthread: int = 1
    ) -> None:
        """Read the rows. read: function that returns them under the given terms; secret: the party's secret
        for the session, the same after a restart."""
        super().__init__(terms, nthread)
        self._name = name
        self._view, self._block = place_of(terms, name)
        self._row_sets = column_rows.RowSets(terms, name)
        self._common = CommonRows(read, terms, name, secret, nthread, self._row_sets.columns)
        self._own_cuts = column_rows.OwnCuts(terms, self._view)
        self._gradients = column_rows.GradientExchange(len(terms.roots), self._threads)
        self._bins = OwnBins(np.zeros(0, np.int64), 0, 0)
        self._floor = column_rows.BinFloor(terms, self._view)
        self._finished = 0
        """Number of rounds whose leaf values are in the margins. The constant counts as a round."""
        self._candidates = [*map(terms.candidate, range(len(terms.objective.candidates)))]
        self._asked = set[int]()
        """Candidates of a tuning that the growing tree is for; gradients of others are not relayed."""
        self._is_whole = True
        """True if each row is in the node of the growing tree that `state` implies."""
        self._has_met = True
        """True if the parties of the block have told each other how far they have progressed."""

    def rows_hashed(self, key: bytes) -> bytes:
        return self._common.hashed(key)

    @property
    def rows(self) -> int:
        """Number of rows in the table, or of common rows once rows are matched."""
        return self._common.rows

    @property
    def table(self) -> HeldTable | None:
        """In a description, the table and which of its rows are matched, once they are."""
        return self._common.table if self._terms.counts_jointly else None

    @property
    def _own(self) -> column_rows.OwnRows:
        return self._common.own

    def trees(self, rounds: int) -> tuple[Tree, ...]:
        """Return this party's view of the first `rounds` trees, with thresholds only for its columns."""
        return self._own_cuts.trees(self.state, rounds, self._own)

    def go_to(self, state: BoostingState) -> None:
        """Move to this state. Relays that this requires come before the next answer."""
        # The label holder relays again how often ids are repeated, since another party may have lost it.
        repeats = state.places is not None and self._terms.vertical.repeated_ids
        # The flags from one introduction to the next (True: T, False: F):
        #
        #                        _has_met   _is_whole
        #     go_to              F          F, or T if this party has the state already
        #     _catch_up          T          T      relays until all parties of the block have the state
        #     within answering   T          F      some rows have moved and others have not
        #     after answering    T          T
        #
        # A party that lacks nothing still has to catch up: others may lack row sets that only it can relay.
        # Until the first tree, nothing can be missing, so _has_met is True at once. Exceptions are repeated
        # ids and, once the rows are matched, the margins of a model that is continued.
        continues = self.earlier is not None and (state.places or not self._terms.vertical.aligns)
        self._has_met = not (len(state.rounds) > 1 or state.levels or repeats or continues)
        if state.position == self.state.position and self._is_whole:
            return
        if self._common.match(state.places):
            self.state, self._finished = INITIAL_STATE, 0
        if self._common.held is None:
            self.state = state
            return
        self._stand(state)

    def _stand(self, state: BoostingState) -> None:
        """Move the held rows to this state, as far as that is possible without other parties."""
        starts = [None if each.start is None else each.start.digest for each in (state, self.state)]
        if state.start is not None and starts[0] != starts[1]:
            self._place_bins(state.start.cut_points)
            self._own.bin(self._local(state.start))
            self._finished = 0
        self._take_back(state.rounds)
        if state.rounds and not self._finished:
            self._end_tree(-1, state.rounds[0])
        self._is_whole = False
        self.state = state
        if self._has_met:
            self._begin_tree(state.tree)

    def _take_back(self, rounds: tuple[Round, ...]) -> None:
        """Undo finished trees that are not in these rounds. If the margins from before the last tree are
        stored, only that tree is undone; otherwise, all trees are."""
        own, finished = self._own, self.state.rounds[: self._finished]
        if finished and rounds[: len(finished)] == finished:
            return
        # The usual case after a disconnection: this party answered the query that ends a tree, but the sum
        # was not opened, so the session's state is from before that query.
        if finished and rounds == finished[:-1] and own.take_back():
            self._finished -= 1
            return
        self._finished = 0
        own.begin_margins()

    # ---- Answers ------------------------------------------------------------------------------------

    def answering(self, query: OfTurn) -> Answering:
        """Return this party's answer, int64 [query.cells], as a generator that exchanges relays."""
        if not self._has_met:
            yield from self._catch_up()
        # If the exchange below is cut off, rows may be split halfway: go_to then starts the tree again.
        self._is_whole = False
        answers, encrypted = list[Int64](), b""
        for part in cast(tuple[Query, ...], query.parts):
            part.check_order(self._terms, self.state)
            answered = yield from self._answer(part)
            if isinstance(answered, Answered):
                encrypted = answered.encrypted
            answers.append(answered.values if isinstance(answered, Answered) else answered)
            self.state = self.state.after(part)
        self._is_whole = True
        return Answered(answers[0] if len(answers) == 1 else np.concatenate(answers), encrypted)

    def _answer(self, query: Query) -> Answering:
        if not query.of_tree and isinstance(query, ids.OfRows):
            self._has_met = self.earlier is None or not isinstance(query, ids.PlacesQuery)
            return (yield from self._common.answering(query))
        if isinstance(query, SummaryQuery):
            return other_tasks.described(query, self._terms, self._name, self._own.shard, self._threads)
        own = self._own
        # Row sets come first, because the query is about the nodes after its splits. The floor counts the
        # rows of these nodes, so it is checked next, before any sum is sent.
        yield from self._row_sets.split(own, query.splits, to_all=isinstance(query, HistogramQuery))
        self._floor.check(query.splits, self.state.splits + query.splits, own)
        match query:
            case HistogramQuery():
                return (yield from self._histograms(query, self._terms.vertical.grows_alone(query.tree)))
            case QuantileQuery():
                return self._own_cuts.count_rows(query, own)
            case BinsQuery():
                return self._own_cuts.count_bins(query, own)
            case labels.RowsQuery():
                yield from self._common.compare()
            case labels.StartQuery():
                self._place_bins(query.cut_points)
                query = self._local(query)
            case EndRoundQuery():
                return self._end_round(query)
            case labels.ResidualQuery():
                query = replace(query, splits=NO_SPLITS)
        return own.compute(query)

    def _histograms(self, query: HistogramQuery, alone: bool) -> Answering:
        """Return the answer to a histogram query. alone: True if the tree uses only the label holder's
        columns. Other parties then know nothing about the tree."""
        own, bins, splits = self._own, self._bins[1 + alone], self.state.splits + query.splits
        if query.bins != bins:
            raise PeerError(
                "query-bins", f"the query has {query.bins} bins, but the cut points define {bins}"
            )
        if alone and isinstance(own, column_rows.FeatureRows):
            return np.zeros(query.cells, np.int64)
        roots = self._candidates_of(query.nodes, splits)
        # Gradients are relayed once per tree, and again if a catch-up has restarted the tree, because all
        # parties have then dropped them.
        if not own.has_gradients:  # the rows of the tree first, then their gradients
            if not self.state.levels:
                yield from self._share_sample(query.tree)
            if self._candidates:
                self._asked = roots
                self._gradients.keep_roots(roots, self.rows)
            if not alone:
                yield from self._share_gradients(query)
        if not roots <= self._asked:
            raise PeerError("query-order", "the query asks for sums of a candidate that was dropped")
        groups = self._floor.groups(query.nodes, splits, own) if self._bins.places.size else None
        if self._terms.hides_columns and isinstance(own, column_rows.FeatureRows):
            nodes = [(self._row_sets.root_of(node), own.growing.of(node)) for node in query.nodes]
            report = yield from self._gradients.report(own.gradients, nodes, own.bins, groups)
            # Sums are sent only encrypted: the cells of the answer are 0, except for the marks of groups.
            nothing = np.zeros(query.cells - query.marks, np.int64)
            return Answered(self._bins.with_marks(query, nothing, groups), report)
        sums, layout = own.histograms(query), own.bins.layout
        histogram.group_nodes(sums, groups, layout)
        if not alone:
            sums = self._bins.among_all(query, sums, self._view.has_labels)
        return self._bins.with_marks(query, sums, groups)

    def _candidates_of(self, nodes: tuple[int, ...], splits: Splits) -> set[int]:
        """Return the candidates of nodes, and of the growing tree's splits, known even after a restart."""
        return {*map(self._row_sets.root_of, (*nodes, *splits.node.tolist()))} if self._candidates else set()

    def _share_sample(self, tree: int) -> Exchange:
        """Start the trees of a round on their sample, which the label holder relays to the other parties. If
        the trees use only the label holder's columns, the other parties do not receive it."""
        own, trees = self._own, self._terms.trees.num_parallel_tree
        if not self._terms.relays_samples:
            return
        masks = None
        if isinstance(own, column_rows.LabelRows):
            masks = own.sample(tree)
            self._floor.begin_tree(masks[0])
        if self._terms.vertical.grows_alone(tree):
            return
        masks = yield from self._gradients.share_sample(self._block, masks, (trees, self.rows))
        if isinstance(own, column_rows.FeatureRows):
            self._floor.begin_tree(masks[0])
            own.growing.begin_on([*masks])

    def _share_gradients(self, query: HistogramQuery) -> Exchange:
        """Exchange the gradients of the growing tree: the label holder relays them to the other parties."""
        own, hidden = self._own, query.hidden(self._terms, self.state)
        if isinstance(own, column_rows.LabelRows):
            yield from self._gradients.send(self._block.feature_holders, own.gradients_of(query), hidden)
            return
        own.gradients = yield from self._gradients.receive(self._block.label_holder, self.rows, hidden)

    def _end_round(self, query: EndRoundQuery) -> Int64:
        own, state = self._own, self.state
        # The label holder cannot recompute others' sums, so it checks the leaf values against its rows.
        if self._terms.hides_columns and isinstance(own, column_rows.LabelRows):
            # If the value of a candidate whose sums were opened could be 0, the aggregator could compare the
            # sums of two trees over the same gradients.
            grown = self._candidates or [self._terms] * self._terms.objective.loss.outputs
            splits = state.splits + query.splits
            dropped = {*range(len(self._candidates))} - self._asked - self._candidates_of((), splits)
            column_rows.check_leaf_values(self._terms, own, state.scales, splits, query, grown, dropped)
        answer = own.compute(replace(query, splits=NO_SPLITS))
        self._finished = query.tree + 2
        self._row_sets.begin_tree(query.tree + 1)
        self._asked.clear()
        self._floor.forget()
        return answer

    def _local(self, start: labels.StartQuery) -> labels.StartQuery:
        local = replace(start, cut_points=start.cut_points.pick(self._view.own_features))
        return self._own_cuts.put_into(local, self._own) if self._view.hides else local

    def _place_bins(self, cut_points: CutPoints) -> None:
        layout = Layout.of(cut_points)
        sizes = layout.value_bins + layout.missing
        places = np.flatnonzero(np.repeat(self._view.own, sizes))
        holder = self._terms.parties.index(self._block.label_holder)
        self._bins = OwnBins(places, layout.bins, int(sizes[self._view.holders == holder].sum()))

    # ---- After a restart ----------------------------------------------------------------------------

    def _catch_up(self) -> Exchange:
        """Reach the current state together with the other parties of the block, e.g. after a restart.

        Each party relays how far it has progressed, the label holder -1 if it lacks the margins of the model
        that is continued: the others then relay leaf bits. Then the trees that the label holder lacks are
        repeated. The growing tree is repeated if any party lacks it. Only the label holder has margins, so
        finished trees that only other parties lack are skipped."""
        state, others, held = self.state, self._row_sets.others, self._common.held
        yield from self._common.repeat()
        if held is not self._common.held:
            self.state = INITIAL_STATE
            self._stand(state)
        lacks = self.earlier is not None and self._own.begun is None
        own = np.array([-1 if lacks else self._finished, self._is_whole], _WHOLE).tobytes()
        yield Send(STANDING, others, own, 0)
        # Each party sends the same bytes to all others before it waits for theirs. So all have the same
        # table, derive the same relays from it, and none waits for one that is never sent:
        #
        #     STANDING from each to all
        #     margins of the earlier model, if it lacks them     leaf bits
        #     finished trees that the label holder lacks     row sets, level by level
        #     the growing tree, if any party lacks it        its rows (with a floor), then row sets
        standing = {self._name: own}
        for other in others:
            standing[other] = yield Receive(STANDING, other, len(own))
        read = {party: np.frombuffer(content, _WHOLE).tolist() for party, content in standing.items()}
        finished, _ = read[self._block.label_holder]
        if finished < 0 and self.earlier is not None:
            yield from self._share_leaves(self.earlier)
        again = range(max(1, finished), len(state.rounds))
        if again or not all(is_whole for _, is_whole in read.values()):
            self._is_whole = False
            # Every party follows these trees, not only the label holder: the holder of a split must have the
            # rows of its node to relay which of them go left.
            for tree in again:
                self._begin_tree(tree - 1)
                yield from self._follow(state.rounds[tree].splits, to_all=False)
                self._end_tree(tree - 1, state.rounds[tree])
            self._begin_tree(state.tree)
            if state.levels:
                yield from self._share_sample(state.tree)
            yield from self._follow(state.splits, to_all=state.residual is None)
            self._floor.check(state.splits, state.splits, self._own)
        self._has_met = self._is_whole = True

    def _share_leaves(self, model: Booster) -> Exchange:
        """Let the label holder compute the margins of the model that is continued, from all leaf bits."""
        own, each, columns = self._own, np.ones(self.rows, np.int64), self._own.columns
        yield from self._common.check()
        told = yield from LeafBits(self._terms, self._name, model, self._threads).exchange(
            each, lambda rows: np.column_stack([column[rows] for column in columns]), own.base_margin
        )
        if isinstance(own, column_rows.LabelRows):
            own.begun, _ = told
            own.begin_margins()
            self._finished = 0
            if self.state.rounds:
                self._end_tree(-1, self.state.rounds[0])

    def _follow(self, splits: Splits, to_all: bool) -> Exchange:
        """Move rows down a tree again, level by level.

        Row sets of splits above other splits were sent to all parties, and are sent to all of them again. The
        other row sets belong to the last level, and were sent only to the label holder. to_all: True if the
        row sets of the last level were also sent to all parties."""
        inner = np.isin(splits.left, splits.node) | np.isin(splits.left + 1, splits.node) | to_all
        for level in column_rows.levels(splits):
            yield from self._row_sets.split(self._own, column_rows.some(splits, level & inner), to_all=True)
            yield from self._row_sets.split(self._own, column_rows.some(splits, level & ~inner), to_all=False)

    def _begin_tree(self, tree: int) -> None:
        self._own.begin_tree(tree)
        self._row_sets.begin_tree(tree)
        self._asked.clear()
        self._floor.forget()

    def _end_tree(self, tree: int, done: Round) -> None:
        """Add a finished tree, or the constant (tree -1), to the margins."""
        self._own.end_tree(tree, NO_SPLITS, done.values)
        self._finished = tree + 2


def holder_for(
    read: Callable[[Terms], Shard],
    name: str,
    nthread: int = 1,
    model_of: Callable[[Terms], Booster] | None = None,
    table_of: other_tasks.TableOf | None = None,
    explains: bool = False,
) -> Callable[[Terms, bytes], Holder]:
    """Return a function (`Site.holder`) that creates the holder of a party's rows for given terms.

    Args:
        read: returns the rows under the given terms; raises Refused if they do not fit.
        nthread: number of threads.
        model_of: returns the party's part of the model that the session predicts with; raises Refused if the
            party does not have that model.
        table_of: returns the training table of the model that the session evaluates.
        explains: True if a prediction also computes what each party contributes to it.
    """
    own = other_tasks.HolderArguments(read, name, nthread, model_of, table_of, explains)
    return lambda terms, secret: HOLDERS[terms.task.name](own, terms, secret)


def _counting(own: other_tasks.HolderArguments, terms: Terms, secret: bytes) -> Holder:
    if terms.blocks:
        holder = VerticalHolder(own.read, terms, own.name, secret, own.nthread)
        if terms.earlier is not None:
            holder.earlier = _own_part(own, terms)
        return holder
    if other := other_tasks.OTHER_HOLDERS.get(terms.task.name):
        return other(own, terms, secret)
    return HorizontalHolder(partial(own.read, terms), terms, own.nthread, own.name)


def _predicting(own: other_tasks.HolderArguments, terms: Terms, secret: bytes) -> Holder:
    model = _own_part(own, terms)
    return PredictionHolder(own.read, terms, own.name, secret, model, own.nthread, own.explains)


def _own_part(own: other_tasks.HolderArguments, terms: Terms) -> Booster:
    """Return the party's part of the model that a session uses, or the whole model in the terms."""
    if terms.earlier is not None and not (terms.vertical.predict_with or id_of(terms.xgb_model)):
        return terms.earlier
    if own.model_of is None:
        raise Refused("model-missing", f"party {own.name} does not have any models to predict with")
    return own.model_of(terms)


def _evaluating(own: other_tasks.HolderArguments, terms: Terms, secret: bytes) -> Holder:
    if not terms.evaluates_jointly:
        return _counting(own, terms, secret)
    return JointEvaluationHolder(own.read, terms, own.name, secret, _own_part(own, terms), own.nthread)


HOLDERS: dict[str, Callable[[other_tasks.HolderArguments, Terms, bytes], Holder]] = {
    "train": _counting,
    "tune": _counting,
    **other_tasks.OTHER_HOLDERS,
    "describe": _counting,
    "evaluate": _evaluating,
    "predict": _predicting,
}
"""Maps task -> the function that creates its holder."""
