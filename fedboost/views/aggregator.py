"""Views of an aggregator: its status on a terminal, the pages of its console, and its HTTP API.

Each section of a page can be read on its own, and an unchanged section renders to the same bytes. A party
that has never connected is shown differently from one that has disconnected.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, get_args

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from fedboost.errors import printable
from fedboost.gbdt.metrics import VALIDATION
from fedboost.results.session import (
    AggregatorState,
    EndedSession,
    Error,
    Health,
    LiveSession,
    Model,
    Session,
    SessionDetail,
    Site,
    Submitted,
)
from fedboost.terms.session import TASKS, task_of
from fedboost.version import VERSION
from fedboost.views.approval import TASK_WORDS
from fedboost.views.as_html import Served
from fedboost.views.document import (
    Badge,
    Block,
    Code,
    Document,
    Entries,
    Figure,
    Figures,
    Inline,
    Items,
    Line,
    Link,
    Names,
    Paragraph,
    Section,
    SideBySide,
    Table,
    Verdict,
    element,
    note,
    unless_empty,
)
from fedboost.views.model import curves_of, metrics_by_round
from fedboost.views.session import by_party
from fedboost.views.words import (
    MINUTE,
    capital,
    counted,
    delimited,
    duration,
    entry,
    paragraph,
    shorten,
    size,
    time_of,
)
from fedboost.views.words import Block as Printed
from fedboost.wire.messages import Member, SessionState, SessionStatus, SiteReply, Status

# ---- The status of an aggregator, and the sites' answers to a check of terms ----------------------------


NEVER = "has never connected to this aggregator"
WITHOUT_KEYS = "without keys"
IDLE = "No session is running."
_STATES = {
    SessionState.WAITING: "is waiting to start",
    SessionState.RUNNING: "is running",
    SessionState.FINISHED: "has ended; its model has not been fetched yet",
}


def waiting(parties: Sequence[str], absent: Mapping[str, datetime | None]) -> str:
    """Return a sentence about the parties that a session waits for. absent: maps each party that is not
    connected to the time when it was last connected, or to None if it has never connected."""
    if not parties:
        return "waiting: another session is running"
    seen = {party: 0 if last is None else int(last.timestamp()) for party, last in absent.items()}
    return (
        f"waiting for {', '.join(party + (_away(seen[party]) if party in seen else '') for party in parties)}"
    )


def _away(seen: int) -> str:
    return f" (away since {time_of(seen)} UTC)" if seen else f" ({NEVER})"


def status(facts: Status) -> Document:
    """Return a document with connected members, sessions, and the parties that each session awaits."""
    listed = ("Sites", sites_of(facts)), ("Analysts", analysts_of(facts))
    runs = [each for each in facts.sessions if each.state is SessionState.RUNNING]
    words = [_running(each, task_of(each.program).name, each.done) for each in runs] or [IDLE]
    blocks: list[Block] = [Verdict(" ".join(words))]
    tables = [members(caption, each, awaited_in(facts)) for caption, each in listed if each]
    blocks += tables or [note("No one is connected.")]
    blocks += [about(facts, session) for session in facts.sessions]
    if facts.others:
        blocks.append(note(f"Not shown: {counted(facts.others, 'session')} without this party."))
    lead = f"fedboost aggregator {delimited(facts.version)}, up for {_age(facts, facts.since)}"
    return Document("Status of the aggregator", lead, blocks)


def sites_of(facts: Status) -> list[Member]:
    return [member for member in facts.members if member.role == "party"]


def analysts_of(facts: Status) -> list[Member]:
    """Return the members that are not parties."""
    return [member for member in facts.members if member.role != "party"]


def awaited_in(facts: Status) -> set[str]:
    """Return the parties that any session waits for."""
    return {party for session in facts.sessions for party in session.awaited}


def members(
    caption: str, listed: Sequence[Member], awaited: Collection[str] = (), folded: bool | None = None
) -> Table:
    """Return a table of members: first those that a session waits for, then absent ones, then the others.

    Args:
        caption: caption of the table.
        listed: the members to show.
        awaited: names of the parties that a session waits for.
        folded: as for `Table`.
    """
    ordered = sorted(listed, key=lambda each: (each.name not in awaited, bool(each.since), each.name))
    rows = [
        (
            Names((each.name,)),
            _state(each, awaited),
            f"now, since {time_of(each.since)}"
            if each.since
            else (time_of(each.seen) if each.seen else "never"),
            each.version or ("older" if each.since else "-"),
        )
        for each in ordered
    ]
    return Table(caption, ["name", "state", "last seen (UTC)", "version"], rows, (), folded)


def _state(member: Member, awaited: Collection[str]) -> Inline:
    late = ", awaited" if member.name in awaited else ""
    if member.since:
        through = f" through {delimited(member.adder)}" if member.adder else ""
        return Badge(f"connected{through}{late}", "unclear" if late else "good")
    return Badge(f"{'away' if member.seen else 'never connected'}{late}", "bad" if late else "plain")


def about(facts: Status, session: SessionStatus) -> Entries:
    """Return the facts known about a session, as lines with a key and a text."""
    done = f", {session.done} of {session.rounds} rounds done" if session.name else ""
    lines: list[tuple[str, Line]] = [
        ("session", (Code(session.name or "a session"), f" {_STATES[session.state]}{done}")),
        ("requested", f"{time_of(session.since)} UTC, {_age(facts, session.since)} ago"),
        *agreed(session, task_of(session.program).name),
        ("terms", (Code(f"{session.terms[:12]}..."), f", {session.rounds} rounds")),
    ]
    if session.awaited or session.state is SessionState.WAITING:
        lines.append(("waiting for", waits_for(facts, session)))
    return Entries(lines)


def agreed(session: SessionStatus | Session, task: str) -> Iterator[tuple[str, Line]]:
    """Yield lines with the analyst, the task with its protection, and the parties of a session."""
    yield "analyst", Names((session.analyst,)) if session.analyst else WITHOUT_KEYS
    yield "task", f"{TASK_WORDS[task].name}, protection {session.protection}"
    yield "parties", (f"{len(session.parties)}: ", Names(session.parties))


def waits_for(facts: Status, session: SessionStatus) -> str:
    """Return the parties that a session waits for, each with the reason, as one string."""
    if not session.awaited:
        return "the running session" if session.state is SessionState.WAITING else "no particular site"
    why = dict.fromkeys(session.awaited, _away(0))
    for member in sites_of(facts):
        why[member.name] = " (connected, but has not answered)" if member.since else _away(member.seen)
    return ", ".join(f"{delimited(party)}{why[party]}" for party in session.awaited)


def _age(facts: Status, since: int) -> str:
    seconds = max(facts.now - since, 0)
    return duration(seconds) if seconds >= 10 else f"{seconds} s"


def check(sites: Sequence[SiteReply]) -> Iterator[Printed]:
    """Yield the sites' answers to a preflight, and how many sites would take part."""
    width = max(len(delimited(site.party)) for site in sites)
    for site in sites:
        answer = "yes" if site.would else "no" if site.answered else "unknown"
        yield f"{delimited(site.party):<{width}}  {answer}"
        yield from (entry("  -", printable(sentence), 4) for sentence in site.reasons or site.notes)
    would, noun = sum(site.would for site in sites), counted(len(sites), "site")
    yield f"\n{'all' if would == len(sites) > 1 else f'{would} of'} {noun} would take part"
    yield paragraph("A check does not read rows; only a session shows whether they fit the terms.")


