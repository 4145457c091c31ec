"""`fedboost audit`: what has left this site, in plain words, by the site's own log.

Promises: nothing is said of a log before its whole chain was verified; names that came from outside cannot
move the cursor.
Refuses: a log with a line that does not fit, naming the first one, and a log without the entry whose hash was
kept (ConfigError).
"""

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import hexdigits

from fedboost.cli.show import print_json, size
from fedboost.errors import ConfigError, printable
from fedboost.privacy.accounting import epsilon_of
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
from fedboost.shell.audit import BEFORE_THE_FIRST, Admitted, Ended, Entry, Released, read_log
from fedboost.shell.summary import AGGREGATOR_SEES, shown

WIDTH, INDENT, WHAT = 79, 13, 43
"""Columns of a line, of what stands before a value, and of the kind of an answer."""

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
    "help to open the sum": "help to open a sum: keys, no data",
}
"""What a release says, by its `what`."""
NO_METRICS = "that a round is over: no metrics, no numbers"
"""The same of the end of a round where the terms want no metrics, as those with noise do."""


@dataclass
class Session:
    """What the log says of one session."""

    name: str
    begin: str
    end: str
    admitted: Admitted | None = None
    ended: Ended | None = None
    releases: list[Released] = field(default_factory=list)

    @property
    def protections(self) -> list[str]:
        """Under which protection something left; what was agreed to if nothing did."""
        agreed = [self.admitted.protection] if self.admitted else []
        return sorted({release.protection for release in self.releases}) or agreed

    @property
    def answers(self) -> dict[str, list[Released]]:
        """What was answered, by kind, in the order of the first of each."""
        kinds: dict[str, list[Released]] = {}
        for release in self.releases:
            kinds.setdefault(release.what, []).append(release)
        return kinds

    @property
    def cost(self) -> float | None:
        """Mu squared of all that left with noise, what left again counted once; None where nothing did."""
        charges = {one.charge: one.cost for one in self.releases if one.cost is not None}
        return math.fsum(charges.values()) if charges else None

    @property
    def epsilon(self) -> float | None:
        """What that is at the delta of the terms."""
        if self.cost is None or self.admitted is None or self.admitted.delta is None:
            return None
        return epsilon_of(math.sqrt(self.cost), self.admitted.delta)

    @property
    def state(self) -> str:
        """How it ended."""
        if self.ended is None:
            return "no end recorded: it still runs, or this site was stopped"
        return (
            "with a model, the aggregator says"
            if not self.ended.reason
            else f"without a model: {self.ended.reason}"
        )


def run_audit(log: Path, as_json: bool, expect: str | None = None) -> None:
    """`fedboost audit`. expect: the hash an earlier audit ended with."""
    wanted = None if expect is None else _hash(expect)
    entries = read_log(log)
    expected = None if wanted is None else _place(wanted, entries, log)
    sessions = _sessions(entries)
    last_hash = entries[-1].hash if entries else BEFORE_THE_FIRST
    if as_json:
        for session in sessions:
            print_json(**_as_json(session))
        kept = {} if expected is None else {"expected": expected}
        print_json(event="verified", entries=len(entries), hash=last_hash, **kept)
        return
    if not entries:
        print(f"{log}: the log is empty, nothing is recorded in it")
        return
    print(f"{log}: verified, {len(entries)} {'entry' if len(entries) == 1 else 'entries'}")
    for session in sessions:
        print()
        _print_session(session)
    if expected is not None:
        what = f"Entry {expected} of {len(entries)}" if expected else "The empty log before the first entry"
        print(f"\n{what} has the hash that was expected: all up to it is as it was.")
    print(f"\nThe last entry, number {len(entries)}, has the hash\n{last_hash}")
    print("Keep it elsewhere: a log cut short or written anew has no entry with it, as")
    print("`fedboost audit --expect HASH` finds.")


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


def _sessions(entries: Iterable[Entry]) -> list[Session]:
    """Sessions in the order in which they began; a name that is used again is another session."""
    sessions: list[Session] = []
    running: dict[str, Session] = {}
    for entry in entries:
        event = entry.event
        session = running.get(event.session)
        if session is None or session.ended or isinstance(event, Admitted):
            session = running[event.session] = Session(event.session, entry.time, entry.time)
            sessions.append(session)
        session.end = entry.time
        match event:
            case Admitted():
                session.admitted = event
            case Released():
                session.releases.append(event)
            case Ended():
                session.ended = event
    return sessions


def _print_session(session: Session) -> None:
    print(f"Session {shown(session.name)}")
    _line("when", f"{_moment(session.begin)} to {_moment(session.end)} UTC")
    terms = session.admitted
    if terms is not None:
        _line("terms", terms.terms)
        _line("with", _names(terms.parties))
        _line("to train", f"{shown(terms.objective)}, at most {terms.rounds} rounds")
        _line("from columns", f"{len(terms.columns)}: {_names(terms.columns)}")
    elif not session.releases:
        reason = session.ended.reason if session.ended else ""
        _line("refused", printable(reason) or "before it began")
        _line("left", "nothing")
        return
    if terms is not None and terms.epsilon is not None:
        _line("with noise", f"of epsilon {terms.epsilon:g} at delta {terms.delta:g}, as agreed")
    for protection in session.protections:
        seen = AGGREGATOR_SEES.get(protection, "what this version of fedboost cannot say")
        if protection != "plain" and BY_PARTY in session.answers:
            seen += ", but for its metrics"
        _line("protection", f"{shown(protection)}: the aggregator could see {seen}")
    _print_answers(session)
    if session.epsilon is not None and session.cost is not None:
        _line("privacy", f"epsilon {session.epsilon:.4g} was spent, mu squared {session.cost:.6g}")
    smallest = min((release.roster for release in session.releases), key=len, default=())
    if terms is not None and session.releases and len(smallest) < len(terms.parties):
        _line("smallest sum", f"over {len(smallest)} of {len(terms.parties)} parties: {_names(smallest)}")
    _line("ended", printable(session.state))


def _print_answers(session: Session) -> None:
    if not session.releases:
        _line("left", "nothing")
        return
    print(f"  what left {'':{WHAT}}{'times':>6}{'integers':>9}{'bytes':>9}")
    for what, releases in session.answers.items():
        words = IN_WORDS.get(what, shown(what))
        if what == EndRoundQuery.__name__ and not any(release.cells for release in releases):
            words = NO_METRICS
        print(f"    {words:<{WHAT + 8}}{_sums(releases)}")
    print(f"    {'in all':<{WHAT + 8}}{_sums(session.releases)}")


def _sums(releases: list[Released]) -> str:
    integers = sum(release.cells for release in releases)
    sent = sum(release.bytes for release in releases)
    return f"{len(releases):>6}{_count(integers):>9}{size(sent):>9}"


def _count(number: int) -> str:
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
        for what, releases in session.answers.items()
    }
    return {
        "event": "session",
        "session": session.name,
        "begin": session.begin,
        "end": session.end,
        "terms": session.admitted.terms if session.admitted else None,
        "parties": session.admitted.parties if session.admitted else None,
        "columns": session.admitted.columns if session.admitted else None,
        "protections": session.protections,
        "released": answers,
        "cost": session.cost,
        "epsilon": session.epsilon,
        "smallest_roster": min((len(release.roster) for release in session.releases), default=None),
        "ended": session.ended.reason if session.ended else None,
    }
