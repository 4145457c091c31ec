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
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from os import urandom
from typing import Any, NamedTuple

import grpc

from fedboost.errors import ConfigError, DurabilityError, PeerError, Refused, quoted
from fedboost.protocol.contracts import Holder
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.messages import Ask, Leave, Offer, Report, SessionEnded, ToParty
from fedboost.protocol.parts import Part
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Limits, SessionOffer, Site
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle, read_again
from fedboost.runtime.site.approval import nothing_approved, policy_for
from fedboost.runtime.site.audit import EXPIRED, STOPPED, AuditLog
from fedboost.runtime.site.check_book import CheckBook
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.dialling import Dialling
from fedboost.runtime.site.inbox import Inbox
from fedboost.runtime.site.label_memory import label_key
from fedboost.runtime.site.memory import FileMemory
from fedboost.runtime.site.memory_start import open_log, open_memory
from fedboost.runtime.site.model_signers import signers_at
from fedboost.runtime.site.models import PartFolder
from fedboost.runtime.site.page.start import page_served
from fedboost.runtime.site.policy_breach import naming_the_command
from fedboost.runtime.site.review import Reviewer
from fedboost.runtime.site.rows import SiteRows
from fedboost.runtime.site.session_thread import SessionThread
from fedboost.runtime.site.signed import analyst_of, vouched
from fedboost.runtime.site.training_table import training_table
from fedboost.runtime.site.watch import Watch
from fedboost.runtime.site.worker_rows import rows_of
from fedboost.runtime.telemetry import AT_HAND
from fedboost.terms.terms import Terms
from fedboost.wire.messages import UnreadOffer, decode_to_party, encode_from_party

MAX_REFUSALS = 60
"""Refusals in a row, a second each, before a party that had been let in gives up."""
REDIAL = 1.0
"""Seconds between the loss of an aggregator and the next try to reach it, at most."""
FREE_REFUSALS = 20
"""Sessions that a party leaves one after the other before it takes its time with each."""
MAX_PAUSE_SECONDS = 1.0
"""Seconds before it hears the next message then; the first time a tenth, then twice as long each time. The
offer of another analyst waits as long."""
LARGE_MESSAGE = 1 << 16
"""Bytes above which a message of the aggregator is decoded in a thread: a smaller one takes less than the way
there and back."""


class Offered(NamedTuple):
    """The session that was offered last, and who signed the offer, until the audit log has it."""

    session: str
    analyst: str = ""


