"""A site as its session sees it: what it is asked to permit, what it remembers, limits over sessions."""

import hmac
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from fedboost.errors import PeerError, Refused, quoted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.sampling import Mask
from fedboost.privacy import packing
from fedboost.privacy.noise import epsilon_of, mu_of, noise_of
from fedboost.privacy.packing import RandomBytes
from fedboost.privacy.pairwise import Group
from fedboost.privacy.protection import Tag
from fedboost.protocol.contracts import (
    MAX_GROUPS,
    NOWHERE,
    HeldTable,
    Holder,
    Position,
    Query,
    TrainingState,
    fewest_shown,
)
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.parts import Part
from fedboost.terms.hiding import MIN_EPSILON
from fedboost.terms.terms import Terms

# ---- A site's memory of sessions, as a session needs it -------------------------------------------------
# What holds between sessions and over restarts.
# Promises: whatever a session answered stands in the memory before the first byte of the answer leaves; a
# session that ended, was left, refused or pushed aside is not forgotten; the rows of a session, the privacy
# that was spent on them and the groups of parties they were added to are known for the whole dataset.
# Refuses (Refused): a session that ended; a name under other terms; a later attempt of an unknown session,
# or an attempt that this site has answered in; an analyst's request that another session used; more
# sessions of a dataset than the site allows, more rows that it helps to predict, or more splits by its
# columns; groups of parties whose sums together show few of them; other rows than the session began with;
# what does not fit the budget.
# A session that predicts is counted by its rows alone, at the parties that help the label holder. It is
# none of max_sessions, and its parties are no group: it opens no sum over rows, so there is nothing to
# subtract from those of trainings, and nothing that noise or its budget could bound.


KEY_BYTES = 32
MAX_OFFERS = 100
"""Sessions of one dataset that an analyst asked for within OFFER_DAYS and that never began, since another
site refused them, say, or since the rows did not fit: each answer tells if the rows fit the terms. One
analyst's do not count against another."""
OFFER_DAYS = 7.0
"""So long an offer that never began counts against MAX_OFFERS: what locks out an analyst lets them in within
a week without a person, and whoever asks has 15 answers of one bit a day; each model tells thousands."""
NO_LIMIT = 1 << 62
"""More than any number that is counted."""
MAX_SESSIONS = 20
"""Sessions of one dataset, unless the site's policy says otherwise: each is one more set of sums over its
rows."""
MAX_SPLITS = 2000
"""Splits by a party's columns, over all sessions of one dataset, unless its policy says otherwise: each tells
other parties a bit of a column for every row of a node. 50 trees of 31 splits are 1,550."""


@dataclass(frozen=True)
class SessionOffer:
    """A session that is offered to a site. analyst and request: who signed the terms, and the nonce of that
    signature; empty where nothing is signed."""

    session: str
    terms: Terms
    attempt: int = 1
    analyst: str = ""
    request: bytes = b""


@dataclass(frozen=True)
class Limits:
    """A policy's limits on all sessions of a dataset. similar_groups: whether the groups of parties
    may be such that their sums together show few of them (`fewest_shown`); max_predicted_rows: of all
    sessions that predict with columns of this site for another party; max_splits: by columns of this site, of
    all sessions in which parties hold different ones; min_difference: the fewest rows in which the rows that
    two sessions are about, or hold out, may differ."""

    max_sessions: int = MAX_SESSIONS
    similar_groups: bool = False
    max_predicted_rows: int = 0
    max_splits: int = MAX_SPLITS
    min_difference: int = 0


