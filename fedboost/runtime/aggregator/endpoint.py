"""The gRPC server of an aggregator or an adder: its port, its methods, and its regular checks."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import grpc

from fedboost.errors import ConfigError
from fedboost.runtime.aggregator import limits, parties
from fedboost.runtime.aggregator.limits import Connections, Refusals
from fedboost.runtime.aggregator.parties import Admission, Answer, Health
from fedboost.runtime.aggregator.tunnels import Tunnels
from fedboost.runtime.config import TunnelsConfig
from fedboost.runtime.net import channel
from fedboost.runtime.net.channel import server_credentials
from fedboost.runtime.net.keys import Bundle

TICK_SECONDS = 0.5
"""Seconds between two calls of `Endpoint.tick`."""


class Endpoint:
    """A gRPC server with fedboost's service and the health service.

    Args:
        listen: address to listen on, HOST:PORT.
        bundle: the server's key bundle, or None to serve without encryption.
        methods: name of a method of fedboost's service -> its handler.
        admission: admits calls.
        refusals: logs refused callers.
        connections: maximum number of connections.
        tunnels: further addresses, at which tunnels arrive, if any.
    """

    def __init__(
        self,
        listen: str,
        bundle: Bundle | None,
        methods: Mapping[str, Answer],
        admission: Admission,
        refusals: Refusals,
        connections: int,
        log: Any,
        tunnels: TunnelsConfig | None,
    ) -> None:
        self.health = Health(admission)
        self.tunnels: dict[str, str] = {}
        """Kind of tunnel -> address HOST:PORT at which it arrives."""
        self._listen = listen
        self._bundle = bundle
        self._admission = admission
        self._refusals = refusals
        self._log = log
        self._port = 0
        self._connections: Connections | None = None
        self._most = connections
        self._tunnels_config = tunnels
        self._tunnels: Tunnels | None = None
        self._expires = None if bundle is None else (bundle.ends, str(bundle.folder))
        allowed = ("grpc.max_allowed_incoming_connections", connections)
        self._server = grpc.aio.server(
            options=[*channel.SERVER_OPTIONS, allowed], maximum_concurrent_rpcs=limits.OPEN_CALLS
        )
        probes = {"Check": self.health.check, "Watch": self.health.watch}
        for service, served in ((channel.SERVICE, methods), (parties.SERVICE, probes)):
            # On the wire, a call with one message is a stream of one, so admission comes before the message.
            handlers = {
                method: grpc.stream_stream_rpc_method_handler(admission.guarded(answer))
                for method, answer in served.items()
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def bind(self) -> None:
        """Bind the ports, before any state is changed. Raises ConfigError if that is not possible."""
        config = self._tunnels_config
        if config is not None and self._bundle is None:
            raise ConfigError(
                "tunnels-without-keys",
                "tunnels need keys, since what they pass could be read and changed; set `keys`",
            )
        try:
            secure = [] if self._bundle is None else [server_credentials(self._bundle)]
            add = self._server.add_secure_port if secure else self._server.add_insecure_port
            self._port = int(add(self._listen, *secure))
        except RuntimeError:
            raise ConfigError(
                "aggregator-cannot-listen",
                f"cannot listen on {self._listen}: the port is already in use, or the address does not "
                f"belong to this machine",
            ) from None
        if config is not None:  # a port of their own has limits of its own
            port = int(add("127.0.0.1:0", *secure))
            self._tunnels = Tunnels(config, port, self._most, self._refusals)
            self.tunnels |= self._tunnels.addresses

    async def start(self) -> str:
        """Accept calls. Returns the address HOST:PORT at which clients reach the server."""
        await self._server.start()
        if self._tunnels is not None:
            await self._tunnels.start()
        self.health.set_serving(True)
        self._connections = Connections(self._port, self._refusals)
        return f"{self._listen.rpartition(':')[0]}:{self._port}"

    def tick(self, now: float) -> None:
        """Check idle connections and the expiry of the certificate."""
        if self._expires is not None and datetime.now(UTC) > self._expires[0]:
            expired = "certificate expired: new callers are not admitted; renew it, and restart this process"
            self._log.error(expired, keys=self._expires[1])
            self._expires = None
        if self._connections is not None:
            self._connections.look(self._admission.calling, now)
        if self._tunnels is not None:
            self._tunnels.look(self._admission.calling, now)

    async def stop(self) -> None:
        """Disconnect everyone and close the port."""
        self.health.set_serving(False)
        await self._server.stop(grace=1.0)
        if self._tunnels is not None:
            await self._tunnels.stop()
