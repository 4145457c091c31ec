"""Queries that count rows by the values of columns: in grid cells, ranges, levels (categories) and bins."""

import hashlib
import hmac
import zlib
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from operator import lt
from typing import Annotated, Any, Self

import numpy as np

from fedboost.boosting.queries import base
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import MAX_CELL_BITS, UNIT, Int64, Scale, cell_bits
from fedboost.gbdt.cut_points import (
    FINE_PARTS,
    MAX_CATEGORIES,
    MAX_REFINEMENTS,
    RANGE_PARTS,
    SUBCELLS_PER_BIN,
    Grids,
)
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.survival import public_times
from fedboost.privacy import packing
from fedboost.privacy.pairwise import KEY_BYTES, sealed_size
from fedboost.protocol.contracts import Bound, Only
from fedboost.terms.columns import MAX_CLASSES, NOT_IN_TEXT
from fedboost.terms.hiding import BINS, CUT_POINTS, ROWS, SUMMARY
from fedboost.terms.reading import MAX_FEATURES
from fedboost.terms.session import ALIGNMENT_TURNS, MAX_PARTIES, TRAINING
from fedboost.terms.tasks import SHARES, gridded, sites_of
from fedboost.terms.terms import Terms
from fedboost.terms.training import MAX_ROUNDS, MAX_SUBGROUPS

BYTES_PER_COUNT = 64
"""Bytes per count: running sum (8), opened sum (8), new cell (24), and the cell that it refines (24)."""
MAX_WEIGHT_BITS = 52
"""Maximum number of bits of the sum of all weights. `Quantiles` multiplies this sum by a number of subcells
(up to 2**11), in int64."""
LEVELS_SUMMED = MAX_REFINEMENTS + 1
"""What a `LevelSumsQuery` or a `TimesQuery` adds to `BoostingState.grids`: over the maximum, so that no grid
can follow. No objective has both."""


def are_weighted(terms: Terms) -> bool:
    """Return True if quantiles are weighted by the weight column. Quantiles are not weighted if the task
    describes rows, or if parties hold different columns, because then only one party has the weights."""
    return terms.columns.weight is not None and not terms.blocks and not terms.task.counts_values


def weight_scale(terms: Terms, rows: int, exponent: int) -> Scale:
    """Return the scale in which row weights up to 2**exponent are summed to find quantiles of `rows` rows. It
    has as many bits as gradients, or fewer if all weights could add up to over MAX_WEIGHT_BITS."""
    # A weight of b bits is at most 2**(b - 1), and rows are fewer than 2**rows.bit_length(). So their sum is
    # below 2**(b - 1 + rows.bit_length()), which is 2**MAX_WEIGHT_BITS for the largest b.
    return Scale(exponent, min(terms.bits, MAX_WEIGHT_BITS + 1 - rows.bit_length()))


@dataclass(frozen=True)
class QuantileQuery(base.Counted, base.BaseQuery):
    """Counts rows in each subcell of the grids. There is one grid per column of `tasks.gridded`.

    weight: scale of the row weights, or None if rows are not weighted. A weighted row adds its weight, in
    this scale, instead of 1."""

    description = "how many rows lie in each column interval"
    tasks = TRAINING | {"describe"}
    views = (("grids", base.View.grids),)

    rows: base.Rows
    grids: Grids
    weight: Scale | None = field(default=None, metadata=base.APART)

    @property
    def cells(self) -> int:
        return self.grids.cells

    @property
    def cell_bits(self) -> int:
        # All rows may lie in one subcell: each adds at most the limit of a weight, or 1.
        return cell_bits((self.weight or UNIT).limit, self.rows)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return MAX_REFINEMENTS * (terms.noise is None and not terms.hides_columns)

    def check_terms(self, terms: Terms) -> None:
        if terms.hides_columns:
            raise Refused(
                "query-grids",
                "the query counts rows by value, which is not allowed if parties hide their cut points",
            )
        numeric = len(gridded(terms))
        max_cells = max(terms.histograms.max_bin * SUBCELLS_PER_BIN * 2, 1 << 11)
        grids = self.grids
        if not numeric or grids.features != numeric or (grids.cells_by_feature > max_cells).any():
            raise Refused(
                "query-grids",
                f"the query must have one grid per numeric column ({numeric} in total), each with at most "
                f"{max_cells} cells",
            )
        due = weight_scale(terms, self.rows, 0).bits if are_weighted(terms) else None
        if due != (None if self.weight is None else self.weight.bits):
            raise Refused(
                "query-scale",
                f"the row weights in this query do not match the terms (required bits: {due or 'none'})",
            )

    def bytes_needed(self, parties: int) -> int:
        return BYTES_PER_COUNT * self.cells

    def check_order(self, terms: Terms, state: Any) -> None:
        # Finer and finer grids would eventually reveal individual values: allow no more than cut points need.
        if state.start is not None or state.grids >= MAX_REFINEMENTS:
            raise PeerError(
                "query-order",
                f"grids may be counted at most {MAX_REFINEMENTS} times, and only before the cut points are "
                f"sent",
            )
        if state.grids == 0 and self.grids.shape != Grids.first(self.grids.features).shape:
            raise PeerError("query-order", "the first grid must be the coarse grid over all float32 values")


