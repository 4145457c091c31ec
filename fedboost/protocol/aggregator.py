"""The aggregator's end of a session: messages from parties in, messages to parties out. Sans-IO.

`RULES` defines the session: for each phase and event, the handler and the phases that it may lead to.
Handlers are methods of `AggregatorSession`, grouped by topic: joining, a turn, the end.

Promises: one running sum per turn, never a copy per party; messages of different parties may arrive in any
order; repeated messages, and those of an earlier attempt, are ignored; every sum is recorded before anything
that follows from it is sent, and a session that restarts from its records goes on.
Refuses: joins under other terms, and reports out of turn or order (SessionFailed, kept in `error`). Parties
that the terms do not name are ignored. A party that left, or was lost again and again, is not readmitted."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedboost.errors import FedboostError, PeerError, Refused, RosterTooSmall, SessionFailed, quoted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.privacy.packing import RandomBytes
from fedboost.privacy.pairwise import AggregatorSetup, Group
from fedboost.privacy.protection import Opener
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Outcome, Program, Query, TrainingState
from fedboost.protocol.key_exchange import Attempt, Trust, session_digest
from fedboost.protocol.messages import (
    PHASES,
    Ask,
    Attest,
    Close,
    Connected,
    Disconnected,
    FromConnection,
    Introduce,
    Join,
    Leave,
    Offer,
    OpenRequest,
    OpenShare,
    Outbox,
    Phase,
    Relay,
    Report,
    Request,
    SessionEnded,
    Tick,
    ToParty,
    Transcripts,
    Violation,
    tag_of,
)
from fedboost.protocol.parts import Thresholds, numbers_for
from fedboost.protocol.relaying import Order, max_relayed
from fedboost.protocol.run import Attendance, Callback, Record, Round, TrainingRun
from fedboost.protocol.site import with_central_noise
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.privacy.paillier import PaillierPublic as Public

# ---- The introduction of an attempt: the parties' greetings, and what follows from all of them ----------


MAX_GREETING_BYTES = 64 * 1024
"""Most bytes of a greeting without an encryption key: most of it is a certificate with its chain."""


class Introduction:
    """The greetings of one attempt."""

    def __init__(self) -> None:
        self.greetings: dict[str, bytes] = {}
        self.digest = b""
        """The digest to which the parties' keys are bound."""
        self.public: Public | None = None
        """The key under which sums are encrypted, if they are."""
        self.transcripts: Transcripts | None = None
        """Set once the parties are introduced."""
        self.setup: AggregatorSetup | None = None
        """The facts from which openers are made, set with the first query."""

    def join(self, party: str, greeting: bytes, trust: Trust | None, attempt: Attempt) -> None:
        """Take in a party's greeting; a repeated one changes nothing."""
        known = self.greetings.get(party)
        if known == greeting:
            return
        if known is not None:
            raise PeerError("join-repeated", "it joined twice")
        if len(greeting) > MAX_GREETING_BYTES and party != attempt.terms.keyholder:
            raise PeerError(
                "greeting-too-long", f"a greeting of {len(greeting)} bytes, over {MAX_GREETING_BYTES}"
            )
        if trust is not None:  # otherwise the others would refuse it, and seem to be at fault
            key_exchange.check_greeting(trust, attempt, party, greeting)
        self.greetings[party] = greeting

    def complete(self, attempt: Attempt, roster: tuple[str, ...], state: TrainingState) -> tuple[bytes, ...]:
        """Return the greetings of the roster, once all are here, and start the transcripts with them."""
        greetings = tuple(self.greetings[member] for member in roster)
        self.digest = session_digest(attempt, greetings)
        if attempt.terms.protection.uses_key_holder:
            self.public = key_exchange.public_of(attempt, greetings)
        self.transcripts = Transcripts(attempt.terms, self.digest, state)
        return greetings


# ---- One turn at the aggregator: each party's sealed parts, the help to open their sum, and the sum -----
# Promises: one running sum, never a copy per party; a repeated part is not added twice.
# Refuses: parts out of order, and help that was not requested (PeerError).


