"""Live pages: what changed is drawn once for all that look, and sent as server-sent events.

Promises: nothing is drawn while nobody looks, and at most every DRAW_SECONDS otherwise, however many ask;
a reader that does not keep up is dropped, and holds nobody up; one that may read no more is sent nothing
more.
Refuses: more than MAX_READERS at a time (Refusal).
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fedboost.people.console.shell import ConsoleFacts
from fedboost.runtime.console.office import Office
from fedboost.runtime.web.guard import Receive, Refusal, Scope, Send

DRAW_SECONDS = 0.5
MAX_READERS = 256
UNREAD_EVENTS = 8
"""Events that wait for one reader; one with more is dropped."""
QUIET_SECONDS = 15.0
"""A reader is sent a sign of life after this."""
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]

Parts = Mapping[str, str]
"""The id of a part of a page to its HTML."""
Draw = Callable[[ConsoleFacts], Parts]
Queue = asyncio.Queue[bytes | None]


class Live:
    """The readers of live pages. pages: how the parts of each page are drawn, by its name."""

    def __init__(self, office: Office, pages: Mapping[str, Draw], log: Any) -> None:
        self._office = office
        self._pages = pages
        self._log = log
        self._readers: dict[str, set[Queue]] = {name: set() for name in pages}
        self._drawn: dict[str, Parts] = {}
        self._until: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def readers(self) -> int:
        """How many look now."""
        return sum(map(len, self._readers.values()))

    def start(self) -> None:
        """Draw, in a task of the running event loop."""
        self._task = asyncio.create_task(self._draw_on(), name="console")

    def stop(self) -> None:
        """Draw no more, and say good-bye to all readers."""
        if self._task is not None:
            self._task.cancel()
        for queues in self._readers.values():
            for queue in queues:
                _hang_up(queue)

    def parts(self, page: str) -> Parts:
        """The parts of a page, as its readers have them; where nobody looks, not older than DRAW_SECONDS."""
        if not self._readers[page] and time.monotonic() >= self._until.get(page, 0.0):
            self._draw(page, self._office.facts())
        return self._drawn[page]

    async def serve(
        self, page: str, check: Callable[[], object], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the parts of a page, and then each part that changes, until the reader is gone or dropped.
        check: raises Refusal if the reader may not read, and is asked before each event. Raises Refusal if
        this is no page, or one reader too many."""
        if page not in self._pages:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such page")
        start = {"type": "http.response.start", "status": 200, "headers": HEADERS}
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        if self.readers >= MAX_READERS:
            wait = {"Retry-After": "10"}
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_READERS} pages are open already", wait)
        queue: Queue = asyncio.Queue()
        queue.put_nowait(_event(self.parts(page)))
        self._readers[page].add(queue)
        gone = asyncio.create_task(_until_gone(receive, queue), name="console reader")
        try:
            await send(start)
            while (event := await _next(queue)) is not None:
                check()
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._readers[page].discard(queue)
            gone.cancel()

    async def _draw_on(self) -> None:
        while True:
            await asyncio.sleep(DRAW_SECONDS)
            if not self.readers:
                continue
            try:
                facts = self._office.facts()
                for page, queues in self._readers.items():
                    if queues and (changed := self._draw(page, facts)):
                        self._send(queues, _event(changed))
            except Exception as error:  # noqa: BLE001 - a page that cannot be drawn must not end the next one
                self._log.error("a live page failed", reason=f"{type(error).__name__}: {error}")
                await asyncio.sleep(QUIET_SECONDS)

    def _draw(self, page: str, facts: ConsoleFacts) -> Parts:
        """Draw a page; the parts that changed."""
        before, parts = self._drawn.get(page, {}), self._pages[page](facts)
        self._drawn[page], self._until[page] = parts, time.monotonic() + DRAW_SECONDS
        return {name: part for name, part in parts.items() if before.get(name) != part}

    def _send(self, queues: set[Queue], event: bytes) -> None:
        for queue in [*queues]:
            if queue.qsize() < UNREAD_EVENTS:
                queue.put_nowait(event)
            else:
                queues.discard(queue)
                _hang_up(queue)


async def _until_gone(receive: Receive, queue: Queue) -> None:
    """Wait until a reader hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    _hang_up(queue)


async def _next(queue: Queue) -> bytes | None:
    """The next event of a reader; a sign of life where there is none for a while."""
    try:
        async with asyncio.timeout(QUIET_SECONDS):
            return await queue.get()
    except TimeoutError:
        return b":\n\n"


def _hang_up(queue: Queue) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)


def _event(parts: Parts) -> bytes:
    return f"data: {json.dumps(dict(parts))}\n\n".encode()
