"""Why a way to an aggregator is closed: what passes and what lasts, and which proxy is asked."""

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer

import grpc
import pytest
from proxies import PASSWORD, login
from pydantic import SecretStr
from raised import raised
from sites import bundles_of, rows
from tunnelled import TRANSPORTS, address_of, over, secured
from web_certificates import server_context, write_web_certificate

import fedboost as fb
from fedboost.errors import ConfigError
from fedboost.runtime.net import channel, routes
from fedboost.runtime.net.channel import tls_fault
from fedboost.runtime.net.routes import Server

SCHEMES = ("ws", "grpc")
VARIABLES = ("https_proxy", "http_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxy_by_default(monkeypatch):
    for name in [*VARIABLES, *map(str.upper, VARIABLES)]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("ways") / "keys", ["north"])


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    return write_web_certificate(tmp_path_factory.mktemp("web") / "tls")


class Says:
    """A server that answers each request with this, and hangs up. Without an answer it hangs up at once."""

    def __init__(self, answer=b"", context=None):
        self.answer, self.context = answer, context
        self.seen = []

    def take(self, opened):
        opened.settimeout(5)
        with suppress(OSError), self.context.wrap_socket(opened, True) if self.context else opened as opened:
            head = b""
            while self.answer and b"\r\n\r\n" not in head and (data := opened.recv(1000)):
                head += data
            self.seen.append(head)
            opened.sendall(self.answer)

    @asynccontextmanager
    async def running(self):
        """Its port."""
        handler = type("Handler", (BaseRequestHandler,), {"handle": lambda own: self.take(own.request)})
        with ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.02,)).start()
            yield server.server_address[1]
            server.shutdown()


def http(status):
    return f"HTTP/1.1 {status} said so\r\nContent-Length: 0\r\n\r\n".encode()


GARBAGE = b"SSH-2.0-OpenSSH\r\n\r\n"


# ---- What passes, and what lasts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "code", "passes"),
    [
        (b"", "tunnel-failed", True),
        (GARBAGE, "tunnel-failed", True),
        (http(404), "tunnel-failed", False),
        (http(429), "tunnel-failed", True),
        (http(503), "tunnel-failed", True),
    ],
)
async def test_faults_of_who_takes_tunnels(bundles, answer, code, passes):
    async with Says(answer).running() as port:
        fault = await asyncio.to_thread(tls_fault, Server(f"ws://127.0.0.1:{port}"), bundles["north"])
    assert (fault.code, fault.passes) == (code, passes)


async def test_a_grpc_tunnel_that_is_closed_at_once(bundles):
    async with Says().running() as port:
        fault = await asyncio.to_thread(tls_fault, Server(f"grpc://127.0.0.1:{port}"), bundles["north"])
    assert (fault.code, fault.passes) == ("tunnel-failed", True)


async def test_an_aggregator_that_is_full_of_tunnels(bundles):
    server, over_ = grpc.aio.server(maximum_concurrent_rpcs=1), asyncio.Event()

    async def take(pieces, call):
        await over_.wait()

    handler = {"Carry": grpc.stream_stream_rpc_method_handler(take)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(routes.CARRY.split("/")[1], handler),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as held:
        call = held.stream_stream(routes.CARRY)()
        await call.write(b"x")
        fault = await asyncio.to_thread(tls_fault, Server(f"grpc://127.0.0.1:{port}"), bundles["north"])
        over_.set()
    await server.stop(0)
    assert (fault.code, fault.passes) == ("tunnel-failed", True)


@pytest.mark.parametrize(
    ("answer", "code", "passes"),
    [
        (GARBAGE, "proxy-unreachable", True),
        (http(403), "proxy-refuses", False),
        (http(407), "proxy-login", False),
        (http(429), "proxy-refuses", True),
        (http(503), "proxy-refuses", True),
    ],
)
@pytest.mark.parametrize("scheme", ["", "ws://"])
async def test_faults_of_proxies(bundles, answer, code, passes, scheme):
    async with Says(answer).running() as port:
        server = Server(f"{scheme}127.0.0.1:7070", proxy=SecretStr(f"http://127.0.0.1:{port}"))
        fault = await asyncio.to_thread(tls_fault, server, bundles["north"])
    assert (fault.code, fault.passes) == (code, passes)


@pytest.mark.parametrize("scheme", ["wss", "grpcs"])
async def test_a_certificate_that_is_not_trusted_lasts(bundles, web, scheme):
    context = server_context(web)
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with Says(http(503), context).running() as port:
        fault = await asyncio.to_thread(tls_fault, Server(f"{scheme}://localhost:{port}"), bundles["north"])
    assert (fault.code, fault.passes) == ("tunnel-certificate", False)


CHILD = """
import sys, fedboost as fb
from fedboost.errors import ConfigError
try:
    fb.connect(sys.argv[1], sys.argv[2], ca=sys.argv[3]).status(5)
except ConfigError as error:
    print(error.code)
"""


@pytest.mark.slow
async def test_authorities_that_sign_nothing_are_not_replaced_by_others(tmp_path, bundles, web):
    """`ca` has no authority. gRPC does not fall back to those of the machine, which would be trusted."""
    other = write_web_certificate(tmp_path / "other")
    async with over("", tmp_path, {}, bundles, tunnels=secured(web)) as one:
        address = address_of(one.server, "grpc", tls=True)
        for file, said in ((other / "certificate.pem", "tunnel-certificate\n"), (web / "authority.pem", "")):
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CHILD, address, bundles["analyst"].folder, file),
                env=os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(web / "authority.pem")},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            out, err = await child.communicate()
            assert out.decode() == said, err.decode()


