"""A site as a session sees it: what it permits, what it remembers, and its limits over sessions."""

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
    smallest_revealed_set,
)
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.parts import Part
from fedboost.terms.hiding import MIN_EPSILON
from fedboost.terms.terms import Terms

# ---- A site's memory of sessions, as a session needs it -------------------------------------------------
# The rules that apply between sessions and over restarts.
# Promises: an answer is in the memory before its first byte leaves. A session that ended, was left, refused
# or replaced by another is not forgotten. The rows of a session, the privacy spent on them, and the groups of
# parties to whose sums they were added are known for the whole dataset.
# Refuses (Refused): a session that ended; a known name under other terms; a later attempt of an unknown
# session, or an attempt in which this site has met the others; an analyst's request that another session
# used; more sessions of a dataset, more rows to help predict, or more splits by its columns than the site
# allows; groups of parties whose sums together reveal few of them; other rows than the session began with;
# releases beyond the budget.
# A session that predicts is limited only by its rows, at the parties that help the label holder. It does not
# count in max_sessions, and its parties are not a group: it opens no sum over rows, so there is nothing to
# subtract from the sums of trainings, and nothing that noise or a budget could bound.


KEY_BYTES = 32
MAX_OFFERS = 100
"""Most sessions of one dataset that an analyst requested within OFFER_DAYS and that never began, e.g. because
another site refused them or the rows did not fit: each answer reveals whether the rows fit the terms. Counted
for each analyst."""
OFFER_DAYS = 7.0
"""Days for which an offer that never began counts in MAX_OFFERS. A locked-out analyst is readmitted within a
week without anyone's help, and gets at most 15 one-bit answers a day; each model reveals thousands."""
NO_LIMIT = 1 << 62
"""More than any counted number."""
MAX_SESSIONS = 20
"""Default limit for sessions of one dataset: each adds another set of sums over its rows."""
MAX_SPLITS = 2000
"""Default limit for splits by a party's columns over all sessions of one dataset: each reveals to other
parties a bit of a column for every row of a node. 50 trees of 31 splits are 1,550."""


@dataclass(frozen=True)
class SessionOffer:
    """A session offered to a site. analyst, request: the signer of the terms and the nonce of the signature,
    empty where nothing is signed."""

    session: str
    terms: Terms
    attempt: int = 1
    analyst: str = ""
    request: bytes = b""


@dataclass(frozen=True)
class Limits:
    """A policy's limits on all sessions of a dataset.

    Args:
        max_sessions: most sessions in which the parties met, except those that predict.
        similar_groups: whether sums over the groups of parties may together reveal few of them
            (`smallest_revealed_set`).
        max_predicted_rows: most rows predicted for other parties with this site's columns.
        max_splits: most splits by this site's columns, where parties hold different ones.
        min_difference: fewest rows in which the rows that two sessions use, or hold out, may differ."""

    max_sessions: int = MAX_SESSIONS
    similar_groups: bool = False
    max_predicted_rows: int = 0
    max_splits: int = MAX_SPLITS
    min_difference: int = 0


@dataclass(frozen=True)
class Question:
    """A query about the growing tree, as a site remembers it.

    of_tree: whether it is about a tree before its end; before, after: the position before and after it;
    received: hashes of other parties' relays for it that must be the same when it is asked again."""

    turn: int
    digest: bytes
    of_tree: bool
    before: Position
    after: Position
    received: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Standing:
    """The progress of a session, as this site remembers it.

    Args:
        attempt: the highest attempt in which the parties met.
        base: position before the growing tree.
        reached: position after the furthest query.
        questions: the queries about that tree, ordered by turn.
        helped: stage and roster of the furthest sum that this party helped to open.
        signed: whether it signed a model."""

    attempt: int = 0
    base: Position = NOWHERE
    reached: Position = NOWHERE
    questions: tuple[Question, ...] = ()
    helped: tuple[int, tuple[str, ...]] | None = None
    signed: bool = False

    @property
    def last_turn(self) -> int:
        """Turn of the last of these queries, 0 without any."""
        return self.questions[-1].turn if self.questions else 0

    def after(self, question: Question, base: Position, reached: Position) -> "Standing":
        """Return the standing after this query. Another base means another tree: queries start over."""
        # A turn that is asked again replaces its entry. Others that were asked after it stay.
        questions = (*(self.questions if base == self.base else ()), question)
        if len(questions) > 1 and question.turn <= questions[-2].turn:
            questions = tuple(asked for _, asked in sorted({each.turn: each for each in questions}.items()))
        return Standing(self.attempt, base, reached, questions, self.helped, self.signed)


