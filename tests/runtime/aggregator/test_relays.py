"""Who relays is read no faster than the slowest receiver reads, and two that relay to each other go on."""

import asyncio
import contextlib
import time

from sites import Log

from fedboost.protocol.messages import Connected, Disconnected, Relay
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.limits import Peers, Refusals
from fedboost.runtime.aggregator.parties import Admission, ConnectedParties, LastSeen
from fedboost.runtime.aggregator.server import Parties
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.net import channel
from fedboost.runtime.telemetry import Events
from fedboost.wire.codec import WIRE_VERSION
from fedboost.wire.messages import encode_from_party

PARTS, PART = 200, bytes(1 << 20)
"""What a party relays: 200 MiB."""
SPARE = 3 * len(PART)
"""Bytes of parts that are on their way between the queues, and of one more that fits in."""


class Passing(Sessions):
    """Sessions that pass on whatever is relayed."""

    def __init__(self, connected):
        self.active = None
        self._connected = connected

    def handle(self, party, event):
        if not isinstance(event, Connected | Disconnected):
            told = Relay(event.turn, event.attempt, event.number, event.content, event.last, sender=party)
            self._connected.send([(receiver, told) for receiver in event.to], None)


class Line:
    """A party's connection: how much was read of it, and how much it has read. It reads only when it may."""

    def __init__(self, name, to, parts=PARTS):
        self.name, self.to, self.parts = name, to, parts
        self.sent = self.read = 0
        self.reads = asyncio.Event()

    def invocation_metadata(self):
        return ((channel.PARTY_KEY, self.name.encode()), (channel.VERSION_KEY, str(WIRE_VERSION)))

    def peer(self):
        return "ipv4:127.0.0.1:1"

    async def send_initial_metadata(self, metadata):
        pass

    async def abort(self, code, details):
        self.end = details
        raise asyncio.CancelledError

    async def requests(self):
        await still(10)  # until all are connected
        for number in range(1, self.parts + 1):
            self.sent += len(PART)
            yield encode_from_party(Relay(1, 1, number, PART, True, to=self.to))
        await asyncio.Event().wait()

    async def write(self, data):
        await self.reads.wait()
        await asyncio.sleep(0)
        self.read += len(data)


@contextlib.asynccontextmanager
async def attended(*lines):
    """Inside, an aggregator attends to these parties: its log, and the task of each party."""
    log, metrics = Log(), AggregatorMetrics()
    connected = ConnectedParties(LastSeen(log), Events(log, metrics))
    admission = Admission(None, Refusals(log, metrics))
    parties = Parties(admission, Passing(connected), connected, log, 8)
    peer = Peers(limits.SHARING_AN_ADDRESS).find(b"", lambda: "all", time.monotonic())
    tasks = [asyncio.create_task(parties.attend(line.requests(), line, peer)) for line in lines]
    try:
        yield log, *tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def still(turns=500):
    """Everybody gets a turn, again and again."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_who_relays_is_read_no_faster_than_the_slowest_of_several_reads():
    slow, quick = Line("slow", (), 0), Line("quick", (), 0)
    sender = Line("sender", ("slow", "quick"))
    quick.reads.set()
    most = 0
    async with attended(slow, quick, sender) as (log, *_):
        await still()
        assert slow.read == 0
        assert 0 < sender.sent <= limits.RELAYED_AHEAD + SPARE
        slow.reads.set()
        while slow.read < PARTS * len(PART):
            most = max(most, sender.sent - slow.read)
            await asyncio.sleep(0)
        assert most <= limits.RELAYED_AHEAD + SPARE
        await still()
        assert quick.read >= PARTS * len(PART)
        assert not log.named("party gone")


async def test_two_parties_that_relay_to_each_other_do_not_wait_for_ever():
    one, other = Line("one", ("other",)), Line("other", ("one",))
    one.reads.set()
    other.reads.set()
    async with attended(one, other):
        while min(one.read, other.read) < PARTS * len(PART):
            assert one.sent - other.read <= limits.RELAYED_AHEAD + SPARE
            await asyncio.sleep(0)


async def test_a_party_that_is_gone_keeps_nobody_waiting():
    gone, sender = Line("gone", (), 0), Line("sender", ("gone",))
    async with attended(gone, sender) as (_, leaves, _):
        await still()
        assert 0 < sender.sent <= limits.RELAYED_AHEAD + SPARE
        leaves.cancel()
        await still()
        assert sender.sent == PARTS * len(PART)


async def test_a_party_that_reads_nothing_of_what_is_relayed_is_cut_off(monkeypatch):
    monkeypatch.setattr(limits, "UNREAD_SECONDS", 0.05)
    deaf, sender = Line("deaf", (), 0), Line("sender", ("deaf",))
    async with attended(deaf, sender) as (log, *_):
        while sender.sent < PARTS * len(PART) or not log.named("party gone"):
            await asyncio.sleep(0.01)
        (gone,) = log.named("party gone")
        assert gone["party"] == "deaf"
        assert gone["reason"].startswith("it does not read its messages: ")