MAX_ENDED = 10
"""Maximum number of ended sessions on the overview. The page of sessions lists all of them."""
MAX_REASON = 160
"""Maximum length of the reason for a failure in a table."""
MAX_AWAITED = 5
"""Maximum number of awaited sites that are listed in the verdict. The tables list all of them."""
MAX_METRICS = 3
"""Maximum number of metrics among the key figures."""
SAID_ROUNDS = 10
"""Number of rounds between announcements to a screen reader."""


CONSOLE = Served(
    "fedboost aggregator",
    "this aggregator",
    "The operator of the aggregator creates a token with: fedboost keys token NAME",
    {"/": "Overview", "/sites": "Sites", "/sessions": "Sessions and results"},
)


# ---- The overview: the running session, the queue, absent sites, and sessions that ended ----------------


def overview(state: AggregatorState) -> Document:
    """Return the overview page. Screen readers announce its lead, so the lead changes rarely."""
    live = state.live
    return Document(
        "Overview",
        _said(live),
        [
            Section("session", "Now", [*_now(state)], live=True),
            Section("queue", "Waiting to start", [_queue(state)], live=True),
            Section("sites", "Sites", [*_sites(state.status)], live=True),
            Section(
                "curves", "Curves", [SideBySide(metrics_by_round(live.rounds))] if live else [], live=True
            ),
            Section("ended", "Recently ended", [ended_table(state.ended[:MAX_ENDED])], live=True),
            Section("traffic", "Traffic", [by_party(live.traffic)] if live else [], live=True),
        ],
    )


