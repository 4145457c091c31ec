"""The console that an aggregator serves: pages for people, JSON for programs, drawn in `views`."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Generic, TypeVar

from cryptography import x509
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, Router

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.identity import SERVER_NAME
from fedboost.protocol.key_exchange import Trust
from fedboost.results.base import Ended
from fedboost.runtime.aggregator.archive import MAX_ENDED, Archive, Submissions
from fedboost.runtime.aggregator.limits import Refusals, noting
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.aggregator.status import StatusOffice
from fedboost.runtime.config import ConsoleConfig, is_loopback
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.net.keys import CERTIFICATE, KEY, Bundle
from fedboost.runtime.signed_model import SignedModel, verified, written
from fedboost.runtime.web.forms import asset_routes, read_form
from fedboost.runtime.web.guard import (
    App,
    Guard,
    Receive,
    Refusal,
    Scope,
    Send,
    is_loopback_name,
)
from fedboost.runtime.web.logins import Caller, Logins, Tokens
from fedboost.runtime.web.serving import WebServer
from fedboost.views import api as openapi
from fedboost.views import as_html, shell
from fedboost.views import console as pages
from fedboost.views.api import BASE
from fedboost.views.api import openapi as openapi_document
from fedboost.views.markup import Markup
from fedboost.views.results import RESULTS, document
from fedboost.views.shell import ConsoleFacts, EndedFacts, LiveFacts, refused
from fedboost.wire.codec import MAX_TO_AGGREGATOR
from fedboost.wire.messages import SessionState, SessionStatus

# ---- What a console shows of an aggregator, as facts ----------------------------------------------------
# Promises: nothing is changed by looking.


PHASES = {
    "joining": "calls the parties together",
    "asking": "waits for the answers to a question",
    "opening": "opens a sum",
    "closing": "has the parties sign the model",
}


class Office:
    """The aggregator as its console sees it. log: the last lines of its log."""

    def __init__(
        self,
        sessions: Sessions,
        status: StatusOffice,
        archive: Archive,
        submissions: Submissions,
        log: Iterable[str],
    ) -> None:
        self.archive = archive
        self.submissions = submissions
        self._sessions = sessions
        self._status = status
        self._log = log

    @property
    def metrics(self) -> AggregatorMetrics:
        """The metrics of the aggregator."""
        return self._sessions.metrics

    @property
    def trust(self) -> Trust | None:
        """Whom the aggregator trusts; None without keys."""
        return self._sessions.trust

    def facts(self) -> ConsoleFacts:
        """The facts now."""
        status = self._status.seen_by(None)
        return ConsoleFacts(status, self._live(), tuple(self.archive.ended), tuple(self._log))

    def _live(self) -> LiveFacts | None:
        active = self._sessions.active
        if active is None:
            return None
        session, pace = active.session, active.pace
        waits = pace.waits.get(pace.slowest)
        return LiveFacts(
            status=self._status.of(active, SessionState.RUNNING),
            phase=PHASES.get(session.phase, session.phase),
            turn=session.turn,
            rounds=tuple(active.meter.history),
            seconds=active.meter.seconds,
            traffic=dict(active.meter.traffic),
            slowest=None if waits is None else (pace.slowest, waits.turns, waits.seconds),
        )


# ---- What a console has drawn, kept for the next who asks -----------------------------------------------
# Promises: what is kept is not drawn again; nothing large is drawn in the event loop but what is live, and
# that at most every so often, however many ask.


T = TypeVar("T")


class Kept(Generic[T]):
    """Drawings of what never changes, the last `most`: drawn beside the event loop, one at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._drawn: dict[Hashable, T] = {}
        self._one = asyncio.Lock()

    async def of(self, key: Hashable, draw: Callable[[], T]) -> T:
        """The drawing of this key."""
        if key in self._drawn:
            return self._drawn[key]
        async with self._one:
            if key not in self._drawn:
                drawn = await asyncio.to_thread(draw)
                self._drawn = {**dict([*self._drawn.items()][1 - self._most :]), key: drawn}
            return self._drawn[key]


