"""The other pages of a console: sites, sessions that ended, one of them, the log.

Promises: a hundred sites and more fit a page, those that are missed first.
Refuses: nothing.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from fedboost.people.console.facts import ConsoleFacts, EndedFacts
from fedboost.people.console.overview import charts, ended_table
from fedboost.people.console.shell import document, part
from fedboost.people.report.markup import Markup, element, joined, left_out, lines, names, paragraph, table
from fedboost.people.status import time_of
from fedboost.people.text import counted, duration, size
from fedboost.wire.services import Member

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
