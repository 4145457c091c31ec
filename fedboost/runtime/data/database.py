"""Rows that a query asks of a database: the name of the database, and the query.

Promises: a password is in no text of a `Database`; nothing is read before the query is known to be one that
reads.
Refuses: databases that have no driver here, URIs whose password cannot be told from the rest, and queries
that are absent, several, or no SELECT (ConfigError).
"""

import codecs
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import Field, field_validator

from fedboost.errors import ConfigError
from fedboost.terms.reading import Frozen, Several

# ---- Options for reading a table file: `[read]` in a site's file, and options of the commands -----------
# Promises: one model for both; an option that the form of a file does not know is refused, not ignored.


SEPARATORS = {"tab": "\t", "\\t": "\t"}
"""Spellings of a separator that is awkward to type."""


class ReadOptions(Frozen):
    """How a file is read: facts that no file says of itself."""

    separator: str | None = Field(
        default=None,
        description="Character between columns of a text: a comma, in a .tsv a tab, unless given.",
    )
    decimal: Literal[".", ","] = Field(default=".", description="Character in numbers of a text, `.` or `,`.")
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
        return self.model_dump(exclude_defaults=True)


AS_USUAL = ReadOptions()


# ---- Rows that a query asks of a database: the name of the database, and the query ----------------------


POSTGRESQL, SQLITE, DUCKDB = "postgresql", "sqlite", "duckdb"
_SCHEMES = {POSTGRESQL: POSTGRESQL, "postgres": POSTGRESQL, SQLITE: SQLITE, "sqlite3": SQLITE, DUCKDB: DUCKDB}
REMOTE = ("s3://", "https://", "http://")
"""How addresses of files begin."""
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
        """The table that a command line names: a file or address, or the URI of a database with the query,
        or with the file that has it. ConfigError."""
        database = database_of(text)
        if database is not None:
            return with_query(database, self.query, self.query_file, "--query", "")
        if self.query is not None or self.query_file is not None:
            option = "--query-file" if self.query is None else "--query"
            raise ConfigError(
                f"{text}: is a file, and {option} is for a database: take it away, or give a URI"
            )
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
        if parts[3].startswith("//") and f"{scheme}://" not in REMOTE:
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
