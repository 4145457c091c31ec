"""gRPC for clients and the aggregator: TLS, method names, limits, keepalive and the translation of errors.

One table maps fedboost's errors to gRPC status codes and back. Messages are bytes here; `wire.codec` decodes
them.
Raises: ConfigError if an address does not answer or is not a fedboost aggregator.
"""

import asyncio
import atexit
import random
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import grpc

from fedboost.errors import (
    Altered,
    ConfigError,
    FedboostError,
    LocalProtocolError,
    PeerError,
    Refused,
    RosterTooSmall,
    SchemaMismatch,
    SessionFailed,
    TrainingStopped,
    TreeAborted,
    quoted,
)
from fedboost.privacy.identity import Identified, identify
from fedboost.runtime.aggregator.limits import SERVER_OPTIONS as LIMITS
from fedboost.runtime.files import file_errors
from fedboost.runtime.net.keys import CERTIFICATE, KEY, Bundle, expired
from fedboost.runtime.net.routes import Server, TlsFault, obstacle
from fedboost.version import VERSION
from fedboost.wire.codec import MAX_FRAME, MAX_FROM_AGGREGATOR, MAX_TO_AGGREGATOR, WIRE_VERSION

# ---- TLS: credentials of both ends, the peer's certificate, and why a handshake fails -------------------


_PATIENCE = 3.0  # seconds that `tls_fault` waits for each answer


def server_credentials(bundle: Bundle) -> Any:
    """Return the TLS credentials of an aggregator. Clients must have a certificate issued by the consortium;
    `peer_of` and its caller later check the role and the deny list."""
    pair = (bundle.key, bundle.certificate)
    return grpc.ssl_server_credentials([pair], root_certificates=bundle.roots, require_client_auth=True)


def peer_of(auth_context: Mapping[str, Iterable[bytes]], bundle: Bundle, now: datetime) -> Identified:
    """Return the identity of a call's peer. auth_context: result of gRPC's `auth_context()`; now: time at
    which the peer's certificate must be valid. Raises PeerError if the peer has no certificate or is not
    allowed to connect."""
    leaf = [*auth_context.get("x509_pem_cert", ())]
    if len(leaf) != 1:
        raise PeerError(
            "tls-no-certificate",
            "the connection has no client certificate; use a bundle from `fedboost keys`",
        )
    intermediates = auth_context.get("x509_pem_cert_chain", ())
    return identify(b"\n".join([*leaf, *intermediates]), bundle.roots, now, bundle.denied)


def tls_fault(server: Server, bundle: Bundle) -> TlsFault | None:
    """Return why the connection to a server fails, or None if its TLS handshake succeeds or no server
    answers. gRPC reports most causes only as a lost connection, so this function connects once more with
    Python's TLS. It blocks for a few seconds at most. Raises ConfigError if the bundle's folder can no longer
    be read."""
    ours = bundle.folder / CERTIFICATE
    try:
        now = datetime.now(UTC)
        if now > bundle.ends:
            return TlsFault(f"{ours} {expired(bundle.ends, bundle.signer.role)}")
        identify(bundle.certificate, bundle.roots, now, bundle.denied)
    except PeerError as error:
        return TlsFault(f"{ours}: {error}")
    context, address = dialling(bundle), server.address
    hangs_up = TlsFault(
        f"the server at {address} closes connections before the TLS handshake: it may be an aggregator that "
        f"has reached its connection limit, or not an aggregator",
        passes=True,
    )
    try:
        opened = server.open_socket(_PATIENCE)
    except ConnectionResetError:
        return hangs_up
    except OSError as error:
        return obstacle(server, error) if server.proxy_url else None
    try:
        with (
            opened,
            context.wrap_socket(
                opened, server_hostname=server.dns_name, do_handshake_on_connect=False
            ) as secured,
        ):
            secured.do_handshake()
            if _is_taken(secured):
                return None
    except ssl.SSLCertVerificationError as error:
        return TlsFault(f"the certificate of {server} {certificate_fault(error, server)}")
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return server.tunnel_fault or hangs_up
    except ssl.SSLError:
        return TlsFault(f"the server at {address} does not use TLS as a fedboost aggregator with keys does")
    except TimeoutError:
        return server.tunnel_fault or TlsFault(
            f"the server at {address} does not respond: it may be a busy aggregator, or not an aggregator",
            passes=True,
        )
    except OSError:
        return server.tunnel_fault or hangs_up
    return TlsFault(
        f"{server} rejects {ours}: it trusts another consortium, or its clock is wrong; "
        f"compare the fingerprints that `fedboost keys show` prints on both machines"
    )


