"""Tables whose rows are not held in memory: Parquet files, which are read in place, and database queries,
whose rows are streamed.

Parquet files are read on demand, one column and one row group at a time. Arrays computed from them are
memory-mapped from files in the scratch folder. These files are unlinked as soon as they are open, so nothing
is left behind, however the process ends.
"""

import contextlib
import mmap
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet, types

from fedboost.errors import ConfigError, quoted
from fedboost.fixedpoint import Float32, Int64
from fedboost.gbdt.binned import allocate_in_memory
from fedboost.runtime.data.database import (
    DEFAULT_OPTIONS,
    DUCKDB,
    POSTGRESQL,
    SQLITE,
    Database,
    ReadOptions,
    check_query,
)
from fedboost.runtime.data.locations import (
    PART_ROWS,
    TOGETHER,
    File,
    Location,
    Locations,
    Source,
    check_scratch,
)
from fedboost.runtime.data.values import BadRow, check_distinct_names, give_back
from fedboost.system import reserve

# ---- Column types of databases and DataFrames, converted to those that fedboost reads -------------------
# PostgreSQL's numeric, which arrives as text, becomes float64, as every decimal does. json and uuid become
# their text, and string views become strings. No value changes otherwise.


NUMERIC = "numeric"


class NormalBatches:
    """Iterator over the batches of an Arrow stream, converted to the column types that fedboost reads. It can
    be consumed only once. faults: returns a context manager that translates errors of the stream."""

    def __init__(
        self, reader: "pa.RecordBatchReader", faults: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        self._reader, self._faults = reader, faults
        fields = (pa.field(field.name, normal_type(field.type)) for field in reader.schema)
        self.schema: pa.Schema = pa.schema([*fields])

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        with self._faults():
            for batch in self._reader:
                pairs = zip(batch.columns, self.schema.types, strict=True)
                yield pa.record_batch([normal_column(*pair) for pair in pairs], schema=self.schema)


def normal_type(kind: "pa.DataType") -> "pa.DataType":
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, normal_type(kind.value_type), kind.ordered)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return pa.string()
        if getattr(kind, "type_name", "") == NUMERIC:
            return pa.float64()
        storage = kind.storage_type
        is_text = types.is_string(storage) or types.is_large_string(storage)
        return storage if is_text or kind.extension_name == "arrow.bool8" else kind
    return pa.large_string() if kind == pa.string_view() else kind