@dataclass(frozen=True)
class Question:
    """A question about the tree that grows: its turn and hash, whether it is of a tree before its end, and
    where the session stood before and after it. received: hashes of what other parties relayed for it that
    must be the same when it is asked again.
    """

    turn: int
    digest: bytes
    of_tree: bool
    before: Position
    after: Position
    received: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Standing:
    """The standing of a session at this site.

    attempt: the highest in which the parties met; base: before the tree that grows; reached: after the
    furthest question; questions: those about that tree, in order of their turns; helped: stage and roster of
    the furthest sum that this party helped to open; signed: whether it signed a model.
    """

    attempt: int = 0
    base: Position = NOWHERE
    reached: Position = NOWHERE
    questions: tuple[Question, ...] = ()
    helped: tuple[int, tuple[str, ...]] | None = None
    signed: bool = False

    @property
    def last_turn(self) -> int:
        """The turn of the last of these questions, 0 without any."""
        return self.questions[-1].turn if self.questions else 0

    def after(self, question: Question, base: Position, reached: Position) -> "Standing":
        """The standing with this question. Another base is that of another tree, of which nothing
        was asked yet."""
        questions = (*(self.questions if base == self.base else ()), question)
        if len(questions) > 1 and question.turn <= questions[-2].turn:
            questions = tuple(asked for _, asked in sorted({each.turn: each for each in questions}.items()))
        return Standing(self.attempt, base, reached, questions, self.helped, self.signed)


@dataclass(frozen=True)
class Known:
    """A session as the rules between sessions look at it. ended: the reason, '' for a model; None while it
    may go on. holders: the parties with rows; colluding: how many of the parties may collude; predicted: None
    for a training, else the rows that this party helps another to predict; splits: the most by its columns,
    where parties hold different ones; days: since it was offered first, 0 in a memory without a clock;
    analyst: who asked for it, '' where nothing is signed."""

    session: str
    digest: str
    attempt: int
    holders: tuple[str, ...]
    hides: bool
    request: bytes = b""
    ended: str | None = None
    colluding: int = 0
    predicted: int | None = None
    splits: int = 0
    days: float = 0.0
    analyst: str = ""

    @classmethod
    def begun(
        cls, session: str, terms: Terms, request: bytes = b"", party: str = "", analyst: str = ""
    ) -> "Known":
        """A session under these terms in which nobody met yet, as this party looks at it."""
        group, colluding = (terms.holders, terms.protection.hides), colluding_of(terms)
        told = predicted_by(terms, party), splits_by(terms, party)
        return cls(session, terms.digest, 0, *group, request, None, colluding, *told, analyst=analyst)

    @property
    def trained(self) -> bool:
        """True for a session that counts against max_sessions: any in which the parties met, but those that
        predict."""
        return self.attempt > 0 and self.predicted is None

    @property
    def unmet(self) -> bool:
        """True for a session that counts against MAX_OFFERS."""
        return self.attempt == 0 and self.days < OFFER_DAYS


class SessionMemory(Protocol):
    """A site's memory of one session. Each method returns when it is written down, in `together` at its end;
    DurabilityError if it cannot be."""

    def together(self) -> AbstractContextManager[None]:
        """Write all that is noted and recorded meanwhile, or nothing of it."""

    @property
    def standing(self) -> Standing:
        """The standing of the session."""

    @property
    def secret(self) -> bytes:
        """A secret of this session, 32 bytes, from which noise is drawn: the same over restarts, gone with
        the session's end."""

    def bind(self, rows: Callable[[bytes], bytes], table: HeldTable | None = None) -> None:
        """Hold the session to its rows. rows: their HMAC under a key; table: what later sessions may need to
        know of them. Refused if it began with others, or is about rows that differ from those of another
        session by few."""

    def meet(self, attempt: int) -> None:
        """The parties met in this attempt: rows that are predicted, and splits, are charged. Refused where
        the sessions that met since this one was offered do not go with it."""

    def ask(self, question: Question, base: Position, reached: Position) -> None:
        """This question is about to be answered. Another `base` than before is another tree: the questions of
        the one before it are dropped."""

    def help(self, stage: int, roster: tuple[str, ...]) -> None:
        """A sum of this stage over this roster is about to be opened."""

    def sign(self) -> None:
        """A model is about to be signed."""

    def charge(self, release: str, cost: float) -> None:
        """Charge a release (mu squared) once, however often it is named. Refused if it does not fit what is
        left, or is more than the terms plan."""

    def end(self, reason: str) -> None:
        """The session is over for this site, '' with a model: it is not heard of again."""


class SiteMemory(Protocol):
    """A site's memory of all sessions of one dataset."""

    def begin(self, offer: SessionOffer, limits: Limits) -> SessionMemory:
        """Take part in a session, or go on with it. Refused as the module says; DurabilityError."""


