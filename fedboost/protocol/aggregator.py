"""The aggregator's end of a session: messages of parties in, messages to parties out. Sans-IO.

`rules.RULES` is the session: for each phase and each event the handler, and the phases that it may lead to.
The handlers stand with what they are about: `joining`, `attendance`, `turn`, `closing`.

Promises: one running sum a turn, never a copy per party; the order in which messages of different parties
arrive does not matter; what is repeated, or was sent to an earlier attempt, is ignored; every sum is recorded
before anything that follows from it is sent, and a session that is begun again from its records goes on.
Refuses: parties the terms do not name (they are ignored), joins under other terms, reports out of turn or
order (SessionFailed, kept in `error`). A party that left, or was lost again and again, is not taken back.
"""

from collections.abc import Callable, Iterable

from fedboost.errors import FedboostError, PeerError, Refused, SessionFailed
from fedboost.gbdt.booster import Booster
from fedboost.privacy.masked.keys import RandomBytes
from fedboost.protocol.attendance import Attendance
from fedboost.protocol.closing import Closing, finished
from fedboost.protocol.contracts import Program, TrainingState
from fedboost.protocol.events import (
    PHASES,
    Connected,
    Disconnected,
    FromConnection,
    Outbox,
    Phase,
    Tick,
    Violation,
)
from fedboost.protocol.joining import Introduction
from fedboost.protocol.journal import Record
from fedboost.protocol.key_exchange import Attempt, Trust
from fedboost.protocol.messages import (
    Ask,
    Attest,
    Close,
    Introduce,
    Join,
    Leave,
    Offer,
    Request,
    SessionEnded,
    ToParty,
)
from fedboost.protocol.parts import numbers_for
from fedboost.protocol.rules import RULES
from fedboost.protocol.run import Callback, Round, TrainingRun
from fedboost.protocol.thresholds import Thresholds
from fedboost.protocol.turn import Turn, opener_of, turns_of
from fedboost.terms.terms import Terms


