"""One party's end of a session: a message of the aggregator in, this party's replies out. Sans-IO.

RULES, at the end of this file, says what each message does in each phase; docs/protocol.md has it in words.

Promises: a query is answered only if this site's rules and the terms allow it, it is due, and nothing that
this site remembers of the session contradicts it; an answer is remembered before its first byte leaves; the
same query asked again gets the same bytes. What cannot or must not be answered makes this party leave with a
sentence that says why, and nothing of its rows goes out: values and row numbers of the table stay in `ended`,
for the site's own log.
Refuses: by leaving. The session never raises for what an aggregator sends or a table holds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedboost.errors import FedboostError, PeerError, quoted
from fedboost.privacy.encrypted.scheme import Public
from fedboost.privacy.masked.keys import Group, Handshake
from fedboost.privacy.protection import Sealer
from fedboost.privacy.protections import PartySetup
from fedboost.protocol import key_exchange
from fedboost.protocol.answer import Answer, check_size, is_repeated
from fedboost.protocol.contracts import Keys, Receive, TrainingState
from fedboost.protocol.due import Situation, can_stand_at, check_due, check_view, remember
from fedboost.protocol.key_exchange import Meeting
from fedboost.protocol.ledger import Charge
from fedboost.protocol.membership import Membership
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
    SessionEnded,
    ToParty,
)
from fedboost.protocol.relaying import Ends, Underway, max_relayed, unawaited
from fedboost.protocol.site import THRESHOLDS, Relayed, Release, Site
from fedboost.protocol.site_memory import Question
from fedboost.protocol.transcript import first_transcript, next_transcript, tag_of
from fedboost.terms.terms import Terms

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
        member.check_same(offer)
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
        site, terms, public = self._site, member.terms, _public_key(member, meet, attempt)
        handshake, self._handshake, self._attested = self._handshake, None, None
        roster = tuple(sorted(met.publics))
        sealer = _sealer(site, member, handshake, met, public, self._openings)
        ends = first_transcript(met.session, state), sealer, _ends(site, terms, handshake, met, state)
        self._introduced = Introduced(meet.greetings, roster, met.session, *ends)
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
            raise PeerError(unawaited(relay))
        yield from ()

    def _begin(self, ask: Ask, introduced: Introduced) -> Underway:
        """Begin to answer a query, if it is due."""
        member, me = self._member, self._site.name
        before, standing = member.holder.state, member.memory.standing
        now = Situation(me, member.terms, self._attempt, introduced.roster, self._asked, before, standing)
        check_due(ask, now)
        introduced.transcript = next_transcript(introduced.transcript, ask.query)
        check_size(ask, member)
        if introduced.relays is not None:
            introduced.relays = introduced.relays.told(ask.query.seen_by(member.terms, me, publicly=True))
        most = max_relayed(member.terms, me, ask.query, member.holder.rows, before)
        steps = member.holder.answering(ask.query)
        return Underway(ask, before, steps, introduced.relays, most, introduced.keys)

    def _go_on(self, introduced: Introduced, underway: Underway) -> Iterator[FromParty]:
        """Relay what others need, and answer once nothing is missing."""
        ask, before = underway.ask, underway.before
        for step, messages, digest in underway.advance():
            self._remember(underway, before.after(ask.query))
            if isinstance(step, Receive):
                if received := underway.new(step, digest):
                    states = before, before.after(ask.query)
                    underway.question = remember(self._member.memory, ask, *states, received)
                continue
            about = step.kind, step.to, step.about, len(step.content)
            self._site.record(Relayed(self._member.first.session, ask.turn, ask.attempt, *about))
            yield from messages
        if underway.answered is None:
            return
        self._underway, member = None, self._member
        tag = tag_of(ask, introduced.transcript)
        answer = Answer(ask, tag, member, introduced.sealer, underway.answered, before)
        question = self._remember(underway, member.holder.state)
        self._answer = answer
        self._answered += 1
        positions = question.digest.hex(), before.position.digest.hex()
        self._record(ask, ask.query.name, ask.query.cells, answer.size, answer.charge, *positions)
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
        if not answer.has_helped(request.request):
            size = len(answer.help(request.request))
            self._openings += self._member.secret is not None
            self._note_help(answer.ask)
            self._record(answer.ask, *self._member.help_as(size), size)
        yield OpenShare(*label, answer.help(request.request))

    def _note_help(self, ask: Ask) -> None:
        """Write down over which roster a sum is opened, where that may change."""
        member = self._member
        stage, helped = ask.query.stage, member.memory.standing.helped
        if member.terms.session.on_loss == "shrink" and (helped is None or stage >= helped[0]):
            # A tree that is asked for again does not undo what was opened after it.
            member.memory.help(stage, tuple(sorted(ask.roster)))

    def _close(self, close: Close) -> Iterator[FromParty]:
        """This party signs what it did, and the model as it was told."""
        assert self._introduced is not None
        if self._asked is None:
            raise PeerError("a model before anything was asked")
        if close.attempt != self._attempt or self._asked.attempt != close.attempt:
            raise PeerError("a model before anything was asked since the parties started a new attempt")
        if self._attested is None:
            self._member.memory.sign()
            keeps, introduced = self._member.terms.keeps_parts, self._introduced
            told = introduced.relays if keeps and introduced.relays else introduced  # `Transcripts.signed`
            did = introduced.digest, self._answered, told.transcript
            self._attested = self._member.attest(self._site, close, *did)
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
        member = self._member
        shape = cells, size, member.protection.name, ask.roster
        release = Release(member.first.session, ask.turn, ask.attempt, what, *shape, charge, *hashes)
        self._site.record(release)


def _public_key(member: Membership, meet: Introduce, attempt: key_exchange.Attempt) -> Public | None:
    """The key that sums are encrypted under, where they are."""
    if not member.protection.uses_key_holder:
        return None
    return member.secret.public if member.secret else key_exchange.public_of(attempt, meet.greetings)


def _sealer(
    site: Site, member: Membership, handshake: Handshake, met: Meeting, public: Public | None, openings: int
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
