"""Limits how much of the aggregator's resources one peer, or all peers together, can use. The module also
closes idle connections and logs refused callers.

Guarantees: whatever a peer does, the amount of data stored for this peer is bounded by a constant in this
module. Only the peer that exceeds a limit is refused, and the log has one event per flood. Apart from
logging, no function reads the clock: callers pass the time.
"""

import asyncio
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote

from fedboost.errors import PeerError
from fedboost.privacy.packing import CHUNK_CELLS
from fedboost.protocol.contracts import MAX_CELLS
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.web.guard import Bucket, Buckets, address_in, group_of
from fedboost.system import allow_files, open_files
from fedboost.wire.codec import MAX_FROM_AGGREGATOR

# ---- A peer: the holder of one certificate or, without keys, all callers from one address ---------------

CALLS_AT_ONCE = 8
"""Maximum number of open calls of a peer. A party needs two, for sessions and preflight checks, and two more
while its previous connection ends. An analyst needs one per waiting training run. A probe of the health
service needs one."""
CALLS_PER_SECOND, CALLS_SAVED = 10.0, 50.0
"""Maximum number of calls of a peer: per second, and in a burst after a quiet period. A party that has lost
its connection calls once per second. A script that submits tiny training runs one after another stays below
ten calls per second."""
BYTES_PER_CALL = 100_000
"""Bytes of terms that count as one more call. Parsing four megabytes of terms takes half a second."""
UNWANTED_PER_SECOND, UNWANTED_SAVED = 10.0, 100.0
"""Maximum number of unawaited messages from a party, e.g. `Leave` after the end of a session: per second, and
in a burst."""
LAST_WORDS = MAX_CELLS // CHUNK_CELLS
"""Number of unawaited messages that are allowed after each awaited message. It equals the number of parts of
the largest report. When a session fails, the rest of the current report still arrives."""
SHARING_AN_ADDRESS = 64
"""Factor by which a peer's limits are multiplied if the aggregator runs without keys. All parties and
analysts on one machine then count as one peer."""
ADDERS_SHARING = 8
"""Factor by which the limits of an adder's certificate are multiplied. The adders that an aggregator runs on
its own machine share one certificate."""
BARRED_SECONDS = 10.0
"""Seconds for which a party is refused after it sent too many messages or did not read its messages. This
does not apply if the aggregator runs without keys, because others may share the address."""
REFUSALS_AT_ONCE = 64
"""Maximum number of a peer's refused calls that are answered with a delay. The delay slows down the peer's
next calls. Further calls are refused at once, because gRPC may read megabytes ahead for each waiting call."""
REFUSAL_SECONDS = 1.0
"""Seconds by which the answers to refused calls are delayed."""
PATIENCE_SECONDS = 20.0
"""Seconds within which the request of a call must arrive. Clients send it together with the call."""

# ---- Messages on their way to a party -------------------------------------------------------------------

QUEUED_MESSAGES = 64
"""Maximum number of queued messages that a party has not read. A turn has two messages, and the next turn
waits for the answers."""
QUEUED_BYTES = 2 * MAX_FROM_AGGREGATOR
"""Maximum number of queued bytes that a party has not read: twice the largest message."""
RELAYED_AHEAD = 4 << 20
"""Once a party has at least this many unread bytes, the aggregator stops reading from parties that relay to
it."""
RELAYED_MESSAGES = QUEUED_MESSAGES // 4
"""The limit `RELAYED_AHEAD`, as a number of messages."""
UNREAD_SECONDS = 60.0
"""Seconds within which a party must read a relayed part (a megabyte) before it is disconnected."""

# ---- Messages on their way from a party -----------------------------------------------------------------

READ_AHEAD = 1 << 20
"""Maximum number of bytes of a call that may arrive before they are read. Reports are added part by part, so
anything sent faster waits at the party. With gRPC's default, a window that grows to twice the link's
capacity, reports of 2 MB took 6 MB of memory per party on loopback. One window per round trip allows 160
Mbit/s at a round-trip time of 50 ms."""

# ---- All peers together ---------------------------------------------------------------------------------

