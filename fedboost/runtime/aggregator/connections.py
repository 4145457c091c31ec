"""A limit for connections to the aggregator's port that have no call open: that many from one address.

gRPC bounds the connections of all addresses together and has no hook before TLS, so that a client that opens
sockets and says nothing would keep everybody else from dialling. The sockets of this process are looked at a
few times a second; nothing is added to the way that messages take.

Promises: an address holds few connections for nothing, the oldest of them are shut down first, and gRPC sees
a peer that hung up; a connection with a call, and one that is new, is left alone; one event in the log for
each address that floods.
Refuses: nothing else. Connections that come faster than they are looked at are for a firewall.
"""

import os
import resource
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import unquote

from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.refusals import Refusals

_FILES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
_NETWORK_BITS = 64
"""Leading bits of an IPv6 address that are its network: a holder of one address has all of them."""

End = tuple[str, int]
"""A client's end of a connection: address and port."""


class Connections:
    """The connections to one port of this process."""

    def __init__(self, port: int, refusals: Refusals) -> None:
        self._port = port
        self._refusals = refusals
        self._since: dict[End, float] = {}
        """Connections without a call, and when they were first looked at."""
        self._flooding: dict[str, float] = {}
        """Networks that had too many, and when they last had."""

    def look(self, calling: Iterable[str], now: float) -> None:
        """Shut down what is too much. `calling` has gRPC's name of the peer of each open call."""
        self._flooding = {
            network: last
            for network, last in self._flooding.items()
            if now - last < limits.FLOOD_IS_OVER_SECONDS
        }
        files, busy = [int(name) for name in os.listdir(_FILES)], set(map(_end_of, calling))
        if len(files) - len(busy) <= limits.IDLE_CONNECTIONS:  # no address has more
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
            by_network[_network(end[0])].append(end)
        for network, ends in by_network.items():
            excess = len(ends) - limits.IDLE_CONNECTIONS
            old = sorted((end for end in ends if self._since[end] < now), key=self._since.__getitem__)
            if excess <= 0 or not old:
                continue
            for end in old[:excess]:
                self._shut_down(idle[end], end)
            if network not in self._flooding:
                allowed = f"{limits.IDLE_CONNECTIONS} of an address are allowed"
                reason = f"{len(ends)} connections without a call; {allowed}"
                self._refusals.note("peer refused", f"a client from {network}", reason)
            self._flooding[network] = now

    def _shut_down(self, file: int, end: End) -> None:
        with _connection(file, self._port) as opened:
            if opened and _end(opened) == end:  # else it is closed, and the number is another's
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)


def allow_files() -> int:
    """Raise this process's limit of open files as far as it may be and `limits.CONNECTIONS` need; the
    connections that fit."""
    needed = limits.CONNECTIONS + limits.OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        with suppress(OSError, ValueError):  # the system's own bound may be lower than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return limits.CONNECTIONS if soft == resource.RLIM_INFINITY else min(limits.CONNECTIONS, soft // 2)


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
    return _plain(host), port


def _end_of(peer: str) -> End:
    """The client's end of a call, by gRPC's name of its peer, such as ipv4:127.0.0.1:1234 or
    ipv6:%5B::1%5D:1234."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdigit() else 0


@lru_cache(1 << 12)
def _plain(host: str) -> str:
    """An address in one form: an IPv4 one that was mapped to IPv6 as itself."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


@lru_cache(1 << 12)
def _network(host: str) -> str:
    """The network whose connections are counted together: an IPv4 address, or an IPv6 network."""
    return str(ip_network(f"{host}/{_NETWORK_BITS}", strict=False)) if ":" in host else host
