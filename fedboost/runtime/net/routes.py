"""How a client reaches an aggregator or an adder: its address, a proxy on the way, and tunnels.

A tunnel carries the bytes of a connection over a WebSocket (`wss://`, `ws://`) or a call of gRPC (`grpcs://`,
`grpc://`), whose own TLS anything may end. The connection inside is the same as without a tunnel: TLS with
certificates of the consortium at both ends. A `Relay` listens on loopback and opens a tunnel per connection.

Guarantees: what a tunnel passes through is not trusted. A relay reads no faster than the other side does. The
password of a proxy is sent only to the proxy.
"""

import atexit
import contextlib
import http.client
import os
import re
import socket
import ssl
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import grpc
from cryptography import x509
from pydantic import SecretStr

from fedboost.errors import ConfigError, quoted
from fedboost.privacy.identity import SERVER_NAME, server_name
from fedboost.runtime.aggregator.limits import UNREAD_SECONDS
from fedboost.runtime.config import require_proxy
from fedboost.runtime.files import file_errors

CARRY = "/fedboost.wire.v1.Tunnel/Carry"
"""Method of gRPC that carries a connection: pieces of its bytes in both directions, as they are."""
PIECE = 256 * 1024
"""Maximum number of bytes that one message of a tunnel contains."""
TUNNELS = 64
"""Maximum number of tunnels of a relay. A party has two; an analyst has one for each of its calls."""
_PATIENCE = 10.0  # seconds until a tunnel is open
_PORTS = {"wss": 443, "grpcs": 443, "ws": 80, "grpc": 80}


@dataclass(frozen=True)
class TlsFault:
    """The reason why a connection failed, as a sentence, and the error's code. passes: True if another
    attempt may succeed."""

    reason: str
    passes: bool = False
    code: str = "tls-failed"


class Server(NamedTuple):
    """A server that a client connects to: its address, HOST:PORT or that of a tunnel, and the adder's name,
    or '' if it is the aggregator itself. proxy: URL of a proxy on the way (default: the environment's); ca:
    file with the authorities that a tunnel's TLS trusts (default: the system's)."""

    address: str
    adder: str = ""
    proxy: SecretStr | None = None
    ca: Path | None = None

    def __str__(self) -> str:
        return f"the {self.role}{f' {self.adder!r}' if self.adder else ''} at {self.address}"

    @property
    def role(self) -> str:
        return "adder" if self.adder else "aggregator"

    @property
    def dns_name(self) -> str:
        """DNS name that the server's certificate must contain."""
        return server_name(self.role, self.adder) or SERVER_NAME

    @property
    def scheme(self) -> str:
        """Scheme of a tunnel's address, or an empty string."""
        return self.address.partition("://")[0] if "://" in self.address else ""

    @property
    def place(self) -> tuple[str, int]:
        """Host and port, of the tunnel if there is one."""
        parts = urlsplit(self.address if self.scheme else f"//{self.address}")
        return str(parts.hostname), parts.port or _PORTS[self.scheme]

    @property
    def proxy_url(self) -> str:
        """URL of the proxy to use, by the settings or by the environment, or an empty string."""
        if self.proxy is not None:
            return self.proxy.get_secret_value()
        found = urllib.request.getproxies().get("https", "")
        found = found if "://" in found or not found else f"http://{found}"
        if not found.startswith("http://") or urllib.request.proxy_bypass("{}:{}".format(*self.place)):
            return ""
        try:
            return require_proxy(found).get_secret_value()
        except ValueError as error:
            raise ConfigError("address-invalid", f"environment variable https_proxy: {error}") from None

    @property
    def target(self) -> tuple[str, list[tuple[str, Any]]]:
        """Address that gRPC dials, and options. A tunnel's is that of its relay."""
        return (relay_to(self).address, []) if self.scheme else _way_of_grpc(self)

    @property
    def tunnel_fault(self) -> TlsFault | None:
        """Why the last tunnel to this server could not be opened, or None."""
        return relay_to(self).fault if self.scheme else None

    def open_socket(self, patience: float) -> socket.socket:
        """Open a TCP connection to the server, by its proxy if it has one, or to the relay of a tunnel.
        patience: seconds to wait. Raises OSError."""
        if not self.scheme:
            return open_way(self, patience)
        return socket.create_connection(Server(relay_to(self).address).place, patience)


def open_way(server: Server, patience: float = _PATIENCE) -> socket.socket:
    """Open a TCP connection to the server or to what takes its tunnels. Raises OSError."""
    proxy = urlsplit(server.proxy_url)
    if not proxy.hostname:
        return socket.create_connection(server.place, patience)
    line = http.client.HTTPConnection(proxy.hostname, proxy.port or 80, timeout=patience)
    try:
        line.set_tunnel(_written(server.place[0]), server.place[1], _login(proxy))
        line.connect()
    except (OSError, http.client.HTTPException, ValueError) as error:
        line.close()
        if isinstance(error, OSError):
            raise
        raise OSError("what the proxy answers is not HTTP") from None
    return line.sock


