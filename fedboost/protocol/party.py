"""One party's end of a session: a message of the aggregator in, this party's replies out. Sans-IO.

Promises: a query is answered only if this site's rules and the terms allow it, it is the next turn, and
nothing that this site remembers of the session contradicts it; what is answered is remembered before its
first byte leaves; the same question asked again gets the same bytes. What cannot or must not be answered
makes this party leave with a sentence that says why, and nothing of its rows goes out: values and row numbers
of the table stay in `ended`, for the site's own log.
Refuses: by leaving. The session never raises for what an aggregator sends or a table holds.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from fedboost.errors import FedboostError, PeerError, Refused, quoted
from fedboost.privacy import fields
from fedboost.privacy.encrypted.scheme import Secret
from fedboost.privacy.masked.pairwise import Group, Handshake
from fedboost.privacy.protection import Sealer, Tag
from fedboost.privacy.protections import PROTECTIONS, PartySetup, Protection
from fedboost.privacy.shamir import RandomBytes
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Holder, Query, Rowless, TrainingState
from fedboost.protocol.key_exchange import Attempt, Credentials
from fedboost.protocol.ledger import Charge, Spending
from fedboost.protocol.messages import (
    Admit,
    Ask,
    Assist,
    Attest,
    Bye,
    Close,
    FromParty,
    Join,
    Leave,
    Meet,
    Open,
    Report,
    ToParty,
)
from fedboost.protocol.site_memory import (
    Limits,
    Offer,
    Question,
    SessionMemory,
    SiteMemory,
    Standing,
    TransientMemory,
)
from fedboost.terms.terms import Terms

MAX_OPENINGS_PER_TURN = 2
"""Times that a key holder opens as many sums as a session has turns: a tree may be asked for again."""


@dataclass(frozen=True)
class Release:
    """An answer that is about to leave this site, for its audit log. question: the question's hash, in hex;
    position: that of where the session stood; both empty for help to open a sum. charge: where it got noise,
    what the site's memory was charged."""

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
class Site:
    """What a session needs of the place it runs at.

    holder: reads this party's data as the terms want them, or raises Refused; None at a key holder without
    rows; draw: cryptographic randomness; credentials: who this party is, None where nothing is signed;
    permit: called with an offer before any row is read, raises Refused if the site's own rules forbid it;
    taken: called with an offer that is taken, before any row is read; record: called with each release before
    its bytes leave;
    memory: what the site remembers of sessions, unless given for as long
    as this object lives.
    """

    name: str
    holder: Callable[[Terms], Holder] | None
    draw: RandomBytes
    credentials: Credentials | None = None
    permit: Callable[[Offer], Limits] = lambda offer: Limits()
    taken: Callable[[Offer], None] = lambda offer: None
    record: Callable[[Release], None] = lambda release: None
    memory: SiteMemory = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.memory is None:
            object.__setattr__(self, "memory", TransientMemory(self.draw, self.name))


