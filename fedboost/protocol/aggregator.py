"""The aggregator's end of a session: messages of parties in, messages to parties out. Sans-IO.

`rules.RULES` is the session: for each phase and each event the handler, and the phases that it may lead to.
The handlers stand with what they are about: `joining`, `attendance`, `turn`, `closing`.

Promises: one running sum a turn, never a copy per party; the order in which messages of different parties
arrive does not matter; what is repeated, or was sent to an earlier attempt, is ignored; every sum is recorded
before anything that follows from it is sent, and a session that is begun again from its records goes on.
Refuses: parties the terms do not name (they are ignored), joins under other terms, reports out of turn or
order (SessionFailed, kept in `error`). A party that left, or was lost again and again, is not taken back.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from fedboost.errors import FedboostError, PeerError, Refused, RosterTooSmall, SessionFailed, quoted
from fedboost.fixedpoint import Int64
from fedboost.gbdt.booster import Booster
from fedboost.privacy.encrypted.scheme import Public
from fedboost.privacy.masked.keys import Group, RandomBytes
from fedboost.privacy.protection import Opener
from fedboost.privacy.protections import AggregatorSetup
from fedboost.protocol import attendance, key_exchange, relaying
from fedboost.protocol.attendance import Attendance, count_loss, note_loss
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
from fedboost.protocol.relaying import Order
from fedboost.protocol.run import Callback, Record, Round, TrainingRun
from fedboost.protocol.site import with_central_noise
from fedboost.terms.terms import Terms

# ---- The introduction of an attempt: the parties' greetings, and what follows from all of them ----------


MAX_GREETING_BYTES = 64 * 1024
"""Bytes of a greeting without a key for sums: a certificate with its chain is the most of it."""


class Introduction:
    """The greetings of one attempt."""

    def __init__(self) -> None:
        self.greetings: dict[str, bytes] = {}
        self.digest = b""
        """The digest that the parties' keys are bound to."""
        self.public: Public | None = None
        """The key that sums are encrypted under, where they are."""
        self.transcripts: Transcripts | None = None
        """The transcripts, once the parties are introduced."""
        self.setup: AggregatorSetup | None = None
        """The facts that openers are made from, once a query is asked."""

    def join(self, party: str, greeting: bytes, trust: Trust | None, attempt: Attempt) -> None:
        """Take in a party's greeting; a repeated one changes nothing."""
        known = self.greetings.get(party)
        if known == greeting:
            return
        if known is not None:
            raise PeerError("it joined twice")
        if len(greeting) > MAX_GREETING_BYTES and party != attempt.terms.keyholder:
            raise PeerError(f"a greeting of {len(greeting)} bytes; {MAX_GREETING_BYTES} are allowed")
        if trust is not None:  # else the others would refuse it, and seem to be those at fault
            key_exchange.check_greeting(trust, attempt, party, greeting)
        self.greetings[party] = greeting

    def complete(self, attempt: Attempt, roster: tuple[str, ...], state: TrainingState) -> tuple[bytes, ...]:
        """The greetings of the roster, once all are here; the transcript begins with them."""
        greetings = tuple(self.greetings[member] for member in roster)
        self.digest = session_digest(attempt, greetings)
        if attempt.terms.protection.uses_key_holder:
            self.public = key_exchange.public_of(attempt, greetings)
        self.transcripts = Transcripts(attempt.terms, self.digest, state)
        return greetings


def invite(session: "AggregatorSession", party: str, event: Connected) -> Outbox:
    """The party is admitted, if it is waited for."""
    connected = session.attendance.connected
    awaited = not session.is_out(party) and party not in connected
    connected.add(party)
    return [(party, session.admit())] if awaited else []


def note_connected(session: "AggregatorSession", party: str, event: Connected) -> Outbox:
    """The party is noted; it takes part from the next attempt on."""
    session.attendance.connected.add(party)
    return []


def join(session: "AggregatorSession", party: str, join: Join) -> Outbox:
    """The party has joined; with the last one all are introduced, and the query is asked."""
    session.introduction.join(party, join.greeting, session.trust, session.current_attempt)
    session.attendance.mark_back(party)
    return [] if any(map(session.awaits, session.roster)) else session.introduce()


def join_again(session: "AggregatorSession", party: str, join: Join) -> Outbox:
    """A repeated Join is ignored; any other breaks the protocol."""
    if session.introduction.greetings.get(party) != join.greeting:
        raise PeerError("it joined twice")
    return []


