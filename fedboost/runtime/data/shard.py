"""Converts a site's table to a `Shard` (its rows as float32 columns), and row ids to bytes.

Row ids are used to match the rows of parties that hold different columns. Therefore, equal ids give equal
bytes at every party, whether they are stored as integers or text, in memory, CSV or Parquet. Text is
NFC-normalised and stripped of surrounding whitespace. An integer becomes its decimal digits, and so does text
that consists of digits after an optional minus sign; leading zeros are dropped, as CSV readers drop them. A
date becomes YYYY-MM-DD. Several id columns are joined by U+001F. The id form `digits` keeps only the digits 0
to 9 of each column and drops leading zeros; `lower` casefolds the text and NFC-normalises it again.

Raises:
    ConfigError: ids have another type (floats with a fraction, timestamps, booleans), are missing or empty,
        contain U+001F, or are repeated where they must be unique. Messages give counts but no values.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
from pyarrow import types

from fedboost.errors import ConfigError, Refused, SchemaMismatch, quoted
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt import sampling
from fedboost.gbdt.binned import Allocator, allocate_in_memory
from fedboost.gbdt.objectives.objective import MAX_LABEL
from fedboost.gbdt.target_means import NO_MEANS, TargetMeans
from fedboost.holders.shard import Ranges, Shard, places_of
from fedboost.privacy.noise import randomise_labels
from fedboost.runtime.data.parquet import ParquetColumn, ParquetTable
from fedboost.runtime.data.table import Table, dense_of, in_file, parts_of
from fedboost.runtime.data.text import SparseTable
from fedboost.runtime.data.values import (
    UNKNOWN,
    BadRow,
    Rows,
    buckets_of,
    codes_of,
    column_of,
    declared_codes,
    finite,
    give_back,
    is_text,
    kind_of,
    listing,
    means_of,
    missing_column,
    numbers,
    plain,
    refuse,
    refuse_missing,
    spelled_as,
    texts,
)
from fedboost.terms.columns import Schema
from fedboost.terms.tasks import class_names, have_folds
from fedboost.terms.terms import Terms

SEPARATOR = "\x1f"  # separates the columns of an id
_WHOLE = re.compile(r"-?[0-9]+")
_NO_DIGITS = re.compile(r"[^0-9]+")
FORMS: dict[str, Callable[[str], str]] = {
    "digits": lambda text: _NO_DIGITS.sub("", text),
    "lower": lambda text: normalize("NFC", text.casefold()),
}
"""Id form -> function that converts NFC-normalised, stripped text to this form."""


def ids_of(table: "Table", names: Sequence[str], form: str | None) -> list[bytes]:
    """Return the id of each row as UTF-8 bytes, in row order. Takes about one second per million rows and id
    column.

    Args:
        names: the columns that together form the id.
        form: id form, a key of `FORMS`, or None.

    Raises:
        ConfigError: the form is unknown, or a column cannot be used as an id.
    """
    if form is not None and form not in FORMS:
        raise ConfigError(
            "table-id-form", f"id form {form!r} is unknown; use one of {', '.join(FORMS)}, or omit it"
        )
    columns = [_column(table, name, form) for name in names]
    joined = columns[0] if len(columns) == 1 else map(SEPARATOR.join, zip(*columns, strict=True))
    return [text.encode() for text in joined]


def check_distinct(ids: Sequence[bytes], what: str, instead: str = "") -> None:
    """Raise ConfigError with the number of repeated ids if the ids are not unique. what: name of the ids in
    the message; instead: other advice that the message gives after 'keep one row per id'."""
    if len(set(ids)) == len(ids):
        return
    counts = [count for count in Counter(ids).values() if count > 1]
    advice = ", ".join(filter(None, ("must be unique", "so keep one row per id", instead)))
    several = "1 id occurs" if len(counts) == 1 else f"{len(counts):,} ids occur"
    raise ConfigError("table-id-repeated", f"{what} {advice}", f"{several} in {sum(counts):,} rows")


def _column(table: "Table", name: str, form: str | None) -> list[str]:
    found: list[str] = []
    for part in parts_of(table, name):
        found += _texts(column_of(part, name), name, form)
    if missing := found.count(""):
        advice = f"has rows without {'digits' if form == 'digits' else 'a value'}; fill them in or drop them"
        raise ConfigError(
            "table-id-missing", f"id column {name!r} {advice}", f"{missing:,} of {len(found):,}"
        )
    if several := sum(SEPARATOR in text for text in found):
        reason = "contains the character U+001F, which is used to join id columns; remove it"
        raise ConfigError(
            "table-id-separator", f"id column {name!r} {reason}", f"{several:,} of {len(found):,}"
        )
    return found


def _texts(column: "pa.ChunkedArray", name: str, form: str | None) -> list[str]:
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(kind) or types.is_date32(kind) or (types.is_decimal(kind) and kind.scale == 0):
        values = column.cast(kind).cast(pa.string())
        if form is None:
            return values.fill_null("").to_pylist()  # type: ignore[no-any-return]
    elif is_text(kind) or kind == pa.string_view() or types.is_null(kind):
        values = plain(column)
    else:
        advice = "but ids must be integers, text or dates; convert it to one of these"
        if types.is_floating(kind):
            advice = "which allows fractions (often because of a missing value); convert it to integers"
        raise ConfigError("table-id-type", f"id column {name!r} has type {kind_of(column)}, {advice}")
    shaped = FORMS.get(form or "", str)
    return [_whole(shaped(normalize("NFC", text).strip())) for text in values.fill_null("").to_pylist()]


def _whole(text: str) -> str:
    if not text.startswith(("0", "-")) or not _WHOLE.fullmatch(text):
        return text
    digits = text.lstrip("-0") or "0"
    return f"-{digits}" if text.startswith("-") and digits != "0" else digits


# ---- Tables (CSV, Parquet, Arrow, pandas) to the float32 columns of the terms ---------------------------
# Every array is new, contiguous and writable; the table is not changed. A column of target means becomes the
# buckets of its levels, or with an existing model, its means.
# Errors name the column, the row (the first data row is row 1) and the value. Other parties learn only which
# column is missing, or that the rows do not fit: everything else is only in `detail`.
# Missing values are nulls, NaN and undeclared categories; in text, also the empty string; in text read as
# numbers, also NA, NaN, null and ?; in CSV files, also pyarrow's nulls (NA, N/A, NULL, ...).


Reader = Callable[["pa.Table"], Float32]
# For rows without labels: another party has the labels, or they are predicted.
NO_LABELS = np.zeros(0, np.float32)
_NAMED_LABELS = {
    "positive": "; set positive under [columns] to the label value that counts as 1",
    "classes": "; set classes under [columns] to the list of label values",
}
"""Key under [columns] that defines the label values -> advice about an unsuitable label."""


def to_shard(table: "Table", terms: Terms, site: str, ranges: Ranges | None = None) -> Shard:
    """Read the label, weights, base margins and features that the terms name from a site's table, as float32.

    A category that the terms do not declare counts as missing, or as `UNKNOWN` if the task counts values.

    Args:
        ranges: row ranges of `table` within the party's whole table, if `table` has only some of its rows.

    Raises:
        Refused: a column is missing.
        SchemaMismatch: the values do not fit the terms. The public message is the same for every cause, so
            that it reveals nothing about the rows.
    """
    schema = terms.blocks.columns_of(site)
    for fault in column_faults(table, schema, "" if terms.blocks else site):
        raise Refused(fault.code, f"party {site}: {fault.public}", fault.detail)
    try:
        return _shard(table, terms, schema, site, ranges)
    except ConfigError as error:
        if isinstance(error, BadRow) and ranges is not None:
            error = error.at(int(places_of(ranges)[error.row]))
        refusal = f"party {site}: its rows do not fit the terms"
        raise SchemaMismatch("table-misfit", refusal, str(in_file(error, dense_of(table)))) from None


def column_faults(table: "Table", schema: Schema, site: str = "") -> Iterator[ConfigError]:
    """Yield an error for each column that the schema names but the table lacks. For a sparse table, also
    yield an error if the schema has categorical columns. site: name of a party whose lack of features the
    terms could declare, or ''."""
    dense, wanted = dense_of(table), {*schema.others, *schema.features}
    there = dense.column_names
    sparse = set[str]()
    if isinstance(table, SparseTable):
        sparse = {name for name in schema.features if table.column(name) is not None}
    if isinstance(table, SparseTable) and (names := (*schema.target_means, *schema.categorical)):
        yield ConfigError(
            "table-sparse-categorical",
            f"column {names[0]!r} is categorical, but a sparse table has only numbers; use a dense table",
        )
    for name in (*schema.others, *(name for name in schema.features if name not in sparse)):
        if dense.schema.get_field_index(name) < 0:
            error, fix = missing_column(name, there, wanted), ""
            if site and name in schema.features:
                fix = f"; if {quoted(site)} does not have it, add it to columns.absent in the terms"
            yield ConfigError(error.code, f"{error.public}{fix}", error.detail)


def type_faults(table: "Table", schema: Schema) -> Iterator[ConfigError]:
    """Yield an error for each column whose type does not fit the schema. Only column types are checked, so
    the errors cannot depend on values."""
    dense = dense_of(table)
    for name in (*schema.numeric, *schema.target_means, *schema.categorical):
        if (index := dense.schema.get_field_index(name)) < 0:
            continue
        column = pa.chunked_array([pa.array([], dense.schema.field(index).type)])
        try:
            if name in schema.categorical or name in schema.target_means:
                texts(column, name)
            else:
                numbers(column, name)
        except ConfigError as error:
            yield error


def _shard(table: "Table", terms: Terms, schema: Schema, site: str, ranges: Ranges | None) -> Shard:
    if table.num_rows == 0:
        raise ConfigError("table-empty", "the table has no rows")
    keep, has_labels = partial(_whole_shard, table), bool(schema.label)
    labels = _labels(table, terms) if has_labels else NO_LABELS
    keys = validation = margins = group = None
    if has_labels and (terms.draws_rows or have_folds(terms)):
        row_id, places = terms.columns.row_id, places_of(ranges or ((0, table.num_rows),))
        keys = sampling.keys_of(site, places) if row_id is None else _keys_in(table, row_id, "row_id")
    if (name := schema.validation) is not None:
        validation = np.concatenate([_flags(part, name) for part in parts_of(table, name)])
    if schema.weight is None:
        weights: Float32 = _allocator(table)((table.num_rows,), np.dtype(np.float32))
        weights[:] = 1.0
    else:
        weights = keep(schema.weight, partial(_weight, name=schema.weight))
    if (name := schema.base_margin) is not None:
        margins = keep(name, partial(base_margin_of, name=name, terms=terms))
    columns = _features(table, dict(_readers(terms, schema)))
    if schema.features != (features := terms.blocks.columns_of(site, whole=True).features):
        absent: Float32 = _allocator(table)((table.num_rows,), np.dtype(np.float32))
        absent[:] = np.nan
        read = dict(zip(schema.features, columns, strict=True))
        columns = tuple(read.get(name, absent) for name in features)
    if schema.group is not None:
        group = _group(table, terms, weights, validation)
    subgroups = tuple(
        keep(name, partial(declared_codes, name=name, categories=levels))
        for name, levels in schema.subgroups.items()
    )
    ids = _ids(table, terms, site) if terms.vertical.aligns else None
    levels = tuple(_levels(table, name) for name in terms.evaluation.level_names)
    beside = keys, validation, margins, group, ids, subgroups, ranges, levels
    return Shard(columns, labels, weights, _allocator(table), *beside)


def _levels(table: "Table", name: str) -> tuple[Int64, tuple[str, ...]]:
    """Return the index of each row's level, int64 [rows] (-1 if missing), and the levels of a column."""
    places, parts = dict[str, int](), []
    for part in parts_of(table, name):
        codes, levels = texts(column_of(part, name), name)
        parts.append(np.array([*(places.setdefault(level, len(places)) for level in levels), -1])[codes])
    return np.concatenate(parts), tuple(places)


