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

from fedboost.cli.show import print_json, size
from fedboost.errors import ConfigError, printable, quoted
from fedboost.protocol.queries import (
    BY_PARTY,
    EndRoundQuery,
    HistogramQuery,
    KllQuery,
    QuantileQuery,
    RangeQuery,
    ResidualQuery,
    RowsQuery,
    StartQuery,
    SumsQuery,
    VoteQuery,
)
from fedboost.protocol.terms import Terms
from fedboost.shell.audit import (
    BEFORE_THE_FIRST,
    HELP,
    Admitted,
    Entry,
    Released,
    read_admitted,
    read_log,
)
from fedboost.shell.audit_sessions import Session, sessions_of
from fedboost.shell.audit_warnings import AuditWarning, warnings_of
from fedboost.shell.summary import AGGREGATOR_SEES, shown

WIDTH, INDENT, WHAT = 79, 13, 43
"""Columns of a line, of what stands before a value, and of the kind of an answer."""
MOST_IN_FULL = 5
"""Sessions that are printed in full; of more a line each."""

DRAWN = {
    "distributed": "of which each site drew a share",
    "local": "which this site drew",
    "central": "which the aggregator drew",
}
"""Who drew the noise, by its placement."""

IN_WORDS = {
    RowsQuery.__name__: "number of rows; magnitudes of labels, weights",
    QuantileQuery.__name__: "how many rows lie in each column interval",
    RangeQuery.__name__: "how many rows lie in each part of a range",
    KllQuery.__name__: "samples of the columns: values of single rows",
    StartQuery.__name__: "sum over all rows (for the mean label)",
    HistogramQuery.__name__: "sums over groups of rows, by column interval",
    VoteQuery.__name__: "which columns part groups of rows best: votes",
    SumsQuery.__name__: "sums over the rows in each leaf of a tree",
    ResidualQuery.__name__: "how far off labels are, by groups of rows",
    EndRoundQuery.__name__: "error of the model, summed over all rows",
    BY_PARTY: "error of the model: of all rows, of this site's",
    HELP: "help to open a sum: keys, no data",
}
"""What a release says, by its `what`."""
NO_METRICS = "that a round is over: no metrics, no numbers"
"""The same of the end of a round where the terms want no metrics, as those with noise do."""


def run_audit(log: Path, as_json: bool, expect: str | None = None, name: str | None = None) -> int:
    """`fedboost audit`; the number of warnings. expect: the hash an earlier audit ended with; name: of the
    session to list answer by answer."""
    wanted = None if expect is None else _hash(expect)
    entries = read_log(log)
    expected = None if wanted is None else _place(wanted, entries, log)
    sessions = sessions_of(entries)
    warnings = warnings_of(sessions, _terms_of(sessions, log))
    if name is not None:
        warnings = [warning for warning in warnings if name in warning.sessions]
    shown_sessions = [session for session in sessions if name in (None, session.name)]
    if name is not None and not shown_sessions:
        names = ", ".join(dict.fromkeys(shown(session.name) for session in sessions))
        raise ConfigError(f"{log}: has no session {shown(name)!r}; it has {names or 'none'}")
    if as_json:
        _print_as_json(warnings, shown_sessions, entries, expected, listed=name is not None)
    elif not entries:
        print(f"{log}: the log is empty, nothing is recorded in it")
    else:
        _print(log, warnings, shown_sessions, entries, expected, listed=name is not None)
    return len(warnings)


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
        print_json(event="warning", rule=warning.rule, sessions=warning.sessions, **texts)
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
    expected: int | None,
    listed: bool,
) -> None:
    print(f"{log}: verified, {_count(len(entries), 'entry', 'entries')}")
    _print_warnings(warnings)
    if len(sessions) > MOST_IN_FULL and not listed:
        _print_table(sessions, {name for warning in warnings for name in warning.sessions})
    else:
        for session in sessions:
            print()
            _print_session(session, len({other.name for other in sessions if _has_terms_of(other, session)}))
            if listed:
                _print_releases(session)
    if expected is not None:
        what = f"Entry {expected} of {len(entries)}" if expected else "The empty log before the first entry"
        print(f"\n{what} has the hash that was expected: all up to it is as it was.")
    print(f"\nThe last entry, number {len(entries)}, has the hash\n{entries[-1].hash}")
    print("Keep it elsewhere: a log cut short or written anew has no entry with it, as")
    print("`fedboost audit --expect HASH` finds.")


def _print_warnings(warnings: list[AuditWarning]) -> None:
    if not warnings:
        print("no warnings: nothing in it that trainings under their terms would not do")
        return
    print(f"\n{_count(len(warnings), 'WARNING', 'WARNINGS')}")
    for number, warning in enumerate(warnings, 1):
        seen, meaning, action = map(printable, warning.sentences)
        print(textwrap.fill(seen, WIDTH, initial_indent=f"{number:>3}. ", subsequent_indent=" " * 5))
        print(textwrap.fill(f"{meaning} {action}", WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5))


