"""Computes cut points from row counts, and converts rows to bins.

Guarantees: cut points depend only on sums of counts over a grid of float32 keys, so they do not depend on how
the rows are divided among parties. Bin b of a feature is [cut[b-1], cut[b]), so that x < cut goes left, as in
XGBoost. Each category of a categorical feature has its own bin. Missing values have a bin of their own, after
the others.
Raises: PeerError if counts are inconsistent.

Grid refinement. The first grid is coarse and covers all float32 numbers. Each later grid refines only the
cells that have enough rows for a cut inside them:

    key bits   31        21                                    0
               [first grid |  refinement 1  | refinement 2 | ... ]     a prefix of the key is a cell

A cell of 2**width keys is divided into 2**subdivision subcells of 2**(width - subdivision) keys. A cell of
width 0 is a single number. A feature's subcells are allotted to its cells by row count, so two to four sums
suffice for any distribution. Weighted rows are counted in units of a public scale, so that a row with weight
2 counts as two rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.binned import Allocator, BinnedRows, Column, StoredValues, allocate_in_memory
from fedboost.gbdt.kernels import bins as kernels
from fedboost.gbdt.kernels.bins import MAX_CODES, bin_column, float_keys
from fedboost.gbdt.threads import ONE, Threads

Keys = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

KEY_BITS = 32
FIRST_BITS = 11
"""Number of key bits that the first grid resolves: the sign, the exponent and two bits of the mantissa. This
gives 2048 cells. If there are very many features, each has fewer cells (`first_bits`)."""
MAX_REFINEMENTS = 5
SUBCELLS_PER_BIN = 8
"""Number of subcells per bin that a feature may use in one refinement. This is also the target resolution: a
cell with at most a quarter of the rows of an average bin is not refined."""
STRETCH = 1 << 20
"""Number of rows of a column that are processed together."""
MAX_CATEGORIES = MAX_CODES - 1
"""Maximum number of categories of a feature. Each has a bin, and missing values have one more."""
MAX_SUBCELLS = 1 << 22
"""Approximate maximum number of subcells counted in one turn, over all features. Their counts take 32 MB."""


@dataclass(frozen=True)
class Grids:
    """A grid for each feature: disjoint cells of float32 keys, in increasing order, each divided into equal
    subcells.

    offsets: int64 [features + 1], feature f has the cells offsets[f] to offsets[f + 1] - 1, possibly none;
    starts: uint32 [cells], the first key of each; widths: uint8 [cells], the cell covers 2**width keys;
    subdivisions: uint8 [cells], the cell has 2**subdivision subcells, each with its own count."""

    offsets: Int64
    starts: Keys
    widths: Bytes
    subdivisions: Bytes

    @property
    def features(self) -> int:
        return self.offsets.size - 1

    @cached_property
    def bases(self) -> Int64:
        """Index of each cell's first count, followed by the total number of counts: int64 [cells + 1]."""
        return ends_of(np.int64(1) << self.subdivisions.astype(np.int64))

    @property
    def cells(self) -> int:
        return int(self.bases[-1])

    @property
    def cells_by_feature(self) -> Int64:
        """Number of counts in each feature's grid: int64 [features]."""
        return np.diff(self.bases[self.offsets])

    def pick(self, features: Int64) -> "Grids":
        chosen = np.zeros(self.features, np.bool_)
        chosen[features] = True
        sizes = np.diff(self.offsets)
        cells = np.repeat(chosen, sizes)
        columns = self.starts[cells], self.widths[cells], self.subdivisions[cells]
        return Grids(ends_of(sizes[chosen]), *columns)

    @property
    def shape(self) -> tuple[bytes, ...]:
        """The four arrays as bytes, for comparing grids."""
        members = self.offsets, self.starts, self.widths, self.subdivisions
        return tuple(member.tobytes() for member in members)

    @classmethod
    def first(cls, features: int, among: int | None = None) -> "Grids":
        """Return the coarse initial grids. Each is a single cell that covers all keys, and the cell's last
        subcell contains only missing values. features: number of features; among: number of features that
        share the limit MAX_SUBCELLS (default: `features`)."""
        bits = np.full(features, first_bits(features if among is None else among), np.uint8)
        return cls(
            np.arange(features + 1),
            np.zeros(features, np.uint32),
            np.full(features, KEY_BITS, np.uint8),
            bits,
        )


