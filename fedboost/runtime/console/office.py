"""What a console shows of an aggregator, as facts.

Promises: nothing is changed by looking.
Refuses: nothing.
"""

from collections.abc import Iterable

from fedboost.people.console.shell import ConsoleFacts, LiveFacts
from fedboost.protocol.key_exchange import Trust
from fedboost.runtime.aggregator.archive import Archive
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.aggregator.status import StatusOffice
from fedboost.runtime.aggregator.submissions import Submissions
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.wire.services import SessionState

PHASES = {
    "joining": "calls the parties together",
    "asking": "waits for the answers to a question",
    "opening": "opens a sum",
    "closing": "has the parties sign the model",
}


class Office:
    """The aggregator as its console sees it. log: the last lines of its log."""

    def __init__(
        self,
        sessions: Sessions,
        status: StatusOffice,
        archive: Archive,
        submissions: Submissions,
        log: Iterable[str],
    ) -> None:
        self.archive = archive
        self.submissions = submissions
        self._sessions = sessions
        self._status = status
        self._log = log

    @property
    def metrics(self) -> AggregatorMetrics:
        """The metrics of the aggregator."""
        return self._sessions.metrics

    @property
    def trust(self) -> Trust | None:
        """Whom the aggregator trusts; None without keys."""
        return self._sessions.trust

    def facts(self) -> ConsoleFacts:
        """The facts now."""
        status = self._status.seen_by(None)
        return ConsoleFacts(status, self._live(), tuple(self.archive.ended), tuple(self._log))

    def _live(self) -> LiveFacts | None:
        active = self._sessions.active
        if active is None:
            return None
        session, pace = active.session, active.pace
        waits = pace.waits.get(pace.slowest)
        return LiveFacts(
            status=self._status.of(active, SessionState.RUNNING),
            phase=PHASES.get(session.phase, session.phase),
            turn=session.turn,
            rounds=tuple(active.meter.history),
            seconds=active.meter.seconds,
            traffic=dict(active.meter.traffic),
            slowest=None if waits is None else (pace.slowest, waits.turns, waits.seconds),
        )
