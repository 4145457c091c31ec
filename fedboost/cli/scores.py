"""How good a model is on rows it was not trained on: the metrics of each round, on held-out rows.

Promises: a figure is the metric that training reports, of these rows; an interval says how far it might be
off because these rows were held out and no others.
Refuses: rows that do not fit the terms (Refused).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedboost.fixedpoint import Float64, Int64, Scale
from fedboost.gbdt import metrics
from fedboost.gbdt.bins import Float32
from fedboost.protocol.terms import Terms
from fedboost.shell.data import to_shard
from fedboost.shell.model import Model

_SHOWN = {"binary:logistic": ("logloss", "auc", "error"), "multi:softprob": ("mlogloss", "merror")}
_WEIGHT_BITS = 24


def shown_metrics(terms: Terms) -> tuple[str, ...]:
    """The metrics that models under these terms are compared by, the one that decides first."""
    return terms.eval_metric or _SHOWN.get(terms.objective, terms.metrics)


def unprotected(terms: Terms) -> Terms:
    """The same model from rows that are all here, where there is nobody to hide them from."""
    return terms.changed(protection="plain", parties=[])


@dataclass(frozen=True)
class HeldOut:
    """Rows to compare models on, as the terms read them: float32 [rows, features], [rows], [rows], [rows]."""

    features: Float32
    label: Float32
    weight: Float32
    base_margin: Float32 | None

    @classmethod
    def of(cls, table: Any, terms: Terms, name: str) -> "HeldOut":
        """The rows of a table, called `name` in an error."""
        shard = to_shard(table, terms, name)
        features = np.column_stack([column[:] for column in shard.columns])
        return cls(features, shard.label, shard.weight, shard.base_margin)

    def sums(
        self, model: Model, names: tuple[str, ...], groups: Sequence[Any] = (slice(None),)
    ) -> tuple[Int64, Scale]:
        """What the metrics sum over each group of rows, int64 [groups, cells], and the scale of weights: sums
        of groups add, and `metrics.values` makes the metrics of them."""
        margin: Float64 = model.booster.margins(self.features, self.base_margin)
        loss, heaviest = model.terms.loss, float(self.weight.max(initial=0.0))
        known = model.terms.known_weight_scale
        scale = known or Scale(int(np.frexp(heaviest)[1]), _WEIGHT_BITS)

        def of(rows: Any) -> Int64:
            some = np.ascontiguousarray(margin[..., rows])
            return metrics.sums(names, loss, some, self.label[rows], self.weight[rows], scale)

        return np.array([of(rows) for rows in groups]), scale


def score(model: Model, rows: HeldOut, names: tuple[str, ...]) -> dict[str, float]:
    """Metric name to its value on these rows."""
    (total,), scale = rows.sums(model, names)
    return metrics.values(names, total, scale)
