"""A consortium whose members reach the aggregator directly, or through tunnels."""

from contextlib import asynccontextmanager

from sites import Consortium, consortium

from fedboost.runtime.analyst import Connection
from fedboost.runtime.config import TunnelsConfig
from fedboost.runtime.net.routes import Server

TRANSPORTS = ("direct", "websocket", "grpc")
LISTENING = TunnelsConfig(websocket="127.0.0.1:0", grpc="127.0.0.1:0", certificate=None, key=None)
SCHEMES = {"websocket": "ws", "grpc": "grpc"}


def address_of(server, transport):
    """The address that clients dial."""
    return server.address if transport == "direct" else f"{SCHEMES[transport]}://{server.tunnels[transport]}"


class Tunnelled(Consortium):
    """A consortium whose members dial another address than the aggregator's own."""

    route = Server("")

    @property
    def address(self):
        return self.route.address or self.server.address

    @property
    def analyst(self):
        return Connection(self.route._replace(address=self.address), self.bundles["analyst"])


@asynccontextmanager
async def over(transport, folder, tables, bundles, **settings):
    async with consortium(folder, {}, (), bundles, Tunnelled, tunnels=LISTENING, **settings) as one:
        one.route = Server(address_of(one.server, transport))
        for name, table in tables.items():
            one.start_party(name, table)
        yield one
