"""The label holder counts again what others reported of gradients that they cannot read.

A feature holder that makes sums up, or an aggregator that changes them, can have splits win that tell it
labels. The sums over the rows of each leaf are the label holder's own, so it finds values that do not follow
from them. Inner nodes need no look: their totals come from the label holder's own columns with the next
level, and the aggregator compares them.

Promises: values that follow from the rows pass, to the last bit.
Refuses: others, with who split the leaf's parent (PeerError).

Not found: sums that win no split; and, where leaf values are not those of sums alone, those of the last level
of a tree (objectives with quantile leaves, monotone constraints).
"""

import numpy as np

from fedboost.boosting.queries.trees import EndRoundQuery
from fedboost.boosting.state import Scales
from fedboost.errors import PeerError
from fedboost.gbdt.kernels.level import add_node
from fedboost.gbdt.tree import NODE, Splits
from fedboost.terms.terms import Terms
from fedboost.vertical.rows import LabelRows


def check_leaf_values(
    terms: Terms, rows: LabelRows, scales: Scales | None, splits: Splits, query: EndRoundQuery
) -> None:
    """Raise PeerError unless the values of all leaves follow from the gradients of their rows. splits: all of
    the tree that ends, as the label holder sees them."""
    if query.tree < 0 or scales is None:
        return
    if terms.objective.loss.quantile is not None or terms.trees.monotone(terms.columns):
        return
    rule = terms.rule(scales.gradient, scales.hessian)
    rows.compute_gradients(scales.gradient, scales.hessian)
    found = np.zeros(1, NODE)
    for leaf, value in query.values:
        gradient, hessian = rows.sums_over(leaf)
        add_node(found, 0, gradient, hessian, -np.inf, np.inf, *rule.scales, rule.learning_rate)
        if found[0]["value"] != value:
            raise PeerError(
                f"the value of leaf {leaf} of tree {query.tree} does not follow from its rows: "
                f"{_suspect(terms, splits, leaf)} made up sums, or the aggregator changed them; ask them "
                f"before you train with them again"
            )


def _suspect(terms: Terms, splits: Splits, leaf: int) -> str:
    """Who has the column that the leaf's parent is split by."""
    above = np.flatnonzero((splits.left == leaf) | (splits.left + 1 == leaf))
    features = len(terms.columns.features)
    if above.size and (feature := int(splits.feature[above[0]])) >= features:
        return f"party {terms.parties[feature - features]}"
    return "a party"
