"""Web console of an aggregator: pages for people and a JSON API for programs. `views` renders the pages."""

import asyncio
import os
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Generic, TypeVar

from cryptography import x509
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import TypeAdapter
from starlette.responses import HTMLResponse, JSONResponse, Response

from fedboost.errors import ConfigError, PeerError
from fedboost.privacy.identity import SERVER_NAME
from fedboost.results.base import Ended
from fedboost.results.session import (
    AggregatorState,
    EndedSession,
    Health,
    LiveSession,
    SessionDetail,
    Site,
    Submitted,
)
from fedboost.runtime.aggregator.archive import MAX_ENDED, MAX_FAILED, Archive, StatusService, Submissions
from fedboost.runtime.aggregator.limits import Refusals
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.config import ConsoleConfig, is_loopback
from fedboost.runtime.net.keys import CERTIFICATE, KEY, Bundle
from fedboost.runtime.signed_model import SignedModel, verified, written
from fedboost.runtime.web.app import About, Call, Row, WebApp, analyst_program, anybody, asset
from fedboost.runtime.web.guard import App, Receive, Refusal, Scope, Send, is_loopback_name
from fedboost.views import aggregator as pages
from fedboost.views import as_html
from fedboost.views.aggregator import BASE, READ, openapi, sites_of
from fedboost.views.document import Document
from fedboost.views.results import RESULTS, document
from fedboost.wire.codec import MAX_TO_AGGREGATOR
from fedboost.wire.messages import SessionState

# ---- The console's view of an aggregator ----------------------------------------------------------------


PHASES = {
    "joining": "waits for the parties to join",
    "asking": "waits for answers to a query",
    "opening": "decrypts or unmasks a sum",
    "closing": "waits for the parties to sign the model",
}


class ConsoleQueries:
    """Read-only access to an aggregator's state, for the console."""

    def __init__(
        self, sessions: Sessions, status: StatusService, archive: Archive, submissions: Submissions
    ) -> None:
        self.archive = archive
        self.submissions = submissions
        self.metrics = sessions.metrics
        self.trust = sessions.trust
        self._sessions = sessions
        self._status = status

    def state(self) -> AggregatorState:
        status = self._status.seen_by(None)
        return AggregatorState(status, self._live(), tuple(self.archive.ended))

    def ended(self, name: str) -> EndedSession:
        found = self.archive.find(name)
        if found is None:
            raise Refusal(
                HTTPStatus.NOT_FOUND, "there is no ended session with this name, or it is no longer kept"
            )
        return found

    def report(self, ended: EndedSession) -> str:
        """Return an HTML report about the model or result of an ended session. Raises Refusal (404) if the
        model is no longer kept or the result is invalid."""
        data = self.archive.model(ended.name)
        if data is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "the model of this session is no longer kept")
        model = SignedModel.from_bytes(data, ended.name)
        session = Ended(model.terms, tuple(model.attestations), ended.traffic, ended.rounds)
        if kind := RESULTS.get(model.terms.task.name):
            try:
                return as_html.report(document(kind.read(model.summary, session)))
            except PeerError:
                reason = "the result of this session does not match its terms"
                raise Refusal(HTTPStatus.NOT_FOUND, reason) from None
        trust, known = self.trust, None
        if trust is not None:
            known = verified(model, "model", trust.roots, trust.clock(), trust.denied)
        return written(model, verification=known, session=session)

    def _live(self) -> LiveSession | None:
        active = self._sessions.active
        if active is None:
            return None
        session, pace, meter = active.session, active.pace, active.meter
        waits = pace.waits.get(pace.slowest)
        return LiveSession.of(
            status := self._status.of(active, SessionState.RUNNING),
            status=status,
            task=active.terms.task.name,
            phase=PHASES.get(session.phase, session.phase),
            turn=session.turn,
            rounds=meter.history,
            seconds=meter.seconds,
            traffic=meter.traffic,
            slowest=None if waits is None else (pace.slowest, waits.turns, waits.seconds),
        )


# ---- A cache of rendered pages --------------------------------------------------------------------------
# A value is not rendered again while it is kept, and nothing is rendered in the event loop. Live pages are
# rendered at most twice a second, however many requests there are.


T = TypeVar("T")