def normal_column(column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """Convert a column to `kind`, the type that `normal_type` returned for it."""
    if column.type == kind:
        return column
    if types.is_dictionary(kind):
        words = normal_column(column.dictionary, kind.value_type)
        return pa.DictionaryArray.from_arrays(column.indices, words, ordered=kind.ordered)
    if isinstance(column.type, pa.BaseExtensionType):
        if column.type.extension_name == "arrow.uuid":
            return pa.array([None if value is None else str(value) for value in column.to_pylist()], kind)
        column = column.storage
    return column if column.type == kind else column.cast(kind)


# ---- Streamed database rows: PostgreSQL and SQLite through ADBC, DuckDB through its own package ---------
# Rows arrive a few thousand at a time, in the query's order. Nothing is written: the transaction is
# read-only, or the file is opened for reading. Errors are in the driver's own words, without passwords.


BATCH_ROWS = 1 << 14
"""Rows per batch from SQLite and DuckDB. SQLite infers a column's type from the first batch."""
BATCH_BYTES = 4 << 20  # bytes per batch of PostgreSQL's driver
CONNECT_SECONDS = 10  # seconds to wait for a server, unless the URI or PGCONNECT_TIMEOUT sets them
_MODULES = {
    POSTGRESQL: ("adbc_driver_postgresql.dbapi", "sql"),
    SQLITE: ("adbc_driver_sqlite.dbapi", "sql"),
    DUCKDB: ("duckdb", "duckdb"),
}
"""Kind of database -> module of its driver, and the extra that installs the driver."""
_SIGNS = {SQLITE: (0, b"SQLite format 3\0"), DUCKDB: (8, b"DUCK")}
"""Kind of database -> offset and bytes of the signature in its files."""
_IN_ORDER = (
    "SET TRANSACTION READ ONLY",
    "SET LOCAL synchronize_seqscans = off",
    "SET LOCAL max_parallel_workers_per_gather = 0",
)
"""Statements sent to PostgreSQL before the query. They forbid writes, and make rows arrive in storage order
if the query has no ORDER BY."""
_ADVICE = {
    "password authentication failed": "set PGPASSWORD, or PGPASSFILE with a line for this host and user",
    "no password supplied": "set PGPASSWORD, or PGPASSFILE with a line for this host and user",
    "read-only transaction": "the query may only read",
    "read-only mode": "the query may only read",
    "readonly database": "the query may only read",
    "permission denied": "ask the owner of the database to GRANT SELECT to this user",
}
"""Text in a driver's error message -> advice to append to it."""


@contextmanager
def opened(database: Database) -> Iterator[NormalBatches]:
    """Context manager that runs a database query and yields its rows, readable until it ends. Raises
    ConfigError if the driver is missing, the query fails, or a column's type is unsupported."""
    query = check_query(database.query, database)
    module, extra = _MODULES[database.kind]
    try:
        driver = import_module(module)
    except ImportError:
        raise ConfigError(
            "extra-missing",
            f"{database} requires the {database.kind} driver: run pip install 'fedboost[{extra}]'",
        ) from None
    if database.kind != POSTGRESQL:
        _check_file(database)
    with ExitStack() as held:
        with _explained(driver, database):
            reader = _READERS[database.kind](driver, database, query, held.enter_context)
        for field in reader.schema:
            if reason := _unreadable(field):
                kind = "numeric" if reason == "money" else "text"
                raise ConfigError(
                    "query-column-type",
                    f"{database}: column {field.name!r} has type {reason}, neither numeric nor text; write "
                    f"CAST({field.name} AS {kind}) in the query, or remove the column",
                )
        faults = partial(_explained, driver, database, reader.schema.names)
        check_distinct_names(reader.schema.names, str(database), ANOTHER_NAME)
        yield NormalBatches(reader, faults)


def _check_file(database: Database) -> None:
    path = database.path.absolute()
    if not path.is_file():
        what = "it is a directory" if path.is_dir() else "no such file"
        raise ConfigError(
            "source-not-found", f"{path}: {what}; an absolute path has four slashes: {database.kind}:////..."
        )
    offset, sign = _SIGNS[database.kind]
    with path.open("rb") as file:
        head = file.read(offset + len(sign))
    if head and head[offset:] != sign:
        raise ConfigError(
            "source-not-database", f"{path} is not a {database.kind} database; check the file name"
        )


Enter = Callable[[AbstractContextManager[Any]], Any]  # enters a context that ends once the rows are read


def _ask_postgresql(driver: Any, database: Database, query: str, enter: Enter) -> "pa.RecordBatchReader":
    from adbc_driver_postgresql import StatementOptions

    cursor = enter(enter(driver.connect(_dialled(database.uri))).cursor())
    for statement in _IN_ORDER:
        cursor.execute(statement)
    cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
    cursor.execute(query)
    return cursor.fetch_record_batch()


def _dialled(uri: str) -> str:
    """Return the URI with a connection timeout and the program's name added to its parameters."""
    wanted = {"fallback_application_name": "fedboost"}
    if "PGCONNECT_TIMEOUT" not in os.environ and "connect_timeout=" not in uri:
        wanted["connect_timeout"] = str(CONNECT_SECONDS)
    parameters = "&".join(f"{key}={value}" for key, value in wanted.items())
    return f"{uri}{'&' if '?' in uri else '?'}{parameters}"


def _ask_sqlite(driver: Any, database: Database, query: str, enter: Enter) -> "pa.RecordBatchReader":
    from adbc_driver_sqlite import StatementOptions

    uri = f"file:{quote(str(database.path.absolute()))}?mode=ro"
    cursor = enter(enter(driver.connect(uri)).cursor())
    cursor.execute("PRAGMA query_only = ON")
    cursor.adbc_statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(BATCH_ROWS)})
    cursor.execute(query)
    return cursor.fetch_record_batch()


def _ask_duckdb(driver: Any, database: Database, query: str, enter: Enter) -> "pa.RecordBatchReader":
    settings = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    connection = enter(driver.connect(str(database.path), read_only=True, config=settings))
    statements = connection.extract_statements(query)  # COPY writes files, and several would all run
    if [statement.type for statement in statements] != [driver.StatementType.SELECT]:
        raise ConfigError("query-not-select", f"{database}: the query must be a single SELECT statement")
    return connection.sql(statements[0]).to_arrow_reader(BATCH_ROWS)


