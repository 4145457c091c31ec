"""Web applications: a table of routes behind the guard, with login and logout, style, icon and error pages.

Guarantees: a route's access check runs before its handler. If an application has keyed forms, a form is only
valid with the CSRF token of the login to which it was shown. Handlers that are plain functions run in the
application's threads, where their results are also rendered. Handlers that are coroutine functions run in the
event loop.
Raises: Refusal for callers without permission, and for readers with too many simultaneous requests.
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
from fedboost.runtime.web import guard
from fedboost.runtime.web.logins import Caller, Logins, Tokens
from fedboost.runtime.web.serving import WebServer
from fedboost.views.as_html import ICON, SERVED_STYLE, Served, refused
from fedboost.views.document import Document

MAX_FIELDS, MAX_LOGIN_FIELDS = 8, 4
"""Maximum number of fields in the form of a page, and in the login form."""
OFFICER = "officer"
"""Role of the people who approve or refuse terms for a site."""
CLIENT = "client"
"""Role of the programs that a site's scoring service answers. They read no page of any other process."""
THREADS = 2
"""Number of threads for work that must not block the event loop. Sessions do not use them."""

NOBODY = Caller("", "viewer")
Form = Callable[[str], str]
"""Function that returns the first value of a form field, or '' if the form does not have it."""


@dataclass
class Call:
    """A request to a route. The access check of the route sets `caller` and, if a form was sent, `form`."""

    logins: Logins
    request: Request
    caller: Caller = NOBODY
    form: Form = lambda name: ""

    @property
    def form_key(self) -> str:
        """CSRF token for the forms shown to this login; '' unless a browser logged in."""
        return self.logins.form_key(self.request.scope) if self.caller.by_cookie else ""


# ---- Who may use a route: each raises Refusal, and fills in the caller or the form of the call ----------


AccessCheck = Callable[[Call], Awaitable[None]]


async def anybody(call: Call) -> None:
    """Allow everyone."""


async def reader(call: Call) -> None:
    """Allow callers who may read pages. Raises Refusal for others."""
    call.caller = call.logins.caller(call.request.scope)


def program(role: str, reason: str) -> AccessCheck:
    """Return the access check for programs that send a token with this role. reason: what a browser's login
    is told."""

    async def check(call: Call) -> None:
        call.caller = call.logins.need(call.request.scope, role)
        if call.caller.by_cookie:
            raise guard.Refusal(HTTPStatus.FORBIDDEN, reason)

    return check


analyst_program = program(
    "analyst", "a submission must send its token in the header Authorization: Bearer TOKEN"
)
scoring_program = program(CLIENT, "send the token in the header Authorization: Bearer TOKEN")


async def any_form(call: Call) -> None:
    """Allow everyone who sends a form. Raises Refusal if the body is not a form."""
    call.form = await read_form(call.request)


async def own_form(call: Call) -> None:
    """Allow logged-in browsers that send a form from a page of the same login. Raises Refusal for others."""
    await reader(call)
    if not call.caller.by_cookie:
        raise guard.Refusal(HTTPStatus.FORBIDDEN, "to decide, log in with a browser")
    call.form = await read_form(call.request)
    if not hmac.compare_digest(call.form("key").encode(), call.form_key.encode()):
        raise guard.Refusal(
            HTTPStatus.FORBIDDEN, "this form does not belong to this login: reload the page and try again"
        )


async def officer_form(call: Call) -> None:
    """Allow officers (users who approve or refuse terms) who send a form from a page shown to their login,
    and who enter its token again. Raises Refusal for others."""
    await own_form(call)
    owner = call.logins.owner(call.form("token"), call.request.scope)
    if owner.role != OFFICER or owner.name != call.caller.name:
        reason = f"to decide, enter the token with role {OFFICER} that was used to log in"
        raise guard.Refusal(HTTPStatus.FORBIDDEN, reason)


async def read_form(request: Request, most: int = MAX_FIELDS) -> Form:
    """Parse the form in a request's body. most: maximum number of fields. Raises Refusal if the body is not a
    form or has too many fields."""
    try:
        found = parse_qs((await request.body()).decode("latin-1"), max_num_fields=most)
    except ValueError:
        raise guard.Refusal(HTTPStatus.BAD_REQUEST, "the request does not contain a valid form") from None
    return lambda name: found.get(name, [""])[0]


# ---- The table of routes, and the application made of it ------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A route of an application. path: may contain {parameters}; handler: function that takes the call and
    returns a Document, JSON as bytes, a response or an ASGI application; who: access check; max_body: maximum
    size of the request's body in bytes."""

    path: str
    handler: Callable[[Call], Any]
    who: AccessCheck = reader
    method: str = "GET"
    max_body: int = guard.MAX_BODY


