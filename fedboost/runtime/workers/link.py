"""The connection between a site's own process and the holder of some of its rows on a worker.

One call of gRPC a holder, for as long as the session lasts: a request, its answer, the next request. What a
session says travels as it does between aggregator and party, and answers in the cells of the wire; nothing
that arrives is unpickled. The call ends when either side does, so that each notices the other's end.

Promises: requests are answered in order. A worker on another machine is reached by TLS under a certificate
made for this one connection, and both ways only with a token that travelled with the rows.
Refuses: a caller without the token (by hanging up).
"""

import hmac
import json
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc
import numpy as np

from fedboost.boosting.queries.union import OfTurn
from fedboost.boosting.state import BoostingState
from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, SchemaMismatch
from fedboost.fixedpoint import Int64
from fedboost.privacy.bit_packing import Words, chunks_of, signed
from fedboost.privacy.identity.certificates import SERVER_NAME
from fedboost.protocol.messages import Ask, Introduce
from fedboost.runtime.workers.engine import WorkerLost
from fedboost.wire.messages import decode_to_party, encode_to_party

HOLD = "/fedboost.Workers/Hold"
TOKEN = "fedboost-token"
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.enable_http_proxy", 0),
]
ANSWER, HISTOGRAMS, GO_TO, HASH = b"A", b"H", b"G", b"R"
"""Kinds of requests: an answer, own histograms for a vote, to move to a state, the hash of the rows."""
_DONE, _FAILED = b"\0", b"\1"
_ERRORS = {kind.__name__: kind for kind in (PeerError, Refused, SchemaMismatch, ConfigError)}


@dataclass(frozen=True)
class Door:
    """Where a holder waits to be called: HOST:PORT, the token, and the certificate (PEM), '' on the same
    machine."""

    address: str
    token: str
    certificate: str


def asking(kind: bytes, query: OfTurn) -> bytes:
    """A request about a query."""
    return kind + encode_to_party(Ask(0, 0, (), query))


def going_to(state: BoostingState) -> bytes:
    """The request to move to a state."""
    return GO_TO + encode_to_party(Introduce((), state))


def query_in(content: bytes) -> OfTurn:
    """The query of a request. PeerError."""
    message = decode_to_party(content)
    if not isinstance(message, Ask):
        raise PeerError("a request to a worker without a query")
    return cast(OfTurn, message.query)


def state_in(content: bytes) -> BoostingState:
    """The state of a request. PeerError."""
    message = decode_to_party(content)
    if not isinstance(message, Introduce) or not isinstance(message.state, BoostingState):
        raise PeerError("a request to a worker without a state")
    return message.state


def packed(values: Int64, query: OfTurn) -> bytes:
    """An answer, in the cells of the wire."""
    words: Words = query.to_cells(values).view(np.uint64)
    return _DONE + b"".join(chunk.packed(chunk.of(words)) for chunk in chunks_of(query.segments))


def total(contents: Sequence[bytes], query: OfTurn) -> Int64:
    """The sum of such answers: int64 [query.cells]."""
    words = np.zeros(sum(cells for cells, _ in query.segments), np.uint64)
    for content in contents:
        view = memoryview(content)[1:]
        for chunk in chunks_of(query.segments):
            piece, view = view[: chunk.size], view[chunk.size :]
            chunk.add(chunk.of(words), piece)
    return query.from_cells(signed(words, query.segments))


def done(content: bytes = b"") -> bytes:
    """An answer of bytes."""
    return _DONE + content


def failed(error: FedboostError) -> bytes:
    """An answer that says why there is none."""
    kind = type(error).__name__
    words = {"kind": kind if kind in _ERRORS else "Refused", "public": error.public, "detail": error.detail}
    return _FAILED + json.dumps(words).encode()


def raise_failed(content: bytes) -> None:
    """Raise the error that an answer says, if it says one."""
    if content[:1] == _FAILED:
        words = json.loads(content[1:])
        raise _ERRORS[words["kind"]](words["public"], words["detail"])


class Link:
    """The site's end of a connection to one holder."""

    def __init__(self, door: Door) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        if door.certificate:
            credentials = grpc.ssl_channel_credentials(door.certificate.encode())
            options = [*OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME)]
            self._channel = grpc.secure_channel(door.address, credentials, options)
        else:
            self._channel = grpc.insecure_channel(door.address, OPTIONS)
        call = self._channel.stream_stream(HOLD)
        self._answers = call(iter(self._requests.get, None), metadata=((TOKEN, door.token),))

    def send(self, request: bytes) -> None:
        """Send a request; its answer is read by `receive`."""
        self._requests.put(request)

    def receive(self) -> bytes:
        """The answer to the request that was sent first of those without one. WorkerLost, and the error that
        the holder raised."""
        try:
            answer: bytes = next(self._answers)
        except StopIteration:
            raise WorkerLost("it hung up") from None
        except grpc.RpcError as error:
            raise WorkerLost(str(error.details())) from None
        raise_failed(answer)
        return answer

    def close(self) -> None:
        """Hang up."""
        self._requests.put(None)
        self._answers.cancel()
        self._channel.close()


class Doorkeeper(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The holder's end: serves one caller, who knows the token."""

    def __init__(self, token: str, serve: Any, begun: Any, ended: Any) -> None:
        """serve: a request to its answer; begun, ended: called once the caller is there, and gone."""
        self._token, self._serve, self._begun, self._ended = token, serve, begun, ended
        self._called = False

    def service(self, details: Any) -> Any:
        """The handler of a call; None for other methods."""
        said = dict(details.invocation_metadata).get(TOKEN, "")
        known = hmac.compare_digest(str(said).encode(), self._token.encode())
        if details.method != HOLD or not known or self._called:
            return None
        self._called = True
        return grpc.stream_stream_rpc_method_handler(self._answers)

    def _answers(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._begun()
        try:
            for request in requests:
                yield self._serve(request)
        except grpc.RpcError:
            pass  # the caller is gone
        finally:
            self._ended()
