"""Sessions that are asked for by a file of signed terms, without a call that waits for their end.

Promises: a session begins under the terms that the analyst signed and no others, once its parties are there;
whoever submits the same again is told of the same session; an analyst who stops a training under the same
terms withdraws what waits.
Refuses: terms that the analyst who submits has not signed, where analysts have keys; a signed request that
an earlier session used, as far as this aggregator knows; predictions; what cannot run here, or when too many
wait, of all analysts or of one (FedboostError).
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fedboost.errors import FedboostError, Refused
from fedboost.privacy.identity.certificates import identify, key_fingerprint
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Program
from fedboost.protocol.messages import Request
from fedboost.runtime.aggregator.analysts import MAX_WAITING, Analysts, named
from fedboost.runtime.aggregator.archive import Archive, nonce_of
from fedboost.runtime.aggregator.callers import check_signed
from fedboost.runtime.signed_model import from_json
from fedboost.terms.session import TO_PREDICT
from fedboost.terms.terms import Terms

WAIT_SECONDS = 24 * 3600.0
"""A submitted session waits for its parties, and for other sessions to end, for so long at most."""
MAX_SUBMITTED = 4
"""Sessions that one analyst may have submitted at a time; the one that runs counts."""


@dataclass(frozen=True)
class Submitted:
    """A session that was asked for. name: '' while it waits to begin; missing: parties that are not
    connected."""

    digest: str
    name: str = ""
    missing: tuple[str, ...] = ()


class Submissions:
    """Sessions that were submitted, until they are over."""

    def __init__(self, analysts: Analysts, archive: Archive, log: Any) -> None:
        self._analysts = analysts
        self._sessions = analysts.sessions
        self._connected = analysts.connected
        self._archive = archive
        self._log = log
        self._waiting: dict[tuple[str, str], asyncio.Task[None]] = {}
        analysts.on_stop = self.withdraw

    async def submit(self, data: bytes, name: str) -> Submitted:
        """Ask for a session under the signed terms in this file, as the analyst of this name."""
        caller = f"analyst {name!r}"
        text, request = await self._analysts.reader.run(caller, len(data), lambda: from_json(data))
        terms = await self._analysts.read(caller, text, request, name)
        if terms.task == TO_PREDICT:
            raise Refused("a prediction is asked for by its label holder alone: fedboost predict --party")
        analyst = self._signer(terms, request, name)
        self._check_unused(nonce_of(request))
        program = self._sessions.program(terms)
        if (session := self._analysts.begun(analyst, terms)) is not None:
            return Submitted(terms.digest, session.session.name)
        missing = tuple(self._connected.absent(terms.parties))
        key = analyst, terms.digest
        if key not in self._waiting:
            self._check_room(terms, analyst)
            self._log.info("terms submitted", analyst=name, terms=terms.digest[:12], missing=list(missing))
            work = self._run(terms, program, analyst, request)
            self._waiting[key] = task = asyncio.create_task(work, name="submission")
            task.add_done_callback(lambda task: self._forget(key, task))
        return Submitted(terms.digest, "", missing)

    def withdraw(self, analyst: str, digest: str) -> None:
        """Give up a session of this analyst under these terms that waits to begin, if there is one."""
        key, begun = (analyst, digest), self._sessions.find(analyst, digest)
        if key in self._waiting and (begun is None or begun.failed):
            self._waiting.pop(key).cancel()
            about = named(analyst.rpartition("#")[0])
            self._log.info("submitted terms withdrawn", **about, terms=digest[:12])

    async def close(self) -> None:
        """Give up what waits, and write what ended: the process ends."""
        tasks = [*self._waiting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._archive.close()

    def _forget(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._waiting.get(key) is task:
            del self._waiting[key]

    def _check_room(self, terms: Terms, analyst: str) -> None:
        """Raise Refused where a session has to wait, and too many do."""
        if sum(owner == analyst for owner, _ in self._waiting) >= MAX_SUBMITTED:
            raise Refused(
                f"{MAX_SUBMITTED} sessions of this analyst are under way or waiting already; Ctrl-C in "
                f"`fedboost train` with the terms of one withdraws it"
            )
        if len(self._analysts.waiters) >= MAX_WAITING and not self._analysts.is_ready(terms, analyst):
            raise Refused(f"{MAX_WAITING} sessions are waiting already; try again later")

    def _check_unused(self, nonce: str) -> None:
        """Raise Refused for a request that a session used which is over: each party would refuse it."""
        finished = {each.session.name: nonce_of(each.session.request) for each in self._sessions.finished}
        ended = {each.name: each.request for each in self._archive.ended}
        used = [name for name, request in (finished | ended).items() if nonce and request == nonce]
        if used:
            raise Refused(f"these signed terms were used for {used[0]}; sign again: fedboost sign")

    def _signer(self, terms: Terms, request: Request | None, name: str) -> str:
        """The analyst who signed, as sessions know it, with the key; Refused if it is another one."""
        trust, now = self._sessions.trust, datetime.now(UTC)
        check_signed(trust, terms, request, name, key_exchange.SESSION)
        if trust is None or request is None:
            return ""
        key_exchange.check_age(request, now)
        signer = identify(request.certificate, trust.roots, now, trust.denied)
        return f"{signer.name}#{key_fingerprint(signer.public_key)}"

    async def _run(self, terms: Terms, program: Program, analyst: str, request: Request | None) -> None:
        """Begin a session when it may; once its end is on the disk, nobody is waited for who fetches it."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                async with aclosing(self._analysts.until_ready(terms, analyst)) as missing:
                    async for _ in missing:
                        pass
            if self._analysts.begun(analyst, terms) is not None:  # another call of this analyst gets it
                return
            session = self._sessions.new(terms, program, analyst, request)
            self._sessions.begin(session)
            self._connected.notify()
            async for _ in session.follow():
                pass
            if await self._archive.is_kept(session.session.name):
                self._sessions.delivered(analyst, terms.digest)
                session.forget()
        except (FedboostError, TimeoutError) as error:
            reason = str(error) or f"its parties were not there within {WAIT_SECONDS / 3600:g} hours"
            self._log.warning("a submitted session does not begin", terms=terms.digest[:12], reason=reason)
