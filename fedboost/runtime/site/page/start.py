"""The start of a site's page, where its file has one.

Promises: the page's libraries are imported only then.
Refuses: a missing extra; what the page refuses when it starts (ConfigError).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.page_state import PageState
from fedboost.runtime.site.rows import SiteRows


@asynccontextmanager
async def page_served(config: PartyConfig, rows: SiteRows, state: PageState, log: Any) -> AsyncIterator[None]:
    """Serve the page of a site meanwhile, if its file has one."""
    if config.console is None:
        yield
        return
    from fedboost.runtime.web.serving import need_extra

    need_extra("[console]", "console")
    from fedboost.runtime.site.page.office import SiteOffice
    from fedboost.runtime.site.page.server import SitePage

    page = SitePage(config.console, SiteOffice(config, rows, state, log), log)
    await page.start()
    try:
        yield
    finally:
        await page.stop()
