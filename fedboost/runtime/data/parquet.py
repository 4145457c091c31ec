"""Rows that are not in memory: of Parquet files, which stay there, and of databases, which are streamed.

Promises: Parquet files are read one column and some rows at a time, whenever values are wanted; what is made
of them stands in files of the scratch folder, which the system brings in and out as they are needed. They
have no names once they are open, so nothing is left behind however the process ends.
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
    AS_USUAL,
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

# ---- Columns as databases and dataframes hand them over, to types that the rest of fedboost reads -------
# Promises: no value changes: PostgreSQL's numeric, which comes as text, becomes float64 as every decimal
# does; json and uuid become their text; views of strings become strings.


NUMERIC = "numeric"


class NormalBatches:
    """The batches of an Arrow stream, with the types that the rest of fedboost reads. They are read once.
    faults: a context in which they are."""

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
    """The type that a column of this type becomes."""
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
    """The values as this type, which `normal_type` names."""
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


# ---- Rows of a database, streamed: PostgreSQL and SQLite through ADBC, DuckDB through its own package ---
# Promises: rows come some thousand at a time, in the order in which the query returns them; nothing is
# written (the transaction is read-only, a file is opened for reading); an error is in the driver's own words,
# without passwords.


BATCH_ROWS = 1 << 14
"""Rows that SQLite and DuckDB hand over at a time; SQLite takes a column's type from the first of them."""
BATCH_BYTES = 4 << 20
"""Bytes that PostgreSQL's driver hands over at a time."""
CONNECT_SECONDS = 10
"""Seconds for which a server is waited for, unless the URI or PGCONNECT_TIMEOUT says otherwise."""
_MODULES = {
    POSTGRESQL: ("adbc_driver_postgresql.dbapi", "sql"),
    SQLITE: ("adbc_driver_sqlite.dbapi", "sql"),
    DUCKDB: ("duckdb", "duckdb"),
}
"""The driver of each kind, and the extra that installs it."""
_SIGNS = {SQLITE: (0, b"SQLite format 3\0"), DUCKDB: (8, b"DUCK")}
"""Where a file of each kind has which bytes."""
_IN_ORDER = (
    "SET TRANSACTION READ ONLY",
    "SET LOCAL synchronize_seqscans = off",
    "SET LOCAL max_parallel_workers_per_gather = 0",
)
"""Said to PostgreSQL before the query: nothing is written, and without ORDER BY rows come as they lie."""
_ADVICE = {
    "password authentication failed": "set PGPASSWORD, or PGPASSFILE and its line of this host and user",
    "no password supplied": "set PGPASSWORD, or PGPASSFILE and its line of this host and user",
    "read-only transaction": "a query only reads here",
    "read-only mode": "a query only reads here",
    "readonly database": "a query only reads here",
    "permission denied": "ask the database's owner for GRANT SELECT",
}
"""What to do about an error that has this text."""


@contextmanager
def opened(database: Database) -> Iterator[NormalBatches]:
    """Ask the query; the rows can be read until the end of the context. ConfigError."""
    query = check_query(database.query, database)
    module, extra = _MODULES[database.kind]
    try:
        driver = import_module(module)
    except ImportError:
        raise ConfigError(
            f"{database}: the driver of {database.kind} is not installed: pip install 'fedboost[{extra}]'"
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
                    f"{database}: column {field.name!r} is {reason}, neither numbers nor text: write "
                    f"CAST({field.name} AS {kind}) in the query, or leave the column out"
                )
        faults = partial(_explained, driver, database, reader.schema.names)
        check_distinct_names(reader.schema.names, str(database), ANOTHER_NAME)
        yield NormalBatches(reader, faults)


def _check_file(database: Database) -> None:
    path = database.path.absolute()
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "no such file"
        raise ConfigError(f"{path}: {what}; a path from the root has four slashes: {database.kind}:////...")
    offset, sign = _SIGNS[database.kind]
    with path.open("rb") as file:
        head = file.read(offset + len(sign))
    if head and head[offset:] != sign:
        raise ConfigError(f"{path}: is no {database.kind} database; is it another file?")


Enter = Callable[[AbstractContextManager[Any]], Any]
"""Enters a context that is left when the rows were read."""


def _ask_postgresql(driver: Any, database: Database, query: str, enter: Enter) -> "pa.RecordBatchReader":
    from adbc_driver_postgresql import StatementOptions

    cursor = enter(enter(driver.connect(_dialled(database.uri))).cursor())
    for statement in _IN_ORDER:
        cursor.execute(statement)
    cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
    cursor.execute(query)
    return cursor.fetch_record_batch()