def lose_joining(session: "AggregatorSession", party: str, event: Disconnected) -> Outbox:
    """The party has to join again."""
    if note_loss(session, party, event):
        session.introduction.greetings.pop(party, None)
    return []


def tick_joining(session: "AggregatorSession") -> Outbox:
    """A party that is late or away for longer than rejoin_timeout is waited for, ends the session or
    leaves the roster, as on_loss says; not before the parties have met."""
    if (
        session.attempt > 1 and session.attendance.now >= session.deadline
    ):  # at first somebody may have to approve
        for party in session.awaited:
            session.attendance.mark_away(party, f"did not join again in turn {session.turn}")
    lost = session.attendance.overdue(session.awaited, session.terms.session.rejoin_timeout)
    waits = session.terms.session.on_loss == "wait" and session.booster is None
    return [] if waits or not lost else give_up(session, lost)


def give_up(session: "AggregatorSession", lost: list[str]) -> Outbox:
    """Go on without parties that did not come back, or fail."""
    party, on_loss = lost[0], session.terms.session.on_loss
    reason = f"party {party} {session.attendance.reason(party)}"
    if session.booster is not None:  # they have not signed; with too few signatures it is worth nothing
        hopeless = on_loss != "wait" or bool(session.attendance.barred & set(lost))
        return session.conclude() if hopeless or len(session.attestations) >= session.terms.signers else []
    if on_loss == "stop":
        if party in session.attendance.barred:
            return session.fail(reason)
        return session.fail(f"{reason}; it was not back within {session.terms.session.rejoin_timeout:g} s")
    left = tuple(member for member in session.roster if member not in lost)
    if len(left) < session.terms.min_roster:
        return session.fail(f"{reason}; {len(left)} parties are left, {session.terms.min_roster} are needed")
    if session.run.grows_a_tree:
        session.run.cut()
        session.helped = False
    if session.helped or not session.run.may_change:
        return session.fail(
            f"{reason}; the roster cannot change in turn {session.turn}, where the difference of two sums "
            f"would show that party's rows"
        )
    session.run.change_roster(left)
    return session.restart_attempt()


# ---- One turn at the aggregator: the sealed parts of each party, the help to open their sum -------------
# And the sum.
# Promises: one running sum, never a copy per party; a part that is repeated is not added twice.
# Refuses: parts out of order, and help that was not asked for (PeerError).


class Turn:
    """The turn of one query, asked of one roster in one attempt."""

    def __init__(self, number: int, roster: Iterable[str], opener: Opener) -> None:
        self.helping: set[str] = set()
        """Parties whose help to open the sum is due."""
        self.reporting = set(roster)
        """Parties whose vector is not in the sum yet."""
        self.relayed: defaultdict[str, Order] = defaultdict(Order)
        """The relays of each party that were passed on."""
        self._number = number
        self._opener = opener
        self._parts = dict.fromkeys(self.reporting, 0)
        self._help: dict[str, bytes] = {}

    def has_reported(self, party: str) -> bool:
        """True once the whole vector of a party was added."""
        return party in self._parts and party not in self.reporting

    def repeats(self, party: str, report: Report) -> bool:
        """True for a part that was added already, or belongs to an earlier turn."""
        known = self._parts.get(party, 0)
        return report.turn < self._number or (report.turn == self._number and report.part < known)

    def report(self, party: str, report: Report) -> None:
        """Add the next part of a party's sealed vector."""
        if report.turn != self._number:
            raise PeerError(f"a report for turn {report.turn} in turn {self._number}")
        if report.part != self._parts[party] or party not in self.reporting:
            raise PeerError(f"part {report.part} of its report for turn {report.turn} is out of order")
        if report.ctx != (b"" if report.part else self._opener.ctx):
            raise PeerError(
                f"its report answers another question, roster or attempt than that of the others in turn "
                f"{report.turn}"
            )
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
        """The help that is still due, by party; empty when the sum can be opened. Raises RosterTooSmall if it
        never can."""
        requests = self._opener.requests()
        self.helping = set(requests)
        return requests

    def repeats_help(self, party: str, assist: OpenShare) -> bool:
        """True for help that was given already, or belongs to an earlier turn."""
        return assist.turn < self._number or self._help.get(party) == assist.answer

    def assist(self, party: str, assist: OpenShare) -> None:
        """Take in a party's help."""
        if party not in self.helping:
            raise PeerError(f"help with turn {assist.turn} that was not asked for")
        self._opener.assist(party, assist.answer)
        self._help[party] = assist.answer
        self.helping.discard(party)

    def open(self) -> Int64:
        """The sum of the cells of all parties."""
        return self._opener.open()


