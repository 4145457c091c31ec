"""The aggregator's gRPC server: parties connect and wait, analysts submit terms, and one session runs at a
time.

Guarantees: the aggregator never opens a connection; parties connect to it. A connection that violates the
protocol is closed and logged, and the process continues. A lost party is reported to the session at once.

Rejects: callers without a certificate of the consortium or with the wrong role, parties whose name is already
connected, terms without parties or with an unknown program, and everything that exceeds a limit in
`aggregator.limits`.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from fedboost.errors import ConfigError, PeerError, quoted
from fedboost.protocol.messages import Connected, Disconnected
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.analysts import Analysts, Checks
from fedboost.runtime.aggregator.archive import Archive, StatusService, Submissions
from fedboost.runtime.aggregator.endpoint import TICK_SECONDS, Endpoint
from fedboost.runtime.aggregator.limits import Outgoing, Peer, Refusals, Unawaited, allow_connections
from fedboost.runtime.aggregator.parties import (
    Admission,
    ConnectedParties,
    LastSeen,
    Links,
    refuse,
    sending,
    software_of,
    trust_of,
)
from fedboost.runtime.aggregator.programs import load_program
from fedboost.runtime.aggregator.regions import Regions
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.metrics import AggregatorMetrics, MetricsPage
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.telemetry import Events
from fedboost.runtime.web.serving import need_extra

# ---- What an aggregator serves over HTTP: metrics for Prometheus, and the console -----------------------
# Both need an address in the aggregator's file; the console's libraries are imported only then.

if TYPE_CHECKING:
    from fedboost.runtime.console import Console


@dataclass(eq=False)
class Pages:
    """The HTTP pages of an aggregator: metrics for Prometheus and the console. Either is None if it is not
    served."""

    _config: AggregatorConfig
    _bundle: Bundle | None
    _status: StatusService
    _analysts: Analysts
    _refusals: Refusals
    _log: Any
    metrics: MetricsPage | None = None
    console: "Console | None" = None
    _archive: Archive | None = None
    _submissions: Submissions | None = None

    def listen(self) -> None:
        """Listen at the addresses in the configuration, before any state is changed. Raises ConfigError if
        that is not possible."""
        sessions, config = self._analysts.sessions, self._config
        if config.metrics is not None:
            self.metrics = MetricsPage(sessions.metrics, config.metrics, self._log)
        if config.console is None:
            return

        need_extra("[console]", "console")
        from fedboost.runtime.console import Console, ConsoleQueries

        self._archive = archive = Archive(config.state, self._log)
        sessions.on_end = archive.add
        self._submissions = submissions = Submissions(self._analysts, archive, config.state, self._log)
        queries = ConsoleQueries(sessions, self._status, archive, submissions)
        self.console = Console(config.console, self._bundle, queries, self._refusals, self._log)

    async def start(self) -> None:
        """Start the console, if it is served. The state folder must already belong to this process."""
        if self.console is not None and self._archive is not None and self._submissions is not None:
            self._archive.open()
            await self._submissions.open()
            await self.console.start()

    async def stop(self) -> None:
        """Stop the pages. Submitted sessions that have not started remain for the next process."""
        if self._submissions is not None:
            await self._submissions.close()
        if self.console is not None:
            await self.console.stop()
            self.console = None
        if self.metrics is not None:
            self.metrics.close()
            self.metrics = None


# ---- The parties' side of an aggregator: one call per party, from its arrival to its departure ----------
# A connection that breaks the protocol is closed and reported, and the process goes on. A lost party is
# reported to the session at once. A party that relays to others is read no faster than the slowest of them
# reads.


@dataclass(eq=False)
class Parties:
    """Handler of the RPC `Attend`: one call per party, for as long as the party is connected."""

    _admission: Admission
    _sessions: Sessions
    _connected: ConnectedParties
    _log: Any
    _most: int
    """Maximum number of parties at the same time."""
    _here: int = 0

    async def attend(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        name = await self._admission.admit_party(
            context, peer, self._connected.outgoing, self._here, self._most
        )
        outgoing = Outgoing.of_this_call()
        self._connected.add(name, outgoing, software_of(context))
        self._here += 1
        reason, fault = "its connection closed", None
        try:
            async with sending(outgoing, context, self._log):
                self._connected.notify()
                self._sessions.handle(name, Connected())
                unawaited = Unawaited(peer.unwanted)
                async for data in requests:
                    await self._sessions.hear(name, data, unawaited)
        except PeerError as error:
            if error.code == "messages-unwanted":
                peer.bar(time.monotonic())
            reason, fault = f"it broke the protocol: {quoted(str(error))}", error
        except asyncio.CancelledError:
            if not outgoing.fault:
                raise
            peer.bar(time.monotonic())
            reason, fault = outgoing.fault, PeerError("party-cut-off", outgoing.fault)
        except grpc.RpcError:
            reason = "its connection broke"
        finally:
            self._here -= 1
            self._connected.remove(name, reason)
            self._sessions.handle(name, Disconnected(reason))
        if fault is not None:
            await refuse(context, fault)  # last: a party that does not read must not hold up the rest


# ---- The aggregator on the network: parties attend, analysts submit terms, one session at a time --------


DIGITS = 12
"""Number of digits of the terms' digest that are logged."""


