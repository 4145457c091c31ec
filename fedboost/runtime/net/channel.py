"""gRPC for clients and the aggregator: TLS, method names, limits, keepalive and the translation of errors.

One table maps fedboost's errors to gRPC status codes and back. Messages are bytes here; `wire.codec` decodes
them.
Raises: ConfigError if an address does not answer or is not a fedboost aggregator.
"""

import atexit
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
from fedboost.privacy.identity import SERVER_NAME, Identified, identify
from fedboost.runtime.aggregator.limits import SERVER_OPTIONS as LIMITS
from fedboost.runtime.files import file_errors
from fedboost.runtime.net.keys import CERTIFICATE, KEY, Bundle, expired
from fedboost.version import VERSION
from fedboost.wire.codec import MAX_FROM_AGGREGATOR, MAX_TO_AGGREGATOR, WIRE_VERSION

# ---- TLS: credentials of both ends, the peer's certificate, and why a handshake fails -------------------


CLIENT_TLS_OPTIONS = [("grpc.ssl_target_name_override", SERVER_NAME)]
"""TLS options of a client. The server may have any address, but its certificate must have been issued for an
aggregator."""


@dataclass(frozen=True)
class TlsFault:
    """The reason why a connection failed, as a sentence. passes: True if another attempt may succeed."""

    reason: str
    passes: bool = False


_PATIENCE = 3.0  # seconds that `tls_fault` waits for each answer


def server_credentials(bundle: Bundle) -> Any:
    """Return the TLS credentials of an aggregator. Clients must have a certificate issued by the consortium;
    `peer_of` and its caller later check the role and the deny list."""
    pair = (bundle.key, bundle.certificate)
    return grpc.ssl_server_credentials([pair], root_certificates=bundle.roots, require_client_auth=True)


def channel_credentials(bundle: Bundle) -> Any:
    """Return the TLS credentials of a client, for use with CLIENT_TLS_OPTIONS."""
    return grpc.ssl_channel_credentials(bundle.roots, bundle.key, bundle.certificate)


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


def tls_fault(address: str, bundle: Bundle) -> TlsFault | None:
    """Return why the TLS handshake with the server at HOST:PORT fails, or None if it succeeds or no server
    listens there. gRPC reports most causes only as a lost connection, so this function connects once more
    with Python's TLS. It blocks for a few seconds at most. Raises ConfigError if the bundle's folder can no
    longer be read."""
    ours = bundle.folder / CERTIFICATE
    try:
        now = datetime.now(UTC)
        if now > bundle.ends:
            return TlsFault(f"{ours} {expired(bundle.ends, bundle.signer.role)}")
        identify(bundle.certificate, bundle.roots, now, bundle.denied)
    except PeerError as error:
        return TlsFault(f"{ours}: {error}")
    context = _dialling(bundle)
    host, _, port = address.rpartition(":")
    hangs_up = TlsFault(
        f"the server at {address} closes connections before the TLS handshake: it may be an aggregator that "
        f"has reached its connection limit, or not an aggregator",
        passes=True,
    )
    try:
        opened = socket.create_connection((host.strip("[]"), int(port)), _PATIENCE)
    except ConnectionResetError:
        return hangs_up
    except OSError:
        return None
    try:
        with (
            opened,
            context.wrap_socket(
                opened, server_hostname=SERVER_NAME, do_handshake_on_connect=False
            ) as secured,
        ):
            secured.do_handshake()
            if _is_taken(secured):
                return None
    except ssl.SSLCertVerificationError as error:
        return TlsFault(f"the certificate of the aggregator at {address} {_certificate_fault(error)}")
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return hangs_up
    except ssl.SSLError:
        return TlsFault(f"the server at {address} does not use TLS as a fedboost aggregator with keys does")
    except TimeoutError:
        return TlsFault(
            f"the server at {address} does not respond: it may be a busy aggregator, or not an aggregator",
            passes=True,
        )
    except OSError:
        return hangs_up
    return TlsFault(
        f"the aggregator at {address} rejects {ours}: it trusts another consortium, or its clock is wrong; "
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


def _dialling(bundle: Bundle) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate may be trusted like a root
    context.set_alpn_protocols(["h2"])
    with file_errors(bundle.folder, "cannot read the bundle again"):
        context.load_verify_locations(cadata=bundle.roots.decode())
        context.load_cert_chain(bundle.folder / CERTIFICATE, bundle.folder / KEY, password="none")
    return context


# OpenSSL, x509_vfy.h
_NOT_YET, _EXPIRED = 9, 10
_UNTRUSTED = (2, 7, 18, 19, 20, 21)
_UNFIT = (26, 62, 79)


def _certificate_fault(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _UNTRUSTED:
        compare = "compare the fingerprints that `fedboost keys show` prints on both machines"
        return f"belongs to another consortium; {compare}"
    if error.verify_code == _EXPIRED:
        return "has expired; it needs a new bundle from `fedboost keys aggregator`"
    if error.verify_code == _NOT_YET:
        return "is not valid yet; check this machine's clock"
    if error.verify_code in _UNFIT:
        return f"is not for an aggregator: it lacks the DNS name {SERVER_NAME}"
    return f"cannot be verified: {error.verify_message}"


# ---- gRPC: method names, options, and the translation of errors -----------------------------------------


SERVICE = "fedboost.wire.v1.Aggregator"
ATTEND = f"/{SERVICE}/Attend"
TRAIN = f"/{SERVICE}/Train"
ADVISE = f"/{SERVICE}/Advise"
CHECK = f"/{SERVICE}/Check"
STATUS_OF = f"/{SERVICE}/Status"
PARTY_KEY = "fedboost-party-bin"
VERSION_KEY = "fedboost-wire"
SOFTWARE_KEY = "fedboost-software"
VERSIONS = ((VERSION_KEY, str(WIRE_VERSION)), (SOFTWARE_KEY, VERSION))
"""Metadata of every call, with the caller's versions."""

KEEPALIVE_MS = 20_000  # interval between probes of a silent connection, and time to answer one

CLIENT_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_FROM_AGGREGATOR),
    ("grpc.max_send_message_length", MAX_TO_AGGREGATOR),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
_TLS_OPTIONS = [*CLIENT_OPTIONS, *CLIENT_TLS_OPTIONS]
FIRST_LOOK = 2.0  # seconds without an answer before its cause is looked up
SERVER_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_TO_AGGREGATOR),
    ("grpc.max_send_message_length", MAX_FROM_AGGREGATOR),
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


