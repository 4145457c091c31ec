"""The parties that are connected to the aggregator, and the messages on their way to them."""

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedboost.errors import ConfigError
from fedboost.protocol.messages import Outbox
from fedboost.runtime.aggregator.limits import Outgoing
from fedboost.runtime.files import write_atomically
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.telemetry import Meter
from fedboost.wire.messages import encode_to_party

# ---- The parties that an aggregator has seen, and when it last did, in a file of its state folder -------
# Promises: a party that was here is told from one that never dialled, over restarts too; a name is on the
# disk some seconds after it arrived, and what could not be written is one event in the log.
# Refuses: a file that is none of these (ConfigError that names it).


FILE = "seen.json"
MAX_NAMES = 4096
"""Names that are kept: beyond it the one that was seen longest ago is forgotten."""
WRITE_SECONDS = 2.0
"""Seconds between two writes, at least."""


class Seen:
    """The names of parties, and when they were last here (seconds since 1970). Without a folder it ends with
    the process."""

    def __init__(self, log: Any) -> None:
        self.times: dict[str, int] = {}
        self._log = log
        self._path: Path | None = None
        self._changed = False
        self._written = 0.0
        self._failed = False

    def open(self, folder: Path) -> None:
        """Go on with the file in this folder. ConfigError."""
        self._path = folder / FILE
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot read: {error.strerror}") from None
        try:
            times = json.loads(text)
            if not isinstance(times, dict) or not all(type(seen) is int for seen in times.values()):
                raise ValueError
        except (ValueError, RecursionError):
            raise ConfigError(
                f"{self._path}: not the list of parties that an aggregator has seen; move it away to begin "
                f"a new one"
            ) from None
        self.times = times

    def note(self, party: str, now: float) -> None:
        """Note that a party is here, or was up to now."""
        self.times.pop(party, None)
        self.times[party] = int(now)
        if len(self.times) > MAX_NAMES:
            del self.times[next(iter(self.times))]
        self._changed = True

    def last(self, party: str) -> int:
        """The time when this party was last here; 0 if it never was."""
        return self.times.get(party, 0)

    def write(self, now: float, at_once: bool = False) -> None:
        """Write the file if something changed, unless it was written just before."""
        if self._path is None or not self._changed or (now - self._written < WRITE_SECONDS and not at_once):
            return
        self._written, self._changed = now, False
        try:
            write_atomically(self._path, json.dumps(self.times).encode(), 0o600)
        except ConfigError as error:
            self._changed = True
            if not self._failed:
                self._log.error("cannot write down which parties were here", reason=str(error))
        self._failed = self._changed


# ---- The parties that are connected to the aggregator, and the messages on their way to them ------------


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
