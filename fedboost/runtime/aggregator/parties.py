"""The parties' side of an aggregator: one call a party, from its arrival to its departure.

Promises: a connection that breaks the protocol is closed and named, and the process goes on; a lost party is
reported to the session at once; a party that relays to others is read no faster than the slowest of them
reads.
Refuses: callers that are not parties of the consortium; a party with a name that is taken (Refused).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from fedboost.errors import FedboostError, PeerError, Refused, quoted
from fedboost.protocol.messages import Connected, Disconnected, Relay
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.admission import refuse
from fedboost.runtime.aggregator.callers import check_version, party_name, plain_end, software_of
from fedboost.runtime.aggregator.connected import ConnectedParties, write
from fedboost.runtime.aggregator.limits import Outgoing, Peer
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle
from fedboost.wire.codec import WIRE_VERSION
from fedboost.wire.messages import decode_from_party


class Parties:
    """The method Attend of the service."""

    def __init__(
        self,
        bundle: Bundle | None,
        refusals: Refusals,
        sessions: Sessions,
        connected: ConnectedParties,
        log: Any,
    ) -> None:
        self._refusals = refusals
        self._bundle = bundle
        self._sessions = sessions
        self._connected = connected
        self._log = log

    async def attend(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Attend to a party, from its arrival to its departure."""
        try:
            check_version(context, "party")
            name = self._free_name(context)
        except FedboostError as error:
            address = plain_end(context)
            self._refusals.note("party refused", peer.name, quoted(str(error)), address=address)
            await refuse(context, error)
        task = asyncio.current_task()
        assert task is not None
        outgoing = Outgoing(task.cancel)
        self._connected.add(name, outgoing, software_of(context))
        self._log.info("party here", party=name)
        reason, fault = "its connection closed", None
        writer: asyncio.Task[None] | None = None
        try:
            await context.send_initial_metadata([(channel.VERSION_KEY, str(WIRE_VERSION))])
            writer = asyncio.create_task(write(outgoing, context, task, self._log))
            self._connected.notify()
            self._sessions.handle(name, Connected())
            await self._read(name, requests, peer)
        except PeerError as error:
            reason, fault = f"it broke the protocol: {quoted(str(error))}", error
        except asyncio.CancelledError:
            if not outgoing.fault:
                raise
            peer.bar(time.monotonic())
            reason, fault = outgoing.fault, PeerError(outgoing.fault)
        except grpc.RpcError:
            reason = "its connection broke"
        finally:
            if writer is not None:
                writer.cancel()
            self._connected.remove(name)
            self._log.info("party gone", party=name, reason=reason)
            self._sessions.handle(name, Disconnected(reason))
        if fault is not None:
            await refuse(context, fault)  # last: a party that does not read cannot hold up the rest

    async def _read(self, name: str, requests: AsyncIterator[bytes], peer: Peer) -> None:
        """Pass a party's messages to the active session. PeerError for one, or too many, that it must not
        send."""
        spare = 0
        async for data in requests:
            active = self._sessions.active
            if active is not None and name in active.terms.parties:
                active.meter.sent(name, len(data))
            message = decode_from_party(data)
            awaited = active is not None and active.awaits(name, message)
            spare = limits.LAST_WORDS if awaited else spare - 1
            if spare < 0 and not peer.unwanted.take(time.monotonic()):
                peer.bar(time.monotonic())
                raise PeerError("it keeps sending what nobody asked for")
            if isinstance(message, Relay):
                await self._connected.room(message.to)
            self._sessions.handle(name, message)

    def _free_name(self, context: Any) -> str:
        """The name of the party that calls; Refused if a party of this name is connected."""
        name = party_name(self._bundle, context)
        if name in self._connected:
            raise Refused(
                f"a party named {name!r} is connected already; stop the other one, or correct `party` in "
                f"this site's file"
            )
        return name
