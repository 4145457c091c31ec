"""The interface of a protection. The protection of a session determines who can see a single party's vector.

A **Sealer** belongs to a party and turns its vector of integers into sealed chunks. An **Opener** belongs to
the aggregator, which creates one per turn. The opener adds the sealed chunks of all parties to one running
sum and does not store them per party. It then opens the sum, with help from parties if the protection
requires it. If vectors can only be added when all were sealed under the same context, both ends provide
`ctx`, a public hash of the context. A party with a different context is reported before its vector is added.

Guarantees of every protection: the opened sum is the exact sum of the vectors; messages of different parties
may arrive in any order; each tag is sealed at most once. Raises: PeerError for a chunk with a wrong length or
number, and for an answer that was not requested."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.packing import Chunk, Segment, chunks_of


@dataclass(frozen=True)
class Tag:
    """Unique label of a sealed vector, and the vector's shape.

    Args:
        turn, attempt: numbers; the pair (turn, attempt) increases from one tag to the next.
        roster: names of the parties whose vectors are added.
        transcript: hash of all queries of the session up to and including this one.
        segments: number of cells, and bits per cell, of each segment.
    """

    turn: int
    attempt: int
    roster: tuple[str, ...]
    transcript: bytes
    segments: tuple[Segment, ...]

    chunks: tuple[Chunk, ...] = field(init=False, repr=False, compare=False)
    """The chunks in which the vector is sent, at least one."""
    cells: int = field(init=False, repr=False, compare=False)
    """Number of integers in the vector."""

    def __post_init__(self) -> None:
        chunks = chunks_of(self.segments)
        object.__setattr__(self, "chunks", chunks)
        object.__setattr__(self, "cells", chunks[-1].start + chunks[-1].cells)

    @cached_property
    def checked(self) -> tuple[Chunk, ...]:
        """The same chunks, each with a check cell at its end."""
        return chunks_of(self.segments, checked=True)

    @property
    def size(self) -> int:
        """Total size of all chunks in bytes."""
        return sum(chunk.size for chunk in self.chunks)

    def chunk(self, number: int) -> Chunk:
        """Return the chunk with this number. Raises PeerError if there is none."""
        if not 0 <= number < len(self.chunks):
            raise PeerError(
                "chunk-number", f"it sent part {number} of a vector with {len(self.chunks)} parts"
            )
        return self.chunks[number]


@dataclass(frozen=True)
class HiddenSums:
    """Gradient sums that some parties report in encrypted form.

    Args:
        limit: maximum magnitude of a row's gradient and hessian.
        rows: maximum number of rows in a sum.
        places: party -> indices, among the answer's elements, of the gradient sums that the party encrypts,
            int64 [sums]. The element after a gradient sum is the hessian sum.
        cells: number of elements of the answer.
        to_cells: function that maps an answer to the cells that are sealed.
        marks: party -> indices of the unencrypted elements that only this party reports, int64 [marks].
    """

    limit: int
    rows: int
    places: Mapping[str, Int64]
    cells: int
    to_cells: Callable[[Int64], Int64]
    marks: Mapping[str, Int64] = field(default_factory=dict)


def check_newer(tag: Tag, last: Tag | None) -> None:
    """Raise PeerError unless the pair (turn, attempt) of `tag` is greater than the pair of the last tag."""
    if last is not None and (tag.turn, tag.attempt) <= (last.turn, last.attempt):
        raise PeerError("tag-used", f"turn {tag.turn}, attempt {tag.attempt} is not newer than the last one")


class Sealer(ABC):
    """The party's end of a protection. It seals vectors, and helps to open sums."""

    unexpected_help = "the aggregator asked this party to help open a sum, but no help is needed"

    @property
    def ctx(self) -> bytes:
        """The context of the last sealed vector: 32 bytes, or empty if contexts are not used."""
        return b""

    @abstractmethod
    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """Yield the sealed chunks of a vector in order. Raises PeerError if this tag must not be sealed."""

    def note(self) -> bytes:
        """Return additional bytes for the opener, which are sent with the last chunk of the last vector."""
        return b""

    def assist(self, request: bytes) -> bytes:
        """Answer the aggregator's request for help in opening the sum of the last turn. Raises PeerError if
        the protection needs no help from parties, or if the request is not allowed."""
        raise PeerError("help-unexpected", self.unexpected_help)


class Opener(ABC):
    """The aggregator's end of a protection in one turn. It adds sealed vectors and opens their sum."""

    unexpected_note = "it sent a note with its report, but the protection has no notes"
    unexpected_help = "it sent an answer that was not requested"

    ctx = b""
    """The context under which each party must have sealed its vector, as in `Sealer`."""
    chunks: int
    """Number of chunks in which each party's vector arrives."""
    checked_chunks: bool | None = None
    """How adders add chunks before they arrive: True if each has a check cell, False if zeros may be omitted,
    None if chunks cannot be added."""

    @abstractmethod
    def add(self, party: str, number: int, cells: bytes) -> None:
        """Add a chunk of a party's vector. Raises PeerError if the number or the bytes are not valid."""

    def note(self, party: str, note: bytes) -> None:
        """Store the note that a party sent with its last chunk. Raises PeerError if the note is malformed, or
        if it is not empty although the protection has no notes."""
        if note:
            raise PeerError("note-unexpected", self.unexpected_note)

    def lose(self, party: str) -> None:  # noqa: B027 - most sums need nothing then
        """Record that a party disconnected after its whole vector was added. Its vector stays in the sum."""

    def requests(self) -> dict[str, bytes]:
        """Return the requests that must still be answered before the sum can be opened, as a dictionary of
        party -> request. The dictionary is empty once the sum can be opened. Raises RosterTooSmall if the sum
        can never be opened."""
        return {}

    def assist(self, party: str, answer: bytes) -> None:
        """Store a party's answer to a request. Raises PeerError if the answer does not match the request, and
        SessionFailed if the answers of all parties cannot open the sum."""
        raise PeerError("help-unexpected", self.unexpected_help)

    @abstractmethod
    def open(self) -> Int64:
        """Return the sum. All parties' chunks must have been added, and `requests` must be empty."""