@dataclass(frozen=True)
class KnownSession:
    """A session as the rules between sessions see it.

    Args:
        holders: the parties with rows.
        hides: whether the protection hides single vectors.
        ended: the reason, '' for a model; None while the session may go on.
        colluding: number of parties that may collude.
        predicted: rows that this party helps another to predict, None for a training.
        splits: most splits by this party's columns, where parties hold different ones.
        days: time since the first offer, 0 in a memory without a clock.
        analyst: who requested it, '' where nothing is signed."""

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
    ) -> "KnownSession":
        """Make the record of a session in which no parties have met yet, from this party's point of view."""
        group, colluding = (terms.holders, terms.protection.hides), colluding_parties(terms)
        told = predicted_by(terms, party), splits_by(terms, party)
        return cls(session, terms.digest, 0, *group, request, None, colluding, *told, analyst=analyst)

    @property
    def trained(self) -> bool:
        """True if the session counts in max_sessions: the parties met, and it does not predict."""
        return self.attempt > 0 and self.predicted is None

    @property
    def unmet(self) -> bool:
        """True if the session counts in MAX_OFFERS."""
        return self.attempt == 0 and self.days < OFFER_DAYS


class SessionMemory(Protocol):
    """A site's memory of one session. A method returns once its change is written, or within `together` at
    the end of that; DurabilityError if it cannot be."""

    def together(self) -> AbstractContextManager[None]:
        """Write everything that is noted and recorded within it, or nothing."""

    @property
    def standing(self) -> Standing:
        """The progress of the session."""

    @property
    def secret(self) -> bytes:
        """A secret of this session for noise, 32 bytes: the same over restarts, deleted at its end."""

    def bind(self, rows: Callable[[bytes], bytes], table: HeldTable | None = None) -> None:
        """Bind the session to its rows. rows: returns their HMAC under a key; table: what later sessions may
        need of them. Raises Refused if the session began with other rows, or uses rows that differ from those
        of another session by only a few."""

    def meet(self, attempt: int) -> None:
        """Note that the parties met in this attempt, and charge predicted rows and splits. Raises Refused if
        sessions that met since this one was offered exclude it."""

    def ask(self, question: Question, base: Position, reached: Position) -> None:
        """Note a query that is about to be answered. A `base` that differs from the last is that of another
        tree: earlier queries are dropped."""

    def help(self, stage: int, roster: tuple[str, ...]) -> None:
        """Note that a sum of this stage over this roster is about to be opened."""

    def sign(self) -> None:
        """Note that a model is about to be signed."""

    def charge(self, release: str, cost: float) -> None:
        """Charge a release (mu squared) once, however often it is named. Raises Refused if it exceeds what is
        left, or what the terms plan."""

    def end(self, reason: str) -> None:
        """Note that the session is over for this site, for good. reason: '' with a model."""


class SiteMemory(Protocol):
    """A site's memory of all sessions of one dataset."""

    def begin(self, offer: SessionOffer, limits: Limits) -> SessionMemory:
        """Take part in a session, or go on with it. Raises Refused (see `judge`) or DurabilityError."""


def colluding_parties(terms: Terms) -> int:
    """Return the number of parties that may collude."""
    return Group.of(terms.parties, terms.hiding.colluding).colluding


def predicted_by(terms: Terms, party: str) -> int | None:
    """Return the number of rows that a party helps another to predict: 0 at the label holder, whose rows they
    are; None where the terms train."""
    if terms.vertical.predict_rows is None:
        return None
    return 0 if terms.blocks.has_labels(party) else terms.vertical.predict_rows


