"""What is told of the distribution of a feature from the counts of its cells (`cut_points.Quantiles`).

Promises: intervals hold the quantiles of the pooled rows; between any two ends that are told of a feature, of
one description or of several over the same rows, lie no rows, or as many as the least of their floors.
Refuses: nothing.

The cuts of a feature are a tree that its rows fix: an interval is cut in its middle third of rows, and each
half likewise. A floor only ends the tree earlier, and so does a grid that is too coarse to tell the next
cut; hence the cuts of a description are among those of another with a lower floor, over finer grids. Rows
without a value count as above all values, since their number is not told exactly.
"""

from collections.abc import Sequence

import numpy as np

from fedboost.fixedpoint import Int64
from fedboost.gbdt.cut_points import Quantiles, keys_to_floats

Interval = list[float]
"""Its two ends."""
VALUES_BY_GAP = 10
"""Cells with rows on either side of a gap."""
_MISSING_KEY = (1 << 32) - 1


class Told:
    """The intervals that are told of a feature. floor: the fewest rows of one; between: the fewest
    and the most rows without a value, as far as they are told."""

    def __init__(self, quantiles: Quantiles, feature: int, floor: int, between: tuple[int, int]) -> None:
        starts, widths, rows = quantiles.cells_of(feature)
        self._values = rows.size
        self._floor = floor
        missing = int(quantiles.missing[feature])
        added = ([_MISSING_KEY], [0], [missing]) if missing else ([], [], [])
        self._starts, self._widths, counts = (
            np.append(known, more).astype(np.int64)
            for known, more in zip((starts, widths, rows), added, strict=True)
        )
        self._until: Int64 = np.append(0, np.cumsum(counts))
        """Rows before each cell, and all."""
        fewest, self._missing = between
        self._most_values = int(self._until[-1]) - fewest

    @property
    def values(self) -> int:
        """The fewest rows with a value that there may be."""
        return int(self._until[-1]) - self._missing

    def intervals(self, shares: Sequence[float]) -> list[Interval | None]:
        """For each share of a feature's values, missing ones left out, the interval [low, high] that its
        quantile lies in, ends included: that of pandas with interpolation="lower". None for one that has no
        values on one side, unless it is a single number. The feature has values."""
        numbers = self.values, self._most_values
        return [self._between(*(int(share * (number - 1)) for number in numbers)) for share in shares]

    def gap(self, least: int, factor: float) -> Interval | None:
        """The ends of the intervals around the widest gap in the values of a feature that are all above 0, as
        a ratio: at least `factor`, with at least so many rows, and several values, on either side of it."""
        starts, size = self._starts[: self._values], 1 << self._widths[: self._values]
        low, high = keys_to_floats(starts), keys_to_floats(starts + size - 1)
        if starts.size < 2 * VALUES_BY_GAP or low[0] <= 0:
            return None
        ends, several = self._until[1 : starts.size], np.arange(1, starts.size)
        fits = (ends >= least) & (self.values - ends >= least)
        fits &= (several >= VALUES_BY_GAP) & (starts.size - several >= VALUES_BY_GAP)
        ratios = np.where(fits, low[1:] / high[:-1], 0.0)
        at = int(np.argmax(ratios))
        if ratios[at] < factor:
            return None
        rank = int(ends[at])
        return None if self._around(rank - 1) == self._around(rank) else self._between(rank - 1, rank)

    @property
    def is_constant(self) -> bool:
        """True if all values that are not missing are known to be one number."""
        return self._values == 1 and not self._widths[0]

    def _between(self, least: int, most: int) -> Interval | None:
        """The interval of the values with these ranks and those between."""
        low, high = self._around(least), self._around(most)
        return None if low is None or high is None else [low[0], high[1]]

    def _around(self, rank: int) -> Interval | None:
        """The interval of the value with this rank. The ends of one with no values on one side would be those
        of all, so it has only one that is a number."""
        first, last, low, high = 0, self._starts.size, 0, 0
        while (cut := self._cut(first, last)) is not None:
            at = int(np.searchsorted(self._starts, cut))
            if rank < self._until[at]:
                last, high = at, cut
            else:
                first, low = at, cut
        if min(last, self._values) - first == 1 and not self._widths[first]:
            missing = self._missing if last > self._values else 0
            if self._until[last] - self._until[first] - missing < self._floor:
                return None
            low, high = int(self._starts[first]), int(self._starts[first]) + 1
        elif first == 0 or last >= self._values:
            return None
        ends: Interval = keys_to_floats(np.array([low, high - 1])).tolist()
        return ends

    def _cut(self, first: int, last: int) -> int | None:
        """The key at which the interval with these cells is cut; None if it is not, or where is unknown."""
        begin, end = int(self._until[first]), int(self._until[last])
        third = (end - begin) // 3
        after = int(np.searchsorted(self._until, begin + third))
        before = int(np.searchsorted(self._until, end - third, side="right")) - 1
        if after <= before:  # the roundest key of the middle third: it tells of no fewer rows
            if third < self._floor:
                return None
            below = int(self._starts[after - 1]) + (1 << int(self._widths[after - 1])) - 1
            above = int(self._starts[before])
            bits = (below ^ above).bit_length() - 1
            return above >> bits << bits
        if self._widths[before]:
            return None
        # one number has more than the third: it is cut off on the side that has more rows
        smaller, larger = int(self._until[before]) - begin, end - int(self._until[after])
        if max(smaller, larger) < self._floor:
            return None
        return int(self._starts[before]) + (smaller < larger)
