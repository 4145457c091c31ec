"""A proxy that simulates a distant network on loopback: all bytes take half a round trip in each direction.

Bytes arrive unchanged, in order, and not before their time. A link with a bandwidth transmits sequentially,
in each direction of each connection. TLS passes through: both ends see each other's certificates.

The proxy does not simulate TCP over a distance: it has no loss and no slow start, and accepts written bytes
at once. Only the flow control of gRPC delays a sender.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

READ_BYTES = 1 << 16
START_SECONDS = 10.0


@dataclass(frozen=True)
class Link:
    """Seconds of a round trip, and bytes a second in each direction of a connection (0: any number)."""

    round_trip: float = 0.0
    bandwidth: float = 0.0


class DelayProxy:
    """A context manager: inside it, connections to `address` go on to `target` over the link. It runs in a
    thread of its own. `bytes_up` and `bytes_down` count what has passed to the target and from it."""

    def __init__(self, target: str, link: Link) -> None:
        self.address = ""
        self.bytes_up = self.bytes_down = 0
        self._target = target
        self._link = link
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))

    def __enter__(self) -> "DelayProxy":
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise RuntimeError("the delaying proxy does not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=READ_BYTES)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until either end closes it."""
        host, _, port = self._target.rpartition(":")
        try:
            onward, back = await asyncio.open_connection(host, int(port), limit=READ_BYTES)
        except OSError:
            writer.close()
            return

        def up(size: int) -> None:
            self.bytes_up += size

        def down(size: int) -> None:
            self.bytes_down += size

        pipes = [self._carry(reader, back, up), self._carry(onward, writer, down)]
        tasks = [asyncio.create_task(pipe) for pipe in pipes]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            writer.close()
            back.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]
    ) -> None:
        """Forward one direction: read at once, write when due."""
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(_deliver(on_the_way, writer))
        free = 0.0
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while data := await reader.read(READ_BYTES):
                    count(len(data))
                    now = loop.time()
                    if self._link.bandwidth:
                        free = now = max(now, free) + len(data) / self._link.bandwidth
                    on_the_way.put_nowait((now + self._link.round_trip / 2, data))
            on_the_way.put_nowait((loop.time() + self._link.round_trip / 2, b""))
            await delivering
        finally:
            delivering.cancel()


async def _deliver(on_the_way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
    """Write queued bytes when they are due; empty bytes end it."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while True:
            due, data = await on_the_way.get()
            if not data:
                return
            early = due - loop.time()
            if early > 0:
                await asyncio.sleep(early)
            writer.write(data)
            await writer.drain()
