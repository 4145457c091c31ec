"""Queries about labels and margins: row counts, magnitudes, sums, residuals, evaluation of a model."""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, Self

import numpy as np

from fedboost.boosting.queries import base
from fedboost.boosting.queries.columns import LEVELS_SUMMED, are_weighted, weight_scale
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import EXPONENT_CELLS, MAX_CELL_BITS, UNIT, Float32, Scale, cell_bits
from fedboost.gbdt import metrics
from fedboost.gbdt.cut_points import KEY_BITS, MAX_CATEGORIES, CutPoints
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.kernels.bins import MAX_CODES
from fedboost.gbdt.metrics import Mean, Metric, exact_metric_of
from fedboost.gbdt.objectives.built_in import MAX_RISK_BINS, RiskSets
from fedboost.gbdt.objectives.objective import MAX_LABEL, NOISE_BITS
from fedboost.gbdt.survival import FIRST_GRID, MAX_TIMES, RiskGrid
from fedboost.gbdt.target_means import FOLDS, MAX_BUCKETS, MIN_BUCKETS
from fedboost.gbdt.tree import Splits
from fedboost.privacy.packing import Segment
from fedboost.protocol.contracts import Bound, Only
from fedboost.protocol.messages import Parties
from fedboost.terms import tasks as evaluating
from fedboost.terms.columns import MAX_CLASSES
from fedboost.terms.hiding import LEVELS, ROWS, SCORES, START
from fedboost.terms.session import ALIGNMENT_TURNS
from fedboost.terms.tasks import slots_of
from fedboost.terms.terms import MAX_RENEWAL_QUERIES, Terms
from fedboost.terms.training import MAX_METRICS, MAX_SUBGROUPS

START_BITS = 31
"""Number of bits in the scales of the sums from which the base score is computed. These sums are only two
integers, but they affect the whole model."""
EXPONENT_VECTORS = 3
"""Number of exponent histograms in an answer: gradients, hessians and weights."""
MAX_COLUMNS = MAX_BUCKETS // MIN_BUCKETS
"""Maximum number of target-mean columns."""
MAX_SLOTS = MAX_BUCKETS * (FOLDS + 1)
"""Maximum number of slots of all target-mean columns together, excluding the slots of missing values."""
_FEW_SLOTS = Only(
    lambda slots: sum(slots) <= MAX_SLOTS + (FOLDS + 1) * len(slots), "it has too many target-mean slots"
)


@dataclass(frozen=True)
class RowsQuery(base.Stateless, base.BaseQuery):
    """Counts the rows, and counts gradients, hessians and weights at the initial margins by magnitude.

    Answer: the row count, then the exponent counts of gradients, of hessians and of weights."""

    description = "row count; label and weight magnitudes"
    rows = base.MAX_ROWS

    @property
    def cells(self) -> int:
        return 1 + EXPONENT_VECTORS * EXPONENT_CELLS

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS  # the number of rows is not known yet

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(terms.noise is None)

    def check_terms(self, terms: Terms) -> None:
        """Do nothing: all terms allow this query."""

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None:
            raise PeerError("query-order", "rows must be counted before the cut points are sent")
        if terms.vertical.aligns and state.places is None:
            raise PeerError("query-order", "rows must be matched before they are counted")


# ---- Time bins, for objectives with risk sets: counted once, before the cut points ------------------------

Times = Annotated[tuple[float, ...], Bound(MAX_RISK_BINS, "times")]


