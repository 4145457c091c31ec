"""Sessions that hold rows against the reference of a model: their terms, and the bins.

Refuses: models without a reference, and terms of parties that hold different columns (ConfigError).
"""

from typing import Any

import numpy as np

from fedboost.errors import ConfigError
from fedboost.gbdt.drift import Bins
from fedboost.terms import continuation
from fedboost.terms.evaluating import kept_settings
from fedboost.terms.session import TO_DRIFT
from fedboost.terms.terms import Terms

_NOT_FOR_FEATURES = (
    "eval_metric",
    "party_metrics",
    "subgroups",
    "threshold",
    "scale_pos_weight",
    "evaluate_rows",
)


def bins_in(terms: Terms) -> Bins:
    """The bins of the model in the terms."""
    assert terms.xgb_model is not None
    numeric, score = continuation.bins_of(terms.xgb_model)
    if len(numeric) != len(terms.columns.ordered):
        raise ConfigError(f"xgb_model: bins of {len(numeric)} columns, not of {len(terms.columns.ordered)}")
    outputs = terms.objective.loss.outputs
    edges = tuple(np.array(column, np.float64) for column in numeric)
    levels = tuple(terms.columns.category_counts)
    return Bins(edges, levels, np.array(score, np.float64), outputs if outputs > 1 else 0)


def terms_to_drift(terms: Terms, model: str, min_count: int | None = None) -> Terms:
    """The terms by which rows are held against the reference of a model; terms: of its training, or others
    that say the columns. model: as in `xgb_model`, with its bins."""
    if terms.vertical.is_used:
        raise ConfigError(f"{terms.vertical.key}: rows are counted where each party has all columns")
    values: dict[str, Any] = kept_settings(terms, TO_DRIFT) if terms.task != TO_DRIFT else {}
    values = values or terms.model_dump(mode="json", exclude_unset=True)
    values = {key: value for key, value in values.items() if key not in _NOT_FOR_FEATURES}
    given = {"xgb_model": model, "min_count": min_count}
    return Terms.read(values | {key: value for key, value in given.items() if value is not None})
