"""The status of an aggregator and the answers to a check of terms, in words.

Promises: a party that never connected is told from one that is away; names and sentences from outside
cannot pose as another line.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from fedboost.errors import printable
from fedboost.views.words import Block, cell, counted, delimited, duration, entry, paragraph, table
from fedboost.wire.messages import Member, SessionState, SessionStatus, SiteReply, Status

NEVER = "has never connected to this aggregator"
_STATES = {
    SessionState.WAITING: "waits to begin",
    SessionState.RUNNING: "runs",
    SessionState.FINISHED: "is over, its model not fetched yet",
}


def time_of(seconds: int) -> str:
    """Return a time, given in seconds since 1970, for people."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def waiting(parties: Sequence[str], absent: Mapping[str, datetime | None]) -> str:
    """Return the parties that a session waits for, with those that are away or never connected."""
    if not parties:
        return "waiting: another session is running"
    return f"waiting for {', '.join(party + _absence(party, absent) for party in parties)}"


def _absence(party: str, absent: Mapping[str, datetime | None]) -> str:
    if party not in absent:
        return ""
    seen = absent[party]
    return f" ({NEVER})" if seen is None else f" (away since {seen:%Y-%m-%d %H:%M} UTC)"


def status(facts: Status) -> Iterator[Block]:
    """Yield who is connected, which sessions there are, and for whom they wait."""
    yield f"aggregator of fedboost {delimited(facts.version)}, up for {_age(facts, facts.since)}\n"
    if facts.members:
        yield _members(facts)
    else:
        yield "nobody is connected"
    seen = {member.name: member.seen for member in facts.members if member.role == "party"}
    for session in facts.sessions:
        yield ""
        yield from _session(facts, session, seen)
    if not facts.sessions:
        yield "\nno session runs or waits"
    if facts.others:
        yield f"\n{counted(facts.others, 'session')} without this party"


def _members(facts: Status) -> Block:
    lines = table("role", "name", "connected", "fedboost", numbers=())
    for member in facts.members:
        version = cell(member.version or ("older" if member.since else ""))
        lines.add_row(cell(member.role), cell(delimited(member.name)), _presence(member), version)
    return lines


def _presence(member: Member) -> str:
    """Return since when a member is connected, or away."""
    if member.since:
        return f"since {time_of(member.since)} UTC"
    return f"no: away since {time_of(member.seen)} UTC" if member.seen else "no: never to this aggregator"


def _session(facts: Status, session: SessionStatus, seen: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines about a session."""
    name = delimited(session.name) if session.name else "a session"
    done = f", {session.done} of {session.rounds} rounds done" if session.name else ""
    state = f"{name} {_STATES[session.state]}{done}"
    yield entry("session", state)
    yield entry("  analyst", delimited(session.analyst) if session.analyst else "without keys")
    yield entry("  asked for", f"{time_of(session.since)} UTC, {_age(facts, session.since)} ago")
    yield entry("  terms", f"{delimited(session.terms[:12])}..., {session.rounds} rounds")
    yield entry("  program", f"{delimited(session.program)}, protection {delimited(session.protection)}")
    yield entry("  parties", f"{len(session.parties)}: {', '.join(map(delimited, session.parties))}")
    if session.awaited:
        absences = (f"{delimited(party)}{_why(party, seen, facts)}" for party in session.awaited)
        yield entry("  waits for", ", ".join(absences))
    elif session.state is SessionState.WAITING:
        yield entry("  waits for", "the session that runs")


def _why(party: str, seen: Mapping[str, int], facts: Status) -> str:
    """Return why a party is waited for, where it is not connected."""
    if any(member.since for member in facts.members if (member.role, member.name) == ("party", party)):
        return " (connected, and has not answered)"
    last = seen.get(party, 0)
    return f" (away since {time_of(last)} UTC)" if last else f" ({NEVER})"


def _age(facts: Status, since: int) -> str:
    seconds = max(facts.now - since, 0)
    return duration(seconds) if seconds >= 10 else f"{seconds} s"


def check(sites: Sequence[SiteReply]) -> Iterator[str]:
    """Yield the answer of each site to a check of terms, and how many would take part."""
    width = max(len(delimited(site.party)) for site in sites)
    for site in sites:
        yield from _site(site, width)
    would, noun = sum(site.would for site in sites), counted(len(sites), "site")
    yield f"\n{'all' if would == len(sites) else f'{would} of'} {noun} would take part"
    yield paragraph("A check reads no rows: whether they fit the terms shows in a session.")


def _site(site: SiteReply, width: int) -> Iterator[str]:
    answer = "yes" if site.would else "no" if site.answered else "unknown"
    yield f"{delimited(site.party):<{width}}  {answer}"
    yield from (entry("  -", printable(sentence), 4) for sentence in site.reasons or site.notes)
