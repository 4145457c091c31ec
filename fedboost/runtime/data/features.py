"""Features of rows to predict, and counts of categories and labels."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32
from fedboost.gbdt.target_means import NO_MEANS, TargetMeans
from fedboost.runtime.data.lines import in_file
from fedboost.runtime.data.sparse import SparseTable
from fedboost.terms.columns import Schema
from fedboost.terms.tasks import class_names
from fedboost.terms.terms import Terms

if TYPE_CHECKING:  # pyarrow takes a while to import, and most commands need no table
    import pyarrow as pa
from fedboost.runtime.data.shard import base_margin_of
from fedboost.runtime.data.table import Table, dense_of, parts_of
from fedboost.runtime.data.values import UNKNOWN, codes_of, column_of, declared_codes, finite, means_of, texts


def to_features(
    table: "pa.Table | SparseTable", schema: Schema, source: str, means: TargetMeans = NO_MEANS
) -> Float32:
    """The features of rows to predict: float32 [rows, features]. A category the schema does not declare
    counts as missing. means: those of the model, where it has target means. Raises ConfigError that begins
    with `source`."""
    try:
        return features_of(table, schema, means)
    except ConfigError as error:
        error = in_file(error, dense_of(table))
        raise ConfigError(f"{source}: {error.public}", error.detail) from None


def features_of(table: "pa.Table | SparseTable", schema: Schema, means: TargetMeans = NO_MEANS) -> Float32:
    """The features of rows to predict: float32 [rows, features]. means: as for `to_features`. Raises
    ConfigError."""
    out = np.empty((table.num_rows, len(schema.features)), np.float32)
    for column, name in enumerate(schema.numeric):
        sparse = table.column(name) if isinstance(table, SparseTable) else None
        out[:, column] = finite(dense_of(table), name) if sparse is None else sparse[:]
    for column, name in enumerate(schema.target_means, len(schema.numeric)):
        out[:, column] = means_of(dense_of(table), name, means[name])
    for column, (name, categories) in enumerate(schema.categorical.items(), len(schema.ordered)):
        out[:, column] = declared_codes(dense_of(table), name, categories)
    return out


def to_base_margin(table: "pa.Table | SparseTable", terms: Terms, source: str) -> Float32 | None:
    """The base margins of rows to predict, float32 [rows], if the terms name a column of them. Raises
    ConfigError that begins with `source`."""
    name = terms.columns.base_margin
    if name is None:
        return None
    try:
        return base_margin_of(dense_of(table), name, terms)
    except ConfigError as error:
        error = in_file(error, dense_of(table))
        raise ConfigError(f"{source}: {error.public}", error.detail) from None


def undeclared(table: "Table", schema: Schema) -> Iterator[tuple[str, str, int]]:
    """Each categorical column with categories the schema does not declare: its name, one of them, the number
    of rows that have one. Raises ConfigError."""
    example: dict[str, str] = {}
    rows: Counter[str] = Counter()
    for name, categories in schema.categorical.items():
        for part in parts_of(table, name):
            strange = codes_of(part, name, categories) == UNKNOWN
            if strange.any():
                codes, distinct = texts(column_of(part, name), name)
                example.setdefault(name, distinct[codes[np.argmax(strange)]])
                rows[name] += int(strange.sum())
    for name, category in example.items():
        yield name, category, rows[name]


def category_rows(table: "Table", schema: Schema) -> dict[str, dict[str, int]]:
    """The rows that have each declared category, for each categorical column. Raises ConfigError."""
    counts = {name: np.zeros(len(categories), np.int64) for name, categories in schema.categorical.items()}
    for name, categories in schema.categorical.items():
        for part in parts_of(table, name):
            codes = codes_of(part, name, categories)
            declared = codes[np.isfinite(codes) & (codes != UNKNOWN)].astype(np.int64)
            counts[name] += np.bincount(declared, minlength=len(categories))
    return {
        name: dict(zip(categories, map(int, counts[name]), strict=True))
        for name, categories in schema.categorical.items()
    }


def label_counts(label: Float32, terms: Terms) -> dict[str, int]:
    """The rows that have each value of a label of two values or of classes; nothing for other labels."""
    if not class_names(terms):
        return {}
    codes, rows = np.unique(label, return_counts=True)
    rows_by_code = dict(zip(codes.tolist(), rows.tolist(), strict=True))
    return {value: rows_by_code.get(code, 0) for code, value in enumerate(class_names(terms))}
