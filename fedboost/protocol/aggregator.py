"""The aggregator's end of a session: what parties say in, what to tell them out. Sans-IO.

    state      event                     next
    gathering  Join of the last          asking: introduces the parties, asks what the program waits for
    asking     Report, not the last      asking, added to the running sum
    asking     Report, the last          opening, if the protection needs help; else as below
    opening    Assist of the last        the sum opens, the program resumes: asking, or closing with its model
    closing    Attest of the last        done
    asking     Gone, report not in       gathering: all greet each other anew, and the turn is asked again
    asking     Gone, report in           goes on; gathering before the next question
    opening    Gone                      the others are asked to recover it; gathering if they are too few
    closing    Gone, not signed          gathering: the last question is asked again, for the signatures
    gathering  Gone                      gathering
    any        Tick past the deadline    gathering, as if who is late were gone
    gathering  Tick past the deadline    who has not joined is as good as gone; not before the first turn
    gathering  Tick, rejoin_timeout      as the terms say: wait, failed, or a smaller roster
    any        Leave, or a fault         failed (once there is a model: that signature is missing)
    done, failed                         nothing is answered any more

Promises: one running sum a turn, never a copy per party; the order in which messages of different parties
arrive does not matter, and what was said twice, or to an earlier attempt, is not heard; every sum is recorded
before anything that follows from it is said, and a session that is begun again from its records goes on.
Refuses: parties the terms do not name (they are not heard), joins under other terms, reports out of turn or
order (SessionFailed, kept in `error`). A party that left, or was lost again and again, is not taken back.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedboost.errors import (
    FedboostError,
    PeerError,
    Refused,
    RosterTooSmall,
    SessionFailed,
    quoted,
)
from fedboost.gbdt.booster import Booster
from fedboost.privacy.encrypted.scheme import Public
from fedboost.privacy.masked.pairwise import Group
from fedboost.privacy.protection import Opener
from fedboost.privacy.protections import PROTECTIONS, AggregatorSetup
from fedboost.privacy.shamir import RandomBytes
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Program, TrainingState
from fedboost.protocol.journal import Record
from fedboost.protocol.key_exchange import Attempt, Trust, session_digest
from fedboost.protocol.ledger import with_central_noise
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
    Request,
    ToParty,
)
from fedboost.protocol.party import first_transcript, next_transcript, tag_of
from fedboost.protocol.run import Callback, Course, Round
from fedboost.terms.terms import Terms

MAX_LOSSES = 5
"""How often a party may be lost or late in one turn, before it counts as gone for good where the terms do not
wait: else one that always comes back, and never answers, would keep the others from their model."""
MAX_GREETING_BYTES = 64 * 1024
"""Bytes of a greeting without a key for sums: a certificate with its chain is the most of it."""
MAX_SIGNATURE_BYTES = 64 * 1024
"""Bytes of a signature with its chain of certificates."""

Outbox = list[tuple[str, ToParty]]
State = Literal["gathering", "asking", "opening", "closing", "done", "failed"]


@dataclass(frozen=True)
class Here:
    """A party is connected."""


@dataclass(frozen=True)
class Gone:
    """The connection to a party was lost."""

    reason: str


class AggregatorSession:
    """From the first Admit to the last Bye. `state`: where every training begins; `record` is called with
    what must outlive the process; `past` is what an earlier process recorded of this session (ConfigError if
    it cannot be); by `trust` greetings and signatures are checked, where parties sign; `draw`: cryptographic
    randomness, for noise drawn here; `callbacks` may end the training; `request`: who asked for the session,
    where that is signed."""

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
        self.state: State = "gathering"
        self.attestations: dict[str, Attest] = {}
        self.error: SessionFailed | None = None
        self.digest = b""
        """What the signatures are bound to, once there are any."""
        self.course = Course(terms, program, state, record, past, callbacks)
        """What of the session outlives the process."""
        self._protection = PROTECTIONS[terms.hiding.protection]
        self._trust = trust
        self._draw = draw
        self._helped = bool(self.course.attempt)
        """Whether parties may have helped to open the sum of this turn, in any attempt or process."""
        self._here: set[str] = set()
        self._away: dict[str, tuple[float, str]] = {}
        """Parties that were lost or are late: since when, and why."""
        self._losses: Counter[str] = Counter()
        """How often a party was lost or late in this turn."""
        self._barred: set[str] = set()
        """Parties that are not taken back: they left, broke the protocol, or were lost too often."""
        self._met: set[str] = set()
        """Those of the roster that were introduced in this attempt, and have been here since."""
        self._unsigned: set[str] = set()
        self._now = 0.0
        self._deadline = 0.0
        self._greetings: dict[str, bytes] = {}
        self._met_as = b""
        """What the parties' keys are bound to in this attempt."""
        self._transcript = b""
        self._structure = b""
        self._opener: Opener | None = None
        self._public: Public | None = None
        """What sums are encrypted under, where they are."""
        self._parts: dict[str, int] = {}
        self._helping: set[str] = set()
        self._helped_with: dict[str, bytes] = {}

    # ---- what happens to it -------------------------------------------------------------------------

    def start(self, here: Iterable[str] | None = None) -> Outbox:
        """Run the program up to where it waits for a sum, and gather the parties that are at hand (all unless
        given)."""
        self._here = set(self.terms.parties if here is None else here) & set(self.terms.parties)
        draws = self.terms.noise is not None and self.terms.noise.placement == "central"
        if self._protection.uses_key_holder and self._draw is None:
            return self._fail("sums are encrypted, and the aggregator has nothing to draw blinds from")
        if draws and self._draw is None:
            return self._fail(
                "the terms say that the aggregator draws noise, and it has nothing to draw from"
            )
        try:
            self.course.start()
        except FedboostError as error:
            return self._fail(str(error))
        return self._gather()

    def handle(self, party: str, event: FromParty | Here | Gone) -> Outbox:
        """Take in one event of one party; the messages to send now."""
        if self.state in ("done", "failed") or party not in self.terms.parties:
            return []
        try:
            match event:
                case Here():
                    return self._arrive(party)
                case Gone(reason):
                    return self._lose(party, f"was lost: {reason}")
                case Leave(_, session) if session not in ("", self.name):
                    return []  # its last word in the session before this one
                case Leave() | Join() | Report() | Assist() | Attest() if self._is_out(party):
                    return []
                case Leave(reason):
                    said = quoted(reason).removeprefix(f"party {party}: ")
                    if said.startswith(f"party {party} "):  # one subject is enough
                        said = f"it {said.removeprefix(f'party {party} ')}"
                    return self._part_with(party, f"left: {said}")
                case Join(session, digest, attempt, greeting):
                    if session != self.name or digest != self.terms.digest:
                        raise PeerError("it joined under other terms")
                    return self._join(party, greeting) if self._is_current(attempt) else []
                case Report():
                    return self._report(party, event) if self._is_current(event.attempt) else []
                case Assist():
                    return self._assist(party, event) if self._is_current(event.attempt) else []
                case Attest():
                    return self._attest(party, event) if self._is_current(event.attempt) else []
        except PeerError as error:
            return self._part_with(party, f"broke the protocol: {error}")
        except FedboostError as error:
            return self._fail(f"turn {self.turn}: {error}")

    def tick(self, now: float) -> Outbox:
        """It is `now` (seconds of any steady clock): who is late is gone."""
        self._now = now
        try:
            if self.state in ("asking", "opening", "closing") and now >= self._deadline:
                late = f"did not answer turn {self.turn} within {self.terms.session.turn_timeout:g} s"
                for party in self.awaited:
                    self._away[party] = (now, late)
                    self._count_loss(party)
                return self._gather()
            if self.state == "gathering":
                if self.attempt > 1 and now >= self._deadline:  # the first time, somebody may have to approve
                    late = f"did not join again in turn {self.turn}"
                    self._away = dict.fromkeys(self.awaited, (now, late)) | self._away
                since = now - self.terms.session.rejoin_timeout
                lost = [party for party in self.awaited if self._away.get(party, (now, ""))[0] < since]
                if lost and (self.terms.session.on_loss != "wait" or self.booster is not None):
                    return self._give_up(lost)
        except FedboostError as error:
            return self._fail(f"turn {self.turn}: {error}")
        return []

    def finish(self) -> None:
        """End the training with the round under way: the model is that of the rounds so far."""
        self.course.enough = True

    @property
    def roster(self) -> tuple[str, ...]:
        """The parties whose vectors go into the sums now."""
        return self.course.roster

    @property
    def turn(self) -> int:
        """The number of the question that is asked now."""
        return self.course.turn

    @property
    def attempt(self) -> int:
        """How often the parties have gathered."""
        return self.course.attempt

    @property
    def history(self) -> list[Round]:
        """The rounds so far."""
        return self.course.history

    @property
    def booster(self) -> Booster | None:
        """The model, once the program has ended."""
        return self.course.booster

    @property
    def awaited(self) -> tuple[str, ...]:
        """The parties whose message is due."""
        match self.state:
            case "gathering":
                return tuple(p for p in self.roster if p not in self._greetings)
            case "asking":
                return tuple(p for p in self.roster if not self._reported(p))
            case "opening":
                return tuple(p for p in self.roster if p in self._helping)
            case "closing":
                done = {*self.attestations, *self._unsigned}
                return tuple(p for p in self.roster if p in self._met and p not in done)
            case _:
                return ()

    def _is_out(self, party: str) -> bool:
        """Whether nothing that a party says is heard, but that it comes and goes."""
        return party not in self.roster or party in self._barred

    def _is_current(self, attempt: int) -> bool:
        """Whether it was said to this attempt. PeerError for one that has not begun."""
        if attempt > self.attempt:
            raise PeerError(f"it speaks of attempt {attempt} in attempt {self.attempt}")
        return attempt == self.attempt

    # ---- gathering ----------------------------------------------------------------------------------

    def _gather(self) -> Outbox:
        """Have all parties at hand greet each other, with new keys; then the question is asked."""
        self.course.gather()
        self.state, self._opener, self._greetings, self._met = "gathering", None, {}, set()
        self._set_deadline()
        return [(party, self._admit()) for party in self.roster if party in self._here - self._barred]

    def _admit(self) -> Admit:
        return Admit(self.name, self.terms, self.attempt, self.request)

    @property
    def _current(self) -> Attempt:
        """The attempt that is under way, as signatures are bound to it."""
        nonce = b"" if self.request is None else self.request.nonce
        return Attempt(self.name, self.attempt, self.terms, nonce)

    def _arrive(self, party: str) -> Outbox:
        waited_for = self.state == "gathering" and not self._is_out(party) and party not in self._here
        self._here.add(party)
        return [(party, self._admit())] if waited_for else []

    def _join(self, party: str, greeting: bytes) -> Outbox:
        known = self._greetings.get(party)
        if known == greeting:
            return []
        if self.state != "gathering" or known is not None:
            raise PeerError("it joined twice")
        if len(greeting) > MAX_GREETING_BYTES and party != self.terms.hiding.keyholder:
            raise PeerError(f"a greeting of {len(greeting)} bytes; {MAX_GREETING_BYTES} are allowed")
        if self._trust is not None:  # else the others would refuse it, and seem to be those at fault
            key_exchange.check_greeting(self._trust, self._current, party, greeting)
        self._greetings[party] = greeting
        self._away.pop(party, None)
        return [] if self.awaited else self._meet()

    def _meet(self) -> Outbox:
        greetings = tuple(self._greetings[member] for member in self.roster)
        self._met_as, self._met = session_digest(self._current, greetings), set(self.roster)
        if self._protection.uses_key_holder:
            self._public = key_exchange.public_of(self.terms, greetings)
        self._transcript = first_transcript(self._met_as, self.course.so_far)
        return self._to_roster(Meet(greetings, self.course.so_far)) + self._ask()

    def _lose(self, party: str, reason: str) -> Outbox:
        self._here.discard(party)
        self._met.discard(party)
        if party not in self.roster:
            return []
        self._away.setdefault(party, (self._now, reason))
        self._count_loss(party)
        match self.state:
            case "gathering":
                self._greetings.pop(party, None)
                return []
            case "closing":
                return self._end()
        if not self._reported(party):
            return self._gather()
        assert self._opener is not None
        self._helping.discard(party)
        self._opener.lose(party)
        return [] if self.awaited else self._seek_help()

    def _count_loss(self, party: str) -> None:
        self._losses[party] += 1
        waits = self.terms.session.on_loss == "wait" and self.booster is None
        if self._losses[party] > MAX_LOSSES and not waits:
            self._barred.add(party)
            _, reason = self._away[party]
            again = f"{reason}, for the {self._losses[party]}th time in turn {self.turn}"
            self._away[party] = (float("-inf"), again)

    def _part_with(self, party: str, reason: str) -> Outbox:
        """A party left, or broke the protocol."""
        if self.state == "closing":  # the model is done: it lacks this party's signature, and says so
            self._unsigned.add(party)
            return self._end()
        if self.booster is None and (self.terms.session.on_loss != "shrink" or not self.course.so_far.rounds):
            return self._fail(f"party {party} {reason}")
        self._barred.add(party)
        self._away[party] = (float("-inf"), reason)
        return self._lose(party, reason)

    def _give_up(self, lost: list[str]) -> Outbox:
        """Go on without parties that did not come back, or fail."""
        party = lost[0]
        why = f"party {party} {self._away[party][1]}"
        if self.booster is not None:  # they have not signed; with too few signatures it is worth nothing
            hopeless = self.terms.session.on_loss != "wait" or bool(self._barred & set(lost))
            return self._finish() if hopeless or len(self.attestations) >= self.terms.signers else []
        if self.terms.session.on_loss == "stop":
            for_good = party in self._barred
            seconds = f"{self.terms.session.rejoin_timeout:g} s"
            return self._fail(why if for_good else f"{why}; it was not back within {seconds}")
        left = tuple(member for member in self.roster if member not in lost)
        if len(left) < self.terms.min_roster:
            return self._fail(f"{why}; {len(left)} parties are left, {self.terms.min_roster} are needed")
        if self.course.grows_a_tree:
            self.course.cut()
            self._helped = False
        if self._helped or not self.course.may_change:
            return self._fail(
                f"{why}; the roster cannot change in turn {self.turn}, where the difference of two sums "
                f"would show that party's rows"
            )
        self.course.change_roster(left)
        return self._gather()

    # ---- a turn -------------------------------------------------------------------------------------

    def _ask(self) -> Outbox:
        query = self.course.pending
        self._transcript = next_transcript(self._transcript, query)
        ask = Ask(self.turn, self.attempt, self.roster, query)
        self._opener = self._opener_of(ask)
        self.state, self._parts, self._helped_with = "asking", dict.fromkeys(self.roster, 0), {}
        self._set_deadline()
        return self._to_roster(ask)

    def _opener_of(self, ask: Ask) -> Opener:
        tag, terms, max_cells = tag_of(ask, self._transcript), self.terms, self._protection.max_cells
        if max_cells is not None and tag.cells > max_cells:
            raise Refused(
                f"a sum of {tag.cells:,} cells; those under protection {terms.hiding.protection} have at "
                f"most {max_cells:,}: lower max_bin or max_depth"
            )
        group = Group.of(terms.parties, terms.hiding.colluding)
        setup = AggregatorSetup(group, self._met_as, self._draw, self._public, terms.hiding.keyholder)
        return self._protection.opener(tag, setup)

    def _report(self, party: str, report: Report) -> Outbox:
        known = self._parts.get(party, 0)
        if report.turn < self.turn or (report.turn == self.turn and report.part < known):
            return []  # said twice
        if self.state != "asking" or self._opener is None or report.turn != self.turn:
            where = f"in turn {self.turn}" if self.state == "asking" else f"while {self.state}"
            raise PeerError(f"a report for turn {report.turn} {where}")
        if report.part != known or self._reported(party):
            raise PeerError(f"part {report.part} of its report for turn {report.turn} is out of order")
        self._opener.add(party, report.part, report.cells)
        if report.part + 1 == self._opener.chunks:
            self._opener.note(party, report.note)
        self._parts[party] = report.part + 1
        return [] if self.awaited else self._seek_help()

    def _reported(self, party: str) -> bool:
        return self._opener is not None and self._parts[party] == self._opener.chunks

    def _seek_help(self) -> Outbox:
        """Every report is in: ask for what the sum still needs to be opened, or open it."""
        assert self._opener is not None
        try:
            requests = self._opener.requests()
        except RosterTooSmall:
            return self._gather()
        if not requests:
            return self._open()
        self.state, self._helping, self._helped = "opening", set(requests), True
        self._set_deadline()
        return [(party, Open(self.turn, self.attempt, request)) for party, request in requests.items()]

    def _assist(self, party: str, assist: Assist) -> Outbox:
        if assist.turn < self.turn or self._helped_with.get(party) == assist.answer:
            return []  # said twice
        if self.state != "opening" or self._opener is None or party not in self._helping:
            raise PeerError(f"help with turn {assist.turn} that was not asked for")
        self._opener.assist(party, assist.answer)
        self._helped_with[party] = assist.answer
        self._helping.discard(party)
        return [] if self._helping else self._seek_help()

    def _open(self) -> Outbox:
        assert self._opener is not None
        total, self._opener = self.course.pending.from_cells(self._opener.open()), None
        if self._draw is not None:
            total = with_central_noise(self.course.pending, self.terms, total, self._draw)
        if self.course.last is not None:
            if not np.array_equal(total, self.course.last):
                if self.attestations:  # given before, to the model that there is
                    return self._finish()
                return self._fail(f"turn {self.turn} was asked again, and its sum is another one")
            return self._close()
        try:
            self.course.take(total)
        except FedboostError as error:  # the sum cannot be, or there is nothing to learn: nobody's fault
            where = f"turn {self.turn}: " if isinstance(error, PeerError) else ""
            return self._fail(f"{where}{error}")
        self._helped = False
        self._losses.clear()
        if self.booster is not None:
            return self._close()
        back = self._here - set(self.roster) - self._barred
        if back and self.course.may_change and not self.course.pending.ends_tree:
            self.course.change_roster(tuple(p for p in self.terms.parties if p in back or p in self.roster))
            return self._gather()
        return self._ask() if set(self.roster) == self._met else self._gather()

    # ---- the end ------------------------------------------------------------------------------------

    def _close(self) -> Outbox:
        self.state, self.attestations, self._unsigned = "closing", {}, set()
        self.digest, self._structure = self._met_as, self.course.structure
        self._set_deadline()
        outbox = self._to_roster(Close(self.attempt, self.course.rounds))
        return outbox + self._end()

    def _attest(self, party: str, attest: Attest) -> Outbox:
        if self.attestations.get(party) == attest:
            return []
        if self.state != "closing" or party in self.attestations:
            raise PeerError("an attestation that was not asked for")
        if attest.transcript != self._transcript:
            raise PeerError("it attests other questions than were asked")
        if attest.structure != self._structure:
            raise PeerError("it attests other trees than those that were asked for")
        if len(attest.certificate) + len(attest.signature) > MAX_SIGNATURE_BYTES:
            raise PeerError("a signature and certificate of more bytes than can be")
        if self._trust is not None:
            key_exchange.check_attest(self._trust, self._current, self.digest, party, attest)
        self.attestations[party] = attest
        return self._end()

    def _end(self) -> Outbox:
        """Done, unless somebody has yet to sign: whoever is here, then whoever may come back."""
        if self.awaited:
            return []
        missing = set(self.roster) - set(self.attestations) - self._unsigned
        return self._gather() if missing else self._finish()

    def _finish(self) -> Outbox:
        self.state, self._public = "done", None
        return self._to_here(Bye())

    def _fail(self, reason: str) -> Outbox:
        self.state, self.error = "failed", SessionFailed(reason)
        self._opener = self._public = None
        self.course.close()
        return self._to_here(Bye(reason))

    def _set_deadline(self) -> None:
        self._deadline = self._now + self.terms.session.turn_timeout

    def _to_roster(self, message: ToParty) -> Outbox:
        return [(party, message) for party in self.roster if party in self._met]

    def _to_here(self, message: ToParty) -> Outbox:
        return [(party, message) for party in self.terms.parties if party in self._here]
