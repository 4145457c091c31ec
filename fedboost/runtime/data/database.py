"""Rows of a database: its name and the query, and the rows as they are streamed.

Promises: a password is in no text of a `Database`; nothing is read before the query is known to be one that
reads.
Refuses: databases that have no driver here, URIs whose password cannot be told from the rest, and queries
that are absent, several, or no SELECT (ConfigError).
"""

import codecs
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import types
from pydantic import Field, field_validator

from fedboost.errors import ConfigError, quoted
from fedboost.terms.reading import Frozen, Several

# ---- Options for reading a table file: `[read]` in a site's file, and options of the commands -----------
# Promises: one model for both; an option that the form of a file does not know is refused, not ignored.


SEPARATORS = {"tab": "\t", "\\t": "\t"}
"""Spellings of a separator that is awkward to type."""
DECIMALS = (".", ",")


class ReadOptions(Frozen):
    """How a file is read: facts that no file says of itself."""

    separator: str | None = Field(
        default=None,
        description="Character between columns of a text: a comma, in a .tsv a tab, unless given.",
    )
    decimal: str = Field(default=".", description="Character in numbers of a text, `.` or `,`.")
    encoding: str = Field(default="utf-8", description="Encoding of a text, such as `latin-1` or `utf-16`.")
    na: Several[str] = Field(
        default=(), description="Words that mean a missing value, beside the [usual ones](tables.md)."
    )
    sheet: str | None = Field(default=None, description="Sheet of a workbook, the first one unless given.")

    @field_validator("separator")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = SEPARATORS.get(value, value) if value else value
        if value is not None and (len(value.encode()) != 1 or value in '"\r\n'):
            raise ValueError(f"{value!r} must be one character, such as ';' or tab")
        return value

    @field_validator("decimal")
    @classmethod
    def _point_or_comma(cls, value: str) -> str:
        if value not in DECIMALS:
            raise ValueError(f"{value!r} must be '.' or ','")
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            text = codecs.lookup(value)._is_text_encoding  # rot13 and base64 are codecs, too
        except (LookupError, ValueError):
            text = False
        if not text:
            raise ValueError(f"{value!r} is no encoding; such as utf-8, latin-1, cp1252 or utf-16")
        return value

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that are not their defaults, by name."""
        return {key: value for key, value in self.model_dump().items() if value != getattr(AS_USUAL, key)}


AS_USUAL = ReadOptions()


# ---- Rows that a query asks of a database: the name of the database, and the query ----------------------


POSTGRESQL, SQLITE, DUCKDB = "postgresql", "sqlite", "duckdb"
_SCHEMES = {POSTGRESQL: POSTGRESQL, "postgres": POSTGRESQL, SQLITE: SQLITE, "sqlite3": SQLITE, DUCKDB: DUCKDB}
_ADDRESSES = ("s3", "https", "http")
"""Schemes of addresses of files (`fedboost.runtime.data.locations`)."""
_OTHERS = "mysql mariadb mssql sqlserver oracle snowflake bigquery redshift odbc jdbc mongodb db2 clickhouse"
"""Names in the URIs of databases that have no driver here."""
_SCHEME = re.compile(r"([a-z0-9]+)(\+[a-z0-9_]+)?:(.*)", re.IGNORECASE | re.DOTALL)
_KEYWORDS = re.compile(r"(host|hostaddr|port|dbname|user|password|service)\s*=", re.IGNORECASE)
"""The beginning of a connection string that is no URI."""
_QUOTED = re.compile(
    r"(?<![\w$])[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|"
    r"(?<![\w$])(\$(?:[^\W\d]\w*)?\$).*?\1|--[^\r\n]*|/\*.*?\*/",
    re.DOTALL,
)
"""Texts, also with escapes, quoted names and comments of a query."""
_READS = ("select", "with", "values", "table", "from", "(")
"""The first words of a query that reads."""
_FILES = {".db": SQLITE, ".sqlite": SQLITE, ".sqlite3": SQLITE, ".duckdb": DUCKDB, ".ddb": DUCKDB}
"""Suffixes of files that are databases."""
MAX_QUERY_BYTES = 1 << 20


@dataclass(frozen=True, repr=False)
class Database:
    """A database and a query of it. Its text is the URI without the password."""

    uri: str
    query: str = ""

    @property
    def kind(self) -> str:
        """The database's kind: postgresql, sqlite or duckdb."""
        return _SCHEMES[self.uri.partition(":")[0].lower()]

    @property
    def path(self) -> Path:
        """The file of a database that is one."""
        return Path(unquote(re.sub(r"^[a-z0-9]+:/{2,3}", "", self.uri, count=1, flags=re.IGNORECASE)))

    @property
    def name(self) -> str:
        """A short name: that of the file, or the URI without the password."""
        return str(self) if self.kind == POSTGRESQL else self.path.name

    def __str__(self) -> str:
        hidden = re.sub(r"(?<=://)([^/?#@:]*):[^/?#@]*@", r"\1:***@", self.uri)
        return re.sub(r"(?<=[?&])(\w*password)=[^&]*", r"\1=***", hidden, flags=re.IGNORECASE)

    def __repr__(self) -> str:
        return f"Database({str(self)!r})"

    def beside(self, folder: Path) -> "Database":
        """The same database, whose file is counted from this folder."""
        if self.kind == POSTGRESQL:
            return self
        return replace(self, uri=f"{self.kind}:///{(folder / self.path).resolve()}".replace("%", "%25"))