class AggregatorServer:
    """The aggregator's gRPC server, from `start` to `stop`.

    Args:
        config: the aggregator's configuration.
        bundle: the aggregator's key bundle, or None to serve without encryption. Callers are then known only
            by the names that they claim.
    """

    def __init__(self, config: AggregatorConfig, log: Any, bundle: Bundle | None) -> None:
        self.address = ""
        self._config = config
        self._log = log
        self._bundle = bundle
        metrics = AggregatorMetrics()
        self.connected = ConnectedParties(LastSeen(log), Events(log, metrics, digits=DIGITS))
        self.sessions = Sessions(config, trust_of(bundle), self.connected, log, metrics)
        self.refusals = Refusals(log, metrics)
        self._admission = Admission(bundle, self.refusals)
        connections = allow_connections()
        most = limits.party_connections(connections)
        parties = Parties(self._admission, self.sessions, self.connected, log, most)
        self.analysts = Analysts(self._admission, self.sessions, self.connected, log)
        metrics.waiting(self.analysts.waiters)
        trust, reader = self.sessions.trust, self.analysts.reader
        self.checks = checks = Checks(trust, self._admission, self.connected, reader, log)
        status = StatusService(self._admission, self.sessions, self.connected, self.analysts)
        self.pages = Pages(config, bundle, status, self.analysts, self.refusals, log)
        methods = {
            "Attend": parties.attend,
            "Train": self.analysts.answer,
            "Advise": checks.advise,
            "Check": checks.answer,
            "Status": status.answer,
            "Link": Links(self._admission, log).serve,
            "Region": Regions(self._admission, self.sessions, self.connected, checks, log).serve,
        }
        served = methods, self._admission, self.refusals, connections
        self._endpoint = Endpoint(config.listen, bundle, *served, log, config.tunnels)
        self.tunnels = self._endpoint.tunnels
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind the port and accept calls. Sets `address`, to which parties connect. Raises ConfigError if the
        port or the state folder cannot be used."""
        for program in self._config.programs:
            load_program(program, self._config.programs)
        self._endpoint.bind()
        self.pages.listen()
        self.sessions.open()
        await self.pages.start()
        self.address = await self._endpoint.start()
        self._ticker = asyncio.create_task(self._tick())
        self.sessions.begin_next()

    async def serve(self) -> None:
        """Wait until `stop` is called. Raises ConfigError if a session's journal can no longer be written."""
        await self.sessions.ended.wait()
        if self.sessions.fatal:
            raise ConfigError("aggregator-not-durable", self.sessions.fatal)

    async def stop(self) -> None:
        """Finish the current turn, disconnect everyone and close the port. Sessions continue in the next
        process."""
        self._endpoint.health.set_serving(False)
        await self.sessions.stop()
        await self.pages.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        self.sessions.active = None
        await self._endpoint.stop()
        self.sessions.close()

    async def _tick(self) -> None:
        """Check deadlines, and what the endpoint checks, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.sessions.tick(time.monotonic())
            self._endpoint.tick(time.monotonic())