@dataclass(frozen=True)
class TimeGrid:
    """Time bins of the training rows, each with at least `min_count` events.

    starts: first time of each bin but the first, increasing. events: weight of the events in each bin.
    validation: starts of the bins of validation rows, a part of `starts`."""

    starts: Times
    events: Times
    validation: Times = ()

    def of(self, name: str) -> Float32:
        """Return the starts of the bins of this set of rows."""
        return np.array(self.starts if name == metrics.TRAIN else self.validation, np.float32)

    def risk_sets(self, at_risk: tuple[float, ...]) -> RiskSets:
        return RiskSets(self.of(metrics.TRAIN), np.array(self.events), np.array(at_risk))

    def check(self, terms: Terms) -> None:
        """Raise Refused unless these are time bins that the terms allow."""
        starts = self.starts
        sound = len(self.events) == len(starts) + 1 and {*self.validation} <= {*starts}
        sound = sound and all(a < b for a, b in pairwise((0.0, *starts, MAX_LABEL * 2)))
        least = terms.evaluation.min_count if terms.columns.weight is None else 0.0
        if not sound or not all(least <= each < math.inf for each in self.events):
            raise Refused(
                "query-times", f"the time bins are not valid, or one has fewer than {least:g} events"
            )


@dataclass(frozen=True)
class TimesQuery(base.Counted, base.BaseQuery):
    """Counts events, censored rows and the weight of events by time.

    Answer: for each set of rows (`Terms.sets`), int64 [3, bins]. starts: first time of each bin but the
    first."""

    description = "how many events and other rows, by time"
    steps = LEVELS_SUMMED

    rows: base.Rows
    starts: Times
    weight: Scale
    sets: Annotated[tuple[str, ...], Bound(2, "sets of rows")]

    @property
    def cells(self) -> int:
        return 3 * (len(self.starts) + 1) * len(self.sets)

    @property
    def cell_bits(self) -> int:
        return cell_bits(self.weight.limit, self.rows)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(terms.sums_risk)

    def check_terms(self, terms: Terms) -> None:
        known = terms.known_weight_scale
        if not terms.sums_risk or self.sets != terms.sets or (known or self.weight) != self.weight:
            raise Refused("query-times", "the terms do not allow this query for events by time")

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None or state.grids >= LEVELS_SUMMED:
            raise PeerError("query-order", "events are counted only once, before the cut points are sent")


@dataclass(frozen=True)
class StartQuery(base.BeforeTrees, base.BaseQuery):
    """Sends the cut points to all parties. Answer: the sums of gradients and hessians at the initial margins.

    means: the means in the slots of each column of `target_means`, float32 [buckets, folds]. The last fold is
    for rows that trees are not trained on. times: time bins, for objectives with risk sets."""

    description = "sum over all rows (for the mean label)"
    with_noise = (False, True)
    released = START
    views = (("cut_points", base.View.cut_points),)
    scales = "gradient", "hessian"

    rows: base.Rows
    cut_points: CutPoints
    gradient: Scale
    hessian: Scale
    means: Annotated[tuple[Float32, ...], Bound(MAX_COLUMNS, "target-mean columns")] = field(
        default=(), metadata=base.APART
    )
    times: TimeGrid | None = field(default=None, metadata=base.APART)

    @property
    def cells(self) -> int:
        return STATS

    @property
    def cell_bits(self) -> int:
        return cell_bits(max(self.gradient.limit, self.hessian.limit), self.rows)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return 1

    def check_terms(self, terms: Terms) -> None:
        features, numeric = len(terms.columns.features), len(terms.columns.ordered)
        cut_points = self.cut_points
        base.check_bits(START_BITS if terms.noise is None else NOISE_BITS, self.gradient, self.hessian)
        if cut_points.sizes.size != features:
            raise Refused(
                "query-cuts",
                f"the number of features in the query ({cut_points.sizes.size}) differs from the number of "
                f"features in the terms ({features})",
            )
        # n cut points are n + 1 bins, and one more if values are missing; codes of bins are bytes.
        if (cut_points.sizes + 1 + cut_points.missing > MAX_CODES).any():
            raise Refused("query-cuts", "a feature has more bins than fit into a byte")
        head = cut_points.head(numeric)
        if base.digest_of(cut_points) != base.digest_of(head.with_categories(terms.columns.category_counts)):
            raise Refused(
                "query-cuts", "the bins of categorical features do not match their levels in the terms"
            )
        if terms.hides_columns and base.digest_of(head) != base.digest_of(head.numbered):
            raise Refused(
                "query-cuts", "the query reveals cut points that only the owner of a column may know"
            )
        if [means.shape for means in self.means] != [slots.shape for slots in slots_of(terms).values()]:
            raise Refused(
                "query-means", "the shapes of the target means do not match target_means in the terms"
            )
        if not all(np.isfinite(means).all() for means in self.means):
            raise Refused("query-means", "a target mean is not a finite number")
        if (self.times is not None) != terms.sums_risk:
            raise Refused("query-times", f"objective {terms.objective.name} does not match the time bins")
        if self.times is not None:
            self.times.check(terms)

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None:
            raise PeerError("query-order", "the cut points are already known")
        if (state.grids >= LEVELS_SUMMED) != (bool(terms.columns.target_means) or terms.sums_risk):
            raise PeerError(
                "query-order",
                "labels are summed by level, or events counted by time, before the cut points are sent "
                "if, and only if, the terms have target_means or an objective with risk sets",
            )

    def applied_to(self, state: Any) -> Any:
        return replace(state, start=self)


