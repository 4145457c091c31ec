"""Holders in sessions that do not train. They compute the sums for descriptions, evaluations and drift.

Guarantees: sums depend only on this party's rows and the model. The sums of all parties add up to the sums
that a single party with all rows would compute."""

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedboost.boosting.programs.rounding import part, unit_of
from fedboost.boosting.programs.survival import coarse_by_time
from fedboost.boosting.programs.tasks import encoded, numbers_of
from fedboost.boosting.queries import OfTurn, Query
from fedboost.boosting.queries import columns as queries
from fedboost.boosting.queries.columns import BinCountsQuery, QuantileQuery, RangeQuery, SummaryQuery
from fedboost.boosting.queries.labels import EvaluationQuery, MagnitudesQuery
from fedboost.boosting.state import BoostingState
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Float32, Float64, Int64, exponent_counts
from fedboost.gbdt import metrics, survival
from fedboost.gbdt.binned import Column
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.cut_points import STRETCH, Quantiles, count_cells, count_parts
from fedboost.gbdt.drift import Bins, bins_of
from fedboost.gbdt.gradients import Gradients
from fedboost.gbdt.metrics import TRAIN, VALIDATION, Mean, exact_metric_of
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.sampling import Mask
from fedboost.gbdt.threads import Threads
from fedboost.holders.shard import Exchange, RowsHolder, Shard, continue_margins, row_sets
from fedboost.privacy import packing
from fedboost.privacy.pairwise import KEY_BYTES
from fedboost.protocol.contracts import Answering, HeldTable, Holder, Receive, Send
from fedboost.terms.tasks import bins_in, gridded, label_width, level_sets
from fedboost.terms.terms import Terms

# ---- The rows that a model is evaluated on: all, rows that its training held out, or rows added since ---
# Held-out rows are drawn again under the terms of that training run, or marked in the validation column. All
# rows of a site that did not take part in the training are held out. If draws depend on row indices, the
# table must be the training table, whose hash is in the site's memory.
# Raises: Refused if rows cannot be distinguished, because the table differs or its training is unknown.

ALL = 'evaluate all rows (--rows all, evaluate_rows = "all")'


@dataclass(frozen=True)
class TrainingTable:
    """Table that a site trained on. rows: number of its rows; has: function that takes the keyed hash
    function of another table, and returns True if both tables have the same hash."""

    rows: int
    has: Callable[[Callable[[bytes], bytes]], bool]


TableOf = Callable[[Terms], TrainingTable | None]
"""Returns the training table of the model in the terms, or None if this site has no record of it."""


@dataclass(frozen=True)
class MeasuredRows:
    """Rows of a party on which a model is evaluated. chosen: mask, bool [rows], or None for all rows;
    grown_on: number of these rows that the model was trained on; unknown: number of rows for which this is
    not known.
    """

    chosen: Mask | None
    grown_on: int = 0
    unknown: int = 0


def measured_rows(
    terms: Terms, read: Callable[[Terms], Shard], rows: int, name: str, table_of: TableOf | None
) -> MeasuredRows:
    """Return the rows of a party on which a session evaluates a model. Raises Refused if these rows cannot be
    determined.

    Args:
        read: returns the rows under the given terms.
        rows: number of all rows.
        table_of: returns the training table recorded in the site's memory file. None in a single process,
            where the tables are assumed to be the training tables.
    """
    trained, kind = terms.trained, terms.evaluation.evaluate_rows
    if trained is None or trained.blocks:
        return MeasuredRows(None, 0, rows)
    if name not in trained.parties and table_of is not None:
        return MeasuredRows(None)
    if kind == "held-out":
        columns = trained.columns
        if columns.validation is None and columns.row_id is None and columns.group is None:
            _check_places(terms, trained, read, rows, name, table_of)
        return MeasuredRows(row_sets(read(trained), trained)[VALIDATION])
    table = None if table_of is None else table_of(terms)
    then = None if table is None else _as_then(table, trained, read, rows)
    if kind == "all":
        if then is None:
            return MeasuredRows(None, 0, rows)
        return MeasuredRows(None, int(row_sets(then, trained)[TRAIN].sum()))
    if table is None or then is None:
        why = "has no record of" if table is None else "has a table that does not begin with the rows of"
        raise Refused(
            "table-not-trained",
            f"party {name} {why} the training table, so it cannot identify new rows; {ALL}",
        )
    return MeasuredRows(np.arange(rows) >= table.rows)


