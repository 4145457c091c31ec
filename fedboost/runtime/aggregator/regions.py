"""The aggregator's side of adders: one call per adder, for as long as it is connected.

Guarantees: a party behind an adder is treated as one that calls directly, and has the same limits. If an
adder breaks the protocol, or its connection is lost, all its parties count as lost, and call again. Rejects:
callers without the role of an adder, parties that are already connected, and sums that were not asked for.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from fedboost.errors import FedboostError, PeerError, quoted
from fedboost.protocol import adding
from fedboost.protocol.messages import Connected, Disconnected
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.analysts import Checks
from fedboost.runtime.aggregator.limits import Outgoing, Peer, Unawaited
from fedboost.runtime.aggregator.parties import (
    Admission,
    ConnectedParties,
    check_version,
    name_taken,
    refuse,
    sending,
)
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.telemetry import Event, Observer
from fedboost.runtime.web.guard import Bucket
from fedboost.wire.messages import decode_from_adder, encode_to_adder

QUEUED_FRAMES = 64
"""Factor by which an adder may have more unread messages than a party: its parties share one connection."""


@dataclass(eq=False)
class Region:
    """An adder that is connected, and the parties behind it."""

    adder: str
    outgoing: Outgoing
    observer: Observer
    end: adding.RegionEnd = field(default_factory=adding.RegionEnd)
    members: dict[str, "Member"] = field(default_factory=dict)

    def tell(self, frame: adding.ToAdder) -> None:
        data = encode_to_adder(frame)
        self.count(sent=len(data))
        self.outgoing.put(data)

    def count(self, sent: int = 0, received: int = 0) -> None:
        """Count the bytes of a frame, which the metrics list beside those of parties."""
        self.observer.observe(
            Event("bytes", party=f"adder {self.adder}".strip(), received=received, sent=sent)
        )

    def send(self, parties: tuple[str, ...], data: bytes, relays: bool, adds: adding.Addition | None) -> None:
        """Send a message to parties of the region. The arguments are as for `RegionEnd.to`."""
        self.tell(self.end.to(parties, data, relays, adds))


@dataclass(eq=False)
class Member:
    """A party behind an adder. Messages to it are queued for the adder."""

    party: str
    number: int
    region: Region
    unawaited: Unawaited

    @property
    def is_full(self) -> bool:
        return self.region.outgoing.is_full

    async def moved(self) -> None:
        await self.region.outgoing.moved()

    def put(self, data: bytes) -> None:
        """Queue a preflight check for the party."""
        self.region.tell(adding.To((self.number,), data, advises=True))

    def close(self) -> None:
        """Nothing is queued for one party alone."""


@dataclass(eq=False)
class Regions:
    """Handler of the RPC `Region`: one call per adder, for as long as the adder is connected."""

    _admission: Admission
    _sessions: Sessions
    _connected: ConnectedParties
    _checks: Checks
    _log: Any

    async def serve(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        try:
            check_version(context, "adder")
            caller = self._admission.check_role(context, "adder")
            peer.share = max(peer.share, limits.ADDERS_SHARING)
        except FedboostError as error:
            await self._admission.refuse("adder refused", error, context, peer)
        outgoing, observer = Outgoing.of_this_call(QUEUED_FRAMES), self._connected.observer
        region = Region("" if caller is None else caller.name, outgoing, observer)
        log = self._log.bind(adder=region.adder) if region.adder else self._log
        log.info("adder here")
        reason, fault = "its adder's connection closed", None
        try:
            async with sending(region.outgoing, context, log):
                async for data in requests:
                    region.count(received=len(data))
                    await self._take(region, decode_from_adder(data))
        except PeerError as error:
            reason, fault = f"its adder broke the protocol: {quoted(str(error))}", error
        except asyncio.CancelledError:
            if not region.outgoing.fault:
                raise
            reason, fault = "its adder does not read", PeerError("adder-cut-off", region.outgoing.fault)
        except grpc.RpcError:
            reason = "its adder's connection broke"
        finally:
            region.outgoing.close()
            log.info("adder gone", reason=reason)
            for party in [*region.members]:
                self._lose(region, party, reason)
        if fault is not None:
            await refuse(context, fault)

    async def _take(self, region: Region, frame: adding.FromAdder) -> None:
        """Handle a frame. Raises PeerError if the adder breaks the protocol."""
        names = region.end.names
        match frame:
            case adding.Here():
                self._here(region, frame)
            case adding.Gone(number, reason) if number in names:
                self._lose(region, names[number], quoted(reason))
            case adding.From(number, data, advises) if number in names:
                await self._hear(region.members[names[number]], data, advises)
            case adding.RegionSum() if (sizes := region.end.summed(frame)) is not None:
                self._sessions.handle_sum(frame, sizes, names.get(frame.last) or next(iter(sizes)))
            case adding.Held(turn, attempt, numbers):
                self._sessions.hold(turn, attempt, [names[number] for number in numbers if number in names])
            case _:
                return  # about a party whose call has ended, or an earlier turn

    def _here(self, region: Region, frame: adding.Here) -> None:
        if frame.party in self._connected:
            taken = name_taken(frame.party)
            region.tell(adding.Cut(frame.number, True, taken.code, str(taken)))
            return
        region.end.here(frame)
        now, name = time.monotonic(), frame.party
        bucket = Bucket(limits.UNWANTED_PER_SECOND, limits.UNWANTED_SAVED, now)
        region.members[name] = member = Member(name, frame.number, region, Unawaited(bucket))
        self._connected.add(name, member, quoted(frame.software, limits.VERSION_LENGTH), region.adder)
        self._checks.add(name, member)
        self._connected.notify()
        self._sessions.handle(name, Connected())

    def _lose(self, region: Region, party: str, reason: str) -> None:
        member = region.members.pop(party)
        region.end.forget(party)
        self._checks.remove(party, member)
        self._connected.remove(party, reason)
        self._sessions.handle(party, Disconnected(reason))

    async def _hear(self, member: Member, data: bytes, advises: bool) -> None:
        """Pass a party's message to the active session or to the preflight checks. A party that breaks the
        protocol is cut off; its adder is not at fault."""
        region, name = member.region, member.party
        try:
            if advises:
                self._checks.take(name, data, member.unawaited.rate)
            else:
                await self._sessions.hear(name, data, member.unawaited)
        except PeerError as error:
            region.tell(adding.Cut(member.number, False, error.code, str(error)))
            self._lose(region, name, f"it broke the protocol: {quoted(str(error))}")
