"""Tables (CSV, Parquet, Arrow, pandas) to the float32 columns the terms want.

Promises: the same value gives the same float32 whatever type holds it (numbers pass through float64,
categories through their text); every array is new, contiguous and writable, and the table is not touched.
Refuses: columns that are absent or of another type, infinite values, and labels or weights that are missing
or out of range, each with the column, the row (the first data row is row 1) and the value. To the others a
site says only which column is absent, or that its rows do not fit: all else stands in `detail` alone.

What is missing: nulls and NaN everywhere; levels that are not declared; in text also the empty string; in
text read as numbers also NA, NaN, null and ?; in CSV files also what pyarrow takes for null (NA, N/A, NULL,
...).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError, Misfit, Refused
from fedboost.fixedpoint import Int64
from fedboost.gbdt import sampling
from fedboost.gbdt.bins import Float32, in_memory
from fedboost.gbdt.labels import LARGEST_LABEL
from fedboost.protocol.party import Shard
from fedboost.protocol.terms import Schema, Terms, nearest
from fedboost.shell.sparse import SparseTable, read_libsvm
from fedboost.shell.stored import StoredColumn, StoredTable

if TYPE_CHECKING:  # pyarrow takes a while to import, and most commands need no table
    import pyarrow as pa

Rows = npt.NDArray[np.bool_]
Table: TypeAlias = "pa.Table | StoredTable | SparseTable"
Reader = Callable[["pa.Table"], Float32]
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq", ".libsvm", ".svm")
"""What `read_table` reads; another name that ends in .gz is taken for a compressed CSV."""
_MISSING_NUMBERS = ("", "NA", "NaN", "nan", "null", "?")
_HEADER = 1 << 24
"""Bytes of a CSV file among which its first line is looked for."""
_BLOCK = 1 << 20
"""Bytes of a CSV file that are read at once, which no row may exceed; more where the first line is long."""
_NAMED_LABELS = {
    "binary:logistic": "; set positive under [columns] to the label value that counts as 1",
    "multi:softprob": "; set classes under [columns] to the list of label values",
}
"""What to do about a label of other values than an objective takes."""
_UNKNOWN = -1.0
"""The code of a value that is no declared level."""


def read_table(path: Path | str, scratch: Path | None = None) -> "Table":
    """The table in a file, by its suffix (`SUFFIXES`); with a scratch folder its rows stay in the file, which
    then must be Parquet. Raises ConfigError with the full path."""
    import pyarrow as pa

    path = Path(path).absolute()
    name = path.name.lower()
    if path.is_dir():
        raise ConfigError(f"{path}: is a directory, not a file")
    if not name.endswith((*SUFFIXES, ".gz")):
        raise ConfigError(f"{path}: unknown suffix {path.suffix!r}; known: {', '.join(SUFFIXES)}")
    form = "Parquet" if name.endswith((".parquet", ".pq")) else "CSV"
    form = "LIBSVM" if name.endswith((".libsvm", ".svm")) else form
    try:
        if path.stat().st_size == 0:
            raise ConfigError(f"{path}: the file is empty")
        if scratch is not None:
            return _stored(path, scratch, form)
        if form == "LIBSVM":
            return read_libsvm(path)
        table = _read_parquet(path) if form == "Parquet" else _read_csv(path)
        give_back()
        return _distinct(table, str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as {form}", _first_line(error)) from None


def as_table(data: object) -> "pa.Table | SparseTable":
    """A table from a path, a pyarrow Table, a pandas DataFrame (its index is dropped), or a mapping of column
    name to a sequence of values; or to a sparse matrix of scipy's, whose columns are then called by that name
    and their number from 0. Raises ConfigError."""
    import pyarrow as pa

    kind = type(data)
    if isinstance(data, (str, Path)):
        return read_table(data)
    try:
        if isinstance(data, pa.Table):
            return _distinct(data, "the table")
        if kind.__module__.split(".")[0] == "pandas" and hasattr(data, "__dataframe__"):
            return _distinct(pa.Table.from_pandas(data, preserve_index=False), "the DataFrame")
        if isinstance(data, SparseTable):
            return data
        if isinstance(data, Mapping) and any(map(_is_sparse, data.values())):
            dense = {str(name): values for name, values in data.items() if not _is_sparse(values)}
            matrices = {str(name): values for name, values in data.items() if _is_sparse(values)}
            return SparseTable.of(pa.table(dense), matrices)
        if isinstance(data, Mapping):
            return pa.table({str(name): values for name, values in data.items()})
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(f"cannot make a table of this {kind.__name__}", _first_line(error)) from None
    raise ConfigError(
        f"cannot make a table of {kind.__module__}.{kind.__qualname__}: "
        "give a path, a pyarrow Table, a pandas DataFrame or a mapping of column names to values"
    )


def to_shard(table: "Table", terms: Terms, site: str) -> Shard:
    """The label, weight, base margin and features the terms name, as float32. A level the terms do not
    declare counts as missing. Raises Refused with one line: for a column that is absent, and Misfit for all
    that depends on what the rows hold (a CSV file's types do, too)."""
    try:
        _check_columns(table, terms.columns)
    except ConfigError as error:
        raise Refused(f"party {site}: {error.public}", error.detail) from None
    try:
        shard = _shard(table, terms, site)
        return shard if terms.columns.group is None else replace(shard, group=_group(table, terms, shard))
    except ConfigError as error:
        said = f"party {site}: its rows do not fit the terms; its own log says which column and why"
        raise Misfit(said, str(error)) from None


def to_features(table: "pa.Table | SparseTable", schema: Schema, source: str) -> Float32:
    """The features of rows to predict: float32 [rows, features]. A level the schema does not declare counts
    as missing. Raises ConfigError that begins with `source`."""
    out = np.empty((table.num_rows, len(schema.features)), np.float32)
    try:
        for place, name in enumerate(schema.numeric):
            sparse = table.column(name) if isinstance(table, SparseTable) else None
            out[:, place] = _finite(_dense(table), name) if sparse is None else sparse[:]
        for place, (name, levels) in enumerate(schema.categorical.items(), len(schema.numeric)):
            out[:, place] = _declared(_dense(table), name, levels)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.public}", error.detail) from None
    return out


