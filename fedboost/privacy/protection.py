"""The contract of a protection: who may see a single party's vector.

A **Sealer** lives at a party and turns its vector of integers into sealed parts. An **Opener** lives at the
aggregator, one a turn: it adds the sealed parts of all parties into one running sum, never a copy per party,
asks parties for help if the protection needs it, and opens the sum.

Promises of every protection: the opened sum is the exact sum of the vectors; the order in which messages of
different parties arrive does not matter; a tag is sealed once.
Refuses: a part of another length or number than the vector has, help that was not asked for (PeerError).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy.bit_packing import Part, Segment, parts_of


@dataclass(frozen=True)
class Tag:
    """The unique label of one sealing, and the shape of what is sealed.

    turn, attempt: grow strictly; epoch: grows, and has its own keys and one roster (the epochs of a session
    are its trees, from -1 before the first); roster: the parties whose vectors go into the sum; transcript:
    hash of all questions of the session up to this one; runs: cells of so many bits each.
    """

    turn: int
    attempt: int
    epoch: int
    roster: tuple[str, ...]
    transcript: bytes
    segments: tuple[Segment, ...]

    @property
    def cells(self) -> int:
        """Integers of the vector."""
        return sum(segment.cells for segment in self.segments)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts that the vector travels in: at least one."""
        return parts_of(self.segments)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    def part(self, number: int) -> Part:
        """One part; PeerError if there is none of that number."""
        if not 0 <= number < len(self.parts):
            raise PeerError(f"part {number} of a vector of {len(self.parts)} parts")
        return self.parts[number]


def check_newer(tag: Tag, last: Tag | None) -> None:
    """Raise PeerError unless the turn, or the attempt at it, is greater than that of the last tag."""
    if last is not None and (tag.turn, tag.attempt) <= (last.turn, last.attempt):
        raise PeerError(f"turn {tag.turn}, attempt {tag.attempt} was sealed already, or is older")


class Sealer(Protocol):
    """At a party."""

    def seal(self, values: Int64, tag: Tag) -> Iterator[bytes]:
        """The sealed parts of a vector, in order. PeerError if this tag must not be sealed."""
        ...

    def note(self) -> bytes:
        """What goes to the opener with the last part of what was sealed last."""
        ...

    def assist(self, request: bytes) -> bytes:
        """Help to open the sum of the last turn. PeerError if that must not be given."""
        ...


class Opener(Protocol):
    """At the aggregator, one a turn."""

    @property
    def parts(self) -> int:
        """Parts in which each party's vector arrives."""
        ...

    def add(self, party: str, part: int, cells: bytes) -> None:
        """Add one part of a party's vector; PeerError if it cannot be one."""
        ...

    def note(self, party: str, note: bytes) -> None:
        """Take in what came with a party's last part."""
        ...

    def lose(self, party: str) -> None:
        """A party whose whole vector was added is gone. Its vector stays in the sum."""
        ...

    def requests(self) -> dict[str, bytes]:
        """Party to the help that is still wanted of it; empty when the sum can be opened.

        Raises RosterTooSmall if it never can.
        """
        ...

    def assist(self, party: str, answer: bytes) -> None:
        """Take in a party's help; PeerError if it is not what was asked for, SessionFailed if the sum can
        never be opened for what others gave."""
        ...

    def open(self) -> Int64:
        """The sum, once every party's parts are added and `requests` is empty."""
        ...
