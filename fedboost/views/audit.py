"""Audit of a site's log: verdict and warnings first, then what left the site in each session.

Guarantees: names from outside cannot move the cursor. Facts that the log does not record are marked as
missing.
"""

from collections.abc import Iterator, Sequence

from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.errors import printable, quoted
from fedboost.privacy.protections import PROTECTIONS
from fedboost.results.audit import UNASKED, Admitted, Audit, AuditWarning, Kind, Released, Session
from fedboost.terms.session import TASKS
from fedboost.views import approval
from fedboost.views import document as page
from fedboost.views.words import all_shown, counted, delimited, moment, shown, size

MAX_IN_FULL = 5
"""Maximum number of sessions that a terminal shows in full. If there are more, each one gets a table row."""
MAX_SESSIONS, MAX_CHECKS = 200, 10
"""Maximum number of sessions and of checks in the tables of a page. The most recent ones are shown."""
KINDS: dict[Kind, tuple[page.State, str, str]] = {
    Kind.ABUSE: ("bad", "of possible abuse", "this never happens in a session that keeps to its terms"),
    Kind.CHECK: ("unclear", "to check", "this may be harmless; find out why it happened"),
}
"""Maps the kind of a warning to its state, a short description, and its meaning."""


# ---- A log ----------------------------------------------------------------------------------------------


def audit(result: Audit, in_full: bool = False) -> page.Document:
    """Return an audit as a document. in_full: True to list all sessions, and to show each in full if there
    are few or if one was requested."""
    if not result.entries:
        return page.Document(
            "What has left", result.log, [page.Verdict("The log is empty: nothing has left this site.")]
        )
    blocks: list[page.Block] = [verdict(result), page.Paragraph(_whose(result))]
    if result.earlier:
        earlier = counted(result.earlier, "earlier session")
        blocks.append(
            page.note(f"This shows the last {counted(len(result.sessions), 'session')} and omits {earlier}.")
        )
    if result.warnings:
        blocks.append(page.Section("warnings", "Warnings", [*_warnings(result.warnings)]))
    most = None if in_full else MAX_SESSIONS
    in_full = in_full and (len(result.sessions) <= MAX_IN_FULL or result.listed)
    if len(result.sessions) > in_full:
        blocks.append(page.Section("sessions", "Sessions", [*_sessions(result, most, in_full)]))
    for number, each in enumerate(result.sessions if in_full else (), 1):
        blocks.append(page.Section(f"session-{number}", _title(each), [*_session(each, result.listed)]))
    if result.checks:
        blocks.append(page.Section("checks", "Checks of terms", [*_checks(result)]))
    if result.decisions:
        lines = page.Entries([(moment(time), what) for time, what in result.decisions[-MAX_CHECKS:]])
        blocks.append(page.Section("decisions", "Decisions by people", [lines]))
    blocks.append(page.Section("end", "The end of the log", [*_end_of_log(result)]))
    lead = f"{result.log}: unbroken, {counted(result.entries, 'entry', 'entries')}"
    return page.Document("What has left", lead, blocks)


def verdict(result: Audit) -> page.Verdict:
    """Return a sentence that says whether only what the terms allow has left the site."""
    kinds = [warning.kind for warning in result.warnings]
    if kinds:
        of_kind = [f"{n} {KINDS[kind][1]}" for kind in Kind if (n := kinds.count(kind))]
        state: page.State = "bad" if Kind.ABUSE in kinds else "unclear"
        return page.Verdict(f"{counted(len(kinds), 'WARNING', 'WARNINGS')}: {', '.join(of_kind)}.", state)
    about = " about these sessions" if result.earlier else ""
    if any(session.without_terms for session in result.sessions):
        missing = f"No warnings{about}, but the log lacks the terms of a session that this site answered."
        return page.Verdict(
            missing, "unclear", ["What left in such a session cannot be compared with its terms."]
        )
    if not any(session.answers for session in result.sessions):
        return page.Verdict(f"No warnings{about}: no answers have left this site.", "good")
    return page.Verdict(
        f"No warnings{about}: everything that left this site is allowed by the agreed terms.", "good"
    )


def _whose(result: Audit) -> str:
    whose = f"The log of party {all_shown(result.parties)}. " if result.parties else ""
    beyond = "; only --expect shows whether its end was cut off or rewritten"
    return f"{whose}No entry within it was changed or removed{beyond if result.expected is None else ''}."