def colluding_of(terms: Terms) -> int:
    """The number of parties that may collude."""
    return Group.of(terms.parties, terms.hiding.colluding).colluding


def predicted_by(terms: Terms, party: str) -> int | None:
    """The rows that a party helps another to predict; None where the terms train. The label holder predicts
    its own: 0."""
    if terms.vertical.predict_rows is None:
        return None
    return 0 if terms.blocks.has_labels(party) else terms.vertical.predict_rows


def splits_by(terms: Terms, party: str) -> int:
    """The most splits by columns of a party that other parties are told of; 0 where all have all columns."""
    if not terms.task.trains or terms.blocks.of(party) is None:
        return 0
    rounds = terms.trees.rounds - terms.vertical.alone_rounds
    return rounds * (terms.max_leaves_per_round - len(terms.roots))


def judge(
    offer: SessionOffer, known: Known | None, others: Iterable[Known], limits: Limits, party: str
) -> None:
    """Raise Refused unless a site that knows these sessions may take part. known: this session, if it is
    known; others: all other sessions of the dataset."""
    session, terms = quoted(offer.session), offer.terms
    if known is not None:
        if known.digest != terms.digest:
            raise Refused(f"party {party} knows session {session} under other terms; a session has one name")
        if known.ended is not None:
            raise Refused(f"party {party}: session {session} has ended here; train again")
        if known.request != offer.request:
            raise Refused(f"party {party} knows session {session} by another request of the analyst")
        if offer.attempt <= known.attempt:
            met = f"{known.attempt} of session {session}, and is offered attempt {offer.attempt}"
            raise Refused(f"party {party} has met the others in attempt {met}")
        return
    if offer.attempt > 1:
        unknown = f"attempt {offer.attempt} of session {session}, which it does not know"
        raise Refused(f"party {party} is offered {unknown}; train again")
    others = list(others)
    if offer.request and any(other.request == offer.request for other in others):
        raise Refused(
            f"party {party}: the analyst's request was used for another session; train again, or sign the "
            f"terms again (fedboost sign)"
        )
    unmet = sum(other.unmet and other.analyst == offer.analyst for other in others)
    if unmet >= MAX_OFFERS:
        whose = f" by analyst {quoted(offer.analyst)}" if offer.analyst else ""
        raise Refused(
            f"party {party} refuses: {unmet} sessions with these rows were offered to it{whose} within "
            f"{OFFER_DAYS:g} days and never began; each tells if the rows fit. Offer it again when the first "
            f"of them are older"
        )
    check_others(Known.begun(offer.session, terms, party=party), others, limits, party)


def check_others(session: Known, others: Iterable[Known], limits: Limits, party: str) -> None:
    """Raise Refused where this session does not go with the others that met: their number, their groups, the
    rows that are predicted, and the splits. Many may be offered before the first of them meet."""
    others = list(others)
    trained = sum(other.trained for other in others)
    if trained >= limits.max_sessions and session.predicted is None:
        raise Refused(
            f"party {party} refuses: its policy has max_sessions = {limits.max_sessions}, and it took part "
            f"in {trained} sessions with these rows, trainings and all others; the person who answers for "
            f"them decides: set max_sessions to more in [policy] of the site's file and restart `fedboost "
            f"party`, or run there `fedboost approve` for these terms alone"
        )
    check_group(session, others, limits, party)
    rows, used = session.predicted, rows_predicted(others)
    if rows and used + rows > limits.max_predicted_rows:
        raise Refused(
            f"party {party} refuses: its policy has max_predicted_rows = {limits.max_predicted_rows}, it "
            f"helped to predict {used} rows so far, and these are {rows} more; the person who answers for "
            f"its rows can raise it there"
        )
    splits, used = session.splits, splits_told(others)
    if splits and used + splits > limits.max_splits:
        raise Refused(
            f"party {party} refuses: its policy has max_splits = {limits.max_splits}, sessions so far could "
            f"have {used} by its columns, and this one {splits} more; the person who answers for its rows "
            f"can raise it there"
        )


