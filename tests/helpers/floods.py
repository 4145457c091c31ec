"""An aggregator over the network, and calls to it."""

from contextlib import asynccontextmanager

from sites import NAMES

from fedboost.runtime.net import channel
from fedboost.runtime.net.routes import Server

TWO = NAMES[:2]
ODD = "odd"


@asynccontextmanager
async def dialled(one, name, count=1):
    """So many connections with the keys of `name`."""
    bundle = one.bundles.get(name)
    opened = [channel.dial(Server(one.address), bundle) for _ in range(count)]
    try:
        yield opened
    finally:
        for each in opened:
            await each.close()