# ---- Members behind such a proxy ------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_proxy_that_answers_no_http(tmp_path, bundles, transport):
    """A party and an analyst end with a code, and no traceback."""
    async with Says(GARBAGE).running() as port, over("", tmp_path, {}, bundles) as one:
        proxy = SecretStr(f"http://127.0.0.1:{port}")
        one.route = Server(address_of(one.server, transport), proxy=proxy)
        asked = asyncio.create_task(asyncio.to_thread(one.status, 1.5))
        with raised(ConfigError, "proxy-unreachable"):
            await one.start_party("north", rows(), wait=1.5)
        with raised(ConfigError, "proxy-unreachable"):
            await asked
        one.tasks.clear()


# ---- Which proxy is asked -------------------------------------------------------------------------------


def dialled(server, bundle, seconds=0.5):
    """Open a channel to a server, and wait."""
    opened = channel.dial(server, bundle, grpc)
    with suppress(grpc.FutureTimeoutError):
        grpc.channel_ready_future(opened).result(timeout=seconds)
    opened.close()


TARGETS = {
    "fed.example.org:7070": "fed.example.org:7070",
    "ws://fed.example.org": "fed.example.org:80",
    "grpc://fed.example.org": "fed.example.org:80",
    "[::1]:7070": "[::1]:7070",
    "ws://[::1]:8080": "[::1]:8080",
    "grpc://[::1]:8080": "[::1]:8080",
    "münchen.example:7070": "xn--mnchen-3ya.example:7070",
    "ws://münchen.example": "xn--mnchen-3ya.example:80",
    "grpc://münchen.example": "xn--mnchen-3ya.example:80",
}


async def asked_for(server, bundle, proxy):
    """What a proxy is asked, while a member dials."""
    proxy.seen.clear()
    dialling = asyncio.create_task(asyncio.to_thread(dialled, server, bundle))
    with suppress(TimeoutError):
        async with asyncio.timeout(0.4):
            while not proxy.seen:
                await asyncio.sleep(0.01)
    await dialling
    return proxy.seen[0].decode().split("\r\n") if proxy.seen else None


@pytest.mark.parametrize("address", TARGETS)
async def test_what_a_proxy_is_asked(bundles, address, monkeypatch):
    """The same over all transports, and whatever the environment says."""
    monkeypatch.setenv("no_proxy", "fed.example.org,::1,127.0.0.0/8,example")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    proxy = Says(http(503))
    async with proxy.running() as port:
        server = Server(address, proxy=login(f"127.0.0.1:{port}"))
        first, *headers = await asked_for(server, bundles["north"], proxy)
    assert first.split()[:2] == ["CONNECT", TARGETS[address]]
    assert f"Proxy-Authorization: Basic {'dXNlcjpzJTNjcmV0IHBAc3Mv'}" in headers
    assert PASSWORD == "s%3cret p@ss/"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "is_asked"),
    [
        ({"https_proxy": "PROXY"}, True),
        ({"HTTPS_PROXY": "PROXY"}, True),
        ({"https_proxy": "BARE"}, True),
        ({"http_proxy": "PROXY"}, False),
        ({"grpc_proxy": "PROXY"}, False),
        ({"https_proxy": "PROXY", "no_proxy": "example.org"}, False),
        ({"https_proxy": "PROXY", "no_grpc_proxy": "example.org"}, True),
        ({"https_proxy": "PROXY", "no_proxy": "*"}, False),
    ],
)
@pytest.mark.parametrize("scheme", ["", "ws://", "grpc://"])
async def test_the_environment(bundles, monkeypatch, variables, is_asked, scheme):
    """gRPC follows the same variables as Python."""
    proxy = Says(http(503))
    monkeypatch.setattr(routes.socket, "getaddrinfo", unknown(routes.socket.getaddrinfo))
    async with proxy.running() as port:
        for name, value in variables.items():
            place = f"127.0.0.1:{port}"
            monkeypatch.setenv(name, value.replace("PROXY", f"http://{place}").replace("BARE", place))
        asked = await asked_for(Server(f"{scheme}fed.example.org:7070"), bundles["north"], proxy)
    assert bool(asked) == is_asked


def unknown(known):
    def found(host, *args, **options):
        if host == "fed.example.org":
            raise routes.socket.gaierror(-2, "unknown")
        return known(host, *args, **options)

    return found


# ---- Without keys ---------------------------------------------------------------------------------------


async def test_without_keys_the_environments_proxy_is_not_asked(tmp_path, monkeypatch):
    """What is not encrypted stays on this machine."""
    proxy = Says(http(503))
    async with proxy.running() as port:
        for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        async with consortium_without_keys(tmp_path) as one:
            task = one.start_party("north", rows())
            status = await asyncio.to_thread(fb.connect(one.address, insecure_loopback=True).status, 5)
            assert status is not None
            while not one.log.named("party here"):
                await asyncio.sleep(0.01)
            assert not task.done()
    assert not proxy.seen


def consortium_without_keys(folder):
    return over("", folder, {}, None, tunnels=None)


async def test_without_keys_a_proxy_is_refused(tmp_path):
    proxy = Says(http(503))
    async with proxy.running() as port, consortium_without_keys(tmp_path) as one:
        through = f"http://127.0.0.1:{port}"
        with raised(ConfigError, "proxy-without-keys"):
            await asyncio.to_thread(fb.connect(one.address, insecure_loopback=True, proxy=through).status, 2)
        one.route = Server(one.address, proxy=SecretStr(through))
        with raised(ConfigError, "proxy-without-keys"):
            await one.start_party("north", rows(), wait=2)
        one.tasks.clear()
    assert not proxy.seen
