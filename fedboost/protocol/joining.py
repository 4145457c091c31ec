"""The introduction of an attempt: the parties' greetings, and what follows from all of them."""

from typing import TYPE_CHECKING

from fedboost.errors import PeerError
from fedboost.privacy.encrypted.scheme import Public
from fedboost.privacy.protections import AggregatorSetup
from fedboost.protocol import key_exchange
from fedboost.protocol.attendance import note_loss
from fedboost.protocol.contracts import TrainingState
from fedboost.protocol.events import Connected, Disconnected, Outbox
from fedboost.protocol.key_exchange import Attempt, Trust, session_digest
from fedboost.protocol.messages import Join
from fedboost.protocol.transcript import Transcripts

if TYPE_CHECKING:
    from fedboost.protocol.aggregator import AggregatorSession

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
