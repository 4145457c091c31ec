"""The aggregator on the network: parties attend, analysts submit terms, one session at a time.

Promises: parties dial in, it dials nobody; a connection that breaks the protocol is closed and named, and
the process goes on; a lost party is reported to the session at once.
Refuses: callers without a certificate of the consortium, or with one of another role; a party with a name
that is taken; terms without parties or with an unknown program; everything beyond `aggregator.limits`.
"""

import asyncio
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import grpc

from fedboost.errors import ConfigError
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.admission import Admission
from fedboost.runtime.aggregator.analysts import Analysts
from fedboost.runtime.aggregator.callers import trust_of
from fedboost.runtime.aggregator.checks import Checks
from fedboost.runtime.aggregator.config import AggregatorConfig
from fedboost.runtime.aggregator.connected import ConnectedParties
from fedboost.runtime.aggregator.connections import Connections, allow_files
from fedboost.runtime.aggregator.pages import Pages
from fedboost.runtime.aggregator.parties import Parties
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.aggregator.seen import Seen
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.aggregator.status import StatusOffice
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.net import channel, health
from fedboost.runtime.net.health import Health
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.tls import server_credentials

TICK_SECONDS = 0.25
"""Seconds between two looks at deadlines."""


class AggregatorServer:
    """The gRPC service, until stopped. `log` is a structlog logger; without a bundle nothing is encrypted,
    and parties are known by the names they give."""

    def __init__(
        self, config: AggregatorConfig, log: Any, bundle: Bundle | None, tail: Iterable[str] = ()
    ) -> None:
        """tail: the last lines of the log, which the console shows."""
        self.address = ""
        self._config = config
        self._log = log
        self._bundle = bundle
        metrics = AggregatorMetrics()
        self.connected = ConnectedParties(Seen(log), metrics)
        self.sessions = Sessions(config, trust_of(bundle), self.connected, log, metrics)
        self.refusals = Refusals(log, metrics)
        self._admission = Admission(bundle, self.refusals)
        self._health = Health(self._admission)
        parties = Parties(bundle, self.refusals, self.sessions, self.connected, log)
        self.analysts = Analysts(bundle, self._admission, self.refusals, self.sessions, self.connected, log)
        trust, reader = self.sessions.trust, self.analysts.reader
        checks = Checks(bundle, trust, self._admission, self.refusals, self.connected, reader, log)
        status = StatusOffice(bundle, self._admission, self.sessions, self.connected, self.analysts)
        self.pages = Pages(config, bundle, status, self.analysts, self.refusals, tail, log)
        self._services = {
            channel.SERVICE: {
                "Attend": parties.attend,
                "Train": self.analysts.answer,
                "Advise": checks.advise,
                "Check": checks.answer,
                "Status": status.answer,
            },
            health.SERVICE: {"Check": self._health.check, "Watch": self._health.watch},
        }
        connections = ("grpc.max_allowed_incoming_connections", allow_files())
        self._server = grpc.aio.server(
            options=[*channel.SERVER_OPTIONS, connections], maximum_concurrent_rpcs=limits.OPEN_CALLS
        )
        self._connections: Connections | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind the port; afterwards `address` is where parties dial. ConfigError if it cannot be bound."""
        self.sessions.load_programs()
        for service, methods in self._services.items():
            # On the wire a call with one message is a stream of one: so admission sees it before the message.
            handlers = {
                method: grpc.stream_stream_rpc_method_handler(self._admission.guarded(answer))
                for method, answer in methods.items()
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port = self._bind()
        self.pages.listen()
        self.sessions.open()
        await self.pages.start()
        await self._server.start()
        self._health.serving = True
        self.address = f"{self._config.listen.rpartition(':')[0]}:{port}"
        self._connections = Connections(port, self.refusals)
        self._ticker = asyncio.create_task(self._tick())
        self.sessions.begin_next()

    async def serve(self) -> None:
        """Wait for `stop`. ConfigError when a journal cannot be written any more."""
        await self.sessions.ended.wait()
        if self.sessions.fatal:
            raise ConfigError(self.sessions.fatal)

    async def stop(self) -> None:
        """Finish the turn, hang up on everyone, and close the port. Sessions go on in the next process."""
        self._health.serving = False
        await self.sessions.stop()
        await self.pages.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        self.sessions.active = None
        await self._server.stop(grace=1.0)
        self.analysts.close()
        self.sessions.close()
        self.pages.close()

    def _bind(self) -> int:
        """Bind the port of the config, and return its number."""
        try:
            if self._bundle is None:
                return int(self._server.add_insecure_port(self._config.listen))
            return int(self._server.add_secure_port(self._config.listen, server_credentials(self._bundle)))
        except RuntimeError:
            raise ConfigError(
                f"cannot listen on {self._config.listen}: the port is taken, or the address is another "
                f"machine's"
            ) from None

    async def _tick(self) -> None:
        """Look at deadlines, idle connections and the certificate's end, until cancelled."""
        warned = self._bundle is None
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._bundle is not None and not warned and datetime.now(UTC) > self._bundle.ends:
                warned = True
                self._log.error(
                    "certificate expired: anyone who dials from now on is not let in; renew it, and start "
                    "the aggregator again",
                    keys=str(self._bundle.folder),
                )
            self.sessions.tick(time.monotonic())
            if self._connections is not None:
                self._connections.look(self._admission.calling, time.monotonic())