class Turn:
    """The turn of one query, asked of one roster in one attempt."""

    def __init__(self, number: int, roster: Iterable[str], opener: Opener) -> None:
        self.helping: set[str] = set()
        """Parties whose help to open the sum is due."""
        self.reporting = set(roster)
        """Parties whose whole vector is not in the sum yet."""
        self.relayed: defaultdict[str, Order] = defaultdict(Order)
        """Party -> its relays that were passed on."""
        self._number = number
        self._opener = opener
        self._parts = dict.fromkeys(self.reporting, 0)
        self._help: dict[str, bytes] = {}

    def has_reported(self, party: str) -> bool:
        """True once a party's whole vector was added."""
        return party in self._parts and party not in self.reporting

    def repeats(self, party: str, report: Report) -> bool:
        """True for a part that was already added, or belongs to an earlier turn."""
        known = self._parts.get(party, 0)
        return report.turn < self._number or (report.turn == self._number and report.part < known)

    def report(self, party: str, report: Report) -> None:
        """Add the next part of a party's sealed vector."""
        if report.turn != self._number:
            raise PeerError("report-wrong-turn", f"a report for turn {report.turn} in turn {self._number}")
        if report.part != self._parts[party] or party not in self.reporting:
            raise PeerError("part-order", f"report part {report.part} of turn {report.turn} is out of order")
        if report.ctx != (b"" if report.part else self._opener.ctx):
            raise PeerError(
                "report-other-context",
                f"its report answers another query, roster or attempt than the others' reports in turn "
                f"{report.turn}",
            )
        # All checks come before `add`: nothing can be taken out of the running sum again. For the same
        # reason, a party that is lost between its parts spoils the sum, and the attempt starts over
        # (`lose_in_turn`).
        self._opener.add(party, report.part, report.cells)
        if report.part + 1 == self._opener.chunks:
            self._opener.note(party, report.note)
            self.reporting.discard(party)
        self._parts[party] = report.part + 1

    def lose(self, party: str) -> None:
        """Note that a party whose vector is in the sum was lost."""
        self.helping.discard(party)
        self._opener.lose(party)

    def requests(self) -> dict[str, bytes]:
        """Return party -> due request for help, empty once the sum can open. Raises RosterTooSmall."""
        requests = self._opener.requests()
        self.helping = set(requests)
        return requests

    def repeats_help(self, party: str, assist: OpenShare) -> bool:
        """True for help that was already given, or belongs to an earlier turn."""
        return assist.turn < self._number or self._help.get(party) == assist.answer

    def assist(self, party: str, assist: OpenShare) -> None:
        """Take in a party's help."""
        if party not in self.helping:
            raise PeerError("help-unexpected", f"unrequested help with turn {assist.turn}")
        self._opener.assist(party, assist.answer)
        self._help[party] = assist.answer
        self.helping.discard(party)

    def open(self) -> Int64:
        """Return the sum of all parties' cells."""
        return self._opener.open()


def turns_of(terms: Terms, query: Query) -> int:
    """Return the multiple of turn_timeout that parties have for a query: relayed lists are processed by one
    party after the other."""
    return max(len(block.parties) for block in terms.blocks) if query.relayed_bytes(terms) else 1


# ---- The end of a training: the parties' signatures on what they did and on the model -------------------
# Refuses: signatures on other queries or trees than the session's (PeerError).


MAX_SIGNATURE_BYTES = 64 * 1024
"""Most bytes of a signature with its certificate chain."""
PART_BYTES = 32
"""Bytes of the hash of a party's part of the model."""


class Closing:
    """The signatures of one attempt."""

    def __init__(
        self,
        digest: bytes,
        transcripts: Transcripts,
        structure: Callable[[str], bytes],
        thresholds: Thresholds,
    ) -> None:
        """structure: returns the hash of the model's structure in a party's view; '' stands for all parties
        where they have the same view; thresholds: collects those that parties send."""
        self.thresholds = thresholds
        self.digest = digest
        """The digest of the attempt to which the signatures are bound."""
        self.attestations: dict[str, Attest] = {}
        self.unsigned: set[str] = set()
        """Parties that left without signing."""
        self._transcripts = transcripts
        self._structure = cache(structure)

    def lacks(self, party: str) -> bool:
        """True while a party may still sign."""
        return party not in self.attestations and party not in self.unsigned

    def attest(self, party: str, attest: Attest, trust: Trust | None, attempt: Attempt) -> None:
        """Take in a party's attestation. Raises PeerError for one of other queries or trees."""
        if party in self.attestations:
            raise PeerError("attest-unexpected", "an unrequested attestation")
        if attest.transcript != self._transcripts.signed(party):
            raise PeerError("attest-other-queries", "it attests other queries than were asked")
        if attest.structure != self._structure(attempt.terms.blocks.viewer(party)):
            raise PeerError("attest-other-trees", "it attests other trees than the model has")
        if len(attest.part) != (PART_BYTES if attempt.terms.keeps_parts else 0):
            raise PeerError("attest-part", "its attestation lacks, or should not have, the hash of a part")
        if len(attest.certificate) + len(attest.signature) > MAX_SIGNATURE_BYTES:
            raise PeerError("attest-too-long", "its signature and certificates are too long")
        if trust is not None:
            key_exchange.check_attest(trust, attempt, self.digest, party, attest)
        self.thresholds.take(party, attest.thresholds)
        self.attestations[party] = attest