def _check_places(
    terms: Terms,
    trained: Terms,
    read: Callable[[Terms], Shard],
    rows: int,
    name: str,
    table_of: TableOf | None,
) -> None:
    if table_of is None:
        if name in trained.parties:
            return
        why = (
            f"is not one of the training's parties ({', '.join(trained.parties)}), and rows are drawn by "
            f"party name"
        )
    elif (table := table_of(terms)) is None:
        why = "has no record of the training table"
    elif table.rows == rows and _as_then(table, trained, read, rows) is not None:
        return
    else:
        why = "has a different table from the training, and rows without ids"
    raise Refused(
        "table-not-trained", f"party {name} {why}, so it cannot tell which rows were held out; {ALL}"
    )


def _as_then(table: TrainingTable, trained: Terms, read: Callable[[Terms], Shard], rows: int) -> Shard | None:
    """Return the rows that the model was trained on if the table begins with them, else None."""
    if rows < table.rows:
        return None
    try:
        then = read(trained).first(table.rows)
    except Refused:  # e.g. a column used in training is gone
        return None
    return then if table.has(lambda key: then.hashed(key, then.columns)) else None


# ---- A party of a session that evaluates a model: sums over its rows ------------------------------------


class EvaluationHolder(RowsHolder):
    """Holder in a session that evaluates a model. Keeps a party's rows and the model's margins for them."""

    def __init__(
        self,
        read: Callable[[Terms], Shard],
        terms: Terms,
        nthread: int = 1,
        name: str = "",
        table_of: TableOf | None = None,
        margins: Float64 | None = None,
    ) -> None:
        """Read the rows, select the rows to evaluate on, and compute their margins. name: name of this party
        in the terms; table_of: see `measured_rows`; margins: float64 [rows] or [outputs, rows] if they are
        already known."""
        super().__init__(lambda: read(terms), terms, nthread)
        self._name = name
        every = self._shard
        self._about = measured_rows(terms, read, every.rows, name, table_of)
        if self._about.chosen is not None:
            self._shard = every.pick(np.flatnonzero(self._about.chosen))
        shard, model = self._shard, terms.earlier
        rows = shard.label, shard.weight, shard.group
        self._gradients = Gradients(terms.objective.loss, *rows, self._threads, shard.allocate)
        if margins is None:
            assert model is not None
            continue_margins(self._gradients.margin, shard.base_margin, model, shard.columns)
        else:
            self._gradients.margin[:] = margins

    @property
    def table(self) -> HeldTable | None:
        """Table of the session and the rows to evaluate on, or None if all rows are evaluated."""
        chosen = self._about.chosen
        if chosen is None or self._terms.noise is not None:  # noise hides in which rows sessions differ
            return None
        return HeldTable(chosen.size, self.rows_hashed, chosen)

    def compute(self, query: Query) -> Int64:
        match query:
            case MagnitudesQuery():
                about = self.rows, self._about.grown_on, self._about.unknown
                return magnitudes(query, self._gradients, about)
            case EvaluationQuery() if not query.sets:
                kind = query.classes, query.threshold, label_width(self._terms)
                return self._gradients.sum_rows(
                    lambda loss, margin, label, _: metrics.count_noisy(loss, margin, label, *kind),
                    np.ones(self.rows, np.bool_),
                )
            case EvaluationQuery():
                levels = [each for column in level_sets(self._terms).values() for each in column]
                masks = [self._rows_of(each.column, each.place) for each in levels]
                return measured(query, self._gradients, self.rows, masks, self._name)
            case _:
                raise PeerError("query-task", f"the query ({query.description}) is not part of an evaluation")

    def _rows_of(self, column: str, place: int | None) -> Mask:
        """Return a mask of the rows with one level of a column, or with none declared if `place` is None."""
        columns = self._terms.blocks.columns_of(self._name, whole=True)
        if column in columns.subgroups:
            codes = self._shard.subgroups[[*columns.subgroups].index(column)]
        else:
            values = self._shard.columns[columns.features.index(column)]
            codes = values[0 : values.size]
        rows: Mask = np.isnan(codes) if place is None else codes == place
        return rows


