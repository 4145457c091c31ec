"""Tables from files (`FORMS` lists them), databases and memory (Arrow streams, pandas, mappings, scipy)."""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from fedboost.errors import ConfigError
from fedboost.runtime.data.database import AS_USUAL, Database, ReadOptions, database_of
from fedboost.runtime.data.locations import (
    COMPRESSIONS,
    PART_ROWS,
    File,
    Locations,
    Source,
    check_scratch,
    locations_of,
    reading,
)
from fedboost.runtime.data.parquet import ParquetFiles, ParquetTable, Query, keep, normal_table
from fedboost.runtime.data.text import Delimited, JsonLines, LibSvm, SparseTable, Workbook
from fedboost.runtime.data.values import BadRow, check_distinct_names, column_of, give_back, spelled_as, texts
from fedboost.views.words import shorten

# ---- Forms of table files, by suffix --------------------------------------------------------------------


class Feather(File):
    """A file in Arrow's own format."""

    form, suffixes = "Feather", (".feather", ".arrow")

    def names(self) -> list[str]:
        """The names of the columns."""
        with self._reader() as reader:
            return list(reader.schema.names)

    def read(self) -> "pa.Table":
        """The whole table."""
        with self._reader() as reader:
            return reader.read_all()

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        """Yield the rows of these columns in parts."""
        with self._reader() as reader:
            for number in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(number)]).select(list(columns))

    @contextmanager
    def _reader(self) -> "Iterator[ipc.RecordBatchFileReader]":
        with self.location.open() as file:
            yield ipc.open_file(file)


FORMS: tuple[type[File], ...] = (Delimited, ParquetFiles, Feather, JsonLines, Workbook, LibSvm)


def source_at(
    source: Path | str | Database, options: ReadOptions = AS_USUAL, scratch: Path | None = None
) -> Source:
    """The rows of a file, of a folder or glob of Parquet files, at an address (s3://, https://), or of a
    query. scratch: a folder for what has to be fetched. ConfigError with the full path."""
    if isinstance(source, Database):
        check_no_options(source, options)
        return Query(source)
    if isinstance(source, str) and (database := database_of(source)):
        raise ConfigError(f"{database}: is a database; in Python give fb.Database(URI, QUERY)")
    if re.match(r"(postgres(ql)?|sqlite3?|duckdb):", str(source)):
        raise ConfigError("a database is read with --query, which is not for this table; export its rows")
    locations = locations_of(source, scratch)
    form = _form_of(locations)
    for name in options.chosen:
        if name not in form.takes:
            for_what = ", ".join(s for other in FORMS if name in other.takes for s in other.suffixes)
            raise ConfigError(f"{locations.shown}: {name} is an option for {for_what}; leave it out")
    with reading(locations.shown, form.form):
        if not locations.together:
            with locations.files[0].open() as file:
                if file.size() == 0:
                    raise ConfigError(f"{locations.shown}: the file is empty")
        return form(locations, options)


def _form_of(locations: Locations) -> type[File]:
    """The form of a file, by its name; one that ends in .gz alone is taken for CSV. ConfigError if there is
    none."""
    location = locations.files[0]
    for form in FORMS:
        if location.name.endswith(form.every_suffix()):
            return form
    if location.name.endswith(tuple(COMPRESSIONS)) and location.name.count(".") == 1:
        return Delimited
    if location.path is not None and not location.path.exists():
        raise ConfigError(f"{location.shown}: no such file or folder")
    suffix = "." + location.name.rpartition(".")[2] if "." in location.name else ""
    known = ", ".join(suffix for form in FORMS for suffix in form.suffixes)
    packed = f"CSV and JSON lines also with {', '.join(COMPRESSIONS)} behind"
    raise ConfigError(f"{location.shown}: unknown suffix {suffix!r}; known: {known}; {packed}")


# ---- Tables from files, databases and memory (Arrow streams, pandas) ------------------------------------


Table: TypeAlias = "pa.Table | ParquetTable | SparseTable"


def read_table(
    source: Path | str | Database, scratch: Path | None = None, options: ReadOptions = AS_USUAL
) -> "Table":
    """The table at a source, see `source_at`; with a scratch folder the rows of files stay where they are,
    and must be Parquet. Raises ConfigError with the full path."""
    check_scratch(scratch)
    found = source_at(source, options, scratch)
    with reading(found.shown, found.form):
        if scratch is not None and isinstance(found, ParquetFiles):
            return found.stored(scratch)
        if scratch is not None and isinstance(found, File):
            raise ConfigError(f"{found.shown}: with a scratch folder the table must be in Parquet files")
        table = found.read()
    give_back()
    if isinstance(table, SparseTable):
        return table
    check_distinct_names(table.column_names, found.shown)
    if isinstance(found, Delimited | JsonLines) and (path := found.location.path) is not None:
        facts = {"path": str(path), "state": _state(path), "options": options.model_dump(mode="json")}
        return table.replace_schema_metadata({_KEY: json.dumps(facts).encode()})
    return table


