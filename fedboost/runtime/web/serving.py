"""Web server for a process's own pages: uvicorn in the process's event loop.

Guarantees: the server installs no signal handlers and writes no log of its own. The number of connections is
limited, in total and per address; new connections replace the oldest idle ones. Connections that send or read
nothing are closed, both before and after the TLS handshake. If the server fails, one line is logged, and the
process continues.
Raises: ConfigError if the process cannot listen on the address, or a required extra is not installed.
"""

import asyncio
import contextlib
import logging
import socket
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedboost.errors import ConfigError
from fedboost.runtime.web.guard import App, Note, Refusal, RequestOrigin, group_of
from fedboost.system import POSIX

MAX_CONNECTIONS = 320
"""Maximum number of open connections. Each uses a file descriptor, and sessions also need file descriptors.
Beyond the limit, the oldest connection without a request in progress is closed, so that a client with many
idle connections cannot lock out others."""
MAX_OF_ADDRESS = 128
"""Maximum number of open connections per address. All loopback addresses count as one."""
MAX_HEADER_BYTES = 16 * 1024
KEEP_ALIVE_SECONDS = 5
SILENT_SECONDS = 15.0
"""Time in seconds after which a connection without a complete request is closed."""
HANDSHAKE_SECONDS = 10.0
"""Time in seconds after which a connection without a complete TLS handshake is closed."""
UNREAD_SECONDS = 30.0
"""Time in seconds after which a client that does not read its response is disconnected."""
SWEEP_SECONDS = 1.0
STOP_SECONDS = 1
"""Time in seconds for requests in progress to finish when the process stops."""


def need_extra(what: str, extra: str) -> None:
    """Raise ConfigError with the command that installs an extra, unless its packages are installed. what: the
    setting that requires the extra."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ConfigError("extra-missing", f'{what} needs the extra {extra}: pip install "fedboost[{extra}]"')


class WebServer:
    """Web server for an ASGI application at one address. Call `start` to serve and `stop` to shut down."""

    def __init__(
        self,
        what: str,
        address: str,
        app: App,
        log: Any,
        note: Note,
        pair: tuple[Path, Path] | None = None,
    ) -> None:
        """Start listening.

        Args:
            what: name of the pages in errors and in the log.
            address: HOST:PORT.
            app: the ASGI application.
            log: structlog logger.
            note: records connections that are refused before they reach the application.
            pair: paths of the certificate and key (PEM) for TLS; None for plain HTTP.

        Raises:
            ConfigError: the process cannot listen on the address.
        """
        self._log = log
        self._what = what
        self._scheme = "http" if pair is None else "https"
        self._note = note
        self._socket = listen_on(what, address, note)
        self.address = f"{address.rpartition(':')[0]}:{self._socket.getsockname()[1]}"
        self._server = _server(app, note, pair)
        self._socket.busy = self._busy
        self._task: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """URL to open in a browser."""
        return f"{self._scheme}://{self.address}"

    async def start(self) -> None:
        """Start serving, in tasks of the running event loop."""
        self._task = asyncio.create_task(self._serve(), name=self._what)
        self._sweeper = asyncio.create_task(self._sweep(), name=f"{self._what} sweeper")
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop listening and end all connections. May be called even if `start` was not called."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_SECONDS + 2)
            self._task.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in [*self._server.server_state.connections]:
            connection.transport.abort()
        self._socket.close()

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        except Exception as error:  # noqa: BLE001 - failing pages must not end the process
            self._log.error(f"{self._what} is no longer served", reason=f"{type(error).__name__}: {error}")

    async def _sweep(self) -> None:
        """Close connections that send nothing or read nothing, until cancelled."""
        loop = asyncio.get_running_loop()
        seen: weakref.WeakKeyDictionary[Any, tuple[float, int, Any]] = weakref.WeakKeyDictionary()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            self._end_handshakes()
            for connection in [*self._server.server_state.connections]:
                unread = connection.transport.get_write_buffer_size()
                last = connection.cycle  # another one for each request
                since, before, earlier = seen.get(connection, (now, 0, last))
                if (_in_work(connection) and not unread) or unread < before or last is not earlier:
                    seen[connection] = now, unread, last
                    continue
                seen[connection] = since, unread, last
                if now - since > (UNREAD_SECONDS if unread else SILENT_SECONDS):
                    connection.transport.abort()

    def _known(self) -> dict[int, Any]:
        """Return file descriptor -> connection, for those that uvicorn has accepted (after TLS)."""
        return {
            opened.fileno(): connection
            for connection in self._server.server_state.connections
            if (opened := connection.transport.get_extra_info("socket")) is not None
        }

    def _busy(self) -> set[int]:
        """Return the file descriptors of connections with a request in progress."""
        return {file for file, connection in self._known().items() if _in_work(connection)}

    def _end_handshakes(self) -> None:
        """Close connections with a slow TLS handshake, which uvicorn does not know yet."""
        known = self._known()
        for opened, client in self._socket.older_than(HANDSHAKE_SECONDS):
            if opened.fileno() not in known:
                reason = f"the TLS handshake was not complete within {HANDSHAKE_SECONDS:g} s"
                self._note(_connection(client), Refusal(HTTPStatus.REQUEST_TIMEOUT, reason))
                self._socket.end(opened)


def _in_work(connection: Any) -> bool:
    """Return whether the response to a connection's last request is incomplete."""
    return connection.cycle is not None and not connection.cycle.response_complete


