"""How a client reaches an aggregator or an adder: its address, a proxy on the way, and tunnels.

A tunnel carries the bytes of one connection over a WebSocket (`wss://`, `ws://`) or over a call of gRPC
(`grpcs://`, `grpc://`), so that load balancers and proxies may end its own TLS. The connection inside is the
same as without a tunnel: TLS 1.3 with certificates of the consortium at both ends. A `Relay` listens on a
loopback port and opens a tunnel for each connection to this port.

Guarantees: nothing that is on the way of a tunnel is trusted with more than bytes that TLS protects. A relay
reads no faster than the other side does. The password of a proxy is sent only to the proxy.
"""

import atexit
import contextlib
import http.client
import os
import re
import socket
import ssl
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import grpc
from cryptography import x509
from pydantic import SecretStr

from fedboost.errors import ConfigError, quoted
from fedboost.privacy.identity import SERVER_NAME, server_name
from fedboost.runtime.config import is_tunnel
from fedboost.runtime.files import file_errors

CARRY = "/fedboost.wire.v1.Tunnel/Carry"
"""Method of gRPC that carries a connection: pieces of its bytes in both directions, as they are."""
PIECE = 256 * 1024
"""Maximum number of bytes that one message of a tunnel contains."""
TUNNELS = 64
"""Maximum number of tunnels of a relay. A party has two; an analyst has one for each of its calls."""
_PATIENCE = 10.0  # seconds until a tunnel is open
_TLS = ("wss", "grpcs")


@dataclass(frozen=True)
class TlsFault:
    """The reason why a connection failed, as a sentence. passes: True if another attempt may succeed; code:
    code of the error."""

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
        return (
            f"the adder {self.adder!r} at {self.address}"
            if self.adder
            else f"the {self.role} at {self.address}"
        )

    @property
    def role(self) -> str:
        return "adder" if self.adder else "aggregator"

    @property
    def dns_name(self) -> str:
        """DNS name that the server's certificate must contain."""
        return server_name(self.role, self.adder) or SERVER_NAME

    @property
    def is_tunnel(self) -> bool:
        return is_tunnel(self.address)

    @property
    def scheme(self) -> str:
        """Scheme of a tunnel's address, or an empty string."""
        return self.address.partition("://")[0] if self.is_tunnel else ""

    @property
    def host_and_port(self) -> tuple[str, int]:
        """The end of the first connection, unless there is a proxy."""
        parts = urlsplit(self.address if self.is_tunnel else f"//{self.address}")
        return str(parts.hostname), parts.port or (443 if self.scheme in _TLS else 80)

    @property
    def proxy_url(self) -> str:
        """URL of the proxy to use, by the settings or by the environment, or an empty string."""
        if self.proxy is not None:
            return self.proxy.get_secret_value()
        host, port = self.host_and_port
        found = urllib.request.getproxies().get("https", "")
        usable = found.startswith("http://") and not urllib.request.proxy_bypass(f"{host}:{port}")
        return found if usable else ""

    @property
    def channel_options(self) -> tuple[str, list[tuple[str, Any]]]:
        """Target that gRPC dials, and options. A tunnel's target is the port of its relay."""
        if not self.is_tunnel:
            return self.address, [("grpc.http_proxy", self.proxy_url)] if self.proxy else []
        return relay_to(self).address, [("grpc.enable_http_proxy", 0)]

    @property
    def tunnel_fault(self) -> TlsFault | None:
        """Why the last tunnel to this server could not be opened, or None."""
        return relay_to(self).fault if self.is_tunnel else None

    def open_socket(self, patience: float) -> socket.socket:
        """Open a TCP connection to the server, by its proxy if it has one, or to the relay of a tunnel.
        patience: seconds to wait. Raises OSError."""
        if self.is_tunnel:
            host, _, port = relay_to(self).address.rpartition(":")
            return socket.create_connection((host, int(port)), patience)
        return _connect(self, patience)


