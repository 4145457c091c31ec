"""A console elsewhere than on loopback: TLS, tokens and their roles, logins of browsers."""

import re
import socket
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from console_facts import facts
from consoles import ANYWHERE, served
from processes import wait_until
from raised import raised
from refusals import refusal
from sites import bundles_of, fedboost

from fedboost.errors import ConfigError
from fedboost.runtime.config import ConsoleConfig, read_aggregator
from fedboost.runtime.console import ConsoleQueries, names_of
from fedboost.runtime.net.keys import read_bundle
from fedboost.runtime.web import logins, serving
from fedboost.runtime.web.logins import add_token, read_tokens

HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return bundles_of(tmp_path_factory.mktemp("consortium") / "keys", [])


@pytest.fixture(scope="module")
def console(tmp_path_factory, bundles):
    folder = tmp_path_factory.mktemp("console")
    with served(folder, bundles=bundles, listen=ANYWHERE, tokens=["viewer", "analyst"]) as one:
        one.file = folder / "tokens.toml"
        yield one


@pytest.fixture(autouse=True)
def with_a_clean_log(request):
    """Each test begins with no refusals, and no wrong tokens."""
    if "console" in request.fixturenames:
        console = request.getfixturevalue("console")
        console.one.server.refusals._peers.clear()
        console.one.log.events.clear()
        live(console)._tries.clear()


def live(console):
    """The tokens that the console knows."""
    app = console.one.server.pages.console._server._server.config.loaded_app._app
    (page,) = [route.endpoint for route in app.routes if route.path == "/login"]
    return page.args[0]._tokens


def known_to(console):
    """The connections whose handshake is over."""
    return console.one.server.pages.console._server._server.server_state.connections


@pytest.mark.parametrize("path", ["/", "/sites", "/api/v1/health", "/api/v1/metrics"])
def test_without_a_token_nothing_is_read(console, path):
    answer = console.ask(path)
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "a token is required" in answer.json["error"]
    assert console.refused == [(f"GET {path}", f"401: {answer.json['error']}")]


@pytest.mark.parametrize("role", ["viewer", "analyst"])
def test_with_a_token_all_is_read(console, role):
    for path in ("/", "/sites", "/api/v1/health", "/api/v1/metrics"):
        assert console.ask(path, role=role).status == 200
    assert console.refused == []


@pytest.mark.parametrize(
    "given", ["Bearer", "Bearer x", "Basic YTpi", "Bearer " + "é" * 10, "Bearer " + "x" * 999]
)
def test_a_wrong_token_is_refused(console, given):
    answer = console.ask("/api/v1/health", Authorization=given.encode())
    assert answer.status == 401
    assert len(console.refused) == 1


def test_after_some_wrong_tokens_an_address_has_to_wait(console):
    for _ in range(int(logins.TRIES_SAVED)):
        assert console.ask("/", Authorization="Bearer wrong").status == 401
    console.one.server.refusals._peers.clear()
    answer = console.ask("/", Authorization="Bearer wrong")
    assert (answer.status, answer.headers["Retry-After"]) == (429, "10")
    assert console.refused[-1][1].startswith("429: there were too many wrong tokens")
    assert console.ask("/", role="viewer").status == 200  # who has a right one is not kept out by others


def test_a_viewer_may_not_submit(console):
    answer = console.ask("/api/v1/sessions", "POST", b"{}", role="viewer")
    assert answer.status == 403
    assert console.refused == [("POST /api/v1/sessions", f"403: {answer.json['error']}")]
    assert console.ask("/api/v1/sessions", "POST", b"{}", Origin=console.url).status == 403  # of another name
    own = {"Origin": f"https://{console.host}"}
    assert console.ask("/api/v1/sessions", "POST", b"{}", **own).status == 401
    assert console.ask("/api/v1/sessions", "POST", b"{}", role="analyst").status == 422


def test_another_name_is_refused_and_an_address_is_not(console):
    assert console.ask("/", host="evil.example", role="viewer").status == 421
    assert console.ask("/", host="192.0.2.7:443", role="viewer").status == 200


def test_nothing_is_said_without_tls(console):
    port = int(console.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 30) as opened:
        opened.sendall(b"GET / HTTP/1.1\r\nHost: aggregator.fedboost\r\n\r\n")
        assert not opened.recv(100).startswith(b"HTTP")


class Lost:
    """A connection whose TLS is over, and that the server still lists."""

    cycle = None

    def __init__(self):
        self.transport = SimpleNamespace(
            get_extra_info=lambda name: None, get_write_buffer_size=lambda: 0, abort=lambda: None
        )