def check_chosen(chosen: Mask, others: Iterable[Mask], limits: Limits, party: str) -> None:
    """Raise Refused if these rows, or all others, are those of an earlier session but for a few: the sums of
    the two sessions would differ by the few."""
    for other in others:
        size = max(chosen.size, other.size)
        ours, theirs = (np.pad(rows, (0, size - rows.size)) for rows in (chosen, other))
        differ = int((ours != theirs).sum())
        few = min(differ, size - differ)
        if 0 < few < limits.min_difference:
            raise Refused(
                f"party {party} refuses: the rows that are held out or measured differ by fewer than "
                f"{limits.min_difference} from those of an earlier session, or from all others; take the "
                f"rows of the earlier session, another seed, or more rows",
                f"they differ by {few}",
            )


def rows_predicted(sessions: Iterable[Known]) -> int:
    """Rows that a site helped to predict in these sessions."""
    return sum(known.predicted or 0 for known in sessions if known.attempt)


def splits_told(sessions: Iterable[Known]) -> int:
    """Splits by a site's columns that these sessions could make."""
    return sum(known.splits for known in sessions if known.attempt)


def check_group(session: Known, others: Iterable[Known], limits: Limits, party: str) -> None:
    """Raise Refused if the sums over the group of this session and over those of others, in which the parties
    met, would together show few parties."""
    met = [other for other in others if other.hides and other.attempt]
    groups = {frozenset(other.holders) for other in met}
    mine = frozenset(session.holders)
    if limits.similar_groups or not session.hides or mine in groups:
        return
    if len(groups) >= MAX_GROUPS:
        raise Refused(
            f"party {party} took part with {len(groups)} different groups of parties, and does with no more: "
            f"the differences of their sums would show single ones"
        )
    colluding = max(known.colluding for known in (session, *met))
    shown = fewest_shown((*groups, mine), colluding)
    if shown:
        raise Refused(
            f"party {party}: with the sums of earlier sessions, those over these parties would show fewer "
            f"than {colluding + 2} of them; take the parties of an earlier session, or change more of them",
            f"they would show {', '.join(sorted(shown))}",
        )


@dataclass
class TransientMemory:
    """A memory that ends with the process, without a budget: for simulations and tests. clock: in days."""

    draw: RandomBytes
    party: str = ""
    sessions: "dict[str, TransientSession]" = field(default_factory=dict)
    charged: dict[tuple[str, str], float] = field(default_factory=dict)
    """Session and release to cost."""
    chosen: dict[str, Mask] = field(default_factory=dict)
    """Session to the rows that it was about, or held out."""
    clock: Callable[[], float] = lambda: 0.0

    def begin(self, offer: SessionOffer, limits: Limits) -> "TransientSession":
        """Take part in a session, or go on with it."""
        held = self.sessions.get(offer.session)
        judge(offer, held.known if held else None, self.others(offer.session), limits, self.party)
        if held is None:
            held = self.sessions[offer.session] = TransientSession(self, offer, self.draw(KEY_BYTES))
        held.limits = limits
        return held

    def others(self, session: str) -> list[Known]:
        """All sessions but this one."""
        return [held.known for name, held in self.sessions.items() if name != session]


class TransientSession:
    """A session of a TransientMemory."""

    def __init__(self, memory: TransientMemory, offer: SessionOffer, secret: bytes) -> None:
        self.standing = Standing()
        self.secret = secret
        self.limits = Limits()
        self._memory = memory
        about = offer.request, memory.party, offer.analyst
        self._known = Known.begun(offer.session, offer.terms, *about)
        self._begun = memory.clock()

    @property
    def known(self) -> Known:
        """This session as the rules between sessions look at it."""
        return replace(self._known, attempt=self.standing.attempt, days=self._memory.clock() - self._begun)

    def together(self) -> AbstractContextManager[None]:
        """Nothing outlives the process anyway."""
        return nullcontext()

    def bind(self, rows: Callable[[bytes], bytes], table: HeldTable | None = None) -> None:
        """Note the rows that it is about: they stay as they are while a process lives."""
        if table is not None and table.chosen is not None:
            memory, name = self._memory, self._known.session
            others = [chosen for session, chosen in memory.chosen.items() if session != name]
            check_chosen(table.chosen, others, self.limits, memory.party)
            memory.chosen[name] = table.chosen

    def meet(self, attempt: int) -> None:
        """Note the attempt."""
        if not self.standing.attempt:
            others = self._memory.others(self._known.session)
            check_others(self._known, others, self.limits, self._memory.party)
        self.standing = replace(self.standing, attempt=attempt)

    def ask(self, question: Question, base: Position, reached: Position) -> None:
        """Note the question."""
        self.standing = self.standing.after(question, base, reached)

    def help(self, stage: int, roster: tuple[str, ...]) -> None:
        """Note the sum."""
        self.standing = replace(self.standing, helped=(stage, roster))

    def sign(self) -> None:
        """Note it."""
        self.standing = replace(self.standing, signed=True)

    def charge(self, release: str, cost: float) -> None:
        """Note it."""
        self._memory.charged[self._known.session, release] = cost

    def end(self, reason: str) -> None:
        """Note it."""
        self._known = replace(self._known, ended=reason)


