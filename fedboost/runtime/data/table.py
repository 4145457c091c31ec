"""Tables from files (`FORMS` lists them), databases and memory (Arrow streams, pandas, mappings, scipy)."""

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from fedboost.errors import ConfigError
from fedboost.runtime.data.database import AS_USUAL, Database, ReadOptions, database_of
from fedboost.runtime.data.locations import TOGETHER, Locations, check_scratch, first_line, locations_of
from fedboost.runtime.data.parquet import ParquetFiles, ParquetTable, keep, normal_table, opened, read_query
from fedboost.runtime.data.text import (
    COMPRESSIONS,
    Delimited,
    SparseTable,
    json_names,
    json_parts,
    line_of,
    read_json_lines,
    read_libsvm,
    read_workbook,
    with_source,
)
from fedboost.runtime.data.values import BadRow, column_of, give_back, spelled_as, texts
from fedboost.views.words import shorten

# ---- Forms of table files, by suffix --------------------------------------------------------------------
# Promises: a row of `FORMS` says all that there is to say of a form; each is read whole, or in parts.


PART_ROWS = 1 << 16
"""Rows of a part, where a form does not say it itself."""
TEXT = ("separator", "decimal", "encoding", "na")


Parts: TypeAlias = "Callable[[Locations, ReadOptions, Collection[str], Collection[str]], Iterator[pa.Table]]"


@dataclass(frozen=True)
class Form:
    """A way of reading files of some suffixes. `parts` yields the rows of some columns; those of the last
    argument as the text that is in the file, where it is text."""

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Locations, ReadOptions], "pa.Table | SparseTable"]
    names: "Callable[[Locations, ReadOptions], list[str]] | None" = None
    parts: "Parts | None" = None
    options: tuple[str, ...] = ()
    packed: bool = False
    """True if its files may be compressed, which a second suffix says."""
    rows: Callable[[Locations], int] | None = None
    """How many rows there are, where that is known beforehand."""

    @property
    def every_suffix(self) -> tuple[str, ...]:
        """Its suffixes, also those of compressed files."""
        if not self.packed:
            return self.suffixes
        return tuple(s + more for s in self.suffixes for more in ("", *COMPRESSIONS))


def _delimited(locations: Locations, options: ReadOptions) -> Delimited:
    return Delimited(locations.files[0], options)


def _feather(locations: Locations, options: ReadOptions) -> "pa.Table":
    with locations.files[0].open() as file:
        return ipc.open_file(file).read_all()


def _feather_names(locations: Locations, options: ReadOptions) -> list[str]:
    with locations.files[0].open() as file:
        return list(ipc.open_file(file).schema.names)


def _feather_parts(
    locations: Locations, options: ReadOptions, columns: Collection[str], as_text: Collection[str]
) -> "Iterator[pa.Table]":
    with locations.files[0].open() as file:
        reader = ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)]).select(list(columns))


def _libsvm(locations: Locations, options: ReadOptions) -> SparseTable:
    with locations.files[0].open() as file:
        return read_libsvm(file, locations.shown)


FORMS = (
    Form(
        "CSV",
        (".csv", ".tsv"),
        lambda locations, options: _delimited(locations, options).read(),
        lambda locations, options: _delimited(locations, options).names(),
        lambda locations, options, columns, as_text: _delimited(locations, options).parts(columns, as_text),
        TEXT,
        packed=True,
    ),
    Form(
        "Parquet",
        TOGETHER,
        lambda locations, options: ParquetFiles(locations).read(),
        lambda locations, options: list(ParquetFiles(locations).head.column_names),
        lambda locations, options, columns, as_text: ParquetFiles(locations).parts(columns, PART_ROWS),
        rows=lambda locations: ParquetFiles(locations).num_rows,
    ),
    Form("Feather", (".feather", ".arrow"), _feather, _feather_names, _feather_parts),
    Form(
        "JSON lines",
        (".jsonl", ".ndjson"),
        lambda locations, options: read_json_lines(locations.files[0]),
        lambda locations, options: json_names(locations.files[0]),
        lambda locations, options, columns, as_text: json_parts(locations.files[0], columns, as_text),
        packed=True,
    ),
    Form(
        "Excel",
        (".xlsx",),
        lambda locations, options: read_workbook(locations.files[0], options),
        options=("na", "sheet"),
    ),
    Form("LIBSVM", (".libsvm", ".svm"), _libsvm),
)
SUFFIXES = tuple(suffix for form in FORMS for suffix in form.every_suffix)