@pytest.mark.slow
def test_connections_without_a_handshake_are_closed_beside_one_that_is_lost(console, monkeypatch):
    monkeypatch.setattr(serving, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(serving, "HANDSHAKE_SECONDS", 0.1)
    port, known, lost = int(console.url.rpartition(":")[2]), known_to(console), Lost()
    known.add(lost)
    try:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), 10) as opened:
                assert opened.recv(100) == b""
    finally:
        known.discard(lost)


@pytest.mark.slow
def test_connections_without_a_handshake_are_closed(console, monkeypatch):
    """Else a few of them, of anybody, shut the console for a minute each; one that speaks TLS stays."""
    monkeypatch.setattr(serving, "SWEEP_SECONDS", 0.05)
    port, known = int(console.url.rpartition(":")[2]), known_to(console)
    wait_until(lambda: not known)
    with console.open() as good, socket.create_connection(("127.0.0.1", port), 30) as opened:
        wait_until(lambda: known)
        monkeypatch.setattr(serving, "HANDSHAKE_SECONDS", 0.1)
        assert opened.recv(100) == b""
        request = f"GET /api/v1/health HTTP/1.1\r\nHost: {console.host}\r\n"
        good.sendall(f"{request}Authorization: Bearer {console.token['viewer']}\r\n\r\n".encode())
        assert good.recv(12) == b"HTTP/1.1 200"
    assert {*console.refused} == {("a connection", "408: the TLS handshake was not complete within 0.1 s")}


@pytest.mark.slow
def test_a_browser_logs_in_and_out(console):
    page = console.ask("/", **HTML)
    assert (page.status, '<form method="post" action="/login">' in page.text) == (401, True)
    own = {"Origin": f"https://{console.host}", **HTML}
    wrong = console.ask("/login", "POST", urlencode({"token": "wrong"}).encode(), **own)
    assert (wrong.status, wrong.headers["Set-Cookie"]) == (401, None)
    assert console.ask("/login", "POST", b"a=1&b=2&c=3&d=4&e=5", **own).status == 400
    assert console.ask("/login", "POST", b"token=" + b"x" * 5000, **own).status == 413
    assert console.ask("/login", "POST", b"token=%ff%00\xff", **own).status == 401
    answer = console.ask("/login", "POST", urlencode({"token": console.token["viewer"]}).encode(), **own)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    header = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Secure", "Path=/"} <= {part.strip() for part in header.split(";")}
    assert console.token["viewer"] not in header
    ((name, morsel),) = SimpleCookie(header).items()
    assert name == "__Host-fedboost"
    cookie = {"Cookie": f"{name}={morsel.value}"}
    assert "viewer <button>Log out</button>" in console.ask("/", **cookie).text
    assert console.ask("/api/v1/sessions", "POST", b"{}", **cookie, **own).status == 403
    assert console.ask("/", Cookie=f"{name}={morsel.value}x").status == 401
    gone = console.ask("/logout", "POST", b"", **cookie, **own)
    assert "Max-Age=0" in gone.headers["Set-Cookie"]
    assert console.ask("/", **cookie).status == 401


@pytest.mark.slow
def test_a_token_that_is_deleted_or_ended_counts_no_more(console):
    made, _ = add_token(console.file, "guest", "viewer", 1)
    given = {"Authorization": f"Bearer {made}"}
    assert console.ask("/", **given).status == 200
    own = {"Origin": f"https://{console.host}"}
    login = console.ask("/login", "POST", urlencode({"token": made}).encode(), **own)
    cookie = {"Cookie": login.headers["Set-Cookie"].partition(";")[0]}
    assert console.ask("/", **cookie).status == 200
    text = console.file.read_text()
    today = datetime.now(UTC).date()
    console.file.write_text(text.replace(str(today + timedelta(days=1)), str(today - timedelta(days=1))))
    answer = console.ask("/", **given)
    assert (answer.status, "valid until" in answer.json["error"]) == (401, True)
    assert console.ask("/", **cookie).status == 401
    console.file.write_text(text[: text.rindex("[[tokens]]")])
    assert console.ask("/", **given).json["error"] == "this token is not valid for this process"
    assert console.ask("/", role="viewer").status == 200
    before = console.file.read_text()
    console.file.write_text("[[tokens]]\nname = 3\n")
    assert console.ask("/", role="viewer").status == 401
    assert console.one.log.named("no token is valid until this file is corrected")
    console.file.write_text(before)
    assert console.ask("/", role="viewer").status == 200


