"""Which query a party answers now, and what it remembers of it.

Promises: turns go up by one; after a restart of the attempt the tree that grows may be asked for again, with
the same queries in the same places, or the session went on elsewhere without contradicting what the site
remembers.
Refuses: any other query, and those that tell the party more than its view (PeerError); queries that the terms
do not allow (Refused).
"""

from dataclasses import dataclass

from fedboost.errors import PeerError
from fedboost.protocol.contracts import Query, TrainingState
from fedboost.protocol.messages import Ask
from fedboost.protocol.site_memory import Question, SessionMemory, Standing
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class Situation:
    """A party's situation in a session when a query comes.

    me: its name; attempt, roster: of the attempt under way; last: the query that this process answered last,
    of whichever attempt; state: where the training stands here; standing: what the site remembers of the
    session.
    """

    me: str
    terms: Terms
    attempt: int
    roster: tuple[str, ...]
    last: Ask | None
    state: TrainingState
    standing: Standing


def check_due(ask: Ask, now: Situation) -> None:
    """Raise PeerError or Refused unless this query may be asked of this roster, here and now."""
    terms, state, standing = now.terms, now.state, now.standing
    if ask.attempt != now.attempt:
        raise PeerError(f"a question of attempt {ask.attempt} in attempt {now.attempt}")
    last = now.last
    if last is None or (ask.attempt, ask.roster) != (last.attempt, last.roster):  # else it was checked
        _check_roster(ask.roster, now)
    if len(ask.roster) < len(terms.parties) and not state.may_lack_parties(ask.query):
        raise PeerError("a sum that lacks parties before the first tree split")
    if not _is_due(ask, now):
        asked = {question.turn for question in standing.questions}
        if ask.turn in asked:
            raise PeerError(f"another question in turn {ask.turn}, or elsewhere in the tree, than before")
        before = now.last.turn if now.last else max(asked, default=0)
        raise PeerError(f"turn {ask.turn} asked after turn {before}")
    if standing.helped is not None:
        stage, helped = standing.helped
        moved = ask.query.stage > stage and state.may_change(ask.query)
        if helped != tuple(sorted(ask.roster)) and not moved:
            raise PeerError(
                f"turn {ask.turn}: the roster changed where the difference of two sums would show a party"
            )
    ask.query.check(terms)
    parts = ask.query.parts
    for query in parts:
        if query.only_turn is not None and (query.only_turn != ask.turn or len(parts) > 1):
            raise PeerError(f"{query.name} in turn {ask.turn}, and turn {query.only_turn} is for it alone")
        if query.of_tree or query.ends_tree:
            state.check_next(terms, query)
        if query is not parts[-1]:
            state = state.after(query)
    check_view(ask.query.digest, ask.query.seen_by(terms, now.me).digest)


def check_view(told: bytes, seen: bytes) -> None:
    """Raise PeerError where a party is told more than it may see, by the digests of what it is told and of
    its view of that."""
    if told != seen:
        raise PeerError("told of columns of other parties, or of leaf values without labels")


def _check_roster(asked: tuple[str, ...], now: Situation) -> None:
    """Raise PeerError for a roster other than that of the parties that were introduced."""
    terms, roster = now.terms, tuple(sorted(asked))
    strangers = not set(roster) <= set(terms.parties) or (now.roster and roster != now.roster)
    if strangers or now.me not in roster or not terms.min_roster <= len(set(roster)) == len(roster):
        raise PeerError("a sum over other parties than those of the terms, or than were introduced")


def _is_due(ask: Ask, now: Situation) -> bool:
    """True if this is the turn of the query, and the training stands where it belongs."""
    last, terms, state, standing = now.last, now.terms, now.state, now.standing
    if ask.turn > terms.max_turns:
        raise PeerError(f"turn {ask.turn}, where the terms have {terms.max_turns} questions at most")
    if last is not None and ask.attempt == last.attempt and ask.turn != last.turn + 1:
        return False
    last_known = standing.last_turn
    if ask.turn <= last_known:
        for known in standing.questions:
            if known.turn == ask.turn:
                return state.position == known.before and _repeats(ask.query, known, terms)
    if standing.signed:
        raise PeerError("asked after the model was signed")
    if last is not None and ask.attempt == last.attempt:
        return ask.turn > last_known
    if terms.session.on_loss == "shrink":
        return ask.turn > last_known and state.has_passed(standing.reached)
    return ask.turn == last_known + 1 and state.position == standing.reached


def _repeats(query: Query, before: Question, terms: Terms) -> bool:
    """True if a query may be asked instead of the one whose sum was not opened: it is the same, or ends the
    tree where it stands because a party was lost."""
    cut_short = before.of_tree and query.ends_tree
    return query.digest == before.digest or (cut_short and terms.session.on_loss == "shrink")


def can_stand_at(state: TrainingState, terms: Terms, standing: Standing) -> bool:
    """True if the training can have come to stand there, by what the site remembers."""
    # No sum was opened without this party, but a restarted aggregator begins the tree again.
    known = (position for question in standing.questions for position in (question.before, question.after))
    if state.position in (standing.base, standing.reached, *known):
        return True
    # Others may have gone on without it, once a tree split; it comes back where a tree begins.
    split = any(done.splits for done in state.rounds)
    may_have_been_away = terms.session.on_loss == "shrink" and split and state.levels == 0
    return may_have_been_away and state.has_passed(standing.base)


def remember(
    memory: SessionMemory,
    ask: Ask,
    before: TrainingState,
    after: TrainingState,
    received: tuple[bytes, ...] = (),
) -> Question:
    """Write down which query was asked where, before the answer leaves. received: see `Question`; what is
    known of an earlier attempt stays."""
    standing, query = memory.standing, ask.query
    known = next((known.received for known in standing.questions if known.turn == ask.turn), ())
    received = max(received, known, key=len)
    question = Question(ask.turn, query.digest, query.of_tree, before.position, after.position, received)
    base, last = standing.base, standing.last_turn
    if len(before.rounds) > base.rounds:
        base, last = before.before_tree.position, 0
    memory.ask(question, base, after.position if ask.turn >= last else standing.reached)
    return question
