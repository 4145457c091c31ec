"""A site's side of a session: what it permits, what it records, and its limits across sessions."""

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
from fedboost.protocol import contracts
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.parts import Part
from fedboost.terms.hiding import MIN_EPSILON
from fedboost.terms.terms import Terms

# ---- A site's memory of sessions, as a session needs it -------------------------------------------------
# The rules that apply across sessions and restarts.
# Guarantees: an answer is in the memory before its first byte leaves. A session that ended, was left, refused
# or replaced by another is not forgotten. The rows of a session, the privacy spent on them, and the groups of
# parties whose sums include them are known for the whole dataset.
# Raises: Refused for a session that ended; a known name under different terms; a later attempt of an unknown
# session, or an attempt in which this site has already met the others; an analyst's request that another
# session used; more sessions, rows to help predict, or splits on the site's columns than it allows; groups of
# parties whose sums together reveal few of them; rows that differ from those that the session started with;
# releases beyond the budget.
# A session that predicts is limited only by its rows, at the parties that help the label holder. It does not
# count in max_sessions, and its parties are not a group: it opens no sum over rows, so there is nothing to
# subtract from the sums of training sessions, and nothing that noise or a budget could bound. If it predicts
# to evaluate a model, it opens sums over rows of the label holder alone, and counts in max_sessions there.


KEY_BYTES = 32
MAX_OFFERS = 100
"""Maximum number of sessions on one dataset that an analyst requested within OFFER_DAYS and that never
started, e.g. because another site refused them or the rows did not fit. Each answer to an offer reveals
whether the rows fit the terms. Offers are counted separately for each analyst."""
OFFER_DAYS = 7.0
"""Days for which an offer that never started counts towards MAX_OFFERS. An analyst at the limit is readmitted
automatically within a week. The limit allows at most 15 one-bit answers a day, whereas a model reveals
thousands of bits."""
NO_LIMIT = 1 << 62
"""Value of a limit that never applies: larger than any number that is counted."""
MAX_SESSIONS = 20
"""Default limit on sessions per dataset: each session opens another set of sums over its rows."""
MAX_SPLITS = 2000
"""Default limit on the number of splits on a party's columns, over all sessions of one dataset. Each split
reveals one bit about a column to other parties, for every row of a node. 50 trees with 31 splits each have
1,550 splits."""


@dataclass(frozen=True)
class SessionOffer:
    """A session that the aggregator offers to a site. analyst: name of the analyst who signed the terms;
    request: nonce of the signature. Both are empty if terms are not signed."""

    session: str
    terms: Terms
    attempt: int = 1
    analyst: str = ""
    request: bytes = b""


@dataclass(frozen=True)
class Limits:
    """A policy's limits on all sessions of a dataset.

    Args:
        max_sessions: maximum number of sessions in which the parties met, excluding sessions that predict.
        similar_groups: whether the sums over several groups of parties may together reveal the sum of only a
            few parties (`smallest_revealed_set`).
        max_predicted_rows: maximum number of rows predicted for other parties with this site's columns.
        max_splits: maximum number of splits on this site's columns, if parties hold different columns.
        min_difference: minimum number of rows by which two sessions must differ in the rows that they use or
            hold out, unless these rows are the same."""

    max_sessions: int = MAX_SESSIONS
    similar_groups: bool = False
    max_predicted_rows: int = 0
    max_splits: int = MAX_SPLITS
    min_difference: int = 0


