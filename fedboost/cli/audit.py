"""`fedboost audit`: what has left this site, in plain words, by the site's own log, warnings first.

Promises: nothing is said of a log before its whole chain was verified; names that came from outside cannot
move the cursor.
Refuses: a log with a line that does not fit, naming the first one, and a log without the entry whose hash was
kept (ConfigError).
"""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from string import hexdigits

from fedboost.cli.audit_session import WIDTH, Heading, moment, print_session
from fedboost.cli.show import print_json, unless_nobody_reads
from fedboost.errors import ConfigError, printable, quoted
from fedboost.people.summary import shown
from fedboost.runtime.site.audit import BEFORE_THE_FIRST, Admitted, Entry, read_admitted, read_log
from fedboost.runtime.site.audit_rules import warnings_of
from fedboost.runtime.site.audit_sessions import Session, is_after_end, sessions_of
from fedboost.runtime.site.audit_turns import allowed_questions
from fedboost.runtime.site.audit_warnings import MEANINGS, AdmittedTerms, AuditWarning, Kind
from fedboost.terms.terms import Terms

MOST_IN_FULL, LONGEST_VERDICT = 5, 16
"""Sessions that are printed in full; of more a line each; and columns of a verdict in that line."""


def run_audit(log: Path, as_json: bool, expect: str | None = None, name: str | None = None) -> int:
    """`fedboost audit`; the number of warnings. expect: the hash an earlier audit ended with; name: of the
    session to list answer by answer."""
    wanted = None if expect is None else _hash(expect)
    entries = read_log(log)
    expected = None if wanted is None else _place(wanted, entries, log)
    sessions = sessions_of(entries)
    admitted = _terms_of(sessions, log)
    warnings = warnings_of(sessions, admitted)
    if name is not None:
        name = _chosen(name, sessions, log)
        warnings = [warning for warning in warnings if name in warning.sessions]
    shown_sessions = [session for session in sessions if name in (None, session.name)]
    headings = {
        id(session): heading
        for session, heading in zip(sessions, _headings(sessions, warnings, admitted), strict=True)
    }
    with unless_nobody_reads():
        if as_json:
            _print_as_json(warnings, shown_sessions, entries, expected, listed=name is not None)
        elif not entries:
            print(f"{log}: the log is empty, nothing is recorded in it")
        else:
            shown_headings = [headings[id(session)] for session in shown_sessions]
            _print(log, warnings, shown_sessions, entries, shown_headings, expected, listed=name is not None)
    return len(warnings)


