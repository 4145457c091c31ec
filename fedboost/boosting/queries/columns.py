"""Queries about columns: counts behind cut points, ranges, levels, and how many rows lie where."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from fedboost.boosting.queries.base import (
    APART,
    MAX_ROWS,
    BaseQuery,
    Counted,
    Features,
    Rows,
    Stateless,
    View,
    check_started,
    digest_of,
    once,
)
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import MAX_CELL_BITS, UNIT, Scale, cell_bits
from fedboost.gbdt.cut_points import (
    MAX_CATEGORIES,
    MAX_REFINEMENTS,
    RANGE_PARTS,
    SUBCELLS_PER_BIN,
    Grids,
)
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.protocol.contracts import Bound
from fedboost.terms.columns import MAX_CLASSES
from fedboost.terms.hiding import CUT_POINTS, METHODS, ROWS, SUMMARY
from fedboost.terms.reading import MAX_FEATURES
from fedboost.terms.session import TRAINING
from fedboost.terms.tasks import gridded
from fedboost.terms.terms import Terms
from fedboost.terms.training import MAX_ROUNDS

BYTES_PER_COUNT = 64
"""Bytes for each count of a grid: the running sum (8) and the opened sum (8), then start, width and rows of
the cells it becomes (24) beside those it refines (24)."""
MAX_WEIGHT_BITS = 52
"""Bits of the weights of all rows together, which `Quantiles` multiplies by numbers of subcells."""


LEVELS_SUMMED = MAX_REFINEMENTS + 1
"""What the sums by level count for among the counts before the cut points: no grid comes after them."""


def are_weighted(terms: Terms) -> bool:
    """True if rows count by their weights among the quantiles of columns. Not where parties hold different
    columns: the label holder alone knows the weights."""
    return terms.columns.weight is not None and not terms.blocks and not terms.task.counts_values


def weight_scale(terms: Terms, rows: int, exponent: int) -> Scale:
    """The scale of weights up to 2**exponent among quantiles of so many rows: it has the bits of gradients,
    or fewer where the sum would be longer than MAX_WEIGHT_BITS."""
    return Scale(exponent, min(terms.bits, MAX_WEIGHT_BITS + 1 - rows.bit_length()))


@dataclass(frozen=True)
class QuantileQuery(Counted, BaseQuery):
    """Counts of rows in each subcell of these grids (one for each of `gridded`).

    weight: the scale of row weights, where the terms have them: a row counts its weight, in units of this
    scale.
    """

    description = "how many rows lie in each column interval"
    tasks = TRAINING | {"describe"}
    views = (("grids", View.grids),)

    rows: Rows
    grids: Grids
    weight: Scale | None = field(default=None, metadata=APART)

    @once
    def digest(self) -> bytes:
        return digest_of(self) if self.weight is None else digest_of((self, "weight", self.weight))

    @property
    def cells(self) -> int:
        return self.grids.cells

    @property
    def cell_bits(self) -> int:
        return cell_bits((self.weight or UNIT).limit, self.rows)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """The refinements of a grid."""
        asked = terms.histograms.cut_points == "grid" and terms.noise is None and not terms.hides_columns
        return MAX_REFINEMENTS * asked

    def check_terms(self, terms: Terms) -> None:
        """Refuse grids of other features than the terms', grids finer than a program needs, and rows that
        count otherwise than by the terms."""
        if terms.hides_columns:
            raise Refused("counts of rows by value, and the terms leave cut points to their owners")
        numeric = len(gridded(terms))
        max_cells = max(terms.histograms.max_bin * SUBCELLS_PER_BIN * 2, 1 << 11)
        grids = self.grids
        if not numeric or grids.features != numeric or (grids.cells_by_feature > max_cells).any():
            raise Refused(
                f"the terms allow grids of {numeric} numeric features with at most {max_cells} cells each"
            )
        due = weight_scale(terms, self.rows, 0).bits if are_weighted(terms) else None
        if due != (None if self.weight is None else self.weight.bits):
            raise Refused(f"the terms allow counts by weights of {due or 'no'} bits here, no others")

    def bytes_needed(self, parties: int) -> int:
        """Bytes of the sums, and of the grids that come of them."""
        return BYTES_PER_COUNT * self.cells

    def check_order(self, terms: Terms, state: Any) -> None:
        # Counts over ever finer grids reveal any single value: no more of them than cut points need.
        if state.start is not None or state.grids >= MAX_REFINEMENTS:
            raise PeerError(f"counts over grids are given {MAX_REFINEMENTS} times, before the cut points")
        if state.grids == 0 and self.grids.shape != Grids.first(self.grids.features).shape:
            raise PeerError("the first grid is not the coarse one over all numbers")


@dataclass(frozen=True)
class BinsQuery(Counted, BaseQuery):
    """The bins of each numeric feature, where its cut points are for its owner alone to know.

    Each party finds the cut points of its own numeric features by counts of its rows, the same as
    `QuantileQuery` over all of them would give. Answer: the number of cuts of each feature, then for each 1
    if a missing bin follows; 0 for features of others.
    """

    description = "how many intervals each column has"

    features: Features
    rows = MAX_ROWS - 1

    @property
    def cells(self) -> int:
        return 2 * self.features

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, MAX_CODES)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where cut points stay with their owners."""
        return int(terms.hides_columns)

    def check_terms(self, terms: Terms) -> None:
        """Refuse it where all parties are told cut points, and for other features than the terms'."""
        numeric = len(terms.columns.numeric)
        if not terms.hides_columns or not numeric or self.features != numeric:
            raise Refused(f"bins of {self.features} features, the terms say otherwise")

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None or state.grids:
            raise PeerError("bins are counted once, before the cut points")


