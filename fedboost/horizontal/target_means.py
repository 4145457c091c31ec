"""A party's part in target means: sums of its labels by level, and its levels as means.

Promises: sums are integers, so that those of parties add to those of the pooled rows, bit for bit; the mean
of a row depends on its level and its fold alone.
Refuses nothing: the queries are checked against the terms.
"""

from collections.abc import Sequence

import numpy as np

from fedboost.boosting.queries.labels import LevelSumsQuery
from fedboost.boosting.state import BoostingState
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.binned import Column
from fedboost.gbdt.cut_points import STRETCH
from fedboost.gbdt.sampling import Mask
from fedboost.gbdt.target_means import ALL, EncodedColumn, Folds, Slots, folds_of
from fedboost.horizontal.shard import Shard
from fedboost.terms.terms import Terms, have_folds, slots_of

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