def _readers(terms: Terms, schema: Schema) -> Iterator[tuple[str, Reader]]:
    """Yield the name of each feature and the function that reads it. Columns with target means are read as
    hash buckets if the task trains a model, otherwise as the means in the model."""
    for name in schema.numeric:
        yield name, partial(finite, name=name)
    for name, buckets in schema.target_means.items():
        if terms.task.trains:
            yield name, partial(buckets_of, name=name, buckets=buckets)
        else:
            assert terms.earlier is not None
            yield name, partial(means_of, name=name, means=terms.earlier.target_means[name])
    codes = codes_of if terms.task.counts_values else declared_codes
    for name, categories in schema.categorical.items():
        yield name, partial(codes, name=name, categories=categories)


def _features(table: "Table", readers: Mapping[str, Reader]) -> tuple[Any, ...]:
    """Read the feature columns. The columns of a file-backed table stay in its files, unless the table keeps
    its feature values in memory."""
    if isinstance(table, SparseTable):
        return tuple(table.column(name) or read(table.dense) for name, read in readers.items())
    stored: list[ParquetColumn] = []
    if isinstance(table, ParquetTable):
        stored = [ParquetColumn(table, name, read) for name, read in readers.items()]
        if not table.in_memory:
            for column in stored:
                column.check()
            return tuple(stored)
    # A single block, which can be returned to the system.
    values = np.empty((len(readers), table.num_rows), np.float32)
    for number, read in enumerate(readers.values()):
        if stored:
            stored[number].read_into(values[number])
        else:
            values[number] = read(table)
    give_back()
    return tuple(values)


