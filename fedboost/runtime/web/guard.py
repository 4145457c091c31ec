"""The guard in front of a process's web pages: checks the host, origin, path, method, size and rate of each
request.

Guarantees: the application only receives requests to this process's own host names, from its own pages or
from programs, with a plain path and the method GET, HEAD or POST. A body is limited in size and must arrive
in time. Each response has headers that make browsers run only the page's own scripts, never show the page in
a frame, and store nothing. Every refusal is recorded. If the application raises an exception, the response is
500, and the exception is logged (rate-limited).
Rejects: all other requests, with a JSON body `{"error": ...}` or, for browsers, a page.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from fedboost.errors import FedboostError, quoted
from fedboost.runtime.config import is_loopback

# ---- A token bucket: how often something may be done, and how often at once; callers pass the time ------


MAX_NAMES = 4096


class Bucket:
    """Token bucket that limits a rate. It starts with `most` tokens, its maximum, and regains `per_second`
    tokens per second. Callers pass the current time in seconds."""

    def __init__(self, per_second: float, most: float, now: float) -> None:
        self._per_second = per_second
        self._most = self._tokens = most
        self._then = now
        self.missed = 0
        """Number of times that there were too few tokens."""

    def tokens(self, now: float) -> float:
        self._tokens = min(self._most, self._tokens + max(now - self._then, 0.0) * self._per_second)
        self._then = now
        return self._tokens

    def take(self, now: float, tokens: float = 1.0) -> bool:
        """Take tokens if there are enough, and return whether there were."""
        if self.tokens(now) < min(tokens, self._most):
            self.missed += 1
            return False
        self._tokens -= min(tokens, self._most)
        return True

    def is_full(self, now: float) -> bool:
        """Return whether the bucket is full, i.e. nothing was taken recently."""
        return self.tokens(now) >= self._most


class Buckets:
    """One token bucket per name, e.g. per address, all of the same size. If more than `most_names` names are
    active, further names share one bucket."""

    def __init__(self, per_second: float, most: float, most_names: int = MAX_NAMES) -> None:
        self._size = per_second, most
        self._most_names = most_names
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, name: str, now: float) -> Bucket:
        if name not in self._buckets and len(self._buckets) >= self._most_names:
            self._buckets = {known: kept for known, kept in self._buckets.items() if not kept.is_full(now)}
            name = name if len(self._buckets) < self._most_names else ""
        return self._buckets.setdefault(name, Bucket(*self._size, now))

    def clear(self) -> None:
        """Reset all buckets to full."""
        self._buckets.clear()


# ---- Addresses of clients, grouped by who can have them -------------------------------------------------
# All loopback addresses are one group, and so is an IPv6 network of 64 bits, whose owner has all of it.


LOOPBACK = "loopback"
NETWORK_BITS = 64


@lru_cache(4096)
def address_in(text: str) -> IPv4Address | IPv6Address | None:
    """Parse a client's IP address, an IPv4-mapped one as IPv4. Returns None if it is not an address."""
    try:
        known = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (known.ipv4_mapped or known) if isinstance(known, IPv6Address) else known


def group_of(address: str) -> str:
    """Return the name of the group of addresses that share a rate limit with this address. Text that is not
    an address is a group of its own."""
    known = address_in(address)
    if known is None:
        return address
    if known.is_loopback:
        return LOOPBACK
    return str(ip_network((known, NETWORK_BITS), strict=False) if known.version == 6 else known)


# ---- The guard before the pages of a process ------------------------------------------------------------


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_HEADERS = 64
MAX_QUERY = 512
MAX_BODY = 4096
"""Maximum size of a request's body in bytes, unless the application accepts more."""
BODY_SECONDS = 20.0
"""Time in seconds within which the complete body of a request must arrive."""
REQUESTS_PER_SECOND, REQUESTS_SAVED = 50.0, 1000.0
"""Limits per address (all loopback addresses count as one): requests per second, and size of a burst."""
ALL_PER_SECOND, ALL_SAVED = 200.0, 2000.0
"""Limits for all addresses together: requests per second, and size of a burst after a quiet time."""
FAILURES_PER_SECOND, FAILURES_SAVED = 1 / 60, 5.0
"""Limits for log lines about failed pages: lines per second, and size of a burst after a quiet time."""
LATE_SECONDS = 2.0
"""Delay in seconds before a request that exceeds a rate limit is refused, to slow down the client."""
CHANGES = ("POST",)
"""Methods that change something. Browsers may use them only from the application's own pages."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
"""Headers of every response. An application may set its own content security policy for a page."""
_HOST = re.compile(r"(?:([0-9A-Za-z](?:[0-9A-Za-z._-]*[0-9A-Za-z])?)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
"""Host header, matched completely: a URL may have a user before the host, and a path after it."""
_PATH = re.compile(rb"/|(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
"""Pattern of a plain path, without encoded characters, empty segments or segments that start with a dot."""


class Refusal(Exception):
    """Refuses a request. status: HTTP status; reason: one sentence for the client; headers: extra ones."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers or {}


