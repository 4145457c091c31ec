"""Warnings about one session: its questions, turn by turn, against the terms it was admitted under.

Promises: a training that kept its terms gives none, whatever was lost, restarted and asked again in it.
Refuses: nothing. Without the terms, only what no terms allow is warned of.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import get_args

from fedboost.boosting.queries.base import BaseQuery
from fedboost.boosting.queries.labels import EVALUATION_BY_PARTY, EvaluationQuery
from fedboost.boosting.queries.trees import BY_PARTY, EndRoundQuery, HistogramQuery, max_levels
from fedboost.boosting.queries.union import Query
from fedboost.people.summary import QUERIES, queries_of
from fedboost.people.text import shown
from fedboost.runtime.site.audit_entry import Released
from fedboost.runtime.site.audit_sessions import Session
from fedboost.runtime.site.audit_warnings import ASK, AuditWarning, counted, listed
from fedboost.terms.session import TO_TRAIN
from fedboost.terms.terms import Terms

KINDS: tuple[type[BaseQuery], ...] = get_args(Query)
END_OF_ROUND = frozenset({EndRoundQuery.__name__, BY_PARTY})
OF_TREE = frozenset(kind.__name__ for kind in KINDS if kind.of_tree)
MAY_SHRINK = END_OF_ROUND | {HistogramQuery.__name__}
"""Questions from which on a roster may be another one, where the terms say `shrink`."""


def allowed_questions(terms: Terms) -> Mapping[str, int]:
    """The number of questions of each kind that the terms allow; empty for a program that is not
    fedboost's."""
    if terms.task == TO_TRAIN and terms.session.program != "boosting":
        return {}
    counts = {kind.__name__: kind.max_count(terms) if kind.serves(terms) else 0 for kind in KINDS}
    by_party = {BY_PARTY: EndRoundQuery, EVALUATION_BY_PARTY: EvaluationQuery}
    return {**counts, **{name: counts[kind.__name__] for name, kind in by_party.items()}}


def turns_warnings(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    """All warnings about the turns of one session."""
    for rule in (_questions, _positions, _rosters, _vectors, _amount):
        yield from rule(session, terms)


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
            f"session {shown(session.name)}: different questions in {_turns(turns)}"
            + (", as their kinds or sizes show" if _is_unrecorded(session) else ""),
            "two answers instead of one: their difference can be of a few rows, or of one"
            + ("; this log does not record which questions they were" if _is_unrecorded(session) else ""),
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
            f"session {shown(session.name)}: one question asked again after other trees or splits, in "
            f"{_turns(turns)}",
            "the two answers are sums over different rows: their difference is the sum over the rows between",
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
            f"session {shown(session.name)}: sums with and without {listed(sorted(between))} in "
            f"{_turns(turns)}",
            f"subtracting one sum from the other gives the totals of {listed(sorted(between))} alone",
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
    return set(answer.roster) <= set(terms.parties) and len(set(answer.roster)) >= terms.min_roster


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
            f"session {shown(session.name)}: different answers to the same question at the same place, in "
            f"{_turns(several)}",
            "the rows changed in between, and the difference is of the changed ones, with noise",
            "the operator of this site: leave the table as it is while a session runs; if nobody changed it, "
            "report this as a defect of fedboost",
        )


def _amount(session: Session, terms: Terms | None) -> Iterator[AuditWarning]:
    """More questions than the terms allow."""
    by_turn = session.by_turn
    asked = [{name for answer in answers for name in queries_of(answer.what)} for answers in by_turn.values()]
    times = Counter(name for names in asked for name in names)
    ends = sum(not names.isdisjoint(END_OF_ROUND) for names in asked)
    rounds = session.admitted.rounds if session.admitted is not None else None
    seen = []
    if terms is not None and len(by_turn) > terms.max_turns:
        seen.append(f"{len(by_turn)} questions in all, where the terms allow {terms.max_turns}")
    if rounds is not None and ends > rounds + 1:  # one of them sets the constant
        seen.append(f"the ends of {ends - 1} trees, where the terms have {counted(rounds, 'round')}")
    if terms is not None and (more := _more_than_allowed(times, allowed_questions(terms))):
        seen += more
    elif terms is not None:
        histograms = _most_in_a_tree(by_turn, frozenset({HistogramQuery.__name__}), terms)
        questions = _most_in_a_tree(by_turn, OF_TREE, terms)
        if histograms > max_levels(terms):
            seen.append(f"{histograms} histograms about one tree, where the terms allow {max_levels(terms)}")
        elif questions > terms.max_turns_per_tree:
            seen.append(
                f"{questions} questions about one tree, where the terms allow {terms.max_turns_per_tree}"
            )
    if seen:
        yield AuditWarning(
            "too-many",
            (session.name,),
            f"session {shown(session.name)}: {'; '.join(seen)}",
            "this site told more about its rows than it agreed to",
            f"{ASK} why",
        )


def _more_than_allowed(times: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """The kinds of questions that were asked too often, in words."""
    return [
        f"{times[kind]} times {QUERIES[kind]}, where the terms allow {most}"
        for kind, most in allowed.items()
        if times[kind] > most and kind not in END_OF_ROUND
    ]


def _most_in_a_tree(by_turn: dict[int, list[Released]], kinds: frozenset[str], terms: Terms) -> int:
    """The most turns with such questions between the ends of two rounds. A party that was away may have
    missed an end, where the others went on without it."""
    most = count = before = 0
    for turn, answers in by_turn.items():
        if turn != before + 1 and _shrinks(terms):
            count = 0
        names = [queries_of(answer.what) for answer in answers]
        ends = [own for own in names if not END_OF_ROUND.isdisjoint(own)]
        count += any(not kinds.isdisjoint(own) for own in names if own not in ends)
        most = max(most, count)
        if ends:  # what shares its turn is about the next tree
            count = any(not kinds.isdisjoint(own) for own in ends)
        before = turn
    return max(most, count)


def _question(answer: Released) -> tuple[str, int, str]:
    """All that is known of a question: its hash is not in an old log."""
    return answer.what, answer.cells, answer.question or ""


def _shrinks(terms: Terms | None) -> bool:
    return terms is not None and terms.session.on_loss == "shrink"


def _is_unrecorded(session: Session) -> bool:
    """Return whether the log does not say which questions were asked."""
    return any(answer.question is None for answer in session.answers)


def _turns(turns: list[int]) -> str:
    return f"turn{'s' if len(turns) > 1 else ''} {listed([str(turn) for turn in turns])}"
