"""The analyst's side of an aggregator: requests to train, the wait for parties, the stream of events.

Promises: an analyst that comes again with the terms of a session of their own follows that session.
Refuses: terms without parties or with an unknown program; requests that the analyst who calls has not signed
(Refused).
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn

from fedboost.boosting import memory
from fedboost.errors import ConfigError, FedboostError, Refused, quoted
from fedboost.privacy.identity.certificates import key_fingerprint
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Program
from fedboost.protocol.messages import Request
from fedboost.runtime.aggregator.active_session import ActiveSession
from fedboost.runtime.aggregator.admission import Admission, refuse
from fedboost.runtime.aggregator.callers import (
    caller_of,
    check_asker,
    check_role,
    check_signed,
    check_unread,
    check_version,
    plain_end,
    software_of,
)
from fedboost.runtime.aggregator.connected import Arrival, ConnectedParties
from fedboost.runtime.aggregator.limits import Peer
from fedboost.runtime.aggregator.reading import Reader
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.aggregator.sessions import Sessions
from fedboost.runtime.net.keys import Bundle
from fedboost.terms.reading import digest_of
from fedboost.terms.terms import Terms
from fedboost.wire.codec import terms_of
from fedboost.wire.services import TrainCommand, TrainEvent, Waiting, decode_train_request, encode_train_event

MAX_WAITING = 16
"""Analysts that may wait at a time, for parties or for another session to end."""
MAX_WAITING_OF_ANALYST = 4
"""Sessions of one of them, by name, that may."""


@dataclass(frozen=True)
class Waiter:
    """An analyst who waits for a session to begin. analyst: '' without keys; since: seconds since 1970."""

    analyst: str
    terms: Terms
    since: int


def named(analyst: str) -> dict[str, str]:
    """The analyst of an event in the log; nothing where analysts have no keys."""
    return {"analyst": analyst} if analyst else {}


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
        self.sessions = sessions
        self.connected = connected
        self._log = log
        self.waiters: list[Waiter] = []
        self.here: dict[int, tuple[str, Arrival]] = {}
        """The analysts that follow a session or wait for one, by the number of their call."""
        self.on_stop: Callable[[str, str], None] = lambda analyst, digest: None
        """Called when an analyst wants no session under the terms with this digest any more."""
        self._calls = 0
        self.reader = Reader()

    async def answer(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Answer one call of an analyst: its request, then the events as they come."""
        request = await self._admission.only_message(requests, context, peer)
        self._calls += 1
        call = self._calls
        try:
            async with aclosing(self._train(request, context, peer, call)) as events:
                async for event in events:
                    await context.write(encode_train_event(event))
        finally:
            self.here.pop(call, None)

    def close(self) -> None:
        """Read no more requests."""
        self.reader.close()

    async def _train(
        self, request: bytes, context: Any, peer: Peer, call: int
    ) -> AsyncGenerator[TrainEvent, None]:
        """Events of one analyst's session, from terms to model."""
        name = ""
        try:
            check_version(context, "analyst")
            caller = caller_of(self._bundle, context)
            name = caller.name if caller else ""
            if caller is None or caller.role != key_exchange.PARTY:  # before its terms are read
                check_role(self._bundle, context, key_exchange.ANALYST)
            text, command, signed = decode_train_request(request)
            analyst = f"{caller.name}#{key_fingerprint(caller.public_key)}" if caller else ""
            if command in (TrainCommand.STOP, TrainCommand.FINISH):
                self._end(analyst, digest_of(text), command)
                return
            terms = await self.read(peer.name, text, signed, name)
            check_asker(self._bundle, context, terms)
            check_signed(self.sessions.trust, terms, signed, name, key_exchange.SESSION)
            program = self.sessions.program(terms)
        except FedboostError as error:
            await self._refuse(error, context, peer)
        session = self.sessions.find(analyst, terms.digest)
        self.here[call] = name, Arrival(int(time.time()), software_of(context))
        if session is None or (session.failed and command is not TrainCommand.RETURN):
            try:
                async with aclosing(self.until_ready(terms, analyst)) as missing:
                    async for parties in missing:
                        yield Waiting(parties, self.connected.absent(parties))
            except Refused as error:
                await self._refuse(error, context, peer)
            session = self.begun(analyst, terms) or await self._begin(
                terms, program, analyst, signed, context
            )
        async for event in session.follow():
            if isinstance(event, Waiting):
                event = Waiting(event.parties, self.connected.absent(event.parties))
            yield event
        if session.failed:
            self.sessions.delivered(analyst, terms.digest)
            session.forget()  # a model is kept until the analyst says that it has arrived

    async def _refuse(self, error: FedboostError, context: Any, peer: Peer) -> NoReturn:
        """End a call with an error that is noted in the log."""
        address = plain_end(context)
        self._refusals.note("analyst refused", peer.name, quoted(str(error)), address=address)
        await refuse(context, error)

    async def _begin(
        self, terms: Terms, program: Program, analyst: str, signed: Request | None, context: Any
    ) -> ActiveSession:
        """Begin a session; the call ends, refused, if it cannot be recorded."""
        try:
            session = self.sessions.new(terms, program, analyst, signed)
        except Refused as error:
            await refuse(context, error)
        self.sessions.begin(session)
        return session

    def begun(self, analyst: str, terms: Terms) -> ActiveSession | None:
        """The session of this analyst under these terms that runs, waits, or has a model."""
        session = self.sessions.find(analyst, terms.digest)
        return None if session is None or session.failed else session

    def is_ready(self, terms: Terms, analyst: str) -> bool:
        """True if a session under these terms need not be waited for: it may begin, or was begun."""
        here = all(party in self.connected for party in terms.parties)
        return (here and self.sessions.may_begin) or self.begun(analyst, terms) is not None

    async def until_ready(self, terms: Terms, analyst: str) -> AsyncGenerator[tuple[str, ...], None]:
        """The parties that are not connected yet (none: another session is active), at each change, until a
        session under these terms may begin, or was begun by another call. analyst: with the key, as sessions
        know it. Refused if it has to wait, and too many do."""
        name = analyst.rpartition("#")[0]
        if not self.is_ready(terms, analyst):
            if name and sum(waiter.analyst == name for waiter in self.waiters) >= MAX_WAITING_OF_ANALYST:
                ended = "Ctrl-C in `fedboost train` ends the wait of one"
                raise Refused(f"{MAX_WAITING_OF_ANALYST} sessions of this analyst wait already; {ended}")
            if len(self.waiters) >= MAX_WAITING:
                raise Refused(f"{MAX_WAITING} analysts are waiting already; try again later")
        before: tuple[str, ...] | None = None
        waiter = Waiter(name, terms, int(time.time()))
        self.waiters.append(waiter)
        self.sessions.metrics.waiting(len(self.waiters))
        try:
            while not self.is_ready(terms, analyst):
                missing = tuple(party for party in terms.parties if party not in self.connected)
                changed = self.connected.changed
                if missing != before:
                    self._log_waiting(name, missing)
                    yield missing
                before = missing
                await changed.wait()
        finally:
            self.waiters.remove(waiter)
            self.sessions.metrics.waiting(len(self.waiters))

    def _log_waiting(self, analyst: str, missing: tuple[str, ...]) -> None:
        never = [party for party, seen in self.connected.absent(missing).items() if not seen]
        self._log.info(
            "waiting",
            **named(analyst),
            parties=list(missing),
            **({"never_connected": never} if never else {}),
            another_session=self.sessions.active is not None,
        )

    def _end(self, analyst: str, digest: str, command: TrainCommand) -> None:
        """Stop the analyst's session under the terms with this digest, or finish it with its round."""
        session = self.sessions.find(analyst, digest)
        if command is TrainCommand.FINISH:
            if session is not None and not session.over:
                session.finish()
            return
        self.on_stop(analyst, digest)
        if session is not None:
            self.sessions.stop_session(session)
        self.sessions.delivered(analyst, digest)

    async def read(self, caller: str, text: str, signed: Request | None, name: str) -> Terms:
        """The terms of a session, read once it is known that the caller of this name signed this text.
        FedboostError."""
        check_unread(self.sessions.trust, text, signed, name, key_exchange.SESSION)
        return await self.reader.run(caller, len(text), lambda: self._read(text))

    def _read(self, text: str) -> Terms:
        """The terms, unless no session can have them here. Takes its time over large ones."""
        terms = terms_of(text)
        if not terms.parties:
            raise ConfigError('the terms name no parties; add parties = ["north", "south"] to them')
        memory.check_terms(terms, self.sessions.memory)
        _ = terms.digest  # computed once, and here: with it the canonical text that every party is sent
        return terms
