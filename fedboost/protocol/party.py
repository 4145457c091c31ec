"""A party's end of a session: handles messages from the aggregator and returns this party's replies. Sans-IO.

RULES, at the end of this file, defines what each message does in each phase; docs/protocol.md describes it.

Guarantees: the party answers a query only if the query is due, the site's rules and the terms allow it, and
it does not contradict the site's record of the session. An answer is recorded before its first byte is sent.
A repeated query is answered with the same bytes. If a message cannot or must not be answered, the party
leaves and sends the reason in one sentence. The reason contains nothing about rows: values and row numbers
stay in `ended`, for the site's own log.
Raises: nothing, whatever the aggregator sends or the table contains. The party leaves the session instead."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedboost.errors import FedboostError, PeerError, Refused, quoted
from fedboost.privacy.pairwise import Group, Handshake, PartySetup, derive
from fedboost.privacy.protection import Sealer, Tag
from fedboost.privacy.protections import Protection
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Answered, EmptyHolder, Holder, Keys, Query, Receive, TrainingState
from fedboost.protocol.key_exchange import AgreedAttempt, Attempt
from fedboost.protocol.messages import (
    Ask,
    Attest,
    Close,
    FromParty,
    Introduce,
    Join,
    Leave,
    Offer,
    OpenRequest,
    OpenShare,
    Relay,
    Report,
    SessionEnded,
    ToParty,
    digest_of_roster,
    first_transcript,
    next_transcript,
    tag_of,
)
from fedboost.protocol.parts import packed, part_of
from fedboost.protocol.relaying import MAX_QUOTE, Ends, PendingAnswer, ends_of, max_relayed
from fedboost.protocol.site import (
    HELP,
    OPENINGS,
    THRESHOLDS,
    Charge,
    Question,
    Relayed,
    Release,
    SessionMemory,
    SessionOffer,
    Site,
    Spending,
    Standing,
)
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.privacy.paillier import PaillierPublic as Public
    from fedboost.privacy.paillier import PaillierSecret as Secret

# ---- A party's membership in a session: from the first accepted offer to the end ------------------------


SALT = b"fedboost/1/part"
"""Label from which the salt of a model part is derived."""


@dataclass(frozen=True)
class Membership:
    """A party's membership in a session, from the first accepted offer to the end.

    Args:
        first: the first accepted offer.
        memory: the site's memory of the session.
        holder: computes answers from the party's data.
        secret: the key holder's key pair, kept only in RAM; None at other parties.
        spending: adds noise to answers, if the terms require noise."""

    first: Offer
    memory: SessionMemory
    holder: Holder
    secret: "Secret | None"
    spending: Spending | None
    terms: Terms = field(init=False)
    protection: Protection = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", self.first.terms)
        object.__setattr__(self, "protection", self.terms.protection)

    @classmethod
    def begin(cls, site: Site, admit: Offer) -> "Membership":
        """Accept an offer: check it against the site's rules, record it and read the data. Raises Refused if
        the rules, the terms or the data do not allow it."""
        terms, request, analyst = admit.terms, admit.request, ""
        if site.name not in terms.parties:
            raise Refused("party-not-in-terms", f"the terms do not name party {site.name!r}")
        if request is not None and site.credentials is not None:
            analyst = key_exchange.check_request(site.credentials, terms, request)
            key_exchange.check_age(request, site.credentials.clock())
        nonce = b"" if request is None else request.nonce
        # What happens, in order, and what a crash or a refusal after each step leaves:
        #
        #     site.permit       no row was read, nothing is remembered
        #     memory.begin      the offer is remembered and counts in MAX_OFFERS; it may come again
        #     site.holder       rows were read; a refusal reveals whether they fit, and ends the session here
        #     memory.bind       the session goes on only with these rows, even after a restart
        offer = SessionOffer(admit.session, terms, admit.attempt, analyst, nonce)
        limits = site.permit(offer)
        has_rows = site.holder is not None
        check_rows(site.name, terms, has_rows)
        if terms.relays_to(site.name) and site.credentials is None:
            raise Refused(
                "keys-missing",
                f"party {site.name}: the parties of this session seal relays with their keys, but this site "
                f"has none: set `keys` in its file",
            )
        memory = site.memory.begin(offer, limits)
        try:
            site.taken(offer)
            secret = None
            if terms.keyholder == site.name:
                secret = terms.protection.encryption().new_secret(terms.hiding.key_bits)
            spending = Spending(terms, memory) if terms.noise is not None and has_rows else None
            holder = EmptyHolder() if site.holder is None else site.holder(terms, memory.secret)
            memory.bind(holder.rows_hashed, holder.table)
        except FedboostError as error:
            memory.end(quoted(error.public))
            raise
        return cls(admit, memory, holder, secret, spending)

    @property
    def session(self) -> str:
        return self.first.session

    def attempt(self, number: int) -> Attempt:
        """Return the attempt with this number, to which signatures are bound."""
        request = self.first.request
        return Attempt(self.session, number, self.terms, b"" if request is None else request.nonce)

    def help_as(self, size: int) -> tuple[str, int]:
        """Return the name of the reply to an OpenRequest in the audit log, and the number of integers in the
        reply. size: size of the reply in bytes."""
        if not self.terms.hides_columns or self.secret is None:
            return HELP, 0
        return OPENINGS, size // (2 * len(self.secret.public.to_bytes()))

    def attest(self, site: Site, close: Close, session: bytes, turns: int, transcript: bytes) -> Attest:
        """Return the attestation of this party's answers and of its view of the model, signed if parties
        sign.

        Args:
            session: digest of the attempt.
            turns: number of queries that this party answered.
            transcript: hash of these queries, as this party received them."""
        holder, terms, thresholds, kept = self.holder, self.terms, b"", b""
        state, hides = holder.state, terms.hides_columns
        if terms.keeps_parts:
            state = state.seen_by(terms, site.name, publicly=True)
            salt, trees = derive(self.memory.secret, SALT), holder.trees(close.rounds)
            told = [value for done in holder.state.rounds[:1] for _, value in done.values]
            part = part_of(self.session, terms, site.name, trees, close.numbers, salt, told, holder.earlier)
            site.keep(part)  # before the signature: a signed model whose part is lost would be of no use
            kept = part.digest
        elif hides:
            thresholds = packed(terms, site.name, holder.trees(close.rounds))
        structure = state.structure(close.rounds, terms)
        attest = Attest(close.attempt, turns, transcript, structure, b"", b"", thresholds, kept)
        return key_exchange.signed(site.credentials, self.attempt(close.attempt), session, site.name, attest)


def check_rows(party: str, terms: Terms, has_rows: bool) -> None:
    """Raise Refused if the terms and the site disagree on whether the site has rows."""
    if not has_rows and terms.keyholder != party:
        raise Refused("key-holder-other", f"party {party} has no rows and is not the terms' key holder")
    if has_rows != (party in terms.holders):
        has, want = ("rows", "true") if has_rows else ("no rows", "false")
        other = "it has none" if has_rows else "it has rows"
        raise Refused(
            "key-holder-rows",
            f"key holder {party} has {has}, but the terms say that {other}: set keyholder_rows = {want}",
        )


# ---- The query that a party may answer now, and what it remembers of it ---------------------------------
# A sum must never be opened twice with different vectors, or over different rosters, at the same position:
# the difference could be a single party or a few rows. Within a process the session itself ensures that.
# After a restart, or against an aggregator that lies about where the session is, only the site's memory
# (`Standing`) can.
# Guarantees: turns increase by one. In a new attempt, the growing tree may be queried again with the same
# queries at the same positions. Otherwise, the session must have continued elsewhere without contradicting
# the site's memory.
# Raises: PeerError for any other query, and for one that shows the party more than its view; Refused for a
# query that the terms do not allow.
#
# The memory of a growing tree. P are positions, and turn 7 ends the tree:
#
#     turn          5 (its root)      6            7 (ends it)        8 (root of the next tree)
#     position   P5 ---------> P6 ---------> P7 ------------> P8 ------------> P9
#     base          P5            P5            P5                P8
#     reached       P6            P7            P8                P9
#     questions     5             5 6           5 6 7             8
#
# After turn 7, a new attempt may begin with 5 at P5, 6 at P6, 7 at P7, each with the same query, or with 8 at
# P8. Turn 5 with the same query at P8 would be another vector: its gradients follow from another model.


class QueryContext(NamedTuple):
    """What a party knows about the session when it receives a query.

    Args:
        me: the party's name.
        attempt, roster: number of the current attempt, and its introduced parties, sorted.
        last: the last query that this process answered, in any attempt.
        state: state of the training run at this party.
        standing: progress of the session as recorded in the site's memory."""

    me: str
    terms: Terms
    attempt: int
    roster: tuple[str, ...]
    last: Ask | None
    state: TrainingState
    standing: Standing


