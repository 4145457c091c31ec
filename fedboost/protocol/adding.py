"""Adders: processes between sites and the aggregator that add their sites' reports. Both ends, sans-IO.

An adder takes the calls of some parties, its region, and has one connection to the aggregator. It passes all
messages on unchanged, with one exception: if the protection's vectors can be added without help, it adds the
parts of its region's reports and sends one sum. Masks span all parties, so a region's sum is still masked.

Guarantees: a part leaves only once every asked party of the region has sent it, and the aggregator adds it
for exactly these parties, once (docs/decisions/0048-adders.md). Nothing is ever taken out of a sum again. If
a party is lost before its last part was added, no part that lacks it leaves. If it is lost afterwards, the
aggregator learns of the loss after the sum, as it would without adders. Reports that cannot be added are
passed on, so the aggregator judges them. Raises: PeerError if an adder breaks these rules."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from fedboost.errors import PeerError
from fedboost.privacy.packing import WORD_BITS, Segment, Words, chunks_of
from fedboost.protocol.contracts import MAX_CELLS, Bound, Only
from fedboost.protocol.messages import CONTEXT_BYTES, Report
from fedboost.terms.session import MAX_PARTIES

# ---- Frames between an adder and the aggregator ---------------------------------------------------------
# A party has a number, which the adder assigns when the party calls. A party that calls again gets another
# number, so nothing meant for its previous call reaches the new one.


MAX_SEGMENTS = 4096
"""Maximum number of segments of vectors that adders add. Vectors with more segments are passed on."""
MAX_WAITING = 64
"""Maximum number of frames of a party that wait for a sum. Further ones are dropped: the party has left, and
what it sends on its next call answers nothing."""
MAX_NAME = 256
"""Maximum length of a party's name in characters."""
Numbers = Annotated[tuple[int, ...], Bound(MAX_PARTIES, "parties")]


@dataclass(frozen=True)
class Addition:
    """What an adder needs to add the reports of a turn: turn and attempt, the context of their first part,
    and the shape of the vectors. checked: True if each chunk has a check cell, False if zeros may be
    omitted."""

    turn: int
    attempt: int
    ctx: bytes
    segments: Annotated[tuple[Segment, ...], Bound(MAX_SEGMENTS, "segments")]
    checked: bool


@dataclass(frozen=True)
class Here:
    """A party has called. software: version that it claims to run."""

    number: int
    party: Annotated[str, Only(lambda name: 0 < len(name) <= MAX_NAME, "a party's name has a wrong length")]
    software: str = ""


@dataclass(frozen=True)
class Gone:
    """A party's call has ended."""

    number: int
    reason: str


@dataclass(frozen=True)
class From:
    """A party's message, unchanged. advises: True if it answers a preflight check."""

    number: int
    data: bytes = field(repr=False)
    advises: bool = False


@dataclass(frozen=True)
class RegionSum:
    """One part of the sum over the parties that were asked in this turn. sizes: bytes of each party's report,
    in the order of the question, or one number if all are the same; last: the party that completed the
    part."""

    turn: int
    attempt: int
    part: int
    cells: bytes = field(repr=False)
    ctx: Annotated[
        bytes, Only(lambda ctx: len(ctx) in (0, CONTEXT_BYTES), "its context has an invalid length")
    ]
    sizes: Numbers
    last: int


@dataclass(frozen=True)
class Held:
    """The parties whose whole reports the adder has added, while it waits for others of its region."""

    turn: int
    attempt: int
    numbers: Numbers


FromAdder = Here | Gone | From | RegionSum | Held


@dataclass(frozen=True)
class To:
    """A message to parties. numbers: its receivers; none: those of the To before. relays: True if the adder
    must wait until the receivers have read earlier messages; advises: True for a preflight check; adds: set
    if the message asks for vectors that can be added."""

    numbers: Numbers
    data: bytes = field(repr=False)
    relays: bool = False
    advises: bool = False
    adds: Addition | None = None


@dataclass(frozen=True)
class Cut:
    """Ends a party's call. refused: True if the party may not call, False if it broke the protocol."""

    number: int
    refused: bool
    code: str
    reason: str


ToAdder = To | Cut


# ---- The adder's end ------------------------------------------------------------------------------------


