"""The aggregator on the network: parties attend, analysts submit terms, one session at a time.

Promises: parties dial in, it dials nobody; a connection that breaks the protocol is closed and named, and
the process goes on; a lost party is reported to the session at once.
Refuses: whoever has no certificate of the consortium, or one of another role; a party with a name that is
taken; terms without parties or with an unknown program; whatever is beyond `shell.limits`.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import grpc

from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, quoted
from fedboost.protocol import memory
from fedboost.protocol.aggregator_session import AggregatorSession, Gone, Outbox
from fedboost.protocol.messages import Assist, Attest, Bye, FromParty, Join, Report
from fedboost.protocol.terms import Terms
from fedboost.shell import channel, health, limits
from fedboost.shell.config import AggregatorConfig
from fedboost.shell.gate import Gate, refuse
from fedboost.shell.health import Health
from fedboost.shell.keys import Bundle, peer_of, server_credentials
from fedboost.shell.limits import Outgoing, Peer
from fedboost.shell.programs import load_program
from fedboost.shell.simulation import finish
from fedboost.shell.telemetry import Meter
from fedboost.wire import codec
from fedboost.wire.codec import MODEL_PART, Failed, ModelPart, RoundDone, TrainEvent, Waiting

MAX_WAITING = 16
"""Analysts that may wait at a time, for parties or for another session to end."""


class AggregatorServer:
    """Serves until stopped. `log` is a structlog logger; without a bundle nothing is encrypted, and parties
    are known by the names they give."""

    def __init__(self, config: AggregatorConfig, log: Any, bundle: Bundle | None) -> None:
        self.address = ""
        self._config = config
        self._log = log
        self._bundle = bundle
        self._attending: dict[str, Outgoing] = {}
        self._changed = asyncio.Event()
        self._busy = False
        self._waiting = 0
        self._session: AggregatorSession | None = None
        self._joined: set[str] = set()
        self._meter = Meter(())
        self._events: asyncio.Queue[TrainEvent | None] = asyncio.Queue()
        self._gate = Gate(bundle, log)
        self._health = Health(self._gate)
        self._server = grpc.aio.server(
            options=channel.SERVER_OPTIONS, maximum_concurrent_rpcs=limits.OPEN_CALLS
        )

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
        await self._server.start()
        self._health.serving = True
        self.address = f"{host}:{port}"

    async def serve(self) -> None:
        """Until `stop`."""
        await self._server.wait_for_termination()

    async def stop(self) -> None:
        """Say goodbye to everyone and close the port."""
        self._health.serving = False
        if self._session is not None:
            self._fail(self._session, "the aggregator was stopped")
            await asyncio.sleep(0.1)  # lets the goodbyes out
        await self._server.stop(grace=1.0)

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
            await context.send_initial_metadata([(channel.VERSION_KEY, str(codec.WIRE_VERSION))])
            writer = asyncio.create_task(self._write(outgoing, context, task))
            self._tell_of_change()
            async for data in requests:
                if self._session is not None and name in self._session.terms.parties:
                    self._meter.sent(name, len(data))
                message = codec.decode_from_party(data)
                spare = limits.LAST_WORDS if self._awaits(name, message) else spare - 1
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
            self._handle(name, Gone(reason))
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

    def _check_role(self, context: Any, role: str, name: str | None = None) -> None:
        """Raise Refused unless the caller's certificate is of this role, and of this name if one is given."""
        if self._bundle is None:
            return
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

    def _awaits(self, party: str, message: FromParty) -> bool:
        """Whether somebody waits for this message of this party."""
        session = self._session
        if session is None or party not in session.awaited:
            return False
        return party in self._joined or isinstance(message, Join)

    def _handle(self, party: str, event: FromParty | Gone) -> None:
        session = self._session
        if session is None or party not in session.terms.parties:
            return
        match event:
            case Join(name) if name == session.name:
                self._joined.add(party)
            case Join() | Report() | Assist() | Attest() if party not in self._joined:
                return  # its last words in the session before this one
        try:
            outbox = session.handle(party, event)
            for row in self._meter.rows(session.history):
                self._events.put_nowait(self._round(row))
            self._send(outbox)
        except Exception as error:  # noqa: BLE001 - a program's defect ends its session, nothing else
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            self._fail(session, f"program {session.terms.program!r} failed: {what}")
            return
        if session.state == "done":
            self._end(None)
        elif session.state == "failed":
            self._end(Failed(str(session.error)))

    def _fail(self, session: AggregatorSession, reason: str) -> None:
        """End a session for a reason that is no party's."""
        self._send([(party, Bye(reason)) for party in session.terms.parties])
        self._end(Failed(reason))

    def _end(self, last: Failed | None) -> None:
        """The session is over: without `last` there is a model."""
        self._session = None
        self._events.put_nowait(last)

    def _send(self, outbox: Outbox) -> None:
        encoded: dict[int, bytes] = {}
        for party, message in outbox:
            if party in self._attending:
                data = encoded.setdefault(id(message), b"") or codec.encode_to_party(message)
                encoded[id(message)] = data
                self._meter.received(party, len(data))
                self._attending[party].put(data)

    # ---- analysts -----------------------------------------------------------------------------------

    async def _answer_analyst(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """One call of an analyst: its request, then the answer as it comes."""
        request = await self._gate.only_message(requests, context, peer)
        async with aclosing(self._train(request, context)) as answer:
            async for event in answer:
                await context.write(event)

    async def _train(self, request: bytes, context: Any) -> AsyncGenerator[bytes, None]:
        """One analyst, from terms to model."""
        try:
            _check_version(context, "analyst")
            self._check_role(context, "analyst")
            terms = codec.decode_train_request(request)
            if not terms.parties:
                raise ConfigError('the terms name no parties; add parties = ["north", "south"] to them')
            allowed = int(self._config.memory * memory.GIB)
            memory.check_terms(terms, allowed)
            program = memory.within(load_program(terms.program, self._config.programs), allowed)
            if self._waiting >= MAX_WAITING:
                raise Refused(f"{MAX_WAITING} analysts are waiting already; try again later")
        except FedboostError as error:
            self._log.info("analyst refused", reason=quoted(str(error)))
            await refuse(context, error)
        self._waiting += 1
        try:
            async for parties in self._until_ready(terms):
                yield codec.encode_train_event(Waiting(parties))
        finally:
            self._waiting -= 1
        try:
            session = AggregatorSession(f"session-{secrets.token_hex(4)}", terms, program)
            async with aclosing(self._run(session)) as events:
                async for event in events:
                    yield codec.encode_train_event(event)
        finally:
            self._busy = False
            self._tell_of_change()

    async def _until_ready(self, terms: Terms) -> AsyncIterator[tuple[str, ...]]:
        """The parties that are not here yet (none: another session runs), whenever that changes, until this
        session may begin; then no other begins before it has ended."""
        before: tuple[str, ...] | None = None
        while (missing := tuple(p for p in terms.parties if p not in self._attending)) or self._busy:
            changed = self._changed
            if missing != before:
                self._log.info("waiting", parties=list(missing), another_session=self._busy)
                yield missing
            before = missing
            await changed.wait()
        self._busy = True

    async def _run(self, session: AggregatorSession) -> AsyncGenerator[TrainEvent, None]:
        """A session from first to last: its rounds as they come, then its model or its failure."""
        self._session, self._meter = session, Meter(session.terms.parties)
        self._joined, self._events = set(), asyncio.Queue()
        log = self._log.bind(session=session.name)
        log.info("session begins", parties=list(session.terms.parties), terms=session.terms.digest[:12])
        self._send(session.start())
        try:
            while (event := await self._events.get()) is not None:
                if isinstance(event, Failed):
                    log.info("session failed", reason=event.reason)
                yield event
                if isinstance(event, Failed):
                    return
            try:
                data = finish(session, self._meter).model.to_bytes()
            except FedboostError as error:
                log.info("session failed", reason=str(error))
                yield Failed(str(error))
                return
            log.info("session done", rounds=len(session.history), seconds=round(self._meter.seconds, 2))
            for start in range(0, len(data), MODEL_PART):
                last = start + MODEL_PART >= len(data)
                traffic = self._meter.traffic if last else {}
                yield ModelPart(data[start : start + MODEL_PART], last, traffic)
        finally:
            if self._session is session:
                log.info("session failed", reason="the analyst left")
                self._fail(session, "the analyst left")

    def _round(self, row: dict[str, float]) -> RoundDone:
        metrics = {k: v for k, v in row.items() if k not in ("round", "seconds", "bytes")}
        return RoundDone(int(row["round"]), metrics, self._meter.seconds, dict(self._meter.traffic))


def _check_version(context: Any, who: str) -> None:
    version = dict(context.invocation_metadata() or ()).get(channel.VERSION_KEY)
    if version != str(codec.WIRE_VERSION):
        raise ConfigError(
            f"this aggregator speaks wire version {codec.WIRE_VERSION}, the {who} "
            f"{version or 'names none'}; install the same version of fedboost"
        )