def check_due(ask: Ask, now: QueryContext) -> None:
    """Raise PeerError or Refused unless this party may answer the query now. PeerError: the query is out of
    order, has the wrong roster, or contains more than the party may see. Refused: the terms do not allow
    it."""
    # All checks come before anything is computed or noted: a refused query leaves no trace in state or
    # memory.
    terms, state, standing = now.terms, now.state, now.standing
    if ask.attempt != now.attempt:
        raise PeerError(
            "query-stale-attempt",
            f"the aggregator sent a query of attempt {ask.attempt} during attempt {now.attempt}",
        )
    if ask.roster != digest_of_roster(now.roster):
        raise PeerError("roster-unknown", "the roster does not match the introduced parties")
    # Queries before the first split are the same in all sessions, so two rosters would show their difference.
    if len(now.roster) < len(terms.parties) and not state.may_lack_parties(ask.query):
        raise PeerError("roster-lacks-parties", "the roster lacks parties, although no tree has split yet")
    if not _is_due(ask, now):
        asked = {question.turn for question in standing.questions}
        if ask.turn in asked:
            raise PeerError(
                "query-changed", f"turn {ask.turn} was repeated with a different query or position"
            )
        before = now.last.turn if now.last else max(asked, default=0)
        raise PeerError("query-turn-order", f"the aggregator sent turn {ask.turn} after turn {before}")
    # This party helped to open a sum over `helped`. Another roster is safe only at a later stage, after a
    # tree has moved every margin: then the vectors are others, and the two sums do not differ by a party's
    # vector.
    # Stages are compared, not turns: turns may be missing where the roster may shrink, so an aggregator that
    # lies could ask the same query over a smaller roster under a later number.
    if standing.helped is not None:
        stage, helped = standing.helped
        moved = ask.query.stage > stage and state.may_change(ask.query)
        if helped != now.roster and not moved:
            raise PeerError(
                "roster-changed",
                f"the roster changed in turn {ask.turn}, where the difference between two sums would reveal "
                f"a party's own sum",
            )
    ask.query.check(terms)
    # Each query of the turn is checked in the state to which the queries before it lead.
    for query in (parts := ask.query.parts):
        only_turn = query.turn_under(terms)
        if only_turn is not None and (only_turn != ask.turn or len(parts) > 1):
            raise PeerError(
                "only-turn",
                f"{query.name} came in turn {ask.turn}, but must be the only query of turn {only_turn}",
            )
        if query.of_tree or query.ends_tree:
            state.check_next(terms, query)
        if query is not parts[-1]:
            state = state.after(query)
    # The view of a view is the view itself. So a query passes exactly if it contains nothing beyond it.
    check_view(ask.query.digest, ask.query.seen_by(terms, now.me).digest)


