"""An audit of a site's log in words: warnings first, then session by session what left.

Promises: lines fit 80 columns; names that came from outside cannot move the cursor; what is not recorded is
said to be missing.
Refuses: nothing.
"""

import textwrap
from collections.abc import Iterator, Sequence

from fedboost.errors import printable, quoted
from fedboost.people.audit_facts import AuditFacts, ChecksFacts, SessionFacts, WarningFacts
from fedboost.people.audit_session import session_text
from fedboost.people.text import WIDTH, all_shown, counted, delimited, moment
from fedboost.people.words import MADE

MAX_IN_FULL, MAX_VERDICT_LENGTH, END_WIDTH = 5, 15, 14
"""Sessions that are printed in full; of more a line each; and columns of a verdict and an end there."""

MAX_CHECKS = 10
"""Lines about checks."""


def audit(facts: AuditFacts) -> Iterator[str]:
    """Yield the audit of a log."""
    if not facts.entries:
        yield f"{facts.log}: the log is empty, nothing is recorded in it"
        return
    yield from _head(facts)
    if facts.earlier:
        earlier = counted(facts.earlier, "earlier session")
        about = f"Below: the last {len(facts.sessions)}, and warnings about them; {earlier} not shown."
        yield textwrap.fill(about, WIDTH)
    yield from _warnings(facts)
    in_full = len(facts.sessions) <= MAX_IN_FULL or facts.listed
    if len(facts.sessions) > 1:
        yield from _table(facts, in_full)
    for session in facts.sessions if in_full else ():
        yield ""
        yield from session_text(session, facts.listed)
    yield from _checks(facts.checks)
    number = facts.expected
    if number is not None:
        entries = f"Entry {number} of {facts.entries}" if number else "The empty log before the first entry"
        yield f"\n{entries} has the hash that was expected: all up to it is as it was."
    yield f"\nThe last entry, number {facts.entries}, has the hash\n{facts.last_hash}"
    yield "Keep it elsewhere: a log cut short or rewritten has no entry with it, as"
    yield "`fedboost audit --expect HASH` finds."


def _checks(checks: Sequence[ChecksFacts]) -> Iterator[str]:
    """Yield a line for each day and analyst with checks, of the last ones."""
    if not checks:
        return
    yield "\n" + textwrap.fill("Checks of terms, which begin no session and read no row:", WIDTH)
    if (earlier := len(checks) - MAX_CHECKS) > 0:
        yield f"({counted(earlier, 'earlier line')} not shown; --json has them)"
    for asked in checks[-MAX_CHECKS:]:
        who = delimited(asked.analyst) if asked.analyst else "an analyst without keys"
        text = f"{who} about {counted(asked.terms, 'set')} of terms: yes to {asked.would}"
        yield textwrap.fill(text, WIDTH, initial_indent=f"{asked.day}  ", subsequent_indent=" " * 12)


def _head(facts: AuditFacts) -> Iterator[str]:
    """Yield the number of entries that were verified, and whose they are."""
    yield f"{facts.log}: unbroken, {counted(facts.entries, 'entry', 'entries')}"
    whose = f"The log of party {all_shown(facts.parties)}. " if facts.parties else ""
    beyond = ""
    if facts.expected is None:
        beyond = "; whether its end was cut off or rewritten shows only with --expect"
    yield textwrap.fill(f"{whose}No entry was changed or removed inside it{beyond}.", WIDTH)


def _warnings(facts: AuditFacts) -> Iterator[str]:
    """Yield all warnings, or that there are none."""
    warnings = facts.warnings
    if not warnings:
        text = no_warnings(facts)
        if facts.earlier:
            text = text.replace("No warnings", "No warnings about these sessions", 1)
        yield "\n" + textwrap.fill(text, WIDTH)
        return
    yield f"\n{counted(len(warnings), 'WARNING', 'WARNINGS')}"
    for kind, meaning in {warning.kind: warning.kind_meaning for warning in warnings}.items():
        yield f"{kind} = {meaning}"
    for number, warning in enumerate(warnings, 1):
        yield from _warning(number, warning)


def _warning(number: int, warning: WarningFacts) -> Iterator[str]:
    seen, meaning, action = map(printable, (warning.seen, warning.meaning, warning.action))
    tagged = f"{number:>3}. {warning.kind}{'' if warning.kind.endswith('?') else ':'} "
    yield textwrap.fill(seen, WIDTH, initial_indent=tagged, subsequent_indent=" " * 5)
    yield textwrap.fill(f"{meaning} {action}", WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5)


def no_warnings(facts: AuditFacts) -> str:
    """Return the sentence that there are no warnings."""
    if any(session.without_terms for session in facts.sessions):
        return (
            "No warnings; but an older version wrote this log, or a part of it, without the terms, so "
            "that not all of what left can be compared with them."
        )
    if not any(session.answers for session in facts.sessions):
        return "No warnings: no answer left."
    return "No warnings: all that left is what the agreed terms allow."


def _table(facts: AuditFacts, in_full: bool) -> Iterator[str]:
    """Yield a line for each session, with a verdict; where that is all, why there is no model, too."""
    yield f"\n{'first heard of':<17}{'session':<24}{'answers':>7}  {'ended':<{END_WIDTH}}verdict"
    for session in facts.sessions:
        rank = f" ({session.rank.number} of {session.rank.total})" if session.rank.total > 1 else ""
        name = quoted(session.name, 22 - len(rank)) + rank
        line = f"{moment(session.begin)[:16]:<17}{name:<24}{len(session.answers):>7}  "
        yield f"{line}{end(session):<{END_WIDTH}}{verdict(session)}"
        if not in_full and session.ending.over and session.ending.closed:
            reason = printable(session.ending.closed)
            yield textwrap.fill(reason, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
    if not in_full:
        yield "Each in full: `fedboost audit LOG --session NAME`, or how its name begins."


def verdict(session: SessionFacts) -> str:
    """Return the warnings about a session, or that there are none."""
    warnings = session.rank.warnings
    if warnings:
        numbers = f"warning{'s' * (len(warnings) > 1)} {', '.join(map(str, warnings))}"
        return numbers if len(numbers) <= MAX_VERDICT_LENGTH else f"{len(warnings)} warnings"
    if not session.answers:
        return "nothing left"
    return "no warnings" if session.without_terms else "as agreed"


def end(session: SessionFacts) -> str:
    """Return the end of a session, in a word or two."""
    if session.agreement is None and not session.releases:
        return "refused"
    if not session.ending.over:
        return "open"
    made = MADE[session.task].removesuffix(" of rows")
    if not session.ending.closed:
        return made
    return f"no {made}" if len(f"no {made}") < END_WIDTH else "no result"