@dataclass(frozen=True)
class Reading:
    """The way in which a command reads a table: options for a file, or the query of a database."""

    options: ReadOptions = AS_USUAL
    query: str | None = None
    query_file: Path | None = None

    def source(self, text: str) -> "str | Database":
        """The table that the command line names. ConfigError."""
        return source_of(text, self.query, self.query_file)


def source_of(text: str, query: str | None = None, query_file: Path | None = None) -> "str | Database":
    """The table that a command line names: a file or address, or the URI of a database with a query, or with
    the file that has it. ConfigError."""
    database = database_of(text)
    if database is not None:
        return with_query(database, query, query_file, "--query", "")
    if query is not None or query_file is not None:
        option = "--query-file" if query is None else "--query"
        raise ConfigError(f"{text}: is a file, and {option} is for a database: take it away, or give a URI")
    if (suffix := Path(text).suffix.lower()) in _FILES:
        raise ConfigError(f'{text}: for a database write {_FILES[suffix]}:///{text} --query "SELECT ..."')
    return text


def with_query(
    database: Database, query: str | None, query_file: Path | None, key: str, where: str
) -> Database:
    """The database with its query, or with that of the file. key: `--query`, or `query` of the file where.
    ConfigError."""
    file_key, at = f"{key}-file" if key.startswith("-") else f"{key}_file", f"{where}: " if where else ""
    if query is not None and query_file is not None:
        raise ConfigError(f"{at}give {key} or {file_key}, not both")
    if query_file is not None:
        return replace(database, query=check_query(_read_query(query_file), query_file))
    if query is None:
        example = f'{key} {"" if key.startswith("-") else "= "}"SELECT ... FROM ... ORDER BY ..."'
        raise ConfigError(f"{at}{database} is a database: say which rows, {example}, or name a {file_key}")
    return replace(database, query=check_query(query, f"{at}{key}"))


def database_of(text: str) -> Database | None:
    """The database of a URI, without a query yet; None for another text. ConfigError where there is no driver
    of it, or where its password cannot be hidden."""
    if "://" in text and text != text.strip():
        raise ConfigError("a URI begins or ends with a blank: take that away")
    parts = _SCHEME.fullmatch(text)
    if parts is None:
        if _KEYWORDS.match(text):
            raise ConfigError("a database is named by a URI: postgresql://USER@HOST:PORT/DATABASE")
        return None
    scheme = parts[1].lower()
    if scheme in _OTHERS.split():
        raise ConfigError(
            f"{scheme}: there is no driver of this database; known: postgresql://, sqlite:///, duckdb:///; "
            "or export the rows to Parquet"
        )
    if scheme not in _SCHEMES:
        if parts[3].startswith("//") and scheme not in _ADDRESSES:
            raise ConfigError(
                f"{scheme}://: tables are not read from such addresses; write s3://, https://, "
                f"postgresql://, sqlite:///, duckdb:///, or the path of a file"
            )
        return None
    kind = _SCHEMES[scheme]
    form = "postgresql://USER@HOST:PORT/DATABASE" if kind == POSTGRESQL else f"{kind}:///FILE"
    if not parts[3].startswith("//"):
        raise ConfigError(f"{kind}: write {form}")
    database = Database(f"{kind}:{parts[3]}")
    if kind == POSTGRESQL:
        _check_password(parts[3][2:])
    elif not database.path.name or not parts[3].startswith("///"):
        raise ConfigError(f"{kind}: write {form}, with three slashes, or four before a path from the root")
    return database


def check_query(query: str, source: object) -> str:
    """Return the query without what may follow it, a semicolon and comments. ConfigError unless it is
    one that reads."""
    code = _QUOTED.sub(lambda part: (" " if part[0][:2] in ("--", "/*") else "'") * len(part[0]), query)
    end = len(code.rstrip("; \r\n\t"))
    bare = code[:end].strip()
    if not bare:
        raise ConfigError(f"{source}: the query is empty; write SELECT ... FROM ... ORDER BY ...")
    if ";" in bare:
        raise ConfigError(f"{source}: several statements stand there; one SELECT is read")
    if not bare.lower().startswith(_READS):
        word = re.match(r"\w*", bare)
        first = word[0][:20].upper() if word else ""
        raise ConfigError(f"{source}: a query reads rows: SELECT ..., and this one begins with {first!r}")
    return query[:end]


def _check_password(rest: str) -> None:
    """Raise ConfigError if a sign in the password ends it for a reader of the URI."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    beyond = rest[len(authority) :].partition("?")[0]
    if authority.count("@") > 1 or "@" in beyond or "#" in rest:
        raise ConfigError(
            "postgresql: a sign in the URI's password is not read as such: write %40 for @, %2F for /, %3A "
            "for :, %23 for #, or leave the password out and name a file of passwords in PGPASSFILE"
        )


def _read_query(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_QUERY_BYTES + 1)
        if len(content) > MAX_QUERY_BYTES:
            raise ConfigError(f"{path}: is longer than {MAX_QUERY_BYTES >> 20} MiB; is it a query?")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the query: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8; save the query as text") from None


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
# Promises: rows come some thousand at a time, in the order in which the query returns them; nothing is
# written (the transaction is read-only, a file is opened for reading); an error is in the driver's own
# words, without passwords.


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
