"""The aggregator's end of a session: joins and reports in, questions out. Sans-IO.

    state      event                  next
    gathering  Join of the last       asking, first query of the program
    gathering  Leave or Gone          failed
    asking     Report, not the last   asking, added to the running sum
    asking     Report, the last       the sum opens, the program resumes: asking, or done
    asking     Leave or Gone          failed
    done, failed                      nothing is answered any more

Promises: one running sum a turn, never a copy per party; the order in which parties' messages arrive does
not matter; what a party does wrong ends the session with a sentence that names the party.
Refuses: parties the terms do not name (they are not heard), joins under other terms, reports out of turn or
order (SessionFailed, kept in `error`).
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal

from fedboost.errors import FedboostError, PeerError, Refused, SessionFailed, quoted
from fedboost.fixedpoint import Int64
from fedboost.gbdt import metrics
from fedboost.gbdt.model import Booster
from fedboost.privacy.plain import PlainOpener
from fedboost.privacy.protection import Opener, Tag
from fedboost.protocol.messages import Admit, Ask, Bye, FromParty, Join, Leave, Report, ToParty
from fedboost.protocol.queries import EndRoundQuery, KllQuery, Query
from fedboost.protocol.sketch import SketchOpener
from fedboost.protocol.terms import Terms

Program = Callable[[Terms], Generator[Query, Int64, Booster]]
"""An algorithm: a generator that yields queries, receives sums, and returns the model."""

Outbox = list[tuple[str, ToParty]]


@dataclass(frozen=True)
class Gone:
    """The connection to a party was lost."""

    reason: str


@dataclass(frozen=True)
class Round:
    """What one round came to: its number from 0, and its metrics over all parties' rows."""

    round: int
    metrics: dict[str, float]


class AggregatorSession:
    """From the first Admit to the last Bye."""

    def __init__(self, name: str, terms: Terms, program: Program) -> None:
        self.name = name
        self.terms = terms
        self.state: Literal["gathering", "asking", "done", "failed"] = "gathering"
        self.history: list[Round] = []
        self.booster: Booster | None = None
        self.error: SessionFailed | None = None
        self._joined: set[str] = set()
        self._program = program(terms)
        self._turn = 0
        self._query: Query | None = None
        self._opener: Opener | None = None
        self._parts: dict[str, int] = {}

    def start(self) -> Outbox:
        """Admit every party of the terms."""
        return [(party, Admit(self.name, self.terms)) for party in self.terms.parties]

    @property
    def awaited(self) -> tuple[str, ...]:
        """The parties whose message is due: to join, or to complete their report."""
        match self.state:
            case "gathering":
                return tuple(p for p in self.terms.parties if p not in self._joined)
            case "asking":
                parts = self._opener.parts if self._opener else 0
                return tuple(p for p in self.terms.parties if self._parts[p] < parts)
            case _:
                return ()

    def handle(self, party: str, event: FromParty | Gone) -> Outbox:
        """Take in one event of one party; the messages to send now."""
        if self.state in ("done", "failed") or party not in self.terms.parties:
            return []
        try:
            match event:
                case Join(session, digest):
                    return self._join(party, session, digest)
                case Report(turn, part, cells):
                    return self._report(party, turn, part, cells)
                case Leave(_, session) if session not in ("", self.name):
                    return []  # its last word in the session before this one
                case Leave(reason):
                    return self._fail(
                        f"party {party} left: {quoted(reason).removeprefix(f'party {party}: ')}"
                    )
                case Gone(reason):
                    return self._fail(f"party {party} was lost: {reason}")
        except PeerError as error:
            return self._fail(f"party {party} broke the protocol: {error}")

    def _join(self, party: str, session: str, digest: str) -> Outbox:
        if self.state != "gathering" or party in self._joined:
            raise PeerError("it joined twice")
        if session != self.name or digest != self.terms.digest:
            raise PeerError("it joined under other terms")
        self._joined.add(party)
        return [] if self.awaited else self._resume(None)

    def _report(self, party: str, turn: int, part: int, cells: bytes) -> Outbox:
        if self.state != "asking" or self._opener is None or turn != self._turn:
            raise PeerError(f"a report for turn {turn} in turn {self._turn}")
        if part != self._parts.get(party) or part >= self._opener.parts:
            raise PeerError(f"part {part} of its report for turn {turn} is out of order")
        self._opener.add(part, cells)
        self._parts[party] = part + 1
        return [] if self.awaited else self._open()

    def _open(self) -> Outbox:
        assert self._opener is not None
        total, query = self._opener.open(), self._query
        self._opener = None
        if isinstance(query, EndRoundQuery) and query.tree >= 0:
            try:
                values = metrics.values(query.metrics, total, query.scale)
            except PeerError as error:
                return self._fail(f"turn {self._turn}: {error}")
            self.history.append(Round(query.tree, values))
        return self._resume(total)

    def _resume(self, total: Int64 | None) -> Outbox:
        """Hand the program a sum; ask what it asks next, or end with its model."""
        try:
            query = next(self._program) if total is None else self._program.send(total)
            self._turn += 1
            self._opener = self._opener_of(query)
        except StopIteration as end:
            self.booster, self.state = end.value, "done"
            return [(party, Bye()) for party in self.terms.parties]
        except FedboostError as error:
            where = f"turn {self._turn}: " if isinstance(error, PeerError) else ""
            return self._fail(f"{where}{error}")
        self._query, self.state = query, "asking"
        self._parts = dict.fromkeys(self.terms.parties, 0)
        return [(party, Ask(self._turn, query)) for party in self.terms.parties]

    def _opener_of(self, query: Query) -> Opener:
        if isinstance(query, KllQuery):
            if self.terms.protection != "plain":
                raise Refused("KLL sketches show raw values: only protection plain allows them")
            return SketchOpener(query)
        return PlainOpener(Tag(self._turn, query.cells, query.cell_bytes))

    def _fail(self, reason: str) -> Outbox:
        self.state, self.error = "failed", SessionFailed(reason)
        self._opener = None
        self._program.close()
        return [(party, Bye(reason)) for party in self.terms.parties]
