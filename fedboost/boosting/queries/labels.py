"""Queries about labels and margins: rows, magnitudes, first sums, residuals, counts by level."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import numpy as np

from fedboost.boosting.queries.base import (
    APART,
    CONSTANT_TREE,
    MAX_NODES,
    MAX_ROWS,
    BaseQuery,
    BeforeTrees,
    Counted,
    Metrics,
    Nodes,
    Rows,
    Stateless,
    TreeNumber,
    View,
    check_bits,
    check_several,
    check_started,
    check_tree,
    digest_of,
    once,
)
from fedboost.boosting.queries.columns import LEVELS_SUMMED, are_weighted, weight_scale
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import EXPONENT_CELLS, MAX_CELL_BITS, Float32, Scale, cell_bits
from fedboost.gbdt import metrics
from fedboost.gbdt.cut_points import KEY_BITS, MAX_CATEGORIES, CutPoints
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.metrics import Mean, Metric, exact_metric_of
from fedboost.gbdt.objectives.objective import NOISE_BITS
from fedboost.gbdt.target_means import FOLDS, MAX_BUCKETS, MIN_BUCKETS
from fedboost.gbdt.tree import Splits
from fedboost.privacy.packing import Segment
from fedboost.protocol.contracts import Bound, Only
from fedboost.protocol.messages import Parties
from fedboost.terms import tasks as evaluating
from fedboost.terms.columns import MAX_CLASSES
from fedboost.terms.hiding import LEVELS, METHODS, START
from fedboost.terms.terms import MAX_RENEWAL_QUERIES, Terms, slots_of
from fedboost.terms.training import MAX_METRICS, MAX_SUBGROUPS

START_BITS = 31
"""Bits of the gradients behind the base score, whatever gradient_bits: it is two integers, and a mean that
carries through the whole model."""
EXPONENT_VECTORS = 3
"""Exponents are counted of gradients, hessians and weights."""
MAX_COLUMNS = MAX_BUCKETS // MIN_BUCKETS
"""Columns of target means."""
MAX_SLOTS = MAX_BUCKETS * (FOLDS + 1)
"""Slots of all of them, but those of missing values."""
_FEW_SLOTS = Only(lambda slots: sum(slots) <= MAX_SLOTS + (FOLDS + 1) * len(slots), "too many slots")


@dataclass(frozen=True)
class RowsQuery(Stateless, BaseQuery):
    """The number of rows, and the magnitudes of gradients, hessians and weights at the initial margins.

    Answer: the row count, then exponent counts of gradients, hessians and weights.
    """

    description = "row count; magnitudes of labels, weights"
    rows = MAX_ROWS

    @property
    def cells(self) -> int:
        return 1 + EXPONENT_VECTORS * EXPONENT_CELLS

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS  # the number of rows is not known yet

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """The count of rows, once."""
        return int(terms.noise is None)

    def check_terms(self, terms: Terms) -> None:
        """Allow it always."""

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None:
            raise PeerError("the count of rows comes before the cut points")
        if terms.vertical.aligns and state.places is None:
            raise PeerError("rows are counted once they are matched")


@dataclass(frozen=True)
class StartQuery(BeforeTrees, BaseQuery):
    """The cut points, and the sums of gradients and hessians at the initial margins.

    means: of each column of `target_means` those of its slots, float32 [buckets, folds]: the last are those
    that rows get which no tree grows on.
    """

    description = "sum over all rows (for the mean label)"
    suits = METHODS
    released = START
    views = ("cut_points", View.cut_points), ("gradient", View.scale), ("hessian", View.scale)

    rows: Rows
    cut_points: CutPoints
    gradient: Scale
    hessian: Scale
    means: Annotated[tuple[Float32, ...], Bound(MAX_COLUMNS, "columns of target means")] = field(
        default=(), metadata=APART
    )

    @once
    def digest(self) -> bytes:
        return digest_of((self, "means", self.means)) if self.means else digest_of(self)

    @property
    def cells(self) -> int:
        return STATS

    @property
    def cell_bits(self) -> int:
        return cell_bits(max(self.gradient.limit, self.hessian.limit), self.rows)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """At most one set of cut points."""
        return 1

    def check_terms(self, terms: Terms) -> None:
        """Refuse cut points, or means, that are not those of the terms' features."""
        features, numeric = len(terms.columns.features), len(terms.columns.ordered)
        cut_points = self.cut_points
        check_bits(START_BITS if terms.noise is None else NOISE_BITS, self.gradient, self.hessian)
        if cut_points.sizes.size != features:
            raise Refused(f"cut points of {cut_points.sizes.size} features, the terms have {features}")
        if (cut_points.sizes + 1 + cut_points.missing > MAX_CODES).any():
            raise Refused("more bins than a byte can number")
        head = cut_points.head(numeric)
        if digest_of(cut_points) != digest_of(head.with_categories(terms.columns.category_counts)):
            raise Refused("bins of categorical features that are not the levels of the terms")
        if terms.hides_columns and digest_of(head) != digest_of(head.numbered):
            raise Refused("cut points that are no numbers of bins, where their owners alone know them")
        if [means.shape for means in self.means] != [slots.shape for slots in slots_of(terms).values()]:
            raise Refused("means of other levels than those of target_means in the terms")
        if not all(np.isfinite(means).all() for means in self.means):
            raise Refused("a mean of a level that is no finite number")

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None:
            raise PeerError("the cut points were given already")
        if (state.grids >= LEVELS_SUMMED) != bool(terms.columns.target_means):
            raise PeerError("cut points before labels were summed by level, or the terms have no such levels")

    def applied_to(self, state: Any) -> Any:
        """The state with these cut points."""
        return replace(state, start=self)