def form_of(locations: Locations, options: ReadOptions) -> Form:
    """The form of a file, by its name; one that ends in .gz alone is taken for CSV. ConfigError if there is
    none, if the file is empty, and for options that are not of this form."""
    location = locations.files[0]
    form = next((form for form in FORMS if location.name.endswith(form.every_suffix)), None)
    if form is None and location.name.endswith(tuple(COMPRESSIONS)) and location.name.count(".") == 1:
        form = FORMS[0]
    if form is None:
        if location.path is not None and not location.path.exists():
            raise ConfigError(f"{location.shown}: no such file or folder")
        suffix = "." + location.name.rpartition(".")[2] if "." in location.name else ""
        known = ", ".join(suffix for form in FORMS for suffix in form.suffixes)
        packed = f"CSV and JSON lines also with {', '.join(COMPRESSIONS)} behind"
        raise ConfigError(f"{location.shown}: unknown suffix {suffix!r}; known: {known}; {packed}")
    for name in options.chosen:
        if name not in form.options:
            for_what = ", ".join(s for f in FORMS if name in f.options for s in f.suffixes)
            raise ConfigError(f"{location.shown}: {name} is an option for {for_what}; leave it out")
    _check_there(locations)
    return form


def _check_there(locations: Locations) -> None:
    if locations.together:
        return
    location = locations.files[0]
    try:
        with location.open() as file:
            empty = file.size() == 0
    except FileNotFoundError:
        raise ConfigError(f"{location.shown}: no such file") from None
    except PermissionError:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), location.shown) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{location.shown}: cannot be read", why) from None
    if empty:
        raise ConfigError(f"{location.shown}: the file is empty")


# ---- Tables from files (`FORMS` lists them), databases and memory (Arrow streams, pandas ----------------


Table: TypeAlias = "pa.Table | ParquetTable | SparseTable"


def read_table(
    source: Path | str | Database, scratch: Path | None = None, options: ReadOptions = AS_USUAL
) -> "Table":
    """The table in a file, by its suffix (`SUFFIXES`), in a folder or glob of Parquet files, at an address
    (s3://, https://), or of a query; with a scratch folder its rows stay where they are, and must be Parquet.
    Raises ConfigError with the full path."""
    if isinstance(source, Database):
        check_no_options(source, options)
        return read_query(source)
    if isinstance(source, str) and (database := database_of(source)):
        raise ConfigError(f"{database}: is a database; in Python give fb.Database(URI, QUERY)")
    if re.match(r"(postgres(ql)?|sqlite3?|duckdb):", str(source)):
        raise ConfigError("a database is read with --query, which is not for this table; export its rows")
    check_scratch(scratch)
    locations = locations_of(source, scratch)
    form = form_of(locations, options)
    with as_config_error(locations, form.name):
        if scratch is not None:
            return _stored(locations, scratch, form.name)
        table = form.read(locations, options)
        give_back()
    if isinstance(table, SparseTable):
        return table
    return with_source(distinct(table, locations.shown), locations, options)


