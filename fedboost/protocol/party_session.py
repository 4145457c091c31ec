"""One party's end of a session: a message of the aggregator in, this party's replies out. Sans-IO.

Promises: a query is answered only if the terms allow it and it is the next turn; what cannot or must not be
answered makes this party leave with a sentence that says why, and nothing of its rows goes out: values and
row numbers of the table stay in `ended`, for the site's own log.
Refuses: by leaving. The session never raises for what an aggregator sends or a table holds.
"""

from collections.abc import Callable, Iterator
from typing import assert_never

from fedboost.errors import FedboostError, PeerError, Refused, quoted
from fedboost.privacy.plain import PlainSealer
from fedboost.privacy.protection import Tag
from fedboost.protocol import queries
from fedboost.protocol.messages import Admit, Ask, Bye, FromParty, Join, Leave, Report, ToParty
from fedboost.protocol.party import Party, Shard
from fedboost.protocol.queries import KllQuery, Query, RowsQuery
from fedboost.protocol.sketch import sketch
from fedboost.protocol.terms import Terms


class PartySession:
    """From Admit to Bye. `read_shard` reads this party's table as the terms want it, or raises Refused."""

    def __init__(self, name: str, read_shard: Callable[[Terms], Shard]) -> None:
        self.name = name
        self.ended: str | None = None
        """None while the session lives, then the reason it ended: '' if the model is done."""
        self.terms: Terms | None = None
        self._read_shard = read_shard
        self._sealer = PlainSealer()
        self._session = ""
        self._turn = 0
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
                case Ask(turn, query):
                    yield from self._answer(turn, query)
                case Bye(reason):
                    self.ended = reason
                case _:
                    assert_never(message)
        except FedboostError as error:
            self.ended = str(error)
            yield Leave(quoted(error.public), self._session)

    def _admit(self, session: str, terms: Terms) -> Join:
        if self._party is not None:
            raise PeerError("admitted twice to one session")
        self._session = session
        if self.name not in terms.parties:
            raise Refused(f"the terms do not name party {self.name!r}")
        self._shard = self._read_shard(terms)
        self._party = Party(self._shard, terms)
        self.terms = terms
        return Join(session, terms.digest)

    def _answer(self, turn: int, query: Query) -> Iterator[Report]:
        if self._party is None or self._shard is None or self.terms is None:
            raise PeerError("asked before admitted")
        if turn != self._turn + 1:
            raise PeerError(f"turn {turn} asked after turn {self._turn}")
        queries.check(query, self.terms)
        self._turn = turn
        if isinstance(query, KllQuery):
            parts = sketch(self._shard.columns, query)
        else:
            if not isinstance(query, RowsQuery) and query.rows < self._shard.rows:
                raise PeerError("a sum over fewer rows than this site alone has: its cells could overflow")
            tag = Tag(turn, query.cells, query.cell_bytes)
            values = self._party.answer(query)
            if values.size != tag.cells:
                raise PeerError(f"the query asks for {tag.cells} integers and its answer has {values.size}")
            parts = self._sealer.seal(values, tag)
        for part, cells in enumerate(parts):
            yield Report(turn, part, cells)
