"""Limits: what one peer may cost the aggregator, and what all may cost it together; connections without
calls; the log of refusals. No sockets and no clock here: the time comes in.

Promises: whatever a peer does, what is kept for it is bounded by a number in this file, and what it takes
beyond that is refused to that peer alone, with one event in the log for each time it floods.
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
from typing import Any
from urllib.parse import unquote

from fedboost.privacy.packing import CHUNK_CELLS
from fedboost.protocol.contracts import MAX_CELLS
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.web.guard import Bucket, Buckets, address_in, group_of
from fedboost.wire.codec import MAX_FROM_AGGREGATOR

# ---- a peer: the holder of one certificate, or, where there are no keys, all callers of one address -------

CALLS_AT_ONCE = 8
"""Open calls of one peer. A party needs two, for sessions and for checks, and two more while its last
connection is given up; an analyst one for each training that waits; a probe of the health service one."""
CALLS_PER_SECOND, CALLS_SAVED = 10.0, 50.0
"""How often a peer may call, and how many calls it may make in one go after it was quiet. A party that lost
its aggregator calls once a second; a script that submits one tiny training after the other stays below
ten."""
BYTES_PER_CALL = 100_000
"""So many bytes of terms count as another call: reading four megabytes of them takes half a second."""
UNWANTED_PER_SECOND, UNWANTED_SAVED = 10.0, 100.0
"""Messages of a party that nobody waits for: a word of leave at the end of each session, say."""
LAST_WORDS = MAX_CELLS // CHUNK_CELLS
"""Further ones after each message that was waited for: when a session fails, the rest of the report under way
still arrives, and the largest report has that many parts."""
SHARING_AN_ADDRESS = 64
"""Without keys all parties and analysts of a machine are one peer: it has that many shares."""
BARRED_SECONDS = 10.0
"""A party that flooded or did not read is refused for so long; without keys nobody is, for others share the
address."""
REFUSALS_AT_ONCE = 64
"""A refused call of a flood is answered late, so that the next comes late: so many of one peer wait for their
answer. Further ones are refused at once, for gRPC reads up to some megabytes ahead for each that waits."""
REFUSAL_SECONDS = 1.0
"""How late that is."""
PATIENCE_SECONDS = 20.0
"""An analyst's request must be here so long after its call; it is sent with it."""

# ---- what is on its way to a party ----------------------------------------------------------------------

QUEUED_MESSAGES = 64
"""Messages that wait for a party to read. A turn has two, and the next turn waits for its answers."""
QUEUED_BYTES = 2 * MAX_FROM_AGGREGATOR
"""Bytes of them: the largest message, and as much again."""
RELAYED_AHEAD = 4 << 20
"""Bytes that wait for a party to read before nothing more is read of those that relay to it."""
RELAYED_MESSAGES = QUEUED_MESSAGES // 4
"""Messages of them."""
UNREAD_SECONDS = 60.0
"""A party that others relay to reads a message in this, or is cut off. A part of a relay is a megabyte."""

# ---- what is on its way from a party --------------------------------------------------------------------

READ_AHEAD = 1 << 20
"""Bytes of a call that may arrive before they are read: a report is added part by part, and what comes faster
waits at the party. gRPC's own way, a window that grows to twice what the link holds, came to 6 MB a party on
loopback, with reports of 2 MB. One window a round trip is 160 Mbit/s over 50 ms."""

# ---- everybody together ---------------------------------------------------------------------------------

OPEN_CALLS = 4096
"""Open calls of all peers: a thousand parties, as many as one masked session takes, with the two that each
needs and two more while its last connection is given up, and room for analysts."""
CONNECTIONS = 2048
"""Connections of all peers, where the process may open as many files and as many again; else half of what it
may."""
OTHER_FILES = CONNECTIONS
"""Files that the process may need beside them, and room to count them in."""
IDLE_CONNECTIONS = 128
"""Connections of one address that have no call open: a hundred parties may dial from one machine at a
time."""
FLOOD_IS_OVER_SECONDS = 60.0
"""An address that floods with connections is in the log again when it was quiet for so long."""
METADATA_BYTES = 8 * 1024
"""Headers of a call: ours take some hundred bytes. gRPC refuses some of the calls above it, and all above
twice as much."""
MAX_PEERS = 1024
"""Peers that are remembered before those are forgotten that have nothing open and were quiet."""

