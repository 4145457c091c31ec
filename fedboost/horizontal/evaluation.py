"""A party of a session that evaluates a model: sums over its rows.

Promises: sums depend on this party's rows and the model alone; adding those of all parties gives the sums of
one party with all rows.
Refuses: queries of other sessions (PeerError).
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fedboost.boosting.queries.labels import EvaluationQuery, MagnitudesQuery
from fedboost.boosting.queries.union import Query
from fedboost.errors import PeerError
from fedboost.fixedpoint import Float32, Float64, Int64, exponent_counts
from fedboost.gbdt.gradients import Gradients
from fedboost.gbdt.metrics import registry
from fedboost.gbdt.metrics import registry as metrics
from fedboost.gbdt.metrics.metric import Mean
from fedboost.gbdt.metrics.registry import exact_metric_of
from fedboost.gbdt.objectives.objective import Objective
from fedboost.gbdt.sampling import Mask
from fedboost.horizontal.measured_rows import TableOf, measured_rows
from fedboost.horizontal.shard import Shard, continue_margins
from fedboost.horizontal.summary import CountingHolder
from fedboost.protocol.contracts import HeldTable
from fedboost.terms.tasks import level_sets
from fedboost.terms.terms import Terms


class EvaluationHolder(CountingHolder):
    """The rows of a party in one session that evaluates a model, with their margins."""

    def __init__(
        self,
        read: Callable[[Terms], Shard],
        terms: Terms,
        nthread: int = 1,
        name: str = "",
        table_of: TableOf | None = None,
    ) -> None:
        """name: of this party in the terms; table_of: as for `measured_rows`."""
        super().__init__(lambda: read(terms), terms, nthread)
        self._name = name
        every = self._shard
        self._about = measured_rows(terms, read, every.rows, name, table_of)
        if self._about.chosen is not None:
            self._shard = every.pick(np.flatnonzero(self._about.chosen))
        shard, model = self._shard, terms.earlier
        assert model is not None
        rows = shard.label, shard.weight, shard.group
        self._gradients = Gradients(terms.objective.loss, *rows, self._threads, shard.allocate)
        continue_margins(self._gradients.margin, shard.base_margin, model, shard.columns)

    @property
    def table(self) -> HeldTable | None:
        """The rows that are measured, where these are not all."""
        chosen = self._about.chosen
        return None if chosen is None else HeldTable(chosen.size, self.rows_hashed, chosen)

    def _counts(self, query: Query) -> Int64:
        match query:
            case MagnitudesQuery():
                about = self.rows, self._about.grown_on, self._about.unknown
                return magnitudes(query, self._gradients, about)
            case EvaluationQuery():
                return self._measured(query)
            case _:
                raise PeerError(f"{query.description}: asked where a model is evaluated")

    def _measured(self, query: EvaluationQuery) -> Int64:
        levels = [each for column in level_sets(self._terms).values() for each in column]
        masks = [self._rows_of(each.column, each.place) for each in levels]
        return measured(query, self._gradients, self.rows, masks, self._name)

    def _rows_of(self, column: str, place: int | None) -> Mask:
        """The rows of a level of a categorical column, or of no declared one."""
        columns = self._terms.columns
        if column in columns.subgroups:
            codes = self._shard.subgroups[[*columns.subgroups].index(column)]
        else:
            values = self._shard.columns[columns.features.index(column)]
            codes = values[0 : values.size]
        rows: Mask = np.isnan(codes) if place is None else codes == place
        return rows


def magnitudes(query: MagnitudesQuery, gradients: Gradients, rows: tuple[int, int, int]) -> Int64:
    """The answer to the first query: int64 [query.cells]. rows: their number, that of rows that trees were
    grown on, and of those of which it is not known."""

    def count(loss: Objective, margin: Float64, label: Float32, weights: Float32) -> Int64:
        with np.errstate(over="ignore"):  # what is infinite is counted in the last cell
            losses = [metric.losses(loss, margin, label) for metric in means]
        return np.concatenate([exponent_counts(each) for each in (weights.astype(np.float64), *losses)])

    means = [metric for metric in map(exact_metric_of, query.means) if isinstance(metric, Mean)]
    return np.concatenate([np.array(rows), gradients.sum_rows(count, np.ones(rows[0], np.bool_))])


def measured(
    query: EvaluationQuery, gradients: Gradients, rows: int, masks: Sequence[Mask] = (), name: str = ""
) -> Int64:
    """The answer to a query: int64 [query.cells]. gradients: with the margins of the rows; masks: the rows of
    each set after that of all; name: of the site whose rows they are."""
    everybody = np.ones(rows, np.bool_)
    of_set = partial(_of_set, query)
    parts = [gradients.sum_rows(of_set, among) for among in (everybody, *masks)]
    nothing = np.zeros_like(parts[0])
    parts += [parts[0] if site == name else nothing for site in query.sites]
    if query.scores:
        parts.append(
            gradients.sum_rows(lambda _, m, y, w: registry.count_bins(m, y, query.threshold), everybody)
        )
        parts.append(gradients.sum_rows(lambda _, m, y, w: registry.count_cells(m, y), everybody))
    if query.classes:
        parts.append(
            gradients.sum_rows(lambda _, m, y, w: registry.count_classes(m, y, query.classes), everybody)
        )
    return np.concatenate(parts)


def _of_set(
    query: EvaluationQuery, loss: Objective, margin: Float64, label: Float32, weights: Float32
) -> Int64:
    """The integers of some rows of a set: int64 [query.cells_of_set]."""
    rows = np.array([weights.size], np.int64)
    find = query.figures.__getitem__
    parts = [rows, metrics.sums(query.metrics, loss, margin, label, weights, query.weight, find)]
    if query.scores:
        parts.append(registry.count_outcomes(margin, label, query.threshold))
    return np.concatenate(parts)