def report(session: "AggregatorSession", party: str, report: Report) -> Outbox:
    """The part is added; with the last one of all, help is asked for or the sum is opened."""
    turn = session.current_turn
    assert turn is not None
    if turn.repeats(party, report):
        return []
    turn.report(party, report)
    return [] if turn.reporting else seek_help(session)


def stray_report(session: "AggregatorSession", party: str, report: Report) -> Outbox:
    """A repeated Report is ignored; any other breaks the protocol."""
    if session.current_turn is not None and session.current_turn.repeats(party, report):
        return []
    raise PeerError(f"a report for turn {report.turn} while {session.phase}")


def seek_help(session: "AggregatorSession") -> Outbox:
    """All reports are in: ask for the help that the sum still needs, or open it."""
    assert session.current_turn is not None
    try:
        requests = session.current_turn.requests()
    except RosterTooSmall:
        return session.restart_attempt()
    if not requests:
        return open_sum(session)
    session.phase, session.helped = "opening", True
    session.set_deadline()
    return [
        (party, OpenRequest(session.turn, session.attempt, request)) for party, request in requests.items()
    ]


def assist(session: "AggregatorSession", party: str, assist: OpenShare) -> Outbox:
    """The help is taken in; with the last of it more is asked for, or the sum is opened."""
    assert session.current_turn is not None
    if session.current_turn.repeats_help(party, assist):
        return []
    session.current_turn.assist(party, assist)
    return [] if session.current_turn.helping else seek_help(session)


def stray_assist(session: "AggregatorSession", party: str, assist: OpenShare) -> Outbox:
    """Repeated help is ignored; any other breaks the protocol."""
    if session.current_turn is not None and session.current_turn.repeats_help(party, assist):
        return []
    raise PeerError(f"help with turn {assist.turn} that was not asked for")


def open_sum(session: "AggregatorSession") -> Outbox:
    """The sum opens, and the program goes on: to its next query, or to its model."""
    assert session.current_turn is not None
    run, attendance = session.run, session.attendance
    total = run.pending.from_cells(session.current_turn.open())
    if session.draw is not None and session.terms.noise is not None:
        total = with_central_noise(run.pending, session.terms, total, session.draw)
    if run.last is not None:
        if np.array_equal(total, run.last):
            return session.close()
        if session.attestations:  # given before, to the model that there is
            return session.conclude()
        return session.fail(f"turn {run.turn} was asked again, and its sum is another one")
    try:
        run.take(total)
    except FedboostError as error:  # the sum cannot be, or there is nothing to learn: nobody's fault
        where = f"turn {run.turn}: " if isinstance(error, PeerError) else ""
        return session.fail(f"{where}{error}")
    session.helped = False
    attendance.begin_turn()
    if run.booster is not None:
        return session.close()
    roster = set(run.roster)
    back = attendance.connected - roster - attendance.barred
    if back and run.may_change and not run.pending.ends_tree:
        run.change_roster(tuple(p for p in session.terms.parties if p in back or p in roster))
        return session.restart_attempt()
    return session.ask() if roster == attendance.introduced else session.restart_attempt()


def lose_in_turn(session: "AggregatorSession", party: str, event: Disconnected) -> Outbox:
    """If its report is in, the turn goes on (in two legs the others help to recover its self mask); else the
    attempt restarts."""
    if not note_loss(session, party, event):
        return []
    assert session.current_turn is not None
    if not session.current_turn.has_reported(party):
        return session.restart_attempt()
    session.current_turn.lose(party)
    turn = session.current_turn
    return [] if turn.reporting or turn.helping else seek_help(session)


def tick(session: "AggregatorSession") -> Outbox:
    """Past turn_timeout the parties that did not answer count as lost, and the attempt restarts."""
    if session.attendance.now < session.deadline:
        return []
    late = f"did not answer turn {session.turn} within {session.seconds:g} s"
    for party in session.awaited:
        session.attendance.mark_late(party, late)
        count_loss(session, party)
    return session.restart_attempt()