def to_base_margin(table: "pa.Table | SparseTable", terms: Terms, source: str) -> Float32 | None:
    """The base margins of rows to predict, float32 [rows], if the terms name a column of them. Raises
    ConfigError that begins with `source`."""
    name = terms.columns.base_margin
    if name is None:
        return None
    try:
        return _base_margin(_dense(table), name, terms)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.public}", error.detail) from None


def undeclared(table: "Table", schema: Schema) -> Iterator[tuple[str, str, int]]:
    """Each categorical column with levels the schema does not declare: its name, one of them, the number of
    rows that have one. Raises ConfigError."""
    example: dict[str, str] = {}
    rows: Counter[str] = Counter()
    for name, levels in schema.categorical.items():
        for part in _parts(table, name):
            strange = _codes(part, name, levels) == _UNKNOWN
            if strange.any():
                codes, found = texts(column_of(part, name), name)
                example.setdefault(name, found[codes[np.argmax(strange)]])
                rows[name] += int(strange.sum())
    for name, level in example.items():
        yield name, level, rows[name]


def level_counts(table: "Table", schema: Schema) -> dict[str, dict[str, int]]:
    """For each categorical column the rows that have each declared level. Raises ConfigError."""
    counts = {name: np.zeros(len(levels), np.int64) for name, levels in schema.categorical.items()}
    for name, levels in schema.categorical.items():
        for part in _parts(table, name):
            codes = _codes(part, name, levels)
            declared = codes[np.isfinite(codes) & (codes != _UNKNOWN)].astype(np.int64)
            counts[name] += np.bincount(declared, minlength=len(levels))
    return {
        name: dict(zip(levels, map(int, counts[name]), strict=True))
        for name, levels in schema.categorical.items()
    }


