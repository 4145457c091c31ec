"""The aggregator on the network: parties attend, analysts submit terms, one session at a time.

Promises: parties dial in, it dials nobody; a connection that breaks the protocol is closed and named, and
the process goes on; a lost party is reported to the session at once.
Refuses: whoever has no certificate of the consortium, or one of another role; a party with a name that is
taken; terms without parties or with an unknown program; whatever is beyond `shell.limits`.
"""

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import grpc

from fedboost.boosting import memory
from fedboost.boosting.state import NOTHING_YET
from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, quoted
from fedboost.privacy.identity.certificates import Identified, key_fingerprint
from fedboost.protocol import key_exchange
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.contracts import Program
from fedboost.protocol.events import Connected, Disconnected, Outbox
from fedboost.protocol.journal import Begun
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import Bye, FromParty, Open, Request
from fedboost.runtime.aggregator import limits
from fedboost.runtime.aggregator.active_session import Running
from fedboost.runtime.aggregator.admission import Gate, refuse
from fedboost.runtime.aggregator.connections import Connections, allow_files
from fedboost.runtime.aggregator.limits import Outgoing, Peer
from fedboost.runtime.aggregator.programs import load_program, program_of
from fedboost.runtime.aggregator.store import CannotRecord, Folder, Journal
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.net import channel, health
from fedboost.runtime.net.health import Health
from fedboost.runtime.net.keys import Bundle
from fedboost.runtime.net.tls import peer_of, server_credentials
from fedboost.terms.terms import Terms
from fedboost.wire.bounds import WIRE_VERSION
from fedboost.wire.messages import decode_from_party, encode_to_party
from fedboost.wire.training import TrainEvent, Waiting, Wish, decode_train_request, encode_train_event

MAX_WAITING = 16
"""Analysts that may wait at a time, for parties or for another session to end."""
MAX_UNDELIVERED = 16
"""Finished sessions that are kept for an analyst to come back; beyond it the oldest is on the disk alone."""
TICK_SECONDS = 0.25
"""How often deadlines are looked at."""
TURN_SECONDS = 20.0
"""How long a turn under way is waited for before the process ends."""


