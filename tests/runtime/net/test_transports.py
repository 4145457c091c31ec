"""One contract for all ways to reach an aggregator: directly, and in tunnels over WebSockets and gRPC."""

import asyncio
import socket
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
import pyarrow as pa
import pytest
from key_folders import DAY, OURS, THEIRS, made
from raised import raised
from sites import NAMES, bundles_of, in_time, shared_out, terms, until
from tunnelled import LISTENING, TRANSPORTS, TUNNELS, address_of, over, secured
from web_certificates import AUTHORITY, write_web_certificate

from fedboost.errors import ConfigError
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.adder import AdderServer
from fedboost.runtime.analyst import Connection
from fedboost.runtime.config import AdderConfig, AggregatorConfig, TunnelsConfig
from fedboost.runtime.net import channel, routes
from fedboost.runtime.net.keys import read_bundle
from fedboost.runtime.net.routes import Server

TABLES = shared_out(3)
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(channel, "FIRST_LOOK", 0.2)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("transports") / "keys", TABLES, ("eu",))


@pytest.fixture(scope="module")
def booster(tmp_path_factory, bundles):
    """The model that training without a tunnel gives."""

    async def scenario():
        async with over("direct", tmp_path_factory.mktemp("direct"), TABLES, bundles) as one:
            return (await one.train(masked())).model.booster

    return in_time(scenario())


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    return write_web_certificate(tmp_path_factory.mktemp("web") / "tls")


def masked(**settings):
    return terms([*TABLES], protection="masked", **settings)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_same_trees_with_a_party_that_is_lost_and_comes_back(tmp_path, bundles, booster, transport):
    async def scenario():
        async with over(transport, tmp_path, TABLES, bundles) as one:
            checked = await asyncio.to_thread(one.analyst.check, masked())
            status = await asyncio.to_thread(one.analyst.status)
            assert {member.name for member in status.members if member.since} == {*TABLES}
            training = asyncio.create_task(one.train(masked()))
            await until(lambda: one.log.named("round"))
            await one.stop_party("south")
            one.start_party("south", TABLES["south"])
            return [site.party for site in checked], (await training).model.booster

    sites, found = in_time(scenario())
    assert sites == [*TABLES]
    assert found == booster


def test_large_messages(tmp_path):
    """Reports of two megabytes are many pieces."""
    draw = np.random.default_rng(1)
    columns = {f"x{number}": draw.normal(size=600) for number in range(200)}
    table = pa.table({**columns, "y": draw.integers(0, 2, 600)})
    tables = shared_out(3, table)
    about = {"label": "y", "numeric": [*columns]}
    bundles = bundles_of(tmp_path / "keys", tables)
    wide = terms([*tables], columns=about, max_bin=256, max_depth=5, rounds=2, protection="masked")

    async def scenario(transport):
        async with over(transport, tmp_path / transport, tables, bundles) as one:
            training = await one.train(wide)
            return training.model.booster, training.traffic["north"][0]

    (first, sent), *others = [in_time(scenario(transport)) for transport in TRANSPORTS]
    assert sent > 1 << 20
    assert all(found == first for found, _ in others)


def asked(one, code, wait=8.0, bundle=None, **route):
    """The error of a request for the status has this code; its sentence."""
    with raised(ConfigError, code) as caught:
        Connection(one.route._replace(**route), bundle or one.bundles["analyst"]).status(wait)
    return str(caught.value)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_is_kept_out(tmp_path, bundles, transport):
    """As without a tunnel, with the same codes, and the address that the user wrote."""
    others = read_bundle(made(tmp_path / "theirs", "analyst", "analyst", THEIRS), "analyst")
    begins = datetime.now(UTC) - DAY + timedelta(seconds=2)
    late = read_bundle(made(tmp_path / "late", "analyst", "analyst", OURS, begins, 1), "analyst")

    async def scenario():
        async with over(transport, tmp_path / "c", {}, bundles) as one:
            foreign = await asyncio.to_thread(asked, one, "tls-failed", bundle=others)
            assert f"the certificate of the aggregator at {one.address} belongs to another" in foreign
            await asyncio.sleep(2)
            expired = await asyncio.to_thread(asked, one, "tls-failed", bundle=late)
            assert "expired" in expired
            other = await asyncio.to_thread(asked, one, "tls-failed", adder="eu")
            assert f"the adder 'eu' at {one.address} is not for adder 'eu'" in other

    in_time(scenario())