@dataclass(frozen=True)
class Question:
    """A query about the growing tree, as recorded in a site's memory.

    Args:
        digest: hash of the query.
        of_tree: whether the query is about a tree that is still growing.
        before, after: position before and after the query.
        received: hashes of other parties' relays that must be the same if the query is repeated."""

    turn: int
    digest: bytes
    of_tree: bool
    before: contracts.Position
    after: contracts.Position
    received: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Standing:
    """Progress of a session, as recorded in a site's memory.

    Args:
        attempt: the highest attempt in which the parties met.
        base: position before the growing tree.
        reached: position after the furthest query.
        questions: the queries about the growing tree, ordered by turn.
        helped: highest stage of a sum that this party helped to open, and the roster of that sum.
        signed: whether this party signed a model."""

    attempt: int = 0
    base: contracts.Position = contracts.NOWHERE
    reached: contracts.Position = contracts.NOWHERE
    questions: tuple[Question, ...] = ()
    helped: tuple[int, tuple[str, ...]] | None = None
    signed: bool = False

    @property
    def last_turn(self) -> int:
        """Turn of the last recorded query about the growing tree, or 0 if there is none."""
        return self.questions[-1].turn if self.questions else 0

    def after(self, question: Question, base: contracts.Position, reached: contracts.Position) -> "Standing":
        """Return the standing after this query. If `base` has changed, another tree has started, and the
        earlier queries are dropped."""
        # A turn that is asked again replaces its entry. Others that were asked after it stay.
        questions = (*(self.questions if base == self.base else ()), question)
        if len(questions) > 1 and question.turn <= questions[-2].turn:
            questions = tuple(asked for _, asked in sorted({each.turn: each for each in questions}.items()))
        return Standing(self.attempt, base, reached, questions, self.helped, self.signed)


@dataclass(frozen=True)
class KnownSession:
    """Facts about one session that are needed to enforce limits across sessions.

    Args:
        holders: the parties with rows.
        hides: whether the protection hides individual vectors.
        ended: reason for the end, '' if it ended with a model, None while the session may continue.
        colluding: number of parties that may collude.
        predicted: number of rows that this party helps another party to predict, None if the session does not
            predict. A session that continues a model predicts, too.
        splits: maximum number of splits on this party's columns, if parties hold different columns.
        days: time since the first offer in days, 0 in a memory without a clock.
        analyst: name of the analyst who requested the session, '' if requests are not signed.
        lacking: groups of parties that lack a column; the session also opens sums over all others."""

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
    lacking: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def begun(
        cls, session: str, terms: Terms, request: bytes = b"", party: str = "", analyst: str = ""
    ) -> "KnownSession":
        """Return the facts about a session in which no parties have met yet. party: the party whose memory
        records it; request: nonce of the analyst's request."""
        group, colluding = (terms.holders, terms.protection.hides), colluding_parties(terms)
        told = predicted_by(terms, party), splits_by(terms, party)
        lacking = tuple(sorted(map(tuple, map(sorted, terms.columns.lacking()))))
        own = session, terms.digest, 0, *group, request, None, colluding, *told
        return cls(*own, analyst=analyst, lacking=lacking)

    @property
    def groups(self) -> frozenset[frozenset[str]]:
        """Groups of parties whose sums the session opens."""
        return frozenset(frozenset(self.holders).difference(group) for group in ((), *self.lacking))

    @property
    def trained(self) -> bool:
        """True if the session counts towards max_sessions: the parties met, and it does not only predict."""
        return self.attempt > 0 and (self.predicted is None or self.splits > 0)

    @property
    def unmet(self) -> bool:
        """True if the session counts towards MAX_OFFERS."""
        return self.attempt == 0 and self.days < OFFER_DAYS


class SessionMemory(Protocol):
    """A site's memory of one session. Each method returns after its change has been written, or inside
    `together`, which writes changes at its end. Methods raise DurabilityError if a write fails."""

    def together(self) -> AbstractContextManager[None]:
        """Context manager that writes all changes made within its block in one transaction, or none."""

    @property
    def standing(self) -> Standing:
        """Progress of the session."""

    @property
    def secret(self) -> bytes:
        """Secret from which the session's noise and salt are derived, 32 bytes. It survives restarts and is
        deleted when the session ends."""

    def bind(self, rows: Callable[[bytes], bytes], table: contracts.HeldTable | None = None) -> None:
        """Bind the session to its rows. rows: returns the rows' HMAC under a key; table: what later sessions
        may need to know about the rows. Raises Refused if the session started with other rows, or if only a
        few rows differ between this and another session."""

    def meet(self, attempt: int) -> None:
        """Record that the parties met in this attempt, and count the session's predicted rows and splits.
        Raises Refused if this session would exceed a limit, because parties have met in other sessions since
        it was offered."""

    def ask(self, question: Question, base: contracts.Position, reached: contracts.Position) -> None:
        """Record a query that is about to be answered. If `base` differs from the recorded base, another tree
        has started, and the earlier queries are dropped."""

    def help(self, stage: int, roster: tuple[str, ...]) -> None:
        """Record that this party is about to help open a sum. stage: rank of the query (`Query.stage`);
        roster: the parties in the sum."""

    def sign(self) -> None:
        """Record that this party is about to sign a model."""

    def charge(self, release: str, cost: float) -> None:
        """Charge the privacy cost (mu squared) of a release to the session. A repeated release (one with the
        same name) is charged only once. Raises Refused if the total cost would exceed the site's budget or
        the cost planned in the terms."""

    def end(self, reason: str) -> None:
        """Record that the session has ended here and cannot be resumed. reason: '' if it made a model."""