class PartySession:
    """From the first Admit to Bye. Parties may gather anew at any time: then the keys are new, this party is
    told where the session stands, and the question that was not opened is asked again."""

    def __init__(self, site: Site) -> None:
        self.ended: str | None = None
        """None while the session lives, then the reason it ended: '' if the model is done."""
        self._site = site
        self._admitted: Admit | None = None
        """The first offer that was taken."""
        self._memory: SessionMemory | None = None
        self._holder: Holder | None = None
        self._secret: Secret | None = None
        """Of the key holder, for this session and in memory alone."""
        self._openings = 0
        """Sums it has opened."""
        self._spending: Spending | None = None
        """Where the terms say that answers get noise."""
        self._attempt = 0
        self._handshake: Handshake | None = None
        self._join: Join | None = None
        self._met: tuple[bytes, ...] = ()
        self._digest = b""
        self._sealer: Sealer | None = None
        self._roster: tuple[str, ...] = ()
        self._transcript = b""
        self._asked: Ask | None = None
        """The last question that was answered in this process, of whichever attempt."""
        self._said: list[Report] = []
        """The parts of its answer that were handed out; the rest is still to come from `_parts`."""
        self._parts: Iterator[Report] = iter(())
        self._answered = 0
        self._help: dict[bytes, bytes] = {}
        """Requests for help in that turn and attempt, and the answers."""
        self._attested: Attest | None = None

    def handle(self, message: ToParty) -> Iterator[FromParty]:
        """The replies to one message, to be sent in order."""
        if self.ended is not None:
            return
        try:
            match message:
                case Admit():
                    yield self._admit(message)
                case Meet(greetings, so_far):
                    self._meet(greetings, so_far)
                case Ask():
                    yield from self._answer(message)
                case Open(turn, attempt, request):
                    yield self._assist(turn, attempt, request)
                case Close(attempt, rounds):
                    yield self._attest(attempt, rounds)
                case Bye(reason):
                    made = "" if self._attested else "the aggregator ended the session without a model"
                    self._end(quoted(reason) or made)
                case _:
                    assert_never(message)
        except FedboostError as error:
            self._end(str(error), error.public)
            yield Leave(quoted(error.public), self._session)

    @property
    def _session(self) -> str:
        return "" if self._admitted is None else self._admitted.session

    @property
    def _terms(self) -> Terms:
        assert self._admitted is not None
        return self._admitted.terms

    @property
    def _protection(self) -> Protection:
        return PROTECTIONS[self._terms.hiding.protection]

    @property
    def _standing(self) -> Standing:
        """Where the session stands, by what this site remembers of it."""
        assert self._memory is not None
        return self._memory.standing

    def _end(self, reason: str, public: str | None = None) -> None:
        """The session is over here for good. public: the reason without values of rows."""
        self.ended, self._sealer = reason, None
        if self._memory is not None:
            self._memory.end(quoted(reason if public is None else public))

    def _admit(self, admit: Admit) -> Join:
        if self._admitted is None:
            self._admitted = admit
            self._begin(admit)
        first = self._admitted
        if (admit.session, admit.terms, admit.request) != (first.session, first.terms, first.request):
            raise PeerError("admitted to another session, or under other terms")
        if self._join is not None and admit.attempt == self._attempt:
            return self._join
        if admit.attempt <= max(self._attempt, self._standing.attempt):
            raise PeerError(f"gathered for attempt {admit.attempt} after attempt {self._attempt}")
        self._attempt, self._sealer = admit.attempt, None
        self._handshake = Handshake(self._site.draw)
        public = self._protection.key_greeting(self._handshake.public, self._secret)
        credentials, name = self._site.credentials, self._site.name
        greeting = key_exchange.greet(credentials, name, self._current, public, self._site.draw)
        self._join = Join(self._session, self._terms.digest, self._attempt, greeting)
        return self._join

    @property
    def _current(self) -> Attempt:
        """The attempt that is under way."""
        assert self._admitted is not None
        request = self._admitted.request
        nonce = b"" if request is None else request.nonce
        return Attempt(self._session, self._attempt, self._terms, nonce)

    def _begin(self, admit: Admit) -> None:
        terms, name, request, analyst = admit.terms, self._site.name, admit.request, ""
        if name not in terms.parties:
            raise Refused(f"the terms do not name party {name!r}")
        if request is not None and self._site.credentials is not None:
            analyst = key_exchange.check_request(self._site.credentials, terms, request)
            key_exchange.check_age(request, self._site.credentials.clock())
        nonce = b"" if request is None else request.nonce
        offer = Offer(admit.session, terms, admit.attempt, analyst, nonce)
        limits = self._site.permit(offer)
        has_rows = self._site.holder is not None
        self._check_rows(terms, has_rows)
        self._memory = self._site.memory.begin(offer, limits)
        self._site.taken(offer)
        if terms.hiding.keyholder == name:
            self._secret = self._protection.encryption().new_secret(terms.hiding.key_bits)
        if terms.noise is not None and has_rows:
            self._spending = Spending(terms, self._memory)
        self._holder = Rowless() if self._site.holder is None else self._site.holder(terms)
        self._memory.bind(self._holder.rows_hashed)

    def _check_rows(self, terms: Terms, has_rows: bool) -> None:
        """Raise Refused unless the terms say of this site what is so: that it holds rows, or none."""
        me = self._site.name
        if not has_rows and terms.hiding.keyholder != me:
            raise Refused(f"party {me} has no rows, and the terms name another key holder")
        if has_rows != (me in terms.holders):
            has, want = ("rows", "true") if has_rows else ("no rows", "false")
            other = "it holds none" if has_rows else "it holds rows"
            raise Refused(
                f"key holder {me} has {has}, and the terms say that {other}: set keyholder_rows = {want}"
            )

    def _meet(self, greetings: tuple[bytes, ...], so_far: TrainingState) -> None:
        if self._sealer is not None and greetings == self._met:
            return  # said twice
        if self._holder is None or self._join is None or self._handshake is None or self._memory is None:
            raise PeerError("introduced to the others before admitted, or twice")
        met = key_exchange.meet(self._site.credentials, self._join.greeting, self._current, greetings)
        so_far.check(self._terms)
        if not self._can_stand_at(so_far):
            raise PeerError("the session is said to stand where it cannot, after what was asked here")
        self._memory.meet(self._attempt)
        self._holder.go_to(so_far)
        handshake, self._handshake = self._handshake, None
        self._met, self._attested = greetings, None
        self._digest, self._transcript = met.session, first_transcript(met.session, so_far)
        self._roster = tuple(sorted(met.publics))
        me, terms, public = self._site.name, self._terms, None
        if self._protection.uses_key_holder:
            public = self._secret.public if self._secret else key_exchange.public_of(terms, greetings)
        self._sealer = self._protection.sealer(
            PartySetup(
                me,
                Group.of(terms.parties, terms.hiding.colluding),
                met.session,
                partial(handshake.pair_keys, me, met.publics, met.session),
                self._site.draw,
                public,
                self._secret,
                max_openings=max(MAX_OPENINGS_PER_TURN * terms.max_turns - self._openings, 0),
                sparse=terms.noise is None,
            )
        )

    def _can_stand_at(self, so_far: TrainingState) -> bool:
        """Whether the session can have come to stand there, by what this site remembers."""
        standing = self._standing
        # No sum was opened without this party, but a restarted aggregator begins the tree again.
        known = (place for question in standing.questions for place in (question.before, question.after))
        if so_far.position in (standing.base, standing.reached, *known):
            return True
        # Others may have gone on without it, once a tree split; it comes back where a tree begins.
        split = any(done.splits for done in so_far.rounds)
        may_have_been_away = self._terms.session.on_loss == "shrink" and split and so_far.levels == 0
        return may_have_been_away and so_far.has_passed(standing.base)

    def _answer(self, ask: Ask) -> Iterator[Report]:
        if self._holder is None or self._sealer is None or self._memory is None:
            raise PeerError("asked before admitted and introduced")
        if self._attested is not None:
            raise PeerError("asked after the model was signed")
        if self._asked is not None and _same(ask, self._asked):
            yield from tuple(self._said)
            yield from self._rest()
            return
        before = self._holder.state
        self._check(ask, self._terms, before)
        self._asked, self._said, self._parts, self._help = ask, [], iter(()), {}
        self._transcript = next_transcript(self._transcript, ask.query)
        parts, size, note, charge = self._sealed(ask.query, tag_of(ask, self._transcript))
        question = self._remember(ask, before, self._holder.state)
        self._answered += 1
        place = question.digest.hex(), before.position.digest.hex()
        self._record(ask, ask.query.name, ask.query.cells, size + len(note), charge, place)
        self._parts = _reports(ask, parts, note)
        yield from self._rest()

    def _rest(self) -> Iterator[Report]:
        """The parts of the last answer that were not handed out yet."""
        for report in self._parts:
            self._said.append(report)
            yield report

    def _check(self, ask: Ask, terms: Terms, so_far: TrainingState) -> None:
        """Raise unless this question may be asked of this roster, here and now."""
        if ask.attempt != self._attempt:
            raise PeerError(f"a question of attempt {ask.attempt} in attempt {self._attempt}")
        roster = tuple(sorted(ask.roster))
        strangers = not set(roster) <= set(terms.parties) or (self._roster and roster != self._roster)
        if (
            strangers
            or self._site.name not in roster
            or not terms.min_roster <= len(set(roster)) == len(roster)
        ):
            raise PeerError("a sum over other parties than those of the terms, or than were introduced")
        if len(roster) < len(terms.parties) and not so_far.may_lack_parties(ask.query):
            raise PeerError("a sum that lacks parties before the first tree split")
        if not self._is_due(ask, terms, so_far):
            asked = {question.turn for question in self._standing.questions}
            before = self._asked.turn if self._asked else max(asked, default=0)
            if ask.turn in asked:
                raise PeerError(f"another question in turn {ask.turn}, or elsewhere in the tree, than before")
            raise PeerError(f"turn {ask.turn} asked after turn {before}")
        if self._standing.helped is not None:
            stage, helped = self._standing.helped
            moved = ask.query.stage > stage and so_far.may_change(ask.query)
            if helped != roster and not moved:
                raise PeerError(
                    f"turn {ask.turn}: the roster changed where the difference of two sums would show a party"
                )
        ask.query.check(terms)
        if ask.query.of_tree or ask.query.ends_tree:
            so_far.check_splits(terms, ask.query.splits)

    def _is_due(self, ask: Ask, terms: Terms, so_far: TrainingState) -> bool:
        """Whether it is the turn's turn: turns go up by one. After the parties gathered anew, the tree that
        grows may be asked for again, with the same questions in the same places, or the session went on."""
        before, standing = self._asked, self._standing
        if ask.turn > terms.max_turns:
            raise PeerError(f"turn {ask.turn}, where the terms have {terms.max_turns} questions at most")
        if before is not None and ask.attempt == before.attempt and ask.turn != before.turn + 1:
            return False
        known = {question.turn: question for question in standing.questions}
        if ask.turn in known:
            return so_far.position == known[ask.turn].before and _repeats(ask.query, known[ask.turn], terms)
        if standing.signed:
            raise PeerError("asked after the model was signed")
        last = max(known, default=0)
        if before is not None and ask.attempt == before.attempt:
            return ask.turn > last
        if terms.session.on_loss == "shrink":
            return ask.turn > last and so_far.has_passed(standing.reached)
        return ask.turn == last + 1 and so_far.position == standing.reached

    def _remember(self, ask: Ask, before: TrainingState, after: TrainingState) -> Question:
        """Have it written down what was asked where, before the answer leaves."""
        assert self._memory is not None
        standing, of_tree = self._standing, ask.query.of_tree
        question = Question(ask.turn, ask.query.digest, of_tree, before.position, after.position)
        base, last = standing.base, max((known.turn for known in standing.questions), default=0)
        if len(before.rounds) > base.rounds:
            base, last = before.before_tree.position, 0
        self._memory.ask(question, base, after.position if ask.turn >= last else standing.reached)
        return question

    def _sealed(self, query: Query, tag: Tag) -> tuple[Iterable[bytes], int, bytes, Charge | None]:
        """The parts of the sealed answer, their bytes, the note that goes with the last, and what it cost."""
        assert self._holder is not None
        assert self._sealer is not None
        shown = not self._protection.hides
        if shown and query.rows < self._holder.rows:
            raise PeerError("a sum over fewer rows than this site alone has: its cells could overflow")
        so_far = self._holder.state
        values = self._holder.answer(query)
        if values.size != query.cells:
            raise PeerError(f"the query asks for {query.cells} integers and its answer has {values.size}")
        if shown and not query.fits(values):
            raise PeerError("cells too narrow for the sums of this site alone")
        charge: Charge | None = None
        if self._spending is not None:
            values, charge = self._spending.release(query, so_far, tag, values)
        parts = self._sealer.seal(query.to_cells(values), tag)
        if self._protection.fixed_size:
            return parts, tag.size, self._sealer.note(), charge
        sealed = list(parts)
        return sealed, sum(map(len, sealed)), self._sealer.note(), charge

    def _assist(self, turn: int, attempt: int, request: bytes) -> Assist:
        asked = self._asked
        if self._sealer is None or asked is None or (turn, attempt) != (asked.turn, asked.attempt):
            raise PeerError(f"help is asked for with turn {turn}, which is not the last")
        if self._attested is not None:
            raise PeerError("asked for help after the model was signed")
        if request not in self._help:
            # One is for the self mask; each other one is for more parties that were lost than the one before.
            if len(self._help) > len(asked.roster):
                raise PeerError(f"help is asked for with turn {turn} more often than parties can be lost")
            answer = self._sealer.assist(request)
            self._openings += self._secret is not None
            self._note_help(asked)
            self._record(asked, "help to open the sum", 0, len(answer))
            self._help[request] = answer
        return Assist(turn, attempt, self._help[request])

    def _note_help(self, asked: Ask) -> None:
        """Have it written down over which roster a sum is opened, where that may change."""
        assert self._memory is not None
        stage, helped = asked.query.stage, self._standing.helped
        if self._terms.session.on_loss == "shrink" and (helped is None or stage >= helped[0]):
            # A tree that is asked for again does not undo what was opened after it.
            self._memory.help(stage, tuple(sorted(asked.roster)))

    def _attest(self, attempt: int, rounds: int) -> Attest:
        asked, holder = self._asked, self._holder
        if self._sealer is None or asked is None or holder is None or self._memory is None:
            raise PeerError("a model before anything was asked")
        if attempt != self._attempt or asked.attempt != attempt:
            raise PeerError("a model before anything was asked since the parties gathered anew")
        if self._attested is None:
            self._memory.sign()
            self._attested = self._signed(attempt, rounds, holder)
        return self._attested

    def _signed(self, attempt: int, rounds: int, holder: Holder) -> Attest:
        claims = self._answered, self._transcript, holder.state.structure(rounds)
        if self._site.credentials is None:
            return Attest(attempt, *claims, b"", b"")
        signer, request = self._site.credentials.signer, self._current.request
        statement = key_exchange.attestation(self._terms, request, self._digest, self._site.name, *claims)
        return Attest(attempt, *claims, signer.certificate, signer.sign(statement))

    def _record(
        self,
        ask: Ask,
        what: str,
        cells: int,
        size: int,
        charge: Charge | None = None,
        place: tuple[str, str] = ("", ""),
    ) -> None:
        shape = cells, size, self._terms.hiding.protection, ask.roster
        self._site.record(Release(self._session, ask.turn, ask.attempt, what, *shape, charge, *place))