def listen_on(what: str, address: str, note: Note) -> "Listener":
    """Listen on an address HOST:PORT. what, note: as for `WebServer`. Raises ConfigError if that is not
    possible."""
    host, port = address.rpartition(":")[0].strip("[]"), int(address.rpartition(":")[2])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it, a response of two writes on a
    # connection that is kept open waits 40 ms for an acknowledgement.
    opened = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.note = note
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, POSIX)
        opened.bind((host, port))
        opened.listen(128)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise ConfigError(
            "page-cannot-listen",
            f"{what}: cannot listen on {host}:{port}: {error.strerror or error}; choose another "
            f"address of this machine, or stop the program that uses this address",
        ) from None
    return opened


def _connection(client: Any) -> RequestOrigin:
    return RequestOrigin(client[0], client[1], "a connection")


@dataclass(frozen=True)
class _Client:
    address: Any
    group: str
    since: float


class Listener(socket.socket):
    """Listening socket that limits the number of connections. If a limit is exceeded, it closes the oldest
    connection without a request in progress, which may be the new one. note: records each connection closed
    in this way; busy: returns the file descriptors of connections with a request in progress."""

    note: Note
    busy: Callable[[], Collection[int]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open: weakref.WeakKeyDictionary[socket.socket, _Client] = weakref.WeakKeyDictionary()
        self.most = 0
        """Maximum number of connections, also per address; 0 for the limits above."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises BlockingIOError if it had to be closed, as if none had been waiting."""
        opened, address = super().accept()
        group = group_of(address[0])
        for known in [known for known in self._open if known.fileno() < 0]:
            self.forget(known)
        of_address = [known for known, client in self._open.items() if client.group == group]
        self._open[opened] = _Client(address, group, time.monotonic())
        if len(of_address) >= (most := self.most or MAX_OF_ADDRESS):
            self._make_room([*of_address, opened], f"{most} connections from this address")
        elif len(self._open) > (most := self.most or MAX_CONNECTIONS):
            self._make_room([*self._open], f"{most} connections")
        if opened not in self._open:
            opened.close()
            raise BlockingIOError
        return opened, address

    def _make_room(self, among: list[socket.socket], many: str) -> None:
        """Close the oldest connection in `among` without a request in progress. many: name of the limit."""
        busy = self.busy()
        oldest = next(each for each in among if each.fileno() not in busy)
        refusal = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{many} are already open")
        self.note(_connection(self._open[oldest].address), refusal)
        self.end(oldest)

    def end(self, opened: socket.socket) -> None:
        """Close a connection and stop counting it."""
        self.forget(opened)
        with contextlib.suppress(OSError):  # the client closed it first
            opened.shutdown(socket.SHUT_RDWR)

    def older_than(self, seconds: float) -> list[tuple[socket.socket, Any]]:
        """Return the open connections older than this number of seconds, with their clients' addresses."""
        until = time.monotonic() - seconds
        return [(opened, client.address) for opened, client in self._open.items() if client.since < until]

    def forget(self, opened: socket.socket) -> None:
        """Stop counting a connection."""
        self._open.pop(opened, None)


def _server(app: App, note: Note, pair: tuple[Path, Path] | None) -> Any:
    """Return a uvicorn server without signal handlers and logs."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        """HTTP protocol that also records clients that do not use HTTP."""

        def send_400_response(self, msg: str) -> None:
            address, port = self.client or ("an unknown address", 0)
            note(
                RequestOrigin(address, port, "no request"),
                Refusal(400, "the client does not use HTTP, or its headers are too large"),
            )
            super().send_400_response(msg)

    class Server(uvicorn.Server):
        """Server that does not handle signals, so that the process can handle them."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    log = logging.getLogger("uvicorn.error")  # the guard reports failures instead
    log.propagate = False
    log.addHandler(logging.NullHandler())
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ssl_certfile=pair and pair[0],
        ssl_keyfile=pair and pair[1],
    )
    config.load()  # reads the TLS files now, not when the first client connects
    return Server(config)
