"""`fedboost check --network`: each thing that can close the way to an aggregator is found and named."""

import asyncio
import json
import socket
import ssl
import time
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from key_folders import DAY, NOW, OURS, THEIRS, made, serving
from nginx import needs_nginx, nginx
from plain_servers import plain_server
from proxies import PASSWORD, ConnectProxy, Cuts, login
from raised import raised
from sites import bundles_of, fedboost, in_time
from tunnelled import TRANSPORTS, TUNNELS, address_of, over, secured
from web_certificates import AUTHORITY, server_context, write_web_certificate

from fedboost.cli.main import app
from fedboost.errors import ConfigError
from fedboost.privacy.identity import Signer, to_pem
from fedboost.runtime.aggregator import archive
from fedboost.runtime.net import channel, diagnosis, routes
from fedboost.runtime.net.keys import Bundle, read_bundle, read_certificates

FINE = {
    "direct": ["name-ok", "tcp-ok", "proxy-none", "tls-ok", "http2-ok", "server-ok", "clock-ok"],
    "websocket": ["name-ok", "tcp-ok", "proxy-none", "tunnel-ok", "server-ok", "clock-ok"],
}
FINE["grpc"] = FINE["websocket"]
OPENED = ["name-ok", "tcp-ok", "proxy-none"]
OVER_TLS = {"websocket": ["tls-ok", "http2-unneeded"], "grpc": ["tls-ok", "http2-ok"]}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("network") / "keys", ["north"], ["eu"])


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    return write_web_certificate(tmp_path_factory.mktemp("web") / "tls")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(diagnosis, "PATIENCE", 2.0)
    monkeypatch.setattr(routes.open_way, "__defaults__", (2.0,))
    monkeypatch.setattr(channel, "FIRST_LOOK", 0.2)


def checked(address, bundle, *options, **settings):
    """The steps that the command finds for a site: kinds, and facts by kind. settings: of the site's file."""
    file = bundle.folder.parent / "party.toml"
    values = {"party": "north", "aggregator": address, "keys": str(bundle.folder), **settings}
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return found(fedboost("check", "--network", "--config", file, "--json", "--idle", 0, *options))


def found(end):
    steps = [json.loads(line) for line in end.out.splitlines()]
    assert steps, end.err
    assert end.code == any(step["severity"] != "ok" for step in steps)
    for step in steps:
        assert bool(step["advice"]) == (step["severity"] != "ok")
    return [step["kind"] for step in steps], {step["kind"]: step for step in steps}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_open_way(tmp_path, bundles, transport):
    async def scenario():
        async with over("", tmp_path, {}, bundles) as one:
            address = address_of(one.server, transport)
            kinds, _ = await asyncio.to_thread(checked, address, bundles["north"])
            assert kinds == FINE[transport]
            keys = ("--keys", bundles["analyst"].folder, "--idle", "0")
            arguments = ("check", "--network", "--aggregator", address, *keys)
            end = await asyncio.to_thread(fedboost, *arguments)
            assert (end.code, end.err) == (0, "")
            assert all(len(line) < 80 for line in end.out.splitlines())
            if transport == "direct":
                for scheme, http2 in {"wss": "http2-unneeded", "grpcs": "http2-ok"}.items():
                    kinds, _ = await asyncio.to_thread(checked, f"{scheme}://{address}", bundles["north"])
                    assert kinds == [*OPENED, "tls-own", http2]

    in_time(scenario())


async def check(address, bundle, *options, **settings):
    return await asyncio.to_thread(checked, address, bundle, *options, **settings)


async def holds(reader, writer):
    """Says nothing."""
    await reader.read()
    writer.close()


# ---- The name, TCP, the proxy ---------------------------------------------------------------------------


def test_a_name_that_nobody_knows(bundles, monkeypatch):
    known = socket.getaddrinfo

    def unknown(host, *args, **options):
        if host == "fed.example.org":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for address in ("fed.example.org:7070", "wss://fed.example.org"):
        assert checked(address, bundles["north"])[0] == ["name-unknown"]