def first_transcript(session: bytes, so_far: TrainingState) -> bytes:
    """What transcripts begin with: who has met, and where the session stood then."""
    return hashlib.sha256(fields.pack(session, so_far.position.digest)).digest()


def next_transcript(before: bytes, query: Query) -> bytes:
    """The hash of all questions up to this one: both ends must have the same, or nothing opens."""
    return hashlib.sha256(fields.pack(before, query.digest)).digest()


def tag_of(ask: Ask, transcript: bytes) -> Tag:
    """The tag under which the answer to a question is sealed."""
    query = ask.query
    return Tag(ask.turn, ask.attempt, query.tree, ask.roster, transcript, query.segments)


def _same(one: Ask, other: Ask) -> bool:
    same_label = (one.turn, one.attempt, one.roster) == (other.turn, other.attempt, other.roster)
    return same_label and one.query.digest == other.query.digest


def _repeats(query: Query, before: Question, terms: Terms) -> bool:
    """Whether a question may be asked in the place of the one whose sum was not opened: it is the same, or
    ends the tree where it stands because a party was lost."""
    cut_short = before.of_tree and query.ends_tree
    return query.digest == before.digest or (cut_short and terms.session.on_loss == "shrink")


def _reports(ask: Ask, parts: Iterable[bytes], note: bytes) -> Iterator[Report]:
    """The parts of an answer as messages, the note with the last."""
    held: Report | None = None
    for part, cells in enumerate(parts):
        if held is not None:
            yield held
        held = Report(ask.turn, ask.attempt, part, cells)
    assert held is not None
    yield dataclasses.replace(held, note=note)