class Refuses(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_error(int(self.path[1:]))

    def log_message(self, *args):
        pass


def test_a_web_server_is_no_aggregator(bundles):
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever).start()
        place = f"ws://127.0.0.1:{server.server_port}"
        for path, code, lasts in (("/404", "tunnel-failed", True), ("/502", "tunnel-failed", False)):
            with raised(ConfigError, code) as caught:
                Connection(Server(place + path), bundles["analyst"]).status(1)
            assert f"{place + path}: HTTP {path[1:]}" in str(caught.value)
            assert ("(waited 1 s)" in str(caught.value)) != lasts
        with raised(ConfigError, "tunnel-failed"):
            Connection(Server(place.replace("ws", "grpc")), bundles["analyst"]).status(1)
        server.shutdown()


async def test_other_servers_are_no_aggregators(bundles):
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for scheme, code in (("ws", "tunnel-failed"), ("grpc", "tunnel-failed"), ("wss", "tunnel-tls")):
        route = Server(f"{scheme}://127.0.0.1:{port}")
        with raised(ConfigError, code):
            await asyncio.to_thread(Connection(route, bundles["analyst"]).status, 1)
    await server.stop(0)
    for scheme in ("ws", "grpc"):
        with raised(ConfigError, "aggregator-unreachable"):
            await asyncio.to_thread(
                Connection(Server(f"{scheme}://127.0.0.1:{port}"), bundles["analyst"]).status, 1
            )


def test_a_name_that_nobody_knows(bundles, monkeypatch):
    def unknown(*args, **options):
        raise socket.gaierror("unknown")

    route = Server("wss://fed.example.org")
    port = routes.relay_to(route).address.rpartition(":")[2]
    dialled = socket.create_connection
    known = lambda place, *rest: (dialled if str(place[1]) == port else unknown)(place, *rest)  # noqa: E731
    monkeypatch.setattr(socket, "create_connection", known)
    with raised(ConfigError, "name-unknown") as caught:
        Connection(route, bundles["analyst"]).status(1)
    assert "fed.example.org cannot be resolved (waited 1 s)" in str(caught.value)


@pytest.mark.parametrize("transport", TUNNELS)
def test_tls_of_a_tunnel_is_trusted_by_the_authorities_of_the_site(tmp_path, bundles, web, transport):
    async def scenario():
        async with over("", tmp_path / "c", {}, bundles, tunnels=secured(web)) as one:
            one.route = Server(address_of(one.server, transport, tls=True))
            said = await asyncio.to_thread(asked, one, "tunnel-certificate")
            assert AUTHORITY in said
            assert "(waited" not in said
            said = await asyncio.to_thread(asked, one, "file-failed", ca=tmp_path / "none.pem")
            (der := tmp_path / "authority.cer").write_bytes(bytes(300))
            await asyncio.to_thread(asked, one, "authorities-invalid", ca=der)
            await asyncio.to_thread(one.status, ca=web / "authority.pem")
            said = await asyncio.to_thread(
                asked,
                one,
                "tunnel-certificate",
                ca=web / "authority.pem",
                address=one.address.replace("localhost", "127.0.0.1"),
            )
            assert "IP address mismatch" in said

    in_time(scenario())


