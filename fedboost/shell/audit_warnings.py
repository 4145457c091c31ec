"""Warnings about an audit log: what a training that keeps its terms never leaves behind.

Promises: a training that kept its terms gives none, whatever was lost, restarted and asked again in it, nor
does a session that was refused; each warning says what was seen, what it means and what to do.
Refuses: nothing. Terms that are not beside the log count as terms with the defaults of `colluding`, `on_loss`
and `keyholder_rows`, and of unknown depth. An aggregator that lies without leaving a trace here, in other
sums to other sites, say, is not found.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from fedboost.errors import ConfigError
from fedboost.privacy.pairwise import Group
from fedboost.protocol.queries import (
    BY_PARTY,
    EndRoundQuery,
    HistogramQuery,
    ResidualQuery,
    SumsQuery,
    VoteQuery,
)
from fedboost.protocol.site_memory import SMALLEST_DIFFERENCE, smallest_difference
from fedboost.protocol.terms import Terms
from fedboost.shell.audit import Admitted, Released
from fedboost.shell.audit_sessions import Session
from fedboost.shell.summary import shown

END_OF_ROUND = frozenset({EndRoundQuery.__name__, BY_PARTY})
OF_TREE = frozenset(kind.__name__ for kind in (HistogramQuery, VoteQuery, ResidualQuery, SumsQuery))
MAY_SHRINK = END_OF_ROUND | {HistogramQuery.__name__}
"""Questions from which on a roster may be another one, where the terms say `shrink`."""
MAX_LISTED = 5
ASK = "Keep this log, and ask whoever runs the aggregator"


@dataclass(frozen=True)
class AuditWarning:
    """One warning. rule: its name, for scripts; sessions: those it is about; seen: what stands in the log."""

    rule: str
    sessions: tuple[str, ...]
    seen: str
    meaning: str
    action: str

    @property
    def sentences(self) -> tuple[str, str, str]:
        """What was seen, what it means, what to do."""
        seen, meaning, action = (
            f"{text[0].upper()}{text[1:]}." for text in (self.seen, self.meaning, self.action)
        )
        return seen, meaning, action


AdmittedTerms = Mapping[str, Terms | ConfigError]
"""The terms of a log by their digest, or why they cannot be read."""


def warnings_of(sessions: list[Session], admitted: AdmittedTerms) -> list[AuditWarning]:
    """All warnings about a log. admitted: the terms of the sessions that were admitted in it."""
    answered = [session for session in sessions if session.answers]
    names: dict[str, list[Session]] = {}
    for session in answered:
        names.setdefault(session.name, []).append(session)
    warnings: list[AuditWarning] = []
    for same_name in names.values():
        warnings += _of_name(same_name)
        digests: dict[str | None, list[Session]] = {}
        for session in same_name:
            digests.setdefault(_digest(session), []).append(session)
        for digest, same_terms in digests.items():
            terms = admitted.get(digest or "")
            whole = Session(same_name[0].name, [part for session in same_terms for part in session.parts])
            for rule in _WITHIN_A_SESSION:
                warnings += rule(whole, terms if isinstance(terms, Terms) else None)
    warnings += _similar_groups(answered, admitted)
    warnings += _central_noise(answered)
    warnings += _requests(answered)
    warnings += _unread_terms(sessions, admitted)
    return warnings


# ---- names and attempts -----------------------------------------------------------------------------


def _of_name(sessions: list[Session]) -> Iterator[AuditWarning]:
    """Warnings about the sessions of one name."""
    name = sessions[0].name
    first = sessions[0].parts[0]
    if (first.attempt or 0) > 1 and _is_really_first(sessions[0]):
        yield AuditWarning(
            "first-attempt",
            (name,),
            f"session {shown(name)} begins here with attempt {first.attempt}",
            "what this site answered in the attempts before is not in this log, nor can it be compared",
            f"if the log was moved away meanwhile, audit the old one too; if not: {_lower(ASK)} why",
        )
    digests = sorted({_digest(session) or "" for session in sessions})
    if len(digests) > 1:
        yield AuditWarning(
            "other-terms",
            (name,),
            f"session {shown(name)} was answered under {len(digests)} terms: "
            f"{_listed([digest[:12] or 'unknown' for digest in digests])}",
            "what was planned and counted for the session held for one of them; the others came on top",
            f"{ASK} and the analyst which terms were agreed on",
        )
    for number, session in enumerate(sessions[1:], 1):
        if _digest(session) in [_digest(earlier) for earlier in sessions[:number]]:
            yield AuditWarning(
                "after-end",
                (name,),
                f"session {shown(name)} had ended and was answered again: "
                f"{_count(len(session.answers), 'answer')} too many",
                "whoever asks a second time may ask anything else, down to the labels of single rows",
                f"{ASK} why",
            )
    for session in sessions:
        yield from _attempts(session)


def _is_really_first(session: Session) -> bool:
    """Return whether the first attempt that is known is the first of the site. An old log has only those that
    were answered in: there, a first question that is not the session's first shows it."""
    part = session.parts[0]
    known = part.admitted is not None and part.admitted.attempt is not None
    return known or min(release.turn for release in part.releases) > 1


