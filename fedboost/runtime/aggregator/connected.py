"""The parties that are connected to the aggregator, and the messages on their way to them."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedboost.protocol.messages import Outbox
from fedboost.runtime.aggregator.limits import Outgoing
from fedboost.runtime.aggregator.seen import Seen
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.telemetry import Meter
from fedboost.wire.messages import encode_to_party


@dataclass(frozen=True)
class Arrival:
    """The arrival of a member: when (seconds since 1970), and the version of its software, as it says."""

    since: int
    version: str


class ConnectedParties:
    """Names of the connected parties, each with its outgoing messages, and of those that were here."""

    def __init__(self, seen: Seen, metrics: AggregatorMetrics) -> None:
        self._metrics = metrics
        self.outgoing: dict[str, Outgoing] = {}
        self.arrivals: dict[str, Arrival] = {}
        self.seen = seen
        self.changed = asyncio.Event()
        """Set, and replaced by a new event, at each change that analysts may wait for."""

    def __contains__(self, party: str) -> bool:
        return party in self.outgoing

    @property
    def names(self) -> set[str]:
        """The names of the connected parties."""
        return set(self.outgoing)

    def notify(self) -> None:
        """Wake the analysts that wait for parties or for another session to end."""
        self.changed.set()
        self.changed = asyncio.Event()

    def absent(self, parties: Iterable[str]) -> dict[str, int]:
        """The parties among these that are not connected, and when they last were: 0 for never."""
        return {party: self.seen.last(party) for party in parties if party not in self}

    def add(self, name: str, outgoing: Outgoing, version: str) -> None:
        """Add a party that has just connected."""
        now = time.time()
        self.outgoing[name], self.arrivals[name] = outgoing, Arrival(int(now), version)
        self.seen.note(name, now)
        self._metrics.connected(name, True)

    def remove(self, name: str) -> None:
        """Take away a party whose connection ended."""
        if outgoing := self.outgoing.pop(name, None):
            outgoing.close()
            self._metrics.connected(name, False)
        self.arrivals.pop(name, None)
        self.seen.note(name, time.time())
        self.notify()

    async def room(self, parties: Iterable[str]) -> None:
        """Wait until each of these parties that is connected has read most of what is on its way to it."""
        parties = tuple(parties)
        while full := [self.outgoing[p] for p in parties if p in self.outgoing and self.outgoing[p].is_full]:
            await full[0].moved()

    def send(self, outbox: Outbox, meter: Meter | None) -> None:
        """Put each message of an outbox on its way, and measure it; each is encoded once."""
        encoded: dict[int, bytes] = {}
        for party, message in outbox:
            if party in self.outgoing:
                data = encoded.setdefault(id(message), b"") or encode_to_party(message)
                encoded[id(message)] = data
                if meter is not None:
                    meter.received(party, len(data))
                self.outgoing[party].put(data)


async def write(outgoing: Outgoing, context: Any, attending: "asyncio.Task[None]", log: Any) -> None:
    """Write a party's messages until cancelled; cancels its call `attending` when gRPC takes no more."""
    try:
        while True:
            await context.write(await outgoing.get())
    except Exception as error:  # noqa: BLE001 - whatever gRPC raises, nothing can be sent to this party
        log.info("cannot write", reason=f"{type(error).__name__}: {error}")
        attending.cancel()
