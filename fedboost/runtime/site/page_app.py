"""The page of a site as an application: its routes, who may reach it, its start and stop."""

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from fedboost.errors import ConfigError
from fedboost.runtime.aggregator.limits import Refusals, noting
from fedboost.runtime.site.config import SitePageConfig
from fedboost.runtime.site.page import Decision, SiteOffice
from fedboost.runtime.web.forms import asset_routes, read_form
from fedboost.runtime.web.guard import (
    App,
    Guard,
    Refusal,
    asker_of,
    is_loopback_name,
)
from fedboost.runtime.web.logins import Caller, Logins, Tokens
from fedboost.runtime.web.serving import WebServer
from fedboost.views import shell as assets
from fedboost.views import site
from fedboost.views.site import (
    Reader,
    refused,
)

# ---- The page of a site as an ASGI application ----------------------------------------------------------
# Promises: every page is for callers with a token; a decision needs a login, a form of its pages, and the
# token of an officer once more; nothing changes by GET; what reads files or rows runs beside the event
# loop.
# Refuses: who has no token, whose token does not fit, and who asks for too much at a time (Refusal).


T = TypeVar("T")
READERS, OFFICER = ("viewer", "officer"), "officer"
ASSETS = {"/style.css": (site.STYLE, "text/css"), "/icon.svg": (assets.ICON, "image/svg+xml")}
MAX_FIELDS = 8
"""Of a form."""
MAX_AT_ONCE = 4
"""Pages and decisions of one token's owner that are worked on, or wait for it, at a time."""
DECISIONS = {"approve": True, "refuse": False}


def application(office: SiteOffice, logins: Logins, tokens: Tokens, pool: Executor) -> App:
    """The application. pool: threads that read files and rows, which sessions do not need."""
    own = _Pages(office, logins, tokens, pool)
    routes = [
        *asset_routes(ASSETS),
        Route("/", own.overview),
        Route("/requests", own.requests),
        Route("/requests/{name}", own.request),
        Route("/requests/{name}", own.decide, methods=["POST"]),
        Route("/audit", own.audit),
        Route("/audit/{number:int}", own.session),
        Route("/budget", own.budget),
        Route("/policy", own.policy),
        Route("/login", own.log_in, methods=["POST"]),
        Route("/logout", own.log_out, methods=["POST"]),
    ]
    return Router(routes, redirect_slashes=False)  # pages of errors are the guard's


