"""The status of an aggregator and the answers to a check of terms, in words.

A party that never connected differs from one that is away. The console has the same tables and entries.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from fedboost.errors import printable
from fedboost.results.session import Session
from fedboost.terms.session import task_of
from fedboost.views import words
from fedboost.views.document import Badge, Block, Code, Document, Entries, Inline, Line, Names, Table, note
from fedboost.views.words import counted, delimited, duration, entry, paragraph
from fedboost.wire.messages import Member, SessionState, SessionStatus, SiteReply, Status

NEVER = "has never connected to this aggregator"
WITHOUT_KEYS = "without keys"
DOES = {
    "train": "training",
    "tune": "tuning",
    "describe": "description",
    "evaluate": "evaluation",
    "drift": "drift check",
    "predict": "prediction",
}
"""What a session does, by its task."""
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
    seen = {party: 0 if last is None else int(last.timestamp()) for party, last in absent.items()}
    return (
        f"waiting for {', '.join(party + (_away(seen[party]) if party in seen else '') for party in parties)}"
    )


def _away(seen: int) -> str:
    return f" (away since {time_of(seen)} UTC)" if seen else f" ({NEVER})"


def status(facts: Status) -> Document:
    """Return who is connected, which sessions there are, and for whom they wait."""
    listed = ("Sites", sites_of(facts)), ("Analysts", analysts_of(facts))
    blocks: list[Block] = [members(caption, each, awaited_in(facts)) for caption, each in listed if each]
    blocks = blocks or [note("Nobody is connected.")]
    blocks += [about(facts, session) for session in facts.sessions] or [note("No session runs or waits.")]
    if facts.others:
        blocks.append(note(f"{counted(facts.others, 'session')} without this party."))
    lead = f"aggregator of fedboost {delimited(facts.version)}, up for {_age(facts, facts.since)}"
    return Document("Status of the aggregator", lead, blocks)


def sites_of(facts: Status) -> list[Member]:
    """Return the parties."""
    return [member for member in facts.members if member.role == "party"]


def analysts_of(facts: Status) -> list[Member]:
    """Return the analysts."""
    return [member for member in facts.members if member.role != "party"]


def awaited_in(facts: Status) -> set[str]:
    """Return the parties that some session waits for."""
    return {party for session in facts.sessions for party in session.awaited}


def members(
    caption: str, listed: Sequence[Member], awaited: Collection[str] = (), folded: bool | None = None
) -> Table:
    """Return a table of members: first those that a session waits for, then those that are away."""
    ordered = sorted(listed, key=lambda each: (each.name not in awaited, bool(each.since), each.name))
    rows = [
        (
            Names((each.name,)),
            _state(each, awaited),
            f"now, since {time_of(each.since)}" if each.since else _seen(each),
            each.version or ("older" if each.since else "-"),
        )
        for each in ordered
    ]
    return Table(caption, ["name", "state", "last seen (UTC)", "version"], rows, (), folded)


def _state(member: Member, awaited: Collection[str]) -> Inline:
    late = ", waited for" if member.name in awaited else ""
    if member.since:
        return Badge(f"connected{late}", "unclear" if late else "good")
    return Badge(f"{'away' if member.seen else 'never connected'}{late}", "bad" if late else "plain")


def _seen(member: Member) -> str:
    return time_of(member.seen) if member.seen else "never"


def about(facts: Status, session: SessionStatus) -> Entries:
    """Return all that is known of a session."""
    done = f", {session.done} of {session.rounds} rounds done" if session.name else ""
    lines: list[tuple[str, Line]] = [
        ("session", (Code(session.name or "a session"), f" {_STATES[session.state]}{done}")),
        ("requested", f"{time_of(session.since)} UTC, {_age(facts, session.since)} ago"),
        *agreed(session, task_of(session.program).name),
        ("terms", (Code(f"{session.terms[:12]}..."), f", {session.rounds} rounds")),
    ]
    if session.awaited or session.state is SessionState.WAITING:
        lines.append(("waits for", waits_for(facts, session)))
    return Entries(lines)


def agreed(session: SessionStatus | Session, task: str) -> Iterator[tuple[str, Line]]:
    """Yield whose session it is, what it does and with whom."""
    yield "analyst", Names((session.analyst,)) if session.analyst else WITHOUT_KEYS
    yield "task", f"{DOES[task]}, protection {session.protection}"
    yield "parties", (f"{len(session.parties)}: ", Names(session.parties))


def waits_for(facts: Status, session: SessionStatus) -> str:
    """Return for whom a session waits, and why."""
    if not session.awaited:
        return "the session that runs" if session.state is SessionState.WAITING else "no site in particular"
    known = {member.name: member for member in sites_of(facts)}
    return ", ".join(f"{delimited(party)}{_why(known.get(party))}" for party in session.awaited)


def _why(member: Member | None) -> str:
    """Return why a party is waited for."""
    return (
        " (connected, has not answered)" if member and member.since else _away(member.seen if member else 0)
    )


def _age(facts: Status, since: int) -> str:
    seconds = max(facts.now - since, 0)
    return duration(seconds) if seconds >= 10 else f"{seconds} s"


def check(sites: Sequence[SiteReply]) -> Iterator[words.Block]:
    """Yield the answer of each site to a check of terms, and how many would take part."""
    width = max(len(delimited(site.party)) for site in sites)
    for site in sites:
        answer = "yes" if site.would else "no" if site.answered else "unknown"
        yield f"{delimited(site.party):<{width}}  {answer}"
        yield from (entry("  -", printable(sentence), 4) for sentence in site.reasons or site.notes)
    would, noun = sum(site.would for site in sites), counted(len(sites), "site")
    yield f"\n{'all' if would == len(sites) else f'{would} of'} {noun} would take part"
    yield paragraph("A check reads no rows: whether they fit the terms shows in a session.")