class AggregatorSession:
    """A session. `state`: where every training begins; `record` is called with what must outlive the
    process; `past` is what an earlier process recorded of this session (ConfigError if it cannot be); by
    `trust` greetings and signatures are checked, where parties sign; `draw`: cryptographic randomness, for
    noise drawn here; `callbacks` may end the training; `request`: the analyst's, where it is signed."""

    def __init__(
        self,
        name: str,
        terms: Terms,
        program: Program,
        state: TrainingState,
        record: Callable[[Record], None] = lambda record: None,
        past: Iterable[Record] = (),
        trust: Trust | None = None,
        draw: RandomBytes | None = None,
        callbacks: Iterable[Callback] = (),
        request: Request | None = None,
    ) -> None:
        self.name = name
        self.terms = terms
        self.request = request
        self.phase: Phase = "joining"
        self.error: SessionFailed | None = None
        self.run = TrainingRun(terms, program, state, record, past, callbacks)
        """The part of the session that outlives the process."""
        self.attendance = Attendance(terms.parties)
        self.introduction = Introduction()
        self.current_turn: Turn | None = None
        self.closing: Closing | None = None
        self.trust = trust
        self.draw = draw
        self.helped = bool(self.run.attempt)
        """True if parties may have helped to open the sum of this turn, in any attempt or process."""
        self.deadline = 0.0
        self.seconds = 0.0
        """Seconds that parties have for the message that is due."""

    @property
    def roster(self) -> tuple[str, ...]:
        """The parties whose vectors go into the sums now."""
        return self.run.roster

    @property
    def turn(self) -> int:
        """The number of the query that is asked now."""
        return self.run.turn

    @property
    def attempt(self) -> int:
        """The number of times that the parties were called together."""
        return self.run.attempt

    @property
    def history(self) -> list[Round]:
        """The rounds so far."""
        return self.run.history

    @property
    def booster(self) -> Booster | None:
        """The model, once the program has ended."""
        return self.run.booster

    @property
    def attestations(self) -> dict[str, Attest]:
        """The signatures so far, by party."""
        return self.closing.attestations if self.closing else {}

    @property
    def digest(self) -> bytes:
        """The digest that the signatures are bound to, once there are any."""
        return self.closing.digest if self.closing else b""

    @property
    def awaited(self) -> tuple[str, ...]:
        """The parties whose message is due."""
        return tuple(filter(self.awaits, self.roster))

    def awaits(self, party: str) -> bool:
        """True if a message of this party of the roster is due."""
        match self.phase:
            case "joining":
                return party not in self.introduction.greetings
            case "asking" if self.current_turn is not None:
                return party in self.current_turn.reporting
            case "opening" if self.current_turn is not None:
                return party in self.current_turn.helping
            case "closing" if self.closing is not None:
                return party in self.attendance.introduced and self.closing.lacks(party)
            case _:
                return False

    # ---- events -------------------------------------------------------------------------------------

    def start(self, connected: Iterable[str] | None = None) -> Outbox:
        """Run the program up to its first query, and call the connected parties together (all unless
        given)."""
        self.attendance.begin(connected)
        draws = self.terms.noise is not None and self.terms.noise.placement == "central"
        if self.terms.protection.uses_key_holder and self.draw is None:
            return self.fail("sums are encrypted, and the aggregator has nothing to draw blinds from")
        if draws and self.draw is None:
            return self.fail("the terms say that the aggregator draws noise, and it has nothing to draw from")
        try:
            self.run.start()
        except FedboostError as error:
            return self.fail(str(error))
        return self.restart_attempt()

    def handle(self, party: str, event: FromConnection) -> Outbox:
        """Take in one event of one party; the messages to send now."""
        if self.phase not in PHASES or party not in self.terms.parties or not self._is_heard(party, event):
            return []
        try:
            return self.follow(event, party, event) if self._is_current(event) else []
        except PeerError as error:
            violation = Violation(f"broke the protocol: {error}")
            return self.follow(violation, party, violation)
        except FedboostError as error:
            return self.fail(f"turn {self.turn}: {error}")

    def tick(self, now: float) -> Outbox:
        """It is `now` (seconds of any steady clock); the messages to send now."""
        self.attendance.now = now
        if self.phase not in PHASES:
            return []
        try:
            return self.follow(Tick())
        except FedboostError as error:
            return self.fail(f"turn {self.turn}: {error}")

    def finish(self) -> None:
        """End the training with the round under way: the model is that of the rounds so far."""
        self.run.enough = True

    def follow(self, event: FromConnection | Violation | Tick, *arguments: object) -> Outbox:
        """Do what RULES says of an event in this phase."""
        rule = RULES[self.phase, type(event)]
        outbox = rule.handler(self, *arguments)
        assert self.phase in (*rule.leads_to, "failed"), f"{type(event).__name__} led to {self.phase}"
        return outbox

    def _is_heard(self, party: str, event: FromConnection) -> bool:
        """True unless a party is out of the session, or speaks of the session before this one."""
        if isinstance(event, Leave) and event.session not in ("", self.name):
            return False
        return not self.is_out(party) or isinstance(event, Connected | Disconnected)

    def is_out(self, party: str) -> bool:
        return party not in self.run.roster or party in self.attendance.barred

    def _is_current(self, event: FromConnection) -> bool:
        """True for what was sent to this attempt. PeerError for an attempt that has not begun."""
        if isinstance(event, Join) and (event.session, event.digest) != (self.name, self.terms.digest):
            raise PeerError("it joined under other terms")
        current = self.run.attempt
        attempt: int = getattr(event, "attempt", current)
        if attempt > current:
            raise PeerError(f"it speaks of attempt {attempt} in attempt {current}")
        return attempt == current

    # ---- joining ------------------------------------------------------------------------------------

    def restart_attempt(self) -> Outbox:
        """Offer all connected parties again: they exchange new keys, then the query is asked."""
        self.run.restart_attempt()
        self.phase, self.current_turn, self.introduction = "joining", None, Introduction()
        self.attendance.introduced = set()
        self.set_deadline()
        invited = self.attendance.connected - self.attendance.barred
        return [(party, self.admit()) for party in self.roster if party in invited]

    def admit(self) -> Offer:
        return Offer(self.name, self.terms, self.attempt, self.request)

    @property
    def current_attempt(self) -> Attempt:
        """The attempt under way, as signatures are bound to it."""
        nonce = b"" if self.request is None else self.request.nonce
        return Attempt(self.name, self.attempt, self.terms, nonce)

    def introduce(self) -> Outbox:
        greetings = self.introduction.complete(self.current_attempt, self.roster, self.run.state)
        self.attendance.introduced = set(self.roster)
        seen = self.run.state.seen_by
        return self.to_roster(lambda party: Introduce(greetings, seen(self.terms, party))) + self.ask()

    # ---- a turn -------------------------------------------------------------------------------------

    def ask(self) -> Outbox:
        """Ask the query that the program waits for."""
        run, query = self.run, self.run.pending
        assert self.introduction.transcripts is not None
        self.introduction.transcripts.extend(query)
        label = run.turn, run.attempt, run.roster
        ask = Ask(*label, query)
        self.current_turn, self.phase = Turn(run.turn, run.roster, opener_of(self, ask)), "asking"
        self.set_deadline(turns_of(self.terms, query))
        return self.to_roster(lambda party: Ask(*label, query.seen_by(self.terms, party)))

    # ---- the end ------------------------------------------------------------------------------------

    def close(self) -> Outbox:
        """The model is done: ask for the parties' signatures."""
        self.phase = "closing"
        introduction = self.introduction
        assert introduction.transcripts is not None
        assert self.run.booster is not None
        told = introduction.transcripts, self.run.structure
        self.closing = Closing(introduction.digest, *told, Thresholds(self.terms, self.run.booster))
        self.set_deadline()
        numbers = numbers_for(self.terms, self.run.booster)
        outbox = self.to_roster(lambda party: Close(self.attempt, self.run.rounds, numbers.get(party, b"")))
        return outbox + self.end()

    def end(self) -> Outbox:
        """Done, unless a party has yet to sign: those connected first, then those that may come back."""
        assert self.closing is not None
        if any(map(self.awaits, self.roster)):
            return []
        missing = any(self.closing.lacks(party) for party in self.roster)
        return self.restart_attempt() if missing else self.conclude()

    def conclude(self) -> Outbox:
        try:
            self.run.outcome = finished(self)
        except Refused as error:
            return self.fail(str(error))
        self.phase = "done"
        return self._to_connected(SessionEnded())

    def fail(self, reason: str) -> Outbox:
        self.phase, self.error, self.current_turn = "failed", SessionFailed(reason), None
        self.run.close()
        return self._to_connected(SessionEnded(reason))

    def set_deadline(self, times: int = 1) -> None:
        self.seconds = times * self.terms.session.turn_timeout
        self.deadline = self.attendance.now + self.seconds

    def to_roster(self, message: Callable[[str], ToParty]) -> Outbox:
        """The message to each party that was introduced: one for all where all are told the same."""
        roster = [party for party in self.run.roster if party in self.attendance.introduced]
        if self.terms.blocks or not roster:
            return [(party, message(party)) for party in roster]
        same = message(roster[0])
        return [(party, same) for party in roster]

    def _to_connected(self, message: ToParty) -> Outbox:
        return [(party, message) for party in self.terms.parties if party in self.attendance.connected]
