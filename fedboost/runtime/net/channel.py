"""gRPC for both ends: TLS, method names, limits, keepalive, and the translation of its errors.

One table maps fedboost's errors to status codes and back. Messages are bytes here; `wire.codec` decodes them.
An address that does not answer, or is not a fedboost aggregator, is a ConfigError.
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
"""A client's TLS options: at any address, only a certificate of an aggregator is accepted."""


@dataclass(frozen=True)
class TlsFault:
    """The reason for a failed connection, as a sentence. passes: True if dialling again may succeed."""

    reason: str
    passes: bool = False


_PATIENCE = 3.0  # seconds that `tls_fault` waits for each answer


def server_credentials(bundle: Bundle) -> Any:
    """Return the credentials of an aggregator's port, which require a certificate of the consortium. The deny
    list and roles are checked by `peer_of` and its caller."""
    pair = (bundle.key, bundle.certificate)
    return grpc.ssl_server_credentials([pair], root_certificates=bundle.roots, require_client_auth=True)


def channel_credentials(bundle: Bundle) -> Any:
    """Return a client's credentials, to be used with CLIENT_TLS_OPTIONS."""
    return grpc.ssl_channel_credentials(bundle.roots, bundle.key, bundle.certificate)


def peer_of(auth_context: Mapping[str, Iterable[bytes]], bundle: Bundle, now: datetime) -> Identified:
    """Return the identity of a call's peer from gRPC's `auth_context()`; PeerError if it is not admitted."""
    leaf = [*auth_context.get("x509_pem_cert", ())]
    if len(leaf) != 1:
        raise PeerError(
            "tls-no-certificate", "the connection has no certificate; use a bundle from `fedboost keys`"
        )
    intermediates = auth_context.get("x509_pem_cert_chain", ())
    return identify(b"\n".join([*leaf, *intermediates]), bundle.roots, now, bundle.denied)


def tls_fault(address: str, bundle: Bundle) -> TlsFault | None:
    """Return why TLS with the server at HOST:PORT fails; None if it works, or nothing listens there. gRPC
    reports most causes only as a lost connection, so this dials once more with Python's TLS. It blocks for a
    few seconds at most, and reads the bundle's folder again (ConfigError if that fails)."""
    ours = bundle.folder / CERTIFICATE
    try:
        now = datetime.now(UTC)
        if now > bundle.ends:
            return TlsFault(f"{ours}: {expired(bundle.ends, bundle.signer.role)}")
        identify(bundle.certificate, bundle.roots, now, bundle.denied)
    except PeerError as error:
        return TlsFault(f"{ours}: {error}")
    context = _dialling(bundle)
    host, _, port = address.rpartition(":")
    hangs_up = TlsFault(
        f"the server at {address} hangs up before TLS: it may be an aggregator at its connection limit, "
        f"or not an aggregator",
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
        return TlsFault(f"the server at {address} does not use TLS like a fedboost aggregator with keys")
    except TimeoutError:
        return TlsFault(
            f"the server at {address} does not answer: it may be a busy aggregator, or not an aggregator",
            passes=True,
        )
    except OSError:
        return hangs_up
    return TlsFault(
        f"the aggregator at {address} refuses {ours}: it trusts another consortium, or its clock is wrong; "
        f"compare the fingerprints that `fedboost keys show` prints there and here"
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
        compare = "compare the fingerprints that `fedboost keys show` prints there and here"
        return f"belongs to another consortium; {compare}"
    if error.verify_code == _EXPIRED:
        return "has expired; it needs a new bundle from `fedboost keys aggregator`"
    if error.verify_code == _NOT_YET:
        return "is not valid yet; check this machine's clock"
    if error.verify_code in _UNFIT:
        return f"is not an aggregator's: it lacks the DNS name {SERVER_NAME}"
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
"""Metadata of every call: the caller's versions."""

KEEPALIVE_MS = 20_000  # a silent connection is probed this often, and dropped if unanswered for as long

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
"""Most characters of the sentence that ends a call. It travels in trailers, which gRPC limits to 8 KiB, and
where a character takes up to 12 bytes."""

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
"""Error -> status code. A status code is read back as the first error that has it."""


def status_of(error: FedboostError) -> grpc.StatusCode:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def explained(error: Any, who: str) -> FedboostError:
    """Return the fedboost error for a failed call."""
    code, details = error.code(), quoted(error.details() or "")
    cause = str(dict(error.trailing_metadata() or ()).get(CAUSE_KEY, ""))
    for kind, status in STATUS.items():
        if code == status:
            return kind(cause if CAUSE.fullmatch(cause) else "aggregator-refuses", details)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return SessionFailed(
            "aggregator-lost", f"the connection to {who} was lost; start again when it is back"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ConfigError(
            "aggregator-version", f"{who} is not a fedboost aggregator of this version; check the address"
        )
    return PeerError("aggregator-status", f"{who} answered {code.name}: {details}")


def unanswered(address: str, wait: float, fault: TlsFault | None, advice: str) -> ConfigError:
    """Return the error for no answer within `wait` seconds, with the last known reason."""
    if fault is None:
        return ConfigError(
            "aggregator-unreachable", f"no aggregator answers at {address} (waited {wait:g} s); {advice}"
        )
    return ConfigError(
        "tls-failed", fault.reason + (f" (waited {wait:g} s); {advice}" if fault.passes else "")
    )


def dial(address: str, bundle: Bundle | None, over: Any = grpc.aio) -> Any:
    """Open a channel to the aggregator, for asyncio unless `over` is the synchronous `grpc`. Only a bundle
    encrypts it and identifies both ends."""
    if bundle is None:
        return over.insecure_channel(address, options=CLIENT_OPTIONS)
    return over.secure_channel(address, channel_credentials(bundle), options=_TLS_OPTIONS)


@contextmanager
def _dialled(address: str, bundle: Bundle | None) -> Iterator[Any]:
    """Open a channel for a blocking thread."""
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
    """Call a method that returns one message. The arguments are those of `stream`. Raises FedboostError."""
    who = f"the aggregator at {address}"
    try:
        for message in stream(method, address, bundle, request, wait, patience, on_reached):
            return message
    except grpc.RpcError as error:
        failed: Any = error
        if failed.code() == grpc.StatusCode.UNIMPLEMENTED:
            raise ConfigError(
                "aggregator-version", f"{who} is too old to answer this, or not an aggregator; update it"
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
    """Send a request to a method and yield its answers.

    Args:
        wait: seconds to wait for the aggregator.
        patience: seconds to wait for its answers, or None.
        on_reached: called with False if the aggregator does not answer within FIRST_LOOK, and with True
            before the request is sent.
    """
    with _dialled(address, bundle) as opened:
        # The thread waits for a connection before it calls, as a call fails at once without one, and does not
        # say why. It waits in two steps, so that a lasting TLS fault is raised after FIRST_LOOK, not `wait`.
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
                    + ("it runs" if bundle else "it runs without keys, as --insecure-loopback requires"),
                )
            on_reached(False)
        on_reached(True)
        call: Any = opened.unary_stream
        yield from call(method)(request, timeout=patience, metadata=VERSIONS)