def _connect(server: Server, patience: float) -> socket.socket:
    host, port = server.host_and_port
    if not server.proxy_url:
        return socket.create_connection((host, port), patience)
    proxy = urlsplit(server.proxy_url)
    headers = {}
    if proxy.username is not None:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    line = http.client.HTTPConnection(str(proxy.hostname), proxy.port or 80, timeout=patience)
    line.set_tunnel(host, port, headers)
    line.connect()
    return line.sock


def _context(server: Server) -> ssl.SSLContext:
    """TLS of the tunnel itself."""
    if server.ca is None:
        return ssl.create_default_context()
    with file_errors(server.ca, "cannot read the authorities"):
        try:
            return ssl.create_default_context(cafile=server.ca)
        except ssl.SSLError:
            raise ConfigError("ca-invalid", f"{server.ca} contains no certificate in PEM format") from None


# ---- Why a way to a server is closed --------------------------------------------------------------------


_PROXY_SAYS = re.compile(r"Tunnel connection failed: (\d{3})")
_STATUS = re.compile(r"status: (\d{3})")


def obstacle(server: Server, error: BaseException) -> TlsFault | None:
    """Return why a tunnel, or a connection through a proxy, could not be opened, or None if the server does
    not answer and is reached directly. error: what was raised."""
    if isinstance(error, grpc.RpcError):
        error = _look(server) or error  # gRPC reports most causes only in its own words
    status = _status(error)
    if (found := _fault(server, error, status)) is None:
        return None
    lasts = isinstance(error, ssl.SSLError) or not isinstance(error, OSError)
    return TlsFault(str(found), status >= 500 if status else not lasts, found.code)


def _look(server: Server) -> Exception | None:
    """Return what goes wrong before the first byte of a tunnel is sent, if anything."""
    try:
        with _connect(server, _PATIENCE) as opened:
            if server.scheme in _TLS:
                _context(server).wrap_socket(opened, server_hostname=server.host_and_port[0]).close()
    except (OSError, ConfigError) as error:
        return error
    return None


def _status(error: BaseException) -> int:
    """Return the HTTP status with which a proxy or server refused, or 0."""
    said = _PROXY_SAYS.search(str(error)) if isinstance(error, OSError) else None
    if isinstance(error, grpc.RpcError):
        said = _STATUS.search(_details(error))
    return int(said[1]) if said else getattr(getattr(error, "response", None), "status_code", 0)


def _details(error: Any) -> str:
    return str(error.details() if isinstance(error, grpc.RpcError) else error)


def _fault(server: Server, error: BaseException, status: int) -> ConfigError | None:
    host, port = server.host_and_port
    proxy = urlsplit(server.proxy_url)
    through = f"the proxy {proxy.hostname}:{proxy.port or 80}"
    match error:
        case ConfigError():
            return error
        case OSError() if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            return ConfigError("proxy-login", f"{through} requires another user or password (HTTP {status})")
        case OSError() if status:
            return ConfigError(
                "proxy-refuses",
                f"{through} does not connect to {host}:{port} (HTTP {status}); ask who runs it",
            )
        case ssl.SSLCertVerificationError():
            return ConfigError(
                "tunnel-certificate",
                f"the TLS certificate of {server.address}, issued by {_issuer(server)}, cannot be verified: "
                f"{error.verify_message}; if a proxy here intercepts TLS, set `ca` to its authority",
            )
        case ssl.SSLError():
            return ConfigError("tunnel-tls", f"{server.address} does not use TLS as web servers do")
        case socket.gaierror():
            return ConfigError("name-unknown", f"the name {proxy.hostname or host} cannot be resolved")
        case OSError() if proxy.hostname:
            return ConfigError("proxy-unreachable", f"{through} does not answer")
        case OSError() if server.is_tunnel:
            return ConfigError("aggregator-unreachable", f"no server answers at {server.address}")
        case OSError():
            return None
    if status:
        return ConfigError(
            "tunnel-status",
            f"{server.address} answers HTTP {status}: no aggregator listens there for tunnels, or what is in "
            f"front of it does not pass them on",
        )
    return ConfigError(
        "tunnel-failed", f"no tunnel can be opened at {server.address}: {quoted(_details(error))}"
    )


