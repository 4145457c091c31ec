"""The page of a site: who may reach it, and its start and stop.

Promises: it listens on a loopback address alone, answers under names of this machine alone, and every page
needs a token; whatever fails here ends no session.
Refuses: an address that is taken, a file of tokens that is none (ConfigError).
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedboost.errors import ConfigError
from fedboost.people.console.site import refused
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.site.config import SitePageConfig
from fedboost.runtime.site.page.app import OFFICER, application
from fedboost.runtime.site.page.office import SiteOffice
from fedboost.runtime.web.guard import Guard, is_loopback_name
from fedboost.runtime.web.logins import Logins
from fedboost.runtime.web.notes import noting
from fedboost.runtime.web.serving import WebServer
from fedboost.runtime.web.tokens import Tokens

WHAT = "site's page"
THREADS = 2
"""Pages that are drawn at a time."""
EVENT = "page refused"
"""The name of refusals in the log."""


class SitePage:
    """The page, from `start` to `stop`."""

    def __init__(self, config: SitePageConfig, office: SiteOffice, log: Any) -> None:
        """Listen. ConfigError if that cannot be."""
        if not config.tokens.exists():
            raise ConfigError(
                f"{config.tokens}: there is no such file, and who reads this site's page needs a token: make "
                f"one with `fedboost keys token NAME --role {OFFICER} --file {config.tokens}`"
            )
        tokens = Tokens(config.tokens, log)
        self._log = log
        note = noting(Refusals(log, None), EVENT)
        logins = Logins(tokens, is_open=False, encrypted=False)
        self._pool = ThreadPoolExecutor(THREADS, "page")
        app = Guard(application(office, logins, tokens, self._pool), is_loopback_name, note, log, refused)
        self._server = WebServer(WHAT, config.listen, app, log, note)
        port = self.address.rpartition(":")[2]
        logins.cookie = f"fedboost-site-{port}"  # browsers keep one jar for all ports of a machine

    @property
    def address(self) -> str:
        """The address that it listens on."""
        return self._server.address

    async def start(self) -> None:
        """Serve, in tasks of the running event loop."""
        await self._server.start()
        readers = "on this machine alone; who reads needs a token"
        self._log.info("the site's page is served", address=self._server.url, readers=readers)

    async def stop(self) -> None:
        """End all that is open."""
        await self._server.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