@dataclass(frozen=True)
class BinsQuery(base.Counted, base.BaseQuery):
    """Asks for the number of bins of each numeric feature, if only the owner of a feature may know its cut
    points.

    Each party computes the cut points of its own numeric features by counting its rows. The cut points are
    the same as with `QuantileQuery`. Answer: the number of cut points of each feature, followed by one number
    per feature: 1 if it has a bin for missing values, else 0. A party reports 0 for features of other
    parties."""

    description = "how many intervals each column has"

    features: base.Features
    rows = base.MAX_ROWS - 1

    @property
    def cells(self) -> int:
        return 2 * self.features

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, MAX_CODES)  # one party answers for a feature, with fewer than MAX_CODES cuts

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(terms.hides_columns)

    def check_terms(self, terms: Terms) -> None:
        numeric = len(terms.columns.numeric)
        if not terms.hides_columns or not numeric or self.features != numeric:
            raise Refused(
                "query-bins",
                f"the terms do not allow a query for bins with this number of features: {self.features}",
            )

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None or state.grids:
            raise PeerError("query-order", "bins may be queried only once, before the cut points are sent")


@dataclass(frozen=True)
class RangeQuery(base.Counted, base.BaseQuery):
    """Counts rows in each part of each numeric feature's declared range (`cut_points.range_edges`).

    Values outside a range are counted in its first or last part; missing values are not counted. Sent once,
    and only under terms with noise."""

    description = "how many rows lie in each part of a range"
    tasks = TRAINING | {"describe"}
    with_noise = (True,)
    released = CUT_POINTS

    rows: base.Rows
    features: base.Features
    divisions: Annotated[
        int, Only((RANGE_PARTS, FINE_PARTS).__contains__, "it counts other parts of a range")
    ]

    @property
    def cells(self) -> int:
        return self.features * self.divisions

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, self.rows)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(terms.noise is not None)

    def check_terms(self, terms: Terms) -> None:
        numeric = len(terms.columns.numeric)
        if self.divisions != (RANGE_PARTS if terms.task.counts_values else FINE_PARTS):
            raise Refused(
                "query-ranges", f"the terms do not allow a query for {self.divisions} parts of a range"
            )
        if self.features != numeric:
            raise Refused(
                "query-ranges",
                f"the number of ranges in the query ({self.features}) differs from the number of ranges in "
                f"the terms ({numeric})",
            )

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None or state.grids:
            raise PeerError("query-order", "ranges may be counted only once, before the cut points are sent")


# ---- The query that counts the rows of all parties by bin of each feature and of the score --------------
# Sent once: at the end of training with `reference`, or when rows are compared with a reference. Holders
# raise PeerError if the bins differ from those used in training, or from those of the model in the terms.


@dataclass(frozen=True)
class BinCountsQuery(base.Stateless, base.BaseQuery):
    """Counts rows in each bin of each feature, then in each bin of the model's score.

    Args:
        sizes: number of bins of each feature, including the last one, for missing values.
        score: number of bins of the score.
        rounds: number of rounds from whose trees the score is computed.
    """

    description = "row counts by bin of columns and score"
    tasks = frozenset({"train", "drift"})
    with_noise = (False, True)
    released = BINS

    sizes: Annotated[
        tuple[Annotated[int, Bound(MAX_CATEGORIES + 1, "bins of a feature", least=1)], ...],
        Bound(MAX_FEATURES, "features"),
    ]
    score: Annotated[int, Bound(MAX_CLASSES, "bins of the score", least=1)]
    rounds: Annotated[int, Bound(MAX_ROUNDS, "rounds")]
    rows = ROWS

    @base.cached
    def cells(self) -> int:
        return sum(self.sizes) + self.score

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(terms.task.uses_reference or terms.evaluation.reference)

    def check_terms(self, terms: Terms) -> None:
        if not self.max_count(terms):
            raise Refused("query-bins", "the query counts rows by bin, but the terms do not have a reference")
        if len(self.sizes) != len(terms.columns.features):
            raise Refused(
                "query-bins",
                f"the number of features in the query ({len(self.sizes)}) differs from the number of "
                f"features in the terms ({len(terms.columns.features)})",
            )

    def check_order(self, terms: Terms, state: Any) -> None:
        if terms.task.uses_reference:
            return
        base.check_started(state)
        # Levels may be 1: the next tree's root may have shared the last turn. But it must not have split.
        if state.splits or not 0 <= self.rounds < len(state.rounds):
            raise PeerError("query-order", "rows may be counted by bin only after the last tree")


