"""The contract of a protection, which decides who may see a single party's vector.

A **Sealer** lives at a party and turns its vector of integers into sealed chunks. An **Opener** lives at the
aggregator, one per turn. It adds the sealed chunks of all parties to one running sum, never a copy per party,
requests help from parties if the protection needs it, and opens the sum. Where vectors only fit together if
all were sealed under the same context, both ends expose it as `ctx`, a public hash: a party with a different
context is named before its vector is added.

Every protection promises that the opened sum is the exact sum of the vectors, that messages of different
parties may arrive in any order, and that a tag is sealed once.
Refuses: a chunk whose length or number the vector does not have, and help that was not requested (PeerError).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.packing import Chunk, Segment, chunks_of


@dataclass(frozen=True)
class Tag:
    """The unique label of one sealed vector, and the vector's shape.

    Args:
        turn, attempt: a pair that grows strictly.
        roster: the parties whose vectors go into the sum.
        transcript: hash of all queries of the session up to and including this one.
        segments: number and width of the cells."""

    turn: int
    attempt: int
    roster: tuple[str, ...]
    transcript: bytes
    segments: tuple[Segment, ...]

    chunks: tuple[Chunk, ...] = field(init=False, repr=False, compare=False)
    """The chunks in which the vector travels, at least one."""
    cells: int = field(init=False, repr=False, compare=False)
    """Number of integers in the vector."""

    def __post_init__(self) -> None:
        chunks = chunks_of(self.segments)
        object.__setattr__(self, "chunks", chunks)
        object.__setattr__(self, "cells", chunks[-1].start + chunks[-1].cells)

    @cached_property
    def checked(self) -> tuple[Chunk, ...]:
        """The same chunks, each with a check cell after its cells."""
        return chunks_of(self.segments, checked=True)

    @property
    def size(self) -> int:
        """Total bytes of all chunks."""
        return sum(chunk.size for chunk in self.chunks)

    def chunk(self, number: int) -> Chunk:
        """Return the chunk with this number. Raises PeerError if there is none."""
        if not 0 <= number < len(self.chunks):
            raise PeerError("chunk-number", f"part {number} of a vector of {len(self.chunks)} parts")
        return self.chunks[number]


@dataclass(frozen=True)
class HiddenSums:
    """Gradient sums that some parties report encrypted.

    Args:
        limit: largest magnitude of a row's gradient and hessian.
        rows: largest number of rows in a sum.
        places: party -> index of the answer cell with the gradient sum of each of its pairs, int64 [pairs].
            The hessian sum is in the next cell.
        cells: cells of the answer.
        to_cells: maps an answer to the cells that are sealed.
        marks: party -> answer cells that this party alone reports, unencrypted, int64 [marks]."""

    limit: int
    rows: int
    places: Mapping[str, Int64]
    cells: int
    to_cells: Callable[[Int64], Int64]
    marks: Mapping[str, Int64] = field(default_factory=dict)


def check_newer(tag: Tag, last: Tag | None) -> None:
    """Raise PeerError unless (turn, attempt) is greater than that of the last tag."""
    if last is not None and (tag.turn, tag.attempt) <= (last.turn, last.attempt):
        raise PeerError("tag-used", f"turn {tag.turn}, attempt {tag.attempt} was already sealed, or is older")


class Sealer(ABC):
    """The party's end of a protection."""

    unexpected_help = "received a request for help that is not needed"

    @property
    def ctx(self) -> bytes:
        """The context of the last sealed vector: 32 bytes, or empty if the protection has none."""
        return b""

    @abstractmethod
    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """Yield the sealed chunks of a vector, in order. Raises PeerError if this tag must not be sealed."""

    def note(self) -> bytes:
        """Return the bytes for the opener that travel with the last chunk of the last vector."""
        return b""

    def assist(self, request: bytes) -> bytes:
        """Help to open the sum of the last turn. Raises PeerError if no sum needs it, or it is forbidden."""
        raise PeerError("help-unexpected", self.unexpected_help)


class Opener(ABC):
    """The aggregator's end of a protection, one object per turn."""

    unexpected_note = "a note, where the protection has none"
    unexpected_help = "help that was not requested"

    ctx = b""
    """The context under which each party's vector must be sealed, as in `Sealer`."""
    chunks: int
    """Chunks in which each party's vector arrives."""

    @abstractmethod
    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one chunk of a party's vector. Raises PeerError if the bytes cannot be that chunk."""

    def note(self, party: str, note: bytes) -> None:
        """Take in the note with a party's last chunk, empty unless the sum needs more than the vectors."""
        if note:
            raise PeerError("note-unexpected", self.unexpected_note)

    def lose(self, party: str) -> None:  # noqa: B027 - most sums need nothing then
        """Note that a party disconnected after its whole vector was added. Its vector stays in the sum."""

    def requests(self) -> dict[str, bytes]:
        """Return party -> its request for help, empty once the sum can be opened.

        Raises RosterTooSmall if it never can."""
        return {}

    def assist(self, party: str, answer: bytes) -> None:
        """Take in a party's help. Raises PeerError if it does not answer the request, and SessionFailed if
        the help of all parties can never open the sum."""
        raise PeerError("help-unexpected", self.unexpected_help)

    @abstractmethod
    def open(self) -> Int64:
        """Return the sum, once every party's chunks are added and `requests` is empty."""
