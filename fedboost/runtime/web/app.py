"""A web application: a table of routes behind the guard, with log-in and log-out, style, icon and errors.

Promises: a route's rule about who may use it is checked before its handler is called. Where an application
has keyed forms, a form is valid only with the key of the login that it was shown to. Plain functions run, and
their results are rendered, in threads of the application; coroutine functions run in the event loop.
Refuses: callers without permission, and too many requests of one reader at a time (Refusal).
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
from fedboost.runtime.web.guard import MAX_BODY, App, Guard, Refusal, RequestOrigin
from fedboost.runtime.web.logins import Caller, Logins, Tokens
from fedboost.runtime.web.serving import WebServer
from fedboost.views.as_html import ICON, SERVED_STYLE, Served, refused
from fedboost.views.document import Document

MAX_FIELDS, MAX_LOGIN_FIELDS = 8, 4
"""Most fields in the form of a page, and in the form for a token."""
OFFICER = "officer"
"""The role of those who decide at a site."""
THREADS = 2
"""Threads for work that must not block the event loop; sessions do not need them."""

NOBODY = Caller("", "viewer")
Form = Callable[[str], str]
"""Returns the first value of a field, '' if the form lacks it."""


@dataclass
class Call:
    """A request to a route. caller, form: filled in by the check of who may use it."""

    logins: Logins
    request: Request
    caller: Caller = NOBODY
    form: Form = lambda name: ""

    @property
    def form_key(self) -> str:
        """The key in the forms of this login's pages; '' unless a browser logged in."""
        return self.logins.form_key(self.request.scope) if self.caller.by_cookie else ""


# ---- Who may use a route: each raises Refusal, and fills in the caller or the form of the call ----------


AccessCheck = Callable[[Call], Awaitable[None]]


async def anybody(call: Call) -> None:
    """Everyone."""


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
    """Everyone with a form."""
    call.form = await read_form(call.request)


async def own_form(call: Call) -> None:
    """Browsers that logged in, with a form from a page shown to this login."""
    await reader(call)
    if not call.caller.by_cookie:
        raise Refusal(HTTPStatus.FORBIDDEN, "to decide, log in with a browser")
    call.form = await read_form(call.request)
    if not hmac.compare_digest(call.form("key").encode(), call.form_key.encode()):
        raise Refusal(HTTPStatus.FORBIDDEN, "this form is of no page of this login: read the page again")


async def officer_form(call: Call) -> None:
    """Officers with a form from a page of their login, with the token of that login entered again."""
    await own_form(call)
    owner = call.logins.owner(call.form("token"), call.request.scope)
    if owner.role != OFFICER or owner.name != call.caller.name:
        reason = f"to decide takes a token of the role {OFFICER}, the one of this login"
        raise Refusal(HTTPStatus.FORBIDDEN, reason)


async def read_form(request: Request, most: int = MAX_FIELDS) -> Form:
    """Return the fields of a form. Raises Refusal for other bodies, and for more fields than `most`."""
    try:
        found = parse_qs((await request.body()).decode("latin-1"), max_num_fields=most)
    except ValueError:
        raise Refusal(HTTPStatus.BAD_REQUEST, "this is not the form of a page") from None
    return lambda name: found.get(name, [""])[0]


# ---- The table of routes, and the application made of it ------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A route. path: may have {parameters}; handler: answers a call with a Document, the bytes of JSON, a
    response, or an ASGI application; max_body: most bytes of a request's body."""

    path: str
    handler: Callable[[Call], Any]
    who: AccessCheck = reader
    method: str = "GET"
    max_body: int = MAX_BODY


@dataclass(frozen=True)
class About:
    """The constants of an application.

    name: in errors and the log; served: log event once it is served; event: that of refusals, in the log and
    in metrics; frame: of its pages; page: renders a document as a page; policy: content security policy of
    pages (default: the guard's); readers: roles whose tokens may read (default: all); keyed: forms of its
    pages have the key of the login; at_once: most calls of one reader in progress or waiting at a time.
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
        """Listen. ConfigError if it cannot, or if the file of tokens cannot be read.

        names: returns whether a host's name is this process's own; readers: description of who may read, for
        the log; is_open: everyone who reaches the pages may read them; pair: PEM files of the certificate and
        key for TLS, None for plain HTTP.
        """
        known = None if tokens is None else Tokens(tokens, log)
        self.logins = Logins(known, is_open, encrypted=pair is not None, readers=about.readers)
        self._about, self._log, self._readers = about, log, readers
        self._pool = ThreadPoolExecutor(THREADS, "page")
        self._at_once = Counter[str]()
        """Requests in progress, by the name of the token's owner."""

        def note(asker: RequestOrigin, refusal: Refusal) -> None:
            peer, end = f"a client from {asker.address}", f"{asker.address}:{asker.port}"
            reason = f"{refusal.status}: {refusal.reason}"
            refusals.note(about.event, peer, reason, address=end, asked=asker.what)

        bodies = {row.path: row.max_body for row in table if row.max_body != MAX_BODY}
        app = Guard(self._application(table), names, note, log, partial(refused, about.frame), bodies)
        self._server = WebServer(about.name, listen, app, log, note, pair)

    @property
    def url(self) -> str:
        """The address for a browser."""
        return self._server.url

    async def start(self) -> None:
        """Serve, in tasks of the running event loop."""
        await self._server.start()
        self._log.info(self._about.served, address=self.url, readers=self._readers)

    async def stop(self) -> None:
        """End all connections and requests."""
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
        """The response for a handler's result."""
        if isinstance(found, Document):
            policy = {"Content-Security-Policy": self._about.policy} if self._about.policy else None
            return HTMLResponse(self._about.page(call, found), headers=policy)
        return Response(found, media_type="application/json") if isinstance(found, bytes) else found

    async def beside(self, call: Call, handler: Callable[[Call], Any]) -> App:
        """Answer a call in a thread. Raises Refusal for too many of one reader."""
        owner = call.caller.name
        if self._at_once[owner] >= self._about.at_once:
            reason = f"{self._about.at_once} requests of {owner} are already in progress: wait for them"
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, reason, {"Retry-After": "1"})
        self._at_once[owner] += 1
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, lambda: self.finished(call, handler(call)))
        finally:
            self._at_once[owner] -= 1


async def _answer(logins: Logins, web: WebApp, methods: Mapping[str, Row], request: Request) -> App:
    """Check who asks, then run the handler: a coroutine here, others in a thread."""
    row = methods["GET" if request.method == "HEAD" else request.method]
    call = Call(logins, request)
    await row.who(call)
    if iscoroutinefunction(row.handler):
        return web.finished(call, await row.handler(call))
    return await web.beside(call, row.handler)


# ---- Routes of every application ------------------------------------------------------------------------


_ASSETS = {"/style.css": (SERVED_STYLE, "text/css"), "/icon.svg": (ICON, "image/svg+xml")}
"""Content and media type of the files that pages load."""


async def _log_in(call: Call) -> Response:
    form = await read_form(call.request, MAX_LOGIN_FIELDS)
    return _to_overview(call.logins.log_in(form("token"), call.request.scope))


async def _log_out(call: Call) -> Response:
    return _to_overview(call.logins.log_out(call.request.scope))


def _to_overview(cookie: str) -> Response:
    return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})


def asset(content: str, kind: str) -> Callable[[Call], Any]:
    """Return the handler of a file that pages load. kind: its media type."""

    async def answer(call: Call) -> Response:
        return Response(content, media_type=kind)

    return answer
