"""The rows of a table as a shard, and their ids as bytes that are the same at every party.

Promises: an id is the same bytes whether a column has it as whole number or as text, in memory, in CSV or in
Parquet. Text is NFC without the spaces around it; a whole number is its decimal digits; a text of digits
alone, with a minus or without, counts as that number, so leading zeros are off (readers of CSV drop them
before fedboost sees them); a date is YYYY-MM-DD, as its text is. Several columns are joined by U+001F. Form
`digits` keeps the digits 0 to 9 of each, and drops leading zeros, too; `lower` is casefold, then NFC again.
Refuses: columns of other types (numbers with a fraction, points in time, booleans), ids that are missing or
empty, that have U+001F, that stand in two rows where they must not: ConfigError with counts, never with a
value.
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

from fedboost.errors import ConfigError, Refused, SchemaMismatch
from fedboost.fixedpoint import Float32
from fedboost.gbdt import sampling
from fedboost.gbdt.binned import Allocator, allocate_in_memory
from fedboost.gbdt.objectives.objective import MAX_LABEL
from fedboost.gbdt.target_means import NO_MEANS, TargetMeans
from fedboost.holders.shard import Ranges, Shard, places_of
from fedboost.privacy.noise import noised
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
from fedboost.terms.tasks import class_names
from fedboost.terms.terms import Terms, have_folds

SEPARATOR = "\x1f"
"""Between the columns of an id."""
_WHOLE = re.compile(r"-?[0-9]+")
_NO_DIGITS = re.compile(r"[^0-9]+")
FORMS: dict[str, Callable[[str], str]] = {
    "digits": lambda text: _NO_DIGITS.sub("", text),
    "lower": lambda text: normalize("NFC", text.casefold()),
}
"""What is made of a text that is NFC and without spaces around it."""


def ids_of(table: "Table", names: Sequence[str], form: str | None) -> list[bytes]:
    """The id of each row, UTF-8, from the columns of these names in this order. form: None or one of FORMS.
    About 1 s for a million rows of a column."""
    if form is not None and form not in FORMS:
        raise ConfigError(f"ids have no form {form!r}: it is one of {', '.join(FORMS)}, or none")
    columns = [_column(table, name, form) for name in names]
    joined = columns[0] if len(columns) == 1 else map(SEPARATOR.join, zip(*columns, strict=True))
    return [text.encode() for text in joined]


def check_distinct(ids: Sequence[bytes], what: str, instead: str = "") -> None:
    """ConfigError with how many ids stand in more than one row, if any do. what: names them there; instead:
    another way out than to keep one row of each."""
    if len(set(ids)) == len(ids):
        return
    counts = [count for count in Counter(ids).values() if count > 1]
    advice = ", ".join(filter(None, ("has ids in more than one row", "keep one row of each", instead)))
    several = "1 id stands" if len(counts) == 1 else f"{len(counts):,} ids stand"
    raise ConfigError(f"{what} {advice}", f"{several} in {sum(counts):,} rows")


def _column(table: "Table", name: str, form: str | None) -> list[str]:
    """The texts of a column; ConfigError if one is missing, or could be two."""
    found: list[str] = []
    for part in parts_of(table, name):
        found += _texts(column_of(part, name), name, form)
    if missing := found.count(""):
        advice = f"has rows without {'digits' if form == 'digits' else 'one'}, fill them in or drop them"
        raise ConfigError(f"id {name!r} {advice}", f"{missing:,} of {len(found):,}")
    if several := sum(SEPARATOR in text for text in found):
        reason = "has texts with U+001F, which stands between the columns of an id: take it out"
        raise ConfigError(f"id {name!r} {reason}", f"{several:,} of {len(found):,}")
    return found


def _texts(column: "pa.ChunkedArray", name: str, form: str | None) -> list[str]:
    """The text of each row; empty where it is missing."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(kind) or types.is_date32(kind) or (types.is_decimal(kind) and kind.scale == 0):
        values = column.cast(kind).cast(pa.string())
        if form is None:
            return values.fill_null("").to_pylist()  # type: ignore[no-any-return]
    elif is_text(kind) or kind == pa.string_view() or types.is_null(kind):
        values = plain(column)
    else:
        advice = "an id takes whole numbers, text or dates: make it one of these"
        if types.is_floating(kind):
            advice = "numbers with a fraction (often from a gap in the column): write whole numbers"
        raise ConfigError(f"id {name!r} is {kind_of(column)} here, {advice}")
    shaped = FORMS.get(form or "", str)
    return [_whole(shaped(normalize("NFC", text).strip())) for text in values.fill_null("").to_pylist()]