def _is_taken(secured: ssl.SSLSocket) -> bool:
    # In TLS 1.3 our handshake ends before the server has checked our certificate. A server that accepts it
    # sends its HTTP/2 settings first; one that refuses it hangs up.
    try:
        return len(secured.recv(1)) > 0
    except TimeoutError:
        return True
    except OSError:
        return False


def dialling(bundle: Bundle) -> ssl.SSLContext:
    """Return the TLS of a client, for Python."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate may be trusted like a root
    context.set_alpn_protocols(["h2"])
    with file_errors(bundle.folder, "cannot read the bundle again"):
        context.load_verify_locations(cadata=bundle.roots.decode())
        context.load_cert_chain(bundle.folder / CERTIFICATE, bundle.folder / KEY, password="none")
    return context


CAUSES = dict.fromkeys((2, 7, 18, 19, 20, 21), "consortium") | dict.fromkeys((26, 62, 64, 79), "unfit")
CAUSES |= {9: "not-yet", 10: "expired"}
"""OpenSSL's code of a fault of a certificate (x509_vfy.h) -> what it means."""


def certificate_fault(error: ssl.SSLCertVerificationError, server: Server) -> str:
    """Return what is wrong with a server's certificate, as the end of a sentence."""
    cause = CAUSES.get(error.verify_code)
    if cause == "consortium":
        compare = "compare the fingerprints that `fedboost keys show` prints on both machines"
        return f"belongs to another consortium; {compare}"
    if cause == "expired":
        return f"has expired; it needs a new bundle from `fedboost keys {server.role}`"
    if cause == "not-yet":
        return "is not valid yet; check this machine's clock"
    if cause == "unfit":
        if server.adder:
            return f"is not for adder {server.adder!r}; correct `through` in the site's file, or --adder"
        return (
            f"is not for an aggregator: it lacks the DNS name {server.dns_name}; if an adder listens there, "
            f"a site names it in `through`, and other commands need the aggregator's address"
        )
    return f"cannot be verified: {error.verify_message}"


# ---- gRPC: method names, options, and the translation of errors -----------------------------------------


SERVICE = "fedboost.wire.v1.Aggregator"
ATTEND = f"/{SERVICE}/Attend"
TRAIN = f"/{SERVICE}/Train"
ADVISE = f"/{SERVICE}/Advise"
REGION = f"/{SERVICE}/Region"
LINK = f"/{SERVICE}/Link"
CHECK = f"/{SERVICE}/Check"
STATUS_OF = f"/{SERVICE}/Status"
PARTY_KEY = "fedboost-party-bin"
VERSION_KEY = "fedboost-wire"
SOFTWARE_KEY = "fedboost-software"
VERSIONS = ((VERSION_KEY, str(WIRE_VERSION)), (SOFTWARE_KEY, VERSION))
"""Metadata of every call, with the caller's versions."""

KEEPALIVE_MS = 20_000  # interval between probes of a silent connection, and time to answer one

CLIENT_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_FROM_AGGREGATOR + MAX_FRAME),
    ("grpc.max_send_message_length", MAX_TO_AGGREGATOR + MAX_FRAME),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),  # of the environment; see `routes`
]
FIRST_LOOK = 2.0  # seconds without an answer before its cause is looked up
SERVER_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_TO_AGGREGATOR + MAX_FRAME),
    ("grpc.max_send_message_length", MAX_FROM_AGGREGATOR + MAX_FRAME),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
    *LIMITS,
]
MAX_DETAILS_LENGTH = 600
"""Maximum length in characters of the message that ends a call. The message is sent in the trailers. gRPC
limits trailers to 8 KiB, and a character takes up to 12 bytes in them."""

CAUSE_KEY = "fedboost-cause"
"""Key of the error's code in the trailing metadata of a call."""
# Trailers, as the status has room only for the class of an error and its sentence, and initial metadata has
# already left with the first message when a stream fails.
CAUSE = re.compile(r"[a-z][a-z0-9-]{1,63}")
STATUS: dict[type[FedboostError], grpc.StatusCode] = {
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    Altered: grpc.StatusCode.INVALID_ARGUMENT,
    PeerError: grpc.StatusCode.DATA_LOSS,
    Refused: grpc.StatusCode.PERMISSION_DENIED,
    SchemaMismatch: grpc.StatusCode.PERMISSION_DENIED,
    SessionFailed: grpc.StatusCode.ABORTED,
    RosterTooSmall: grpc.StatusCode.ABORTED,
    LocalProtocolError: grpc.StatusCode.INTERNAL,
    TreeAborted: grpc.StatusCode.INTERNAL,
    TrainingStopped: grpc.StatusCode.INTERNAL,
}
"""Maps error class -> status code. A received status code is converted to the first class that has this
code."""