# ---- The query that sums labels by level, for target means ----------------------------------------------
# Sent once in a session, after all other counts and before the cut points.


@dataclass(frozen=True)
class LevelSumsQuery(base.Counted, base.BaseQuery):
    """Sums gradients and hessians at the initial margins in each slot of each target-mean column.

    Answer: int64 [slots, (gradient, hessian)] without validation rows, then the row count of each slot, then
    the weight of each slot.

    Args:
        rows: upper bound on the number of rows.
        slots: number of slots of each column, including those of missing values.
        gradient, hessian: scales of the sums.
        counted: True to count the rows of each slot, which is not needed under terms with noise.
        weight: scale of row weights, if quantiles are weighted.
    """

    description = "sums of labels by level of a column"
    tasks = frozenset({"train"})
    steps = LEVELS_SUMMED
    with_noise = (False, True)
    released = LEVELS

    rows: base.Rows
    slots: Annotated[tuple[int, ...], Bound(MAX_COLUMNS, "target-mean columns"), _FEW_SLOTS]
    gradient: Scale
    hessian: Scale
    counted: bool = True
    weight: Scale | None = None

    @property
    def all_slots(self) -> int:
        return sum(self.slots)

    @property
    def cells(self) -> int:
        return self.all_slots * (STATS + self.counted + (self.weight is not None))

    @property
    def cell_bits(self) -> int:
        return max(bits for _, bits in self.segments)

    @base.cached
    def segments(self) -> tuple[Segment, ...]:
        # all rows may be in one slot; sums, counts and weights have cells of their own widths
        slots, limit = self.all_slots, max(self.gradient.limit, self.hessian.limit)
        segments = [Segment(STATS * slots, cell_bits(limit, self.rows))]
        if self.counted:
            segments.append(Segment(slots, cell_bits(1, self.rows)))
        if self.weight is not None:
            segments.append(Segment(slots, cell_bits(self.weight.limit, self.rows)))
        return tuple(segments)

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(bool(terms.columns.target_means))

    def check_terms(self, terms: Terms) -> None:
        due = tuple(slots.with_missing for slots in slots_of(terms).values())
        if not due or self.slots != due:
            raise Refused("query-levels", "the slots of the query do not match target_means in the terms")
        base.check_bits(START_BITS if terms.noise is None else NOISE_BITS, self.gradient, self.hessian)
        weight = weight_scale(terms, self.rows, 0).bits if are_weighted(terms) else None
        asked = None if self.weight is None else self.weight.bits
        if self.counted != (terms.noise is None) or asked != weight:
            raise Refused("query-levels", "the query does not count or weight rows as the terms require")

    def check_order(self, terms: Terms, state: Any) -> None:
        if state.start is not None or state.grids >= LEVELS_SUMMED:
            raise PeerError(
                "query-order", "labels may be summed by level only once, before the cut points are sent"
            )


# ---- The query of leaf renewal: weights of residuals in parts of a cell of keys -------------------------

RESIDUAL_BITS = 8
RESIDUAL_TURNS = MAX_RENEWAL_QUERIES
"""Maximum residual queries per tree. They determine 24 bits of a key: sign, exponent, 15 mantissa bits."""
RESIDUAL_WIDTHS = tuple(KEY_BITS - RESIDUAL_BITS * turn for turn in range(RESIDUAL_TURNS))


