"""A party on the network: it connects to the aggregator and answers the queries that its session allows.

Guarantees: computing never blocks the connection, since it runs in its own thread. The party waits while the
aggregator cannot be reached, and reconnects if the connection is lost. A refusal is recorded in the audit
log, with the same text, before it is sent.
Raises: ConfigError, which ends the process, if an aggregator does not admit this party (e.g. because its name
is taken) or a server is not an aggregator. A party that was admitted reconnects whenever the connection is
lost. It gives up only after MAX_REFUSALS refusals in a row, or if the aggregator's version has changed.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from os import urandom
from typing import Any

import grpc
import numpy as np

from fedboost.boosting.queries.ids import UNKNOWN, PlacesQuery, check_batch
from fedboost.errors import ConfigError, DurabilityError, PeerError, Refused, SessionFailed, quoted
from fedboost.holders.columns import Prediction, PredictionHolder, holder_for
from fedboost.protocol import messages
from fedboost.protocol.contracts import Holder
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.parts import Part
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Limits, SessionOffer, Site
from fedboost.results.audit import EXPIRED, STOPPED
from fedboost.runtime.analyst import Connection, Training
from fedboost.runtime.data.locations import shown
from fedboost.runtime.data.shard import column_faults, rows_to_predict
from fedboost.runtime.metrics import MetricsPage, PartyMetrics
from fedboost.runtime.net import channel
from fedboost.runtime.net.channel import DialAttempts
from fedboost.runtime.net.keys import Bundle, read_again
from fedboost.runtime.net.routes import Server
from fedboost.runtime.signed_model import PartyModel, terms_to_predict
from fedboost.runtime.site.approval import naming_the_command, nothing_approved, policy_for
from fedboost.runtime.site.backup import memory_path, open_memory
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.memory import FileMemory, check_alone, label_key, spent_under
from fedboost.runtime.site.models import PartFolder, signers_at, training_table
from fedboost.runtime.site.review import (
    NO_LIMITS,
    CheckBook,
    CheckStream,
    PageState,
    analyst_of,
    check_unread,
)
from fedboost.runtime.site.rows import SiteRows
from fedboost.runtime.tasks import OnWaiting
from fedboost.runtime.telemetry import TABLE_AVAILABLE, Event, Events, Kind, terminal_ask
from fedboost.runtime.web.serving import need_extra
from fedboost.runtime.workers.holder import rows_of
from fedboost.terms.terms import Terms
from fedboost.wire.messages import UnreadOffer, decode_to_party, encode_from_party

# ---- The aggregator's messages that a party has not handled yet -----------------------------------------
# Messages are handled in order of arrival. A busy party goes on reading relays, so two parties that relay to
# each other at the same time never wait for each other.


MAX_UNREAD_MESSAGES = 16
"""Maximum number of unhandled messages, except relays. At this limit, the party stops reading."""
MAX_UNREAD_RELAYED = 1 << 30
"""Maximum total size of unhandled relays in bytes. A session keeps relays in memory anyway until all have
arrived. Once the session's rows are known, the relays that a party waits for are smaller in total."""
RELAY_OVERHEAD = 200
"""Bytes of a relay in addition to its content."""
Message = messages.ToParty | PeerError | None
"""A message from the aggregator; PeerError if it is unreadable; None if the connection was closed."""


class Inbox:
    """Queue of the messages that have arrived on one connection and have not been handled yet."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Message] = asyncio.Queue()
        self._messages = 0
        self._relayed = 0
        self._taken = asyncio.Event()

    async def put(self, message: Message) -> None:
        """Add a message as soon as there is room for it. Called by a single reader."""
        while self._is_full(message):
            self._taken.clear()
            await self._taken.wait()
        self._count(message, 1)
        self._queue.put_nowait(message)

    async def get(self) -> Message:
        message = await self._queue.get()
        self._count(message, -1)
        self._taken.set()
        return message

    def _is_full(self, message: Message) -> bool:
        if isinstance(message, messages.Relay):
            return self._relayed >= MAX_UNREAD_RELAYED
        return message is not None and self._messages >= MAX_UNREAD_MESSAGES

    def _count(self, message: Message, sign: int) -> None:
        if isinstance(message, messages.Relay):
            self._relayed += sign * (len(message.content) + RELAY_OVERHEAD)
        else:
            self._messages += sign


# ---- The thread in which a party's sessions compute, next to that of its connection ---------------------
# One message is handled at a time. A large reply leaves while the next one is computed; small ones leave with
# the last one, so the connection's thread is woken once. After a hang-up nothing more is computed. Queries
# about a growing tree of a small table are answered in the connection's thread, without waking another one:
# only if nothing but rows of this process is needed, since the answer before then shows how long one takes.


LARGE_REPLY = 1 << 16
"""Size in bytes above which a reply is sent at once, instead of together with the last reply."""
SHORT_SECONDS = 0.02
"""An answer about a growing tree is computed in the connection's thread if the one before took less."""

