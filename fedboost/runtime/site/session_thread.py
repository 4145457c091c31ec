"""The thread that the sessions of a party compute in, beside that of its connection.

Promises: one message at a time is handled; large replies come while the next is computed, and the small ones
with the last, so that the thread of the connection is woken once. Nothing is computed further once the
aggregator has hung up.
Refuses nothing: what a session raises is raised where its replies are read.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

from fedboost.protocol.messages import FromParty, ToParty
from fedboost.protocol.party import PartySession
from fedboost.wire.messages import encode_from_party

LARGE_REPLY = 1 << 16
"""Bytes above which a reply does not wait for the last one."""

Reply = tuple[FromParty, bytes]
"""A message to the aggregator, and its bytes."""
Early = asyncio.Queue[list[Reply] | None]
"""Replies that do not wait for the last, then None. A report's parts are kept by the session anyway, so they
may all be here."""


class SessionThread:
    """The thread, from the first message to `close`. hung_up: set while nobody waits for replies."""

    def __init__(self) -> None:
        self.hung_up = threading.Event()
        self._thread = ThreadPoolExecutor(1, "session")

    def close(self) -> None:
        """Let the thread end."""
        self.hung_up.set()
        self._thread.shutdown(wait=False)

    async def replies(self, session: PartySession, message: ToParty) -> AsyncGenerator[Reply, None]:
        """Yield the replies to a message. To be closed by who stops in the middle: it waits until the session
        has stopped, too."""
        early: Early = asyncio.Queue()
        loop = asyncio.get_running_loop()
        computing = self._thread.submit(self._compute, session, message, early, loop)
        computing.add_done_callback(lambda _: loop.call_soon_threadsafe(early.put_nowait, None))
        try:
            while (replies := await early.get()) is not None:
                for reply in replies:
                    yield reply
        except BaseException:
            await asyncio.wrap_future(computing)
            raise
        for reply in computing.result():
            yield reply

    def _compute(
        self, session: PartySession, message: ToParty, early: Early, loop: asyncio.AbstractEventLoop
    ) -> list[Reply]:
        """Handle a message in the thread; the last replies."""
        ready: list[Reply] = []
        for reply in session.handle(message):
            ready.append((reply, encode_from_party(reply)))
            if self.hung_up.is_set():
                break  # nobody wants the rest
            if len(ready[-1][1]) > LARGE_REPLY:
                loop.call_soon_threadsafe(early.put_nowait, ready)
                ready = []
        return ready