class RenderCache(Generic[T]):
    """Cache of the most recently rendered values. Values are rendered in a thread, and only one is rendered
    at a time. most: number of values to keep."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._drawn: dict[Hashable, T] = {}
        self._one = asyncio.Lock()

    async def of(self, key: Hashable, draw: Callable[[], T]) -> T:
        if key in self._drawn:
            return self._drawn[key]
        async with self._one:
            if key not in self._drawn:
                drawn = await asyncio.to_thread(draw)
                self._drawn = {**dict([*self._drawn.items()][1 - self._most :]), key: drawn}
            return self._drawn[key]


# ---- Downloads of model files, in parts -----------------------------------------------------------------
# A download takes the memory of one part, however large the model. There are at most MAX_DOWNLOADS at a time.


MAX_DOWNLOADS = 8
PART_BYTES = 1 << 18
DOWNLOAD_SECONDS = 600.0  # a longer download is ended, so that another can start


async def _send_model(archive: Archive, name: str, head_only: bool, send: Send) -> None:
    opened = await asyncio.to_thread(archive.model_file, name)
    if opened is None:
        raise Refusal(HTTPStatus.NOT_FOUND, "this session has no model, or it is no longer kept")
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


# ---- The routes of a console, and of its interface for programs ----------------------------------------
# JSON is under /api/v1, as `views.api` describes it. Answers are only for callers that may read. A submission
# needs an analyst's token and the analyst's own signature, which this process cannot make.


LIVE: dict[str, Callable[[AggregatorState], Document]] = {
    "/": pages.overview,
    "/sites": pages.sites,
    "/sessions": pages.sessions,
}
"""Maps path of a live page (a page that browsers reload regularly) -> function that creates its content."""
DRAW_SECONDS = 0.5  # a live page is rendered once in this time, for all requests
LISTS: dict[str, Callable[[AggregatorState], Any]] = {
    "/health": lambda state: Health(status="serving", version=state.status.version, since=state.status.since),
    "/sites": lambda state: [Site.of(member) for member in sites_of(state.status)],
    "/sessions": lambda state: state.sessions,
    "/models": lambda state: [each for each in state.ended if each.model_bytes],
}
"""Maps path -> function that computes the API's answer, whose type is in the API's description."""
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
"""Content security policy of report pages, which have inline styles."""
MAX_DRAWN = 4  # reports in the cache
MAX_BODY = 2 * MAX_TO_AGGREGATOR  # maximum size of signed terms, which are JSON within JSON


class Answers:
    def __init__(self, queries: ConsoleQueries) -> None:
        self._queries = queries
        self._live: RenderCache[Document] = RenderCache(len(LIVE))
        self._running: RenderCache[bytes] = RenderCache(1)
        self._json: RenderCache[bytes] = RenderCache(MAX_ENDED)
        self._pages: RenderCache[Document] = RenderCache(MAX_ENDED + MAX_FAILED)
        self._reports: RenderCache[str] = RenderCache(MAX_DRAWN)
        self._downloads = 0
        """Number of downloads in progress."""

    @property
    def table(self) -> list[Row]:
        return [
            *(Row(path, partial(self._live_page, path)) for path in LIVE),
            Row("/sessions/{name}", self._session_page),
            *(Row(f"{BASE}{path}", partial(self._list, path)) for path in LISTS),
            Row(f"{BASE}/sessions", self._submit, analyst_program, "POST", MAX_BODY),
            Row(f"{BASE}/sessions/{{name}}", self._session),
            Row(f"{BASE}/models/{{name}}", self._model),
            Row(f"{BASE}/models/{{name}}/report", self._report),
            Row(f"{BASE}/metrics", self._metrics),
            Row(f"{BASE}/openapi.json", self._openapi),
            Row("/script.js", asset(as_html.SCRIPT, "text/javascript"), anybody),
        ]

    async def _live_page(self, path: str, call: Call) -> Document:
        draw = partial(_drawn, LIVE[path], self._queries.state())
        return await self._live.of((path, _now()), draw)

    async def _session_page(self, call: Call) -> Document:
        ended = self._ended(call)
        return await self._pages.of(ended.key, partial(_drawn, pages.ended_session, ended))

    async def _list(self, path: str, call: Call) -> bytes:
        return _json(READ[path].content, LISTS[path](self._queries.state()))

    async def _submit(self, call: Call) -> Response:
        try:
            submitted = await self._queries.submissions.submit(await call.request.body(), call.caller.name)
        except ConfigError as error:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, error.public) from None
        return Response(_json(Submitted, submitted), HTTPStatus.ACCEPTED, media_type="application/json")

    def _ended(self, call: Call) -> EndedSession:
        return self._queries.ended(call.request.path_params["name"])

    async def _session(self, call: Call) -> bytes:
        live = self._queries.state().live
        if live is not None and live.name == call.request.path_params["name"]:
            return await self._running.of((live.name, _now()), partial(_json, SessionDetail, live))
        ended = self._ended(call)
        return await self._json.of(ended.key, partial(_json, SessionDetail, ended))

    async def _model(self, call: Call) -> App:
        return partial(self._download, self._ended(call).name)

    async def _download(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        if self._downloads >= MAX_DOWNLOADS:
            reason = f"{MAX_DOWNLOADS} downloads are already in progress; try again later"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason, {"Retry-After": "10"})
        self._downloads += 1
        try:
            async with asyncio.timeout(DOWNLOAD_SECONDS):
                await _send_model(self._queries.archive, name, scope["method"] == "HEAD", send)
        except TimeoutError:
            reason = f"the download took longer than {DOWNLOAD_SECONDS:g} s"
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, reason) from None
        finally:
            self._downloads -= 1

    async def _report(self, call: Call) -> Response:
        ended = self._ended(call)
        if not ended.has_report:
            raise Refusal(HTTPStatus.NOT_FOUND, "this session has no model or result to report on")
        text = await self._reports.of(ended.key, partial(self._queries.report, ended))
        return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})

    async def _metrics(self, call: Call) -> Response:
        return Response(generate_latest(self._queries.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _openapi(self, call: Call) -> Response:
        return JSONResponse(openapi())


def _page(call: Call, document: Document) -> str:
    """Render a document as an HTML page, with a logout button for callers who logged in."""
    path = call.request.url.path
    caller = f"{call.caller.name} " if call.caller.by_cookie else ""
    return as_html.served_page(pages.CONSOLE, path, document, caller, live=path in LIVE)


def _json(of: Any, value: Any) -> bytes:
    return TypeAdapter(of).dump_json(value, by_alias=True)


def _drawn(view: Callable[[Any], Document], of: Any) -> Document:
    document = view(of)
    return replace(document, blocks=[as_html.body(document.blocks)])


def _now() -> float:
    """Return the number of the current half second, for use in cache keys."""
    return time.monotonic() // DRAW_SECONDS


# ---- The console: access, start and stop ----------------------------------------------------------------
# On a loopback address, everyone on this machine may read, but only under names of this machine. Any other
# address uses TLS with the aggregator's certificate, and needs a token. A failure here ends no session.


ABOUT = About("console", "console is served", "console refused", pages.CONSOLE, _page)


class Console(WebApp):
    """The console's web application. It listens at once. Call `start` to serve and `stop` to shut down."""

    def __init__(
        self,
        config: ConsoleConfig,
        bundle: Bundle | None,
        queries: ConsoleQueries,
        refusals: Refusals,
        log: Any,
    ) -> None:
        """Start listening on the configured address.

        Args:
            config: address and token file.
            bundle: the aggregator's certificate and key, or None.
            queries: source of the displayed data.
            refusals: rate-limited log of refused requests.
            log: structlog logger.

        Raises:
            ConfigError: the address or the token file cannot be used, or keys or tokens are missing although
                the address is not a loopback address.
        """
        local = is_loopback(config.listen)
        if not local and bundle is None:
            raise ConfigError(
                "console-no-keys",
                f"console: {config.listen} is not a loopback address, but without keys nothing is encrypted; "
                f"set `keys`, or listen on 127.0.0.1",
            )
        if not local and config.tokens is None:
            raise ConfigError(
                "console-no-tokens",
                f"console: {config.listen} is not a loopback address, so readers need tokens; create one "
                f"with `fedboost keys token NAME --file tokens.toml`, and set `tokens` to that file",
            )
        names: Callable[[str], bool] = is_loopback_name
        pair = None
        if not local and bundle is not None:
            names, pair = names_of(bundle), (bundle.folder / CERTIFICATE, bundle.folder / KEY)
        table = Answers(queries).table
        readers = "anyone on this machine may read" if local else "TLS; readers need a token"
        where = config.listen, config.tokens, names, readers
        super().__init__(ABOUT, table, *where, refusals, log, local, pair)


def names_of(bundle: Bundle) -> Callable[[str], bool]:
    """Return a function that checks whether a host name is an IP address or in the aggregator's certificate.
    A website's own name is neither, even if it resolves to this host (DNS rebinding)."""
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
