"""One session of an audit log in words: what was agreed to, what left, how it ended.

Promises: lines fit 80 columns; names that came from outside cannot move the cursor.
Refuses: nothing.
"""

import textwrap
from collections.abc import Iterator, Sequence

from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.errors import printable, quoted
from fedboost.people.audit_facts import AgreementFacts, ReleaseFacts, SessionFacts
from fedboost.people.text import INDENT, WIDTH, all_shown, counted, delimited, listed, moment, shown, size
from fedboost.people.words import (
    ENCRYPTED_SUMS,
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
from fedboost.privacy.protections import PROTECTIONS
from fedboost.terms.session import TO_DESCRIBE, TO_DRIFT, TO_EVALUATE, TO_PREDICT, TO_TRAIN, TO_TUNE

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
        role = "the label holder" if agreement.task == TO_PREDICT else "the analyst"
        yield _line("signed by", f"{delimited(agreement.analyst)}, {role}")
    elif agreement.attempt is not None:
        yield _line("signed by", "no analyst's signature (connections without keys)")
    if session.attempts is not None and session.attempts[1] > 1:
        first, last = session.attempts
        times = "once" if last == 2 else f"{last - 1} times"
        numbers = f"attempts {first} to {last}" if first < last else f"attempt {last}"
        yield _line("attempts", f"begun again {times} ({numbers}){_again(session)}")
    yield _line("with", listed(agreement.parties))
    objective, rounds = shown(agreement.objective), counted(agreement.rounds, "round")
    work = {
        TO_TRAIN: f"{objective}, at most {rounds}",
        TO_PREDICT: f"rows of the label holder, with a model of {objective}",
        TO_TUNE: f"{objective}, candidates side by side, at most {rounds}",
        TO_DESCRIBE: "rows of all parties: counts and quantiles of columns",
        TO_DRIFT: f"rows of all parties against those of a model of {objective}",
        TO_EVALUATE: f"a model of {objective} on the rows of all parties",
    }
    verb = "to compare" if agreement.task == TO_DRIFT else f"to {agreement.task}"
    yield _line(verb, work[agreement.task])
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
    if session.task == TO_PREDICT:
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
    if session.unrecorded:
        yield _line("questions", "this log does not record which questions of a kind were asked")


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
    if session.unrecorded:
        notes = ["Turn: the number of the question. This log does not record question and position."]
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