def status_of(error: FedboostError) -> grpc.StatusCode:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def explained(error: Any, who: str) -> FedboostError:
    """Return the fedboost error that corresponds to a failed gRPC call. who: description of the other end,
    e.g. "the aggregator at HOST:PORT"."""
    code, details = error.code(), quoted(error.details() or "")
    cause = str(dict(error.trailing_metadata() or ()).get(CAUSE_KEY, ""))
    for kind, status in STATUS.items():
        if code == status:
            return kind(cause if CAUSE.fullmatch(cause) else "aggregator-refuses", details)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return SessionFailed(
            "aggregator-lost", f"the connection to {who} was lost; try again when it is reachable"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ConfigError(
            "aggregator-version", f"{who} is not a fedboost aggregator of this version; check the address"
        )
    return PeerError("aggregator-status", f"{who} answered {code.name}: {details}")


def unanswered(server: Server, wait: float, fault: TlsFault | None, advice: str) -> ConfigError:
    """Return the error to raise if a server has not answered.

    Args:
        server: the server.
        wait: number of seconds waited.
        fault: the last known reason, if any.
        advice: what the user should do, as the end of a sentence.
    """
    if fault is None and server.adder:
        return ConfigError(
            "adder-unreachable", f"no adder answers at {server.address} (waited {wait:g} s); {advice}"
        )
    if fault is None:
        return ConfigError(
            "aggregator-unreachable",
            f"no aggregator answers at {server.address} (waited {wait:g} s); {advice}",
        )
    return ConfigError(fault.code, fault.reason + (f" (waited {wait:g} s); {advice}" if fault.passes else ""))


def dial(server: Server, bundle: Bundle | None, over: Any = grpc.aio) -> Any:
    """Open a gRPC channel to an aggregator, or to an adder. Without a bundle, the channel is not encrypted
    and neither end is authenticated. Raises ConfigError if it then would use a proxy.

    Args:
        server: the server.
        bundle: certificate and key of the caller, or None.
        over: `grpc.aio` for use with asyncio, `grpc` for blocking calls.
    """
    if bundle is None:  # what is not encrypted must not leave this machine
        if server.proxy is not None:
            raise ConfigError("proxy-without-keys", "without keys, a proxy could read all; remove `proxy`")
        return over.insecure_channel(server.address, options=CLIENT_OPTIONS)
    target, options = server.target
    options += [*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", server.dns_name)]
    credentials = grpc.ssl_channel_credentials(bundle.roots, bundle.key, bundle.certificate)
    return over.secure_channel(target, credentials, options=options)


# ---- Waiting for a server that does not answer ----------------------------------------------------------
# Each attempt waits longer than the one before, up to a bound. The log reports each cause once.


FIRST_RETRY, LAST_RETRY = 0.2, 5.0
"""Seconds between two attempts to reach a server; the pause doubles from the first value to the last."""
SHORT_SECONDS = 30.0
"""A connection that lasted at most this long is followed by one to the next server."""
REPORT_AFTER_SECONDS = 1.0
"""Seconds of waiting after which the log reports the wait."""


@dataclass(eq=False)
class DialAttempts:
    """Attempts to reach one of some servers, at the start or after the connection was lost. Each failed
    attempt is followed by one at the next server, and a lost connection by one at the first server.

    servers: the servers in the order in which they are tried; wait: maximum time to wait, in seconds; advice:
    what the user should do if no server answers, as the end of a sentence."""

    _servers: Sequence[Server]
    _wait: float
    _log: Any
    _advice: str
    _at: int = 0
    _waited: float = 0.0
    _pause: float = FIRST_RETRY
    _reported: str = ""
    _fault: TlsFault | None = None
    _warned: list[TlsFault] = field(default_factory=list)

    @property
    def server(self) -> Server:
        """The server to dial now."""
        return self._servers[self._at % len(self._servers)]

    def lost(self, seconds: float) -> None:
        """Continue with the first server, because a connection was lost. After a short connection, continue
        with the next server, because this one may not be able to serve. seconds: duration of the
        connection."""
        self._at = 0 if seconds > SHORT_SECONDS else self._at + 1

    async def reached(self, opened: Any, bundle: Bundle | None, attended: bool) -> bool:
        """Return whether the current server can be reached over this connection. opened: the gRPC channel;
        attended: True if a server admitted this caller before; it then waits even if another server answers.
        Raises ConfigError if the maximum wait is over, or if the server is not an aggregator or adder."""
        try:
            # asyncio.wait_for loses a cancellation that arrives together with the result (Python 3.11).
            async with asyncio.timeout(min(self._pause, max(self._wait - self._waited, 0.05))):
                await opened.channel_ready()
        except TimeoutError:
            self._waited += self._pause
            others = len(self._servers) > 1
            if bundle is not None and (others or self._waited >= REPORT_AFTER_SECONDS):
                address = self.server.address
                self._fault = fault = await asyncio.to_thread(tls_fault, self.server, bundle)
                if fault is not None and not fault.passes:
                    if not others and not attended:
                        code = "aggregator-wrong-server" if fault.code == "tls-failed" else fault.code
                        raise ConfigError(code, fault.reason) from None
                    if fault not in self._warned:
                        self._warned.append(fault)
                        self._log.warning("a server is passed over", address=address, reason=fault.reason)
            self._give_up_or_say_so()
            self._pause = min(2 * self._pause, LAST_RETRY) * random.uniform(0.5, 1.0)
            self._at += 1
            return False
        self._waited, self._pause, self._reported = 0.0, FIRST_RETRY, ""
        return True

    def _give_up_or_say_so(self) -> None:
        address = self.server.address
        if self._waited >= self._wait:
            raise unanswered(self.server, self._wait, self._fault, self._advice) from None
        why = self._fault.reason if self._fault else "no server answers at this address"
        if self._waited >= REPORT_AFTER_SECONDS and self._reported != why:
            self._log.info("waiting for the aggregator", address=address, reason=why)
            self._reported = why


@contextmanager
def _dialled(server: Server, bundle: Bundle | None) -> Iterator[Any]:
    """Context manager for a gRPC channel that is used by a blocking thread."""
    # A generator over the channel may be suspended when the interpreter exits. gRPC would then wait for its
    # own threads, which are gone by that time, so the exit would hang. `atexit` closes the channel before.
    opened = dial(server, bundle, grpc)
    atexit.register(opened.close)
    try:
        yield opened
    finally:
        atexit.unregister(opened.close)
        opened.close()


def answer_of(
    method: str,
    server: Server,
    bundle: Bundle | None,
    request: bytes,
    wait: float,
    patience: float,
    on_reached: Callable[[bool], None] = lambda reached: None,
) -> bytes:
    """Call a gRPC method that returns a single message, and return this message. Arguments are as for
    `stream`. Raises a FedboostError if the call fails."""
    who = str(server)
    try:
        for message in stream(method, server, bundle, request, wait, patience, on_reached):
            return message
    except grpc.RpcError as error:
        failed: Any = error
        if failed.code() == grpc.StatusCode.UNIMPLEMENTED:
            raise ConfigError(
                "aggregator-version", f"{who} is too old to support this, or is not an aggregator; update it"
            ) from None
        if failed.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise ConfigError(
                "aggregator-timeout", f"{who} did not answer within {patience:g} s; try again later"
            ) from None
        raise explained(failed, who) from None
    raise PeerError("aggregator-no-reply", f"{who} sent no reply")


def stream(
    method: str,
    server: Server,
    bundle: Bundle | None,
    request: bytes,
    wait: float,
    patience: float | None = None,
    on_reached: Callable[[bool], None] = lambda reached: None,
) -> Iterator[bytes]:
    """Call a gRPC method and yield the messages that it returns.

    Args:
        method: name of the gRPC method, e.g. TRAIN.
        server: the aggregator or adder.
        bundle: certificate and key of the caller, or None for an unencrypted connection.
        request: the encoded request.
        wait: maximum time in seconds to wait for a connection.
        patience: maximum time in seconds for the call, or None.
        on_reached: called with False repeatedly while the server does not answer, starting after
            FIRST_LOOK seconds, and with True before the request is sent.

    Raises:
        ConfigError: the server cannot be reached.
        grpc.RpcError: the call failed.
    """
    with _dialled(server, bundle) as opened:
        # The thread waits for a connection before the call, because a call without one fails at once and does
        # not say why. It waits in two steps, so that a lasting TLS fault is raised after FIRST_LOOK.
        ready, waited = grpc.channel_ready_future(opened), 0.0
        while True:
            pause = min(FIRST_LOOK if waited == 0 else wait, max(wait - waited, 0.05))
            try:
                ready.result(timeout=pause)
                break
            except grpc.FutureTimeoutError:
                waited += pause
            fault = tls_fault(server, bundle) if bundle else None
            if fault and not fault.passes:
                raise ConfigError(fault.code, fault.reason)
            if waited >= wait:
                raise unanswered(
                    server,
                    wait,
                    fault,
                    "check the address, and that "
                    + (
                        "it is running" if bundle else "it runs without keys, as --insecure-loopback requires"
                    ),
                )
            on_reached(False)
        on_reached(True)
        call: Any = opened.unary_stream
        yield from call(method)(request, timeout=patience, metadata=VERSIONS)
