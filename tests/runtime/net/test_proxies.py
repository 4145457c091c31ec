"""Members behind a proxy with passwords, by every transport, and tunnels through nginx that ends TLS."""

import asyncio
from urllib.parse import quote

import pytest
from nginx import needs_nginx, nginx
from proxies import PASSWORD, ConnectProxy, login
from raised import raised
from sites import bundles_of, in_time, shared_out, terms
from tunnelled import TRANSPORTS, TUNNELS, address_of, over
from web_certificates import write_web_certificate

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.runtime.net import channel
from fedboost.runtime.net.routes import Server
from fedboost.runtime.site.config import read_party

TABLES = shared_out(3)
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(channel, "FIRST_LOOK", 0.2)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("proxies") / "keys", TABLES)


@pytest.fixture(scope="module")
def booster(tmp_path_factory, bundles):
    async def scenario():
        async with over("direct", tmp_path_factory.mktemp("direct"), TABLES, bundles) as one:
            return (await one.train(masked())).model.booster

    return in_time(scenario())


def masked():
    return terms([*TABLES], protection="masked")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_through_a_proxy_with_a_password(tmp_path, bundles, booster, transport):
    proxy = ConnectProxy()

    async def scenario():
        async with proxy.running() as place, over("", tmp_path, {}, bundles) as one:
            one.route = one.route._replace(address=address_of(one.server, transport), proxy=login(place))
            for name, table in TABLES.items():
                one.start_party(name, table)
            found = await one.train(masked())
            log = repr(one.log.events) + repr(one.route) + repr(one.nodes["north"]._config)
            assert PASSWORD not in log
            assert quote(PASSWORD, safe="") not in log
            return found.model.booster, one.address

    found, address = in_time(scenario())
    assert found == booster
    assert {port for _, port, _ in proxy.seen} == {int(address.rpartition(":")[2])}
    assert {status for *_, status in proxy.seen} == {200}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_a_proxy_refuses(tmp_path, bundles, transport, monkeypatch):
    proxy = ConnectProxy(allowed=())

    async def scenario():
        async with proxy.running() as place, over("", tmp_path, {}, bundles) as one:
            address = address_of(one.server, transport)
            for password, code in ((PASSWORD, "proxy-refuses"), ("wrong", "proxy-login")):
                with raised(ConfigError, code) as caught:
                    await asyncio.to_thread(one.status, 3.0, address=address, proxy=login(place, password))
                assert f"the proxy {place} " in str(caught.value)
                assert "wrong" not in str(caught.value)
            one.route = one.route._replace(address=address, proxy=login(place, "wrong"))
            with raised(ConfigError, "proxy-login"):
                await one.start_party("north", TABLES["north"])
            proxy.allowed = None
            one.route = one.route._replace(address=address, proxy=None)
            monkeypatch.setenv("https_proxy", login(place).get_secret_value())
            await asyncio.to_thread(one.status)
            assert proxy.seen[-1][-1] == 200
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            seen = len(proxy.seen)
            one.route = one.route._replace(ca=tmp_path if transport == "direct" else None)
            await asyncio.to_thread(one.status)
            assert len(proxy.seen) == seen
            return place

    place = in_time(scenario())
    with raised(ConfigError, "proxy-unreachable"):
        fb.connect("wss://fed.example.org", bundles["analyst"].folder, proxy=f"http://{place}").status(1)


def test_a_proxy_in_a_file_is_checked_and_not_shown(tmp_path):
    file = tmp_path / "party.toml"
    file.write_text('party = "a"\naggregator = "a:1"\nproxy = "https://user:secret@b"\n')
    with raised(ConfigError, "settings-invalid") as caught:
        read_party(file, None)
    assert "secret" not in str(caught.value)
    with raised(ConfigError, "address-invalid") as caught:
        fb.connect("a:1", insecure_loopback=True, proxy="socks5://user:secret@b")
    assert "secret" not in str(caught.value)


# ---- nginx ends TLS ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", ["s3c#ret", "s3c?ret", "s3c\\ret", "s3c\uff0fret", "12?34", "a b"])
def test_a_password_that_is_not_in_percent_is_refused_and_not_shown(password, monkeypatch):
    url = f"http://user:{password}@localhost:3128"
    with raised(ConfigError, "address-invalid") as caught:
        fb.connect("localhost:7070", insecure_loopback=True, proxy=url)
    monkeypatch.setenv("https_proxy", url)
    monkeypatch.delenv("no_proxy", raising=False)
    with raised(ConfigError, "address-invalid") as of_environment:
        _ = Server("fed.example.org:7070").proxy_url
    for error in (caught.value, of_environment.value):
        assert password not in str(error)


@pytest.mark.parametrize(
    "address",
    [
        *("a..b:7070", f"{'a' * 64}:7070", "wss://[zz]", "a?b:7070", "a#b:7070"),
        *("user:pass@h:7070", "wss://user:pass@h", "grpcs://h/path"),
    ],
)
def test_addresses_that_no_server_has(address):
    with raised(ConfigError, "address-invalid") as caught:
        fb.connect(address, insecure_loopback=True)
    assert "pass@" not in str(caught.value)


@needs_nginx
@pytest.mark.parametrize("behind_a_proxy", [False, True])
@pytest.mark.parametrize("transport", TUNNELS)
def test_through_nginx_that_ends_tls(tmp_path, bundles, booster, transport, behind_a_proxy):
    web = write_web_certificate(tmp_path / "web")
    proxy = ConnectProxy()

    async def scenario():
        async with (
            proxy.running() as place,
            over("", tmp_path, {}, bundles) as one,
            nginx(tmp_path, web, one.server.tunnels) as behind,
        ):
            scheme = "wss" if transport == "websocket" else "grpcs"
            path = "/fedboost" if transport == "websocket" else ""
            one.route = Server(f"{scheme}://{behind}{path}", "", None, web / "authority.pem")
            if behind_a_proxy:
                one.route = one.route._replace(proxy=login(place))
            for name, table in TABLES.items():
                one.start_party(name, table)
            found = await one.train(masked())
            if transport == "websocket":
                with raised(ConfigError, "tunnel-failed") as caught:
                    await asyncio.to_thread(one.status, address=f"{scheme}://{behind}/other")
                assert "HTTP 404" in str(caught.value)
            return found.model.booster

    assert in_time(scenario()) == booster
    assert bool(proxy.seen) == behind_a_proxy
