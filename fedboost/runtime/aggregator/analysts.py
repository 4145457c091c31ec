"""The analyst's side of an aggregator: requests to train, the wait for parties, the stream of events.

Promises: an analyst that comes again with the terms of a session of their own follows that session.
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
    check_signed,
    check_version,
    refuse,
    sending,
    software_of,
)
from fedboost.runtime.aggregator.sessions import ActiveSession, Sessions
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

# ---- Reading of what callers send, beside the event loop: terms may have megabytes ----------------------
# Promises: of one caller one thing is read at a time, and what else it sends waits for that; nothing small
# waits for something large of another caller.


SMALL = 1 << 16
"""Bytes that are read in some milliseconds: terms of a thousand columns."""

T = TypeVar("T")


class Reader:
    """Threads for what callers send: one at a time for what is small, and one for what is large."""

    def __init__(self) -> None:
        self._small, self._large = asyncio.Semaphore(1), asyncio.Semaphore(1)
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        """Held while something of a caller is read, also when the call has ended meanwhile."""

    async def run(self, caller: str, size: int, read: Callable[[], T]) -> T:
        """Return what is read of so many bytes of a caller, or raise what it raises."""
        turn = self._turns.setdefault(caller, asyncio.Lock())
        await turn.acquire()

        async def reading() -> T:
            try:
                async with self._small if size <= SMALL else self._large:
                    return await asyncio.to_thread(read)
            finally:
                turn.release()

        work = asyncio.create_task(reading())
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # that is nobody's
        return await asyncio.shield(work)


# ---- The analyst's side of an aggregator: requests to train, the wait for parties -----------------------


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


@dataclass(eq=False)
class Analysts:
    """The method Train of the service."""

    _admission: Admission
    sessions: Sessions
    connected: ConnectedParties
    _log: Any
    waiters: list[Waiter] = field(default_factory=list)
    here: dict[int, tuple[str, Arrival]] = field(default_factory=dict)
    """The analysts that follow a session or wait for one, by their calls."""
    on_stop: Callable[[str, str], None] = lambda analyst, digest: None
    """Called when an analyst wants no session under the terms with this digest any more."""
    reader: Reader = field(default_factory=Reader)

    async def answer(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Answer one call of an analyst: its request, then the events as they come."""
        request = await self._admission.only_message(requests, context, peer)
        try:
            async with aclosing(self._train(request, context, peer)) as events:
                async for event in events:
                    await context.write(encode_train_event(event))
        finally:
            self.here.pop(id(context), None)

    async def _train(self, request: bytes, context: Any, peer: Peer) -> AsyncGenerator[TrainEvent, None]:
        """Events of one analyst's session, from terms to model."""
        name = ""
        try:
            check_version(context, "analyst")
            caller = self._admission.caller(context)
            name = caller.name if caller else ""
            if caller is None or caller.role != key_exchange.PARTY:  # before its terms are read
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
            session.forget()  # a model is kept until the analyst says that it has arrived

    def begun(self, analyst: str, terms: Terms) -> ActiveSession | None:
        """The session of this analyst under these terms that runs, waits, or has a model."""
        session = self.sessions.find(analyst, terms.digest)
        return None if session is None or session.failed else session

    def is_ready(self, terms: Terms, analyst: str) -> bool:
        """True if a session under these terms need not be waited for: it may begin, or was begun."""
        here = all(party in self.connected for party in terms.parties)
        return (here and self.sessions.may_begin) or self.begun(analyst, terms) is not None

    async def until_ready(
        self, terms: Terms, analyst: str, since: float | None = None
    ) -> AsyncGenerator[tuple[str, ...], None]:
        """The parties that are not connected yet (none: another session is active), at each change, until a
        session under these terms may begin, or was begun by another call. analyst: with the key, as sessions
        know it; since: when it was asked for, now unless given. Refused if it has to wait, and too many
        do."""
        name = analyst.rpartition("#")[0]
        if not self.is_ready(terms, analyst):
            if name and sum(waiter.analyst == name for waiter in self.waiters) >= MAX_WAITING_OF_ANALYST:
                ended = "Ctrl-C in `fedboost train` ends the wait of one"
                raise Refused(f"{MAX_WAITING_OF_ANALYST} sessions of this analyst wait already; {ended}")
            if len(self.waiters) >= MAX_WAITING:
                raise Refused(f"{MAX_WAITING} analysts are waiting already; try again later")
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
        check_signed(self.sessions.trust, text, signed, name, key_exchange.SESSION)
        return await self.reader.run(caller, len(text), lambda: self._read(text))

    def _read(self, text: str) -> Terms:
        """The terms, unless no session can have them here."""
        terms = terms_with_parties(text)
        state.check_terms(terms, self.sessions.memory)
        return terms


