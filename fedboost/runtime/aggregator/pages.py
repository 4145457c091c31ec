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
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.aggregator.status import StatusOffice
from fedboost.runtime.aggregator.submissions import Submissions
from fedboost.runtime.metrics import MetricsPage
from fedboost.runtime.net.keys import Bundle

if TYPE_CHECKING:
    from fedboost.runtime.console.server import Console


class Pages:
    """The pages of one aggregator. `metrics` and `console` are None where they are not served."""

    def __init__(
        self,
        config: AggregatorConfig,
        bundle: Bundle | None,
        status: StatusOffice,
        analysts: Analysts,
        refusals: Refusals,
        tail: Iterable[str],
        log: Any,
    ) -> None:
        self.metrics: MetricsPage | None = None
        self.console: Console | None = None
        self._config = config
        self._bundle = bundle
        self._status = status
        self._analysts = analysts
        self._refusals = refusals
        self._tail = tail
        self._log = log
        self._archive = Archive(None, log)
        self._submissions: Submissions | None = None

    def listen(self) -> None:
        """Listen at the addresses of the file."""
        sessions = self._analysts.sessions
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
        self._archive = archive
        self._submissions = Submissions(self._analysts, archive, self._log)
        office = Office(sessions, self._status, archive, self._submissions, self._tail)
        self.console = Console(self._config.console, self._bundle, office, self._refusals, self._log)

    async def start(self) -> None:
        """Serve the console; the state folder is this process's from here on."""
        if self.console is not None:
            self._archive.open()
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
