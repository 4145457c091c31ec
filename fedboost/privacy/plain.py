"""Protection `plain`: no hiding. The aggregator sees every party's vector before it adds it.

For benchmarks, tests and parties that trust the aggregator; an ordinary data-parallel allreduce. Where few
bins of a node have rows, only their cells travel; then lengths, which others see, depend on rows.
Refuses: notes and help, which `plain` does not use (PeerError).
"""

from collections.abc import Iterator

import numpy as np

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.packing import Chunk, signed
from fedboost.privacy.protection import Tag, check_newer


class PlainSealer:
    """Packs the integers into cells. sparsely: zeros may be left out."""

    ctx = b""

    def __init__(self, sparsely: bool = True) -> None:
        self._sparsely = sparsely
        self._last: Tag | None = None

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The chunks of the vector as packed cells."""
        check_newer(tag, self._last)
        self._last = tag
        words = np.ascontiguousarray(values).view(np.uint64)
        packed = Chunk.packed_sparsely if self._sparsely else Chunk.packed
        return (packed(chunk, chunk.of(words)) for chunk in tag.chunks)

    def note(self) -> bytes:
        """Empty."""
        return b""

    def assist(self, request: bytes) -> bytes:
        """Refuse: a plain sum needs no help."""
        raise PeerError("protection plain needs no help")


class PlainOpener:
    """Adds packed cells into one running sum."""

    ctx = b""

    def __init__(self, tag: Tag) -> None:
        self.chunks = len(tag.chunks)
        self._tag = tag
        self._sum = np.zeros(tag.cells, np.uint64)

    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one chunk."""
        chunk = self._tag.chunk(number)
        chunk.add_sparsely(chunk.of(self._sum), cells)

    def note(self, party: str, note: bytes) -> None:
        """Refuse any note."""
        if note:
            raise PeerError("a note where protection plain has none")

    def lose(self, party: str) -> None:
        """Do nothing: the vector of the party is in the sum."""

    def requests(self) -> dict[str, bytes]:
        """Empty: no help is needed."""
        return {}

    def assist(self, party: str, answer: bytes) -> None:
        """Refuse."""
        raise PeerError("help that protection plain did not ask for")

    def open(self) -> Int64:
        """The sum."""
        return signed(self._sum, self._tag.segments)
