"""Reads tables from files (`FORMS` lists the formats), databases, and objects in memory such as Arrow
streams, pandas DataFrames, mappings and scipy matrices."""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import ipc, types

from fedboost.errors import ConfigError
from fedboost.runtime.data.database import DEFAULT_OPTIONS, ColumnMap, Database, ReadOptions, database_of
from fedboost.runtime.data.locations import (
    COMPRESSIONS,
    File,
    Locations,
    Source,
    check_scratch,
    locations_of,
    reading,
)
from fedboost.runtime.data.parquet import NormalBatches, ParquetFiles, ParquetTable, Query, keep
from fedboost.runtime.data.text import Delimited, JsonLines, LibSvm, SparseTable, Workbook
from fedboost.runtime.data.values import BadRow, check_distinct_names, give_back, read_as
from fedboost.views.words import shorten

# ---- File formats, by suffix ----------------------------------------------------------------------------


class Feather(File):
    form, suffixes = "Feather", (".feather", ".arrow")

    def names(self) -> list[str]:
        with self._reader() as reader:
            return list(reader.schema.names)

    def read(self) -> "pa.Table":
        with self._reader() as reader:
            return reader.read_all()

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        with self._reader() as reader:
            for number in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(number)]).select(list(columns))

    @contextmanager
    def _reader(self) -> "Iterator[ipc.RecordBatchFileReader]":
        with self.location.open() as file:
            yield ipc.open_file(file)


FORMS: tuple[type[File], ...] = (Delimited, ParquetFiles, Feather, JsonLines, Workbook, LibSvm)


def source_at(
    source: Path | str | Database, options: ReadOptions = DEFAULT_OPTIONS, scratch: Path | None = None
) -> Source:
    """Locate a table without reading its rows. Returns a `Source`, which can read them.

    Args:
        source: path of a file, folder or glob of Parquet files, an s3:// or https:// address, or a
            `Database`.
        options: how to read a file.
        scratch: folder for the temporary copy of a downloaded file.

    Raises:
        ConfigError: the source does not exist or has an unknown format, or an option does not apply to it.
    """
    if isinstance(source, Database):
        check_no_options(source, options)
        return Query(source)
    if isinstance(source, str) and (database := database_of(source)):
        raise ConfigError(
            "query-missing",
            f"{database} is a database and needs a query; in Python, use fb.Database(URI, QUERY)",
        )
    if re.match(r"(postgres(ql)?|sqlite3?|duckdb):", str(source)):
        raise ConfigError(
            "source-database", "this table cannot be read from a database; export its rows to a file"
        )
    locations = locations_of(source, scratch)
    form = _form_of(locations)
    for name in options.chosen:
        if name not in form.takes:
            for_what = ", ".join(s for other in FORMS if name in other.takes for s in other.suffixes)
            raise ConfigError(
                "source-option-unfit",
                f"{locations.shown}: {name} applies only to {for_what} files; remove it",
            )
    with reading(locations.shown, form.form):
        if not locations.together:
            with locations.files[0].open() as file:
                if file.size() == 0:
                    raise ConfigError("table-empty", f"{locations.shown}: the file is empty")
        return form(locations, options)


def _form_of(locations: Locations) -> type[File]:
    """Return the format that is indicated by the suffix of a file. A compressed file without another suffix,
    such as `t.gz`, is read as CSV."""
    location = locations.files[0]
    for form in FORMS:
        if location.name.endswith(form.every_suffix()):
            return form
    if location.name.endswith(tuple(COMPRESSIONS)) and location.name.count(".") == 1:
        return Delimited
    if location.path is not None and not location.path.exists():
        raise ConfigError("source-not-found", f"{location.shown}: no such file or folder")
    suffix = "." + location.name.rpartition(".")[2] if "." in location.name else ""
    known = ", ".join(suffix for form in FORMS for suffix in form.suffixes)
    packed = f"CSV and JSON lines may also end in {', '.join(COMPRESSIONS)}"
    raise ConfigError(
        "source-suffix", f"{location.shown} has the unknown suffix {suffix!r}; use one of {known}; {packed}"
    )


# ---- Tables ---------------------------------------------------------------------------------------------


Table: TypeAlias = "pa.Table | ParquetTable | SparseTable"


