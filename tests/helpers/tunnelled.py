"""A consortium whose members reach the aggregator directly, or through tunnels."""

from contextlib import asynccontextmanager

from sites import Consortium, consortium

from fedboost.runtime.analyst import Connection
from fedboost.runtime.config import TunnelsConfig
from fedboost.runtime.net.routes import Server

TRANSPORTS = ("direct", "websocket", "grpc")
TUNNELS = TRANSPORTS[1:]
LISTENING = TunnelsConfig(websocket="127.0.0.1:0", grpc="127.0.0.1:0", certificate=None, key=None)
SCHEMES = {"websocket": "ws", "grpc": "grpc"}


def secured(folder):
    """Tunnels that arrive over TLS, with the files of `write_web_certificate`."""
    pair = {"certificate": folder / "certificate.pem", "key": folder / "key.pem"}
    return LISTENING.model_copy(update=pair)


def address_of(server, transport, tls=False):
    """The address that clients dial."""
    if transport == "direct":
        return server.address
    place = server.tunnels[transport].replace("127.0.0.1", "localhost" if tls else "127.0.0.1")
    return f"{SCHEMES[transport]}{'s' if tls else ''}://{place}"


class Tunnelled(Consortium):
    """A consortium whose members dial another address than the aggregator's own."""

    route = Server("")

    @property
    def address(self):
        return self.route.address or self.server.address

    @property
    def route_settings(self):
        values = {"proxy": self.route.proxy, "ca": self.route.ca}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def analyst(self):
        return Connection(self.route._replace(address=self.address), self.bundles["analyst"])

    def status(self, wait=20.0, name="analyst", **route):
        """Ask for the status; blocks."""
        route = self.route._replace(**{"address": self.address, **route})
        return Connection(route, self.bundles[name]).status(wait)


@asynccontextmanager
async def over(transport, folder, tables, bundles, tunnels=LISTENING, **settings):
    """Everyone by this transport. With an empty transport, tests start the parties."""
    async with consortium(folder, {}, (), bundles, Tunnelled, tunnels=tunnels, **settings) as one:
        if transport:
            one.route = Server(address_of(one.server, transport))
            for name, table in tables.items():
                one.start_party(name, table)
        yield one
