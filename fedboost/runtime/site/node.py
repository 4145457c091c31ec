"""A party on the network: dials the aggregator, answers what its session lets it answer.

Promises: computing never blocks the connection (it runs in a thread of its own); an aggregator that is not
there is waited for, and dialled again when it was lost; a refusal is in the audit log before it leaves, in
the words that do.
Refuses: an aggregator that does not let this party in, because its name is taken, say, or that is none (the
error ends the process; once it has been let in, it dials again whatever happens).
"""

import asyncio
import contextlib
import random
import threading
from datetime import UTC, datetime
from os import urandom
from typing import Any

import grpc

from fedboost.errors import ConfigError, DurabilityError, PeerError, Refused, SchemaMismatch, quoted
from fedboost.horizontal.holder import holder_of
from fedboost.horizontal.shard import Shard
from fedboost.people.text import shown
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.messages import FromParty, Leave, Offer, SessionEnded, ToParty
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Site
from fedboost.protocol.site_memory import Limits, SessionOffer
from fedboost.runtime.data.features import undeclared
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.data.table import site_table
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle, read_again
from fedboost.runtime.net.tls import TlsFault, tls_fault
from fedboost.runtime.site.approval import nothing_approved, policy_for
from fedboost.runtime.site.audit import EXPIRED, STOPPED
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.memory_start import open_log, open_memory
from fedboost.runtime.site.terminal import terminal_ask
from fedboost.runtime.telemetry import AT_HAND
from fedboost.terms.terms import Terms
from fedboost.wire.bounds import WIRE_VERSION
from fedboost.wire.messages import decode_to_party, encode_from_party

FIRST_RETRY, LAST_RETRY = 0.2, 5.0
"""Seconds between two tries to reach the aggregator, doubling from the first to the last."""
SAY_SO = 1.0
"""Seconds of waiting before the log says that the aggregator is waited for."""
MAX_REFUSALS = 60
"""Refusals in a row, a second each, before a party that had been let in gives up."""
REDIAL = 1.0
"""Seconds between the loss of an aggregator and the next try to reach it, at most."""
MAX_UNREAD_MESSAGES = 16
"""Messages of the aggregator that wait to be handled, before its connection is read no further."""
FREE_REFUSALS = 20
"""Sessions that a party leaves one after the other before it takes its time with each."""
MAX_PAUSE_SECONDS = 60.0
"""Seconds before it hears the next message then; the first time a tenth, then twice as long each time."""
MAX_MISFITS = 10
"""Offers that this party's rows did not fit, before it refuses all others: each told one bit about the rows,
and a reader of the site's log knows by then what does not fit."""
LARGE_MESSAGE = 1 << 16
"""Bytes above which a message of the aggregator is decoded in a thread: a smaller one takes less than the way
there and back."""

Inbox = asyncio.Queue[ToParty | PeerError | None]
Replies = asyncio.Queue[FromParty | None]
"""Of one message. A report's parts are kept by the session anyway, so they may all wait here."""


