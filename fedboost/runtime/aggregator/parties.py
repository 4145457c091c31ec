"""The parties of an aggregator: admission of calls, the list of connected parties, and the messages queued
for these parties."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import unquote

import grpc

from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, quoted
from fedboost.privacy.identity import Identified
from fedboost.protocol import key_exchange
from fedboost.protocol.adding import Addition
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import Ask, Outbox, Relay, Request, ToParty
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.limits import Outgoing, Peer, Peers, Refusals
from fedboost.runtime.files import write_atomically
from fedboost.runtime.net import channel
from fedboost.runtime.net.channel import peer_of
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.routes import Server
from fedboost.runtime.telemetry import Event, Meter, Observer
from fedboost.terms.terms import Terms
from fedboost.terms.vertical import ID_BYTES
from fedboost.wire.codec import WIRE_VERSION
from fedboost.wire.messages import LinkFrame, decode_link, encode_link, encode_to_party

# ---- The parties that an aggregator has seen, and when, in a file of its state folder -------------------
# It distinguishes a party that was connected from one that never was, even across restarts. A name is on disk
# a few seconds after its arrival. A failure to write is one event in the log.


FILE = "seen.json"
MAX_NAMES = 4096
"""Maximum number of names that are kept. Beyond that, the party connected least recently is forgotten."""
WRITE_SECONDS = 2.0
"""Minimum number of seconds between two writes of the file."""


@dataclass(eq=False)
class LastSeen:
    """Record of when each party was last connected, in seconds since 1970. It is stored in a file if there is
    a state folder, so that a party that connected before a restart can be distinguished from one that never
    did."""

    _log: Any
    times: dict[str, int] = field(default_factory=dict)
    _path: Path | None = None
    _changed: bool = False
    _written: float = 0.0
    _failed: bool = False

    def open(self, folder: Path) -> None:
        """Read the file in a folder, and write to it from now on. Raises ConfigError if the file cannot be
        read or is invalid."""
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
                f"{self._path} is not a valid list of known parties; move the file aside and restart to "
                f"create a new one",
            ) from None
        self.times = times

    def note(self, party: str, now: float) -> None:
        """Record that a party is connected, or was connected until now."""
        self.times.pop(party, None)
        self.times[party] = int(now)
        if len(self.times) > MAX_NAMES:
            del self.times[next(iter(self.times))]
        self._changed = True

    def last(self, party: str) -> int:
        """Return when this party was last connected, in seconds since 1970, or 0 if it never was."""
        return self.times.get(party, 0)

    def write(self, now: float, at_once: bool = False) -> None:
        """Write the file if something changed and the last write was at least `WRITE_SECONDS` ago. at_once:
        True to write without this delay."""
        if self._path is None or not self._changed or (now - self._written < WRITE_SECONDS and not at_once):
            return
        self._written, self._changed = now, False
        try:
            write_atomically(self._path, json.dumps(self.times).encode(), 0o600)
        except ConfigError as error:
            self._changed = True
            if not self._failed:
                self._log.error("cannot record which parties were connected", reason=str(error))
        self._failed = self._changed


# ---- The parties that are connected to the aggregator, and the messages on their way to them ------------


@dataclass(frozen=True)
class Arrival:
    """When a member connected (seconds since 1970), and which software version it claims to run. adder: the
    adder through which it is connected, if any."""

    since: int
    version: str
    adder: str = ""


class Shared(Protocol):
    """The region of a party that is connected through an adder."""

    def send(self, parties: tuple[str, ...], data: bytes, relays: bool, adds: Addition | None) -> None: ...


class Queue(Protocol):
    """Queue of messages to a party: its own (`Outgoing`), or that of its region."""

    @property
    def region(self) -> Shared | None: ...
    @property
    def is_full(self) -> bool: ...
    async def moved(self) -> None: ...
    def put(self, data: bytes) -> None: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class ConnectedParties:
    """The connected parties with their outgoing messages, and the times when other parties were last
    connected."""

    seen: LastSeen
    observer: Observer
    outgoing: dict[str, Queue] = field(default_factory=dict)
    arrivals: dict[str, Arrival] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new event, at each change for which analysts may be waiting."""

    def __contains__(self, party: str) -> bool:
        return party in self.outgoing

    @property
    def names(self) -> set[str]:
        return set(self.outgoing)

    def notify(self) -> None:
        """Wake the analysts that wait for parties to connect or for another session to end."""
        self.changed.set()
        self.changed = asyncio.Event()

    def absent(self, parties: Iterable[str]) -> dict[str, int]:
        """Return the given parties that are not connected, each with the time of its last connection in
        seconds since 1970 (0 if it was never connected)."""
        return {party: self.seen.last(party) for party in parties if party not in self}

    def add(self, name: str, outgoing: Queue, version: str, adder: str = "") -> None:
        now = time.time()
        self.outgoing[name], self.arrivals[name] = outgoing, Arrival(int(now), version, adder)
        self.seen.note(name, now)
        self.observer.observe(Event("party here", party=name, adder=adder))

    def remove(self, name: str, reason: str) -> None:
        if outgoing := self.outgoing.pop(name, None):
            outgoing.close()
            self.observer.observe(Event("party gone", party=name, reason=reason))
        self.arrivals.pop(name, None)
        self.seen.note(name, time.time())
        self.notify()

    async def room(self, parties: Iterable[str]) -> None:
        """Wait until each of the given parties that are connected has read most of its queued messages."""
        parties = tuple(parties)
        while full := [self.outgoing[p] for p in parties if p in self.outgoing and self.outgoing[p].is_full]:
            await full[0].moved()

    def send(self, outbox: Outbox, meter: Meter | None, adds: Addition | None = None) -> None:
        """Encode each message of an outbox once, queue it for its party if the party is connected, and count
        its bytes in `meter`. Parties behind one adder share one copy. adds: what adders need to add the
        answers to a query of the outbox, if they can be added."""
        # With a thousand parties, this loop is most of what a turn costs beside its sums.
        by_message: dict[int, tuple[ToParty, bytes, dict[Shared, list[str]]]] = {}
        last, data, regions = None, b"", dict[Shared, list[str]]()
        for party, message in outbox:
            if (queue := self.outgoing.get(party)) is None:
                continue
            if message is not last:
                if (known := by_message.get(id(message))) is None:
                    known = by_message[id(message)] = message, encode_to_party(message), {}
                last, data, regions = known
            if meter is not None:
                meter.count(party, received=len(data))
            if queue.region is None:
                queue.put(data)
            else:
                regions.setdefault(queue.region, []).append(party)
        for message, data, regions in by_message.values():
            asks = adds if isinstance(message, Ask) else None
            for region, parties in regions.items():
                region.send(tuple(parties), data, isinstance(message, Relay), asks)