@contextmanager
def as_config_error(locations: Locations, form: str) -> Iterator[None]:
    """Raise ConfigError for what can go wrong with a file."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"{locations.shown}: no such file") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        packed = isinstance(error, OSError) and locations.files[0].name.endswith(tuple(COMPRESSIONS))
        damaged = "; it is cut off or damaged: copy it again" if packed else ""
        raise ConfigError(
            f"{locations.shown}: cannot be read as {form}", first_line(error) + damaged
        ) from None


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
            return distinct(normal_table(pa.table(data)), f"the {_word(kind)}")
        if hasattr(data, "__arrow_c_array__") and not _is_column(data):
            return distinct(normal_table(pa.table(pa.record_batch(data))), f"the {_word(kind)}")
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


def _word(kind: type) -> str:
    return "table" if kind.__module__.startswith("pyarrow") else kind.__name__


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


def _stored(locations: Locations, scratch: Path, form: str) -> ParquetTable:
    if form != "Parquet":
        raise ConfigError(f"{locations.shown}: with a scratch folder the table must be in Parquet files")
    table = ParquetTable(locations, scratch)
    distinct(table.head, locations.shown)
    return table


def distinct(table: "pa.Table", source: str) -> "pa.Table":
    """The table. ConfigError if two columns have one name."""
    twice = next((name for name, count in Counter(table.column_names).items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"{source}: there are two columns named {twice!r}")
    return table


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
    if not isinstance(table, ParquetTable):
        yield dense_of(table)
        return
    for group in range(len(table.ends) - 1):
        yield table.group(group, column)


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
    if isinstance(table, ParquetTable):
        return RenamedParquet(table, columns, levels)
    return _renamed(table, columns, levels)


class RenamedParquet(ParquetTable):
    """A stored table under other names."""

    def __init__(self, table: ParquetTable, columns: Names, levels: Mapping[str, Names]) -> None:
        self._table, self._columns, self._levels = table, columns, levels
        self.head = _renamed(table.head, columns, levels)
        self.ends, self.in_memory = table.ends, table.in_memory

    def group(self, number: int, column: str) -> "pa.Table":
        """A group of rows of one column. ConfigError if the file has become another, or is gone."""
        own = self._columns[column]
        return _renamed(self._table.group(number, own), {column: own}, self._levels)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array in a file without a name, or in memory. ConfigError if there is no room for it."""
        return self._table.allocate(shape, dtype)


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
    """A table in a file, of which no row is read yet."""

    def __init__(self, source: str | Path, options: ReadOptions = AS_USUAL) -> None:
        self._options, self._locations = options, locations_of(source)
        self._form = form_of(self._locations, options)
        self.shown = self._locations.shown
        """Its path or address, for messages."""
        with as_config_error(self._locations, self._form.name):
            self.rows = self._form.rows(self._locations) if self._form.rows else None
            """The number of rows, where it is known beforehand."""

    def check_columns(self, columns: Collection[str]) -> None:
        """ConfigError that names the first column that is not there."""
        if self._form.names is None:
            return
        with as_config_error(self._locations, self._form.name):
            names = self._form.names(self._locations, self._options)
        head = distinct(pa.table([pa.nulls(0)] * len(names), names=names), self.shown)
        with self.named():
            for name in columns:
                column_of(head, name)

    def read(
        self, columns: Collection[str], as_text: Collection[str] = ()
    ) -> "Iterator[pa.Table | SparseTable]":
        """Yield the rows of these columns in parts; of columns that are kept as text in a text file the text,
        not the number that it spells."""
        with as_config_error(self._locations, self._form.name):
            if self._form.parts is None:
                yield from _parts_of(self._form.read(self._locations, self._options))
                return
            for part in self._form.parts(self._locations, self._options, columns, as_text):
                yield from _parts_of(part)

    @contextmanager
    def named(self, before: int = 0) -> Iterator[None]:
        """Name the file in errors, and the row in it. before: the rows before those that are worked at."""
        try:
            yield
        except ConfigError as error:
            if isinstance(error, BadRow):
                error = error.moved(before)
                single = not self._locations.together
                location = self._locations.files[0]
                error = error.on_line(line_of(location, self._options, error.row) if single else None)
            raise ConfigError(f"{self.shown}: {error.public}", error.detail) from None


class QueryParts(TableParts):
    """The rows of a query, of which none is asked for yet."""

    rows = None

    def __init__(self, source: Database) -> None:
        self._database = source
        self.shown = str(source)

    def check_columns(self, columns: Collection[str]) -> None:
        """Nothing: what a query yields is known once it runs."""

    def read(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        """Yield the rows of these columns in parts."""
        with opened(self._database) as batches:
            for batch in batches:
                part = distinct(pa.Table.from_batches([batch], batches.schema), self.shown)
                with self.named():
                    for name in columns:
                        column_of(part, name)
                yield part.select(list(columns))

    @contextmanager
    def named(self, before: int = 0) -> Iterator[None]:
        """Name the database in errors. before: the rows before those that are worked at."""
        try:
            yield
        except ConfigError as error:
            moved = error.moved(before) if isinstance(error, BadRow) else error
            raise ConfigError(f"{self.shown}: {moved.public}", moved.detail) from None


def in_parts(source: str | Path | Database, options: ReadOptions = AS_USUAL) -> TableParts:
    """A table some rows at a time. ConfigError."""
    if not isinstance(source, Database):
        return TableParts(source, options)
    check_no_options(source, options)
    return QueryParts(source)


def _parts_of(table: "pa.Table | SparseTable") -> "Iterator[pa.Table | SparseTable]":
    if isinstance(table, SparseTable):
        yield from table.parts()
        return
    for first in range(0, table.num_rows, PART_ROWS):
        yield table.slice(first, PART_ROWS)
