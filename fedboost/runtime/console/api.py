"""The console's interface for programs: JSON under /api/v1, as `people.console.openapi` describes it.

Promises: what is read is what the pages show; a submission needs an analyst's token and the analyst's own
signature, which this process cannot make.
Refuses: as the guard does, with JSON `{"error": ...}`.
"""

import json
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from fedboost.errors import ConfigError
from fedboost.people.console.openapi import BASE, openapi
from fedboost.people.console.shell import ConsoleFacts, EndedFacts, LiveFacts
from fedboost.runtime.aggregator.archive import MAX_ENDED
from fedboost.runtime.console.downloads import Downloads
from fedboost.runtime.console.kept import Kept, Recent
from fedboost.runtime.console.live import DRAW_SECONDS
from fedboost.runtime.console.office import Office
from fedboost.runtime.console.reports import Reports
from fedboost.runtime.web.guard import App, Refusal
from fedboost.runtime.web.logins import Logins
from fedboost.wire.services import SessionState, SessionStatus

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
        return JSONResponse(openapi())


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
