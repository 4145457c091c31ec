"""Compile all kernels ahead: for images, and for accounts that cannot write.

Promises: after `compile_all` the kernels of trainings, predictions and explanations are found compiled, with
every objective and protection that is installed; after `compile_usual` those of most trainings.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedboost.errors import ConfigError
from fedboost.gbdt.binned import MIN_SPARSE_FEATURES
from fedboost.gbdt.objectives.objective import LabelKind
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.gbdt.partition import SHARED
from fedboost.kernel_cache import COMPILING, folders, unready
from fedboost.privacy.protections import scheme_of
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.local.simulation import predict_jointly, simulate
from fedboost.runtime.model import Model
from fedboost.terms.terms import Terms

ROWS = 240
PARTIES = 3
KEY_BITS = 2048
"""The shortest that is taken: kernels are the same for all."""
RARE = [f"rare {number}" for number in range(MIN_SPARSE_FEATURES)]
"""Columns that are mostly 0."""
_SMALL = {"rounds": 2, "max_depth": 3, "max_bin": 16}
_FEATURES = {"numeric": ["age", "dose"], "categorical": {"ward": ["a", "b", "c", "d", "e"]}}
_LABELS: dict[LabelKind, dict[str, Any]] = {
    LabelKind.INTERVAL: {"label": "days", "label_upper_bound": "until"},
    LabelKind.RELEVANCE: {"label": "classes", "group": "query"},
}
_OTHERS: tuple[dict[str, Any], ...] = (
    {"protection": "plain"},
    {"vote_top_k": 1},
    {"validation_fraction": 0.25, "eval_metric": ["logloss", "error", "auc", "aucpr"]},
    {"subsample": 0.5, "sampling_method": "gradient_based", "colsample_bynode": 0.5},
    {"subsample": 0.5, "sampling_method": "bootstrap"},
    {"grow_policy": "lossguide", "max_leaves": 4, "max_cat_to_onehot": 256},
)


def compile_all() -> Path:
    """Compile every kernel, by small trainings; return the folder that they are kept in."""
    table = _table()
    for settings in _trainings():
        model = simulate(Terms.read(settings), [table] * PARTIES).model
        model.predict(table)
    numeric = _settings(
        "binary:logistic", protection="plain", columns={"numeric": ["dose"], "label": "benign"}
    )
    simulate(Terms.read(numeric), [_sparse(table)])
    for apart in _by_columns():
        tables = {"own": table, "other": table}
        parts = simulate(Terms.read(apart), tables).party_models
        predict_jointly(parts, tables, min_common_rows=1)
    model = _of_many_rows(table)
    model.shap_values(table)
    model.partial_dependence(table, "age")
    if ready := unready():
        ready.touch()
    if (folder := folders().write) is None:
        raise ConfigError(f"the kernels are compiled, and cannot be kept: {folders().reasons}")
    return folder


def compile_usual(say: Callable[[str], None]) -> None:
    """Compile what most trainings need, unless that was done on this machine. say: takes a line before it
    begins, and one after."""
    if (ready := unready()) is None:
        return
    start = time.perf_counter()
    say(COMPILING)
    table = _table()
    for name in ("binary:logistic", "reg:squarederror", "multi:softprob"):
        simulate(Terms.read(_settings(name)), [table] * PARTIES).model.predict(table)
    _of_many_rows(table)
    ready.touch()
    say(f"kernels are compiled, in {time.perf_counter() - start:.0f} s")


def _of_many_rows(table: pa.Table) -> Model:
    """Train with so many rows that threads share their splits; return a model of these ones."""
    terms = Terms.read(_settings("binary:logistic", protection="plain"))
    simulate(terms, [table.take(np.arange(SHARED) % ROWS)], nthread=2)
    return simulate(terms, [table]).model


def _trainings() -> Iterator[dict[str, Any]]:
    for name in OBJECTIVES:
        yield _settings(name)
    for other in _OTHERS:
        yield _settings("binary:logistic", **other)
    yield _settings("reg:squarederror", columns={**_FEATURES, "label": "days", "weight": "weight"})
    yield _settings("binary:logistic", columns={"numeric": ["age", *RARE], "label": "benign"})
    ranges = {"age": [-4, 4], "dose": [0, 1]}
    for method in ("additive", "hist"):
        noisy = {"columns": {**_FEATURES, "ranges": ranges, "label": "benign"}, "protection": "masked"}
        yield {**noisy, "rounds": 2, "noise": {"epsilon": 8.0, "delta": 1e-6, "method": method}}


def _by_columns() -> Iterator[dict[str, Any]]:
    """Trainings of parties with different columns; one of encrypted rows, where its extra is installed."""
    held = {**_FEATURES, "label": "benign", "row_id": "id", "held": {"other": ["dose", "ward"]}}
    who = {"label_holder": "own", "min_common_rows": 1, "model": "parties", "columns": held}
    yield _settings("binary:logistic", protection="plain", **who)
    yield _settings("binary:logistic", protection="plain", min_rows_per_bin=2, **who)
    try:
        scheme_of("paillier")
    except ConfigError:
        return
    yield _settings("binary:logistic", protection="paillier", key_bits=KEY_BITS, **who)


def _settings(objective: str, **settings: Any) -> dict[str, Any]:
    kind = OBJECTIVES[objective].label_kind
    label = {"label": "classes" if objective == "multi:softprob" else "benign"}
    if kind is not LabelKind.CLASS:
        label = _LABELS.get(kind, {"label": "days"})
    own: dict[str, dict[str, Any]] = {
        "multi:softprob": {"num_class": 3},
        "reg:quantileerror": {"quantile_alpha": 0.5},
    }
    columns = {"columns": {**_FEATURES, **label}}
    return {"objective": objective, **_SMALL, **own.get(objective, {}), **columns, **settings}


def _table() -> pa.Table:
    """Return rows with missing values, columns that are mostly 0, levels, and a label of each kind."""
    draw = np.random.default_rng(0)
    age, dose = draw.normal(size=ROWS), draw.random(ROWS)
    days = draw.exponential(1, ROWS) + 0.1
    return pa.table(
        {
            "age": pa.array(np.where(draw.random(ROWS) < 0.1, np.nan, age), from_pandas=True),
            "dose": dose,
            "ward": np.array(list("abcde"))[draw.integers(0, 5, ROWS)],
            "benign": draw.integers(0, 2, ROWS),
            "classes": draw.integers(0, 3, ROWS),
            "days": days,
            "until": np.where(draw.random(ROWS) < 0.3, np.inf, days),
            "query": draw.integers(0, 12, ROWS),
            "id": np.arange(ROWS),
            "weight": draw.random(ROWS),
            **{name: np.where(draw.random(ROWS) < 0.97, 0.0, dose) for name in RARE},
        }
    )


def _sparse(table: pa.Table) -> SparseTable:
    """The labels, and one column of which only the values that are not 0 are kept."""
    values = table["dose"].to_numpy().astype(np.float32)
    rows = np.flatnonzero(values)
    return SparseTable(
        ROWS, table.select(["benign"]), ("dose",), np.array([0, rows.size]), rows, values[rows]
    )
