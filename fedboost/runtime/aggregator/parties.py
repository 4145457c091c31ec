"""The parties of an aggregator: who is admitted, who is connected, and the messages on their way to them."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc

from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, quoted
from fedboost.privacy.identity import Identified
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import Outbox, Request
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.limits import Outgoing, Peer, Peers, Refusals
from fedboost.runtime.files import write_atomically
from fedboost.runtime.net import channel
from fedboost.runtime.net.channel import peer_of
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.telemetry import Event, Meter, Observer
from fedboost.terms.terms import Terms
from fedboost.wire.codec import WIRE_VERSION
from fedboost.wire.messages import encode_to_party

# ---- The parties that an aggregator has seen, and when, in a file of its state folder -------------------
# It tells a party that was here from one that never dialled, also across restarts. A name is on the disk some
# seconds after its arrival. A failure to write is one event in the log.


FILE = "seen.json"
MAX_NAMES = 4096
"""Most names that are kept; beyond this, the one seen longest ago is forgotten."""
WRITE_SECONDS = 2.0
"""Fewest seconds between two writes."""


@dataclass(eq=False)
class LastSeen:
    """The names of parties, with the times when they were last here (seconds since 1970). Without a folder
    they end with the process."""

    _log: Any
    times: dict[str, int] = field(default_factory=dict)
    _path: Path | None = None
    _changed: bool = False
    _written: float = 0.0
    _failed: bool = False

    def open(self, folder: Path) -> None:
        """Continue with the file in this folder. ConfigError."""
        self._path = folder / FILE
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError("seen-unreadable", f"{self._path}: cannot read: {error.strerror}") from None
        try:
            times = json.loads(text)
            if not isinstance(times, dict) or not all(type(seen) is int for seen in times.values()):
                raise ValueError
        except (ValueError, RecursionError):
            raise ConfigError(
                "seen-unreadable",
                f"{self._path}: not the list of parties that an aggregator has seen; move it away to begin "
                f"a new one",
            ) from None
        self.times = times

    def note(self, party: str, now: float) -> None:
        """Note that a party is here, or was until now."""
        self.times.pop(party, None)
        self.times[party] = int(now)
        if len(self.times) > MAX_NAMES:
            del self.times[next(iter(self.times))]
        self._changed = True

    def last(self, party: str) -> int:
        """The time when this party was last here; 0 if it never was."""
        return self.times.get(party, 0)

    def write(self, now: float, at_once: bool = False) -> None:
        """Write the file if something changed, unless it was written very recently."""
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
    """The arrival of a member: its time (seconds since 1970), and its claimed software version."""

    since: int
    version: str


@dataclass(eq=False)
class ConnectedParties:
    """The connected parties, each with its outgoing messages, and those seen before."""

    seen: LastSeen
    observer: Observer
    outgoing: dict[str, Outgoing] = field(default_factory=dict)
    arrivals: dict[str, Arrival] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new event, at each change for which analysts may wait."""

    def __contains__(self, party: str) -> bool:
        return party in self.outgoing

    @property
    def names(self) -> set[str]:
        return set(self.outgoing)

    def notify(self) -> None:
        """Wake the analysts that wait for parties, or for another session to end."""
        self.changed.set()
        self.changed = asyncio.Event()

    def absent(self, parties: Iterable[str]) -> dict[str, int]:
        """Those of these parties that are not connected, with the time when they last were; 0 for never."""
        return {party: self.seen.last(party) for party in parties if party not in self}

    def add(self, name: str, outgoing: Outgoing, version: str) -> None:
        now = time.time()
        self.outgoing[name], self.arrivals[name] = outgoing, Arrival(int(now), version)
        self.seen.note(name, now)
        self.observer.observe(Event("party here", party=name))

    def remove(self, name: str, reason: str) -> None:
        if outgoing := self.outgoing.pop(name, None):
            outgoing.close()
            self.observer.observe(Event("party gone", party=name, reason=reason))
        self.arrivals.pop(name, None)
        self.seen.note(name, time.time())
        self.notify()

    async def room(self, parties: Iterable[str]) -> None:
        """Wait until each connected one of these parties has read most of its messages."""
        parties = tuple(parties)
        while full := [self.outgoing[p] for p in parties if p in self.outgoing and self.outgoing[p].is_full]:
            await full[0].moved()

    def send(self, outbox: Outbox, meter: Meter | None) -> None:
        """Queue each message of an outbox, encoded once, and count its bytes."""
        encoded: dict[int, bytes] = {}
        for party, message in outbox:
            if party in self.outgoing:
                data = encoded.setdefault(id(message), b"") or encode_to_party(message)
                encoded[id(message)] = data
                if meter is not None:
                    meter.count(party, received=len(data))
                self.outgoing[party].put(data)