def test_adders_have_tunnels_too(tmp_path, bundles, booster):
    """Two parties by WebSockets to an adder, which calls the aggregator over gRPC."""

    async def scenario():
        async with over("", tmp_path, {}, bundles) as one:
            upstream = address_of(one.server, "grpc")
            config = AdderConfig(listen="127.0.0.1:0", upstream=upstream, tunnels=LISTENING)
            adder = one.adders["eu"] = AdderServer(config, one.log, bundles["eu"])
            await adder.start()
            one.tasks["eu"] = asyncio.create_task(adder.run())
            one.start_party("east", TABLES["east"])
            adder.address = address_of(adder, "websocket")
            for name in NAMES[:2]:
                one.start_party(name, TABLES[name], through=("eu",))
            training = await one.train(masked())
            status = await asyncio.to_thread(one.analyst.status)
            assert {member.adder for member in status.members if member.since} == {"", "eu"}
            return training.model.booster

    assert in_time(scenario()) == booster


def test_tunnels_need_keys(tmp_path):
    async def scenario():
        with raised(ConfigError, "tunnels-without-keys"):
            async with over("direct", tmp_path, {}, None):
                pass

    in_time(scenario())


# ---- Limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TUNNELS)
def test_a_flood_of_tunnels_keeps_nobody_out(tmp_path, bundles, monkeypatch, transport):
    """Strangers hold as many tunnels as there are, and silent connections to their port."""
    monkeypatch.setattr(limits, "IDLE_CONNECTIONS", 6)
    monkeypatch.setattr(limits, "CONNECTIONS", 64)  # sixteen tunnels

    async def scenario():
        async with over("", tmp_path, {}, bundles) as one:
            place, refused = one.server.tunnels[transport], 0
            address = address_of(one.server, transport)
            relay = routes.relay_to(Server(address)).address
            opened = []
            for target in [place] * 20 + [relay] * 30:
                host, _, port = target.rpartition(":")
                opened.append(await asyncio.to_thread(socket.create_connection, (host, int(port))))
            await asyncio.to_thread(one.status)  # directly
            one.route = Server(address)
            task = one.start_party("north", TABLES["north"])
            await until(lambda: one.log.named("party here"))
            await asyncio.to_thread(one.status)
            assert not task.done()
            for each in opened:
                each.close()
            return one.log.named("tunnel refused") + one.log.named("peer refused"), refused

    said, _ = in_time(scenario())
    assert said


@pytest.mark.parametrize("transport", TUNNELS)
def test_pieces_are_limited_and_browsers_are_refused(tmp_path, bundles, transport):
    async def scenario():
        async with over(transport, tmp_path, {}, bundles) as one:
            if transport == "grpc":
                async with grpc.aio.insecure_channel(one.server.tunnels["grpc"]) as opened:
                    call = opened.stream_stream(routes.CARRY)()
                    await call.write(bytes(4 * routes.PIECE + 1))
                    assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            else:
                from websockets.asyncio.client import connect
                from websockets.exceptions import ConnectionClosedError, InvalidStatus

                async with connect(one.address, compression=None) as tunnel:
                    await tunnel.send(bytes(4 * routes.PIECE + 1))
                    with pytest.raises(ConnectionClosedError, match="1009"):
                        await tunnel.recv()
                with pytest.raises(InvalidStatus):
                    await connect(one.address, origin="https://evil.example")
            await asyncio.to_thread(one.status)

    in_time(scenario())


@pytest.mark.parametrize("kind", ["websocket", "grpc"])
def test_tls_files_of_an_aggregator_that_do_not_match(tmp_path, bundles, web, kind):
    other = write_web_certificate(tmp_path / "other")
    pair = {"certificate": web / "certificate.pem", "key": other / "key.pem"}
    tunnels = TunnelsConfig(**{kind: "127.0.0.1:0"}, **pair)

    async def scenario():
        with raised(ConfigError, "file-failed"):
            async with over("", tmp_path / "c", {}, bundles, tunnels=tunnels):
                pass

    in_time(scenario())


def test_settings_of_tunnels():
    with raised(ConfigError, "settings-invalid"):
        from fedboost.terms.reading import read_model

        read_model(AggregatorConfig, {"tunnels": {"certificate": "c.pem"}}, "a.toml")
