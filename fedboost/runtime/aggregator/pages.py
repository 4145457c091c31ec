"""What an aggregator serves over HTTP: metrics for Prometheus, and the console.

Promises: neither is there unless the aggregator's file names an address; the console's libraries are imported
only then.
Refuses: addresses that cannot be listened on, a missing extra (ConfigError).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedboost.runtime.aggregator.analysts import Analysts
from fedboost.runtime.aggregator.archive import Archive
from fedboost.runtime.aggregator.config import AggregatorConfig
from fedboost.runtime.aggregator.connected import ConnectedParties
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.aggregator.status import StatusOffice
from fedboost.runtime.aggregator.submissions import Submissions
from fedboost.runtime.metrics import MetricsPage
from fedboost.runtime.net.keys import Bundle

if TYPE_CHECKING:
    from fedboost.runtime.console.server import Console


class Pages:
    """The pages of one aggregator. `metrics` and `console` are None where they are not served."""

    def __init__(self, config: AggregatorConfig, log: Any) -> None:
        self.metrics: MetricsPage | None = None
        self.console: Console | None = None
        self._config = config
        self._log = log
        self._submissions: Submissions | None = None

    def listen(
        self,
        bundle: Bundle | None,
        sessions: Sessions,
        connected: ConnectedParties,
        analysts: Analysts,
        status: StatusOffice,
        refusals: Refusals,
        tail: Iterable[str],
    ) -> None:
        """Listen at the addresses of the file."""
        if self._config.metrics is not None:
            self.metrics = MetricsPage(sessions.metrics, self._config.metrics, self._log)
        if self._config.console is None:
            return
        from fedboost.runtime.web.serving import need_extra

        need_extra("[console]", "console")
        from fedboost.runtime.console.office import Office
        from fedboost.runtime.console.server import Console

        archive = Archive(self._config.state, self._log)
        sessions.on_end = archive.add
        self._submissions = Submissions(sessions, analysts, connected, archive, self._log)
        office = Office(sessions, status, archive, self._submissions, tail)
        self.console = Console(self._config.console, bundle, office, refusals, self._log)

    async def start(self) -> None:
        """Serve the console."""
        if self.console is not None:
            assert self._submissions is not None
            self._submissions.open()
            await self.console.start()

    async def stop(self) -> None:
        """End the console, and what was submitted there and has not begun."""
        if self._submissions is not None:
            await self._submissions.close()
        if self.console is not None:
            await self.console.stop()
            self.console = None

    def close(self) -> None:
        """Listen no more."""
        if self.metrics is not None:
            self.metrics.close()
            self.metrics = None
        if self.console is not None:
            self.console.close()
            self.console = None
