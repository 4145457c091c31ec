"""The process of an adder: a server for the sites of a region, and a client of the aggregator.

Guarantees: an adder keeps nothing but its certificate, so it can be killed and started again at any time; its
parties then call again. If the aggregator cannot be reached for a moment, the parties stay connected; if it
takes longer, the adder ends their calls, so that they try their other servers. A party has the same limits
as at an aggregator. Rejects: callers that are no party of the consortium, and parties that are
already connected here.
"""

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import grpc

from fedboost.errors import FedboostError, PeerError, Refused, quoted
from fedboost.protocol.adding import AdderEnd, Cut, FromAdder, To
from fedboost.protocol.messages import Report
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.endpoint import TICK_SECONDS, Endpoint
from fedboost.runtime.aggregator.limits import Outgoing, Peer, Refusals, allow_connections
from fedboost.runtime.aggregator.parties import Admission, refuse, sending, software_of
from fedboost.runtime.config import AdderConfig
from fedboost.runtime.net import channel
from fedboost.runtime.net.channel import DialAttempts
from fedboost.runtime.net.keys import Bundle, read_again
from fedboost.runtime.net.routes import Server
from fedboost.wire.messages import decode_from_party, decode_to_adder, encode_from_adder

QUEUED_UP = 64
"""Factor by which an adder may have more unread frames to the aggregator than a party has messages."""
KEEP_SECONDS = 30.0
"""Seconds without the aggregator after which the adder ends its parties' calls, and takes no new ones."""
HELD_SECONDS = 2.0
"""Seconds between a question, or such a frame, and the next frame that says whose reports are held. Quick
turns need none, and a frame costs the aggregator as much as a report."""
REDIAL = 1.0
"""Maximum number of seconds between losing the connection to the aggregator and the next attempt."""
CUT_OFF = "this adder has no connection to the aggregator; try another server"
UNREACHABLE = "check `upstream` in the adder's file, and that the aggregator is running"


@dataclass(eq=False)
class Call:
    """A party that is connected. fault: why its call ends, if the aggregator or a limit demands it; is_left:
    True if it ends because the adder lacks the aggregator."""

    outgoing: Outgoing
    fault: FedboostError | None = None
    is_left: bool = False


def report_of(data: bytes) -> Report | None:
    """Return the report in a party's message, or None if it is another message, or none at all."""
    with contextlib.suppress(PeerError):
        if isinstance(message := decode_from_party(data), Report):
            return message
    return None


