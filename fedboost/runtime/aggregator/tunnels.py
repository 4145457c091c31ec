"""Tunnels that arrive at an aggregator or adder: WebSockets and calls of gRPC that carry a connection.

Guarantees: a tunnel is not trusted. What it carries becomes a connection to a loopback port of this process,
where callers need a certificate of the consortium as everywhere. That port has its own limits, so tunnels
take no connections from direct callers. The number of tunnels is limited, they read no faster than the other
side does, and those without a call are closed, the oldest first.
Raises: ConfigError if the process cannot listen on an address, or a TLS file is invalid.
"""

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from websockets.asyncio.server import serve

from fedboost.errors import ConfigError
from fedboost.runtime.aggregator.limits import SERVER_OPTIONS, UNREAD_SECONDS, Connections, Refusals
from fedboost.runtime.config import TunnelsConfig
from fedboost.runtime.files import file_errors
from fedboost.runtime.net.routes import CARRY, PIECE
from fedboost.runtime.web.serving import Listener, listen_on

MAX_PIECE = 4 * PIECE
"""Maximum number of bytes of a tunnel's message."""
OPEN_SECONDS = 10.0
"""Seconds within which a WebSocket must be open."""
CONNECTIONS_PER_TUNNEL = 4
"""A tunnel needs three open files, so there are fewer tunnels than direct connections by this factor."""


class Tunnels:
    """Listeners for tunnels, which are bound at once.

    Args:
        config: addresses and TLS files.
        port: loopback port to which tunnels are connected.
        connections: maximum number of direct connections.
        refusals: logs refused callers.
    """

    def __init__(self, config: TunnelsConfig, port: int, connections: int, refusals: Refusals) -> None:
        self.addresses: dict[str, str] = {}
        """Kind of tunnel -> address HOST:PORT at which it arrives."""
        self._port = port
        kinds = sum(address is not None for address in (config.websocket, config.grpc))
        self._most = connections // (CONNECTIONS_PER_TUNNEL * kinds)
        self._refusals = refusals
        self._files: set[int] = set()
        """File descriptors of open WebSockets."""
        self._peers: Counter[str] = Counter()
        """Number of open calls of each peer, as named by gRPC: a load balancer sends many on a connection."""
        self._left = dict[str, float]()  # last end of a call; to gRPC, it is open until the peer has read all
        self._watches = [Connections(port, refusals)]
        self._listener: Listener | None = None
        self._websockets: Any = None
        self._server: Any = None
        self._pair = config.pair
        self._tls = None if config.pair is None else _tls_of(*config.pair)
        if (address := config.websocket) is not None:
            self._listener = listen_on("tunnels.websocket", address, self._note)
            self._listener.most = self._most
            self._listener.busy = lambda: self._files
            self.addresses["websocket"] = f"{address.rpartition(':')[0]}:{self._listener.getsockname()[1]}"
        if (address := config.grpc) is not None:
            self._bind(address)

    def _note(self, origin: Any, refusal: Exception) -> None:
        self._refusals.note("tunnel refused", origin.address, str(refusal))

    def _bind(self, address: str) -> None:
        """Listen for calls of gRPC."""
        options = [("grpc.max_allowed_incoming_connections", self._most), ("grpc.so_reuseport", 0)]
        options += [("grpc.max_receive_message_length", MAX_PIECE), *SERVER_OPTIONS]
        self._server = grpc.aio.server(options=options)
        _, service, method = CARRY.split("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(self._take_call)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        try:
            if self._pair is None:
                port = self._server.add_insecure_port(address)
            else:
                certificate, key = (file.read_bytes() for file in self._pair)
                secure = grpc.ssl_server_credentials([(key, certificate)])
                port = self._server.add_secure_port(address, secure)
        except RuntimeError:
            raise ConfigError(
                "tunnels-cannot-listen",
                f"tunnels.grpc: cannot listen on {address}: the port is already in use, or the address does "
                f"not belong to this machine",
            ) from None
        self.addresses["grpc"] = f"{address.rpartition(':')[0]}:{port}"
        self._watches.append(Connections(port, self._refusals))

    async def start(self) -> None:
        """Carry what arrives."""
        if self._server is not None:
            await self._server.start()
        if self._listener is None:
            return
        # No pings: the connection inside has its own. Browsers always send an origin, and are refused.
        how: dict[str, Any] = {"compression": None, "ping_interval": None, "origins": [None]}
        how |= {"open_timeout": OPEN_SECONDS, "close_timeout": 1.0, "max_size": MAX_PIECE, "max_queue": 4}
        how |= {"server_header": None, "logger": logging.Logger("tunnels", logging.CRITICAL + 1)}
        self._websockets = await serve(self._take_websocket, sock=self._listener, ssl=self._tls, **how)

    def look(self, calling: list[str], now: float) -> None:
        """Close connections and tunnels without a call, if there are too many, and those of clients that do
        not read. calling: as for `Connections.look`; now: monotonic time."""
        for watch in self._watches:
            watch.look([*calling, *self._peers], now)
        for tunnel in self._websockets.all_connections if self._websockets is not None else ():
            if tunnel.transport.get_write_buffer_size() > 2 * MAX_PIECE:
                tunnel.transport.abort()  # answers to its pings
        gone = {peer for peer, since in self._left.items() if now - since > UNREAD_SECONDS}
        self._left = {peer: since for peer, since in self._left.items() if peer not in gone}
        self._watches[-1].end(gone - self._peers.keys())

    async def stop(self) -> None:
        """Close all tunnels."""
        if self._websockets is not None:
            self._websockets.close()
            for tunnel in [*self._websockets.all_connections]:
                tunnel.transport.abort()  # it may not read
            await self._websockets.wait_closed()
        if self._server is not None:
            await self._server.stop(0)

    async def _take_call(self, requests: AsyncIterator[bytes], context: Any) -> None:
        if self._peers.total() >= self._most:  # gRPC's own limit would count calls whose end nobody reads
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many tunnels are open")
        self._peers[peer := context.peer()] += 1
        try:
            await self._carry(requests, context.write)
        finally:
            self._peers -= Counter([peer])  # drops those without calls
            self._left[peer] = time.monotonic()

    async def _take_websocket(self, tunnel: Any) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield await tunnel.recv(decode=False)

        self._files.add(file := tunnel.transport.get_extra_info("socket").fileno())
        try:
            await self._carry(pieces(), tunnel.send)
            with suppress(TimeoutError):
                await asyncio.wait_for(tunnel.close(), OPEN_SECONDS)
        finally:
            self._files.discard(file)

    async def _carry(self, pieces: AsyncIterator[bytes], send: Callable[[bytes], Awaitable[None]]) -> None:
        """Carry one connection until either side ends it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=PIECE)

        async def back() -> None:
            while piece := await reader.read(PIECE):
                await asyncio.wait_for(send(piece), UNREAD_SECONDS)

        async def forth() -> None:
            async for piece in pieces:
                writer.write(piece)
                await writer.drain()

        both = {asyncio.create_task(back()), asyncio.create_task(forth())}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.transport.abort()  # first: this call may be cancelled again, and the port may not read
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)  # raises nothing: a side has hung up


def _tls_of(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with file_errors(certificate, "cannot use the TLS certificate and key"):
        context.load_cert_chain(certificate, key)
    return context
