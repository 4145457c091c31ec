"""Admission of every call to the aggregator: who calls, and is it within its share?

Promises: a call is counted for its peer until it has really ended, be it refused, idle or stuck; a flood is
one event in the log that names the peer.
Refuses: calls beyond a peer's share (`aggregator.limits`), a call that does not say what it wants in time.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

from fedboost.errors import FedboostError, PeerError, quoted
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.limits import Peer, Peers
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.tls import peer_of

Answer = Callable[[AsyncIterator[bytes], Any, Peer], Awaitable[None]]
"""Answers one call: its messages, gRPC's context, and whose it is."""


class Admission:
    """Admission to one server. Without a bundle nobody is known, and all callers from one address are one
    peer."""

    def __init__(self, bundle: Bundle | None, refusals: Refusals) -> None:
        self._bundle = bundle
        self._refusals = refusals
        self._peers = Peers(1 if bundle else limits.SHARING_AN_ADDRESS)
        self._calling: Counter[str] = Counter()

    @property
    def calling(self) -> list[str]:
        """The ends of connections, as gRPC names them, that have a call open."""
        return [*self._calling]

    def guarded(self, answer: Answer) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
        """The handler of a method, for gRPC."""

        async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
            now, end = time.monotonic(), str(context.peer())
            self._calling[end] += 1
            try:
                peer = self._peer(context, now)
                if fault := peer.fault(now):
                    await self._refuse(peer, fault, context)
                    return
                peer.open += 1
                try:
                    await answer(requests, context, peer)
                finally:
                    peer.open -= 1
            finally:
                self._calling[end] -= 1
                if not self._calling[end]:
                    del self._calling[end]

        return handle

    async def only_message(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> bytes:
        """Return the message of a call that has one; a call that has none in time ends here, refused."""
        try:
            data = await asyncio.wait_for(anext(aiter(requests)), limits.PATIENCE_SECONDS)
        except TimeoutError:
            await refuse(context, PeerError(f"a call that said nothing for {limits.PATIENCE_SECONDS:g} s"))
        except StopAsyncIteration:
            await refuse(context, PeerError("a call without a request"))
        if not peer.calls.take(time.monotonic(), len(data) // limits.BYTES_PER_CALL):
            await self._refuse(peer, f"a request of {len(data)} bytes so soon after the last", context)
        return data

    async def _refuse(self, peer: Peer, fault: str, context: Any) -> None:
        """End a call that is too much: late, so that a flooding peer has to wait."""
        if not peer.reported:
            peer.reported = True
            self._refusals.note("peer refused", peer.name, fault)
        if peer.refused < limits.REFUSALS_AT_ONCE:
            peer.refused += 1
            try:
                await asyncio.sleep(limits.REFUSAL_SECONDS)
            finally:
                peer.refused -= 1
        await refuse(context, limits.refusal(peer.name, fault))

    def _peer(self, context: Any, now: float) -> Peer:
        address = str(context.peer())
        if self._bundle is None:
            host = address.rpartition(":")[0]
            return self._peers.find(host.encode(), lambda: f"a caller from {host}", now)
        bundle, auth = self._bundle, context.auth_context()

        def name() -> str:
            try:
                caller = peer_of(auth, bundle, datetime.now(UTC))
            except PeerError:
                return f"the holder of a certificate that is not let in, at {address}"
            return f"{caller.role} {caller.name!r}"

        return self._peers.find(b"".join(auth.get("x509_pem_cert", ())), name, now)


async def refuse(context: Any, error: FedboostError) -> NoReturn:
    """End a call with an error, cut to what fits the trailers that carry it; never returns."""
    await context.abort(channel.status_of(error), quoted(str(error), channel.MAX_DETAILS_LENGTH))
    raise AssertionError("abort raises")