class PartyNode:
    """A party at its site. Reads its table when it starts, ConfigError if it cannot be read, and before a
    session if its files have changed.

    What leaves is remembered and recorded first, in the memory and the audit log of the config.
    """

    def __init__(self, config: PartyConfig, log: Any, bundle: Bundle | None) -> None:
        self._config = config
        self._bundle = bundle
        self._log = log.bind(party=config.party)
        self._rows = rows_of(config, self._log)
        self._audit, self._memory, self.watch = _open_state(config, self._log, self._rows)
        self._session: PartySession | None = None
        """Outlives a connection: who dials again goes on where it was."""
        self._thread = SessionThread()
        self._offered = Offered("")
        self._attended = False
        self._refusals = 0
        book, busy = CheckBook(self._audit, self.watch.page_state.checked), lambda: self._session is not None
        self._reviewer = Reviewer(config, self._rows, self._credentials, busy, book, self._log)
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
        self._rows.say()
        try:
            async with page_served(self._config, self._rows, self.watch.page_state, self._log):
                await self._run(wait, once)
        except asyncio.CancelledError:
            self._log.info("stopped", **({"session": self._offered.session} if self._session else {}))
            raise
        except DurabilityError as error:
            raise ConfigError(str(error)) from None
        finally:
            self._thread.hung_up.set()
            with contextlib.suppress(DurabilityError):
                self._close_session(STOPPED, paused=True)
            self.close()

    def close(self) -> None:
        """Close its files, of a party that did not run or no longer does."""
        self._thread.close()
        if self._audit:
            self._audit.close()
        self._memory.close()
        self.watch.close()
        self._rows.close()

    async def _run(self, wait: float, once: bool) -> None:
        address = self._config.aggregator
        dialling = Dialling(address, wait, self._log)
        while not (once and self.ended):
            if self._bundle is not None and self._attended:
                self._bundle = read_again(self._bundle)
            async with channel.dial(address, self._bundle) as opened:
                if not await dialling.reached(opened, self._bundle, self._attended):
                    continue
                await self._attend(opened, once)
            if not (once and self.ended):
                self._log.info("dialling again")
                await asyncio.sleep(REDIAL * random.uniform(0.5, 1.0))  # parties do not come all at once

    async def _attend(self, opened: Any, once: bool) -> None:
        """Use a connection, from its beginning to its loss."""
        metadata = ((channel.PARTY_KEY, self._config.party.encode()), *channel.VERSIONS)
        self._thread.hung_up.clear()
        call = opened.stream_stream(channel.ATTEND)(metadata=metadata)
        inbox = Inbox()
        reader = asyncio.create_task(self._read(call, inbox, opened))
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
            self._thread.hung_up.set()
            reader.cancel()
            if self._session is not None:
                self._session.hang_up()

    async def _read(self, call: Any, inbox: Inbox, opened: Any) -> None:
        """Put what the aggregator says into the inbox; None when it has hung up. Answers checks besides."""
        reviewing: asyncio.Task[None] | None = None
        try:
            if channel.VERSION_KEY in await call.initial_metadata():  # it has let this party in
                self._attended, self._refusals = True, 0
                self._log.info(AT_HAND, aggregator=self._config.aggregator)
                self.watch.connected(True)
                reviewing = asyncio.create_task(self._reviewer.serve(opened))
            async for data in call:
                self.watch.received(len(data))
                try:
                    message: ToParty | PeerError = await self._decode(data)
                except PeerError as error:
                    message = error
                if isinstance(message, SessionEnded):
                    self._thread.hung_up.set()
                elif isinstance(message, Offer):
                    self._thread.hung_up.clear()
                await inbox.put(message)
        finally:
            self._thread.hung_up.set()
            self.watch.connected(False)
            if reviewing is not None:
                reviewing.cancel()
            await inbox.put(None)

    async def _decode(self, data: bytes) -> ToParty:
        decode = partial(decode_to_party, data, partial(vouched, self._config.party, self._credentials))
        return decode() if len(data) <= LARGE_MESSAGE else await asyncio.to_thread(decode)

    async def _answer(self, call: Any, message: ToParty | PeerError) -> None:
        """Let the session handle one message, and write its replies while it computes the next."""
        if isinstance(message, UnreadOffer) and message.session != self._current:
            await self._leave_unread(call, message)
            return
        if isinstance(message, PeerError):  # what cannot be read ends the session, not the node
            await call.write(encode_from_party(Leave(quoted(message.public))))
            message = SessionEnded(str(message))
        session = self._session_for(message)
        if session is None:
            return
        if isinstance(message, Ask):
            self.watch.asked(message)
        answers = False
        async with contextlib.aclosing(self._thread.replies(session, message)) as replies:
            async for reply, data in replies:
                answers |= isinstance(reply, Report)
                try:
                    if isinstance(reply, Leave):  # recorded before the aggregator can hang up on it
                        self._close_session(reply.reason)
                finally:
                    await call.write(self.watch.sent(data))
        if answers and session.ended is None:
            self.watch.answered()
        if session.ended is not None:
            self._end(session.ended, message)
            await asyncio.sleep(pause_after(self._left))

    @property
    def _current(self) -> str | None:
        return None if self._session is None else self._offered.session

    async def _leave_unread(self, call: Any, offer: UnreadOffer) -> None:
        """Leave a session whose terms were not read, as one that is refused."""
        self._begin(offer.session)
        self.watch.metrics.begun()
        reason = quoted(offer.public)
        self._end(reason, offer)
        await call.write(self.watch.sent(encode_from_party(Leave(reason, offer.session))))
        await asyncio.sleep(pause_after(self._left))

    def _begin(self, session: str, **about: str) -> None:
        """Begin a session that was offered, in place of any other."""
        self._close_session("another session began", paused=True)
        self._offered = Offered(session, about.get("analyst", ""))
        self._log.info("session offered", session=session, **about)
        self._session = PartySession(self._site())

    def _session_for(self, message: ToParty) -> PartySession | None:
        """The session a message belongs to; None for the last words of one this party has left."""
        if isinstance(message, Offer) and message.session != self._current:
            analyst = analyst_of(message, self._credentials())
            about = {"analyst": analyst} if analyst else {}
            self._begin(message.session, **about, terms=message.terms.digest)
            self.watch.offered(message, analyst)
        return self._session

    def _end(self, reason: str, message: ToParty | UnreadOffer) -> None:
        left = bool(reason) and not isinstance(message, SessionEnded)
        self.watch.ended(self._offered.session, reason, left)
        self._left = self._left + 1 if left else 0
        self.ended.append(reason)
        self._close_session(reason)

    def _close_session(self, reason: str, paused: bool = False) -> None:
        if self._session is not None and self._audit:
            self._audit.ended(self._offered.session, reason, paused, self._offered.analyst)
        self._session = None
        self.watch.page_state.closed(paused)
        self._rows.release()

    def _permit(self, offer: SessionOffer) -> Limits:
        """Hold an offer to this site's rules."""
        self._rows.check_misfits()
        if self._bundle is not None and not offer.analyst:
            raise Refused(f"party {self._config.party}: the terms are signed by no analyst")
        with naming_the_command(offer.terms, offer.analyst):
            limits = _permit(self._config, offer, self._ask_somebody, self._credentials())
        self._rows.refresh()
        return limits

    def _holder(self) -> Callable[[Terms, bytes], Holder] | None:
        """What holds the rows of a session; None without rows."""
        if self._config.data is None:
            return None
        key_of, model_of = partial(label_key, self._memory), PartFolder(self._config).model_of
        table_of = partial(training_table, self._memory)
        return partial(self._rows.hold, key_of=key_of, model_of=model_of, table_of=table_of)

    def _site(self) -> Site:
        def taken(offer: SessionOffer) -> None:
            if self._audit:
                about = offer.analyst, offer.request.hex(), offer.attempt
                names = self._config.party, self._config.rows_name, self._rows.names_under(offer.terms)
                self._audit.admitted(offer.session, offer.terms, *about, *names)
            self._offered = Offered(offer.session)

        def keep(part: Part) -> None:
            file = PartFolder(self._config).keep(part)
            self._log.info("part of the model kept", session=part.session, file=str(file))

        record = self._audit.record if self._audit else lambda release: None
        name, holder, permit, memory = self._config.party, self._holder(), self._permit, self._memory
        return Site(name, holder, urandom, self._credentials(), permit, taken, record, memory, keep)

    def _credentials(self) -> Credentials | None:
        if (bundle := self._bundle) is None:
            return None
        return Credentials(bundle.signer, bundle.roots, bundle.denied, lambda: datetime.now(UTC))

    def _ask_somebody(self, text: str) -> bool:
        return self.watch.ask(text, self._thread.hung_up.is_set)


