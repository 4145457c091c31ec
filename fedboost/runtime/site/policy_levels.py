"""The rules of a site's policy about levels: how many are declared, and labels that are summed by level.

Promises: as `policy_rules`.
"""

from fedboost.errors import quoted
from fedboost.runtime.site.policy_breach import Breach
from fedboost.runtime.site.policy_keys import PolicyKeys
from fedboost.terms.terms import Terms


def within_a_budget(policy: PolicyKeys, terms: Terms) -> bool:
    """Tell if noise hides the rows of a leaf, and a budget says how well."""
    return terms.noise is not None and terms.noise.placement != "central" and policy.budget is not None


def max_category_levels(policy: PolicyKeys, terms: Terms) -> Breach | None:
    """Levels that are declared."""
    counts = {name: len(levels) for name, levels in terms.blocks.columns.levels.items()}
    count, limit = max(counts.values(), default=0), policy.max_category_levels
    if within_a_budget(policy, terms) or count <= limit:
        return None
    column = next(name for name, levels in counts.items() if levels == count)
    why = f"the terms declare {count} categories of {quoted(column)!r}"
    return Breach("max_category_levels", str(limit), why, "group rare levels in the tables", count)


def target_means(policy: PolicyKeys, terms: Terms) -> Breach | None:
    """Labels that are summed by level. Another task reads the means of a model that is there."""
    names = [*terms.columns.target_means]
    if not names or policy.target_means or within_a_budget(policy, terms):
        return None
    why = f"the terms sum labels by level of {quoted(names[0])!r} (columns.target_means)"
    return Breach("target_means", "false", why, "leave it out", True)
