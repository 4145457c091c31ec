"""The page of a site as an ASGI application.

Promises: every page is for callers with a token; a decision needs a login, a form of its pages, and the token
of an officer once more; nothing changes by GET; what reads files or rows runs beside the event loop.
Refuses: who has no token, and whose token does not fit (Refusal).
"""

import asyncio
import hmac
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from fedboost.errors import ConfigError
from fedboost.people.console import assets
from fedboost.people.console.site import audit, budget, overview, policy, requests, shell, style
from fedboost.people.console.site.facts import Reader
from fedboost.runtime.site.page.office import Decision, SiteOffice
from fedboost.runtime.web.guard import App, Refusal, asker_of
from fedboost.runtime.web.logins import Caller, Logins
from fedboost.runtime.web.tokens import Tokens

READERS, OFFICER = ("viewer", "officer"), "officer"
ASSETS = {"/style.css": (style.STYLE, "text/css"), "/icon.svg": (assets.ICON, "image/svg+xml")}
MAX_FORM = 4096
DECISIONS = {"approve": True, "refuse": False}


def application(office: SiteOffice, logins: Logins, tokens: Tokens) -> App:
    """The application."""
    own = _Pages(office, logins, tokens)
    routes = [Route(path, partial(_asset, *content)) for path, content in ASSETS.items()]
    routes += [
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


async def _asset(content: str, kind: str, request: Request) -> Response:
    return Response(content, media_type=kind)


class _Pages:
    def __init__(self, office: SiteOffice, logins: Logins, tokens: Tokens) -> None:
        self._office = office
        self._logins = logins
        self._tokens = tokens

    async def overview(self, request: Request) -> Response:
        reader = self._reader(request)
        return _page(overview.page(await asyncio.to_thread(self._office.overview), reader))

    async def requests(self, request: Request) -> Response:
        reader = self._reader(request)
        return _page(requests.page(await asyncio.to_thread(self._office.requests), reader))

    async def request(self, request: Request) -> Response:
        reader, name = self._reader(request), request.path_params["name"]
        return _page(requests.decision_page(await asyncio.to_thread(self._office.decision, name), reader))

    async def audit(self, request: Request) -> Response:
        reader = self._reader(request)
        try:
            return _page(audit.page(await asyncio.to_thread(self._office.audit), "", reader))
        except ConfigError as error:
            return _page(audit.page(None, str(error), reader))

    async def session(self, request: Request) -> Response:
        reader, number = self._reader(request), request.path_params["number"]
        facts = await asyncio.to_thread(self._office.audit)
        if not 1 <= number <= len(facts.sessions):
            raise Refusal(HTTPStatus.NOT_FOUND, "the log has no such session")
        return _page(audit.session_page(number, facts.sessions[number - 1], reader))

    async def budget(self, request: Request) -> Response:
        reader = self._reader(request)
        return _page(budget.page(*await asyncio.to_thread(self._office.budget), reader))

    async def policy(self, request: Request) -> Response:
        return _page(policy.page(self._office.policy(), self._reader(request)))

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
        await asyncio.to_thread(self._office.decide, name, decision)
        return RedirectResponse(f"/requests/{name}", HTTPStatus.SEE_OTHER)

    async def log_in(self, request: Request) -> Response:
        form = await _read_form(request)
        token = form("token").strip()
        owner = self._tokens.owner(token, asker_of(request.scope).address)
        _check_role(owner.role)
        cookie = self._logins.log_in(token, request.scope)
        return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})

    async def log_out(self, request: Request) -> Response:
        await self._form(request, self._caller(request))
        cookie = self._logins.log_out(request.scope)
        return RedirectResponse("/", HTTPStatus.SEE_OTHER, {"Set-Cookie": cookie})

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
        form = await _read_form(request)
        if not hmac.compare_digest(form("key").encode(), self._logins.form_key(request.scope).encode()):
            raise Refusal(HTTPStatus.FORBIDDEN, "this form is of no page of this login: read the page again")
        return form


def _page(text: str) -> Response:
    return HTMLResponse(text, headers={"Content-Security-Policy": shell.POLICY})


def _check_role(role: str) -> None:
    if role not in READERS:
        raise Refusal(HTTPStatus.FORBIDDEN, f"a token of the role {role}; this needs {' or '.join(READERS)}")


async def _read_form(request: Request) -> Callable[[str], str]:
    """The first value of each field of a form, '' of one that it lacks. Raises Refusal."""
    body = await request.body()
    if len(body) > MAX_FORM:
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {MAX_FORM} bytes")
    try:
        fields = parse_qs(body.decode(), max_num_fields=8)
    except ValueError:
        raise Refusal(HTTPStatus.BAD_REQUEST, "this is no form of a page") from None
    return lambda name: fields.get(name, [""])[0]
