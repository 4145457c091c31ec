"""The attack: 600 sockets of one address to the aggregator's port, held and silent. Nobody else can dial, and
a party that starts ends with a wrong diagnosis. Now an address holds few connections without a call."""

import asyncio
import resource
import socket
import struct
import threading
from contextlib import ExitStack, contextmanager, suppress

import pytest
from sites import bundles_of, consortium, in_time, shared_out, terms, until

from fedboost.errors import ConfigError
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.limits import Connections, Refusals
from fedboost.runtime.aggregator.parties import ask
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.net import channel
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.node import PartyNode
from fedboost.runtime.web.guard import group_of

HELD = 600
SOON = 12.0
"""Seconds in which parties get in: here gRPC itself closes no silent connection before that."""
TABLES = shared_out(2)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("connections") / "keys", (*TABLES, "odd"))


@contextmanager
def held(address, count, source="127.0.0.1"):
    """So many silent connections, closed at the end."""
    host, port = address.split(":")
    with ExitStack() as stack:
        try:
            opened = [
                stack.enter_context(socket.create_connection((host, int(port)), source_address=(source, 0)))
                for _ in range(count)
            ]
        except OSError as error:
            pytest.skip(f"this machine has no address {source}: {error.strerror}")
        yield opened


def is_open(one):
    one.setblocking(False)
    try:
        while one.recv(4096):
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_silent_connections_of_one_address_keep_nobody_out(tmp_path, bundles, monkeypatch, source):
    monkeypatch.setattr(limits, "CONNECTIONS", 512)  # as where a process may have 1,024 files open
    patient = {"grpc.server_handshake_timeout_ms": 60_000}
    options = [(name, patient.get(name, value)) for name, value in channel.SERVER_OPTIONS]
    monkeypatch.setattr(channel, "SERVER_OPTIONS", options)

    async def scenario():
        async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
            with held(one.address, HELD, source) as opened:
                async with asyncio.timeout(SOON):
                    tasks = [one.start_party(name, table) for name, table in TABLES.items()]
                    while len(one.log.named("party here")) < len(TABLES):
                        assert not any(task.done() for task in tasks), "a starting party waits"
                        await asyncio.sleep(0.01)
                    await asyncio.to_thread(asyncio.run, ask(Server(one.address), bundles["analyst"], SOON))
                await until(lambda: sum(map(is_open, opened)) <= limits.IDLE_CONNECTIONS)
                assert await one.train(terms([*TABLES]))
            return one.log.named("peer refused")

    (line,) = in_time(scenario())
    assert line["peer"] == f"a client from {group_of(source)}"
    assert line["reason"].endswith(
        f"connections without a call; at most {limits.IDLE_CONNECTIONS} per address are allowed"
    )


@pytest.mark.slow
async def test_a_connection_with_a_call_is_left_alone(tmp_path, monkeypatch):
    """Without keys: any number of parties of one machine have one each."""
    monkeypatch.setattr(limits, "IDLE_CONNECTIONS", 3)
    parties = {f"party-{number}": table for number, table in enumerate([*TABLES.values()] * 4)}
    async with consortium(tmp_path / "c", parties) as one:
        await until(lambda: len(one.log.named("party here")) >= len(parties))
        await asyncio.sleep(0)
        with held(one.address, 20) as opened:
            await until(lambda: sum(map(is_open, opened)) <= 3)
            gone = len(one.log.named("party gone"))
            assert await one.train(terms([*parties]))
            assert len(one.log.named("party gone")) == gone
        found = len(one.log.named("peer refused"))
    assert found <= 1


class Listener:
    """A port with some connections to it, both ends in this process."""

    def __init__(self, stack, count, family=socket.AF_INET, host="127.0.0.1"):
        self.server = stack.enter_context(socket.create_server((host, 0), family=family))
        self.port = self.server.getsockname()[1]
        self.clients, self.taken = [], []
        self._stack = stack
        self.dial(count)

    def dial(self, count):
        for _ in range(count):
            self.clients.append(
                self._stack.enter_context(socket.create_connection(self.server.getsockname()[:2]))
            )
            self.taken.append(self._stack.enter_context(self.server.accept()[0]))

    @property
    def open(self):
        return [number for number, client in enumerate(self.clients) if is_open(client)]


class Events:
    def __init__(self):
        self.events = []

    def info(self, event, **values):
        self.events.append((event, values))

    warning = info