class PartyNode:
    """A party at its site. Reads its table once, when it starts; ConfigError if it cannot be read.

    What leaves is remembered and recorded first, in the memory and the audit log of the config.
    """

    def __init__(self, config: PartyConfig, log: Any, bundle: Bundle | None) -> None:
        self._config = config
        self._bundle = bundle
        self._log = log.bind(party=config.party)
        self._table = None if config.data is None else site_table(config.data, config.scratch)
        self._audit = open_log(config)
        try:
            self._memory = open_memory(config, self._audit, self._log)
        except BaseException:
            if self._audit:
                self._audit.close()
            raise
        self._session: PartySession | None = None
        """Outlives a connection: who dials again goes on where it was."""
        self._hung_up = threading.Event()
        self._offered = ""
        self._attended = False
        self._refusals = 0
        self._misfits = 0
        self._left = 0
        """Sessions that it left since it took part in one."""
        self.ended: list[str] = []
        """The reason each session ended, '' for those that made a model."""

    async def run(self, wait: float, once: bool) -> None:
        """Attend the aggregator until cancelled; with `once` until one session has ended.

        wait: seconds to wait for an aggregator that does not answer; ConfigError when they are over, and when
        the audit log or the memory cannot be written.
        """
        if hint := nothing_approved(self._config):
            self._log.warning(hint.replace("--config party.toml", f"--config {self._config.file}"))
        try:
            await self._run(wait, once)
        except asyncio.CancelledError:
            self._log.info("stopped", **({"session": self._offered} if self._session else {}))
            raise
        except DurabilityError as error:
            raise ConfigError(str(error)) from None
        finally:
            self._hung_up.set()
            with contextlib.suppress(DurabilityError):
                self._close_session(STOPPED, paused=True)
            self._close()

    def _close(self) -> None:
        if self._audit:
            self._audit.close()
        self._memory.close()

    async def _run(self, wait: float, once: bool) -> None:
        address = self._config.aggregator
        waited, pause, reported = 0.0, FIRST_RETRY, ""
        fault: TlsFault | None = None
        while not (once and self.ended):
            if self._bundle is not None and self._attended:
                self._bundle = read_again(self._bundle)
            async with channel.dial(address, self._bundle) as opened:
                try:
                    # Not wait_for, which loses a cancellation that comes with the answer (Python 3.11).
                    async with asyncio.timeout(min(pause, max(wait - waited, 0.05))):
                        await opened.channel_ready()
                except TimeoutError:
                    waited += pause
                    if self._bundle is not None and waited >= SAY_SO:
                        fault = await asyncio.to_thread(tls_fault, address, self._bundle)
                        if fault and not fault.passes and not self._attended:
                            raise ConfigError(fault.reason) from None
                    if waited >= wait:
                        advice = "check `aggregator` in this site's file and that the aggregator runs"
                        raise channel.unanswered(address, wait, fault, advice) from None
                    why = fault.reason if fault else "nobody answers there"
                    if waited >= SAY_SO and reported != why:
                        self._log.info("waiting for the aggregator", address=address, reason=why)
                        reported = why
                    pause = min(2 * pause, LAST_RETRY) * random.uniform(0.5, 1.0)
                    continue
                waited, pause, reported = 0.0, FIRST_RETRY, ""
                await self._attend(opened, once)
            if not (once and self.ended):
                self._log.info("dialling again")
                await asyncio.sleep(REDIAL * random.uniform(0.5, 1.0))  # parties do not come all at once

    async def _attend(self, opened: Any, once: bool) -> None:
        """Use a connection, from its beginning to its loss."""
        metadata = (
            (channel.PARTY_KEY, self._config.party.encode()),
            (channel.VERSION_KEY, str(WIRE_VERSION)),
        )
        self._hung_up.clear()
        call = opened.stream_stream(channel.ATTEND)(metadata=metadata)
        inbox: Inbox = asyncio.Queue(MAX_UNREAD_MESSAGES)
        reader = asyncio.create_task(self._read(call, inbox))
        try:
            while (message := await inbox.get()) is not None:
                if self._bundle is not None and datetime.now(UTC) > self._bundle.ends:
                    self._log.warning("certificate expired", keys=str(self._bundle.folder))
                    self._close_session(EXPIRED, paused=True)
                    return  # what it signs is worth nothing: it dials again, with the next one
                await self._answer(call, message)
                if once and self.ended:
                    await call.done_writing()
                    return
            await reader
        except grpc.aio.AioRpcError as error:
            away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            self._refusals += not away
            # It never let this party in, or no longer does; but an old connection may still be known there.
            unfit = error.code() == grpc.StatusCode.INVALID_ARGUMENT  # of another version, say
            if unfit or (not away and (not self._attended or self._refusals > MAX_REFUSALS)):
                raise channel.explained(error, f"the aggregator at {self._config.aggregator}") from None
            self._log.info("connection lost", code=error.code().name, details=quoted(error.details() or ""))
        except asyncio.InvalidStateError:
            pass  # the aggregator closed the stream while an answer was being written
        finally:
            self._hung_up.set()
            reader.cancel()

    async def _read(self, call: Any, inbox: "Inbox") -> None:
        """Put what the aggregator says into the inbox; None when it has hung up."""
        try:
            if channel.VERSION_KEY in await call.initial_metadata():  # it has let this party in
                self._attended, self._refusals = True, 0
                self._log.info(AT_HAND, aggregator=self._config.aggregator)
            async for data in call:
                try:
                    message: ToParty | PeerError = (
                        decode_to_party(data)
                        if len(data) <= LARGE_MESSAGE
                        else await asyncio.to_thread(decode_to_party, data)
                    )
                except PeerError as error:
                    message = error
                if isinstance(message, SessionEnded):
                    self._hung_up.set()
                elif isinstance(message, Offer):
                    self._hung_up.clear()
                await inbox.put(message)
        finally:
            self._hung_up.set()
            await inbox.put(None)

    async def _answer(self, call: Any, message: ToParty | PeerError) -> None:
        """Let the session handle one message, and write its replies while it computes the next."""
        if isinstance(message, PeerError):  # what cannot be read ends the session, not the node
            await call.write(encode_from_party(Leave(quoted(message.public))))
            message = SessionEnded(str(message))
        session = self._session_for(message)
        if session is None:
            return
        replies: Replies = asyncio.Queue()
        loop = asyncio.get_running_loop()
        computing = loop.run_in_executor(None, self._compute, session, message, replies, loop)
        try:
            while (reply := await replies.get()) is not None:
                try:
                    if isinstance(reply, Leave):  # recorded before the aggregator can hang up on it
                        self._close_session(reply.reason)
                finally:
                    await call.write(encode_from_party(reply))
        finally:
            await computing  # one thread at a time is in the session
        if session.ended is not None:
            self._end(session.ended, message)
            if self._left > FREE_REFUSALS:  # each is a line in the log, and an aggregator may offer for ever
                await asyncio.sleep(min(0.1 * 2 ** (self._left - FREE_REFUSALS - 1), MAX_PAUSE_SECONDS))

    def _compute(
        self, session: PartySession, message: ToParty, replies: Replies, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Put the replies to a message as they come, then None. Runs in a thread of its own."""
        try:
            for reply in session.handle(message):
                loop.call_soon_threadsafe(replies.put_nowait, reply)
                if self._hung_up.is_set():
                    return  # nobody wants the rest
        finally:
            loop.call_soon_threadsafe(replies.put_nowait, None)

    def _session_for(self, message: ToParty) -> PartySession | None:
        """The session a message belongs to; None for the last words of one this party has left."""
        if isinstance(message, Offer) and (self._session is None or message.session != self._offered):
            self._log.info("session offered", session=message.session, terms=message.terms.digest)
            self._close_session("another session began", paused=True)
            self._offered = message.session
            self._session = PartySession(self._site())
        return self._session

    def _end(self, reason: str, message: ToParty) -> None:
        if not reason:
            self._log.info("session done")
        elif isinstance(message, SessionEnded):
            self._log.info("session failed", reason=reason)
        else:
            self._log.info("left the session", reason=reason)
        self._left = 0 if not reason or isinstance(message, SessionEnded) else self._left + 1
        self.ended.append(reason)
        self._close_session(reason)

    def _close_session(self, reason: str, paused: bool = False) -> None:
        if self._session is not None and self._audit:
            self._audit.ended(self._offered, reason, paused)
        self._session = None

    def _site(self) -> Site:
        def permit(offer: SessionOffer) -> Limits:
            if self._misfits >= MAX_MISFITS:
                raise Refused(
                    f"party {self._config.party}: its rows did not fit {self._misfits} offers, and each "
                    f"refusal tells something of them, so it refuses all others until it is started again"
                )
            if self._bundle is not None and not offer.analyst:
                raise Refused(f"party {self._config.party}: the terms are signed by no analyst")
            policy = policy_for(self._config, offer.terms, offer.analyst)
            return policy.permit(offer.terms, self._config.party, self._ask_somebody, offer.analyst)

        def taken(offer: SessionOffer) -> None:
            if self._audit:
                request, party = offer.request.hex(), self._config.party
                self._audit.admitted(offer.session, offer.terms, offer.analyst, request, offer.attempt, party)

        record = self._audit.record if self._audit else lambda release: None
        credentials = None
        if self._bundle is not None:
            bundle = self._bundle
            credentials = Credentials(bundle.signer, bundle.roots, bundle.denied, lambda: datetime.now(UTC))
        name, nthread = self._config.party, self._config.nthread
        holder = None if self._table is None else holder_of(self._read_shard, name, nthread)
        return Site(name, holder, urandom, credentials, permit, taken, record, self._memory)

    def _ask_somebody(self, text: str) -> bool:
        return terminal_ask(text, self._hung_up.is_set)

    def _read_shard(self, terms: Terms) -> Shard:
        assert self._table is not None
        try:
            shard = to_shard(self._table, terms, self._config.party)
        except SchemaMismatch:
            self._misfits += 1
            raise
        for column, category, count in undeclared(self._table, terms.columns):
            warning = "categories the terms do not declare count as missing"
            self._log.warning(warning, column=column, category=shown(category), rows=count)
        return shard