@pytest.mark.slow
def test_a_live_page_ends_with_its_token(console, monkeypatch):
    """By a token of its own, and by a login with it."""
    monkeypatch.setattr(ConsoleQueries, "state", lambda self: facts())
    made, _ = add_token(console.file, "guest", "viewer", 1)
    own = {"Origin": f"https://{console.host}"}
    login = console.ask("/login", "POST", urlencode({"token": made}).encode(), **own)
    cookie = login.headers["Set-Cookie"].partition(";")[0]
    ways = {"Authorization": f"Bearer {made}"}, {"Cookie": cookie}
    assert all("is running" in console.ask("/", **way).text for way in ways)
    text = console.file.read_text()
    console.file.write_text(text[: text.rindex("[[tokens]]")])
    for way in ways:
        answer = console.ask("/", **way)
        assert answer.status == 401
        assert "is running" not in answer.text
    assert [asked for asked, reason in console.refused if reason.startswith("401")] == ["GET /"] * 2


def test_tokens_are_in_no_file_and_no_log(console):
    console.ask("/nothing", role="viewer")
    for token in console.token.values():
        assert token not in console.file.read_text()
        assert token not in str(console.one.log.events)
    assert console.file.stat().st_mode & 0o777 == 0o600


def test_the_command_makes_a_token(tmp_path):
    file = tmp_path / "tokens.toml"
    end = fedboost("keys", "token", "marie", "--role", "analyst", "--file", file, "--days", "7")
    assert (end.code, len(end.out.strip())) == (0, 43)
    assert end.out.strip() not in end.err
    (entry,) = read_tokens(file)
    assert (entry.name, entry.role) == ("marie", "analyst")
    assert entry.ends == datetime.now(UTC).date() + timedelta(days=7)
    assert fedboost("keys", "token", "paul", "--file", file).code == 0
    assert "already has a token for 'marie'; delete its entry" in refusal(
        "keys", "token", "marie", "--file", file
    )
    assert fedboost("keys", "token", "x" * 300, "--file", file).code == 2
    assert len(read_tokens(file)) == 2
    file.chmod(0o622)
    with raised(ConfigError, "tokens-writable"):
        read_tokens(file)


@pytest.mark.parametrize(
    ("listen", "tokens", "keys", "said"),
    [
        ("0.0.0.0:0", True, False, "without keys nothing is encrypted"),
        ("0.0.0.0:0", False, True, "readers need tokens; create one with `fedboost keys token NAME"),
        (
            "127.0.0.1:0",
            "gone.toml",
            False,
            "gone.toml does not exist; create it with `fedboost keys token NAME --file .*gone.toml`",
        ),
        (
            "192.0.2.7:0",
            True,
            True,
            "console: cannot listen on 192.0.2.7:0: .*choose another address",
        ),
    ],
)
def test_what_would_be_open_to_all_does_not_start(tmp_path, bundles, listen, tokens, keys, said):
    roles = ["viewer"] if tokens is True else []
    if isinstance(tokens, str):
        config = ConsoleConfig(listen=listen, tokens=tmp_path / tokens)
        with pytest.raises(ConfigError, match=said), served(tmp_path, config=config):
            pass
        return
    given = bundles if keys else None
    with pytest.raises(ConfigError, match=said), served(tmp_path, bundles=given, listen=listen, tokens=roles):
        pass


def test_the_file_names_the_console(tmp_path):
    file = tmp_path / "aggregator.toml"
    file.write_text('[console]\nlisten = "127.0.0.1:7071"\ntokens = "tokens.toml"\n')
    console = read_aggregator(file).console
    assert (console.listen, console.tokens) == ("127.0.0.1:7071", tmp_path.resolve() / "tokens.toml")
    for text, said in (
        ("[console]\n", "console.listen"),
        ('[console]\nlisten = "here"\n', "'here' is not an address"),
        ('[console]\nlisten = "127.0.0.1:0"\ntoken = "x"\n', "did you mean tokens"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(said) if said[0] == "'" else said):
            read_aggregator(file)


def test_a_missing_extra_is_said_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("fedboost.runtime.web.serving.find_spec", lambda name: None)
    with (
        raised(ConfigError, "extra-missing"),
        served(tmp_path),
    ):
        pass


def test_a_certificate_names_the_machine_for_browsers(tmp_path):
    keys = tmp_path / "keys"
    assert fedboost("keys", "init-consortium", "--folder", keys).code == 0
    bad = fedboost("keys", "aggregator", "--folder", keys, "--host", "no host")
    assert (bad.code, "'no host' is not a host name" in bad.err) == (2, True)
    names = ["--host", "Fed.Example.org", "--host", "192.0.2.7"]
    assert fedboost("keys", "aggregator", "--folder", keys, *names).code == 0
    bundle = read_bundle(keys / "aggregator", "aggregator")
    is_own = names_of(bundle)
    assert all(is_own(name) for name in ("fed.example.org", "aggregator.fedboost", "192.0.2.7", "::1"))
    assert not any(is_own(name) for name in ("evil.example", "example.org", "x.fed.example.org", ""))