class Recent(Generic[T]):
    """The drawing of what changes: the last one, for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._drawn: tuple[Hashable, T] | None = None
        self._until = 0.0

    def of(self, key: Hashable, draw: Callable[[], T]) -> T:
        """The drawing of this key."""
        if self._drawn is None or self._drawn[0] != key or time.monotonic() >= self._until:
            self._drawn = key, draw()
            self._until = time.monotonic() + self._seconds
        return self._drawn[1]


# ---- Model files on their way to readers, in parts ------------------------------------------------------
# Promises: a reader takes the memory of one part, however large the model; one that is too slow is cut off.
# Refuses: models that are gone, and more than MAX_DOWNLOADS at a time (Refusal).


MAX_DOWNLOADS = 8
PART_BYTES = 1 << 18
DOWNLOAD_SECONDS = 600.0
"""A reader that takes longer is cut off: others wait for its place."""


class Downloads:
    """The downloads from an archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._under_way = 0

    async def serve(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the model file of a session. Raises Refusal."""
        if self._under_way >= MAX_DOWNLOADS:
            reason = f"{MAX_DOWNLOADS} models are sent already; ask again later"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason, {"Retry-After": "10"})
        self._under_way += 1
        try:
            async with asyncio.timeout(DOWNLOAD_SECONDS):
                await self._send(name, scope["method"] == "HEAD", send)
        except TimeoutError:
            reason = f"the model was not read within {DOWNLOAD_SECONDS:g} s"
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, reason) from None
        finally:
            self._under_way -= 1

    async def _send(self, name: str, head_only: bool, send: Send) -> None:
        opened = await asyncio.to_thread(self._archive.model_file, name)
        if opened is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "this session has no model, or it is not kept")
        with opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % size),
                (b"content-disposition", f'attachment; filename="{name}.json"'.encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not head_only and (part := await asyncio.to_thread(opened.read, PART_BYTES)):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


# ---- Reports of the models that a console keeps, drawn beside the event loop, one at a time -------------
# Promises: the last ones are drawn once.
# Refuses: models that are gone (Refusal).


MAX_DRAWN = 4
"""Reports that are kept."""


class Reports:
    """The reports of an archive's models. trust: by which signatures are checked; None without keys."""

    def __init__(self, archive: Archive, trust: Trust | None) -> None:
        self._archive = archive
        self._trust = trust
        self._kept: Kept[str] = Kept(MAX_DRAWN)

    async def written(self, ended: EndedFacts) -> str:
        """The report of a session's model, as a page."""
        return await self._kept.of((ended.name, ended.ended), partial(self._draw, ended))

    def _draw(self, ended: EndedFacts) -> str:
        data = self._archive.model(ended.name)
        if data is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "the model of this session is not kept")
        model = SignedModel.from_bytes(data, ended.name)
        session = Ended(model.terms, tuple(model.attestations), ended.traffic, ended.rounds)
        if kind := RESULTS.get(model.terms.task.name):
            try:
                result = kind.read(model.summary, session)
            except PeerError:
                reason = "this session left no result under its terms"
                raise Refusal(HTTPStatus.NOT_FOUND, reason) from None
            return as_html.report(document(result))
        trust = self._trust
        known = None
        if trust is not None:
            known = verified(model, "model", trust.roots, trust.clock(), trust.denied)
        return written(model, verification=known, session=session)


# ---- Live pages: what changed is drawn once for all that look, and sent as server-sent events -----------
# Promises: nothing is drawn while nobody looks, and at most every DRAW_SECONDS otherwise, however many ask;
# a reader that does not keep up is dropped, and holds nobody up; one that may read no more is sent nothing
# more.
# Refuses: more than MAX_READERS at a time (Refusal).


DRAW_SECONDS = 0.5
MAX_READERS = 256
UNREAD_EVENTS = 8
"""Events that wait for one reader; one with more is dropped."""
QUIET_SECONDS = 15.0
"""A reader is sent a sign of life after this."""
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]

Parts = Mapping[str, str]
"""The id of a part of a page to its HTML."""
Draw = Callable[[ConsoleFacts], Parts]
Queue = asyncio.Queue[bytes | None]


