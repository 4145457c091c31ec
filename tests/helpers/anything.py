"""A policy that refuses no terms."""

from fedboost.gbdt.cut_points import MAX_CATEGORIES
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.contracts import MAX_CELLS
from fedboost.protocol.site import NO_LIMIT
from fedboost.terms.reading import MAX_FEATURES
from fedboost.terms.training import MAX_DEPTH, MAX_METRICS, MAX_ROOTS, MAX_ROUNDS, MIN_SHARE

ANYTHING = {
    "parties": "any",
    "analysts": "any",
    "columns": "any",
    "by_columns": True,
    "label_holders": "any",
    "rows": ["common", "label_holder", "in_order"],
    "min_common_rows": 1,
    "repeated_ids": True,
    "max_foreign_ids": MAX_CELLS,
    "max_predicted_rows": NO_LIMIT,
    "max_splits": NO_LIMIT,
    "model": "whole",
    "evaluate": "any",
    "min_rows_per_bin": 1,
    "protections": list(PROTECTIONS),
    "on_loss": ["wait", "stop", "shrink"],
    "min_parties": 1,
    "min_rows_per_leaf": 1,
    "quantile_leaves": True,
    "max_rounds": MAX_ROUNDS,
    "max_depth": MAX_DEPTH,
    "max_trees_per_round": MAX_ROOTS,
    "max_metrics": MAX_METRICS,
    "max_category_levels": MAX_CATEGORIES,
    "target_means": True,
    "risk_sums": True,
    "metrics_at_thresholds": True,
    "party_metrics": True,
    "validation": True,
    "base_margin": True,
    "continue_models": True,
    "subgroups": True,
    "vote_top_k": MAX_FEATURES,
    "subsample": MIN_SHARE,
    "min_key_bits": 2048,
    "colluding": 0,
    "max_sessions": 1_000_000,
    "similar_groups": True,
}
"""A policy for parties of one's own, whose rows are nobody's secret: it refuses no terms."""
