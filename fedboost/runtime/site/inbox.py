"""The messages of the aggregator that wait for a party to handle them.

Promises: messages are handled in the order in which they came; a party that is busy takes in what others
relay to it meanwhile, so that two parties that relay to each other at once never wait for each other.
Refuses: nothing; beyond its bounds it lets the connection wait.
"""

import asyncio

from fedboost.errors import PeerError
from fedboost.protocol.messages import Relay, ToParty

MAX_UNREAD_MESSAGES = 16
"""Messages that wait to be handled, beside relays, before the connection is read no further."""
MAX_UNREAD_RELAYED = 1 << 30
"""Bytes of relays. A session keeps them anyway until all of them are there; a party whose rows are known does
not wait for as many."""
RELAY_OVERHEAD = 200
"""Bytes that a relay takes beside its content."""
Message = ToParty | PeerError | None
"""PeerError: it cannot be read; None: the aggregator has hung up."""


class Inbox:
    """What has arrived on one connection, and was not handled yet."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Message] = asyncio.Queue()
        self._messages = 0
        self._relayed = 0
        self._taken = asyncio.Event()

    async def put(self, message: Message) -> None:
        """Add a message once there is room for it."""
        while self._is_full(message):
            self._taken.clear()
            await self._taken.wait()
        self._count(message, 1)
        self._queue.put_nowait(message)

    async def get(self) -> Message:
        """The next message."""
        message = await self._queue.get()
        self._count(message, -1)
        self._taken.set()
        return message

    def _is_full(self, message: Message) -> bool:
        if isinstance(message, Relay):
            return self._relayed >= MAX_UNREAD_RELAYED
        return message is not None and self._messages >= MAX_UNREAD_MESSAGES

    def _count(self, message: Message, sign: int) -> None:
        if isinstance(message, Relay):
            self._relayed += sign * (len(message.content) + RELAY_OVERHEAD)
        else:
            self._messages += sign