@dataclass(frozen=True)
class ResidualQuery(base.BaseQuery):
    """Applies splits to the grown tree, then sums row weights in each of the given nodes by residual (label -
    margin).

    Sent if leaf values are quantiles of residuals. For tree -1, the query is about all rows, with residuals
    label - base margin. A node's cell consists of the 2**width float32 keys from its start, cut into 2**8
    equal parts. Answer: int64 [node, part], total row weights in the scale `weight`."""

    description = "prediction errors, by group of rows"
    of_tree = True
    views = ("splits", base.View.splits), ("starts", base.View.cells)
    scales = ("weight",)

    rows: base.Rows
    tree: base.TreeNumber
    splits: Splits
    nodes: base.Nodes
    starts: Annotated[tuple[int, ...], Bound(base.MAX_NODES, "cells")]
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
        return 0 if terms.objective.loss.quantile is None else (terms.trees.rounds + 1) * RESIDUAL_TURNS

    def check_terms(self, terms: Terms) -> None:
        nodes, starts, width = self.nodes, self.starts, self.width
        if terms.objective.loss.quantile is None:
            raise Refused(
                "query-residuals",
                f"the query asks for residuals, which objective {terms.objective.name} does not need",
            )
        base.check_tree(terms, self.tree, self.splits)
        base.check_several(terms, nodes)
        if self.tree == base.CONSTANT_TREE and nodes != (0,):
            raise Refused(
                "query-residuals", "before the first tree, the query must be about the residuals of all rows"
            )
        if width not in RESIDUAL_WIDTHS:
            raise Refused("query-residuals", f"the width of a residual cell cannot be {width} bits")
        if len(starts) != len(nodes):
            raise Refused(
                "query-residuals",
                f"the number of residual cells in the query ({len(starts)}) differs from the number of nodes "
                f"({len(nodes)})",
            )
        if any(start % (1 << width) or not 0 <= start < 1 << KEY_BITS for start in starts):
            raise Refused("query-residuals", "a residual cell does not start at a multiple of its size")
        if self.weight != terms.known_weight_scale and self.weight.bits != terms.bits:
            raise Refused(
                "query-scale", f"this query must use {terms.bits}-bit weights, as the terms require"
            )

    def check_order(self, terms: Terms, state: Any) -> None:
        tree, levels = state.tree, state.levels
        base.check_started(state)
        constant = tree == base.CONSTANT_TREE
        max_levels = RESIDUAL_TURNS if constant else terms.max_turns_per_tree
        if self.tree != tree or levels >= max_levels or (levels == 0 and not constant):
            raise PeerError(
                "query-order",
                f"the query for residuals of tree {self.tree} is out of order: it came after query "
                f"{levels} about tree {tree}",
            )
        if (before := state.residual) is None:
            return
        # Each query cuts finer: a node's cell must lie inside the node's previous cell.
        pairs = zip(self.starts, before.starts, strict=False)
        within = all(start >> before.width == earlier >> before.width for start, earlier in pairs)
        if self.nodes != before.nodes or self.width != before.width - RESIDUAL_BITS or not within:
            raise PeerError(
                "query-order",
                f"tree {tree}: a residual cell is not inside the cell of the previous query",
            )

    def applied_to(self, state: Any) -> Any:
        return state.grown(self.splits, residual=self)


# ---- The two queries that measure a model on the rows of all parties ------------------------------------
# First magnitudes of losses, then one sum with the metrics of each set of rows, and counts by score and
# label.

ROW_COUNTS = 3
"""Number of row counts at the start of the answer to a MagnitudesQuery."""
ALL = "all"
"""Name of the set of all rows."""
EVALUATION_BY_PARTY = f"EvaluationQuery{base.OF_PARTIES}"
"""Name of the query in logs if it includes metrics of individual parties."""


