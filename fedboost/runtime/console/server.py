"""The console of an aggregator: who may reach it, and its start and stop.

Promises: on a loopback address whoever is on this machine may read, under names of this machine alone; on
another address TLS with the aggregator's certificate is spoken, and a token is needed; whatever fails here
ends no session.
Refuses: another address than a loopback one without keys or tokens, an address that is taken, a missing extra
(ConfigError).
"""

from ipaddress import ip_address
from typing import Any

from cryptography import x509

from fedboost.errors import ConfigError
from fedboost.people.console.openapi import BASE
from fedboost.people.console.shell import refused
from fedboost.privacy.identity.certificates import SERVER_NAME
from fedboost.runtime.aggregator.config import ConsoleConfig
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.config import is_loopback
from fedboost.runtime.console.app import PARTS, application
from fedboost.runtime.console.live import Live
from fedboost.runtime.console.office import Office
from fedboost.runtime.net.keys import CERTIFICATE, KEY, Bundle
from fedboost.runtime.web.guard import Guard, is_loopback_name
from fedboost.runtime.web.logins import Logins
from fedboost.runtime.web.notes import noting
from fedboost.runtime.web.serving import WebServer
from fedboost.runtime.web.tokens import Tokens
from fedboost.wire.codec import MAX_TO_AGGREGATOR

WHAT = "console"
EVENT = "console refused"
"""The name of refusals in the log and in the metrics."""
MAX_BODY = 2 * MAX_TO_AGGREGATOR
"""Bytes of signed terms: JSON within JSON."""


class Console:
    """The console, from `start` to `stop`."""

    def __init__(
        self, config: ConsoleConfig, bundle: Bundle | None, office: Office, refusals: Refusals, log: Any
    ) -> None:
        """Listen. ConfigError if that cannot be."""
        local = is_loopback(config.listen)
        if not local and bundle is None:
            raise ConfigError(
                f"console: {config.listen} is no loopback address, and without keys nothing is encrypted: "
                f"name `keys`, or let it listen on 127.0.0.1"
            )
        if not local and config.tokens is None:
            raise ConfigError(
                f"console: {config.listen} is no loopback address, so whoever reads needs a token: make one "
                f"with `fedboost keys token NAME --file tokens.toml`, and name the file in `tokens`"
            )
        tokens = None if config.tokens is None else Tokens(config.tokens, log)
        self._log = log
        note = noting(refusals, EVENT)
        self._live = Live(office, PARTS, log)
        logins = Logins(tokens, is_open=local, encrypted=not local)
        names = is_loopback_name if local or bundle is None else names_of(bundle)
        pages = application(office, self._live, logins)
        app = Guard(pages, names, note, log, refused, {f"{BASE}/sessions": MAX_BODY})
        folder = None if local or bundle is None else bundle.folder
        pair = None if folder is None else (folder / CERTIFICATE, folder / KEY)
        self._server = WebServer(WHAT, config.listen, app, log, note, pair)
        self._who = "anybody on this machine may read" if local else "TLS; whoever reads needs a token"

    @property
    def url(self) -> str:
        """The address of its pages."""
        return self._server.url

    async def start(self) -> None:
        """Serve, in tasks of the running event loop."""
        await self._server.start()
        self._live.start()
        self._log.info("console is served", address=self._server.url, readers=self._who)

    async def stop(self) -> None:
        """End all that is open."""
        self._live.stop()
        await self._server.stop()

    def close(self) -> None:
        """Stop listening, where `start` was never called."""
        self._server.close()


def names_of(bundle: Bundle) -> Any:
    """Tells whether a host's name is in the aggregator's certificate, or an address: no website's name leads
    here under one of these."""
    leaf = x509.load_pem_x509_certificates(bundle.certificate)[0]
    known = {SERVER_NAME}
    for extension in leaf.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            known |= {name.lower() for name in extension.value.get_values_for_type(x509.DNSName)}

    def is_own(name: str) -> bool:
        try:
            return bool(ip_address(name))
        except ValueError:
            return name.lower() in known

    return is_own