Reply = tuple[messages.FromParty, bytes]
"""A message to the aggregator, and its bytes."""
Early = asyncio.Queue[list[Reply] | None]
"""Queue of replies to send before the last reply is computed; None marks the end. The queue is unbounded,
because the session keeps all parts of a report in memory anyway."""


class SessionThread:
    """Worker thread that runs the computations of a party's sessions. It starts with the first message and
    ends with `close`. hung_up: event that is set while no one is waiting for replies."""

    def __init__(self) -> None:
        self.hung_up = threading.Event()
        self._thread = ThreadPoolExecutor(1, "session")
        self._took = SHORT_SECONDS
        """Seconds that the last answer took."""

    def close(self) -> None:
        """End the thread after its current message."""
        self.hung_up.set()
        self._thread.shutdown(wait=False)

    async def replies(
        self, session: PartySession, message: messages.ToParty, alone: bool
    ) -> AsyncGenerator[Reply, None]:
        """Yield the replies to a message as they are computed. Closing the generator early waits until the
        session has stopped computing. alone: True if answers need only rows of this process."""
        is_short = alone and self._took < SHORT_SECONDS
        if is_short and isinstance(message, messages.Ask) and message.query.of_tree:
            for reply in self._compute(session, message):
                yield reply
            return
        early: Early = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def send(replies: list[Reply] | None) -> None:
            loop.call_soon_threadsafe(early.put_nowait, replies)

        computing = self._thread.submit(self._compute, session, message, send)
        # Callbacks run in the order of `call_soon_threadsafe`, so None arrives after every early batch.
        computing.add_done_callback(lambda _: send(None))
        try:
            while (replies := await early.get()) is not None:
                for reply in replies:
                    yield reply
        except BaseException:
            # The thread still uses the session: the next message must not reach it before that is over.
            await asyncio.wrap_future(computing)
            raise
        for reply in computing.result():
            yield reply

    def _compute(
        self,
        session: PartySession,
        message: messages.ToParty,
        send: Callable[[list[Reply]], object] | None = None,
    ) -> list[Reply]:
        """Handle a message. Returns the replies that were not sent early. send: sends replies early."""
        ready, began = list[Reply](), time.monotonic()
        # `handle` yields an answer only after the store has recorded it: the answer waits for that write.
        # Once in gRPC's hands, it cannot be recalled. Had it left unrecorded, a restarted site would not know
        # of it, and would answer another question at the same place of the training.
        for reply in session.handle(message):
            ready.append((reply, encode_from_party(reply)))
            if self.hung_up.is_set():
                break  # no one wants the rest
            if send is not None and len(ready[-1][1]) > LARGE_REPLY:
                send(ready)
                ready = []
        if isinstance(message, messages.Ask):
            self._took = time.monotonic() - began
        return ready


# ---- A party as seen from outside: rounds and matched rows in its log, and its metrics ------------------
# The number of matched rows is all that it shows of the rows. The metrics of a round are for the aggregator
# and the analyst; parties do not receive them.


