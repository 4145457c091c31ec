"""Handles analysts' calls to an aggregator: analysts request sessions, wait for parties, receive events, and
run preflight checks.

If an analyst calls again with the same terms, the call follows the session that the earlier request started.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import grpc

from fedboost.boosting import state
from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, quoted
from fedboost.privacy.identity import day, key_fingerprint
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import Request
from fedboost.runtime.aggregator.limits import Outgoing, Peer
from fedboost.runtime.aggregator.parties import (
    Admission,
    Arrival,
    ConnectedParties,
    Queue,
    check_signed,
    check_version,
    refuse,
    sending,
    software_of,
)
from fedboost.runtime.aggregator.sessions import ActiveSession, Sessions
from fedboost.runtime.web.guard import Bucket
from fedboost.terms.reading import digest_of
from fedboost.terms.terms import Terms
from fedboost.wire.codec import terms_of
from fedboost.wire.messages import (
    CheckReply,
    Objections,
    Review,
    SiteReply,
    TrainCommand,
    TrainEvent,
    Waiting,
    decode_check_request,
    decode_objections,
    decode_train_request,
    encode_check_reply,
    encode_review,
    encode_train_event,
)

# ---- Parsing what callers send, outside the event loop: terms can be megabytes long ---------------------
# For each caller, one text is parsed at a time; the others wait. A small text never waits for a large text of
# another caller.


SMALL = 1 << 16
"""Maximum size of a small text in bytes. Such a text, e.g. terms with a thousand columns, can be parsed in a
few milliseconds."""

T = TypeVar("T")


class Reader:
    """Parses the texts that callers send. One thread parses small texts and another thread parses large ones,
    so that a small text never waits for a large one."""

    def __init__(self) -> None:
        self._small, self._large = asyncio.Semaphore(1), asyncio.Semaphore(1)
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        """One lock per caller. It is held until a text of the caller has been parsed, even if the call ends
        earlier."""

    async def run(self, caller: str, size: int, read: Callable[[], T]) -> T:
        """Call `read` in a thread, and return its result or raise its exception. For each caller, only one
        call of `read` runs at a time.

        Args:
            caller: name of the caller.
            size: number of bytes that `read` parses.
            read: function that parses the text.
        """
        turn = self._turns.setdefault(caller, asyncio.Lock())
        await turn.acquire()

        async def reading() -> T:
            try:
                async with self._small if size <= SMALL else self._large:
                    return await asyncio.to_thread(read)
            finally:
                turn.release()

        # Shielded: a thread cannot be stopped, so a call that ends must not release its caller's turn early.
        work = asyncio.create_task(reading())
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # no one may await it
        return await asyncio.shield(work)


# ---- The analyst's side of an aggregator: training requests, the wait for parties -----------------------


MAX_WAITING = 16
"""Maximum number of analysts who may wait for parties or for another session to end."""
MAX_WAITING_OF_ANALYST = 4
"""Maximum number of waiting sessions per analyst. Analysts are distinguished by name."""


@dataclass(frozen=True)
class Waiter:
    """An analyst who waits for a session to start. analyst: name, or "" if the aggregator runs without keys;
    since: time of the request in seconds since 1970."""

    analyst: str
    terms: Terms
    since: int


def named(analyst: str) -> dict[str, str]:
    """Return the `analyst` field of a log event, or no field if the name is empty."""
    return {"analyst": analyst} if analyst else {}


@dataclass(eq=False)
class Analysts:
    """Handler of the RPC `Train`, with which analysts request a session and receive its events."""

    _admission: Admission
    sessions: Sessions
    connected: ConnectedParties
    _log: Any
    waiters: list[Waiter] = field(default_factory=list)
    here: dict[int, tuple[str, Arrival]] = field(default_factory=dict)
    """Id of an open call -> the analyst who follows or awaits a session in this call, and when the call
    began."""
    on_stop: Callable[[str, str], None] = lambda analyst, digest: None
    """Called when an analyst stops a session. Receives the analyst and the digest of the session's terms."""
    reader: Reader = field(default_factory=Reader)

    async def answer(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Handle a call of an analyst: read its request, then send the events of the session as they
        occur."""
        request = await self._admission.only_message(requests, context, peer)
        try:
            async with aclosing(self._train(request, context, peer)) as events:
                async for event in events:
                    await context.write(encode_train_event(event))
        finally:
            self.here.pop(id(context), None)

    async def _train(self, request: bytes, context: Any, peer: Peer) -> AsyncGenerator[TrainEvent, None]:
        """Yield the events of an analyst's session, from the submission of the terms to the model."""
        name = ""
        try:
            check_version(context, "analyst")
            caller = self._admission.caller(context)
            name = caller.name if caller else ""
            # Checked before the terms are read. Parties may call, too: label holders request predictions.
            if caller is None or caller.role != key_exchange.PARTY:
                self._admission.check_role(context, key_exchange.ANALYST)
            text, command, signed = decode_train_request(request)
            analyst = f"{caller.name}#{key_fingerprint(caller.public_key)}" if caller else ""
            if command in (TrainCommand.STOP, TrainCommand.FINISH):
                self._end(analyst, digest_of(text), command)
                return
            terms = await self.read(peer.name, text, signed, name)
            self._admission.check_asker(context, terms)
            check_signed(self.sessions.trust, terms, signed, name, key_exchange.SESSION)
            program = self.sessions.program(terms)
        except FedboostError as error:
            await self._admission.refuse("analyst refused", error, context, peer)
        session = self.sessions.find(analyst, terms.digest)
        self.here[id(context)] = name, Arrival(int(time.time()), software_of(context))
        if session is None or (session.failed and command is not TrainCommand.RETURN):
            try:
                async with aclosing(self.until_ready(terms, analyst)) as missing:
                    async for parties in missing:
                        yield Waiting(parties, self.connected.absent(parties))
            except Refused as error:
                await self._admission.refuse("analyst refused", error, context, peer)
            session = self.begun(analyst, terms)
            if session is None:
                try:
                    session = self.sessions.new(terms, program, analyst, signed)
                except Refused as error:  # it cannot be recorded
                    await refuse(context, error)
                self.sessions.begin(session)
        async for event in session.follow():
            if isinstance(event, Waiting):
                event = Waiting(event.parties, self.connected.absent(event.parties))
            yield event
        if session.failed:
            self.sessions.delivered(analyst, terms.digest)
            session.forget()  # a model is kept until the analyst confirms its arrival

    def begun(self, analyst: str, terms: Terms) -> ActiveSession | None:
        """Return this analyst's session under these terms if it is running, waiting, or finished with a
        model; otherwise None."""
        session = self.sessions.find(analyst, terms.digest)
        return None if session is None or session.failed else session

    def is_ready(self, terms: Terms, analyst: str) -> bool:
        """Return whether a session under these terms may start now, or has already started."""
        here = all(party in self.connected for party in terms.parties)
        return (here and self.sessions.may_begin) or self.begun(analyst, terms) is not None

    async def until_ready(
        self, terms: Terms, analyst: str, since: float | None = None
    ) -> AsyncGenerator[tuple[str, ...], None]:
        """Wait until a session under these terms may start, or another call of the analyst has started it. At
        each change, yields the parties that are not connected yet (an empty tuple if the wait is only for
        another session to end).

        Args:
            analyst: name and key of the analyst, as in `Sessions`.
            since: time of the request in seconds since 1970 (default: now).

        Raises:
            Refused: the session would have to wait, but too many sessions are already waiting.
        """
        name = analyst.rpartition("#")[0]
        if not self.is_ready(terms, analyst):
            if name and sum(waiter.analyst == name for waiter in self.waiters) >= MAX_WAITING_OF_ANALYST:
                ended = "press Ctrl-C in a `fedboost train` command to stop its wait"
                raise Refused(
                    "queue-share",
                    f"{MAX_WAITING_OF_ANALYST} sessions of this analyst are already waiting; {ended}",
                )
            if len(self.waiters) >= MAX_WAITING:
                raise Refused("queue-full", f"{MAX_WAITING} analysts are already waiting; try again later")
        before: tuple[str, ...] | None = None
        waiter = Waiter(name, terms, int(since or time.time()))
        self.waiters.append(waiter)
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
        """Stop the analyst's session under the terms with this digest, or let it finish the current round."""
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
        """Parse the terms of a session, after checking that the caller signed the text. Raises FedboostError
        if the signature or the terms are invalid.

        Args:
            caller: peer that sent the text. Texts of the same peer are parsed one at a time.
            text: the terms.
            signed: the signature, or None if the aggregator runs without keys.
        """
        check_signed(self.sessions.trust, text, signed, name, key_exchange.SESSION)
        return await self.reader.run(caller, len(text), lambda: self._read(text))

    def _read(self, text: str) -> Terms:
        terms = terms_with_parties(text)
        state.check_terms(terms, self.sessions.memory)
        return terms


def terms_with_parties(text: str) -> Terms:
    """Parse terms. Raises ConfigError if the terms do not name parties. Meant to run in a thread, because
    terms can be several megabytes long."""
    terms = terms_of(text)
    if not terms.parties:
        raise ConfigError(
            "terms-no-parties", 'the terms do not name any parties; add parties = ["north", "south"]'
        )
    _ = terms.digest  # computed once, in this thread, with the canonical text that every party gets
    return terms


# ---- Checks of terms: an analyst asks all parties whether they would take part, without a session -------
# Each party gets the terms with the analyst's signature and answers for itself. One that is absent, or does
# not answer in time, is listed with the reason. No result of a check is kept.


MAX_CHECKS = 4
"""Maximum number of preflight checks in progress, for all analysts together."""
MAX_CHECKS_OF_ONE = 2
"""Maximum number of checks in progress per analyst. Does not apply if the aggregator runs without keys. A
check is in progress until all parties have answered or `SITE_SECONDS` have passed."""
SITE_SECONDS = 60.0
"""Seconds within which a site must answer. The site may have to read all its rows first."""


@dataclass
class Reviewer:
    """A party's stream of preflight checks: outgoing messages, and the checks that it has not answered
    yet."""

    outgoing: Queue
    asked: dict[int, "asyncio.Future[Objections | None]"] = field(default_factory=dict)


@dataclass(eq=False)
class Checks:
    """Handler of preflight checks, in which an analyst asks all parties whether they would take part. It
    serves the RPC `Advise` to parties and the RPC `Check` to analysts."""

    _trust: Trust | None
    _admission: Admission
    _connected: ConnectedParties
    _reader: Reader
    _log: Any
    _reviewers: dict[str, Reviewer] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _open: Counter[str] = field(default_factory=Counter)
    """Number of checks in progress, by analyst."""

    async def advise(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Send checks to a party and receive its answers, as long as its stream is open."""
        try:
            name = self._admission.party_name(context)
        except FedboostError as error:
            await refuse(context, error)
        outgoing = Outgoing.of_this_call()
        self.add(name, outgoing)
        try:
            async with sending(outgoing, context, self._log):
                async for data in requests:
                    self.take(name, data, peer.unwanted)
        except PeerError as error:
            if error.code == "messages-unwanted":
                peer.bar(time.monotonic())
            self._log.info("checks of a party ended", party=name, reason=quoted(str(error)))
            await refuse(context, error)
        except grpc.RpcError:
            pass  # its connection broke, which `Parties` reports
        finally:
            self.remove(name, outgoing)

    def add(self, party: str, outgoing: Queue) -> None:
        """Send checks to a party from now on. This replaces the stream of a connection that is about to
        end."""
        self._reviewers[party] = Reviewer(outgoing)

    def remove(self, party: str, outgoing: Queue) -> None:
        """Stop sending checks to a party, unless a newer stream has replaced this one."""
        reviewer = self._reviewers.get(party)
        if reviewer is None or reviewer.outgoing is not outgoing:
            return
        del self._reviewers[party]
        for answer in reviewer.asked.values():
            if not answer.done():
                answer.set_result(None)

    def take(self, party: str, data: bytes, unwanted: Bucket) -> None:
        """Receive a party's answer. Raises PeerError if the party sends too many answers that were not
        requested."""
        objections = decode_objections(data)
        reviewer = self._reviewers.get(party)
        answer = None if reviewer is None else reviewer.asked.get(objections.number)
        if answer is not None and not answer.done():
            answer.set_result(objections)
        elif not unwanted.take(time.monotonic()):
            raise PeerError("messages-unwanted", "it keeps sending answers that were not requested")

    async def answer(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        request = await self._admission.only_message(requests, context, peer)
        name = ""
        try:
            check_version(context, "analyst")
            caller = self._admission.check_role(context, "analyst")
            name = caller.name if caller else ""
            if self._open.total() >= MAX_CHECKS:
                raise Refused("checks-busy", f"{MAX_CHECKS} checks are already in progress; try again later")
            if caller and self._open[name] >= MAX_CHECKS_OF_ONE:
                raise Refused(
                    "checks-busy", f"you already have {MAX_CHECKS_OF_ONE} checks in progress; try again later"
                )
            self._open[name] += 1
            try:
                sites = await self._check(request, name, peer.name)
            finally:
                self._open -= Counter([name])
        except FedboostError as error:
            await self._admission.refuse("check refused", error, context, peer)
        await context.write(encode_check_reply(CheckReply(tuple(sites))))

    async def _check(self, data: bytes, analyst: str, caller: str) -> list[SiteReply]:
        text, request = decode_check_request(data)
        check_signed(self._trust, text, request, analyst, key_exchange.CHECK)
        terms = await self._reader.run(caller, len(text), lambda: terms_with_parties(text))
        check_signed(self._trust, terms, request, analyst, key_exchange.CHECK)
        review = Review(next(self._numbers), terms.canonical(), request)
        encoded = encode_review(review)
        sites = await asyncio.gather(*(self._ask(party, review.number, encoded) for party in terms.parties))
        would = sum(site.would for site in sites)
        counts = {"parties": len(sites), "would": would, "answered": sum(site.answered for site in sites)}
        self._log.info("terms checked", **named(analyst), terms=terms.digest[:12], **counts)
        return sites

    async def _ask(self, party: str, number: int, review: bytes) -> SiteReply:
        reviewer = self._reviewers.get(party)
        if party not in self._connected:
            seen = self._connected.seen.last(party)
            away = f"it has been disconnected since {day(datetime.fromtimestamp(seen, UTC))}"
            return SiteReply(party, False, (away if seen else "it has never connected to this aggregator",))
        if reviewer is None:
            older = "it runs an older fedboost version, which does not support checks; update fedboost there"
            return SiteReply(party, False, (older,))
        answer = reviewer.asked[number] = asyncio.get_running_loop().create_future()
        reviewer.outgoing.put(review)
        try:
            objections = await asyncio.wait_for(answer, SITE_SECONDS)
        except TimeoutError:
            return SiteReply(party, False, (f"it did not answer within {SITE_SECONDS:g} s",))
        finally:
            reviewer.asked.pop(number, None)
        if objections is None:
            return SiteReply(party, False, ("its connection was lost before it answered",))
        return SiteReply(party, True, objections.reasons, objections.notes)
