"""One party's end of a session: a message of the aggregator in, this party's replies out. Sans-IO.

RULES, at the end of this file, says what each message does in each phase; docs/protocol.md has it in words.

Promises: a query is answered only if this site's rules and the terms allow it, it is due, and nothing that
this site remembers of the session contradicts it; an answer is remembered before its first byte leaves; the
same query asked again gets the same bytes. What cannot or must not be answered makes this party leave with a
sentence that says why, and nothing of its rows goes out: values and row numbers of the table stay in `ended`,
for the site's own log.
Refuses: by leaving. The session never raises for what an aggregator sends or a table holds.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from fedboost.errors import FedboostError, PeerError, Refused, quoted
from fedboost.privacy.pairwise import Group, Handshake, PartySetup, derive
from fedboost.privacy.protection import Sealer, Tag
from fedboost.privacy.protections import Protection
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Answered, Holder, Keys, Query, Receive, Rowless, TrainingState
from fedboost.protocol.key_exchange import Attempt, Meeting
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
    first_transcript,
    next_transcript,
    tag_of,
)
from fedboost.protocol.parts import packed, part_of
from fedboost.protocol.relaying import MAX_QUOTE, Ends, Underway, max_relayed
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

# ---- A party's membership of a session ------------------------------------------------------------------
# It begins with the first offer that is taken, and lasts to the end.


SALT = b"fedboost/1/part"
"""What the salt of a part of a model is derived for."""


@dataclass(frozen=True)
class Membership:
    """first: the first offer that was taken; memory: the site's memory of the session; holder: the party's
    data; secret: the key holder's, for this session and in memory alone; spending: the noise of answers,
    where the terms have some."""

    first: Offer
    memory: SessionMemory
    holder: Holder
    secret: "Secret | None"
    spending: Spending | None
    terms: Terms = field(init=False)
    """The terms of the session."""
    protection: Protection = field(init=False)
    """The protection of the session."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", self.first.terms)
        object.__setattr__(self, "protection", self.terms.protection)

    @classmethod
    def begin(cls, site: Site, admit: Offer) -> "Membership":
        """Take an offer: hold it to the site's rules, note it in its memory, and read its data. Refused."""
        terms, request, analyst = admit.terms, admit.request, ""
        if site.name not in terms.parties:
            raise Refused(f"the terms do not name party {site.name!r}")
        if request is not None and site.credentials is not None:
            analyst = key_exchange.check_request(site.credentials, terms, request)
            key_exchange.check_age(request, site.credentials.clock())
        nonce = b"" if request is None else request.nonce
        offer = SessionOffer(admit.session, terms, admit.attempt, analyst, nonce)
        limits = site.permit(offer)
        has_rows = site.holder is not None
        check_rows(site.name, terms, has_rows)
        if terms.blocks and site.credentials is None:
            raise Refused(
                f"party {site.name}: parties with different columns seal what they relay with their keys, "
                f"and this site has none: give it `keys`"
            )
        memory = site.memory.begin(offer, limits)
        try:
            site.taken(offer)
            secret = None
            if terms.keyholder == site.name:
                secret = terms.protection.encryption().new_secret(terms.hiding.key_bits)
            spending = Spending(terms, memory) if terms.noise is not None and has_rows else None
            holder = Rowless() if site.holder is None else site.holder(terms, memory.secret)
            memory.bind(holder.rows_hashed, holder.table)
        except FedboostError as error:
            memory.end(quoted(error.public))
            raise
        return cls(admit, memory, holder, secret, spending)

    @property
    def session(self) -> str:
        """The name of the session."""
        return self.first.session

    def attempt(self, number: int) -> Attempt:
        """An attempt, as signatures are bound to it."""
        request = self.first.request
        return Attempt(self.session, number, self.terms, b"" if request is None else request.nonce)

    def help_as(self, size: int) -> tuple[str, int]:
        """The name of help of so many bytes in the site's audit log, and its integers."""
        if not self.terms.hides_columns or self.secret is None:
            return HELP, 0
        return OPENINGS, size // (2 * len(self.secret.public.to_bytes()))

    def attest(self, site: Site, close: Close, session: bytes, turns: int, transcript: bytes) -> Attest:
        """What this party did, and the model as it was told: signed, where parties sign. session: the digest
        of the attempt; turns: questions that were answered."""
        holder, terms, thresholds, kept = self.holder, self.terms, b"", b""
        state, hides = holder.state, terms.hides_columns
        if terms.keeps_parts:
            state = state.seen_by(terms, site.name, publicly=True)
            salt, trees = derive(self.memory.secret, SALT), holder.trees(close.rounds)
            told = [value for done in holder.state.rounds[:1] for _, value in done.values]
            part = part_of(self.session, terms, site.name, trees, close.numbers, salt, told)
            site.keep(part)
            kept = part.digest
        elif hides:
            thresholds = packed(terms, site.name, holder.trees(close.rounds))
        structure = state.structure(close.rounds, terms)
        attest = Attest(close.attempt, turns, transcript, structure, b"", b"", thresholds, kept)
        return key_exchange.signed(site.credentials, self.attempt(close.attempt), session, site.name, attest)


