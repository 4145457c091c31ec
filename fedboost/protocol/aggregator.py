"""The aggregator's end of a session: handles messages from parties and returns the messages to send. Sans-IO.

`RULES` defines the session: the handler for each event in each phase, and the phases that may follow.
Handlers are methods of `AggregatorSession`, grouped by topic: joining, a turn, the end.

Guarantees: each turn has one running sum, and no party's vector is stored separately. Messages from different
parties may arrive in any order; repeated messages and messages from an earlier attempt are ignored. Every sum
is recorded before anything derived from it is sent, so a session can restart from its records.
Rejects: parties that join under different terms, and reports out of order or for a wrong turn (SessionFailed
in `error`). Parties not in the terms are ignored. Parties that disconnect too often are not readmitted."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedboost.errors import FedboostError, PeerError, Refused, RosterTooSmall, SessionFailed, quoted
from fedboost.gbdt.booster import Booster
from fedboost.privacy.packing import RandomBytes
from fedboost.privacy.pairwise import AggregatorSetup, Group
from fedboost.privacy.protection import Opener
from fedboost.protocol.adding import Addition
from fedboost.protocol.contracts import Outcome, Program, TrainingState
from fedboost.protocol.key_exchange import Attempt, Trust
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
    Summed,
    Tick,
    ToParty,
    Violation,
    digest_of_roster,
    tag_of,
)
from fedboost.protocol.parts import Thresholds, numbers_for
from fedboost.protocol.relaying import max_relayed
from fedboost.protocol.run import Attendance, Callback, Record, Round, TrainingRun
from fedboost.protocol.stages import Closing, Introduction, Turn, turns_of
from fedboost.terms.terms import Terms

# ---- The session at the aggregator ----------------------------------------------------------------------


class AggregatorSession:
    """The aggregator's end of one session: handles events and returns the messages to send.

    Args:
        program: the session's algorithm.
        state: initial state of every training run.
        record: writes a record to the journal, if there is one; the record must survive a crash once the
            call returns.
        past: journal records of this session that were written by an earlier process.
        trust: certificates used to check greetings and signatures, if parties sign.
        draw: cryptographic source of randomness for blinding ciphertexts.
        callbacks: functions that are called after each round and may end the training run.
        request: the analyst's signed request, if any.

    Raises ConfigError if `past` does not fit the session."""

    def __init__(
        self,
        name: str,
        terms: Terms,
        program: Program,
        state: TrainingState,
        record: Callable[[Record], None] | None = None,
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
        """The part of the session that can be restored from the journal."""
        self.attendance = Attendance()
        self.introduction = Introduction()
        self.current_turn: Turn | None = None
        self.closing: Closing | None = None
        self.trust = trust
        self.draw = draw
        self.helped = bool(self.run.attempt)
        """True if a party may have replied to an OpenRequest for this turn, in any attempt or process."""
        self.deadline = 0.0
        self.seconds = 0.0
        """Time limit, in seconds, for parties to send the message that is due."""

    @property
    def roster(self) -> tuple[str, ...]:
        """Parties whose vectors are currently added to the sums."""
        return self.run.roster

    @property
    def turn(self) -> int:
        """Number of the pending query."""
        return self.run.turn

    @property
    def attempt(self) -> int:
        """Number of the current attempt."""
        return self.run.attempt

    @property
    def history(self) -> list[Round]:
        """Results of the finished rounds."""
        return self.run.history

    @property
    def booster(self) -> Booster | None:
        """The model, or None before the program has ended."""
        return self.run.booster

    @property
    def attestations(self) -> dict[str, Attest]:
        """Party -> its signed attestation, for all parties that have signed so far."""
        return self.closing.attestations if self.closing else {}

    @property
    def digest(self) -> bytes:
        """Digest of the attempt to which signatures are bound; empty until they are requested."""
        return self.closing.digest if self.closing else b""

    @property
    def awaited(self) -> tuple[str, ...]:
        """Parties of the roster from which a message is due. If an adder waits for some of its parties, its
        other parties are not due."""
        turn = self.current_turn
        if self.phase != "asking" or turn is None:
            return tuple(filter(self.awaits, self.roster))
        awaited = turn.reporting - turn.held or turn.reporting
        return tuple(party for party in self.roster if party in awaited)

    @property
    def standing(self) -> object:
        """A value that changes whenever other parties, or messages of another turn, are awaited."""
        turn = self.current_turn
        if self.phase != "asking" or turn is None:
            return self.turn, self.attempt, self.awaited
        return self.turn, self.attempt, len(turn.reporting), len(turn.held)  # one only falls, one only rises

    @property
    def addition(self) -> Addition | None:
        """What adders need to add the reports of the current turn, or None if they must pass them on."""
        turn = self.current_turn
        if turn is None or self.terms.blocks:
            return None
        return turn.addition(self.attempt, self.run.pending.segments)

    def awaits(self, party: str) -> bool:
        """Return True if a message from this party is due."""
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
        """Run the program up to its first query, and send an offer to the connected parties. connected: names
        of the connected parties (default: all)."""
        parties = {*self.terms.parties}
        self.attendance.connected = parties if connected is None else parties.intersection(connected)
        if self.terms.protection.uses_key_holder and self.draw is None:
            return self.fail("sums are encrypted, but the aggregator has no source of randomness for blinds")
        try:
            self.run.start()
        except FedboostError as error:
            return self.fail(str(error))
        return self.restart_attempt()

    def handle(self, party: str, event: FromConnection) -> Outbox:
        """Handle an event that concerns one party. Returns the messages to send now."""
        if self.phase not in PHASES or party not in self.terms.parties or not self._is_heard(party, event):
            return []
        try:
            return self.follow(event, party, event) if self._is_current(event) else []
        except PeerError as error:
            violation = Violation(f"broke the protocol: {error}")
            return self.follow(violation, party, violation)
        except FedboostError as error:
            return self.fail(f"turn {self.turn}: {error}")

    def handle_sum(self, summed: Summed) -> Outbox:
        """Handle a part of an adder's sum. A sum of an earlier turn or attempt is ignored. Returns the
        messages to send now. Raises PeerError, which concerns the adder, if the sum must not be added."""
        report, now = summed.report, (self.attempt, self.turn)
        if self.phase not in PHASES or (report.attempt, report.turn) < now:
            return []
        if not self.attendance.introduced.issuperset(summed.parties):
            raise PeerError("region-not-introduced", "it sent a sum for a party that was not introduced")
        return self.follow(summed, summed)

    def hold(self, turn: int, attempt: int, parties: Iterable[str]) -> None:
        """Record that an adder has these parties' whole reports, while it waits for others."""
        is_current = (turn, attempt) == (self.turn, self.attempt) and self.phase == "asking"
        if is_current and self.current_turn is not None:
            self.current_turn.held.update(parties)

    def tick(self, now: float) -> Outbox:
        """Set the current time, in seconds of any monotonic clock. Returns the messages to send now."""
        self.attendance.now = now
        if self.phase not in PHASES:
            return []
        try:
            return self.follow(Tick())
        except FedboostError as error:
            return self.fail(f"turn {self.turn}: {error}")

    def finish(self) -> None:
        """End training after the current round. The model then consists of the rounds trained so far."""
        self.run.enough = True

    def follow(self, event: FromConnection | Violation | Tick | Summed, *arguments: object) -> Outbox:
        """Call the handler that RULES contains for this event in the current phase."""
        rule = RULES[self.phase, type(event)]
        outbox = rule.handler(self, *arguments)
        assert self.phase in (*rule.leads_to, "failed"), f"{type(event).__name__} led to {self.phase}"
        return outbox

    def _is_heard(self, party: str, event: FromConnection) -> bool:
        """Return False if the event must be ignored: a Leave for a different session, or a message from a
        party that no longer takes part in this session."""
        if isinstance(event, Leave) and event.session not in ("", self.name):
            return False
        return not self.is_out(party) or isinstance(event, Connected | Disconnected)

    def is_out(self, party: str) -> bool:
        """Return True if a party is not in the roster, or is barred."""
        return party not in self.run.roster or party in self.attendance.barred

    def _is_current(self, event: FromConnection) -> bool:
        """Return True if the event belongs to the current attempt. Raises PeerError if the event belongs to a
        later attempt, or is a Join for a different session."""
        if isinstance(event, Join) and (event.session, event.digest) != (self.name, self.terms.digest):
            raise PeerError("join-other-terms", "it joined a different session, or under different terms")
        current = self.run.attempt
        attempt: int = getattr(event, "attempt", current)
        if attempt > current:
            raise PeerError(
                "attempt-early", f"it sent a message for attempt {attempt} during attempt {current}"
            )
        return attempt == current

    # ---- Joining ------------------------------------------------------------------------------------

    def restart_attempt(self) -> Outbox:
        """Offer a new attempt to connected parties. The query follows once they have exchanged new keys."""
        #     AttemptStarted(n) in the journal -> Offer(n) -> every Join(n) -> Introduce -> Ask
        #
        # If the process dies after the first step, the next one offers attempt n + 1, and n is skipped. In
        # the reverse order it would offer n again, and the sites that met in n would refuse it.
        self.run.restart_attempt()  # recorded before the offers leave
        self.phase, self.current_turn, self.introduction = "joining", None, Introduction()
        self.attendance.introduced = set()
        self.set_deadline()
        invited, offer = self.attendance.connected - self.attendance.barred, self.admit()
        return [(party, offer) for party in self.roster if party in invited]

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
        certificates, lacking = self.introduction.lacking(self.roster)
        seen = self.run.state.seen_by
        # Certificates leave once a session: with K parties, they are most of the K x K bytes of an attempt.
        full = self.to_roster(lambda party: Introduce(greetings, seen(self.terms, party), certificates))
        brief = self.to_roster(lambda party: Introduce(greetings, seen(self.terms, party)))
        outbox = [told if told[0] in lacking else short for told, short in zip(full, brief, strict=True)]
        return outbox + self.ask()

    # ---- A turn -------------------------------------------------------------------------------------

    def ask(self) -> Outbox:
        """Send the query whose sum the program is waiting for."""
        run, query = self.run, self.run.pending
        assert self.introduction.transcripts is not None
        views, viewer = self.introduction.transcripts.extend(query), self.terms.blocks.viewer
        label = run.turn, run.attempt, digest_of_roster(run.roster)
        ask = Ask(*label, query)
        self.current_turn, self.phase = Turn(run.turn, run.roster, self.opener_of(ask)), "asking"
        self.set_deadline(turns_of(self.terms, query))
        return self.to_roster(lambda party: Ask(*label, views[viewer(party)]))

    # ---- The end ------------------------------------------------------------------------------------

    def close(self) -> Outbox:
        """Request the parties' signatures, because the model is complete."""
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
        """Finish the session once all parties have signed. If signatures are still missing after all
        connected parties have signed, start a new attempt to collect them."""
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
        """Address a message to each introduced party. If all parties have the same view, they share one
        message object. message: function that returns the message for a party."""
        roster = [party for party in self.run.roster if party in self.attendance.introduced]
        if self.terms.blocks or not roster:
            return [(party, message(party)) for party in roster]
        same = message(roster[0])
        return [(party, same) for party in roster]

    def _to_connected(self, message: ToParty) -> Outbox:
        return [(party, message) for party in self.terms.parties if party in self.attendance.connected]

    # ---- Attendance and the introduction of an attempt --------------------------------------------------

    def invite(self, party: str, event: Connected) -> Outbox:
        """Send an offer to the party if the session waits for it."""
        connected = self.attendance.connected
        awaited = not self.is_out(party) and party not in connected
        connected.add(party)
        return [(party, self.admit())] if awaited else []

    def note_connected(self, party: str, event: Connected) -> Outbox:
        """Record that the party is connected. It takes part starting with the next attempt."""
        self.attendance.connected.add(party)
        return []

    def join(self, party: str, join: Join) -> Outbox:
        """Accept the party's greeting. After the last greeting, introduce all parties and send the query."""
        self.introduction.join(party, join, self.trust, self.current_attempt)
        self.attendance.away.pop(party, None)
        return [] if any(map(self.awaits, self.roster)) else self.introduce()

    def join_again(self, party: str, join: Join) -> Outbox:
        """Ignore a repeated Join. A different Join violates the protocol."""
        if self.introduction.greetings.get(party) != join.greeting:
            raise PeerError("join-repeated", "it joined twice, with different greetings")
        return []

    def lose_joining(self, party: str, event: Disconnected) -> Outbox:
        """Discard the party's greeting; the party has to join again."""
        if self.note_loss(party, event):
            self.introduction.greetings.pop(party, None)
        return []

    def tick_joining(self) -> Outbox:
        """Handle parties that are late, or away for longer than rejoin_timeout, as on_loss specifies: wait
        for them, fail, or continue without them. In the first attempt, no party is late."""
        if self.attempt > 1 and self.attendance.now >= self.deadline:  # at first a person may have to approve
            for party in self.awaited:
                self.attendance.mark_away(party, f"did not join again in turn {self.turn}")
        lost = self.attendance.overdue(self.awaited, self.terms.session.rejoin_timeout)
        waits = self.terms.session.on_loss == "wait" and self.booster is None
        return [] if waits or not lost else self.give_up(lost)

    def give_up(self, lost: list[str]) -> Outbox:
        """Continue without parties that did not come back, or fail the session."""
        party, on_loss = lost[0], self.terms.session.on_loss
        reason = f"party {party} {self.attendance.away[party][1]}"
        if self.booster is not None:  # they have not signed; a model with too few signatures is not valid
            hopeless = on_loss != "wait" or bool(self.attendance.barred & set(lost))
            return self.conclude() if hopeless or len(self.attestations) >= self.terms.signers else []
        if on_loss == "stop":
            if party in self.attendance.barred:
                return self.fail(reason)
            return self.fail(f"{reason}; it did not return within {self.terms.session.rejoin_timeout:g} s")
        left = tuple(member for member in self.roster if member not in lost)
        if len(left) < self.terms.min_roster:
            return self.fail(
                f"{reason}; only {len(left)} parties are left, but {self.terms.min_roster} are needed"
            )
        # The query that ends the tree replaces the pending one. It belongs to a later stage, and no sum of it
        # was opened, so replies about the pending sum do not matter any more.
        if self.run.grows_a_tree:
            self.run.cut()
            self.helped = False
        if self.helped or not self.run.may_change:
            return self.fail(
                f"{reason}; the roster cannot change in turn {self.turn}, where the difference between two "
                f"sums would reveal that party's own sum"
            )
        self.run.change_roster(left)
        return self.restart_attempt()

    def leave(self, party: str, event: Leave) -> Outbox:
        """Fail the session. If the roster may shrink, exclude the party for good instead, and continue
        without it."""
        reason = quoted(event.reason).removeprefix(f"party {party}: ")  # the prefix of `expel` names it
        if reason.startswith(f"party {party} "):
            reason = f"it {reason.removeprefix(f'party {party} ')}"
        return self.expel(party, Violation(f"left: {reason}"))

    def expel(self, party: str, event: Violation) -> Outbox:
        """Fail the session. If the roster may shrink, exclude the party for good instead, and continue
        without it."""
        shrinks = self.terms.session.on_loss == "shrink" and bool(self.run.state.rounds)
        if self.booster is None and not shrinks:
            return self.fail(f"party {party} {event.reason}")
        self.attendance.bar(party, event.reason)
        lost = Disconnected(event.reason)
        return self.follow(lost, party, lost)

    def note_loss(self, party: str, event: Disconnected) -> bool:
        """Record that a party was lost. Returns True if the party is in the roster."""
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
        """Build the object that opens a query's sum. Raises Refused if the sum has more cells than the
        protection allows."""
        terms, introduction = self.terms, self.introduction
        protection = terms.protection
        assert introduction.transcripts is not None
        # If columns are hidden, the label holder opens the sum under the transcript of its view. Plain sums
        # are not bound to a transcript, and with masks all parties have the same one.
        transcript = introduction.transcripts.of(terms.keyholder or terms.parties[0])
        tag, max_cells = tag_of(ask, self.roster, transcript), protection.max_cells
        if max_cells is not None and tag.cells > max_cells:
            raise Refused(
                "sum-too-large",
                f"the sum has {tag.cells:,} cells, but protection {terms.hiding.protection} allows at most "
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
        """Add a part of the party's report to the sum. Once all reports are complete, open the sum, or
        request what opening it requires."""
        turn = self.current_turn
        assert turn is not None
        if turn.repeats(party, report):
            return []
        turn.report((party,), report)
        return [] if turn.reporting else self.seek_help()

    def add_region(self, summed: Summed) -> Outbox:
        """Add a part of the sum of a region's reports, as if each of its parties had sent its own."""
        turn = self.current_turn
        assert turn is not None
        turn.report(summed.parties, summed.report)  # raises PeerError: the adder is at fault
        if turn.reporting:
            return []
        try:
            return self.seek_help()
        except FedboostError as error:
            return self.fail(f"turn {self.turn}: {error}")

    def stray_sum(self, summed: Summed) -> Outbox:
        """Refuse a sum that is not due, which an adder must not send."""
        raise PeerError("region-sum-unasked", f"it sent a sum of turn {summed.report.turn} unasked")

    def stray_report(self, party: str, report: Report) -> Outbox:
        """Ignore a repeated Report. Any other Report violates the protocol."""
        if self.current_turn is not None and self.current_turn.repeats(party, report):
            return []
        raise PeerError("report-unexpected", f"it sent a report for turn {report.turn} in phase {self.phase}")

    def pass_on(self, party: str, relay: Relay) -> Outbox:
        """Forward a relay to its receivers in the sender's block, without storing it."""
        turn, others = self.current_turn, {*self.terms.relays_to(party)}
        assert turn is not None
        if relay.turn < self.turn:
            return []
        if relay.turn != self.turn or party not in turn.reporting:
            raise PeerError(
                "relay-turn",
                f"it relayed bytes for turn {relay.turn} at the wrong time: the current turn is "
                f"{self.turn}, and relays must arrive before the party's report",
            )
        if not relay.to or not others.issuperset(relay.to) or len(set(relay.to)) != len(relay.to):
            raise PeerError(
                "relay-receivers",
                "it relayed bytes to no one, to itself, to a party outside its block, or to a party twice",
            )
        query = self.run.pending
        most = max_relayed(self.terms, party, query, query.rows, self.run.state)
        if not turn.relayed[party].add(relay, most):
            return []
        if answered := [other for other in relay.to if other not in turn.reporting]:
            raise PeerError(
                "relay-late",
                f"it relayed bytes to party {answered[0]}, which has already answered turn {relay.turn}",
            )
        # The sender is named by its connection, so no party can relay under another's name.
        told = Relay(relay.turn, relay.attempt, relay.number, relay.content, relay.last, sender=party)
        return [(other, told) for other in relay.to]

    def stray_relay(self, party: str, relay: Relay) -> Outbox:
        """Ignore a Relay of an earlier turn. Any other Relay violates the protocol."""
        if relay.turn < self.turn:
            return []
        raise PeerError("relay-stray", f"it relayed bytes in phase {self.phase}")

    def seek_help(self) -> Outbox:
        """After all reports have arrived, open the sum, or send the requests that must be answered first."""
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
        """Accept a reply to an OpenRequest. After the last reply, send more requests or open the sum."""
        assert self.current_turn is not None
        if self.current_turn.repeats_help(party, assist):
            return []
        self.current_turn.assist(party, assist)
        return [] if self.current_turn.helping else self.seek_help()

    def stray_assist(self, party: str, assist: OpenShare) -> Outbox:
        """Ignore a repeated OpenShare. Any other OpenShare violates the protocol."""
        if self.current_turn is not None and self.current_turn.repeats_help(party, assist):
            return []
        raise PeerError("help-unexpected", f"it sent unrequested data to open the sum of turn {assist.turn}")

    def open_sum(self) -> Outbox:
        """Open the sum and send it to the program, which continues to its next query or ends with a model."""
        assert self.current_turn is not None
        run, attendance = self.run, self.attendance
        total = run.pending.from_cells(self.current_turn.open())
        if run.last is not None:  # the program has ended, and the turn was repeated only for signatures
            if np.array_equal(total, run.last):
                return self.close()
            if self.attestations:  # signed before, under the model that there is
                return self.conclude()
            return self.fail(f"turn {run.turn} was repeated, but its sum differs")
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
        """Continue the turn if the party's whole report has arrived; under `shrink`, the other parties then
        reveal shares of its self mask. Otherwise start a new attempt."""
        if not self.note_loss(party, event):
            return []
        assert self.current_turn is not None
        if not self.current_turn.has_reported(party):
            return self.restart_attempt()
        self.current_turn.lose(party)
        turn = self.current_turn
        return [] if turn.reporting or turn.helping else self.seek_help()

    def tick_turn(self) -> Outbox:
        """Treat parties that did not answer within turn_timeout as lost, and start a new attempt."""
        if self.attendance.now < self.deadline:
            return []
        late = f"did not answer turn {self.turn} within {self.seconds:g} s"
        for party in self.awaited:
            self.attendance.away[party] = (self.attendance.now, late)
            self.count_loss(party)
        return self.restart_attempt()

    # ---- The end ----------------------------------------------------------------------------------------

    def attest(self, party: str, attest: Attest) -> Outbox:
        """Check the signature. After the last one, the session is done."""
        assert self.closing is not None
        if self.attestations.get(party) == attest:
            return []
        self.closing.attest(party, attest, self.trust, self.current_attempt)
        return self.end()

    def stray_attest(self, party: str, attest: Attest) -> Outbox:
        """Ignore a repeated Attest. Any other Attest violates the protocol."""
        if self.attestations.get(party) == attest:
            return []
        raise PeerError("attest-unexpected", "it sent an attestation that was not requested")

    def lose_closing(self, party: str, event: Disconnected) -> Outbox:
        """Start a new attempt for the party's signature once all others have signed."""
        return self.end() if self.note_loss(party, event) else []

    def leave_closing(self, party: str, event: Leave | Violation) -> Outbox:
        """Record that the model lacks the party's signature. Fail the session if the party's thresholds are
        missing, or if each party keeps a part of the model."""
        assert self.closing is not None
        self.closing.unsigned.add(party)
        if self.closing.thresholds.lacks(party) or self.terms.keeps_parts:
            reason = event.reason if isinstance(event, Violation) else f"left: {quoted(event.reason)}"
            return self.fail(f"party {party} {reason}")
        return self.end()

    def finished(self) -> Outcome:
        """Return the model with the thresholds of all parties. Raises Refused if any are missing."""
        made = self.run.outcome
        assert made is not None
        given = self.closing.thresholds if self.closing else Thresholds(self.terms, made.booster)
        for party in filter(given.lacks, self.terms.parties):
            raise Refused("thresholds-missing", f"party {party} sent no thresholds, but the model needs them")
        return replace(made, booster=given.of_model())


# ---- The rules of a session at the aggregator: what each event does in each phase -----------------------
# `make reference` writes them to docs/protocol.md in words, from the handlers' docstrings.


class Rule(NamedTuple):
    """Handler of an event in a phase, and the phases to which it may lead in addition to `failed`."""

    handler: Callable[..., Outbox]
    leads_to: tuple[Phase, ...]


_TURN: tuple[Phase, ...] = ("joining", "asking", "opening", "closing", "done")
"""Phases that may follow once a turn's sum is opened."""

RULES: dict[tuple[Phase, type], Rule] = {
    ("joining", Connected): Rule(AggregatorSession.invite, ("joining",)),
    ("joining", Join): Rule(AggregatorSession.join, ("joining", "asking")),
    ("joining", Disconnected): Rule(AggregatorSession.lose_joining, ("joining",)),
    ("joining", Leave): Rule(AggregatorSession.leave, ("joining",)),
    ("joining", Violation): Rule(AggregatorSession.expel, ("joining",)),
    ("joining", Tick): Rule(AggregatorSession.tick_joining, ("joining", "done")),
    ("joining", Report): Rule(AggregatorSession.stray_report, ("joining",)),
    ("joining", Summed): Rule(AggregatorSession.stray_sum, ("joining",)),
    ("joining", Relay): Rule(AggregatorSession.stray_relay, ("joining",)),
    ("joining", OpenShare): Rule(AggregatorSession.stray_assist, ("joining",)),
    ("joining", Attest): Rule(AggregatorSession.stray_attest, ("joining",)),
    ("asking", Connected): Rule(AggregatorSession.note_connected, ("asking",)),
    ("asking", Report): Rule(AggregatorSession.report, _TURN),
    ("asking", Summed): Rule(AggregatorSession.add_region, _TURN),
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
    ("opening", Summed): Rule(AggregatorSession.stray_sum, ("opening",)),
    ("opening", Attest): Rule(AggregatorSession.stray_attest, ("opening",)),
    ("closing", Connected): Rule(AggregatorSession.note_connected, ("closing",)),
    ("closing", Attest): Rule(AggregatorSession.attest, ("closing", "joining", "done")),
    ("closing", Disconnected): Rule(AggregatorSession.lose_closing, ("closing", "joining", "done")),
    ("closing", Leave): Rule(AggregatorSession.leave_closing, ("closing", "joining", "done")),
    ("closing", Violation): Rule(AggregatorSession.leave_closing, ("closing", "joining", "done")),
    ("closing", Tick): Rule(AggregatorSession.tick_turn, ("closing", "joining")),
    ("closing", Join): Rule(AggregatorSession.join_again, ("closing",)),
    ("closing", Report): Rule(AggregatorSession.stray_report, ("closing",)),
    ("closing", Summed): Rule(AggregatorSession.stray_sum, ("closing",)),
    ("closing", Relay): Rule(AggregatorSession.stray_relay, ("closing",)),
    ("closing", OpenShare): Rule(AggregatorSession.stray_assist, ("closing",)),
}
"""Rule for each event in each phase. Any event may lead to `failed`; in `done` and `failed`, events are
ignored."""
