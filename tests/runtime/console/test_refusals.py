"""Who is refused by a console on a loopback address, and that each refusal is in the log and the metrics."""

import http.client
import re
import select
import socket
import time

import pytest
from consoles import served
from processes import wait_until

from fedboost.runtime.console import MAX_BODY, ConsoleQueries
from fedboost.runtime.web import guard, serving
from fedboost.runtime.web.guard import Bucket, Buckets, group_of

PAGES = "/", "/sites", "/sessions", "/api/v1/health", "/api/v1/sites", "/api/v1/sessions"
EVIL = "https://evil.example"
ODD = (
    *("evil.com@localhost", "127.0.0.1#.evil.com", "localhost#evil.com", "localhost/evil.com"),
    *("localhost?evil.com", "user:word@127.0.0.1", "127.0.0.1@evil.com", "[::1]evil.com", "[::1].evil.com:9"),
    *("", "[::1", "a b"),
    *("localhost:9:9", "localhost:x", "localhost:", "[::1%evil]", ".localhost", "localhost\\.evil.com"),
)
"""Headers Host that a parser of URLs takes for this machine, or that are not a name at all."""


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    with served(tmp_path_factory.mktemp("console"), tokens=["viewer", "analyst"]) as one:
        yield one


@pytest.fixture(autouse=True)
def every_refusal_has_its_line(console):
    """A flood of refusals has a line a minute: each test begins with none."""
    console.one.server.refusals._peers.clear()
    console.one.server.pages.console._server._server.config.loaded_app._requests.clear()
    console.one.log.events.clear()


def counted(console):
    text = console.ask("/api/v1/metrics").text
    return float(re.findall(r'fedboost_refused_total\{event="console refused"\} ([0-9.]+)', text)[0])


def refused(console, status, asked, reason, /, *arguments, **options):
    """One request is refused, with a line in the log; the answer is JSON."""
    answer = console.ask(*arguments, **options)
    assert answer.status == status, answer.text
    assert re.search(reason, answer.json["error"])
    (line,) = console.refused
    assert line[0] == asked
    assert re.search(reason, line[1])
    assert answer.headers["Content-Security-Policy"] == guard.POLICY


@pytest.mark.parametrize("path", PAGES)
def test_whoever_is_on_this_machine_reads(console, path):
    answer = console.ask(path)
    assert answer.status == 200
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Server" not in answer.headers
    assert "Set-Cookie" not in answer.headers
    assert "style=" not in answer.text
    assert console.refused == []


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "",
        "[::1",
        "a b",
        *ODD,
    ],
)
def test_a_website_whose_name_leads_here_is_told_nothing(console, host):
    refused(console, 421, "GET /", "does not belong to this process", "/", host=host)


def test_a_request_has_one_host(console):
    assert b" 400 " in console.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:9"])
def test_names_of_this_machine_are_fine(console, host):
    assert console.ask("/", host=host).status == 200


@pytest.mark.parametrize("origin", [EVIL, "http://localhost:1", "http://127.0.0.1", "file://"])
def test_a_page_of_another_website_is_refused(console, origin):
    refused(console, 403, "GET /api/v1/health", "another website", "/api/v1/health", Origin=origin)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_website_loads_is_refused_and_a_link_is_not(console, site):
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    refused(console, 403, "GET /script.js", "another website", "/script.js", **headers)
    assert console.ask("/", **headers | {"Sec-Fetch-Mode": "navigate"}).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"Origin": "null"}, 403), ({"Origin": "null", "Sec-Fetch-Site": "cross-site"}, 403)],
)
def test_a_form_of_another_website_is_refused(console, headers, status):
    body = b"token=x"
    refused(console, status, "POST /login", "browser|website", "/login", "POST", body, **headers)


@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd",
        "/a/../sites",
        "/%2e%2e/sites",
        "/sites%2f..",
        "/%6cog",
        "//sites",
        "/sites/",
        "/.git/config",
        "/sessions/..%5c..",
        "/sites;x",
        "/sessions/session-0123456789abcdef",
        "/api/v1/models/session-0123456789abcdef",
        "/api/v1/models/tokens.toml",
        "/api/v2/health",
        "/style.css/x",
        "/" + "a" * 600,
        "http://127.0.0.1/x",
    ],
)
def test_paths_outside_are_refused(console, path):
    answer = console.ask(path)
    assert answer.status == 404
    assert set(answer.json) == {"error"}
    ((asked, reason),) = console.refused
    assert asked.startswith("GET ")
    assert reason.startswith("404: ")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "OPTIONS", "NONSENSE"])
def test_other_methods_are_refused(console, method):
    refused(console, 405, f"{method} /api/v1/sessions", "method", "/api/v1/sessions", method, b"")