def _way_of_grpc(server: Server) -> tuple[str, list[tuple[str, Any]]]:
    """Return the address that gRPC dials to reach the server or what takes its tunnels, and options."""
    address, proxy = _joined(*server.place), urlsplit(server.proxy_url)
    if not proxy.hostname:
        return address, []
    # gRPC ignores `grpc.http_proxy` for addresses in the environment's no_proxy, and has its own variables.
    headers = [("grpc.http_connect_headers", ":".join(header)) for header in _login(proxy).items()]
    return _joined(proxy.hostname, proxy.port or 80), [("grpc.http_connect_server", address), *headers]


def _written(host: str) -> str:
    """Return a host as it is written before a colon and a port."""
    return f"[{host}]" if ":" in host else host.encode("idna").decode()


def _joined(host: str, port: int) -> str:
    return f"{_written(host)}:{port}"


def _login(proxy: SplitResult) -> dict[str, str]:
    pair = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {b64encode(pair).decode()}"} if proxy.username else {}


def tls_of(server: Server) -> ssl.SSLContext | None:
    """TLS of the tunnel itself, if it has any."""
    if server.scheme not in ("wss", "grpcs"):
        return None
    with file_errors(server.ca or "", "cannot read the authorities"):
        try:
            return ssl.create_default_context(cafile=server.ca)
        except ssl.SSLError:
            raise ConfigError("authorities-invalid", f"{server.ca} has no certificates in PEM") from None


# ---- Why a way to a server is closed --------------------------------------------------------------------


_STATUS = re.compile(r"(?:connection failed|status): (\d{3})")
_BUSY = 408, 425, 429
"""HTTP statuses after which another attempt may succeed, as after those of a server's fault."""


def obstacle(server: Server, error: Exception) -> TlsFault | None:
    """Return why a tunnel, or a connection by a proxy, could not be opened, or None if a server without a
    tunnel does not answer. error: what was raised."""
    if isinstance(error, grpc.RpcError):
        error = _look(server) or error  # gRPC reports most causes only in its own words
    details = str(getattr(error, "details", lambda: error)())
    said = _STATUS.search(details)
    status = int(said[1]) if said else getattr(getattr(error, "response", None), "status_code", 0)
    if (found := _fault(server, error, status, details)) is None:
        return None
    other = isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNIMPLEMENTED  # no aggregator
    lasts = other or isinstance(error, ssl.SSLCertVerificationError | ConfigError)
    refused = 400 <= status < 500 and status not in _BUSY
    return TlsFault(str(found), not (refused if status else lasts), found.code)


def _look(server: Server) -> Exception | None:
    """Return what goes wrong before the first byte of a tunnel is sent, if anything."""
    try:
        context = tls_of(server)
        with open_way(server) as opened:
            if context is not None:
                context.wrap_socket(opened, server_hostname=server.place[0]).close()
    except (OSError, ConfigError) as error:
        return error
    return None


def _fault(server: Server, error: Exception, status: int, details: str) -> ConfigError | None:
    (host, port), proxy, address = server.place, urlsplit(server.proxy_url), server.address
    by = f"the proxy {proxy.hostname}:{proxy.port or 80}"
    match error:
        case ConfigError():
            return error
        case OSError() if status == 407:
            return ConfigError(
                "proxy-login", f"{by} requires another user or password, or not Basic (HTTP 407)"
            )
        case OSError() if status:
            return ConfigError("proxy-refuses", f"{by} does not connect to {host}:{port} (HTTP {status})")
        case ssl.SSLCertVerificationError():
            return ConfigError(
                "tunnel-certificate",
                f"the TLS certificate of {address}, issued by {_issuer(server)}, cannot be verified: "
                f"{error.verify_message}; if a proxy here intercepts TLS, set `ca` to its authority",
            )
        case ssl.SSLError():
            return ConfigError("tunnel-tls", f"{address} does not use TLS as web servers do")
        case socket.gaierror():
            return ConfigError("name-unknown", f"the name {proxy.hostname or host} cannot be resolved")
        case OSError() if proxy.hostname:
            return ConfigError("proxy-unreachable", f"{by} does not answer")
        case OSError():
            unreachable = ConfigError("aggregator-unreachable", f"no server answers at {address}")
            return unreachable if server.scheme else None
    why = f"HTTP {status}" if status else quoted(details)
    return ConfigError("tunnel-failed", f"no tunnel of an aggregator can be opened at {address}: {why}")