def _whole(text: str) -> str:
    """The text; without leading zeros where it is digits alone, with a minus or without."""
    if not text.startswith(("0", "-")) or not _WHOLE.fullmatch(text):
        return text
    digits = text.lstrip("-0") or "0"
    return f"-{digits}" if text.startswith("-") and digits != "0" else digits


# ---- Tables (CSV, Parquet, Arrow, pandas) to the float32 columns the terms want -------------------------
# Promises: the same value gives the same float32 whatever type holds it (numbers pass through float64,
# categories through their text); every array is new, contiguous and writable, and the table is not touched.
# Refuses: columns that are absent or of another type, infinite values, and labels or weights that are
# missing or out of range, each with the column, the row (the first data row is row 1) and the value. To the
# others a site says only which column is absent, or that its rows do not fit: all else stands in `detail`
# alone.
# A column of target means is the buckets of its levels, or of a model that is there, the means.
# What is missing: nulls and NaN everywhere; categories that are not declared; in text also the empty
# string; in text read as numbers also NA, NaN, null and ?; in CSV files also what pyarrow takes for null
# (NA, N/A, NULL, ...).


Reader = Callable[["pa.Table"], Float32]
NO_LABELS = np.zeros(0, np.float32)
"""Of rows that another party has the labels of, or that are predicted."""
_NAMED_LABELS = {
    "positive": "; set positive under [columns] to the label value that counts as 1",
    "classes": "; set classes under [columns] to the list of label values",
}
"""Advice about a label of other values than an objective takes, by the key that names those values."""


def to_shard(table: "Table", terms: Terms, site: str, ranges: Ranges | None = None) -> Shard:
    """The label, weight, base margin and features the terms name, as float32. A category the terms do not
    declare counts as missing, and is `UNKNOWN` where rows are described. ranges: the places of the rows in
    the whole table, if this is a share of it. Raises Refused with one line: for a column that is absent, and
    SchemaMismatch for all that depends on what the rows hold (a CSV file's types do, too)."""
    schema = terms.blocks.columns_of(site)
    for fault in column_faults(table, schema):
        raise Refused(f"party {site}: {fault.public}", fault.detail)
    try:
        return _shard(table, terms, schema, site, ranges)
    except ConfigError as error:
        if isinstance(error, BadRow) and ranges is not None:
            error = error.at(int(places_of(ranges)[error.row]))
        refusal = f"party {site}: its rows do not fit the terms"
        raise SchemaMismatch(refusal, str(in_file(error, dense_of(table)))) from None


def column_faults(table: "Table", schema: Schema) -> Iterator[ConfigError]:
    """The columns that are named and are not there, each as an error."""
    dense, wanted = dense_of(table), {*schema.others, *schema.features}
    there = dense.column_names
    sparse = set[str]()
    if isinstance(table, SparseTable):
        sparse = {name for name in schema.features if table.column(name) is not None}
    if isinstance(table, SparseTable) and (names := (*schema.target_means, *schema.categorical)):
        yield ConfigError(f"column {names[0]!r} is categorical: a sparse table has numbers alone")
    for name in (*schema.others, *(name for name in schema.features if name not in sparse)):
        if dense.schema.get_field_index(name) < 0:
            yield missing_column(name, there, wanted)


def type_faults(table: "Table", schema: Schema) -> Iterator[ConfigError]:
    """The columns that are there with a type that cannot be read as the terms say, each as an error: none
    that depends on a value, for they are read without their rows."""
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
        raise ConfigError("the table has no rows")
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
    if schema.group is not None:
        group = _group(table, terms, weights, validation)
    subgroups = tuple(
        keep(name, partial(declared_codes, name=name, categories=levels))
        for name, levels in schema.subgroups.items()
    )
    ids = _ids(table, terms, site) if terms.vertical.aligns else None
    beside = keys, validation, margins, group, ids, subgroups, ranges
    return Shard(columns, labels, weights, _allocator(table), *beside)


def _readers(terms: Terms, schema: Schema) -> Iterator[tuple[str, Reader]]:
    """The readers of the numbers of each feature. Levels of target means become buckets where a model is
    trained, else the means that the model has."""
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
    """The columns of features, by the readers of their numbers."""
    if isinstance(table, SparseTable):
        return tuple(table.column(name) or read(table.dense) for name, read in readers.items())
    stored: list[ParquetColumn] = []
    if isinstance(table, ParquetTable):
        stored = [ParquetColumn(table, name, read) for name, read in readers.items()]
        if not table.in_memory:
            for column in stored:
                column.check()
            return tuple(stored)
    values = np.empty((len(readers), table.num_rows), np.float32)  # one piece, which can be given back
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
    """How many rows of the label holder's table the other parties are asked about: all, or where they may
    have the same id as many as there are ids. ConfigError for ids that cannot be."""
    name, vertical = terms.columns.row_id, terms.vertical
    if not vertical.repeated_ids or name is None:
        return int(table.num_rows)
    return len(set(ids_of(table, [name], vertical.id_form)))


