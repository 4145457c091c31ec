"""gRPC, as both ends use it: method names, limits, keepalive, and what its errors mean to a person.

Promises: one table maps fedboost's errors to status codes and back; messages are bytes here, `wire.codec`
gives them meaning.
Refuses: an address that does not answer, a server that is not a fedboost aggregator (ConfigError).
"""

import atexit
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

# ---- TLS of a connection: credentials of both ends, the peer's certificate, and why a handshake fails ----


CLIENT_TLS_OPTIONS = [("grpc.ssl_target_name_override", SERVER_NAME)]
"""What a client adds to its channel's options: whatever the address, only the aggregator may answer."""


@dataclass(frozen=True)
class TlsFault:
    """The reason why there is no connection, in one sentence for people. `passes`: it may pass soon, so that
    it is worth dialling again."""

    reason: str
    passes: bool = False


_PATIENCE = 3.0
"""Seconds that `tls_fault` waits for each answer."""


def server_credentials(bundle: Bundle) -> Any:
    """The credentials of an aggregator's secure port: nobody gets in without a certificate of the consortium.
    The deny list and the roles are for `peer_of` and its caller."""
    pair = (bundle.key, bundle.certificate)
    return grpc.ssl_server_credentials([pair], root_certificates=bundle.roots, require_client_auth=True)


def channel_credentials(bundle: Bundle) -> Any:
    """The credentials of a party's or an analyst's secure channel, together with CLIENT_TLS_OPTIONS."""
    return grpc.ssl_channel_credentials(bundle.roots, bundle.key, bundle.certificate)


def peer_of(auth_context: Mapping[str, Iterable[bytes]], bundle: Bundle, now: datetime) -> Identified:
    """The identity at the other end of a call, by gRPC's `context.auth_context()`; PeerError if it is nobody
    that this bundle lets in."""
    leaf = [*auth_context.get("x509_pem_cert", ())]
    if len(leaf) != 1:
        raise PeerError("the connection shows no certificate; dial with a bundle that `fedboost keys` wrote")
    intermediates = auth_context.get("x509_pem_cert_chain", ())
    return identify(b"\n".join([*leaf, *intermediates]), bundle.roots, now, bundle.denied)


def tls_fault(address: str, bundle: Bundle) -> TlsFault | None:
    """The reason why TLS with the server at HOST:PORT fails: gRPC says of most causes only that the
    connection was lost. None if nobody listens there, or all is well.

    Blocks for some seconds at most; reads the bundle's folder again. ConfigError if that cannot be read.
    """
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
        f"what listens at {address} hangs up before TLS: the aggregator may be at its limit of connections, "
        f"or it is no aggregator",
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
        return TlsFault(
            f"what listens at {address} does not speak TLS as a fedboost aggregator with keys does"
        )
    except TimeoutError:
        return TlsFault(
            f"what listens at {address} does not answer: the aggregator may be busy, or it is no aggregator",
            passes=True,
        )
    except OSError:
        return hangs_up
    return TlsFault(
        f"the aggregator at {address} refuses {ours}: it trusts another consortium, or its clock is wrong; "
        f"compare the fingerprints that `fedboost keys show` prints there and here"
    )


def _is_taken(secured: ssl.SSLSocket) -> bool:
    """Tell if the server takes our certificate: then it speaks first, else it hangs up."""
    try:
        return len(secured.recv(1)) > 0
    except TimeoutError:
        return True
    except OSError:
        return False


def _dialling(bundle: Bundle) -> ssl.SSLContext:
    """TLS as gRPC's clients speak it."""
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
    """The fault of a server's certificate, after its name in a sentence."""
    if error.verify_code in _UNTRUSTED:
        compare = "compare the fingerprints that `fedboost keys show` prints there and here"
        return f"is of another consortium; {compare}"
    if error.verify_code == _EXPIRED:
        return "is expired; it needs a new bundle, which `fedboost keys aggregator` writes"
    if error.verify_code == _NOT_YET:
        return "is not valid yet; check this machine's clock"
    if error.verify_code in _UNFIT:
        return f"is not an aggregator's, which has the DNS name {SERVER_NAME}"
    return f"cannot be believed: {error.verify_message}"