class SiteMemory(Protocol):
    """A site's memory of all sessions on one dataset."""

    def begin(self, offer: SessionOffer, limits: Limits) -> SessionMemory:
        """Start or resume a session. Raises Refused if a limit forbids it (see `judge`), and DurabilityError
        if it cannot be recorded."""


def colluding_parties(terms: Terms) -> int:
    """Return the number of parties that may collude under these terms."""
    return Group.of(terms.parties, terms.hiding.colluding).colluding


def predicted_by(terms: Terms, party: str) -> int | None:
    """Return the number of rows that a party helps another party to predict, or None if the session does not
    predict. It is 0 for the label holder, since the rows are its own. If the label holder's rows are
    predicted to evaluate or continue a model, it is None, since the session tells others about its labels."""
    continues = terms.task.trains and terms.xgb_model is not None and terms.vertical.is_used
    rows = terms.vertical.most_ids if continues else terms.vertical.predict_rows
    if rows is not None and terms.blocks.has_labels(party):
        return None if terms.task.by_analyst else 0
    return rows


def splits_by(terms: Terms, party: str) -> int:
    """Return the most splits on a party's columns that others learn; 0 if parties have all columns."""
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
    """Raise Refused unless a site with these recorded sessions may take part in the offered session.

    Args:
        known: the offered session, if it is recorded.
        others: all other sessions of the dataset.
        limits: limits of the site's policy.
        party: the site's name, for error messages."""
    session, terms = quoted(offer.session), offer.terms
    # A known session only goes on: under the same terms and request, until it ends, in a higher attempt. So
    # an aggregator cannot make a restarted site answer twice in one attempt.
    if known is not None:
        if known.digest != terms.digest:
            raise Refused(
                "session-terms",
                f"party {party} already has session {session} under different terms; use another name",
            )
        if known.ended is not None:
            raise Refused("session-ended", f"party {party} has already ended session {session}; train again")
        if known.request != offer.request:
            raise Refused(
                "session-request", f"party {party} already has session {session} from a different request"
            )
        if offer.attempt <= known.attempt:
            met = f"{known.attempt} of session {session}, but is offered attempt {offer.attempt}"
            raise Refused("attempt-already-met", f"party {party} has already joined attempt {met}")
        return
    # A site without memory of a session cannot know what it answered in earlier attempts.
    if offer.attempt > 1:
        unknown = f"attempt {offer.attempt} of session {session}, but has no record of this session"
        raise Refused("attempt-unknown-session", f"party {party} is offered {unknown}; train again")
    others = list(others)
    # A signature is good for one session. Otherwise an aggregator could replay it for any number of sessions.
    if offer.request and any(other.request == offer.request for other in others):
        raise Refused(
            "request-already-used",
            f"party {party}: the analyst's request was already used for another session; train again, or "
            f"sign the terms again (fedboost sign)",
        )
    unmet = sum(other.unmet and other.analyst == offer.analyst for other in others)
    if unmet >= MAX_OFFERS:
        whose = f" by analyst {quoted(offer.analyst)}" if offer.analyst else ""
        raise Refused(
            "offers-exceeded",
            f"party {party} refuses: {unmet} sessions with these rows were offered to it{whose} within "
            f"{OFFER_DAYS:g} days but never started; each reveals whether the rows fit the terms. Try again "
            f"when the oldest of these offers no longer count",
        )
    check_others(KnownSession.begun(offer.session, terms, party=party), others, limits, party)


