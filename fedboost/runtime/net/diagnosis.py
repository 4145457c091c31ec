"""Follows the way to an aggregator or adder step by step, until one is closed. Each step opens connections of
its own, over which the server receives nothing except a request for its status."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import grpc
from cryptography.x509.oid import SignatureAlgorithmOID

from fedboost.errors import FedboostError, quoted
from fedboost.results.check import ERROR
from fedboost.results.network import step_of
from fedboost.runtime.aggregator import parties
from fedboost.runtime.net import channel, routes
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.routes import Server
from fedboost.wire.messages import decode_status

PATIENCE = 10.0  # seconds to wait for each answer
CLOCK_SECONDS = 30  # difference of clocks above which there is a warning
SHORT_SECONDS = 1.25 * channel.KEEPALIVE_MS / 1000
"""Silent connections must live longer than this, because of the interval of the keepalive."""
_SILENT = (TimeoutError, ConnectionError, ssl.SSLEOFError)
Found = Iterator[tuple[str, object]]
"""Kinds of steps, and what was found."""


def follow(server: Server, bundle: Bundle, idle: int, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the steps of the way to a server, up to the first error.

    Args:
        server: the aggregator or adder.
        bundle: certificate and key of the caller.
        idle: seconds to watch a silent connection, or 0.
        note: called with a sentence about the progress while a connection is watched.

    Raises:
        ConfigError: the authorities of a tunnel cannot be read.
    """
    proxy, (host, port), steps = urlsplit(server.proxy_url), server.place, list[dict[str, Any]]()
    first = (proxy.hostname, proxy.port or 80) if proxy.hostname else server.place
    known = {"server": str(server), "role": server.role, "host": host, "port": port, "name": first[0]}
    source = "the site's file" if server.proxy else "the environment"
    known |= {"first": f"{first[0]}:{first[1]}", "source": source if server.proxy_url else ""}
    for part in (_opened(server, first), _secured(server, bundle), _answered(server, bundle, idle, note)):
        steps += [step_of(kind, {**known, "found": found}) for kind, found in part]
        if any(step["severity"] == ERROR for step in steps):
            break
    return steps


def _opened(server: Server, first: tuple[str, int]) -> Found:
    """The name, TCP and the proxy."""
    opened = False
    try:
        places = socket.getaddrinfo(*first, type=socket.SOCK_STREAM)
        yield "name-ok", ", ".join(sorted({str(place[0]) for *_, place in places}))
        socket.create_connection(first, PATIENCE).close()
        opened = True
        yield "tcp-ok", ""
        routes.open_way(server, PATIENCE).close()
        yield "proxy-ok" if server.proxy_url else "proxy-none", ""
    except OSError as error:
        fault = routes.obstacle(server, error)
        if isinstance(error, socket.gaierror):
            yield "name-unknown", ""
        elif opened and fault is not None and fault.code.startswith("proxy-"):
            yield fault.code, fault.reason
        else:
            refused = isinstance(error, ConnectionRefusedError)
            yield "tcp-refused" if refused else "tcp-silent", error.strerror or str(error)


def _secured(server: Server, bundle: Bundle) -> Found:
    """The first TLS on the way, and HTTP/2."""
    if server.scheme in ("ws", "grpc"):
        return
    context = routes.tls_of(server) or channel.dialling(bundle)
    name = server.place[0] if server.scheme else server.dns_name
    try:
        presented, protocol = routes.presented(server, name)
    except OSError as error:
        yield "tls-failed", str(error)
        return
    fault = _fault(lambda: routes.open_way(server, PATIENCE), context, name)
    cause = channel.CAUSES.get(getattr(fault, "verify_code", 0), "other")
    # Consortia sign with Ed25519, and what intercepts TLS does not.
    own = presented.signature_algorithm_oid == SignatureAlgorithmOID.ED25519
    if server.scheme:
        kind = "ok" if fault is None else "own" if own else "untrusted" if cause == "consortium" else cause
    else:
        kind = "ok" if fault is None or own or cause not in ("consortium", "other") else "intercepted"
    yield f"tls-{kind}", repr(quoted(presented.issuer.rfc4514_string()))
    needed = "http2-ok" if protocol == "h2" else "http2-missing"
    yield "http2-unneeded" if server.scheme == "wss" else needed, protocol


def _answered(server: Server, bundle: Bundle, idle: int, note: Callable[[str], None]) -> Found:
    """The tunnel, the server's certificate, its answer and clock, and how long connections live."""
    fault = _fault(lambda: server.open_socket(PATIENCE), channel.dialling(bundle), server.dns_name)
    if server.scheme:
        if (closed := server.tunnel_fault) or isinstance(fault, _SILENT):
            yield "tunnel-failed", closed.reason if closed else f"nothing answers through it ({fault})"
            return
        yield "tunnel-ok", ""
    if isinstance(fault, ssl.SSLCertVerificationError):
        cause = channel.CAUSES.get(fault.verify_code, "other")
        yield f"server-{cause}", f"its certificate {channel.certificate_fault(fault, server)}"
        return
    began, method = time.time(), parties.CHECK if server.adder else channel.STATUS_OF
    try:
        answer = channel.answer_of(method, server, bundle, b"", PATIENCE, PATIENCE)
    except FedboostError as error:
        yield "server-failed", str(error)
        return
    yield "server-ok", ""
    if not server.adder:  # an adder does not report its time
        ahead = decode_status(answer).now + 0.5 - (began + time.time()) / 2  # whole seconds, rounded down
        off = f"{abs(ahead):,.0f} s {'behind' if ahead > 0 else 'ahead of'}"
        yield ("clock-differs", off) if abs(ahead) > CLOCK_SECONDS else ("clock-ok", round(abs(ahead)))
    if idle:
        yield _watched(server, bundle, idle, note)


def _watched(server: Server, bundle: Bundle, most: int, note: Callable[[str], None]) -> tuple[str, int]:
    """Watch a connection on which only the keepalive is sent, for `most` seconds."""
    began, over, failed = time.monotonic(), threading.Event(), None

    def tell() -> None:
        while not over.wait(10):
            note(f"watching a silent connection: {time.monotonic() - began:.0f} of {most} s")

    threading.Thread(target=tell, daemon=True).start()
    try:
        for _ in channel.stream(parties.WATCH, server, bundle, b"", PATIENCE, most):
            pass
    except (grpc.RpcError, FedboostError) as error:
        failed = getattr(error, "code", None)
    over.set()
    seconds = round(time.monotonic() - began)
    lived = callable(failed) and failed() == grpc.StatusCode.DEADLINE_EXCEEDED
    return "idle-ok" if lived else "idle-short" if seconds < SHORT_SECONDS else "idle-always", seconds


def _fault(dial: Callable[[], socket.socket], context: ssl.SSLContext, name: str) -> OSError | None:
    """Return what goes wrong in a TLS handshake, if anything."""
    try:
        with dial() as opened, context.wrap_socket(opened, server_hostname=name):
            return None
    except OSError as error:
        return error