SERVER_OPTIONS = [
    ("grpc.max_concurrent_streams", 32),  # calls on one connection; a client keeps further ones back
    ("grpc.http2.lookahead_bytes", READ_AHEAD),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),  # for TLS and HTTP/2; gRPC's own are two minutes
    ("grpc.max_connection_idle_ms", 60_000),  # a connection without any call is closed after this
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES),
]


@dataclass
class Peer:
    """A peer's share. `name` is for people; `open` and `refused` are its calls that have not ended yet;
    `barred` is the time until which it is refused; `reported` says that its flood is in the log already."""

    name: str
    share: int
    calls: Bucket
    unwanted: Bucket
    open: int = 0
    refused: int = 0
    barred: float = 0.0
    reported: bool = False

    def fault(self, now: float) -> str:
        """The reason why another call is too much; '' if it is not, and then it counts."""
        was_quiet = self.calls.is_full(now)
        if now < self.barred:
            return f"refused for {BARRED_SECONDS:g} s after a flood"
        if self.open >= CALLS_AT_ONCE * self.share:
            return f"{CALLS_AT_ONCE * self.share} calls are open, and no peer may have more"
        if not self.calls.take(now):
            return f"more than {CALLS_PER_SECOND * self.share:g} calls a second"
        self.reported = self.reported and not was_quiet
        return ""

    def bar(self, now: float) -> None:
        """Refuse its calls for a while: it cost the aggregator too much."""
        if self.share == 1:
            self.barred, self.reported = now + BARRED_SECONDS, True

    def is_as_new(self, now: float) -> bool:
        """Tell if it could be forgotten and nothing would change."""
        busy = self.open or self.refused or now < self.barred
        return not busy and self.calls.is_full(now) and self.unwanted.is_full(now)


