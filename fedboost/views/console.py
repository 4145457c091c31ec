"""Pages of the console: the overview, a session, the sites, sessions that ended.

Promises: every part can be read without the others; a part that did not change draws the same bytes.
Refuses: nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from fedboost.gbdt.metrics import VALIDATION
from fedboost.views.charts import draw
from fedboost.views.document import Lines, Series
from fedboost.views.elements import left_out, names, paragraph, table
from fedboost.views.markup import Markup, element, joined, lines
from fedboost.views.model import curves_of
from fedboost.views.shell import ConsoleFacts, EndedFacts, LiveFacts, document, part
from fedboost.views.status import time_of
from fedboost.views.words import MINUTE, counted, duration, shorten, size
from fedboost.wire.messages import Member, SessionStatus

LIVE = "overview"
MAX_CHARTS = 4
MAX_ENDED = 10
"""Sessions that ended which the overview has; the page of sessions has all."""
MAX_REASON = 160
"""Characters of the reason of a failure; the page of the session has all."""
SAID_ROUNDS = 10
"""A screen reader is told of every tenth round."""
TITLES = {
    "session": "Session under way",
    "curves": "Curves",
    "traffic": "Traffic",
    "queue": "Queue",
    "sites": "Sites",
    "ended": "Sessions that ended last",
}


def page(drawn: Mapping[str, str], caller: str) -> str:
    """Return the page. drawn: its parts."""
    sections = (part(name, title, Markup(drawn[name])) for name, title in TITLES.items())
    return document("/", "Overview", *sections, live=LIVE, caller=caller, said=drawn["said"])


def parts(facts: ConsoleFacts) -> Mapping[str, str]:
    """Return the parts of the page that change."""
    return {
        "said": said(facts),
        "session": _session(facts.live),
        "curves": _curves(facts.live),
        "traffic": _traffic(facts.live),
        "queue": _queue(facts),
        "sites": _sites(facts),
        "ended": ended_table(facts.ended[:MAX_ENDED]),
    }


def said(facts: ConsoleFacts) -> str:
    """Return what a screen reader is told: changes seldom."""
    live = facts.live
    if live is None:
        return "No session is under way."
    done = len(live.rounds) // SAID_ROUNDS * SAID_ROUNDS
    late = f" It waits for {counted(len(live.status.awaited), 'site')}." if live.status.awaited else ""
    return f"A session is under way; rounds done: at least {done} of {live.status.rounds}.{late}"


def _session(live: LiveFacts | None) -> Markup:
    if live is None:
        return left_out("No session is under way.")
    status, done = live.status, len(live.rounds)
    left = live.seconds_left
    entries = {
        "session": element("code", status.name),
        "analyst": status.analyst or "without keys",
        "asked for": f"{time_of(status.since)} UTC",
        "program": f"{status.program}, protection {status.protection}",
        "terms": element("code", f"{status.terms[:12]}…"),
        "parties": names(status.parties),
        "rounds": f"{done} of {status.rounds}",
        "time left": "not known yet" if left is None else f"about {_about(left)}",
        "now": f"turn {live.turn}: it {live.phase}",
        "waits for": names(status.awaited) if status.awaited else "nobody in particular",
        "slowest": _slowest(live),
        "bytes": size(sum(map(sum, live.traffic.values()))),
    }
    bar = element(
        "progress",
        max=str(max(status.rounds, 1)),
        value=str(min(done, status.rounds)),
        aria_label="Rounds done",
    )
    return joined(
        bar,
        table("The session in short", ["what", "value"], entries.items(), (), folded=False),
    )


def _curves(live: LiveFacts | None) -> Markup:
    """Return charts of the rounds; nothing, and the part is hidden, before there are any."""
    drawn = [] if live is None else [*charts(live.rounds)]
    return element("div", *drawn, class_="charts") if drawn else Markup("")


def _about(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < MINUTE else duration(seconds)


def _slowest(live: LiveFacts) -> str:
    if live.slowest is None:
        return "not known yet"
    party, turns, seconds = live.slowest
    waited = f"the others waited {duration(seconds)} for it"
    return f"{party}: the last to answer in {counted(turns, 'turn')}; {waited}"


def charts(rounds: Iterable[Mapping[str, float]]) -> Iterable[Markup]:
    """Return a chart of each metric over all rows, and of the seconds of a round."""
    history = [*rounds]
    curves = [curve for curve in curves_of(history) if not curve.party]
    for metric in [*dict.fromkeys(curve.metric for curve in curves)][:MAX_CHARTS]:
        own = [curve for curve in curves if curve.metric == metric]
        series = [
            Series(VALIDATION if c.rows == VALIDATION else "training rows", [*c.values.items()]) for c in own
        ]
        yield draw(Lines(f"{metric} by round", series, "round", metric, whole=True))
    seconds = [(number, row["seconds"]) for number, row in enumerate(history, 1) if "seconds" in row]
    if len(seconds) > 2:  # the first round includes what comes before it
        title = "Seconds of a round, from the second on"
        yield draw(Lines(title, [Series("seconds", seconds[1:])], "round", "seconds", whole=True))


def _traffic(live: LiveFacts | None) -> Markup:
    if live is None:
        return Markup("")
    waits = live.slowest[0] if live.slowest else ""
    rows = (
        (party + (" (slowest)" if party == waits else ""), *map(size, moved))
        for party, moved in live.traffic.items()
    )
    return table("Bytes of each party", ["party", "sent", "received"], rows)


def _queue(facts: ConsoleFacts) -> Markup:
    if not facts.queue:
        return left_out("No session waits.")
    headings = ["analyst", "asked for", "terms", "program", "rounds", "parties", "waits for"]
    rows = (
        (
            session.analyst or "without keys",
            f"{time_of(session.since)} UTC",
            f"{session.terms[:12]}…",
            f"{session.program}, {session.protection}",
            str(session.rounds),
            str(len(session.parties)),
            _waits_for(session),
        )
        for session in facts.queue
    )
    return table("Sessions that wait to begin", headings, rows, (4, 5))


def _waits_for(session: SessionStatus) -> str:
    return names(session.awaited) if session.awaited else "the session under way"


def _sites(facts: ConsoleFacts) -> Markup:
    sites = [member for member in facts.status.members if member.role == "party"]
    away = [member.name for member in sites if not member.since]
    text = f"{len(sites) - len(away)} of {counted(len(sites), 'site')} connected."
    if not sites:
        return left_out("No site was ever here.")
    absent = joined("Away: ", names(away), ". ") if away else Markup("")
    return element("div", f"{text} ", absent, element("a", "All sites", href="/sites"))


def ended_table(ended: Iterable[EndedFacts]) -> Markup:
    """Return a table of sessions that are over."""
    headings = ["session", "ended", "analyst", "program", "rounds", "took", "end"]
    rows = [
        (
            element("a", each.name[:16], href=f"/sessions/{each.name}"),
            f"{time_of(each.ended)} UTC",
            each.analyst or "without keys",
            f"{each.program}, {each.protection}",
            str(len(each.rounds)),
            duration(each.seconds),
            shorten(each.reason, MAX_REASON) or f"model of {size(each.model_bytes)}",
        )
        for each in ended
    ]
    if not rows:
        return left_out("No session has ended yet.")
    return joined(table("Sessions that are over", headings, rows, (4, 5), folded=False), paragraph())


# ---- The other pages of a console: sites, sessions that ended, one of them, the log ---------------------
# Promises: a hundred sites and more fit a page, those that are missed first.


SITES, SESSIONS, LOG = "sites", "sessions", "log"
"""Their names, of SITES and LOG those of their live events, too."""


def sites_page(drawn: Mapping[str, str], caller: str) -> str:
    """Return the page of the members. drawn: its parts."""
    sections = [
        part("members", "Sites", Markup(drawn["members"])),
        part("analysts", "Analysts", Markup(drawn["analysts"])),
    ]
    return document("/sites", "Sites", *sections, live=SITES, caller=caller, said=drawn["said"])


def sites_parts(facts: ConsoleFacts) -> Mapping[str, str]:
    """Return the parts of the page of the members."""
    awaited = {party for session in facts.status.sessions for party in session.awaited}
    sites = [member for member in facts.status.members if member.role == "party"]
    analysts = [member for member in facts.status.members if member.role != "party"]
    here = sum(1 for member in sites if member.since)
    ordered = sorted(sites, key=lambda m: (m.name not in awaited, bool(m.since), m.name))
    return {
        "said": f"{here} of {counted(len(sites), 'site')} connected.",
        "members": joined(
            paragraph(f"{here} of {counted(len(sites), 'site')} connected, those that are waited for first."),
            _members("Sites", ordered, awaited),
        )
        if sites
        else left_out("No site was ever here."),
        "analysts": _members("Analysts", analysts, set()) if analysts else left_out("No analyst is here."),
    }


def _members(caption: str, members: Sequence[Member], awaited: set[str]) -> Markup:
    headings = ["name", "state", "last seen (UTC)", "version"]
    rows = (
        (
            member.name,
            _state(member) + (", waited for" if member.name in awaited else ""),
            f"now; here since {time_of(member.since)}" if member.since else _seen(member),
            member.version or "-",
        )
        for member in members
    )
    return table(caption, headings, rows, (), folded=False)


def _state(member: Member) -> str:
    return "connected" if member.since else "away"


def _seen(member: Member) -> str:
    return time_of(member.seen) if member.seen else "never"


def sessions_page(drawn: Mapping[str, str], caller: str) -> str:
    """Return the page of the sessions that are over. drawn: its parts."""
    note = paragraph(
        "The last ones are kept with their models in the aggregator's state folder. A report is drawn of "
        "the model file; nobody's rows are in it."
    )
    section = part("ended", "Sessions that are over", joined(note, Markup(drawn["ended"])))
    return document("/sessions", "Sessions and models", section, caller=caller)


def sessions_parts(facts: ConsoleFacts) -> Mapping[str, str]:
    """Return the parts of the page of the sessions that are over."""
    return {"ended": ended_table(facts.ended)}


def session_page(name: str, drawn: Markup, caller: str) -> str:
    """Return the page of one session that is over. drawn: its content."""
    title = f"Session {name.removeprefix('session-')[:8]}"
    return document(f"/sessions/{name}", title, drawn, caller=caller)


def session_content(ended: EndedFacts) -> Markup:
    """Return the content of the page of one session that is over."""
    address = f"/api/v1/models/{ended.name}"
    entries = {
        "session": element("code", ended.name),
        "end": ended.reason or "with a model",
        "ended": f"{time_of(ended.ended)} UTC, after {duration(ended.seconds)}",
        "analyst": ended.analyst or "without keys",
        "program": f"{ended.program}, protection {ended.protection}",
        "digest of the terms": element("code", ended.terms),
        "parties": names(ended.parties),
        "rounds": str(len(ended.rounds)),
        "bytes": size(sum(map(sum, ended.traffic.values()))),
    }
    links = []
    if ended.has_report:
        links.append(element("a", "Report", href=f"{address}/report"))
    if ended.model_bytes:
        links.append(
            element(
                "a",
                f"Model file (XGBoost JSON; of another task, its result), {size(ended.model_bytes)}",
                href=address,
                download=f"{ended.name}.json",
            )
        )
    model = (
        element("ul", *(element("li", link) for link in links)) if links else left_out("It left no model.")
    )
    traffic = ((party, *map(size, moved)) for party, moved in ended.traffic.items())
    return joined(
        part("short", "In short", table("The session", ["what", "value"], entries.items(), (), folded=False)),
        part("model", "Model", model),
        part("curves", "Rounds", element("div", *charts(ended.rounds), class_="charts")),
        part("traffic", "Traffic", table("Bytes of each party", ["party", "sent", "received"], traffic)),
    )


def log_page(drawn: Mapping[str, str], caller: str) -> str:
    """Return the page of the log. drawn: its parts."""
    note = paragraph(
        "The last lines of this process's log, the latest first. No key and no token is in them."
    )
    section = joined(note, part("lines", "Log", Markup(drawn["lines"])))
    return document("/log", "Log", section, live=LOG, caller=caller, said=drawn["said"])


def log_parts(facts: ConsoleFacts) -> Mapping[str, str]:
    """Return the parts of the page of the log."""
    shown = [_line(text) for text in reversed(facts.log)]
    body = element(
        "pre", Markup("\n".join(shown)), class_="log", tabindex="0", role="group", aria_label="Log"
    )
    return {"said": "", "lines": body if shown else left_out("Nothing was logged yet.")}


@lru_cache(2048)
def _line(text: str) -> Markup:
    level = text[20:27].strip()
    grave = level in ("warning", "error", "critical")
    return element("span", lines(text), class_=level) if grave else lines(text)
