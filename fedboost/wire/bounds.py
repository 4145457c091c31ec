"""Limits of messages, and reading within them."""

from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from fedboost.boosting.queries.base import MAX_ROWS
from fedboost.errors import ConfigError, PeerError
from fedboost.fixedpoint import Scale
from fedboost.protocol.messages import (
    Request,
)
from fedboost.terms.terms import Terms

WIRE_VERSION = 4
MAX_TO_AGGREGATOR = 4 << 20
"""Bytes of a message to the aggregator: a part of a report is at most half a megabyte."""
MAX_FROM_AGGREGATOR = 64 << 20
"""Bytes of a message from the aggregator: the grids of a wide table are the largest."""
MAX_TERMS = 16 << 20
"""Characters of terms: those of an analyst fit in MAX_TO_AGGREGATOR, and have escapes after that."""
MAX_GREETING = 512 << 10
"""Bytes of a greeting: that of a key holder has the public key in it. Each goes to every party."""
MAX_RELAY_PART = 1 << 20
"""Bytes of a part of what parties relay to each other."""
CONTEXT_BYTES = 32
"""Bytes of the context in the first part of a report, if there is one."""
MAX_REQUEST = 64 << 10
"""Bytes of an analyst's request: a certificate with its chain is the most of it."""


def with_request(message: Any, request: Request | None) -> Any:
    """A message with an analyst's request in it, if there is one."""
    if request is not None:
        message.request.nonce = request.nonce
        message.request.time = request.time
        message.request.certificate = request.certificate
        message.request.signature = request.signature
    return message


def request_from_pb(message: Any) -> Request | None:
    if not message.HasField("request"):
        return None
    request = message.request
    size = request.ByteSize()
    require(size <= MAX_REQUEST, f"a request of {size} bytes; {MAX_REQUEST} are allowed")
    return Request(request.nonce, request.time, request.certificate, request.signature)


def terms_of(text: str) -> Terms:
    require(len(text) <= MAX_TERMS, f"terms of {len(text)} characters; {MAX_TERMS} are allowed")
    try:
        return Terms.from_canonical(text)
    except RecursionError:
        raise ConfigError("terms: nested too deeply") from None


def serialised(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def parsed(kind: Any, data: bytes, limit: int) -> Any:
    if len(data) > limit:
        raise out_of_bounds(f"a message of {len(data)} bytes; {limit} are allowed")
    try:
        return kind.FromString(data)
    except DecodeError:
        raise PeerError("bytes that are not a message of fedboost") from None


def bounded(items: Any, most: int, what: str) -> tuple[Any, ...]:
    """A repeated field, once it is known to be short: its items take more memory here than on the wire."""
    if len(items) > most:
        raise out_of_bounds(f"{len(items)} {what}; {most} are allowed")
    return tuple(items)


def rows_of(query: Any) -> int:
    """The number of rows that a query is about."""
    rows: int = query.rows
    require(0 < rows < MAX_ROWS, f"{rows} rows")
    return rows


def require(condition: bool, what: str) -> None:
    if not condition:
        raise out_of_bounds(what)


def out_of_bounds(what: str) -> PeerError:
    return PeerError(f"a message out of bounds: {what}")


def scale_to_pb(scale: Scale) -> dict[str, Any]:
    return {"exponent": scale.exponent, "bits": scale.bits}


def scale_from_pb(scale: Any) -> Scale:
    return _scale(scale.exponent, scale.bits)


@lru_cache(maxsize=64)
def _scale(exponent: int, bits: int) -> Scale:
    require(abs(exponent) <= 256 and 1 <= bits <= 32, "a scale out of range")
    return Scale(exponent, bits)
