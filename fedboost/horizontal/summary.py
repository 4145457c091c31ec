"""A party of a session that describes rows: it counts them.

Promises: counts depend on this party's rows alone; adding those of all parties gives the counts of one party
with all rows.
Refuses: queries out of order, and those of other sessions (PeerError).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import numpy as np

from fedboost.boosting.queries.columns import QuantileQuery, RangeQuery, SummaryQuery
from fedboost.boosting.queries.union import OfTurn, Query
from fedboost.boosting.state import NOTHING_YET, BoostingState
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.binned import Column
from fedboost.gbdt.cut_points import STRETCH, count_cells, count_parts
from fedboost.gbdt.threads import Threads
from fedboost.gbdt.tree import Tree
from fedboost.horizontal.shard import Shard
from fedboost.protocol.contracts import Answering, HeldTable
from fedboost.terms.terms import Terms
from fedboost.version import VERSION

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
