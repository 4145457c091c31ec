"""One party's end of a session: a message of the aggregator in, this party's replies out. Sans-IO.

Promises: a query is answered only if this site's rules and the terms allow it and it is the next turn; the
same question asked again gets the same bytes. What cannot or must not be answered makes this party leave
with a sentence that says why, and nothing of its rows goes out: values and row numbers of the table stay in
`ended`, for the site's own log.
Refuses: by leaving. The session never raises for what an aggregator sends or a table holds.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import assert_never

from fedboost.errors import FedboostError, PeerError, Refused, quoted
from fedboost.privacy import fields
from fedboost.privacy.masked import Group, Handshake, MaskedSealer
from fedboost.privacy.plain import PlainSealer
from fedboost.privacy.protection import Sealer, Tag
from fedboost.privacy.shamir import Draw
from fedboost.protocol import meeting, queries
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
from fedboost.protocol.party import Party, Shard
from fedboost.protocol.queries import KllQuery, Query, RowsQuery
from fedboost.protocol.sketch import sketch
from fedboost.protocol.terms import Terms


@dataclass(frozen=True)
class Release:
    """What is about to leave this site, for its audit log."""

    session: str
    turn: int
    attempt: int
    what: str
    cells: int
    size: int
    protection: str
    roster: tuple[str, ...]


@dataclass(frozen=True)
class Site:
    """What a session needs of the place it runs at.

    permit: raises Refused if the site's own rules forbid the terms, before any row is read; read_shard: the
    rows as the terms want them, or Refused; record: called with each release before its bytes are handed
    out; credentials: who this party is, None where nothing is signed; draw: cryptographic randomness.
    """

    name: str
    read_shard: Callable[[Terms], Shard]
    draw: Draw
    credentials: Credentials | None = None
    permit: Callable[[Terms], None] = lambda terms: None
    record: Callable[[Release], None] = lambda release: None


class PartySession:
    """From Admit to Bye."""

    def __init__(self, site: Site) -> None:
        self.ended: str | None = None
        """None while the session lives, then the reason it ended: '' if the model is done."""
        self._site = site
        self._session = ""
        self._terms: Terms | None = None
        self._handshake = Handshake(site.draw)
        self._greeting = b""
        self._digest = b""
        self._sealer: Sealer | None = None
        self._turn = 0
        self._transcript = b""
        self._attested = False
        self._asked: Ask | None = None
        self._said: list[Report] = []
        self._shard: Shard | None = None
        self._party: Party | None = None

    def handle(self, message: ToParty) -> Iterator[FromParty]:
        """The replies to one message, to be sent in order."""
        if self.ended is not None:
            return
        try:
            match message:
                case Admit(session, terms):
                    yield self._admit(session, terms)
                case Meet(greetings):
                    self._meet(greetings)
                case Ask():
                    yield from self._answer(message)
                case Open(turn, request):
                    yield self._assist(turn, request)
                case Close(fingerprint):
                    yield self._attest(fingerprint)
                case Bye(reason):
                    made = "" if self._attested else "the aggregator ended the session without a model"
                    self.ended, self._sealer = quoted(reason) or made, None
                case _:
                    assert_never(message)
        except FedboostError as error:
            self.ended, self._sealer = str(error), None
            yield Leave(quoted(error.public), self._session)

    def _admit(self, session: str, terms: Terms) -> Join:
        if self._party is not None:
            raise PeerError("admitted twice to one session")
        self._session = session
        if self._site.name not in terms.parties:
            raise Refused(f"the terms do not name party {self._site.name!r}")
        self._site.permit(terms)
        self._shard = self._site.read_shard(terms)
        self._party = Party(self._shard, terms)
        self._terms = terms
        self._greeting = meeting.greet(
            self._site.credentials, self._site.name, terms, self._handshake, self._site.draw
        )
        return Join(session, terms.digest, self._greeting)

    def _meet(self, greetings: tuple[bytes, ...]) -> None:
        if self._terms is None or self._sealer is not None:
            raise PeerError("introduced to the others before admitted, or twice")
        met = meeting.meet(self._site.credentials, self._greeting, self._terms, greetings)
        self._digest = self._transcript = met.session
        if self._terms.protection == "plain":
            self._sealer = PlainSealer()
            return
        group = Group.of(self._terms.parties, self._terms.colluding)
        keys = self._handshake.pair_keys(self._site.name, met.publics, met.session)
        self._sealer = MaskedSealer(self._site.name, group, met.session, keys, self._site.draw)

    def _answer(self, ask: Ask) -> Iterator[Report]:
        if self._party is None or self._sealer is None or self._terms is None:
            raise PeerError("asked before admitted and introduced")
        if self._attested:
            raise PeerError("asked after the model was signed")
        if self._asked is not None and _same(ask, self._asked):
            yield from self._said
            return
        if ask.turn != self._turn + 1:
            raise PeerError(f"turn {ask.turn} asked after turn {self._turn}")
        if sorted(ask.roster) != sorted(self._terms.parties):
            raise PeerError("a sum over other parties than those of the terms")
        queries.check(ask.query, self._terms)
        self._turn, self._asked, self._said = ask.turn, ask, []
        self._transcript = next_transcript(self._transcript, ask.query)
        tag = tag_of(ask, self._transcript)
        parts, note = self._sealed(ask.query, tag)
        self._record(ask, type(ask.query).__name__, tag.cells, tag.cells * tag.cell_bytes + len(note))
        held: Report | None = None
        for part, cells in enumerate(parts):
            if held is not None:
                self._said.append(held)
                yield held
            held = Report(ask.turn, part, cells)
        assert held is not None
        last = Report(held.turn, held.part, held.cells, note)
        self._said.append(last)
        yield last

    def _sealed(self, query: Query, tag: Tag) -> tuple[Iterator[bytes], bytes]:
        """The parts of the sealed answer, and the note that goes with the last."""
        assert self._party is not None
        assert self._sealer is not None
        assert self._shard is not None
        if isinstance(query, KllQuery):
            return sketch(self._shard.columns, query), b""
        plain = self._terms is not None and self._terms.protection == "plain"
        if plain and not isinstance(query, RowsQuery) and query.rows < self._shard.rows:
            raise PeerError("a sum over fewer rows than this site alone has: its cells could overflow")
        values = self._party.answer(query)
        if values.size != tag.cells:
            raise PeerError(f"the query asks for {tag.cells} integers and its answer has {values.size}")
        return self._sealer.seal(values, tag), self._sealer.note()

    def _assist(self, turn: int, request: bytes) -> Assist:
        if self._sealer is None or self._asked is None or turn != self._turn:
            raise PeerError(f"help is asked for with turn {turn} in turn {self._turn}")
        answer = self._sealer.assist(request)
        self._record(self._asked, "help to open the sum", 0, len(answer))
        return Assist(turn, answer)

    def _attest(self, fingerprint: str) -> Attest:
        if self._terms is None or self._sealer is None or self._turn == 0 or self._attested:
            raise PeerError("a model before anything was asked, or a second one")
        self._attested = True
        if self._site.credentials is None:
            return Attest(self._turn, self._transcript, b"", b"")
        signer = self._site.credentials.signer
        statement = meeting.attestation(
            self._terms, self._digest, self._site.name, self._turn, self._transcript, fingerprint
        )
        return Attest(self._turn, self._transcript, signer.certificate, signer.sign(statement))

    def _record(self, ask: Ask, what: str, cells: int, size: int) -> None:
        assert self._terms is not None
        protection = self._terms.protection
        self._site.record(
            Release(self._session, ask.turn, ask.attempt, what, cells, size, protection, ask.roster)
        )


def next_transcript(before: bytes, query: Query) -> bytes:
    """The hash of all questions up to this one: both ends must have the same, or nothing opens."""
    return hashlib.sha256(fields.pack(before, queries.digest(query))).digest()


def tag_of(ask: Ask, transcript: bytes) -> Tag:
    """The tag under which the answer to a question is sealed."""
    query = ask.query
    tree = queries.tree_of(query)
    return Tag(ask.turn, ask.attempt, tree, ask.roster, transcript, query.cells, query.cell_bytes)


def _same(one: Ask, other: Ask) -> bool:
    same_label = (one.turn, one.attempt, one.roster) == (other.turn, other.attempt, other.roster)
    return same_label and queries.digest(one.query) == queries.digest(other.query)
