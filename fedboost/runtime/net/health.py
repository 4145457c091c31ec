"""Is the aggregator up? The standard service grpc.health.v1.Health, and the question to it.

Promises: SERVING from the moment the port is open until the aggregator is told to stop; any holder of a
certificate of the consortium may ask, and learns that one bit.
Refuses: a service of another name (NOT_FOUND).

Its two messages are a string and a number, so their bytes are written out here; grpc's own package would
bring its generated code and another release to keep in step with.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from fedboost.errors import Refused
from fedboost.runtime.aggregator.admission import Admission
from fedboost.runtime.aggregator.limits import Peer
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.tls import tls_fault

SERVICE = "grpc.health.v1.Health"
CHECK = f"/{SERVICE}/Check"
SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
"""HealthCheckResponse: field 1, a number."""
_NAMED = channel.SERVICE.encode()
KNOWN = (b"", b"\x0a\x00", b"\x0a" + bytes([len(_NAMED)]) + _NAMED)
"""HealthCheckRequest: field 1, the name of a service; none, empty, ours."""


class Health:
    """The service's two methods. Set `serving` when that changes."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._serving = False
        self._changed = asyncio.Event()

    @property
    def serving(self) -> bool:
        """True while the aggregator takes calls."""
        return self._serving

    @serving.setter
    def serving(self, value: bool) -> None:
        self._serving = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Answer with the status, once."""
        if await self._admission.only_message(requests, context, peer) not in KNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of this name")
        await context.write(SERVING if self._serving else NOT_SERVING)

    async def watch(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Send the status now and at each change, until the aggregator stops."""
        if await self._admission.only_message(requests, context, peer) not in KNOWN:
            await context.write(UNKNOWN)
            return
        while self._serving:
            changed = self._changed
            await context.write(SERVING)
            await changed.wait()
        await context.write(NOT_SERVING)


async def ask(address: str, bundle: Bundle | None, wait: float) -> None:
    """Return if the aggregator at HOST:PORT is up; ConfigError if nobody says so within `wait` seconds,
    Refused if it says that it is not."""
    async with channel.dial(address, bundle) as opened:
        try:
            call: Any = opened.unary_unary(CHECK)
            answer = await call(b"", timeout=wait, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            silent = error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
            if not silent:
                raise channel.explained(error, f"the aggregator at {address}") from None
            fault = await asyncio.to_thread(tls_fault, address, bundle) if bundle else None
            raise channel.unanswered(address, wait, fault, "check the address") from None
    if answer != SERVING:
        raise Refused(f"the aggregator at {address} is being stopped")
