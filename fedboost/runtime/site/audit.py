"""Audit of a site's log: verification of the log, the sessions in it, and warnings about these sessions.

A warning points to traces that training never leaves if it follows its terms, or to terms that offer little
protection.

Guarantees: a log's whole chain is verified before anything in it is reported. `read_log` detects every change
except two: entries cut off at the end, and a log rewritten from some line on. Both change the hash of the
last entry, so a reader who kept that hash detects them, too. A session that continues after a restart of the
site counts as one session. A name that is reused after its session ended, or under different terms, counts as
a new session. Training that followed its terms causes no warning of abuse, even after lost connections,
restarts and repeated queries. A refused session causes none either. The most serious warnings come first.
Raises: ConfigError if a line of a log is invalid or breaks the chain; later lines are not read.
Limits: if terms are missing from a log, the defaults of `colluding`, `on_loss` and `keyholder_rows` are
assumed, and the depth of trees is not checked. Misbehaviour of an aggregator that leaves no trace in this
log, e.g. wrong sums sent to other sites, is not detected.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import combinations, takewhile
from pathlib import Path
from string import hexdigits
from typing import get_args

from fedboost.boosting.queries import Query
from fedboost.boosting.queries.base import BaseQuery
from fedboost.boosting.queries.columns import SUMMARY_BY_PARTY, SummaryQuery
from fedboost.boosting.queries.labels import EVALUATION_BY_PARTY, EvaluationQuery
from fedboost.boosting.queries.trees import BY_PARTY, EndRoundQuery, HistogramQuery, max_levels
from fedboost.errors import ConfigError
from fedboost.holders.column_rows import ENCRYPTED, GRADIENTS, ROW_SET
from fedboost.privacy.pairwise import Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.contracts import smallest_revealed_set
from fedboost.protocol.site import colluding_parties
from fedboost.results.audit import (
    Admitted,
    Audit,
    AuditWarning,
    Checked,
    Checks,
    Ended,
    Kind,
    Released,
    Run,
    Sent,
    Session,
    SiteShare,
    grouped,
)
from fedboost.runtime.files import file_errors, write_atomically
from fedboost.runtime.site.store import (
    BEFORE_THE_FIRST,
    MEMORY,
    NAME,
    Decided,
    Entry,
    Kept,
    Store,
    check_counters,
    head_of,
    open_database,
    parse_entry,
    parties_of,
)
from fedboost.system import OWNER_ALONE, sync_folder
from fedboost.terms.terms import Terms
from fedboost.views.approval import QUERIES, queries_of
from fedboost.views.words import all_shown, capital, counted, shown

# ---- A log, in a store or an export ---------------------------------------------------------------------
# An export has the log's lines, and one line for each set of terms that its entries name. A chain without its
# first entries begins with the entry that names the last exported one.


_SQLITE = b"SQLite format 3\0"


def read_log(source: Path, party: str | None = None) -> list[Entry]:
    """Read and verify the entries of a log. party: party whose log to read; may be None if the store has only
    one log. Raises ConfigError, which names the first line that is invalid or breaks the chain."""
    # Before each line, `entries` is an unbroken chain. A line extends it if its hash fits its content
    # (`parse_entry`), its number is the next one, and it contains the hash of the last entry: so the hash of
    # the last entry covers all before it. Only an "exported" entry can begin a chain elsewhere than at 1.
    entries: list[Entry] = []
    for number, line in enumerate(_lines(source, party), 1):
        where = f"{source}, line {number}"
        if line.startswith(_TERMS_LINE):
            if not _is_of_terms(line):
                raise ConfigError(
                    "log-altered", f"{where}: the line has no terms, or was changed after it was written"
                )
            continue
        try:
            entry = parse_entry(line)
        except ValueError as error:
            raise ConfigError("log-altered", f"{where}: {error}") from None
        due, previous = 1, BEFORE_THE_FIRST
        if entries:
            due, previous = entries[-1].n + 1, entries[-1].hash
        elif isinstance(entry.event, Kept) and entry.event.kind == "exported":
            due, previous = entry.event.known + 1, entry.event.last
        if entry.n != due:
            raise ConfigError(
                "log-gap", f"{where}: found entry {entry.n}, expected {due}: lines were removed or moved"
            )
        if entry.previous != previous:
            raise ConfigError(
                "log-broken-chain",
                f"{where}: the entry lacks the hash of the entry before it: one of the two was replaced",
            )
        entries.append(entry)
    return entries


_TERMS_LINE = b'{"terms":'


def _terms_line(digest: str, text: str) -> bytes:
    return json.dumps({"terms": digest, "text": text}, separators=(",", ":")).encode() + b"\n"


def _is_of_terms(line: bytes) -> bool:
    """Return whether a line contains only terms. `read_admitted` checks their digest later."""
    with suppress(ValueError, KeyError, TypeError):
        values = json.loads(line)
        return _terms_line(values["terms"], values["text"]).rstrip() == line.rstrip()
    return False


def _lines_of_file(source: Path) -> list[bytes] | None:
    """Return the lines of an export; None for a store. Raises ConfigError if the file cannot be read."""
    if source.suffix == Path(NAME).suffix:
        return None  # not opened: closing it would release SQLite's locks in the party's own process
    with file_errors(source, "cannot read"), source.open("rb") as file:
        return [*file] if file.read(len(_SQLITE)) != _SQLITE and not file.seek(0) else None


def _lines(source: Path, party: str | None) -> list[bytes]:
    if (lines := _lines_of_file(source)) is not None:
        return lines
    with closing(open_database(source)) as store:
        check_counters(source, store)
        whose = only_party(source, parties_of(store)) if party is None else party
        rows = store.execute("SELECT line FROM entries WHERE party = ? ORDER BY n", (whose,))
        return [line if isinstance(line, bytes) else b"" for (line,) in rows]


def only_party(source: Path, parties: Sequence[str]) -> str:
    """Return the only party with a log in a store, or '' if none. Raises ConfigError if there are several."""
    if len(parties) > 1:
        raise ConfigError("log-shared", f"{source} has logs of {all_shown(parties)}; select one with --party")
    return next(iter(parties), "")


def check_party(source: Path, party: str) -> None:
    """Raise ConfigError unless a store has a log of this party."""
    with closing(open_database(source, MEMORY)) as store:
        known = parties_of(store)
    if party not in known:
        raise ConfigError(
            "log-no-party",
            f"{source} has no log of party {shown(party)!r}; parties with a log: "
            f"{all_shown(known) or 'none'}",
        )


def terms_in(source: Path, party: str | None = None) -> dict[str, str]:
    """Return the canonical terms in a store or an export, by the digest under which they are stored. The
    digests are not checked. Raises ConfigError if the terms cannot be read."""
    if (lines := _lines_of_file(source)) is not None:
        try:
            found = [json.loads(line) for line in lines if line.startswith(_TERMS_LINE)]
            return {str(each["terms"]): str(each["text"]) for each in found}
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                "log-terms-unreadable", f"{source}: cannot read the terms in this log"
            ) from None
    with closing(open_database(source)) as store:
        return {str(digest): str(text) for digest, text in store.execute("SELECT digest, text FROM terms")}


def read_admitted(kept: Mapping[str, str], digest: str, source: Path) -> Terms:
    """Return the terms with this digest. kept: canonical terms by digest (`terms_in`); source: file to name
    in errors. Raises ConfigError if the terms are missing, changed or unreadable."""
    text = kept.get(digest)
    if text is None:
        raise ConfigError("log-terms-missing", f"{source} has no terms with digest {digest}")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise ConfigError(
            "log-terms-altered", f"{source}: the terms {digest} were changed: their SHA-256 does not match"
        )
    try:
        return Terms.from_canonical(text)
    except (ConfigError, ValueError) as error:
        raise ConfigError(
            "log-terms-unreadable", f"{source}: the terms {digest} cannot be read by this version: {error}"
        ) from None


def export_log(source: Path, out: Path, party: str | None, remove: bool) -> list[Entry]:
    """Write a log to a file as JSON lines, and return its entries. remove: also remove the entries from the
    store, whose log then continues with an "exported" entry. Raises ConfigError if the log is invalid or the
    file cannot be written."""
    entries, kept = read_log(source, party), terms_in(source, party)
    named = {e.event.terms for e in entries if isinstance(e.event, Admitted)}
    terms = [_terms_line(digest, kept[digest]) for digest in sorted(named & kept.keys())]
    write_atomically(out, b"".join([*(entry.line for entry in entries), *terms]), OWNER_ALONE)
    if remove and not out.is_file():
        raise ConfigError(
            "export-not-kept",
            f"{out} is not a regular file, so no entries were removed; specify a different file with "
            f"--export",
        )
    if remove and entries:
        _remove(source, entries[-1], out, party)
    return entries


def _remove(source: Path, last: Entry, out: Path, party: str | None) -> None:
    with closing(open_database(source, MEMORY)) as file:
        whose = only_party(source, parties_of(file)) if party is None else party
    with file_errors(out, "cannot sync this file to the disk"):
        sync_folder(out.resolve().parent)  # the file's name must be on the disk before the entries go
    with closing(Store(source, whose)) as store, store.transaction() as file:
        # The "exported" entry must directly follow the last removed one, so that the rest is a chain.
        if head_of(file, whose) != (last.n, last.hash):
            raise ConfigError(
                "export-log-grew",
                f"{source}: entries were added during the export, so none were removed; try again when no "
                f"session is running",
            )
        store.append(file, Kept(kind="exported", known=last.n, last=last.hash))
        file.execute("DELETE FROM entries WHERE party = ? AND n <= ?", (whose, last.n))


def number_of(expected: str, entries: Sequence[Entry], source: Path) -> int:
    """Return the number of the entry with this hash (64 hex digits); 0 for the hash of an empty log. Raises
    ConfigError if there is no such entry."""
    digest = expected.strip().lower()
    if len(digest) != len(BEFORE_THE_FIRST) or not set(digest) <= set(hexdigits):
        raise ConfigError(
            "audit-bad-hash",
            f"--expect must be a hash of {len(BEFORE_THE_FIRST)} hex digits, not {shown(expected)!r}; use "
            f"the last hash that an earlier `fedboost audit` printed",
        )
    # The chain is verified, so one known hash proves that all entries up to it are unchanged; later ones
    # were appended since. Known, too, are the hash of an empty log and that of the last exported entry.
    numbers = {BEFORE_THE_FIRST: 0, **{entry.hash: entry.n for entry in entries}}
    if entries:
        numbers[entries[0].previous] = entries[0].n - 1
    if digest not in numbers:
        raise ConfigError(
            "audit-head-unknown",
            f"{source}: none of its {len(entries)} entries has the hash {digest}: the log was truncated or "
            f"rewritten after this hash was printed, or the hash belongs to a different log",
        )
    return numbers[digest]


def named_session(name: str, sessions: Sequence[Session], source: Path) -> str:
    """Return the full name of the session whose name starts with `name`. A trailing "…" of a shortened name
    is ignored. Raises ConfigError unless exactly one name matches."""
    names = list(dict.fromkeys(session.name for session in sessions))
    if name in names:
        return name
    begins = name.removesuffix("…")
    meant = [known for known in names if begins and known.startswith(begins)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        listed = all_shown(meant)
        raise ConfigError(
            "session-ambiguous",
            f"{source}: the names of {len(meant)} sessions start with {shown(begins)!r}: {listed}; specify "
            f"more of the name",
        )
    raise ConfigError(
        "session-unknown",
        f"{source} has no session {shown(name)!r}; its sessions: {all_shown(names) or 'none'}",
    )


MAX_LISTED = 5
ASK_TOO = "keep this log, and ask the operator of the aggregator"
ASK = capital(ASK_TOO)
AdmittedTerms = Mapping[str, Terms | ConfigError]
"""Maps the digests of a log's terms to the terms, or to the error raised when reading them."""