def test_a_port_that_is_closed(bundles):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ws://127.0.0.1:{port}"):
        kinds, facts = checked(address, bundles["north"])
        assert kinds == ["name-ok", "tcp-refused"]
        assert facts["tcp-refused"]["first"] == f"127.0.0.1:{port}"


def test_a_firewall_that_drops_packets(bundles, monkeypatch):
    def drops(*args, **options):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", drops)
    assert checked("127.0.0.1:7070", bundles["north"])[0] == ["name-ok", "tcp-silent"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_proxies(tmp_path, bundles, transport, monkeypatch):
    proxy, north = ConnectProxy(), bundles["north"]

    async def scenario():
        async with over("", tmp_path, {}, bundles) as one:
            address = address_of(one.server, transport)
            async with proxy.running() as place:
                right, wrong = (login(place, word).get_secret_value() for word in (PASSWORD, "wrong"))
                kinds, facts = await check(address, north, proxy=wrong)
                assert kinds == ["name-ok", "tcp-ok", "proxy-login"]
                assert "wrong" not in str(facts)
                kinds, facts = await check(address, north, proxy=right)
                assert kinds == ["proxy-ok" if kind == "proxy-none" else kind for kind in FINE[transport]]
                assert facts["tcp-ok"]["first"] == place
                assert facts["proxy-ok"]["source"] == "the site's file"
                assert login(place).get_secret_value().split("@")[0] not in str(facts)
                monkeypatch.setenv("https_proxy", right)
                monkeypatch.setenv("no_proxy", "")
                _, facts = await check(address, north)
                assert facts["proxy-ok"]["source"] == "the environment"
                proxy.allowed = ()
                assert (await check(address, north))[0] == ["name-ok", "tcp-ok", "proxy-refuses"]
            kinds, facts = await check(address, north)
            assert kinds == ["name-ok", "tcp-refused"]
            assert facts["tcp-refused"]["first"] == place

    in_time(scenario())


@pytest.mark.slow
def test_a_proxy_that_answers_nothing_or_something_else(bundles):
    async def hangs_up(reader, writer):
        writer.close()

    async def greets(reader, writer):
        with closing(writer):
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await reader.read()

    async def scenario():
        for take in (holds, hangs_up, greets):
            async with plain_server(take) as port:
                for scheme in ("", "wss://", "grpcs://"):
                    address, proxy = f"{scheme}fed.example.org:7070", f"http://localhost:{port}"
                    kinds, facts = await check(address, bundles["north"], proxy=proxy)
                    assert kinds == ["name-ok", "tcp-ok", "proxy-unreachable"]
                    assert f"localhost:{port}" in facts["proxy-unreachable"]["sentence"]

    in_time(scenario())


# ---- TLS and HTTP/2 -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_servers_without_tls(bundles):
    async def hangs_up(reader, writer):
        writer.close()

    async def answers(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def scenario():
        for take in (holds, hangs_up, answers):
            async with plain_server(take) as port:
                for scheme in ("", "wss://", "grpcs://"):
                    kinds, _ = await check(f"{scheme}localhost:{port}", bundles["north"])
                    assert kinds == [*OPENED, "tls-failed"]

    in_time(scenario())


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_interception(bundles, web, protocol):
    context = server_context(web)
    context.set_alpn_protocols([protocol])
    old = server_context(web, ssl.TLSVersion.TLSv1_2)
    old.set_alpn_protocols([protocol])
    http2 = "http2-ok" if protocol == "h2" else "http2-missing"

    async def scenario():
        for one in (context, old):
            async with plain_server(holds, one) as port:
                kinds, facts = await check(f"localhost:{port}", bundles["north"])
                assert kinds == [*OPENED, "tls-intercepted", http2]
                assert AUTHORITY in facts["tls-intercepted"]["found"]
                kinds, facts = await check(f"grpcs://localhost:{port}", bundles["north"])
                assert kinds == [*OPENED, "tls-untrusted", http2]
                assert AUTHORITY in facts["tls-untrusted"]["found"]
                kinds, _ = await check(f"wss://localhost:{port}", bundles["north"])
                assert kinds == [*OPENED, "tls-untrusted", "http2-unneeded"]
                ca = {"ca": str(web / "authority.pem")}
                kinds, _ = await check(f"wss://127.0.0.1:{port}", bundles["north"], **ca)
                assert kinds == [*OPENED, "tls-unfit", "http2-unneeded"]
                kinds, _ = await check(f"grpcs://localhost:{port}", bundles["north"], **ca)
                assert kinds[3:5] == ["tls-ok", http2]

    in_time(scenario())


@pytest.mark.parametrize("transport", TUNNELS)
def test_tunnels_whose_tls_is_trusted(tmp_path, bundles, web, transport):
    async def scenario():
        async with over("", tmp_path, {}, bundles, tunnels=secured(web)) as one:
            address = address_of(one.server, transport, tls=True)
            kinds, _ = await check(address, bundles["north"], ca=str(web / "authority.pem"))
            assert kinds == [*OPENED, *OVER_TLS[transport], *FINE[transport][3:]]

    in_time(scenario())


@needs_nginx
@pytest.mark.slow
@pytest.mark.parametrize("transport", TUNNELS)
def test_nginx_ends_tls(tmp_path, bundles, web, transport):
    proxy, north, ca = ConnectProxy(), bundles["north"], str(web / "authority.pem")

    async def scenario():
        async with (
            proxy.running() as place,
            over("", tmp_path, {}, bundles) as one,
            nginx(tmp_path, web, one.server.tunnels) as behind,
        ):
            scheme, path = {"websocket": ("wss", "/fedboost"), "grpc": ("grpcs", "")}[transport]
            for settings in ({}, {"proxy": login(place).get_secret_value()}):
                kinds, _ = await check(f"{scheme}://{behind}{path}", north, ca=ca, **settings)
                assert kinds[3:] == [*OVER_TLS[transport], *FINE[transport][3:]]
            assert (await check(behind, north))[0] == [*OPENED, "tls-intercepted", "http2-ok"]
            if transport == "websocket":
                kinds, _ = await check(f"wss://{behind}/other", north, ca=ca)
                assert kinds == [*OPENED, *OVER_TLS[transport], "tunnel-failed"]

    in_time(scenario())


# ---- The tunnel, and the aggregator ---------------------------------------------------------------------


@pytest.mark.slow
async def test_a_tunnel_that_nobody_takes(bundles):
    async with plain_server(holds) as port:
        for scheme in ("ws", "grpc"):
            kinds, _ = await check(f"{scheme}://localhost:{port}", bundles["north"])
            assert kinds == [*OPENED, "tunnel-failed"]


def loaded(folder):
    """A bundle that nobody judged."""
    key, chain = (folder / "key.pem").read_bytes(), to_pem(*read_certificates(folder / "certificate.pem"))
    signer = Signer("hub", "aggregator", chain, load_pem_private_key(key, None))
    return Bundle(folder, signer, (folder / "consortium.pem").read_bytes(), key, frozenset())


def test_certificates(tmp_path):
    north = read_bundle(made(tmp_path / "north", "north", "party"), "party")
    other = made(tmp_path / "theirs", "north", "party", THEIRS)
    hubs = {
        "server-consortium": made(tmp_path / "other", "hub", "aggregator", THEIRS),
        "server-expired": made(tmp_path / "old", "hub", "aggregator", since=NOW - 20 * DAY),
        "server-not-yet": made(tmp_path / "new", "hub", "aggregator", since=NOW + DAY),
        "server-unfit": made(tmp_path / "party", "south", "party"),
        "server-failed": made(tmp_path / "hub", "hub", "aggregator"),
    }

    async def scenario():
        for kind, folder in hubs.items():
            async with serving(loaded(folder)) as address:  # of these, the last one has no status
                assert (await check(address, north))[0] == [*FINE["direct"][:5], kind]
        (other / "consortium.pem").write_bytes(to_pem(OURS[1], THEIRS[1]))
        async with serving(loaded(folder)) as address:
            kinds, facts = await check(address, replace(north, folder=other))
            assert kinds == [*FINE["direct"][:5], "server-failed"]
            assert "rejects" in facts["server-failed"]["found"]

    in_time(scenario())


def test_an_adder(tmp_path, bundles):
    async def scenario():
        async with over("", tmp_path, {}, bundles) as one:
            await one.start_adder("eu")
            for name, end in (("eu", ["server-ok"]), ("us", ["server-unfit"])):
                kinds, facts = await check([one.adders["eu"].address], bundles["north"], through=[name])
                assert kinds == [*FINE["direct"][:5], *end]
                assert facts["name-ok"]["role"] == "adder"

    in_time(scenario())


def test_the_clock_of_the_aggregator(tmp_path, bundles, monkeypatch):
    async def scenario():
        async with over("", tmp_path, {}, bundles) as one:
            for ahead, word in ((100, "behind"), (-100, "ahead of")):
                clock = SimpleNamespace(time=lambda ahead=ahead: time.time() + ahead)
                monkeypatch.setattr(archive, "time", clock)
                kinds, facts = await check(one.server.address, bundles["north"])
                assert kinds == [*FINE["direct"][:-1], "clock-differs"]
                seconds, _, found = facts["clock-differs"]["found"].partition(" s ")
                assert abs(int(seconds) - 100) <= 1
                assert found == word

    in_time(scenario())


# ---- How long connections live --------------------------------------------------------------------------


async def watched(address, bundle, *options):
    kinds, facts = await check(address, bundle, *options)
    return kinds[-1], facts[kinds[-1]]


@pytest.mark.slow
def test_a_connection_that_lives(tmp_path, bundles):
    async def scenario():
        async with over("", tmp_path, {}, bundles) as one:
            for transport in TRANSPORTS:
                address = address_of(one.server, transport)
                kind, facts = await watched(address, bundles["north"], "--idle", "2")
                assert (kind, facts["found"]) == ("idle-ok", 2)

    in_time(scenario())


@pytest.mark.parametrize(("short", "expected"), [(25, "idle-short"), (1, "idle-always")])
def test_connections_that_are_cut(tmp_path, bundles, monkeypatch, short, expected):
    monkeypatch.setattr(diagnosis, "SHORT_SECONDS", short)

    async def scenario():
        async with over("", tmp_path, {}, bundles) as one:
            async with Cuts(address_of(one.server, "websocket"), 2).running() as address:
                kind, facts = await watched(address, bundles["north"], "--idle", "6")
            assert kind == expected
            assert 1 <= facts["found"] <= 4

    in_time(scenario())


class Impatient(ConnectProxy):
    """A proxy that cuts connections on which the client is silent for some seconds."""

    async def take(self, reader, writer):
        read = reader.read
        reader.read = lambda size: asyncio.wait_for(read(size), self.patience)
        await super().take(reader, writer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patience", "expected"), [(3, "idle-short"), pytest.param(25, "idle-ok", marks=pytest.mark.long)]
)
def test_silent_connections_are_cut(tmp_path, bundles, patience, expected):
    proxy = Impatient()
    proxy.patience = patience

    async def scenario():
        async with proxy.running() as place, over("", tmp_path, {}, bundles) as one:
            settings = {"proxy": login(place).get_secret_value()}
            options = ("--idle", "60" if patience < 20 else "45")
            kinds, facts = await check(one.server.address, bundles["north"], *options, **settings)
            assert kinds[-1] == expected
            assert facts[expected]["found"] in ((3, 4, 5) if patience < 20 else (45, 46))

    in_time(scenario())


# ---- Mistakes -------------------------------------------------------------------------------------------


MISTAKES = [
    ("--network", "option-missing"),
    ("--network --config party.toml --aggregator a:1", "option-missing"),
    ("--network --aggregator a:1", "option-missing"),
    ("--network --aggregator a --keys k", "address-invalid"),
    ("--network --aggregator a:1 --keys k", "keys-folder-missing"),
    ("rows.csv --network --config party.toml", "option-conflict"),
    ("--network --config party.toml --terms terms.toml", "option-conflict"),
    ("--aggregator a:1 --keys k", "option-conflict"),
]


@pytest.mark.parametrize(("line", "code"), MISTAKES)
def test_mistakes(line, code):
    with raised(ConfigError, code):
        app(["check", *line.split()], standalone_mode=False)
