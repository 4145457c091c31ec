"""Tables of any size, some rows at a time.

Promises: the same values as `read_table` gives, in the same order; of a form that can be read in parts the
memory holds some ten thousand rows at a time. Workbooks and LIBSVM files are read whole.
Refuses: columns that are not there, files that cannot be read (ConfigError with the full path).
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedboost.errors import ConfigError
from fedboost.runtime.data.database import Database
from fedboost.runtime.data.forms import PART_ROWS, form_of
from fedboost.runtime.data.lines import line_of
from fedboost.runtime.data.locations import locations_of
from fedboost.runtime.data.read_options import AS_USUAL, ReadOptions
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.table import as_config_error, check_no_options, distinct
from fedboost.runtime.data.values import BadRow, column_of

if TYPE_CHECKING:
    import pyarrow as pa


class TableParts:
    """A table in a file, of which no row is read yet."""

    def __init__(self, source: str | Path, options: ReadOptions = AS_USUAL) -> None:
        self._options, self._locations = options, locations_of(source)
        self._form = form_of(self._locations, options)
        self.shown = self._locations.shown
        """Its path or address, for messages."""
        with as_config_error(self._locations, self._form.name):
            self.rows = self._form.rows(self._locations) if self._form.rows else None
            """The number of rows, where it is known beforehand."""

    def check_columns(self, columns: Collection[str]) -> None:
        """ConfigError that names the first column that is not there."""
        import pyarrow as pa

        if self._form.names is None:
            return
        with as_config_error(self._locations, self._form.name):
            names = self._form.names(self._locations, self._options)
        head = distinct(pa.table([pa.nulls(0)] * len(names), names=names), self.shown)
        with self.named():
            for name in columns:
                column_of(head, name)

    def read(
        self, columns: Collection[str], as_text: Collection[str] = ()
    ) -> "Iterator[pa.Table | SparseTable]":
        """Yield the rows of these columns in parts; of columns that are kept as text in a text file the text,
        not the number that it spells."""
        with as_config_error(self._locations, self._form.name):
            if self._form.parts is None:
                yield from _parts_of(self._form.read(self._locations, self._options))
                return
            for part in self._form.parts(self._locations, self._options, columns, as_text):
                yield from _parts_of(part)

    @contextmanager
    def named(self, before: int = 0) -> Iterator[None]:
        """Name the file in errors, and the row in it. before: the rows before those that are worked at."""
        try:
            yield
        except ConfigError as error:
            if isinstance(error, BadRow):
                error = error.moved(before)
                single = not self._locations.together
                location = self._locations.files[0]
                error = error.on_line(line_of(location, self._options, error.row) if single else None)
            raise ConfigError(f"{self.shown}: {error.public}", error.detail) from None


class QueryParts(TableParts):
    """The rows of a query, of which none is asked for yet."""

    rows = None

    def __init__(self, source: Database) -> None:
        self._database = source
        self.shown = str(source)

    def check_columns(self, columns: Collection[str]) -> None:
        """Nothing: what a query yields is known once it runs."""

    def read(self, columns: Collection[str], as_text: Collection[str] = ()) -> "Iterator[pa.Table]":
        """Yield the rows of these columns in parts."""
        import pyarrow as pa

        from fedboost.runtime.data.sql import opened

        with opened(self._database) as batches:
            for batch in batches:
                part = distinct(pa.Table.from_batches([batch], batches.schema), self.shown)
                with self.named():
                    for name in columns:
                        column_of(part, name)
                yield part.select(list(columns))

    @contextmanager
    def named(self, before: int = 0) -> Iterator[None]:
        """Name the database in errors. before: the rows before those that are worked at."""
        try:
            yield
        except ConfigError as error:
            moved = error.moved(before) if isinstance(error, BadRow) else error
            raise ConfigError(f"{self.shown}: {moved.public}", moved.detail) from None


def in_parts(source: str | Path | Database, options: ReadOptions = AS_USUAL) -> TableParts:
    """A table some rows at a time. ConfigError."""
    if not isinstance(source, Database):
        return TableParts(source, options)
    check_no_options(source, options)
    return QueryParts(source)


def _parts_of(table: "pa.Table | SparseTable") -> "Iterator[pa.Table | SparseTable]":
    if isinstance(table, SparseTable):
        yield from table.parts()
        return
    for first in range(0, table.num_rows, PART_ROWS):
        yield table.slice(first, PART_ROWS)