class Live:
    """The readers of live pages. pages: how the parts of each page are drawn, by its name."""

    def __init__(self, office: Office, pages: Mapping[str, Draw], log: Any) -> None:
        self._office = office
        self._pages = pages
        self._log = log
        self._readers: dict[str, set[Queue]] = {name: set() for name in pages}
        self._drawn: dict[str, Parts] = {}
        self._until: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def readers(self) -> int:
        """How many look now."""
        return sum(map(len, self._readers.values()))

    def start(self) -> None:
        """Draw, in a task of the running event loop."""
        self._task = asyncio.create_task(self._draw_on(), name="console")

    def stop(self) -> None:
        """Draw no more, and say good-bye to all readers."""
        if self._task is not None:
            self._task.cancel()
        for queues in self._readers.values():
            for queue in queues:
                _hang_up(queue)

    def parts(self, page: str) -> Parts:
        """The parts of a page, as its readers have them; where nobody looks, not older than DRAW_SECONDS."""
        if not self._readers[page] and time.monotonic() >= self._until.get(page, 0.0):
            self._draw(page, self._office.facts())
        return self._drawn[page]

    async def serve(
        self, page: str, check: Callable[[], object], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the parts of a page, and then each part that changes, until the reader is gone or dropped.
        check: raises Refusal if the reader may not read, and is asked before each event. Raises Refusal if
        this is no page, or one reader too many."""
        if page not in self._pages:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        start = {"type": "http.response.start", "status": 200, "headers": HEADERS}
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        if self.readers >= MAX_READERS:
            wait = {"Retry-After": "10"}
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_READERS} pages are open already", wait)
        queue: Queue = asyncio.Queue()
        queue.put_nowait(_event(self.parts(page)))
        self._readers[page].add(queue)
        gone = asyncio.create_task(_until_gone(receive, queue), name="console reader")
        try:
            await send(start)
            while (event := await _next(queue)) is not None:
                check()
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._readers[page].discard(queue)
            gone.cancel()

    async def _draw_on(self) -> None:
        while True:
            await asyncio.sleep(DRAW_SECONDS)
            if not self.readers:
                continue
            try:
                facts = self._office.facts()
                for page, queues in self._readers.items():
                    if queues and (changed := self._draw(page, facts)):
                        self._send(queues, _event(changed))
            except Exception as error:  # noqa: BLE001 - a page that cannot be drawn must not end the next one
                self._log.error("a live page failed", reason=f"{type(error).__name__}: {error}")
                await asyncio.sleep(QUIET_SECONDS)

    def _draw(self, page: str, facts: ConsoleFacts) -> Parts:
        """Draw a page; the parts that changed."""
        before, parts = self._drawn.get(page, {}), self._pages[page](facts)
        self._drawn[page], self._until[page] = parts, time.monotonic() + DRAW_SECONDS
        return {name: part for name, part in parts.items() if before.get(name) != part}

    def _send(self, queues: set[Queue], event: bytes) -> None:
        for queue in [*queues]:
            if queue.qsize() < UNREAD_EVENTS:
                queue.put_nowait(event)
            else:
                queues.discard(queue)
                _hang_up(queue)


async def _until_gone(receive: Receive, queue: Queue) -> None:
    """Wait until a reader hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    _hang_up(queue)


async def _next(queue: Queue) -> bytes | None:
    """The next event of a reader; a sign of life where there is none for a while."""
    try:
        async with asyncio.timeout(QUIET_SECONDS):
            return await queue.get()
    except TimeoutError:
        return b":\n\n"


def _hang_up(queue: Queue) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)


def _event(parts: Parts) -> bytes:
    return f"data: {json.dumps(dict(parts))}\n\n".encode()


# ---- The console's interface for programs ---------------------------------------------------------------
# JSON under /api/v1, as `views.api` describes it.
# Promises: what is read is what the pages show; a submission needs an analyst's token and the analyst's own
# signature, which this process cannot make.
# Refuses: as the guard does, with JSON `{"error": ...}`.


REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
"""The policy of a report, which has its style in it."""
_STATES = {SessionState.WAITING: "waiting", SessionState.RUNNING: "running", SessionState.FINISHED: "done"}


