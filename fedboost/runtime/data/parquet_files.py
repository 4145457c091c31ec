"""Parquet files as one table.

Promises: the rows of several files come in the order of the files; what folders are named after, `a=1`, is a
column of the rows in them.
Refuses: a file that is no Parquet, or has other columns than the first one (ConfigError that names file and
column).
"""

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedboost.errors import ConfigError
from fedboost.runtime.data.locations import Location, Locations

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet


class ParquetFiles:
    """Parquet files that are one table. Opening them reads no row."""

    def __init__(self, locations: Locations) -> None:
        import pyarrow as pa

        self._files = locations.files
        self._metadata = []
        heads = []
        for location in self._files:
            with _opened(location) as file:
                self._metadata.append(file.metadata)
                heads.append(file.schema_arrow)
        for location, head in zip(self._files[1:], heads[1:], strict=True):
            _check_same(location, head, self._files[0], heads[0])
        self._partitions = _partitions(self._files, heads[0])
        head = pa.Table.from_batches([], heads[0])  # empty_table() imports pandas
        for name, values in self._partitions.items():
            head = head.append_column(name, pa.array([], values.type))
        self.head: pa.Table = head
        groups = [range(metadata.num_row_groups) for metadata in self._metadata]
        self._groups = [(number, group) for number, every in enumerate(groups) for group in every]
        sizes = (self._metadata[number].row_group(group).num_rows for number, group in self._groups)
        self.ends = np.cumsum([0, *sizes])
        """Where each group of rows begins, and the last one ends."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.ends[-1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of rows of each file."""
        return tuple(metadata.num_rows for metadata in self._metadata)

    def read(self) -> "pa.Table":
        """The whole table."""
        import pyarrow as pa

        names = self.head.column_names
        tables = []
        for number, location in enumerate(self._files):
            with _opened(location, self._metadata[number]) as file:
                tables.append(self._completed(number, file.read(), names))
        return pa.concat_tables(tables) if len(tables) > 1 else tables[0]

    def group(self, number: int, column: str) -> "pa.Table":
        """A group of rows of one column. ConfigError if the file has become another, or is gone."""
        import pyarrow as pa

        at, group = self._groups[number]
        location = self._files[at]
        stored = [] if column in self._partitions else [column]
        try:
            with _opened(location, self._metadata[at], mapped=True) as file:
                rows = file.read_row_group(group, stored)
        except (pa.ArrowException, OSError) as error:
            raise ConfigError("its table can no longer be read", f"{location.shown}: {error}") from None
        size = int(self.ends[number + 1] - self.ends[number])
        return self._completed(at, rows, [column], size)

    def parts(self, columns: Collection[str], rows: int) -> "Iterator[pa.Table]":
        """Yield so many rows of these columns at a time."""
        import pyarrow as pa

        stored = [name for name in columns if name not in self._partitions]
        for number, location in enumerate(self._files):
            with _opened(location, self._metadata[number]) as file:
                for batch in file.iter_batches(rows, columns=stored):
                    part = pa.Table.from_batches([batch])
                    yield self._completed(number, part, list(columns), batch.num_rows)

    def _completed(
        self, number: int, rows: "pa.Table", names: Sequence[str], size: int | None = None
    ) -> "pa.Table":
        """These columns of rows of a file, with what its folders say."""
        import pyarrow as pa

        if not self._partitions:
            return rows if rows.column_names == list(names) else rows.select(list(names))
        count = rows.num_rows if size is None else size
        columns = [
            pa.repeat(self._partitions[name][number], count)
            if name in self._partitions
            else rows.column(name)
            for name in names
        ]
        return pa.table(columns, names=list(names))


def _opened(location: Location, metadata: Any = None, mapped: bool = False) -> "parquet.ParquetFile":
    """Open a Parquet file. ConfigError that names it if it is none."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        source = location.open() if location.path is None else location.path
        return parquet.ParquetFile(source, metadata=metadata, memory_map=mapped)
    except (pa.ArrowInvalid, OSError) as error:
        if metadata is not None or isinstance(error, FileNotFoundError):
            raise
        raise ConfigError(
            f"{location.shown}: cannot be read as Parquet", (str(error).splitlines() or [""])[0]
        ) from None


def _check_same(location: Location, head: "pa.Schema", first: Location, expected: "pa.Schema") -> None:
    """ConfigError unless a file has the columns of the first one, whatever their order."""
    for name, kind in zip(expected.names, expected.types, strict=True):
        if name not in head.names:
            raise ConfigError(f"{location.shown}: column {name!r} is missing, which {first.shown} has")
        if head.field(name).type != kind:
            types = f"{head.field(name).type} here, {kind} in {first.shown}"
            raise ConfigError(f"{location.shown}: column {name!r} is {types}; write both as one type")
    if more := [name for name in head.names if name not in expected.names]:
        raise ConfigError(f"{location.shown}: has a column {more[0]!r}, which {first.shown} lacks")


def _partitions(files: Sequence[Location], head: "pa.Schema") -> "dict[str, pa.Array]":
    """The columns that folders are named after, with the value of each file: whole numbers if all are."""
    import pyarrow as pa

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