def test_the_oldest_go_first_and_new_ones_have_time(monkeypatch):
    monkeypatch.setattr(limits, "IDLE_CONNECTIONS", 4)
    with ExitStack() as stack:
        some, other = Listener(stack, 3), Listener(stack, 9)
        log = Events()
        looking = Connections(some.port, Refusals(log, AggregatorMetrics()))
        looking.look([], 1.0)
        some.dial(3)
        looking.look([], 2.0)
        assert some.open == [2, 3, 4, 5] or len(some.open) == 4
        assert {3, 4, 5} <= set(some.open), "what is new may still say who it is"
        some.dial(6)
        looking.look([], 3.0)
        assert some.open == [*range(6, 12)]
        looking.look([], 4.0)
        assert len(some.open) == 4
        assert len(other.open) == 9, "another port is none of its business"
        assert len(log.events) == 1, "one flood"
        some.dial(4)
        looking.look([], 100.0)
        looking.look([], 101.0)
        assert len(log.events) == 2, "another"


@pytest.mark.parametrize(
    ("family", "host", "peer"),
    [
        (socket.AF_INET, "127.0.0.1", "ipv4:127.0.0.1:{}"),
        (socket.AF_INET6, "::1", "ipv6:%5B::1%5D:{}"),
        (socket.AF_INET6, "::1", "ipv6:[::1]:{}"),
    ],
)
def test_ends_with_a_call_are_known_by_the_names_grpc_has_for_them(monkeypatch, family, host, peer):
    monkeypatch.setattr(limits, "IDLE_CONNECTIONS", 2)
    with ExitStack() as stack:
        try:
            some = Listener(stack, 6, family, host)
        except OSError as error:
            pytest.skip(f"this machine has no address {host}: {error.strerror}")
        calling = [peer.format(client.getsockname()[1]) for client in some.clients[:3]]
        looking = Connections(some.port, Refusals(Events(), AggregatorMetrics()))
        looking.look(calling, 1.0)
        looking.look(calling, 2.0)
        assert {0, 1, 2} < set(some.open)
        assert len(some.open) == 5


def test_addresses_are_counted_by_network():
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:1")
    assert group_of("2001:db8::1") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert limits._end_of("unix:") == ("", 0)


def test_files_are_allowed_as_far_as_the_system_lets(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: asked.append(pair))
    for (soft, hard), allowed in {
        (1024, 1 << 20): limits.CONNECTIONS,
        (1024, 1024): 512,
        (1 << 20, 1 << 20): limits.CONNECTIONS,
        (256, resource.RLIM_INFINITY): limits.CONNECTIONS,
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY): limits.CONNECTIONS,
    }.items():
        monkeypatch.setattr(resource, "getrlimit", lambda which, pair=(soft, hard): pair)
        assert limits.allow_connections() == allowed
    needed = 2 * limits.CONNECTIONS
    assert asked == [(needed, 1 << 20), (1024, 1024), (needed, resource.RLIM_INFINITY)]


# ---- a hang-up is not "no TLS" --------------------------------------------------------------------------


@contextmanager
def hanging_up(first_reset):
    """A listener that takes connections and closes them, as an aggregator does that has too many."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with suppress(OSError):
                while True:
                    taken, _ = server.accept()
                    if first_reset:
                        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    taken.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


# A reset between connect and handshake leaves an SSLSocket that Python's ssl module itself does not close.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket")
@pytest.mark.slow
@pytest.mark.parametrize("first_reset", [True, False])
async def test_a_starting_party_waits_while_the_aggregator_hangs_up(tmp_path, bundles, first_reset):
    async with consortium(tmp_path / "c", {}, bundles=bundles) as one:
        with hanging_up(first_reset) as port:
            config = PartyConfig(party="north", aggregator=f"127.0.0.1:{port}", state=tmp_path / "state")
            task = asyncio.create_task(PartyNode(config, one.log, bundles["north"]).run(wait=3, once=False))
            await until(lambda: one.log.named("waiting for the aggregator"))
            assert not task.done()
            with pytest.raises(ConfigError, match=r"before the TLS handshake: .* \(waited 3 s\)"):
                await task
        (line, *_) = one.log.named("waiting for the aggregator")
    assert line["reason"].endswith(
        "closes connections before the TLS handshake: it may be an aggregator that has reached its "
        "connection limit, or not an aggregator"
    )
