"""One party's end of a session: a message of the aggregator in, this party's replies out. Sans-IO.

Promises: a query is answered only if this site's rules and the terms allow it and it is the next turn; the
same question asked again gets the same bytes. What cannot or must not be answered makes this party leave
with a sentence that says why, and nothing of its rows goes out: values and row numbers of the table stay in
`ended`, for the site's own log.
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
from fedboost.privacy.encrypted import EncryptedSealer, Secret, agreement_key, greeting_of, scheme_of
from fedboost.privacy.masked import MaskedSealer
from fedboost.privacy.pairwise import Group, Handshake
from fedboost.privacy.plain import PlainSealer
from fedboost.privacy.protection import Sealer, Tag
from fedboost.privacy.shamir import Draw
from fedboost.protocol import meeting, queries
from fedboost.protocol.ledger import Charge, Ledger, Spending
from fedboost.protocol.meeting import Credentials
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
from fedboost.protocol.party import NoRows, Party, Shard
from fedboost.protocol.progress import NOTHING_YET, ModelSoFar
from fedboost.protocol.queries import EndRoundQuery, KllQuery, OfTree, Query, RowsQuery
from fedboost.protocol.sketch import sketch
from fedboost.protocol.terms import Terms

MOST_OPENINGS = 2
"""Times that a key holder opens as many sums as a session has turns: a tree may be asked for again."""


@dataclass(frozen=True)
class Release:
    """What is about to leave this site, for its audit log. charge: where it got noise, what the ledger was
    charged."""

    session: str
    turn: int
    attempt: int
    what: str
    cells: int
    size: int
    protection: str
    roster: tuple[str, ...]
    charge: Charge | None = None


@dataclass(frozen=True)
class Site:
    """What a session needs of the place it runs at.

    permit: raises Refused if the site's own rules forbid the terms, before any row is read; read_shard: the
    rows as the terms want them, or Refused, and None at a key holder without rows; record: called with each
    release before its bytes are handed out; credentials: who this party is, None where nothing is signed;
    draw: cryptographic randomness; nthread: how many threads compute; ledger: what was spent of the rows'
    privacy, None where nobody keeps count, so that noise is refused.
    """

    name: str
    read_shard: Callable[[Terms], Shard] | None
    draw: Draw
    credentials: Credentials | None = None
    permit: Callable[[Terms], None] = lambda terms: None
    record: Callable[[Release], None] = lambda release: None
    nthread: int = 1
    ledger: Ledger | None = None


class PartySession:
    """From the first Admit to Bye. Parties may gather anew at any time: then the keys are new, this party is
    told where the session stands, and the question that was not opened is asked again."""

    def __init__(self, site: Site) -> None:
        self.ended: str | None = None
        """None while the session lives, then the reason it ended: '' if the model is done."""
        self._site = site
        self._session = ""
        self._terms: Terms | None = None
        self._party: Party | NoRows | None = None
        self._secret: Secret | None = None
        """Of the key holder, for this session and in memory alone."""
        self._openings = 0
        """Sums it has opened, before the parties met last."""
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
        """The last question, of whichever attempt."""
        self._questions: dict[int, tuple[Query, ModelSoFar]] = {}
        """What was asked of the tree that grows, by turn, and where the session stood then."""
        self._base = self._reached = NOTHING_YET
        """Where the session stood before that tree, and after the last of these questions."""
        self._said: list[Report] = []
        self._answered = 0
        self._remembers = False
        """Whether this party knows where the session stood: not if it lost its memory since it began."""
        self._helped: Ask | None = None
        """The furthest question whose sum this party helped to open."""
        self._help: dict[bytes, bytes] = {}
        """What it was asked for in that turn and attempt, and what it gave."""
        self._attested: Attest | None = None
        self._signed_once = False

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
                    self.ended, self._sealer = quoted(reason) or made, None
                case _:
                    assert_never(message)
        except FedboostError as error:
            self.ended, self._sealer = str(error), None
            yield Leave(quoted(error.public), self._session)

    def _admit(self, admit: Admit) -> Join:
        if self._party is None:
            self._begin(admit.session, admit.terms)
        assert self._terms is not None
        if (admit.session, admit.terms) != (self._session, self._terms):
            raise PeerError("admitted to another session, or under other terms")
        if self._join is not None and admit.attempt == self._attempt:
            return self._join
        if admit.attempt < self._attempt:
            raise PeerError(f"gathered for attempt {admit.attempt} after attempt {self._attempt}")
        self._remembers = self._remembers or admit.attempt <= 1
        if isinstance(self._sealer, EncryptedSealer):
            self._openings += self._sealer.openings
        self._attempt, self._sealer = admit.attempt, None
        self._handshake = Handshake(self._site.draw)
        public = self._handshake.public
        if self._terms.encrypts:
            public = greeting_of(public, None if self._secret is None else self._secret.public)
        greeting = meeting.greet(
            self._site.credentials, self._site.name, self._terms, public, self._site.draw
        )
        self._join = Join(self._session, self._terms.digest, self._attempt, greeting)
        return self._join

    def _begin(self, session: str, terms: Terms) -> None:
        self._session = session
        if self._site.name not in terms.parties:
            raise Refused(f"the terms do not name party {self._site.name!r}")
        self._site.permit(terms)
        has_rows = self._site.read_shard is not None
        self._check_rows(terms, has_rows)
        if terms.keyholder == self._site.name:
            self._secret = scheme_of(terms.protection).new_secret(terms.key_bits)
        if terms.noise is not None and has_rows:
            if self._site.ledger is None:
                raise Refused(
                    f"party {self._site.name} keeps no ledger of what its rows' privacy was spent on"
                )
            self._site.ledger.admit(session, terms)
            self._spending = Spending(session, terms, self._site.ledger)
        if self._site.read_shard is None:
            self._party = NoRows()
        else:
            read = partial(self._site.read_shard, terms)
            self._party = Party(read, terms, self._site.nthread, self._site.name)
        if self._spending is not None:
            self._spending.begin(self._party.rows_hashed())
        self._terms = terms

    def _check_rows(self, terms: Terms, has_rows: bool) -> None:
        """Raise Refused unless the terms say of this site what is so: that it holds rows, or none."""
        me = self._site.name
        if not has_rows and terms.keyholder != me:
            raise Refused(f"party {me} has no rows, and the terms name another key holder")
        if has_rows != (me in terms.holders):
            has, want = ("rows", "true") if has_rows else ("no rows", "false")
            other = "it holds none" if has_rows else "it holds rows"
            raise Refused(
                f"key holder {me} has {has}, and the terms say that {other}: set keyholder_rows = {want}"
            )

    def _meet(self, greetings: tuple[bytes, ...], so_far: ModelSoFar) -> None:
        if self._sealer is not None and greetings == self._met:
            return  # said twice
        if self._terms is None or self._party is None or self._join is None or self._handshake is None:
            raise PeerError("introduced to the others before admitted, or twice")
        met = meeting.meet(self._site.credentials, self._join.greeting, self._terms, greetings)
        so_far.check(self._terms)
        if not self._can_stand_at(so_far, self._terms):
            raise PeerError("the session is said to stand where it cannot, after what was asked here")
        self._party.go_to(so_far)
        self._remembers = True
        if self._asked is None:
            self._base, self._reached = so_far.before_tree, so_far
        handshake, self._handshake = self._handshake, None
        self._met, self._attested = greetings, None
        self._digest, self._transcript = met.session, first_transcript(met.session, so_far)
        self._roster = tuple(sorted(met.publics))
        if self._terms.protection == "plain":
            self._sealer = PlainSealer(sparsely=self._terms.noise is None)
            return
        me, group = self._site.name, Group.of(self._terms.parties, self._terms.colluding)
        if not self._terms.encrypts:
            keys = handshake.pair_keys(me, met.publics, met.session)
            self._sealer = MaskedSealer(me, group, met.session, keys, self._site.draw)
            return
        agreed = {name: agreement_key(public) for name, public in met.publics.items()}
        keys = handshake.pair_keys(me, agreed, met.session)
        own = None if self._secret is None else self._secret.public
        public = own or meeting.public_of(self._terms, greetings)
        most = max(MOST_OPENINGS * self._terms.most_turns - self._openings, 0)
        self._sealer = EncryptedSealer(me, group, met.session, keys, public, self._secret, most)

    def _can_stand_at(self, so_far: ModelSoFar, terms: Terms) -> bool:
        """Whether the session can have come to stand there, after what this party knows of it."""
        if not self._remembers:
            return True
        if terms.on_loss == "shrink":
            return so_far.continues(self._base)
        # No sum was opened without this party, but a restarted aggregator begins the tree again.
        known = self._questions.values()
        places = [one for query, place in known for one in (place, place.after(query))]
        return any(so_far.same(place) for place in (self._base, self._reached, *places))

    def _answer(self, ask: Ask) -> Iterator[Report]:
        if self._party is None or self._sealer is None or self._terms is None:
            raise PeerError("asked before admitted and introduced")
        if self._attested is not None:
            raise PeerError("asked after the model was signed")
        if self._asked is not None and _same(ask, self._asked):
            yield from self._said
            return
        self._check(ask, self._terms, self._party.so_far)
        self._remember(ask, self._party.so_far)
        self._said, self._help = [], {}
        self._transcript = next_transcript(self._transcript, ask.query)
        tag = tag_of(ask, self._transcript)
        parts, size, note, charge = self._sealed(ask.query, tag)
        self._answered += 1
        self._record(ask, queries.name_of(ask.query), ask.query.cells, size + len(note), charge)
        held: Report | None = None
        for part, cells in enumerate(parts):
            if held is not None:
                self._said.append(held)
                yield held
            held = Report(ask.turn, ask.attempt, part, cells)
        assert held is not None
        last = dataclasses.replace(held, note=note)
        self._said.append(last)
        yield last

    def _check(self, ask: Ask, terms: Terms, so_far: ModelSoFar) -> None:
        """Raise unless this question may be asked of this roster, here and now."""
        if ask.attempt != self._attempt:
            raise PeerError(f"a question of attempt {ask.attempt} in attempt {self._attempt}")
        roster = tuple(sorted(ask.roster))
        strangers = not set(roster) <= set(terms.parties) or (self._roster and roster != self._roster)
        if strangers or self._site.name not in roster or not terms.fewest <= len(set(roster)) == len(roster):
            raise PeerError("a sum over other parties than those of the terms, or than were introduced")
        if len(roster) < len(terms.parties) and not so_far.may_lack_parties(ask.query):
            raise PeerError("a sum that lacks parties before the first tree split")
        if not self._is_due(ask, terms, so_far):
            before = self._asked.turn if self._asked else 0
            if ask.turn in self._questions:
                raise PeerError(f"another question in turn {ask.turn}, or elsewhere in the tree, than before")
            raise PeerError(f"turn {ask.turn} asked after turn {before}")
        helped = self._helped
        if helped is not None and sorted(helped.roster) != sorted(roster):
            moved = queries.stage_of(ask.query) > queries.stage_of(helped.query)
            if not (moved and so_far.may_change(ask.query)):
                raise PeerError(
                    f"turn {ask.turn}: the roster changed where the difference of two sums would show a party"
                )
        queries.check(ask.query, terms)
        if isinstance(ask.query, OfTree | EndRoundQuery):
            queries.check_splits(terms, so_far.splits + ask.query.splits)

    def _is_due(self, ask: Ask, terms: Terms, so_far: ModelSoFar) -> bool:
        """Whether it is the turn's turn: turns go up by one. After the parties gathered anew, the tree that
        grows may be asked for again, with the same questions in the same places, or the session went on."""
        before = self._asked
        if before is None:
            return ask.attempt > 1 or ask.turn == 1
        if ask.attempt == before.attempt and ask.turn != before.turn + 1:
            return False
        if ask.turn in self._questions:
            query, place = self._questions[ask.turn]
            return so_far.same(place) and _repeats(ask.query, query, terms)
        if self._signed_once:
            raise PeerError("asked after the model was signed")
        later = [turn for turn in self._questions if turn > ask.turn]
        if later:  # asked before this process was there: it led to where the session stood then
            if not self._questions[min(later)][1].continues(so_far.after(ask.query)):
                return False
            earlier = self._questions.get(ask.turn - 1)
            return earlier is None or so_far.same(earlier[1].after(earlier[0]))
        if ask.attempt == before.attempt:
            return True  # beyond what was asked
        if terms.on_loss == "shrink":
            return ask.turn > max(self._questions) and so_far.continues(self._reached)
        return ask.turn == max(self._questions) + 1 and so_far.same(self._reached)

    def _remember(self, ask: Ask, so_far: ModelSoFar) -> None:
        """What was asked where in the tree that grows."""
        if len(so_far.rounds) > len(self._base.rounds):
            self._questions, self._base = {}, so_far.before_tree
        if ask.turn >= max(self._questions, default=0):
            self._reached = so_far.after(ask.query)
        self._questions[ask.turn] = ask.query, so_far
        self._asked = ask

    def _sealed(self, query: Query, tag: Tag) -> tuple[Iterable[bytes], int, bytes, Charge | None]:
        """The parts of the sealed answer, their bytes, the note that goes with the last, and what it cost."""
        assert self._party is not None
        assert self._sealer is not None
        if isinstance(query, KllQuery):
            return sketch(self._party.columns[: query.features], query), tag.size, b"", None
        assert self._terms is not None
        plain = self._terms.protection == "plain"
        if plain and not isinstance(query, RowsQuery) and query.rows < self._party.rows:
            raise PeerError("a sum over fewer rows than this site alone has: its cells could overflow")
        so_far = self._party.so_far
        values = self._party.answer(query)
        if values.size != query.cells:
            raise PeerError(f"the query asks for {query.cells} integers and its answer has {values.size}")
        if plain and not queries.fits(query, values):
            raise PeerError("cells too narrow for the sums of this site alone")
        charge: Charge | None = None
        if self._spending is not None:
            values, charge = self._spending.release(query, so_far, tag, values)
        parts = self._sealer.seal(queries.to_cells(query, values), tag)
        if plain or self._terms.encrypts:  # not as long as its cells
            sealed = list(parts)
            return sealed, sum(map(len, sealed)), b"", charge
        return parts, tag.size, self._sealer.note(), charge

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
            if self._helped is None or queries.stage_of(asked.query) >= queries.stage_of(self._helped.query):
                self._helped = asked  # a tree that is asked for again does not undo what was opened after it
            self._record(asked, "help to open the sum", 0, len(answer))
            self._help[request] = answer
        return Assist(turn, attempt, self._help[request])

    def _attest(self, attempt: int, rounds: int) -> Attest:
        asked, party = self._asked, self._party
        if self._sealer is None or asked is None or party is None or self._terms is None:
            raise PeerError("a model before anything was asked")
        if attempt != self._attempt or asked.attempt != attempt:
            raise PeerError("a model before anything was asked since the parties gathered anew")
        if self._attested is None:
            self._attested, self._signed_once = self._signed(attempt, rounds, self._terms, party), True
        return self._attested

    def _signed(self, attempt: int, rounds: int, terms: Terms, party: Party | NoRows) -> Attest:
        told = self._answered, self._transcript, party.so_far.structure(rounds)
        if self._site.credentials is None:
            return Attest(attempt, *told, b"", b"")
        signer = self._site.credentials.signer
        statement = meeting.attestation(terms, self._digest, self._site.name, *told)
        return Attest(attempt, *told, signer.certificate, signer.sign(statement))

    def _record(self, ask: Ask, what: str, cells: int, size: int, charge: Charge | None = None) -> None:
        assert self._terms is not None
        protection = self._terms.protection
        self._site.record(
            Release(self._session, ask.turn, ask.attempt, what, cells, size, protection, ask.roster, charge)
        )


def first_transcript(session: bytes, so_far: ModelSoFar) -> bytes:
    """What transcripts begin with: who has met, and where the session stood then."""
    return hashlib.sha256(fields.pack(session, so_far.digest())).digest()


def next_transcript(before: bytes, query: Query) -> bytes:
    """The hash of all questions up to this one: both ends must have the same, or nothing opens."""
    return hashlib.sha256(fields.pack(before, queries.digest(query))).digest()


def tag_of(ask: Ask, transcript: bytes) -> Tag:
    """The tag under which the answer to a question is sealed."""
    query = ask.query
    tree = queries.tree_of(query)
    return Tag(ask.turn, ask.attempt, tree, ask.roster, transcript, queries.runs(query))


def _same(one: Ask, other: Ask) -> bool:
    same_label = (one.turn, one.attempt, one.roster) == (other.turn, other.attempt, other.roster)
    return same_label and queries.same(one.query, other.query)


def _repeats(query: Query, before: Query, terms: Terms) -> bool:
    """Whether a question may be asked in the place of the one whose sum was not opened: it is the same, or
    ends the tree where it stands because a party was lost."""
    cut_short = isinstance(before, OfTree) and isinstance(query, EndRoundQuery)
    return queries.same(query, before) or (cut_short and terms.on_loss == "shrink")
