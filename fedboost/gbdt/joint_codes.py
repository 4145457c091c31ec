"""Joint codes: features that share a column of bytes, with a code for each combination of their bins.

Promises: each combination that the rows of this party show has a code of its own, so that sums by code, taken
apart, are the sums by bin. Which features share a column depends on these rows alone, and never leaves the
party.
Refuses nothing: features that do not fit together stay apart.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from fedboost.fixedpoint import Int64
from fedboost.gbdt.kernels.bins import MAX_CODES, join_codes, sample_bins

Codes = npt.NDArray[np.uint8]

MAX_TRIES = 32
"""Columns that are tried for a feature."""
MAX_READS = 2
"""How often all codes may be read for joins that turn out to need too many codes."""
_SAMPLED_ROWS = 1 << 13
"""Approximate number of rows by which a join is tried first."""


@dataclass(frozen=True)
class JointColumn:
    """Features that share a column.

    codes: uint8 [rows]; bins: uint8 [codes, features], the bins that each code stands for: of a feature alone
    every bin, itself; sample: the codes of some rows; size: the number of codes that these show.
    """

    features: tuple[int, ...]
    codes: Codes
    bins: Codes
    sample: Codes
    size: int


class _Plan:
    """The columns so far; features are added to the first that they fit, those with most codes first."""

    def __init__(self, reads: int, allocate: Callable[[], Codes]) -> None:
        """reads: codes that may be read for joins that fail; allocate: returns room for the codes of a
        column."""
        self.columns: list[JointColumn] = []
        self._open: list[int] = []  # the numbers of columns that have codes left, in order
        self._reads = reads
        self._allocate = allocate
        self._spare: Codes | None = None

    def add(self, feature: JointColumn) -> None:
        """Join a feature to a column, or begin one with it."""
        for number in islice(self._possible(feature), MAX_TRIES):
            if self._reads < 0:
                break
            column = self.columns[number]
            joined = self._join(column, feature)
            if joined is not None:
                self.columns[number] = joined
                self._spare = column.codes if len(column.features) > 1 else None
                if joined.size == MAX_CODES > column.size:
                    self._open.remove(number)
                return
        if feature.size < MAX_CODES:
            self._open.append(len(self.columns))
        self.columns.append(feature)

    def _possible(self, feature: JointColumn) -> Iterable[int]:
        """The numbers of columns that may take a feature. One without codes left takes none but a constant;
        a feature with all codes finds no other kind, since those with most codes come first."""
        if feature.size <= 1:
            return range(len(self.columns))
        return self._open if feature.size < MAX_CODES else ()

    def _join(self, column: JointColumn, feature: JointColumn) -> JointColumn | None:
        sample, parts = np.empty_like(column.sample), np.empty((MAX_CODES, 2), np.uint8)
        size = join_codes(column.sample, feature.sample, sample, parts)
        if size < 0:
            return None
        codes = self._allocate() if self._spare is None else self._spare
        self._spare = codes
        count = join_codes(column.codes, feature.codes, codes, parts)
        if count < 0:
            self._reads += int(count)
            return None
        code, joined = parts[:count].T
        bins = np.hstack([column.bins[code], feature.bins[joined]])
        return JointColumn(column.features + feature.features, codes, bins, sample, int(size))


def plan(by_feature: Codes, features: Int64, allocate: Callable[[], Codes]) -> list[JointColumn]:
    """Share columns among these features of uint8 [F, rows], those with most bins first. The columns of one
    feature come first in the result, by its number."""
    rows = by_feature.shape[1]
    sample = by_feature[:, :: max(1, rows // _SAMPLED_ROWS)][features]
    bins = np.arange(MAX_CODES, dtype=np.uint8).reshape(-1, 1)
    sizes = sample_bins(sample, 1)[:, 2].tolist()
    alone = [
        JointColumn((feature,), by_feature[feature], bins, codes, size)
        for feature, codes, size in zip(features.tolist(), sample, sizes, strict=True)
    ]
    joined = _Plan(MAX_READS * features.size * rows, allocate)
    for column in sorted(alone, key=lambda column: -column.size):
        joined.add(column)
    return sorted(joined.columns, key=lambda column: (len(column.features) > 1, column.features))
