"""Rows of a database, streamed: PostgreSQL and SQLite through ADBC, DuckDB through its own package.

Promises: rows come some thousand at a time, in the order in which the query returns them; nothing is written
(the transaction is read-only, a file is opened for reading); types that have one meaning become those of
Arrow: numeric as float64, json and uuid as text.
Refuses: what the driver or the server refuses, in its own words without passwords, and columns of types that
have no meaning here (ConfigError with the column and a CAST).
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa
from pyarrow import types

from fedboost.errors import ConfigError, quoted
from fedboost.runtime.data.database import DUCKDB, POSTGRESQL, SQLITE, Database, check_query

# ---- Columns as databases and dataframes hand them over, to types that the rest of fedboost reads -------
# Promises: no value changes: PostgreSQL's numeric, which comes as text, becomes float64 as every decimal
# does; json and uuid become their text; views of strings become strings.


NUMERIC = "numeric"


def normal_table(table: "pa.Table") -> "pa.Table":
    """The table with these types, without its metadata; columns of other types are not copied."""
    fields = [normal_field(field) for field in table.schema]
    columns = [
        column if column.type == field.type else _chunked(column, field.type)
        for column, field in zip(table.columns, fields, strict=True)
    ]
    return pa.table(columns, schema=pa.schema(fields))


def normal_field(field: "pa.Field") -> "pa.Field":
    """The field with the type that a column of it becomes."""
    return pa.field(field.name, normal_type(field.type))


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


def _chunked(column: "pa.ChunkedArray", kind: "pa.DataType") -> "pa.ChunkedArray":
    return pa.chunked_array([normal_column(chunk, kind) for chunk in column.chunks], kind)


# ---- Rows of a database, streamed: PostgreSQL and SQLite through ADBC, DuckDB through its own package ---


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


class Batches(Protocol):
    """Rows that are read once, from the first to the last."""

    @property
    def schema(self) -> "pa.Schema":
        """The columns."""

    def __iter__(self) -> "Iterator[pa.RecordBatch]": ...


class _Stream:
    """The batches of a query, their types those that the rest of fedboost reads."""

    def __init__(self, reader: "pa.RecordBatchReader", driver: Any, database: Database) -> None:
        self._reader, self._driver, self._database = reader, driver, database
        for field in reader.schema:
            if reason := _unreadable(field):
                raise ConfigError(
                    f"{database}: column {field.name!r} is {reason}, neither numbers nor text: write "
                    f"CAST({field.name} AS {_cast(reason)}) in the query, or leave the column out"
                )
        self.schema = pa.schema([normal_field(field) for field in reader.schema])

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        with _explained(self._driver, self._database, self.schema.names):
            for batch in self._reader:
                columns = [
                    normal_column(column, field.type)
                    for column, field in zip(batch.columns, self.schema, strict=True)
                ]
                yield pa.record_batch(columns, schema=self.schema)


@contextmanager
def opened(database: Database) -> Iterator[Batches]:
    """Ask the query; the rows can be read until the end of the context. ConfigError."""
    query = check_query(database.query, database)
    driver = _driver(database)
    if database.kind != POSTGRESQL:
        _check_file(database)
    with ExitStack() as held:
        with _explained(driver, database):
            reader = _READERS[database.kind](driver, database, query, held.enter_context)
        yield _Stream(reader, driver, database)


def _driver(database: Database) -> Any:
    module, extra = _MODULES[database.kind]
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(
            f"{database}: the driver of {database.kind} is not installed: pip install 'fedboost[{extra}]'"
        ) from None


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


def _cast(word: str) -> str:
    """The type to which values of this one are cast."""
    return "numeric" if word == "money" else "text"


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