def check_others(session: KnownSession, others: Iterable[KnownSession], limits: Limits, party: str) -> None:
    """Raise Refused if this session, together with the other sessions whose parties met, exceeds a limit on
    sessions, groups of parties, predicted rows or splits. Call this for the offer and again when the parties
    meet, because many sessions may be offered before the parties of the first one meet."""
    others = list(others)
    trained = sum(other.trained for other in others)
    if trained >= limits.max_sessions and replace(session, attempt=1).trained:
        raise Refused(
            "policy-max-sessions",
            f"party {party} refuses: its policy has max_sessions = {limits.max_sessions}, but it has already "
            f"taken part in {trained} sessions of any kind with these rows; the person responsible for the "
            f"rows can raise max_sessions in [policy] of the site's file and restart `fedboost party`, or "
            f"run `fedboost approve` there for these terms only",
        )
    check_group(session, others, limits, party)
    rows, used = session.predicted, rows_predicted(others)
    if rows and used + rows > limits.max_predicted_rows:
        raise Refused(
            "policy-max-predicted-rows",
            f"party {party} refuses: its policy has max_predicted_rows = {limits.max_predicted_rows}, but it "
            f"has already helped to predict {used} rows, and this session has {rows} more; the person "
            f"responsible for its rows can raise the limit in [policy] of the site's file",
        )
    splits, used = session.splits, splits_told(others)
    if splits and used + splits > limits.max_splits:
        raise Refused(
            "policy-max-splits",
            f"party {party} refuses: its policy has max_splits = {limits.max_splits}, but earlier sessions "
            f"may have made {used} splits on its columns, and this one may make {splits} more; the person "
            f"responsible for its rows can raise the limit in [policy] of the site's file",
        )


def check_chosen(chosen: Mask, others: Iterable[Mask], limits: Limits, party: str) -> None:
    """Raise Refused if the chosen rows differ from the rows chosen in another session, or from their
    complement, by fewer than limits.min_difference rows. The difference of two sums would then be a sum over
    these few rows. chosen, others: bool [rows]."""
    for other in others:
        size = max(chosen.size, other.size)
        ours, theirs = (np.pad(rows, (0, size - rows.size)) for rows in (chosen, other))
        differ = int((ours != theirs).sum())
        few = min(differ, size - differ)  # sums over the complement are the total less these
        if 0 < few < limits.min_difference:
            raise Refused(
                "policy-min-difference",
                f"party {party} refuses: the rows that this session holds out or measures differ in fewer "
                f"than {limits.min_difference} rows from the rows of an earlier session, or from the rows "
                f"that the earlier session did not use; use the rows of the earlier session, another seed, "
                f"or more rows",
                f"they differ in {few} rows",
            )


def rows_predicted(sessions: Iterable[KnownSession]) -> int:
    """Return the number of rows that a site helped to predict in these sessions."""
    return sum(known.predicted or 0 for known in sessions if known.attempt)


def splits_told(sessions: Iterable[KnownSession]) -> int:
    """Return the maximum number of splits on a site's columns in these sessions."""
    return sum(known.splits for known in sessions if known.attempt)


def check_group(session: KnownSession, others: Iterable[KnownSession], limits: Limits, party: str) -> None:
    """Raise Refused if the sums over this session's group of parties, combined with the sums of other
    sessions whose parties met, would reveal the sum of only a few parties."""
    # Sessions that hide nothing revealed each party's sums anyway, and an offer whose parties never met led
    # to no sums. The same group twice allows no new combination: its sums differ by no party. Groups of one
    # session (columns.absent) are judged by the parties that they set apart (min_parties).
    met = [other for other in others if other.hides and other.attempt]
    groups, mine = frozenset[frozenset[str]]().union(*(other.groups for other in met)), session.groups
    if limits.similar_groups or not session.hides or mine <= groups or (session.lacking and groups <= mine):
        return
    if len(groups | mine) > contracts.MAX_GROUPS:
        raise Refused(
            "groups-too-many",
            f"party {party} has taken part in {len(groups)} distinct groups of parties and refuses another "
            f"one, because differences between their sums could reveal individual parties",
        )
    # The strictest assumption of all sessions: parties that collude in one of them can use the sums of all.
    colluding = max(known.colluding for known in (session, *met))
    shown = contracts.smallest_revealed_set(groups | mine, colluding)
    if shown:
        raise Refused(
            "groups-reveal-parties",
            f"party {party}: together with the sums of earlier sessions, the sums over these parties would "
            f"reveal the sum of fewer than {colluding + 2} of them; use the parties of an earlier session, "
            f"or change more of them",
            f"the sum of {', '.join(sorted(shown))} would be revealed",
        )


