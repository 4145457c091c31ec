"""The analyst's side of an aggregator: requests to train, the wait for parties, the stream of events.

Promises: an analyst that comes again with the terms of a session of their own follows that session.
Refuses: terms without parties or with an unknown program; requests that the analyst who calls has not signed
(Refused).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

from fedboost.boosting import memory
from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, quoted
from fedboost.privacy.identity.certificates import key_fingerprint
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Program
from fedboost.protocol.messages import Request
from fedboost.runtime.aggregator.active_session import ActiveSession
from fedboost.runtime.aggregator.admission import Admission, refuse
from fedboost.runtime.aggregator.callers import check_role, check_version, plain_end
from fedboost.runtime.aggregator.connected import ConnectedParties
from fedboost.runtime.aggregator.limits import Peer
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.net.keys import Bundle
from fedboost.terms.terms import Terms
from fedboost.wire.training import (
    TrainCommand,
    TrainEvent,
    Waiting,
    decode_train_request,
    encode_train_event,
)

MAX_WAITING = 16
"""Analysts that may wait at a time, for parties or for another session to end."""


class Analysts:
    """The method Train of the service."""

    def __init__(
        self,
        bundle: Bundle | None,
        admission: Admission,
        refusals: Refusals,
        sessions: Sessions,
        connected: ConnectedParties,
        log: Any,
    ) -> None:
        self._bundle = bundle
        self._admission = admission
        self._refusals = refusals
        self._sessions = sessions
        self._connected = connected
        self._log = log
        self.waiting = 0
        """Analysts that wait for a session to begin."""
        self._reader = ThreadPoolExecutor(1, "read-terms")
        """Terms may have megabytes: they are read beside the event loop, one request at a time."""

    async def answer(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Answer one call of an analyst: its request, then the events as they come."""
        request = await self._admission.only_message(requests, context, peer)
        async with aclosing(self._train(request, context, peer)) as events:
            async for event in events:
                await context.write(encode_train_event(event))

    def close(self) -> None:
        """Read no more requests."""
        self._reader.shutdown(wait=False)

    async def _train(self, request: bytes, context: Any, peer: Peer) -> AsyncGenerator[TrainEvent, None]:
        """Events of one analyst's session, from terms to model."""
        try:
            check_version(context, "analyst")
            caller = check_role(self._bundle, context, "analyst")
            loop = asyncio.get_running_loop()
            terms, command, signed = await loop.run_in_executor(self._reader, self._read_request, request)
            if command in (TrainCommand.FOLLOW, TrainCommand.RETURN):
                self._check_request(terms, signed, caller.name if caller else "")
            program = self._sessions.program(terms)
            if self.waiting >= MAX_WAITING:
                raise Refused(f"{MAX_WAITING} analysts are waiting already; try again later")
        except FedboostError as error:
            address = plain_end(context)
            self._refusals.note("analyst refused", peer.name, quoted(str(error)), address=address)
            await refuse(context, error)
        analyst = f"{caller.name}#{key_fingerprint(caller.public_key)}" if caller else ""
        session = self._sessions.find(analyst, terms)
        if command is TrainCommand.FINISH:
            if session is not None and not session.over:
                session.finish()
            return
        if command is TrainCommand.STOP:
            if session is not None:
                self._sessions.stop_session(session)
            self._sessions.delivered(analyst, terms)
            return
        if session is None or (session.failed and command is not TrainCommand.RETURN):
            async with aclosing(self._until_ready(terms)) as missing:
                async for parties in missing:
                    yield Waiting(parties)
            session = await self._begin(terms, program, analyst, signed, context)
        async for event in session.follow():
            yield event
        if session.failed:
            self._sessions.delivered(analyst, terms)
            session.forget()  # a model is kept until the analyst says that it has arrived

    async def _begin(
        self, terms: Terms, program: Program, analyst: str, signed: Request | None, context: Any
    ) -> ActiveSession:
        """Begin a session; the call ends, refused, if it cannot be recorded."""
        try:
            session = self._sessions.new(terms, program, analyst, signed)
        except Refused as error:
            await refuse(context, error)
        self._sessions.begin(session)
        return session

    async def _until_ready(self, terms: Terms) -> AsyncGenerator[tuple[str, ...], None]:
        """The parties that are not connected yet (none: another session is active), at each change, until a
        session under these terms may begin."""
        before: tuple[str, ...] | None = None
        self._wait(1)
        try:
            while True:
                missing = tuple(party for party in terms.parties if party not in self._connected)
                if not missing and self._sessions.may_begin:
                    return
                changed = self._connected.changed
                if missing != before:
                    another = self._sessions.active is not None
                    self._log.info("waiting", parties=list(missing), another_session=another)
                    yield missing
                before = missing
                await changed.wait()
        finally:
            self._wait(-1)

    def _wait(self, more: int) -> None:
        self.waiting += more
        self._sessions.metrics.waiting(self.waiting)

    def _read_request(self, request: bytes) -> tuple[Terms, TrainCommand, Request | None]:
        """The terms, command and signature of an analyst's request. Runs in the reader's thread."""
        terms, command, signed = decode_train_request(request)
        if not terms.parties:
            raise ConfigError('the terms name no parties; add parties = ["north", "south"] to them')
        memory.check_terms(terms, self._sessions.memory)
        _ = terms.digest  # computed once, and here: with it the canonical text that every party is sent
        return terms, command, signed

    def _check_request(self, terms: Terms, request: Request | None, analyst: str) -> None:
        """Raise Refused unless the analyst who calls signed this request for these terms: parties refuse
        others. Without keys nothing is signed."""
        trust = self._sessions.trust
        if trust is None:
            return
        try:
            signer = "" if request is None else key_exchange.check_request(trust, terms, request)
        except PeerError as error:
            raise Refused(str(error)) from None
        if signer != analyst:
            raise Refused(f"the terms are not signed by analyst {analyst!r}, who submits them")