class RunningSum:
    """The sum of a turn's reports over some parties, part by part."""

    def __init__(self, addition: Addition, numbers: tuple[int, ...]) -> None:
        """Raises PeerError if the vectors have an impossible shape."""
        cells = sum(segment.cells for segment in addition.segments)
        if cells > MAX_CELLS or not all(1 <= segment.bits <= WORD_BITS for segment in addition.segments):
            raise PeerError("addition-shape", f"vectors of {cells} cells cannot be added")
        self.addition = addition
        self._chunks = chunks_of(addition.segments, addition.checked)
        self._next = dict.fromkeys(numbers, 0)
        """Party -> number of its next part."""
        self._left = [len(numbers)] * len(self._chunks)
        self._sizes: list[dict[int, int]] = [{} for _ in self._chunks]
        last = self._chunks[-1]
        self._sum: Words = np.zeros(last.start + last.cells, np.uint64)

    def __contains__(self, number: int) -> bool:
        return number in self._next

    @property
    def held(self) -> tuple[int, ...]:
        """Parties whose last part was added, unless the whole sum has left."""
        if not self._left[-1]:
            return ()
        return tuple(number for number, part in self._next.items() if part == len(self._chunks))

    def fits(self, number: int, report: Report) -> bool:
        """Return True if this is the party's next part in this turn, attempt and context."""
        addition, part = self.addition, self._next.get(number)
        if part is None or (report.turn, report.attempt) != (addition.turn, addition.attempt):
            return False
        due = b"" if part else addition.ctx
        return part < len(self._chunks) and (report.part, report.ctx, report.note) == (part, due, b"")

    def repeats(self, number: int, report: Report) -> bool:
        """Return True if this part was added before."""
        same = (report.turn, report.attempt) == (self.addition.turn, self.addition.attempt)
        return same and report.part < self._next.get(number, 0)

    def add(self, number: int, report: Report, size: int) -> RegionSum | None:
        """Add a part that fits. Returns the sum of this part once all parties have sent it. Raises PeerError
        if the cells are malformed; the whole sum is then of no use any more."""
        part = report.part
        chunk, sizes = self._chunks[part], self._sizes[part]
        cells = chunk.of(self._sum)
        (chunk.add if self.addition.checked else chunk.add_sparsely)(cells, report.cells)
        self._next[number] = part + 1
        self._left[part] -= 1
        sizes[number] = size
        if self._left[part]:
            return None
        packed = (chunk.packed if self.addition.checked else chunk.packed_sparsely)(cells)
        in_order = tuple(sizes[each] for each in self._next)
        told = in_order[:1] if len(set(in_order)) == 1 else in_order
        ctx = b"" if part else self.addition.ctx
        return RegionSum(self.addition.turn, self.addition.attempt, part, packed, ctx, told, number)


class AdderEnd:
    """The adder's end of the connection to the aggregator.

    Args:
        up: sends a frame to the aggregator.
        down: sends a frame's message to a party.
        cut: ends a party's call.
        report_of: returns the report in a party's message, or None if the message is another one."""

    def __init__(
        self,
        up: Callable[[FromAdder], None],
        down: Callable[[str, To], None],
        cut: Callable[[str, Cut], None],
        report_of: Callable[[bytes], Report | None],
    ) -> None:
        self._up, self._down, self._cut, self._report_of = up, down, cut, report_of
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._software: dict[str, str] = {}
        self._last = 0
        self._receivers: tuple[int, ...] = ()
        self._sum: RunningSum | None = None
        self._attached = False
        self._waiting: dict[str, list[FromAdder]] = {}
        """Party that was lost after its last part was added -> frames that follow the sum."""
        self._told: Held | None = None

    def attach(self) -> None:
        """Announce all parties over a new connection to the aggregator."""
        self.detach()
        self._attached = True
        for party in self._numbers:
            self._announce(party)

    def detach(self) -> None:
        """The connection to the aggregator is lost. The parties stay."""
        self._attached = False
        self._sum, self._receivers, self._waiting, self._told = None, (), {}, None

    def here(self, party: str, software: str) -> None:
        """A party has called."""
        self._software[party] = software
        self._announce(party)

    def _announce(self, party: str) -> None:
        self._last += 1
        self._names.pop(self._numbers.get(party, 0), None)
        self._numbers[party], self._names[self._last] = self._last, party
        self._pass(party, Here(self._last, party, self._software[party]))

    def gone(self, party: str, reason: str) -> None:
        """A party's call has ended."""
        number, total = self._numbers.pop(party), self._sum
        del self._names[number]
        frame = Gone(number, reason)
        if total is not None and number in total.held:
            self._waiting.setdefault(party, [])
        self._pass(party, frame)
        if total is not None and number in total and number not in total.held:
            self._drop_sum()  # no part that lacks this party's can leave any more

    def message(self, party: str, data: bytes, advises: bool = False) -> None:
        """A party has sent a message."""
        number, total = self._numbers[party], self._sum
        report = None if advises or total is None or number not in total else self._report_of(data)
        if total is None or report is None:
            self._pass(party, From(number, data, advises))
        elif total.fits(number, report):
            try:
                summed = total.add(number, report, len(data))
            except PeerError:  # the aggregator judges it, too, and names the party
                self._drop_sum()
                self._pass(party, From(number, data))
                return
            if summed is not None:
                self._up(summed)
                if not total.held:
                    self._flush()
        elif not total.repeats(number, report):
            self._pass(party, From(number, data))

    def receivers(self, frame: To) -> list[str]:
        """Return the parties that get a message."""
        numbers = frame.numbers or self._receivers
        return [self._names[number] for number in numbers if number in self._names]

    def receive(self, frame: ToAdder) -> None:
        """The aggregator has sent a frame."""
        if isinstance(frame, Cut):
            if (party := self._names.get(frame.number)) is not None:
                self._cut(party, frame)
            return
        receivers = frame.numbers or self._receivers
        if not frame.advises:  # `RegionEnd.to` counts only a session's messages
            self._receivers = receivers
        if frame.adds is not None:
            # A question follows the last sum of the turn before, or begins another attempt.
            self._drop_sum()
            if all(number in self._names for number in receivers):  # else a loss is on its way up
                self._sum = RunningSum(frame.adds, receivers)
        elif self._waiting and not frame.advises:
            self._flush()
        for party in self.receivers(frame):
            self._down(party, frame)

    def tell_held(self) -> None:
        """Tell the aggregator, if that changed, whose whole reports are here."""
        if (total := self._sum) is not None and total.held:
            held = Held(total.addition.turn, total.addition.attempt, total.held)
            if held != self._told:
                self._up(held)
            self._told = held

    def _drop_sum(self) -> None:
        self._sum = None
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for frame in itertools.chain.from_iterable(waiting.values()):
            self._up(frame)

    def _pass(self, party: str, frame: FromAdder) -> None:
        """Send a frame about a party, after those about this party that wait for the sum."""
        if not self._attached:
            return
        if (waiting := self._waiting.get(party)) is None:
            self._up(frame)
        elif len(waiting) < MAX_WAITING or not isinstance(frame, From):
            waiting.append(frame)