def read_table(
    source: Path | str | Database, scratch: Path | None = None, options: ReadOptions = DEFAULT_OPTIONS
) -> "Table":
    """Read a table. source, options: as for `source_at`; scratch: if given, files must be in Parquet format,
    and their rows are not loaded into memory. Raises ConfigError if the table cannot be read."""
    check_scratch(scratch)
    found = source_at(source, options, scratch)
    with reading(found.shown, found.form):
        if scratch is not None and isinstance(found, ParquetFiles):
            return found.stored(scratch)
        if scratch is not None and isinstance(found, File):
            raise ConfigError(
                "scratch-needs-parquet",
                f"{found.shown} must be Parquet if scratch is set; convert it, or remove scratch",
            )
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
    source: Path | str | Database, scratch: Path | None, options: ReadOptions = DEFAULT_OPTIONS
) -> "Table":
    """Like `read_table`, but the rows of a query are always in a temporary file, not in memory."""
    if not isinstance(source, Database):
        return read_table(source, scratch, options)
    check_no_options(source, options)
    return keep(source, scratch)


def check_no_options(source: Database, options: ReadOptions) -> None:
    if options.chosen:
        raise ConfigError(
            "source-option-unfit",
            f"{source} is a database, but {next(iter(options.chosen))} applies only to files; remove it",
        )


def is_collection(data: object) -> bool:
    """Return whether this is a Dask collection. Dask need not be installed."""
    return type(data).__module__.split(".")[0] in ("dask", "dask_expr") and hasattr(data, "to_delayed")


def as_table(data: object) -> "pa.Table | SparseTable":
    """Convert an object to a table, or read the table that it refers to. Raises ConfigError if that is not
    possible.

    Args:
        data: a path, a `Database`, a pandas DataFrame (its index is dropped), an Arrow stream or array (from
            pyarrow, polars or DuckDB), or a mapping of column names to values. In a mapping, a numpy or scipy
            matrix with the key `m` becomes the columns m0, m1, ...
    """
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
        message = "; ".join(str(part) for part in error.args)  # pandas errors have several parts
        raise ConfigError(
            "table-unconvertible", f"cannot convert this {kind.__name__} to a table", shorten(message, 200)
        ) from None
    if hasattr(data, "__array__") and getattr(data, "ndim", 0) == 2:
        raise ConfigError(
            "table-matrix-unnamed",
            f"a matrix ({kind.__name__}) has no column names; pass {{'x': matrix, 'y': labels}}",
        )
    if kind.__module__.split(".")[0] == "polars" and hasattr(data, "collect"):
        raise ConfigError(
            "table-not-collected", f"a {kind.__name__} has no rows yet; pass the result of its .collect()"
        )
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    raise ConfigError(
        "table-type-unsupported",
        f"cannot read a table from {home}{kind.__qualname__}: pass a path, a pandas or polars DataFrame, "
        "an Arrow table or stream, or a mapping of column names to values",
    )


def _is_column(data: object) -> bool:
    """Return whether this is a single unnamed column: a Series, or an Arrow array that is not a struct."""
    kind = getattr(data, "type", None)
    return hasattr(data, "dtype") or (isinstance(kind, pa.DataType) and not pa.types.is_struct(kind))


def _normal(table: "pa.Table", kind: type) -> "pa.Table":
    word = "table" if kind.__module__.startswith("pyarrow") else kind.__name__
    check_distinct_names(table.column_names, f"the {word}")
    batches = NormalBatches(table.to_reader())  # copies only the columns whose type changes
    return pa.Table.from_batches(batches, batches.schema)


