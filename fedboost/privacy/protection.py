"""The contract of a protection, which decides who may see the vector of a single party.

A **Sealer** lives at a party and turns its vector of integers into sealed chunks. An **Opener** lives at the
aggregator, one a turn: it adds the sealed chunks of all parties into one running sum, never a copy per party,
asks parties for help if the protection needs it, and opens the sum. Where vectors fit together only if all
were sealed under the same context, both have it as `ctx`, a public hash: a party that has another one is
named before its vector is added.

Promises of every protection: the opened sum is the exact sum of the vectors; the order in which messages of
different parties arrive does not matter; a tag is sealed once.
Refuses: a chunk of another length or number than the vector has, help that was not asked for (PeerError).
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
    """The unique label of one sealing, and the shape of what is sealed.

    turn, attempt: grow strictly; roster: the parties whose vectors go into the sum; transcript: hash of all
    queries of the session up to this one; segments: the number and width of the cells.
    """

    turn: int
    attempt: int
    roster: tuple[str, ...]
    transcript: bytes
    segments: tuple[Segment, ...]

    chunks: tuple[Chunk, ...] = field(init=False, repr=False, compare=False)
    """The chunks that the vector travels in: at least one."""
    cells: int = field(init=False, repr=False, compare=False)
    """Integers of the vector."""

    def __post_init__(self) -> None:
        chunks = chunks_of(self.segments)
        object.__setattr__(self, "chunks", chunks)
        object.__setattr__(self, "cells", chunks[-1].start + chunks[-1].cells)

    @cached_property
    def checked(self) -> tuple[Chunk, ...]:
        """The same chunks, each with a check cell behind its cells."""
        return chunks_of(self.segments, checked=True)

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.size for chunk in self.chunks)

    def chunk(self, number: int) -> Chunk:
        """The chunk of that number; PeerError if there is none."""
        if not 0 <= number < len(self.chunks):
            raise PeerError(f"part {number} of a vector of {len(self.chunks)} parts")
        return self.chunks[number]


@dataclass(frozen=True)
class HiddenSums:
    """Sums of gradients that some parties report encrypted.

    limit: the magnitude of a row's gradient and hessian, at most; rows: rows of a sum, at most; places: of
    each such party, for each pair of its sums the cell of the answer that has the gradients' (the hessians'
    is the next), int64 [pairs]; cells: of the answer; to_cells: an answer as it is sealed; marks: of each
    such party, the cells that it alone tells, in plain, where there are any, int64 [marks]."""

    limit: int
    rows: int
    places: Mapping[str, Int64]
    cells: int
    to_cells: Callable[[Int64], Int64]
    marks: Mapping[str, Int64] = field(default_factory=dict)


def check_newer(tag: Tag, last: Tag | None) -> None:
    """Raise PeerError unless the turn, or its attempt, is greater than that of the last tag."""
    if last is not None and (tag.turn, tag.attempt) <= (last.turn, last.attempt):
        raise PeerError(f"turn {tag.turn}, attempt {tag.attempt} was sealed already, or is older")


class Sealer(ABC):
    """The end at a party."""

    unexpected_help = "asked for help that is not needed"

    @property
    def ctx(self) -> bytes:
        """The context of the last sealed vector, 32 bytes; empty where the protection has none."""
        return b""

    @abstractmethod
    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The sealed chunks of a vector, in order. PeerError if this tag must not be sealed."""

    def note(self) -> bytes:
        """Bytes for the opener that travel with the last chunk of the last vector."""
        return b""

    def assist(self, request: bytes) -> bytes:
        """Help to open the sum of the last turn. PeerError if it must not be given: unless a sum needs it."""
        raise PeerError(self.unexpected_help)


class Opener(ABC):
    """The end at the aggregator, one a turn."""

    unexpected_note = "a note where there are none"
    unexpected_help = "help that was not asked for"

    ctx = b""
    """The context that each party's vector must be sealed under, as in `Sealer`."""
    chunks: int
    """Chunks in which each party's vector arrives."""

    @abstractmethod
    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add one chunk of a party's vector; PeerError if it cannot be one."""

    def note(self, party: str, note: bytes) -> None:
        """Take in the note of a party, which travels with its last chunk: none, unless a sum needs more than
        the vectors."""
        if note:
            raise PeerError(self.unexpected_note)

    def lose(self, party: str) -> None:  # noqa: B027 - most sums need nothing then
        """Note that a party whose whole vector was added is disconnected. Its vector stays in the sum."""

    def requests(self) -> dict[str, bytes]:
        """Party to its request for help; empty when the sum can be opened.

        Raises RosterTooSmall if it never can.
        """
        return {}

    def assist(self, party: str, answer: bytes) -> None:
        """Take in a party's help; PeerError if it does not answer the request, SessionFailed if the help of
        all can never open the sum."""
        raise PeerError(self.unexpected_help)

    @abstractmethod
    def open(self) -> Int64:
        """The sum, once every party's chunks are added and `requests` is empty."""