def label_counts(label: Float32, terms: Terms) -> dict[str, int]:
    """The rows that have each value of a label of two values or of classes; nothing for other labels."""
    columns, classes = terms.columns, range(terms.num_class or 0)
    values = columns.classes or tuple(map(str, classes))
    if terms.like == "binary:logistic":
        values = ("0", "1") if columns.positive is None else (f"not {columns.positive}", columns.positive)
    if not values:
        return {}
    codes, rows = np.unique(label, return_counts=True)
    found = dict(zip(codes.tolist(), rows.tolist(), strict=True))
    return {value: found.get(code, 0) for code, value in enumerate(values)}


def column_of(table: "pa.Table", name: str) -> "pa.ChunkedArray":
    """The column of that name. Raises ConfigError that names the nearest column, or the columns."""
    place = table.schema.get_field_index(name)
    if place >= 0:
        return table.column(place)
    hint = nearest(name, table.column_names)[2:-1] or f"the columns are {listing(table.column_names)}"
    raise ConfigError(f"column {name!r} is missing", hint)


def numbers(column: "pa.ChunkedArray", name: str) -> Float32:
    """A column of numbers, or of text that spells numbers, as float32 [rows]; missing values are NaN. Raises
    ConfigError for another type, and for the first text that is no number."""
    import pyarrow as pa

    values = _plain(column)
    if is_text(values.type):
        values = _parsed(values, name)
    elif not _is_number(values.type):
        raise ConfigError(f"column {name!r} is {kind_of(column)} here, the terms say numeric")
    if values.type != pa.float32():
        values = values.cast(pa.float64(), safe=False)
    with np.errstate(over="ignore"):
        return np.array(values.to_numpy(), np.float32)


def texts(column: "pa.ChunkedArray", name: str) -> tuple[Int64, tuple[str, ...]]:
    """A column as categories: the index of each row's text, int64 [rows] (missing: -1), and the texts found.

    The text of a string is itself; of an integer, also in a column of floats, its digits; of another number,
    the shortest decimal that reads as it; of a boolean, true or false. Raises ConfigError for other types.
    """
    import pyarrow as pa

    values = _plain(column)
    if not is_text(values.type) and not _is_number(values.type):
        raise ConfigError(
            f"column {name!r} is {kind_of(column)} here, categorical takes text, numbers or booleans"
        )
    encoded = values.dictionary_encode().combine_chunks()
    distinct = encoded.dictionary.to_pylist()
    if values.type == pa.float32():
        distinct = [float(str(np.float32(value))) for value in distinct]
    spelled = [_text(value) for value in distinct]
    found = {text: code for code, text in enumerate(dict.fromkeys(filter(None, spelled)))}
    code_of = np.array([*(found[text] if text else -1 for text in spelled), -1], np.int64)
    return code_of[encoded.indices.fill_null(-1).to_numpy()], tuple(found)


def is_text(kind: "pa.DataType") -> bool:
    """Whether values of this Arrow type are strings."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def kind_of(column: "pa.ChunkedArray") -> str:
    """The type of a column's values, for a message; of lists and structs without their fields' names."""
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "binary (not UTF-8 text)"
    spelled = "string" if is_text(kind) else shorten(str(kind))
    return spelled.partition("<")[0] if types.is_nested(kind) else spelled


def shorten(text: str, limit: int = 40) -> str:
    """At most `limit` characters of it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listing(values: Sequence[str], limit: int = 8) -> str:
    """The first few values, quoted, for a message."""
    shown = [shorten(repr(value)) for value in values[:limit]]
    return ", ".join(shown) + (f", … ({len(values)} in all)" if len(values) > limit else "")