def magnitudes(query: MagnitudesQuery, gradients: Gradients, rows: tuple[int, int, int]) -> Int64:
    """Return the answer to the first query of an evaluation, int64 [query.cells]. rows: number of all rows,
    of rows that the model was trained on, and of rows for which this is not known."""

    def count(loss: Objective, margin: Float64, label: Float32, weights: Float32) -> Int64:
        with np.errstate(over="ignore"):  # infinite losses are counted in the last cell
            losses = [metric.losses(loss, margin, label) for metric in means]
        return np.concatenate([exponent_counts(each) for each in (weights.astype(np.float64), *losses)])

    means = [metric for metric in map(exact_metric_of, query.means) if isinstance(metric, Mean)]
    everybody, times = np.ones(rows[0], np.bool_), query.times
    parts = [np.array(rows), gradients.sum_rows(count, everybody)]
    if times is not None:
        first = partial(_by_risk, partial(survival.first_counts, edges=times))
        parts.append(gradients.sum_rows(first, everybody))
    return np.concatenate(parts)


def _by_risk(
    count: Callable[..., Int64], loss: Objective, margin: Float64, label: Float32, weights: Float32
) -> Int64:
    return count(loss.risk_sign * margin, label).reshape(-1)


def measured(
    query: EvaluationQuery, gradients: Gradients, rows: int, masks: Sequence[Mask] = (), name: str = ""
) -> Int64:
    """Return the answer to the second query of an evaluation, int64 [query.cells].

    Args:
        gradients: labels, weights and margins of the rows.
        rows: number of rows.
        masks: mask of the rows with each level of the subgroup columns, bool [rows] each.
    """
    everybody = np.ones(rows, np.bool_)
    of_set = partial(_of_set, query)
    parts = [gradients.sum_rows(of_set, among) for among in (everybody, *masks)]
    nothing = np.zeros_like(parts[0])
    parts += [parts[0] if site == name else nothing for site in query.sites]
    counts: list[Callable[..., Int64]] = []
    if query.scores:
        counts.append(lambda _, margin, label, w: metrics.count_bins(margin, label, query.threshold))
        counts.append(lambda _, margin, label, w: metrics.count_cells(margin, label))
    if query.classes:
        counts.append(lambda _, margin, label, w: metrics.count_classes(margin, label, query.classes))
    if query.survival:
        edges, grid = query.by_time
        counts.append(partial(_by_risk, partial(survival.survival_counts, edges=edges, grid=grid)))
    return np.concatenate([*parts, *(gradients.sum_rows(count, everybody) for count in counts)])


def _of_set(
    query: EvaluationQuery, loss: Objective, margin: Float64, label: Float32, weights: Float32
) -> Int64:
    """Return the part of the answer that is about one set of rows: int64 [query.cells_of_set]."""
    rows = np.array([weights.size], np.int64)
    find = query.figures.__getitem__
    parts = [rows, metrics.sums(query.metrics, loss, margin, label, weights, query.weight, find)]
    if query.scores:
        parts.append(metrics.count_outcomes(margin, label, query.threshold))
    return np.concatenate(parts)


# ---- A party of a session that describes rows: it counts them -------------------------------------------

UNDECLARED = -1.0
"""Code of categories that the terms do not declare, in a session that describes rows."""


class SummaryHolder(RowsHolder):
    """Holder in a session that describes a table. Counts rows, e.g. by level or by range."""

    def __init__(self, own: "HolderArguments", terms: Terms) -> None:
        super().__init__(partial(own.read, terms), terms, own.nthread)
        self._name = own.name

    def compute(self, query: Query) -> Int64:
        match query:
            case SummaryQuery():
                return self._summary(query)
            case QuantileQuery(_, grids):
                numeric = len(self._terms.columns.numeric)
                columns = [*self._shard.columns[:numeric], self._shard.label]
                return count_cells(columns[: grids.features], grids, self._threads)
            case RangeQuery():
                return count_ranges(query, self._shard.columns, self._terms, self._threads)
            case _:
                raise PeerError("query-task", f"the query ({query.description}) is not part of a description")

    def _summary(self, query: SummaryQuery) -> Int64:
        columns, classes = self._shard.columns, query.classes
        numeric = self._threads.each(_missing, columns[: query.numeric])
        pairs = zip(columns[query.numeric :], query.levels, strict=True)
        levels = self._threads.each(lambda pair: _by_level(*pair), pairs)
        label = self._shard.label.astype(np.int64) if classes else np.zeros(0, np.int64)
        own = np.array([self.rows, *numeric, *(each[0] + each[-1] for each in levels)], np.int64)
        parts = [own[: 1 + query.numeric], *levels, np.bincount(label, minlength=classes)[:classes]]
        parts.extend(own * (site == self._name) for site in query.sites)
        if query.times:
            parts.extend(survival.counts_by_time(self._shard.label, survival.public_times()))
        return np.concatenate(parts)


