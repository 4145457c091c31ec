"""What stands between a member and an aggregator: a CONNECT proxy, and ends of tunnels that lie."""

import asyncio
import itertools
import ssl
from base64 import b64decode
from contextlib import asynccontextmanager, suppress
from urllib.parse import quote

from plain_servers import plain_server
from pydantic import SecretStr
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

PASSWORD = "s%3cret p@ss/"


def login(place, password=PASSWORD):
    return SecretStr(f"http://user:{quote(password, safe='')}@{place}")


async def pump(reader, writer):
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


class ConnectProxy:
    """A proxy that connects who knows the password, unless the port is not allowed."""

    def __init__(self, allowed=None):
        self.allowed = allowed
        self.seen = []
        """Host, port and status of each request."""

    async def take(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        host, _, port = head[0].split()[1].rpartition(":")
        login = next(
            (line.split()[-1] for line in head if line.startswith("Proxy-Authorization: Basic ")), ""
        )
        status = 200 if b64decode(login).decode() == f"user:{PASSWORD}" else 407
        if status == 200 and self.allowed is not None and int(port) not in self.allowed:
            status = 403
        self.seen.append((host, int(port), status))
        if status == 200:
            try:
                other = await asyncio.open_connection(host.strip("[]"), int(port))
            except OSError:
                status = 502
        writer.write(f"HTTP/1.1 {status} said so\r\nContent-Length: 0\r\n\r\n".encode())
        if status != 200:
            writer.close()
            return
        try:
            await asyncio.gather(pump(reader, other[1]), pump(other[0], writer))
        finally:
            other[1].transport.abort()

    @asynccontextmanager
    async def running(self):
        """The proxy's HOST:PORT."""
        async with plain_server(self.take) as port:
            yield f"127.0.0.1:{port}"


# ---- Ends of a tunnel over WebSockets, which see and send any piece ---------------------------------------


class Honest:
    """Passes all pieces on to the tunnel at an address."""

    def __init__(self, address=""):
        self.address = address

    def up(self, number, piece):
        """What is passed on to the aggregator for a piece of a tunnel."""
        return [piece]

    def down(self, number, piece):
        """What is passed on to the client."""
        return [piece]

    async def take(self, tunnel):
        async with connect(self.address, compression=None, proxy=None, max_size=None) as other:

            async def passing(source, target, change):
                with suppress(ConnectionClosed):
                    for number in itertools.count():
                        for piece in change(number, await source.recv()):
                            await target.send(piece)
                await target.close()

            await asyncio.gather(passing(tunnel, other, self.up), passing(other, tunnel, self.down))

    @asynccontextmanager
    async def running(self, context=None):
        """The address at which tunnels arrive."""
        serving = serve(self.take, "127.0.0.1", 0, compression=None, max_size=None, ssl=context)
        async with serving as server:
            port = server.sockets[0].getsockname()[1]
            yield f"wss://localhost:{port}" if context else f"ws://127.0.0.1:{port}"


class Meddles(Honest):
    """Changes the piece of this number, on the way up or down, in every tunnel or only once. change: maps a
    piece to the pieces that are passed on."""

    def __init__(self, address, change, at, upwards=True, always=False):
        super().__init__(address)
        self.change, self.at, self.upwards, self.always = change, at, upwards, always
        self.times = 0

    def _meddle(self, is_mine, number, piece):
        if not is_mine or number != self.at or (self.times and not self.always):
            return [piece]
        self.times += 1
        return self.change(piece)

    def up(self, number, piece):
        return self._meddle(self.upwards, number, piece)

    def down(self, number, piece):
        return self._meddle(not self.upwards, number, piece)


def flips_a_bit(piece):
    return [piece[:-1] + bytes([piece[-1] ^ 1])]


def drops(piece):
    return [piece[len(piece) // 2 :]]


def repeats(piece):
    return [piece, piece]


def reorders(piece):
    return [piece[len(piece) // 2 :], piece[: len(piece) // 2]]


class Reflects(Honest):
    """Sends back what the client sent."""

    async def take(self, tunnel):
        with suppress(ConnectionClosed):
            while True:
                await tunnel.send(await tunnel.recv())


class Records(Honest):
    """Keeps what the client of each tunnel sends."""

    def __init__(self, address):
        super().__init__(address)
        self.tapes = []

    def up(self, number, piece):
        if number == 0:
            self.tapes.append([])
        self.tapes[-1].append(piece)
        return [piece]


class Impersonates(Honest):
    """Answers with TLS of its own. context: the server's."""

    def __init__(self, context):
        super().__init__()
        self.context = context

    async def take(self, tunnel):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = self.context.wrap_bio(incoming, outgoing, server_side=True)
        with suppress(ConnectionClosed, ssl.SSLError):
            while True:
                incoming.write(await tunnel.recv())
                with suppress(ssl.SSLWantReadError):
                    secured.do_handshake()
                if outgoing.pending:
                    await tunnel.send(outgoing.read())
        if outgoing.pending:
            with suppress(ConnectionClosed):
                await tunnel.send(outgoing.read())


class SpeaksPlainly(Honest):
    """Answers as a gRPC server without TLS."""

    async def take(self, tunnel):
        with suppress(ConnectionClosed):
            await tunnel.send(bytes(3) + b"\x04" + bytes(5))  # settings of HTTP/2
            while True:
                await tunnel.recv()


class Cuts(Honest):
    """Cuts every tunnel after some seconds."""

    def __init__(self, address, seconds):
        super().__init__(address)
        self.seconds = seconds
        self.cut = 0

    async def take(self, tunnel):
        with suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                await super().take(tunnel)
            return
        self.cut += 1
        tunnel.transport.abort()
