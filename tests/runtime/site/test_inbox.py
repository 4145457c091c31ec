"""Messages that wait at a party: relays are always taken in, others are bounded."""

import asyncio

import pytest

from fedboost.protocol.messages import OpenRequest, Relay
from fedboost.runtime.site import node
from fedboost.runtime.site.node import MAX_UNREAD_MESSAGES, Inbox

REQUEST = OpenRequest(1, 1, b"")


def relay(number, size=1):
    return Relay(1, 1, number, bytes(size), True, sender="north")


async def waits(step):
    """True if a step does not end, however often others get their turn."""
    task = asyncio.ensure_future(step)
    for _ in range(10):
        await asyncio.sleep(0)
    return not task.done()


async def test_a_party_that_handles_nothing_takes_in_what_is_relayed_and_keeps_the_order():
    box = Inbox()
    for _ in range(MAX_UNREAD_MESSAGES):
        await box.put(REQUEST)
    for number in range(200):
        await box.put(relay(number))
    assert await waits(box.put(REQUEST))
    handled = [await box.get() for _ in range(MAX_UNREAD_MESSAGES + 200)]
    assert handled == [REQUEST] * MAX_UNREAD_MESSAGES + [relay(number) for number in range(200)]
    assert await box.get() == REQUEST


async def test_what_is_relayed_to_a_party_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(node, "MAX_UNREAD_RELAYED", 5000)
    box = Inbox()
    for number in range(5):
        await box.put(relay(number, 1000))
    assert await waits(box.put(relay(5)))
    await box.put(None)
    await box.get()
    assert not await waits(asyncio.sleep(0))
    assert [type(await box.get()) for _ in range(6)] == [Relay] * 4 + [type(None), Relay]


@pytest.mark.parametrize("message", [REQUEST, relay(1)])
async def test_the_end_of_a_connection_is_never_kept_back(message, monkeypatch):
    monkeypatch.setattr(node, "MAX_UNREAD_RELAYED", 1)
    box = Inbox()
    while not await waits(box.put(message)):
        pass
    assert not await waits(box.put(None))