# ---- The query that counts the rows, missing values, categories and labels of all parties ---------------


SUMMARY_BY_PARTY = f"SummaryQuery{base.OF_PARTIES}"


@dataclass(frozen=True)
class SummaryQuery(base.Stateless, base.BaseQuery):
    """Counts all rows, the missing values and levels of each feature, and the classes of the label. Sent
    once, in the first turn.

    Answer: the number of all rows; for each numeric feature, the number of missing values; for each
    categorical feature, the number of missing values, of rows with each declared level, and of rows with
    other levels. The next entries are the number of rows of each class.

    If parties hold different columns, each party answers only for its own, after the rows are matched. All
    counts are rounded as they are published, except the number of rows. The last entries are the published
    figures of each numeric column, `SIZE` integers each (`programs.tasks.encoded`): the ends of each
    quantile's interval, the ends of the gap, and whether the column is constant.

    With `sites`, the last entries are about each of these sites alone: its rows and, for each feature, its
    rows without a declared value.

    Args:
        numeric: number of numeric features.
        levels: number of declared levels of each categorical feature.
        classes: number of classes of the label; 0 if the label is a number.
        figures: number of numeric columns, including a numeric label, if parties hold different columns.
        times: number of bins of survival times; 0 if the label is not a survival time. The answer then ends
            with `survival.counts_by_time`.
        sites: parties that are also described separately.
    """

    SIZE = 2 * len(SHARES) + 3
    description = "row counts, and by columns also quantiles"
    tasks = frozenset({"describe"})
    with_noise = (False, True)
    released = SUMMARY

    numeric: base.Features
    levels: Annotated[
        tuple[Annotated[int, Bound(MAX_CATEGORIES, "levels")], ...],
        Bound(MAX_FEATURES, "categorical features"),
    ]
    classes: Annotated[int, Bound(MAX_CLASSES, "classes")]
    figures: Annotated[int, Bound(MAX_FEATURES + 1, "numeric columns")] = field(
        default=0, metadata=base.APART
    )
    times: Annotated[int, Bound(MAX_FEATURES, "times")] = field(default=0, metadata=base.APART)
    sites: Annotated[tuple[str, ...], Bound(MAX_PARTIES, "sites")] = field(default=(), metadata=base.APART)
    rows = ROWS

    @classmethod
    def of(cls, terms: Terms) -> Self:
        columns, loss = terms.columns, terms.objective.loss.xgboost_equivalent
        classes = max(2, terms.objective.num_class or 0) if loss.label_kind is LabelKind.CLASS else 0
        figures = len(gridded(terms)) if terms.blocks else 0
        has_times = terms.objective.loss.risk_sign != 0 and terms.noise is None
        times = public_times().size + 1 if has_times else 0
        shape = len(columns.numeric), tuple(columns.category_counts), classes, figures, times
        return cls(*shape, sites_of(terms))

    @property
    def counts(self) -> int:
        """Number of cells before those of figures."""
        return 1 + self.numeric + sum(levels + 2 for levels in self.levels) + self.classes

    def split(self, total: Int64) -> tuple[Int64, Int64, Int64]:
        """Split a sum of answers into counts of rows, entries about columns or sites, and counts by time,
        int64 [2, times]."""
        counts, others, by_time = np.split(total, [self.counts, self.cells - 2 * self.times])
        return counts, others, by_time.reshape(2, -1)

    @property
    def cells(self) -> int:
        of_site = 1 + self.numeric + len(self.levels)
        return self.counts + self.SIZE * self.figures + len(self.sites) * of_site + 2 * self.times

    @property
    def cell_bits(self) -> int:
        # ROWS is an upper bound: the number of rows is not known yet. Figures are float32 numbers, as bits.
        return max(cell_bits(1, self.rows), 32 * bool(self.figures))

    def turn_under(self, terms: Terms) -> int:
        return 1 + ALIGNMENT_TURNS * terms.counts_jointly

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(cls.serves(terms))

    def check_terms(self, terms: Terms) -> None:
        if self != self.of(terms):
            raise Refused(
                "query-columns", "the columns, levels or classes of the query differ from those of the terms"
            )

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.grids or (terms.counts_jointly and state.places is None):
            raise PeerError("query-order", "rows must be counted by level once matched, and before by value")


# ---- The query that names the levels of columns: first rows by keyed cell, then names in frequent cells --
# A level has a cell for each of HASHES functions of its HMAC under a key of all parties. It is named only if
# each cell has `min_count` rows in both of two groups of parties. Each count has a one-time check under a key
# of its group: if others change the count, the check holds with probability 2**-31. Parties refuse to name
# levels if their group's checks fail, and then no sum opens (decision 0062).


