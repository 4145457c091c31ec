"""Tables from files (`forms.py` lists them) and memory (pyarrow, pandas, mappings, scipy).

Refuses: files that cannot be read as what their suffix names (ConfigError with the full path).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedboost.errors import ConfigError
from fedboost.people.text import shorten
from fedboost.runtime.data.delimited import COMPRESSIONS
from fedboost.runtime.data.forms import SUFFIXES as SUFFIXES
from fedboost.runtime.data.forms import form_of
from fedboost.runtime.data.lines import with_source
from fedboost.runtime.data.parquet import ParquetTable
from fedboost.runtime.data.places import Places, places_of
from fedboost.runtime.data.read_options import AS_USUAL, ReadOptions
from fedboost.runtime.data.sparse import SparseTable

if TYPE_CHECKING:  # pyarrow takes a while to import, and most commands need no table
    import pyarrow as pa

Table: TypeAlias = "pa.Table | ParquetTable | SparseTable"


def read_table(source: Path | str, scratch: Path | None = None, options: ReadOptions = AS_USUAL) -> "Table":
    """The table in a file, by its suffix (`SUFFIXES`), in a folder or glob of Parquet files, or at an
    address (s3://, https://); with a scratch folder its rows stay where they are, and must be Parquet. Raises
    ConfigError with the full path."""
    places = places_of(source, scratch)
    form = form_of(places, options)
    with as_config_error(places, form.name):
        if scratch is not None:
            return _stored(places, scratch, form.name)
        table = form.read(places, options)
        give_back()
    if isinstance(table, SparseTable):
        return table
    return with_source(distinct(table, places.shown), places, options)


@contextmanager
def as_config_error(places: Places, form: str) -> Iterator[None]:
    """Raise ConfigError for what can go wrong with a file."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"{places.shown}: no such file") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        packed = isinstance(error, OSError) and places.files[0].name.endswith(tuple(COMPRESSIONS))
        damaged = "; it is cut off or damaged: copy it again" if packed else ""
        raise ConfigError(f"{places.shown}: cannot be read as {form}", _first_line(error) + damaged) from None


def as_table(data: object) -> "pa.Table | SparseTable":
    """A table from a path, a pyarrow Table, a pandas DataFrame (its index is dropped), or a mapping of column
    name to a sequence of values; or to a sparse matrix of scipy's, whose columns are then called by that name
    and their number from 0. Raises ConfigError."""
    import pyarrow as pa

    kind = type(data)
    if isinstance(data, (str, Path)):
        return read_table(data)
    try:
        if isinstance(data, pa.Table):
            return distinct(data, "the table")
        if kind.__module__.split(".")[0] == "pandas" and hasattr(data, "__dataframe__"):
            return distinct(pa.Table.from_pandas(data, preserve_index=False), "the DataFrame")
        if isinstance(data, SparseTable):
            return data
        if isinstance(data, Mapping) and any(map(_is_sparse, data.values())):
            dense = {str(name): values for name, values in data.items() if not _is_sparse(values)}
            matrices = {str(name): values for name, values in data.items() if _is_sparse(values)}
            return SparseTable.from_matrices(pa.table(dense), matrices)
        if isinstance(data, Mapping):
            return pa.table({str(name): values for name, values in data.items()})
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(f"cannot make a table of this {kind.__name__}", _first_line(error)) from None
    raise ConfigError(
        f"cannot make a table of {kind.__module__}.{kind.__qualname__}: "
        "give a path, a pyarrow Table, a pandas DataFrame or a mapping of column names to values"
    )


def _stored(places: Places, scratch: Path, form: str) -> ParquetTable:
    if form != "Parquet":
        raise ConfigError(f"{places.shown}: with a scratch folder the table must be in Parquet files")
    table = ParquetTable(places, scratch)
    distinct(table.head, places.shown)
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


def give_back() -> None:
    """Release the memory that Arrow's allocator keeps after its tables are gone."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def parts_of(table: "Table", column: str) -> Iterator["pa.Table"]:
    """Yield the table, or the row groups of this column one after the other."""
    if not isinstance(table, ParquetTable):
        yield dense_of(table)
        return
    for group in range(len(table.ends) - 1):
        yield table.group(group, column)
