"""An aggregator with a console in a thread of its own, and clients that ask it anything over HTTP."""

import asyncio
import http.client
import json
import socket
import ssl
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import urlsplit

from sites import PATIENCE, consortium

from fedboost.privacy.identity import SERVER_NAME
from fedboost.runtime.config import ConsoleConfig
from fedboost.runtime.web.logins import add_token

LOOPBACK = "127.0.0.1:0"
ANYWHERE = "0.0.0.0:0"


class Served:
    """A console that is served: `one` is the consortium, `token` has the tokens by role."""

    def __init__(self, one, loop, roots):
        self.one = one
        self.url = one.server.pages.console.url
        self.token = {}
        self._loop = loop
        self._roots = roots

    @property
    def host(self):
        """The header Host that a client gives."""
        parts = urlsplit(self.url)
        return f"{SERVER_NAME}:{parts.port}" if parts.scheme == "https" else parts.netloc

    def run(self, coroutine):
        """The result of a coroutine, in the aggregator's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def open(self):
        """A connection, over TLS where the console speaks it."""
        opened = socket.create_connection(("127.0.0.1", urlsplit(self.url).port), PATIENCE)
        if not self.url.startswith("https"):
            return opened
        context = ssl.create_default_context(cadata=self._roots.decode())
        return context.wrap_socket(opened, server_hostname=SERVER_NAME)

    def ask(self, path, method="GET", body=None, host=None, role=None, **headers):
        """The answer to a request: status, headers, text, and the JSON in it if it is JSON."""
        client = http.client.HTTPConnection("127.0.0.1", urlsplit(self.url).port, timeout=PATIENCE)
        client.sock = self.open()
        client.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        named = {"Host": self.host if host is None else host, **headers}
        named |= {"Authorization": f"Bearer {self.token[role]}"} if role else {}
        named |= {"Content-Length": str(len(body))} if body is not None else {}
        for name, value in named.items():
            for each in value if isinstance(value, list) else [value]:
                client.putheader(name.replace("_", "-"), each)
        client.endheaders(body)
        answer = client.getresponse()
        text = answer.read().decode(errors="replace")
        client.close()
        kind = answer.headers.get("Content-Type", "")
        found = json.loads(text) if kind.startswith("application/json") and text else None
        return SimpleNamespace(status=answer.status, headers=answer.headers, text=text, json=found)

    def raw(self, data):
        """What is answered to some bytes."""
        with self.open() as opened:
            opened.sendall(data)
            parts = []
            while part := opened.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)

    @property
    def refused(self):
        """The refusals in the log: what was asked, and the reason of each."""
        return [(each["asked"], each["reason"]) for each in self.one.log.named("console refused")]


@contextmanager
def served(folder, tables=None, bundles=None, listen=LOOPBACK, tokens=(), config=None, **settings):
    """A console, as a context, by this section of the file if one is given. tokens: roles, for
    each of which there is a token of somebody of that name."""
    file = folder / "tokens.toml" if tokens else None
    made = {role: add_token(file, "analyst" if role == "analyst" else role, role, 9)[0] for role in tokens}
    ready, over, found = threading.Event(), [], {}

    async def serve():
        settings["console"] = config or ConsoleConfig(listen=listen, tokens=file)
        async with consortium(folder / "one", tables or {}, bundles=bundles, **settings) as one:
            stop = asyncio.Event()
            found.update(one=one, loop=asyncio.get_running_loop(), stop=stop)
            ready.set()
            await stop.wait()

    def work():
        try:
            asyncio.run(serve())
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            over.append(error)
            ready.set()

    thread = threading.Thread(target=work, name="aggregator")
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        if over:
            raise over[0]
        roots = bundles["aggregator"].roots if bundles else b""
        one = Served(found["one"], found["loop"], roots)
        one.token = made
        yield one
    finally:
        if found:
            found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join(PATIENCE)
    if over:
        raise over[0]
