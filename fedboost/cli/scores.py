"""How good a model is on rows it was not trained on: the metrics of each round, on held-out rows.

Promises: a figure is the metric that training reports, of these rows.
Refuses: rows that do not fit the terms (Refused), a table of other sites than the terms name (ConfigError).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32, Float64, Int64, Scale
from fedboost.gbdt.metrics import by_set as metrics
from fedboost.gbdt.objectives.labels import LabelKind
from fedboost.protocol.terms import Terms
from fedboost.runtime.data.draft import split_by_site
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.values import listing
from fedboost.runtime.model_file import Model

_SHOWN_OF_CLASSES = 3
_WEIGHT_BITS = 24


def shown_metrics(terms: Terms) -> tuple[str, ...]:
    """The metrics that models under these terms are compared by, the one that decides first."""
    equivalent = terms.loss.xgboost_equivalent
    of_classes = equivalent.label_kind is LabelKind.CLASS
    return terms.eval_metric or (equivalent.metrics[:_SHOWN_OF_CLASSES] if of_classes else terms.metrics)


def unprotected(terms: Terms) -> Terms:
    """The same model from rows that are all here: there is nobody to hide them from, and nobody to lose."""
    nobody: dict[str, object] = {"parties": [], "keyholder": None, "keyholder_rows": True}
    return terms.changed(protection="plain", on_loss="wait", quorum=None, **nobody)


def rows_of_sites(terms: Terms, terms_file: Path, table: Any, data: Path, column: str) -> dict[str, Any]:
    """Each site's rows by the column that names it. ConfigError if the terms name other parties."""
    if isinstance(table, SparseTable):
        raise ConfigError(f"{data}: a sparse table has no column of names; give a .csv, .tsv or .parquet")
    sites = split_by_site(table, column)
    if terms.parties and set(terms.parties) != set(sites):
        raise ConfigError(
            f"{terms_file} names the parties {listing(sorted(terms.parties))}, column {column!r} of {data} "
            f"names {listing(list(sites))}"
        )
    return sites


@dataclass(frozen=True)
class HeldOut:
    """Rows to compare models on, as the terms read them: float32 [rows, features], [rows] (or [2, rows]),
    [rows], [rows]."""

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
            return metrics.sums(names, loss, some, self.label[..., rows], self.weight[rows], scale)

        return np.array([of(rows) for rows in groups]), scale


def score(model: Model, rows: HeldOut, names: tuple[str, ...]) -> dict[str, float]:
    """Metric name to its value on these rows."""
    (total,), scale = rows.sums(model, names)
    return metrics.values(names, total, scale)