class OfModel(base.Stateless, base.BaseQuery):
    """Base of queries that evaluate a model."""

    tasks = frozenset({"evaluate"})

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        return int(terms.task.name in cls.tasks and (terms.noise is None or cls.released is not None))

    def turn_under(self, terms: Terms) -> int:
        assert self.only_turn is not None
        return self.only_turn + ALIGNMENT_TURNS * terms.evaluates_jointly

    def check_order(self, terms: Terms, state: Any) -> None:
        """Do nothing: the query does not depend on the training state."""


@dataclass(frozen=True)
class MagnitudesQuery(OfModel):
    """Counts the rows to evaluate, and their weights and losses by magnitude.

    Answer: the number of all rows, of rows that the model was trained on, and of rows for which a site does
    not know whether the model was trained on them. These are followed by the exponent counts
    (`fixedpoint.exponent_counts`) of weights, and of the losses of each metric that is a mean. If a metric is
    about survival times, `survival.first_counts` follow."""

    description = "row counts; weight and loss magnitudes"
    only_turn = 1

    metrics: base.Metrics
    rows = base.MAX_ROWS

    @property
    def means(self) -> tuple[str, ...]:
        """Names of the metrics that are means over rows; only their losses are counted by magnitude."""
        return tuple(name for name in self.metrics if isinstance(exact_metric_of(name), Mean))

    @property
    def cells(self) -> int:
        times = self.times
        return self.exponents + (0 if times is None else times.size + 1 + FIRST_GRID.cells)

    @property
    def exponents(self) -> int:
        """Number of cells before the counts of survival times."""
        return ROW_COUNTS + (1 + len(self.means)) * EXPONENT_CELLS

    @property
    def times(self) -> Float32 | None:
        """Edges of times by which events are counted; None if no metric is about survival times."""
        return metrics.times_of(self.metrics)

    @property
    def cell_bits(self) -> int:
        return MAX_CELL_BITS  # the number of rows is not known yet

    def check_terms(self, terms: Terms) -> None:
        if self.metrics != terms.metrics:
            raise Refused("query-metrics", f"the terms allow only these metrics: {', '.join(terms.metrics)}")


