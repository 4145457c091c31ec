"""The queries that measure a model on the rows of all parties: magnitudes of losses, then everything else.

Promises: one sum has the metrics of each set of rows, and the counts by score and label.
Refuses: other metrics, sets of rows, classes or thresholds than the terms name (Refused).
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from fedboost.boosting.queries.base import MAX_ROWS, BaseQuery, BeforeTrees, once
from fedboost.errors import Refused
from fedboost.fixedpoint import EXPONENT_CELLS, MAX_CELL_BITS, Scale, cell_bits
from fedboost.gbdt.metrics import registry
from fedboost.gbdt.metrics import registry as metrics
from fedboost.gbdt.metrics.metric import Mean, Metric
from fedboost.gbdt.metrics.registry import exact_metric_of
from fedboost.terms import tasks as evaluating
from fedboost.terms.session import TO_EVALUATE
from fedboost.terms.terms import Terms

ROW_COUNTS = 3
"""Numbers of rows in the answer to a MagnitudesQuery."""
ALL = "all"
"""The set of all rows."""
EVALUATION_BY_PARTY = "EvaluationQuery by party"
"""Name of the query where it includes metrics of single parties."""


@dataclass(frozen=True)
class MagnitudesQuery(BeforeTrees, BaseQuery):
    """The number of rows, of rows that trees were grown on, and of those of which a site does not know that;
    then by binary exponent (`fixedpoint.exponent_counts`) the magnitudes of their weights, and of the losses
    of each metric that is a mean."""

    description = "row counts; magnitudes of weights, losses"
    only_turn = 1
    tasks = frozenset({TO_EVALUATE})

    metrics: tuple[str, ...]
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

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where a model is evaluated."""
        return int(terms.task == TO_EVALUATE)

    def check_terms(self, terms: Terms) -> None:
        """Refuse other metrics than the terms'."""
        if self.metrics != terms.metrics:
            raise Refused(f"the terms allow the metrics {', '.join(terms.metrics)}")

    def check_order(self, terms: Terms, state: Any) -> None:
        """Come at any time: nothing depends on what was asked before."""

    def applied_to(self, state: Any) -> Any:
        """The same state: it changes nothing."""
        return state


@dataclass(frozen=True)
class EvaluationQuery(BeforeTrees, BaseQuery):
    """Sums over sets of rows: all, those of each level of the columns of subgroups, those of each site alone.

    scores: rows are counted by score and label, which are 0 or 1; classes: of a confusion matrix, 0 without;
    caps: of each metric, the largest loss that a row counts with, 0 where there is none.
    Answer: of each set its number of rows, its metric sums, and with `scores` its outcomes at the threshold
    (`scores.count_outcomes`); then, of all rows, `scores.count_bins` and `scores.count_cells`, or
    `scores.count_classes`."""

    description = "error of a model, rows by score and label"
    only_turn = 2
    tasks = frozenset({TO_EVALUATE})

    rows: int
    metrics: tuple[str, ...]
    sets: tuple[str, ...]
    sites: tuple[str, ...]
    scores: bool
    classes: int
    threshold: float
    weight: Scale
    caps: tuple[float, ...]

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
        outcomes = len(registry.OUTCOMES) + 1 if self.scores else 0
        return 1 + metrics.cells(self.metrics, exact_metric_of) + outcomes

    @once
    def cells(self) -> int:
        of_all = (3 * registry.bins(self.threshold) + 2 * registry.FINE_CELLS) * self.scores + self.classes**2
        return (len(self.sets) + len(self.sites)) * self.cells_of_set + of_all

    @property
    def cell_bits(self) -> int:
        most = metrics.limit(self.metrics, self.weight, exact_metric_of)
        return cell_bits(max(most, registry.PROBABILITIES.limit * self.scores), self.rows)

    @property
    def name(self) -> str:
        """Name in logs; another one where it includes metrics of single parties."""
        return EVALUATION_BY_PARTY if self.sites else type(self).__name__

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """Once, where a model is evaluated."""
        return int(terms.task == TO_EVALUATE)

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
        if not evaluating.is_weight_scale(terms, self.weight):
            raise Refused("a scale of row weights that the terms do not lead to")

    def check_order(self, terms: Terms, state: Any) -> None:
        """Come at any time: nothing depends on what was asked before."""

    def applied_to(self, state: Any) -> Any:
        """The same state: it changes nothing."""
        return state