def splits_by(terms: Terms, party: str) -> int:
    """Return the most splits by a party's columns that other parties learn; 0 where all have all columns."""
    if not terms.task.trains or terms.blocks.of(party) is None:
        return 0
    rounds = terms.trees.rounds - terms.vertical.alone_rounds
    return rounds * (terms.max_leaves_per_round - len(terms.roots))


def judge(
    offer: SessionOffer,
    known: KnownSession | None,
    others: Iterable[KnownSession],
    limits: Limits,
    party: str,
) -> None:
    """Raise Refused unless a site that remembers these sessions may take part. known: this session, if it is
    remembered; others: all other sessions of the dataset."""
    session, terms = quoted(offer.session), offer.terms
    # A known session only goes on: under the same terms and request, until it ends, in a higher attempt. So
    # an aggregator cannot make a restarted site answer twice in one attempt.
    if known is not None:
        if known.digest != terms.digest:
            raise Refused(
                "session-terms",
                f"party {party} knows session {session} under other terms; use another name",
            )
        if known.ended is not None:
            raise Refused("session-ended", f"party {party}: session {session} has ended here; train again")
        if known.request != offer.request:
            raise Refused("session-request", f"party {party} knows session {session} from another request")
        if offer.attempt <= known.attempt:
            met = f"{known.attempt} of session {session}, and is offered attempt {offer.attempt}"
            raise Refused("attempt-already-met", f"party {party} has met the others in attempt {met}")
        return
    # A site without memory of a session cannot know what it answered in earlier attempts.
    if offer.attempt > 1:
        unknown = f"attempt {offer.attempt} of session {session}, which it does not know"
        raise Refused("attempt-unknown-session", f"party {party} is offered {unknown}; train again")
    others = list(others)
    # A signature is good for one session. Otherwise an aggregator could replay it for any number of sessions.
    if offer.request and any(other.request == offer.request for other in others):
        raise Refused(
            "request-already-used",
            f"party {party}: the analyst's request was used for another session; train again, or "
            f"sign the terms again (fedboost sign)",
        )
    unmet = sum(other.unmet and other.analyst == offer.analyst for other in others)
    if unmet >= MAX_OFFERS:
        whose = f" by analyst {quoted(offer.analyst)}" if offer.analyst else ""
        raise Refused(
            "offers-exceeded",
            f"party {party} refuses: {unmet} sessions with these rows were offered to it{whose} within "
            f"{OFFER_DAYS:g} days and never began; each reveals whether the rows fit. Offer it again when "
            f"the first of them are older",
        )
    check_others(KnownSession.begun(offer.session, terms, party=party), others, limits, party)


def check_others(session: KnownSession, others: Iterable[KnownSession], limits: Limits, party: str) -> None:
    """Raise Refused if the other sessions that met exclude this one: by their number, their groups, the
    predicted rows, or the splits. Called with the offer, and again when the parties meet: many sessions may
    be offered before the first of them meets."""
    others = list(others)
    trained = sum(other.trained for other in others)
    if trained >= limits.max_sessions and session.predicted is None:
        raise Refused(
            "policy-max-sessions",
            f"party {party} refuses: its policy has max_sessions = {limits.max_sessions}, and it took part "
            f"in {trained} sessions with these rows, trainings and all others; the person responsible for "
            f"the rows decides: raise max_sessions in [policy] of the site's file and restart `fedboost "
            f"party`, or run `fedboost approve` there for these terms only",
        )
    check_group(session, others, limits, party)
    rows, used = session.predicted, rows_predicted(others)
    if rows and used + rows > limits.max_predicted_rows:
        raise Refused(
            "policy-max-predicted-rows",
            f"party {party} refuses: its policy has max_predicted_rows = {limits.max_predicted_rows}, it "
            f"helped to predict {used} rows so far, and these are {rows} more; the person responsible for "
            f"its rows can raise the limit there",
        )
    splits, used = session.splits, splits_told(others)
    if splits and used + splits > limits.max_splits:
        raise Refused(
            "policy-max-splits",
            f"party {party} refuses: its policy has max_splits = {limits.max_splits}, sessions so far could "
            f"have {used} by its columns, and this one {splits} more; the person responsible for its rows "
            f"can raise the limit there",
        )