# ---- The query that sums labels by level, for columns whose levels become means of the label ------------
# Promises: asked once in a session, after all other counts and before the cut points.
# Refuses: sums of other columns, buckets or scales than the terms have (Refused), and sums that are asked
# twice (PeerError).


@dataclass(frozen=True)
class LevelSumsQuery(Counted, BaseQuery):
    """Sums over the rows of each slot of each column of `target_means`, at the initial margins.

    slots: of each column, with those of missing values; gradient, hessian: scales; counted: True where rows
    are counted, too, which is not needed with noise; weight: the scale of row weights, where the terms have
    them and rows count by them among quantiles. Answer: of each slot gradient and hessian, int64 [slots, 2],
    in which validation rows have no part; then the rows of each slot, then their weights.
    """

    description = "sums of labels by level of a column"
    tasks = frozenset({"train"})
    steps = LEVELS_SUMMED
    suits = METHODS
    released = LEVELS

    rows: Rows
    slots: Annotated[tuple[int, ...], Bound(MAX_COLUMNS, "columns of target means"), _FEW_SLOTS]
    gradient: Scale
    hessian: Scale
    counted: bool = True
    weight: Scale | None = None

    @property
    def all_slots(self) -> int:
        """Slots of all columns."""
        return sum(self.slots)

    @property
    def cells(self) -> int:
        return self.all_slots * (STATS + self.counted + (self.weight is not None))

    @property
    def cell_bits(self) -> int:
        return max(bits for _, bits in self.segments)

    @once
    def segments(self) -> tuple[Segment, ...]:
        """Sums of gradients, and where they are asked for counts and weights, in cells of their own width."""
        slots, limit = self.all_slots, max(self.gradient.limit, self.hessian.limit)
        segments = [Segment(STATS * slots, cell_bits(limit, self.rows))]
        if self.counted:
            segments.append(Segment(slots, cell_bits(1, self.rows)))
        if self.weight is not None:
            segments.append(Segment(slots, cell_bits(self.weight.limit, self.rows)))
        return tuple(segments)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where the terms have such columns."""
        return int(bool(terms.columns.target_means))

    def check_terms(self, terms: Terms) -> None:
        """Refuse sums of other columns, or finer ones, than the terms'."""
        due = tuple(slots.with_missing for slots in slots_of(terms).values())
        if not due or self.slots != due:
            raise Refused("sums of labels by other levels than those of target_means in the terms")
        check_bits(START_BITS if terms.noise is None else NOISE_BITS, self.gradient, self.hessian)
        weight = weight_scale(terms, self.rows, 0).bits if are_weighted(terms) else None
        asked = None if self.weight is None else self.weight.bits
        if self.counted != (terms.noise is None) or asked != weight:
            raise Refused("rows by level are counted, or weighed, otherwise than the terms say")

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None or state.grids >= LEVELS_SUMMED:
            raise PeerError("labels are summed by level once, before the cut points")


# ---- Queries of leaf renewal: weights of residuals in parts of a cell of keys ---------------------------


RESIDUAL_BITS = 8
RESIDUAL_TURNS = MAX_RENEWAL_QUERIES
"""Queries for residuals: 24 bits of the key, sign, exponent and 15 bits of the mantissa."""
RESIDUAL_WIDTHS = tuple(KEY_BITS - RESIDUAL_BITS * turn for turn in range(RESIDUAL_TURNS))


