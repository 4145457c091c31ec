"""The listener of a process's own pages: uvicorn in the process's event loop.

Promises: it handles no signals and writes no log of its own. The number of connections is bounded, in total
and per address, and new ones replace the oldest idle ones. Connections that send nothing or read nothing are
closed, before the TLS handshake and after it. A failure here is one line in the log, and the process goes on.
Refuses: an address that it cannot listen on, a missing extra (ConfigError).
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

MAX_CONNECTIONS = 320
"""Most open connections: each takes a file, which sessions need, too. Beyond this, the oldest without a
request in progress is closed, so a client that opens many idle ones locks no one out."""
MAX_OF_ADDRESS = 128
"""Most open connections of one address. All loopback addresses together are one."""
MAX_HEADER_BYTES = 16 * 1024
KEEP_ALIVE_SECONDS = 5
SILENT_SECONDS = 15.0
"""A connection without a complete request is closed after this."""
HANDSHAKE_SECONDS = 10.0
"""A connection without a complete TLS handshake is closed after this."""
UNREAD_SECONDS = 30.0
"""A client that reads nothing of what is sent is cut off after this."""
SWEEP_SECONDS = 1.0
STOP_SECONDS = 1
"""Seconds for open requests to finish when the process stops."""


def need_extra(what: str, extra: str) -> None:
    """Raise ConfigError with the command that installs an extra, if it is missing."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ConfigError("extra-missing", f'{what} needs the extra {extra}: pip install "fedboost[{extra}]"')


class WebServer:
    """Pages at one address, from `start` to `stop`. what: their name in errors and in the log; note: records
    what is refused before the application gets it; pair: PEM files of the certificate and key for TLS, None
    for plain HTTP."""

    def __init__(
        self,
        what: str,
        address: str,
        app: App,
        log: Any,
        note: Note,
        pair: tuple[Path, Path] | None = None,
    ) -> None:
        """Listen. ConfigError if it cannot."""
        self._log = log
        self._what = what
        self._scheme = "http" if pair is None else "https"
        host, _, port = address.rpartition(":")
        self._note = note
        self._socket = _listen(what, host.strip("[]"), int(port), note)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._server = _server(app, note, pair)
        self._socket.busy = self._busy
        self._task: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The address for a browser."""
        return f"{self._scheme}://{self.address}"

    async def start(self) -> None:
        """Serve, in tasks of the running event loop."""
        self._task = asyncio.create_task(self._serve(), name=self._what)
        self._sweeper = asyncio.create_task(self._sweep(), name=f"{self._what} sweeper")
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop listening and end all connections, also if `start` was never called."""
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
            self._log.error(f"{self._what}: is no longer served", reason=f"{type(error).__name__}: {error}")

    async def _sweep(self) -> None:
        """Close connections that send nothing, or read nothing, until cancelled."""
        loop = asyncio.get_running_loop()
        seen: weakref.WeakKeyDictionary[Any, tuple[float, int]] = weakref.WeakKeyDictionary()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            self._end_handshakes()
            for connection in [*self._server.server_state.connections]:
                unread = connection.transport.get_write_buffer_size()
                since, before = seen.get(connection, (now, 0))
                if (_in_work(connection) and not unread) or unread < before:
                    seen[connection] = now, unread
                    continue
                seen[connection] = since, unread
                if now - since > (UNREAD_SECONDS if unread else SILENT_SECONDS):
                    connection.transport.abort()

    def _known(self) -> dict[int, Any]:
        """The connections known to uvicorn, after their handshake, by file descriptor."""
        return {
            opened.fileno(): connection
            for connection in self._server.server_state.connections
            if (opened := connection.transport.get_extra_info("socket")) is not None
        }

    def _busy(self) -> set[int]:
        """The file descriptors of connections with a request in progress."""
        return {file for file, connection in self._known().items() if _in_work(connection)}

    def _end_handshakes(self) -> None:
        """Close connections whose handshake takes too long: uvicorn does not know them yet."""
        known = self._known()
        for opened, client in self._socket.older_than(HANDSHAKE_SECONDS):
            if opened.fileno() not in known:
                reason = f"no TLS handshake within {HANDSHAKE_SECONDS:g} s"
                self._note(_connection(client), Refusal(HTTPStatus.REQUEST_TIMEOUT, reason))
                self._socket.end(opened)


