"""The guard before the pages of a process: checks host, origin, path, method and amount of each request.

Promises: the application behind it gets requests for this process's own name only, from its own pages or from
programs, with a plain path, GET, HEAD or POST, and a body of bounded size that arrives in time. Every answer
has headers with which a browser runs no script but its own, never frames it and keeps nothing. Every refusal
is noted. An exception of the application is answered with 500 and logged, up to a rate.
Refuses: everything else, as JSON `{"error": ...}`, or as a page for browsers.
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
    """Tokens that return with time: `most` at first and at most, `per_second` of them a second."""

    def __init__(self, per_second: float, most: float, now: float) -> None:
        self._per_second = per_second
        self._most = self._tokens = most
        self._then = now
        self.missed = 0
        """How often there were too few tokens."""

    def tokens(self, now: float) -> float:
        self._tokens = min(self._most, self._tokens + max(now - self._then, 0.0) * self._per_second)
        self._then = now
        return self._tokens

    def take(self, now: float, tokens: float = 1.0) -> bool:
        """Take some if there are enough; return whether there were."""
        if self.tokens(now) < min(tokens, self._most):
            self.missed += 1
            return False
        self._tokens -= min(tokens, self._most)
        return True

    def is_full(self, now: float) -> bool:
        """Return whether nothing was taken recently."""
        return self.tokens(now) >= self._most


class Buckets:
    """A bucket for each name, e.g. an address, all alike; beyond `most_names` busy ones share one."""

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
        """Fill all buckets."""
        self._buckets.clear()


# ---- Addresses of clients, grouped by who can have them -------------------------------------------------
# All loopback addresses are one group, and so is an IPv6 network of 64 bits, whose owner has all of it.


LOOPBACK = "loopback"
NETWORK_BITS = 64


@lru_cache(4096)
def address_in(text: str) -> IPv4Address | IPv6Address | None:
    """The address of a client, an IPv4-mapped one as IPv4; None if it is not an address."""
    try:
        known = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (known.ipv4_mapped or known) if isinstance(known, IPv6Address) else known


def group_of(address: str) -> str:
    """The name of an address's group; other texts are groups of their own."""
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
"""Most bytes of a body, unless the application accepts more."""
BODY_SECONDS = 20.0
"""Seconds within which the whole body of a request must arrive."""
REQUESTS_PER_SECOND, REQUESTS_SAVED = 50.0, 1000.0
"""Requests of one address: per second, and at once after a quiet time. The loopback addresses count as
one."""
ALL_PER_SECOND, ALL_SAVED = 200.0, 2000.0
"""The same for all addresses together."""
FAILURES_PER_SECOND, FAILURES_SAVED = 1 / 60, 5.0
"""Log lines about failed pages: per second, and at once after a quiet time."""
LATE_SECONDS = 2.0
"""Delay in seconds of a refusal beyond that, which slows down the next request."""
CHANGES = ("POST",)
"""Methods that change something: browsers may use them from the application's own pages only."""
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
"""Headers of every answer; an application may set its own policy for a page."""
_HOST = re.compile(r"(?:([0-9A-Za-z](?:[0-9A-Za-z._-]*[0-9A-Za-z])?)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
"""Must match in full: a URL may have a user before the name, and a path after it."""
_PATH = re.compile(rb"/|(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
"""A plain path: nothing encoded, no empty segment, and none that begins with a dot."""


class Refusal(Exception):
    """A request that is refused. reason: one sentence for the client; headers: of the answer."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers or {}


@dataclass(frozen=True)
class RequestOrigin:
    """The origin of a request, its address and port, and what it requests, for the log."""

    address: str
    port: int
    what: str


Note = Callable[[RequestOrigin, Refusal], None]
"""Records a refusal."""
ErrorPage = Callable[[int, str], str]
"""Makes the page of a refusal from its status and reason."""


class Guard:
    """An ASGI application in front of another.

    names: returns whether a host's name is this process's own; note: records each refusal; log: a structlog
    logger; error_page: for browsers; bodies: most bytes of a POST body by path, if more than MAX_BODY.
    """

    def __init__(
        self,
        app: App,
        names: Callable[[str], bool],
        note: Note,
        log: Any,
        error_page: ErrorPage,
        bodies: Mapping[str, int] | None = None,
    ) -> None:
        from starlette.requests import ClientDisconnect

        self._app = app
        self._names = names
        self._note = note
        self._log = log
        self._error_page = error_page
        self._bodies = bodies or {}
        self._hung_up = ClientDisconnect
        self._requests = Buckets(REQUESTS_PER_SECOND, REQUESTS_SAVED)
        self._all = Bucket(ALL_PER_SECOND, ALL_SAVED, time.monotonic())
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
            refusal = Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "this page failed; the log has the reason")
        if not began:
            await self._refuse(scope, refusal, send)

    def _failed(self, asker: RequestOrigin, error: Exception) -> None:
        """Log that a page failed, up to a rate."""
        if not self._failures.take(time.monotonic()):
            return
        what = quoted(f"{type(error).__name__}: {error}".partition("\n")[0])
        left_out = {"left_out": self._failures.missed} if self._failures.missed else {}
        self._log.error("a page failed", asked=asker.what, reason=what, **left_out)
        self._failures.missed = 0

    def _max_body(self, scope: Scope) -> int:
        """Most bytes of a request's body."""
        own = self._bodies.get(scope["path"], MAX_BODY)
        return own if scope["method"] == "POST" else MAX_BODY

    async def _share(self, scope: Scope) -> None:
        """Raise Refusal if the address of a request, or all together, made too many."""
        now, reason = time.monotonic(), ""
        if not self._requests.of(group_of(asker_of(scope).address), now).take(now):
            reason = f"more than {REQUESTS_PER_SECOND:g} requests a second"
        elif not self._all.take(now):
            reason = f"more than {ALL_PER_SECOND:g} requests a second from all addresses"
        if reason:
            await asyncio.sleep(LATE_SECONDS)
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, reason, {"Retry-After": "10"})

    def _check(self, scope: Scope) -> None:
        """Raise Refusal for a request that no page should get."""
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS:
            raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {MAX_HEADERS} headers")
        host = only_header(scope, b"host")
        if host is None or not self._names(hostname_of(host)):
            raise Refusal(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this is not a name of this process: use one of its own addresses, as in its log",
            )
        self._check_origin(scope, f"{scope['scheme']}://{host}".lower())
        if not _PATH.fullmatch(scope["raw_path"]) or len(scope["raw_path"]) > MAX_QUERY:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        if len(scope["query_string"]) > MAX_QUERY:
            raise Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, "the query is too long")
        length = only_header(scope, b"content-length") or "0"
        most = self._max_body(scope)
        if not length.isdigit() or int(length[:20]) > most:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {most} bytes")

    def _check_origin(self, scope: Scope, own: str) -> None:
        """Raise Refusal for what a page of another website requests in a browser."""
        origin, site = only_header(scope, b"origin"), only_header(scope, b"sec-fetch-site")
        foreign = Refusal(HTTPStatus.FORBIDDEN, "requested by a page of another website")
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
            raise Refusal(status, "a program must give a token, and a browser its own origin", needed)

    async def _refuse(self, scope: Scope, refusal: Refusal, send: Send) -> None:
        body, kind = refusal_body(scope, refusal, self._error_page)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
        start = {"type": "http.response.start", "status": refusal.status, "headers": _guarded(headers)}
        await send(start)
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def refusal_body(scope: Scope, refusal: Refusal, error_page: ErrorPage) -> tuple[bytes, bytes]:
    """The body of a refusal and its content type: a page for browsers, else JSON."""
    wants_page = b"text/html" in b",".join(v for name, v in scope["headers"] if name == b"accept")
    if wants_page and not scope["path"].startswith("/api/"):
        return error_page(refusal.status, refusal.reason).encode(), b"text/html; charset=utf-8"
    return json.dumps({"error": refusal.reason}).encode() + b"\n", b"application/json"