def test_a_page_is_not_posted_to(console):
    refused(console, 405, "POST /sites", "this method", "/sites", "POST", b"", role="viewer")


def test_what_is_too_much_is_refused(console):
    many = {f"X-{number}": "x" for number in range(guard.MAX_HEADERS)}
    refused(console, 431, "GET /", "the request has more than 64 headers", "/", **many)
    console.one.log.events.clear()
    refused(console, 414, "GET /", "too long", "/?" + "x" * 600)
    console.one.log.events.clear()
    length = {"Content-Length": str(MAX_BODY + 1)}
    refused(
        console, 413, "POST /api/v1/sessions", "bytes", "/api/v1/sessions", "POST", role="analyst", **length
    )
    console.one.log.events.clear()
    assert b" 400 " in console.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000)
    assert console.refused == [
        ("no request", "400: the client does not use HTTP, or its headers are too large")
    ]
    console.one.log.events.clear()
    assert b" 400 " in console.raw(b"\x16\x03\x01\x02\x00\x01\x00 hello\r\n\r\n")
    assert len(console.refused) == 1


def test_a_body_that_grows_beyond_the_bound_is_refused(console, monkeypatch):
    app = console.one.server.pages.console._server._server.config.loaded_app
    monkeypatch.setattr(app, "_bodies", {"/api/v1/sessions": 1000})
    head = f"POST /api/v1/sessions HTTP/1.1\r\nHost: {console.host}\r\nTransfer-Encoding: chunked\r\n"
    head += f"Connection: close\r\nAuthorization: Bearer {console.token['analyst']}\r\n\r\n"
    answer = console.raw(head.encode() + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n")
    assert b" 413 " in answer
    assert console.refused == [("POST /api/v1/sessions", "413: the body has more than 1000 bytes")]


def test_refusals_are_counted_and_a_flood_has_few_lines(console):
    before = counted(console)
    for _ in range(20):
        assert console.ask("/nothing").status == 404
    assert counted(console) == before + 20
    assert 0 < len(console.refused) <= 6


def test_a_browser_gets_a_page_that_says_why(console):
    answer = console.ask("/nothing", Accept="text/html,*/*")
    assert (answer.status, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "Refused (404)" in answer.text
    assert "There is no such page." in answer.text


def test_an_address_that_asks_without_end_has_to_wait(console, monkeypatch):
    monkeypatch.setattr(guard, "LATE_SECONDS", 0.05)
    flood = Buckets(0.1, 3.0)
    monkeypatch.setattr(
        console.one.server.pages.console._server._server.config.loaded_app, "_requests", flood
    )
    assert [console.ask("/api/v1/health").status for _ in range(5)] == [200] * 3 + [429] * 2
    assert console.refused[0] == (
        "GET /api/v1/health",
        "429: there are more than 50 requests per second from this address",
    )


def test_an_address_has_one_share_under_all_its_names(console, monkeypatch):
    """Each program here can ask from 127.0.0.1 to 127.255.255.255."""
    assert group_of("127.0.0.1") == group_of("127.3.2.1") == group_of("::1") == group_of("::ffff:127.0.0.9")
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:2") != group_of("2001:db8:0:1::1")
    assert group_of("192.0.2.7") == group_of("::ffff:192.0.2.7") != group_of("192.0.2.8")
    monkeypatch.setattr(guard, "LATE_SECONDS", 0.05)
    app = console.one.server.pages.console._server._server.config.loaded_app
    monkeypatch.setattr(app, "_requests", Buckets(0.0, 3.0))
    ask = f"GET /api/v1/health HTTP/1.1\r\nHost: {console.host}\r\nConnection: close\r\n\r\n".encode()
    port, heads = int(console.url.rpartition(":")[2]), []
    for number in range(1, 5):
        with socket.create_connection(("127.0.0.1", port), 30, (f"127.0.0.{number}", 0)) as opened:
            opened.sendall(ask)
            heads.append(opened.recv(12))
    assert heads == [b"HTTP/1.1 200"] * 3 + [b"HTTP/1.1 429"]


def test_all_addresses_have_to_wait_where_they_ask_without_end(console, monkeypatch):
    monkeypatch.setattr(guard, "LATE_SECONDS", 0.05)
    app = console.one.server.pages.console._server._server.config.loaded_app
    monkeypatch.setattr(app, "_all", Bucket(0.0, 1.0, 0.0))
    assert [console.ask("/api/v1/health").status for _ in range(2)] == [200, 429]
    assert console.refused[0][1] == "429: there are more than 200 requests per second from all addresses"


@pytest.mark.slow
def test_connections_that_say_or_read_nothing_are_closed(console, monkeypatch):
    monkeypatch.setattr(serving, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(serving, "SWEEP_SECONDS", 0.1)
    for words in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
        with console.open() as opened:
            opened.sendall(words)
            assert opened.recv(100) == b""


@pytest.mark.slow
def test_a_connection_with_quick_requests_is_kept_open(console, monkeypatch):
    """Each is answered before somebody looks whether the connection is in use."""
    monkeypatch.setattr(serving, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(serving, "SWEEP_SECONDS", 0.1)
    ask = f"GET /api/v1/health HTTP/1.1\r\nHost: {console.host}\r\n\r\n".encode()
    with console.open() as opened:
        for _ in range(15):
            opened.sendall(ask)
            answer = http.client.HTTPResponse(opened)
            answer.begin()
            assert (answer.status, len(answer.read()) > 0) == (200, True)
            time.sleep(0.1)


def _is_closed(opened):
    try:
        return opened.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.slow
def test_connections_are_bounded(console, monkeypatch):
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 6)
    ask = f"GET /api/v1/health HTTP/1.1\r\nHost: {console.host}\r\n\r\n".encode()
    wait_until(lambda: not console.one.server.pages.console._server._server.server_state.connections)
    opened = []
    try:
        for _ in range(5):
            opened.append(console.open())
            opened[-1].sendall(ask)
        heads = [each.recv(15) for each in opened]
        assert heads == [b"HTTP/1.1 200 OK"] * 5
        more = [socket.create_connection(opened[0].getpeername(), 30) for _ in range(6)]
        opened += more
        closed, deadline = set(), time.monotonic() + 30
        while len(closed) < 3:
            assert time.monotonic() < deadline
            closed |= {*select.select(more, [], [], 0.1)[0]}
        assert all(_is_closed(each) for each in closed)
    finally:
        for each in opened:
            each.close()


def test_connections_of_an_address_are_bounded(console, monkeypatch):
    """One of many addresses leaves room for others, the log says so, and who asks for nothing makes room for
    who does."""
    server = console.one.server.pages.console._server._server
    wait_until(lambda: not server.server_state.connections)
    monkeypatch.setattr(serving, "MAX_OF_ADDRESS", 2)
    opened = [console.open() for _ in range(3)]
    try:
        assert select.select(opened, [], [], 30)[0] == [opened[0]]
        assert _is_closed(opened[0])
        wait_until(lambda: console.refused)
        reason = "503: 2 connections from this address are already open"
        assert console.refused == [("a connection", reason)]
        assert console.ask("/api/v1/health").status == 200
    finally:
        for each in opened:
            each.close()


def test_every_path_of_the_document_is_there(console):
    document = console.ask("/api/v1/openapi.json").json
    for path, methods in document["paths"].items():
        answer = console.ask(document["servers"][0]["url"] + path.replace("{name}", "none"))
        assert "get" in methods
        assert answer.status == (404 if "{name}" in path else 200)
        if answer.json is not None:
            schema = methods["get"]["responses"][str(answer.status)].get("content", {})
            assert answer.status != 200 or "application/json" in schema


def test_only_a_submission_has_a_large_body(console):
    """Whoever is nobody yet has no memory of this process: not by length, and not in parts."""
    own = {"Origin": console.url}
    for path in ("/login", "/logout", "/api/v1/health"):
        answer = console.ask(path, "POST", **own, **{"Content-Length": str(guard.MAX_BODY + 1)})
        assert (answer.status, answer.json["error"]) == (413, "the body has more than 4096 bytes")
    head = f"POST /login HTTP/1.1\r\nHost: {console.host}\r\nOrigin: {console.url}\r\n"
    head += "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n"
    assert b" 413 " in console.raw(head.encode() + b"x" * 8192 + b"\r\n")
    answer = console.ask("/api/v1/sessions", "POST", Authorization="Bearer x", Content_Length=str(MAX_BODY))
    assert answer.status == 401  # before a byte of the body is read


def test_who_hangs_up_within_a_body_leaves_no_line(console):
    """Whoever did it without end would fill the log."""
    head = f"POST /login HTTP/1.1\r\nHost: {console.host}\r\nOrigin: {console.url}\r\n"
    app = console.one.server.pages.console._server._server
    for _ in range(3):
        with console.open() as opened:
            opened.sendall(f"{head}Content-Length: 100\r\n\r\ntoken".encode())
            wait_until(lambda: app.server_state.tasks)
    wait_until(lambda: not app.server_state.tasks)
    assert console.one.log.events == []


def test_a_page_that_fails_on_and_on_has_few_lines(console, monkeypatch):
    app = console.one.server.pages.console._server._server.config.loaded_app
    monkeypatch.setattr(app, "_failures", Bucket(0.0, 2.0, 0.0))
    monkeypatch.setattr(ConsoleQueries, "state", lambda self: 1 / 0)
    assert [console.ask("/api/v1/health").status for _ in range(4)] == [500] * 4
    assert len(console.one.log.named("a page failed")) == 2