# ---- The session at the aggregator ----------------------------------------------------------------------


class AggregatorSession:
    """A session at the aggregator.

    Args:
        state: the state in which every training begins.
        record: called with each record, which must outlive the process when it returns.
        past: the records of an earlier process (ConfigError if they do not fit).
        trust: checks greetings and signatures, where parties sign.
        draw: cryptographic randomness, for blinds and for noise drawn here.
        callbacks: may end the training after a round.
        request: the analyst's, where it is signed."""

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
        """The part of the session that the journal preserves."""
        self.attendance = Attendance()
        self.introduction = Introduction()
        self.current_turn: Turn | None = None
        self.closing: Closing | None = None
        self.trust = trust
        self.draw = draw
        self.helped = bool(self.run.attempt)
        """True if parties may have helped to open this turn's sum, in any attempt or process."""
        self.deadline = 0.0
        self.seconds = 0.0
        """Seconds that parties have for the message that is due."""

    @property
    def roster(self) -> tuple[str, ...]:
        """The parties whose vectors go into the sums now."""
        return self.run.roster

    @property
    def turn(self) -> int:
        """The number of the pending query."""
        return self.run.turn

    @property
    def attempt(self) -> int:
        """The number of times that the parties were called together."""
        return self.run.attempt

    @property
    def history(self) -> list[Round]:
        """The finished rounds."""
        return self.run.history

    @property
    def booster(self) -> Booster | None:
        """The model, once the program has ended."""
        return self.run.booster

    @property
    def attestations(self) -> dict[str, Attest]:
        """Party -> its signed attestation, so far."""
        return self.closing.attestations if self.closing else {}

    @property
    def digest(self) -> bytes:
        """The digest to which the signatures are bound, once there are any."""
        return self.closing.digest if self.closing else b""

    @property
    def awaited(self) -> tuple[str, ...]:
        """The parties of the roster whose message is due."""
        return tuple(filter(self.awaits, self.roster))

    def awaits(self, party: str) -> bool:
        """True if a message of this party is due."""
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

    # ---- Events -------------------------------------------------------------------------------------

    def start(self, connected: Iterable[str] | None = None) -> Outbox:
        """Run the program to its first query, and call the connected parties together (default: all)."""
        parties = {*self.terms.parties}
        self.attendance.connected = parties if connected is None else parties.intersection(connected)
        draws = self.terms.noise is not None and self.terms.noise.placement == "central"
        if self.terms.protection.uses_key_holder and self.draw is None:
            return self.fail("sums are encrypted, but the aggregator has no randomness for blinds")
        if draws and self.draw is None:
            return self.fail("the terms have the aggregator draw noise, but it has no randomness")
        try:
            self.run.start()
        except FedboostError as error:
            return self.fail(str(error))
        return self.restart_attempt()

    def handle(self, party: str, event: FromConnection) -> Outbox:
        """Handle an event of one party. Returns the messages to send now."""
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
        """Advance the time to `now` (seconds of any steady clock). Returns the messages to send now."""
        self.attendance.now = now
        if self.phase not in PHASES:
            return []
        try:
            return self.follow(Tick())
        except FedboostError as error:
            return self.fail(f"turn {self.turn}: {error}")

    def finish(self) -> None:
        """End the training with the current round: the model is that of the rounds so far."""
        self.run.enough = True

    def follow(self, event: FromConnection | Violation | Tick, *arguments: object) -> Outbox:
        """Call the handler that RULES has for an event in this phase."""
        rule = RULES[self.phase, type(event)]
        outbox = rule.handler(self, *arguments)
        assert self.phase in (*rule.leads_to, "failed"), f"{type(event).__name__} led to {self.phase}"
        return outbox

    def _is_heard(self, party: str, event: FromConnection) -> bool:
        """True unless a party is out of the session, or leaves the session before this one."""
        if isinstance(event, Leave) and event.session not in ("", self.name):
            return False
        return not self.is_out(party) or isinstance(event, Connected | Disconnected)

    def is_out(self, party: str) -> bool:
        """True for a party that is not in the roster, or barred."""
        return party not in self.run.roster or party in self.attendance.barred

    def _is_current(self, event: FromConnection) -> bool:
        """True for events of this attempt. Raises PeerError for an attempt that has not begun."""
        if isinstance(event, Join) and (event.session, event.digest) != (self.name, self.terms.digest):
            raise PeerError("join-other-terms", "it joined under other terms")
        current = self.run.attempt
        attempt: int = getattr(event, "attempt", current)
        if attempt > current:
            raise PeerError("attempt-early", f"it sent a message of attempt {attempt} in attempt {current}")
        return attempt == current

    # ---- Joining ------------------------------------------------------------------------------------

    def restart_attempt(self) -> Outbox:
        """Send all connected parties an offer: they exchange new keys, then the query is asked."""
        #     Gathered(n) in the journal -> Offer(n) -> every Join(n) -> Introduce -> Ask
        #
        # If the process dies after the first step, the next one calls attempt n + 1, and n is skipped. In the
        # reverse order it would call n again, and the sites that met in n would refuse it.
        self.run.restart_attempt()  # recorded before the offers leave
        self.phase, self.current_turn, self.introduction = "joining", None, Introduction()
        self.attendance.introduced = set()
        self.set_deadline()
        invited = self.attendance.connected - self.attendance.barred
        return [(party, self.admit()) for party in self.roster if party in invited]

    def admit(self) -> Offer:
        return Offer(self.name, self.terms, self.attempt, self.request)

    @property
    def current_attempt(self) -> Attempt:
        """The current attempt, to which signatures are bound."""
        nonce = b"" if self.request is None else self.request.nonce
        return Attempt(self.name, self.attempt, self.terms, nonce)

    def introduce(self) -> Outbox:
        greetings = self.introduction.complete(self.current_attempt, self.roster, self.run.state)
        self.attendance.introduced = set(self.roster)
        seen = self.run.state.seen_by
        return self.to_roster(lambda party: Introduce(greetings, seen(self.terms, party))) + self.ask()

    # ---- A turn -------------------------------------------------------------------------------------

    def ask(self) -> Outbox:
        """Send the query whose sum the program waits for."""
        run, query = self.run, self.run.pending
        assert self.introduction.transcripts is not None
        self.introduction.transcripts.extend(query)
        label = run.turn, run.attempt, run.roster
        ask = Ask(*label, query)
        self.current_turn, self.phase = Turn(run.turn, run.roster, self.opener_of(ask)), "asking"
        self.set_deadline(turns_of(self.terms, query))
        return self.to_roster(lambda party: Ask(*label, query.seen_by(self.terms, party)))

    # ---- The end ------------------------------------------------------------------------------------

    def close(self) -> Outbox:
        """The model is complete: request the parties' signatures."""
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
        """Finish once all parties have signed: first those connected, then those that may come back."""
        assert self.closing is not None
        if any(map(self.awaits, self.roster)):
            return []
        missing = any(self.closing.lacks(party) for party in self.roster)
        return self.restart_attempt() if missing else self.conclude()

    def conclude(self) -> Outbox:
        try:
            self.run.outcome = self.finished()
        except Refused as error:
            return self.fail(str(error))
        self.phase = "done"
        return self._to_connected(SessionEnded())

    def fail(self, reason: str) -> Outbox:
        self.phase, self.error, self.current_turn = "failed", SessionFailed("session-failed", reason), None
        self.run.close()
        return self._to_connected(SessionEnded(reason))

    def set_deadline(self, times: int = 1) -> None:
        self.seconds = times * self.terms.session.turn_timeout
        self.deadline = self.attendance.now + self.seconds

    def to_roster(self, message: Callable[[str], ToParty]) -> Outbox:
        """Address a message to each introduced party: one object for all where all have the same view."""
        roster = [party for party in self.run.roster if party in self.attendance.introduced]
        if self.terms.blocks or not roster:
            return [(party, message(party)) for party in roster]
        same = message(roster[0])
        return [(party, same) for party in roster]

    def _to_connected(self, message: ToParty) -> Outbox:
        return [(party, message) for party in self.terms.parties if party in self.attendance.connected]

    # ---- Attendance and the introduction of an attempt --------------------------------------------------

    def invite(self, party: str, event: Connected) -> Outbox:
        """The party receives an offer, if it is awaited."""
        connected = self.attendance.connected
        awaited = not self.is_out(party) and party not in connected
        connected.add(party)
        return [(party, self.admit())] if awaited else []

    def note_connected(self, party: str, event: Connected) -> Outbox:
        """The party is noted as connected; it takes part from the next attempt on."""
        self.attendance.connected.add(party)
        return []

    def join(self, party: str, join: Join) -> Outbox:
        """The party has joined. After the last one, all are introduced and the query is asked."""
        self.introduction.join(party, join.greeting, self.trust, self.current_attempt)
        self.attendance.away.pop(party, None)
        return [] if any(map(self.awaits, self.roster)) else self.introduce()

    def join_again(self, party: str, join: Join) -> Outbox:
        """A repeated Join is ignored; any other violates the protocol."""
        if self.introduction.greetings.get(party) != join.greeting:
            raise PeerError("join-repeated", "it joined twice")
        return []

    def lose_joining(self, party: str, event: Disconnected) -> Outbox:
        """The party has to join again."""
        if self.note_loss(party, event):
            self.introduction.greetings.pop(party, None)
        return []

    def tick_joining(self) -> Outbox:
        """A party that is late, or away for longer than rejoin_timeout, is waited for, ends the session, or
        leaves the roster, as on_loss specifies. In the first attempt, no party is late."""
        if self.attempt > 1 and self.attendance.now >= self.deadline:  # at first a person may have to approve
            for party in self.awaited:
                self.attendance.mark_away(party, f"did not join again in turn {self.turn}")
        lost = self.attendance.overdue(self.awaited, self.terms.session.rejoin_timeout)
        waits = self.terms.session.on_loss == "wait" and self.booster is None
        return [] if waits or not lost else self.give_up(lost)

    def give_up(self, lost: list[str]) -> Outbox:
        """Go on without parties that did not come back, or fail."""
        party, on_loss = lost[0], self.terms.session.on_loss
        reason = f"party {party} {self.attendance.away[party][1]}"
        if self.booster is not None:  # they have not signed; a model with too few signatures is not valid
            hopeless = on_loss != "wait" or bool(self.attendance.barred & set(lost))
            return self.conclude() if hopeless or len(self.attestations) >= self.terms.signers else []
        if on_loss == "stop":
            if party in self.attendance.barred:
                return self.fail(reason)
            return self.fail(f"{reason}; it was not back within {self.terms.session.rejoin_timeout:g} s")
        left = tuple(member for member in self.roster if member not in lost)
        if len(left) < self.terms.min_roster:
            return self.fail(f"{reason}; {len(left)} parties are left, {self.terms.min_roster} are needed")
        # The query that ends the tree replaces the pending one. It belongs to a later stage, and no sum of it
        # was opened, so help with the pending sum does not matter any more.
        if self.run.grows_a_tree:
            self.run.cut()
            self.helped = False
        if self.helped or not self.run.may_change:
            return self.fail(
                f"{reason}; the roster cannot change in turn {self.turn}, where the difference of two sums "
                f"would reveal that party's rows"
            )
        self.run.change_roster(left)
        return self.restart_attempt()

    def leave(self, party: str, event: Leave) -> Outbox:
        """The session fails; where it may shrink, the party is lost for good."""
        reason = quoted(event.reason).removeprefix(f"party {party}: ")  # the prefix of `expel` names it
        if reason.startswith(f"party {party} "):
            reason = f"it {reason.removeprefix(f'party {party} ')}"
        return self.expel(party, Violation(f"left: {reason}"))

    def expel(self, party: str, event: Violation) -> Outbox:
        """The session fails; where it may shrink, the party is lost for good."""
        shrinks = self.terms.session.on_loss == "shrink" and bool(self.run.state.rounds)
        if self.booster is None and not shrinks:
            return self.fail(f"party {party} {event.reason}")
        self.attendance.bar(party, event.reason)
        lost = Disconnected(event.reason)
        return self.follow(lost, party, lost)

    def note_loss(self, party: str, event: Disconnected) -> bool:
        """Note that a party was lost. Returns True if it is in the roster."""
        self.attendance.connected.discard(party)
        self.attendance.introduced.discard(party)
        if party not in self.roster:
            return False
        self.attendance.mark_away(party, f"was lost: {event.reason}")
        self.count_loss(party)
        return True

    def count_loss(self, party: str) -> None:
        waits = self.terms.session.on_loss == "wait" and self.booster is None
        self.attendance.count_loss(party, self.turn, waits)

    # ---- A turn -----------------------------------------------------------------------------------------

    def opener_of(self, ask: Ask) -> Opener:
        """Make the opener of a query's sum. Raises Refused if the protection does not allow so many cells."""
        terms, introduction = self.terms, self.introduction
        protection = terms.protection
        assert introduction.transcripts is not None
        transcript = introduction.transcripts.whole
        if terms.hides_columns:  # the label holder opens the sum under the transcript of its view
            transcript = introduction.transcripts.of(terms.keyholder or "")
        tag, max_cells = tag_of(ask, transcript), protection.max_cells
        if max_cells is not None and tag.cells > max_cells:
            raise Refused(
                "sum-too-large",
                f"a sum of {tag.cells:,} cells; protection {terms.hiding.protection} allows at most "
                f"{max_cells:,}: lower max_bin or max_depth",
            )
        if introduction.setup is None:
            group = Group.of(terms.parties, terms.hiding.colluding)
            keys, shrinks = (introduction.public, terms.keyholder), terms.session.on_loss == "shrink"
            introduction.setup = AggregatorSetup(group, introduction.digest, self.draw, *keys, shrinks)
        hidden = ask.query.hidden(terms, self.run.state)
        setup = introduction.setup if hidden is None else replace(introduction.setup, hidden=hidden)
        return protection.opener(tag, setup)

    def report(self, party: str, report: Report) -> Outbox:
        """The part is added. After the last part of all parties, help is requested or the sum is opened."""
        turn = self.current_turn
        assert turn is not None
        if turn.repeats(party, report):
            return []
        turn.report(party, report)
        return [] if turn.reporting else self.seek_help()

    def stray_report(self, party: str, report: Report) -> Outbox:
        """A repeated Report is ignored; any other violates the protocol."""
        if self.current_turn is not None and self.current_turn.repeats(party, report):
            return []
        raise PeerError("report-unexpected", f"a report for turn {report.turn} while {self.phase}")

    def pass_on(self, party: str, relay: Relay) -> Outbox:
        """The bytes are passed on to their receivers in the block; nothing is kept."""
        turn, block = self.current_turn, self.terms.blocks.of(party)
        assert turn is not None
        if relay.turn < self.turn:
            return []
        if relay.turn != self.turn or party not in turn.reporting:
            raise PeerError(
                "relay-turn", f"it relays bytes for turn {relay.turn} in turn {self.turn}, or too late"
            )
        others = set() if block is None else {*block.parties} - {party}
        if not relay.to or not others.issuperset(relay.to) or len(set(relay.to)) != len(relay.to):
            raise PeerError(
                "relay-receivers",
                "it relays outside its block, to itself, or to one party twice",
            )
        query = self.run.pending
        most = max_relayed(self.terms, party, query, query.rows, self.run.state)
        if not turn.relayed[party].add(relay, most):
            return []
        if answered := [other for other in relay.to if other not in turn.reporting]:
            raise PeerError(
                "relay-late",
                f"it relays bytes to party {answered[0]}, which already answered turn {relay.turn}",
            )
        # The sender is named by its connection, so no party can relay under another's name.
        told = replace(relay, to=(), sender=party)
        return [(other, told) for other in relay.to]

    def stray_relay(self, party: str, relay: Relay) -> Outbox:
        """A Relay of an earlier turn is ignored; any other violates the protocol."""
        if relay.turn < self.turn:
            return []
        raise PeerError("relay-stray", f"it relays bytes while {self.phase}")

    def seek_help(self) -> Outbox:
        """All reports are in: request the help that the sum still needs, or open it."""
        assert self.current_turn is not None
        try:
            requests = self.current_turn.requests()
        except RosterTooSmall:
            return self.restart_attempt()
        if not requests:
            return self.open_sum()
        # From here on, the aggregator may be able to open this sum. So the pending query is not asked of a
        # smaller roster any more, in any attempt (`give_up`).
        self.phase, self.helped = "opening", True
        self.set_deadline()
        return [(party, OpenRequest(self.turn, self.attempt, request)) for party, request in requests.items()]

    def assist(self, party: str, assist: OpenShare) -> Outbox:
        """The help is taken in. After the last of it, more is requested or the sum is opened."""
        assert self.current_turn is not None
        if self.current_turn.repeats_help(party, assist):
            return []
        self.current_turn.assist(party, assist)
        return [] if self.current_turn.helping else self.seek_help()

    def stray_assist(self, party: str, assist: OpenShare) -> Outbox:
        """Repeated help is ignored; any other violates the protocol."""
        if self.current_turn is not None and self.current_turn.repeats_help(party, assist):
            return []
        raise PeerError("help-unexpected", f"unrequested help with turn {assist.turn}")

    def open_sum(self) -> Outbox:
        """The sum is opened, and the program goes on to its next query or its model."""
        assert self.current_turn is not None
        run, attendance = self.run, self.attendance
        total = exact = run.pending.from_cells(self.current_turn.open())
        if self.draw is not None and self.terms.noise is not None:
            total = with_central_noise(run.pending, self.terms, exact, self.draw)
        # The program has ended, and the turn was repeated only for signatures. Central noise is drawn afresh,
        # so a noisy sum differs from the recorded one. It is dropped here, which makes it no second release.
        if run.last is not None:
            if total is not exact or np.array_equal(total, run.last):
                return self.close()
            if self.attestations:  # signed before, under the model that there is
                return self.conclude()
            return self.fail(f"turn {run.turn} was asked again, and its sum differs")
        try:
            run.take(total)  # recorded here, before any message below is returned
        except FedboostError as error:  # an impossible sum, or nothing to learn: no single party's fault
            where = f"turn {run.turn}: " if isinstance(error, PeerError) else ""
            return self.fail(f"{where}{error}")
        self.helped = False
        attendance.losses.clear()
        if run.booster is not None:
            return self.close()
        roster = set(run.roster)
        back = attendance.connected - roster - attendance.barred
        if back and run.may_change and not run.pending.ends_tree:
            run.change_roster(tuple(p for p in self.terms.parties if p in back or p in roster))
            return self.restart_attempt()
        return self.ask() if roster == attendance.introduced else self.restart_attempt()

    def lose_in_turn(self, party: str, event: Disconnected) -> Outbox:
        """If the party's report is in, the turn goes on (in two legs, the others help to recover its self
        mask); otherwise a new attempt starts."""
        if not self.note_loss(party, event):
            return []
        assert self.current_turn is not None
        if not self.current_turn.has_reported(party):
            return self.restart_attempt()
        self.current_turn.lose(party)
        turn = self.current_turn
        return [] if turn.reporting or turn.helping else self.seek_help()

    def tick_turn(self) -> Outbox:
        """After turn_timeout, parties that did not answer are considered lost, and a new attempt starts."""
        if self.attendance.now < self.deadline:
            return []
        late = f"did not answer turn {self.turn} within {self.seconds:g} s"
        for party in self.awaited:
            self.attendance.away[party] = (self.attendance.now, late)
            self.count_loss(party)
        return self.restart_attempt()

    # ---- The end ----------------------------------------------------------------------------------------

    def attest(self, party: str, attest: Attest) -> Outbox:
        """The signature is checked. After the last one, the session is done."""
        assert self.closing is not None
        if self.attestations.get(party) == attest:
            return []
        self.closing.attest(party, attest, self.trust, self.current_attempt)
        return self.end()

    def stray_attest(self, party: str, attest: Attest) -> Outbox:
        """A repeated Attest is ignored; any other violates the protocol."""
        if self.attestations.get(party) == attest:
            return []
        raise PeerError("attest-unexpected", "an unrequested attestation")

    def lose_closing(self, party: str, event: Disconnected) -> Outbox:
        """Once all others have signed, a new attempt starts for the party's signature."""
        return self.end() if self.note_loss(party, event) else []

    def leave_closing(self, party: str, event: Leave | Violation) -> Outbox:
        """The model lacks the party's signature, and records that. The session fails if the model also lacks
        the party's thresholds, or the part of it that only this party was to keep."""
        assert self.closing is not None
        self.closing.unsigned.add(party)
        if self.closing.thresholds.lacks(party) or self.terms.keeps_parts:
            reason = event.reason if isinstance(event, Violation) else f"left: {quoted(event.reason)}"
            return self.fail(f"party {party} {reason}")
        return self.end()

    def finished(self) -> Outcome:
        """Return the model with the thresholds of all parties. Raises Refused while some are missing."""
        made = self.run.outcome
        assert made is not None
        given = self.closing.thresholds if self.closing else Thresholds(self.terms, made.booster)
        for party in filter(given.lacks, self.terms.parties):
            raise Refused("thresholds-missing", f"party {party} sent no thresholds, and the model needs them")
        return replace(made, booster=given.of_model())