# ---- The aggregator's end -------------------------------------------------------------------------------


class RegionEnd:
    """The aggregator's end of an adder's connection: the parties behind it, and what they were asked."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.numbers: dict[str, int] = {}
        self._last = 0
        self._receivers: tuple[int, ...] = ()
        self._asked: Addition | None = None
        self._parties: tuple[str, ...] = ()
        """The parties that were asked for vectors that can be added, in the order of the question."""

    def here(self, frame: Here) -> None:
        """Note a party that has called. Raises PeerError for a number that is not new, and for too many
        parties."""
        if frame.number <= self._last or frame.party in self.numbers:
            raise PeerError("region-number", f"the adder announced party number {frame.number} twice")
        if len(self.names) >= MAX_PARTIES:
            raise PeerError("region-too-large", f"the adder announced more than {MAX_PARTIES} parties")
        self._last = frame.number
        self.names[frame.number], self.numbers[frame.party] = frame.party, frame.number

    def forget(self, party: str) -> None:
        """Forget a party whose call has ended. Frames with its number are ignored from now on."""
        if (number := self.numbers.pop(party, None)) is not None:
            del self.names[number]

    def to(self, parties: tuple[str, ...], data: bytes, relays: bool, adds: Addition | None) -> To:
        """Address a message to parties of the region. adds: set if the message asks for vectors that can be
        added."""
        numbers = tuple(self.numbers[party] for party in parties)
        same, self._receivers = numbers == self._receivers, numbers
        if adds is not None:
            self._asked, self._parties = adds, parties
        return To(() if same else numbers, data, relays, False, adds)

    def summed(self, frame: RegionSum) -> dict[str, int] | None:
        """Return the parties of a sum, each with the bytes of its report, or None if the sum is for an
        earlier question. Raises PeerError if no such sum was asked for."""
        asked, label = self._asked, (frame.attempt, frame.turn)
        if asked is None or label != (asked.attempt, asked.turn):
            if asked is not None and label < (asked.attempt, asked.turn):
                return None
            raise PeerError("region-sum-unasked", f"the adder sent a sum of turn {frame.turn} unasked")
        sizes = frame.sizes * len(self._parties) if len(frame.sizes) == 1 else frame.sizes
        if len(sizes) != len(self._parties):
            raise PeerError("region-sum-sizes", "the adder sent a sum with a wrong number of sizes")
        return dict(zip(self._parties, sizes, strict=True))