def check_rows(party: str, terms: Terms, has_rows: bool) -> None:
    """Raise Refused unless the terms say of this site what is so: that it holds rows, or none."""
    if not has_rows and terms.keyholder != party:
        raise Refused(f"party {party} has no rows, and the terms name another key holder")
    if has_rows != (party in terms.holders):
        has, want = ("rows", "true") if has_rows else ("no rows", "false")
        other = "it holds none" if has_rows else "it holds rows"
        raise Refused(
            f"key holder {party} has {has}, and the terms say that {other}: set keyholder_rows = {want}"
        )


# ---- Which query a party answers now, and what it remembers of it ---------------------------------------
# Promises: turns go up by one; after a restart of the attempt the tree that grows may be asked for again,
# with the same queries in the same places, or the session went on elsewhere without contradicting what the
# site remembers.
# Refuses: any other query, and those that tell the party more than its view (PeerError); queries that the
# terms do not allow (Refused).


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


# ---- A party's answer to one query: sealed, handed out part by part, and the help to open its sum -------
# Promises: the same query asked again gets the same bytes; the same request for help the same help.


def is_repeated(own: Ask, ask: Ask) -> bool:
    """True if the same query is asked again."""
    same = ask.turn == own.turn and ask.attempt == own.attempt and ask.roster == own.roster
    return same and ask.query.digest == own.query.digest


class Answer:
    """The answer to one query. size: bytes of its sealed parts; charge: what its noise was charged as."""

    def __init__(
        self,
        ask: Ask,
        tag: Tag,
        member: Membership,
        sealer: Sealer,
        answered: Answered,
        state: TrainingState,
    ) -> None:
        """state: where the training stood before the answer."""
        self.ask = ask
        self.charge: Charge | None = None
        self.size = 0
        self._sealer = sealer
        self._sent: list[Report] = []
        """The parts that were handed out; the rest is still to come from `_rest`."""
        self._rest = self._sealed(tag, member, answered, state)
        self._opens = not member.terms.hides_columns or ask.query.hidden(member.terms, state) is not None
        """False where nobody reports sums that this party could open."""
        self.helped: dict[bytes, bytes] = {}
        """Requests for help with this turn, and the help that was given."""

    def reports(self) -> Iterator[Report]:
        """The parts: those that were handed out before, then the rest."""
        yield from tuple(self._sent)
        for report in self._rest:
            self._sent.append(report)
            yield report

    def help(self, request: bytes) -> bytes:
        """Help to open the sum."""
        if request not in self.helped:
            # One request is for the self mask, each other for more lost parties than the one before.
            if len(self.helped) > len(self.ask.roster):
                raise PeerError(
                    f"help is asked for with turn {self.ask.turn} more often than parties can be lost"
                )
            if not self._opens:
                raise PeerError(f"asked to open sums in turn {self.ask.turn}, which has none that are hidden")
            self.helped[request] = self._sealer.assist(request)
        return self.helped[request]

    def _sealed(
        self, tag: Tag, member: Membership, answered: Answered, state: TrainingState
    ) -> Iterator[Report]:
        """Seal the answer."""
        query, values = self.ask.query, answered.values
        if values.size != query.cells:
            raise PeerError(f"the query asks for {query.cells} integers and its answer has {values.size}")
        if not member.protection.hides and not query.fits(values):
            raise PeerError("cells too narrow for the sums of this site alone")
        if member.spending is not None:
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
    """The parts of an answer as messages, the context with the first, the note with the last."""
    held: Report | None = None
    for part, cells in enumerate(parts):
        if held is not None:
            yield held
        held = Report(ask.turn, ask.attempt, part, cells, ctx=b"" if part else ctx)
    assert held is not None
    yield Report(held.turn, held.attempt, held.part, held.cells, note, held.ctx)


