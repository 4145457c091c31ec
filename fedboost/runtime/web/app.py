"""A web application: a table of routes behind the guard, with log-in and log-out, style, icon and errors.

Promises: what a route says about who may ask holds before its handler is called; forms of pages count only
with the key of the login that they were shown to, where the application has such forms; what a plain function
answers is read and drawn in threads of the application, and a coroutine function runs in the event loop.
Refuses: requests of those who may not ask, and too many at a time of one reader (Refusal).
"""

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from fedboost.runtime.aggregator.limits import Refusals
from fedboost.runtime.web.guard import MAX_BODY, App, Asker, Guard, Refusal
from fedboost.runtime.web.logins import Caller, Logins, Tokens
from fedboost.runtime.web.serving import WebServer
from fedboost.views.as_html import ICON, SERVED_STYLE, Served, refused
from fedboost.views.document import Document

MAX_FIELDS, MAX_LOGIN_FIELDS = 8, 4
"""Fields in the form of any page, and in the form for a token."""
OFFICER = "officer"
"""The role of those who decide."""
THREADS = 2
"""Threads for what must not hold up the event loop; sessions do not need them."""

NOBODY = Caller("", "viewer")
Form = Callable[[str], str]
"""Returns the first value of a field, '' of one that the form lacks."""


@dataclass
class Call:
    """A request to a route. caller, form: filled in by the check of who may ask."""

    logins: Logins
    request: Request
    caller: Caller = NOBODY
    form: Form = lambda name: ""

    @property
    def form_key(self) -> str:
        """The key that forms of this login's pages carry; '' where no browser logged in."""
        return self.logins.form_key(self.request.scope) if self.caller.by_cookie else ""


# ---- Who may ask: each raises Refusal, and notes in the call who asks -----------------------------------


Who = Callable[[Call], Awaitable[None]]


async def anybody(call: Call) -> None:
    """Everybody."""


async def reader(call: Call) -> None:
    """Callers that may read pages."""
    call.caller = call.logins.caller(call.request.scope)


async def analyst_program(call: Call) -> None:
    """Programs with a token of the role analyst."""
    call.caller = call.logins.need(call.request.scope, "analyst")
    if call.caller.by_cookie:
        reason = "a submission needs the token itself: Authorization: Bearer TOKEN"
        raise Refusal(HTTPStatus.FORBIDDEN, reason)


async def any_form(call: Call) -> None:
    """Everybody who has a form."""
    call.form = await read_form(call.request)


async def own_form(call: Call) -> None:
    """Browsers that logged in, with a form of a page that this login was shown."""
    await reader(call)
    if not call.caller.by_cookie:
        raise Refusal(HTTPStatus.FORBIDDEN, "to decide, log in with a browser")
    call.form = await read_form(call.request)
    if not hmac.compare_digest(call.form("key").encode(), call.form_key.encode()):
        raise Refusal(HTTPStatus.FORBIDDEN, "this form is of no page of this login: read the page again")


async def officer_form(call: Call) -> None:
    """Officers with a form of a page of their login, which has the token of that login once more."""
    await own_form(call)
    owner = call.logins.owner(call.form("token"), call.request.scope)
    if owner.role != OFFICER or owner.name != call.caller.name:
        reason = f"to decide takes a token of the role {OFFICER}, the one of this login"
        raise Refusal(HTTPStatus.FORBIDDEN, reason)


async def read_form(request: Request, most: int = MAX_FIELDS) -> Form:
    """Return the fields of a form. Raises Refusal for other bodies, and for forms of more fields than
    `most`."""
    try:
        found = parse_qs((await request.body()).decode("latin-1"), max_num_fields=most)
    except ValueError:
        raise Refusal(HTTPStatus.BAD_REQUEST, "this is no form of a page") from None
    return lambda name: found.get(name, [""])[0]


# ---- The table of routes, and the application that it makes ---------------------------------------------


@dataclass(frozen=True)
class Row:
    """A route. path: of the address, with {parameters}; handler: answers a call with a Document, with the
    bytes of JSON, with a response, or with an ASGI application; max_body: bytes that a body may have."""

    path: str
    handler: Callable[[Call], Any]
    who: Who = reader
    method: str = "GET"
    max_body: int = MAX_BODY


@dataclass(frozen=True)
class About:
    """The constants of an application.

    name: in errors and in the log; served: the event in the log when it is; event: that of refusals, in the
    log and in the metrics; frame: of its pages; page: draws a document as a page; policy: the content
    security policy of pages, the guard's unless given; readers: the roles whose tokens may read, all unless
    given; keyed: its pages have forms with the key of the login; at_once: calls of one reader that threads
    work on, or that wait for it, at a time.
    """

    name: str
    served: str
    event: str
    frame: Served
    page: Callable[[Call, Document], str]
    policy: str = ""
    readers: Sequence[str] = ()
    keyed: bool = False
    at_once: int = 4


