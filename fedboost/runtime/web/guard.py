"""The guard before the pages of a process: who asks in which name, from where, for what, and how much.

Promises: an application behind it gets requests for this process's own name only, from its own pages or from
programs, with a plain path, GET, HEAD or POST, and a body of bounded size that arrives in time; every answer
has headers by which a browser runs no script but its own, frames it nowhere and keeps nothing; every refusal
is noted; an exception of the application is an answer 500 and, unless there were many, a line in the log.
Refuses: everything else, as JSON `{"error": ...}`, or as a page to browsers.
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

# ---- A bucket of tokens: how often something may be done, and how often in one go -----------------------
# The time comes in.


MAX_NAMES = 4096


class Bucket:
    """Tokens that come back with time: `most` at first and at most, `per_second` of them a second."""

    def __init__(self, per_second: float, most: float, now: float) -> None:
        self._per_second = per_second
        self._most = self._tokens = most
        self._then = now
        self.missed = 0
        """How often there were too few."""

    def tokens(self, now: float) -> float:
        """The number of tokens now."""
        self._tokens = min(self._most, self._tokens + max(now - self._then, 0.0) * self._per_second)
        self._then = now
        return self._tokens

    def take(self, now: float, tokens: float = 1.0) -> bool:
        """Take some if there are as many; return True if there were."""
        if self.tokens(now) < min(tokens, self._most):
            self.missed += 1
            return False
        self._tokens -= min(tokens, self._most)
        return True

    def is_full(self, now: float) -> bool:
        """Tell if nothing was taken for a while."""
        return self.tokens(now) >= self._most


class Buckets:
    """A bucket for each name, such as an address, all alike; beyond `most_names` busy ones share one."""

    def __init__(self, per_second: float, most: float, most_names: int = MAX_NAMES) -> None:
        self._size = per_second, most
        self._most_names = most_names
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, name: str, now: float) -> Bucket:
        """The bucket of this name."""
        if name not in self._buckets and len(self._buckets) >= self._most_names:
            self._buckets = {known: kept for known, kept in self._buckets.items() if not kept.is_full(now)}
            name = name if len(self._buckets) < self._most_names else ""
        return self._buckets.setdefault(name, Bucket(*self._size, now))

    def clear(self) -> None:
        """Forget what was taken."""
        self._buckets.clear()


# ---- Addresses of clients, grouped by who can have them -------------------------------------------------
# Promises: all loopback addresses are one group, and all addresses of an IPv6 network of 64 bits: whoever
# has one of these has the others, too.


LOOPBACK = "loopback"
NETWORK_BITS = 64


@lru_cache(4096)
def address_in(text: str) -> IPv4Address | IPv6Address | None:
    """The address of a client: an IPv4 one that was mapped to IPv6 as itself; None for what is none."""
    try:
        known = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (known.ipv4_mapped or known) if isinstance(known, IPv6Address) else known


def group_of(address: str) -> str:
    """The name of the group of an address; what is no address is a group by itself."""
    known = address_in(address)
    if known is None:
        return address
    if known.is_loopback:
        return LOOPBACK
    return str(ip_network((known, NETWORK_BITS), strict=False) if known.version == 6 else known)


# ---- The guard before the pages of a process: who asks in which name, from where, for what --------------


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_HEADERS = 64
MAX_QUERY = 512
MAX_BODY = 4096
"""Bytes of a body, where an application does not take more."""
BODY_SECONDS = 20.0
"""Seconds in which the whole body of a request must be here."""
REQUESTS_PER_SECOND, REQUESTS_SAVED = 50.0, 1000.0
"""Requests of one address: so many a second, and some in one go after it was quiet. The loopback addresses
count as one."""
ALL_PER_SECOND, ALL_SAVED = 200.0, 2000.0
"""Requests of all addresses."""
FAILURES_PER_SECOND, FAILURES_SAVED = 1 / 60, 5.0
"""Lines about pages that failed, and how many in one go after it was quiet."""
LATE_SECONDS = 2.0
"""A request beyond that is refused so late, so that the next comes late."""
CHANGES = ("POST",)
"""Methods that change something: a browser may call them from the pages themselves alone."""
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
"""Headers of every answer; an application may give its own policy for a page."""
_HOST = re.compile(r"(?:([0-9A-Za-z](?:[0-9A-Za-z._-]*[0-9A-Za-z])?)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
"""Matched in full: a URL may have a user before the name, and a path behind it."""
_PATH = re.compile(rb"/|(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
"""A plain path: nothing encoded, no empty part, and none that begins with a dot."""


class Refusal(Exception):
    """A request that is not answered. reason: one sentence for whoever asked; headers: of the answer."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers or {}


@dataclass(frozen=True)
class Asker:
    """Where a request comes from: its address and port, and what it asks for, for the log."""

    address: str
    port: int
    what: str


Note = Callable[[Asker, Refusal], None]
"""Takes note of a refusal."""
ErrorPage = Callable[[int, str], str]
"""Makes the page of a refusal: of a status, and the reason."""