@asynccontextmanager
async def sending(outgoing: Outgoing, context: Any, log: Any) -> AsyncIterator[None]:
    """Context manager that admits a party's call and sends the messages queued for the party. The call is
    cut if gRPC can no longer send."""

    async def write() -> None:
        try:
            while True:
                await context.write(await outgoing.get())
        except Exception as error:  # noqa: BLE001 - whatever gRPC raises, this party cannot be reached
            log.info("cannot write", reason=f"{type(error).__name__}: {error}")
            outgoing.cut()

    version = [(channel.VERSION_KEY, str(WIRE_VERSION))]
    admitting = asyncio.ensure_future(context.send_initial_metadata(version))
    try:
        await asyncio.shield(admitting)
    except asyncio.CancelledError:
        await admitting  # a status that gRPC sends during it never arrives
        raise
    writer = asyncio.create_task(write())
    try:
        yield
    finally:
        writer.cancel()


# ---- Admission of every call to the aggregator: who calls, and is the caller within its limits? ---------
# A call counts for its peer until it has really ended, even if it is refused, idle or stuck. A flood is one
# event in the log, which names the peer.


Answer = Callable[[AsyncIterator[bytes], Any, Peer], Awaitable[None]]
"""Function that handles one call, given its messages, gRPC's context and its peer."""