class PartyMonitor:
    """Reports one party's events to the log, the metrics and the site's page. memory: the site's memory,
    which records the privacy spent and the analysts' requests."""

    def __init__(self, config: PartyConfig, log: Any, memory: FileMemory) -> None:
        self.metrics = PartyMetrics("keyholder" if config.data is None else "party")
        self.page_state = PageState(config, memory, log)
        self.report = Events(log, self.metrics, self.page_state).observe
        self._log, self._config, self._memory = log, config, memory
        self._session, self._rounds, self._round, self._since = "", 0, 0, 0.0
        self._received = self._sent = 0
        """Bytes that were not reported yet: they are reported once a turn, and at the end of a session."""
        self._asked: tuple[messages.Ask, float] | None = None
        """The last query, and its time of arrival."""
        self._gives_all = False
        """True if all rows of this party take part, because it has the labels."""
        self._spends = False
        """True if noise is added to the session's answers and its privacy cost is charged."""
        self._page = MetricsPage(self.metrics, config.metrics, log) if config.metrics else None
        self._look_at_budget()

    def close(self) -> None:
        if self._page is not None:
            self._page.close()

    def offered(self, session: str, analyst: str = "", terms: Terms | None = None) -> None:
        """Report that a session was offered, possibly again. terms: None if they cannot be read."""
        self.report(Event("session offered", session, analyst, terms=terms))
        self._session, self._round, self._since = session, 0, time.monotonic()
        if terms is not None:
            self._rounds, self._spends = terms.trees.rounds, terms.noise is not None
            self._gives_all = terms.vertical.takes_all_rows and terms.blocks.has_labels(self._config.party)

    def received(self, size: int) -> None:
        self._received += size

    def sent(self, data: bytes) -> bytes:
        """Count the bytes of a message to the aggregator, and return them."""
        self._sent += len(data)
        return data

    def _report_bytes(self) -> None:
        self.report(Event("bytes", received=self._received, sent=self._sent))
        self._received = self._sent = 0

    def asked(self, ask: messages.Ask) -> None:
        """Remember that a query arrived, for the first time or again."""
        self._asked = ask, time.monotonic()

    def answered(self) -> None:
        """Report that the last query was answered, either at once or after other parties' relays arrived."""
        assert self._asked is not None
        ask, since = self._asked
        now = time.monotonic()
        self._report_bytes()
        self.report(Event("answer", self._session, seconds=now - since))
        if isinstance(ask.query, PlacesQuery):
            known = np.count_nonzero(ask.query.places != UNKNOWN)
            rows = ask.query.total if self._gives_all else int(known)
            self._log.info("rows matched", session=self._session, rows=rows)
        done = ask.query.tree + 1 if ask.query.ends_tree else 0
        if done > self._round:
            took = now - self._since
            self.report(Event("round", self._session, round=done, of=self._rounds, seconds=took))
            self._round, self._since = done, now
            if self._spends:
                self._look_at_budget()

    def ended(self, session: str, reason: str, left: bool) -> None:
        """Report the end of a session. reason: why it ended, or '' if it ended with a model; left: True if
        this party left the session."""
        self._report_bytes()
        kind: Kind = "session done" if not reason else "left the session" if left else "session failed"
        self.report(Event(kind, session, reason=reason))
        self._look_at_budget()

    def _look_at_budget(self) -> None:
        spent = spent_under(self._memory.spent(), self._config.policy.budget, own=True)
        self.metrics.budget(spent.spent, spent.left, spent.delta)


# ---- A party on the network: connects to the aggregator, and answers what its session allows ------------


UNREACHABLE = "check `aggregator` in this site's file, and that the aggregator is running"
MAX_REFUSALS = 60
"""Number of refusals in a row, about a second apart, after which an admitted party gives up."""
REDIAL = 1.0
"""Maximum number of seconds between losing the connection and the next attempt to reach the aggregator."""
FREE_REFUSALS = 20
"""Number of consecutive sessions that a party may leave before it pauses after each of them."""
MAX_PAUSE_SECONDS = 1.0
"""Maximum pause in seconds after leaving a session. The first pause lasts 0.1 s, and each further pause lasts
twice as long as the previous one. Pauses also delay offers from other analysts."""
LARGE_MESSAGE = 1 << 16
"""Size in bytes above which a message is decoded in a thread; below, switching takes longer."""