_READERS = {POSTGRESQL: _ask_postgresql, SQLITE: _ask_sqlite, DUCKDB: _ask_duckdb}


def _unreadable(field: "pa.Field") -> str:
    """Return the database's name for an unsupported column type, or '' if the type is supported."""
    word = (field.metadata or {}).get(b"POSTGRESQL:type", b"").decode()
    kind = normal_type(field.type)
    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        *(types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_date),
        *(types.is_time, types.is_timestamp, types.is_string, types.is_large_string, types.is_null),
    )
    if word != "money" and any(test(kind) for test in tests):
        return ""
    if word.startswith("_"):  # PostgreSQL's name for an array
        return f"{word[1:]}[]"
    return word or str(getattr(kind, "type_name", "") or str(kind).partition("<")[0])


@contextmanager
def _explained(driver: Any, database: Database, names: Sequence[str] = ()) -> Iterator[None]:
    """Context manager that converts a driver's error to a one-line ConfigError, which contains neither the
    query nor passwords. names: column names of the result."""
    try:
        yield
    except (driver.Error, pa.ArrowException, OSError) as error:
        raise ConfigError("query-failed", f"{database}: {_line(str(error), names)}") from None


def _line(text: str, names: Sequence[str]) -> str:
    if mismatch := re.search(r"Type mismatch in column (\d+): expected (\w+) but got (\S+)", text):
        name = names[int(mismatch[1])]
        return (
            f"column {name!r} has values of several types, {mismatch[2].lower()} first and then "
            f"{mismatch[3].lower()}; write CAST({name} AS REAL) or CAST({name} AS TEXT) in the query"
        )
    line = next((line for line in re.split(r"(?:ERROR|FATAL): +", text)[-1].splitlines() if line.strip()), "")
    line = re.sub(r"^([A-Z_]+: )?(\[\w+\] )?(Failed to [\w ]+: )?(\[\w+\] )?", "", line.strip())
    line = re.sub(r"\.? SQLSTATE: \w+$|:? *failed to allocate memory$", "", line)
    advice = next((advice for sign, advice in _ADVICE.items() if sign in text), "")
    return quoted(line) + (f"; {advice}" if advice else "")


