"""An audit of a site's log in words: warnings first, then session by session what left.

Promises: lines fit 80 columns; names that came from outside cannot move the cursor; what is not recorded is
said to be missing.
Refuses: nothing.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.errors import printable, quoted
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.site import Relayed
from fedboost.terms.session import TASKS
from fedboost.views.approval import (
    ENCRYPTED_SUMS,
    MADE,
    NO_METRICS,
    OF_LABEL_HOLDER,
    OF_LABELS,
    OF_ONE_SITE,
    PLACEMENTS,
    PREDICTION_SEEN,
    QUERIES,
    RELAYED,
    UNASKED,
    queries_of,
)
from fedboost.views.words import INDENT, WIDTH, all_shown, counted, delimited, listed, moment, shown, size

# ---- Facts of an audit, which its text and JSON are made from -------------------------------------------
# Promises: nothing here reads or formats.


@dataclass(frozen=True)
class AgreementFacts:
    """The agreement of a site to take part in a session. analyst, request: where the terms were signed;
    rounds: 0 where nothing is trained; task: what the session does."""

    terms: str
    parties: tuple[str, ...]
    objective: str
    rounds: int
    columns: tuple[str, ...]
    epsilon: float | None
    delta: float | None
    placement: str | None
    attempt: int
    analyst: str | None
    request: str | None
    task: str


@dataclass(frozen=True)
class OwnFacts:
    """A site whose columns others do not have. columns: its own, in words, with their names in its table
    where those are others; has_labels: it is the label holder; hides: the terms hide columns and labels;
    in_common: its rows that all parties have that hold columns of the same rows, where the log says so. None
    of the first two where the log does not name the site, or its terms are not there."""

    columns: Sequence[str] | None = None
    has_labels: bool | None = None
    hides: bool = False
    in_common: int | None = None


@dataclass(frozen=True)
class ReleaseFacts:
    """A release of a site, as its log has it: integers (cells) in bytes. what: the name of its query; again:
    the same answer left before."""

    session: str
    turn: int
    attempt: int
    what: str
    cells: int
    bytes: int
    protection: str
    roster: tuple[str, ...]
    charge: str | None
    cost: float | None
    question: str | None
    position: str | None
    again: bool


@dataclass(frozen=True)
class SessionRank:
    """A session among the others of its log. number, total: its rank among sessions of this name, and how
    many there are; after_end: an earlier session under its terms had ended; under_terms: sessions under its
    terms from which something left; warnings: numbers of those about it."""

    number: int
    total: int
    after_end: bool
    under_terms: int
    warnings: tuple[int, ...]


@dataclass(frozen=True)
class SessionEnd:
    """The end of a session. state: in words; closed: why there is no model ("" with a model), None if that is
    not recorded; analyst: who asked for one that was refused."""

    state: str
    over: bool
    closed: str | None
    analyst: str | None = None


@dataclass(frozen=True)
class SessionFacts:
    """A session of a site's audit log.

    allowed: questions of each kind by its terms, if these are known; taken_up: how often this site took it
    up; again_elsewhere: answers that left again for a sum over other parties; own: what this site had, where
    the parties held different columns.
    """

    name: str
    rank: SessionRank
    begin: str
    end: str
    allowed: Mapping[str, int]
    agreement: AgreementFacts | None
    attempts: tuple[int, int] | None
    taken_up: int
    releases: Sequence[ReleaseFacts]
    relays: Sequence[Relayed]
    again_elsewhere: int
    protections: Sequence[str]
    own: OwnFacts | None
    cost: float | None
    epsilon: float | None
    ending: SessionEnd

    @property
    def task(self) -> str:
        """What the session does."""
        return self.agreement.task if self.agreement else TASKS["train"].name

    @property
    def answers(self) -> list[ReleaseFacts]:
        """The answers to questions: all releases but those that answer none."""
        return [release for release in self.releases if release.what not in UNASKED]

    @property
    def again(self) -> list[ReleaseFacts]:
        """The answers that had left before."""
        return [release for release in self.releases if release.again]

    @property
    def by_query(self) -> dict[str, list[ReleaseFacts]]:
        """The releases by query, in the order of the first of each."""
        kinds: dict[str, list[ReleaseFacts]] = {}
        for release in self.releases:
            kinds.setdefault(release.what, []).append(release)
        return kinds

    @property
    def by_receivers(self) -> dict[tuple[str, tuple[str, ...]], list[Relayed]]:
        """The relays by kind and receivers, in the order of the first of each."""
        kinds: dict[tuple[str, tuple[str, ...]], list[Relayed]] = {}
        for relay in self.relays:
            kinds.setdefault((relay.what, relay.to), []).append(relay)
        return kinds

    @property
    def smallest_roster(self) -> tuple[str, ...]:
        """The fewest parties that a sum is over."""
        return min((release.roster for release in self.releases), key=len, default=())

    @property
    def without_terms(self) -> bool:
        """True if the log does not have the agreement to a session that was answered."""
        return bool(self.answers) and self.agreement is None


@dataclass(frozen=True)
class WarningFacts:
    """A warning of an audit. kind: as people read it; name: as scripts do; meaning: that of the kind."""

    kind: str
    name: str
    kind_meaning: str
    rule: str
    sessions: tuple[str, ...]
    seen: str
    meaning: str
    action: str


@dataclass(frozen=True)
class ChecksFacts:
    """The checks of an analyst on a day, without sessions. terms: how many different; would: under how many
    of them the site would take part."""

    day: str
    analyst: str
    terms: int
    would: int


@dataclass(frozen=True)
class AuditFacts:
    """An audit of a log. expected: the number of the entry with the hash that was expected, None where none
    was; sessions: those to print; listed: with each answer; earlier: sessions before them that were not asked
    for; checks: by day and analyst, where all sessions are printed."""

    log: str
    entries: int
    last_hash: str
    expected: int | None
    parties: Sequence[str]
    warnings: Sequence[WarningFacts]
    sessions: Sequence[SessionFacts]
    listed: bool
    earlier: int = 0
    checks: Sequence[ChecksFacts] = ()


# ---- One session of an audit log in words: what was agreed to, what left, how it ended ------------------
# Promises: lines fit 80 columns; names that came from outside cannot move the cursor.


ANSWER_WIDTH = 43
"""Columns of the words for an answer."""


def session_text(session: SessionFacts, listed: bool) -> Iterator[str]:
    """Yield all about one session. listed: each of its answers, too."""
    yield textwrap.fill(_title(session), WIDTH, subsequent_indent=" " * 2)
    yield _line("when", f"{moment(session.begin)} to {moment(session.end)} UTC")
    agreement = session.agreement
    if agreement is not None:
        yield from _agreement(session, agreement)
    elif not session.releases:
        if session.ending.analyst is not None:
            yield _line("signed by", f"{delimited(session.ending.analyst)}, the analyst")
        yield _line("refused", printable(session.ending.closed or "") or "before it began")
        yield _line("left", "nothing")
        return
    yield from _protections(session)
    yield from _relays(session)
    yield from _answers(session)
    if session.epsilon is not None:
        yield _line("privacy", f"epsilon {session.epsilon:.4g} was spent")
    smallest = session.smallest_roster
    if agreement is not None and session.releases and len(smallest) < len(agreement.parties):
        sums = f"over {len(smallest)} of {len(agreement.parties)} parties: {all_shown(smallest)}"
        yield _line("smallest sum", sums)
    yield _line("ended", ("again, " if session.rank.after_end else "") + printable(session.ending.state))
    if listed and session.releases:
        yield from _releases(session)


def _title(session: SessionFacts) -> str:
    """Return the first line, with the numbers of the warnings."""
    rank = f" ({session.rank.number} of {session.rank.total})" if session.rank.total > 1 else ""
    title = f"Session {shown(session.name)}{rank}{', after it had ended' if session.rank.after_end else ''}"
    numbers = list(map(str, session.rank.warnings))
    if not numbers:
        return title
    noun = "warning" if len(numbers) == 1 else "warnings"
    return f"{title}: see {noun} {' and '.join(filter(None, [', '.join(numbers[:-1]), numbers[-1]]))}"


def _agreement(session: SessionFacts, agreement: AgreementFacts) -> Iterator[str]:
    """Yield what the site agreed to."""
    yield _line("terms", agreement.terms)
    if session.rank.under_terms > 1:
        yield _line("", f"{session.rank.under_terms} sessions of this log are under these terms")
    if agreement.analyst is not None:
        role = "the analyst" if TASKS[agreement.task].by_analyst else "the label holder"
        yield _line("signed by", f"{delimited(agreement.analyst)}, {role}")
    else:
        yield _line("signed by", "no analyst's signature (connections without keys)")
    if session.attempts is not None and session.attempts[1] > 1:
        first, last = session.attempts
        times = "once" if last == 2 else f"{last - 1} times"
        numbers = f"attempts {first} to {last}" if first < last else f"attempt {last}"
        yield _line("attempts", f"begun again {times} ({numbers}){_again(session)}")
    yield _line("with", listed(agreement.parties))
    objective, rounds = shown(agreement.objective), counted(agreement.rounds, "round")
    work = {
        "train": ("to train", f"{objective}, at most {rounds}"),
        "tune": ("to tune", f"{objective}, candidates side by side, at most {rounds}"),
        "describe": ("to describe", "rows of all parties: counts and quantiles of columns"),
        "evaluate": ("to evaluate", f"a model of {objective} on the rows of all parties"),
        "drift": ("to compare", f"rows of all parties against those of a model of {objective}"),
        "predict": ("to predict", f"rows of the label holder, with a model of {objective}"),
    }
    yield _line(*work[agreement.task])
    own = None if session.own is None else session.own.columns
    if own is None:
        yield _line("from columns", f"{len(agreement.columns)}: {listed(agreement.columns)}")
    else:
        others = len(agreement.columns) - len(own)
        yield _line("own columns", f"{len(own)}: {', '.join(own)}; other parties have {others} more")
    if agreement.epsilon is not None:
        added = PLACEMENTS.get(agreement.placement or "", "")
        yield _line("with noise", f"epsilon {agreement.epsilon:g} at delta {agreement.delta:g}{added}")


def _again(session: SessionFacts) -> str:
    """Return how many answers were no news, after an attempt."""
    again = len(session.again)
    if not again:
        return ""
    others = session.again_elsewhere
    news = f", {others} of them for a sum over other parties" if others else ": nothing new"
    return f"; {again} of {len(session.answers)} answers were the same answer sent again{news}"


def _protections(session: SessionFacts) -> Iterator[str]:
    """Yield what the aggregator could see of what left."""
    if not TASKS[session.task].is_protected:
        yield _line("aggregator", PREDICTION_SEEN)
        return
    central = session.agreement is not None and session.agreement.placement == "central"
    for name in session.protections:
        protection = PROTECTIONS.get(name)
        if protection is not None and session.own is not None:
            protection = protection.by_columns or protection
        hides = protection is None or protection.hides
        seen = protection.aggregator_observes if protection else "what this version of fedboost cannot say"
        if central:
            seen = "sums over the parties" if hides else "this site's own numbers"
            seen += " without noise, as it added the noise itself"
        elif hides and any(OF_ONE_SITE & {*queries_of(name)} for name in session.by_query):
            seen += ", but for its metrics"
        yield _line("protection", f"{shown(name)}: the aggregator could see {seen}")


def _answers(session: SessionFacts) -> Iterator[str]:
    """Yield what left, by query, and how much of it the terms allow."""
    if not session.releases:
        yield _line("left", "nothing")
        return
    yield f"  what left {'':{ANSWER_WIDTH - 8}}{'times':>6}{'allowed':>8}{'integers':>9}{'bytes':>9}"
    for name, releases in session.by_query.items():
        *others, last = queries_of(name)
        words, zeros = _words(last, session), _zeros(last, session)
        if name == EndRoundQuery.__name__ and not any(release.cells for release in releases):
            words, zeros = NO_METRICS, []
        known = [session.allowed[query] for query in queries_of(name) if query in session.allowed]
        firsts = [release for release in releases if not release.again]
        for other in others:
            yield f"    {_words(other, session)}, with"
            yield from _zeros(other, session)
        after_end = session.rank.after_end and name not in UNASKED
        yield _sums(words, firsts, "0" if after_end else str(min(known, default="-")))
        yield from zeros
    if session.again:
        yield _sums("the same answers sent again", session.again)
    yield _sums("in all, after it had ended" if session.rank.after_end else "in all", session.releases)


def _words(query: str, session: SessionFacts) -> str:
    """Return the words for the answer to a query."""
    own = session.own
    if query == HistogramQuery.__name__ and own is not None and own.hides and own.has_labels is False:
        return ENCRYPTED_SUMS
    return QUERIES.get(query, shown(query))


def _zeros(query: str, session: SessionFacts) -> list[str]:
    """Return a line that says why the answer to a query is zeros, where it is."""
    if session.own is None or session.own.has_labels is not False:
        return []
    if query in OF_LABELS:
        return ["      (zeros: this site has no labels)"]
    return ["      (zeros: the label holder tells it)"] * (query in OF_LABEL_HOLDER)


def _relays(session: SessionFacts) -> Iterator[str]:
    """Yield what other parties got, which the aggregator passed on and could not read, and the number of rows
    in common."""
    if session.own is not None and session.own.in_common is not None:
        rows = session.own.in_common
        yield _line("in common", f"{rows:,} rows: the aggregator and the other parties know this number")
    for (what, receivers), relays in session.by_receivers.items():
        sent = size(sum(relay.size for relay in relays))
        rows = max(relay.rows for relay in relays)
        times = "once" if len(relays) == 1 else f"{len(relays)} times"
        words = quoted(what) + (f" of {rows:,} rows" if rows else "")
        if what in RELAYED:
            words = RELAYED[what].format(rows=f"{rows:,}")
        yield _line("relayed", f"{words}, {times}, {sent}, to {listed(receivers)}")


def _sums(words: str, releases: Sequence[ReleaseFacts], allowed: str = "") -> str:
    integers = sum(release.cells for release in releases)
    exact = f"{integers}" if integers < 10**8 else f"{integers / 1e6:.0f} M"
    sent = size(sum(release.bytes for release in releases))
    return f"    {words:<{ANSWER_WIDTH}}{len(releases):>6}{allowed:>8}{exact:>9}{sent:>9}"


def _releases(session: SessionFacts) -> Iterator[str]:
    """Yield each answer: which question, and where the session stood, by the first digits of their hashes."""
    yield f"\n   turn attempt  {'what left':<{ANSWER_WIDTH + 1}}question position"
    for release in session.releases:
        question, position = (_digits(value) for value in (release.question, release.position))
        mark = (
            "!" if session.rank.after_end and release.what not in UNASKED else "=" if release.again else " "
        )
        names = queries_of(release.what)
        words, *others = [quoted(_words(name, session), ANSWER_WIDTH - 1) for name in names]
        hashes = f"{question:<9}{position}"
        yield f"{mark}{release.turn:>6}{release.attempt:>8}  {words:<{ANSWER_WIDTH + 1}}{hashes}"
        yield from (f"{'':>17}{other}" for other in others)
    notes = [
        "Turn: the number of the question. Question and position: the first digits of the hashes of what was "
        "asked, and of where the training stood. The same turn, question and position: the same answer sent "
        "again."
    ]
    if session.again:
        notes.append("= the same answer sent again: no news of rows")
    if session.rank.after_end:
        notes.append("! an answer after the session had ended")
    yield ""
    yield from (textwrap.fill(note, WIDTH) for note in notes)


def _digits(value: str | None) -> str:
    return "-" if value is None else quoted(value[:7], 7)


def _line(key: str, value: str) -> str:
    """Return a value with its key before it, broken between words."""
    lines = textwrap.wrap(value, WIDTH - INDENT - 2) or [""]
    return "\n".join(f"  {'' if number else key:<{INDENT}}{line}" for number, line in enumerate(lines))


# ---- An audit of a site's log in words: warnings first, then session by session what left ---------------


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
            "No warnings; but this log has no terms of a session that was answered, so that not all of "
            "what left can be compared with them."
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
