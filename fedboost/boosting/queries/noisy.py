"""Queries about a tree of random structure: sums of its leaves, with noise."""

from dataclasses import dataclass
from typing import Any

from fedboost.boosting.queries.base import BaseQuery
from fedboost.boosting.queries.rules import check_nodes, check_started
from fedboost.errors import PeerError
from fedboost.fixedpoint import Scale, cell_bits
from fedboost.gbdt.histogram import STATS
from fedboost.gbdt.objectives.objective import SCALE
from fedboost.gbdt.tree import Splits
from fedboost.terms.noise import TREES, Noise, Release
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class SumsQuery(BaseQuery):
    """Sums of gradients and hessians in the leaves of a tree of these splits, whose structure does not depend
    on rows.

    Used once a tree, where the answer gets noise. Answer: [leaf, (gradient, hessian)], in units of
    `sensitivity.SCALE`.
    """

    description = "sums over the rows in each leaf of a tree"
    of_tree = True
    needs_noise = True

    rows: int
    tree: int
    splits: Splits
    nodes: tuple[int, ...]

    @property
    def gradient(self) -> Scale:
        return SCALE

    hessian = gradient

    @property
    def cells(self) -> int:
        return len(self.nodes) * STATS

    @property
    def cell_bits(self) -> int:
        return cell_bits(SCALE.limit, self.rows)

    def is_allowed_with(self, noise: Noise) -> bool:
        """True if the structure of trees is random."""
        return noise.method != "hist"

    @classmethod
    def max_count(cls, terms: Terms) -> int:
        """At most one a tree."""
        return terms.trees.rounds * (terms.noise is not None and terms.noise.method != "hist")

    def check_terms(self, terms: Terms) -> None:
        """Refuse leaves that a tree of the terms cannot have."""
        check_nodes(terms, self.tree, self.splits, self.nodes)

    def release(self, terms: Terms) -> Release | None:
        """The sums of a tree."""
        return terms.plan.releases[TREES]

    def check_order(self, terms: Terms, state: Any) -> None:
        """Raise PeerError unless it may come next."""
        check_started(state)
        if self.tree != state.tree or state.levels:
            raise PeerError(f"sums in the leaves of tree {self.tree} while tree {state.tree} grows, or again")

    def applied_to(self, state: Any) -> Any:
        """The state with one more level."""
        return state.grown(self.splits)
