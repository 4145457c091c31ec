"""Tables under other names: their columns, and the levels of columns, as terms call them.

Promises: no number changes; rows that stay in files stay there, and levels are renamed when rows are read; a
level without a name never passes for one that has it.
Refuses: a column that is not there, a column of levels that is neither text nor numbers, a LIBSVM file, whose
columns have no names (ConfigError).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError
from fedboost.runtime.data.parquet import ParquetTable
from fedboost.runtime.data.sparse import SparseTable
from fedboost.runtime.data.table import Table
from fedboost.runtime.data.values import column_of, spelled_as, texts

if TYPE_CHECKING:
    import pyarrow as pa

Names = Mapping[str, str]
"""Name in the terms -> name in the table."""


def renamed(table: Table, columns: Names, levels: Mapping[str, Names]) -> "pa.Table | ParquetTable":
    """The columns that have a name in the terms, under it. levels: by the name of a column in the terms, its
    levels by their names there; rows with other levels keep these, marked as without a name. Raises
    ConfigError."""
    if isinstance(table, SparseTable):
        raise ConfigError(
            "is a LIBSVM file, whose columns have no names to rename; give a table with a header"
        )
    if isinstance(table, ParquetTable):
        return RenamedParquet(table, columns, levels)
    return _renamed(table, columns, levels)


class RenamedParquet(ParquetTable):
    """A stored table under other names."""

    def __init__(self, table: ParquetTable, columns: Names, levels: Mapping[str, Names]) -> None:
        self._table, self._columns, self._levels = table, columns, levels
        self.head = _renamed(table.head, columns, levels)
        self.ends, self.in_memory = table.ends, table.in_memory

    def group(self, number: int, column: str) -> "pa.Table":
        """A group of rows of one column. ConfigError if the file has become another, or is gone."""
        own = self._columns[column]
        return _renamed(self._table.group(number, own), {column: own}, self._levels)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array in a file without a name, or in memory. ConfigError if there is no room for it."""
        return self._table.allocate(shape, dtype)


def _renamed(table: "pa.Table", columns: Names, levels: Mapping[str, Names]) -> "pa.Table":
    import pyarrow as pa

    fields, values = [], []
    for name, own in columns.items():
        column = column_of(table, own)
        if name in levels:
            column = _renamed_levels(column, own, levels[name])
        fields.append(table.schema.field(own).with_name(name).with_type(column.type))
        values.append(column)
    return pa.table(values, schema=pa.schema(fields, metadata=table.schema.metadata))


def _renamed_levels(column: "pa.ChunkedArray", own: str, levels: Names) -> "pa.ChunkedArray":
    import pyarrow as pa

    codes, distinct = texts(column, own)
    name_of = {spelled_as(column, level): name for name, level in levels.items()}
    name_of |= {level: name for name, level in levels.items()}
    words = [name_of.get(text) or _without_name(text, levels) for text in distinct]
    indices = pa.array(codes.astype(np.int32), pa.int32(), mask=codes < 0)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))])


def _without_name(text: str, levels: Names) -> str:
    marked = f"{text} (not named)"
    return _without_name(marked, levels) if marked in levels else marked