# ---- Stored tables: rows stay in files, since a table may be larger than memory -------------------------


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """A file-backed table: rows in Parquet files, read one column and one row group at a time. Arrays that
    are computed from the rows are kept in the scratch folder, or in memory if there is no scratch folder."""

    head: "pa.Table"
    """A table with the same columns and no rows."""
    ends: Int64
    """Index of the first row of each row group, followed by the number of rows: int64 [groups + 1]."""
    group: Callable[[int, str], "pa.Table"]
    """Reads one column of a row group. Raises ConfigError if the file was changed or removed."""
    scratch: Path | None = None
    in_memory: bool = False
    """True if feature values are kept in memory once they are read."""

    @property
    def num_rows(self) -> int:
        return int(self.ends[-1])

    def groups(self, column: str) -> "Iterator[pa.Table]":
        return (self.group(number, column) for number in range(len(self.ends) - 1))

    def share(self, ranges: Sequence[tuple[int, int]]) -> "ParquetTable":
        """Return a table that has only some of the rows and keeps their feature values in memory. ranges:
        first row (inclusive) and last row (exclusive) of each range."""
        pieces: list[tuple[int, int, int]] = []
        for first, last in ranges:
            groups = np.searchsorted(self.ends, [first, last - 1], side="right") - 1
            for group in range(int(groups[0]), int(groups[1]) + 1):
                begin, end = map(int, self.ends[group : group + 2])
                pieces.append((group, max(first, begin) - begin, min(last, end) - begin))

        def piece(number: int, column: str) -> "pa.Table":
            group, first, last = pieces[number]
            return self.group(group, column).slice(first, last - first)

        ends = np.cumsum([0, *(last - first for _, first, last in pieces)])
        return replace(self, ends=ends, group=piece, scratch=None, in_memory=True)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Allocate an uninitialised array in an unlinked scratch file, or in memory if there is no scratch
        folder. Raises ConfigError if the scratch folder has too little space."""
        if self.scratch is None:
            return allocate_in_memory(shape, dtype)
        count = int(np.prod(shape))
        size = max(count * dtype.itemsize, 1)
        try:
            with tempfile.TemporaryFile(dir=self.scratch) as file:
                reserve(file, size)
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as error:
            where = f"scratch folder {self.scratch}, {size:,} bytes: {error.strerror}"
            raise ConfigError(
                "scratch-full", "there is not enough space for the columns computed from the rows", where
            ) from None
        return np.frombuffer(mapped, dtype, count).reshape(shape)


# ---- Parquet files as one table -------------------------------------------------------------------------
# Rows are in the order of the files. A folder named `a=1` adds column `a` to the rows in it.


class ParquetFiles(File):
    """One or more Parquet files that form a single table, with their rows in the order of the files. Opening
    them reads no rows. A folder named `a=1` adds a column `a` to the rows of its files."""

    form, suffixes = "Parquet", TOGETHER

    def __init__(self, locations: Locations, options: ReadOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(locations, options)
        self._files = locations.files
        self._metadata = []
        heads = []
        for location in self._files:
            with _opened(location) as file:
                self._metadata.append(file.metadata)
                heads.append(file.schema_arrow)
        for location, head in zip(self._files[1:], heads[1:], strict=True):
            first = self._files[0].shown
            check_same_names(location.shown, head.names, first, heads[0].names)
            for name, kind in zip(heads[0].names, heads[0].types, strict=True):
                if (other := head.field(name).type) != kind:
                    types = f"{other}, but {kind} in {first}"
                    raise ConfigError(
                        "table-types-differ",
                        f"{location.shown}: column {name!r} has type {types}; write both as the same type",
                    )
        self._partitions = _partitions(self._files, heads[0])
        head = pa.Table.from_batches([], heads[0])  # empty_table() imports pandas
        for name, values in self._partitions.items():
            head = head.append_column(name, pa.array([], values.type))
        check_distinct_names(head.column_names, locations.shown)
        self.head: pa.Table = head
        self.sizes = tuple(metadata.num_rows for metadata in self._metadata)
        """Number of rows of each file."""

    def names(self) -> Sequence[str]:
        return self.head.column_names  # type: ignore[no-any-return]

    def read(self) -> "pa.Table":
        tables = []
        for number, location in enumerate(self._files):
            with _opened(location, self._metadata[number]) as file:
                tables.append(self._completed(number, file.read(), self.names()))
        return pa.concat_tables(tables) if len(tables) > 1 else tables[0]

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        stored = [name for name in columns if name not in self._partitions]
        for number, location in enumerate(self._files):
            with _opened(location, self._metadata[number]) as file:
                for batch in file.iter_batches(PART_ROWS, columns=stored):
                    yield self._completed(number, pa.Table.from_batches([batch]), [*columns])

    def stored(self, scratch: Path | None) -> ParquetTable:
        """Return the table as a `ParquetTable`. Raises ConfigError if the scratch folder is full."""
        files = enumerate(self._metadata)
        groups = [(number, group) for number, file in files for group in range(file.num_row_groups)]
        sizes = (self._metadata[number].row_group(group).num_rows for number, group in groups)

        def read(number: int, column: str) -> "pa.Table":
            return self._group(*groups[number], column)

        table = ParquetTable(self.head, np.cumsum([0, *sizes]), read, scratch)
        table.allocate((1,), np.dtype(np.uint8))  # raises now if the folder is full
        return table

    def _group(self, number: int, group: int, column: str) -> "pa.Table":
        location = self._files[number]
        stored = [] if column in self._partitions else [column]
        try:
            with _opened(location, self._metadata[number], mapped=True) as file:
                return self._completed(number, file.read_row_group(group, stored), [column])
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(
                "table-file-changed", "the table can no longer be read", f"{location.shown}: {error}"
            ) from None

    def _completed(self, number: int, rows: "pa.Table", names: Sequence[str]) -> "pa.Table":
        """Select the named columns from the rows of a file, including columns that come from folder names."""
        named = {name: values[number] for name, values in self._partitions.items()}
        columns = [
            pa.repeat(named[name], rows.num_rows) if name in named else rows.column(name) for name in names
        ]
        return pa.table(columns, names=list(names))


def _opened(location: Location, metadata: Any = None, mapped: bool = False) -> "parquet.ParquetFile":
    try:
        source = location.open() if location.path is None else location.path
        return parquet.ParquetFile(source, metadata=metadata, memory_map=mapped)
    except (pa.ArrowInvalid, OSError) as error:
        if metadata is not None or isinstance(error, FileNotFoundError):
            raise
        raise ConfigError(
            "source-unreadable",
            f"{location.shown} cannot be read as Parquet",
            (str(error).splitlines() or [""])[0],
        ) from None


def check_same_names(shown: str, names: Sequence[str], first: str, expected: Sequence[str]) -> None:
    """Raise ConfigError unless a file has the same columns as the first file, in any order.

    Args:
        shown: name of the file, for messages.
        names: column names of the file.
        first: name of the first file, for messages.
        expected: column names of the first file.
    """
    if (absent := next((name for name in expected if name not in names), None)) is not None:
        raise ConfigError(
            "table-column-missing", f"{shown}: column {absent!r} is missing, but {first} has it"
        )
    if (more := next((name for name in names if name not in expected), None)) is not None:
        raise ConfigError("table-column-extra", f"{shown} has column {more!r}, but {first} does not")


def _partitions(files: Sequence[Location], head: "pa.Schema") -> "dict[str, pa.Array]":
    """Return the columns that come from folder names, with one value per file. A column contains integers if
    all its values are integers, otherwise text."""
    columns = {}
    for name in dict.fromkeys(name for location in files for name in location.partition):
        lacking = next((location for location in files if name not in location.partition), None)
        if lacking is not None:
            raise ConfigError(
                "table-partition-missing",
                f"{lacking.shown} is not in a folder {name}=..., but other files are; move it into one",
            )
        if name in head.names:
            raise ConfigError(
                "table-column-twice",
                f"{files[0].shown} has a column {name!r} and is in a folder of that name; rename one of them",
            )
        values = pa.array([location.partition[name] for location in files], pa.string())
        try:
            columns[name] = values.cast(pa.int64())
        except pa.ArrowInvalid:
            columns[name] = values
    return columns


# ---- Columns of stored tables ---------------------------------------------------------------------------


STRETCH = 1 << 20  # rows read at a time when a whole column is wanted
_NOTHING_AT_HAND: tuple[int, Float32] = (-1, np.empty(0, np.float32))


class ParquetColumn:
    """A column of a file-backed table, as float32. `column[first:last]` reads the rows from first to last
    (exclusive). read: function that converts a table with only this column to numbers. If it raises BadRow,
    the error is raised again with the row's index in the whole table."""

    def __init__(self, table: ParquetTable, name: str, read: Callable[["pa.Table"], Float32]) -> None:
        self.size = table.num_rows
        self._table, self._name, self._read = table, name, read
        self._at_hand = _NOTHING_AT_HAND
        """The row group that was read last, kept for the next slice. A group that was read to its end is
        dropped, because slices are mostly read in order."""

    def __getitem__(self, rows: slice) -> Float32:
        first, last, _ = rows.indices(self.size)
        ends = self._table.ends
        out = np.empty(last - first, np.float32)
        groups = np.searchsorted(ends, [first, last - 1], side="right")
        for group in range(int(groups[0]) - 1, int(groups[1])):
            values, begin = self._group(group), int(ends[group])
            low, high = max(first, begin), min(last, begin + values.size)
            out[low - first : high - first] = values[low - begin : high - begin]
            self._at_hand = (group, values) if high < begin + values.size else _NOTHING_AT_HAND
        return out

    def _group(self, group: int) -> Float32:
        held, values = self._at_hand
        if held == group:
            return values
        try:
            return self._read(self._table.group(group, self._name))
        except BadRow as error:
            raise error.at(error.row + int(self._table.ends[group])) from None

    def kept(self) -> Float32:
        """Return the whole column, float32 [rows], as an array in the scratch folder."""
        out = self._table.allocate((self.size,), np.dtype(np.float32))
        self.read_into(out)
        return out

    def read_into(self, out: Float32) -> None:
        for start in range(0, self.size, STRETCH):
            rows = slice(start, start + STRETCH)
            out[rows] = self[rows]

    def check(self) -> None:
        for start in range(0, self.size, STRETCH):
            self[start : start + STRETCH]