def site_table(
    source: Path | str | Database, scratch: Path | None, options: ReadOptions = AS_USUAL
) -> "Table":
    """The rows of a site, as `read_table` reads them; those of a query are kept in a file, also without a
    scratch folder. ConfigError."""
    if not isinstance(source, Database):
        return read_table(source, scratch, options)
    check_no_options(source, options)
    return keep(source, scratch)


def check_no_options(source: Database, options: ReadOptions) -> None:
    """ConfigError for options of a file beside a database."""
    if options.chosen:
        raise ConfigError(f"{source}: {next(iter(options.chosen))} is for files, and this is a database")


def as_table(data: object) -> "pa.Table | SparseTable":
    """A table from a path, a `Database`, a pandas DataFrame (its index is dropped), anything that is an Arrow
    stream or array (of pyarrow, polars, DuckDB), or a mapping of column name to a sequence of values; or to a
    matrix of numpy's or scipy's, whose columns are then called by that name and their number from 0. Raises
    ConfigError."""
    kind = type(data)
    if isinstance(data, (str, Path, Database)):
        return read_table(data)
    try:
        if isinstance(data, SparseTable):
            return data
        if kind.__module__.split(".")[0] == "pandas" and hasattr(data, "to_parquet"):
            data = pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "__arrow_c_stream__") and not _is_column(data):
            return _normal(pa.table(data), kind)
        if hasattr(data, "__arrow_c_array__") and not _is_column(data):
            return _normal(pa.table(pa.record_batch(data)), kind)
        if isinstance(data, Mapping) and any(map(_is_sparse, data.values())):
            dense = {str(name): values for name, values in data.items() if not _is_sparse(values)}
            matrices = {str(name): values for name, values in data.items() if _is_sparse(values)}
            return SparseTable.from_matrices(pa.table(dense), matrices)
        if isinstance(data, Mapping):
            return pa.table(_by_column(data))
    except (pa.ArrowException, ValueError, TypeError) as error:
        message = "; ".join(str(part) for part in error.args)  # pandas' are of several parts
        raise ConfigError(f"cannot make a table of this {kind.__name__}", shorten(message, 200)) from None
    if hasattr(data, "__array__") and getattr(data, "ndim", 0) == 2:
        raise ConfigError(
            f"a matrix ({kind.__name__}) has no column names: give {{'x': matrix, 'y': labels}}"
        )
    if kind.__module__.split(".")[0] == "polars" and hasattr(data, "collect"):
        raise ConfigError(f"a {kind.__name__} has no rows yet: give its .collect()")
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    raise ConfigError(
        f"cannot make a table of {home}{kind.__qualname__}: give a path, a DataFrame of pandas "
        "or polars, an Arrow table or stream, or a mapping of column names to values"
    )


def _is_column(data: object) -> bool:
    """Tell if this is one column without a name: a Series, or an array of Arrow's that is no struct."""
    kind = getattr(data, "type", None)
    return hasattr(data, "dtype") or (isinstance(kind, pa.DataType) and not pa.types.is_struct(kind))


def _normal(table: "pa.Table", kind: type) -> "pa.Table":
    word = "table" if kind.__module__.startswith("pyarrow") else kind.__name__
    check_distinct_names(table.column_names, f"the {word}")
    return normal_table(table)


def _by_column(data: Mapping[Any, Any]) -> dict[str, Any]:
    """The columns of a mapping: of a matrix of numpy's, its columns."""
    columns: dict[str, Any] = {}
    for name, values in data.items():
        if getattr(values, "ndim", 1) != 2 or not hasattr(values, "__array__"):
            columns[str(name)] = values
            continue
        for number in range(values.shape[1]):
            if f"{name}{number}" in {*columns, *data}:
                raise ConfigError(f"there are two columns named '{name}{number}': rename one, or the matrix")
            columns[f"{name}{number}"] = values[:, number]
    return columns


def dense_of(table: "Table") -> "pa.Table":
    """The columns that are no sparse ones; of a stored table, those without their rows."""
    match table:
        case SparseTable():
            return table.dense
        case ParquetTable():
            return table.head
        case _:
            return table


def _is_sparse(values: object) -> bool:
    """Tell if these are a sparse matrix or array of scipy's, which need not be installed."""
    return type(values).__module__.startswith("scipy.sparse") and hasattr(values, "tocsc")


def parts_of(table: "Table", column: str) -> Iterator["pa.Table"]:
    """Yield the table, or the row groups of this column one after the other."""
    return table.groups(column) if isinstance(table, ParquetTable) else iter([dense_of(table)])


# ---- Lines of a file: where a row of a table stands in the text that it was read from -------------------
# Promises: row 1 is the first below the header; blank lines are lines, and no rows.


_KEY = b"fedboost.file"
"""Metadata of a table: the file that it is, and the options by which it was read."""