class Api:
    """The answers to programs."""

    def __init__(self, office: Office, logins: Logins) -> None:
        self._office = office
        self._logins = logins
        self._live: Recent[str] = Recent(DRAW_SECONDS)
        self._kept: Kept[str] = Kept(MAX_ENDED)
        self._downloads = Downloads(office.archive)
        self._reports = Reports(office.archive, office.trust)

    def routes(self) -> list[BaseRoute]:
        """The routes of the interface."""
        read = {
            "/health": self._health,
            "/sites": self._sites,
            "/sessions/{name}": self._session,
            "/models": self._models,
            "/models/{name}": self._model,
            "/models/{name}/report": self._report,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
        }
        routes: list[BaseRoute] = [Route(f"{BASE}{path}", answer) for path, answer in read.items()]
        return [*routes, Route(f"{BASE}/sessions", self._sessions, methods=["GET", "POST"])]

    def _facts(self, request: Request) -> ConsoleFacts:
        """The facts, for whoever may read them."""
        self._logins.caller(request.scope)
        return self._office.facts()

    def _ended(self, request: Request) -> EndedFacts:
        """The session of the address that is over; Refusal if there is none."""
        self._logins.caller(request.scope)
        ended = self._office.archive.find(request.path_params["name"])
        if ended is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "no session of this name is kept")
        return ended

    async def _health(self, request: Request) -> Response:
        status = self._facts(request).status
        return JSONResponse({"status": "serving", "version": status.version, "since": status.since})

    async def _sites(self, request: Request) -> Response:
        members = (member for member in self._facts(request).status.members if member.role == "party")
        sites = [
            {
                "name": member.name,
                "connected": bool(member.since),
                "since": member.since,
                "seen": member.seen,
                "version": member.version,
            }
            for member in members
        ]
        return JSONResponse(sites)

    async def _sessions(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._submit(request)
        facts = self._facts(request)
        known = {ended.name for ended in facts.ended}
        shown = [_shown(status) for status in facts.status.sessions if status.name not in known]
        return JSONResponse([*shown, *(_shown_ended(ended) for ended in facts.ended)])

    async def _session(self, request: Request) -> Response:
        live = self._facts(request).live
        if live is not None and live.status.name == request.path_params["name"]:
            text = self._live.of(live.status.name, lambda: _live_json(live))
        else:
            ended = self._ended(request)
            text = await self._kept.of((ended.name, ended.ended), lambda: _ended_json(ended))
        return Response(text, media_type="application/json")

    async def _submit(self, request: Request) -> Response:
        caller = self._logins.need(request.scope, "analyst")
        if caller.by_cookie:
            raise Refusal(
                HTTPStatus.FORBIDDEN, "a submission needs the token itself: Authorization: Bearer TOKEN"
            )
        try:
            asked = await self._office.submissions.submit(await request.body(), caller.name)
        except ConfigError as error:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, error.public) from None
        state = "running" if asked.name else "waiting"
        answer = {"terms": asked.digest, "state": state, "name": asked.name, "missing": asked.missing}
        return JSONResponse(answer, HTTPStatus.ACCEPTED)

    async def _models(self, request: Request) -> Response:
        models = [
            {
                "name": each.name,
                "ended": each.ended,
                "analyst": each.analyst,
                "terms": each.terms,
                "bytes": each.model_bytes,
                "report": each.has_report,
            }
            for each in self._facts(request).ended
            if each.model_bytes
        ]
        return JSONResponse(models)

    async def _model(self, request: Request) -> App:
        return partial(self._downloads.serve, self._ended(request).name)

    async def _report(self, request: Request) -> Response:
        ended = self._ended(request)
        if not ended.has_report:
            raise Refusal(HTTPStatus.NOT_FOUND, "this session left no model that a report can be drawn of")
        text = await self._reports.written(ended)
        return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})

    async def _metrics(self, request: Request) -> Response:
        self._logins.caller(request.scope)
        return Response(generate_latest(self._office.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _openapi(self, request: Request) -> Response:
        self._logins.caller(request.scope)
        return JSONResponse(openapi_document())


def _shown(status: SessionStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "state": _STATES[status.state],
        "analyst": status.analyst,
        "terms": status.terms,
        "program": status.program,
        "protection": status.protection,
        "parties": status.parties,
        "rounds_done": status.done,
    }


def _shown_ended(ended: EndedFacts) -> dict[str, Any]:
    return {
        "name": ended.name,
        "state": "failed" if ended.reason else "done",
        "analyst": ended.analyst,
        "terms": ended.terms,
        "program": ended.program,
        "protection": ended.protection,
        "parties": ended.parties,
        "rounds_done": len(ended.rounds),
    }


def _live_json(live: LiveFacts) -> str:
    more = {"rounds": live.rounds, "traffic": live.traffic, "reason": "", "model": False}
    return _json(_shown(live.status) | more)


def _ended_json(ended: EndedFacts) -> str:
    about = {"reason": ended.reason, "model": ended.model_bytes > 0}
    return _json(_shown_ended(ended) | {"rounds": ended.rounds, "traffic": ended.traffic} | about)


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# ---- The pages of a console, and the events of those that are live, as an ASGI application --------------
# Promises: each page and event is for callers that may read; what is wrong is a Refusal, which the guard
# answers and logs.
# Refuses: pages that there are not, and callers without a token where one is needed (Refusal).


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


def _page(caller: Caller) -> str:
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
        return HTMLResponse(page(self._live.parts(name), _page(caller)))

    async def session(self, request: Request) -> Response:
        caller = self._logins.caller(request.scope)
        ended = self._office.archive.find(request.path_params["name"])
        if ended is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "no session of this name is kept")
        drawn = await self._ended.of((ended.name, ended.ended), partial(pages.session_content, ended))
        return HTMLResponse(pages.session_page(ended.name, drawn, _page(caller)))

    async def api(self, request: Request) -> Response:
        name = _page(self._logins.caller(request.scope))
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


# ---- The console of an aggregator: who may reach it, and its start and stop -----------------------------
# Promises: on a loopback address whoever is on this machine may read, under names of this machine alone; on
# another address TLS with the aggregator's certificate is spoken, and a token is needed; whatever fails
# here ends no session.
# Refuses: another address than a loopback one without keys or tokens, an address that is taken, a missing
# extra (ConfigError).


WHAT = "console"
EVENT = "console refused"
"""The name of refusals in the log and in the metrics."""
MAX_BODY = 2 * MAX_TO_AGGREGATOR
"""Bytes of signed terms: JSON within JSON."""


class Console:
    """The console, from `start` to `stop`."""

    def __init__(
        self, config: ConsoleConfig, bundle: Bundle | None, office: Office, refusals: Refusals, log: Any
    ) -> None:
        """Listen. ConfigError if that cannot be."""
        local = is_loopback(config.listen)
        if not local and bundle is None:
            raise ConfigError(
                f"console: {config.listen} is no loopback address, and without keys nothing is encrypted: "
                f"name `keys`, or let it listen on 127.0.0.1"
            )
        if not local and config.tokens is None:
            raise ConfigError(
                f"console: {config.listen} is no loopback address, so whoever reads needs a token: make one "
                f"with `fedboost keys token NAME --file tokens.toml`, and name the file in `tokens`"
            )
        tokens = None if config.tokens is None else Tokens(config.tokens, log)
        self._log = log
        note = noting(refusals, EVENT)
        self._live = Live(office, PARTS, log)
        logins = Logins(tokens, is_open=local, encrypted=not local)
        names = is_loopback_name if local or bundle is None else names_of(bundle)
        pages = application(office, self._live, logins)
        app = Guard(pages, names, note, log, refused, {f"{BASE}/sessions": MAX_BODY})
        folder = None if local or bundle is None else bundle.folder
        pair = None if folder is None else (folder / CERTIFICATE, folder / KEY)
        self._server = WebServer(WHAT, config.listen, app, log, note, pair)
        self._who = "anybody on this machine may read" if local else "TLS; whoever reads needs a token"

    @property
    def url(self) -> str:
        """The address of its pages."""
        return self._server.url

    async def start(self) -> None:
        """Serve, in tasks of the running event loop."""
        await self._server.start()
        self._live.start()
        self._log.info("console is served", address=self._server.url, readers=self._who)

    async def stop(self) -> None:
        """End all that is open."""
        self._live.stop()
        await self._server.stop()

    def close(self) -> None:
        """Stop listening, where `start` was never called."""
        self._server.close()


def names_of(bundle: Bundle) -> Any:
    """Tells whether a host's name is in the aggregator's certificate, or an address: no website's name leads
    here under one of these."""
    leaf = x509.load_pem_x509_certificates(bundle.certificate)[0]
    known = {SERVER_NAME}
    for extension in leaf.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            known |= {name.lower() for name in extension.value.get_values_for_type(x509.DNSName)}

    def is_own(name: str) -> bool:
        try:
            return bool(ip_address(name))
        except ValueError:
            return name.lower() in known

    return is_own
