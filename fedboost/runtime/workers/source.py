"""Rows of a site as its workers read them: Parquet or CSV files, by file and row range; or parts in memory.

Promises: rows come in the order of the files' names, so that the place of a row in the whole table does not
depend on who reads it; of Parquet files only the row groups and columns that are wanted are read.
Refuses: files with other columns than the first, and CSV files that disagree whether a column is text
(ConfigError that names file and column).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedboost.errors import ConfigError
from fedboost.runtime.data.database import ReadOptions
from fedboost.runtime.data.locations import is_remote, local_files, locations_of
from fedboost.runtime.data.parquet import ParquetTable
from fedboost.runtime.data.table import Table, as_config_error, distinct, form_of, read_table
from fedboost.runtime.data.values import is_text, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT_FILES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")

_PARQUET = (".parquet", ".pq")


class Range(NamedTuple):
    """Rows of the whole table from `first` to before `last`."""

    first: int
    last: int


class Heads(NamedTuple):
    """What is known of files before their rows are read: how many rows, the columns with their types, a table
    without rows as Arrow's IPC bytes; the rows of each file; and why they cannot be read, public and for
    the site alone."""

    rows: int = 0
    columns: bytes = b""
    sizes: tuple[int, ...] = ()
    fault: tuple[str, str] = ("", "")


class ParquetRows(ParquetTable):
    """Some rows of Parquet files, whose values are kept in memory."""

    def __init__(self, table: ParquetTable, ranges: Sequence[Range]) -> None:
        self.head, self.in_memory = table.head, True
        self._table = table
        self._scratch = None
        self._pieces: list[tuple[int, int, int]] = []
        for first, last in ranges:
            groups = np.searchsorted(table.ends, [first, last - 1], side="right") - 1
            for group in range(int(groups[0]), int(groups[1]) + 1):
                begin, end = map(int, table.ends[group : group + 2])
                self._pieces.append((group, max(first, begin) - begin, min(last, end) - begin))
        self.ends = np.cumsum([0, *(last - first for _, first, last in self._pieces)])

    def group(self, number: int, column: str) -> "pa.Table":
        """A piece of rows of one column. ConfigError if the file has become another, or is gone."""
        group, first, last = self._pieces[number]
        return self._table.group(group, column).slice(first, last - first)


class Files:
    """The files of a site. ConfigError if there are none, or cannot be read."""

    def __init__(self, source: str, options: ReadOptions) -> None:
        self._options = options
        self._source = source
        self._parquet: ParquetTable | None = None
        self._texts, others = _sorted_out(source)
        if self._texts and others and not any(name.lower().endswith(_PARQUET) for name in others):
            raise ConfigError(
                f"{source}: holds CSV files, and {others[0]}: give the rows a folder of their own"
            )
        if not self._texts or others:
            self._texts = []
            locations = locations_of(source)
            form = form_of(locations, options)
            with as_config_error(locations, form.name):
                if form.name == "Parquet":
                    self._parquet = ParquetTable(locations, None)
                    distinct(self._parquet.head, locations.shown)
                elif form.name == "CSV" and locations.files[0].path is not None:
                    self._texts = [str(locations.files[0].path)]
                else:
                    raise ConfigError(f"{locations.shown}: workers read Parquet and CSV files alone")

    def heads(self) -> Heads:
        """How many rows there are, and of which columns. Of CSV files every one is read."""
        import pyarrow as pa

        if self._parquet is not None:
            return Heads(self._parquet.num_rows, _as_bytes(self._parquet.head), self._parquet.sizes)
        schemas, sizes = [], []
        for table in map(self._read, self._texts):
            schemas.append(table.schema)
            sizes.append(table.num_rows)
        _check_same(self._texts, schemas)
        return Heads(sum(sizes), _as_bytes(pa.Table.from_batches([], _joint(schemas))), tuple(sizes))

    def rows(self, ranges: Sequence[Range], sizes: Sequence[int] = ()) -> Table:
        """These rows. sizes: those of the files, if they are known: CSV files without such rows are not read.
        ConfigError where the files here have others."""
        import pyarrow as pa

        if self._parquet is not None:
            if sizes and tuple(sizes) != self._parquet.sizes:
                raise ConfigError(
                    f"{self._source}: has other files or rows here than where they were counted: all workers "
                    f"must see the same files, and nobody may change them meanwhile"
                )
            return ParquetRows(self._parquet, ranges)
        pieces, end = [], 0
        for number, path in enumerate(self._texts):
            begin = end
            if sizes and not any(first < begin + sizes[number] and begin < last for first, last in ranges):
                end += sizes[number]
                continue
            table = self._read(path)
            if sizes and table.num_rows != sizes[number]:
                raise ConfigError(f"{path}: has changed while the rows were read; try again")
            end += table.num_rows
            for first, last in ranges:
                low, high = max(first, begin), min(last, end)
                if low < high:
                    pieces.append(table.slice(low - begin, high - low))
        return pa.concat_tables(_as_one(pieces))

    def group_end(self, column: str, at: int) -> int:
        """The first row from `at` on that is of another group than the one before it, where rows of a group
        stand together."""
        table, before = self.rows([Range(at - 1, at)]), None
        rows = self.heads().rows if self._parquet is None else self._parquet.num_rows
        step = 1 << 12
        for first in range(at - 1, rows, step):
            table = self.rows([Range(first, min(first + step, rows))])
            values = _column(table, column).to_pylist()
            before = values[0] if before is None else before
            other = next((number for number, value in enumerate(values) if value != before), None)
            if other is not None:
                return first + other
        return rows

    def _read(self, path: str) -> "pa.Table":
        table = read_table(path, options=self._options)
        assert not isinstance(table, ParquetTable)
        dense: pa.Table = table
        return dense


def heads_of(source: str, options: dict[str, Any]) -> Heads:
    """The heads of a site's files, as a worker sees them."""
    try:
        return Files(source, ReadOptions(**options)).heads()
    except ConfigError as error:
        return Heads(fault=(error.public, error.detail))