def _print_table(sessions: list[Session], warned: set[str]) -> None:
    """A line for each session, where there are too many to print in full; and why it made no model."""
    print(f"\n  {'first heard of':<17}{'session':<25}{'parties':>7}{'answers':>9}{'bytes':>9}  ended")
    for session in sessions:
        mark, known = "!" if session.name in warned else " ", session.admitted
        name = quoted(session.name, 22)
        parties = "" if known is None else len(known.parties)
        sent = size(sum(release.bytes for release in session.releases))
        line = f"{_moment(session.begin)[:16]:<17}{name:<25}{parties:>7}{len(session.answers):>9}{sent:>9}"
        print(f"{mark} {line}  {_end(session)}")
        if session.over and session.ended is not None and session.ended.reason:
            reason = printable(session.ended.reason)
            print(textwrap.fill(reason, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4))
    if warned:
        print("\n! is before a session with a warning.", end="")
    print("\nEach in full, with all its answers: `fedboost audit LOG --session NAME`.")


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


def _print_session(session: Session, under_these_terms: int) -> None:
    print(f"Session {shown(session.name)}")
    _line("when", f"{_moment(session.begin)} to {_moment(session.end)} UTC")
    known = session.admitted
    if known is not None:
        _print_admission(session, known, under_these_terms)
    elif not session.releases:
        reason = session.ended.reason if session.ended else ""
        _line("refused", printable(reason) or "before it began")
        _line("left", "nothing")
        return
    for protection in session.protections:
        seen = AGGREGATOR_SEES.get(protection, "what this version of fedboost cannot say")
        if protection != "plain" and BY_PARTY in session.by_kind:
            seen += ", but for its metrics"
        _line("protection", f"{shown(protection)}: the aggregator could see {seen}")
    _print_answers(session)
    if session.epsilon is not None and session.cost is not None:
        _line("privacy", f"epsilon {session.epsilon:.4g} was spent, mu squared {session.cost:.6g}")
    smallest = min((release.roster for release in session.releases), key=len, default=())
    if known is not None and session.releases and len(smallest) < len(known.parties):
        _line("smallest sum", f"over {len(smallest)} of {len(known.parties)} parties: {_names(smallest)}")
    _line("ended", printable(session.state))


def _print_admission(session: Session, known: Admitted, under_these_terms: int) -> None:
    """What this site agreed to."""
    _line("terms", known.terms)
    if under_these_terms > 1:
        _line("", f"{under_these_terms} sessions of this log are under these terms")
    if known.analyst is not None:
        _line("signed by", f"{shown(known.analyst)}, the analyst")
    elif known.attempt is not None:
        _line("signed by", "nobody")
    attempts = session.attempts
    if attempts is not None and (attempts[1] > 1 or len(session.parts) > 1):
        again = "" if len(session.parts) == 1 else f"; this site took it up {len(session.parts)} times"
        _line("attempts", f"{attempts[0]} to {attempts[1]}{again}")
    _line("with", _names(known.parties))
    _line("to train", f"{shown(known.objective)}, at most {known.rounds} rounds")
    _line("from columns", f"{len(known.columns)}: {_names(known.columns)}")
    if known.epsilon is not None:
        drawn = DRAWN.get(known.placement or "", "as agreed")
        _line("with noise", f"of epsilon {known.epsilon:g} at delta {known.delta:g}, {drawn}")


def _print_answers(session: Session) -> None:
    if not session.releases:
        _line("left", "nothing")
        return
    print(f"  what left {'':{WHAT}}{'times':>6}{'integers':>9}{'bytes':>9}")
    for what, releases in session.by_kind.items():
        words = IN_WORDS.get(what, shown(what))
        if what == EndRoundQuery.__name__ and not any(release.cells for release in releases):
            words = NO_METRICS
        print(f"    {words:<{WHAT + 8}}{_sums(releases)}")
    print(f"    {'in all':<{WHAT + 8}}{_sums(session.releases)}")


def _print_releases(session: Session) -> None:
    """Each answer: which question, and where the session stood, by the first digits of their hashes."""
    print("\n   turn attempt  what left              question position integers    bytes")
    for release in session.releases:
        question, position = (_digits(value) for value in (release.question, release.position))
        sums = f"{_integers(release.cells):>9}{size(release.bytes):>9}"
        what = quoted(release.what, 22)
        print(f"{release.turn:>7}{release.attempt:>8}  {what:<23}{question:<9}{position:<8}{sums}")


def _digits(value: str | None) -> str:
    return "-" if value is None else quoted(value[:7], 7)


def _has_terms_of(session: Session, other: Session) -> bool:
    """Return whether something left in a session that is the other one, or under the same terms."""
    known, others = session.admitted, other.admitted
    return bool(session.releases) and known is not None and others is not None and known.terms == others.terms


def _sums(releases: list[Released]) -> str:
    integers = sum(release.cells for release in releases)
    sent = sum(release.bytes for release in releases)
    return f"{len(releases):>6}{_integers(integers):>9}{size(sent):>9}"


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _integers(number: int) -> str:
    """Exact where it fits."""
    return f"{number}" if number < 10**8 else f"{number / 1e6:.0f} M"


def _line(key: str, value: str) -> None:
    """A value with its name before it, broken between words."""
    lines = textwrap.wrap(value, WIDTH - INDENT - 2) or [""]
    print(f"  {key:<{INDENT}}{lines[0]}")
    for line in lines[1:]:
        print(f"  {'':<{INDENT}}{line}")


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(shown, names))


def _moment(time: str) -> str:
    return time.replace("T", " ").removesuffix("Z")


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