def _in_work(connection: Any) -> bool:
    """Return whether a connection's last request has no complete response yet."""
    return connection.cycle is not None and not connection.cycle.response_complete


def _listen(what: str, host: str, port: int, note: Note) -> "_Listener":
    opened = _Listener(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    opened.note = note
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(128)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise ConfigError(
            "page-cannot-listen",
            f"{what}: cannot listen on {host}:{port}: {error.strerror or error}; give `listen` another "
            f"address of this machine, or end the process that listens there",
        ) from None
    return opened


def _connection(client: Any) -> RequestOrigin:
    return RequestOrigin(client[0], client[1], "a connection")


@dataclass(frozen=True)
class _Client:
    address: Any
    group: str
    since: float


class _Listener(socket.socket):
    """A listening socket. When there are too many connections, it closes the oldest without a request in
    progress, or else the new one. note: records each of these; busy: returns the file descriptors of
    connections with a request in progress."""

    note: Note
    busy: Callable[[], Collection[int]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open: weakref.WeakKeyDictionary[socket.socket, _Client] = weakref.WeakKeyDictionary()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a client. BlockingIOError, as if no one were there, if the new connection was closed."""
        opened, address = super().accept()
        group = group_of(address[0])
        for known in [known for known in self._open if known.fileno() < 0]:
            self.forget(known)
        of_address = [known for known, client in self._open.items() if client.group == group]
        self._open[opened] = _Client(address, group, time.monotonic())
        if len(of_address) >= MAX_OF_ADDRESS:
            self._make_room([*of_address, opened], f"{MAX_OF_ADDRESS} connections from this address")
        elif len(self._open) > MAX_CONNECTIONS:
            self._make_room([*self._open], f"{MAX_CONNECTIONS} connections")
        if opened not in self._open:
            opened.close()
            raise BlockingIOError
        return opened, address

    def _make_room(self, among: list[socket.socket], many: str) -> None:
        """Close the oldest of these connections without a request in progress."""
        busy = self.busy()
        oldest = next(each for each in among if each.fileno() not in busy)
        refusal = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{many} are already open")
        self.note(_connection(self._open[oldest].address), refusal)
        self.end(oldest)

    def end(self, opened: socket.socket) -> None:
        """Close a connection, and count it no longer."""
        self.forget(opened)
        with contextlib.suppress(OSError):  # the client closed it first
            opened.shutdown(socket.SHUT_RDWR)

    def older_than(self, seconds: float) -> list[tuple[socket.socket, Any]]:
        """The open connections that are older, with their clients' addresses."""
        until = time.monotonic() - seconds
        return [(opened, client.address) for opened, client in self._open.items() if client.since < until]

    def forget(self, opened: socket.socket) -> None:
        """Count a connection no longer."""
        self._open.pop(opened, None)


def _server(app: App, note: Note, pair: tuple[Path, Path] | None) -> Any:
    """uvicorn's server without its signal handlers and logs."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        """A connection that reports clients that do not speak HTTP."""

        def send_400_response(self, msg: str) -> None:
            address, port = self.client or ("an unknown address", 0)
            note(
                RequestOrigin(address, port, "no request"),
                Refusal(400, "it does not speak HTTP, or too much of it"),
            )
            super().send_400_response(msg)

    class Server(uvicorn.Server):
        """A server that leaves signals to the process."""

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
    config.load()  # reads the TLS files now, not when the first client comes
    return Server(config)