HASHES, CELLS, GROUPS = 3, 1 << 15, 2
PRIME = (1 << 31) - 1
"""Checks are numbers modulo this prime."""
WORDS = 32
SLOT = WORDS + 2
"""Integers with which a party names a level: 1, its UTF-8 in words of four bytes, and its CRC-32."""
_MOST = MAX_SUBGROUPS * HASHES * CELLS
Sums = Annotated[tuple[int, ...], Bound(GROUPS * _MOST, "sums")]


@dataclass(frozen=True)
class LevelsQuery(base.Stateless, base.BaseQuery):
    """Counts rows by cell of their level or, with `places`, asks for the names of levels.

    Answer: for each group, the counts of all cells and then their checks, int64 [GROUPS, 2, cells], of which
    a party fills in its group's part; with `places`, a slot for each of these cells.

    Args:
        columns: number of columns whose levels are named.
        places: indices of the frequent cells, increasing; () to count rows.
        counts, checks: their sums, first of one group, then of the other."""

    description = "rows by cell of levels; names of levels"
    tasks = frozenset({"describe"})
    rows = ROWS

    columns: Annotated[int, Bound(MAX_SUBGROUPS, "columns", least=1)]
    places: Annotated[tuple[int, ...], Bound(_MOST, "cells")] = ()
    counts: Sums = ()
    checks: Sums = ()

    @property
    def cells(self) -> int:
        return SLOT * len(self.places) or GROUPS * 2 * HASHES * CELLS * self.columns

    @property
    def cell_bits(self) -> int:
        return cell_bits(1 << 32, MAX_PARTIES)  # of a word of names; counts and checks need no more

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return 2 * bool(terms.evaluation.level_names)

    def relayed_bytes(self, terms: Terms) -> int:
        return 3 * sealed_size(KEY_BYTES, terms.parties)  # see `LevelsHolder`

    def check_terms(self, terms: Terms) -> None:
        size, ends = len(self.places), (-1, *self.places, HASHES * CELLS * self.columns)
        shaped = all(starmap(lt, pairwise(ends))) and {len(self.counts), len(self.checks)} == {GROUPS * size}
        if self.columns != len(terms.evaluation.level_names) or not shaped:
            raise Refused("query-levels", "the terms do not allow this query for levels")
        if size and min(self.counts) < terms.evaluation.min_count:
            raise Refused("query-levels", "the query asks for names of levels with too few rows")

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None:
            raise PeerError("query-order", "levels are named only in descriptions")


def groups_of(parties: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Draw two groups of parties. They depend only on the set of names, so all its sessions have the same."""
    every = packing.pack(*(party.encode() for party in sorted(parties)))
    drawn = sorted(parties, key=lambda party: hashlib.sha256(packing.pack(every, party.encode())).digest())
    return tuple(drawn[: len(drawn) // 2]), tuple(drawn[len(drawn) // 2 :])


def cells_of(key: bytes, column: int, level: str) -> list[int]:
    """Return the index of each cell of a level. column: number of its column."""
    digest = hmac.digest(key, packing.pack(packing.number(column), level.encode()), "sha256")
    words = np.frombuffer(digest, "<u4")[:HASHES] % CELLS
    return [(column * HASHES + place) * CELLS + word for place, word in enumerate(words.tolist())]


def check_words(key: bytes, cells: int) -> tuple[int, Int64]:
    """Return the factor of counts in checks, and what is added to each check, int64 [cells]."""
    words = np.frombuffer(hashlib.shake_256(key).digest(8 * (cells + 1)), "<u8") % PRIME
    return int(words[0]), words[1:].astype(np.int64)


def slot_of(level: str) -> list[int]:
    """Return the integers with which a party names a level, or [] if it cannot be named."""
    name = level.encode()
    if len(name) > 4 * WORDS or NOT_IN_TEXT.search(level):
        return []
    return [1, *np.frombuffer(name.ljust(4 * WORDS, b"\0"), "<u4").tolist(), zlib.crc32(name)]


def level_in(slot: list[int]) -> str:
    """Return the level that all parties named in a sum of slots, or "" if none did, or if names differ."""
    words = np.array(slot) // max(slot[0], 1)
    name = words[1:-1].astype("<u4").tobytes().rstrip(b"\0")
    level, is_one = name.decode(errors="replace"), (words * slot[0]).tolist() == slot
    return "" if not is_one or zlib.crc32(name) != words[-1] or NOT_IN_TEXT.search(level) else level


OfColumns = SummaryQuery | BinCountsQuery | BinsQuery | QuantileQuery | RangeQuery | LevelsQuery
"""Queries that count rows by the values of columns."""