COMMITMENT, PART, OF_GROUP = "commitment to a level key", "part of the level key", "key of counts"


class LevelsHolder(SummaryHolder):
    """Holder in a session that describes a table and names levels (`LevelsQuery`)."""

    def __init__(self, own: "HolderArguments", terms: Terms, secret: bytes) -> None:
        super().__init__(own, terms)
        self._secret, groups = secret, queries.groups_of(terms.parties)
        self._group = int(own.name in groups[1])
        self._leader, *self._members = groups[self._group]

    def answering(self, query: OfTurn) -> Answering:
        if not isinstance(query, queries.LevelsQuery):
            return (yield from super().answering(query))
        # The keys are exchanged again, since this process may have restarted. Checks depend on the common
        # key: with another one, those of the earlier counts would not hold.
        key, of_group = yield from self._exchanged()
        size = query.columns * queries.HASHES * queries.CELLS
        factor, added = queries.check_words(packing.pack(key, of_group), size)
        if not query.places:
            out = np.zeros((queries.GROUPS, 2, size), np.int64)
            counts, checks = out[self._group]
            for _, rows, cells in self._levels(key):
                counts[cells] += rows
            checks[:] = (counts * factor + added * (self._leader == self._name)) % queries.PRIME
            return out.ravel()
        own = slice(self._group * len(query.places), (self._group + 1) * len(query.places))
        counts, checks = (np.array(each[own]) % queries.PRIME for each in (query.counts, query.checks))
        if ((counts * factor + added[[*query.places]] - checks) % queries.PRIME).any():
            why = "the aggregator, or a party of the other group, changed the counts of levels"
            raise PeerError("levels-not-checked", why)
        index = {cell: number for number, cell in enumerate(query.places)}
        names = np.zeros((len(index), queries.SLOT), np.int64)
        for level, _, cells in self._levels(key):
            if index.keys() >= {*cells} and (slot := queries.slot_of(level)):
                # A party names one level in each slot: its most frequent one.
                names[[n for n in map(index.__getitem__, cells) if not names[n, 0]]] = slot
        return names.ravel()

    def _levels(self, key: bytes) -> Iterator[tuple[str, int, list[int]]]:
        """Yield each level of this party with its number of rows and its cells, the most frequent first."""
        for column, (codes, levels) in enumerate(self._shard.texts):
            counts = np.bincount(codes[codes >= 0], minlength=len(levels))
            for place in np.argsort(-counts, kind="stable").tolist():
                yield levels[place], int(counts[place]), queries.cells_of(key, column, levels[place])

    def _exchanged(self) -> Exchange:
        """Exchange keys. Returns that of all, uniform if one party is honest, and that of this group."""
        others, told = self._terms.relays_to(self._name), dict[tuple[str, str], bytes]()
        part, of_group = (hmac.digest(self._secret, what.encode(), "sha256") for what in (PART, OF_GROUP))
        for kind, content in ((COMMITMENT, hashlib.sha256(part).digest()), (PART, part)):
            yield Send(kind, others, content, 0)
            for party in others:
                told[kind, party] = yield Receive(kind, party, KEY_BYTES, once=True)
        if any(hashlib.sha256(told[PART, p]).digest() != told[COMMITMENT, p] for p in others):
            raise PeerError("levels-key", "a party relayed a key that it had not committed to")
        if self._leader == self._name:
            yield Send(OF_GROUP, tuple(self._members), of_group, 0)
        else:
            of_group = yield Receive(OF_GROUP, self._leader, KEY_BYTES, once=True)
        told[PART, self._name] = part
        parts = (told[PART, party] for party in sorted(self._terms.parties))
        return hashlib.sha256(packing.pack(*parts)).digest(), of_group