class _Body:
    """`receive` with a bound on the bytes of a body, and on the time until it is complete."""

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
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, f"no body within {BODY_SECONDS:g} s") from None
        self._size += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._size > self._most:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {self._most} bytes")
        return message


def only_header(scope: Scope, name: bytes) -> str | None:
    """The value of a header, or None; Refusal if it appears several times."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{len(values)} headers {name.decode()}")
    return values[0].decode("latin-1") if values else None


def asker_of(scope: Scope) -> RequestOrigin:
    address, port = scope.get("client") or ("an unknown address", 0)
    path = scope["raw_path"].decode("latin-1")
    return RequestOrigin(address, port, quoted(f"{scope['method']} {path}", 200))


def hostname_of(host: str) -> str:
    """The name in a Host header, without the port and the brackets of IPv6; '' unless it is a name or an
    address with an optional port."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def is_loopback_name(name: str) -> bool:
    """Return whether a host's name is one that only programs on this machine use, and no website can point
    here."""
    return is_loopback(f"[{name}]:0" if ":" in name else f"{name}:0")


def _refused_by_app(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Refusal:
    """The refusal for a missing page or an unsupported method, with the supported ones."""
    reasons = {404: "there is no such page", 405: "this page does not support this method"}
    methods = (value.decode("latin-1") for name, value in headers if name.lower() == b"allow")
    allow = sorted({method.strip() for line in methods for method in line.split(",")})
    more = {"Allow": ", ".join(allow)} if allow else None
    return Refusal(status, reasons.get(status, HTTPStatus(status).phrase.lower()), more)


def _guarded(headers: Any) -> list[tuple[bytes, bytes]]:
    given = [(name.lower(), value) for name, value in headers]
    names = {name for name, _ in given}
    return given + [(name, value) for name, value in HEADERS.items() if name not in names]
