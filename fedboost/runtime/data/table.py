"""Tables from files (`forms.py` lists them), databases and memory (Arrow streams, pandas, mappings, scipy).

Refuses: files that cannot be read as what their suffix names (ConfigError with the full path).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedboost.errors import ConfigError
from fedboost.people.text import shorten
from fedboost.runtime.data.allocator import give_back
from fedboost.runtime.data.arrow import normal_table
from fedboost.runtime.data.database import Database, database_of
from fedboost.runtime.data.delimited import COMPRESSIONS
from fedboost.runtime.data.forms import SUFFIXES as SUFFIXES
from fedboost.runtime.data.forms import form_of
from fedboost.runtime.data.lines import with_source
from fedboost.runtime.data.locations import Locations, check_scratch, locations_of
from fedboost.runtime.data.parquet import ParquetTable
from fedboost.runtime.data.read_options import AS_USUAL, ReadOptions
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.stream import keep, read_query

if TYPE_CHECKING:  # pyarrow takes a while to import, and most commands need no table
    import pyarrow as pa

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
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"{locations.shown}: no such file") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        packed = isinstance(error, OSError) and locations.files[0].name.endswith(tuple(COMPRESSIONS))
        damaged = "; it is cut off or damaged: copy it again" if packed else ""
        raise ConfigError(
            f"{locations.shown}: cannot be read as {form}", _first_line(error) + damaged
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
    raise ConfigError(
        f"cannot make a table of {_full_name(kind)}: give a path, a DataFrame of pandas "
        "or polars, an Arrow table or stream, or a mapping of column names to values"
    )


def _full_name(kind: type) -> str:
    """A type as its user writes it."""
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{home}{kind.__qualname__}"


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