@dataclass
class TransientMemory:
    """A site's memory that is lost when the process ends and has no budget, for simulations and tests. clock:
    returns the time in days."""

    draw: RandomBytes
    party: str = ""
    sessions: "dict[str, TransientSession]" = field(default_factory=dict)
    charged: dict[tuple[str, str], float] = field(default_factory=dict)
    """(session, release) -> privacy cost."""
    chosen: dict[str, Mask] = field(default_factory=dict)
    """Session -> rows that it used or held out, bool [rows]."""
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
    """One session in a TransientMemory. Methods are as in `SessionMemory`."""

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
        """Facts about this session that are needed to enforce limits across sessions."""
        return replace(self._known, attempt=self.standing.attempt, days=self._memory.clock() - self._begun)

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing outlives the process anyway

    def bind(self, rows: Callable[[bytes], bytes], table: contracts.HeldTable | None = None) -> None:
        """Record which rows are used. Their values, which this process never changes, are not hashed."""
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

    def ask(self, question: Question, base: contracts.Position, reached: contracts.Position) -> None:
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
# Guarantees: `Spending.release` charges each release to the site's memory. The charge is committed when the
# block of `memory.together()` ends, which is before the noisy answer leaves the site. A repeated answer gets
# the same noise: the same query to the same roster at the same position, answered with the same integers. Any
# other answer gets independent noise and is charged again. So no two answers differ by less than noise, and
# whether two have the same noise reveals nothing about rows.
# Raises: Refused for releases that exceed the remaining budget. The memory raises it, also at commit.


@dataclass(frozen=True)
class Charge:
    """Privacy cost of one answer. name: hash, the same for a repeated answer; cost: mu squared."""

    name: str
    cost: float


@dataclass(frozen=True)
class Spending:
    """Adds a party's noise to its answers in a session, and charges their cost to the site's memory."""

    terms: Terms
    memory: SessionMemory

    def release(
        self, query: contracts.Query, state: contracts.TrainingState, tag: Tag, values: Int64
    ) -> tuple[Int64, Charge | None]:
        """Return an answer with this party's share of the noise added, and the charge for the answer.

        If the answer reveals nothing about rows, it is returned unchanged and nothing is charged.

        Args:
            state: training state before the query. The same query in another state is a different release.
            tag: label under which the answer is sealed.
            values: the exact answer, int64 [cells].

        Raises Refused if the cost exceeds the remaining budget."""
        release = query.release(self.terms)
        if release is None:
            if values.size:
                raise PeerError(
                    "noise-missing",
                    "the answer has no noise, although the terms require noise in every answer",
                )
            return values, None
        key = self._key(query, state, tag, values)
        charge = Charge(hmac.digest(key, b"name", "sha256").hex()[:32], release.cost)
        self.memory.charge(charge.name, charge.cost)  # committed before the answer leaves: no crash loses it
        return values + noise_of(hmac.digest(key, b"noise", "sha256"), release.share, values.size), charge

    def _key(self, query: contracts.Query, state: contracts.TrainingState, tag: Tag, values: Int64) -> bytes:
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


# ---- The surroundings of a party's end of a session -----------------------------------------------------


HELP, OPENINGS = "help to open the sum", "openings of blinded sums"
THRESHOLDS = "thresholds of this site's splits"
"""Names that the audit log uses for releases that do not answer a query."""