def check_chosen(chosen: Mask, others: Iterable[Mask], limits: Limits, party: str) -> None:
    """Raise Refused if these rows, or all others, are those of an earlier session except for a few: the sums
    of the two sessions would differ by those few."""
    for other in others:
        size = max(chosen.size, other.size)
        ours, theirs = (np.pad(rows, (0, size - rows.size)) for rows in (chosen, other))
        differ = int((ours != theirs).sum())
        few = min(differ, size - differ)  # sums over the complement are the total less these
        if 0 < few < limits.min_difference:
            raise Refused(
                "policy-min-difference",
                f"party {party} refuses: the rows that are held out or measured differ by fewer than "
                f"{limits.min_difference} from those of an earlier session, or from all others; use the "
                f"rows of the earlier session, another seed, or more rows",
                f"they differ by {few}",
            )


def rows_predicted(sessions: Iterable[KnownSession]) -> int:
    """Return the number of rows that a site helped to predict in these sessions."""
    return sum(known.predicted or 0 for known in sessions if known.attempt)


def splits_told(sessions: Iterable[KnownSession]) -> int:
    """Return the number of splits by a site's columns that these sessions could have."""
    return sum(known.splits for known in sessions if known.attempt)


def check_group(session: KnownSession, others: Iterable[KnownSession], limits: Limits, party: str) -> None:
    """Raise Refused if the sums over this session's group and those of other sessions that met would together
    reveal few parties."""
    # Sessions that hide nothing revealed each party's sums anyway, and an offer whose parties never met led
    # to no sums. The same group twice allows no new combination: its sums differ by no party.
    met = [other for other in others if other.hides and other.attempt]
    groups = {frozenset(other.holders) for other in met}
    mine = frozenset(session.holders)
    if limits.similar_groups or not session.hides or mine in groups:
        return
    if len(groups) >= MAX_GROUPS:
        raise Refused(
            "groups-too-many",
            f"party {party} took part in {len(groups)} different groups of parties, and refuses any more: "
            f"the differences of their sums would reveal single parties",
        )
    # The strictest assumption of all sessions: parties that collude in one of them can use the sums of all.
    colluding = max(known.colluding for known in (session, *met))
    shown = smallest_revealed_set((*groups, mine), colluding)
    if shown:
        raise Refused(
            "groups-reveal-parties",
            f"party {party}: with the sums of earlier sessions, those over these parties would reveal fewer "
            f"than {colluding + 2} of them; use the parties of an earlier session, or change more of them",
            f"they would reveal {', '.join(sorted(shown))}",
        )


@dataclass
class TransientMemory:
    """A memory that ends with the process and has no budget, for simulations and tests. clock: in days."""

    draw: RandomBytes
    party: str = ""
    sessions: "dict[str, TransientSession]" = field(default_factory=dict)
    charged: dict[tuple[str, str], float] = field(default_factory=dict)
    """(session, release) -> cost."""
    chosen: dict[str, Mask] = field(default_factory=dict)
    """Session -> the rows that it used, or held out."""
    clock: Callable[[], float] = lambda: 0.0

    def begin(self, offer: SessionOffer, limits: Limits) -> "TransientSession":
        held = self.sessions.get(offer.session)
        judge(offer, held.known if held else None, self.others(offer.session), limits, self.party)
        if held is None:
            held = self.sessions[offer.session] = TransientSession(self, offer, self.draw(KEY_BYTES))
        held.limits = limits
        return held

    def others(self, session: str) -> list[KnownSession]:
        """Return all sessions except this one."""
        return [held.known for name, held in self.sessions.items() if name != session]