@dataclass(frozen=True)
class ResidualQuery(BaseQuery):
    """Weights of the rows of these nodes by residual, after these splits of the grown tree: one for each part
    of a cell of keys. A residual is label - margin.

    Used where leaf values are quantiles of residuals; tree -1: label - base margin of all rows.
    The cell of a node is the 2**width keys of float32 from its start. Answer: [node, part], of 2**8 equal
    parts of the cell, in units of this scale.
    """

    description = "how far off labels are, by groups of rows"
    of_tree = True
    views = ("splits", View.splits), ("starts", View.cells), ("weight", View.scale)

    rows: Rows
    tree: TreeNumber
    splits: Splits
    nodes: Nodes
    starts: Annotated[tuple[int, ...], Bound(MAX_NODES, "cells")]
    width: int
    weight: Scale

    @property
    def cells(self) -> int:
        return len(self.nodes) << RESIDUAL_BITS

    @property
    def cell_bits(self) -> int:
        return cell_bits(self.weight.limit, self.rows)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """RESIDUAL_TURNS for each tree, and for the constant."""
        return 0 if terms.objective.loss.quantile is None else (terms.trees.rounds + 1) * RESIDUAL_TURNS

    def check_terms(self, terms: Terms) -> None:
        """Refuse residuals where leaf values are no quantiles, and cells that are no parts of others."""
        nodes, starts, width = self.nodes, self.starts, self.width
        if terms.objective.loss.quantile is None:
            raise Refused(f"residuals are asked for, which {terms.objective.name} has no use for")
        check_tree(terms, self.tree, self.splits, ())
        check_several(terms, nodes)
        if self.tree == CONSTANT_TREE and nodes != (0,):
            raise Refused("residuals of another node than all rows, before the first tree")
        if width not in RESIDUAL_WIDTHS or len(starts) != len(nodes):
            raise Refused(f"cells of {width} bits, or {len(starts)} of them for {len(nodes)} nodes")
        if any(start % (1 << width) or not 0 <= start < 1 << KEY_BITS for start in starts):
            raise Refused("a cell of residuals that begins where none does")
        if self.weight != terms.known_weight_scale and self.weight.bits != terms.bits:
            raise Refused(f"the terms allow weights of {terms.bits} bits here, no others")

    def check_order(self, terms: Terms, state: Any) -> None:
        tree, levels = state.tree, state.levels
        check_started(state)
        constant = tree == CONSTANT_TREE
        max_levels = RESIDUAL_TURNS if constant else terms.max_turns_per_tree
        if self.tree != tree or levels >= max_levels or (levels == 0 and not constant):
            raise PeerError(f"residuals of tree {self.tree} after {levels} questions about tree {tree}")
        if (before := state.residual) is None:
            return
        pairs = zip(self.starts, before.starts, strict=False)
        within = all(start >> before.width == earlier >> before.width for start, earlier in pairs)
        if self.nodes != before.nodes or self.width != before.width - RESIDUAL_BITS or not within:
            raise PeerError(f"residuals of tree {tree} in cells that are not within those asked for before")

    def applied_to(self, state: Any) -> Any:
        """The state with one more level, and this question."""
        return state.grown(self.splits, residual=self)


# ---- The queries that measure a model on the rows of all parties: magnitudes of losses ------------------
# Then everything else.
# Promises: one sum has the metrics of each set of rows, and the counts by score and label.
# Refuses: other metrics, sets of rows, classes or thresholds than the terms name (Refused).


ROW_COUNTS = 3
"""Numbers of rows in the answer to a MagnitudesQuery."""
ALL = "all"
"""The set of all rows."""
EVALUATION_BY_PARTY = "EvaluationQuery by party"
"""Name of the query where it includes metrics of single parties."""


class OfModel(Stateless):
    """What queries that measure a model have in common."""

    tasks = frozenset({"evaluate"})

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where a model is evaluated."""
        return int(terms.task.name in cls.tasks)

    def check_order(self, terms: Terms, state: Any) -> None:
        """Come at any time: nothing depends on what was asked before."""


@dataclass(frozen=True)
class MagnitudesQuery(OfModel, BaseQuery):
    """The number of rows, of rows that trees were grown on, and of those of which a site does not know that;
    then by binary exponent (`fixedpoint.exponent_counts`) the magnitudes of their weights, and of the losses
    of each metric that is a mean."""

    description = "row counts; magnitudes of weights, losses"
    only_turn = 1

    metrics: Metrics
    rows = MAX_ROWS

    @property
    def means(self) -> tuple[str, ...]:
        """The metrics whose losses are counted."""
        return tuple(name for name in self.metrics if isinstance(exact_metric_of(name), Mean))

    @property
    def cells(self) -> int:
        return ROW_COUNTS + (1 + len(self.means)) * EXPONENT_CELLS

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS  # the number of rows is not known yet

    def check_terms(self, terms: Terms) -> None:
        """Refuse other metrics than the terms'."""
        if self.metrics != terms.metrics:
            raise Refused(f"the terms allow the metrics {', '.join(terms.metrics)}")