def unanswered(address: str, wait: float, fault: TlsFault | None, advice: str) -> ConfigError:
    """Return the error to raise if no aggregator has answered.

    Args:
        address: HOST:PORT.
        wait: number of seconds waited.
        fault: the last known reason, if any.
        advice: what the user should do, as the end of a sentence.
    """
    if fault is None:
        return ConfigError(
            "aggregator-unreachable", f"no aggregator answers at {address} (waited {wait:g} s); {advice}"
        )
    return ConfigError(
        "tls-failed", fault.reason + (f" (waited {wait:g} s); {advice}" if fault.passes else "")
    )


def dial(address: str, bundle: Bundle | None, over: Any = grpc.aio) -> Any:
    """Open a gRPC channel to the aggregator. By default, the channel is used with asyncio; if `over` is
    `grpc`, it is used for blocking calls. Without a bundle, the channel is not encrypted and neither end is
    authenticated."""
    if bundle is None:
        return over.insecure_channel(address, options=CLIENT_OPTIONS)
    return over.secure_channel(address, channel_credentials(bundle), options=_TLS_OPTIONS)


@contextmanager
def _dialled(address: str, bundle: Bundle | None) -> Iterator[Any]:
    """Context manager for a gRPC channel that is used by a blocking thread."""
    # A generator over the channel may be suspended when the interpreter exits. gRPC would then wait for its
    # own threads, which are gone by that time, so the exit would hang. `atexit` closes the channel before.
    opened = dial(address, bundle, grpc)
    atexit.register(opened.close)
    try:
        yield opened
    finally:
        atexit.unregister(opened.close)
        opened.close()


def answer_of(
    method: str,
    address: str,
    bundle: Bundle | None,
    request: bytes,
    wait: float,
    patience: float,
    on_reached: Callable[[bool], None] = lambda reached: None,
) -> bytes:
    """Call a gRPC method that returns a single message, and return this message. Arguments are as for
    `stream`. Raises a FedboostError if the call fails."""
    who = f"the aggregator at {address}"
    try:
        for message in stream(method, address, bundle, request, wait, patience, on_reached):
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
    address: str,
    bundle: Bundle | None,
    request: bytes,
    wait: float,
    patience: float | None = None,
    on_reached: Callable[[bool], None] = lambda reached: None,
) -> Iterator[bytes]:
    """Call a gRPC method and yield the messages that it returns.

    Args:
        method: name of the gRPC method, e.g. TRAIN.
        address: HOST:PORT of the aggregator.
        bundle: certificate and key of the caller, or None for an unencrypted connection.
        request: the encoded request.
        wait: maximum time in seconds to wait for a connection.
        patience: maximum time in seconds for the call, or None.
        on_reached: called with False repeatedly while the aggregator does not answer, starting after
            FIRST_LOOK seconds, and with True before the request is sent.

    Raises:
        ConfigError: the aggregator cannot be reached.
        grpc.RpcError: the call failed.
    """
    with _dialled(address, bundle) as opened:
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
            fault = tls_fault(address, bundle) if bundle else None
            if fault and not fault.passes:
                raise ConfigError("tls-failed", fault.reason)
            if waited >= wait:
                raise unanswered(
                    address,
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
