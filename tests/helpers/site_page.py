"""A site with a page of its own, and an officer who reads it over HTTP."""

import asyncio
import http.client
import re
import threading
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlencode

from sites import PATIENCE, Log, until, written

from fedboost.runtime.site.config import read_party
from fedboost.runtime.site.node import PartyNode
from fedboost.runtime.web.logins import add_token

SERVED = "the site's page is served"
COOKIE = re.compile(r"(fedboost-site-\d+=[^;]+)")


class SiteWithPage:
    """A party of a site's file, which serves its page while it runs. token, reading: of an officer, and of
    a viewer; before: called with the file before the party reads it."""

    def __init__(self, folder, aggregator, table, more="", bundle=None, name="north", before=None):
        folder.mkdir(parents=True, exist_ok=True)
        (data,) = written(folder, {name: table}).values()
        self.folder, self.log = folder, Log()
        self.file = folder / "party.toml"
        keys = "" if bundle is None else f'keys = "{bundle.folder}"\n'
        self.file.write_text(
            f'party = "{name}"\naggregator = "{aggregator}"\ndata = "{data.name}"\n{keys}'
            f'console = {{ listen = "127.0.0.1:0", tokens = "tokens.toml" }}\n{more}'
        )
        tokens = folder / "tokens.toml"
        self.token, _ = add_token(tokens, "jo", "officer", 1)
        self.reading, _ = add_token(tokens, "kim", "viewer", 1)
        if before is not None:
            before(self.file)
        self.config = read_party(self.file)
        self.node = PartyNode(self.config, self.log, bundle)

    @property
    def state(self):
        """Its state folder."""
        return self.folder / "fedboost.state" / self.config.party

    @property
    def address(self):
        """The address of its page."""
        return self.log.named(SERVED)[0]["address"].removeprefix("http://")

    @asynccontextmanager
    async def running(self):
        """The party runs meanwhile."""
        task = asyncio.create_task(self.node.run(wait=PATIENCE, once=False))
        try:
            await until(lambda: task.done() or self.log.named(SERVED))
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @contextmanager
    def in_thread(self):
        """The party runs meanwhile, in an event loop of its own."""
        ready, stop, loops = threading.Event(), asyncio.Event(), []

        async def serve():
            loops.append(asyncio.get_running_loop())
            async with self.running():
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), name="site")
        thread.start()
        try:
            assert ready.wait(PATIENCE)
            yield self
        finally:
            loops[0].call_soon_threadsafe(stop.set)
            thread.join(PATIENCE)

    def asked_for(self, terms, analyst="marie", answer=("its policy says no",)):
        """An analyst checked these terms; the address of the request on the page."""
        self.node.watch.page_state.checked(terms, analyst, answer)
        (entry,) = [
            each
            for each in self.node.watch.page_state.requests.all()
            if (each.digest, each.analyst) == (terms.digest, analyst)
        ]
        return f"/requests/{entry.name}"

    def refusals(self):
        """The reasons of refused requests, in its log."""
        return [values["reason"] for values in self.log.named("page refused")]


class Visitor:
    """A browser, as far as a server can tell: it keeps a cookie, and says where it comes from."""

    def __init__(self, address):
        self.address, self.cookie = address, ""

    def ask(self, method, path, fields=None, **headers):
        """The status, headers and body of the answer. headers: with _ for -; None takes one away."""
        given = {"Host": self.address, "Accept": "text/html"}
        if self.cookie:
            given["Cookie"] = self.cookie
        body = None
        if fields is not None:
            body = urlencode(fields)
            given |= {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{self.address}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {k: v for k, v in given.items() if v is not None})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def get(self, path):
        """The body of a page that is there."""
        status, _, body = self.ask("GET", path)
        assert status == 200, (status, body)
        return body

    def log_in(self, token):
        """Give a token, and keep the cookie."""
        status, headers, body = self.ask("POST", "/login", {"token": token})
        assert status == 303, (status, body)
        self.cookie = COOKIE.match(headers["Set-Cookie"])[1]
        return self

    def fields(self, path):
        """The hidden fields of the form by which a person decides on a request."""
        return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', self.get(path)))

    def decide(self, path, decision, token, /, **changed):
        """Press a button of the form."""
        return self.ask("POST", path, {**self.fields(path), "decision": decision, "token": token, **changed})


def request_paths(page):
    """The addresses of the requests on a page."""
    return list(dict.fromkeys(re.findall(r'href="(/requests/\w+)"', page)))