def described(query: SummaryQuery, terms: Terms, name: str, shard: Shard, threads: Threads) -> Int64:
    """Return the answer of a party that holds some of the columns, int64 [query.cells]: what is published
    about its own columns, and 0 for others. Nothing more precise leaves the party. shard: its matched
    rows."""
    own, rows = terms.blocks.columns_of(name), shard.rows
    told = partial(part, total=rows, unit=unit_of(terms.evaluation.min_count))
    values = dict(zip(own.features, shard.columns, strict=True))
    if has_label := terms.blocks.has_labels(name):
        assert shard.label is not None
        values[own.label] = shard.label
    gridded_here = [column for column in gridded(terms) if column in values]
    columns = [values[column] for column in gridded_here]
    quantiles = Quantiles(terms.histograms.max_bin, rows, len(columns))
    quantiles.count(columns, threads)
    parts = [rows * has_label]
    parts += [told(_missing(values[column])) if column in values else 0 for column in terms.columns.numeric]
    for column, levels in zip(terms.columns.categorical, query.levels, strict=True):
        counts = _by_level(values[column], levels) if column in values else np.zeros(levels + 2, np.int64)
        parts += map(told, counts.tolist())
    codes = shard.label.astype(np.int64) if has_label and query.classes else np.zeros(0, np.int64)
    parts += map(told, np.bincount(codes, minlength=query.classes).tolist())
    numbers = dict(zip(gridded_here, map(encoded, numbers_of(terms, rows, quantiles)), strict=True))
    nothing = np.zeros(query.SIZE, np.int64)
    by_time = np.zeros((2, query.times), np.int64)
    if has_label and query.times:
        by_time = coarse_by_time(survival.counts_by_time(shard.label, survival.public_times()), terms, rows)
    return np.concatenate([parts, *(numbers.get(column, nothing) for column in gridded(terms)), *by_time])


def count_ranges(query: RangeQuery, columns: Sequence[Column], terms: Terms, threads: Threads) -> Int64:
    """Count rows by part of each numeric feature's range. Returns int64 [query.cells]."""
    ranges = [terms.columns.ranges[name] for name in terms.columns.numeric]
    pieces = zip(columns[: len(ranges)], ranges, strict=True)
    return np.concatenate(threads.each(lambda piece: count_parts(*piece, query.divisions), pieces))


def _missing(column: Column) -> int:
    steps = range(0, column.size, STRETCH)
    return sum(int(np.isnan(column[start : start + STRETCH]).sum()) for start in steps)


def _by_level(column: Column, levels: int) -> Int64:
    """Count rows with a missing value, each level, and undeclared levels. Returns int64 [levels + 2]."""
    out = np.zeros(levels + 2, np.int64)
    for start in range(0, column.size, STRETCH):
        values = column[start : start + STRETCH]
        places = np.where(values == UNDECLARED, levels, values) + 1
        out += np.bincount(np.where(np.isnan(values), 0, places).astype(np.int64), minlength=levels + 2)
    return out


# ---- Counts of a party's rows by bin of each feature and of the score -----------------------------------


class DriftHolder(RowsHolder):
    """Holder in a session that compares rows with the reference of a model. Counts rows by bin."""

    def compute(self, query: Query) -> Int64:
        if not isinstance(query, BinCountsQuery):
            raise PeerError(
                "query-task", f"the query ({query.description}) is not part of a comparison with a reference"
            )
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
    """Count rows by bin of each feature and of the score, at the end of training.

    Args:
        terms: terms under which the model is trained.
        state: state of the training.
        columns: values of each feature.
        base_margin: initial margins, float32 [rows], or None for 0.
    """
    assert state.start is not None
    cut_points, constant = state.start.cut_points, state.rounds[0].values.value[0]
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
    bins: Bins,
    model: Booster,
    columns: Sequence[Column],
    base: Float64 | Float32 | None,
) -> Int64:
    if (query.sizes, query.score) != (bins.sizes, bins.of_score):
        raise PeerError("query-bins", "the query's bins differ from the model's")
    margin = np.empty((model.loss.outputs, columns[0].size), np.float64)
    continue_margins(margin, base, model, columns)
    return bins.count(columns, margin)


# ---- The holder of each of these tasks ------------------------------------------------------------------


@dataclass(frozen=True)
class HolderArguments:
    """Arguments of `columns.holder_for`, from which a party's holders are created."""

    read: Callable[[Terms], Shard]
    name: str
    nthread: int
    model_of: Callable[[Terms], Booster] | None
    table_of: TableOf | None
    explains: bool


OTHER_HOLDERS: dict[str, Callable[[HolderArguments, Terms, bytes], Holder]] = {
    "describe": lambda own, terms, secret: (
        LevelsHolder(own, terms, secret) if terms.evaluation.level_names else SummaryHolder(own, terms)
    ),
    "evaluate": lambda own, terms, _: EvaluationHolder(own.read, terms, own.nthread, own.name, own.table_of),
    "drift": lambda own, terms, _: DriftHolder(partial(own.read, terms), terms, own.nthread),
}
"""Maps each task that does not train -> the function that creates its holder, with the session's secret."""
