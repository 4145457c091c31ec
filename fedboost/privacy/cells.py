"""Integers to cells of 1 to 64 bits and back, each modulo 2**bits; and the parts in which they travel.

Promises: adding residues and taking the sign once at the end gives the exact sum, if it fits a cell (who asks
says how many bits that takes).
Refuses: bytes of another length than a part has (PeerError).

A vector is runs of cells of equally many bits. It is cut in parts of PART_CELLS cells, wherever runs end; in
a part each run is a piece of whole 64-bit little-endian words, laid out as privacy/kernels.py says. Words
that hold the sum have 64 bits, whose highest are garbage until `signed` cuts them off.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy import kernels

PART_CELLS = 1 << 16
"""Integers in one part of a vector: at 8 bytes half a megabyte, far below any message limit."""
WORD_BITS = 64

Words = npt.NDArray[np.uint64]
Packed = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Run:
    """So many cells of so many bits (1 to 64) each."""

    cells: int
    bits: int


class Part:
    """A piece of a vector that travels by itself: its first cell, how many it has, their bytes."""

    def __init__(self, start: int, pieces: list[tuple[int, int]]) -> None:
        """pieces: cells and bits of each run of it."""
        self.start = start
        self.cells = sum(cells for cells, _ in pieces)
        self.words = sum(-(-cells * bits // WORD_BITS) for cells, bits in pieces)
        self.size = self.words * WORD_BITS // 8
        self._pieces: Int64 = np.array(pieces, np.int64).reshape(-1, 2)

    def of(self, vector: Words) -> Words:
        """Its cells of a whole vector; a view."""
        return vector[self.start : self.start + self.cells]

    def add(self, total: Words, packed: Packed) -> None:
        """Add the cells of this part to its words of the sum."""
        kernels.add(total, self._read(packed), self._pieces)

    def subtract(self, total: Words, packed: Packed) -> None:
        """Subtract the cells of this part from its words of the sum."""
        kernels.subtract(total, self._read(packed), self._pieces)

    def packed(self, total: Words) -> bytes:
        """The cells of this part as they travel, from its words."""
        out = np.empty(self.words, np.uint64)
        kernels.pack(total, out, self._pieces)
        return out.tobytes()

    def _read(self, packed: Packed) -> Words:
        if len(packed) != self.size:
            raise PeerError(f"{len(packed)} bytes of cells where {self.size} were due")
        words: Words = np.frombuffer(packed, np.uint64)
        if not words.flags.aligned:
            words = words.copy()
        words.flags.writeable = False  # one type of array for numba, whoever owns the bytes
        return words


def parts_of(runs: tuple[Run, ...]) -> tuple[Part, ...]:
    """The parts of a vector, in order: at least one."""
    parts: list[list[tuple[int, int]]] = [[]]
    room = PART_CELLS
    for run in runs:
        left = run.cells
        while left:
            if not room:
                parts.append([])
                room = PART_CELLS
            cells = min(left, room)
            parts[-1].append((cells, run.bits))
            left, room = left - cells, room - cells
    return tuple(Part(PART_CELLS * number, pieces) for number, pieces in enumerate(parts))


def signed(words: Words, runs: tuple[Run, ...]) -> Int64:
    """The cells of a whole vector as signed integers, int64 [cells]; the words are used for them."""
    ends = itertools.accumulate((run.cells for run in runs), initial=0)
    out: Int64 = words.view(np.int64)
    for run, start in zip(runs, ends, strict=False):
        spare = WORD_BITS - run.bits
        cells = out[start : start + run.cells]
        cells <<= spare
        cells >>= spare
    return out