# ---- The rules of a session at the aggregator: what each event does in each phase -----------------------
# `make reference` writes them to docs/protocol.md in words, from the handlers' docstrings.


class Rule(NamedTuple):
    """The effect of an event in a phase: the handler, and the phases it may lead to besides `failed`."""

    handler: Callable[..., Outbox]
    leads_to: tuple[Phase, ...]


_TURN: tuple[Phase, ...] = ("joining", "asking", "opening", "closing", "done")
"""The phases that may follow once a turn's sum is opened."""

RULES: dict[tuple[Phase, type], Rule] = {
    ("joining", Connected): Rule(AggregatorSession.invite, ("joining",)),
    ("joining", Join): Rule(AggregatorSession.join, ("joining", "asking")),
    ("joining", Disconnected): Rule(AggregatorSession.lose_joining, ("joining",)),
    ("joining", Leave): Rule(AggregatorSession.leave, ("joining",)),
    ("joining", Violation): Rule(AggregatorSession.expel, ("joining",)),
    ("joining", Tick): Rule(AggregatorSession.tick_joining, ("joining", "done")),
    ("joining", Report): Rule(AggregatorSession.stray_report, ("joining",)),
    ("joining", Relay): Rule(AggregatorSession.stray_relay, ("joining",)),
    ("joining", OpenShare): Rule(AggregatorSession.stray_assist, ("joining",)),
    ("joining", Attest): Rule(AggregatorSession.stray_attest, ("joining",)),
    ("asking", Connected): Rule(AggregatorSession.note_connected, ("asking",)),
    ("asking", Report): Rule(AggregatorSession.report, _TURN),
    ("asking", Relay): Rule(AggregatorSession.pass_on, ("asking",)),
    ("asking", Disconnected): Rule(AggregatorSession.lose_in_turn, _TURN),
    ("asking", Leave): Rule(AggregatorSession.leave, _TURN),
    ("asking", Violation): Rule(AggregatorSession.expel, _TURN),
    ("asking", Tick): Rule(AggregatorSession.tick_turn, ("asking", "joining")),
    ("asking", Join): Rule(AggregatorSession.join_again, ("asking",)),
    ("asking", OpenShare): Rule(AggregatorSession.stray_assist, ("asking",)),
    ("asking", Attest): Rule(AggregatorSession.stray_attest, ("asking",)),
    ("opening", Connected): Rule(AggregatorSession.note_connected, ("opening",)),
    ("opening", OpenShare): Rule(AggregatorSession.assist, _TURN),
    ("opening", Disconnected): Rule(AggregatorSession.lose_in_turn, _TURN),
    ("opening", Leave): Rule(AggregatorSession.leave, _TURN),
    ("opening", Violation): Rule(AggregatorSession.expel, _TURN),
    ("opening", Tick): Rule(AggregatorSession.tick_turn, ("opening", "joining")),
    ("opening", Join): Rule(AggregatorSession.join_again, ("opening",)),
    ("opening", Relay): Rule(AggregatorSession.stray_relay, ("opening",)),
    ("opening", Report): Rule(AggregatorSession.stray_report, ("opening",)),
    ("opening", Attest): Rule(AggregatorSession.stray_attest, ("opening",)),
    ("closing", Connected): Rule(AggregatorSession.note_connected, ("closing",)),
    ("closing", Attest): Rule(AggregatorSession.attest, ("closing", "joining", "done")),
    ("closing", Disconnected): Rule(AggregatorSession.lose_closing, ("closing", "joining", "done")),
    ("closing", Leave): Rule(AggregatorSession.leave_closing, ("closing", "joining", "done")),
    ("closing", Violation): Rule(AggregatorSession.leave_closing, ("closing", "joining", "done")),
    ("closing", Tick): Rule(AggregatorSession.tick_turn, ("closing", "joining")),
    ("closing", Join): Rule(AggregatorSession.join_again, ("closing",)),
    ("closing", Report): Rule(AggregatorSession.stray_report, ("closing",)),
    ("closing", Relay): Rule(AggregatorSession.stray_relay, ("closing",)),
    ("closing", OpenShare): Rule(AggregatorSession.stray_assist, ("closing",)),
}
"""What each event does in each phase. All may fail; in `done` and `failed`, nothing is answered."""
