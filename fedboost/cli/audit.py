"""`fedboost audit`: what has left a site, in plain words, by its own log.

Promises: nothing is said of a log before its whole chain was verified.
Refuses: a log with a line that does not fit, naming the first one, and a log without the entry whose hash was
kept (ConfigError).
"""

from pathlib import Path
from string import hexdigits
from typing import TYPE_CHECKING, Annotated

import typer

from fedboost.cli.options import Json
from fedboost.errors import ConfigError

if TYPE_CHECKING:
    from fedboost.runtime.site.audit import Entry
    from fedboost.runtime.site.audit_sessions import Session

EPILOG = (
    "Example: fedboost audit party.audit.jsonl\n\n"
    "Example: fedboost audit party.audit.jsonl --session session-1f3a5c7e\n\n"
    "Example: fedboost audit party.audit.jsonl --last 3\n\n"
    "Example: fedboost audit party.audit.jsonl --strict --expect $(cat last-hash)"
)


def audit(
    log: Annotated[
        Path,
        typer.Argument(
            help="A party's audit log: fedboost.state/PARTY/PARTY.audit.jsonl beside its file, unless that "
            "names another log, state folder or dataset.",
            show_default=False,
        ),
    ],
    session: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only the sessions of this name, or of the one that begins so, with each answer.",
            show_default=False,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(metavar="N", help="Only the N sessions that began last.", show_default=False),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="The hash an earlier audit ended with: exit code 2 if no entry has it (a log cut short).",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 if there are warnings.")] = False,
    json: Json = False,
) -> None:
    """Say in plain words what has left a site, by its own audit log: warnings first, the most serious before
    the others, then session by session what left and what the terms allow. No warnings: all that left is what
    the agreed terms allow."""
    from fedboost.cli.output import show, unless_nobody_reads
    from fedboost.people import as_json
    from fedboost.people import audit as text
    from fedboost.runtime.site.audit import read_log
    from fedboost.runtime.site.audit_rules import audit_facts
    from fedboost.runtime.site.audit_sessions import sessions_of

    if session is not None and last is not None:
        raise ConfigError("--session and --last exclude each other: take one away")
    if last is not None and last < 1:
        raise ConfigError(f"--last {last}: give how many sessions to show, 1 or more")
    digest = None if expect is None else _hash(expect)
    entries = read_log(log)
    expected = None if digest is None else _number(digest, entries, log)
    sessions = sessions_of(entries)
    name = None if session is None else _name(session, sessions, log)
    facts = audit_facts(log, entries, sessions, expected, name, last)
    with unless_nobody_reads():
        show(json, as_json.audit(facts), text.audit(facts))
    if facts.warnings and strict:
        raise typer.Exit(1)


def _hash(text: str) -> str:
    """Return a hash as the log writes it. ConfigError if it is none."""
    from fedboost.people.text import shown
    from fedboost.runtime.site.audit import BEFORE_THE_FIRST

    digest = text.strip().lower()
    if len(digest) != len(BEFORE_THE_FIRST) or not set(digest) <= set(hexdigits):
        raise ConfigError(
            f"--expect: {shown(text)!r} is no hash of {len(BEFORE_THE_FIRST)} hex digits; give the one that "
            f"an earlier `fedboost audit` ended with"
        )
    return digest


def _number(digest: str, entries: "list[Entry]", log: Path) -> int:
    """Return the number of the entry with that hash; 0 for the hash of an empty log. ConfigError."""
    from fedboost.runtime.site.audit import BEFORE_THE_FIRST

    hashes = [BEFORE_THE_FIRST, *(entry.hash for entry in entries)]
    if digest not in hashes:
        raise ConfigError(
            f"{log}: none of its {len(entries)} entries has the hash {digest}: the log was cut short or "
            f"rewritten since that was kept, or it is the hash of another log"
        )
    return hashes.index(digest)


def _name(name: str, sessions: "list[Session]", log: Path) -> str:
    """Return the name of the session that is meant: by its whole name, or by a beginning that no other has,
    also as it is printed where it is cut. ConfigError."""
    from fedboost.people.text import all_shown, shown

    names = list(dict.fromkeys(session.name for session in sessions))
    if name in names:
        return name
    begins = name.removesuffix("…")
    meant = [known for known in names if begins and known.startswith(begins)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        listed = all_shown(meant)
        raise ConfigError(f"{log}: {len(meant)} sessions begin with {shown(begins)!r}: {listed}; write more")
    raise ConfigError(f"{log}: has no session {shown(name)!r}; it has {all_shown(names) or 'none'}")
