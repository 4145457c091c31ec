"""Rows that stay in files: a party's table may be larger than its memory.

Promises: a Parquet file is read some rows at a time; all that there is a number of for each row or value then
stands in files of the scratch folder, which the system brings in and out as they are needed. They have no
names once they are open, so nothing is left behind however the process ends.
Refuses: a file that is no Parquet, a folder without room (ConfigError).
"""

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

PART = 1 << 16
"""Rows that are read at a time."""


class StoredTable:
    """A Parquet file, and the folder where what is made of its rows is kept."""

    def __init__(self, path: Path, scratch: Path) -> None:
        from pyarrow import parquet

        self._path, self._scratch = path, scratch
        with parquet.ParquetFile(path) as file:
            self.num_rows: int = file.metadata.num_rows
            self.head: pa.Table = file.schema_arrow.empty_table()
        self.room((1,), np.dtype(np.uint8))  # whether there is any is better known now

    def whole(self, columns: Sequence[str]) -> "pa.Table":
        """All rows of a few columns, in memory."""
        from pyarrow import parquet

        with parquet.ParquetFile(self._path) as file:
            return file.read(columns=list(columns))

    def parts(self, columns: Sequence[str]) -> Iterator["pa.Table"]:
        """These columns, `PART` rows at a time."""
        import pyarrow as pa
        from pyarrow import parquet

        with parquet.ParquetFile(self._path) as file:
            for batch in file.iter_batches(PART, columns=list(columns)):
                yield pa.Table.from_batches([batch])

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array in a file without a name. ConfigError if there is no room for it."""
        count = int(np.prod(shape))
        size = max(count * dtype.itemsize, 1)
        try:
            with tempfile.TemporaryFile(dir=self._scratch) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error now, and no signal later
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as error:
            said = f"scratch folder {self._scratch}: no room for {size:,} bytes: {error.strerror}"
            raise ConfigError(said) from None
        return np.frombuffer(mapped, dtype, count).reshape(shape)
