"""Relays of a turn: bytes that a party needs from other parties before it can answer. The aggregator forwards
them.

Guarantees: bytes are sealed end to end, and bound to everything that both ends must agree on: the attempt,
the block's public view of the state and the queries, the turn, and an increasing number. The aggregator
stores nothing. A repeated part has no effect.
Raises: PeerError for relays to or from parties of other blocks, relays to parties that have already answered,
and relays that are out of order or larger than a turn can need."""

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass

from fedboost.errors import PeerError, quoted
from fedboost.privacy import packing
from fedboost.privacy.packing import RandomBytes
from fedboost.privacy.pairwise import MIN_SEALED_BYTES, Handshake, open_sealed, seal, sealed_size
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
from fedboost.protocol.key_exchange import AgreedAttempt
from fedboost.protocol.messages import PART_BYTES, Ask, Relay, first_transcript, next_transcript
from fedboost.protocol.site import Question
from fedboost.terms.continuation import leaf_bytes
from fedboost.terms.terms import Terms

MAX_QUOTE = 64
"""Maximum number of characters of a name that an error message quotes."""
BYTES_PER_ROW = 8
"""Number of bytes relayed in a turn per row and root, in addition to one bit in each row set."""
BYTES_PER_ID = 4
"""Size in bytes of the number of rows that the label holder has for an id; relayed if ids may repeat."""
FEW_RELAYS = 2
"""Maximum number of relays that a party sends in a turn, excluding row sets and id lists: its progress and
one other relay. If ids may repeat, one more relay contains the repetitions."""
FEW_BYTES = 1 << 10
"""Maximum number of bytes that a party relays to report its number of rows and its progress."""


