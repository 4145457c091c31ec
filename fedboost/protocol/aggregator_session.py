"""The aggregator's end of a session: what parties say in, what to tell them out. Sans-IO.

    state      event                     next
    gathering  Join of the last          asking: introduces the parties, first query of the program
    asking     Report, not the last      asking, added to the running sum
    asking     Report, the last          opening, if the protection needs help; else as below
    opening    Assist of the last        the sum opens, the program resumes: asking, or closing with its model
    closing    Attest of the last        done
    asking     Leave or Gone             opening, if the party's whole report is in; else failed
    opening    Leave or Gone             opening: the others are asked to recover it
    closing    Leave, Gone or a fault    closing, or done: the model lacks that party's signature
    gathering  Leave or Gone             failed
    done, failed                         nothing is answered any more

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
from fedboost.privacy.masked import Group, MaskedOpener
from fedboost.privacy.plain import PlainOpener
from fedboost.privacy.protection import Opener
from fedboost.protocol.meeting import session_digest
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
from fedboost.protocol.party_session import next_transcript, tag_of
from fedboost.protocol.queries import EndRoundQuery, KllQuery, Query
from fedboost.protocol.sketch import SketchOpener
from fedboost.protocol.terms import Terms

Program = Callable[[Terms], Generator[Query, Int64, Booster]]
"""An algorithm: a generator that yields queries, receives sums, and returns the model."""

LONGEST_SIGNATURE = 64 * 1024
"""Bytes of a signature with its chain of certificates."""

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
        self.state: Literal["gathering", "asking", "opening", "closing", "done", "failed"] = "gathering"
        self.history: list[Round] = []
        self.booster: Booster | None = None
        self.attestations: dict[str, Attest] = {}
        self.error: SessionFailed | None = None
        self.digest = b""
        """What the parties' keys and signatures are bound to, once they have met."""
        self._greetings: dict[str, bytes] = {}
        self._program = program(terms)
        self._ask: Ask | None = None
        self._turn = 0
        self._transcript = b""
        self._opener: Opener | None = None
        self._parts: dict[str, int] = {}
        self._helping: set[str] = set()
        self._lost: dict[str, str] = {}

    def start(self) -> Outbox:
        """Admit every party of the terms."""
        return self._to_all(Admit(self.name, self.terms))

    @property
    def awaited(self) -> tuple[str, ...]:
        """The parties whose message is due."""
        match self.state:
            case "gathering":
                return tuple(p for p in self.terms.parties if p not in self._greetings)
            case "asking":
                return tuple(p for p in self.terms.parties if not self._reported(p))
            case "opening":
                return tuple(p for p in self.terms.parties if p in self._helping)
            case "closing":
                return tuple(p for p in self.terms.parties if p not in {*self.attestations, *self._lost})
            case _:
                return ()

    def handle(self, party: str, event: FromParty | Gone) -> Outbox:
        """Take in one event of one party; the messages to send now."""
        if self.state in ("done", "failed") or party not in self.terms.parties:
            return []
        try:
            match event:
                case Join(session, digest, greeting):
                    return self._join(party, session, digest, greeting)
                case Report():
                    return self._report(party, event)
                case Assist(turn, answer):
                    return self._assist(party, turn, answer)
                case Attest():
                    return self._attest(party, event)
                case Leave(_, session) if session not in ("", self.name):
                    return []  # its last word in the session before this one
                case Leave(reason):
                    said = quoted(reason).removeprefix(f"party {party}: ")
                    return self._lose(party, f"left: {said}")
                case Gone(reason):
                    return self._lose(party, f"was lost: {reason}")
        except PeerError as error:
            fault = f"broke the protocol: {error}"
            return (
                self._lose(party, fault) if self.state == "closing" else self._fail(f"party {party} {fault}")
            )
        except FedboostError as error:
            return self._fail(f"turn {self._turn}: {error}")

    def _join(self, party: str, session: str, digest: str, greeting: bytes) -> Outbox:
        if self.state != "gathering" or party in self._greetings:
            raise PeerError("it joined twice")
        if session != self.name or digest != self.terms.digest:
            raise PeerError("it joined under other terms")
        self._greetings[party] = greeting
        if self.awaited:
            return []
        greetings = tuple(self._greetings[member] for member in self.terms.parties)
        self.digest = self._transcript = session_digest(self.terms, greetings)
        return self._to_all(Meet(greetings)) + self._resume(None)

    def _report(self, party: str, report: Report) -> Outbox:
        if self.state != "asking" or self._opener is None or report.turn != self._turn:
            raise PeerError(f"a report for turn {report.turn} in turn {self._turn}")
        if report.part != self._parts[party] or self._reported(party):
            raise PeerError(f"part {report.part} of its report for turn {report.turn} is out of order")
        self._opener.add(party, report.part, report.cells)
        if report.part + 1 == self._opener.parts:
            self._opener.note(party, report.note)
        self._parts[party] = report.part + 1
        return [] if self.awaited else self._seek_help()

    def _reported(self, party: str) -> bool:
        return self._opener is not None and self._parts[party] == self._opener.parts

    def _seek_help(self) -> Outbox:
        """Every report is in: ask for what the sum still needs to be opened, or open it."""
        assert self._opener is not None
        requests = self._opener.requests()
        if not requests:
            return self._open()
        self.state, self._helping = "opening", set(requests)
        return [(party, Open(self._turn, request)) for party, request in requests.items()]

    def _assist(self, party: str, turn: int, answer: bytes) -> Outbox:
        if (
            self.state != "opening"
            or self._opener is None
            or turn != self._turn
            or party not in self._helping
        ):
            raise PeerError(f"help with turn {turn} that was not asked for")
        self._opener.assist(party, answer)
        self._helping.discard(party)
        return [] if self._helping else self._seek_help()

    def _open(self) -> Outbox:
        assert self._opener is not None
        assert self._ask is not None
        total, query = self._opener.open(), self._ask.query
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
        except StopIteration as end:
            return self._close(end.value)
        except FedboostError as error:
            where = f"turn {self._turn}: " if isinstance(error, PeerError) else ""
            return self._fail(f"{where}{error}")
        if self._lost:
            party, reason = next(iter(self._lost.items()))
            return self._fail(f"party {party} {reason}")
        self._turn += 1
        self._transcript = next_transcript(self._transcript, query)
        self._ask = Ask(self._turn, 0, self.terms.parties, query)
        self._opener = self._opener_of(self._ask)
        self.state, self._parts = "asking", dict.fromkeys(self.terms.parties, 0)
        return self._to_all(self._ask)

    def _opener_of(self, ask: Ask) -> Opener:
        if isinstance(ask.query, KllQuery):
            if self.terms.protection != "plain":
                raise Refused("KLL sketches show raw values: only protection plain allows them")
            return SketchOpener(ask.query)
        tag = tag_of(ask, self._transcript)
        if self.terms.protection == "plain":
            return PlainOpener(tag)
        return MaskedOpener(tag, Group.of(self.terms.parties, self.terms.colluding), self.digest)

    def _close(self, booster: Booster) -> Outbox:
        if not isinstance(booster, Booster):
            return self._fail(f"program {self.terms.program!r} returned no model")
        self.booster, self.state = booster, "closing"
        return self._to_all(Close(booster.fingerprint))

    def _attest(self, party: str, attest: Attest) -> Outbox:
        if self.state != "closing" or party in self.attestations:
            raise PeerError("an attestation that was not asked for")
        if attest.turns != self._turn or attest.transcript != self._transcript:
            raise PeerError("it attests other questions than were asked")
        if len(attest.certificate) + len(attest.signature) > LONGEST_SIGNATURE:
            raise PeerError("a signature and certificate of more bytes than can be")
        self.attestations[party] = attest
        return self._end()

    def _end(self) -> Outbox:
        if self.awaited:
            return []
        self.state = "done"
        return self._to_all(Bye())

    def _lose(self, party: str, reason: str) -> Outbox:
        if self.state == "closing":  # the model is done: it lacks this party's signature, and says so
            self._lost[party] = reason
            return self._end()
        if self.state not in ("asking", "opening") or not self._reported(party):
            return self._fail(f"party {party} {reason}")
        assert self._opener is not None
        self._lost[party] = reason
        self._helping.discard(party)
        self._opener.lose(party)
        return [] if self.awaited else self._seek_help()

    def _to_all(self, message: ToParty) -> Outbox:
        return [(party, message) for party in self.terms.parties]

    def _fail(self, reason: str) -> Outbox:
        self.state, self.error = "failed", SessionFailed(reason)
        self._opener = None
        self._program.close()
        return self._to_all(Bye(reason))