class PartyNode:
    """A party at its site, connected to the aggregator. It reads its table when it starts, and again before a
    session if the files have changed. Everything that leaves the site is first recorded in the site's store.
    Raises ConfigError if the table or the store cannot be read."""

    def __init__(self, config: PartyConfig, log: Any, bundle: Bundle | None) -> None:
        self._config = config
        self._bundle = bundle
        self._log = log.bind(party=config.party)
        self._rows = rows_of(config, self._log)
        with contextlib.ExitStack() as opened:
            opened.callback(self._rows.close)
            self._memory = open_memory(config, self._log, self._rows.names_under)
            opened.callback(self._memory.close)
            self.watch = PartyMonitor(config, self._log, self._memory)
            opened.pop_all()
        self._session: PartySession | None = None
        """Current session. It outlives a connection, and continues after reconnecting."""
        self._thread = SessionThread()
        self._name = self._analyst = ""
        """Name of the last offered session, and its analyst, who is '' once in the audit log."""
        self._alone = False
        """True if answers in this session need neither other parties nor workers."""
        self._attended = False
        self._refusals = 0
        book, busy = CheckBook(self._memory, self.watch.page_state.checked), lambda: self._session is not None
        self._reviewer = CheckStream(config, self._rows, self._credentials, busy, book, self._log)
        self._left = 0
        """Number of consecutive sessions that this party has left."""
        self.ended: list[str] = []
        """Reason for the end of each session; '' if it ended with a model."""

    async def run(self, wait: float, once: bool) -> None:
        """Serve the aggregator until cancelled or, with `once`, until one session has ended. wait: seconds to
        wait for an aggregator that does not answer. Raises ConfigError if the aggregator does not answer in
        time, or if the store cannot be written."""
        if hint := nothing_approved(self._config):
            self._log.warning(hint.replace("--config party.toml", f"--config {self._config.file}"))
        self._rows.say()
        try:
            async with page_served(self._config, self._rows, self.watch.page_state, self._log):
                await self._run(wait, once)
        except asyncio.CancelledError:
            self._log.info("stopped", **({"session": self._name} if self._session else {}))
            raise
        except DurabilityError as error:
            raise ConfigError("site-not-durable", str(error)) from None
        finally:
            self._thread.hung_up.set()
            with contextlib.suppress(DurabilityError):
                self._close_session(STOPPED, paused=True)
            self.close()

    def close(self) -> None:
        """Stop the threads and close all files. Call this only if the party is not running."""
        self._thread.close()
        self._memory.close()
        self.watch.close()
        self._rows.close()

    async def _run(self, wait: float, once: bool) -> None:
        dialling = DialAttempts(self._config.servers, wait, self._log, UNREACHABLE)
        while not (once and self.ended):
            if self._bundle is not None and self._attended:
                self._bundle = read_again(self._bundle)
            server = dialling.server
            async with channel.dial(server, self._bundle) as opened:
                if not await dialling.reached(opened, self._bundle, self._attended):
                    continue
                began = time.monotonic()
                await self._attend(opened, server, once)
                dialling.lost(time.monotonic() - began)
            if not (once and self.ended):
                self._log.info("reconnecting")
                await asyncio.sleep(REDIAL * random.uniform(0.5, 1.0))  # parties should not all come at once

    async def _attend(self, opened: Any, server: Server, once: bool) -> None:
        """Handle the aggregator's messages until the connection is lost or, with `once`, a session has ended.
        opened: the gRPC channel to the server."""
        metadata = ((channel.PARTY_KEY, self._config.party.encode()), *channel.VERSIONS)
        self._memory.adder = server.adder
        self._thread.hung_up.clear()
        # Two tasks share the connection, and a thread computes:
        #
        #     _read     gRPC -> Inbox; sets `hung_up` when the current answer is no longer wanted
        #     _attend   Inbox -> SessionThread -> gRPC, one message after the other
        call = opened.stream_stream(channel.ATTEND)(metadata=metadata)
        inbox = Inbox()
        reader = asyncio.create_task(self._read(call, inbox, opened, server))
        try:
            while (message := await inbox.get()) is not None:
                if self._bundle is not None and datetime.now(UTC) > self._bundle.ends:
                    self._log.warning("certificate expired", keys=str(self._bundle.folder))
                    self._close_session(EXPIRED, paused=True)
                    return  # its signatures are no longer valid: it dials again, with the next certificate
                await self._answer(call, message)
                if once and self.ended:
                    await call.done_writing()
                    return
            await reader
        except grpc.aio.AioRpcError as error:
            away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            self._refusals += not away
            # The aggregator never admitted this party, or no longer does. A refusal may also be temporary: it
            # may not have noticed yet that an earlier connection of this party is dead.
            unfit = error.code() == grpc.StatusCode.INVALID_ARGUMENT  # e.g. another version
            if unfit or (not away and (not self._attended or self._refusals > MAX_REFUSALS)):
                raise channel.explained(error, str(server)) from None
            self._log.info("connection lost", code=error.code().name, details=quoted(error.details() or ""))
        except asyncio.InvalidStateError:
            pass  # the aggregator closed the stream while a reply was being written
        finally:
            self._thread.hung_up.set()
            reader.cancel()
            # `replies` has waited for the thread, which does not use the session any more.
            if self._session is not None:
                self._session.hang_up()

    async def _read(self, call: Any, inbox: Inbox, opened: Any, server: Server) -> None:
        """Put the aggregator's messages into the inbox, followed by None at the end of the connection.
        Meanwhile, another task answers preflight checks."""
        reviewing: asyncio.Task[None] | None = None
        try:
            if channel.VERSION_KEY in await call.initial_metadata():  # this party was admitted
                self._attended, self._refusals = True, 0
                told = f"{server.address} (adder {server.adder})" if server.adder else server.address
                self.watch.report(Event(TABLE_AVAILABLE, aggregator=told))
                reviewing = asyncio.create_task(self._reviewer.serve(opened))
            async for data in call:
                self.watch.received(len(data))
                try:
                    message: messages.ToParty | PeerError = await self._decode(data)
                except PeerError as error:
                    message = error
                # Ahead of the inbox, where the message waits for the current one: that stops computing now.
                if isinstance(message, messages.SessionEnded):
                    self._thread.hung_up.set()
                elif isinstance(message, messages.Offer):
                    self._thread.hung_up.clear()
                await inbox.put(message)
        finally:
            self._thread.hung_up.set()
            self.watch.report(Event("aggregator gone"))
            if reviewing is not None:
                reviewing.cancel()
            await inbox.put(None)

    async def _decode(self, data: bytes) -> messages.ToParty:
        def vouched(text: str, request: messages.Request | None) -> None:
            check_unread(self._config.party, self._credentials(), text, request)

        decode = partial(decode_to_party, data, vouched)
        return decode() if len(data) <= LARGE_MESSAGE else await asyncio.to_thread(decode)

    async def _answer(self, call: Any, message: messages.ToParty | PeerError) -> None:
        """Let the session handle one message, and send each reply while the next is being computed."""
        if isinstance(message, UnreadOffer) and message.session != self._current:
            await self._leave_unread(call, message)
            return
        if isinstance(message, PeerError):  # an unreadable message ends the session, not the node
            await call.write(encode_from_party(messages.Leave(quoted(message.public))))
            message = messages.SessionEnded(str(message))
        # None after this party has left: what the aggregator sent before it received the Leave is ignored.
        session = self._session_for(message)
        if session is None:
            return
        if isinstance(message, messages.Ask):
            self.watch.asked(message)
        answers = False
        async with contextlib.aclosing(self._thread.replies(session, message, self._alone)) as replies:
            async for reply, data in replies:
                answers |= isinstance(reply, messages.Report)
                try:
                    # Recorded before the aggregator can hang up. If that fails, it is sent all the same: it
                    # has no values of rows, and the others learn at once that this party left.
                    if isinstance(reply, messages.Leave):
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
        return None if self._session is None else self._name

    async def _leave_unread(self, call: Any, offer: UnreadOffer) -> None:
        """Leave a session whose terms cannot be read, as if it were refused."""
        self._begin(offer.session)
        reason = quoted(offer.public)
        self._end(reason, offer)
        await call.write(self.watch.sent(encode_from_party(messages.Leave(reason, offer.session))))
        await asyncio.sleep(pause_after(self._left))

    def _begin(self, session: str, analyst: str = "", terms: Terms | None = None) -> None:
        """Start an offered session, which replaces the current one. terms: None if they cannot be read."""
        self._close_session("another session started", paused=True)
        self._name, self._analyst = session, analyst
        self.watch.offered(session, analyst, terms)
        self._alone = terms is not None and not terms.blocks and self._config.workers is None
        self._session = PartySession(self._site())

    def _session_for(self, message: messages.ToParty) -> PartySession | None:
        """Return the session that a message belongs to; None if this party has left it."""
        if isinstance(message, messages.Offer) and message.session != self._current:
            self._begin(message.session, analyst_of(message, self._credentials()), message.terms)
        return self._session

    def _end(self, reason: str, message: messages.ToParty | UnreadOffer) -> None:
        left = bool(reason) and not isinstance(message, messages.SessionEnded)
        self.watch.ended(self._name, reason, left)
        self._left = self._left + 1 if left else 0
        self.ended.append(reason)
        self._close_session(reason)

    def _close_session(self, reason: str, paused: bool = False) -> None:
        if self._session is not None:
            self._memory.ended(self._name, reason, paused, self._analyst)
        self._session = None
        if paused:
            self.watch.report(Event("session paused"))
        self._rows.release()

    def _permit(self, offer: SessionOffer) -> Limits:
        self._rows.check_misfits()
        if self._bundle is not None and not offer.analyst:
            raise Refused(
                "terms-unsigned", f"party {self._config.party}: the terms are not signed by an analyst"
            )
        config, terms = self._config, offer.terms
        with naming_the_command(terms, offer.analyst):
            policy = policy_for(config, terms, offer.analyst)
            signers = signers_at(config, terms, self._credentials())
            ask = partial(terminal_ask, stopped=self._thread.hung_up.is_set)
            limits = policy.permit(terms, config.party, ask, offer.analyst, signers)
        self._rows.refresh()
        return limits

    def _holder(self) -> Callable[[Terms, bytes], Holder] | None:
        """Return the function that creates the holder of a session's rows; None at a site without rows."""
        if self._config.data is None:
            return None
        key_of, model_of = partial(label_key, self._memory), PartFolder(self._config).model_of
        table_of = partial(training_table, self._memory)
        return partial(self._rows.hold, key_of=key_of, model_of=model_of, table_of=table_of)

    def _site(self) -> Site:
        def taken(offer: SessionOffer) -> None:
            self._name, self._analyst = offer.session, ""

        def keep(part: Part) -> None:
            file = PartFolder(self._config).keep(part)
            self._log.info("part of the model stored", session=part.session, file=str(file))

        name, holder, permit, memory = self._config.party, self._holder(), self._permit, self._memory
        return Site(name, holder, urandom, self._credentials(), permit, taken, memory.record, memory, keep)

    def _credentials(self) -> Credentials | None:
        if (bundle := self._bundle) is None:
            return None
        return Credentials(bundle.signer, bundle.roots, bundle.denied, lambda: datetime.now(UTC))