def _ids(table: "Table", terms: Terms, site: str) -> list[bytes]:
    """The ids by which rows are matched, distinct unless the terms let the label holder repeat them."""
    name = terms.columns.row_id
    assert name is not None
    ids = ids_of(table, [name], terms.vertical.id_form)
    has_labels = terms.blocks.has_labels(site)
    if not (has_labels and terms.vertical.repeated_ids):
        may = has_labels and terms.task.trains  # else they are those of the training
        check_distinct(ids, f"row_id {name!r}", "or set repeated_ids = true in the terms" if may else "")
    return ids


def _keys_in(table: "Table", name: str, what: str) -> sampling.Keys:
    """The key of the text in this column of each row."""
    parts = []
    for part in parts_of(table, name):
        codes, distinct = texts(column_of(part, name), name)
        refuse_missing(codes < 0, f"{what} {name!r}")
        parts.append(np.array([sampling.key_of(text) for text in distinct], np.uint64)[codes])
    return np.concatenate(parts)


def _group(table: "Table", terms: Terms, weight: Float32, validation: Rows | None) -> sampling.Keys:
    """The key of the group of each row. A group has one weight, and all or none of it are validation rows."""
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
            where = f"row {row + 1} differs from row {begins[group[row]] + 1}, of the same group"
            raise ConfigError(
                f"column {column!r} differs within a group of {name!r}: make it one value", where
            )
    return keys


def _flags(table: "pa.Table", name: str) -> Rows:
    """A column of 0 and 1, or of false and true."""
    values = plain(column_of(table, name))
    if types.is_boolean(values.type):
        refuse_missing(np.array(values.is_null()), f"validation {name!r}")
        flags: Rows = np.array(values, np.bool_)
        return flags
    flag = numbers(values, name)
    refuse_missing(np.isnan(flag), f"validation {name!r}")
    refuse(table, name, (flag != 0.0) & (flag != 1.0), "says neither 0 nor 1, false nor true")
    return np.equal(flag, 1.0)


def _labels(table: "Table", terms: Terms) -> Float32:
    """The label of each row, [rows], or its lower and its upper bound, [2, rows]."""
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
            f"columns {name!r} and {upper!r} are the label of {terms.objective.name}, which takes {takes}",
            f"they are {out[0, row]:g} and {out[1, row]:g} in row {row + 1}",
        )
    return out


def _whole_shard(table: "Table", name: str, read: Reader) -> Float32:
    """The values of a column that are kept in memory."""
    return (
        ParquetColumn(table, name, read).kept() if isinstance(table, ParquetTable) else read(dense_of(table))
    )


def _present(table: "pa.Table", name: str, what: str) -> Float32:
    """A column of finite numbers, none of them missing."""
    values = finite(table, name)
    refuse_missing(np.isnan(values), f"{what} {name!r}")
    return values


def _end(table: "pa.Table", name: str) -> Float32:
    """The upper bounds of labels: infinite where there is none."""
    bound = numbers(column_of(table, name), name)
    return np.where(np.isnan(bound), np.float32(np.inf), bound)


def label_values(table: "Table", terms: Terms) -> tuple[str, ...]:
    """The values of a label that is compared with the positive one; none of another label."""
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
        raise ConfigError(f"label {error.public}{hint if text else ''}", error.detail) from None
    refuse_missing(np.isnan(label), f"label {name!r}")
    invalid = terms.objective.loss.first_invalid_label(label)
    if invalid:
        rows = np.arange(label.size) == invalid[0]
        refuse(table, name, rows, f"is the label of {terms.objective.name}, which takes {invalid[1]}{hint}")
    return label


def _class(table: "pa.Table", terms: Terms) -> Float32:
    """The place of each row's label among the classes."""
    name, classes = terms.columns.label, terms.columns.classes
    label = codes_of(table, name, classes)
    refuse_missing(np.isnan(label), f"label {name!r}")
    reason = f"is the label, and has a value that is none of columns.classes ({listing(classes)})"
    refuse(table, name, label == UNKNOWN, f"{reason}; add it there, or drop its rows")
    return label


def _positive(table: "pa.Table", terms: Terms, labels: Sequence[str]) -> Float32:
    """The label as 1 where it is the positive one of `labels`, else 0."""
    name, positive = terms.columns.label, terms.columns.positive
    assert positive is not None
    codes, distinct = texts(table.column(name), name)
    refuse_missing(codes < 0, f"label {name!r}")
    check_labels(name, labels)
    positive_text = spelled_as(table.column(name), positive)
    if positive_text not in labels and len(labels) == 2:
        raise ConfigError(f"positive = {positive!r} is neither value of label {name!r}", listing(labels))
    code = distinct.index(positive_text) if positive_text in distinct else len(distinct)
    return np.equal(codes, code).astype(np.float32)


