"""The question that ends a round: leaf values are applied, and metrics are measured."""

from dataclasses import dataclass
from typing import Any

from fedboost.boosting.queries.base import BaseQuery
from fedboost.boosting.queries.rules import check_started, check_tree
from fedboost.boosting.queries.start import EXPONENT_VECTORS
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import EXPONENT_CELLS, Int64, Scale, cell_bits
from fedboost.gbdt.metrics import by_set as metrics
from fedboost.gbdt.metrics.by_set import TRAIN
from fedboost.gbdt.sampling import NORM_CELLS
from fedboost.gbdt.tree import Split
from fedboost.terms.noise import Noise
from fedboost.terms.terms import Terms

BY_PARTY = "EndRoundQuery by party"
"""The name of the end of a round that asks for metrics of single parties, too."""


@dataclass(frozen=True)
class EndRoundQuery(BaseQuery):
    """Apply these splits, then move every row's margin by its leaf's value. What are the metrics now?

    Tree -1 is the constant that boosting starts from. Answer: the metric sums, then, if the terms ask for
    exponents, exponent counts of the new gradients, hessians and weights; then, if they ask for sizes, counts
    of the sizes of the new gradients of rows that trees grow on (`sampling.count_norms`). Metric sums are of
    each of these sets of rows, one after the other; a set of a party's rows alone is 0 for all others.
    """

    description = "error of the model, summed over all rows"
    ends_tree = True

    rows: int
    tree: int
    splits: tuple[Split, ...]
    values: tuple[tuple[int, float], ...]
    metrics: tuple[str, ...]
    weight: Scale
    exponents: bool
    sets: tuple[str, ...] = (TRAIN,)
    sizes: bool = False

    @property
    def cells(self) -> int:
        of_metrics = len(self.sets) * metrics.cells(self.metrics)
        exponents = EXPONENT_VECTORS * EXPONENT_CELLS * self.exponents
        return of_metrics + exponents + NORM_CELLS * self.sizes

    @property
    def cell_bits(self) -> int:
        return cell_bits(metrics.limit(self.metrics, self.weight), self.rows)

    @property
    def name(self) -> str:
        """Its name in logs; another one where metrics of single parties are asked for."""
        by_party = any(metrics.OF_PARTY in rows for rows in self.sets)
        return BY_PARTY if by_party else type(self).__name__

    def is_allowed_with(self, noise: Noise) -> bool:
        """Always: the terms then have no metrics."""
        return True

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """One a tree, and one of the constant."""
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
        """Metrics of the round: over the rows of the roster, and those of them that the analyst gets."""
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
