"""The query that ends a round: leaf values are applied, and metrics are measured."""

from dataclasses import dataclass, replace
from typing import Any

from fedboost.boosting.queries.base import BaseQuery, once
from fedboost.boosting.queries.rules import check_started, check_tree
from fedboost.boosting.queries.start import EXPONENT_VECTORS
from fedboost.boosting.queries.views import View
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import EXPONENT_CELLS, Int64, Scale, cell_bits
from fedboost.gbdt.metrics import registry as metrics
from fedboost.gbdt.metrics.registry import TRAIN
from fedboost.gbdt.sampling import NORM_CELLS
from fedboost.gbdt.tree import Splits
from fedboost.terms.noise import Noise
from fedboost.terms.terms import Terms

BY_PARTY = "EndRoundQuery by party"
"""Name of the query where it includes metrics of single parties."""


@dataclass(frozen=True)
class EndRoundQuery(BaseQuery):
    """The metrics after these splits, once every margin has moved by its leaf's value.

    Tree -1 is the constant that boosting starts from. Answer: the metric sums, then, with `exponents`,
    exponent counts of the new gradients, hessians and weights; then, with `sizes`, counts of the gradient
    norms of rows that trees grow on (`sampling.count_norms`). Metric sums are of
    each of these sets of rows, one after the other; a set of a party's rows alone is 0 for all others.
    """

    description = "error of the model, summed over all rows"
    ends_tree = True

    rows: int
    tree: int
    splits: Splits
    values: tuple[tuple[int, float], ...]
    metrics: tuple[str, ...]
    weight: Scale
    exponents: bool
    sets: tuple[str, ...] = (TRAIN,)
    sizes: bool = False

    @once
    def cells(self) -> int:
        metric_cells = len(self.sets) * metrics.cells(self.metrics)
        exponents = EXPONENT_VECTORS * EXPONENT_CELLS * self.exponents
        return metric_cells + exponents + NORM_CELLS * self.sizes

    @property
    def cell_bits(self) -> int:
        return cell_bits(metrics.limit(self.metrics, self.weight), self.rows)

    @property
    def name(self) -> str:
        """Name in logs; another one where it includes metrics of single parties."""
        by_party = any(metrics.OF_PARTY in rows for rows in self.sets)
        return BY_PARTY if by_party else type(self).__name__

    def in_view(self, view: View) -> "EndRoundQuery":
        """The query with the splits, leaf values and scale that are seen."""
        splits, values, weight = view.splits(self.splits), view.values(self.values), view.scale(self.weight)
        if splits is self.splits and (values, weight) == (self.values, self.weight):
            return self
        return replace(self, splits=splits, values=values, weight=weight)

    def is_allowed_with(self, noise: Noise) -> bool:
        """Always: the terms then have no metrics."""
        return True

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """At most one a tree, and one of the constant."""
        return terms.trees.rounds + 1

    def check_terms(self, terms: Terms) -> None:
        """Refuse other metrics than the terms', and trees that a model of the terms cannot have."""
        check_tree(terms, self.tree, self.splits, self.values)
        if self.sizes and not terms.draws.by_gradient_norm:
            raise Refused("the terms need no sizes of gradients: rows are not drawn by them")
        if self.exponents and not terms.needs_exponent_counts:
            raise Refused("the terms need no exponents of gradients: they have a public bound")
        if self.metrics != terms.metrics:
            raise Refused(f"the terms allow the metrics {', '.join(terms.metrics)}")
        if self.sets != terms.sets:
            raise Refused(f"the terms allow metrics of the rows {', '.join(terms.sets)}")

    def metrics_of(self, total: Int64) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics of the round: over the rows of the roster, and those for the analyst."""
        sums = self.metrics, self.sets, total, self.weight
        return metrics.by_set(*sums), metrics.published(*sums)

    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next."""
        check_started(state)
        if self.tree != state.tree:
            raise PeerError(f"the end of tree {self.tree} while tree {state.tree} grows")

    def applied_to(self, state: Any) -> Any:
        """The state with one more round."""
        return state.ended(self.splits, self.values)