class AdderServer:
    """An adder, from `start` to `stop`. log: a structlog logger; bundle: the adder's key bundle, or None to
    run without encryption."""

    def __init__(self, config: AdderConfig, log: Any, bundle: Bundle | None) -> None:
        self.address = ""
        self._config = config
        self._bundle = bundle
        self._log = log
        refusals = Refusals(log, None)
        self._admission = Admission(bundle, refusals)
        connections = allow_connections()
        self._most = limits.party_connections(connections)
        methods = {"Attend": self._attend, "Advise": self._advise}
        served = methods, self._admission, refusals, connections
        self._endpoint = Endpoint(config.listen, bundle, *served, log, config.tunnels)
        self.tunnels = self._endpoint.tunnels
        self._end = AdderEnd(self._tell, self._give, self._cut, report_of)
        self._calls: dict[str, Call] = {}
        self._advising: dict[str, Outgoing] = {}
        self._upstream = Outgoing(lambda: None)
        self._asked = self._told = 0.0
        """Time of the last question whose reports are added, and of the last look at whose are here."""
        self._detached: float | None = time.monotonic()
        """Time when the connection to the aggregator was lost, or None while there is one."""
        self._admitted = False
        """True if the aggregator has admitted this adder before."""
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind the port and accept calls. Raises ConfigError if the port cannot be used."""
        self._endpoint.bind()
        self.address = await self._endpoint.start()
        self._ticker = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Disconnect everyone and close the port."""
        if self._ticker is not None:
            self._ticker.cancel()
        await self._endpoint.stop()

    async def _tick(self) -> None:
        serving = True
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._endpoint.tick(now := time.monotonic())
            if now - max(self._asked, self._told) >= HELD_SECONDS:
                self._told = now
                self._end.tell_held()
            cut_off = self._is_cut_off()
            for call in self._calls.values() if cut_off else ():
                call.is_left = True
                call.outgoing.cut()
            if cut_off == serving:
                serving = not cut_off
                self._endpoint.health.set_serving(serving)

    def _is_cut_off(self) -> bool:
        return self._detached is not None and time.monotonic() - self._detached > KEEP_SECONDS

    # ---- Parties ------------------------------------------------------------------------------------

    async def _attend(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Handle the RPC `Attend`: one call per party, for as long as the party is connected."""
        here = self._calls, len(self._calls), self._most
        name = await self._admission.admit_party(context, peer, *here)
        if self._is_cut_off():
            await context.abort(grpc.StatusCode.UNAVAILABLE, CUT_OFF)
        call = self._calls[name] = Call(Outgoing.of_this_call())
        self._log.info("party here", party=name)
        self._end.here(name, software_of(context))
        reason = "its connection closed"
        try:
            async with sending(call.outgoing, context, self._log):
                async for data in requests:
                    await self._room()
                    self._end.message(name, data)
        except asyncio.CancelledError:
            if call.outgoing.fault:
                call.fault = PeerError("party-cut-off", call.outgoing.fault)
            if call.fault is None and not call.is_left:
                raise
            reason = quoted(str(call.fault or CUT_OFF))
            if isinstance(call.fault, PeerError):  # others may be in the right, and should try again soon
                peer.bar(time.monotonic())
        except grpc.RpcError:
            reason = "its connection broke"
        finally:
            del self._calls[name]
            call.outgoing.close()
            self._log.info("party gone", party=name, reason=reason)
            self._end.gone(name, reason)
        if call.fault is not None:
            await refuse(context, call.fault)
        if call.is_left:
            await context.abort(grpc.StatusCode.UNAVAILABLE, CUT_OFF)

    async def _advise(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Handle the RPC `Advise`, over which a party answers preflight checks."""
        try:
            name = self._admission.party_name(context)
        except FedboostError as error:
            await refuse(context, error)
        outgoing = self._advising[name] = Outgoing.of_this_call()
        try:
            async with sending(outgoing, context, self._log):
                async for data in requests:
                    await self._room()
                    if name in self._calls:
                        self._end.message(name, data, advises=True)
        except grpc.RpcError:
            pass  # its connection broke, which `_attend` reports
        finally:
            if self._advising.get(name) is outgoing:
                del self._advising[name]

    def _give(self, party: str, frame: To) -> None:
        """Queue a message for a party."""
        if not frame.advises:
            self._calls[party].outgoing.put(frame.data)
        elif (outgoing := self._advising.get(party)) is not None:
            outgoing.put(frame.data)

    def _cut(self, party: str, frame: Cut) -> None:
        """End a party's call, because the aggregator says so."""
        call, kind = self._calls[party], Refused if frame.refused else PeerError
        call.fault = kind(frame.code, quoted(frame.reason))
        call.outgoing.cut()

    # ---- The aggregator -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected to the aggregator until cancelled. Raises ConfigError or Refused if it does not
        admit this adder."""
        upstream = Server(self._config.upstream, "", self._config.proxy, self._config.ca)
        dialling = DialAttempts((upstream,), inf, self._log, UNREACHABLE)
        while True:
            if self._bundle is not None and self._admitted:
                self._bundle = read_again(self._bundle)
            async with channel.dial(upstream, self._bundle) as opened:
                if await dialling.reached(opened, self._bundle, self._admitted):
                    await self._serve(opened)
                    self._log.info("reconnecting")
                    await asyncio.sleep(REDIAL * random.uniform(0.5, 1.0))

    async def _serve(self, opened: Any) -> None:
        """Exchange frames with the aggregator until the connection is lost. opened: the gRPC channel."""
        call = opened.stream_stream(channel.REGION)(metadata=channel.VERSIONS)
        self._upstream = Outgoing(call.cancel, QUEUED_UP)
        writer = asyncio.create_task(self._write(call, self._upstream))
        try:
            if channel.VERSION_KEY in await call.initial_metadata():
                self._admitted = True
                self._log.info("at hand", aggregator=self._config.upstream)
                self._detached = None
                self._end.attach()
            async for data in call:
                await self._receive(decode_to_adder(data))
        except grpc.aio.AioRpcError as error:
            away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            if not away and not self._admitted:
                raise channel.explained(error, f"the aggregator at {self._config.upstream}") from None
            self._log.info("connection lost", code=error.code().name, details=quoted(error.details() or ""))
        except PeerError as error:
            self._log.error("the aggregator broke the protocol", reason=quoted(str(error)))
        finally:
            writer.cancel()
            call.cancel()
            self._end.detach()
            self._upstream.close()
            self._detached = self._detached or time.monotonic()

    async def _write(self, call: Any, frames: Outgoing) -> None:
        while True:
            await call.write(await frames.get())

    async def _room(self) -> None:
        """Wait until the aggregator has read most of what the adder has for it."""
        while self._upstream.is_full:
            await self._upstream.moved()

    async def _receive(self, frame: Any) -> None:
        """Handle a frame. A relay waits until its receivers have read most of what came before."""
        if isinstance(frame, To) and frame.relays:
            for party in self._end.receivers(frame):
                call = self._calls.get(party)
                while call is not None and call.outgoing.is_full and not call.outgoing.fault:
                    await call.outgoing.moved()
        if isinstance(frame, To) and frame.adds is not None:
            self._asked = time.monotonic()
        self._end.receive(frame)

    def _tell(self, frame: FromAdder) -> None:
        self._upstream.put(encode_from_adder(frame))


# ---- Adders on the aggregator's own machine, which use further cores ------------------------------------


RESTART_SECONDS, MAX_RESTARTS = 1.0, 20
"""Seconds after which an adder process that ended is started again, and how often in a row if it ends at
once, e.g. because another process has its port."""
QUICK_SECONDS = 5.0
"""Maximum number of seconds for which a process runs that ends at once."""
PARENT = "FEDBOOST_PARENT"
"""Environment variable with the process id of the aggregator that started this adder."""


async def until_orphaned() -> None:
    """Wait until the aggregator that started this process has ended, however that happened. Never returns if
    no aggregator started it."""
    parent = os.environ.get(PARENT, "")
    while not parent or os.getppid() == int(parent):
        await asyncio.sleep(RESTART_SECONDS)


async def keep_running(files: Sequence[Path], log: Any, *options: str) -> None:
    """Run an adder process for each configuration file until cancelled. A process that ends is started
    again."""

    own = {**os.environ, PARENT: str(os.getpid())}

    async def run(file: Path) -> None:
        quick = 0
        while quick < MAX_RESTARTS:
            began = time.monotonic()
            command = sys.executable, "-m", "fedboost", "adder", "--config", str(file), *options
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.DEVNULL, env=own
            )
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                process.terminate()
                await process.wait()
                raise
            quick = quick + 1 if time.monotonic() - began < QUICK_SECONDS else 0
            log.warning("an adder process ended, and is started again", config=file.name, code=code)
            await asyncio.sleep(RESTART_SECONDS)
        log.error("an adder process cannot run; the lines above say why", config=file.name)

    async with asyncio.TaskGroup() as running:
        for file in files:
            running.create_task(run(file))