def _allocator(table: "Table") -> Allocator:
    return table.allocate if isinstance(table, ParquetTable) else allocate_in_memory


def rows_to_predict(table: "Table", terms: Terms) -> int:
    """Return the number of rows that the label holder matches by id: all rows, or one row per distinct id if
    the terms allow repeated ids."""
    name, vertical = terms.columns.row_id, terms.vertical
    if not vertical.repeated_ids or name is None:
        return int(table.num_rows)
    return len(set(ids_of(table, [name], vertical.id_form)))


def _ids(table: "Table", terms: Terms, site: str) -> list[bytes]:
    """Return a party's row ids. Raises ConfigError if ids are repeated, unless the party is the label holder
    and the terms allow repeated ids."""
    name = terms.columns.row_id
    assert name is not None
    ids = ids_of(table, [name], terms.vertical.id_form)
    has_labels = terms.blocks.has_labels(site)
    if not (has_labels and terms.vertical.repeated_ids):
        may = has_labels and terms.task.trains  # other tasks use the ids from training
        check_distinct(ids, f"row_id {name!r}", "or set repeated_ids = true in the terms" if may else "")
    return ids


def _keys_in(table: "Table", name: str, what: str) -> sampling.Keys:
    """Return the sampling key of each row, which is a hash of its text in a column. Raises BadRow if a row
    has no text. what: name of the column's role, for the message."""
    parts = []
    for part in parts_of(table, name):
        codes, distinct = texts(column_of(part, name), name)
        refuse_missing(codes < 0, f"{what} {name!r}")
        parts.append(np.array([sampling.key_of(text) for text in distinct], np.uint64)[codes])
    return np.concatenate(parts)