# ---- The noise of a session at one party, and what it is charged as -------------------------------------
# Promises: `Spending.release` charges the site's memory before it adds the noise of a release, and adds the
# same noise for what is said again: the same question to the same roster where the session stands at the
# same place, answered with the same integers. For anything else it is independent, and charged again; so no
# two answers differ by less than noise, and whether two have the same noise says nothing of rows.
# Refuses: what does not fit what is left (Refused, by the memory).


@dataclass(frozen=True)
class Charge:
    """The charge of one answer: a name, the same for the same answer, and a cost."""

    name: str
    cost: float


@dataclass(frozen=True)
class Spending:
    """The noise of one session at one party."""

    terms: Terms
    memory: SessionMemory

    def release(
        self, query: Query, state: TrainingState, tag: Tag, values: Int64
    ) -> tuple[Int64, Charge | None]:
        """An answer with this party's share of the noise, and what it was charged as. The answer is as it
        was, and nothing is charged, if nothing of rows is in it, or if the aggregator draws the noise: it
        gets exact sums, which no charge can stand for.

        state: where the session stood when it was asked; sums over the same nodes after other trees are
        another question.
        """
        release, noise = query.release(self.terms), self.terms.noise
        if release is None:
            if values.size:
                raise PeerError("an answer without noise, where the terms say that all get some")
            return values, None
        if noise is None or noise.placement == "central":
            return values, None
        key = self._key(query, state, tag, values)
        charge = Charge(hmac.digest(key, b"name", "sha256").hex()[:32], release.cost)
        self.memory.charge(charge.name, charge.cost)
        return values + noise_of(hmac.digest(key, b"noise", "sha256"), release.share, values.size), charge

    def _key(self, query: Query, state: TrainingState, tag: Tag, values: Int64) -> bytes:
        """A secret of this very answer."""
        label = packing.pack(
            self.terms.digest.encode(),
            query.digest,
            state.position.digest,
            packing.pack(*(party.encode() for party in sorted(tag.roster))),
            values.tobytes(),
        )
        return hmac.digest(self.memory.secret, label, "sha256")


def with_central_noise(query: Query, terms: Terms, total: Int64, draw: RandomBytes) -> Int64:
    """An opened sum with the noise that the aggregator draws, if it is the one to draw it."""
    if terms.noise is None or terms.noise.placement != "central":
        return total
    release = query.release(terms)
    return total if release is None else total + noise_of(draw(KEY_BYTES), release.share, total.size)


# ---- A party's end of a session, as far as the session needs its surroundings ---------------------------


HELP, OPENINGS = "help to open the sum", "openings of blinded sums"
THRESHOLDS = "thresholds of this site's splits"
"""Names of releases that answer no question."""


@dataclass(frozen=True)
class Release:
    """An answer that is about to leave this site, for its audit log. question: the question's hash, in hex;
    position: that of where the session stood; both empty for what answers no question. charge: where it
    got noise, what the site's memory was charged."""

    session: str
    turn: int
    attempt: int
    what: str
    cells: int
    size: int
    protection: str
    roster: tuple[str, ...]
    charge: Charge | None = None
    question: str = ""
    position: str = ""