def pause_after(left: int) -> float:
    """Return the seconds to pause after leaving this many consecutive sessions. Pauses are needed because
    each of these sessions adds a line to the log, and an aggregator could offer sessions indefinitely."""
    beyond = min(left - FREE_REFUSALS, 10)  # keeps the power of two within a float
    return min(0.1 * 2 ** (beyond - 1), MAX_PAUSE_SECONDS) if beyond > 0 else 0.0


@asynccontextmanager
async def page_served(config: PartyConfig, rows: SiteRows, state: PageState, log: Any) -> AsyncIterator[None]:
    """Context manager that serves the site's page, if it is configured."""
    if config.console is None:
        yield
        return

    need_extra("[console]", "console")
    from fedboost.runtime.site.page import SitePageData, site_page

    page = site_page(config.console, SitePageData(config, rows, state, log), log)
    await page.start()
    try:
        yield
    finally:
        await page.stop()


# ---- A prediction that a label holder requests, and takes part in itself --------------------------------
# One process requests the session and is a party in it. It ignores sessions of others. Predictions are in the
# order of the table.


class PredictingNode(PartyNode):
    """The label holder as a party in a prediction session that it requests itself. config: the site's
    configuration, whose `data` is the table to predict."""

    def __init__(
        self, config: PartyConfig, log: Any, bundle: Bundle | None, model: PartyModel, explains: bool
    ) -> None:
        if memory_path(config).parent.exists():
            check_alone(memory_path(config), config.party, "; stop `fedboost party` first")
        super().__init__(config, log, bundle)
        self._model, self._explains = model, explains
        self._made: list[Holder] = []
        self.terms = model.terms

    def ask_for(self, min_common_rows: int | None) -> Terms:
        """Return the terms for predicting all rows of the table. min_common_rows: this setting in the terms;
        None for the value from training. Raises ConfigError if the table does not fit the model."""
        assert self._rows.table is not None
        trained = self._model.terms
        table = self._rows.table.under(trained.columns)
        needed = trained.blocks.columns_of(self._config.party).unlabelled()
        for fault in column_faults(table, needed):
            raise ConfigError(fault.code, f"{shown(self._config.data)}: {fault.public}", fault.detail)
        rows = rows_to_predict(table, self._model.terms)
        self.terms = terms_to_predict(self._model, rows, min_common_rows)
        check_batch(self.terms)
        return self.terms

    @property
    def prediction(self) -> Prediction:
        """Prediction of the session. Raises SessionFailed if there is none."""
        for holder in reversed(self._made):
            if isinstance(holder, PredictionHolder) and holder.prediction is not None:
                return holder.prediction
        raise SessionFailed("prediction-missing", "the session ended without a prediction")

    def _session_for(self, message: messages.ToParty) -> PartySession | None:
        """Return None for messages of other sessions, which then wait as if this party were disconnected."""
        if isinstance(message, messages.Offer) and message.terms != self.terms:
            return None
        return super()._session_for(message)

    def _permit(self, offer: SessionOffer) -> Limits:
        """Return no limits, since the site itself requested the session."""
        return NO_LIMITS

    def _holder(self) -> Callable[[Terms, bytes], Holder]:
        name, nthread = self._config.party, self._config.nthread
        model, explains = self._model.booster, self._explains
        make = holder_for(self._rows.read, name, nthread, lambda terms: model, explains=explains)

        def hold(terms: Terms, secret: bytes) -> Holder:
            self._made.append(make(terms, secret))
            return self._made[-1]

        return hold