def _read_csv(path: Path) -> "pa.Table":
    import pyarrow as pa
    from pyarrow import csv

    name = path.name.lower()
    delimiter = "\t" if name.endswith((".tsv", ".tsv.gz")) else ","

    compression = "gzip" if name.endswith(".gz") else None
    with pa.input_stream(str(path), compression=compression) as stream:
        header = re.split(rb"[\r\n]", stream.read(_HEADER), maxsplit=1)[0]
    _check_header(header, delimiter, path)
    block = max(_BLOCK, 16 * len(header))  # a row of many columns is long, too
    try:
        with pa.input_stream(str(path), compression=compression) as stream:
            return csv.read_csv(
                stream,
                read_options=csv.ReadOptions(block_size=block),
                parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=csv.ConvertOptions(strings_can_be_null=True),
            )
    except pa.ArrowInvalid as error:
        if "straddl" not in str(error):
            raise
    size = f"{block >> 20} MiB"
    raise ConfigError(f"{path}: a row is longer than {size}; close a quote left open, or shorten a text")


def _check_header(line: bytes, delimiter: str, path: Path) -> None:
    """Refuse what pyarrow would read as something else, or refuse in words that tell nobody what to do."""
    if line[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in line[:2]:
        raise ConfigError(f"{path}: is UTF-16, or no text; save it as UTF-8")
    unquoted = re.sub(rb'"[^"]*"?', b"", line)
    for character, found in ((b";", "semicolons"), (b"\t", "tabs")):
        if character in unquoted and delimiter.encode() not in unquoted:
            needed = "put commas there in a .csv, tabs in a .tsv"
            raise ConfigError(f"{path}: {found} stand between the columns; {needed}")


def _stored(path: Path, scratch: Path, form: str) -> StoredTable:
    if form != "Parquet":
        raise ConfigError(f"{path}: with a scratch folder the table must be a Parquet file")
    table = StoredTable(path, scratch)
    _distinct(table.head, str(path))
    return table


def _read_parquet(path: Path) -> "pa.Table":
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:  # read_table would turn folder names like a=1 into columns
        return file.read()


def _distinct(table: "pa.Table", source: str) -> "pa.Table":
    twice = next((name for name, count in Counter(table.column_names).items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"{source}: there are two columns named {twice!r}")
    return table


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return shorten(lines[0], 200)


def _check_columns(table: "Table", schema: Schema) -> None:
    sparse = set[str]()
    if isinstance(table, SparseTable):
        sparse = {name for name in schema.features if table.column(name) is not None}
    if isinstance(table, SparseTable) and schema.categorical:
        name = next(iter(schema.categorical))
        raise ConfigError(f"column {name!r} is categorical: a sparse table has numbers alone")
    for name in (*schema.others, *(name for name in schema.features if name not in sparse)):
        column_of(_dense(table), name)


def _dense(table: "Table") -> "pa.Table":
    """The columns that are no sparse ones; of a stored table, those without their rows."""
    match table:
        case SparseTable():
            return table.dense
        case StoredTable():
            return table.head
        case _:
            return table


def _is_sparse(values: object) -> bool:
    """Whether these are a sparse matrix or array of scipy's, which need not be installed."""
    return type(values).__module__.startswith("scipy.sparse") and hasattr(values, "tocsc")


def _shard(table: "Table", terms: Terms, site: str) -> Shard:
    schema = terms.columns
    if table.num_rows == 0:
        raise ConfigError("the table has no rows")
    labels = _labels(table, terms)
    weight: Reader = partial(_weight, name=schema.weight) if schema.weight else _ones
    keys = _keys(table, terms, site) if terms.draws_rows else None
    validation = None
    if schema.validation is not None:
        parts = (_flags(part, schema.validation) for part in _parts(table, schema.validation))
        validation = np.concatenate([*parts])
    margin = schema.base_margin
    base: Reader | None = partial(_base_margin, name=margin, terms=terms) if margin else None
    features: dict[str, Reader] = {name: partial(_finite, name=name) for name in schema.numeric}
    features |= {name: partial(_declared, name=name, levels=of) for name, of in schema.categorical.items()}
    if isinstance(table, SparseTable):
        found = tuple(table.column(name) or read(table.dense) for name, read in features.items())
        dense, margins = table.dense, base(table.dense) if base else None
        return Shard(found, labels, weight(dense), keys=keys, validation=validation, base_margin=margins)
    if not isinstance(table, StoredTable):
        weights, margins = weight(table), base(table) if base else None
        values = np.empty((len(features), table.num_rows), np.float32)  # one piece, which can be given back
        for column, read in zip(values, features.values(), strict=True):
            column[:] = read(table)
        give_back()
        return Shard(tuple(values), labels, weights, keys=keys, validation=validation, base_margin=margins)
    columns = tuple(StoredColumn(table, name, read) for name, read in features.items())
    weights = StoredColumn(table, schema.weight or schema.label, weight).kept()
    margins = StoredColumn(table, margin, base).kept() if margin and base else None
    for column in columns:
        column.check()
    return Shard(columns, labels, weights, table.room, keys, validation, margins)


def give_back() -> None:
    """Arrow's allocator keeps what it read and converted tables in, after those are gone."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _keys(table: "Table", terms: Terms, site: str) -> sampling.Keys:
    """The key of each row: of its id, or of its place at this site where it has none."""
    name = terms.columns.row_id
    return sampling.keys_of(site, table.num_rows) if name is None else _keys_in(table, name, "row_id")


def _keys_in(table: "Table", name: str, what: str) -> sampling.Keys:
    """The key of the text in this column of each row."""
    parts = []
    for part in _parts(table, name):
        codes, found = texts(column_of(part, name), name)
        _refuse_missing(codes < 0, f"{what} {name!r}")
        parts.append(np.array([sampling.key_of(text) for text in found], np.uint64)[codes])
    return np.concatenate(parts)


def _group(table: "Table", terms: Terms, shard: Shard) -> sampling.Keys:
    """The key of the group of each row. A group has one weight, and all or none of it are validation rows."""
    name = terms.columns.group
    assert name is not None
    keys = _keys_in(table, name, "group")
    _, begins, group = np.unique(keys, return_index=True, return_inverse=True)
    for column, values in (
        (terms.columns.weight, shard.weight),
        (terms.columns.validation, shard.validation),
    ):
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
    values = _plain(column_of(table, name))
    if str(values.type) == "bool":
        missing = np.array(values.is_null())
        _refuse_missing(missing, f"validation {name!r}")
        flags: Rows = np.array(values, np.bool_)
        return flags
    found = numbers(values, name)
    _refuse_missing(np.isnan(found), f"validation {name!r}")
    _refuse(table, name, (found != 0.0) & (found != 1.0), "says neither 0 nor 1, false nor true")
    return np.equal(found, 1.0)


def _ones(table: "pa.Table") -> Float32:
    return np.ones(table.num_rows, np.float32)


def _labels(table: "Table", terms: Terms) -> Float32:
    """The label of each row, [rows], or its lower and its upper bound, [2, rows]."""
    name, upper = terms.columns.label, terms.columns.label_upper_bound
    if upper is None:
        return _whole(table, name, _label_of(table, terms))
    bounds = [
        _whole(table, name, partial(_bound, name=name)),
        _whole(table, upper, partial(_end, name=upper)),
    ]
    room = table.room if isinstance(table, StoredTable) else in_memory
    out: Float32 = room((2, table.num_rows), np.dtype(np.float32))
    out[:] = bounds
    bad = terms.loss.bad_label(out)
    if bad:
        row, takes = bad
        raise ConfigError(
            f"columns {name!r} and {upper!r} are the label of {terms.objective}, which takes {takes}",
            f"they are {out[0, row]:g} and {out[1, row]:g} in row {row + 1}",
        )
    return out


def _whole(table: "Table", name: str, read: Reader) -> Float32:
    """What is read of a column that stays at hand."""
    return StoredColumn(table, name, read).kept() if isinstance(table, StoredTable) else read(_dense(table))


def _bound(table: "pa.Table", name: str) -> Float32:
    """The lower bounds of labels."""
    bound = _finite(table, name)
    _refuse_missing(np.isnan(bound), f"label {name!r}")
    return bound


def _end(table: "pa.Table", name: str) -> Float32:
    """The upper bounds of labels: infinite where there is none."""
    bound = numbers(column_of(table, name), name)
    return np.where(np.isnan(bound), np.float32(np.inf), bound)


def _label_of(table: "Table", terms: Terms) -> Reader:
    """What makes the label of rows of this table."""
    if terms.columns.classes:
        return partial(_class, terms=terms)
    if terms.columns.positive is None:
        return partial(_label, terms=terms)
    found: dict[str, None] = {}
    for part in _parts(table, terms.columns.label):
        found |= dict.fromkeys(texts(part.column(terms.columns.label), terms.columns.label)[1])
    return partial(_positive, terms=terms, labels=tuple(found))


def _parts(table: "Table", column: str) -> Iterator["pa.Table"]:
    """The table, or a group of rows of this column after the other."""
    if not isinstance(table, StoredTable):
        yield _dense(table)
        return
    for group in range(len(table.ends) - 1):
        yield table.group(group, column)


def _refuse(table: "pa.Table", name: str, rows: Rows, reason: str) -> None:
    """Raise for the first of these rows, if there is one."""
    if rows.any():
        row = int(np.argmax(rows))
        value = shorten(repr(table.column(name)[row].as_py()))
        raise ConfigError(f"column {name!r} {reason}", f"it is {value} in row {row + 1}")


def _refuse_missing(rows: Rows, what: str) -> None:
    if rows.any():
        first = f"the first is in row {np.argmax(rows) + 1}"
        raise ConfigError(f"{what} has missing values, fill them in or drop their rows", first)


def _finite(table: "pa.Table", name: str) -> Float32:
    values = numbers(column_of(table, name), name)
    _refuse(table, name, np.isinf(values), "has a value that is infinite or too large for a 32-bit float")
    return values


def _label(table: "pa.Table", terms: Terms) -> Float32:
    name = terms.columns.label
    hint = _NAMED_LABELS.get(terms.like, "")
    try:
        label = _finite(table, name)
    except ConfigError as error:
        text = is_text(_plain(table.column(name)).type)
        raise ConfigError(f"label {error.public}{hint if text else ''}", error.detail) from None
    _refuse_missing(np.isnan(label), f"label {name!r}")
    bad = terms.loss.bad_label(label)
    if bad:
        rows = np.arange(label.size) == bad[0]
        _refuse(table, name, rows, f"is the label of {terms.objective}, which takes {bad[1]}{hint}")
    return label


def _class(table: "pa.Table", terms: Terms) -> Float32:
    """The place of each row's label among the classes."""
    name, classes = terms.columns.label, terms.columns.classes
    label = _codes(table, name, classes)
    _refuse_missing(np.isnan(label), f"label {name!r}")
    reason = f"is the label, and has a value that is none of columns.classes ({listing(classes)})"
    _refuse(table, name, label == _UNKNOWN, f"{reason}; add it there, or drop its rows")
    return label


def _positive(table: "pa.Table", terms: Terms, labels: Sequence[str]) -> Float32:
    """1 where the label is the positive one of those that there are."""
    name, positive = terms.columns.label, terms.columns.positive
    assert positive is not None
    codes, found = texts(table.column(name), name)
    _refuse_missing(codes < 0, f"label {name!r}")
    if len(labels) > 2:
        raise ConfigError(f"label {name!r} has more than two values", listing(labels))
    wanted = _spelled_as(table.column(name), positive)
    if wanted not in labels and len(labels) == 2:
        raise ConfigError(f"positive = {positive!r} is neither value of label {name!r}", listing(labels))
    code = found.index(wanted) if wanted in found else len(found)
    return np.equal(codes, code).astype(np.float32)


def _weight(table: "pa.Table", name: str) -> Float32:
    weight = _finite(table, name)
    _refuse_missing(np.isnan(weight), f"weight {name!r}")
    _refuse(table, name, weight < 0.0, "has a weight below 0")
    extreme = (weight > LARGEST_LABEL) | ((weight > 0.0) & (weight < 1.0 / LARGEST_LABEL))
    _refuse(table, name, extreme, "has a weight above 2**60, or below 2**-60 and not 0")
    return weight


def _base_margin(table: "pa.Table", name: str, terms: Terms) -> Float32:
    margin = _finite(table, name)
    _refuse_missing(np.isnan(margin), f"base margin {name!r}")
    beyond = np.abs(terms.loss.predict(margin.astype(np.float64))) > LARGEST_LABEL
    _refuse(table, name, beyond, "has a base margin that predicts more than 2**60")
    return margin


def _declared(table: "pa.Table", name: str, levels: Sequence[str]) -> Float32:
    """The index of each row's level: float32 [rows]; missing or not declared: NaN."""
    codes = _codes(table, name, levels)
    return np.where(codes == _UNKNOWN, np.float32(np.nan), codes)


def _codes(table: "pa.Table", name: str, levels: Sequence[str]) -> Float32:
    """The index of each row's level: float32 [rows]; missing: NaN; no declared level: `_UNKNOWN`."""
    column = _plain(column_of(table, name))
    codes, found = texts(column, name)
    known: dict[str, int] = {}
    for code, level in enumerate(levels):
        known.setdefault(_spelled_as(column, level), code)
    known |= {level: code for code, level in enumerate(levels)}
    values = np.array([*(known.get(text, _UNKNOWN) for text in found), np.nan], np.float32)
    return values[codes]


def _spelled_as(column: "pa.ChunkedArray", text: str) -> str:
    """What `texts` makes of `text` in this column: a CSV file that says 01 or True is read as numbers or
    booleans, and then holds 1 or true."""
    if is_text(_plain(column).type):
        return text
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        return _text(float(text)) or text
    except ValueError:
        return text


def _text(value: object) -> str | None:
    """The text of one value; None (or empty) for what is missing."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            whole = value.is_integer()
            return None if value != value else str(int(value)) if whole else repr(value)
        case None:
            return None
        case _:
            return str(value)


def _plain(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """The same values without the encodings that compute functions cannot all read."""
    import pyarrow as pa
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if kind == pa.string_view():
        return pa.chunked_array([pa.array(column.to_pylist(), pa.large_string())])
    if types.is_dictionary(column.type):
        column = pa.chunked_array([chunk.dictionary.take(chunk.indices) for chunk in column.chunks], kind)
    if types.is_decimal(kind):
        return column.cast(pa.string()).cast(pa.float64())
    if types.is_float16(kind):
        return column.cast(pa.float32())
    return column.cast(pa.string()) if types.is_null(kind) else column


def _is_number(kind: "pa.DataType") -> bool:
    from pyarrow import types

    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def _parsed(column: "pa.ChunkedArray", name: str) -> "pa.ChunkedArray":
    """Text as float64."""
    import pyarrow as pa
    from pyarrow import compute

    spelled = compute.utf8_trim_whitespace(column)
    missing = compute.is_in(spelled, value_set=pa.array(_MISSING_NUMBERS, spelled.type))
    spelled = compute.if_else(missing, pa.scalar(None, spelled.type), spelled)
    try:
        return spelled.cast(pa.float64())
    except pa.ArrowInvalid:
        row = _first_unparsed(spelled)
    value = shorten(repr(column[row].as_py()))
    first = f"the first value that is not a number is {value} in row {row + 1}"
    raise ConfigError(f"column {name!r} is string here, the terms say numeric", first)


def _first_unparsed(column: "pa.ChunkedArray") -> int:
    """The first row that is no number, where there is one."""
    import pyarrow as pa

    good, end = 0, len(column)  # rows before `good` are numbers; one of those before `end` is not
    while end - good > 1:
        middle = (good + end) // 2
        try:
            column.slice(good, middle - good).cast(pa.float64())
            good = middle
        except pa.ArrowInvalid:
            end = middle
    return good