@dataclass(frozen=True)
class EvaluationQuery(OfModel, BaseQuery):
    """Sums over sets of rows: all, those of each level of the columns of subgroups, those of each site alone.

    scores: rows are counted by score and label, which are 0 or 1; classes: of a confusion matrix, 0 without;
    caps: of each metric, the largest loss that a row counts with, 0 where there is none.
    Answer: of each set its number of rows, its metric sums, and with `scores` its outcomes at the threshold
    (`metrics.count_outcomes`); then, of all rows, `metrics.count_bins` and `metrics.count_cells`, or
    `metrics.count_classes`."""

    description = "error of a model, rows by score and label"
    only_turn = 2

    rows: Rows
    metrics: Metrics
    sets: Annotated[tuple[str, ...], Bound(1 + MAX_SUBGROUPS * (1 + MAX_CATEGORIES), "sets of rows")]
    sites: Parties
    scores: bool
    classes: Annotated[int, Bound(MAX_CLASSES, "classes")]
    threshold: Annotated[float, Only(lambda threshold: 0 < threshold < 1, "a threshold that is none")]
    weight: Scale
    caps: Annotated[tuple[float, ...], Bound(MAX_METRICS, "caps")]

    @classmethod
    def of(cls, terms: Terms, rows: int, weight: Scale, caps: tuple[float, ...]) -> Self:
        """The query that measures the model of these terms."""
        levels = [each.name for column in evaluating.level_sets(terms).values() for each in column]
        kind = evaluating.is_binary(terms), evaluating.class_count(terms), terms.evaluation.threshold
        return cls(rows, terms.metrics, (ALL, *levels), evaluating.sites_of(terms), *kind, weight, caps)

    @once
    def figures(self) -> dict[str, Metric]:
        """The metrics by name, those with a cap on losses under it."""
        found = {name: exact_metric_of(name) for name in self.metrics}
        caps = zip(found.items(), self.caps, strict=True)
        return {n: replace(m, cap=cap) if cap and isinstance(m, Mean) else m for (n, m), cap in caps}

    @property
    def cells_of_set(self) -> int:
        """Integers of one set of rows."""
        outcomes = len(metrics.OUTCOMES) + 1 if self.scores else 0
        return 1 + metrics.cells(self.metrics, exact_metric_of) + outcomes

    @once
    def cells(self) -> int:
        of_all = (3 * metrics.bins(self.threshold) + 2 * metrics.FINE_CELLS) * self.scores + self.classes**2
        return (len(self.sets) + len(self.sites)) * self.cells_of_set + of_all

    @property
    def cell_bits(self) -> int:
        most = metrics.limit(self.metrics, self.weight, exact_metric_of)
        return cell_bits(max(most, metrics.PROBABILITIES.limit * self.scores), self.rows)

    @property
    def name(self) -> str:
        """Name in logs; another one where it includes metrics of single parties."""
        return EVALUATION_BY_PARTY if self.sites else type(self).__name__

    def check_terms(self, terms: Terms) -> None:
        """Refuse what is not in the terms."""
        if len(self.caps) != len(self.metrics) or not all(0 <= cap < math.inf for cap in self.caps):
            raise Refused("a cap on losses for each metric, and these are others")
        wanted = self.of(terms, self.rows, self.weight, self.caps)
        if self.metrics != wanted.metrics:
            raise Refused(f"the terms allow the metrics {', '.join(wanted.metrics)}")
        if (self.sets, self.sites) != (wanted.sets, wanted.sites):
            raise Refused(f"the terms allow metrics of the rows {', '.join((*wanted.sets, *wanted.sites))}")
        if self != wanted:
            raise Refused("counts by other scores, classes or thresholds than those of the terms")
        known = terms.known_weight_scale
        if self.weight != known if known else self.weight.bits != evaluating.WEIGHT_BITS:
            raise Refused("a scale of row weights that the terms do not lead to")


OfLabels = MagnitudesQuery | EvaluationQuery | LevelSumsQuery | StartQuery
"""Queries about labels before the first tree, or about a model."""