def _issuer(server: Server) -> str:
    """Return who issued the certificate that a tunnel's TLS presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _ = server.host_and_port
    with (
        contextlib.suppress(OSError, ValueError),
        _connect(server, _PATIENCE) as opened,
        context.wrap_socket(opened, server_hostname=host) as secured,
    ):
        presented = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        return repr(quoted(presented.issuer.rfc4514_string()))
    return "an unknown authority"


# ---- Tunnels of a client --------------------------------------------------------------------------------


class Relay:
    """Loopback port of this process. Each connection to it is carried to the server through a tunnel."""

    def __init__(self, server: Server) -> None:
        self.fault: TlsFault | None = None
        """Why the last tunnel could not be opened, or None if it was open."""
        self._server = server
        self._room = threading.BoundedSemaphore(TUNNELS)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="relay", daemon=True).start()
        # gRPC waits for its calls when the interpreter exits, and they would never end.
        atexit.register(self.close)

    def close(self) -> None:
        self._listener.close()
        for opened in [*self._open]:
            _shut(opened)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                opened, _ = self._listener.accept()
                if not self._room.acquire(blocking=False):
                    opened.close()
                    continue
                threading.Thread(target=self._carry, args=(opened,), name="tunnel", daemon=True).start()

    def _carry(self, opened: socket.socket) -> None:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._open.add(opened)
        carried = _by_websocket if self._server.scheme in ("ws", "wss") else _by_grpc
        began = False
        try:
            for piece in carried(self._server, opened):
                began, self.fault = True, None
                opened.sendall(piece)
        except Exception as error:  # noqa: BLE001 - whatever ended the tunnel, its connection ends
            if not began:
                self.fault = obstacle(self._server, error)
        finally:
            self._open.discard(opened)
            _shut(opened)
            opened.close()
            self._room.release()


def _shut(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def _pieces(opened: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while piece := opened.recv(PIECE):
            yield piece


def _by_websocket(server: Server, opened: socket.socket) -> Iterator[bytes]:
    """Carry a connection over a WebSocket, and yield what arrives for it."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    context = _context(server) if server.scheme in _TLS else None
    # No pings: the connection inside has its own, which pass through the tunnel.
    dialled = connect(
        server.address,
        sock=_connect(server, _PATIENCE),
        ssl=context,
        compression=None,
        ping_interval=None,
        open_timeout=_PATIENCE,
        close_timeout=1.0,
    )

    with dialled as tunnel, contextlib.suppress(ConnectionClosed):

        def send() -> None:
            with contextlib.suppress(ConnectionClosed):
                for piece in _pieces(opened):
                    tunnel.send(piece)
            tunnel.close()

        threading.Thread(target=send, name="tunnel", daemon=True).start()
        while True:
            yield tunnel.recv(decode=False)


def _by_grpc(server: Server, opened: socket.socket) -> Iterator[bytes]:
    """Carry a connection over a call of gRPC, and yield what arrives for it."""
    host, port = server.host_and_port
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    options.append(
        ("grpc.http_proxy", server.proxy_url) if server.proxy_url else ("grpc.enable_http_proxy", 0)
    )
    if server.scheme in _TLS:
        roots = _context(server).get_ca_certs(binary_form=True)
        pem = "".join(map(ssl.DER_cert_to_PEM_cert, roots)).encode()
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(pem or None), options)
    else:
        channel = grpc.insecure_channel(target, options)
    with channel:
        yield from channel.stream_stream(CARRY)(_pieces(opened))


_relays: dict[tuple[Any, ...], Relay] = {}
_lock = threading.Lock()


def relay_to(server: Server) -> Relay:
    """Return this process's relay to a server."""
    key = os.getpid(), server.address, server.proxy, server.ca  # a forked process has no threads
    with _lock:
        if key not in _relays:
            _relays[key] = Relay(server)
        return _relays[key]
