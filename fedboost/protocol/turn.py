"""One turn at the aggregator: the sealed parts of each party, the help to open their sum, and the sum.

Promises: one running sum, never a copy per party; a part that is repeated is not added twice.
Refuses: parts out of order, and help that was not asked for (PeerError).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedboost.errors import FedboostError, PeerError, Refused, RosterTooSmall
from fedboost.fixedpoint import Int64
from fedboost.privacy.masked.keys import Group
from fedboost.privacy.protection import Opener
from fedboost.privacy.protections import AggregatorSetup
from fedboost.protocol.attendance import count_loss, note_loss
from fedboost.protocol.contracts import Query
from fedboost.protocol.events import Disconnected, Outbox
from fedboost.protocol.ledger import with_central_noise
from fedboost.protocol.messages import Ask, OpenRequest, OpenShare, Report
from fedboost.protocol.relaying import Order
from fedboost.protocol.transcript import tag_of
from fedboost.terms.terms import Terms

if TYPE_CHECKING:
    from fedboost.protocol.aggregator import AggregatorSession


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
