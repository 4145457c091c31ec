"""Protection `plain`: no hiding. The aggregator sees every party's vector before it adds it.

For benchmarks, tests and parties that trust the aggregator; an ordinary data-parallel allreduce. Where few
bins of a node have rows, only their cells travel; then lengths, which are told on, speak of rows.
Refuses: notes and help, which `plain` has no use for (PeerError).
"""

from collections.abc import Iterator

import numpy as np

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.bit_packing import Part, signed
from fedboost.privacy.protection import Tag, check_newer


class PlainSealer:
    """Packs the integers into cells, and that is all. sparsely: those that are 0 may be left out."""

    def __init__(self, sparsely: bool = True) -> None:
        self._sparsely = sparsely
        self._last: Tag | None = None

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The parts of the vector as packed cells."""
        check_newer(tag, self._last)
        self._last = tag
        words = np.ascontiguousarray(values).view(np.uint64)
        packed = Part.packed_sparsely if self._sparsely else Part.packed
        return (packed(part, part.of(words)) for part in tag.parts)

    def note(self) -> bytes:
        """Nothing."""
        return b""

    def assist(self, request: bytes) -> bytes:
        """Refused: a plain sum opens by itself."""
        raise PeerError("protection plain needs no help")


class PlainOpener:
    """Adds packed cells into one running sum."""

    def __init__(self, tag: Tag) -> None:
        self.parts = len(tag.parts)
        self._tag = tag
        self._sum = np.zeros(tag.cells, np.uint64)

    def add(self, party: str, part: int, cells: bytes) -> None:
        """Add one part."""
        place = self._tag.part(part)
        place.add_sparsely(place.of(self._sum), cells)

    def note(self, party: str, note: bytes) -> None:
        """There must be none."""
        if note:
            raise PeerError("a note where protection plain has none")

    def lose(self, party: str) -> None:
        """Its vector is in the sum; nothing more was wanted of it."""

    def requests(self) -> dict[str, bytes]:
        """No help is wanted."""
        return {}

    def assist(self, party: str, answer: bytes) -> None:
        """Refused."""
        raise PeerError("help that protection plain did not ask for")

    def open(self) -> Int64:
        """The sum."""
        return signed(self._sum, self._tag.segments)
