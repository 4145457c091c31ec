"""Options for reading table files, and database URIs with their queries.

Guarantees: `str()` and `repr()` of a `Database` never contain its password. A query is sent only if it is a
single statement that reads rows.

Rejects: databases without a supported driver, and URIs in which the end of the password is ambiguous.
"""

import codecs
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import Field, field_validator

from fedboost.errors import ConfigError
from fedboost.terms.reading import Frozen, Name, Several

# ---- Options for reading a table file: `[read]` in a site's file, and command options -------------------
# An option that does not apply to a file's format is refused, not ignored.


SEPARATORS = {"tab": "\t", "\\t": "\t"}  # spellings of the tab, which is awkward to type


class ReadOptions(Frozen):
    """Options for reading a table file: properties that cannot be determined from the file itself."""

    separator: str | None = Field(
        default=None, description="Column separator of a text file (default: a comma; a tab in .tsv files)."
    )
    decimal: Literal[".", ","] = Field(
        default=".", description="Decimal separator in text files: `.` or `,`."
    )
    encoding: str = Field(default="utf-8", description="Text encoding, e.g. `latin-1` or `utf-16`.")
    na: Several[str] = Field(
        default=(),
        description="Strings to treat as missing values, in addition to the [usual ones](tables.md).",
    )
    sheet: str | None = Field(default=None, description="Sheet to read from a workbook (default: the first).")

    @field_validator("separator")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = SEPARATORS.get(value, value) if value else value
        if value is not None and (len(value.encode()) != 1 or value in '"\r\n'):
            raise ValueError(f"{value!r} must be one character, e.g. ';' or tab")
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            text = codecs.lookup(value)._is_text_encoding  # not rot13 or base64, which are codecs, too
        except (LookupError, ValueError):
            text = False
        if not text:
            raise ValueError(f"{value!r} is not a text encoding; use e.g. utf-8, latin-1, cp1252 or utf-16")
        return value

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that differ from their defaults, as option name -> value."""
        return self.model_dump(exclude_defaults=True)


DEFAULT_OPTIONS = ReadOptions()


class ColumnMap(Frozen):
    """How a site reads one column of the terms from its table. The map stays at the site."""

    name: Name | None = Field(default=None, description="Name in the table (default: as in the terms).")
    factor: float = Field(
        default=1.0,
        strict=True,
        description="Number by which values are multiplied, to convert their unit.",
    )
    offset: float = Field(
        default=0.0, strict=True, description="Number that is added after the multiplication."
    )
    levels: Mapping[str, str] = Field(
        default_factory=dict,
        description='Levels in the table and in the terms, e.g. `{ M = "male", 2 = "female" }`. Others are '
        "not changed.",
    )

    @property
    def converts(self) -> bool:
        """True if the values are numbers in another unit."""
        return (self.factor, self.offset) != (1.0, 0.0)

    def _faults(self) -> Iterator[str]:
        if self.factor == 0.0:
            yield "factor must not be 0"
        if self.converts and self.levels:
            yield "levels are for categories, but factor and offset for numbers; remove one of them"


# ---- Databases and queries ------------------------------------------------------------------------------


POSTGRESQL, SQLITE, DUCKDB = "postgresql", "sqlite", "duckdb"
_SCHEMES = {POSTGRESQL: POSTGRESQL, "postgres": POSTGRESQL, SQLITE: SQLITE, "sqlite3": SQLITE, DUCKDB: DUCKDB}
REMOTE = ("s3://", "https://", "http://")  # prefixes of file addresses
_OTHERS = "mysql mariadb mssql sqlserver oracle snowflake bigquery redshift odbc jdbc mongodb db2 clickhouse"
"""URI schemes of databases that are not supported."""
_SCHEME = re.compile(r"([a-z0-9]+)(\+[a-z0-9_]+)?:(.*)", re.IGNORECASE | re.DOTALL)
_KEYWORDS = re.compile(r"(host|hostaddr|port|dbname|user|password|service)\s*=", re.IGNORECASE)
"""Matches the start of a PostgreSQL connection string that is not a URI."""
_QUOTED = re.compile(
    r"(?<![\w$])[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|"
    r"(?<![\w$])(\$(?:[^\W\d]\w*)?\$).*?\1|--[^\r\n]*|/\*.*?\*/",
    re.DOTALL,
)
"""Matches string literals (including those with escapes), quoted names and comments in a query."""
_READS = ("select", "with", "values", "table", "from", "(")  # first words of a query that reads
_FILES = {".db": SQLITE, ".sqlite": SQLITE, ".sqlite3": SQLITE, ".duckdb": DUCKDB, ".ddb": DUCKDB}
"""Suffix of a database file -> kind of database."""
MAX_QUERY_BYTES = 1 << 20


@dataclass(frozen=True, repr=False)
class Database:
    """A database URI and the query that selects the rows of a table. `str()` returns the URI without its
    password."""

    uri: str
    query: str = ""

    @property
    def kind(self) -> str:
        """Kind of database: `postgresql`, `sqlite` or `duckdb`."""
        return _SCHEMES[self.uri.partition(":")[0].lower()]

    @property
    def path(self) -> Path:
        """Path of the file of an SQLite or DuckDB database."""
        return Path(unquote(re.sub(r"^[a-z0-9]+:/{2,3}", "", self.uri, count=1, flags=re.IGNORECASE)))

    @property
    def name(self) -> str:
        """Short name for messages: the file name, or the URI without its password."""
        return str(self) if self.kind == POSTGRESQL else self.path.name

    def __str__(self) -> str:
        hidden = re.sub(r"(?<=://)([^/?#@:]*):[^/?#@]*@", r"\1:***@", self.uri)
        return re.sub(r"(?<=[?&])(\w*password)=[^&]*", r"\1=***", hidden, flags=re.IGNORECASE)

    def __repr__(self) -> str:
        return f"Database({str(self)!r})"

    def beside(self, folder: Path) -> "Database":
        """Return a copy with the absolute path of the database file, resolved relative to `folder`. A
        PostgreSQL database is returned unchanged."""
        if self.kind == POSTGRESQL:
            return self
        return replace(self, uri=f"{self.kind}:///{(folder / self.path).resolve()}".replace("%", "%25"))


@dataclass(frozen=True)
class Reading:
    """How a command reads a table: options for a file, or the query for a database."""

    options: ReadOptions = DEFAULT_OPTIONS
    query: str | None = None
    query_file: Path | None = None

    def source(self, text: str) -> "str | Database":
        """Return the source of a table that is named on a command line. text: a file path or an address,
        which is returned unchanged, or a database URI, which is returned with its query. Raises ConfigError
        if a query is passed for a file, or none for a database."""
        database = database_of(text)
        if database is not None:
            return with_query(database, self.query, self.query_file, "--query", "")
        if self.query is not None or self.query_file is not None:
            option = "--query-file" if self.query is None else "--query"
            raise ConfigError(
                "source-option-unfit", f"{text} is a file, but {option} requires a database URI; remove it"
            )
        if (suffix := Path(text).suffix.lower()) in _FILES:
            raise ConfigError(
                "source-uri-invalid",
                f'{text} is a database file; write {_FILES[suffix]}:///{text} --query "SELECT ..."',
            )
        return text


def with_query(
    database: Database, query: str | None, query_file: Path | None, key: str, where: str
) -> Database:
    """Return a copy of the database that includes the query.

    Args:
        query: the query, or None.
        query_file: file that contains the query, or None.
        key: option or key with which users specify the query: `--query`, or `query` in a file.
        where: name of the file with this key, as a prefix for error messages, or "" for a command option.

    Raises:
        ConfigError: not exactly one of `query` and `query_file` is given, or the query is invalid.
    """
    file_key, at = f"{key}-file" if key.startswith("-") else f"{key}_file", f"{where}: " if where else ""
    if query is not None and query_file is not None:
        raise ConfigError("query-given-twice", f"{at}specify {key} or {file_key}, not both")
    if query_file is not None:
        return replace(database, query=check_query(_read_query(query_file), query_file))
    if query is None:
        example = f'{key} {"" if key.startswith("-") else "= "}"SELECT ... FROM ... ORDER BY ..."'
        raise ConfigError(
            "query-missing", f"{at}{database} is a database; specify its query: {example} or {file_key}"
        )
    return replace(database, query=check_query(query, f"{at}{key}"))


def database_of(text: str) -> Database | None:
    """Parse a database URI. Returns a `Database` without a query, or None if the text is not a database URI.
    Raises ConfigError if the database is not supported, or if the end of the password is ambiguous."""
    if "://" in text and text != text.strip():
        raise ConfigError("source-uri-invalid", "the URI begins or ends with whitespace; remove it")
    parts = _SCHEME.fullmatch(text)
    if parts is None:
        if _KEYWORDS.match(text):
            raise ConfigError(
                "source-uri-invalid",
                "the database must be specified as a URI: postgresql://USER@HOST:PORT/DATABASE",
            )
        return None
    scheme = parts[1].lower()
    if scheme in _OTHERS.split():
        raise ConfigError(
            "source-database",
            f"{scheme} databases are not supported; use postgresql://, sqlite:/// or duckdb:///, "
            "or export the rows to Parquet",
        )
    if scheme not in _SCHEMES:
        if parts[3].startswith("//") and f"{scheme}://" not in REMOTE:
            raise ConfigError(
                "source-scheme-unknown",
                f"{scheme}:// addresses are not supported; use s3://, https://, postgresql://, "
                f"sqlite:///, duckdb:///, or a file path",
            )
        return None
    kind = _SCHEMES[scheme]
    form = "postgresql://USER@HOST:PORT/DATABASE" if kind == POSTGRESQL else f"{kind}:///FILE"
    if not parts[3].startswith("//"):
        raise ConfigError("source-uri-invalid", f"the {kind} URI is invalid; write {form}")
    database = Database(f"{kind}:{parts[3]}")
    if kind == POSTGRESQL:
        _check_password(parts[3][2:])
    elif not database.path.name or not parts[3].startswith("///"):
        raise ConfigError(
            "source-uri-invalid",
            f"the {kind} URI is invalid; write {form}, with a fourth slash if the path is absolute",
        )
    return database


def check_query(query: str, source: object) -> str:
    """Return the query without trailing semicolons and comments. Raises ConfigError unless the query is a
    single statement that reads rows. source: prefix of the error message."""
    # Literals, quoted names and comments are blanked at equal length, so that a semicolon in `bare` always
    # separates statements, and `end` is an index into the query as well.
    code = _QUOTED.sub(lambda part: (" " if part[0][:2] in ("--", "/*") else "'") * len(part[0]), query)
    end = len(code.rstrip("; \r\n\t"))
    bare = code[:end].strip()
    if not bare:
        raise ConfigError(
            "query-empty", f"{source}: the query is empty; write SELECT ... FROM ... ORDER BY ..."
        )
    if ";" in bare:
        raise ConfigError(
            "query-several", f"{source}: the query has several statements; write a single SELECT"
        )
    if not bare.lower().startswith(_READS):
        word = re.match(r"\w*", bare)
        first = word[0][:20].upper() if word else ""
        raise ConfigError(
            "query-not-select", f"{source}: the query must read rows (SELECT ...), but begins with {first!r}"
        )
    return query[:end]


def _check_password(rest: str) -> None:
    """Raise ConfigError if a character in the password would end it for a parser of the URI."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    beyond = rest[len(authority) :].partition("?")[0]
    if authority.count("@") > 1 or "@" in beyond or "#" in rest:
        raise ConfigError(
            "source-uri-password",
            "the password in the postgresql URI has a special character; write %40 for @, %2F for /, %3A for "
            ":, %23 for #, or remove the password and set PGPASSFILE to a password file",
        )


def _read_query(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_QUERY_BYTES + 1)
        if len(content) > MAX_QUERY_BYTES:
            raise ConfigError(
                "query-unreadable",
                f"{path} exceeds {MAX_QUERY_BYTES >> 20} MiB; check that it contains a query",
            )
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError("query-unreadable", f"{path}: cannot read the query: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("query-unreadable", f"{path} is not UTF-8 text; save the query as UTF-8") from None