def check_view(told: bytes, seen: bytes) -> None:
    """Raise PeerError if a party received more than its view. told: hash of what the party received; seen:
    hash of its view."""
    if told != seen:
        raise PeerError(
            "view-exceeded", "the aggregator sent columns or leaf values that are not for this party"
        )


def _is_due(ask: Ask, now: QueryContext) -> bool:
    """Return True if the query is due in this turn and at this position. Raises PeerError if the session has
    ended or has too many turns."""
    last, terms, state, standing = now.last, now.terms, now.state, now.standing
    if ask.turn > terms.max_turns:
        raise PeerError(
            "turns-exceeded",
            f"the aggregator sent turn {ask.turn}, but the terms allow only {terms.max_turns} turns",
        )
    # Within an attempt, turns go up by one.
    if last is not None and ask.attempt == last.attempt and ask.turn != last.turn + 1:
        return False
    # A turn of the growing tree that the site remembers, in a new attempt or after a restart: only the same
    # query at the same position, whose answer is the same integers. The sum that it opens reveals nothing
    # new.
    last_known = standing.last_turn
    if ask.turn <= last_known:
        # A turn that is not among the questions belongs to a finished tree, or was answered by the others
        # while this party was away. It falls through, and comparisons with `last_known` below refuse it.
        for known in standing.questions:
            if known.turn == ask.turn:
                return state.position == known.before and _repeats(ask.query, known, terms)
    # Only new queries: a remembered one, above, may be asked again where signatures are missing.
    if standing.signed:
        raise PeerError("query-after-signature", "the aggregator sent a query after the model was signed")
    if last is not None and ask.attempt == last.attempt:
        return ask.turn > last_known
    # First new turn of an attempt. Where the roster may shrink, the others may have gone on without this
    # party, so turns may be missing, but the state must continue the remembered one. Otherwise no sum was
    # opened without this party: it must be the very next turn, at the very position that it reached.
    if terms.session.on_loss == "shrink":
        return ask.turn > last_known and state.has_passed(standing.reached)
    return ask.turn == last_known + 1 and state.position == standing.reached


def _repeats(query: Query, before: Question, terms: Terms) -> bool:
    """Return True if a query may replace an earlier query whose sum was not opened: it is the same query, or
    it ends the tree early because a party was lost."""
    cut_short = before.of_tree and query.ends_tree
    return query.digest == before.digest or (cut_short and terms.session.on_loss == "shrink")


