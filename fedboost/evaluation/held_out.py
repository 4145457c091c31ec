"""Metrics of models on rows they were not trained on.

Promises: a figure is the metric that training reports, of these rows.
Refuses: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.booster import Booster
from fedboost.gbdt.metrics import registry as metrics
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.holders.shard import Shard
from fedboost.terms.terms import Terms

MAX_CLASS_METRICS = 3
"""Metrics that models of classes are compared by."""
_WEIGHT_BITS = 24


class Trained(Protocol):
    """A model and the terms it was trained under."""

    @property
    def booster(self) -> Booster:
        """The trees."""

    @property
    def terms(self) -> Terms:
        """The terms."""


def shown_metrics(terms: Terms) -> tuple[str, ...]:
    """Return the metrics that models under these terms are compared by, the one that decides first."""
    equivalent = terms.objective.loss.xgboost_equivalent
    has_classes = equivalent.label_kind is LabelKind.CLASS
    return terms.evaluation.eval_metric or (
        equivalent.metrics[:MAX_CLASS_METRICS] if has_classes else terms.metrics
    )


def unprotected(terms: Terms) -> Terms:
    """Return terms of the same model from rows that are all here: there is nobody to hide them from, and
    nobody to lose."""
    nobody: dict[str, object] = {"parties": [], "keyholder": None, "keyholder_rows": True}
    return terms.changed(protection="plain", on_loss="wait", quorum=None, **nobody)


@dataclass(frozen=True)
class HeldOut:
    """Rows to compare models on, as the terms read them, levels of target means as buckets: float32 [rows,
    features], [rows] (or [2, rows]), [rows], [rows]."""

    features: Float32
    label: Float32
    weight: Float32
    base_margin: Float32 | None

    @classmethod
    def from_shard(cls, shard: Shard) -> "HeldOut":
        """The rows of a shard."""
        features = np.column_stack([column[:] for column in shard.columns])
        return cls(features, shard.label, shard.weight, shard.base_margin)

    def sums(
        self, model: Trained, names: tuple[str, ...], groups: Sequence[Any] = (slice(None),)
    ) -> tuple[Int64, Scale]:
        """Sums of the metrics over each group of rows, int64 [groups, cells], and the scale of weights: sums
        of groups add, and `metrics.values` makes the metrics of them."""
        return self.sums_of(margins_of(model, self), model.terms, names, groups)

    def sums_of(
        self, margin: Float64, terms: Terms, names: tuple[str, ...], groups: Sequence[Any] = (slice(None),)
    ) -> tuple[Int64, Scale]:
        """The same of margins: float64 [rows], or [outputs, rows]."""
        loss, heaviest = terms.objective.loss, float(self.weight.max(initial=0.0))
        known = terms.known_weight_scale
        scale = known or Scale(int(np.frexp(heaviest)[1]), _WEIGHT_BITS)

        def sums_of(rows: Any) -> Int64:
            margins = np.ascontiguousarray(margin[..., rows])
            return metrics.sums(names, loss, margins, self.label[..., rows], self.weight[rows], scale)

        return np.array([sums_of(rows) for rows in groups]), scale


def score(model: Trained, rows: HeldOut, names: tuple[str, ...]) -> dict[str, float]:
    """Return metric name to its value on these rows."""
    return score_of(margins_of(model, rows), model.terms, rows, names)


def margins_of(model: Trained, rows: HeldOut) -> Float64:
    """The margins of a model: float64 [rows], or [outputs, rows]. Each model has its own means of levels."""
    schema, features = model.terms.columns, rows.features
    if schema.target_means:
        features = features.copy()
        for place, means in enumerate(model.booster.target_means.values(), len(schema.numeric)):
            features[:, place] = means.of_buckets(features[:, place])
    return model.booster.margins(features, rows.base_margin)


def score_of(margin: Float64, terms: Terms, rows: HeldOut, names: tuple[str, ...]) -> dict[str, float]:
    """The same of margins: float64 [rows], or [outputs, rows]."""
    (total,), scale = rows.sums_of(margin, terms, names)
    return metrics.values(names, total, scale)
