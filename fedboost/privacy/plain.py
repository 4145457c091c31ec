"""Protection `plain`: no hiding. The aggregator sees every party's vector before it adds it.

For benchmarks, tests and parties that trust the aggregator; an ordinary data-parallel allreduce.
"""

from collections.abc import Iterator

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.cells import RunningSum, pack
from fedboost.privacy.protection import PART_CELLS, Tag


class PlainSealer:
    """Packs the integers into cells, and that is all."""

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The parts of the vector as packed cells."""
        for part in range(tag.parts):
            yield pack(values[part * PART_CELLS : (part + 1) * PART_CELLS], tag.cell_bytes)


class PlainOpener:
    """Adds packed cells into one running sum."""

    def __init__(self, tag: Tag) -> None:
        self._tag = tag
        self.parts = tag.parts
        self._sum = RunningSum(tag.cells, tag.cell_bytes)

    def add(self, part: int, cells: bytes) -> None:
        """Add one part."""
        if not 0 <= part < self.parts:
            raise PeerError(f"part {part} of a vector of {self.parts} parts")
        self._sum.add(part * PART_CELLS, self._tag.part_cells(part), cells)

    def open(self) -> Int64:
        """The sum."""
        return self._sum.signed()