def ends_of(sizes: npt.ArrayLike) -> Int64:
    """Return the ends of consecutive pieces of these sizes, preceded by 0."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def first_bits(features: int) -> int:
    """Return the number of key bits that the first grid resolves. It is at most FIRST_BITS and at least 9
    (the sign and the exponent). features: number of features."""
    # The highest 9 bits of a key are the sign and the 8 bits of the exponent. bit_length - 1 rounds the
    # logarithm down, so features * 2**bits stays within MAX_SUBCELLS as long as 9 bits do.
    return max(min(FIRST_BITS, (MAX_SUBCELLS // max(features, 1)).bit_length() - 1), 9)


def count_cells(
    columns: Sequence[Column], grids: Grids, threads: Threads = ONE, units: Int64 | None = None
) -> Int64:
    """Count each column's rows in the subcells of its grid.

    Args:
        columns: float32 values of each feature.
        grids: the grid of each column.
        units: int64 [rows], the count of each row; None if every row counts 1.

    Returns:
        int64 [grids.cells]
    """
    out = np.zeros(grids.cells, np.int64)
    stored = StoredValues.of(columns)
    # Sparse columns take one call: the cost of each is its stored values, not its rows.
    kernels.count_stored(
        *(stored.features, *stored.counts(units), stored.ends, stored.keys),
        *(grids.offsets, grids.starts, grids.widths, grids.subdivisions, grids.bases, out),
    )
    sparse = {*stored.features.tolist()}

    def count(feature: int) -> None:
        first, last = grids.offsets[feature : feature + 2]
        counts = out[grids.bases[first] : grids.bases[last]]
        cells = grids.starts[first:last], grids.widths[first:last], grids.subdivisions[first:last]
        column = columns[feature]
        for start in range(0, column.size if counts.size else 0, STRETCH):
            keys = float_keys(np.ascontiguousarray(column[start : start + STRETCH]))
            own = None if units is None else units[start : start + STRETCH]
            kernels.count_cells(keys, own, *cells, counts)

    threads.each(count, (feature for feature in range(len(columns)) if feature not in sparse))
    return out


RANGE_PARTS, FINE_PARTS = 128, 512
"""Number of parts into which a declared range is divided to count rows: to describe them, and for
training."""
_HALVINGS = 16
"""Number of halvings between the end of a range and the edge closest to 0."""


def range_edges(declared: tuple[float, float], parts: int) -> Float32:
    """Return the edges between the parts of a declared range (low, high): float32 [parts - 1], increasing.

    Half of the edges are evenly spaced. The other half approach 0 geometrically, from both sides, because
    most values are usually far smaller than the largest. If 0 is not inside the range, they approach the
    lower end.
    """
    low, high = declared
    even = np.linspace(low, high, parts // 2 + 1)[1:-1]
    middle = 0.0 if low < 0.0 < high else low
    sides = [end for end in (low, high) if end != middle]
    # The k-th of `each` edges on a side is at 2**(-16 k / each) of the way from the middle to its end. With
    # 128 parts, there are 32 edges per side if 0 is inside, else 64; with the 63 even ones these are 127.
    each = parts // 2 // len(sides)
    ratios = 2.0 ** (-_HALVINGS * np.arange(1, each + 1) / each)
    near = np.concatenate([middle + (end - middle) * ratios for end in sides])
    return np.sort(np.concatenate([even, near])).astype(np.float32)


def count_parts(column: Column, declared: tuple[float, float], parts: int) -> Int64:
    """Count a column's rows in each part of a declared range (low, high). Returns int64 [parts].

    Values below the range are counted in the first part, values above it in the last. Missing values are not
    counted."""
    edges, out = range_edges(declared, parts), np.zeros(parts, np.int64)
    for start in range(0, column.size, STRETCH):
        values = column[start : start + STRETCH]
        found = np.searchsorted(edges, values[~np.isnan(values)], side="right")
        out += np.bincount(found, minlength=parts)
    return out


class Quantiles:
    """Approximate distribution of each feature: the row counts of cells that are refined step by step."""

    def __init__(
        self,
        max_bin: int,
        rows: int,
        features: int = 1,
        among: int | None = None,
        two_rows: int | None = None,
    ) -> None:
        """Start with the coarse initial grids.

        Args:
            max_bin: maximum number of bins of a feature.
            rows: number of rows. For weighted rows, the largest possible sum of their weights, in units; this
                sum must be below 2**52.
            features: number of features.
            among: number of features that share the limit on subcells, including these features (default:
                only these).
            two_rows: smallest possible sum of two positive row weights, in units; None if every row counts 1.
        """
        # The budget is 256 to 2048 subcells, as max_bin is at most 256. budget * rows is below 2**63 for rows
        # below 2**52 (`kernels.choose_cells`).
        every_feature = features if among is None else among
        self._max_bin = max_bin
        self._budget = max(min(max_bin * SUBCELLS_PER_BIN, MAX_SUBCELLS // max(every_feature, 1)), 1 << 8)
        keys, every = np.zeros(features, np.int64), np.full(features, rows, np.int64)
        self._known = np.arange(features + 1), keys, np.full(features, KEY_BITS, np.int64), every
        """Offsets of each feature's cells; starts, widths and row counts of the cells."""
        self._two_rows = two_rows or 2
        self._total_is_known = two_rows is None
        self.grids = Grids.first(features, among)
        self.missing = np.zeros(features, np.int64)

    def count(self, columns: Sequence[Column], threads: Threads = ONE, units: Int64 | None = None) -> None:
        """Refine the grids by counting these columns. threads, units: see `count_cells`."""
        for _ in range(MAX_REFINEMENTS):
            if self.grids.cells:
                self.refine(count_cells(columns, self.grids, threads, units))

    def refine(self, counts: Int64) -> None:
        """Record the counts of `self.grids`, summed over the parties, and choose the next grids. counts:
        int64 [grids.cells].

        Raises PeerError if the counts of a cell's subcells do not add up to the rows of the cell."""
        grids = self.grids
        if not self._total_is_known:
            self._take_total(int(counts[: grids.bases[grids.offsets[1]]].sum()))
        # At most: every cell stays, and every subcell with rows is added.
        most = self._known[1].size + np.count_nonzero(counts)
        refined = np.zeros(grids.features + 1, np.int64), *np.empty((3, most), np.int64)
        grid = grids.offsets, grids.starts, grids.subdivisions
        size = kernels.refine(self._known, grid, counts, KEY_BITS, self.missing, refined)
        if size < 0:
            raise PeerError(
                "cells-sum-mismatch",
                "the counts of a refined cell do not sum to the number of rows in that cell",
            )
        offsets, *cells = refined
        starts, widths, rows = (member[:size].copy() for member in cells)
        self._known = offsets, starts, widths, rows
        self.grids = self._next_grids()

    def _take_total(self, total: int) -> None:
        """Set every feature's total weight to the first one's. Raises PeerError if it is out of range."""
        rows = self._known[3]
        if not 0 <= total <= rows[0]:
            raise PeerError(
                "weights-out-of-range",
                "the sum of row weights is negative, or exceeds the maximum for this number of rows",
            )
        rows[:] = total
        self._total_is_known = True

    def _next_grids(self) -> Grids:
        """Choose the cells to refine.

        Only cells that may contain several values are refined. If a feature has more bins than it needs, all
        of these cells are chosen; otherwise, only those with many rows.

        A feature's subcells are allotted to its cells in proportion to their rows. If the feature has more
        bins than it needs, half of the subcells are allotted evenly."""
        offsets, starts, *_ = self._known
        ends, chosen_starts = np.zeros(offsets.size, np.int64), np.empty(starts.size, np.uint32)
        widths, subdivisions = np.empty((2, starts.size), np.uint8)
        chosen = ends, chosen_starts, widths, subdivisions
        size = kernels.choose_cells(self._known, self._max_bin, self._budget, self._two_rows, chosen)
        return Grids(ends, chosen_starts[:size].copy(), widths[:size].copy(), subdivisions[:size].copy())

    def cells_of(self, feature: int) -> tuple[Int64, Int64, Int64]:
        """Return a feature's known cells with rows: starts, widths, row counts, int64 [cells] each."""
        cells = slice(*self._known[0][feature : feature + 2])
        starts, widths, rows = (member[cells][self._known[3][cells] > 0] for member in self._known[1:])
        return starts, widths, rows

    def cut_points(self) -> "CutPoints":
        """Compute increasing cut points of each feature at quantiles of the rows, or of their weights, as
        XGBoost does.

        A feature has at most max_bin bins for values, and at most 256 bins in total. If there are enough
        bins, every value has its own, except rare neighbouring values that no refinement separated."""
        offsets, starts, _, rows = self._known
        sizes, keys = np.zeros(offsets.size - 1, np.int64), np.empty(starts.size, np.int64)
        size = kernels.cut_keys(offsets, starts, rows, self.missing, self._max_bin, MAX_CODES, sizes, keys)
        return CutPoints(keys_to_floats(keys[:size]), sizes, self.missing > 0)