@dataclass(frozen=True)
class EvaluationQuery(OfModel):
    """Asks for sums over sets of rows: all rows, each level of the subgroup columns, and each site's own
    rows.

    Answer: for each set, the number of rows, the metric sums and, with `scores`, the outcomes at the
    threshold (`metrics.count_outcomes`). These are followed by counts over all rows: `metrics.count_bins` and
    `metrics.count_cells`, or `metrics.count_classes`, or `survival.survival_counts`. Under terms with noise,
    there are no sets, and the answer is `metrics.count_noisy`: a row is in one cell, or in two if there are
    several classes.

    Args:
        rows: number of rows.
        metrics: names of the metrics.
        sets: names of the sets of rows, all rows first; () under terms with noise.
        sites: parties whose own rows are additional sets.
        scores: True to count rows by score and binary label.
        classes: number of classes of the confusion matrix; 0 for none.
        threshold: score from which a row counts as predicted positive.
        weight: scale of row weights.
        caps: for each metric, the maximum loss that a row contributes; 0 for no limit.
        survival: for survival times, the start and width of the cells of risk, then the edges of times.
    """

    description = "model error; row counts by score and label"
    with_noise = (False, True)
    released = SCORES

    rows: base.Rows
    metrics: base.Metrics
    sets: Annotated[tuple[str, ...], Bound(1 + MAX_SUBGROUPS * (1 + MAX_CATEGORIES), "sets of rows")]
    sites: Parties
    scores: bool
    classes: Annotated[int, Bound(MAX_CLASSES, "classes")]
    threshold: Annotated[
        float, Only(lambda threshold: 0 < threshold < 1, "its threshold is not between 0 and 1")
    ]
    weight: Scale
    caps: Annotated[tuple[float, ...], Bound(MAX_METRICS, "caps")]
    survival: Annotated[tuple[float, ...], Bound(4 + 2 * MAX_TIMES + MAX_METRICS, "times")] = field(
        default=(), metadata=base.APART
    )

    @property
    def by_time(self) -> tuple[Float32, RiskGrid]:
        """Edges of times, and cells of risk."""
        start, width, *edges = self.survival
        return np.array(edges, np.float32), RiskGrid(start, width)

    @classmethod
    def of(cls, terms: Terms, rows: int, weight: Scale, caps: tuple[float, ...]) -> Self:
        levels = [each.name for column in evaluating.level_sets(terms).values() for each in column]
        kind = evaluating.is_binary(terms), evaluating.class_count(terms), terms.evaluation.threshold
        if terms.noise is not None:
            return cls(ROWS, (), (), (), *kind, UNIT, ())
        return cls(rows, terms.metrics, (ALL, *levels), evaluating.sites_of(terms), *kind, weight, caps)

    @base.cached
    def figures(self) -> dict[str, Metric]:
        """Maps name -> metric, including the cap on its losses, if any."""
        found = {name: exact_metric_of(name) for name in self.metrics}
        caps = zip(found.items(), self.caps, strict=True)
        return {n: replace(m, cap=cap) if cap and isinstance(m, Mean) else m for (n, m), cap in caps}

    @property
    def cells_of_set(self) -> int:
        outcomes = len(metrics.OUTCOMES) + 1 if self.scores else 0
        return 1 + metrics.cells(self.metrics, exact_metric_of) + outcomes

    @property
    def only_turn(self) -> int:  # type: ignore[override]
        return 2 if self.sets else 1

    @base.cached
    def cells(self) -> int:
        if not self.sets:
            return metrics.noisy_cells(self.scores, self.classes, self.threshold)
        of_all = (3 * metrics.bins(self.threshold) + 2 * metrics.FINE_CELLS) * self.scores + self.classes**2
        of_all += 2 * (len(self.survival) - 1) * RiskGrid(0.0, 1.0).cells if self.survival else 0
        return (len(self.sets) + len(self.sites)) * self.cells_of_set + of_all

    @property
    def cell_bits(self) -> int:
        most = metrics.limit(self.metrics, self.weight, exact_metric_of)
        return cell_bits(max(most, metrics.PROBABILITIES.limit * self.scores) if self.sets else 1, self.rows)

    def check_terms(self, terms: Terms) -> None:
        if len(self.caps) != len(self.metrics) or not all(0 <= cap < math.inf for cap in self.caps):
            raise Refused("query-metrics", "the query must have one finite loss cap per metric")
        wanted = self.of(terms, self.rows, self.weight, self.caps)
        if self.metrics != wanted.metrics:
            raise Refused("query-metrics", f"the terms allow only these metrics: {', '.join(wanted.metrics)}")
        if (self.sets, self.sites) != (wanted.sets, wanted.sites):
            raise Refused(
                "query-metrics",
                f"the terms allow metrics only for these groups of rows: "
                f"{', '.join((*wanted.sets, *wanted.sites))}",
            )
        times = metrics.times_of(self.metrics)
        if (times is None) != (not self.survival) or (times is not None and not self._has_edges(times)):
            raise Refused("query-times", "the times or risks of the query are not those of the public grids")
        if self != replace(wanted, survival=self.survival):
            raise Refused(
                "query-metrics",
                "the scores, classes or threshold of the query differ from those of the terms",
            )
        known = terms.known_weight_scale
        if self.weight != known if known else self.weight.bits != evaluating.WEIGHT_BITS:
            raise Refused("query-scale", "the terms do not allow the scale of row weights in the query")

    def _has_edges(self, times: Float32) -> bool:
        """Return whether no edge can isolate rows: each is one of `times`, or one of a regular grid."""
        if len(self.survival) < 2:
            return False
        edges, (start, width, _) = self.by_time
        is_grid = 0.0 < width <= 1.0 and math.frexp(width)[0] == 0.5 and (start / width).is_integer()
        return is_grid and bool(np.isin(edges, times).all() and (np.diff(edges) > 0.0).all())


OfLabels = MagnitudesQuery | EvaluationQuery | LevelSumsQuery | TimesQuery | StartQuery
"""Queries about labels before the first tree, or about the evaluation of a model."""