# ---- Streamed rows, kept in a file and read from it column by column ------------------------------------
# Some ten thousand rows are in memory at a time. The file has no name once it is open, and only its owner can
# read it, so nothing is left behind however the process ends.


ANOTHER_NAME = "; rename one with AS another_name"
GROUP_ROWS, GROUP_BYTES = 1 << 16, 1 << 24  # a row group ends after this many rows or bytes


def keep(source: "Database | pa.RecordBatchReader", scratch: Path | None = None) -> ParquetTable:
    check_scratch(scratch)
    if not isinstance(source, Database):
        check_distinct_names(source.schema.names, "the stream", ANOTHER_NAME)
        return _kept(NormalBatches(source), "the stream", scratch)
    with opened(source) as batches:
        return _kept(batches, str(source), scratch)


class Query(Source):
    """The rows of a database query. The query is sent only when the rows are read."""

    form = "rows of a query"

    def __init__(self, database: Database) -> None:
        self._database = database
        self.shown = str(database)

    def read(self) -> "pa.Table":
        with opened(self._database) as batches:
            table = pa.Table.from_batches(batches, batches.schema)
        if not table.num_rows:
            raise ConfigError("table-empty", f"{self.shown}: the query returned no rows")
        return table

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        with opened(self._database) as batches:
            self.check_columns(batches.schema.names, columns)
            for batch in batches:
                yield pa.Table.from_batches([batch], batches.schema).select(list(columns))


