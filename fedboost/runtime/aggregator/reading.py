"""Reading of what callers send, beside the event loop: terms may have megabytes.

Promises: of one caller one thing is read at a time, and what else it sends waits for that; nothing small
waits for something large of another caller.
Refuses: nothing. How many calls of one caller may wait is bounded by `limits`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

SMALL = 1 << 16
"""Bytes that are read in some milliseconds: terms of a thousand columns."""

T = TypeVar("T")


class Reader:
    """Two threads: one for what is small, and one for what is large."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(1, "read-terms")
        self._large = ThreadPoolExecutor(1, "read-large-terms")
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        """Held while something of a caller is read, also when the call has ended meanwhile."""

    async def run(self, caller: str, size: int, read: Callable[[], T]) -> T:
        """Return what is read of so many bytes of a caller, or raise what it raises."""
        turn = self._turns.get(caller)
        if turn is None:
            turn = self._turns[caller] = asyncio.Lock()
        await turn.acquire()
        pool = self._small if size <= SMALL else self._large
        try:
            work = asyncio.get_running_loop().run_in_executor(pool, read)
        except BaseException:
            turn.release()
            raise
        work.add_done_callback(lambda done: _release(turn, done))
        return await asyncio.shield(work)

    def close(self) -> None:
        """Read nothing more."""
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)


def _release(turn: asyncio.Lock, done: "asyncio.Future[T] | Future[T]") -> None:
    """Let the caller's next one be read; an error of one whose call has ended is nobody's."""
    turn.release()
    if not done.cancelled():
        done.exception()
