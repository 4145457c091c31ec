"""The contract of a protection: who may see a single party's vector.

A **Sealer** lives at a party and turns its vector of integers into sealed parts, chunk by chunk. An
**Opener** lives at the aggregator, adds the sealed parts of all parties into one running sum, never a copy
per party, and opens the sum when every part of every party is in.

Promises of every protection: the opened sum is the exact sum of the vectors; the order of parts of
different parties does not matter; a tag is sealed once.
Refuses: a part of another length or number than the vector has (PeerError).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from fedboost.fixedpoint import Int64

PART_CELLS = 1 << 16
"""Integers in one part of a vector: at 8 bytes half a megabyte, far below any message limit."""


@dataclass(frozen=True)
class Tag:
    """The unique label of one sealing: a session's turn, and how wide its cells are."""

    turn: int
    cells: int
    cell_bytes: int

    @property
    def parts(self) -> int:
        """Parts a vector of this many cells travels in: at least one."""
        return max(1, -(-self.cells // PART_CELLS))

    def part_cells(self, part: int) -> int:
        """Integers in one part."""
        return min(PART_CELLS, self.cells - part * PART_CELLS)


class Sealer(Protocol):
    """At a party."""

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The sealed parts of a vector, in order."""
        ...


class Opener(Protocol):
    """At the aggregator, one a turn."""

    parts: int
    """Parts in which each party's vector arrives."""

    def add(self, part: int, cells: bytes) -> None:
        """Add one part of some party's vector; PeerError if it cannot be one."""
        ...

    def open(self) -> Int64:
        """The sum, once every part of every party was added."""
        ...