@dataclass(frozen=True)
class RangeQuery(Counted, BaseQuery):
    """Counts of rows in each part of the declared range of each numeric feature (`cut_points.range_edges`).
    Values beyond a range count in its first or last part, missing ones do not count.

    Used once, where the answer gets noise.
    """

    description = "how many rows lie in each part of a range"
    tasks = TRAINING | {"describe"}
    needs_noise = True
    suits = METHODS
    released = CUT_POINTS

    rows: Rows
    features: Features

    @property
    def cells(self) -> int:
        return self.features * RANGE_PARTS

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, self.rows)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """At most one count."""
        return int(terms.histograms.cut_points == "grid" and terms.noise is not None)

    def check_terms(self, terms: Terms) -> None:
        """Refuse other ranges than the terms'."""
        numeric = len(terms.columns.numeric)
        if terms.histograms.cut_points != "grid" or self.features != numeric:
            raise Refused(f"counts over {self.features} ranges; the terms allow {numeric}, once")

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None or state.grids:
            raise PeerError("counts over ranges are given once, before the cut points")


# ---- The query that counts the rows of all parties by bin of each feature and of the score --------------
# Promises: asked once, at the end of a training whose terms have a reference, or where rows are held
# against one.
# Refuses: other bins than those of the training, or of the model in the terms (PeerError).


@dataclass(frozen=True)
class BinCountsQuery(Stateless, BaseQuery):
    """Counts of rows: in each bin of each feature, then of the score.

    sizes: bins of each feature, the one of missing values last; score: bins of the score; rounds: of the
    training, whose trees give the score."""

    description = "rows by bin of each column and of score"
    tasks = frozenset({"train", "drift"})

    sizes: Annotated[
        tuple[Annotated[int, Bound(MAX_CATEGORIES + 1, "bins of a feature", least=1)], ...],
        Bound(MAX_FEATURES, "features"),
    ]
    score: Annotated[int, Bound(MAX_CLASSES, "bins of the score", least=1)]
    rounds: Annotated[int, Bound(MAX_ROUNDS, "rounds")]
    rows = MAX_ROWS

    @once
    def cells(self) -> int:
        return sum(self.sizes) + self.score

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where the terms say so."""
        return int(terms.task.uses_reference or terms.evaluation.reference)

    def check_terms(self, terms: Terms) -> None:
        """Refuse counts that the terms do not name."""
        if not self.max_count(terms):
            raise Refused("rows by bin of each column, and the terms have no reference")
        if len(self.sizes) != len(terms.columns.features):
            raise Refused(f"bins of {len(self.sizes)} features, the terms have {len(terms.columns.features)}")

    def check_order(self, terms: Terms, state: Any) -> None:
        if terms.task.uses_reference:
            return
        check_started(state)
        if state.splits or not 0 <= self.rounds < len(state.rounds):  # a root may have been asked ahead
            raise PeerError("rows are counted by bin once the trees have grown")


# ---- The query that counts the rows, missing values, categories and labels of all parties ---------------
# Promises: one sum tells the number of rows; asked once in a session, in its first turn.
# Refuses: counts of other columns than the terms name (Refused).


@dataclass(frozen=True)
class SummaryQuery(Stateless, BaseQuery):
    """Counts of rows: all; those with a missing value, for each feature; those of each declared level and of
    undeclared ones, for each categorical feature; those of each class of the label.

    numeric: numeric features; levels: declared levels of each categorical feature; classes: of the label, 0
    where it is a number. Answer: int64 in this order, a feature's counts together."""

    description = "rows: all, with missing values, by level"
    only_turn = 1
    tasks = frozenset({"describe"})
    suits = METHODS
    released = SUMMARY

    numeric: Features
    levels: Annotated[
        tuple[Annotated[int, Bound(MAX_CATEGORIES, "levels")], ...],
        Bound(MAX_FEATURES, "categorical features"),
    ]
    classes: Annotated[int, Bound(MAX_CLASSES, "classes")]
    rows = ROWS

    @classmethod
    def of(cls, terms: Terms) -> Self:
        """The query about the columns of these terms."""
        columns, loss = terms.columns, terms.objective.loss.xgboost_equivalent
        classes = max(2, terms.objective.num_class or 0) if loss.label_kind is LabelKind.CLASS else 0
        return cls(len(columns.numeric), tuple(columns.category_counts), classes)

    @property
    def cells(self) -> int:
        return 1 + self.numeric + sum(levels + 2 for levels in self.levels) + self.classes

    @property
    def cell_bits(self) -> int:
        return cell_bits(1, self.rows)  # how many there are is not known yet

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where rows are described."""
        return int(cls.serves(terms))

    def check_terms(self, terms: Terms) -> None:
        """Refuse counts of other columns than the terms'."""
        if self != self.of(terms):
            raise Refused("counts of other columns, levels or classes than those of the terms")

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.grids:
            raise PeerError("rows are counted by level before they are counted by value")


OfColumns = SummaryQuery | BinCountsQuery | BinsQuery | QuantileQuery | RangeQuery
"""Queries about the values of columns."""