class WebApp:
    """An application at one address, from `start` to `stop`."""

    def __init__(
        self,
        about: About,
        table: Sequence[Row],
        listen: str,
        tokens: Path | None,
        names: Callable[[str], bool],
        readers: str,
        refusals: Refusals,
        log: Any,
        is_open: bool = False,
        pair: tuple[Path, Path] | None = None,
    ) -> None:
        """Listen. ConfigError if that cannot be, or the file of tokens cannot be read.

        names: tells whether a host's name is this process's own; readers: who may read, in words for the log;
        is_open: anybody who reaches the pages may read them; pair: files in PEM, certificate and key, with
        which TLS is spoken.
        """
        known = None if tokens is None else Tokens(tokens, log)
        self.logins = Logins(known, is_open, encrypted=pair is not None, readers=about.readers)
        self._about, self._log, self._readers = about, log, readers
        self._pool = ThreadPoolExecutor(THREADS, "page")
        self._at_once = Counter[str]()
        """By the name of the token's owner."""

        def note(asker: Asker, refusal: Refusal) -> None:
            peer, end = f"a client from {asker.address}", f"{asker.address}:{asker.port}"
            reason = f"{refusal.status}: {refusal.reason}"
            refusals.note(about.event, peer, reason, address=end, asked=asker.what)

        bodies = {row.path: row.max_body for row in table if row.max_body != MAX_BODY}
        app = Guard(self._application(table), names, note, log, partial(refused, about.frame), bodies)
        self._server = WebServer(about.name, listen, app, log, note, pair)

    @property
    def url(self) -> str:
        """The address as a browser takes it."""
        return self._server.url

    async def start(self) -> None:
        """Serve, in tasks of the running event loop."""
        await self._server.start()
        self._log.info(self._about.served, address=self.url, readers=self._readers)

    async def stop(self) -> None:
        """End all that is open."""
        await self._server.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _application(self, table: Sequence[Row]) -> App:
        rows = [
            *(Row(path, asset(*content), anybody) for path, content in _ASSETS.items()),
            Row("/login", _log_in, anybody, "POST"),
            Row("/logout", _log_out, own_form if self._about.keyed else any_form, "POST"),
            *table,
        ]
        by_path: dict[str, dict[str, Row]] = {}
        for row in rows:
            by_path.setdefault(row.path, {})[row.method] = row
        routes = [
            Route(path, partial(_answer, self.logins, self, methods), methods=[*methods])
            for path, methods in by_path.items()
        ]
        return Router(routes, redirect_slashes=False)  # pages of errors are the guard's

    def finished(self, call: Call, found: Any) -> App:
        """Return the response with what a handler found."""
        if isinstance(found, Document):
            policy = {"Content-Security-Policy": self._about.policy} if self._about.policy else None
            return HTMLResponse(self._about.page(call, found), headers=policy)
        return Response(found, media_type="application/json") if isinstance(found, bytes) else found

    async def beside(self, call: Call, handler: Callable[[Call], Any]) -> App:
        """Answer a call in a thread. Raises Refusal for too many of one reader."""
        owner = call.caller.name
        if self._at_once[owner] >= self._about.at_once:
            reason = f"{self._about.at_once} requests of {owner} are worked on already: wait for them"
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, reason, {"Retry-After": "1"})
        self._at_once[owner] += 1
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, lambda: self.finished(call, handler(call)))
        finally:
            self._at_once[owner] -= 1


async def _answer(logins: Logins, web: WebApp, methods: Mapping[str, Row], request: Request) -> App:
    """Answer a request at the path of these rows, by its method."""
    row = methods["GET" if request.method == "HEAD" else request.method]
    call = Call(logins, request)
    await row.who(call)
    if iscoroutinefunction(row.handler):
        return web.finished(call, await row.handler(call))
    return await web.beside(call, row.handler)


# ---- Routes of every application ------------------------------------------------------------------------


_ASSETS = {"/style.css": (SERVED_STYLE, "text/css"), "/icon.svg": (ICON, "image/svg+xml")}
"""Content and media type of what pages load."""


async def _log_in(call: Call) -> Response:
    form = await read_form(call.request, MAX_LOGIN_FIELDS)
    return _to_overview(call.logins.log_in(form("token"), call.request.scope))


async def _log_out(call: Call) -> Response:
    return _to_overview(call.logins.log_out(call.request.scope))


def _to_overview(cookie: str) -> Response:
    return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})


def asset(content: str, kind: str) -> Callable[[Call], Any]:
    """Return the handler of what pages load. kind: its media type."""

    async def answer(call: Call) -> Response:
        return Response(content, media_type=kind)

    return answer
