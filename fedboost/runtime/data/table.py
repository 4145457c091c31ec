"""Tables from files (CSV, Parquet, LIBSVM), databases and memory (Arrow streams, pandas, mappings, scipy).

Refuses: files that cannot be read as what their suffix names (ConfigError with the full path).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedboost.errors import ConfigError
from fedboost.people.text import shorten
from fedboost.runtime.data.allocator import give_back
from fedboost.runtime.data.arrow import normal_table
from fedboost.runtime.data.database import Database, database_of
from fedboost.runtime.data.parquet import ParquetTable
from fedboost.runtime.data.sparse import SparseTable, read_libsvm
from fedboost.runtime.data.stream import keep, read_query

if TYPE_CHECKING:  # pyarrow takes a while to import, and most commands need no table
    import pyarrow as pa

Table: TypeAlias = "pa.Table | ParquetTable | SparseTable"
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq", ".libsvm", ".svm")
"""What `read_table` reads; another name that ends in .gz is taken for a compressed CSV."""
_HEADER = 1 << 24
"""Bytes of a CSV file among which its first line is looked for."""
_BLOCK = 1 << 20
"""Bytes of a CSV file that are read at once, which no row may exceed; more where the first line is long."""


def read_table(source: Path | str | Database, scratch: Path | None = None) -> "Table":
    """The table in a file, by its suffix (`SUFFIXES`), or of a query; with a scratch folder its rows stay in
    the file, which then must be Parquet. Raises ConfigError with the full path."""
    import pyarrow as pa

    if isinstance(source, Database):
        return read_query(source)
    if isinstance(source, str) and database_of(source):
        raise ConfigError(f"{database_of(source)}: is a database; in Python give fb.Database(URI, QUERY)")
    if re.match(r"(postgres(ql)?|sqlite3?|duckdb):", str(source)):
        raise ConfigError("a database is read with --query, which is not for this table; export its rows")
    path = Path(source).absolute()
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


def site_table(source: Path | Database, scratch: Path | None) -> "Table":
    """The rows of a site, as `read_table` reads them; those of a query are kept in a file, also without a
    scratch folder. ConfigError."""
    return keep(source, scratch) if isinstance(source, Database) else read_table(source, scratch)


def as_table(data: object) -> "pa.Table | SparseTable":
    """A table from a path, a `Database`, a pandas DataFrame (its index is dropped), anything that is an Arrow
    stream or array (of pyarrow, polars, DuckDB), or a mapping of column name to a sequence of values; or to a
    matrix of numpy's or scipy's, whose columns are then called by that name and their number from 0. Raises
    ConfigError."""
    import pyarrow as pa

    kind = type(data)
    if isinstance(data, (str, Path, Database)):
        return read_table(data)
    try:
        if isinstance(data, SparseTable):
            return data
        if kind.__module__.split(".")[0] == "pandas" and hasattr(data, "to_parquet"):
            data = pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "__arrow_c_stream__") and not _is_column(data):
            return _distinct(normal_table(pa.table(data)), f"the {_word(kind)}")
        if hasattr(data, "__arrow_c_array__") and not _is_column(data):
            return _distinct(normal_table(pa.table(pa.record_batch(data))), f"the {_word(kind)}")
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
    raise ConfigError(
        f"cannot make a table of {kind.__module__}.{kind.__qualname__}: give a path, a DataFrame of pandas "
        "or polars, an Arrow table or stream, or a mapping of column names to values"
    )


def _is_column(data: object) -> bool:
    """Tell if this is one column without a name: a Series, or an array of Arrow's that is no struct."""
    import pyarrow as pa

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
    """Raise ConfigError for a header that pyarrow would misread, or refuse without advice."""
    if line[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in line[:2]:
        raise ConfigError(f"{path}: is UTF-16, or no text; save it as UTF-8")
    unquoted = re.sub(rb'"[^"]*"?', b"", line)
    for character, name in ((b";", "semicolons"), (b"\t", "tabs")):
        if character in unquoted and delimiter.encode() not in unquoted:
            needed = "put commas there in a .csv, tabs in a .tsv"
            raise ConfigError(f"{path}: {name} stand between the columns; {needed}")


def _stored(path: Path, scratch: Path, form: str) -> ParquetTable:
    if form != "Parquet":
        raise ConfigError(f"{path}: with a scratch folder the table must be a Parquet file")
    table = ParquetTable(path, scratch)
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
