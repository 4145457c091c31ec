"""The rules of a site's policy about leaves: how many rows they have, and what their values tell.

Promises: as `policy_rules`.

What `min_rows_per_leaf` can and cannot do. The sum of hessians in both children of a split must reach
min_child_weight, and no row has a hessian of more than 1/4 (binary:logistic), 1/2 (multi:softprob) or other
than 1 (reg:squarederror, reg:absoluteerror, reg:quantileerror) if every row has weight 1 and scale_pos_weight
is not given. The sums are of rounded hessians, and rounding adds nothing to these bounds: they are multiples
of the fixed-point unit (or, for a unit so coarse that they are not, at most half of it, which rounds to
zero). So a split under min_child_weight w leaves at least 4 w, 2 w or w rows on each side, counted over all
parties. It cannot stop an aggregator that lies about the sums or the splits, nor a party that adds rows of
its own; it says nothing of a tree that does not split, of how many rows *this* site has in a leaf, nor of the
bins of a histogram, in each of which a single row may lie. Row weights or a custom program leave nothing to
rely on: with them the rule refuses.
"""

import math

from fedboost.errors import quoted
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.runtime.site.policy_breach import Breach
from fedboost.runtime.site.policy_keys import MAX_ROWS_PER_LEAF, PolicyKeys
from fedboost.runtime.site.policy_levels import within_a_budget
from fedboost.terms.session import TO_TUNE
from fedboost.terms.terms import Terms


def quantile_leaves(policy: PolicyKeys, terms: Terms) -> Breach | None:
    if terms.objective.loss.quantile is None or policy.quantile_leaves:
        return None
    why = f"with {quoted(terms.objective.name)} a leaf's value is about the label of one row"
    return Breach("quantile_leaves", "false", why, "choose another objective", True)


def min_rows_per_leaf(policy: PolicyKeys, terms: Terms) -> Breach | None:
    return None if within_a_budget(policy, terms) else few_rows_per_leaf(policy, terms)


def few_rows_per_leaf(policy: PolicyKeys, terms: Terms) -> Breach | None:
    """The breach by leaves that may have few rows, whatever noise hides."""
    limit, (rows, why) = policy.min_rows_per_leaf, rows_per_leaf(terms)
    if rows >= limit:
        return None
    instead = ""
    if not why:
        instead = f"set min_child_weight = {limit / (_rows_per_hessian(terms) or 1):.12g}"
        why = (
            f"the terms have min_child_weight = {terms.trees.min_child_weight:g}, which with "
            f"{terms.objective.name} leaves {rows} row{'s' * (rows > 1)} in a leaf"
        )
    return Breach("min_rows_per_leaf", str(limit), why, instead, rows)


def rows_per_leaf(terms: Terms) -> tuple[int, str]:
    """The fewest rows, of all parties, in a leaf of a tree that splits; and why it is one, where
    min_child_weight promises nothing."""
    weight = terms.columns.weight
    if weight is not None:
        return 1, f"with the row weights of column {quoted(weight)!r} no leaf is sure of it"
    if terms.objective.scale_pos_weight is not None:
        return 1, "with a scale_pos_weight no leaf is sure of it"
    if terms.draws.sampling_method != "uniform":
        rows_drawn = (
            f'the rows that sampling_method = "{terms.draws.sampling_method}" draws weigh more than 1'
        )
        return 1, f"{rows_drawn}: no leaf is sure of it"
    if terms.noise is not None:
        return 1, "no leaf is sure of it with noise, which only counts under a budget (epsilon, delta)"
    per = _rows_per_hessian(terms)
    is_own = terms.session.program in ("boosting", TO_TUNE)
    if not is_own or per is None:
        what = "objective" if is_own else "program"
        return 1, f"{what} {quoted(terms.flat[what])!r} does not promise it"
    rows = min(terms.trees.min_child_weight * per, float(MAX_ROWS_PER_LEAF))
    return max(1, math.ceil(rows)), ""


def _rows_per_hessian(terms: Terms) -> int | None:
    """The fact of a registered objective; nothing is taken on trust from that of a package."""
    return terms.objective.loss.rows_per_hessian if terms.objective.name in OBJECTIVES else None