def is_possible_state(state: TrainingState, terms: Terms, standing: Standing) -> bool:
    """Return True if the training run can be in this state, according to the site's memory of the session."""
    # No sum was opened without this party, but a restarted aggregator starts the tree again.
    known = (position for question in standing.questions for position in (question.before, question.after))
    if state.position in (standing.base, standing.reached, *known):
        return True
    # Others may have gone on without this party once a tree has split; it comes back where a tree begins.
    # Within one it would have to believe how the tree's gradients were rounded.
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
    """Record a query and its position before its answer is sent. Returns the recorded query.

    Args:
        before, after: training state before and after the query.
        received: hashes of relays (see `Question`). If an earlier attempt recorded more hashes, its list is
            kept."""
    standing, query = memory.standing, ask.query
    # The hashes are compared one by one as relays arrive (`PendingAnswer.new`). A query that is asked again
    # knows fewer of them at first, and must not erase the others.
    for known in standing.questions if ask.turn <= standing.last_turn else ():
        if known.turn == ask.turn:
            received = max(received, known.received, key=len)
    question = Question(ask.turn, query.digest, query.of_tree, before.position, after.position, received)
    # A further round: a new tree begins, and the last one's queries are dropped. They can never be due again.
    base, last = standing.base, standing.last_turn
    if len(before.rounds) > base.rounds:
        base, last = before.before_tree.position, 0
    # An earlier turn that is asked again does not take `reached` back.
    memory.ask(question, base, after.position if ask.turn >= last else standing.reached)
    return question


# ---- A party's answer to one query: sealed, sent part by part, and the replies that open its sum --------
# Guarantees: a repeated query or OpenRequest is answered with the same bytes.


def is_repeated(own: Ask, ask: Ask) -> bool:
    """Return True if `ask` repeats `own`, i.e. has the same turn, attempt, roster and query."""
    same = ask.turn == own.turn and ask.attempt == own.attempt and ask.roster == own.roster
    return same and ask.query.digest == own.query.digest


class Answer:
    """A party's answer to one query, sealed once and sent in parts. size: total size of the sealed parts, in
    bytes; charge: privacy cost, if noise was added."""

    def __init__(
        self, ask: Ask, tag: Tag, member: Membership, sealer: Sealer, answered: Answered, state: TrainingState
    ) -> None:
        """Seal an answer. state: training state before the query."""
        self.ask = ask
        self.roster = tag.roster
        self.charge: Charge | None = None
        self.size = 0
        self._sealer = sealer
        self._sent: list[Report] = []
        """Parts that have been sent; `_rest` yields the others."""
        self._rest = self._sealed(tag, member, answered, state)
        self._opens = not member.terms.hides_columns or ask.query.hidden(member.terms, state) is not None
        """False if columns are hidden and the query has no encrypted sums, so that there is nothing to
        open."""
        self.helped: dict[bytes, bytes] = {}
        """Content of an OpenRequest for this turn -> the reply."""

    def reports(self) -> Iterator[Report]:
        """Yield the parts: first those that were sent before, then the rest."""
        # A disconnect in between continues the same generator: a vector is sealed only once.
        yield from tuple(self._sent)
        for report in self._rest:
            self._sent.append(report)
            yield report

    def help(self, request: bytes) -> bytes:
        """Return the reply to an OpenRequest. A repeated request gets the same reply. Raises PeerError if
        there are too many requests, or if there is no encrypted sum to open."""
        if request not in self.helped:
            # One request is for the self mask, and each other for more lost parties than the one before.
            if len(self.helped) > len(self.roster):
                raise PeerError(
                    "help-excess",
                    f"the aggregator sent too many requests to open the sum of turn {self.ask.turn}",
                )
            if not self._opens:
                raise PeerError(
                    "nothing-hidden",
                    f"the aggregator requested data to open the sum of turn {self.ask.turn}, which is not "
                    f"encrypted",
                )
            self.helped[request] = self._sealer.assist(request)
        return self.helped[request]

    def _sealed(
        self, tag: Tag, member: Membership, answered: Answered, state: TrainingState
    ) -> Iterator[Report]:
        query, values = self.ask.query, answered.values
        if values.size != query.cells:
            raise PeerError(
                "answer-size", f"the answer has {values.size} integers, but the query asks for {query.cells}"
            )
        if not member.protection.hides and not query.fits(values):
            raise PeerError("cells-too-narrow", "the query's cells are too narrow for this site's own sums")
        if member.spending is not None:
            # The noise is in the integers before they are sealed. A refused charge ends the session here or
            # when the transaction ends, in each case before a part is yielded.
            values, self.charge = member.spending.release(query, state, tag, values)
        parts: Iterable[bytes] = self._sealer.seal(query.to_cells(values), tag)
        if member.protection.sealed_size is None:
            parts = list(parts)
            self.size = sum(map(len, parts))
        else:
            self.size = member.protection.sealed_size(tag)
        note, ctx = answered.encrypted or self._sealer.note(), self._sealer.ctx
        self.size += len(note) + len(ctx)
        return _reports(self.ask, parts, note, ctx)