# ---- gRPC, as both ends use it: method names, limits, keepalive, and what its errors mean to a person ----


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
"""What every call says of its caller."""

KEEPALIVE_MS = 20_000
"""A silent connection is probed this often, and given up when the probe is not answered in as long."""

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
FIRST_LOOK = 2.0
"""Seconds without an answer before it is looked up why."""
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
"""Characters of the sentence a call ends with. It travels in trailers, which gRPC bounds to 8 KiB, and a
character there takes up to 12 bytes."""

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
"""The status code that each error travels as. A code is read back as the first error that has it."""


def status_of(error: FedboostError) -> grpc.StatusCode:
    """The status code an error travels as."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def explained(error: Any, who: str) -> FedboostError:
    """The meaning of a failed call, as an error of fedboost."""
    code, details = error.code(), quoted(error.details() or "")
    for kind, status in STATUS.items():
        if code == status:
            return kind(details)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return SessionFailed(f"the connection to {who} was lost; start again when it is back")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ConfigError(f"{who} is not a fedboost aggregator of this version; check the address")
    return PeerError(f"{who} answered {code.name}: {details}")


def unanswered(address: str, wait: float, fault: TlsFault | None, advice: str) -> ConfigError:
    """The error for no answer within `wait` seconds, with the reason that was seen last."""
    if fault is None:
        return ConfigError(f"no aggregator answers at {address} (waited {wait:g} s); {advice}")
    return ConfigError(fault.reason + (f" (waited {wait:g} s); {advice}" if fault.passes else ""))


def dial(address: str, bundle: Bundle | None, over: Any = grpc.aio) -> Any:
    """A channel to the aggregator, of asyncio unless `over` is gRPC's module for threads; only with a bundle
    is it encrypted and are both ends known."""
    if bundle is None:
        return over.insecure_channel(address, options=CLIENT_OPTIONS)
    return over.secure_channel(address, channel_credentials(bundle), options=_TLS_OPTIONS)


@contextmanager
def _dialled(address: str, bundle: Bundle | None) -> Iterator[Any]:
    """A channel for a thread that waits. It is closed before the interpreter ends, even if it is still in
    use: gRPC waits for threads of its own then, which are gone by that time."""
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
    """Return the one message that a method answers with. Waits up to `wait` seconds for the aggregator, then
    up to `patience` for its answer. on_reached: as for `stream`. FedboostError."""
    who = f"the aggregator at {address}"
    try:
        for message in stream(method, address, bundle, request, wait, patience, on_reached):
            return message
    except grpc.RpcError as error:
        failed: Any = error
        if failed.code() == grpc.StatusCode.UNIMPLEMENTED:
            raise ConfigError(
                f"{who} runs an older version of fedboost, which cannot answer this, or is none; update it"
            ) from None
        if failed.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise ConfigError(f"{who} did not answer within {patience:g} s; ask again later") from None
        raise explained(failed, who) from None
    raise PeerError(f"{who} answered nothing")


def stream(
    method: str,
    address: str,
    bundle: Bundle | None,
    request: bytes,
    wait: float,
    patience: float | None = None,
    on_reached: Callable[[bool], None] = lambda reached: None,
) -> Iterator[bytes]:
    """Send a request to a method and yield its answers. Waits up to `wait` seconds for the aggregator, then
    up to `patience` for them, where that is given.

    on_reached: called with False if it does not answer within FIRST_LOOK, with True before the request is
    sent.
    """
    with _dialled(address, bundle) as opened:
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
                raise ConfigError(fault.reason)
            if waited >= wait:
                raise unanswered(
                    address,
                    wait,
                    fault,
                    "check the address, and that "
                    + ("it runs" if bundle else "it runs without keys, as --insecure-loopback asks"),
                )
            on_reached(False)
        on_reached(True)
        call: Any = opened.unary_stream
        yield from call(method)(request, timeout=patience, metadata=VERSIONS)