def presented(server: Server, name: str) -> tuple[x509.Certificate, str | None]:
    """Return the certificate that is presented at a server's address, unchecked, and the protocol that is
    agreed on. name: DNS name to ask for. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with open_way(server) as opened, context.wrap_socket(opened, server_hostname=name) as secured:
        certificate = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        return certificate, secured.selected_alpn_protocol()


def _issuer(server: Server) -> str:
    """Return who issued the certificate that a tunnel's TLS presents."""
    with contextlib.suppress(OSError, ValueError):
        return repr(quoted(presented(server, server.place[0])[0].issuer.rfc4514_string()))
    return "an unknown authority"


# ---- Tunnels of a client --------------------------------------------------------------------------------


@dataclass(eq=False)
class _Carried:
    """A connection that is carried through a tunnel. end: ends the tunnel, whatever the other side does;
    until: time by which the other side must have taken a piece, or the end of the connection."""

    opened: socket.socket
    end: Callable[[], object]
    until: float = float("inf")

    def pieces(self) -> Iterator[bytes]:
        """Yield what is to be sent through the tunnel."""
        with contextlib.suppress(OSError):
            while piece := self.opened.recv(PIECE):
                self.until = time.monotonic() + UNREAD_SECONDS
                yield piece
                self.until = float("inf")
        self.until = time.monotonic() + UNREAD_SECONDS


class Relay:
    """Loopback port of this process. Each connection to it is carried to the server through a tunnel."""

    def __init__(self, server: Server) -> None:
        self.fault: TlsFault | None = None
        """Why the last tunnel could not be opened, or None if it was open."""
        self._server = server
        self._room = threading.BoundedSemaphore(TUNNELS)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(1.0)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[_Carried] = set()
        threading.Thread(target=self._accept, daemon=True).start()
        # gRPC waits for its calls when the interpreter exits, and they would never end.
        atexit.register(self.close)

    def close(self) -> None:
        self._listener.close()
        for carried in [*self._open]:
            _shut(carried.opened)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                with contextlib.suppress(TimeoutError):
                    opened, _ = self._listener.accept()
                    if self._room.acquire(blocking=False):
                        threading.Thread(target=self._carry, args=(opened,), daemon=True).start()
                    else:
                        opened.close()
                for carried in [each for each in [*self._open] if each.until < time.monotonic()]:
                    carried.end()

    def _carry(self, opened: socket.socket) -> None:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._open.add(carried := _Carried(opened, lambda: None))
        carry = _by_grpc if self._server.scheme.startswith("grpc") else _by_websocket
        began = False
        try:
            for piece in carry(self._server, carried):
                began, self.fault = True, None
                opened.sendall(piece)
        except Exception as error:  # noqa: BLE001 - whatever ended the tunnel, its connection ends
            if not began:
                self.fault = obstacle(self._server, error)
        finally:
            self._open.discard(carried)
            _shut(opened)
            opened.close()
            self._room.release()


def _shut(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(opened, socket.SHUT_RDWR)  # that of TLS would let a send go on without TLS


def _by_websocket(server: Server, carried: _Carried) -> Iterator[bytes]:
    """Carry a connection over a WebSocket, and yield what arrives for it."""
    import websockets.sync.client  # slow to import

    # No pings: the connection inside has its own, which pass through the tunnel.
    how: dict[str, Any] = {"ssl": tls_of(server), "compression": None, "ping_interval": None}
    how |= {"sock": (way := open_way(server)), "open_timeout": _PATIENCE, "close_timeout": 1.0}
    way.settimeout(None)
    with (
        websockets.sync.client.connect(server.address, **how) as tunnel,
        contextlib.suppress(websockets.ConnectionClosed),
    ):
        carried.end = lambda: _shut(tunnel.socket)

        def send() -> None:
            with contextlib.suppress(websockets.ConnectionClosed):
                for piece in carried.pieces():
                    tunnel.send(piece)
            tunnel.close()

        threading.Thread(target=send, daemon=True).start()
        while True:
            yield tunnel.recv(decode=False)


def _by_grpc(server: Server, carried: _Carried) -> Iterator[bytes]:
    """Carry a connection over a call of gRPC, and yield what arrives for it."""
    target, options = _way_of_grpc(server)
    options += [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    options += [("grpc.enable_http_proxy", 0), ("grpc.default_authority", _joined(*server.place))]
    if (context := tls_of(server)) is None:
        channel = grpc.insecure_channel(target, options)
    else:
        known = "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True))).encode()
        roots = server.ca.read_bytes() if server.ca else known
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(roots or None), options)
    with channel:
        call = channel.stream_stream(CARRY)(carried.pieces())
        carried.end = call.cancel
        yield from call


_relays: dict[tuple[Any, ...], Relay] = {}
_lock = threading.Lock()


def relay_to(server: Server) -> Relay:
    """Return this process's relay to a server."""
    key = os.getpid(), server.address, server.proxy, server.ca  # a forked process has no threads
    with _lock:
        return _relays.get(key) or _relays.setdefault(key, Relay(server))
