"""Queries of leaf renewal: weights of residuals in parts of a cell of keys."""

from dataclasses import dataclass, replace
from typing import Any

from fedboost.boosting.queries.base import CONSTANT_TREE, BaseQuery
from fedboost.boosting.queries.rules import check_several, check_started, check_tree
from fedboost.boosting.queries.views import View
from fedboost.errors import PeerError, Refused
from fedboost.fixedpoint import Scale, cell_bits
from fedboost.gbdt.cut_points import KEY_BITS
from fedboost.gbdt.tree import Splits
from fedboost.terms.terms import MAX_RENEWAL_QUERIES, Terms

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

    rows: int
    tree: int
    splits: Splits
    nodes: tuple[int, ...]
    starts: tuple[int, ...]
    width: int
    weight: Scale

    def narrows(self, before: "ResidualQuery") -> bool:
        """True if the cell of each node is a part of its cell in the query before."""
        pairs = zip(self.starts, before.starts, strict=False)
        within = all(start >> before.width == earlier >> before.width for start, earlier in pairs)
        return self.nodes == before.nodes and self.width == before.width - RESIDUAL_BITS and within

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

    def in_view(self, view: View) -> "ResidualQuery":
        """The query with the splits and cells that are seen: cells by the label holder alone, as leaf values
        are in them."""
        starts = self.starts if view.has_labels else (0,) * len(self.starts)
        weight = view.scale(self.weight)
        return replace(self, splits=view.splits(self.splits), starts=starts, weight=weight)

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
        """Raise PeerError unless it may come next."""
        tree, levels = state.tree, state.levels
        check_started(state)
        constant = tree == CONSTANT_TREE
        max_levels = RESIDUAL_TURNS if constant else terms.max_turns_per_tree
        if self.tree != tree or levels >= max_levels or (levels == 0 and not constant):
            raise PeerError(f"residuals of tree {self.tree} after {levels} questions about tree {tree}")
        if state.residual is not None and not self.narrows(state.residual):
            raise PeerError(f"residuals of tree {tree} in cells that are not within those asked for before")

    def applied_to(self, state: Any) -> Any:
        """The state with one more level, and this question."""
        return state.grown(self.splits, residual=self)