OPEN_CALLS = 4096
"""Maximum number of open calls of all peers: two for each of a thousand parties (the limit of a masked
session), two more while a previous connection ends, and some for analysts."""
KEPT_CONNECTIONS = 64
"""Number of connections that parties cannot use, so that analysts and status queries get through. If fewer
connections than CONNECTIONS are allowed, a sixteenth of them is kept, if that is less."""
CONNECTIONS = 2048 + KEPT_CONNECTIONS
"""Maximum number of connections of all peers, if the process may open twice as many files. Otherwise, half of
the limit on open files applies."""
OTHER_FILES = CONNECTIONS
"""Number of files that the process may need in addition to connections."""
IDLE_CONNECTIONS = 128
"""Maximum number of connections without an open call from one address. A hundred parties may connect from one
machine at the same time."""
FLOOD_IS_OVER_SECONDS = 60.0
"""Seconds without excess connections after which new excess connections from the same address are logged
again."""
METADATA_BYTES = 8 * 1024
"""Maximum size of a call's headers in bytes. The headers of fedboost have a few hundred bytes. gRPC rejects
some calls above this size, and all calls above twice this size."""
VERSION_LENGTH = 20
"""Maximum number of characters of a caller's version that are kept."""
MAX_PEERS = 1024
"""Maximum number of peers that are remembered. Beyond that, peers that have no open calls and made none
recently are forgotten."""

SERVER_OPTIONS = [
    ("grpc.max_concurrent_streams", 32),  # calls on one connection; clients hold further ones back
    ("grpc.http2.lookahead_bytes", READ_AHEAD),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),  # TLS and HTTP/2; gRPC's default is two minutes
    ("grpc.max_connection_idle_ms", 60_000),  # a connection without any call is closed after this
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES),
]


@dataclass
class Peer:
    """Resource use of a peer: the owner of one certificate or, without keys, all callers from one address.

    Args:
        name: name for the log.
        share: factor by which all limits are multiplied.
        calls: rate limit of calls.
        unwanted: rate limit of unawaited messages.
        open, refused: number of admitted and of refused calls that have not ended yet.
        barred: time until which the peer is refused.
        reported: True if the current flood is already in the log.
    """

    name: str
    share: int
    calls: Bucket
    unwanted: Bucket
    open: int = 0
    refused: int = 0
    barred: float = 0.0
    reported: bool = False

    def fault(self, now: float) -> str:
        """Count a new call. Returns the reason why the call exceeds a limit, or an empty string."""
        was_quiet = self.calls.is_full(now)
        if now < self.barred:
            return f"calls are refused for {BARRED_SECONDS:g} s after a flood of messages"
        if self.open >= CALLS_AT_ONCE * self.share:
            return f"{CALLS_AT_ONCE * self.share} calls are open already, which is the limit per peer"
        if not self.calls.take(now):
            return f"the limit of {CALLS_PER_SECOND * self.share:g} calls per second is exceeded"
        self.reported = self.reported and not was_quiet
        return ""

    def bar(self, now: float) -> None:
        """Refuse calls of the peer for `BARRED_SECONDS`, unless several callers share this peer."""
        if self.share == 1:
            self.barred, self.reported = now + BARRED_SECONDS, True

    def is_as_new(self, now: float) -> bool:
        """Return whether the peer's entry could be deleted without any effect."""
        busy = self.open or self.refused or now < self.barred
        return not busy and self.calls.is_full(now) and self.unwanted.is_full(now)


@dataclass
class Unawaited:
    """A party's limit for unawaited messages: their rate, and how many may follow an awaited message."""

    rate: Bucket
    spare: int = 0

    def note(self, is_awaited: bool, now: float) -> None:
        """Count a message. Raises PeerError if too many were not awaited."""
        self.spare = LAST_WORDS if is_awaited else self.spare - 1
        if self.spare < 0 and not self.rate.take(now):
            raise PeerError("messages-unwanted", "it keeps sending messages that were not requested")