def keys_to_floats(keys: Int64) -> Float32:
    """Convert sort keys to float32 numbers. This is the inverse of `kernels.bins.float_keys`."""
    # Keys from 2**31 on are floats from 0.0 on, with the sign bit set. The others are negative floats with
    # all bits flipped: 2**32 - 1 - key flips them back.
    words = np.asarray(keys, np.int64)
    bits = np.where(words >= 1 << 31, words - (1 << 31), (1 << 32) - 1 - words)
    return bits.astype(np.uint32).view(np.float32)


@dataclass(frozen=True)
class CutPoints:
    """The bins of every feature.

    values: float32, increasing cut points of each feature, feature after feature; sizes: int64 [features],
    number of cut points of each; missing: bool [features], True if a bin for missing values follows;
    categorical: indices of the features whose bins are unordered categories, increasing."""

    values: Float32
    sizes: Int64
    missing: Flags
    categorical: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, cuts: Sequence[Float32], missing: Sequence[bool], categorical: tuple[int, ...] = ()
    ) -> "CutPoints":
        """Build cut points. cuts: increasing cut points of each feature; missing: True for each feature that
        has a bin for missing values; categorical: see `CutPoints`."""
        values = np.concatenate([np.zeros(0, np.float32), *cuts])
        sizes = np.array([feature.size for feature in cuts], np.int64)
        return cls(values, sizes, np.array(missing, np.bool_), categorical)

    @cached_property
    def offsets(self) -> Int64:
        """Index of each feature's first cut in `values`, followed by the total: int64 [features + 1]."""
        return ends_of(self.sizes)

    @cached_property
    def cuts(self) -> tuple[Float32, ...]:
        ends = self.offsets.tolist()
        return tuple(self.values[first:last] for first, last in pairwise(ends))

    @property
    def numbered(self) -> "CutPoints":
        """These cut points with the values of each feature replaced by 1, 2, ..."""
        numbers = np.arange(self.values.size) - np.repeat(self.offsets[:-1], self.sizes) + 1
        return replace(self, values=numbers.astype(np.float32))

    def head(self, features: int) -> "CutPoints":
        """Return the cut points of the first features, all marked as numeric. features: how many."""
        values = self.values[: self.offsets[features]]
        return CutPoints(values, self.sizes[:features], self.missing[:features])

    def with_categories(self, counts: Sequence[int]) -> "CutPoints":
        """Return these cut points with categorical features appended. Categories are numbered 0, 1, ..., and
        each has its own bin. Missing values always have a bin. counts: number of categories of each appended
        feature."""
        first = self.sizes.size
        added = CutPoints.of([np.arange(1, size, dtype=np.float32) for size in counts], [True] * len(counts))
        return CutPoints(
            np.concatenate([self.values, added.values]),
            np.concatenate([self.sizes, added.sizes]),
            np.concatenate([self.missing, added.missing]),
            (*self.categorical, *range(first, first + len(counts))),
        )

    def pick(self, features: Int64) -> "CutPoints":
        chosen = np.zeros(self.sizes.size, np.bool_)
        chosen[features] = True
        categorical = np.searchsorted(features, [f for f in self.categorical if chosen[f]])
        values = self.values[np.repeat(chosen, self.sizes)]
        return CutPoints(values, self.sizes[chosen], self.missing[chosen], tuple(categorical.tolist()))

    def bin_rows(
        self,
        columns: Sequence[Column],
        threads: Threads = ONE,
        allocate: Allocator = allocate_in_memory,
        row_sets: int = 0,
        by_row: bool = True,
    ) -> "BinnedRows":
        """Find the bin of every value.

        Args:
            columns: float32 values of each feature.
            allocate: function that allocates the arrays.
            row_sets: number of columns of zeros to append. They will hold row sets (which rows a split sends
                left), and have no histogram.
            by_row: as in `BinnedRows.of`.
        """
        features = self.sizes.size
        whole = allocate((features + row_sets, columns[0].size), np.dtype(np.uint8))
        whole[features:] = 0
        by_feature = whole[:features]
        stored = StoredValues.of(columns)
        sparse = {*stored.features.tolist()}
        keys = float_keys(self.values)

        def bin_stored(part: slice) -> None:
            ends = stored.ends[part.start : part.stop + 1]
            cuts = self.offsets, keys, self.missing
            kernels.bin_stored(stored.features[part], ends, stored.rows, stored.keys, *cuts, by_feature)

        def bin_one(feature: int) -> None:
            cuts = self.cuts[feature]
            last = cuts.size + self.missing[feature]  # receives missing values that no party counted
            for start in range(0, columns[feature].size, STRETCH):
                rows = slice(start, start + STRETCH)
                values = np.ascontiguousarray(columns[feature][rows])
                bin_column(values, cuts, last, by_feature[feature, rows])

        step = -(-len(sparse) // threads.number) or 1
        threads.each(bin_stored, [slice(start, start + step) for start in range(0, len(sparse), step)])
        threads.each(bin_one, (feature for feature in range(features) if feature not in sparse))
        binned = BinnedRows.of(by_feature, self.sizes + 1 + self.missing, allocate, by_row)
        return replace(binned, by_feature=whole)


# ---- What is disclosed of a feature's distribution, from the counts of its cells (`Quantiles`) ----------
# Guarantees: the intervals contain the quantiles of the pooled rows. Between any two disclosed ends of a
# feature, from one description or several over the same rows, lie no rows, or at least the lowest of their
# floors. The cuts of a feature form a tree that its rows determine: an interval is cut in its middle third
# of rows, and each part is cut in the same way. A floor only ends the tree earlier, and so does a grid that
# is too coarse to locate the next cut. Hence a description with a lower floor and finer grids has all the
# cuts of another one. Rows without a value are counted above all values, since their exact number is not
# disclosed.


Interval = list[float]
VALUES_BY_GAP = 10
"""Minimum number of cells with rows on each side of a gap."""
_MISSING_KEY = (1 << 32) - 1


class DisclosedQuantiles:
    """Intervals that contain the quantiles of a feature and may be disclosed.

    floor: minimum number of rows in an interval; between: disclosed lower and upper bounds for the number of
    rows without a value."""

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
        """Number of rows before each cell, followed by the number of all rows."""
        fewest, self._missing = between
        self._most_values = int(self._until[-1]) - fewest

    @property
    def values(self) -> int:
        """Lower bound for the number of rows that have a value."""
        return int(self._until[-1]) - self._missing

    def intervals(self, shares: Sequence[float]) -> list[Interval | None]:
        """Return, for each share, an interval [low, high] that contains the corresponding quantile of the
        feature's non-missing values.

        Both ends are included. Quantiles are those of pandas with interpolation="lower". None is returned
        instead of an interval that has no values on one side, unless the interval is a single number. The
        feature must have values."""
        numbers = self.values, self._most_values
        return [self._between(*(int(share * (number - 1)) for number in numbers)) for share in shares]

    def gap(self, least: int, factor: float) -> Interval | None:
        """Find the widest gap between neighbouring values, measured by the ratio of the two values.

        Returns the outer ends of the disclosed intervals around the gap. Returns None unless all values are
        positive, the ratio is at least `factor`, an interval ends in the gap, and at least `least` rows and
        VALUES_BY_GAP cells lie on each side."""
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
        """True if all values that are not missing are known to be the same number."""
        return self._values == 1 and not self._widths[0]

    def _between(self, least: int, most: int) -> Interval | None:
        """Return the interval from the value of rank `least` to the value of rank `most`."""
        low, high = self._around(least), self._around(most)
        return None if low is None or high is None else [low[0], high[1]]

    def _around(self, rank: int) -> Interval | None:
        """Return the interval that contains the value of this rank. An interval with no values on one side is
        returned only if it is a single number, because its end would be the minimum or maximum."""
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
        """Return the key at which the interval of cells `first` to `last` - 1 is cut. Returns None if the
        interval is not cut, or if the key cannot be determined."""
        # For T rows in the interval, the cut must leave at least T // 3 on each side:
        #     rows      begin             begin + third        end - third            end
        #     cells     [ ...   |  after - 1  ][  ...             ][  before  |  ...  ]
        #                               below ^                     ^ above
        # `after` is the first cell with a third of the rows before it, `before` the last with a third from it
        # on. So any key above `below` and up to `above` is allowed.
        begin, end = int(self._until[first]), int(self._until[last])
        third = (end - begin) // 3
        after = int(np.searchsorted(self._until, begin + third))
        before = int(np.searchsorted(self._until, end - third, side="right")) - 1
        if after <= before:  # the key with most trailing zeros in the middle third, thus a third on each side
            if third < self._floor:
                return None
            below = int(self._starts[after - 1]) + (1 << int(self._widths[after - 1])) - 1
            above = int(self._starts[before])
            # The highest bit in which they differ is 1 in `above` and 0 in `below`. Clearing the bits under
            # it leaves the only key between them with that many trailing zeros:
            #     below     1 0 1 0 1 1 0
            #     above     1 0 1 1 0 1 0
            #     cut       1 0 1 1 0 0 0
            # Such a key is never inside a cell: cells are aligned, so the start of the cell, which is above
            # `below` as well, would have more trailing zeros. The rows on either side are therefore known.
            bits = (below ^ above).bit_length() - 1
            return above >> bits << bits
        if self._widths[before]:
            return None
        # One number spans the whole third: it is cut off on the side that has more rows.
        smaller, larger = int(self._until[before]) - begin, end - int(self._until[after])
        if max(smaller, larger) < self._floor:
            return None
        # Cutting at the number sends it right, with the rows above it; cutting at its key + 1 sends it left.
        return int(self._starts[before]) + (smaller < larger)