def stream_of(data: object) -> "Database | pa.RecordBatchReader | None":
    """Return `data` as a source whose rows can be read only once (a `Database` or an Arrow stream), or None
    if `data` is a table in memory or in a file. Raises ConfigError if a stream cannot be converted."""
    home = type(data).__module__.split(".")[0]
    if isinstance(data, (Database, pa.RecordBatchReader)):
        return data
    lazy = hasattr(data, "__arrow_c_stream__") and home not in ("pandas", "polars", "pyarrow")
    try:
        return pa.RecordBatchReader.from_stream(data) if lazy else None
    except pa.ArrowException as error:
        raise ConfigError(
            "table-unconvertible", f"cannot convert this {type(data).__name__} to a table: {error}"
        ) from None


def _kept(batches: NormalBatches, source: str, scratch: Path | None) -> ParquetTable:
    """Store streamed rows in an unlinked temporary file, and return them as a table. scratch: folder for the
    file (default: the system's temporary folder)."""
    folder = scratch or Path(tempfile.gettempdir())
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the table exists
        with contextlib.ExitStack() as unless_written:
            unless_written.callback(file.close)
            _write(batches, file)
            unless_written.pop_all()
    except OSError as error:
        raise ConfigError(
            "scratch-full",
            f"there is not enough space for the rows of {source}: {folder}: {error.strerror or error}",
        ) from None
    except pa.ArrowException as error:
        raise ConfigError(
            "table-unconvertible", f"the rows of {source} cannot be written to a file: {quoted(str(error))}"
        ) from None
    give_back()

    def mapped() -> "pa.NativeFile":  # only the pages that a reader needs are loaded
        return pa.BufferReader(pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))

    location = Location(f"the rows kept from {source}", "", mapped)
    files = ParquetFiles(Locations(location.shown, (location,)))
    weakref.finalize(files, file.close)
    if not any(files.sizes):
        raise ConfigError("table-empty", f"{source}: the table has no rows")
    return files.stored(scratch)


def _write(batches: NormalBatches, file: BinaryIO) -> None:
    schema = batches.schema
    words = [field.name for field in schema if not types.is_floating(field.type)]
    options = {"compression": "none", "use_dictionary": words, "write_statistics": False}
    group: list[pa.RecordBatch] = []

    def flush() -> None:
        table = pa.Table.from_batches(group, schema)
        writer.write_table(table, row_group_size=table.num_rows)
        group.clear()

    with parquet.ParquetWriter(file, schema, **options) as writer:
        for batch in batches:
            group.append(batch)
            rows, size = (sum(getattr(part, what) for part in group) for what in ("num_rows", "nbytes"))
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                flush()
        if group:
            flush()
    file.flush()
