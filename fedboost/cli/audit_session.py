"""One session of an audit log in plain words, for a person: what was agreed to, what left, how it ended.

Promises: lines fit 80 columns; names that came from outside cannot move the cursor; what is not recorded is
said to be missing.
Refuses: nothing.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from fedboost.boosting.queries.rounds import BY_PARTY, EndRoundQuery
from fedboost.cli.show import size
from fedboost.errors import printable, quoted
from fedboost.people.summary import shown
from fedboost.privacy.protections import PROTECTIONS
from fedboost.runtime.site.audit import HELP, Admitted, Released
from fedboost.runtime.site.audit_sessions import Session
from fedboost.runtime.site.audit_turns import IN_WORDS

WIDTH, INDENT, WHAT = 79, 13, 43
"""Columns of a line, of what stands before a value, and of the kind of an answer."""

DRAWN = {
    "distributed": "; each site added a share of it",
    "local": "; this site added it",
    "central": " for the model alone: the aggregator added the noise itself",
}
"""Who added the noise, by its placement."""
NO_METRICS = "end of a round: no metrics, no numbers"
"""The end of a round where the terms want no metrics, as those with noise do."""


@dataclass(frozen=True)
class Heading:
    """What the other sessions of the log say of one: number, of: which of its name it is; after_end: an
    earlier one under its terms had ended; under_terms: sessions under its terms from which something left;
    warnings: the numbers of those about it; allowed: questions of each kind by its terms, if these are
    known."""

    number: int
    of: int
    after_end: bool
    under_terms: int
    warnings: tuple[int, ...]
    allowed: Mapping[str, int]

    def title(self, session: Session) -> str:
        """The first line, without the warnings."""
        which = f" ({self.number} of {self.of})" if self.of > 1 else ""
        return f"Session {shown(session.name)}{which}{', after it had ended' if self.after_end else ''}"

    @property
    def see(self) -> str:
        """The warnings about it, by number; empty if there are none."""
        numbers = list(map(str, self.warnings))
        noun = "warning" if len(numbers) == 1 else "warnings"
        return (
            f"{noun} {' and '.join(filter(None, [', '.join(numbers[:-1]), numbers[-1]]))}" if numbers else ""
        )


def print_session(session: Session, heading: Heading, listed: bool) -> None:
    """All about one session. listed: each of its answers, too."""
    title = heading.title(session) + (f": see {heading.see}" if heading.see else "")
    print(textwrap.fill(title, WIDTH, subsequent_indent=" " * 2))
    _line("when", f"{moment(session.begin)} to {moment(session.end)} UTC")
    known = session.admitted
    if known is not None:
        _print_admission(session, known, heading.under_terms)
    elif not session.releases:
        reason = session.ended.reason if session.ended else ""
        _line("refused", printable(reason) or "before it began")
        _line("left", "nothing")
        return
    _print_protection(session)
    _print_answers(session, heading)
    if session.epsilon is not None:
        _line("privacy", f"epsilon {session.epsilon:.4g} was spent")
    smallest = min((release.roster for release in session.releases), key=len, default=())
    if known is not None and session.releases and len(smallest) < len(known.parties):
        _line("smallest sum", f"over {len(smallest)} of {len(known.parties)} parties: {_names(smallest)}")
    _line("ended", ("again, " if heading.after_end else "") + printable(session.state))
    if listed and session.releases:
        _print_releases(session, heading)


def moment(time: str) -> str:
    """A time for people."""
    return time.replace("T", " ").removesuffix("Z")


def _print_admission(session: Session, known: Admitted, under_terms: int) -> None:
    """What this site agreed to."""
    _line("terms", known.terms)
    if under_terms > 1:
        _line("", f"{under_terms} sessions of this log are under these terms")
    if known.analyst is not None:
        _line("signed by", f"{shown(known.analyst)}, the analyst")
    elif known.attempt is not None:
        _line("signed by", "no analyst's signature (connections without keys)")
    if session.attempts is not None and session.attempts[1] > 1:
        first, last = session.attempts
        times = "once" if last == 2 else f"{last - 1} times"
        which = f"attempts {first} to {last}" if first < last else f"attempt {last}"
        _line("attempts", f"begun anew {times} ({which}){_of_them_again(session)}")
    _line("with", _names(known.parties))
    rounds = f"{known.rounds} round{'' if known.rounds == 1 else 's'}"
    _line("to train", f"{shown(known.objective)}, at most {rounds}")
    _line("from columns", f"{len(known.columns)}: {_names(known.columns)}")
    if known.epsilon is not None:
        added = DRAWN.get(known.placement or "", "")
        _line("with noise", f"epsilon {known.epsilon:g} at delta {known.delta:g}{added}")


def _of_them_again(session: Session) -> str:
    """How many answers were no news, after an attempt."""
    again = session.again
    if not again:
        return ""
    others = sum(set(answer.roster) != set(first.roster) for answer, first in again)
    news = f", {others} of them for a sum over other parties" if others else ": nothing new"
    return f"; {len(again)} of {len(session.answers)} answers were the same answer sent again{news}"


def _print_protection(session: Session) -> None:
    """What the aggregator could see of what left."""
    central = session.admitted is not None and session.admitted.placement == "central"
    for name in session.protections:
        protection = PROTECTIONS.get(name)
        hides = protection is None or protection.hides
        seen = protection.aggregator_observes if protection else "what this version of fedboost cannot say"
        if central:
            seen = "sums over the parties" if hides else "this site's own numbers"
            seen += " without noise, as it added the noise itself"
        elif hides and BY_PARTY in session.by_kind:
            seen += ", but for its metrics"
        _line("protection", f"{shown(name)}: the aggregator could see {seen}")


def _print_answers(session: Session, heading: Heading) -> None:
    if not session.releases:
        _line("left", "nothing")
        return
    print(f"  what left {'':{WHAT - 8}}{'times':>6}{'allowed':>8}{'integers':>9}{'bytes':>9}")
    again = [answer for answer, _ in session.again]
    not_first = set(map(id, again))
    for what, releases in session.by_kind.items():
        words = IN_WORDS.get(what, shown(what))
        if what == EndRoundQuery.__name__ and not any(release.cells for release in releases):
            words = NO_METRICS
        allowed = heading.allowed.get(what, "-") if what != HELP else "-"
        firsts = [release for release in releases if id(release) not in not_first]
        _print_sums(words, firsts, "0" if heading.after_end and what != HELP else str(allowed))
    if again:
        _print_sums("the same answers sent again", again)
    _print_sums("in all, after it had ended" if heading.after_end else "in all", session.releases)
    if _is_unrecorded(session):
        _line("questions", "this log does not record which questions of a kind were asked")


def _print_sums(words: str, releases: list[Released], allowed: str = "") -> None:
    integers = sum(release.cells for release in releases)
    sent = sum(release.bytes for release in releases)
    print(f"    {words:<{WHAT}}{len(releases):>6}{allowed:>8}{_integers(integers):>9}{size(sent):>9}")


def _print_releases(session: Session, heading: Heading) -> None:
    """Each answer: which question, and where the session stood, by the first digits of their hashes."""
    again = {id(answer) for answer, _ in session.again}
    print(f"\n   turn attempt  {'what left':<{WHAT + 1}}question position")
    for release in session.releases:
        question, position = (_digits(value) for value in (release.question, release.position))
        mark = "!" if heading.after_end and release.what != HELP else "=" if id(release) in again else " "
        what = quoted(IN_WORDS.get(release.what, release.what), WHAT - 1)
        print(f"{mark}{release.turn:>6}{release.attempt:>8}  {what:<{WHAT + 1}}{question:<9}{position}")
    notes = [
        "Turn: the number of the question. Question and position: the first digits of the hashes of what was "
        "asked, and of where the training stood. The same turn, question and position: the same answer sent "
        "again."
    ]
    if _is_unrecorded(session):
        notes = ["Turn: the number of the question. This log does not record question and position."]
    if again:
        notes.append("= the same answer sent again: no news of rows")
    if heading.after_end:
        notes.append("! an answer after the session had ended")
    print()
    for note in notes:
        print(textwrap.fill(note, WIDTH))


def _is_unrecorded(session: Session) -> bool:
    """Return whether the log does not say which questions were asked."""
    return any(answer.question is None for answer in session.answers)


def _digits(value: str | None) -> str:
    return "-" if value is None else quoted(value[:7], 7)


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