def _chosen(name: str, sessions: list[Session], log: Path) -> str:
    """The name of the session that is meant: by its whole name, or by a beginning that no other has, also as
    it is printed where it is cut. ConfigError."""
    names = list(dict.fromkeys(session.name for session in sessions))
    if name in names:
        return name
    begins = name.removesuffix("…")
    meant = [known for known in names if begins and known.startswith(begins)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        listed = _names(meant)
        raise ConfigError(f"{log}: {len(meant)} sessions begin with {shown(begins)!r}: {listed}; write more")
    raise ConfigError(f"{log}: has no session {shown(name)!r}; it has {_names(names) or 'none'}")


def _terms_of(sessions: list[Session], log: Path) -> dict[str, Terms | ConfigError]:
    """The terms of sessions, by digest."""
    terms: dict[str, Terms | ConfigError] = {}
    for digest in {session.admitted.terms for session in sessions if session.admitted}:
        try:
            terms[digest] = read_admitted(log, digest)
        except ConfigError as error:
            terms[digest] = error
    return terms


def _print_as_json(
    warnings: list[AuditWarning],
    sessions: list[Session],
    entries: list[Entry],
    expected: int | None,
    listed: bool,
) -> None:
    for warning in warnings:
        seen, meaning, action = warning.sentences
        texts = {"seen": seen, "meaning": meaning, "action": action}
        print_json(
            event="warning",
            kind=warning.kind.name.lower(),
            rule=warning.rule,
            sessions=warning.sessions,
            **texts,
        )
    for session in sessions:
        print_json(**_as_json(session))
        for release in session.releases if listed else ():
            print_json(event="released", **release.model_dump(mode="json", exclude={"kind"}))
    kept = {} if expected is None else {"expected": expected}
    last = entries[-1].hash if entries else BEFORE_THE_FIRST
    print_json(event="verified", entries=len(entries), warnings=len(warnings), hash=last, **kept)


def _print(
    log: Path,
    warnings: list[AuditWarning],
    sessions: list[Session],
    entries: list[Entry],
    headings: list[Heading],
    expected: int | None,
    listed: bool,
) -> None:
    _print_head(log, entries, expected)
    _print_warnings(warnings, sessions)
    in_full = len(sessions) <= MOST_IN_FULL or listed
    if len(sessions) > 1:
        _print_table(sessions, headings, in_full)
    for session, heading in zip(sessions, headings, strict=True) if in_full else ():
        print()
        print_session(session, heading, listed)
    if expected is not None:
        what = f"Entry {expected} of {len(entries)}" if expected else "The empty log before the first entry"
        print(f"\n{what} has the hash that was expected: all up to it is as it was.")
    print(f"\nThe last entry, number {len(entries)}, has the hash\n{entries[-1].hash}")
    print("Keep it elsewhere: a log cut short or written anew has no entry with it, as")
    print("`fedboost audit --expect HASH` finds.")


def _print_head(log: Path, entries: list[Entry], expected: int | None) -> None:
    """What was verified, and of whom."""
    print(f"{log}: unbroken, {_count(len(entries), 'entry', 'entries')}")
    parties = {entry.event.party for entry in entries if isinstance(entry.event, Admitted)} - {None}
    whose = f"The log of party {_names(sorted(map(str, parties)))}. " if parties else ""
    beyond = ""
    if expected is None:
        beyond = "; whether its end was cut off or written anew shows only with --expect"
    print(textwrap.fill(f"{whose}No entry was changed or removed inside it{beyond}.", WIDTH))


def _is_without_terms(session: Session) -> bool:
    """Return whether an old version wrote it, which kept no terms."""
    return bool(session.answers) and (session.admitted is None or session.admitted.attempt is None)


def _print_warnings(warnings: list[AuditWarning], sessions: list[Session]) -> None:
    if not warnings:
        text = "No warnings: all that left is what the agreed terms allow."
        if not any(session.answers for session in sessions):
            text = "No warnings: no answer left."
        if any(map(_is_without_terms, sessions)):
            text = (
                "No warnings; but an older version wrote this log, or a part of it, without the terms, so "
                "that not all of what left can be compared with them."
            )
        print("\n" + textwrap.fill(text, WIDTH))
        return
    print(f"\n{_count(len(warnings), 'WARNING', 'WARNINGS')}")
    for kind in dict.fromkeys(warning.kind for warning in warnings):
        print(f"{kind.value} = {MEANINGS[kind]}")
    for number, warning in enumerate(warnings, 1):
        seen, meaning, action = map(printable, warning.sentences)
        tagged = f"{number:>3}. {warning.kind.value}{'' if warning.kind is Kind.ABUSE else ':'} "
        print(textwrap.fill(seen, WIDTH, initial_indent=tagged, subsequent_indent=" " * 5))
        print(textwrap.fill(f"{meaning} {action}", WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5))


def _print_table(sessions: list[Session], headings: list[Heading], in_full: bool) -> None:
    """A line for each session, with a verdict; where that is all, why there is no model, too."""
    print(f"\n{'first heard of':<17}{'session':<27}{'answers':>7}  {'ended':<10}verdict")
    for session, heading in zip(sessions, headings, strict=True):
        which = f" ({heading.number} of {heading.of})" if heading.of > 1 else ""
        name = quoted(session.name, 25 - len(which)) + which
        line = f"{moment(session.begin)[:16]:<17}{name:<27}{len(session.answers):>7}  {_end(session):<10}"
        print(line + _verdict(session, heading))
        if not in_full and session.over and session.ended is not None and session.ended.reason:
            reason = printable(session.ended.reason)
            print(textwrap.fill(reason, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4))
    if not in_full:
        print("Each in full: `fedboost audit LOG --session NAME`, or how its name begins.")


def _verdict(session: Session, heading: Heading) -> str:
    """The warnings about a session, or that there are none."""
    if heading.warnings:
        several = len(heading.warnings) > 1
        numbers = f"warning{'s' if several else ''} {', '.join(map(str, heading.warnings))}"
        return numbers if len(numbers) <= LONGEST_VERDICT else f"{len(heading.warnings)} warnings"
    if not session.answers:
        return "nothing left"
    return "no warnings" if _is_without_terms(session) else "as agreed"


def _end(session: Session) -> str:
    """The end of a session, in a word or two."""
    if session.admitted is None and not session.releases:
        return "refused"
    if not session.over:
        return "open"
    return "no model" if session.ended and session.ended.reason else "model"


def _hash(text: str) -> str:
    kept = text.strip().lower()
    if len(kept) != len(BEFORE_THE_FIRST) or not set(kept) <= set(hexdigits):
        raise ConfigError(
            f"--expect: {shown(text)!r} is no hash of {len(BEFORE_THE_FIRST)} hex digits; give the one that "
            f"an earlier `fedboost audit` ended with"
        )
    return kept


def _place(wanted: str, entries: list[Entry], log: Path) -> int:
    """The number of the entry with that hash; 0 for the hash of an empty log."""
    hashes = [BEFORE_THE_FIRST, *(entry.hash for entry in entries)]
    if wanted not in hashes:
        raise ConfigError(
            f"{log}: none of its {len(entries)} entries has the hash {wanted}: the log was cut short or "
            f"written anew since that was kept, or it is the hash of another log"
        )
    return hashes.index(wanted)


def _headings(
    sessions: list[Session], warnings: list[AuditWarning], admitted: AdmittedTerms
) -> list[Heading]:
    """What all sessions of a log say of each."""
    names = [session.name for session in sessions]
    digests = [session.digest for session in sessions if session.releases]
    headings = []
    for place, session in enumerate(sessions):
        terms = admitted.get(session.digest or "")
        headings.append(
            Heading(
                number=names[: place + 1].count(session.name),
                of=names.count(session.name),
                after_end=is_after_end(session, sessions),
                under_terms=digests.count(session.digest) if session.releases else 0,
                warnings=tuple(
                    number for number, one in enumerate(warnings, 1) if session.name in one.sessions
                ),
                allowed=allowed_questions(terms) if isinstance(terms, Terms) else {},
            )
        )
    return headings


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _names(names: list[str]) -> str:
    return ", ".join(map(shown, names))


def _as_json(session: Session) -> Mapping[str, object]:
    answers = {
        what: {
            "times": len(releases),
            "integers": sum(release.cells for release in releases),
            "bytes": sum(release.bytes for release in releases),
        }
        for what, releases in session.by_kind.items()
    }
    return {
        "event": "session",
        "session": session.name,
        "begin": session.begin,
        "end": session.end,
        "terms": session.admitted.terms if session.admitted else None,
        "analyst": session.admitted.analyst if session.admitted else None,
        "request": session.admitted.request if session.admitted else None,
        "attempts": session.attempts,
        "taken_up": len(session.parts),
        "parties": session.admitted.parties if session.admitted else None,
        "columns": session.admitted.columns if session.admitted else None,
        "protections": session.protections,
        "placement": session.admitted.placement if session.admitted else None,
        "released": answers,
        "cost": session.cost,
        "epsilon": session.epsilon,
        "smallest_roster": min((len(release.roster) for release in session.releases), default=None),
        "ended": session.ended.reason if session.ended and session.over else None,
    }