def _group(table: "Table", terms: Terms, weight: Float32, validation: Rows | None) -> sampling.Keys:
    """Return the sampling key of each row's group. Raises ConfigError unless all rows of a group have the
    same weight and belong to either training or validation."""
    name = terms.columns.group
    assert name is not None
    keys = _keys_in(table, name, "group")
    _, begins, group = np.unique(keys, return_index=True, return_inverse=True)
    for column, values in ((terms.columns.weight, weight), (terms.columns.validation, validation)):
        if column is None or values is None:
            continue
        differs = values != values[begins[group]]
        if differs.any():
            row = int(np.argmax(differs))
            where = f"row {row + 1} differs from row {begins[group[row]] + 1} of the same group"
            raise ConfigError(
                "table-group-differs",
                f"column {column!r} differs within a group of {name!r}; use one value per group",
                where,
            )
    return keys


def _flags(table: "pa.Table", name: str) -> Rows:
    """Read a column of 0 and 1, or of booleans, as bool [rows]."""
    values = plain(column_of(table, name))
    if types.is_boolean(values.type):
        refuse_missing(np.array(values.is_null()), f"validation {name!r}")
        flags: Rows = np.array(values, np.bool_)
        return flags
    flag = numbers(values, name)
    refuse_missing(np.isnan(flag), f"validation {name!r}")
    refuse(table, name, (flag != 0.0) & (flag != 1.0), "must contain only 0 and 1, or false and true")
    return np.equal(flag, 1.0)


def _labels(table: "Table", terms: Terms) -> Float32:
    """Return the labels, float32 [rows], or their lower and upper bounds, float32 [2, rows]."""
    name, upper = terms.columns.label, terms.columns.label_upper_bound
    if upper is None:
        read: Reader = partial(_class if terms.columns.classes else _label, terms=terms)
        if terms.columns.positive is not None:
            read = partial(_positive, terms=terms, labels=label_values(table, terms))
        return _whole_shard(table, name, read)
    bounds = [
        _whole_shard(table, name, partial(_present, name=name, what="label")),
        _whole_shard(table, upper, partial(_end, name=upper)),
    ]
    out: Float32 = _allocator(table)((2, table.num_rows), np.dtype(np.float32))
    out[:] = bounds
    invalid = terms.objective.loss.first_invalid_label(out)
    if invalid:
        row, takes = invalid
        raise ConfigError(
            "table-label-invalid",
            f"columns {name!r} and {upper!r} have an invalid label: {terms.objective.name} takes {takes}",
            f"their values are {out[0, row]:g} and {out[1, row]:g} in row {row + 1}",
        )
    return out