def max_relayed(terms: Terms, party: str, query: Query, rows: int, state: TrainingState) -> int:
    """Return the maximum number of bytes that a party, or another party of its block, relays in a turn.

    Before there are cut points and a tree, a party relays only its number of rows. Later it relays its
    progress, gradients, two row sets for each level of all trees (in case another party lost them), and, if
    ids may repeat, the number of rows per id. rows: number of rows in the session; state: state before the
    query."""
    block = terms.blocks.of(party)
    if block is None:
        return query.relayed_bytes(terms)
    row_sets, content = 0, FEW_BYTES + query.relayed_bytes(terms)
    if terms.vertical.repeated_ids:
        rows = min(
            query.rows, terms.vertical.most_ids
        )  # a party that lost its rows does not know their number
        content += BYTES_PER_ID * rows
    if size := leaf_bytes(terms.xgb_model):  # leaf bits; the byte more is for seals and which rows are known
        content += (size + 1) * rows
    if query.stage >= 0 or state.position.started:
        row_sets = 2 * (terms.trees.rounds + 1) * terms.max_turns_per_tree
        row_sets += 2 * (terms.vertical.min_rows_per_bin > 1)  # the rows that a tree grows on
        cells = len(terms.roots) * rows
        each = -(-terms.hiding.key_bits // 4) if terms.hides_columns else BYTES_PER_ROW
        content += cells * each + row_sets * -(-cells // 8)
    few = FEW_RELAYS + terms.vertical.repeated_ids + len(block.parties) * (size > 0)
    return content + (few + row_sets) * sealed_size(0, block.parties)


@dataclass(frozen=True)
class Ends:
    """Seals and opens a party's relays in one attempt. keys: other party of the block -> secret shared with
    that party; transcript: hash of the queries in the block's public view; draw: source of randomness."""

    me: str
    keys: Mapping[str, bytes]
    transcript: bytes
    draw: RandomBytes

    def told(self, query: Query) -> "Ends":
        """Return a copy whose transcript includes this query. query: the query in the block's public view."""
        return Ends(self.me, self.keys, next_transcript(self.transcript, query), self.draw)

    def seal(self, send: Send, ask: Ask, number: int) -> bytes:
        """Encrypt the bytes of a relay for its receivers. number: number of the relay in this turn."""
        keys = {party: self.keys[party] for party in send.to}
        return seal(send.content, self.me, keys, self._context(ask, number, send.kind), self.draw)

    def open(self, sealed: bytes, receive: Receive, ask: Ask, number: int) -> bytes:
        """Decrypt relayed bytes. Raises PeerError if they are not authentic or have an unexpected size."""
        sender = receive.sender
        context = self._context(ask, number, receive.kind)
        content = open_sealed(sealed, sender, self.me, self.keys[sender], context)
        if len(content) != receive.size:
            raise PeerError(
                "relay-length",
                f"party {sender} relayed {len(content)} bytes ({receive.kind}) instead of {receive.size}: "
                f"its rows do not match this party's rows",
            )
        return content

    def _context(self, ask: Ask, number: int, kind: str) -> bytes:
        numbers = map(packing.number, (ask.turn, ask.attempt, number))
        return packing.pack(self.transcript, *numbers, kind.encode())


def ends_of(
    me: str, terms: Terms, handshake: Handshake, met: AgreedAttempt, state: TrainingState, draw: RandomBytes
) -> Ends | None:
    """Return what seals and opens a party's relays in an attempt that starts in this state; None if it relays
    nothing. Call it before the masks use the handshake."""
    if not (others := terms.relays_to(me)):
        return None
    # Where the handshake is still needed for masks, other keys are derived from a copy of it.
    own, about = (handshake, met.session) if terms.blocks else (copy(handshake), met.session + b"relays")
    keys = own.pair_keys(me, met.publics, about, others)
    public = state.seen_by(terms, me, publicly=True)
    return Ends(me, keys, first_transcript(met.session, public), draw)


class Order:
    """Checks the order and size of one sender's relays in a turn. of: names the sender in messages."""

    def __init__(self, of: str = "") -> None:
        self.size = 0
        """Number of bytes received so far in this turn."""
        self._of = of
        self._number, self._to = 0, tuple[str, ...]()
        self._is_open = False
        """True while parts of the current relay are missing."""
        self._part = b""
        """Content of the part that arrived last."""
        self._size = 0
        """Number of bytes of the current relay received so far."""

    def add(self, relay: Relay, most: int) -> bool:
        """Check and count the next part. Returns False if it repeats the previous part. Raises PeerError for
        a part out of order or of an invalid size, and if the parts exceed `most` bytes in total."""
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
            raise PeerError(
                "relay-too-large", f"relay {relay.number}{self._of} exceeds the byte limit of a turn"
            )
        return True


class PendingAnswer:
    """A party's unfinished answer to a query: what it has relayed, and what was relayed to it."""

    def __init__(
        self,
        ask: Ask,
        before: TrainingState,
        steps: Answering,
        ends: Ends | None,
        most: int,
        keys: Keys | None = None,
    ) -> None:
        """Start answering a query.

        Args:
            before: state of the training run before the query.
            steps: the holder's generator that computes the answer.
            ends: seals and opens relays, None if there are none.
            most: maximum number of bytes that another party may relay (`max_relayed`).
            keys: keys that encrypt gradients, None if gradients are not encrypted."""
        self.ask = ask
        self.before = before
        self.question: Question | None = None
        """The query as recorded in the site's memory, or None before it is recorded."""
        self.answered: Answered | None = None
        """The answer, or None before it is complete."""
        self._keys = keys
        self._steps = steps
        self._ends = ends
        self._most = most
        self._checked = 0
        """Number of relays checked so far, of those that must be the same if the query is repeated."""
        self._waits: Receive | None = None
        self._is_new = True
        self._sent = 0
        self._orders: dict[str, Order] = {}
        self._parts: dict[str, list[bytes]] = defaultdict(list)
        self._whole: dict[str, deque[tuple[int, bytes]]] = defaultdict(deque)
        """Sender -> (number, sealed bytes) of complete relays that the holder has not read yet."""

    def advance(self) -> Iterator[tuple[Send | Receive, Iterable[Relay], bytes]]:
        """Continue computing the answer until it is complete or a relay is missing.

        Yields (step, messages, hash). If the step sends a relay, the messages are its parts, and the hash is
        empty. If the step receives a relay that must be the same whenever the query is repeated, there are no
        messages, and the hash is that of the relay's content."""
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
        """Compare the hash of a received relay with the hash recorded for the query. Returns all hashes to
        record if this one is new, otherwise (). Raises PeerError if a different hash was recorded."""
        assert self.question is not None
        known, number = self.question.received, self._checked
        self._checked += 1
        if known[number : number + 1] not in ((), (digest,)):
            raise PeerError(
                "relay-changed",
                f"party {receive.sender} changed what it relays ({receive.kind}) in turn {self.ask.turn}",
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
        """Accept a part of another party's relay. Raises PeerError for a sender outside the block."""
        sender = relay.sender
        if self._ends is None or sender not in self._ends.keys:
            name = quoted(sender, MAX_QUOTE)
            raise PeerError("relay-sender", f"party {name} relayed bytes, but is not in this party's block")
        if sender not in self._orders:
            self._orders[sender] = Order(f" of party {sender}")
        if not self._orders[sender].add(relay, self._most):
            return
        self._parts[sender].append(relay.content)
        if relay.last:
            self._whole[sender].append((relay.number, b"".join(self._parts.pop(sender))))