class AggregatorServer:
    """Serves until stopped. `log` is a structlog logger; without a bundle nothing is encrypted, and parties
    are known by the names they give."""

    def __init__(self, config: AggregatorConfig, log: Any, bundle: Bundle | None) -> None:
        self.address = ""
        self._config = config
        self._log = log
        self._bundle = bundle
        self._memory = int(config.memory * memory.GIB)
        """Bytes that the sums of a session may take."""
        self._attending: dict[str, Outgoing] = {}
        self._changed = asyncio.Event()
        self._waiting = 0
        self._running: Running | None = None
        self._unfinished: deque[Running] = deque()
        """Sessions of an earlier process that wait for the one that runs."""
        self._finished: dict[tuple[str, str], Running] = {}
        """Sessions whose end their analyst does not know yet."""
        self._folder: Folder | None = None
        self._fatal = ""
        self._ended = asyncio.Event()
        self._stopping = False
        self._turned = asyncio.Event()
        self._ticker: asyncio.Task[None] | None = None
        self._reader = ThreadPoolExecutor(1, "read-terms")
        """Terms may have megabytes: they are read beside the event loop, one request at a time."""
        self._gate = Gate(bundle, log)
        self._health = Health(self._gate)
        connections = ("grpc.max_allowed_incoming_connections", allow_files())
        self._server = grpc.aio.server(
            options=[*channel.SERVER_OPTIONS, connections], maximum_concurrent_rpcs=limits.OPEN_CALLS
        )
        self._connections: Connections | None = None

    async def start(self) -> None:
        """Bind the port; afterwards `address` is where parties dial. ConfigError if it cannot be bound."""
        for program in self._config.programs:
            load_program(program, self._config.programs)
        services = {
            channel.SERVICE: {"Attend": self._attend, "Train": self._answer_analyst},
            health.SERVICE: {"Check": self._health.check, "Watch": self._health.watch},
        }
        for service, methods in services.items():
            # On the wire a call with one message is a stream of one: so the gate sees it before the message.
            handlers = {
                method: grpc.stream_stream_rpc_method_handler(self._gate.guarded(answer))
                for method, answer in methods.items()
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        host = self._config.listen.rpartition(":")[0]
        try:
            if self._bundle is None:
                port = self._server.add_insecure_port(self._config.listen)
            else:
                credentials = server_credentials(self._bundle)
                port = self._server.add_secure_port(self._config.listen, credentials)
        except RuntimeError:
            raise ConfigError(
                f"cannot listen on {self._config.listen}: the port is taken, or the address is another "
                f"machine's"
            ) from None
        if self._config.state is not None:
            self._folder = Folder(self._config.state)
            for journal in self._folder.unfinished():
                running = self._resumed(journal)
                if running.has_opened:
                    self._unfinished.append(running)
                else:  # a party may not have heard of it, and takes no later attempt of what it does not know
                    self._log.info("session dropped: no sum was opened", session=running.session.name)
                    running.forget()
        await self._server.start()
        self._health.serving = True
        self.address = f"{host}:{port}"
        self._connections = Connections(port, self._log)
        self._ticker = asyncio.create_task(self._tick())
        self._begin_next()

    async def serve(self) -> None:
        """Until `stop`. ConfigError when a journal cannot be written any more."""
        await self._ended.wait()
        if self._fatal:
            raise ConfigError(self._fatal)

    async def stop(self) -> None:
        """Finish the turn, hang up on everyone, and close the port. Sessions go on in the next process."""
        self._health.serving = False
        self._stopping = True
        running = self._running
        waits = running is not None and self._folder is not None
        self._log.info("stopping", **({"goes_on": "when the aggregator is started again"} if waits else {}))
        if running is not None and self._folder is None:
            running.fail("the aggregator was stopped")
            await asyncio.sleep(0.1)  # lets the goodbyes out
        elif running is not None and running.in_a_turn and not self._fatal:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._turned.wait(), TURN_SECONDS)
        if self._ticker is not None:
            self._ticker.cancel()
        self._running = None
        await self._server.stop(grace=1.0)
        self._reader.shutdown(wait=False)
        if self._folder is not None:
            self._folder.close()
        self._ended.set()

    # ---- parties ------------------------------------------------------------------------------------

    async def _attend(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """One party, from its arrival to its departure."""
        try:
            _check_version(context, "party")
            name = self._name_of(context)
        except FedboostError as error:
            self._log.info("party refused", reason=quoted(str(error)))
            await refuse(context, error)
        task = asyncio.current_task()
        assert task is not None
        outgoing = Outgoing(task.cancel)
        self._attending[name] = outgoing
        self._log.info("party here", party=name)
        reason, fault, spare = "its connection closed", None, 0
        writer: asyncio.Task[None] | None = None
        try:
            await context.send_initial_metadata([(channel.VERSION_KEY, str(WIRE_VERSION))])
            writer = asyncio.create_task(self._write(outgoing, context, task))
            self._tell_of_change()
            self._handle(name, Connected())
            async for data in requests:
                if self._running is not None and name in self._running.terms.parties:
                    self._running.meter.sent(name, len(data))
                message = decode_from_party(data)
                awaited = self._running is not None and self._running.awaits(name, message)
                spare = limits.LAST_WORDS if awaited else spare - 1
                if spare < 0 and not peer.unwanted.take(time.monotonic()):
                    peer.bar(time.monotonic())
                    raise PeerError("it keeps sending what nobody asked for")
                self._handle(name, message)
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
            self._attending.pop(name, None)
            self._tell_of_change()
            self._log.info("party gone", party=name, reason=reason)
            self._handle(name, Disconnected(reason))
        if fault is not None:
            await refuse(context, fault)  # at last: a party that does not read is not told either

    def _name_of(self, context: Any) -> str:
        metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        try:
            name = bytes(metadata.get(channel.PARTY_KEY, b"")).decode()
        except UnicodeDecodeError:
            name = ""
        if not 0 < len(name) <= 256:
            raise ConfigError("a party must give its name")
        self._check_role(context, "party", name)
        if name in self._attending:
            raise Refused(
                f"a party named {name!r} is connected already; stop the other one, or correct `party` in "
                f"this site's file"
            )
        return name

    def _check_role(self, context: Any, role: str, name: str | None = None) -> Identified | None:
        """Who calls, None without keys. Raises Refused unless the certificate is of this role, and of this
        name if one is given."""
        if self._bundle is None:
            return None
        try:
            known = peer_of(context.auth_context(), self._bundle, datetime.now(UTC))
        except PeerError as error:
            raise Refused(str(error)) from None
        if known.role != role:
            raise Refused(
                f"this is the certificate of {known.role} {known.name!r}: it may not act as {role}; "
                f"use a bundle of `fedboost keys {role}`"
            )
        if name is not None and known.name != name:
            raise Refused(f"party {name!r} dials with the certificate of party {known.name!r}")
        return known

    def _tell_of_change(self) -> None:
        """Wake the analysts that wait for parties."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _write(self, outgoing: Outgoing, context: Any, attending: "asyncio.Task[None] | None") -> None:
        try:
            while True:
                await context.write(await outgoing.get())
        except Exception as error:  # noqa: BLE001 - whatever gRPC raises, this party cannot be told anything
            self._log.info("cannot write", reason=f"{type(error).__name__}: {error}")
            if attending is not None:
                attending.cancel()

    def _handle(self, party: str, event: FromParty | Connected | Disconnected) -> None:
        if self._running is not None:
            self._guarded(lambda running: running.handle(party, event))

    def _guarded(self, step: Callable[[Running], None]) -> None:
        """Let the session that runs take a step; begin the next when it is over."""
        running = self._running
        if running is None or self._fatal:
            return
        turn = running.session.turn
        try:
            step(running)
        except CannotRecord as error:
            advice = "put that right and start the aggregator again: the session goes on where it was"
            self._fatal = f"{error}; {advice}"
            self._log.error("cannot go on", reason=self._fatal)
            self._ended.set()
            return
        if self._stopping and (running.session.turn != turn or not running.in_a_turn):
            self._turned.set()
        if running.over:
            self._running = None
            self._finished[running.analyst, running.terms.digest] = running
            while len(self._finished) > MAX_UNDELIVERED:
                self._finished.pop(next(iter(self._finished)))
            self._begin_next()

    def _begin_next(self) -> None:
        """Go on with a session of an earlier process, if there is one; else analysts that wait may begin."""
        if self._unfinished and not self._stopping:
            self._begin(self._unfinished.popleft())
        self._tell_of_change()

    def _begin(self, running: Running) -> None:
        self._running = running
        self._guarded(lambda running: running.start(set(self._attending), time.monotonic()))

    async def _tick(self) -> None:
        said = self._bundle is None
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._bundle is not None and not said and datetime.now(UTC) > self._bundle.ends:
                said = True
                self._log.error(
                    "certificate expired: whoever dials from now on is not let in; renew it, and start the "
                    "aggregator again",
                    keys=str(self._bundle.folder),
                )
            self._guarded(lambda running: running.tick(time.monotonic()))
            if self._connections is not None:
                self._connections.look(self._gate.calling, time.monotonic())

    def _send(self, outbox: Outbox) -> None:
        if self._stopping and self._folder is not None:  # the next process asks the next question
            outbox = [(party, message) for party, message in outbox if isinstance(message, Open | Bye)]
        encoded: dict[int, bytes] = {}
        for party, message in outbox:
            if party in self._attending:
                data = encoded.setdefault(id(message), b"") or encode_to_party(message)
                encoded[id(message)] = data
                if self._running is not None:
                    self._running.meter.received(party, len(data))
                self._attending[party].put(data)

    # ---- analysts -----------------------------------------------------------------------------------

    async def _answer_analyst(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """One call of an analyst: its request, then the answer as it comes."""
        request = await self._gate.only_message(requests, context, peer)
        async with aclosing(self._train(request, context)) as answer:
            async for event in answer:
                await context.write(encode_train_event(event))

    async def _train(self, request: bytes, context: Any) -> AsyncGenerator[TrainEvent, None]:
        """One analyst, from terms to model. Who comes again with the terms of a session follows that one."""
        try:
            _check_version(context, "analyst")
            caller = self._check_role(context, "analyst")
            loop = asyncio.get_running_loop()
            terms, wish, signed = await loop.run_in_executor(self._reader, self._read_request, request)
            if wish in (Wish.FOLLOW, Wish.RETURN):
                self._check_request(terms, signed, caller.name if caller else "")
            program = self._program(terms)
            if self._waiting >= MAX_WAITING:
                raise Refused(f"{MAX_WAITING} analysts are waiting already; try again later")
        except FedboostError as error:
            self._log.info("analyst refused", reason=quoted(str(error)))
            await refuse(context, error)
        analyst = f"{caller.name}#{key_fingerprint(caller.public_key)}" if caller else ""
        running = self._known(analyst, terms)
        if wish is Wish.FINISH:
            if running is not None and not running.over:
                running.finish()
            return
        if wish is Wish.STOP:
            if running is not None and running is self._running:
                self._guarded(lambda running: running.fail("the analyst stopped it"))
            elif running is not None:
                running.forget()
                if running in self._unfinished:
                    self._unfinished.remove(running)
            self._finished.pop((analyst, terms.digest), None)
            return
        if running is None or (running.failed and wish is not Wish.RETURN):
            self._waiting += 1
            try:
                async for parties in self._until_ready(terms):
                    yield Waiting(parties)
            finally:
                self._waiting -= 1
            try:
                running = self._new(terms, program, analyst, signed)
            except Refused as error:
                await refuse(context, error)
            self._begin(running)
        async for event in running.follow():
            yield event
        if running.failed:
            self._finished.pop((analyst, terms.digest), None)
            running.forget()  # a model is kept until the analyst says that it has arrived

    def _read_request(self, request: bytes) -> tuple[Terms, Wish, Request | None]:
        """What an analyst wants, as `decode_train_request` has it. Runs in the reader's thread."""
        terms, wish, signed = decode_train_request(request)
        if not terms.parties:
            raise ConfigError('the terms name no parties; add parties = ["north", "south"] to them')
        memory.check_terms(terms, self._memory)
        _ = terms.digest  # computed once, and here: with it the canonical text that every party is sent
        return terms, wish, signed

    def _known(self, analyst: str, terms: Terms) -> Running | None:
        """The session of this analyst under these terms, if it runs, waits, or nobody has its model yet.
        Another analyst's is none of theirs, whatever name they go by: the key that began it counts."""
        sessions = [self._running, *self._unfinished, *self._finished.values()]
        wanted = analyst, terms.digest
        return next((s for s in sessions if s and (s.analyst, s.terms.digest) == wanted), None)

    def _program(self, terms: Terms) -> Program:
        return memory.within(program_of(terms, self._config.programs), self._memory)

    def _check_request(self, terms: Terms, request: Request | None, analyst: str) -> None:
        """Raise Refused unless the analyst who calls signed this request for these terms: parties refuse
        others. Without keys nothing is signed."""
        trust = self._trust()
        if trust is None:
            return
        try:
            signer = "" if request is None else key_exchange.check_request(trust, terms, request)
        except PeerError as error:
            raise Refused(str(error)) from None
        if signer != analyst:
            raise Refused(f"the terms are not signed by analyst {analyst!r}, who submits them")

    def _new(self, terms: Terms, program: Program, analyst: str, request: Request | None) -> Running:
        name = f"session-{secrets.token_hex(8)}"
        journal: Journal | None = None
        if self._folder is not None:
            try:
                journal = self._folder.begin(name)
                journal.append(Begun(name, terms, analyst, request))
            except (CannotRecord, ConfigError) as error:
                self._log.error("cannot begin a session", reason=str(error))
                raise Refused(
                    "the aggregator cannot write to its state folder: tell whoever runs it"
                ) from None
        session = AggregatorSession(
            name,
            terms,
            program,
            NOTHING_YET,
            journal.append if journal else lambda record: None,
            trust=self._trust(),
            draw=secrets.token_bytes,
            request=request,
        )
        return Running(session, analyst, journal, self._send, self._log)

    def _trust(self) -> Trust | None:
        """By what greetings and signatures are checked, where there are any."""
        bundle = self._bundle
        return None if bundle is None else Trust(bundle.roots, bundle.denied, _clock)

    def _resumed(self, journal: Journal) -> Running:
        """The session of a journal. ConfigError that names the file."""
        begun, *past = journal.past
        try:
            if not isinstance(begun, Begun):
                raise ConfigError("it does not begin with its terms")
            program = self._program(begun.terms)
            if not begun.terms.parties:
                raise ConfigError("its terms name no parties")
            session = AggregatorSession(
                begun.session,
                begun.terms,
                program,
                NOTHING_YET,
                journal.append,
                past,
                self._trust(),
                secrets.token_bytes,
                request=begun.request,
            )
        except FedboostError as error:
            raise ConfigError(f"{journal.path}: {error}; move the file away to go on without it") from None
        except Exception as error:  # noqa: BLE001 - sums that cannot be may do anything to a program
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ConfigError(
                f"{journal.path}: the program fails over these sums: {what}; move the file away to go on "
                f"without it"
            ) from None
        return Running(session, begun.analyst, journal, self._send, self._log)

    async def _until_ready(self, terms: Terms) -> AsyncIterator[tuple[str, ...]]:
        """The parties that are not here yet (none: another session runs), whenever that changes, until a
        session under these terms may begin."""
        before: tuple[str, ...] | None = None
        while True:
            missing = tuple(p for p in terms.parties if p not in self._attending)
            if not missing and self._running is None and not self._stopping:
                return
            changed = self._changed
            if missing != before:
                self._log.info("waiting", parties=list(missing), another_session=self._running is not None)
                yield missing
            before = missing
            await changed.wait()


def _check_version(context: Any, who: str) -> None:
    version = dict(context.invocation_metadata() or ()).get(channel.VERSION_KEY)
    if version != str(WIRE_VERSION):
        raise ConfigError(
            f"this aggregator speaks wire version {WIRE_VERSION}, the {who} "
            f"{version or 'names none'}; install the same version of fedboost"
        )


def _clock() -> datetime:
    return datetime.now(UTC)