@dataclass(frozen=True)
class Release:
    """Entry in the site's audit log for an answer that is about to leave the site.

    what: name of the query or kind of release; cells: number of integers; size: bytes; charge: privacy cost
    if noise was added; question, position: hashes, in hex, of the query and of the state before it, or '' if
    the release answers no query."""

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
    """Entry in the site's audit log for bytes that are about to be sent to other parties.

    what: kind of content; to: the parties that can read it; rows: number of rows about which the bytes reveal
    something; size: bytes before sealing."""

    session: str
    turn: int
    attempt: int
    what: str
    to: tuple[str, ...]
    rows: int
    size: int


@dataclass(frozen=True)
class Site:
    """Everything that a party's session needs from its site.

    Args:
        name: the party's name.
        holder: function that reads this party's data as the terms require, or raises Refused; None for a key
            holder without rows. Its second argument is a secret of the session that survives restarts.
        draw: cryptographic source of randomness.
        credentials: this party's identity, None if nothing is signed.
        permit: checks an offer against the site's rules before any row is read, and returns the limits;
            raises Refused if the rules forbid the session.
        taken: called with an accepted offer before any row is read.
        record: called with each release and relay before its bytes leave.
        memory: the site's memory of sessions; by default, it is lost when this object is deleted.
        keep: stores this party's part of a model; called before the party signs the model."""

    name: str
    holder: Callable[[Terms, bytes], contracts.Holder] | None
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
# Guarantees: costs (mu squared) can be added, epsilons cannot. A refusal names the epsilon that would fit.


ROUNDING = 1e-12
"""Allowed rounding error of summed costs, relative to the budget."""


@dataclass(frozen=True)
class Budget:
    """Privacy budget of a site's rows: the (epsilon, delta) that all sessions together may spend."""

    epsilon: float
    delta: float

    @property
    def cost(self) -> float:
        """The budget expressed as a cost, mu squared."""
        return mu_of(self.epsilon, self.delta) ** 2

    def left(self, spent: float) -> float:
        """Return the epsilon, at the budget's delta, that a session may still spend after the cost `spent`.
        The epsilon of several releases together is less than the sum of their epsilons, so the result is
        larger than the budget's epsilon minus the epsilon spent."""
        return epsilon_of(math.sqrt(max(self.cost - spent, 0.0)), self.delta)

    def check_session(self, party: str, terms: Terms, spent: float, charged: float) -> None:
        """Raise Refused unless the remaining planned releases of a session fit into the budget. spent: cost
        of all sessions so far; charged: this session's part of that cost."""
        assert terms.noise is not None
        wanted = f"the terms ask for epsilon {terms.noise.epsilon:g} at delta {terms.noise.delta:g}"
        self.check(party, wanted, terms.noise.delta, spent, max(terms.plan.cost - charged, 0.0), charged)

    def check(
        self, party: str, wanted: str, delta: float, spent: float, cost: float, charged: float = 0.0
    ) -> None:
        """Raise Refused unless `cost` fits into the budget in addition to `spent`.

        Args:
            wanted: clause for the error message that says what was requested.
            delta: the delta of the request.
            spent: cost of all sessions so far.
            charged: the requesting session's part of that cost."""
        if spent + cost <= self.cost * (1.0 + ROUNDING):
            return
        # What this session has already been charged counts as room: the error names the epsilon of the whole
        # session.
        room = math.sqrt(max(self.cost - spent + charged, 0.0))
        fits = _rounded_down(epsilon_of(room, delta))
        remedy = (
            f"lower the epsilon of the noise to at most {fits:g} at delta {delta:g}"
            if fits >= MIN_EPSILON
            else "no session with noise fits"
        )
        raise Refused(
            "budget-spent",
            f"party {party}: {wanted}, but its budget for these rows (epsilon {self.epsilon:g} at delta "
            f"{self.delta:g}) has only {_rounded_down(self.left(spent)):g} left; {remedy}, unless the site "
            f"raises `epsilon` in its policy",
        )


def _rounded_down(epsilon: float) -> float:
    return math.floor(epsilon * 1e4) / 1e4