def terms_with_parties(text: str) -> Terms:
    """The terms of a text, which name parties. Runs in a thread: terms may have megabytes."""
    terms = terms_of(text)
    if not terms.parties:
        raise ConfigError('the terms name no parties; add parties = ["north", "south"] to them')
    _ = terms.digest  # computed once, and here: with it the canonical text that every party is sent
    return terms


# ---- Checks of terms: an analyst asks all parties whether they would take part, and begins no session ----
# Promises: each party is handed the terms with the analyst's signature and answers for itself; one that is
# not here, or says nothing in time, is named with the reason; nothing of a check is kept.


MAX_CHECKS = 4
"""Checks at a time, of all analysts."""
MAX_CHECKS_OF_ONE = 2
"""Checks at a time of an analyst with keys: a party that does not answer holds them up."""
SITE_SECONDS = 60.0
"""Seconds that a site has to answer: it may read all its rows."""


@dataclass
class Reviewer:
    """A party's stream of checks: what is on its way there, and the checks that it has not answered."""

    outgoing: Outgoing
    asked: dict[int, "asyncio.Future[Objections | None]"] = field(default_factory=dict)


@dataclass(eq=False)
class Checks:
    """The methods Advise, of parties, and Check, of analysts."""

    _trust: Trust | None
    _admission: Admission
    _connected: ConnectedParties
    _reader: Reader
    _log: Any
    _reviewers: dict[str, Reviewer] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _open: Counter[str] = field(default_factory=Counter)
    """Checks under way, by analyst."""

    async def advise(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Hand checks on to a party and take its answers, as long as it has the stream open."""
        try:
            check_version(context, "party")
            name = self._admission.party_name(context)
        except FedboostError as error:
            await refuse(context, error)
        task = asyncio.current_task()
        assert task is not None
        reviewer = Reviewer(Outgoing(task.cancel))
        self._reviewers[name] = reviewer  # in place of one over a connection that is about to be given up
        try:
            async with sending(reviewer.outgoing, context, self._log):
                await self._read(requests, reviewer, peer)
        except PeerError as error:
            self._log.info("checks of a party ended", party=name, reason=quoted(str(error)))
            await refuse(context, error)
        except grpc.RpcError:
            pass  # its connection broke, which `Parties` tells
        finally:
            if self._reviewers.get(name) is reviewer:
                del self._reviewers[name]
            for answer in reviewer.asked.values():
                if not answer.done():
                    answer.set_result(None)

    async def _read(self, requests: AsyncIterator[bytes], reviewer: Reviewer, peer: Peer) -> None:
        """Take a party's answers. PeerError for too many that nobody asked for."""
        async for data in requests:
            objections = decode_objections(data)
            answer = reviewer.asked.get(objections.number)
            if answer is not None and not answer.done():
                answer.set_result(objections)
            elif not peer.unwanted.take(time.monotonic()):
                peer.bar(time.monotonic())
                raise PeerError("it keeps sending what nobody asked for")

    async def answer(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Answer one check of an analyst."""
        request = await self._admission.only_message(requests, context, peer)
        name = ""
        try:
            check_version(context, "analyst")
            caller = self._admission.check_role(context, "analyst")
            name = caller.name if caller else ""
            if self._open.total() >= MAX_CHECKS:
                raise Refused(f"{MAX_CHECKS} checks are under way already; try again later")
            if caller and self._open[name] >= MAX_CHECKS_OF_ONE:
                raise Refused(f"{MAX_CHECKS_OF_ONE} checks of yours are under way already; try again later")
            self._open[name] += 1
            try:
                sites = await self._check(request, name, peer.name)
            finally:
                self._open -= Counter([name])
        except FedboostError as error:
            await self._admission.refuse("check refused", error, context, peer)
        await context.write(encode_check_reply(CheckReply(tuple(sites))))

    async def _check(self, data: bytes, analyst: str, caller: str) -> list[SiteReply]:
        """The answers of all parties of the terms."""
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
        """The answer of one party, or why there is none."""
        reviewer = self._reviewers.get(party)
        if party not in self._connected:
            seen = self._connected.seen.last(party)
            away = f"it is away since {day(datetime.fromtimestamp(seen, UTC))}"
            return SiteReply(party, False, (away if seen else "it has never connected to this aggregator",))
        if reviewer is None:
            older = "it cannot be asked: it runs an older version of fedboost; update it there"
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