def _by_column(data: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the columns of a mapping, with each numpy matrix split into one column per matrix column."""
    columns: dict[str, Any] = {}
    for name, values in data.items():
        if getattr(values, "ndim", 1) != 2 or not hasattr(values, "__array__"):
            columns[str(name)] = values
            continue
        for number in range(values.shape[1]):
            if f"{name}{number}" in {*columns, *data}:
                raise ConfigError(
                    "table-column-twice",
                    f"two columns are named '{name}{number}'; rename one of them, or the matrix",
                )
            columns[f"{name}{number}"] = values[:, number]
    return columns


def dense_of(table: "Table") -> "pa.Table":
    """Return the dense columns of a table. For a file-backed table, return its columns without rows."""
    match table:
        case SparseTable():
            return table.dense
        case ParquetTable():
            return table.head
        case _:
            return table


def _is_sparse(values: object) -> bool:
    """Return whether this is a scipy sparse matrix or array, without importing scipy."""
    return type(values).__module__.startswith("scipy.sparse") and hasattr(values, "tocsc")


def parts_of(table: "Table", column: str) -> Iterator["pa.Table"]:
    """Yield the table as one part or, if it is file-backed, its row groups with only the given column."""
    return table.groups(column) if isinstance(table, ParquetTable) else iter([dense_of(table)])


# ---- Line numbers: where a table's row is in the text file it was read from -----------------------------
# Row 1 is the first below the header. A blank line is a line, but not a row.


_KEY = b"fedboost.file"  # metadata key of a table: its file, and the options it was read with


def without_source(table: "pa.Table | SparseTable") -> "Any":
    """Return the table without the metadata that names its file, for rows in another order."""
    if isinstance(table, SparseTable):
        return replace(table, dense=table.dense.replace_schema_metadata())
    return table.replace_schema_metadata()


def in_file(error: ConfigError, table: "pa.Table") -> ConfigError:
    """Return the error with its row's line number, if the table was read from a text file and it is known."""
    facts = (table.schema.metadata or {}).get(_KEY)
    if facts is None or not isinstance(error, BadRow):
        return error
    source = json.loads(facts)
    path = Path(source["path"])
    if _state(path) != source["state"]:
        return error
    return error.on_line(source_at(path, ReadOptions(**source["options"])).line_of(error.row))


def row_of(table: "pa.Table", row: int) -> str:
    """Describe a row for a message, e.g. `row 3 (line 5 of the file)`. row: index of the row, counted from 0;
    the message counts from 1."""
    return in_file(BadRow("table-value-invalid", "", "", row), table).detail.strip().removeprefix("in ")


def _state(path: Path) -> list[int]:
    try:
        known = os.stat(path)
    except OSError:
        return []
    return [known.st_mtime_ns, known.st_size]


# ---- Renamed tables: columns, levels and units as in the terms ------------------------------------------
# Rows in files stay there, and are converted when they are read.


Names = Mapping[str, str]  # name in the terms -> name in the table
NO_MAPS: Mapping[str, ColumnMap] = {}
AS_IT_IS = ColumnMap()


def renamed(
    table: Table, columns: Names, levels: Mapping[str, Names], maps: Mapping[str, ColumnMap] = NO_MAPS
) -> "pa.Table | ParquetTable":
    """Return the columns named in `columns` under the names that the terms use for them.

    Levels (the values of a categorical column) are also renamed. A level without a name in the terms is
    marked as such, so that it is never mistaken for another level.

    Args:
        columns: column name in the terms -> column name in the table.
        levels: column name in the terms -> level in the terms -> level in the table.
        maps: column name in the terms -> unit, and levels of which others are not changed.

    Raises:
        ConfigError: a column is missing or cannot be converted, or the table is sparse.
    """
    if isinstance(table, SparseTable):
        raise ConfigError(
            "table-sparse-unnamed",
            "the table is a LIBSVM file without column names; use a table with a header",
        )
    if not isinstance(table, ParquetTable):
        return _renamed(table, columns, levels, maps)

    def group(number: int, column: str) -> "pa.Table":
        own = columns[column]
        return _renamed(table.group(number, own), {column: own}, levels, maps)

    return replace(table, head=_renamed(table.head, columns, levels, maps), group=group)


def _renamed(
    table: "pa.Table", columns: Names, levels: Mapping[str, Names], maps: Mapping[str, ColumnMap]
) -> "pa.Table":
    fields, values = [], []
    for name, own in columns.items():
        column = read_as(table, own, levels.get(name), maps.get(name, AS_IT_IS))
        field = table.schema.field(own).with_name(name)
        if types.is_floating(column.type):
            field = field.with_metadata({})  # not the text with decimal commas that it may have been
        fields.append(field.with_type(column.type))
        values.append(column)
    return pa.table(values, schema=pa.schema(fields, metadata=table.schema.metadata))