def _said(live: LiveSession | None) -> str:
    if live is None:
        return IDLE
    done = len(live.rounds) // SAID_ROUNDS * SAID_ROUNDS
    return f"A session is running; rounds done: at least {done} of {live.status.rounds}.{_late(live.status)}"


def _running(status: SessionStatus, task: str, done: int) -> str:
    name = capital(TASK_WORDS[task].name)
    return f"{name} is running: {done} of {status.rounds} rounds done.{_late(status)}"


def _late(status: SessionStatus) -> str:
    return f" It is waiting for {counted(len(status.awaited), 'site')}." if status.awaited else ""


def _now(state: AggregatorState) -> Iterator[Block]:
    live = state.live
    if live is None:
        yield Verdict(IDLE)
        return
    status, done, left = live.status, len(live.rounds), live.seconds_left
    more = [f"Turn {live.turn}: the session {live.phase}."]
    if 0 < len(status.awaited) <= MAX_AWAITED:
        more.append(f"Missing: {waits_for(state.status, status)}.")
    yield Verdict(_running(status, live.task, done), "unclear" if status.awaited else "good", more)
    most = max(status.rounds, 1)
    yield element("progress", max=str(most), value=str(min(done, most)), aria_label="Rounds done")
    here = {member.name for member in sites_of(state.status) if member.since}
    time, away = "not known yet", ""
    if not here.issuperset(status.awaited):
        time, away = "unknown", "while a site is away"
    elif left is not None:
        time = f"about {left:.0f} s" if left < MINUTE else f"about {duration(left)}"
    figures = [Figure("remaining time", time, away), *_metrics(live), _traffic(live)]
    if live.slowest is not None:
        party, turns, seconds = live.slowest
        waited = f"{party}: last in {counted(turns, 'turn')}"
        figures.append(Figure("waited for the slowest site", duration(seconds), waited))
    yield Figures(figures)
    yield Section("more", "More about this session", [about(state.status, status)], folded=True)


def _traffic(session: SessionDetail) -> Figure:
    moved = sum(map(sum, session.traffic.values()))
    return Figure("traffic", size(moved), f"of {counted(len(session.parties), 'site')}")


def _metrics(session: SessionDetail) -> Iterator[Figure]:
    """Yield the last round's metrics over the rows of all parties, starting with those on validation rows."""
    done = len(session.rounds)
    curves = [each for each in curves_of(session.rounds[-1:]) if not each.party]
    for curve in sorted(curves, key=lambda each: each.rows != VALIDATION)[:MAX_METRICS]:
        rows = "held-out" if curve.rows == VALIDATION else "training"
        yield Figure(f"{curve.metric}, {rows} rows", f"{curve.values[1]:.4g}", f"after round {done}")


def _queue(state: AggregatorState) -> Block:
    rows = [
        (
            session.analyst or WITHOUT_KEYS,
            TASK_WORDS[task_of(session.program).name].name,
            Names(session.awaited) if session.awaited else "the running session",
            f"{time_of(session.since)} UTC",
            str(session.rounds),
            str(len(session.parties)),
        )
        for session in state.queue
    ]
    headings = ["analyst", "task", "waiting for", "requested", "rounds", "sites"]
    return (
        Table("Sessions waiting to start", headings, rows, (4, 5)) if rows else note("No session is waiting.")
    )


def _sites(status: Status) -> Iterator[Block]:
    sites = sites_of(status)
    if not sites:
        yield note("No site has connected yet.")
        return
    away = [member for member in sites if not member.since]
    here = f"{len(sites) - len(away)} of {counted(len(sites), 'site')} connected"
    yield Paragraph((Badge(here, "unclear" if away else "good"), " ", Link("All sites", "/sites")))
    if away:
        yield members("Sites that are away", away, awaited_in(status))


# ---- The other pages ------------------------------------------------------------------------------------