# ---- Sessions -------------------------------------------------------------------------------------------


def is_after_end(session: Session, sessions: list[Session]) -> bool:
    """Return whether queries were answered after a session with the same name and terms had ended."""
    earlier = takewhile(lambda other: other is not session, sessions)
    same = [other for other in earlier if (other.name, other.digest) == (session.name, session.digest)]
    return bool(session.answers) and any(other.answers for other in same)


def sessions_of(entries: Iterable[Entry]) -> list[Session]:
    """Return the sessions of a log, in the order of their first entries."""
    sessions: list[Session] = []
    running: dict[str, Session] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, Checked | Decided | Kept):
            continue
        session = running.get(event.session)
        if session is None or isinstance(event, Admitted) or session.ended is not None:
            known = None if session is None else session.admitted
            other_terms = isinstance(event, Admitted) and known is not None and known.terms != event.terms
            if session is None or session.over or other_terms:
                session = running[event.session] = Session(name=event.session)
                sessions.append(session)
            session.parts.append(Run(begin=entry.time, end=entry.time))
        part = session.parts[-1]
        part.end = entry.time
        match event:
            case Admitted():
                part.admitted = event
            case Released():
                part.releases.append(event)
            case Sent():
                part.relays.append(event)
            case Ended():
                part.ended = event
    return sessions


