"""What has left a site, by its own audit log: warnings first, then session by session.

Promises: the words of `fedboost audit`.
Refuses: nothing.
"""

from collections.abc import Iterator

from fedboost.errors import printable, quoted
from fedboost.people.audit import end, no_warnings, verdict
from fedboost.people.audit_facts import AuditFacts, SessionFacts, WarningFacts
from fedboost.people.audit_session import session_text
from fedboost.people.console.site.facts import Reader
from fedboost.people.console.site.shell import document
from fedboost.people.report.markup import Markup, element, items, left_out, lines, paragraph, table
from fedboost.people.report.skeleton import section
from fedboost.people.text import counted, moment

MOST = 200
"""Sessions in the table."""


def page(facts: AuditFacts | None, fault: str, reader: Reader) -> str:
    """Return the page of the audit log. fault: why there are no facts."""
    if facts is None:
        said = element("div", items([fault]), class_="warnings", role="alert")
        return document("/audit", "What has left", said, reader=reader)
    return document(
        "/audit",
        "What has left",
        section("log", "The log", *_log(facts)),
        section("warnings", "Warnings", *_warnings(facts)),
        section("sessions", "Sessions", *_sessions(facts)),
        reader=reader,
    )


def session_page(number: int, session: SessionFacts, reader: Reader) -> str:
    """Return the page of one session. number: in the log, from 1."""
    text = "\n".join(session_text(session, listed=True))
    body = element("pre", lines(text), tabindex="0", role="group", aria_label="The session")
    back = paragraph(element("a", "All sessions", href="/audit"))
    title = f"Session {quoted(session.name.removeprefix('session-'), 8)}"
    return document(f"/audit/{number}", title, back, body, reader=reader)


def _log(facts: AuditFacts) -> Iterator[Markup]:
    if not facts.entries:
        yield left_out("The log is empty: nothing has left.")
        return
    yield paragraph(f"Unbroken, {counted(facts.entries, 'entry', 'entries')}: none was changed inside it.")
    yield paragraph("The last entry has the hash ", element("code", facts.last_hash), ".")
    yield paragraph(
        "Keep it elsewhere: whether the end of the log was cut off or rewritten shows with ",
        element("code", "fedboost audit LOG --expect HASH"),
        ".",
    )


def _warnings(facts: AuditFacts) -> Iterator[Markup]:
    if not facts.warnings:
        yield left_out(no_warnings(facts))
        return
    for number, warning in enumerate(facts.warnings, 1):
        yield element(
            "div", element("h3", f"{number}. {warning.kind}"), items(_warning(warning)), class_="warnings"
        )


def _warning(warning: WarningFacts) -> Iterator[str]:
    yield printable(warning.seen)
    yield printable(warning.meaning)
    yield f"What to do: {printable(warning.action)}"
    yield f"Kind: {warning.kind_meaning}"


def _sessions(facts: AuditFacts) -> Iterator[Markup]:
    if not facts.sessions:
        yield left_out("No session was recorded.")
        return
    shown = [*enumerate(facts.sessions, 1)][-MOST:]
    if len(shown) < len(facts.sessions):
        yield paragraph(f"The last {len(shown)} of {len(facts.sessions)}.")
    rows = (
        (
            f"{moment(session.begin)[:16]}",
            element("a", quoted(session.name, 24), href=f"/audit/{number}"),
            str(len(session.answers)),
            end(session),
            verdict(session),
        )
        for number, session in reversed(shown)
    )
    headings = ["first heard of (UTC)", "session", "answers", "ended", "verdict"]
    yield table("Sessions of the log", headings, rows, (2,), folded=False)
