"""Integers to cells of 1 to 8 bytes and back, modulo 2**(8 * width).

Promises: adding residues and taking the sign once at the end gives the exact sum, if it fits a cell
(`fixedpoint.cell_bytes` chooses the width so that it does).
Refuses: bytes of another length than the cells need (PeerError).

Cells of 3, 5, 6 or 7 bytes travel in planes of 4, 2 and 1 bytes, lowest first: all cells' low four bytes,
then all cells' next two, and so on, little-endian. Planes are copied as whole words; interleaved cells of
five bytes cost four times as much.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy import kernels

_PLANES = {
    1: (1,),
    2: (2,),
    3: (2, 1),
    4: (4,),
    5: (4, 1),
    6: (4, 2),
    7: (4, 2, 1),
    8: (8,),
}
"""Width of a cell to the widths of its planes."""
_NO_PLANE = (np.frombuffer(b"", "<u1"), 0)


class Residues:
    """A vector of cells modulo 2**(8 * width) that others are added to and subtracted from.

    Four-byte cells are kept in four bytes; others in eight, and cut to their width when they leave.
    """

    def __init__(self, cells: int, width: int) -> None:
        self._width = width
        self._words: npt.NDArray[Any] = np.zeros(cells, np.uint32 if width == 4 else np.uint64)
        self._packed = np.empty(0, np.uint8)

    @classmethod
    def of(cls, values: Int64, width: int) -> "Residues":
        """The residues of these integers."""
        out = cls(values.size, width)
        out.take(values)
        return out

    def take(self, values: Int64) -> None:
        """Put these integers in the first places."""
        np.copyto(self._words[: values.size], values, casting="unsafe")

    def add(self, start: int, cells: int, packed: bytes | bytearray | memoryview) -> None:
        """Add `cells` packed integers at place `start`."""
        self._apply(kernels.add_words, start, cells, packed)

    def subtract(self, start: int, cells: int, packed: bytes | bytearray | memoryview) -> None:
        """Subtract `cells` packed integers at place `start`."""
        self._apply(kernels.subtract_words, start, cells, packed)

    def _apply(self, operation: Any, start: int, cells: int, packed: bytes | bytearray | memoryview) -> None:
        if len(packed) != cells * self._width:
            raise PeerError(
                f"{len(packed)} bytes of cells where {cells} cells of {self._width} bytes were due"
            )
        place = self._words[start : start + cells]
        planes, offset = [], 0
        for plane in _PLANES[self._width]:
            words: npt.NDArray[Any] = np.frombuffer(packed, f"<u{plane}", cells, offset)
            words.flags.writeable = False  # one type of array for numba, whoever owns the bytes
            planes.append((words, 8 * offset // max(cells, 1)))
            offset += cells * plane
        for first in range(0, len(planes), 2):
            second = planes[first + 1] if first + 1 < len(planes) else _NO_PLANE
            operation(place, *planes[first], *second)

    def packed(self, start: int, cells: int) -> bytes:
        """`cells` integers from place `start`, in planes."""
        place = self._words[start : start + cells]
        if self._packed.size < cells * self._width:
            self._packed = np.empty(cells * self._width, np.uint8)
        out = self._packed[: cells * self._width]
        offset, shift = 0, 0
        for plane in _PLANES[self._width]:
            words = out[offset : offset + cells * plane].view(f"<u{plane}")
            kernels.take_words(place, shift, words)
            offset, shift = offset + cells * plane, shift + 8 * plane
        return out.tobytes()

    def signed(self) -> Int64:
        """As signed integers, int64 [cells]."""
        if self._width == 4:
            return self._words.view(np.int32).astype(np.int64)
        spare = np.uint64(64 - 8 * self._width)
        signed: Int64 = (self._words << spare).view(np.int64)
        signed >>= np.int64(spare)
        return signed