def stamp_of(source: str) -> list[tuple[str, int, int, int]]:
    """What tells that files have changed: path, time of the last change, size and inode of each."""
    paths = [Path(name) for name in _text_files(source)] or local_files(source)
    states = ((path, path.stat()) for path in paths if path.is_file())
    return [(str(path), state.st_mtime_ns, state.st_size, state.st_ino) for path, state in states]


def group_end_of(source: str, options: dict[str, Any], column: str, at: int) -> int:
    """See `Files.group_end`."""
    return Files(source, ReadOptions(**options)).group_end(column, at)


def _text_files(source: str) -> list[str]:
    """The CSV files of a folder or a glob, in the order of their names; none where it holds others."""
    texts, others = _sorted_out(source)
    return [] if others else texts


def _sorted_out(source: str) -> tuple[list[str], list[str]]:
    """The CSV files of a folder or a glob, in the order of their names, and its other files; hidden ones
    apart."""
    path = Path(source)
    if is_remote(source):
        return [], []
    if path.is_dir():
        found = path.rglob("*")
    elif any(character in source for character in "*?["):
        found = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    else:
        return [], []
    files = sorted(str(file) for file in found if file.is_file() and not file.name.startswith((".", "_")))
    texts = [name for name in files if name.lower().endswith(_TEXT_FILES)]
    return texts, [name for name in files if name not in texts]


def _column(table: Table, name: str) -> "pa.ChunkedArray":
    import pyarrow as pa

    if isinstance(table, ParquetTable):
        parts = [table.group(number, name) for number in range(len(table.ends) - 1)]
        return pa.concat_tables(parts).column(name)
    dense: Any = table
    return dense.column(name)


def _check_same(paths: Sequence[str], heads: "Sequence[pa.Schema]") -> None:
    """ConfigError unless all files have the columns of the first, and agree which are text."""
    import pyarrow as pa

    first = heads[0]
    for path, head in zip(paths[1:], heads[1:], strict=True):
        for name in first.names:
            if name not in head.names:
                raise ConfigError(f"{path}: column {name!r} is missing, which {paths[0]} has")
        if more := [name for name in head.names if name not in first.names]:
            raise ConfigError(f"{path}: has a column {more[0]!r}, which {paths[0]} lacks")
    for name in first.names:
        kinds: dict[bool, tuple[str, str]] = {}
        for path, head in zip(paths, heads, strict=True):
            kind = head.field(name).type
            if not pa.types.is_null(kind):
                kinds.setdefault(is_text(kind), (path, kind_of(pa.chunked_array([], kind))))
        if len(kinds) > 1:
            (one, kind), (other, kind_there) = kinds.values()
            raise ConfigError(
                f"{one}: column {name!r} is {kind} here, {kind_there} in {other}: write the rows as Parquet, "
                f"or all of its values as one type"
            )


def _joint(heads: "Sequence[pa.Schema]") -> "pa.Schema":
    """The columns of all files: of each the first type that is not of missing values alone."""
    import pyarrow as pa

    fields = []
    for name in heads[0].names:
        own = [head.field(name) for head in heads]
        fields.append(next((field for field in own if not pa.types.is_null(field.type)), own[0]))
    return pa.schema(fields)


def _as_one(tables: "Sequence[pa.Table]") -> "list[pa.Table]":
    """Tables of the same columns, in the same order and of types that go together."""
    import pyarrow as pa

    names = tables[0].column_names
    wide = pa.unify_schemas(
        [table.select(names).schema.remove_metadata() for table in tables], promote_options="permissive"
    )
    return [table.select(names).cast(wide) for table in tables]


def _as_bytes(head: "pa.Table") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, head.schema):
        pass
    return bytes(sink.getvalue().to_pybytes())


def schema_in(columns: bytes) -> "pa.Table":
    """The table without rows of `Heads.columns`."""
    import pyarrow as pa

    return pa.ipc.open_stream(columns).read_all()