class _Pages:
    def __init__(self, office: SiteOffice, logins: Logins, tokens: Tokens, pool: Executor) -> None:
        self._office = office
        self._pool = pool
        self._logins = logins
        self._tokens = tokens
        self._at_once = Counter[str]()
        """By the name of the token's owner."""

    async def overview(self, request: Request) -> Response:
        return await self._page(request, lambda reader: site.overview_page(self._office.overview(), reader))

    async def requests(self, request: Request) -> Response:
        return await self._page(request, lambda reader: site.requests_page(self._office.requests(), reader))

    async def request(self, request: Request) -> Response:
        name = request.path_params["name"]
        return await self._page(
            request, lambda reader: site.decision_page(self._office.decision(name), reader)
        )

    async def audit(self, request: Request) -> Response:
        def drawn(reader: Reader) -> str:
            try:
                return site.audit_page(self._office.audit(), "", reader)
            except ConfigError as error:
                return site.audit_page(None, str(error), reader)

        return await self._page(request, drawn)

    async def session(self, request: Request) -> Response:
        number = request.path_params["number"]

        def drawn(reader: Reader) -> str:
            sessions = self._office.audit().sessions
            if not 1 <= number <= len(sessions):
                raise Refusal(HTTPStatus.NOT_FOUND, "the log has no such session")
            return site.session_page(number, sessions[number - 1], reader)

        return await self._page(request, drawn)

    async def budget(self, request: Request) -> Response:
        return await self._page(request, lambda reader: site.budget_page(*self._office.budget(), reader))

    async def policy(self, request: Request) -> Response:
        return await self._page(request, lambda reader: site.policy_page(self._office.policy(), reader))

    async def _page(self, request: Request, draw: Callable[[Reader], str]) -> Response:
        """A page for who asks, drawn beside the event loop. Raises Refusal."""
        reader = self._reader(request)
        text = await self._beside(reader.name, draw, reader)
        return HTMLResponse(text, headers={"Content-Security-Policy": site.POLICY})

    async def decide(self, request: Request) -> Response:
        caller = self._caller(request)
        form = await self._form(request, caller)
        by = self._tokens.owner(form("token").strip(), asker_of(request.scope).address)
        if by.role != OFFICER or by.name != caller.name:
            reason = f"to decide takes a token of the role {OFFICER}, the one of this login"
            raise Refusal(HTTPStatus.FORBIDDEN, reason)
        approves = DECISIONS.get(form("decision"))
        if approves is None:
            raise Refusal(HTTPStatus.BAD_REQUEST, "neither approve nor refuse")
        decision = Decision(approves, form("digest"), form("analyst"), form("seen"), by.name)
        name = request.path_params["name"]
        await self._beside(by.name, self._office.decide, name, decision)
        return RedirectResponse(f"/requests/{name}", HTTPStatus.SEE_OTHER)

    async def log_in(self, request: Request) -> Response:
        form = await read_form(request, MAX_FIELDS)
        token = form("token").strip()
        owner = self._tokens.owner(token, asker_of(request.scope).address)
        _check_role(owner.role)
        cookie = self._logins.log_in(token, request.scope)
        return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})

    async def log_out(self, request: Request) -> Response:
        await self._form(request, self._caller(request))
        cookie = self._logins.log_out(request.scope)
        return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})

    async def _beside(self, owner: str, work: Callable[..., T], *arguments: object) -> T:
        """The result of what must not hold up the event loop. owner: of the token. Raises Refusal."""
        if self._at_once[owner] >= MAX_AT_ONCE:
            reason = f"{MAX_AT_ONCE} requests of {owner} are worked on already: wait for them"
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, reason, {"Retry-After": "1"})
        self._at_once[owner] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        finally:
            self._at_once[owner] -= 1

    def _caller(self, request: Request) -> Caller:
        caller = self._logins.caller(request.scope)
        _check_role(caller.role)
        return caller

    def _reader(self, request: Request) -> Reader:
        caller = self._caller(request)
        key = self._logins.form_key(request.scope) if caller.by_cookie else ""
        return Reader(caller.name, caller.role == OFFICER, key)

    async def _form(self, request: Request, caller: Caller) -> Callable[[str], str]:
        """The fields of a form of a page that this login was shown. Raises Refusal."""
        if not caller.by_cookie:
            raise Refusal(HTTPStatus.FORBIDDEN, "to decide, log in with a browser")
        form = await read_form(request, MAX_FIELDS)
        if not hmac.compare_digest(form("key").encode(), self._logins.form_key(request.scope).encode()):
            raise Refusal(HTTPStatus.FORBIDDEN, "this form is of no page of this login: read the page again")
        return form


def _check_role(role: str) -> None:
    if role not in READERS:
        raise Refusal(HTTPStatus.FORBIDDEN, f"a token of the role {role}; this needs {' or '.join(READERS)}")


# ---- The page of a site: who may reach it, and its start and stop ---------------------------------------
# Promises: it listens on a loopback address alone, answers under names of this machine alone, and every
# page needs a token; whatever fails here ends no session.
# Refuses: an address that is taken, a file of tokens that is none (ConfigError).


WHAT = "site's page"
THREADS = 2
"""Pages that are drawn at a time."""
EVENT = "page refused"
"""The name of refusals in the log."""


class SitePage:
    """The page, from `start` to `stop`."""

    def __init__(self, config: SitePageConfig, office: SiteOffice, log: Any) -> None:
        """Listen. ConfigError if that cannot be."""
        if not config.tokens.exists():
            raise ConfigError(
                f"{config.tokens}: there is no such file, and who reads this site's page needs a token: make "
                f"one with `fedboost keys token NAME --role {OFFICER} --file {config.tokens}`"
            )
        tokens = Tokens(config.tokens, log)
        self._log = log
        note = noting(Refusals(log, None), EVENT)
        logins = Logins(tokens, is_open=False, encrypted=False)
        self._pool = ThreadPoolExecutor(THREADS, "page")
        app = Guard(application(office, logins, tokens, self._pool), is_loopback_name, note, log, refused)
        self._server = WebServer(WHAT, config.listen, app, log, note)
        port = self.address.rpartition(":")[2]
        logins.cookie = f"fedboost-site-{port}"  # browsers keep one jar for all ports of a machine

    @property
    def address(self) -> str:
        """The address that it listens on."""
        return self._server.address

    async def start(self) -> None:
        """Serve, in tasks of the running event loop."""
        await self._server.start()
        readers = "on this machine alone; who reads needs a token"
        self._log.info("the site's page is served", address=self._server.url, readers=readers)

    async def stop(self) -> None:
        """End all that is open."""
        await self._server.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
