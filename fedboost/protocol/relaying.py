"""Relays of a turn: what a party needs of others before it can answer, passed on by the aggregator.

Promises: bytes are sealed end to end, under all that both ends must agree on: the attempt, what every party
of the block was told of the state and the questions, the turn, and a number that grows; nothing is kept at
the aggregator; a part that is repeated changes nothing.
Refuses: relays to or from parties of other blocks, out of order, of more bytes than a turn can need, or to
parties that have answered (PeerError).
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from fedboost.errors import PeerError, quoted
from fedboost.privacy import packing
from fedboost.privacy.packing import RandomBytes
from fedboost.privacy.pairwise import MIN_SEALED_BYTES, open_sealed, seal, sealed_size
from fedboost.protocol.contracts import (
    Answered,
    Answering,
    Keys,
    NeedKeys,
    Query,
    Receive,
    Send,
    TrainingState,
)
from fedboost.protocol.messages import PART_BYTES, Ask, Relay, next_transcript
from fedboost.protocol.site import Question
from fedboost.terms.terms import Terms

MAX_QUOTE = 64
"""Characters of a name that a message quotes."""
BYTES_PER_ROW = 8
"""Bytes that a turn relays for each row and root, beside a bit in each row set."""
BYTES_PER_ID = 4
"""Bytes that say how many rows of the label holder have a row id, where it may repeat them."""
FEW_RELAYS = 2
"""Relays of a party in a turn, at most, that are no row sets and no lists of ids: how far it has come, and
one more. Where ids are repeated it relays, too, how often they are."""
FEW_BYTES = 1 << 10
"""Bytes that a party relays of how many rows it has, and how far it has come, at most."""


def max_relayed(terms: Terms, party: str, query: Query, rows: int, state: TrainingState) -> int:
    """Most bytes that a party, or another of its block, relays in a turn: before there are bins and a tree
    how many rows it has; then how far it has come, gradients, and two row sets for each level of all trees
    where another party lost them; and how often ids are repeated, where they are."""
    block = terms.blocks.of(party)
    if block is None:
        return 0
    row_sets, content = 0, FEW_BYTES + query.relayed_bytes(terms)
    if terms.vertical.repeated_ids:
        rows = min(query.rows, terms.vertical.most_ids)  # a party that lost its rows does not know how many
        content += BYTES_PER_ID * rows
    if state.position.started or query.stage >= 0:
        row_sets = 2 * (terms.trees.rounds + 1) * terms.max_turns_per_tree
        row_sets += 2 * (terms.vertical.min_rows_per_bin > 1)  # which rows a tree grows on
        cells = len(terms.roots) * rows
        each = -(-terms.hiding.key_bits // 4) if terms.hides_columns else BYTES_PER_ROW
        content += cells * each + row_sets * -(-cells // 8)
    few = FEW_RELAYS + terms.vertical.repeated_ids
    return content + (few + row_sets) * sealed_size(0, block.parties)


@dataclass(frozen=True)
class Ends:
    """What a party seals with in an attempt. keys: the secret shared with each other party of its block;
    transcript: the hash of what all of them were told."""

    me: str
    keys: Mapping[str, bytes]
    transcript: bytes
    draw: RandomBytes

    def told(self, query: Query) -> "Ends":
        """The ends once all of the block were told this query too, as it is seen publicly."""
        return replace(self, transcript=next_transcript(self.transcript, query))

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
        numbers = map(packing.number, (ask.turn, ask.attempt, number))
        return packing.pack(self.transcript, *numbers, kind.encode())


class Order:
    """The order and sizes of the relays of one sender in a turn. of: how a refusal names them."""

    def __init__(self, of: str = "") -> None:
        self.size = 0
        """Bytes so far."""
        self._of = of
        self._number, self._to = 0, tuple[str, ...]()
        self._is_open = False
        """True until the last part of that relay has come."""
        self._part = b""
        """The part that came last."""
        self._size = 0
        """Bytes of the last relay."""

    def add(self, relay: Relay, most: int) -> bool:
        """Take in a part; False for the last one again. PeerError for one out of order or of a size that it
        cannot have, and for more than `most` bytes in all."""
        number, part = self._number, relay.content
        if (relay.number, relay.to, relay.last, part) == (number, self._to, not self._is_open, self._part):
            return False
        if self._is_open:
            in_order = (relay.number, relay.to) == (number, self._to)
        else:
            in_order, self._size = relay.number > number, 0
        if not in_order:
            raise PeerError(f"relay {relay.number}{self._of} comes after relay {number}")
        self._number, self._to, self._is_open, self._part = relay.number, relay.to, not relay.last, part
        size = len(relay.content)
        self._size += size
        self.size += size
        if size != PART_BYTES and not (relay.last and size < PART_BYTES and self._size >= MIN_SEALED_BYTES):
            raise PeerError(f"relay {relay.number}{self._of} has a part of {size} bytes, which none has")
        if self.size > most:
            raise PeerError(f"relay {relay.number}{self._of} makes more bytes than a turn can need")
        return True


class Underway:
    """A party's answer under way: what it has relayed, and what was relayed to it. answered: the
    answer, once it is whole."""

    def __init__(
        self,
        ask: Ask,
        before: TrainingState,
        steps: Answering,
        ends: Ends | None,
        most: int,
        keys: Keys | None = None,
    ) -> None:
        """before: where the training stood; ends: None where nothing is relayed; most: see `max_relayed`;
        keys: by which gradients are hidden, where they are."""
        self.ask = ask
        self.before = before
        self.question: Question | None = None
        """What the site remembers of the query, once it does."""
        self.answered: Answered | None = None
        self._keys = keys
        self._steps = steps
        self._ends = ends
        self._most = most
        self._checked = 0
        """Hashes of what must be the same when the query is asked again that were looked at."""
        self._waits: Receive | None = None
        self._is_new = True
        self._sent = 0
        self._orders: dict[str, Order] = {}
        self._parts: dict[str, list[bytes]] = defaultdict(list)
        self._whole: dict[str, deque[tuple[int, bytes]]] = defaultdict(deque)
        """Number and sealed bytes of the relays that wait to be read, by sender."""

    def advance(self) -> Iterator[tuple[Send | Receive, Iterable[Relay], bytes]]:
        """Compute until something is missing: what is to be relayed, each with its messages; and what was
        relayed to it and must be the same when the query is asked again, each with its hash."""
        content: bytes | Keys | None = None
        while True:
            if self._waits is not None:
                queue = self._whole[self._waits.sender]
                if not queue:
                    return
                assert self._ends is not None
                number, sealed = queue.popleft()
                content = self._ends.open(sealed, self._waits, self.ask, number)
                if self._waits.once:
                    yield self._waits, (), hashlib.sha256(content).digest()
            try:
                step = next(self._steps) if self._is_new or content is None else self._steps.send(content)
            except StopIteration as done:
                value = done.value
                self.answered = value if isinstance(value, Answered) else Answered(value)
                return
            self._is_new, self._waits, content = False, None, None
            if isinstance(step, Receive):
                self._waits = step
            elif isinstance(step, NeedKeys):
                content = self._keys
            else:
                yield step, self._messages(step), b""

    def new(self, receive: Receive, digest: bytes) -> tuple[bytes, ...]:
        """All hashes to be remembered with the question, if that of what was relayed now is new. PeerError
        where another one is remembered."""
        assert self.question is not None
        known, number = self.question.received, self._checked
        self._checked += 1
        if known[number : number + 1] not in ((), (digest,)):
            raise PeerError(
                f"party {receive.sender} relayed other {receive.kind} than before in turn {self.ask.turn}"
            )
        return () if number < len(known) else (*known, digest)

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
            name = quoted(sender, MAX_QUOTE)
            raise PeerError(f"bytes relayed by party {name}, which is not of the block of this one")
        if not self._orders.setdefault(sender, Order(f" of party {sender}")).add(relay, self._most):
            return
        self._parts[sender].append(relay.content)
        if relay.last:
            self._whole[sender].append((relay.number, b"".join(self._parts.pop(sender))))