def without_source(table: "pa.Table | SparseTable") -> "Any":
    """The table, as one of other rows than the file's."""
    if isinstance(table, SparseTable):
        return replace(table, dense=table.dense.replace_schema_metadata())
    return table.replace_schema_metadata()


def in_file(error: ConfigError, table: "pa.Table") -> ConfigError:
    """The error, with the line of the file where that is known."""
    facts = (table.schema.metadata or {}).get(_KEY)
    if facts is None or not isinstance(error, BadRow):
        return error
    source = json.loads(facts)
    path = Path(source["path"])
    if _state(path) != source["state"]:
        return error
    return error.on_line(source_at(path, ReadOptions(**source["options"])).line_of(error.row))


def row_of(table: "pa.Table", row: int) -> str:
    """Return a row, counted from 0, for a message: from 1, with its line."""
    return in_file(BadRow("", "", row), table).detail.strip().removeprefix("in ")


def _state(path: Path) -> list[int]:
    """Figures that change with a file."""
    try:
        known = os.stat(path)
    except OSError:
        return []
    return [known.st_mtime_ns, known.st_size]


# ---- Tables under other names: their columns, and the levels of columns, as terms call them -------------
# Promises: no number changes; rows that stay in files stay there, and levels are renamed when rows are read;
# a level without a name never passes for one that has it.


Names = Mapping[str, str]
"""Name in the terms -> name in the table."""


def renamed(table: Table, columns: Names, levels: Mapping[str, Names]) -> "pa.Table | ParquetTable":
    """The columns that have a name in the terms, under it. levels: by the name of a column in the terms, its
    levels by their names there; rows with other levels keep these, marked as without a name. Raises
    ConfigError."""
    if isinstance(table, SparseTable):
        raise ConfigError(
            "is a LIBSVM file, whose columns have no names to rename; give a table with a header"
        )
    if not isinstance(table, ParquetTable):
        return _renamed(table, columns, levels)

    def group(number: int, column: str) -> "pa.Table":
        own = columns[column]
        return _renamed(table.group(number, own), {column: own}, levels)

    return replace(table, head=_renamed(table.head, columns, levels), group=group)


def _renamed(table: "pa.Table", columns: Names, levels: Mapping[str, Names]) -> "pa.Table":
    fields, values = [], []
    for name, own in columns.items():
        column = column_of(table, own)
        if name in levels:
            column = _renamed_levels(column, own, levels[name])
        fields.append(table.schema.field(own).with_name(name).with_type(column.type))
        values.append(column)
    return pa.table(values, schema=pa.schema(fields, metadata=table.schema.metadata))


def _renamed_levels(column: "pa.ChunkedArray", own: str, levels: Names) -> "pa.ChunkedArray":
    codes, distinct = texts(column, own)
    name_of = {spelled_as(column, level): name for name, level in levels.items()}
    name_of |= {level: name for name, level in levels.items()}
    words = [name_of.get(text) or _without_name(text, levels) for text in distinct]
    indices = pa.array(codes.astype(np.int32), pa.int32(), mask=codes < 0)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))])


def _without_name(text: str, levels: Names) -> str:
    marked = f"{text} (not named)"
    return _without_name(marked, levels) if marked in levels else marked


# ---- Tables of any size, some rows at a time ------------------------------------------------------------
# Promises: the same values as `read_table` gives, in the same order; of a form that can be read in parts the
# memory holds some ten thousand rows at a time. Workbooks and LIBSVM files are read whole.


class TableParts:
    """A table of which no row is read yet. ConfigError."""

    def __init__(self, source: str | Path | Database, options: ReadOptions = AS_USUAL) -> None:
        self._source = source_at(source, options)
        self.shown = self._source.shown
        """Its path, address or database, for messages."""

    def check_columns(self, columns: Collection[str]) -> None:
        """ConfigError that names the first column that is not there, where that is known before rows are
        read."""
        with reading(self.shown, self._source.form):
            names = self._source.names()
        if names is not None:
            check_distinct_names(names, self.shown)
            self._source.check_columns(names, columns)

    def read(
        self, columns: Collection[str], as_text: Collection[str] = ()
    ) -> "Iterator[pa.Table | SparseTable]":
        """Yield the rows of these columns in parts; of columns that are kept as text in a text file the text,
        not the number that it spells."""
        with reading(self.shown, self._source.form):
            for part in self._source.parts(columns, as_text):
                if isinstance(part, SparseTable):
                    yield part
                    continue
                for first in range(0, part.num_rows, PART_ROWS):
                    yield part.slice(first, PART_ROWS)

    @contextmanager
    def named(self, before: int = 0) -> Iterator[None]:
        """Name the source in errors, and the row in it. before: the rows before those that are worked at."""
        try:
            yield
        except ConfigError as error:
            if isinstance(error, BadRow):
                error = error.at(error.row + before)
                error = error.on_line(self._source.line_of(error.row))
            raise ConfigError(f"{self.shown}: {error.public}", error.detail) from None
