"""The aggregator on the network: parties attend, analysts submit terms, one session at a time.

Promises: parties dial in, it dials nobody; a connection that breaks the protocol is closed and named, and
the process goes on; a lost party is reported to the session at once.
Refuses: a party without a name or with one that is taken, terms without parties or with an unknown program.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import grpc

from fedboost.errors import ConfigError, FedboostError, PeerError, Refused
from fedboost.protocol.aggregator_session import AggregatorSession, Gone, Outbox
from fedboost.protocol.messages import FromParty
from fedboost.protocol.terms import Terms
from fedboost.shell import channel
from fedboost.shell.config import AggregatorConfig
from fedboost.shell.programs import load_program
from fedboost.shell.simulation import finish
from fedboost.shell.telemetry import Meter
from fedboost.wire import codec
from fedboost.wire.codec import MODEL_PART, Failed, ModelPart, RoundDone, TrainEvent, Waiting

Outgoing = asyncio.Queue[bytes]


class AggregatorServer:
    """Serves until stopped. `log` is a structlog logger."""

    def __init__(self, config: AggregatorConfig, log: Any) -> None:
        self.address = ""
        self._config = config
        self._log = log
        self._attending: dict[str, Outgoing] = {}
        self._changed = asyncio.Condition()
        self._turn_of_analysts = asyncio.Lock()
        self._session: AggregatorSession | None = None
        self._meter = Meter(())
        self._server = grpc.aio.server(options=channel.SERVER_OPTIONS)

    async def start(self) -> None:
        """Bind the port; afterwards `address` is where parties dial. ConfigError if it cannot be bound."""
        for program in self._config.programs:
            load_program(program, self._config.programs)
        handlers = {
            "Attend": grpc.stream_stream_rpc_method_handler(self._attend),
            "Train": grpc.unary_stream_rpc_method_handler(self._train),
        }
        service = grpc.method_handlers_generic_handler(channel.SERVICE, handlers)
        self._server.add_generic_rpc_handlers((service,))
        host = self._config.listen.rpartition(":")[0]
        try:
            port = self._server.add_insecure_port(self._config.listen)
        except RuntimeError:
            raise ConfigError(
                f"cannot listen on {self._config.listen}: the port is taken, or the address is another "
                f"machine's"
            ) from None
        await self._server.start()
        self.address = f"{host}:{port}"

    async def serve(self) -> None:
        """Until `stop`."""
        await self._server.wait_for_termination()

    async def stop(self) -> None:
        """Say goodbye to everyone and close the port."""
        session = self._session
        if session is not None:
            for party in session.terms.parties:
                self._handle(party, Gone("the aggregator is being stopped"))
            await asyncio.sleep(0.1)  # lets the goodbyes out
        await self._server.stop(grace=1.0)

    # ---- parties ------------------------------------------------------------------------------------

    async def _attend(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """One party, from its arrival to its departure."""
        try:
            name = self._name_of(context)
        except FedboostError as error:
            await context.abort(channel.status_of(error), str(error))
        outgoing: Outgoing = asyncio.Queue()
        await self._arrive(name, outgoing)
        writer = asyncio.create_task(self._write(outgoing, context))
        reason = "its connection closed"
        try:
            async for data in requests:
                if self._session is not None:
                    self._meter.sent(name, len(data))
                self._handle(name, codec.decode_from_party(data))
        except PeerError as error:
            reason = f"it broke the protocol: {error}"
            await context.abort(channel.status_of(error), str(error))
        except grpc.RpcError:
            reason = "its connection broke"
        finally:
            writer.cancel()
            self._attending.pop(name, None)
            self._log.info("party gone", party=name, reason=reason)
            self._handle(name, Gone(reason))

    def _name_of(self, context: Any) -> str:
        metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        version = metadata.get(channel.VERSION_KEY)
        if version != str(codec.WIRE_VERSION):
            raise ConfigError(
                f"this aggregator speaks wire version {codec.WIRE_VERSION}, the party {version}; "
                f"install the same version of fedboost"
            )
        try:
            name = bytes(metadata.get(channel.PARTY_KEY, b"")).decode()
        except UnicodeDecodeError:
            name = ""
        if not 0 < len(name) <= 256:
            raise ConfigError("a party must give its name")
        if name in self._attending:
            raise Refused(
                f"a party named {name!r} is connected already; stop the other one, or correct `party` in "
                f"this site's file"
            )
        return name

    async def _arrive(self, name: str, outgoing: Outgoing) -> None:
        self._attending[name] = outgoing
        self._log.info("party here", party=name)
        async with self._changed:
            self._changed.notify_all()

    async def _write(self, outgoing: Outgoing, context: Any) -> None:
        while True:
            await context.write(await outgoing.get())

    def _handle(self, party: str, event: FromParty | Gone) -> None:
        session = self._session
        if session is None or party not in session.terms.parties:
            return
        self._send(session.handle(party, event))
        for row in self._meter.rows(session.history):
            self._events.put_nowait(self._round(row))
        if session.state in ("done", "failed"):
            self._over.set()

    def _send(self, outbox: Outbox) -> None:
        encoded: dict[int, bytes] = {}
        for party, message in outbox:
            if party in self._attending:
                data = encoded.setdefault(id(message), b"") or codec.encode_to_party(message)
                encoded[id(message)] = data
                self._meter.received(party, len(data))
                self._attending[party].put_nowait(data)

    # ---- analysts -----------------------------------------------------------------------------------

    async def _train(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """One analyst, from terms to model."""
        try:
            terms = codec.decode_train_request(request)
            if not terms.parties:
                raise ConfigError('the terms name no parties; add parties = ["north", "south"] to them')
            program = load_program(terms.program, self._config.programs)
        except FedboostError as error:
            await context.abort(channel.status_of(error), str(error))
        if self._turn_of_analysts.locked():
            yield codec.encode_train_event(Waiting(()))
        async with self._turn_of_analysts:
            async for parties in self._missing(terms):
                yield codec.encode_train_event(Waiting(parties))
            session = AggregatorSession(f"session-{secrets.token_hex(4)}", terms, program)
            async for event in self._run(session):
                yield codec.encode_train_event(event)

    async def _missing(self, terms: Terms) -> AsyncIterator[tuple[str, ...]]:
        """The parties that are not here yet, whenever that changes, until all are."""
        before: tuple[str, ...] = ()
        async with self._changed:
            while missing := tuple(p for p in terms.parties if p not in self._attending):
                if missing != before:
                    yield missing
                before = missing
                await self._changed.wait()

    async def _run(self, session: AggregatorSession) -> AsyncIterator[TrainEvent]:
        """A session from first to last: its rounds as they come, then its model or its failure."""
        self._session, self._meter = session, Meter(session.terms.parties)
        self._events: asyncio.Queue[TrainEvent] = asyncio.Queue()
        self._over = asyncio.Event()
        log = self._log.bind(session=session.name)
        log.info("session begins", parties=list(session.terms.parties), terms=session.terms.digest[:12])
        self._send(session.start())
        try:
            while True:
                over = asyncio.ensure_future(self._over.wait())
                event = asyncio.ensure_future(self._events.get())
                await asyncio.wait((over, event), return_when=asyncio.FIRST_COMPLETED)
                over.cancel()
                if event.done():
                    yield event.result()
                else:
                    event.cancel()
                    break
            if session.error is not None:
                log.info("session failed", reason=str(session.error))
                yield Failed(str(session.error))
                return
            data = finish(session, self._meter).model.to_bytes()
            log.info("session done", rounds=len(session.history), seconds=round(self._meter.seconds, 2))
            for start in range(0, len(data), MODEL_PART):
                last = start + MODEL_PART >= len(data)
                traffic = self._meter.traffic if last else {}
                yield ModelPart(data[start : start + MODEL_PART], last, traffic)
        finally:
            if session.state not in ("done", "failed"):
                self._send(session.handle(session.terms.parties[0], Gone("the analyst left")))
            self._session = None

    def _round(self, row: dict[str, float]) -> RoundDone:
        metrics = {k: v for k, v in row.items() if k not in ("round", "seconds", "bytes")}
        return RoundDone(int(row["round"]), metrics, self._meter.seconds, dict(self._meter.traffic))
