"""Tunnels whose other end does not read, does not answer, or sends what nobody asked for, at either end."""

import asyncio
import socket
import ssl
import struct
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import grpc
import pytest
from sites import Log, bundles_of, until
from tunnelled import LISTENING, SCHEMES, TUNNELS, address_of, over
from web_certificates import server_context, write_web_certificate
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import InvalidMessage

from fedboost.runtime.aggregator import limits, tunnels
from fedboost.runtime.aggregator.limits import Refusals
from fedboost.runtime.aggregator.tunnels import Tunnels
from fedboost.runtime.net import routes
from fedboost.runtime.net.routes import Server

MIB = 1 << 20
REQUEST = b"""GET / HTTP/1.1
Host: x
Upgrade: websocket
Connection: Upgrade
Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==
Sec-WebSocket-Version: 13

""".replace(b"\n", b"\r\n")
PINGS = (b"\x89\xfd" + bytes(4) + bytes(125)) * 1000


def ends_of(place):
    host, _, port = place.rpartition(":")
    return host, int(port)


# ---- At the aggregator -------------------------------------------------------------------------------------


def unread(place):
    """A WebSocket that is open, whose answers nobody reads."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.settimeout(5.0)
    opened.connect(ends_of(place))
    opened.sendall(REQUEST)
    assert opened.recv(12) == b"HTTP/1.1 101"
    return opened


@asynccontextmanager
async def arriving(inner, connections=16, **config):
    """Tunnels to a server that handles what they carry."""
    tasks = []

    async def take(reader, writer):
        tasks.append(asyncio.current_task())
        with suppress(OSError, TimeoutError):
            await inner(reader, writer)
        writer.transport.abort()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        own = Tunnels(LISTENING.model_copy(update=config), port, connections, Refusals(Log(), None))
        await own.start()
        try:
            yield own
        finally:
            await own.stop()
            await asyncio.sleep(0.05)  # for connections that were accepted just now
            await asyncio.gather(*tasks)


@asynccontextmanager
async def looking(own):
    """Look as often as an aggregator does in tests."""

    async def look():
        while True:
            await asyncio.sleep(0.05)
            own.look([], time.monotonic())

    task = asyncio.create_task(look())
    yield
    task.cancel()


async def holds(reader, writer):
    await reader.read()


async def test_pings_whose_answers_nobody_reads():
    """The buffer of answers is bounded, and the others are served."""

    def flood(opened):
        with opened:
            for _ in range(400):  # 52 MB
                opened.sendall(PINGS)

    async with arriving(holds) as own, looking(own):
        opened = await asyncio.to_thread(unread, own.addresses["websocket"])
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(flood, opened)


async def test_the_aggregator_looks_for_pings(tmp_path, bundles):
    def flood(place):
        with unread(place) as opened:
            for _ in range(400):
                opened.sendall(PINGS)

    async with over("", tmp_path, {}, bundles) as one:
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(flood, one.server.tunnels["websocket"])
        await asyncio.to_thread(one.status, address=address_of(one.server, "websocket"))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("stuck") / "keys", ["north"])


async def gushes(reader, writer):
    """Sends more than fits in any buffer, then hangs up, as gRPC does after pings without an answer."""
    writer.write(bytes(24 * MIB))
    await asyncio.wait_for(reader.read(1), 2.0)
    await asyncio.sleep(0.2)


@asynccontextmanager
async def filled(own, transport):
    """All tunnels of this kind are taken, by who reads nothing."""
    place = own.addresses[transport]
    async with AsyncExitStack() as held:
        for _ in range(2):
            if transport == "websocket":
                opened = held.enter_context(await asyncio.to_thread(unread, place))
                opened.sendall(b"\x82\x81\0\0\0\0x")
                continue
            channel = grpc.aio.insecure_channel(place, [("grpc.use_local_subchannel_pool", 1)])
            call = (await held.enter_async_context(channel)).stream_stream(tunnels.CARRY)()
            await call.write(b"x")
        yield


def window_of_nothing(place, calls=1):
    """A connection of HTTP/2 with calls that allow no byte of an answer."""

    def frame(kind, flags, stream, data):
        return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data

    fields = b"".join(
        prefix + bytes([len(value)]) + value
        for prefix, value in (
            (b"\x83\x86\x04", b"/fedboost.wire.v1.Tunnel/Carry"),
            (b"\x01", b"localhost"),
            (b"\x0f\x10", b"application/grpc"),
            (b"\x00\x02te", b"trailers"),
        )
    )
    opened = socket.create_connection(ends_of(place))
    opened.sendall(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(4, 0, 0, struct.pack(">HI", 4, 0))
        + frame(4, 1, 0, b"")
        + b"".join(
            frame(1, 4, stream, fields) + frame(0, 0, stream, b"\0\0\0\0\1x")
            for stream in range(1, 2 * calls, 2)
        )
    )
    return opened


async def answers(reader, writer):
    """Answers a byte, and hangs up."""
    writer.write(await reader.read(1))
    await asyncio.sleep(0.2)


async def test_calls_whose_end_nobody_reads_do_not_count(monkeypatch):
    """Even if their connection is not closed, as it has others."""
    monkeypatch.setattr(tunnels, "UNREAD_SECONDS", 0.3)
    async with arriving(answers) as own:
        with window_of_nothing(own.addresses["grpc"], 4):  # twice the limit of tunnels
            await until_carried(Server(f"grpc://{own.addresses['grpc']}"))


async def test_connections_with_calls_whose_end_nobody_reads_are_closed(monkeypatch):
    """Of strangers, to whom a handshake of TLS is sent, which fits in any buffer."""
    monkeypatch.setattr(tunnels, "UNREAD_SECONDS", 0.5)
    async with arriving(answers) as own, looking(own):
        place = own.addresses["grpc"]
        with window_of_nothing(place), window_of_nothing(place):  # all connections
            await asyncio.sleep(0.2)
            with pytest.raises(grpc.aio.AioRpcError):
                async with grpc.aio.insecure_channel(place) as third:
                    await third.stream_stream(tunnels.CARRY)().read()
            await until_carried(Server(f"grpc://{place}"))


@pytest.mark.parametrize("transport", TUNNELS)
async def test_tunnels_that_read_nothing_are_ended(monkeypatch, transport):
    monkeypatch.setattr(tunnels, "UNREAD_SECONDS", 0.5)
    monkeypatch.setattr(tunnels, "OPEN_SECONDS", 0.5)
    async with arriving(gushes) as own:
        address = f"{SCHEMES[transport]}://{own.addresses[transport]}"
        async with filled(own, transport), looking(own):
            await until_carried(Server(address))


async def until_carried(server, most=4.0):
    """Wait until a tunnel carries a byte back."""
    place = ends_of(routes.relay_to(server).address)
    async with asyncio.timeout(most):
        while True:
            reader, writer = await asyncio.open_connection(*place)
            writer.write(b"x")
            with suppress(OSError):
                if await reader.read(1):
                    writer.close()
                    return
            writer.close()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("transport", TUNNELS)
async def test_a_stop_does_not_wait_for_who_reads_nothing(transport):
    async with arriving(gushes) as own, filled(own, transport):
        await asyncio.sleep(0.3)
        async with asyncio.timeout(3):
            await own.stop()


@pytest.mark.parametrize("kinds", [1, 2])
async def test_both_kinds_of_tunnels_share_the_limit(kinds):
    """Sixteen connections are four tunnels."""
    async with arriving(holds, **({} if kinds == 2 else {"grpc": None})) as own:
        opened = []
        for _ in range(6):
            with suppress(InvalidMessage, OSError):
                opened.append(await connect(f"ws://{own.addresses['websocket']}", compression=None))
        await asyncio.sleep(0.05)
        alive = [each for each in opened if each.state.name == "OPEN"]
        assert len(alive) == 4 / kinds
        for each in opened:
            each.transport.abort()
        if kinds == 2:
            async with grpc.aio.insecure_channel(own.addresses["grpc"]) as balancer:
                calls = [balancer.stream_stream(tunnels.CARRY)() for _ in range(3)]
                await asyncio.sleep(0.1)
                (refused,) = [call for call in calls if call.done()]
                assert await refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_load_balancer_sends_many_tunnels_on_a_connection(tmp_path, bundles, monkeypatch):
    """One of them ends. The connection still has another one, so a flood does not close it."""
    monkeypatch.setattr(limits, "IDLE_CONNECTIONS", 6)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    async with over("", tmp_path, {}, bundles) as one:
        place = one.server.tunnels["grpc"]
        async with grpc.aio.insecure_channel(place) as balancer:
            first, second = (balancer.stream_stream(tunnels.CARRY)() for _ in range(2))
            await first.write(hello)
            assert (await first.read())[:1] == b"\x16", "the handshake of TLS"
            await second.write(b"\x16")
            first.cancel()
            opened = [await asyncio.open_connection(*ends_of(place)) for _ in range(20)]
            await until(lambda: one.log.named("peer refused"))
            await asyncio.sleep(0.2)
            await second.write(hello[1:])
            assert (await second.read())[:1] == b"\x16"
        for _, writer in opened:
            writer.close()


# ---- At a member -------------------------------------------------------------------------------------------


STUCK = 2


@asynccontextmanager
async def lying(transport, reads, stuck=STUCK, pause=0.0, context=None):
    """The address of an end of tunnels, of which the first ones read nothing, or everything, and never
    end; the others reflect, after a pause."""
    count, over_ = 0, asyncio.Event()

    async def take(pieces, send):
        nonlocal count
        count += 1
        is_stuck = count <= stuck
        await asyncio.sleep(pause)
        arrived = asyncio.Queue()

        async def reflect():
            while True:
                await send(await arrived.get())

        reflecting = asyncio.create_task(reflect())
        if not is_stuck or reads:
            async for piece in pieces:
                if not is_stuck:
                    arrived.put_nowait(piece)
        if is_stuck:
            await over_.wait()
        reflecting.cancel()

    if transport == "websocket":
        how = {"max_queue": 1, "close_timeout": 0.1, "ssl": context}
        async with serve(lambda tunnel: take(tunnel, tunnel.send), "127.0.0.1", 0, **how) as server:
            port = server.sockets[0].getsockname()[1]
            yield f"wss://localhost:{port}" if context else f"ws://127.0.0.1:{port}"
            over_.set()
        return

    async def take_call(pieces, call):
        await take(pieces, call.write)

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(take_call)
    _, service, method = routes.CARRY.split("/")
    generic = grpc.method_handlers_generic_handler(service, {method: handler})
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"grpc://127.0.0.1:{port}"
    over_.set()
    await server.stop(0)


@pytest.mark.parametrize(
    ("transport", "reads", "tls"),
    [("websocket", False, False), ("websocket", False, True), ("grpc", False, False), ("grpc", True, False)],
)
async def test_the_place_of_a_stuck_tunnel_is_free_again(tmp_path, monkeypatch, transport, reads, tls):
    web = write_web_certificate(tmp_path / "web")
    monkeypatch.setattr(routes, "TUNNELS", STUCK)
    monkeypatch.setattr(routes, "UNREAD_SECONDS", 0.5)
    async with lying(transport, reads, context=server_context(web) if tls else None) as address:
        server = Server(address, ca=web / "authority.pem")
        place = ends_of(routes.relay_to(server).address)
        for _ in range(STUCK):
            _, writer = await asyncio.open_connection(*place)
            writer.write(bytes(16 * MIB))
            await asyncio.sleep(0.3)
            writer.transport.abort()
        await until_carried(server)


@pytest.mark.parametrize("transport", TUNNELS)
async def test_a_silent_tunnel_stays_open(monkeypatch, transport):
    """Its keepalive is that of the connection inside, whose interval is longer than any limit here."""
    monkeypatch.setattr(routes, "UNREAD_SECONDS", 0.4)
    async with lying(transport, True, stuck=0) as address:
        place = ends_of(routes.relay_to(Server(address)).address)
        reader, writer = await asyncio.open_connection(*place)
        for wait in (0.0, 1.5):
            await asyncio.sleep(wait)
            writer.write(b"x")
            assert await asyncio.wait_for(reader.read(1), 2) == b"x"
        writer.close()


@pytest.mark.parametrize("transport", TUNNELS)
async def test_a_slow_tunnel_stays_open(monkeypatch, transport):
    """The limit for opening it does not apply to what is sent later."""
    monkeypatch.setattr(routes.open_way, "__defaults__", (0.3,))
    async with lying(transport, True, stuck=0, pause=1.0) as address:
        place = ends_of(routes.relay_to(Server(address)).address)
        reader, writer = await asyncio.open_connection(*place)
        writer.write(bytes(16 * MIB))
        async with asyncio.timeout(5):
            await reader.readexactly(16 * MIB)
        writer.close()
