"""Rows that come as a stream: they are kept in a file, some at a time, and read from it column by column.

Promises: the memory holds some ten thousand rows of the stream at a time; the file has no name once it is
open and can be read by its owner alone, so nothing is left behind however the process ends.
Refuses: two columns of one name, no rows, a folder without room (ConfigError).
"""

import contextlib
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fedboost.errors import ConfigError, quoted
from fedboost.runtime.data.allocator import give_back
from fedboost.runtime.data.arrow import normal_column, normal_field
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.locations import Location, Locations, check_scratch
from fedboost.runtime.data.parquet import ParquetTable, UnnamedFile

if TYPE_CHECKING:
    import pyarrow as pa

    from fedboost.runtime.data.sql import Batches

GROUP_ROWS, GROUP_BYTES = 1 << 16, 1 << 24
"""Rows, or bytes, that make a group of the file, which is read at a time."""


def keep(source: "Database | pa.RecordBatchReader", scratch: Path | None = None) -> ParquetTable:
    """The rows of a query, or of an Arrow stream, in a file. ConfigError."""
    check_scratch(scratch)
    if not isinstance(source, Database):
        return kept(NormalBatches(source), "the stream", scratch)
    from fedboost.runtime.data.sql import opened

    with opened(source) as batches:
        return kept(batches, str(source), scratch)


def read_query(source: Database) -> "pa.Table":
    """The rows of a query, in memory. ConfigError."""
    import pyarrow as pa

    from fedboost.runtime.data.sql import opened

    with opened(source) as batches:
        _check_distinct(batches, str(source))
        table = pa.Table.from_batches(batches, batches.schema)
    if not table.num_rows:
        raise ConfigError(f"{source}: there are no rows")
    return table


def stream_of(data: object) -> "Database | pa.RecordBatchReader | None":
    """The source of rows that come once, from the first to the last; None for a table that is in memory or a
    file."""
    import pyarrow as pa

    home = type(data).__module__.split(".")[0]
    if isinstance(data, (Database, pa.RecordBatchReader)):
        return data
    lazy = hasattr(data, "__arrow_c_stream__") and home not in ("pandas", "polars", "pyarrow")
    try:
        return pa.RecordBatchReader.from_stream(data) if lazy else None
    except pa.ArrowException as error:
        raise ConfigError(f"cannot make a table of this {type(data).__name__}: {error}") from None


class NormalBatches:
    """The batches of an Arrow stream, with the types that the rest of fedboost reads."""

    def __init__(self, reader: "pa.RecordBatchReader") -> None:
        import pyarrow as pa

        self._reader = reader
        self.schema: pa.Schema = pa.schema([normal_field(field) for field in reader.schema])

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in self._reader:
            pairs = zip(batch.columns, self.schema.types, strict=True)
            yield pa.record_batch([normal_column(*pair) for pair in pairs], schema=self.schema)


def kept(batches: "Batches", source: str, scratch: Path | None = None) -> ParquetTable:
    """The rows in a file of the scratch folder, or of the system's folder for temporary files."""
    import pyarrow as pa

    _check_distinct(batches, source)
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
    location = Location(
        f"the rows that were kept of {source}", "", lambda: pa.PythonFile(UnnamedFile(file.fileno()))
    )
    table = ParquetTable(Locations(location.shown, (location,)), scratch)
    weakref.finalize(table, file.close)
    if not table.num_rows:
        raise ConfigError(f"{source}: there are no rows")
    return table


def _check_distinct(batches: "Batches", source: str) -> None:
    twice = next((name for name, count in Counter(batches.schema.names).items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"{source}: there are two columns named {twice!r}; rename one: AS another_name")


def _write(batches: "Batches", file: BinaryIO) -> None:
    """Write the rows as Parquet, group by group."""
    import pyarrow as pa
    from pyarrow import parquet, types

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