def sites(state: AggregatorState) -> Document:
    """Return the page that lists the members: first the sites that a session waits for, then absent ones."""
    status = state.status
    known, analysts = sites_of(status), analysts_of(status)
    here = sum(1 for member in known if member.since)
    said = f"{here} of {counted(len(known), 'site')} connected."
    own: list[Block] = [note("No site has connected yet.")]
    if known:
        awaited = awaited_in(status)
        late = [member for member in known if member.name in awaited or not member.since]
        own = [Verdict(said, "good" if here == len(known) else "unclear")]
        own += [members("Sites that are away or awaited", late, awaited, folded=False)] if late else []
        own.append(members("Sites that are connected", [each for each in known if each not in late]))
    none = note("No analyst is connected.")
    others = members("Analysts", analysts, folded=False) if analysts else none
    blocks = [
        Section("members", "Sites", own, live=True),
        Section("analysts", "Analysts", [others], live=True),
    ]
    return Document("Sites", said, blocks)


def sessions(state: AggregatorState) -> Document:
    """Return the page that lists the ended sessions."""
    kept = note(
        "The most recent sessions are kept in the aggregator's state folder, with their models and results. "
        "Reports are generated from these files, which do not contain any rows."
    )
    said = counted(len(state.ended), "ended session")
    content = Section("ended", "Ended sessions", [ended_table(state.ended)], live=True)
    return Document("Sessions and results", said, [kept, content])


def ended_table(ended: Iterable[EndedSession]) -> Block:
    rows = [
        (
            Link(_name(each), f"/sessions/{each.name}"),
            (Badge("failed", "bad"), f" {shorten(each.reason, MAX_REASON)}")
            if each.reason
            else (Badge("done", "good"), f" {_left(each)}"),
            f"{time_of(each.ended)} UTC",
            each.analyst or WITHOUT_KEYS,
            each.protection,
            str(len(each.rounds)),
            duration(each.seconds),
        )
        for each in ended
    ]
    headings = ["session", "result", "ended", "analyst", "protection", "rounds", "duration"]
    if not rows:
        return note("No session has ended yet.")
    return Table("Ended sessions", headings, rows, (5, 6), folded=False)


def _name(ended: EndedSession) -> str:
    return f"{capital(TASK_WORDS[ended.task].name)} {ended.name.removeprefix('session-')[:8]}"


def _left(ended: EndedSession) -> str:
    made = TASK_WORDS[ended.task].made
    return f"{made}, {size(ended.model_bytes)}" if ended.model_bytes else f"no {made}"


def ended_session(ended: EndedSession) -> Document:
    """Return the page of an ended session, with links to its report and its model file."""
    address, did = f"/api/v1/models/{ended.name}", capital(TASK_WORDS[ended.task].name)
    after = f"{time_of(ended.ended)} UTC, after {duration(ended.seconds)}"
    links: list[Inline] = [Link("Report", f"{address}/report")] if ended.has_report else []
    if ended.model_bytes:
        kind = "XGBoost JSON" if TASKS[ended.task].makes_model else "JSON"
        text = f"Download the {TASK_WORDS[ended.task].made} ({kind}), {size(ended.model_bytes)}"
        links.append(Link(text, address, f"{ended.name}.json"))
    end = Verdict(f"{did} failed: {ended.reason.strip()}.", "bad")
    if not ended.reason:
        end = Verdict(f"{did} done: {_left(ended)}.", "good")
    figures = [
        Figure("rounds", str(len(ended.rounds))),
        Figure("duration", duration(ended.seconds)),
        *_metrics(ended),
        _traffic(ended),
    ]
    entries: list[tuple[str, Line]] = [("session", Code(ended.name)), ("ended", after)]
    entries += [*agreed(ended, ended.task), ("digest of the terms", Code(ended.terms))]
    charts = metrics_by_round(ended.rounds)
    blocks = unless_empty(
        end,
        Items(links) if links else None,
        Figures(figures),
        Section("curves", "Rounds", [SideBySide(charts)]) if charts else None,
        Section("about", "About this session", [Entries(entries)], folded=True),
        Section("traffic", "Traffic", [replace(by_party(ended.traffic), folded=False)], folded=True),
    )
    return Document(_name(ended), f"ended {after}", blocks)


# ---- The HTTP API: its OpenAPI document, generated from the types of its responses ---------------------