@dataclass(frozen=True)
class RequestOrigin:
    """Where a request comes from, for the log: the client's address and port, and what it requests."""

    address: str
    port: int
    what: str


Note = Callable[[RequestOrigin, Refusal], None]
"""Function that records a refusal."""
ErrorPage = Callable[[int, str], str]
"""Function that renders the page for a refusal from its status and reason."""


class Guard:
    """ASGI application that checks requests before it passes them to another application.

    Args:
        app: the application to protect.
        names: function that checks whether a host name belongs to this process.
        note: records each refusal.
        log: structlog logger.
        error_page: renders the page that a browser gets for a refusal.
        bodies: maps path -> maximum size of a POST body in bytes, for paths where it exceeds MAX_BODY.
        rate: requests per second from one address, and how many may be saved up.
    """

    def __init__(
        self,
        app: App,
        names: Callable[[str], bool],
        note: Note,
        log: Any,
        error_page: ErrorPage,
        bodies: Mapping[str, int] | None = None,
        rate: tuple[float, float] = (REQUESTS_PER_SECOND, REQUESTS_SAVED),
    ) -> None:
        from starlette.requests import ClientDisconnect

        self._app = app
        self._names = names
        self._note = note
        self._log = log
        self._error_page = error_page
        self._bodies = bodies or {}
        self._hung_up = ClientDisconnect
        self._rate, self._all_rate = rate[0], max(rate[0], ALL_PER_SECOND)
        self._requests = Buckets(*rate)
        self._all = Bucket(self._all_rate, max(rate[1], ALL_SAVED), time.monotonic())
        self._failures = Bucket(FAILURES_PER_SECOND, FAILURES_SAVED, time.monotonic())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = False

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                if message["status"] >= HTTPStatus.BAD_REQUEST:
                    raise _refused_by_app(message["status"], message.get("headers", ()))
                began = True
                message = {**message, "headers": _guarded(message.get("headers", ()))}
            await send(message)

        try:
            await self._share(scope)
            self._check(scope)
            await self._app(scope, _Body(receive, self._max_body(scope)), answer)
            return
        except Refusal as error:
            refusal = error
            self._note(asker_of(scope), refusal)
        except FedboostError as error:
            refusal = Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, quoted(error.public))
            self._note(asker_of(scope), refusal)
        except Exception as error:  # noqa: BLE001 - a failing page must not end the process
            if isinstance(error, self._hung_up):
                return
            self._failed(asker_of(scope), error)
            refusal = Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "this page failed; the reason is in the log")
        if not began:
            await self._refuse(scope, refusal, send)

    def _failed(self, asker: RequestOrigin, error: Exception) -> None:
        """Log that a page failed; the rate of these log lines is limited."""
        if not self._failures.take(time.monotonic()):
            return
        what = quoted(f"{type(error).__name__}: {error}".partition("\n")[0])
        left_out = {"left_out": self._failures.missed} if self._failures.missed else {}
        self._log.error("a page failed", asked=asker.what, reason=what, **left_out)
        self._failures.missed = 0

    def _max_body(self, scope: Scope) -> int:
        """Return the maximum size of a request's body in bytes."""
        own = self._bodies.get(scope["path"], MAX_BODY)
        return own if scope["method"] == "POST" else MAX_BODY

    async def _share(self, scope: Scope) -> None:
        """Raise Refusal if there were too many requests from this address, or from all addresses together."""
        now, reason = time.monotonic(), ""
        if not self._requests.of(group_of(asker_of(scope).address), now).take(now):
            reason = f"there are more than {self._rate:g} requests per second from this address"
        elif not self._all.take(now):
            reason = f"there are more than {self._all_rate:g} requests per second from all addresses"
        if reason:
            await asyncio.sleep(LATE_SECONDS)
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, reason, {"Retry-After": "10"})

    def _check(self, scope: Scope) -> None:
        """Raise Refusal for a request that must not reach any page."""
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS:
            raise Refusal(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request has more than {MAX_HEADERS} headers"
            )
        host = only_header(scope, b"host")
        if host is None or not self._names(hostname_of(host)):
            raise Refusal(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this host name does not belong to this process: use the address in its log",
            )
        self._check_origin(scope, f"{scope['scheme']}://{host}".lower())
        if not _PATH.fullmatch(scope["raw_path"]) or len(scope["raw_path"]) > MAX_QUERY:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        if len(scope["query_string"]) > MAX_QUERY:
            raise Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, "the query string is too long")
        length = only_header(scope, b"content-length") or "0"
        most = self._max_body(scope)
        if not length.isdigit() or int(length[:20]) > most:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {most} bytes")

    def _check_origin(self, scope: Scope, own: str) -> None:
        """Raise Refusal if a browser sends the request on behalf of another website's page."""
        origin, site = only_header(scope, b"origin"), only_header(scope, b"sec-fetch-site")
        foreign = Refusal(HTTPStatus.FORBIDDEN, "the request comes from a page of another website")
        if origin not in (None, "null") and origin.lower() != own:
            raise foreign
        navigates = only_header(scope, b"sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if site not in (None, "same-origin", "none") and not navigates:
            raise foreign
        own_page = site == "same-origin" or origin not in (None, "null")
        if scope["method"] in CHANGES and not own_page and only_header(scope, b"authorization") is None:
            from_program = origin is None and site is None
            status = HTTPStatus.UNAUTHORIZED if from_program else HTTPStatus.FORBIDDEN
            needed = {"WWW-Authenticate": "Bearer"} if from_program else None
            raise Refusal(
                status, "a program must send a token, and a browser must use a page of this process", needed
            )

    async def _refuse(self, scope: Scope, refusal: Refusal, send: Send) -> None:
        body, kind = refusal_body(scope, refusal, self._error_page)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
        start = {"type": "http.response.start", "status": refusal.status, "headers": _guarded(headers)}
        await send(start)
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def refusal_body(scope: Scope, refusal: Refusal, error_page: ErrorPage) -> tuple[bytes, bytes]:
    """Return the body of a refusal and its content type: a page for browsers, else JSON."""
    wants_page = b"text/html" in b",".join(v for name, v in scope["headers"] if name == b"accept")
    if wants_page and not scope["path"].startswith("/api/"):
        return error_page(refusal.status, refusal.reason).encode(), b"text/html; charset=utf-8"
    return json.dumps({"error": refusal.reason}).encode() + b"\n", b"application/json"


class _Body:
    """Wrapper of ASGI's `receive` that limits a request body's size and the time until it is complete."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._size = 0
        self._ended = False
        self._until = asyncio.get_running_loop().time() + BODY_SECONDS

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._ended:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(
                HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {BODY_SECONDS:g} s"
            ) from None
        self._size += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._size > self._most:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {self._most} bytes")
        return message


def only_header(scope: Scope, name: bytes) -> str | None:
    """Return the value of a header, or None if it is missing. Raises Refusal if it occurs more than once."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"the request has {len(values)} {name.decode()} headers")
    return values[0].decode("latin-1") if values else None


def asker_of(scope: Scope) -> RequestOrigin:
    address, port = scope.get("client") or ("an unknown address", 0)
    path = scope["raw_path"].decode("latin-1")
    return RequestOrigin(address, port, quoted(f"{scope['method']} {path}", 200))


def hostname_of(host: str) -> str:
    """Return the host name in a Host header, without port and IPv6 brackets; '' if it is invalid."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def is_loopback_name(name: str) -> bool:
    """Return whether a host name is localhost or a loopback address. Only programs on this machine use such
    names, and no website can have one."""
    return is_loopback(f"[{name}]:0" if ":" in name else f"{name}:0")


def _refused_by_app(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Refusal:
    """Return the refusal for a missing page or an unsupported method. For an unsupported method, the refusal
    lists the supported ones."""
    reasons = {404: "there is no such page", 405: "this page does not support this method"}
    methods = (value.decode("latin-1") for name, value in headers if name.lower() == b"allow")
    allow = sorted({method.strip() for line in methods for method in line.split(",")})
    more = {"Allow": ", ".join(allow)} if allow else None
    return Refusal(status, reasons.get(status, HTTPStatus(status).phrase.lower()), more)


def _guarded(headers: Any) -> list[tuple[bytes, bytes]]:
    given = [(name.lower(), value) for name, value in headers]
    names = {name for name, _ in given}
    return given + [(name, value) for name, value in HEADERS.items() if name not in names]
