"""Relays of a turn: bytes that a party needs from others before it can answer, passed on by the aggregator.

Promises: bytes are sealed end to end under everything that both ends must agree on: the attempt, the block's
public view of the state and the queries, the turn, and a number that grows. The aggregator keeps nothing. A
repeated part changes nothing.
Refuses: relays to or from parties of other blocks, out of order, of more bytes than a turn can need, or to
parties that have answered (PeerError)."""

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
"""Most characters of a name that an error quotes."""
BYTES_PER_ROW = 8
"""Bytes that a turn relays per row and root, in addition to a bit in each row set."""
BYTES_PER_ID = 4
"""Bytes for the number of the label holder's rows with an id, where ids may repeat."""
FEW_RELAYS = 2
"""Most relays of a party in a turn that are not row sets or lists of ids: its progress, and one more. Where
ids repeat, it also relays how often."""
FEW_BYTES = 1 << 10
"""Most bytes that a party relays about its number of rows and its progress."""


def max_relayed(terms: Terms, party: str, query: Query, rows: int, state: TrainingState) -> int:
    """Return the most bytes that a party, or another of its block, relays in a turn. Before there are bins
    and a tree, this is its number of rows. Later: its progress, gradients, and two row sets for each level of
    all trees, in case another party lost them; and how often ids repeat, where they do."""
    block = terms.blocks.of(party)
    if block is None:
        return 0
    row_sets, content = 0, FEW_BYTES + query.relayed_bytes(terms)
    if terms.vertical.repeated_ids:
        rows = min(
            query.rows, terms.vertical.most_ids
        )  # a party that lost its rows does not know their number
        content += BYTES_PER_ID * rows
    if state.position.started or query.stage >= 0:
        row_sets = 2 * (terms.trees.rounds + 1) * terms.max_turns_per_tree
        row_sets += 2 * (terms.vertical.min_rows_per_bin > 1)  # the rows that a tree grows on
        cells = len(terms.roots) * rows
        each = -(-terms.hiding.key_bits // 4) if terms.hides_columns else BYTES_PER_ROW
        content += cells * each + row_sets * -(-cells // 8)
    few = FEW_RELAYS + terms.vertical.repeated_ids
    return content + (few + row_sets) * sealed_size(0, block.parties)


@dataclass(frozen=True)
class Ends:
    """The keys with which a party seals and opens relays in an attempt. keys: other party of its block ->
    shared secret; transcript: that of the block's public view."""

    me: str
    keys: Mapping[str, bytes]
    transcript: bytes
    draw: RandomBytes

    def told(self, query: Query) -> "Ends":
        """Return the ends after this query, given as the block's public view."""
        return replace(self, transcript=next_transcript(self.transcript, query))

    def seal(self, send: Send, ask: Ask, number: int) -> bytes:
        """Seal the bytes of a relay for its receivers."""
        keys = {party: self.keys[party] for party in send.to}
        return seal(send.content, self.me, keys, self._context(ask, number, send.kind), self.draw)

    def open(self, sealed: bytes, receive: Receive, ask: Ask, number: int) -> bytes:
        """Open relayed bytes. Raises PeerError if they are not authentic, or not of the expected size."""
        sender = receive.sender
        context = self._context(ask, number, receive.kind)
        content = open_sealed(sealed, sender, self.me, self.keys[sender], context)
        if len(content) != receive.size:
            raise PeerError(
                "relay-length",
                f"party {sender} relayed {len(content)} bytes of {receive.kind}, expected {receive.size}: it "
                f"holds other rows than this party",
            )
        return content

    def _context(self, ask: Ask, number: int, kind: str) -> bytes:
        numbers = map(packing.number, (ask.turn, ask.attempt, number))
        return packing.pack(self.transcript, *numbers, kind.encode())


class Order:
    """Checks the order and sizes of one sender's relays in a turn. of: names the sender in errors."""

    def __init__(self, of: str = "") -> None:
        self.size = 0
        """Bytes so far."""
        self._of = of
        self._number, self._to = 0, tuple[str, ...]()
        self._is_open = False
        """True until that relay's last part has arrived."""
        self._part = b""
        """The part that arrived last."""
        self._size = 0
        """Bytes of the last relay so far."""

    def add(self, relay: Relay, most: int) -> bool:
        """Take in a part. Returns False if it repeats the last one. Raises PeerError for a part out of order
        or of an invalid size, and for more than `most` bytes in total."""
        number, part = self._number, relay.content
        # Relays are ciphertext, so two parts in a row are equal only if one repeats the other.
        if (relay.number, relay.to, relay.last, part) == (number, self._to, not self._is_open, self._part):
            return False
        if self._is_open:
            in_order = (relay.number, relay.to) == (number, self._to)
        else:
            in_order, self._size = relay.number > number, 0
        if not in_order:
            raise PeerError("relay-order", f"relay {relay.number}{self._of} comes after relay {number}")
        self._number, self._to, self._is_open, self._part = relay.number, relay.to, not relay.last, part
        size = len(relay.content)
        self._size += size
        self.size += size
        if size != PART_BYTES and not (relay.last and size < PART_BYTES and self._size >= MIN_SEALED_BYTES):
            raise PeerError(
                "relay-part-size", f"relay {relay.number}{self._of} has an invalid part of {size} bytes"
            )
        if self.size > most:
            raise PeerError("relay-too-large", f"relay {relay.number}{self._of} exceeds the bytes of a turn")
        return True


class PendingAnswer:
    """A party's answer in progress: what it has relayed, and what was relayed to it."""

    def __init__(
        self,
        ask: Ask,
        before: TrainingState,
        steps: Answering,
        ends: Ends | None,
        most: int,
        keys: Keys | None = None,
    ) -> None:
        """Start an answer.

        Args:
            before: state of the training before the query.
            ends: seals and opens relays, None where there are none.
            most: most bytes relayed by another party (`max_relayed`).
            keys: hide gradients, where they are hidden."""
        self.ask = ask
        self.before = before
        self.question: Question | None = None
        """The query as the site remembers it, once it does."""
        self.answered: Answered | None = None
        """The answer, once it is complete."""
        self._keys = keys
        self._steps = steps
        self._ends = ends
        self._most = most
        self._checked = 0
        """Number of checked hashes of relays that must be the same when the query is asked again."""
        self._waits: Receive | None = None
        self._is_new = True
        self._sent = 0
        self._orders: dict[str, Order] = {}
        self._parts: dict[str, list[bytes]] = defaultdict(list)
        self._whole: dict[str, deque[tuple[int, bytes]]] = defaultdict(deque)
        """Sender -> (number, sealed bytes) of the relays that are not read yet."""

    def advance(self) -> Iterator[tuple[Send | Receive, Iterable[Relay], bytes]]:
        """Compute until something is missing. Yields each relay to send with its messages, and each received
        relay that must be the same when the query is asked again with its hash."""
        # Invariant: `_waits` is the Receive that the holder's generator is stopped at, or None. It outlives
        # this call: if its bytes are missing, the call ends, and the next one continues at the same place. A
        # hash is yielded before the holder receives the bytes, so it is remembered before anything that
        # follows from them leaves.
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
        """Return all hashes to remember with the query if that of a received relay is new, else (). Raises
        PeerError if another hash is remembered in its place."""
        assert self.question is not None
        known, number = self.question.received, self._checked
        self._checked += 1
        if known[number : number + 1] not in ((), (digest,)):
            raise PeerError(
                "relay-changed",
                f"party {receive.sender} relayed other {receive.kind} than before in turn {self.ask.turn}",
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
        """Take in a part of another party's relay. Raises PeerError for a sender outside the block."""
        sender = relay.sender
        if self._ends is None or sender not in self._ends.keys:
            name = quoted(sender, MAX_QUOTE)
            raise PeerError("relay-sender", f"bytes relayed by party {name}, not of this party's block")
        if not self._orders.setdefault(sender, Order(f" of party {sender}")).add(relay, self._most):
            return
        self._parts[sender].append(relay.content)
        if relay.last:
            self._whole[sender].append((relay.number, b"".join(self._parts.pop(sender))))