# ---- Warnings about one session: its questions, turn by turn, against the terms it was admitted under ----
# Training that followed its terms causes none, even after losses, restarts and repeated queries.


KINDS: tuple[type[BaseQuery], ...] = get_args(Query)
END_OF_ROUND = frozenset({EndRoundQuery.__name__, BY_PARTY})
OF_TREE = frozenset(kind.__name__ for kind in KINDS if kind.of_tree)
MAY_SHRINK = END_OF_ROUND | {HistogramQuery.__name__}
"""Kinds of queries whose roster may change within a turn under `on_loss = "shrink"`."""


def allowed_questions(terms: Terms) -> Mapping[str, int]:
    """Return the maximum number of queries of each kind under these terms; empty for a custom program."""
    if not terms.session.is_built_in:
        return {}
    counts = {kind.__name__: kind.max_count(terms) if kind.serves(terms) else 0 for kind in KINDS}
    by_party = {BY_PARTY: EndRoundQuery, EVALUATION_BY_PARTY: EvaluationQuery, SUMMARY_BY_PARTY: SummaryQuery}
    return {**counts, **{name: counts[kind.__name__] for name, kind in by_party.items()}}


def _of_one(
    kind: str, session: Session, found: str, meaning: str, remedy: str = f"{ASK} why"
) -> AuditWarning:
    return AuditWarning(kind, (session.name,), f"session {shown(session.name)}: {found}", meaning, remedy)