@dataclass(frozen=True)
class Relayed:
    """Bytes that are about to leave this site for other parties, for its audit log. what: their kind; to: the
    parties that can read them; rows: the rows they tell of; size: bytes before they are sealed."""

    session: str
    turn: int
    attempt: int
    what: str
    to: tuple[str, ...]
    rows: int
    size: int


@dataclass(frozen=True)
class Site:
    """The place that a party's session runs at.

    holder: reads this party's data as the terms want them, or raises Refused; it is also given a secret of
    the session, the same over restarts; None at a key holder without rows; draw: cryptographic randomness;
    credentials: who this party is, None where nothing is signed;
    permit: called with an offer before any row is read, raises Refused if the site's own rules forbid it;
    taken: called with an offer that is taken, before any row is read; record: called with each release and
    each relay before its bytes leave; memory: the site's memory of sessions; unless given it lasts as long as
    this object; keep: called with this party's part of a model before it signs that.
    """

    name: str
    holder: Callable[[Terms, bytes], Holder] | None
    draw: RandomBytes
    credentials: Credentials | None = None
    permit: Callable[[SessionOffer], Limits] = lambda offer: Limits(
        max_predicted_rows=NO_LIMIT, max_splits=NO_LIMIT
    )
    taken: Callable[[SessionOffer], None] = lambda offer: None
    record: Callable[[Release | Relayed], None] = lambda release: None
    memory: SiteMemory = None  # type: ignore[assignment]
    keep: Callable[[Part], None] = lambda part: None

    def __post_init__(self) -> None:
        if self.memory is None:
            object.__setattr__(self, "memory", TransientMemory(self.draw, self.name))


# ---- The privacy of its rows that a site lets be spent over all sessions --------------------------------
# Promises: costs (mu squared) add, epsilons do not; a refusal names the epsilon that would fit.


ROUNDING = 1e-12
"""Of sums of costs, relative to the budget."""


@dataclass(frozen=True)
class Budget:
    """The privacy of its rows that a site lets be spent: (epsilon, delta) over all sessions."""

    epsilon: float
    delta: float

    @property
    def cost(self) -> float:
        """The same as a cost, mu squared."""
        return mu_of(self.epsilon, self.delta) ** 2

    def left(self, spent: float) -> float:
        """The epsilon that a session at this delta may have, once that was spent. Epsilons do not add:
        it is more than the difference of two."""
        return epsilon_of(math.sqrt(max(self.cost - spent, 0.0)), self.delta)

    def check_session(self, party: str, terms: Terms, spent: float, charged: float) -> None:
        """Raise Refused unless what a session still plans to release fits. spent: by all sessions; charged:
        by this one."""
        assert terms.noise is not None
        if terms.noise.placement == "central":
            raise Refused(
                f'party {party}: with placement = "central" nothing hides its sums from the aggregator, so '
                f"no such session fits the budget of these rows, epsilon {self.epsilon:g} at delta "
                f'{self.delta:g}; use placement = "distributed" or "local"'
            )
        wanted = f"the terms ask for epsilon {terms.noise.epsilon:g} at delta {terms.noise.delta:g}"
        self.check(party, wanted, terms.noise.delta, spent, max(terms.plan.cost - charged, 0.0), charged)

    def check(
        self, party: str, wanted: str, delta: float, spent: float, cost: float, charged: float = 0.0
    ) -> None:
        """Raise Refused unless so much more fits. wanted: what asks for it; delta: of what asks."""
        if spent + cost <= self.cost * (1.0 + ROUNDING):
            return
        room = math.sqrt(max(self.cost - spent + charged, 0.0))
        fits = _rounded_down(epsilon_of(room, delta))
        remedy = (
            f"lower the epsilon of the noise to {fits:g} at most at delta {delta:g}"
            if fits >= MIN_EPSILON
            else "no session with noise fits"
        )
        raise Refused(
            f"party {party}: {wanted}, and its budget for these rows, epsilon {self.epsilon:g} "
            f"at delta {self.delta:g}, has {_rounded_down(self.left(spent)):g} left; {remedy}, unless the "
            f"site raises `epsilon` in its policy"
        )


def _rounded_down(epsilon: float) -> float:
    return math.floor(epsilon * 1e4) / 1e4