# ---- One party's end of a session: a message of the aggregator in, this party's replies out -------------


MAX_OPENINGS_PER_TURN = 2
"""Times that a key holder opens as many sums as a session has turns: a tree may be asked for again."""
PartyPhase = Literal["new", "joined", "introduced", "signed"]
PHASES: tuple[PartyPhase, ...] = ("new", "joined", "introduced", "signed")


@dataclass
class Introduced:
    """The attempt under way, once the parties of `roster` have met. digest: what their keys are bound to."""

    greetings: tuple[bytes, ...]
    roster: tuple[str, ...]
    digest: bytes
    transcript: bytes
    sealer: Sealer
    relays: Ends | None = None
    """What is relayed to other parties is sealed with this, where anything is."""
    keys: Keys | None = None
    """By which gradients are hidden, where they are."""


class PartySession:
    """From the first offer to the end. An attempt may restart at any time: then the keys are new, this party
    is told where the training stands, and the query whose sum was not opened is asked again."""

    def __init__(self, site: Site) -> None:
        self.ended: str | None = None
        """None while the session lives, then the reason it ended: '' if the model is done."""
        self._site = site
        self._session = ""
        """The name of the session that was offered first."""
        self._membership: Membership | None = None
        self._attempt = 0
        self._handshake: Handshake | None = None
        """The key pair of the attempt, until the parties are introduced."""
        self._joined: Join | None = None
        self._introduced: Introduced | None = None
        self._underway: Underway | None = None
        """The answer that waits for what other parties relay."""
        self._answer: Answer | None = None
        """The last answer of the attempt."""
        self._asked: Ask | None = None
        """The query that this process answered last, in whichever attempt."""
        self._answered = 0
        self._openings = 0
        """Sums that this key holder has opened."""
        self._attested: Attest | None = None

    @property
    def phase(self) -> PartyPhase:
        """The phase of the session, by which RULES are looked up."""
        if self._joined is None:
            return "new"
        if self._introduced is None:
            return "joined"
        return "introduced" if self._attested is None else "signed"

    def handle(self, message: ToParty) -> Iterator[FromParty]:
        """The replies to one message, to be sent in order."""
        if self.ended is not None:
            return
        try:
            yield from RULES[self.phase, type(message)](self, message)
        except FedboostError as error:
            self._end(str(error), error.public)
            yield Leave(quoted(error.public), self._session)

    def hang_up(self) -> None:
        """Drop the keys of the attempt, if the parties had met: the connection was lost, and they meet again
        in another one."""
        self._introduced = self._underway = self._answer = None

    @property
    def _member(self) -> Membership:
        assert self._membership is not None
        return self._membership

    def _end(self, reason: str, public: str | None = None) -> None:
        """End the session here for good. public: the reason without values of rows."""
        self.ended, self._handshake = reason, None
        self.hang_up()
        if self._membership is not None:
            self._membership.memory.end(quoted(reason if public is None else public))

    # ---- messages -----------------------------------------------------------------------------------

    def _offer(self, offer: Offer) -> Iterator[FromParty]:
        """The offer is held to the site's rules; this party joins with new keys."""
        if self._membership is None:
            self._session = offer.session
            self._membership = Membership.begin(self._site, offer)
        member = self._membership
        first = member.first
        if (offer.session, offer.terms, offer.request) != (first.session, first.terms, first.request):
            raise PeerError("admitted to another session, or under other terms")
        if self._joined is None or offer.attempt != self._attempt:
            self._joined = self._join(member, offer.attempt)
        yield self._joined

    def _join(self, member: Membership, attempt: int) -> Join:
        if attempt <= max(self._attempt, member.memory.standing.attempt):
            raise PeerError(f"gathered for attempt {attempt} after attempt {self._attempt}")
        self._attempt = attempt
        self.hang_up()
        self._handshake = Handshake(self._site.draw)
        site, now = self._site, member.attempt(attempt)
        context = key_exchange.key_context(now, site.name)
        public = member.protection.key_greeting(self._handshake.public, member.secret, context)
        greeting = key_exchange.greet(site.credentials, site.name, now, public, site.draw)
        return Join(member.session, member.terms.digest, attempt, greeting)

    def _introduce(self, meet: Introduce) -> Iterator[FromParty]:
        """The greetings are checked, keys are agreed, and the training goes to where the others stand."""
        assert self._joined is not None
        if self._handshake is None:
            raise PeerError("introduced to the others before admitted, or twice")
        member, state = self._member, meet.state
        attempt = member.attempt(self._attempt)
        met = key_exchange.meet(self._site.credentials, self._joined.greeting, attempt, meet.greetings)
        state.check(member.terms)
        check_view(state.position.digest, state.seen_by(member.terms, self._site.name).position.digest)
        if not can_stand_at(state, member.terms, member.memory.standing):
            raise PeerError("the session is said to stand where it cannot, after what was asked here")
        member.memory.meet(self._attempt)
        member.holder.go_to(state)
        site, terms, public = self._site, member.terms, member.secret.public if member.secret else None
        if public is None and member.protection.uses_key_holder:
            public = key_exchange.public_of(attempt, meet.greetings)
        handshake, self._handshake, self._attested = self._handshake, None, None
        sealer = _sealer(site, member, handshake, met, public, self._openings)
        ends = first_transcript(met.session, state), sealer, _ends(site, terms, handshake, met, state)
        self._introduced = Introduced(meet.greetings, tuple(sorted(met.publics)), met.session, *ends)
        if terms.hides_columns:
            self._introduced.keys = Keys(public, member.secret, site.draw)
        yield from ()

    def _introduce_again(self, meet: Introduce) -> Iterator[FromParty]:
        """A repeated introduction is ignored; any other ends the session."""
        if self._introduced is None or meet.greetings != self._introduced.greetings:
            raise PeerError("introduced to the others before admitted, or twice")
        yield from ()

    def _ask(self, ask: Ask) -> Iterator[FromParty]:
        """The query is answered if it is due and allowed; a repeated one gets the same bytes. Where others
        must relay something first, the answer waits for it."""
        assert self._introduced is not None
        if self._answer is not None and is_repeated(self._answer.ask, ask):
            yield from self._answer.reports()
        elif self._underway is None:
            self._underway = self._begin(ask, self._introduced)
            yield from self._go_on(self._introduced, self._underway)
        elif not is_repeated(self._underway.ask, ask):
            raise PeerError(f"turn {ask.turn} asked while the answer to turn {self._underway.ask.turn} waits")

    def _relay(self, relay: Relay) -> Iterator[FromParty]:
        """Taken in, if the answer under way is to that turn; with what it waits for it goes on."""
        assert self._introduced is not None
        underway = self._underway
        if underway is None or (relay.turn, relay.attempt) != (underway.ask.turn, underway.ask.attempt):
            yield from self._stray_relay(relay)
        else:
            underway.take(relay)
            yield from self._go_on(self._introduced, underway)

    def _stray_relay(self, relay: Relay) -> Iterator[FromParty]:
        """A repeated one, and one of an earlier turn or attempt, is ignored; any other is refused."""
        last = (self._asked.attempt, self._asked.turn) if self._asked else (0, 0)
        if relay.attempt >= self._attempt and (relay.attempt, relay.turn) > last:
            name = quoted(relay.sender, MAX_QUOTE)
            raise PeerError(f"bytes of party {name} relayed for turn {relay.turn} that nobody waits for")
        yield from ()

    def _begin(self, ask: Ask, introduced: Introduced) -> Underway:
        """Begin to answer a query, if it is due."""
        member, me = self._member, self._site.name
        before, standing = member.holder.state, member.memory.standing
        now = Situation(me, member.terms, self._attempt, introduced.roster, self._asked, before, standing)
        check_due(ask, now)
        introduced.transcript = next_transcript(introduced.transcript, ask.query)
        if not member.protection.hides and ask.query.rows < member.holder.rows:
            raise PeerError("a sum over fewer rows than this site alone has: its cells could overflow")
        if introduced.relays is not None:
            introduced.relays = introduced.relays.told(ask.query.seen_by(member.terms, me, publicly=True))
        most = max_relayed(member.terms, me, ask.query, member.holder.rows, before)
        steps = member.holder.answering(ask.query)
        return Underway(ask, before, steps, introduced.relays, most, introduced.keys)

    def _go_on(self, introduced: Introduced, underway: Underway) -> Iterator[FromParty]:
        """Relay what others need, and answer once nothing is missing."""
        ask, before, memory = underway.ask, underway.before, self._member.memory
        for step, messages, digest in underway.advance():
            with memory.together():
                self._remember(underway, before.after(ask.query))
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
        tag = tag_of(ask, introduced.transcript)
        with memory.together():
            answer = Answer(ask, tag, member, introduced.sealer, underway.answered, before)
            question = self._remember(underway, member.holder.state)
            positions = question.digest.hex(), before.position.digest.hex()
            self._record(ask, ask.query.name, ask.query.cells, answer.size, answer.charge, *positions)
        self._answer = answer
        self._answered += 1
        yield from answer.reports()

    def _remember(self, underway: Underway, after: TrainingState) -> Question:
        """Write down the query before anything leaves that follows from it."""
        if underway.question is None:
            underway.question = remember(self._member.memory, underway.ask, underway.before, after)
            self._asked = underway.ask
        return underway.question

    def _open_request(self, request: OpenRequest) -> Iterator[FromParty]:
        """This party helps to open the sum of its last answer."""
        assert self._introduced is not None
        answer, label = self._answer, (request.turn, request.attempt)
        if answer is None or label != (answer.ask.turn, answer.ask.attempt):
            raise PeerError(f"help is asked for with turn {request.turn}, which is not the last")
        if request.request not in answer.helped:
            size = len(answer.help(request.request))
            self._openings += self._member.secret is not None
            member, ask, memory = self._member, answer.ask, self._member.memory
            with memory.together():
                stage, helped = ask.query.stage, memory.standing.helped
                if member.terms.session.on_loss == "shrink" and (helped is None or stage >= helped[0]):
                    # A tree that is asked for again does not undo what was opened after it.
                    memory.help(stage, tuple(sorted(ask.roster)))
                self._record(ask, *member.help_as(size), size)
        yield OpenShare(*label, answer.help(request.request))

    def _close(self, close: Close) -> Iterator[FromParty]:
        """This party signs what it did, and the model as it was told."""
        assert self._introduced is not None
        if self._asked is None:
            raise PeerError("a model before anything was asked")
        if close.attempt != self._attempt or self._asked.attempt != close.attempt:
            raise PeerError("a model before anything was asked since the parties started a new attempt")
        if self._attested is None:
            keeps, introduced = self._member.terms.keeps_parts, self._introduced
            told = introduced.relays if keeps and introduced.relays else introduced  # `Transcripts.signed`
            with self._member.memory.together():
                self._member.memory.sign()
                self._attested = self._member.attest(
                    self._site, close, introduced.digest, self._answered, told.transcript
                )
                if given := len(self._attested.thresholds):
                    self._record(self._asked, THRESHOLDS, given // 4, given)
        yield self._attested

    def _session_ended(self, bye: SessionEnded) -> Iterator[FromParty]:
        """The session has ended."""
        made = "" if self._attested else "the aggregator ended the session without a model"
        self._end(quoted(bye.reason) or made)
        yield from ()

    def _record(
        self, ask: Ask, what: str, cells: int, size: int, charge: Charge | None = None, *hashes: str
    ) -> None:
        shape = cells, size, self._member.protection.name, ask.roster
        about = self._member.first.session, ask.turn, ask.attempt, what
        self._site.record(Release(*about, *shape, charge, *hashes))


def _sealer(
    site: Site, member: Membership, handshake: Handshake, met: Meeting, public: "Public | None", openings: int
) -> Sealer:
    """What vectors are sealed with in an attempt. openings: sums that this key holder has opened."""
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


def _ends(site: Site, terms: Terms, handshake: Handshake, met: Meeting, state: TrainingState) -> Ends | None:
    """What a party of a block seals with, and opens, in an attempt that begins there."""
    block = terms.blocks.of(site.name)
    if block is None:
        return None
    keys = handshake.pair_keys(site.name, met.publics, met.session, block.parties)
    public = state.seen_by(terms, site.name, publicly=True)
    return Ends(site.name, keys, first_transcript(met.session, public), site.draw)


def _refused(reason: str) -> "Handler":
    """A handler that ends the session."""

    def refuse(session: PartySession, message: ToParty) -> Iterator[FromParty]:
        raise PeerError(reason.format(message=message))

    refuse.__doc__ = "Refused."
    return refuse


Handler = Callable[[PartySession, ToParty], Iterator[FromParty]]
_S = PartySession
_EARLY, _MODEL = "asked before admitted and introduced", "a model before anything was asked"
_TWICE = "introduced to the others before admitted, or twice"
_NOT_LAST = "help is asked for with turn {message.turn}, which is not the last"
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
    ("signed", Ask): _refused("asked after the model was signed"),
    ("signed", Relay): _S._stray_relay,
    ("signed", OpenRequest): _refused("asked for help after the model was signed"),
    ("signed", Close): _S._close,
    ("signed", SessionEnded): _S._session_ended,
}
"""The session at a party: what each message does in each phase."""