def check_labels(name: str, labels: Sequence[str]) -> None:
    """Raise ConfigError for a label of more than two values."""
    if len(labels) > 2:
        raise ConfigError(f"label {name!r} has more than two values", listing(labels))


def _weight(table: "pa.Table", name: str) -> Float32:
    weight = _present(table, name, "weight")
    refuse(table, name, weight < 0.0, "has a weight below 0")
    extreme = (weight > MAX_LABEL) | ((weight > 0.0) & (weight < 1.0 / MAX_LABEL))
    refuse(table, name, extreme, "has a weight above 2**60, or below 2**-60 and not 0")
    return weight


def base_margin_of(table: "pa.Table", name: str, terms: Terms) -> Float32:
    margin = _present(table, name, "base margin")
    beyond = np.abs(terms.objective.loss.predict(margin.astype(np.float64))) > MAX_LABEL
    refuse(table, name, beyond, "has a base margin that predicts more than 2**60")
    return margin


# ---- Features of rows to predict, and counts of categories and labels -----------------------------------


def to_features(
    table: "pa.Table | SparseTable", schema: Schema, source: str, means: TargetMeans = NO_MEANS
) -> Float32:
    """The features of rows to predict: float32 [rows, features]. A category the schema does not declare
    counts as missing. means: those of the model, where it has target means. Raises ConfigError that begins
    with `source`."""
    with _told(table, source):
        return features_of(table, schema, means)


@contextmanager
def _told(table: "pa.Table | SparseTable", source: str) -> Iterator[None]:
    """Name the source of a table in errors, and the line of its file."""
    try:
        yield
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
    if (name := terms.columns.base_margin) is None:
        return None
    with _told(table, source):
        return base_margin_of(dense_of(table), name, terms)


def undeclared(table: "Table", schema: Schema) -> Iterator[tuple[str, str, int]]:
    """Each categorical column with categories the schema does not declare: its name, one of them, the number
    of rows that have one. Raises ConfigError."""
    known = {name: undeclared_levels(table, name, levels) for name, levels in schema.categorical.items()}
    for name, rows in known.items():
        if rows:
            yield name, next(iter(rows)), rows.total()


def undeclared_levels(table: "Table", name: str, categories: Sequence[str]) -> Counter[str]:
    """The rows of each value of a column that is not one of the categories, in the order in which they come.
    Raises ConfigError."""
    out: Counter[str] = Counter()
    for part in parts_of(table, name):
        strange = codes_of(part, name, categories) == UNKNOWN
        if strange.any():
            codes, distinct = texts(column_of(part, name), name)
            rows = np.bincount(codes[strange], minlength=len(distinct)).tolist()
            out.update({text: count for text, count in zip(distinct, rows, strict=True) if count})
    return out


def category_rows(table: "Table", schema: Schema) -> dict[str, dict[str, int]]:
    """The rows that have each declared category, for each categorical column. Raises ConfigError."""
    out = {}
    for name, categories in schema.categorical.items():
        counts = np.zeros(len(categories), np.int64)
        for part in parts_of(table, name):
            codes = declared_codes(part, name, categories)
            counts += np.bincount(codes[np.isfinite(codes)].astype(np.int64), minlength=len(categories))
        out[name] = dict(zip(categories, counts.tolist(), strict=True))
    return out


def label_counts(label: Float32, terms: Terms) -> dict[str, int]:
    """The rows that have each value of a label of two values or of classes; nothing for other labels."""
    if not class_names(terms):
        return {}
    codes, rows = np.unique(label, return_counts=True)
    rows_by_code = dict(zip(codes.tolist(), rows.tolist(), strict=True))
    return {value: rows_by_code.get(code, 0) for code, value in enumerate(class_names(terms))}


# ---- Labels with the noise that the terms want, as the label holder's rows are read ---------------------
# Promises: nothing that is computed of these rows knows the labels that they had before.


LabelReader = Callable[[Terms], Shard]


def with_label_noise(read: LabelReader, party: str, key_of: Callable[[Terms], bytes]) -> LabelReader:
    """A reader of the same rows, whose labels have noise where the terms say so. key_of: the secret that the
    noise is drawn from, the same over all sessions."""

    def read_noised(terms: Terms) -> Shard:
        shard, epsilon = read(terms), terms.vertical.label_epsilon
        if epsilon is None or not terms.task.reads_labels or not terms.blocks.has_labels(party):
            return shard
        assert shard.ids is not None
        classes = terms.objective.num_class or 2
        return replace(shard, label=noised(shard.label, shard.ids, classes, epsilon, key_of(terms)))

    return read_noised
