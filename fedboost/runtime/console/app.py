"""The pages of a console, and the events of those that are live, as an ASGI application.

Promises: each page and event is for callers that may read; what is wrong is a Refusal, which the guard
answers and logs.
Refuses: pages that there are not, and callers without a token where one is needed (Refusal).
"""

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, Router

from fedboost.people.console import openapi, pages, shell
from fedboost.people.report.markup import Markup
from fedboost.runtime.aggregator.archive import MAX_ENDED
from fedboost.runtime.console.api import Api
from fedboost.runtime.console.kept import Kept
from fedboost.runtime.console.live import Live
from fedboost.runtime.console.office import Office
from fedboost.runtime.web.forms import asset_routes, read_form
from fedboost.runtime.web.guard import App, Refusal
from fedboost.runtime.web.logins import Caller, Logins

Page = Callable[[Mapping[str, str], str], str]
PAGES: dict[str, tuple[str, Page]] = {
    "/": (pages.LIVE, pages.page),
    "/sites": (pages.SITES, pages.sites_page),
    "/sessions": (pages.SESSIONS, pages.sessions_page),
    "/log": (pages.LOG, pages.log_page),
}
"""By their paths: what their parts are called, and how they are put together."""
PARTS = {
    pages.LIVE: pages.parts,
    pages.SITES: pages.sites_parts,
    pages.SESSIONS: pages.sessions_parts,
    pages.LOG: pages.log_parts,
}
ASSETS = {
    "/style.css": (shell.STYLE, "text/css"),
    "/script.js": (shell.SCRIPT, "text/javascript"),
    "/icon.svg": (shell.ICON, "image/svg+xml"),
}
MAX_FIELDS = 4
"""Of the form for a token."""
MAX_CALLERS = 16
"""Callers for whom the page of the interface is kept."""


def application(office: Office, live: Live, logins: Logins) -> App:
    """The application."""
    own = _Pages(office, live, logins)
    routes: list[BaseRoute] = [Route(path, partial(own.page, *page)) for path, page in PAGES.items()]
    routes += asset_routes(ASSETS)
    routes += [
        Route("/sessions/{name}", own.session),
        Route("/api", own.api),
        Route("/events/{page}", own.events),
        Route("/login", own.log_in, methods=["POST"]),
        Route("/logout", own.log_out, methods=["POST"]),
        *Api(office, logins).routes(),
    ]
    return Router(routes, redirect_slashes=False)  # pages of errors are the guard's


def _shown(caller: Caller) -> str:
    """The name that a page has for its caller: of who logged in, and can log out."""
    return caller.name if caller.by_cookie else ""


class _Pages:
    def __init__(self, office: Office, live: Live, logins: Logins) -> None:
        self._office = office
        self._live = live
        self._logins = logins
        self._ended: Kept[Markup] = Kept(MAX_ENDED)
        self._interface: Kept[str] = Kept(MAX_CALLERS)

    async def page(self, name: str, page: Page, request: Request) -> Response:
        caller = self._logins.caller(request.scope)
        return HTMLResponse(page(self._live.parts(name), _shown(caller)))

    async def session(self, request: Request) -> Response:
        caller = self._logins.caller(request.scope)
        ended = self._office.archive.find(request.path_params["name"])
        if ended is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "no session of this name is kept")
        drawn = await self._ended.of((ended.name, ended.ended), partial(pages.session_content, ended))
        return HTMLResponse(pages.session_page(ended.name, drawn, _shown(caller)))

    async def api(self, request: Request) -> Response:
        name = _shown(self._logins.caller(request.scope))
        return HTMLResponse(await self._interface.of(name, partial(openapi.page, name)))

    async def events(self, request: Request) -> App:
        check = partial(self._logins.caller, request.scope)
        check()
        return partial(self._live.serve, request.path_params["page"], check)

    async def log_in(self, request: Request) -> Response:
        form = await read_form(request, MAX_FIELDS)
        cookie = self._logins.log_in(form("token"), request.scope)
        return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})

    async def log_out(self, request: Request) -> Response:
        cookie = self._logins.log_out(request.scope)
        return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})