class Peers:
    """Every peer's share, by the identity of the peer."""

    def __init__(self, share: int = 1) -> None:
        self._share = share
        self._peers: dict[bytes, Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def find(self, identity: bytes, name: Callable[[], str], now: float) -> Peer:
        """The peer of this identity; its name is asked for when it is new."""
        if identity not in self._peers:
            if len(self._peers) >= MAX_PEERS:
                self._peers = {key: peer for key, peer in self._peers.items() if not peer.is_as_new(now)}
            calls = Bucket(CALLS_PER_SECOND * self._share, CALLS_SAVED * self._share, now)
            unwanted = Bucket(UNWANTED_PER_SECOND * self._share, UNWANTED_SAVED * self._share, now)
            self._peers[identity] = Peer(name(), self._share, calls, unwanted)
        return self._peers[identity]


class Outgoing:
    """The messages on their way to one party. `cut` is called once if it leaves too many unread, or reads
    none while others wait to relay more to it."""

    def __init__(self, cut: Callable[[], object]) -> None:
        self.fault = ""
        """Why it was cut off, if it was."""
        self._cut = cut
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._bytes = 0
        self._moved = asyncio.Event()
        """Set, and replaced by a new event, when there is less to read."""

    @property
    def is_full(self) -> bool:
        """True if nothing more should be relayed to it now."""
        return self._bytes >= RELAYED_AHEAD or self._queue.qsize() >= RELAYED_MESSAGES

    async def moved(self) -> None:
        """Wait until a message was read, or the party is gone."""
        moved = self._moved
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                await moved.wait()
        except TimeoutError:
            if moved is self._moved:  # else another one that waited has cut it off
                self._give_up(f"{self._queue.qsize()} messages to it wait for {UNREAD_SECONDS:g} s")

    def close(self) -> None:
        """The party is gone: nothing is kept for it, and nobody waits for it."""
        self._queue, self._bytes = asyncio.Queue(), 0
        self._wake()

    def put(self, data: bytes) -> None:
        """Send this when the party has read what came before; nothing is kept for one that was cut off."""
        if self.fault:
            return
        full = self._queue.qsize() >= QUEUED_MESSAGES or self._bytes + len(data) > QUEUED_BYTES
        if full and not self._queue.empty():
            self._give_up(f"{self._queue.qsize()} messages to it wait, {self._bytes} bytes")
            return
        self._bytes += len(data)
        self._queue.put_nowait(data)

    async def get(self) -> bytes:
        """The next message."""
        data = await self._queue.get()
        self._bytes -= len(data)
        self._wake()
        return data

    def _give_up(self, why: str) -> None:
        self.fault = f"it does not read: {why}"
        self.close()
        self._cut()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


# ---- The log of callers that were refused ---------------------------------------------------------------
# Promises: each has a line with its name or address and the reason, and none floods the log: after some
# lines of a kind a peer has one a minute, which counts those that were left out.


LINES_PER_SECOND, LINES_SAVED = 1 / 60, 5.0
"""Lines of one kind about one peer in the log, and how many in one go after it was quiet."""


@dataclass(eq=False)
class Refusals:
    """Lines about refused callers, and their count in the metrics, if there are any."""

    _log: Any
    _metrics: AggregatorMetrics | None
    _peers: Buckets = field(default_factory=lambda: Buckets(LINES_PER_SECOND, LINES_SAVED, MAX_PEERS))
    """By event and peer."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, event: str, peer: str, reason: str, **values: str) -> None:
        """Log a refusal of a peer, unless it had its lines."""
        if self._metrics is not None:
            self._metrics.refused(event)
        now = time.monotonic()
        with self._lock:
            lines = self._peers.of(f"{event}: {peer}", now)
            if not lines.take(now):
                return
            if lines.missed:
                values["left_out"] = f"{lines.missed} since the line before"
                lines.missed = 0
        self._log.warning(event, peer=peer, **values, reason=reason)


# ---- A limit for connections to the aggregator's port that have no call open ----------------------------
# That many from one address.
# gRPC bounds the connections of all addresses together and has no hook before TLS, so that a client that
# opens sockets and says nothing would keep everybody else from dialling. The sockets of this process are
# looked at a few times a second; nothing is added to the way that messages take.
# Promises: an address holds few connections for nothing, the oldest of them are shut down first, and gRPC
# sees a peer that hung up; a connection with a call, and one that is new, is left alone; one event in the
# log for each address that floods.


_FILES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"

End = tuple[str, int]
"""A client's end of a connection: address and port."""


@dataclass(eq=False)
class Connections:
    """The connections to one port of this process."""

    _port: int
    _refusals: Refusals
    _since: dict[End, float] = field(default_factory=dict)
    """Connections without a call, and when they were first looked at."""
    _flooding: dict[str, float] = field(default_factory=dict)
    """Networks that had too many, and when they last had."""

    def look(self, calling: Iterable[str], now: float) -> None:
        """Shut down what is too much. `calling` has gRPC's name of the peer of each open call."""
        self._flooding = {
            network: last for network, last in self._flooding.items() if now - last < FLOOD_IS_OVER_SECONDS
        }
        files, busy = [int(name) for name in os.listdir(_FILES)], set(map(_end_of, calling))
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
                    if opened and _end(opened) == end:  # else it is closed, and the number is another's
                        opened.shutdown(socket.SHUT_RDWR)
            if network not in self._flooding:
                allowed = f"{IDLE_CONNECTIONS} of an address are allowed"
                reason = f"{len(ends)} connections without a call; {allowed}"
                self._refusals.note("peer refused", f"a client from {network}", reason)
            self._flooding[network] = now


def allow_files() -> int:
    """Raise this process's limit of open files as far as it may be and `limits.CONNECTIONS` need; the
    connections that fit."""
    needed = CONNECTIONS + OTHER_FILES
    import resource  # which not every system has

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        with suppress(OSError, ValueError):  # the system's own bound may be lower than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, soft // 2)


@contextmanager
def _connection(file: int, port: int) -> Iterator[socket.socket | None]:
    """The socket behind a file's number, under another number that nobody else closes; None if it is no
    connection to that port."""
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
    """The client's end of a connection; None of the socket that listens."""
    try:
        host, port, *_ = opened.getpeername()
    except OSError:
        return None
    return str(address_in(host) or host), port


def _end_of(peer: str) -> End:
    """The client's end of a call, by gRPC's name of its peer, such as ipv4:127.0.0.1:1234 or
    ipv6:%5B::1%5D:1234."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    host = host.strip("[]")
    return str(address_in(host) or host), int(port) if port.isdigit() else 0