@asynccontextmanager
async def sending(outgoing: Outgoing, context: Any, log: Any) -> AsyncIterator[None]:
    """Admit a party, and write its outgoing messages within this context. Its call is cancelled when gRPC no
    longer takes them."""
    attending = asyncio.current_task()
    assert attending is not None

    async def write() -> None:
        try:
            while True:
                await context.write(await outgoing.get())
        except Exception as error:  # noqa: BLE001 - whatever gRPC raises, this party cannot be reached
            log.info("cannot write", reason=f"{type(error).__name__}: {error}")
            attending.cancel()

    await context.send_initial_metadata([(channel.VERSION_KEY, str(WIRE_VERSION))])
    writer = asyncio.create_task(write())
    try:
        yield
    finally:
        writer.cancel()


# ---- Admission of every call to the aggregator: who calls, and is it within its share? ------------------
# A call counts for its peer until it has really ended, even if it is refused, idle or stuck. A flood is one
# event in the log, which names the peer.


Answer = Callable[[AsyncIterator[bytes], Any, Peer], Awaitable[None]]
"""Answers one call: takes its messages, gRPC's context, and its peer."""


class Admission:
    """Admission to one server. Without a bundle no caller is known, and all from one address are one peer."""

    def __init__(self, bundle: Bundle | None, refusals: Refusals) -> None:
        self._bundle = bundle
        self._refusals = refusals
        self._peers = Peers(1 if bundle else limits.SHARING_AN_ADDRESS)
        self._calling: Counter[str] = Counter()

    @property
    def calling(self) -> list[str]:
        """The client ends, as gRPC names them, of connections with an open call."""
        return [*self._calling]

    def guarded(self, answer: Answer) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
        """The handler of a method, for gRPC."""

        async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
            now, end = time.monotonic(), str(context.peer())
            self._calling[end] += 1
            try:
                peer = self._peer(context, now)
                if fault := peer.fault(now):
                    await self._put_off(peer, fault, context)
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
        """Return the only message of a call; a call without one in time is refused and ends here."""
        try:
            data = await asyncio.wait_for(anext(aiter(requests)), limits.PATIENCE_SECONDS)
        except TimeoutError:
            await refuse(
                context,
                PeerError("call-silent", f"no request for {limits.PATIENCE_SECONDS:g} s"),
            )
        except StopAsyncIteration:
            await refuse(context, PeerError("call-without-request", "a call without a request"))
        if not peer.calls.take(time.monotonic(), len(data) // limits.BYTES_PER_CALL):
            await self._put_off(peer, f"a request of {len(data)} bytes so soon after the last", context)
        return data

    async def refuse(self, event: str, error: FedboostError, context: Any, peer: Peer) -> NoReturn:
        """End a call with an error, which is logged."""
        address = unquote(str(context.peer())).partition(":")[2]
        self._refusals.note(event, peer.name, quoted(str(error)), address=address)
        await refuse(context, error)

    async def _put_off(self, peer: Peer, fault: str, context: Any) -> None:
        """End an excess call: late, so that a flooding peer must wait."""
        if not peer.reported:
            peer.reported = True
            self._refusals.note("peer refused", peer.name, fault)
        if peer.refused < limits.REFUSALS_AT_ONCE:
            peer.refused += 1
            try:
                await asyncio.sleep(limits.REFUSAL_SECONDS)
            finally:
                peer.refused -= 1
        await refuse(
            context, Refused("call-too-often", f"{fault}: {peer.name} must wait and call less often")
        )

    def _peer(self, context: Any, now: float) -> Peer:
        address = str(context.peer())
        if self._bundle is None:
            host = address.rpartition(":")[0]
            return self._peers.find(host.encode(), lambda: f"a caller from {host}", now)

        def name() -> str:
            try:
                caller = self.caller(context)
            except Refused:
                return f"the holder of a certificate that is not admitted, at {address}"
            assert caller is not None
            return f"{caller.role} {caller.name!r}"

        return self._peers.find(b"".join(context.auth_context().get("x509_pem_cert", ())), name, now)

    # ---- who calls --------------------------------------------------------------------------------------

    def caller(self, context: Any) -> Identified | None:
        """The caller's identity, None without keys. Raises Refused for a certificate that is not admitted."""
        if self._bundle is None:
            return None
        try:
            return peer_of(context.auth_context(), self._bundle, datetime.now(UTC))
        except PeerError as error:
            raise Refused("certificate-not-admitted", str(error)) from None

    def check_role(self, context: Any, role: str, name: str | None = None) -> Identified | None:
        """The caller's identity, None without keys. Raises Refused unless its certificate has this role, and
        this name if one is given."""
        caller = self.caller(context)
        if caller is None:
            return None
        if caller.role != role:
            raise Refused(
                "certificate-wrong-role",
                f"this is the certificate of {caller.role} {caller.name!r}: it may not act as {role}; "
                f"use a bundle of `fedboost keys {role}`",
            )
        if name is not None and caller.name != name:
            raise Refused("certificate-name", f"party {name!r} uses the certificate of party {caller.name!r}")
        return caller

    def check_asker(self, context: Any, terms: Terms) -> None:
        """Raise Refused unless the caller may request a session under these terms: an analyst or, for a
        prediction, the label holder."""
        holder, party = terms.vertical.label_holder, key_exchange.PARTY
        if terms.task.by_analyst:
            self.check_role(context, key_exchange.ANALYST)
        elif (caller := self.caller(context)) and (caller.role, caller.name) != (party, holder):
            raise Refused(
                "not-label-holder",
                f"only label holder {holder} may ask for a prediction, and this is the certificate of "
                f"{caller.role} {caller.name}",
            )

    def party_name(self, context: Any) -> str:
        """The name of the calling party. ConfigError if it gives none, Refused if it is not its own."""
        metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        try:
            name = bytes(metadata.get(channel.PARTY_KEY, b"")).decode()
        except UnicodeDecodeError:
            name = ""
        if not 0 < len(name) <= 256:
            raise ConfigError("party-unnamed", "a party must give its name")
        self.check_role(context, "party", name)
        return name


async def refuse(context: Any, error: FedboostError) -> NoReturn:
    """End a call with an error, cut to fit gRPC's trailers; never returns."""
    details = quoted(str(error), channel.MAX_DETAILS_LENGTH)
    await context.abort(channel.status_of(error), details, ((channel.CAUSE_KEY, error.code),))
    raise AssertionError("abort raises")


# ---- A caller's claims about itself, and an analyst's signature -----------------------------------------


MAX_VERSION_LENGTH = 20
"""Characters of a version that are kept."""


def check_version(context: Any, who: str) -> None:
    """Raise ConfigError unless the caller speaks this wire version."""
    version = dict(context.invocation_metadata() or ()).get(channel.VERSION_KEY)
    if version != str(WIRE_VERSION):
        raise ConfigError(
            "wire-version",
            f"this aggregator speaks wire version {WIRE_VERSION}, the {who} "
            f"{version or 'names none'}; install the same version of fedboost",
        )


def software_of(context: Any) -> str:
    """The claimed version of the caller's software; '' if it gives none."""
    version = dict(context.invocation_metadata() or ()).get(channel.SOFTWARE_KEY)
    return quoted(version, MAX_VERSION_LENGTH) if isinstance(version, str) else ""


def check_signed(
    trust: Trust | None, terms: Terms | str, request: Request | None, analyst: str, wish: bytes
) -> None:
    """Raise Refused unless the calling analyst signed these terms for this purpose; a text is checked before
    it is read. Parties would refuse them, too. Without keys nothing is signed."""
    if trust is None:
        return
    signer = ""
    try:
        if request is not None and isinstance(terms, str):
            signer = key_exchange.check_unread(trust, terms, request, wish)
        elif isinstance(terms, Terms) and request is not None:
            signer = key_exchange.check_request(trust, terms, request, wish)
    except PeerError as error:
        raise Refused("terms-signature-invalid", str(error)) from None
    if not signer or signer != analyst:
        raise Refused("other-signer", f"the terms are not signed by analyst {analyst!r}, who submits them")


def trust_of(bundle: Bundle | None) -> Trust | None:
    """The roots for checking key advertisements and signatures; None without keys."""
    return None if bundle is None else Trust(bundle.roots, bundle.denied, lambda: datetime.now(UTC))


# ---- Is the aggregator up? The standard service grpc.health.v1.Health, and a query to it ----------------
# It is SERVING from the moment the port is open until the aggregator is stopped. Any holder of a certificate
# of the consortium may query it, and learns that one bit. Its two messages are a string and a number, so
# their bytes are written out here: grpc's own package would add generated code and one more release to keep
# in step with.


SERVICE = "grpc.health.v1.Health"
CHECK = f"/{SERVICE}/Check"
SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
"""HealthCheckResponse: field 1, a number."""
_NAMED = channel.SERVICE.encode()
KNOWN = (b"", b"\x0a\x00", b"\x0a" + bytes([len(_NAMED)]) + _NAMED)
"""HealthCheckRequest: field 1, the name of a service; missing, empty, or ours."""


class Health:
    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._serving = False
        self._changed = asyncio.Event()

    def set_serving(self, value: bool) -> None:
        """Set whether the aggregator takes calls from now on."""
        self._serving = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
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
    """Return if the aggregator at HOST:PORT is up. ConfigError if there is no answer within `wait` seconds,
    Refused if it is stopping."""
    answer = await asyncio.to_thread(channel.answer_of, CHECK, address, bundle, b"", wait, wait)
    if answer != SERVING:
        raise Refused("aggregator-stopping", f"the aggregator at {address} is being stopped")