def _warnings(warnings: Sequence[AuditWarning]) -> Iterator[page.Block]:
    lines: list[page.Line] = [
        (
            f"{number}. ",
            page.Badge(warning.kind.value, KINDS[warning.kind][0]),
            f" {' '.join(map(printable, warning.sentences))}",
        )
        for number, warning in enumerate(warnings, 1)
    ]
    yield page.Items(lines, warnings=True)
    kinds = [kind for kind in Kind if any(warning.kind is kind for warning in warnings)]
    yield page.Entries([(kind.value, KINDS[kind][2]) for kind in kinds])


def _sessions(result: Audit, most: int | None, in_full: bool) -> Iterator[page.Block]:
    known = [*enumerate(result.sessions, 1)][-(most or len(result.sessions)) :]
    if len(known) < len(result.sessions):
        yield page.note(f"The last {len(known)} of {len(result.sessions)} sessions.")
    rows = []
    for number, session in reversed(known):
        rank = _rank(session)
        ended: tuple[page.Inline, ...] = (end(session),)
        if session.over and session.ended and session.ended.reason and not in_full:
            ended = (*ended, f": {printable(session.ended.reason)}")
        linked = page.Link(quoted(session.name, 24 - len(rank)) + rank, f"/audit/{number}")
        answers, verdict = str(len(session.answers)), page.Badge(*standing(session))
        rows.append((linked, moment(session.begin)[:16], answers, ended, verdict))
    headings = ["session", "first entry (UTC)", "answers", "ended", "verdict"]
    yield page.Table("Sessions in the log, most recent first", headings, rows, (2,), folded=False)
    if most is None and not in_full:
        yield page.note(
            "To show a session in full: ",
            page.Code("fedboost audit LOG --session NAME"),
            " (or the start of it).",
        )


def standing(session: Session) -> tuple[str, page.State]:
    """Return a short verdict on a session, and its state."""
    warnings = session.warnings
    if warnings:
        numbers = f"warning{'s' * (len(warnings) > 1)} {', '.join(map(str, warnings))}"
        return numbers if len(numbers) <= 15 else f"{len(warnings)} warnings", "bad"
    if not session.answers:
        return "nothing sent", "plain"
    return ("no warnings", "unclear") if session.without_terms else ("as agreed", "good")


def end(session: Session) -> str:
    """Return the outcome of a session in a word or two."""
    if session.admitted is None and not session.releases:
        return "refused"
    if not session.over or session.ended is None:
        return "open"
    made = approval.TASK_WORDS[session.does].made.removesuffix(" of rows")
    return f"no {made}" if session.ended.reason else made


def _checks(result: Audit) -> Iterator[page.Block]:
    yield page.note("A check of terms does not start a session or read rows.")
    if (earlier := len(result.checks) - MAX_CHECKS) > 0:
        yield page.note(f"{counted(earlier, 'earlier line')} not shown; use --json to list all.")
    rows = [
        (
            asked.day,
            delimited(asked.analyst) if asked.analyst else "an analyst without keys",
            str(asked.terms),
            str(asked.would),
        )
        for asked in result.checks[-MAX_CHECKS:]
    ]
    yield page.Table(
        "Checks per day", ["day", "analyst", "sets of terms", "accepted"], rows, (2, 3), folded=False
    )


def _end_of_log(result: Audit) -> Iterator[page.Block]:
    number = result.expected
    if number is not None:
        entries = f"Entry {number} of {result.last}" if number else "The empty log before the first entry"
        yield page.Paragraph(f"{entries} has the expected hash: nothing up to that entry has changed.")
    yield page.Paragraph(
        (f"The last entry, number {result.last}, has the hash ", page.Code(result.last_hash))
    )
    keep = "Keep this hash elsewhere. A truncated or rewritten log has no entry with this hash, which "
    yield page.Paragraph((keep, page.Code("fedboost audit --expect HASH"), " detects."))


# ---- One session: the agreement, what left the site, and how it ended ----------------------------------


def session(each: Session) -> page.Document:
    """Return one session as a document that lists each of its answers."""
    lead = f"{moment(each.begin)} to {moment(each.end)} UTC"
    return page.Document(_title(each), lead, [*_session(each, listed=True)])


def _title(session: Session) -> str:
    """Return the heading of a session: its name and the numbers of its warnings."""
    title = (
        f"Session {shown(session.name)}{_rank(session)}{', after it had ended' if session.after_end else ''}"
    )
    numbers = [*map(str, session.warnings)]
    if not numbers:
        return title
    noun = "warning" if len(numbers) == 1 else "warnings"
    return f"{title}: see {noun} {' and '.join(filter(None, [', '.join(numbers[:-1]), numbers[-1]]))}"


def _rank(session: Session) -> str:
    return f" ({session.number} of {session.total})" if session.total > 1 else ""


