"""gRPC, as both ends use it: method names, limits, keepalive, and what its errors mean to a person.

Promises: one table maps fedboost's errors to status codes and back; messages are bytes here, `wire.codec`
gives them meaning.
Refuses: an address that does not answer, a server that is not a fedboost aggregator (ConfigError).
"""

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from fedboost.runtime.aggregator.limits import SERVER_OPTIONS as LIMITS
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.tls import CLIENT_TLS_OPTIONS, TlsFault, channel_credentials, tls_fault
from fedboost.version import VERSION
from fedboost.wire.codec import MAX_FROM_AGGREGATOR, MAX_TO_AGGREGATOR, WIRE_VERSION

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


def dial(address: str, bundle: Bundle | None) -> Any:
    """A channel of asyncio to the aggregator; only with a bundle is it encrypted and are both ends known."""
    if bundle is None:
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    return grpc.aio.secure_channel(address, channel_credentials(bundle), options=_TLS_OPTIONS)


@contextmanager
def _dialled(address: str, bundle: Bundle | None) -> Iterator[Any]:
    """A channel for a thread that waits. It is closed before the interpreter ends, even if it is still in
    use: gRPC waits for threads of its own then, which are gone by that time."""
    if bundle is None:
        opened = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
    else:
        opened = grpc.secure_channel(address, channel_credentials(bundle), options=_TLS_OPTIONS)
    atexit.register(opened.close)
    try:
        yield opened
    finally:
        atexit.unregister(opened.close)
        opened.close()


def train_stream(
    address: str,
    bundle: Bundle | None,
    request: bytes,
    wait: float,
    on_reached: Callable[[bool], None] = lambda reached: None,
) -> Iterator[bytes]:
    """Submit a request to Train and yield its events; waits up to `wait` seconds for the aggregator.

    on_reached: called with False if it does not answer within FIRST_LOOK, with True before the request is
    sent.
    """
    return _messages(TRAIN, address, bundle, request, wait, on_reached=on_reached)


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
    up to `patience` for its answer. on_reached: as for `train_stream`. FedboostError."""
    who = f"the aggregator at {address}"
    try:
        for message in _messages(method, address, bundle, request, wait, patience, on_reached):
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


def _messages(
    method: str,
    address: str,
    bundle: Bundle | None,
    request: bytes,
    wait: float,
    patience: float | None = None,
    on_reached: Callable[[bool], None] = lambda reached: None,
) -> Iterator[bytes]:
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