def _attempts(session: Session) -> Iterator[AuditWarning]:
    answered = 0
    for part in session.parts:
        if part.answers and answered and part.attempt is not None and part.attempt <= answered:
            yield AuditWarning(
                "attempt-again",
                (session.name,),
                f"session {shown(session.name)} was taken up again in attempt {part.attempt}, after answers "
                f"in attempt {answered}",
                "attempts only grow: this site was put back to an earlier state, or runs twice",
                f"if you did neither: {_lower(ASK)}",
            )
        answered = max([answered, *(release.attempt for release in part.answers)])


# ---- turns ------------------------------------------------------------------------------------------


def _questions(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    """Turns with more than one question. Where a party is lost for good, the end of the tree may come in the
    place of a question about it."""
    turns = []
    for turn, answers in session.by_turn.items():
        questions = {_question(answer) for answer in answers}
        if _shrinks(terms):
            ends = {question for question in questions if question[0] in END_OF_ROUND}
            questions = max(questions - ends, ends, key=len)
        if len(questions) > 1:
            turns.append(turn)
    if turns:
        yield AuditWarning(
            "other-question",
            (session.name,),
            f"session {shown(session.name)}: different questions in {_turns(turns)}",
            "two answers in the place of one: their difference can be of a few rows, or of one",
            f"{ASK} why",
        )


def _positions(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    turns = []
    for turn, answers in session.by_turn.items():
        stood: dict[object, set[str]] = {}
        for answer in answers:
            if answer.position is not None:
                stood.setdefault(_question(answer), set()).add(answer.position)
        if any(len(positions) > 1 for positions in stood.values()):
            turns.append(turn)
    if turns:
        yield AuditWarning(
            "other-position",
            (session.name,),
            f"session {shown(session.name)}: one question after other trees or splits in {_turns(turns)}",
            "the two answers are sums over other rows, and their difference is of the rows between",
            f"{ASK} why",
        )


def _rosters(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    """Turns over several rosters, and rosters that the terms do not allow."""
    turns: list[int] = []
    between: set[str] = set()
    for turn, answers in session.by_turn.items():
        if _shrinks(terms):  # one question of a roster, then the end of the tree of a smaller one
            kept = {answer.what for answer in answers} - MAY_SHRINK
            answers = [answer for answer in answers if answer.what in kept]
        rosters = {frozenset(answer.roster) for answer in answers}
        if len(rosters) > 1:
            turns.append(turn)
            between |= frozenset.union(*rosters) - frozenset.intersection(*rosters)
    if turns:
        yield AuditWarning(
            "other-roster",
            (session.name,),
            f"session {shown(session.name)}: sums with and without {_listed(sorted(between))} in "
            f"{_turns(turns)}",
            f"the difference of two such sums is of the rows of {_listed(sorted(between))} alone",
            f"{ASK} why",
        )
    if terms is not None:
        allowed = [
            turn
            for turn, answers in session.by_turn.items()
            if any(not _is_allowed(answer, terms) for answer in answers)
        ]
        if allowed:
            yield AuditWarning(
                "small-roster",
                (session.name,),
                f"session {shown(session.name)}: sums over other parties than the terms allow in "
                f"{_turns(allowed)}",
                "a sum over fewer parties hides each of them less",
                f"{ASK} why",
            )


def _is_allowed(answer: Released, terms: Terms) -> bool:
    return set(answer.roster) <= set(terms.parties) and len(set(answer.roster)) >= terms.fewest


def _vectors(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    """The same question, where the session stood at the same place, charged as several answers. Noise that
    the aggregator draws is charged each time."""
    if terms is not None and terms.noise is not None and terms.noise.placement == "central":
        return
    charges: dict[object, set[str]] = {}
    turns: dict[object, int] = {}
    for answer in session.answers:
        if answer.charge is not None and answer.question and answer.position:
            key = answer.question, answer.position, frozenset(answer.roster)
            charges.setdefault(key, set()).add(answer.charge)
            turns[key] = answer.turn
    several = sorted({turns[key] for key, names in charges.items() if len(names) > 1})
    if several:
        yield AuditWarning(
            "other-answer",
            (session.name,),
            f"session {shown(session.name)}: one question at one place, and different answers, in "
            f"{_turns(several)}",
            "the rows changed between the two, and the difference is of the changed ones, with noise",
            "leave the table as it is while a session runs; if you did, report this as a defect of fedboost",
        )


def _amount(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    """More questions than the terms allow."""
    by_turn = session.by_turn
    ends = [
        turn for turn, answers in by_turn.items() if any(answer.what in END_OF_ROUND for answer in answers)
    ]
    rounds = session.admitted.rounds if session.admitted is not None else None
    seen = []
    if terms is not None and len(by_turn) > terms.most_turns:
        seen.append(f"{len(by_turn)} questions, where the terms allow {terms.most_turns}")
    if rounds is not None and len(ends) > rounds + 1:  # one of them sets the constant
        seen.append(f"the ends of {len(ends) - 1} trees, where the terms have {_count(rounds, 'round')}")
    if terms is not None:
        deepest = terms.max_depth if terms.grow_policy == "depthwise" else terms.most_leaves
        histograms = _most_in_a_tree(by_turn, frozenset({HistogramQuery.__name__}), terms)
        questions = _most_in_a_tree(by_turn, OF_TREE, terms)
        if histograms > deepest:
            seen.append(f"{histograms} histograms about one tree, where the terms allow {deepest}")
        elif questions > terms.levels:
            seen.append(f"{questions} questions about one tree, where the terms allow {terms.levels}")
    if seen:
        yield AuditWarning(
            "too-many",
            (session.name,),
            f"session {shown(session.name)}: {'; '.join(seen)}",
            "this site told more of its rows than it agreed to",
            f"{ASK} why",
        )


def _most_in_a_tree(by_turn: dict[int, list[Released]], kinds: frozenset[str], terms: Terms) -> int:
    """The most turns with such questions between the ends of two rounds. A party that was away may have
    missed an end, where the others went on without it."""
    most = count = before = 0
    for turn, answers in by_turn.items():
        if turn != before + 1 and _shrinks(terms):
            count = 0
        count += any(answer.what in kinds for answer in answers)
        most = max(most, count)
        if any(answer.what in END_OF_ROUND for answer in answers):
            count = 0
        before = turn
    return most


_WITHIN_A_SESSION: tuple[Callable[[Session, Terms | None], Iterator[AuditWarning]], ...] = (
    _questions,
    _positions,
    _rosters,
    _vectors,
    _amount,
)


# ---- between sessions -------------------------------------------------------------------------------


def _similar_groups(sessions: list[Session], admitted: AdmittedTerms) -> Iterator[AuditWarning]:
    """Pairs of groups that differ by few parties: each pair once, by the first session of each."""
    groups: dict[frozenset[str], Session] = {}
    for session in sessions:
        known = session.admitted
        if known is not None and known.protection != "plain":
            groups.setdefault(frozenset(_holders(known, admitted)), session)
    for (before, earlier), (after, later) in combinations(groups.items(), 2):
        assert later.admitted is not None
        differ, least = sorted(before ^ after), _smallest_difference(later.admitted, admitted)
        if len(differ) < least:
            yield AuditWarning(
                "similar-groups",
                (earlier.name, later.name),
                f"the groups of sessions {shown(earlier.name)} and {shown(later.name)} differ by "
                f"{_listed(differ)}",
                f"the difference of their sums is of the rows of {_listed(differ)}; at least {least} parties "
                f"have to differ, or none",
                "ask the analyst why; name the parties to train with in `parties` of [policy]",
            )


def _holders(known: Admitted, admitted: AdmittedTerms) -> tuple[str, ...]:
    terms = admitted.get(known.terms)
    return terms.holders if isinstance(terms, Terms) else known.parties


def _smallest_difference(known: Admitted, admitted: AdmittedTerms) -> int:
    terms = admitted.get(known.terms)
    if isinstance(terms, Terms):
        return smallest_difference(terms)
    return max(SMALLEST_DIFFERENCE, Group.of(known.parties).colluding + 1)


def _central_noise(sessions: list[Session]) -> Iterator[AuditWarning]:
    names = _names(
        [session for session in sessions if session.admitted and session.admitted.placement == "central"]
    )
    if names:
        yield AuditWarning(
            "central-noise",
            names,
            f"the aggregator drew the noise of {_sessions(names)}",
            "it saw the sums as they are, of single rows too; the epsilon holds for the model alone",
            'without "central" in `placements` of [policy] this site refuses such terms',
        )


def _requests(sessions: list[Session]) -> Iterator[AuditWarning]:
    requests: dict[str, list[Session]] = {}
    for session in sessions:
        for request in {part.admitted.request for part in session.parts if part.admitted} - {None}:
            requests.setdefault(str(request), []).append(session)
    for same in requests.values():
        names = _names(same)
        if len(names) > 1:
            yield AuditWarning(
                "request-again",
                names,
                f"one request of the analyst began {_sessions(names)}",
                "an analyst signs a request for each session: somebody used this one again",
                f"{ASK}, and the analyst, who asked for which",
            )


def _unread_terms(sessions: list[Session], admitted: AdmittedTerms) -> Iterator[AuditWarning]:
    faults: dict[str, list[Session]] = {}
    for session in sessions:
        known = session.admitted
        if known is not None and known.attempt is not None:
            terms = admitted.get(known.terms)
            if isinstance(terms, ConfigError):
                faults.setdefault(str(terms), []).append(session)
    for fault, same in faults.items():
        names = _names(same)
        yield AuditWarning(
            "terms",
            names,
            f"the terms of {_sessions(names)}: {fault}",
            "what they allow is not known, and most of the other warnings cannot be given",
            "put the file back where it was, from a copy or from the analyst: its content is its name",
        )


# ---- words ------------------------------------------------------------------------------------------


def _digest(session: Session) -> str | None:
    return None if session.admitted is None else session.admitted.terms


def _question(answer: Released) -> tuple[str, int, str]:
    """All that is known of a question: its hash is not in an old log."""
    return answer.what, answer.cells, answer.question or ""


def _shrinks(terms: Terms | None) -> bool:
    return terms is not None and terms.on_loss == "shrink"


def _names(sessions: list[Session]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(session.name for session in sessions))


def _sessions(names: tuple[str, ...]) -> str:
    return f"session{'s' if len(names) > 1 else ''} {_listed(list(names))}"


def _turns(turns: list[int]) -> str:
    return f"turn{'s' if len(turns) > 1 else ''} {_listed([str(turn) for turn in turns])}"


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_LISTED
    names = [shown(name) for name in (names[:MAX_LISTED] if more > 1 else names)]
    if more > 1:
        return f"{', '.join(names)} and {more} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