def turns_of(terms: Terms, query: Query) -> int:
    """How many times turn_timeout parties have: lists that go around are worked on by one after the other."""
    return max(len(block.parties) for block in terms.blocks) if query.relayed_bytes(terms) else 1


def opener_of(session: "AggregatorSession", ask: Ask) -> Opener:
    """The opener of this question's sum. Refused if it has more cells than the protection allows."""
    terms, introduction = session.terms, session.introduction
    protection = terms.protection
    assert introduction.transcripts is not None
    transcript = introduction.transcripts.whole
    if terms.hides_columns:  # the label holder opens what it was told of
        transcript = introduction.transcripts.of(terms.keyholder or "")
    tag, max_cells = tag_of(ask, transcript), protection.max_cells
    if max_cells is not None and tag.cells > max_cells:
        raise Refused(
            f"a sum of {tag.cells:,} cells; those under protection {terms.hiding.protection} have at "
            f"most {max_cells:,}: lower max_bin or max_depth"
        )
    if introduction.setup is None:
        group, shrinks = Group.of(terms.parties, terms.hiding.colluding), terms.session.on_loss == "shrink"
        keys = introduction.public, terms.keyholder
        introduction.setup = AggregatorSetup(group, introduction.digest, session.draw, *keys, shrinks)
    hidden = ask.query.hidden(terms, session.run.state)
    setup = introduction.setup if hidden is None else replace(introduction.setup, hidden=hidden)
    return protection.opener(tag, setup)


# ---- The end of a training: the parties' signatures on what they did and on the model -------------------
# Refuses: signatures on other queries or trees than the session's (PeerError).


MAX_SIGNATURE_BYTES = 64 * 1024
"""Bytes of a signature with its chain of certificates."""
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
        """structure: the structure of the model as a party was told it; of all where they are told the same,
        as that of ''; thresholds: those that parties give."""
        self.thresholds = thresholds
        self.digest = digest
        """The digest of the session that the signatures are bound to."""
        self.attestations: dict[str, Attest] = {}
        self.unsigned: set[str] = set()
        """Parties that left without a signature."""
        self._transcripts = transcripts
        self._structure = cache(structure)

    def lacks(self, party: str) -> bool:
        """True while the signature of a party may still come."""
        return party not in self.attestations and party not in self.unsigned

    def attest(self, party: str, attest: Attest, trust: Trust | None, attempt: Attempt) -> None:
        """Take in a party's signature."""
        if party in self.attestations:
            raise PeerError("an attestation that was not asked for")
        if attest.transcript != self._transcripts.signed(party):
            raise PeerError("it attests other questions than were asked")
        if attest.structure != self._structure(attempt.terms.blocks.viewer(party)):
            raise PeerError("it attests other trees than those that were asked for")
        if len(attest.part) != (PART_BYTES if attempt.terms.keeps_parts else 0):
            raise PeerError("an attestation without the hash of its part of the model, or with one too many")
        if len(attest.certificate) + len(attest.signature) > MAX_SIGNATURE_BYTES:
            raise PeerError("a signature and certificate of more bytes than can be")
        if trust is not None:
            key_exchange.check_attest(trust, attempt, self.digest, party, attest)
        self.thresholds.take(party, attest.thresholds)
        self.attestations[party] = attest


def finished(session: "AggregatorSession") -> Outcome:
    """The model with the thresholds of all parties. Refused while one is missing."""
    made = session.run.outcome
    assert made is not None
    given = session.closing.thresholds if session.closing else Thresholds(session.terms, made.booster)
    for party in filter(given.lacks, session.terms.parties):
        raise Refused(f"party {party} gave no thresholds of its columns, and the model needs them")
    return replace(made, booster=given.of_model())


def attest(session: "AggregatorSession", party: str, attest: Attest) -> Outbox:
    """The signature is checked; with the last one the session is done."""
    assert session.closing is not None
    if session.attestations.get(party) == attest:
        return []
    session.closing.attest(party, attest, session.trust, session.current_attempt)
    return session.end()


def stray_attest(session: "AggregatorSession", party: str, attest: Attest) -> Outbox:
    """A repeated Attest is ignored; any other breaks the protocol."""
    if session.attestations.get(party) == attest:
        return []
    raise PeerError("an attestation that was not asked for")


