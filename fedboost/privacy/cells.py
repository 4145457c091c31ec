"""Integers to cells of 1 to 8 bytes and back: little-endian, modulo 2**(8 * width).

Promises: adding residues and taking the sign once at the end gives the exact sum, if it fits a cell
(`fixedpoint.cell_bytes` chooses the width so that it does).
Refuses: bytes of another length than the cells need (PeerError).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64


def pack(values: Int64, width: int) -> bytes:
    """The low `width` bytes of each integer."""
    if width == 8:
        return values.astype("<i8", copy=False).tobytes()
    if width == 4:
        return values.astype("<i4").tobytes()
    return np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


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
        if self._width in (4, 8):
            place += np.frombuffer(packed, self._sum.dtype.newbyteorder("<"))
            return
        wide = np.zeros((cells, 8), np.uint8)
        wide[:, : self._width] = np.frombuffer(packed, np.uint8).reshape(-1, self._width)
        place += wide.view("<u8").reshape(-1)

    def signed(self) -> Int64:
        """The sum as signed integers, int64 [cells]."""
        if self._width == 4:
            return self._sum.view(np.int32).astype(np.int64)
        spare = np.uint64(64 - 8 * self._width)
        signed: Int64 = (self._sum << spare).view(np.int64) >> np.int64(spare)
        return signed