class TransientSession:
    """A session of a TransientMemory; methods are as in `SessionMemory`."""

    def __init__(self, memory: TransientMemory, offer: SessionOffer, secret: bytes) -> None:
        self.standing = Standing()
        self.secret = secret
        self.limits = Limits()
        self._memory = memory
        about = offer.request, memory.party, offer.analyst
        self._known = KnownSession.begun(offer.session, offer.terms, *about)
        self._begun = memory.clock()

    @property
    def known(self) -> KnownSession:
        """This session as the rules between sessions see it."""
        return replace(self._known, attempt=self.standing.attempt, days=self._memory.clock() - self._begun)

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing outlives the process anyway

    def bind(self, rows: Callable[[bytes], bytes], table: HeldTable | None = None) -> None:
        """Note which rows are used. Their values are not hashed: they do not change while a process lives."""
        if table is not None and table.chosen is not None:
            memory, name = self._memory, self._known.session
            others = [chosen for session, chosen in memory.chosen.items() if session != name]
            check_chosen(table.chosen, others, self.limits, memory.party)
            memory.chosen[name] = table.chosen

    def meet(self, attempt: int) -> None:
        if not self.standing.attempt:
            others = self._memory.others(self._known.session)
            check_others(self._known, others, self.limits, self._memory.party)
        self.standing = replace(self.standing, attempt=attempt)

    def ask(self, question: Question, base: Position, reached: Position) -> None:
        self.standing = self.standing.after(question, base, reached)

    def help(self, stage: int, roster: tuple[str, ...]) -> None:
        self.standing = replace(self.standing, helped=(stage, roster))

    def sign(self) -> None:
        self.standing = replace(self.standing, signed=True)

    def charge(self, release: str, cost: float) -> None:
        self._memory.charged[self._known.session, release] = cost

    def end(self, reason: str) -> None:
        self._known = replace(self._known, ended=reason)


# ---- The noise of a session at one party, and its charges -----------------------------------------------
# Promises: `Spending.release` charges the site's memory before it adds the noise of a release. A repeated
# answer gets the same noise: the same query to the same roster at the same position, answered with the same
# integers. Any other answer gets independent noise and is charged again. So no two answers differ by less
# than noise, and whether two have the same noise reveals nothing about rows.
# Refuses: releases that exceed what is left (Refused, raised by the memory).


@dataclass(frozen=True)
class Charge:
    """The charge of one answer: a name, the same for the same answer, and the cost."""

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
        """Return an answer with this party's share of the noise, and its charge.

        The answer is unchanged and nothing is charged if it contains nothing about rows, or if the aggregator
        draws the noise: it receives exact sums, which no charge could cover. state: before the query; sums
        over the same nodes after other trees are another release."""
        release, noise = query.release(self.terms), self.terms.noise
        if release is None:
            if values.size:
                raise PeerError("noise-missing", "an answer without noise, though all get noise by the terms")
            return values, None
        if noise is None or noise.placement == "central":
            return values, None
        key = self._key(query, state, tag, values)
        charge = Charge(hmac.digest(key, b"name", "sha256").hex()[:32], release.cost)
        self.memory.charge(charge.name, charge.cost)  # committed before the answer leaves: no crash loses it
        return values + noise_of(hmac.digest(key, b"noise", "sha256"), release.share, values.size), charge

    def _key(self, query: Query, state: TrainingState, tag: Tag, values: Int64) -> bytes:
        # Everything that makes the answer what it is, but not the attempt: otherwise the same answer in
        # several attempts would get several draws of noise, whose mean is closer to the exact sums.
        label = packing.pack(
            self.terms.digest.encode(),
            query.digest,
            state.position.digest,
            packing.pack(*(party.encode() for party in sorted(tag.roster))),
            values.tobytes(),
        )
        return hmac.digest(self.memory.secret, label, "sha256")


def with_central_noise(query: Query, terms: Terms, total: Int64, draw: RandomBytes) -> Int64:
    """Return an opened sum with the noise that the aggregator draws, where the terms have it draw any."""
    if terms.noise is None or terms.noise.placement != "central":
        return total
    release = query.release(terms)
    return total if release is None else total + noise_of(draw(KEY_BYTES), release.share, total.size)


