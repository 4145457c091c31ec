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


def pack(values: Int64, width: int) -> bytes:
    """The low `width` bytes of each integer, in planes."""
    planes, shift = [], 0
    for plane in _PLANES[width]:
        shifted = values >> shift if shift else values
        planes.append(shifted.astype(f"<u{plane}").tobytes())
        shift += 8 * plane
    return planes[0] if len(planes) == 1 else b"".join(planes)


class RunningSum:
    """One sum of cells modulo 2**(8 * width), built up part by part."""

    def __init__(self, cells: int, width: int) -> None:
        self._width = width
        # Four-byte cells add in four bytes; others in eight, cut to their width when the sum is taken.
        self._sum: npt.NDArray[Any] = np.zeros(cells, np.uint32 if width == 4 else np.uint64)

    def add(self, start: int, cells: int, packed: bytes) -> None:
        """Add `cells` packed integers at place `start`."""
        if len(packed) != cells * self._width:
            raise PeerError(
                f"{len(packed)} bytes of cells where {cells} cells of {self._width} bytes were due"
            )
        place = self._sum[start : start + cells]
        offset, shift = 0, 0
        for plane in _PLANES[self._width]:
            words: npt.NDArray[Any] = np.frombuffer(packed, f"<u{plane}", cells, offset)
            place += words.astype(np.uint64) << np.uint64(shift) if shift else words
            offset, shift = offset + cells * plane, shift + 8 * plane

    def signed(self) -> Int64:
        """The sum as signed integers, int64 [cells]."""
        if self._width == 4:
            return self._sum.view(np.int32).astype(np.int64)
        spare = np.uint64(64 - 8 * self._width)
        signed: Int64 = (self._sum << spare).view(np.int64) >> np.int64(spare)
        return signed