def predict_with_parties(
    config: PartyConfig,
    bundle: Bundle | None,
    model: PartyModel,
    log: Any,
    wait: float,
    min_common_rows: int | None = None,
    on_waiting: OnWaiting | None = None,
    reasons: bool = False,
) -> Prediction:
    """Predict the rows of the label holder's table together with the other parties of the model.

    Args:
        config: the label holder's configuration, with the rows to predict as its `data`.
        bundle: the label holder's keys; None if there are no keys.
        model: the label holder's part of the model.
        log: logger of the party.
        wait: seconds to wait for an aggregator that does not answer.
        min_common_rows: value for the terms; None for the value used in training.
        on_waiting: called with the parties that the session is waiting for.
        reasons: True to also compute what each party contributes to each prediction.

    Raises:
        ConfigError: the model or the table does not fit, or the aggregator cannot be reached.
        SessionFailed: the session ended without a prediction.
    """
    holder = model.terms.vertical.label_holder
    if config.party != holder or model.party != holder:
        whose = f"the part of {model.party}" if model.party else "the structure of a model"
        raise ConfigError(
            "not-label-holder",
            f"only label holder {holder} can predict, with its own part of the model, but this is {whose}, "
            f"and the site's file is for {config.party}",
        )
    node = PredictingNode(config, log, bundle, model, reasons)
    try:
        terms = node.ask_for(min_common_rows)
        training = Connection(config.direct_server, bundle).train(terms, wait, on_waiting)
    except BaseException:
        node.close()
        raise
    asyncio.run(_attend(node, training, wait))
    return node.prediction