# ---- The surroundings of a party's end of a session -----------------------------------------------------


HELP, OPENINGS = "help to open the sum", "openings of blinded sums"
THRESHOLDS = "thresholds of this site's splits"
"""Names of releases that do not answer a query."""


@dataclass(frozen=True)
class Release:
    """An answer that is about to leave this site, for its audit log. charge: where it got noise; question,
    position: hashes of the query and of the state before it, in hex, empty if it answers no query."""

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
    parties that can read them; rows: number of rows they reveal something about; size: bytes before
    sealing."""

    session: str
    turn: int
    attempt: int
    what: str
    to: tuple[str, ...]
    rows: int
    size: int


@dataclass(frozen=True)
class Site:
    """The surroundings in which a party's session runs.

    Args:
        holder: reads this party's data as the terms need them, or raises Refused. Its second argument is a
            secret of the session, the same over restarts. None at a key holder without rows.
        draw: cryptographic randomness.
        credentials: this party's identity, None where nothing is signed.
        permit: called with an offer before any row is read; raises Refused if the site's rules forbid it.
        taken: called with an accepted offer before any row is read.
        record: called with each release and relay before its bytes leave.
        memory: the site's memory of sessions; by default it lasts as long as this object.
        keep: called with this party's part of a model before the party signs it."""

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


# ---- The privacy budget of a site's rows over all sessions ----------------------------------------------
# Promises: costs (mu squared) add, epsilons do not. A refusal names the epsilon that would fit.


ROUNDING = 1e-12
"""Rounding error of summed costs, relative to the budget."""


@dataclass(frozen=True)
class Budget:
    """The privacy of its rows that a site allows to be spent: (epsilon, delta) over all sessions."""

    epsilon: float
    delta: float

    @property
    def cost(self) -> float:
        """The budget as a cost, mu squared."""
        return mu_of(self.epsilon, self.delta) ** 2

    def left(self, spent: float) -> float:
        """Return the epsilon that a session at this delta may have after `spent`. Epsilons do not add: it is
        more than the difference of two."""
        return epsilon_of(math.sqrt(max(self.cost - spent, 0.0)), self.delta)

    def check_session(self, party: str, terms: Terms, spent: float, charged: float) -> None:
        """Raise Refused unless a session's remaining planned releases fit. spent: cost of all sessions so
        far; charged: of this one."""
        assert terms.noise is not None
        if terms.noise.placement == "central":
            raise Refused(
                "budget-central-noise",
                f'party {party}: placement = "central" does not hide its sums from the aggregator, so no '
                f"such session fits the budget of these rows, epsilon {self.epsilon:g} at delta "
                f'{self.delta:g}; use placement = "distributed" or "local"',
            )
        wanted = f"the terms ask for epsilon {terms.noise.epsilon:g} at delta {terms.noise.delta:g}"
        self.check(party, wanted, terms.noise.delta, spent, max(terms.plan.cost - charged, 0.0), charged)

    def check(
        self, party: str, wanted: str, delta: float, spent: float, cost: float, charged: float = 0.0
    ) -> None:
        """Raise Refused unless `cost` fits in addition to `spent`. wanted: names the request in the error;
        delta: that of the request."""
        if spent + cost <= self.cost * (1.0 + ROUNDING):
            return
        # What this session has already been charged counts as room: the error names the epsilon of the whole
        # session.
        room = math.sqrt(max(self.cost - spent + charged, 0.0))
        fits = _rounded_down(epsilon_of(room, delta))
        remedy = (
            f"lower the epsilon of the noise to {fits:g} at most at delta {delta:g}"
            if fits >= MIN_EPSILON
            else "no session with noise fits"
        )
        raise Refused(
            "budget-spent",
            f"party {party}: {wanted}, and its budget for these rows, epsilon {self.epsilon:g} "
            f"at delta {self.delta:g}, has {_rounded_down(self.left(spent)):g} left; {remedy}, unless the "
            f"site raises `epsilon` in its policy",
        )


def _rounded_down(epsilon: float) -> float:
    return math.floor(epsilon * 1e4) / 1e4