BASE = "/api/v1"
Object = dict[str, Any]
_REFS = "#/components/schemas/{model}"
_FAULTS = {
    400: ("BadRequest", "malformed request"),
    401: ("NoToken", "missing or wrong token"),
    403: ("Forbidden", "token with another role, or request from a page of another website"),
    404: ("NotFound", "no such resource"),
    413: ("TooLarge", "request body too large"),
    422: ("NotFit", "invalid terms, or terms that the analyst has not signed"),
    429: ("TooMany", "too many wrong tokens from this address"),
}
_JSON = "application/json"
_OBJECT: Object = {"type": "object"}
_SIGNED: Object = {
    "type": "object",
    "description": "output of the command fedboost sign; has no `request` if analysts have no keys",
    "properties": {
        "terms": {"type": "string", "description": "canonical JSON", "pattern": "^\\{.*\\}$"},
        "request": _OBJECT,
    },
    "required": ["terms"],
}


class Operation(NamedTuple):
    """An operation of the API. answer: description of the response; content: type or schema of the response,
    or its media type if it is text; refused: HTTP codes of the errors that the operation can return, besides
    401, 403 and 429."""

    summary: str
    answer: str
    content: Any
    refused: Sequence[int] = ()
    status: int = 200


READ = {
    "/health": Operation("Health of the aggregator", "the aggregator is up", Health),
    "/sites": Operation("Sites that are or have been connected", "sites", list[Site]),
    "/sessions": Operation("Sessions; ended ones come last", "sessions", list[Session]),
    "/sessions/{name}": Operation("A session with its rounds", "the session", SessionDetail, [404]),
    "/models": Operation("Stored models", "models", list[Model]),
    "/models/{name}": Operation("Model file of a session", "XGBoost JSON", _OBJECT, [404]),
    "/models/{name}/report": Operation("Report of a model", "an HTML page", "text/html", [404]),
    "/metrics": Operation("Metrics for Prometheus", "Prometheus text format", "text/plain"),
    "/openapi.json": Operation("This document", "OpenAPI 3.1", _OBJECT),
}
SUBMIT = Operation(
    "Submit signed terms; requires a token with the role analyst and the analyst's own signature",
    "the session is running or waiting to start",
    Submitted,
    [400, 413, 422],
    202,
)


def _ref(kind: type) -> Object:
    return {"$ref": _REFS.format(model=kind.__name__)}


def _answer(what: str, content: Any) -> Object:
    kind, schema = _JSON, content
    if isinstance(content, str):
        kind, schema = content, {"type": "string"}
    elif of := get_args(content):
        schema = {"type": "array", "items": _ref(*of)}
    elif isinstance(content, type):
        schema = _ref(content)
    return {"description": what, "content": {kind: {"schema": schema}}}


def _described(operation: Operation, named: bool = False) -> Object:
    refused = {
        str(code): {"$ref": f"#/components/responses/{_FAULTS[code][0]}"}
        for code in (401, 403, *operation.refused, 429)
    }
    answers = {str(operation.status): _answer(operation.answer, operation.content)} | refused
    place = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    return {"summary": operation.summary, "responses": answers, **({"parameters": [place]} if named else {})}


def _paths() -> Object:
    signed = {"required": True, "content": {_JSON: {"schema": {"$ref": _REFS.format(model="SignedTerms")}}}}
    paths = {path: {"get": _described(row, "{name}" in path)} for path, row in READ.items()}
    paths["/sessions"]["post"] = {**_described(SUBMIT), "requestBody": signed, "security": [{"analyst": []}]}
    return paths


class _Untitled(GenerateJsonSchema):
    """Schema generator that omits the titles of fields, which would only repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schemas() -> Object:
    types = Error, Health, Site, Session, SessionDetail, Submitted, Model
    kinds = [(each, "serialization") for each in types]
    _, made = models_json_schema(kinds, ref_template=_REFS, schema_generator=_Untitled)  # type: ignore[arg-type]
    known = {each.__name__: made["$defs"][each.__name__] for each in types}
    about = "title", "description"
    own = {name: {k: v for k, v in schema.items() if k not in about} for name, schema in known.items()}
    return {"SignedTerms": _SIGNED, **own}


def openapi() -> Object:
    """Return the OpenAPI 3.1 description of the HTTP API."""
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fedboost aggregator",
            "version": VERSION,
            "description": "Reading requires a token of any role, unless the console listens on a loopback "
            'address. Errors are JSON: {"error": "..."}.',
        },
        "servers": [{"url": BASE}],
        "security": [{}, {"viewer": []}, {"analyst": []}],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "responses": {name: _answer(what, Error) for name, what in _FAULTS.values()},
            "securitySchemes": {
                "viewer": {**bearer, "description": "a token with the role viewer"},
                "analyst": {**bearer, "description": "a token with the role analyst"},
            },
        },
    }
