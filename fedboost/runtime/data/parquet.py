"""Rows that stay in files: a party's table may be larger than its memory.

Promises: Parquet files are read one column and some rows at a time, whenever values are wanted; what is made
of them stands in files of the scratch folder, which the system brings in and out as they are needed. They
have no names once they are open, so nothing is left behind however the process ends.
Refuses: a file that is no Parquet, a folder without room (ConfigError).
"""

import io
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError
from fedboost.fixedpoint import Float32
from fedboost.gbdt.binned import allocate_in_memory
from fedboost.runtime.data.locations import Locations
from fedboost.runtime.data.parquet_files import ParquetFiles
from fedboost.runtime.data.values import BadRow

if TYPE_CHECKING:
    import pyarrow as pa

STRETCH = 1 << 20
"""Rows of a column that are kept at a time where all are wanted."""


_NOTHING_AT_HAND: tuple[int, Float32] = (-1, np.empty(0, np.float32))


class UnnamedFile(io.RawIOBase):
    """A reader of an open file with an offset of its own, so that several read at once."""

    def __init__(self, file: int) -> None:
        self._file, self._offset = file, 0
        self._size = os.fstat(file).st_size

    def readable(self) -> bool:
        """True: it is there to be read."""
        return True

    def seekable(self) -> bool:
        """True: reading starts anywhere."""
        return True

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to an offset."""
        self._offset = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence]
        return self._offset

    def readinto(self, buffer: "memoryview", /) -> int:  # type: ignore[override]
        """Read into a buffer; the number of bytes."""
        content = os.pread(self._file, len(buffer), self._offset)
        buffer[: len(content)] = content
        self._offset += len(content)
        return len(content)


class ParquetTable(ParquetFiles):
    """Parquet files, and the folder where what is made of their rows is kept: in memory where there is
    none."""

    def __init__(self, locations: Locations, scratch: Path | None) -> None:
        super().__init__(locations)
        self.in_memory = False
        """True if values of features are kept in memory once they are read."""
        self._scratch = scratch
        self.allocate((1,), np.dtype(np.uint8))  # whether there is any is better known now

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array in a file without a name, or in memory. ConfigError if there is no room for it."""
        if self._scratch is None:
            return allocate_in_memory(shape, dtype)
        count = int(np.prod(shape))
        size = max(count * dtype.itemsize, 1)
        try:
            with tempfile.TemporaryFile(dir=self._scratch) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error now, and no signal later
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as error:
            where = f"scratch folder {self._scratch}, {size:,} bytes: {error.strerror}"
            raise ConfigError("no room for what is made of the rows", where) from None
        return np.frombuffer(mapped, dtype, count).reshape(shape)


class ParquetColumn:
    """A column of a stored table, as float32: `column[first:last]` reads these rows.

    read: makes the numbers of a table of this column alone; its BadRow counts rows from the first of them,
    and is raised with the row of the whole table.
    """

    def __init__(self, table: ParquetTable, name: str, read: Callable[["pa.Table"], Float32]) -> None:
        self.size = table.num_rows
        self._table, self._name, self._read = table, name, read
        self._at_hand = _NOTHING_AT_HAND
        """The group of rows that was read last, if more of it is wanted."""

    def __getitem__(self, rows: slice) -> Float32:
        first, last, _ = rows.indices(self.size)
        ends = self._table.ends
        out = np.empty(last - first, np.float32)
        groups = np.searchsorted(ends, [first, last - 1], side="right")
        for group in range(int(groups[0]) - 1, int(groups[1])):
            values, begin = self._group(group), int(ends[group])
            low, high = max(first, begin), min(last, begin + values.size)
            out[low - first : high - first] = values[low - begin : high - begin]
            self._at_hand = (group, values) if high < begin + values.size else _NOTHING_AT_HAND
        return out

    def _group(self, group: int) -> Float32:
        held, values = self._at_hand
        if held == group:
            return values
        try:
            return self._read(self._table.group(group, self._name))
        except BadRow as error:
            raise error.moved(int(self._table.ends[group])) from None

    def kept(self) -> Float32:
        """The whole column, in the scratch folder."""
        out = self._table.allocate((self.size,), np.dtype(np.float32))
        self.read_into(out)
        return out

    def read_into(self, out: Float32) -> None:
        """Read the whole column: float32 [rows]."""
        for start in range(0, self.size, STRETCH):
            rows = slice(start, start + STRETCH)
            out[rows] = self[rows]

    def check(self) -> None:
        """Read the whole column; ConfigError if it cannot be read."""
        for start in range(0, self.size, STRETCH):
            self[start : start + STRETCH]