async def _attend(node: PartyNode, training: Training, wait: float) -> None:
    """Take part until the session is over. Raises the error that ended the session, if there is no
    prediction. wait: seconds to wait for the aggregator. After the analyst has been told that the session has
    ended, this party waits for the same time to be told, too. If the session ends before this party connects,
    the party is never told."""
    over: Future[None] = Future()
    over.set_running_or_notify_cancel()  # cannot be cancelled: the thread sets it even if no one waits

    def follow() -> None:
        try:
            _ = training.model
        except Exception as error:  # noqa: BLE001 - any error is raised where the result is awaited
            over.set_exception(error)
        else:
            over.set_result(None)

    asked = asyncio.wrap_future(over)
    attending = asyncio.create_task(node.run(wait, once=True))
    threading.Thread(target=follow, daemon=True).start()  # a daemon: it may wait longer than the process
    try:
        done, late = await asyncio.wait({asked, attending}, return_when=asyncio.FIRST_COMPLETED)
        if late and all(task.exception() is None for task in done):
            await asyncio.wait(late, timeout=wait if asked.done() else None)
        for task in (asked, attending):
            if task.done():
                task.result()
    except asyncio.CancelledError:
        await asyncio.to_thread(training.stop)
        raise
    finally:
        attending.cancel()
        await asyncio.gather(attending, return_exceptions=True)