def _reports(ask: Ask, parts: Iterable[bytes], note: bytes, ctx: bytes) -> Iterator[Report]:
    """Yield an answer as messages, one per part: the first contains the context, the last the note."""
    held: Report | None = None
    for part, cells in enumerate(parts):
        if held is not None:
            yield held
        held = Report(ask.turn, ask.attempt, part, cells, ctx=b"" if part else ctx)
    assert held is not None
    yield Report(held.turn, held.attempt, held.part, held.cells, note, held.ctx)


# ---- The session at a party -----------------------------------------------------------------------------


MAX_OPENINGS_PER_TURN = 2
"""Maximum number of sums that a key holder opens, divided by the number of turns that the terms allow. It
exceeds 1 because a tree may be queried again."""
Entry = tuple[str, int, int]
"""What a release is, its number of integers, and its size in bytes."""
PartyPhase = Literal["new", "joined", "introduced", "signed"]
PHASES: tuple[PartyPhase, ...] = ("new", "joined", "introduced", "signed")


@dataclass
class Introduced:
    """State of the current attempt once its parties have been introduced. digest: digest of the attempt, to
    which the keys are bound; transcript: hash of the queries so far."""

    greetings: tuple[bytes, ...]
    roster: tuple[str, ...]
    digest: bytes
    transcript: bytes
    sealer: Sealer
    relays: Ends | None = None
    """Seals and opens relays; None if each party has all columns."""
    keys: Keys | None = None
    """Keys that encrypt gradients; None if gradients are not encrypted."""


