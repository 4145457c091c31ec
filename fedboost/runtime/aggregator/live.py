"""What an aggregator does now, for the display on its terminal.

Promises: names, rounds, published metrics and bytes, as its log and its status have them; a session waits
for nothing here but the time that a sample takes.
Refuses: nothing.
"""

import time
from datetime import datetime

from fedboost.people.live import (
    ANSWERED,
    AWAITED,
    AWAY,
    PATIENCE_SECONDS,
    PRESENT,
    LiveFacts,
    LiveParty,
    names,
    passed,
    watched,
)
from fedboost.people.text import counted, delimited
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.runtime.aggregator.sessions import ActiveSession
from fedboost.terms.session import TRAINING


class AggregatorProgress:
    """The progress of an aggregator, for its display."""

    def __init__(self, server: AggregatorServer) -> None:
        self._server = server
        self._start = time.monotonic()
        self._turn = -1, 0
        self._turn_since = self._start

    def facts(self) -> LiveFacts:
        """What the aggregator does now."""
        server = self._server
        title = f"aggregator on {server.address}" if server.address else "aggregator"
        here, waiters = len(server.connected.names), server.analysts.waiters
        about = [f"{counted(here, 'party', 'parties')} connected"]
        if waiters:
            about.append(f"{counted(len(waiters), 'analyst')} waiting")
        about.append(f"up {passed(time.monotonic() - self._start)}")
        active = server.sessions.active
        if active is not None:
            return self._of_session(title, ", ".join(about), active)
        absent = {} if not waiters else server.connected.absent(waiters[0].terms.parties)
        parties = [LiveParty(name, PRESENT) for name in sorted(server.connected.names)]
        away = (LiveParty(name, AWAY, _seen(seen)) for name, seen in absent.items())
        now = "" if waiters else "no session runs or waits"
        return LiveFacts(title, ", ".join(about), now=now, waiting=names(absent), parties=(*away, *parties))

    def _of_session(self, title: str, about: str, active: ActiveSession) -> LiveFacts:
        terms, session, rows = active.terms, active.session, active.meter.history
        awaited, traffic = self._awaited(active), dict(active.meter.traffic)
        seconds = int(time.monotonic() - self._turn_since)
        absent = self._server.connected.absent(terms.parties)
        parties = []
        for name in terms.parties:
            away, due = name in absent, name in awaited
            state = AWAY if away else AWAITED if due else ANSWERED
            note = _seen(absent[name]) if away else f"{seconds} s" if due and seconds else ""
            parties.append(LiveParty(name, state, note, *traffic.get(name, (0, 0))))
        late = awaited if seconds >= PATIENCE_SECONDS else ()
        of = f" of {delimited(active.analyst_name)}" if active.analyst else ""
        about_terms = f"terms {terms.digest[:12]}, {terms.hiding.protection}"
        return LiveFacts(
            title,
            about,
            f"{session.name}{of}, {counted(len(terms.parties), 'party', 'parties')}, {about_terms}",
            len(rows),
            terms.trees.rounds if terms.task in TRAINING else 0,
            watched(rows, terms),
            tuple(row["seconds"] for row in rows),
            sum(sent for sent, _ in traffic.values()),
            sum(received for _, received in traffic.values()),
            f"turn {session.turn}",
            f"{names(late)} ({seconds} s)" if late else "",
            _slowest(active),
            tuple(parties),
        )

    def _awaited(self, active: ActiveSession) -> tuple[str, ...]:
        """The parties whose message is due; and note since when this turn is under way."""
        session = active.session
        if (session.turn, session.attempt) != self._turn:
            self._turn, self._turn_since = (session.turn, session.attempt), time.monotonic()
        return session.awaited


def _slowest(active: ActiveSession) -> str:
    """The party for which the others waited most, if that was for long."""
    waits = active.pace.waits.get(active.pace.slowest)
    if waits is None or waits.seconds < PATIENCE_SECONDS:
        return ""
    return f"slowest: {names([active.pace.slowest])} (the others waited {passed(waits.seconds)})"


def _seen(seen: int) -> str:
    """When a party that is away was here last, on this machine's clock."""
    return f"since {datetime.fromtimestamp(seen):%H:%M}" if seen else "never here"