class Guard:
    """An ASGI application in front of another. names: tells whether a host's name is this process's own;
    note: takes each refusal; log: a structlog logger; error_page: for browsers; bodies: bytes that the body
    of a POST to a path may have, where that is more than MAX_BODY."""

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
        """Answer one request."""
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
        except Exception as error:  # noqa: BLE001 - a page that fails must not end what the process is for
            if isinstance(error, self._hung_up):
                return
            self._failed(asker_of(scope), error)
            refusal = Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "this page failed; the log has the reason")
        if not began:
            await self._refuse(scope, refusal, send)

    def _failed(self, asker: Asker, error: Exception) -> None:
        """Log that a page failed, unless there were many such lines."""
        if not self._failures.take(time.monotonic()):
            return
        what = quoted(f"{type(error).__name__}: {error}".partition("\n")[0])
        left_out = {"left_out": self._failures.missed} if self._failures.missed else {}
        self._log.error("a page failed", asked=asker.what, reason=what, **left_out)
        self._failures.missed = 0

    def _max_body(self, scope: Scope) -> int:
        """Bytes that the body of a request may have."""
        own = self._bodies.get(scope["path"], MAX_BODY)
        return own if scope["method"] == "POST" else MAX_BODY

    async def _share(self, scope: Scope) -> None:
        """Raise Refusal for a request of an address that makes too many, and where all make too many."""
        now, reason = time.monotonic(), ""
        if not self._requests.of(group_of(asker_of(scope).address), now).take(now):
            reason = f"more than {REQUESTS_PER_SECOND:g} requests a second"
        elif not self._all.take(now):
            reason = f"more than {ALL_PER_SECOND:g} requests a second of all addresses"
        if reason:
            await asyncio.sleep(LATE_SECONDS)
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, reason, {"Retry-After": "10"})

    def _check(self, scope: Scope) -> None:
        """Raise Refusal for a request that no page should see."""
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS:
            raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {MAX_HEADERS} headers")
        host = only_header(scope, b"host")
        if host is None or not self._names(hostname_of(host)):
            raise Refusal(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this page is not called so: ask for it by an address of its own, as the log names it",
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
        """Raise Refusal for what another website's page asks for in a browser."""
        origin, site = only_header(scope, b"origin"), only_header(scope, b"sec-fetch-site")
        foreign = Refusal(HTTPStatus.FORBIDDEN, "asked for by a page of another website")
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
            raise Refusal(status, "a program gives a token, and a browser its own origin", needed)

    async def _refuse(self, scope: Scope, refusal: Refusal, send: Send) -> None:
        body, kind = refusal_body(scope, refusal, self._error_page)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
        start = {"type": "http.response.start", "status": refusal.status, "headers": _guarded(headers)}
        await send(start)
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def refusal_body(scope: Scope, refusal: Refusal, error_page: ErrorPage) -> tuple[bytes, bytes]:
    """The body of a refusal, and its content type: a page to browsers, else JSON."""
    wants_page = b"text/html" in b",".join(v for name, v in scope["headers"] if name == b"accept")
    if wants_page and not scope["path"].startswith("/api/"):
        return error_page(refusal.status, refusal.reason).encode(), b"text/html; charset=utf-8"
    return json.dumps({"error": refusal.reason}).encode() + b"\n", b"application/json"


class _Body:
    """`receive` with a bound for the bytes of a body, and for the time that it takes."""

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
    """The value of a header; None where there is none, Refusal where there are several."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{len(values)} headers {name.decode()}")
    return values[0].decode("latin-1") if values else None


def asker_of(scope: Scope) -> Asker:
    """Where a request comes from."""
    address, port = scope.get("client") or ("an unknown address", 0)
    path = scope["raw_path"].decode("latin-1")
    return Asker(address, port, quoted(f"{scope['method']} {path}", 200))


def hostname_of(host: str) -> str:
    """The name in a header Host, without the port and the brackets of IPv6; '' for anything that is not a
    name or an address with an optional port."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def is_loopback_name(name: str) -> bool:
    """Tell if a host's name is one that only this machine's own programs use: no website can have it lead
    here."""
    return is_loopback(f"[{name}]:0" if ":" in name else f"{name}:0")


def _refused_by_app(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Refusal:
    """The refusal of a page that is not there, or does not take a method: with those that it takes."""
    reasons = {404: "there is no such page", 405: "this page does not take this method"}
    methods = (value.decode("latin-1") for name, value in headers if name.lower() == b"allow")
    allow = sorted({method.strip() for line in methods for method in line.split(",")})
    more = {"Allow": ", ".join(allow)} if allow else None
    return Refusal(status, reasons.get(status, HTTPStatus(status).phrase.lower()), more)


def _guarded(headers: Any) -> list[tuple[bytes, bytes]]:
    given = [(name.lower(), value) for name, value in headers]
    names = {name for name, _ in given}
    return given + [(name, value) for name, value in HEADERS.items() if name not in names]