def _dialled(uri: str) -> str:
    """The URI with a limit of the time that a connection may take, and the name of the program."""
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
    statements = connection.extract_statements(query)  # also COPY writes a file, and all of several are run
    if [statement.type for statement in statements] != [driver.StatementType.SELECT]:
        raise ConfigError(f"{database}: one SELECT is read, and the query is another statement, or several")
    return connection.sql(statements[0]).to_arrow_reader(BATCH_ROWS)


_READERS = {POSTGRESQL: _ask_postgresql, SQLITE: _ask_sqlite, DUCKDB: _ask_duckdb}


def _unreadable(field: "pa.Field") -> str:
    """The type of a column that has no meaning here, in the database's word; empty for the others."""
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
    if word.startswith("_"):  # what PostgreSQL calls an array
        return f"{word[1:]}[]"
    return word or str(getattr(kind, "type_name", "") or str(kind).partition("<")[0])


@contextmanager
def _explained(driver: Any, database: Database, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn an error of the driver into a ConfigError of one line, without the query and without passwords.
    names: of the columns."""
    try:
        yield
    except (driver.Error, pa.ArrowException, OSError) as error:
        raise ConfigError(f"{database}: {_line(str(error), names)}") from None


def _line(text: str, names: Sequence[str]) -> str:
    """The words of a driver, in one line."""
    if mismatch := re.search(r"Type mismatch in column (\d+): expected (\w+) but got (\S+)", text):
        name = names[int(mismatch[1])]
        return (
            f"column {name!r} holds values of several types, {mismatch[2].lower()} first and then "
            f"{mismatch[3].lower()}: write CAST({name} AS REAL) or CAST({name} AS TEXT) in the query"
        )
    line = next((line for line in re.split(r"(?:ERROR|FATAL): +", text)[-1].splitlines() if line.strip()), "")
    line = re.sub(r"^([A-Z_]+: )?(\[\w+\] )?(Failed to [\w ]+: )?(\[\w+\] )?", "", line.strip())
    line = re.sub(r"\.? SQLSTATE: \w+$|:? *failed to allocate memory$", "", line)
    advice = next((advice for sign, advice in _ADVICE.items() if sign in text), "")
    return quoted(line) + (f"; {advice}" if advice else "")


# ---- Rows that stay in files: a party's table may be larger than its memory -----------------------------


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """Rows that stay in Parquet files: one column of some rows is read at a time. What is made of them is
    kept in a scratch folder, or in memory where there is none."""

    head: "pa.Table"
    """The columns, without a row."""
    ends: Int64
    """Where each group of rows begins, and the last one ends."""
    group: Callable[[int, str], "pa.Table"]
    """Reads a group of rows of one column. ConfigError if the file has become another, or is gone."""
    scratch: Path | None = None
    in_memory: bool = False
    """True if values of features are kept in memory once they are read."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.ends[-1])

    def groups(self, column: str) -> "Iterator[pa.Table]":
        """Yield the rows of one column, group by group."""
        return (self.group(number, column) for number in range(len(self.ends) - 1))

    def share(self, ranges: Sequence[tuple[int, int]]) -> "ParquetTable":
        """The rows from each first to before the last, whose values are kept in memory."""
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
        """An array in a file without a name, or in memory. ConfigError if there is no room for it."""
        if self.scratch is None:
            return allocate_in_memory(shape, dtype)
        count = int(np.prod(shape))
        size = max(count * dtype.itemsize, 1)
        try:
            with tempfile.TemporaryFile(dir=self.scratch) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error now, and no signal later
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as error:
            where = f"scratch folder {self.scratch}, {size:,} bytes: {error.strerror}"
            raise ConfigError("no room for what is made of the rows", where) from None
        return np.frombuffer(mapped, dtype, count).reshape(shape)


# ---- Parquet files as one table -------------------------------------------------------------------------
# Promises: the rows of several files come in the order of the files; what folders are named after, `a=1`, is
# a column of the rows in them.


class ParquetFiles(File):
    """Parquet files that are one table. Opening them reads no row."""

    form, suffixes = "Parquet", TOGETHER

    def __init__(self, locations: Locations, options: ReadOptions = AS_USUAL) -> None:
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
                    types = f"{other} here, {kind} in {first}"
                    raise ConfigError(f"{location.shown}: column {name!r} is {types}; write both as one type")
        self._partitions = _partitions(self._files, heads[0])
        head = pa.Table.from_batches([], heads[0])  # empty_table() imports pandas
        for name, values in self._partitions.items():
            head = head.append_column(name, pa.array([], values.type))
        check_distinct_names(head.column_names, locations.shown)
        self.head: pa.Table = head
        self.sizes = tuple(metadata.num_rows for metadata in self._metadata)
        """Number of rows of each file."""

    def names(self) -> Sequence[str]:
        """The names of the columns."""
        return self.head.column_names  # type: ignore[no-any-return]

    def read(self) -> "pa.Table":
        """The whole table."""
        tables = []
        for number, location in enumerate(self._files):
            with _opened(location, self._metadata[number]) as file:
                tables.append(self._completed(number, file.read(), self.names()))
        return pa.concat_tables(tables) if len(tables) > 1 else tables[0]

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        """Yield the rows of these columns in parts."""
        stored = [name for name in columns if name not in self._partitions]
        for number, location in enumerate(self._files):
            with _opened(location, self._metadata[number]) as file:
                for batch in file.iter_batches(PART_ROWS, columns=stored):
                    yield self._completed(number, pa.Table.from_batches([batch]), [*columns])

    def stored(self, scratch: Path | None) -> ParquetTable:
        """The table, whose rows stay in these files. ConfigError for a scratch folder without room."""
        files = enumerate(self._metadata)
        groups = [(number, group) for number, file in files for group in range(file.num_row_groups)]
        sizes = (self._metadata[number].row_group(group).num_rows for number, group in groups)

        def read(number: int, column: str) -> "pa.Table":
            return self._group(*groups[number], column)

        table = ParquetTable(self.head, np.cumsum([0, *sizes]), read, scratch)
        table.allocate((1,), np.dtype(np.uint8))  # whether there is any room is better known now
        return table

    def _group(self, number: int, group: int, column: str) -> "pa.Table":
        location = self._files[number]
        stored = [] if column in self._partitions else [column]
        try:
            with _opened(location, self._metadata[number], mapped=True) as file:
                return self._completed(number, file.read_row_group(group, stored), [column])
        except (pa.ArrowException, OSError) as error:
            raise ConfigError("its table can no longer be read", f"{location.shown}: {error}") from None

    def _completed(self, number: int, rows: "pa.Table", names: Sequence[str]) -> "pa.Table":
        """These columns of rows of a file, with what its folders say."""
        named = {name: values[number] for name, values in self._partitions.items()}
        columns = [
            pa.repeat(named[name], rows.num_rows) if name in named else rows.column(name) for name in names
        ]
        return pa.table(columns, names=list(names))


def _opened(location: Location, metadata: Any = None, mapped: bool = False) -> "parquet.ParquetFile":
    """Open a Parquet file. ConfigError that names it if it is none."""
    try:
        source = location.open() if location.path is None else location.path
        return parquet.ParquetFile(source, metadata=metadata, memory_map=mapped)
    except (pa.ArrowInvalid, OSError) as error:
        if metadata is not None or isinstance(error, FileNotFoundError):
            raise
        raise ConfigError(
            f"{location.shown}: cannot be read as Parquet", (str(error).splitlines() or [""])[0]
        ) from None


def check_same_names(shown: str, names: Sequence[str], first: str, expected: Sequence[str]) -> None:
    """ConfigError unless a file has the names of columns of the first one, in whatever order."""
    if (absent := next((name for name in expected if name not in names), None)) is not None:
        raise ConfigError(f"{shown}: column {absent!r} is missing, which {first} has")
    if (more := next((name for name in names if name not in expected), None)) is not None:
        raise ConfigError(f"{shown}: has a column {more!r}, which {first} lacks")


def _partitions(files: Sequence[Location], head: "pa.Schema") -> "dict[str, pa.Array]":
    """The columns that folders are named after, with the value of each file: whole numbers if all are."""
    columns = {}
    for name in dict.fromkeys(name for location in files for name in location.partition):
        lacking = next((location for location in files if name not in location.partition), None)
        if lacking is not None:
            raise ConfigError(f"{lacking.shown}: is in no folder {name}=..., as other files are")
        if name in head.names:
            raise ConfigError(
                f"{files[0].shown}: has a column {name!r}, which its folder is named after, too"
            )
        values = pa.array([location.partition[name] for location in files], pa.string())
        try:
            columns[name] = values.cast(pa.int64())
        except pa.ArrowInvalid:
            columns[name] = values
    return columns


# ---- Columns of rows that stay in files -----------------------------------------------------------------


STRETCH = 1 << 20
"""Rows of a column that are kept at a time where all are wanted."""
_NOTHING_AT_HAND: tuple[int, Float32] = (-1, np.empty(0, np.float32))


class ParquetColumn:
    """A column of a stored table, as float32: `column[first:last]` reads these rows.

    read: makes the numbers of a table of this column alone; its BadRow counts rows from the first of them,
    and is raised with the row of the whole table.
    """

    def __init__(self, table: ParquetTable, name: str, read: Callable[["pa.Table"], Float32]) -> None:
        self.size = table.num_rows
        self._table, self._name, self._read = table, name, read
        self._at_hand = _NOTHING_AT_HAND
        """The group of rows that was read last, if more of it is wanted."""

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
        """The whole column, in the scratch folder."""
        out = self._table.allocate((self.size,), np.dtype(np.float32))
        self.read_into(out)
        return out

    def read_into(self, out: Float32) -> None:
        """Read the whole column: float32 [rows]."""
        for start in range(0, self.size, STRETCH):
            rows = slice(start, start + STRETCH)
            out[rows] = self[rows]

    def check(self) -> None:
        """Read the whole column; ConfigError if it cannot be read."""
        for start in range(0, self.size, STRETCH):
            self[start : start + STRETCH]


# ---- Rows that come as a stream -------------------------------------------------------------------------
# They are kept in a file, some at a time, and read from it column by column.
# Promises: the memory holds some ten thousand rows of the stream at a time; the file has no name once it is
# open and can be read by its owner alone, so nothing is left behind however the process ends.


ANOTHER_NAME = "; rename one: AS another_name"
GROUP_ROWS, GROUP_BYTES = 1 << 16, 1 << 24
"""Rows, or bytes, that make a group of the file, which is read at a time."""


def keep(source: "Database | pa.RecordBatchReader", scratch: Path | None = None) -> ParquetTable:
    """The rows of a query, or of an Arrow stream, in a file. ConfigError."""
    check_scratch(scratch)
    if not isinstance(source, Database):
        check_distinct_names(source.schema.names, "the stream", ANOTHER_NAME)
        return _kept(NormalBatches(source), "the stream", scratch)
    with opened(source) as batches:
        return _kept(batches, str(source), scratch)


class Query(Source):
    """The rows of a query, which is sent once they are read."""

    form = "rows of a query"

    def __init__(self, database: Database) -> None:
        self._database = database
        self.shown = str(database)

    def read(self) -> "pa.Table":
        """The rows, in memory. ConfigError."""
        with opened(self._database) as batches:
            table = pa.Table.from_batches(batches, batches.schema)
        if not table.num_rows:
            raise ConfigError(f"{self.shown}: there are no rows")
        return table

    def parts(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        """Yield the rows of these columns in parts."""
        with opened(self._database) as batches:
            self.check_columns(batches.schema.names, columns)
            for batch in batches:
                yield pa.Table.from_batches([batch], batches.schema).select(list(columns))


def stream_of(data: object) -> "Database | pa.RecordBatchReader | None":
    """The source of rows that come once, from the first to the last; None for a table that is in memory or a
    file."""
    home = type(data).__module__.split(".")[0]
    if isinstance(data, (Database, pa.RecordBatchReader)):
        return data
    lazy = hasattr(data, "__arrow_c_stream__") and home not in ("pandas", "polars", "pyarrow")
    try:
        return pa.RecordBatchReader.from_stream(data) if lazy else None
    except pa.ArrowException as error:
        raise ConfigError(f"cannot make a table of this {type(data).__name__}: {error}") from None


def _kept(batches: NormalBatches, source: str, scratch: Path | None) -> ParquetTable:
    """The rows in a file of the scratch folder, or of the system's folder for temporary files."""
    folder = scratch or Path(tempfile.gettempdir())
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - as long as there is the table
        with contextlib.ExitStack() as unless_written:
            unless_written.callback(file.close)
            _write(batches, file)
            unless_written.pop_all()
    except OSError as error:
        raise ConfigError(f"no room for the rows of {source}: {folder}: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise ConfigError(f"{source}: its rows cannot be kept in a file: {quoted(str(error))}") from None
    give_back()

    def mapped() -> "pa.NativeFile":  # of which only the pages that a reader wants come into memory
        return pa.BufferReader(pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))

    location = Location(f"the rows that were kept of {source}", "", mapped)
    files = ParquetFiles(Locations(location.shown, (location,)))
    weakref.finalize(files, file.close)
    if not any(files.sizes):
        raise ConfigError(f"{source}: there are no rows")
    return files.stored(scratch)


def _write(batches: NormalBatches, file: BinaryIO) -> None:
    """Write the rows as Parquet, group by group."""
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