def lose_closing(session: "AggregatorSession", party: str, event: Disconnected) -> Outbox:
    """Once all others have signed, the attempt restarts for its signature."""
    return session.end() if note_loss(session, party, event) else []


def leave_closing(session: "AggregatorSession", party: str, event: Leave | Violation) -> Outbox:
    """The model lacks this party's signature, and says so. It fails if it lacks thresholds, too, or a part of
    it that this party alone was to keep."""
    assert session.closing is not None
    session.closing.unsigned.add(party)
    if session.closing.thresholds.lacks(party) or session.terms.keeps_parts:
        reason = event.reason if isinstance(event, Violation) else f"left: {quoted(event.reason)}"
        return session.fail(f"party {party} {reason}")
    return session.end()


# ---- The rules of a session at the aggregator: what each event does in each phase -----------------------
# docs/protocol.md has them in words, made by `python -m fedboost.protocol.rules_reference`.


class Rule(NamedTuple):
    """The effect of an event in a phase: the handler, whose docstring says it, and the phases it may lead to
    besides `failed`."""

    handler: Callable[..., Outbox]
    leads_to: tuple[Phase, ...]


_TURN: tuple[Phase, ...] = ("joining", "asking", "opening", "closing", "done")
"""What a turn may lead to once its sum is opened."""

RULES: dict[tuple[Phase, type], Rule] = {
    ("joining", Connected): Rule(invite, ("joining",)),
    ("joining", Join): Rule(join, ("joining", "asking")),
    ("joining", Disconnected): Rule(lose_joining, ("joining",)),
    ("joining", Leave): Rule(attendance.leave, ("joining",)),
    ("joining", Violation): Rule(attendance.expel, ("joining",)),
    ("joining", Tick): Rule(tick_joining, ("joining", "done")),
    ("joining", Report): Rule(stray_report, ("joining",)),
    ("joining", Relay): Rule(relaying.stray_relay, ("joining",)),
    ("joining", OpenShare): Rule(stray_assist, ("joining",)),
    ("joining", Attest): Rule(stray_attest, ("joining",)),
    ("asking", Connected): Rule(note_connected, ("asking",)),
    ("asking", Report): Rule(report, _TURN),
    ("asking", Relay): Rule(relaying.pass_on, ("asking",)),
    ("asking", Disconnected): Rule(lose_in_turn, _TURN),
    ("asking", Leave): Rule(attendance.leave, _TURN),
    ("asking", Violation): Rule(attendance.expel, _TURN),
    ("asking", Tick): Rule(tick, ("asking", "joining")),
    ("asking", Join): Rule(join_again, ("asking",)),
    ("asking", OpenShare): Rule(stray_assist, ("asking",)),
    ("asking", Attest): Rule(stray_attest, ("asking",)),
    ("opening", Connected): Rule(note_connected, ("opening",)),
    ("opening", OpenShare): Rule(assist, _TURN),
    ("opening", Disconnected): Rule(lose_in_turn, _TURN),
    ("opening", Leave): Rule(attendance.leave, _TURN),
    ("opening", Violation): Rule(attendance.expel, _TURN),
    ("opening", Tick): Rule(tick, ("opening", "joining")),
    ("opening", Join): Rule(join_again, ("opening",)),
    ("opening", Relay): Rule(relaying.stray_relay, ("opening",)),
    ("opening", Report): Rule(stray_report, ("opening",)),
    ("opening", Attest): Rule(stray_attest, ("opening",)),
    ("closing", Connected): Rule(note_connected, ("closing",)),
    ("closing", Attest): Rule(attest, ("closing", "joining", "done")),
    ("closing", Disconnected): Rule(lose_closing, ("closing", "joining", "done")),
    ("closing", Leave): Rule(leave_closing, ("closing", "joining", "done")),
    ("closing", Violation): Rule(leave_closing, ("closing", "joining", "done")),
    ("closing", Tick): Rule(tick, ("closing", "joining")),
    ("closing", Join): Rule(join_again, ("closing",)),
    ("closing", Report): Rule(stray_report, ("closing",)),
    ("closing", Relay): Rule(relaying.stray_relay, ("closing",)),
    ("closing", OpenShare): Rule(stray_assist, ("closing",)),
}
"""The session: every phase and event. All may fail; `done` and `failed` answer nothing."""


# ---- The aggregator's end of a session: messages of parties in, messages to parties out -----------------


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