class Admission:
    """Admission of calls to one server: identifies callers and enforces the limits per peer. Without a
    bundle, callers are not identified, and all callers from one address are one peer."""

    def __init__(self, bundle: Bundle | None, refusals: Refusals) -> None:
        self._bundle = bundle
        self._refusals = refusals
        self._peers = Peers(1 if bundle else limits.SHARING_AN_ADDRESS)
        self._calling: Counter[str] = Counter()

    @property
    def calling(self) -> list[str]:
        """Clients with an open call, as named by gRPC."""
        return [*self._calling]

    def guarded(self, answer: Answer) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
        """Return a gRPC handler that calls `answer` if the peer is within its limits, and refuses the call
        otherwise."""

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
        """Return the request of a call that has a single message. Refuses the call if no request arrives in
        time or requests are sent too often."""
        try:
            data = await asyncio.wait_for(anext(aiter(requests)), limits.PATIENCE_SECONDS)
        except TimeoutError:
            await refuse(
                context,
                PeerError("call-silent", f"no request arrived for {limits.PATIENCE_SECONDS:g} s"),
            )
        except StopAsyncIteration:
            await refuse(context, PeerError("call-without-request", "the call ended without a request"))
        if not peer.calls.take(time.monotonic(), len(data) // limits.BYTES_PER_CALL):
            await self._put_off(
                peer, f"a request of {len(data)} bytes came too soon after the last one", context
            )
        return data

    async def admit_party(
        self, context: Any, peer: Peer, here: Container[str] = (), number: int = 0, most: int = 1
    ) -> str:
        """Return the name of a party that may attend, and refuse the call otherwise. here: the names that are
        connected; number, most: how many parties call this server directly, and how many may."""
        try:
            name = self.party_name(context)
            if name in here:
                raise name_taken(name)
            if number >= most:
                raise Refused(
                    "aggregator-full",
                    f"{most} parties are connected, which is the limit here; connect through another adder, "
                    f"or raise the limit on open files",
                )
        except FedboostError as error:
            await self.refuse("party refused", error, context, peer)
        return name

    async def refuse(self, event: str, error: FedboostError, context: Any, peer: Peer) -> NoReturn:
        """Log an error, and end the call with this error. event: kind of refusal, for the log."""
        address = unquote(str(context.peer())).partition(":")[2]
        self._refusals.note(event, peer.name, quoted(str(error)), address=address)
        await refuse(context, error)

    async def _put_off(self, peer: Peer, fault: str, context: Any) -> None:
        """Refuse a call that exceeds a limit, after a delay that slows down a flooding peer."""
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
        """Return the identity of the caller, or None if the aggregator runs without keys. Raises Refused if
        the caller's certificate is not admitted."""
        if self._bundle is None:
            return None
        try:
            return peer_of(context.auth_context(), self._bundle, datetime.now(UTC))
        except PeerError as error:
            raise Refused("certificate-not-admitted", str(error)) from None

    def check_role(self, context: Any, role: str, name: str | None = None) -> Identified | None:
        """Return the identity of the caller, or None if the aggregator runs without keys. Raises Refused
        unless the caller's certificate has this role and, if `name` is given, this name."""
        caller = self.caller(context)
        if caller is None:
            return None
        if caller.role != role:
            raise Refused(
                "certificate-wrong-role",
                f"the certificate of {caller.role} {caller.name!r} is not valid for the role {role}; "
                f"use a bundle issued by `fedboost keys {role}`",
            )
        if name is not None and caller.name != name:
            raise Refused("certificate-name", f"party {name!r} uses the certificate of party {caller.name!r}")
        return caller

    def check_asker(self, context: Any, terms: Terms) -> None:
        """Raise Refused unless the caller may request a session under these terms. Predictions are requested
        by the label holder, all other sessions by analysts."""
        holder, party = terms.vertical.label_holder, key_exchange.PARTY
        if terms.task.by_analyst:
            self.check_role(context, key_exchange.ANALYST)
        elif (caller := self.caller(context)) and (caller.role, caller.name) != (party, holder):
            raise Refused(
                "not-label-holder",
                f"only label holder {holder} may request a prediction, but this is the certificate of "
                f"{caller.role} {caller.name}",
            )

    def party_name(self, context: Any) -> str:
        """Return the name of the calling party. Raises ConfigError if the party has another wire version or
        sent no valid name, and Refused if its certificate has another name."""
        check_version(context, "party")
        metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        try:
            name = bytes(metadata.get(channel.PARTY_KEY, b"")).decode()
        except UnicodeDecodeError:
            name = ""
        if not 0 < len(name) <= 256:
            raise ConfigError("party-unnamed", "the party did not send a valid name")
        self.check_role(context, "party", name)
        return name


async def refuse(context: Any, error: FedboostError) -> NoReturn:
    """End a call with an error. The error's text is shortened to fit gRPC's trailers. Never returns."""
    details = quoted(str(error), channel.MAX_DETAILS_LENGTH)
    await context.abort(channel.status_of(error), details, ((channel.CAUSE_KEY, error.code),))
    raise AssertionError("abort raises")


# ---- Frames between the parties of a model whose scoring service runs -----------------------------------
# Guarantees: frames of one party arrive in their order, and a sender is read no faster than its receiver
# reads. The aggregator does not store frames, and cannot read their content.


@dataclass(eq=False)
class Links:
    """Handler of the RPC `Link`: one call per party and model, for as long as the party is connected. Each
    party is told which others are connected for the same model."""

    _admission: Admission
    _log: Any
    _here: dict[bytes, dict[str, Outgoing]] = field(default_factory=dict)
    """Maps model -> party -> frames to it."""

    async def serve(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        name = await self._admission.admit_party(context, peer)
        outgoing, model = Outgoing.of_this_call(), b""
        fault: FedboostError | None = None
        try:
            async with sending(outgoing, context, self._log):
                first = decode_link(await self._admission.only_message(requests, context, peer))
                model = self._begin(name, first, outgoing)
                async for data in requests:
                    await self._pass_on(name, self._here[model], decode_link(data))
        except (PeerError, Refused) as error:
            fault = error
        except asyncio.CancelledError:
            if not outgoing.fault:
                raise
            fault = PeerError("party-cut-off", outgoing.fault)
        except grpc.RpcError:
            pass  # the party is gone
        finally:
            outgoing.close()
            self._end(name, model, outgoing)
        if fault is not None:
            await refuse(context, fault)

    def _begin(self, name: str, first: LinkFrame, outgoing: Outgoing) -> bytes:
        """Connect a party, and return the model's id. Raises PeerError if there is none in the first frame,
        Refused if the party is connected already."""
        if first.party or len(first.content) != ID_BYTES:
            raise PeerError("link-first-frame", "the first frame does not name a model")
        others = self._here.setdefault(first.content, {})
        if name in others:
            raise Refused(
                "link-taken", f"a scoring service of party {name!r} is connected for this model already"
            )
        for other, queue in others.items():
            queue.put(encode_link(LinkFrame(name)))
            outgoing.put(encode_link(LinkFrame(other)))
        others[name] = outgoing
        self._log.info("scoring service here", party=name, model=first.content.hex()[:8])
        return first.content

    def _end(self, name: str, model: bytes, outgoing: Outgoing) -> None:
        others = self._here.get(model, {})
        if others.get(name) is not outgoing:
            return
        del others[name]
        for queue in others.values():
            queue.put(encode_link(LinkFrame(name, gone=True)))
        if not others:
            del self._here[model]
        self._log.info("scoring service gone", party=name, model=model.hex()[:8])

    async def _pass_on(self, name: str, others: dict[str, Outgoing], frame: LinkFrame) -> None:
        while (receiver := others.get(frame.party)) is not None and receiver.is_full:
            await receiver.moved()
        if receiver is not None and frame.content:
            receiver.put(encode_link(LinkFrame(name, frame.content)))
        elif receiver is None:
            others[name].put(encode_link(LinkFrame(frame.party, gone=True)))


# ---- A caller's claims about itself, and an analyst's signature -----------------------------------------


def name_taken(party: str) -> Refused:
    """Return the error for a party whose name is connected already."""
    return Refused(
        "party-name-taken",
        f"a party named {party!r} is already connected; stop the other one, or correct `party` in this "
        f"site's file",
    )


def check_version(context: Any, who: str) -> None:
    """Raise ConfigError unless the caller uses this process's version of the wire format. `who` names the
    caller in the message."""
    version = dict(context.invocation_metadata() or ()).get(channel.VERSION_KEY)
    if version != str(WIRE_VERSION):
        raise ConfigError(
            "wire-version",
            f"wire versions differ: the aggregator uses version {WIRE_VERSION}, the {who} uses "
            f"{version or 'an unknown one'}; install the same fedboost version on both",
        )


def software_of(context: Any) -> str:
    """Return the software version that the caller claims to run, or an empty string."""
    version = dict(context.invocation_metadata() or ()).get(channel.SOFTWARE_KEY)
    return quoted(version, limits.VERSION_LENGTH) if isinstance(version, str) else ""


def check_signed(
    trust: Trust | None, terms: Terms | str, request: Request | None, analyst: str, wish: bytes
) -> None:
    """Raise Refused unless the calling analyst signed these terms for this purpose. Does nothing if the
    aggregator runs without keys.

    Args:
        trust: the consortium's roots, or None if the aggregator runs without keys.
        terms: the terms; or their text, if the signature is checked before the text is parsed.
        request: the signature.
        analyst: name of the calling analyst.
        wish: the purpose, such as a session or a preflight check.
    """
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
        raise Refused("other-signer", f"the terms were not signed by analyst {analyst!r}, who submitted them")


def trust_of(bundle: Bundle | None) -> Trust | None:
    """Return the roots for checking certificates and signatures, or None if the aggregator runs without
    keys."""
    return None if bundle is None else Trust(bundle.roots, bundle.denied, lambda: datetime.now(UTC))


# ---- Is the aggregator up? The standard service grpc.health.v1.Health, and a query to it ----------------
# It is SERVING from the moment the port is open until the aggregator is stopped. Any holder of a certificate
# of the consortium may query it, and learns that one bit. Its two messages are a string and a number, so
# their bytes are written out here: grpc's own package would add generated code and one more release to keep
# in step with.


SERVICE = "grpc.health.v1.Health"
CHECK, WATCH = f"/{SERVICE}/Check", f"/{SERVICE}/Watch"
SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
"""Encoded HealthCheckResponse: field 1, the status."""
_NAMED = channel.SERVICE.encode()
KNOWN = (b"", b"\x0a\x00", b"\x0a" + bytes([len(_NAMED)]) + _NAMED)
"""Encoded HealthCheckRequest: field 1, the name of the service; missing, empty, or fedboost's."""


class Health:
    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._serving = False
        self._changed = asyncio.Event()

    def set_serving(self, value: bool) -> None:
        """Set whether the aggregator accepts calls from now on."""
        self._serving = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        if await self._admission.only_message(requests, context, peer) not in KNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no service with this name")
        await context.write(SERVING if self._serving else NOT_SERVING)

    async def watch(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Send the status now and after each change, until the aggregator stops."""
        if await self._admission.only_message(requests, context, peer) not in KNOWN:
            await context.write(UNKNOWN)
            return
        while self._serving:
            changed = self._changed
            await context.write(SERVING)
            await changed.wait()
        await context.write(NOT_SERVING)


async def ask(server: Server, bundle: Bundle | None, wait: float) -> None:
    """Check that a server is up. Raises ConfigError if it does not answer within `wait` seconds, and Refused
    if it is stopping."""
    if await asyncio.to_thread(channel.answer_of, CHECK, server, bundle, b"", wait, wait) != SERVING:
        raise Refused("aggregator-stopping", f"{server} is stopping, or cut off")
