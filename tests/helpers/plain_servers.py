"""A TCP server for tests, which leaves no connection behind."""

import asyncio
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def plain_server(take, context=None):
    """Its port. In the end, its handlers are cancelled and their connections are closed."""
    handled = []

    async def handle(reader, writer):
        handled.append((asyncio.current_task(), writer.transport))
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            await take(reader, writer)

    async with await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            await asyncio.sleep(0.02)  # for connections that were accepted just now
            for task, transport in handled:
                task.cancel()
                transport.abort()
            await asyncio.gather(*(task for task, _ in handled), return_exceptions=True)
            await asyncio.sleep(0)  # transports end in the next pass of the loop