def pause_after(left: int) -> float:
    """Seconds of pause after so many sessions were left: each is a line in the log, and an aggregator may
    offer for ever."""
    beyond = min(left - FREE_REFUSALS, 10)  # no power of two that is no float
    return min(0.1 * 2 ** (beyond - 1), MAX_PAUSE_SECONDS) if beyond > 0 else 0.0


def _open_state(config: PartyConfig, log: Any, rows: SiteRows) -> tuple[AuditLog | None, FileMemory, Watch]:
    """Open the audit log, the memory and the metrics, all or none of them, or close the rows. ConfigError."""
    with contextlib.ExitStack() as stack:
        stack.callback(rows.close)
        audit = open_log(config)
        if audit is not None:
            stack.callback(audit.close)
        memory = open_memory(config, audit, log)
        stack.callback(memory.close)
        watch = Watch(config, log, memory.spent)
        stack.pop_all()
    return audit, memory, watch


def _permit(
    config: PartyConfig, offer: SessionOffer, ask: Callable[[str], bool], credentials: Credentials | None
) -> Limits:
    """Hold the terms of an offer to the policy that holds for them. Refused."""
    policy = policy_for(config, offer.terms, offer.analyst)
    signers = signers_at(config, offer.terms, credentials)
    return policy.permit(offer.terms, config.party, ask, offer.analyst, signers)