def _whole_shard(table: "Table", name: str, read: Reader) -> Float32:
    """Return all values of a column, in memory or, for a file-backed table, in its scratch folder."""
    return (
        ParquetColumn(table, name, read).kept() if isinstance(table, ParquetTable) else read(dense_of(table))
    )


def _present(table: "pa.Table", name: str, what: str) -> Float32:
    values = finite(table, name)
    refuse_missing(np.isnan(values), f"{what} {name!r}")
    return values


def _end(table: "pa.Table", name: str) -> Float32:
    """Return the upper bounds of the labels, float32 [rows]. A missing bound is infinite."""
    bound = numbers(column_of(table, name), name)
    return np.where(np.isnan(bound), np.float32(np.inf), bound)


def label_values(table: "Table", terms: Terms) -> tuple[str, ...]:
    """Return the distinct values of the label, or () if the terms do not set `positive`."""
    labels: dict[str, None] = {}
    if terms.columns.positive is not None:
        for part in parts_of(table, terms.columns.label):
            labels |= dict.fromkeys(texts(part.column(terms.columns.label), terms.columns.label)[1])
    return tuple(labels)


def _label(table: "pa.Table", terms: Terms) -> Float32:
    name = terms.columns.label
    hint = _NAMED_LABELS.get(terms.objective.loss.xgboost_equivalent.classes_key or "", "")
    try:
        label = finite(table, name)
    except ConfigError as error:
        text = is_text(plain(table.column(name)).type)
        raise ConfigError(error.code, f"label {error.public}{hint if text else ''}", error.detail) from None
    refuse_missing(np.isnan(label), f"label {name!r}")
    invalid = terms.objective.loss.first_invalid_label(label)
    if invalid:
        rows = np.arange(label.size) == invalid[0]
        refuse(table, name, rows, f"has an invalid label: {terms.objective.name} takes {invalid[1]}{hint}")
    return label


def _class(table: "pa.Table", terms: Terms) -> Float32:
    name, classes = terms.columns.label, terms.columns.classes
    label = codes_of(table, name, classes)
    refuse_missing(np.isnan(label), f"label {name!r}")
    reason = f"is the label, but has a value that is not in columns.classes ({listing(classes)})"
    refuse(table, name, label == UNKNOWN, f"{reason}; add the value there, or drop these rows")
    return label


def _positive(table: "pa.Table", terms: Terms, labels: Sequence[str]) -> Float32:
    """Return 1 for each row with the positive label and 0 for other rows, float32 [rows]. labels: distinct
    labels in the whole table."""
    name, positive = terms.columns.label, terms.columns.positive
    assert positive is not None
    codes, distinct = texts(table.column(name), name)
    refuse_missing(codes < 0, f"label {name!r}")
    check_labels(name, labels)
    positive_text = spelled_as(table.column(name), positive)
    if positive_text not in labels and len(labels) == 2:
        raise ConfigError(
            "table-label-positive",
            f"positive = {positive!r} is not one of the values of label {name!r}",
            listing(labels),
        )
    code = distinct.index(positive_text) if positive_text in distinct else len(distinct)
    return np.equal(codes, code).astype(np.float32)


def check_labels(name: str, labels: Sequence[str]) -> None:
    if len(labels) > 2:
        raise ConfigError(
            "table-label-values", f"label {name!r} must have two values, but has more", listing(labels)
        )


def _weight(table: "pa.Table", name: str) -> Float32:
    weight = _present(table, name, "weight")
    refuse(table, name, weight < 0.0, "has a negative weight")
    extreme = (weight > MAX_LABEL) | ((weight > 0.0) & (weight < 1.0 / MAX_LABEL))
    refuse(table, name, extreme, "has a weight that is above 2**60, or below 2**-60 but not 0")
    return weight


def base_margin_of(table: "pa.Table", name: str, terms: Terms) -> Float32:
    margin = _present(table, name, "base margin")
    beyond = np.abs(terms.objective.loss.predict(margin.astype(np.float64))) > MAX_LABEL
    refuse(table, name, beyond, "has a base margin that corresponds to a prediction above 2**60")
    return margin


