"""What an aggregator does now, for the display on its terminal.

Promises: names, rounds, published metrics and bytes, as its log and its status have them; a session waits
for nothing here but the time that a sample takes.
Refuses: nothing.
"""

import time
from collections import Counter
from datetime import datetime

from fedboost.people.live import (
    ANSWERED,
    AWAITED,
    AWAY,
    PRESENT,
    LiveFacts,
    LiveParty,
    names,
    passed,
    watched,
)
from fedboost.people.text import counted, delimited
from fedboost.runtime.aggregator.active_session import ActiveSession
from fedboost.runtime.aggregator.server import AggregatorServer
from fedboost.terms.session import TRAINING

MIN_SAMPLES = 20
"""Samples with an answer missing, before a party is called the slowest."""
PATIENCE_SECONDS = 1.0
"""A party that is awaited for less time is not named."""


class AggregatorProgress:
    """The progress of an aggregator, sampled by its display a few times a second: so it knows who is slow."""

    def __init__(self, server: AggregatorServer) -> None:
        self._server = server
        self._start = time.monotonic()
        self._session = ""
        self._missing = Counter[str]()
        """Samples in which a party's answer was missing, and another's was not."""
        self._samples = 0
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
            self._slowest(),
            tuple(parties),
        )

    def _awaited(self, active: ActiveSession) -> tuple[str, ...]:
        """The parties whose message is due; and note them."""
        session = active.session
        if session.name != self._session:
            self._session, self._samples = session.name, 0
            self._missing.clear()
        awaited = session.awaited
        if (session.turn, session.attempt) != self._turn:
            self._turn, self._turn_since = (session.turn, session.attempt), time.monotonic()
        if 0 < len(awaited) < len(session.roster):
            self._missing.update(awaited)
            self._samples += 1
        return awaited

    def _slowest(self) -> str:
        (name, missing), *others = [*self._missing.most_common(2), ("", 0)]
        if self._samples < MIN_SAMPLES or missing == others[0][1]:
            return ""
        return f"slowest: {names([name])} (awaited {100 * missing // self._samples} %)"


def _seen(seen: int) -> str:
    """When a party that is away was here last, on this machine's clock."""
    return f"since {datetime.fromtimestamp(seen):%H:%M}" if seen else "never here"