class PartySession:
    """A party's session, from the first offer to the end. A new attempt may start at any time. The parties
    then use new keys, this party receives the state of the training run, and the query whose sum was not
    opened is sent again."""

    def __init__(self, site: Site) -> None:
        self.ended: str | None = None
        """Reason for the end of the session, '' if the model is complete; None while the session
        continues."""
        self._site = site
        self._session = ""
        """Name of the session that was offered first."""
        self._membership: Membership | None = None
        self._attempt = 0
        self._handshake: Handshake | None = None
        """Key pair of the attempt, until the parties are introduced."""
        self._joined: Join | None = None
        self._introduced: Introduced | None = None
        self._underway: PendingAnswer | None = None
        """Unfinished answer, for which relays from other parties are missing."""
        self._answer: Answer | None = None
        """Last answer of the current attempt."""
        self._asked: Ask | None = None
        """Last query that this process answered, in any attempt."""
        self._answered = 0
        self._openings = 0
        """Number of sums that this party has opened as key holder."""
        self._attested: Attest | None = None
        self._certificates: dict[bytes, bytes] = {}
        """Hash -> certificate chain, of the parties that were introduced last."""

    @property
    def phase(self) -> PartyPhase:
        """Current phase. The phase and the type of a message determine the handler in RULES."""
        if self._joined is None:
            return "new"
        if self._introduced is None:
            return "joined"
        return "introduced" if self._attested is None else "signed"

    def handle(self, message: ToParty) -> Iterator[FromParty]:
        """Yield the replies to a message, to be sent in order."""
        if self.ended is not None:
            return
        try:
            yield from RULES[self.phase, type(message)](self, message)
        except FedboostError as error:
            self._end(str(error), error.public)
            yield Leave(quoted(error.public), self._session)

    def hang_up(self) -> None:
        """Delete the attempt's keys because the connection was lost. The next attempt starts with new
        keys."""
        # After a join, the phase is `joined` again. Before the introduction, the handshake still exists and
        # the same offer gets the same Join. After it, the handshake is used up, and only an offer of a later
        # attempt leads on.
        self._introduced = self._underway = self._answer = None

    @property
    def _member(self) -> Membership:
        assert self._membership is not None
        return self._membership

    def _end(self, reason: str, public: str | None = None) -> None:
        """End the session at this party for good. public: the reason without values of rows."""
        self.ended, self._handshake = reason, None
        self.hang_up()
        if self._membership is not None:
            self._membership.memory.end(quoted(reason if public is None else public))

    # ---- Messages -----------------------------------------------------------------------------------

    def _offer(self, offer: Offer) -> Iterator[FromParty]:
        """Check the offer against the site's rules and join with new keys."""
        if self._membership is None:
            self._session = offer.session
            self._membership = Membership.begin(self._site, offer)
        member = self._membership
        first = member.first
        if (offer.session, offer.terms, offer.request) != (first.session, first.terms, first.request):
            raise PeerError("offer-changed", "the aggregator offered a different session or different terms")
        if self._joined is None or offer.attempt != self._attempt:
            self._joined = self._join(member, offer.attempt)
        yield self._joined

    def _join(self, member: Membership, attempt: int) -> Join:
        if attempt <= max(self._attempt, member.memory.standing.attempt):
            raise PeerError(
                "attempt-not-newer", f"the aggregator offered attempt {attempt} after attempt {self._attempt}"
            )
        self._attempt = attempt
        self.hang_up()
        self._handshake = Handshake(self._site.draw)
        site, now = self._site, member.attempt(attempt)
        context = key_exchange.key_context(now, site.name)
        public = member.protection.key_greeting(self._handshake.public, member.secret, context)
        greeting = key_exchange.greet(site.credentials, site.name, now, public, site.draw)
        own = site.credentials.signer.certificate if site.credentials else b""
        known = key_exchange.digest_of_certificates(self._certificates)
        return Join(member.session, member.terms.digest, attempt, greeting, own, known)

    def _introduce(self, meet: Introduce) -> Iterator[FromParty]:
        """Check the greetings, agree on keys, and move to the training state of the other parties."""
        assert self._joined is not None
        if self._handshake is None:
            raise PeerError(
                "introduction-unexpected", "the aggregator sent an introduction too early or twice"
            )
        member, state = self._member, meet.state
        attempt = member.attempt(self._attempt)
        if meet.certificates:
            self._certificates = {key_exchange.hash_of(chain): chain for chain in meet.certificates}
        greetings = self._joined.greeting, attempt, meet.greetings
        met = key_exchange.meet(self._site.credentials, *greetings, self._certificates)
        # The claimed state is checked before the attempt is noted and keys are used: against the terms, this
        # party's view, and what the site remembers.
        state.check(member.terms)
        check_view(state.position.digest, state.seen_by(member.terms, self._site.name).position.digest)
        if not is_possible_state(state, member.terms, member.memory.standing):
            raise PeerError(
                "state-impossible", "the aggregator sent a state that contradicts this site's earlier answers"
            )
        # From here on this attempt counts as met, even after a crash: `_join` and `judge` refuse to join it
        # again, so there are never two sets of keys, and two vectors, under one attempt.
        member.memory.meet(self._attempt)
        member.holder.go_to(state)
        site, terms, public = self._site, member.terms, member.secret.public if member.secret else None
        if public is None and member.protection.uses_key_holder:
            public = key_exchange.public_of(attempt, meet.greetings)
        handshake, self._handshake, self._attested = self._handshake, None, None
        relays = ends_of(site.name, terms, handshake, met, state, site.draw)
        sealer = _sealer(site, member, handshake, met, public, self._openings)
        ends = first_transcript(met.session, state), sealer, relays
        self._introduced = Introduced(meet.greetings, met.roster, met.session, *ends)
        if terms.hides_columns:
            self._introduced.keys = Keys(public, member.secret, site.draw)
        yield from ()

    def _introduce_again(self, meet: Introduce) -> Iterator[FromParty]:
        """Ignore a repeated introduction. A different one ends the session."""
        if self._introduced is None or meet.greetings != self._introduced.greetings:
            raise PeerError(
                "introduction-unexpected", "the aggregator sent an introduction too early or twice"
            )
        yield from ()

    def _ask(self, ask: Ask) -> Iterator[FromParty]:
        """Answer the query if it is due and allowed. A repeated query is answered with the same bytes. If
        other parties must relay data first, the answer waits for the data."""
        assert self._introduced is not None
        if self._answer is not None and is_repeated(self._answer.ask, ask):
            yield from self._answer.reports()
        elif self._underway is None:
            self._underway = self._begin(ask, self._introduced)
            yield from self._go_on(self._introduced, self._underway)
        elif not is_repeated(self._underway.ask, ask):
            raise PeerError(
                "query-while-waiting",
                f"the aggregator sent turn {ask.turn} before turn {self._underway.ask.turn} was answered",
            )

    def _relay(self, relay: Relay) -> Iterator[FromParty]:
        """Accept a relay for the turn of the pending answer, and continue the answer if possible."""
        assert self._introduced is not None
        underway = self._underway
        if underway is None or (relay.turn, relay.attempt) != (underway.ask.turn, underway.ask.attempt):
            yield from self._stray_relay(relay)
        else:
            underway.take(relay)
            yield from self._go_on(self._introduced, underway)

    def _stray_relay(self, relay: Relay) -> Iterator[FromParty]:
        """Ignore a repeated relay, or a relay of an earlier turn or attempt. Any other relay ends the
        session."""
        # A party's stream is ordered, and the aggregator sends the query before it passes on relays for it.
        # So a relay beyond the last query is not early but wrong.
        last = (self._asked.attempt, self._asked.turn) if self._asked else (0, 0)
        if relay.attempt >= self._attempt and (relay.attempt, relay.turn) > last:
            name = quoted(relay.sender, MAX_QUOTE)
            raise PeerError("relay-stray", f"party {name} relayed unexpected bytes for turn {relay.turn}")
        yield from ()

    def _begin(self, ask: Ask, introduced: Introduced) -> PendingAnswer:
        """Start answering a query if it is due."""
        member, me = self._member, self._site.name
        before, place = member.holder.state, (self._attempt, introduced.roster, self._asked)
        check_due(ask, QueryContext(me, member.terms, *place, before, member.memory.standing))
        introduced.transcript = next_transcript(introduced.transcript, ask.query)
        # Not under masks: there the refusal alone would reveal something about the rows of this party.
        if (rows := member.holder.rows) > ask.query.rows and not member.protection.hides:
            raise PeerError("query-rows-few", "the query has cells for fewer rows than this site has")
        if member.terms.counts_jointly and (table := member.holder.table):  # chosen once rows are matched
            member.memory.bind(member.holder.rows_hashed, table)
        if introduced.relays is not None:
            introduced.relays = introduced.relays.told(ask.query.seen_by(member.terms, me, publicly=True))
        most = max_relayed(member.terms, me, ask.query, rows, before)
        steps = member.holder.answering(ask.query)
        return PendingAnswer(ask, before, steps, introduced.relays, most, introduced.keys)

    def _go_on(self, introduced: Introduced, underway: PendingAnswer) -> Iterator[FromParty]:
        """Relay what other parties need, and answer once nothing is missing."""
        # Memory and audit log are written, in one transaction, before any message that follows is yielded.
        # After a crash, this site may remember an answer that no one received, but never forget one that
        # left.
        ask, before, memory = underway.ask, underway.before, self._member.memory
        for step, messages, digest in underway.advance():
            with memory.together():
                self._remember(underway)
                if isinstance(step, Receive):
                    if received := underway.new(step, digest):
                        underway.question = remember(memory, ask, before, before.after(ask.query), received)
                    continue
                about = step.kind, step.to, step.about, len(step.content)
                self._site.record(Relayed(self._member.first.session, ask.turn, ask.attempt, *about))
            yield from messages
        if underway.answered is None:
            return
        self._underway, member = None, self._member
        tag = tag_of(ask, introduced.roster, introduced.transcript)
        #     keys replaced, vector sealed -> question, charge, log entry committed -> part 0 leaves
        #
        # A crash before the commit: the answer never existed, and in the next attempt it is computed from the
        # same rows. A crash after it: the same query is still due, gets the same noise, and is not charged
        # again.
        with memory.together():
            answer = Answer(ask, tag, member, introduced.sealer, underway.answered, before)
            question = self._remember(underway)
            positions = question.digest.hex(), before.position.digest.hex()
            entry = ask.query.name, ask.query.cells, answer.size
            self._record(ask, tag.roster, entry, answer.charge, *positions)
        self._answer = answer
        self._answered += 1
        yield from answer.reports()

    def _remember(self, underway: PendingAnswer) -> Question:
        """Record the query before anything that follows from it is sent."""
        if underway.question is None:
            ask, before = underway.ask, underway.before
            underway.question = remember(self._member.memory, ask, before, before.after(ask.query))
            self._asked = ask
        return underway.question

    def _open_request(self, request: OpenRequest) -> Iterator[FromParty]:
        """Send what the aggregator needs from this party to open the sum of the current turn."""
        assert self._introduced is not None
        answer, label = self._answer, (request.turn, request.attempt)
        if answer is None or label != (answer.ask.turn, answer.ask.attempt):
            raise PeerError(
                "help-stale",
                f"the aggregator requested data to open the sum of turn {request.turn}, which is not the "
                f"current turn",
            )
        if request.request not in answer.helped:
            size = len(answer.help(request.request))
            self._openings += self._member.secret is not None
            member, ask, memory = self._member, answer.ask, self._member.memory
            # Written before the reply leaves. In the reverse order, a site that crashed in between could be
            # asked for the same turn over a smaller roster, and would not know that a sum had been opened.
            with memory.together():
                stage, helped = ask.query.stage, memory.standing.helped
                if member.terms.session.on_loss == "shrink" and (helped is None or stage >= helped[0]):
                    # A tree that is asked for again does not undo what was opened after it, so stages only
                    # grow.
                    memory.help(stage, answer.roster)
                self._record(ask, answer.roster, (*member.help_as(size), size))
        yield OpenShare(*label, answer.help(request.request))

    def _close(self, close: Close) -> Iterator[FromParty]:
        """Sign this party's answers and its view of the model."""
        assert self._introduced is not None
        if self._asked is None:
            raise PeerError("close-before-query", "the aggregator announced a model before any query")
        if close.attempt != self._attempt or self._asked.attempt != close.attempt:
            raise PeerError(
                "close-before-query", "the aggregator announced a model before any query of the attempt"
            )
        if self._attested is None:
            keeps, introduced = self._member.terms.keeps_parts, self._introduced
            told = introduced.relays if keeps and introduced.relays else introduced  # `Transcripts.signed`
            with self._member.memory.together():
                # Before the signature leaves: no new query is answered after it, not even after a restart.
                self._member.memory.sign()
                self._attested = self._member.attest(
                    self._site, close, introduced.digest, self._answered, told.transcript
                )
                if given := len(self._attested.thresholds):
                    self._record(self._asked, introduced.roster, (THRESHOLDS, given // 4, given))
        yield self._attested

    def _session_ended(self, bye: SessionEnded) -> Iterator[FromParty]:
        """End the session."""
        made = "" if self._attested else "the aggregator ended the session without a model"
        self._end(quoted(bye.reason) or made)
        yield from ()

    def _record(
        self, ask: Ask, roster: tuple[str, ...], entry: Entry, charge: Charge | None = None, *hashes: str
    ) -> None:
        about = self._member.first.session, ask.turn, ask.attempt, *entry, self._member.protection.name
        self._site.record(Release(*about, roster, charge, *hashes))


def _sealer(
    site: Site,
    member: Membership,
    handshake: Handshake,
    met: AgreedAttempt,
    public: "Public | None",
    openings: int,
) -> Sealer:
    """Build the sealer of an attempt. openings: number of sums that this key holder has opened so far."""
    terms = member.terms
    setup = PartySetup(
        site.name,
        Group.of(terms.parties, terms.hiding.colluding),
        met.session,
        partial(handshake.pair_keys, site.name, met.publics, met.session),
        site.draw,
        public,
        member.secret,
        max_openings=max(MAX_OPENINGS_PER_TURN * terms.max_turns - openings, 0),
        sparse=terms.noise is None,
        shrinks=terms.session.on_loss == "shrink",
    )
    return member.protection.sealer(setup)


def _refused(reason: str) -> "Handler":
    """Return a handler that ends the session with this reason."""

    def refuse(session: PartySession, message: ToParty) -> Iterator[FromParty]:
        raise PeerError("message-out-of-phase", reason.format(message=message))

    refuse.__doc__ = "Refuse the message and leave the session."
    return refuse


Handler = Callable[[PartySession, ToParty], Iterator[FromParty]]
_S = PartySession
_EARLY = "the aggregator sent a query before the introduction"
_MODEL = "the aggregator announced a model before any query"
_TWICE = "the aggregator sent an introduction too early or twice"
_NOT_LAST = (
    "the aggregator requested data to open the sum of turn {message.turn}, which is not the current turn"
)
RULES: dict[tuple[PartyPhase, type], Callable[..., Iterator[FromParty]]] = {
    ("new", Offer): _S._offer,
    ("new", Introduce): _refused(_TWICE),
    ("new", Ask): _refused(_EARLY),
    ("new", OpenRequest): _refused(_NOT_LAST),
    ("new", Relay): _S._stray_relay,
    ("new", Close): _refused(_MODEL),
    ("new", SessionEnded): _S._session_ended,
    ("joined", Offer): _S._offer,
    ("joined", Introduce): _S._introduce,
    ("joined", Ask): _refused(_EARLY),
    ("joined", OpenRequest): _refused(_NOT_LAST),
    ("joined", Relay): _S._stray_relay,
    ("joined", Close): _refused(_MODEL),
    ("joined", SessionEnded): _S._session_ended,
    ("introduced", Offer): _S._offer,
    ("introduced", Introduce): _S._introduce_again,
    ("introduced", Ask): _S._ask,
    ("introduced", Relay): _S._relay,
    ("introduced", OpenRequest): _S._open_request,
    ("introduced", Close): _S._close,
    ("introduced", SessionEnded): _S._session_ended,
    ("signed", Offer): _S._offer,
    ("signed", Introduce): _S._introduce_again,
    ("signed", Ask): _refused("the aggregator sent a query after the model was signed"),
    ("signed", Relay): _S._stray_relay,
    ("signed", OpenRequest): _refused("the aggregator requested data to open a sum after the signature"),
    ("signed", Close): _S._close,
    ("signed", SessionEnded): _S._session_ended,
}
"""Handler of each message in each phase of a session at a party."""