# ---- Features of rows to predict, and counts of categories and labels -----------------------------------


def to_features(
    table: "pa.Table | SparseTable", schema: Schema, source: str, means: TargetMeans = NO_MEANS
) -> Float32:
    """Read the features of rows to predict, float32 [rows, features].

    Categories that the schema does not declare count as missing.

    Args:
        source: name of the table, as a prefix for error messages.
        means: the model's target means.

    Raises:
        ConfigError: a column is missing or has an unsuitable type or value.
    """
    with _told(table, source):
        return features_of(table, schema, means)


@contextmanager
def _told(table: "pa.Table | SparseTable", source: str) -> Iterator[None]:
    """Context manager that prefixes errors with the source of the table. It also adds the line number if the
    table was read from a text file."""
    try:
        yield
    except ConfigError as error:
        error = in_file(error, dense_of(table))
        raise ConfigError(error.code, f"{source}: {error.public}", error.detail) from None


def features_of(table: "pa.Table | SparseTable", schema: Schema, means: TargetMeans = NO_MEANS) -> Float32:
    """Like `to_features`, but errors do not name the source of the table."""
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
    """Read the base margins of rows to predict, float32 [rows], or return None if the terms do not name a
    base margin column. source: name of the table, as a prefix for error messages."""
    if (name := terms.columns.base_margin) is None:
        return None
    with _told(table, source):
        return base_margin_of(dense_of(table), name, terms)


def undeclared(table: "Table", schema: Schema) -> Iterator[tuple[str, str, int]]:
    """Yield each column with values that the schema does not declare as categories: name of the column, one
    such value, and number of rows with such values."""
    known = {name: undeclared_levels(table, name, levels) for name, levels in schema.categorical.items()}
    for name, rows in known.items():
        if rows:
            yield name, next(iter(rows)), rows.total()


def undeclared_levels(table: "Table", name: str, categories: Sequence[str]) -> Counter[str]:
    """Return a column's values that are not in `categories`, with row counts, in order of appearance."""
    out: Counter[str] = Counter()
    for part in parts_of(table, name):
        strange = codes_of(part, name, categories) == UNKNOWN
        if strange.any():
            codes, distinct = texts(column_of(part, name), name)
            rows = np.bincount(codes[strange], minlength=len(distinct)).tolist()
            out.update({text: count for text, count in zip(distinct, rows, strict=True) if count})
    return out


def category_rows(table: "Table", schema: Schema) -> dict[str, dict[str, int]]:
    """Count the rows of each declared category. Returns column -> category -> number of rows."""
    out = {}
    for name, categories in schema.categorical.items():
        counts = np.zeros(len(categories), np.int64)
        for part in parts_of(table, name):
            codes = declared_codes(part, name, categories)
            counts += np.bincount(codes[np.isfinite(codes)].astype(np.int64), minlength=len(categories))
        out[name] = dict(zip(categories, counts.tolist(), strict=True))
    return out


def label_counts(label: Float32, terms: Terms) -> dict[str, int]:
    """Count the rows of each label value. Returns an empty dict unless the label has two values or classes.
    label: class codes, float32 [rows]."""
    if not class_names(terms):
        return {}
    codes, rows = np.unique(label, return_counts=True)
    rows_by_code = dict(zip(codes.tolist(), rows.tolist(), strict=True))
    return {value: rows_by_code.get(code, 0) for code, value in enumerate(class_names(terms))}


# ---- Label noise, added as the label holder's rows are read ---------------------------------------------
# Everything that is computed from these rows sees only the noisy labels.


LabelReader = Callable[[Terms], Shard]


def with_label_noise(read: LabelReader, party: str, key_of: Callable[[Terms], bytes]) -> LabelReader:
    """Wrap a reader of the label holder's rows so that it adds label noise if the terms require it.

    Args:
        read: function that reads the rows for given terms.
        key_of: returns the secret from which the noise is drawn. It must be the same in all sessions, so that
            the noise cannot be averaged away.
    """

    def read_noised(terms: Terms) -> Shard:
        shard, epsilon = read(terms), terms.vertical.label_epsilon
        if epsilon is None or not terms.task.reads_labels or not terms.blocks.has_labels(party):
            return shard
        assert shard.ids is not None
        classes = terms.objective.num_class or 2
        return replace(shard, label=randomise_labels(shard.label, shard.ids, classes, epsilon, key_of(terms)))

    return read_noised
