"""Checks of terms: an analyst asks all parties whether they would take part, and begins no session.

Promises: each party is handed the terms with the analyst's signature and answers for itself; one that is not
here, or says nothing in time, is named with the reason; nothing of a check is kept.
Refuses: callers that are no analysts, checks that the analyst who calls has not signed, more of them at a
time than `MAX_CHECKS`, or of one analyst than `MAX_CHECKS_OF_ONE` (Refused); answers that nobody asked for
(PeerError).
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import grpc

from fedboost.errors import ConfigError, FedboostError, PeerError, Refused, quoted
from fedboost.privacy.identity.certificates import day
from fedboost.protocol import key_exchange
from fedboost.protocol.key_exchange import Trust
from fedboost.runtime.aggregator.admission import Admission, refuse
from fedboost.runtime.aggregator.analysts import named
from fedboost.runtime.aggregator.callers import (
    check_role,
    check_signed,
    check_unread,
    check_version,
    party_name,
    plain_end,
)
from fedboost.runtime.aggregator.connected import ConnectedParties, write
from fedboost.runtime.aggregator.limits import Outgoing, Peer
from fedboost.runtime.aggregator.reading import Reader
from fedboost.runtime.aggregator.refusals import Refusals
from fedboost.runtime.net import channel
from fedboost.runtime.net.keys import Bundle
from fedboost.terms.terms import Terms
from fedboost.wire.codec import WIRE_VERSION, terms_of
from fedboost.wire.services import (
    Objections,
    Review,
    SiteReply,
    decode_check_request,
    decode_objections,
    encode_check_reply,
    encode_review,
)

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


class Checks:
    """The methods Advise, of parties, and Check, of analysts."""

    def __init__(
        self,
        bundle: Bundle | None,
        trust: Trust | None,
        admission: Admission,
        refusals: Refusals,
        connected: ConnectedParties,
        reader: Reader,
        log: Any,
    ) -> None:
        self._bundle = bundle
        self._trust = trust
        self._admission = admission
        self._refusals = refusals
        self._connected = connected
        self._reader = reader
        self._log = log
        self._reviewers: dict[str, Reviewer] = {}
        self._numbers = itertools.count(1)
        self._open = Counter[str]()
        """Checks under way, by analyst."""

    async def advise(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Hand checks on to a party and take its answers, as long as it has the stream open."""
        try:
            check_version(context, "party")
            name = party_name(self._bundle, context)
        except FedboostError as error:
            await refuse(context, error)
        task = asyncio.current_task()
        assert task is not None
        reviewer = Reviewer(Outgoing(task.cancel))
        self._reviewers[name] = reviewer  # in place of one over a connection that is about to be given up
        writer: asyncio.Task[None] | None = None
        try:
            await context.send_initial_metadata([(channel.VERSION_KEY, str(WIRE_VERSION))])
            writer = asyncio.create_task(write(reviewer.outgoing, context, task, self._log))
            await self._read(requests, reviewer, peer)
        except PeerError as error:
            self._log.info("checks of a party ended", party=name, reason=quoted(str(error)))
            await refuse(context, error)
        except grpc.RpcError:
            pass  # its connection broke, which `Parties` tells
        finally:
            if writer is not None:
                writer.cancel()
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
            caller = check_role(self._bundle, context, "analyst")
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
            self._refusals.note("check refused", peer.name, quoted(str(error)), address=plain_end(context))
            await refuse(context, error)
        await context.write(encode_check_reply(sites))

    async def _check(self, data: bytes, analyst: str, caller: str) -> list[SiteReply]:
        """The answers of all parties of the terms."""
        text, request = decode_check_request(data)
        check_unread(self._trust, text, request, analyst, key_exchange.CHECK)
        terms = await self._reader.run(caller, len(text), lambda: _read(text))
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
            return SiteReply(party, False, (_absence(self._connected.seen.last(party)),))
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


def _read(text: str) -> Terms:
    """The terms of a check. Runs in a thread: terms may have megabytes."""
    terms = terms_of(text)
    if not terms.parties:
        raise ConfigError('the terms name no parties; add parties = ["north", "south"] to them')
    _ = terms.digest
    return terms


def _absence(seen: int) -> str:
    """The reason for no answer of a party that is not connected."""
    if not seen:
        return "it has never connected to this aggregator"
    return f"it is away since {day(datetime.fromtimestamp(seen, UTC))}"