def _turns(session: Session, test: Callable[[list[Released]], bool]) -> str:
    """Return a phrase that lists the turns whose answers pass a test; '' if there are none."""
    turns = [str(turn) for turn, answers in session.by_turn.items() if test(answers)]
    return f"turn{'s' if len(turns) > 1 else ''} {listed(turns)}" if turns else ""


def _questions(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    """Yield a warning if a turn has more than one query. Under `on_loss = "shrink"`, a turn may have one
    query about the tree and one that ends the tree."""

    def differ(answers: list[Released]) -> bool:
        questions = {_question(answer) for answer in answers}
        if _shrinks(terms):
            ends = {question for question in questions if question[0] in END_OF_ROUND}
            questions = max(questions - ends, ends, key=len)
        return len(questions) > 1

    if turns := _turns(session, differ):
        yield _of_one(
            "other-question",
            session,
            f"the site answered different questions in {turns}",
            "there are two answers instead of one: their difference may concern few rows, or a single row",
        )


def _positions(session: Session) -> Iterator[AuditWarning]:
    def differ(answers: list[Released]) -> bool:
        stood = {(_question(each), each.position) for each in answers if each.position is not None}
        return len(stood) > len({question for question, _ in stood})

    if turns := _turns(session, differ):
        yield _of_one(
            "other-position",
            session,
            f"the same question was asked again after different trees or splits, in {turns}",
            "the answers are sums over different rows: their difference is the sum over the rows in between",
        )


def _rosters(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    between: set[str] = set()

    def differ(answers: list[Released]) -> bool:
        nonlocal between
        if _shrinks(terms):  # one question to a roster, then the end of the tree with a smaller one
            kept = {answer.what for answer in answers} - MAY_SHRINK
            answers = [answer for answer in answers if answer.what in kept]
        rosters = {frozenset(answer.roster) for answer in answers}
        if len(rosters) > 1:
            between |= frozenset.union(*rosters) - frozenset.intersection(*rosters)
        return len(rosters) > 1

    if turns := _turns(session, differ):
        yield _of_one(
            "other-roster",
            session,
            f"the site took part in sums with and without {listed(sorted(between))}, in {turns}",
            f"subtracting one sum from the other gives only the totals of {listed(sorted(between))}",
        )
    if terms is None:
        return

    def too_small(answers: list[Released]) -> bool:
        rosters = [set(answer.roster) for answer in answers]
        return any(not each <= set(terms.parties) or len(each) < terms.min_roster for each in rosters)

    if turns := _turns(session, too_small):
        yield _of_one(
            "small-roster",
            session,
            f"the site took part in sums over fewer or different parties than the terms allow, in {turns}",
            "a sum over fewer parties hides each of them less",
        )


def _vectors(session: Session) -> Iterator[AuditWarning]:
    """Yield a warning if a privacy cost was charged for several answers to one query at one point of
    training."""
    charges: dict[object, set[str]] = {}
    for answer in session.answers:
        if answer.charge is not None and answer.question and answer.position:
            key = answer.question, answer.position, frozenset(answer.roster)
            charges.setdefault(key, set()).add(answer.charge)
    several = {key for key, names in charges.items() if len(names) > 1}

    def among(answers: list[Released]) -> bool:
        return any((each.question, each.position, frozenset(each.roster)) in several for each in answers)

    if turns := _turns(session, among):
        yield _of_one(
            "other-answer",
            session,
            f"the site gave different answers to the same question at the same point of training, in {turns}",
            "the rows changed in between: the difference is the effect of the changed rows, plus noise",
            "as operator of this site, do not change the table during a session; if it was not changed, "
            "report a bug in fedboost",
        )


def _amount(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    by_turn = session.by_turn
    asked = [{name for answer in answers for name in queries_of(answer.what)} for answers in by_turn.values()]
    times = Counter(name for names in asked for name in names)
    ends = sum(not names.isdisjoint(END_OF_ROUND) for names in asked)
    rounds = session.admitted.rounds if session.admitted is not None else None
    seen = []
    if terms is not None and len(by_turn) > terms.max_turns:
        seen.append(f"{len(by_turn)} questions were asked, but the terms allow only {terms.max_turns}")
    if rounds is not None and ends > rounds + 1:  # the first one sets the constant
        seen.append(f"{ends - 1} rounds were ended, but the terms have only {counted(rounds, 'round')}")
    allowed = {} if terms is None else allowed_questions(terms)
    more = [
        f"{QUERIES[kind]} ({times[kind]} times, but the terms allow only {most})"
        for kind, most in allowed.items()
        if times[kind] > most and kind not in END_OF_ROUND
    ]
    seen += more
    if not more and terms is not None:
        histograms = _most_in_a_tree(by_turn, frozenset({HistogramQuery.__name__}), terms)
        questions = _most_in_a_tree(by_turn, OF_TREE, terms)
        if histograms > max_levels(terms):
            seen.append(
                f"{histograms} histograms were requested for one tree, but the terms allow only "
                f"{max_levels(terms)}"
            )
        elif questions > terms.max_turns_per_tree:
            seen.append(
                f"{questions} questions were asked about one tree, but the terms allow only "
                f"{terms.max_turns_per_tree}"
            )
    if seen:
        yield _of_one(
            "too-many",
            session,
            "; ".join(seen),
            "this site disclosed more about its rows than it agreed to",
        )


def _most_in_a_tree(by_turn: dict[int, list[Released]], kinds: frozenset[str], terms: Terms) -> int:
    """Return the largest number of turns with queries of these kinds between two ends of rounds. With
    `on_loss = "shrink"`, a gap in the turn numbers also counts as an end, which the party may have missed."""
    most = count = before = 0
    for turn, answers in by_turn.items():
        if turn != before + 1 and _shrinks(terms):
            count = 0
        names = [queries_of(answer.what) for answer in answers]
        ends = [own for own in names if not END_OF_ROUND.isdisjoint(own)]
        count += any(not kinds.isdisjoint(own) for own in names if own not in ends)
        most = max(most, count)
        if ends:  # questions that share its turn are about the next tree
            count = any(not kinds.isdisjoint(own) for own in ends)
        before = turn
    return max(most, count)


def _question(answer: Released) -> tuple[str, int, str]:
    return answer.what, answer.cells, answer.question or ""


def _shrinks(terms: Terms | None) -> bool:
    return terms is not None and terms.session.on_loss == "shrink"


# ---- Warnings about an audit log: traces that training within its terms never leaves --------------------


def warnings_of(sessions: list[Session], admitted: AdmittedTerms) -> list[AuditWarning]:
    """Return all warnings about a log, most serious first. admitted: terms of the sessions, by digest."""
    answered = [session for session in sessions if session.answers]
    warnings: list[AuditWarning] = []
    for same_name in grouped((session.name, session) for session in answered).values():
        warnings += _name_warnings(same_name, admitted)
        digests = grouped((session.digest or "", session) for session in same_name)
        for digest, same_terms in digests.items():
            known = admitted.get(digest)
            terms = known if isinstance(known, Terms) else None
            parts = [part for session in same_terms for part in session.parts]
            whole = Session(name=same_name[0].name, parts=parts)
            warnings += [*_questions(whole, terms), *_positions(whole), *_rosters(whole, terms)]
            warnings += [*_vectors(whole), *_amount(whole, terms)]
    warnings += _similar_groups(answered, admitted)
    warnings += _requests(answered)
    warnings += _unread_terms(sessions, admitted)
    return sorted(warnings, key=lambda warning: [*Kind].index(warning.kind))


# ---- names and attempts -----------------------------------------------------------------------------


def _name_warnings(sessions: list[Session], admitted: AdmittedTerms) -> Iterator[AuditWarning]:
    name = sessions[0].name
    first = sessions[0].parts[0]
    # If the admission is in an older file, a first answer in a turn after the first shows that.
    really = first.admitted is not None or min((each.turn for each in first.releases), default=0) > 1
    if (first.attempt or 0) > 1 and really:
        yield AuditWarning(
            "first-attempt",
            (name,),
            f"session {shown(name)} begins in this log with attempt {first.attempt}",
            "this site's answers in earlier attempts are not in this log, and cannot be compared",
            f"if the log was moved aside in between, audit the old log, too; if not, {ASK_TOO} why",
        )
    digests = list(dict.fromkeys(session.digest or "" for session in sessions))
    if len(digests) > 1:
        yield AuditWarning(
            "other-terms",
            (name,),
            f"{len(digests)} different terms were run under one session name, {shown(name)}: "
            f"{_differences([admitted.get(digest) for digest in digests])}",
            "this site answered under each of these terms, although the plan and the budget covered only one",
            f"{ASK} and the analyst which terms were agreed on",
        )
    for session in sessions:
        if is_after_end(session, sessions):
            yield AuditWarning(
                "after-end",
                (name,),
                f"session {shown(name)} had ended and was answered again: "
                f"{counted(len(session.answers), 'answer')} too many",
                "the answers to a repeated session can reveal more, down to the labels of individual rows",
                f"{ASK} why",
            )
    for session in sessions:
        yield from _attempts(session)


def _differences(agreements: list[Terms | ConfigError | None]) -> str:
    """Describe the settings in which terms differ, with their values."""
    settings = [_settings(terms) for terms in agreements if isinstance(terms, Terms)]
    if len(settings) < len(agreements):
        return "how they differ is unknown, because some of the terms are missing from this log"
    names = dict.fromkeys(name for values in settings for name in values)
    differ = [name for name in names if len({values.get(name, "none") for values in settings}) > 1]
    several = [
        f"{name} was {', then '.join(shown(values.get(name, 'none')) for values in settings)}"
        for name in differ[:MAX_LISTED]
    ]
    more = len(differ) - len(several)
    return "; ".join([*several, f"and {counted(more, 'more setting')}"] if more else several)


def _settings(terms: Terms) -> dict[str, str]:
    values = terms.model_dump(mode="json", exclude_none=True)
    for table in ("columns", "noise"):
        values |= {f"{table}.{name}": value for name, value in values.pop(table, {}).items()}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _attempts(session: Session) -> Iterator[AuditWarning]:
    answered = 0
    for part in session.parts:
        if part.answers and answered and part.attempt is not None and part.attempt <= answered:
            yield AuditWarning(
                "attempt-again",
                (session.name,),
                f"session {shown(session.name)} was resumed in attempt {part.attempt}, after answers "
                f"in attempt {answered}",
                "attempt numbers only increase: this site was restored to an earlier state, or is running "
                "twice",
                f"ask the operator of this site; if neither is the case, {ASK_TOO} why",
            )
        answered = max([answered, *(release.attempt for release in part.answers)])


# ---- between sessions -------------------------------------------------------------------------------


def _similar_groups(sessions: list[Session], admitted: AdmittedTerms) -> Iterator[AuditWarning]:
    """Yield warnings about two or three groups of parties whose sums together reveal sums over few."""
    groups: dict[frozenset[str], tuple[Session, int]] = {}
    for session in sessions:
        known = session.admitted
        protection = PROTECTIONS.get(known.protection) if known is not None else None
        terms = None if known is None else admitted.get(known.terms)
        if isinstance(terms, Terms):  # where parties hold different columns, the protection may hide less
            protection = terms.protection
        if known is not None and (protection is None or protection.hides):
            holders, colluding = _group(known, admitted)
            groups.setdefault(holders, (session, colluding))
    warned: list[set[frozenset[str]]] = []
    for number in (2, 3):
        for chosen in combinations(groups, number):
            colluding = max(groups[group][1] for group in chosen)
            shown_parties = smallest_revealed_set(chosen, colluding)
            if not shown_parties or any(pair <= set(chosen) for pair in warned):
                continue
            warned.append(set(chosen))
            yield _groups_warning({group: groups[group][0] for group in chosen}, shown_parties, colluding)


def _groups_warning(
    groups: dict[frozenset[str], Session], shown_parties: frozenset[str], colluding: int
) -> AuditWarning:
    names, few = tuple(session.name for session in groups.values()), listed(sorted(shown_parties))
    (before, earlier), (after, later), *others = groups.items()
    observation = " and ".join(
        f"session {shown(session.name)} had {listed(sorted(alone))}, session {shown(other.name)} did not"
        for session, other, alone in ((earlier, later, before - after), (later, earlier, after - before))
        if alone
    )
    meaning = (
        f"subtracting one result from the other gives only the totals of {few}"
        if not others
        else f"their results together give only the totals of {few}"
    )
    if colluding:
        meaning += f", and {colluding} of them may work with the aggregator"
    verb = "was" if len(shown_parties) == 1 else "were"
    if others:
        observation = f"sessions {listed([shown(name) for name in names])} had different parties"
    else:
        steps = {"dropped out": before - after, "joined": after - before}
        happened = " and ".join(f"{listed(sorted(who))} {step}" for step, who in steps.items() if who)
        meaning += f". This was not intended if {happened}; otherwise {few} {verb} singled out"
    return AuditWarning(
        "similar-groups",
        names,
        observation,
        meaning,
        "ask the analyst. As operator of this site, list the parties to train with in `parties` of [policy]",
    )


def _group(agreement: Admitted, admitted: AdmittedTerms) -> tuple[frozenset[str], int]:
    terms = admitted.get(agreement.terms)
    if isinstance(terms, Terms):
        return frozenset(terms.holders), colluding_parties(terms)
    return frozenset(agreement.parties), Group.of(agreement.parties).colluding


def _requests(sessions: list[Session]) -> Iterator[AuditWarning]:
    requests = grouped(
        (request, session)
        for session in sessions
        for request in {part.admitted.request for part in session.parts if part.admitted}
        if request is not None
    )
    for same in requests.values():
        names = _names(same)
        if len(names) > 1:
            yield AuditWarning(
                "request-again",
                names,
                f"one signed request of the analyst started {len(names)} sessions: {listed(list(names))}",
                "an analyst signs a new request for each session, so someone reused this one",
                f"{ASK} and the analyst which session was requested",
            )


def _unread_terms(sessions: list[Session], admitted: AdmittedTerms) -> Iterator[AuditWarning]:
    faults = grouped(
        (str(terms), session)
        for session in sessions
        if isinstance(terms := admitted.get(session.digest or ""), ConfigError)
    )
    for fault, same in faults.items():
        names = _names(same)
        yield AuditWarning(
            "terms",
            names,
            f"the terms of {_sessions(names)} cannot be checked: {fault}",
            "what they allow is unknown, so most of the other warnings cannot be given",
            "as operator of this site, audit the store, or an export that contains them; terms are checked "
            "against their SHA-256, so any matching copy will do",
        )


# ---- text -------------------------------------------------------------------------------------------


def listed(names: list[str]) -> str:
    """Return untrusted names as printable text: all names if there are few, otherwise the first ones."""
    more = len(names) - MAX_LISTED
    names = [shown(name) for name in (names[:MAX_LISTED] if more > 1 else names)]
    if more > 1:
        return f"{', '.join(names)} and {more} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _names(sessions: list[Session]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(session.name for session in sessions))


def _sessions(names: tuple[str, ...]) -> str:
    return f"session{'s' if len(names) > 1 else ''} {listed(list(names))}"


# ---- The audit of a log ---------------------------------------------------------------------------------


OF_COMMON_ROWS = frozenset({ROW_SET, GRADIENTS, ENCRYPTED})
"""Kinds of relays in training that cover all matched rows."""


def audit_of(
    log: Path,
    entries: Sequence[Entry],
    sessions: list[Session],
    expected: int | None = None,
    name: str | None = None,
    last: int | None = None,
) -> Audit:
    """Return the audit of a log.

    Args:
        log: path of the log.
        entries: verified entries of the log.
        sessions: sessions of the log. Their fields about terms and warnings are filled in.
        expected: number of the entry whose hash the reader expected, if any.
        name: session to list answer by answer; None to summarise all sessions.
        last: number of most recent sessions to summarise; None for all.
    """
    admitted = _terms_of(sessions, log)
    first = 0 if last is None else max(len(sessions) - last, 0)
    shown = {session.name for session in sessions[first:]} if name is None else {name}
    warnings = [warning for warning in warnings_of(sessions, admitted) if shown & {*warning.sessions}]
    _place(sessions, warnings, admitted)
    parties = {entry.event.party for entry in entries if isinstance(entry.event, Admitted)} - {None}
    return Audit(
        log=str(log),
        entries=len(entries),
        last=entries[-1].n if entries else 0,
        last_hash=entries[-1].hash if entries else BEFORE_THE_FIRST,
        expected=expected,
        parties=tuple(sorted(map(str, parties))),
        warnings=tuple(warnings),
        sessions=tuple(session for session in sessions[first:] if name in (None, session.name)),
        listed=name is not None,
        earlier=first,
        checks=_checks_of(entries) if name is None and last is None else (),
        decisions=tuple(_decisions_of(entries)),
    )


def _decisions_of(entries: Iterable[Entry]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        match entry.event:
            case Decided(kind=kind, terms=terms, analysts=analysts):
                whose = f" for {listed([*analysts])}" if analysts else ""
                yield entry.time, f"{kind} {terms[:12]}{whose}"
            case Kept(kind=kind, known=known):
                yield entry.time, f"{kind}: the last entry before was {known}"


def _checks_of(entries: Iterable[Entry]) -> tuple[Checks, ...]:
    """Return the preflight checks by day and analyst, in the order of their first entries."""
    asked: dict[tuple[str, str], dict[str, bool]] = {}
    for entry in entries:
        if isinstance(event := entry.event, Checked):
            asked.setdefault((entry.time[:10], event.analyst or ""), {})[event.terms] = event.would
    return tuple(
        Checks(day=day, analyst=analyst, terms=len(answers), would=sum(answers.values()))
        for (day, analyst), answers in asked.items()
    )


def _terms_of(sessions: list[Session], log: Path) -> dict[str, Terms | ConfigError]:
    kept, terms = terms_in(log), dict[str, Terms | ConfigError]()
    for digest in {session.admitted.terms for session in sessions if session.admitted}:
        try:
            terms[digest] = read_admitted(kept, digest, log)
        except ConfigError as error:
            terms[digest] = error
    return terms


def _place(sessions: list[Session], warnings: Sequence[AuditWarning], admitted: AdmittedTerms) -> None:
    """Fill in the fields of each session that depend on its terms and on the log's other sessions."""
    names, digests = Counter[str](), Counter(other.digest for other in sessions if other.releases)
    total = Counter(session.name for session in sessions)
    for session in sessions:
        names[session.name] += 1
        session.number, session.total = names[session.name], total[session.name]
        session.after_end = is_after_end(session, sessions)
        session.under_terms = digests[session.digest] if session.releases else 0
        session.warnings = tuple(n for n, each in enumerate(warnings, 1) if session.name in each.sessions)
        terms = admitted.get(session.digest or "")
        session.own = _own(session, terms)
        if isinstance(terms, Terms):
            session.allowed = allowed_questions(terms)
            session.protection = None if terms.task.is_protected else terms.hiding.protection


def _own(session: Session, terms: Terms | ConfigError | None) -> SiteShare | None:
    """Return the site's share in a session where parties hold different columns; None for other sessions."""
    if not isinstance(terms, Terms):
        return SiteShare() if session.relays else None
    if not terms.blocks:
        return None
    admitted = session.admitted
    party = "" if admitted is None else admitted.party or ""
    hides, in_common = terms.hides_columns, None
    if terms.vertical.aligns and not terms.vertical.takes_all_rows:
        rows = (relay.rows for relay in session.relays if relay.what in OF_COMMON_ROWS)
        in_common = max(rows, default=None)
    if admitted is None or party not in terms.parties:
        return SiteShare(hides=hides, in_common=in_common)
    held = terms.blocks.columns_of(party)
    return SiteShare(
        columns=(*held.others, *held.features),
        names=admitted.names or {},
        has_labels=terms.blocks.has_labels(party),
        hides=hides,
        in_common=in_common,
    )
