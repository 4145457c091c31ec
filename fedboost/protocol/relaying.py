"""Relays of a turn: what a party needs of others before it can answer, passed on by the aggregator.

Promises: bytes are sealed end to end where parties have keys, under all that both ends must agree on: the
attempt, what every party of the block was told of the questions, the turn, and a number that grows; nothing is
kept at the aggregator.
Refuses: relays to or from parties of other blocks, out of order, or of more bytes than a turn can need
(PeerError).
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.privacy import fields
from fedboost.privacy.relay import SEALED_BYTES, open_sealed, seal
from fedboost.privacy.shamir import RandomBytes
from fedboost.protocol.contracts import Answering, Receive, Send, TrainingState
from fedboost.protocol.events import Outbox
from fedboost.protocol.messages import Ask, Relay
from fedboost.protocol.site_memory import Question
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.protocol.aggregator import AggregatorSession

PART_BYTES = 1 << 20
"""Bytes of a part of relayed bytes."""
BYTES_PER_ROW = 16
"""Bytes that a turn relays for each row and root at most, beside a bit for each level of each tree."""
SPARE_BYTES = 1 << 20
"""Bytes beside these, and beside the keys of each receiver."""


def max_relayed(terms: Terms, rows: int) -> int:
    """Most bytes that a party relays in a turn: gradients, and the row sets of all trees where another party
    lost them, two relays a level."""
    levels = (terms.trees.rounds + 1) * terms.max_turns_per_tree
    keys = [sum(SEALED_BYTES + len(party.encode()) for party in block.parties) for block in terms.blocks]
    content = len(terms.roots) * rows * (BYTES_PER_ROW + levels // 4)
    return SPARE_BYTES + content + 2 * levels * max(keys)


@dataclass(frozen=True)
class Ends:
    """What a party seals with in an attempt. keys: the secret shared with each other party of its block;
    transcript: the hash of what all of them were told."""

    me: str
    keys: Mapping[str, bytes]
    transcript: bytes
    draw: RandomBytes

    def seal(self, send: Send, ask: Ask, number: int) -> bytes:
        """The bytes of a relay as they travel."""
        keys = {party: self.keys[party] for party in send.to}
        return seal(send.content, self.me, keys, self._context(ask, number, send.kind), self.draw)

    def open(self, sealed: bytes, receive: Receive, ask: Ask, number: int) -> bytes:
        """The bytes that another party relayed."""
        sender = receive.sender
        context = self._context(ask, number, receive.kind)
        content = open_sealed(sealed, sender, self.me, self.keys[sender], context)
        if len(content) != receive.size:
            raise PeerError(
                f"party {sender} relayed {len(content)} bytes of {receive.kind} where {receive.size} were "
                f"due: it holds other rows than this party"
            )
        return content

    def _context(self, ask: Ask, number: int, kind: str) -> bytes:
        numbers = map(fields.number, (ask.turn, ask.attempt, number))
        return fields.pack(self.transcript, *numbers, kind.encode())


class Underway:
    """A party's answer under way: what it has relayed, and what was relayed to it. values: the answer, once
    it is whole."""

    def __init__(
        self, ask: Ask, before: TrainingState, steps: Answering, ends: Ends | None, most: int
    ) -> None:
        """before: where the training stood; ends: None where nothing is relayed; most: see `max_relayed`."""
        self.ask = ask
        self.before = before
        self.question: Question | None = None
        """What the site remembers of the query, once it does."""
        self.values: Int64 | None = None
        self._steps = steps
        self._ends = ends
        self._most = most
        self._waits: Receive | None = None
        self._is_new = True
        self._sent = 0
        self._taken: dict[str, int] = defaultdict(int)
        """Bytes of each sender."""
        self._numbers: dict[str, int] = {}
        """Number of the last relay of each sender that was begun."""
        self._last: dict[str, Relay] = {}
        """The last part of each sender."""
        self._parts: dict[str, list[bytes]] = defaultdict(list)
        self._whole: dict[str, deque[tuple[int, bytes]]] = defaultdict(deque)
        """Number and sealed bytes of the relays that wait to be read, by sender."""

    def advance(self) -> Iterator[tuple[Send, Iterator[Relay]]]:
        """Compute until something is missing: what is to be relayed, each with its messages."""
        content: bytes | None = None
        while True:
            if self._waits is not None:
                queue = self._whole[self._waits.sender]
                if not queue:
                    return
                assert self._ends is not None
                number, sealed = queue.popleft()
                content = self._ends.open(sealed, self._waits, self.ask, number)
            try:
                step = next(self._steps) if self._is_new or content is None else self._steps.send(content)
            except StopIteration as done:
                self.values = done.value
                return
            self._is_new, self._waits, content = False, None, None
            if isinstance(step, Receive):
                self._waits = step
            else:
                yield step, self._messages(step)

    def _messages(self, send: Send) -> Iterator[Relay]:
        assert self._ends is not None
        self._sent += 1
        sealed = self._ends.seal(send, self.ask, self._sent)
        for start in range(0, len(sealed), PART_BYTES):
            end = start + PART_BYTES
            label = self.ask.turn, self.ask.attempt, self._sent
            yield Relay(*label, sealed[start:end], end >= len(sealed), to=send.to)

    def take(self, relay: Relay) -> None:
        """Take in a part of what another party relayed."""
        sender = relay.sender
        if self._ends is None or sender not in self._ends.keys:
            raise PeerError("bytes relayed by a party of no or another block")
        self._taken[sender] += len(relay.content)
        if self._taken[sender] > self._most:
            raise PeerError(f"more bytes relayed by party {sender} than a turn can need")
        if relay == self._last.get(sender):
            return  # repeated
        self._last[sender] = relay
        parts, last = self._parts[sender], self._numbers.get(sender, 0)
        if relay.number != last if parts else relay.number <= last:
            raise PeerError(f"relay {relay.number} of party {sender} after relay {last}")
        self._numbers[sender] = relay.number
        parts.append(relay.content)
        if relay.last:
            self._whole[sender].append((relay.number, b"".join(parts)))
            del self._parts[sender]


def pass_on(session: "AggregatorSession", party: str, relay: Relay) -> Outbox:
    """The bytes go on to the parties of the block that they are for; nothing is kept."""
    turn, block = session.current_turn, session.terms.block_of(party)
    assert turn is not None
    if relay.turn < session.turn:
        return []
    if relay.turn != session.turn or party not in turn.reporting:
        raise PeerError(f"it relays bytes for turn {relay.turn} in turn {session.turn}, or after its answer")
    others = set() if block is None else {*block.parties} - {party}
    if not relay.to or not others.issuperset(relay.to) or len(set(relay.to)) != len(relay.to):
        raise PeerError("it relays bytes to parties that are not of its block")
    turn.relayed[party] += len(relay.content)
    if turn.relayed[party] > max_relayed(session.terms, session.run.pending.rows):
        raise PeerError("it relays more bytes than a turn can need")
    told = replace(relay, to=(), sender=party)
    return [(other, told) for other in relay.to]


def stray_relay(session: "AggregatorSession", party: str, relay: Relay) -> Outbox:
    """A Relay of an earlier turn is ignored; any other breaks the protocol."""
    if relay.turn < session.turn:
        return []
    raise PeerError(f"it relays bytes while {session.phase}")
