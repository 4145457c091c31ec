"""What a console has drawn, kept for the next who asks.

Promises: what is kept is not drawn again; nothing large is drawn in the event loop but what is live, and
that at most every so often, however many ask.
Refuses: nothing.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Drawings of what never changes, the last `most`: drawn beside the event loop, one at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._drawn: dict[Hashable, T] = {}
        self._one = asyncio.Lock()

    async def of(self, key: Hashable, draw: Callable[[], T]) -> T:
        """The drawing of this key."""
        if key in self._drawn:
            return self._drawn[key]
        async with self._one:
            if key not in self._drawn:
                drawn = await asyncio.to_thread(draw)
                self._drawn = {**dict([*self._drawn.items()][1 - self._most :]), key: drawn}
            return self._drawn[key]


class Recent(Generic[T]):
    """The drawing of what changes: the last one, for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._drawn: tuple[Hashable, T] | None = None
        self._until = 0.0

    def of(self, key: Hashable, draw: Callable[[], T]) -> T:
        """The drawing of this key."""
        if self._drawn is None or self._drawn[0] != key or time.monotonic() >= self._until:
            self._drawn = key, draw()
            self._until = time.monotonic() + self._seconds
        return self._drawn[1]