class Peers:
    def __init__(self, share: int = 1) -> None:
        self._share = share
        self._peers: dict[bytes, Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def find(self, identity: bytes, name: Callable[[], str], now: float) -> Peer:
        """Return the peer with this identity, or create it if it is unknown. name: returns the name of a new
        peer."""
        if identity not in self._peers:
            if len(self._peers) >= MAX_PEERS:
                self._peers = {key: peer for key, peer in self._peers.items() if not peer.is_as_new(now)}
            calls = Bucket(CALLS_PER_SECOND * self._share, CALLS_SAVED * self._share, now)
            unwanted = Bucket(UNWANTED_PER_SECOND * self._share, UNWANTED_SAVED * self._share, now)
            self._peers[identity] = Peer(name(), self._share, calls, unwanted)
        return self._peers[identity]


class Outgoing:
    """Queue of messages to one party. cut: called once, to disconnect the party if it leaves too many
    messages unread, or reads nothing while others wait to relay to it; share: factor by which more messages
    may be unread."""

    region = None
    """The queue is that of one party, rather than of an adder's region."""

    def __init__(self, cut: Callable[[], object], share: int = 1) -> None:
        self.fault = ""
        """Reason why the party was disconnected, or an empty string."""
        self._most = QUEUED_MESSAGES * share
        self.cut = cut
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._bytes = 0
        self._moved = asyncio.Event()
        """Set, and replaced by a new event, whenever messages were read or dropped."""

    @classmethod
    def of_this_call(cls, share: int = 1) -> Self:
        """Return the queue of the call that the current task handles. `cut` cancels the task."""
        task = asyncio.current_task()
        assert task is not None
        return cls(task.cancel, share)

    @property
    def is_full(self) -> bool:
        """True if nothing more should be relayed to the party for now."""
        return self._bytes >= RELAYED_AHEAD or self._queue.qsize() >= RELAYED_MESSAGES

    async def moved(self) -> None:
        """Wait until the party reads a message or is disconnected. Disconnects the party if it reads no
        message for `UNREAD_SECONDS`."""
        moved = self._moved
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                await moved.wait()
        except TimeoutError:
            if moved is self._moved:  # otherwise another waiter has cut it off
                self._give_up(f"{self._queue.qsize()} messages have been unread for {UNREAD_SECONDS:g} s")

    def close(self) -> None:
        """Drop all messages and wake all waiters, because the party is disconnected."""
        self._queue, self._bytes = asyncio.Queue(), 0
        self._wake()

    def put(self, data: bytes) -> None:
        """Queue an encoded message. Does nothing if the party was disconnected for not reading."""
        if self.fault:
            return
        full = self._queue.qsize() >= self._most or self._bytes + len(data) > QUEUED_BYTES
        if full and not self._queue.empty():
            self._give_up(f"{self._queue.qsize()} messages of {self._bytes} bytes are unread")
            return
        self._bytes += len(data)
        self._queue.put_nowait(data)

    async def get(self) -> bytes:
        data = await self._queue.get()
        self._bytes -= len(data)
        self._wake()
        return data

    def _give_up(self, why: str) -> None:
        self.fault = f"it does not read its messages: {why}"
        self.close()
        self.cut()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


# ---- The log of refused callers -------------------------------------------------------------------------
# Each refused caller has a line with its name or address and the reason. After some lines of a kind, a peer
# gets one line per minute, with the number of lines left out.


LINES_PER_SECOND, LINES_SAVED = 1 / 60, 5.0
"""Maximum number of log lines of one kind about one peer: per second, and in a burst after a quiet period."""


@dataclass(eq=False)
class Refusals:
    """Logs refused callers at a limited rate, and counts them in the metrics."""

    _log: Any
    _metrics: AggregatorMetrics | None
    _peers: Buckets = field(default_factory=lambda: Buckets(LINES_PER_SECOND, LINES_SAVED, MAX_PEERS))
    """Rate limits of log lines, by event and peer."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, event: str, peer: str, reason: str, **values: str) -> None:
        """Log that a peer was refused, unless there were too many such lines. event: kind of refusal; values:
        additional fields of the line."""
        if self._metrics is not None:
            self._metrics.refused(event)
        now = time.monotonic()
        with self._lock:
            lines = self._peers.of(f"{event}: {peer}", now)
            if not lines.take(now):
                return
            if lines.missed:
                values["left_out"] = f"{lines.missed} since the previous line"
                lines.missed = 0
        self._log.warning(event, peer=peer, **values, reason=reason)


# ---- A limit for connections to the aggregator's port without an open call ------------------------------
# gRPC limits only the connections of all addresses together and has no hook before TLS, so a client that
# opens idle sockets would keep all others from dialling. Therefore this process's sockets are checked a few
# times a second, which adds nothing to the path of messages.
# Promises: an address has few idle connections. The oldest are shut down first, which gRPC takes for a
# hang-up. Connections with a call, and new ones, are left alone. Each address that floods is one event in the
# log.


End = tuple[str, int]
"""The client's end of a connection: address and port."""


@dataclass(eq=False)
class Connections:
    """Watches the connections to one port of this process, and closes idle ones if an address has too
    many."""

    _port: int
    _refusals: Refusals
    _since: dict[End, float] = field(default_factory=dict)
    """Connections without a call -> time when they were first seen."""
    _flooding: dict[str, float] = field(default_factory=dict)
    """Networks with too many connections -> time when they last had too many."""

    def look(self, calling: Iterable[str], now: float) -> None:
        """Close the oldest idle connections of each address that exceeds the limit. calling: peer of each
        open call, as named by gRPC."""
        self._flooding = {
            network: last for network, last in self._flooding.items() if now - last < FLOOD_IS_OVER_SECONDS
        }
        files, busy = open_files(), set(map(_end_of, calling))
        if len(files) - len(busy) <= IDLE_CONNECTIONS:  # no address has more
            self._since.clear()
            return
        idle: dict[End, int] = {}
        for file in files:
            with _connection(file, self._port) as opened:
                end = opened and _end(opened)
                if end and end not in busy:
                    idle[end] = file
        self._since = {end: self._since.get(end, now) for end in idle}
        by_network: dict[str, list[End]] = defaultdict(list)
        for end in idle:
            by_network[group_of(end[0])].append(end)
        for network, ends in by_network.items():
            excess = len(ends) - IDLE_CONNECTIONS
            old = sorted((end for end in ends if self._since[end] < now), key=self._since.__getitem__)
            if excess <= 0 or not old:
                continue
            for end in old[:excess]:
                with _connection(idle[end], self._port) as opened, suppress(OSError):
                    if opened and _end(opened) == end:  # otherwise it is closed, and the number reused
                        opened.shutdown(socket.SHUT_RDWR)
            if network not in self._flooding:
                allowed = f"at most {IDLE_CONNECTIONS} per address are allowed"
                reason = f"there are {len(ends)} connections without a call; {allowed}"
                self._refusals.note("peer refused", f"a client from {network}", reason)
            self._flooding[network] = now

    def end(self, peers: Iterable[str]) -> None:
        """Close the connections of peers, as named by gRPC."""
        ends = set(map(_end_of, peers))
        for file in open_files() if ends else ():
            with _connection(file, self._port) as opened, suppress(OSError):
                if opened and _end(opened) in ends:
                    opened.shutdown(socket.SHUT_RDWR)


def allow_connections() -> int:
    """Raise this process's limit on open files as far as needed and permitted. Returns the number of
    connections that the limit allows."""
    limit = allow_files(CONNECTIONS + OTHER_FILES)
    return CONNECTIONS if limit is None else min(CONNECTIONS, limit // 2)


def party_connections(connections: int) -> int:
    """Return how many of the allowed connections parties may use."""
    return connections - min(KEPT_CONNECTIONS, connections // 16)


@contextmanager
def _connection(file: int, port: int) -> Iterator[socket.socket | None]:
    """Context manager that yields the socket of a file descriptor, or None if it is not a connection to the
    port. The socket is a duplicate, so that nothing else can close it."""
    try:
        copy = os.dup(file)
    except OSError:  # closed meanwhile
        yield None
        return
    try:
        opened = socket.socket(fileno=copy)
    except OSError:  # a file, a pipe
        os.close(copy)
        yield None
        return
    with opened:
        internet = opened.family in (socket.AF_INET, socket.AF_INET6)
        yield opened if internet and opened.getsockname()[1] == port else None


def _end(opened: socket.socket) -> End | None:
    """Return the client's end of a connection, or None for a listening socket."""
    try:
        host, port, *_ = opened.getpeername()
    except OSError:
        return None
    return str(address_in(host) or host), port


def _end_of(peer: str) -> End:
    """Return the client's end of a call. peer: the client as named by gRPC, e.g. ipv4:127.0.0.1:1234 or
    ipv6:%5B::1%5D:1234."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    host = host.strip("[]")
    return str(address_in(host) or host), int(port) if port.isdigit() else 0
