"""Cut points from counts, and rows to bins.

Promises: cut points depend only on sums of counts over a grid of float32 keys, so they are the same for
every partition of the rows; bin b of a feature holds [cut[b-1], cut[b]), so "x < cut goes left" is
XGBoost's rule; each category of a categorical feature is a bin; missing values have a bin of their own, after
the last.
Refuses: counts that do not add up (PeerError).

Grid refinement. The first grid is coarse and covers all float32 numbers. Each later one cuts into finer
subcells only the cells that hold enough rows for a cut inside them. The
subcells of a feature are allotted by row count, so two to four sums suffice for any distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.binned import Allocator, BinnedRows, Column, allocate_in_memory
from fedboost.gbdt.kernels import bins as bins_kernels
from fedboost.gbdt.kernels.bins import MAX_CODES, bin_column, float_keys
from fedboost.gbdt.threads import ONE, Threads

Keys = npt.NDArray[np.uint32]

KEY_BITS = 32
FIRST_BITS = 11
"""Subdivision of the first grid: 2048 cells, that is sign, exponent and two bits of the mantissa. Of a table
with very many features has fewer, see `first_bits`."""
MAX_REFINEMENTS = 5
SUBCELLS_PER_BIN = 8
"""Subcells a feature may spend in one refinement, per bin it may have; also the resolution aimed at: a cell
of at most a quarter of the rows of an even bin is fine enough."""
STRETCH = 1 << 20
"""Rows of a column that are processed together."""
MAX_CATEGORIES = MAX_CODES - 1
"""Most categories of a feature: each is a bin, and missing values have one more."""
MAX_SUBCELLS = 1 << 22
"""Approximate number of subcells that are counted in one turn for all features: 32 MB of counts."""


@dataclass(frozen=True)
class Grid:
    """Disjoint cells of one feature's keys, in increasing order, each to be cut in equal subcells.

    starts: uint32, first key; widths: uint8, the cell covers 2**width keys; subdivisions: uint8, it is cut
    in 2**subdivision subcells. An empty grid has no counts.
    """

    starts: Keys
    widths: npt.NDArray[np.uint8]
    subdivisions: npt.NDArray[np.uint8]

    @cached_property
    def cells(self) -> int:
        """Number of counts of this grid."""
        return int(np.sum(1 << self.subdivisions.astype(np.int64)))

    @property
    def shape(self) -> tuple[bytes, bytes, bytes]:
        """Equal for equal grids."""
        return self.starts.tobytes(), self.widths.tobytes(), self.subdivisions.tobytes()

    @classmethod
    def first(cls, features: int) -> "Grid":
        """The coarse grid over all keys of a feature; features: their number. Its last cell holds missing
        values only."""
        byte, bits = np.uint8, first_bits(features)
        return cls(np.zeros(1, np.uint32), np.array([KEY_BITS], byte), np.array([bits], byte))


def first_bits(features: int) -> int:
    """Subdivision of the first grid; features: their number. At least 9 bits, those of the exponent."""
    return max(min(FIRST_BITS, (MAX_SUBCELLS // max(features, 1)).bit_length() - 1), 9)


def count_cells(column: Column, grid: Grid) -> Int64:
    """Rows of a column in each subcell of a grid: int64 [grid.cells]."""
    out = np.zeros(grid.cells, np.int64)
    if grid.starts.size:
        widths, subdivisions = grid.widths.astype(np.int64), grid.subdivisions.astype(np.int64)
        for start in range(0, column.size, STRETCH):
            keys = float_keys(np.ascontiguousarray(column[start : start + STRETCH]))
            bins_kernels.count_cells(keys, grid.starts, widths, subdivisions, out)
    return out


RANGE_PARTS = 128
"""Parts of a declared range in which rows are counted."""
_HALVINGS = 16
"""Binary orders of magnitude from the end of a range to the parts next to 0."""


def range_edges(declared: tuple[float, float]) -> Float32:
    """Edges between the parts of a declared range: float32 [RANGE_PARTS - 1], increasing.

    Half of them are evenly spaced, the other half spaced by equal ratios towards 0 (the lower end, if 0 is
    not in the range), on both sides of it: most amounts are far smaller than the largest."""
    low, high = declared
    even = np.linspace(low, high, RANGE_PARTS // 2 + 1)[1:-1]
    middle = 0.0 if low < 0.0 < high else low
    sides = [end for end in (low, high) if end != middle]
    each = RANGE_PARTS // 2 // len(sides)
    ratios = 2.0 ** (-_HALVINGS * np.arange(1, each + 1) / each)
    near = np.concatenate([middle + (end - middle) * ratios for end in sides])
    return np.sort(np.concatenate([even, near])).astype(np.float32)


def count_parts(column: Column, declared: tuple[float, float]) -> Int64:
    """Rows of a column in each part of a range, int64 [RANGE_PARTS]; values beyond it count in its first or
    last part, missing ones not at all."""
    edges, out = range_edges(declared), np.zeros(RANGE_PARTS, np.int64)
    for start in range(0, column.size, STRETCH):
        values = column[start : start + STRETCH]
        parts = np.searchsorted(edges, values[~np.isnan(values)], side="right")
        out += np.bincount(parts, minlength=RANGE_PARTS)
    return out


class Quantiles:
    """The distribution of one feature as far as it is known: rows in each cell of an ever finer partition."""

    def __init__(self, max_bin: int, rows: int, features: int = 1) -> None:
        self._max_bin = max_bin
        self._budget = max(min(max_bin * SUBCELLS_PER_BIN, MAX_SUBCELLS // features), 1 << 8)
        self._starts = np.zeros(1, np.int64)
        self._widths = np.full(1, KEY_BITS, np.int64)
        self._counts = np.full(1, rows, np.int64)
        self.grid = Grid.first(features)
        self.missing = 0

    def refine(self, counts: Int64) -> None:
        """Take in the counts of `self.grid`, summed over the parties, and choose the next grid.

        Raises PeerError if the subcells of a cell do not hold the rows of the cell.
        """
        grid = self.grid
        if not grid.starts.size:
            return
        first = grid.widths[0] == KEY_BITS
        keep = ~np.isin(self._starts, grid.starts)
        subcells = np.int64(1) << grid.subdivisions.astype(np.int64)
        begins = np.cumsum(subcells) - subcells
        if (counts < 0).any() or (np.add.reduceat(counts, begins) != self._counts[~keep]).any():
            raise PeerError("the counts of a refined cell do not sum to the rows the cell had")
        starts, widths = [self._starts[keep]], [self._widths[keep]]
        for start, width, bits in zip(
            grid.starts.tolist(), grid.widths.tolist(), grid.subdivisions.tolist(), strict=True
        ):
            starts.append(start + (np.arange(1 << bits, dtype=np.int64) << (width - bits)))
            widths.append(np.full(1 << bits, width - bits, np.int64))
        all_starts, all_widths = np.concatenate(starts), np.concatenate(widths)
        all_counts = np.concatenate([self._counts[keep], counts])
        if first:
            self.missing = int(counts[-1])
            all_counts[-1] = 0
        used = np.flatnonzero(all_counts)
        order = used[np.argsort(all_starts[used], kind="stable")]
        self._starts, self._widths = all_starts[order], all_widths[order]
        self._counts = all_counts[order]
        self.grid = self._next_grid()

    def _next_grid(self) -> Grid:
        """Cells that may hold several values and matter: heavy ones, or all while bins are left over.

        Subcells are allotted in proportion to rows; while bins are left over, half of them evenly.
        """
        budget = self._budget
        several = (self._counts > 1) & (self._widths > 0)
        left_over = self._counts.size < self._max_bin
        coarse = several & (left_over | (self._counts > 2 * self._counts.sum() / budget))
        starts, widths, counts = self._starts[coarse], self._widths[coarse], self._counts[coarse]
        shares = budget * counts // max(int(counts.sum()), 1)
        if left_over:
            shares = (shares + budget // max(counts.size, 1)) // 2
        bits = np.array([max(int(share).bit_length() - 1, 1) for share in shares], np.int64)
        return Grid(
            starts.astype(np.uint32),
            widths.astype(np.uint8),
            np.minimum(bits, widths).astype(np.uint8),
        )

    def cut_points(self) -> Float32:
        """Increasing float32 cuts, at quantiles of the rows as in XGBoost.

        At most max_bin bins and never more codes than a byte has. Where every value can have its own bin,
        each has, except rare neighbours that no refinement separated.
        """
        bins = min(self._max_bin, MAX_CODES - (1 if self.missing else 0))
        if self._counts.size <= bins:
            return keys_to_floats(self._starts[1:])
        until = np.cumsum(self._counts)
        ranks = np.arange(1, bins) * (until[-1] / bins)
        cells = np.unique(np.searchsorted(until, ranks, side="left"))
        return keys_to_floats(self._starts[cells[cells > 0]])


def keys_to_floats(keys: Int64) -> Float32:
    """Inverse of `kernels.float_keys`."""
    words = np.asarray(keys, np.int64)
    bits = np.where(words >= 1 << 31, words - (1 << 31), (1 << 32) - 1 - words)
    return bits.astype(np.uint32).view(np.float32)


@dataclass(frozen=True)
class CutPoints:
    """The bins of every feature: `cuts[f]` float32 increasing, `missing[f]` True if a missing bin follows;
    `categorical`: the features, increasing, whose bins are categories, which have no order."""

    cuts: tuple[Float32, ...]
    missing: tuple[bool, ...]
    categorical: tuple[int, ...] = ()

    def with_categories(self, counts: Sequence[int]) -> "CutPoints":
        """Cut points of the same features, followed by categorical ones with these numbers of categories: the
        values are 0, 1, ..., each is a bin, and missing values always have one."""
        first = len(self.cuts)
        added = tuple(np.arange(1, size, dtype=np.float32) for size in counts)
        numbers = range(first, first + len(added))
        return CutPoints(
            (*self.cuts, *added),
            (*self.missing, *(True for _ in added)),
            (*self.categorical, *numbers),
        )

    def bin_rows(
        self, columns: Sequence[Column], threads: Threads = ONE, allocate: Allocator = allocate_in_memory
    ) -> "BinnedRows":
        """The bin of each value of the float32 columns."""
        by_feature = allocate((len(self.cuts), columns[0].size), np.dtype(np.uint8))

        def bin_one(feature: int) -> None:
            cuts = self.cuts[feature]
            last = cuts.size + self.missing[feature]  # takes missing values that no party had counted
            for start in range(0, columns[feature].size, STRETCH):
                rows = slice(start, start + STRETCH)
                values = np.ascontiguousarray(columns[feature][rows])
                bin_column(values, cuts, last, by_feature[feature, rows])

        threads.each(bin_one, range(len(self.cuts)))
        codes = [cuts.size + 1 + missing for cuts, missing in zip(self.cuts, self.missing, strict=True)]
        return BinnedRows.of(by_feature, np.array(codes, np.int64), allocate)