def _session(each: Session, listed: bool) -> Iterator[page.Block]:
    lines: list[tuple[str, page.Line]] = [("verdict", page.Badge(*standing(each)))]
    refused = each.admitted is None and not each.releases
    lines += [] if refused else [("ended", _state(each))]
    lines.append(("when", f"{moment(each.begin)} to {moment(each.end)} UTC"))
    if each.admitted is not None:
        lines += _agreement(each, each.admitted)
    if refused and each.ended is not None:
        if each.ended.analyst is not None:
            lines.append(("signed by", f"{delimited(each.ended.analyst)}, the analyst"))
        lines.append(("refused", printable(each.ended.reason) or "before it started"))
    lines += [] if refused else [*_protections(each), *_relays(each)]
    if not each.releases:
        yield page.Entries([*lines, ("sent", "nothing")])
        return
    if each.epsilon is not None:
        lines.append(("privacy", f"epsilon {each.epsilon:.4g} was spent"))
    smallest = each.smallest_roster
    if each.admitted is not None and len(smallest) < len(each.admitted.parties):
        of = f"over {len(smallest)} of {len(each.admitted.parties)} parties: {all_shown(smallest)}"
        lines.append(("smallest sum", of))
    yield page.Entries(lines)
    headings = ["what left", "times", "allowed", "integers", "bytes"]
    yield page.Table("What left", headings, [*_answers(each)], folded=False)
    if listed:
        yield from _releases(each)


def _state(session: Session) -> str:
    """Return how a session ended, as a clause."""
    again, ended = "again, " if session.after_end else "", session.ended
    if ended is None:
        unknown = "no end is recorded: the session is still running, or this site was stopped"
        return f"{again}{unknown}; by itself, this is not a sign of abuse"
    reason = printable(ended.reason)
    if not session.over:
        return f"{again}not yet: {reason}; the session may continue"
    made = approval.TASK_WORDS[session.does].made
    made = f"an {made}" if made.startswith("e") else f"a {made}"
    return (
        f"{again}without {made}: {reason}" if reason else f"{again}with {made}, according to the aggregator"
    )


def _agreement(session: Session, agreed: Admitted) -> Iterator[tuple[str, page.Line]]:
    """Yield lines about the terms that the site agreed to, and who signed the request."""
    yield "terms", page.Code(agreed.terms)
    if session.under_terms > 1:
        yield "", f"{session.under_terms} sessions in this log used these terms"
    role = "the analyst" if TASKS[agreed.does].by_analyst else "the label holder"
    unsigned = "no analyst's signature (connections without keys)"
    yield "signed by", unsigned if agreed.analyst is None else f"{delimited(agreed.analyst)}, {role}"
    if session.attempts is not None and session.attempts[1] > 1:
        first, last = session.attempts
        times = "once" if last == 2 else f"{last - 1} times"
        numbers = f"attempts {first} to {last}" if first < last else f"attempt {last}"
        yield "attempts", f"restarted {times} ({numbers}){_again(session)}"
    if agreed.adder is not None:
        yield "through", f"adder {delimited(agreed.adder)}"
    yield "with", page.Names(agreed.parties)
    objective, rounds = shown(agreed.objective), counted(agreed.rounds, "round")
    words = approval.TASK_WORDS[agreed.does]
    yield words.verb, words.work.format(objective=objective, rounds=rounds)
    own = session.own
    if own is None or own.columns is None:
        yield "from columns", (f"{len(agreed.columns)}: ", page.Names(agreed.columns))
    else:
        here = [
            f" (at this site: {delimited(own.names[name])})" if name in own.names else ""
            for name in own.columns
        ]
        others = f"; other parties have {len(agreed.columns) - len(own.columns)} more"
        yield "own columns", (f"{len(own.columns)}: ", page.Names(own.columns, here), others)
    if agreed.epsilon is not None:
        added = approval.PLACEMENTS.get(agreed.placement or "", "")
        yield "with noise", f"epsilon {agreed.epsilon:g} at delta {agreed.delta:g}{added}"


def _again(session: Session) -> str:
    """Return a clause that says how many answers were repeated in a new attempt, and what they revealed."""
    again = session.again
    if not again:
        return ""
    others = sum({*answer.roster} != {*first.roster} for answer, first in again)
    news = f", {others} of them for a sum over different parties" if others else ": nothing new"
    return f"; {len(again)} of {len(session.answers)} answers repeated an earlier one{news}"