@dataclass(frozen=True)
class About:
    """Constants of an application.

    Attributes:
        name: used in errors and the log.
        served: event to log when the application starts to serve.
        event: name of the event, in the log and in metrics, for a refused request.
        frame: header and navigation of its pages.
        page: function that renders a document as a page.
        policy: content security policy of its pages (default: the guard's).
        readers: roles whose tokens may read (default: those of people).
        keyed: True if forms contain the CSRF token of the login.
        at_once: maximum number of requests of one reader that are in progress or waiting.
        rate: requests per second from one address, and how many may be saved up.
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
    rate: tuple[float, float] = (guard.REQUESTS_PER_SECOND, guard.REQUESTS_SAVED)


class WebApp:
    """A web application (HTML pages with login) that listens on one address. Call `start` to serve and `stop`
    to shut down."""

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
        """Start listening.

        Args:
            about, table: constants and routes of the application.
            listen: address, HOST:PORT.
            tokens: path of the token file, or None.
            names: function that checks whether a host name belongs to this process.
            readers: description of who may read, for the log.
            refusals: rate-limited log of refused requests.
            log: structlog logger.
            is_open: True if everyone who can reach the pages may read them.
            pair: paths of the certificate and key (PEM) for TLS; None for plain HTTP.

        Raises:
            ConfigError: the process cannot listen on the address, or cannot read the token file.
        """
        known = None if tokens is None else Tokens(tokens, log)
        self.logins = Logins(known, is_open, encrypted=pair is not None, readers=about.readers)
        self._about, self._log, self._readers = about, log, readers
        self._pool = ThreadPoolExecutor(THREADS, "page")
        self._at_once = Counter[str]()
        """Maps name of a token's owner -> number of requests in progress."""

        def note(asker: guard.RequestOrigin, refusal: guard.Refusal) -> None:
            peer, end = f"a client from {asker.address}", f"{asker.address}:{asker.port}"
            reason = f"{refusal.status}: {refusal.reason}"
            refusals.note(about.event, peer, reason, address=end, asked=asker.what)

        bodies = {row.path: row.max_body for row in table if row.max_body != guard.MAX_BODY}
        app = guard.Guard(
            self._application(table), names, note, log, partial(refused, about.frame), bodies, about.rate
        )
        self._server = WebServer(about.name, listen, app, log, note, pair)

    @property
    def url(self) -> str:
        """URL to open in a browser."""
        return self._server.url

    async def start(self) -> None:
        """Start serving, in tasks of the running event loop."""
        await self._server.start()
        self._log.info(self._about.served, address=self.url, readers=self._readers)

    async def stop(self) -> None:
        """Stop serving, and end all connections and requests."""
        await self._server.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _application(self, table: Sequence[Row]) -> guard.App:
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
        return Router(routes, redirect_slashes=False)  # the guard renders the pages of errors

    def finished(self, call: Call, found: Any) -> guard.App:
        """Return the response for a handler's result."""
        if isinstance(found, Document):
            policy = {"Content-Security-Policy": self._about.policy} if self._about.policy else None
            return HTMLResponse(self._about.page(call, found), headers=policy)
        return Response(found, media_type="application/json") if isinstance(found, bytes) else found

    async def beside(self, call: Call, handler: Callable[[Call], Any]) -> guard.App:
        """Run a handler in a thread. Raises Refusal if the reader has too many requests in progress."""
        owner = call.caller.name
        if self._at_once[owner] >= self._about.at_once:
            reason = f"{self._about.at_once} requests of {owner} are already in progress; try again later"
            raise guard.Refusal(HTTPStatus.TOO_MANY_REQUESTS, reason, {"Retry-After": "1"})
        self._at_once[owner] += 1
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, lambda: self.finished(call, handler(call)))
        finally:
            self._at_once[owner] -= 1


async def _answer(logins: Logins, web: WebApp, methods: Mapping[str, Row], request: Request) -> guard.App:
    """Check the caller's access, then run the handler: coroutines in the event loop, others in a thread."""
    row = methods["GET" if request.method == "HEAD" else request.method]
    call = Call(logins, request)
    await row.who(call)
    if iscoroutinefunction(row.handler):
        return web.finished(call, await row.handler(call))
    return await web.beside(call, row.handler)


# ---- Routes of every application ------------------------------------------------------------------------


_ASSETS = {"/style.css": (SERVED_STYLE, "text/css"), "/icon.svg": (ICON, "image/svg+xml")}
"""Maps path -> content and media type of the files that all pages load."""


async def _log_in(call: Call) -> Response:
    form = await read_form(call.request, MAX_LOGIN_FIELDS)
    return _to_overview(call.logins.log_in(form("token"), call.request.scope))


async def _log_out(call: Call) -> Response:
    return _to_overview(call.logins.log_out(call.request.scope))


def _to_overview(cookie: str) -> Response:
    return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})


def asset(content: str, kind: str) -> Callable[[Call], Any]:
    """Return a handler that sends a fixed file. content: its text; kind: its media type."""

    async def answer(call: Call) -> Response:
        return Response(content, media_type=kind)

    return answer