def _protections(session: Session) -> Iterator[tuple[str, page.Line]]:
    """Yield lines that say what the aggregator could see under each protection that was used."""
    if not TASKS[session.does].is_protected:
        yield "aggregator", approval.PREDICTION_SEEN
        return
    for name in session.protections:
        protection = PROTECTIONS.get(name)
        if protection is not None and session.own is not None:
            protection = protection.by_columns or protection
        hides = protection is None or protection.hides
        seen = (
            protection.aggregator_observes
            if protection
            else "values that this version of fedboost cannot describe"
        )
        if hides and any(approval.OF_ONE_SITE & {*approval.queries_of(kind)} for kind in session.by_kind):
            seen += ", except this site's own metrics"
        yield "protection", f"{shown(name)}: the aggregator could see {seen}"


def _relays(session: Session) -> Iterator[tuple[str, page.Line]]:
    """Yield lines with the number of matched rows, and with what other parties received. The aggregator
    forwarded it, but could not read it."""
    if session.own is not None and session.own.in_common is not None:
        rows = session.own.in_common
        yield "in common", f"{rows:,} rows: the aggregator and the other parties know this number"
    for (what, receivers), relays in session.by_receivers.items():
        rows = max(relay.rows for relay in relays)
        times = "once" if len(relays) == 1 else f"{len(relays)} times"
        words = quoted(what) + (f" of {rows:,} rows" if rows else "")
        if what in approval.RELAYED:
            words = approval.RELAYED[what].format(rows=f"{rows:,}")
        sent = f"{words}, {times}, {size(sum(relay.bytes for relay in relays))}, to "
        yield "relayed", (sent, page.Names(receivers))


def _answers(session: Session) -> Iterator[Sequence[page.Line]]:
    """Yield a table row for each kind of answer, with the number of answers sent and the number allowed."""
    again = [answer for answer, _ in session.again]
    ids = {id(answer) for answer in again}
    for name, releases in session.by_kind.items():
        *others, last = queries = approval.queries_of(name)
        words, zeros = _words(last, session), _zeros(last, session)
        if name == EndRoundQuery.__name__ and not any(release.cells for release in releases):
            words, zeros = approval.NO_METRICS, []
        known = [session.allowed[query] for query in queries if query in session.allowed]
        allowed = "0" if session.after_end and name not in UNASKED else str(min(known, default="-"))
        for other in others:
            yield from map(_no_figures, (f"{_words(other, session)}, with", *_zeros(other, session)))
        yield _sums(words, [release for release in releases if id(release) not in ids], allowed)
        yield from map(_no_figures, zeros)
    if again:
        yield _sums("the same answers sent again", again)
    yield _sums("in all, after the session ended" if session.after_end else "in all", session.releases)


def _words(query: str, session: Session) -> str:
    """Return the description of the answer to a query."""
    own = session.own
    if query == HistogramQuery.__name__ and own is not None and own.hides and own.has_labels is False:
        return approval.ENCRYPTED_SUMS
    return approval.QUERIES.get(query, shown(query))


def _zeros(query: str, session: Session) -> list[str]:
    """Return why the answer to a query contains only zeros; empty if it does not."""
    if session.own is None or session.own.has_labels is not False:
        return []
    if query in approval.OF_LABELS:
        return ["(zeros: this site has no labels)"]
    return ["(zeros: the label holder answers it)"] * (query in approval.OF_LABEL_HOLDER)


def _no_figures(words: str) -> Sequence[page.Line]:
    return words, "", "", "", ""


def _sums(words: str, releases: Sequence[Released], allowed: str = "") -> Sequence[page.Line]:
    integers = sum(release.cells for release in releases)
    exact = f"{integers}" if integers < 10**8 else f"{integers / 1e6:.0f} M"
    return words, str(len(releases)), allowed, exact, size(sum(release.bytes for release in releases))


def _releases(session: Session) -> Iterator[page.Block]:
    """Yield a table of all answers. It shows the first digits of two hashes: of the query, and of the state
    of training in which it was asked."""
    again = {id(answer) for answer, _ in session.again}
    rows = []
    for release in session.releases:
        late = session.after_end and release.what not in UNASKED
        mark = "after the end" if late else "sent again" if id(release) in again else ""
        words = ", ".join(_words(name, session) for name in approval.queries_of(release.what))
        hashes = (_digits(release.question), _digits(release.position))
        rows.append((str(release.turn), str(release.attempt), words, *hashes, mark))
    yield page.Table(
        "Each answer", ["turn", "attempt", "what left", "question", "position", "remark"], rows, (0, 1)
    )
    yield page.note(
        "Turn is the number of the question. Question and position are the first digits of two hashes: of "
        "the question, and of the state of the training. If all three are the same, the same answer was "
        "sent again, which reveals nothing new about rows."
    )


def _digits(value: str | None) -> str:
    return "-" if value is None else quoted(value[:7], 7)
