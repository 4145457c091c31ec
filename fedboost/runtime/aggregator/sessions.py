"""The sessions of an aggregator: one is active, others wait in their journals, the last ones to finish are
kept until their analyst has the model.

Promises: a session of an earlier process goes on where its journal ends; when a journal cannot be written the
process ends, and no session goes on without it.
Refuses: journals that are not of a session (ConfigError by file).
"""

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fedboost.boosting import memory
from fedboost.boosting.state import NOTHING_YET
from fedboost.errors import ConfigError, DurabilityError, FedboostError, Refused
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.contracts import Program
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import (
    Connected,
    Disconnected,
    FromParty,
    OpenRequest,
    Outbox,
    Relay,
    Request,
    SessionEnded,
)
from fedboost.protocol.run import Begun
from fedboost.runtime.aggregator.active_session import ActiveSession
from fedboost.runtime.aggregator.config import AggregatorConfig
from fedboost.runtime.aggregator.connected import ConnectedParties
from fedboost.runtime.aggregator.programs import load_program, program_of
from fedboost.runtime.aggregator.store import Folder, Journal
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.terms.terms import Terms

MAX_UNDELIVERED = 16
"""Finished sessions that are kept for an analyst to come back; beyond it the oldest is on the disk alone."""
TURN_SECONDS = 20.0
"""How long a turn under way is waited for before the process ends."""


class Sessions:
    """The sessions of one process. `ended` is set when it must end, or has been stopped."""

    def __init__(
        self,
        config: AggregatorConfig,
        trust: Trust | None,
        connected: ConnectedParties,
        log: Any,
        metrics: AggregatorMetrics,
    ) -> None:
        self.metrics = metrics
        self.trust = trust
        self.memory = int(config.memory * memory.GIB)
        """Bytes that the sums of a session may take."""
        self.active: ActiveSession | None = None
        self.ended = asyncio.Event()
        self.fatal = ""
        """The reason for which the process must end."""
        self.on_end: Callable[[ActiveSession], None] = lambda session: None
        """Called with each session that ends here; it raises nothing."""
        self._stopping = False
        self._turned = asyncio.Event()
        self._config = config
        self._connected = connected
        self._log = log
        self._folder: Folder | None = None
        self._unfinished: deque[ActiveSession] = deque()
        """Sessions of an earlier process that wait for the active one."""
        self._finished: dict[tuple[str, str], ActiveSession] = {}
        """Sessions whose end their analyst does not know yet."""

    def load_programs(self) -> None:
        """Import the programs of the config; ConfigError for one that cannot be."""
        for program in self._config.programs:
            load_program(program, self._config.programs)

    def open(self) -> None:
        """Resume the sessions in the state folder. ConfigError that names the file."""
        if self._config.state is None:
            return
        self._folder = Folder(self._config.state)
        self._connected.seen.open(self._config.state)
        for journal in self._folder.unfinished():
            session = self._resume(journal)
            if session.has_opened:
                self._unfinished.append(session)
            else:  # a party may not have heard of it, and takes no later attempt of what it does not know
                self._log.info("session dropped: no sum was opened", session=session.session.name)
                session.forget()

    async def stop(self) -> None:
        """Finish the turn under way; without a state folder the active session fails."""
        self._stopping = True
        active = self.active
        waits = active is not None and self._folder is not None
        self._log.info("stopping", **({"goes_on": "when the aggregator is started again"} if waits else {}))
        if active is not None and self._folder is None:
            active.fail("the aggregator was stopped")
            await asyncio.sleep(0.1)  # lets the last messages out
        elif active is not None and active.in_a_turn and not self.fatal:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._turned.wait(), TURN_SECONDS)

    def close(self) -> None:
        """Release the state folder to another process."""
        self._connected.seen.write(time.monotonic(), at_once=True)
        if self._folder is not None:
            self._folder.close()
        self.ended.set()

    # ---- the active session ---------------------------------------------------------------------------

    @property
    def unfinished(self) -> tuple[ActiveSession, ...]:
        """The sessions of an earlier process that wait for the active one."""
        return tuple(self._unfinished)

    @property
    def finished(self) -> tuple[ActiveSession, ...]:
        """The sessions whose end their analyst does not know yet."""
        return tuple(self._finished.values())

    @property
    def may_begin(self) -> bool:
        """Tell if there is room for a session."""
        return self.active is None and not self._stopping

    def handle(self, party: str, event: FromParty | Connected | Disconnected) -> None:
        """Pass a party's message, or a change of its connection, to the active session."""
        self._step(lambda active: active.handle(party, event))

    def tick(self, now: float) -> None:
        """Let time pass in the active session."""
        self._connected.seen.write(now)
        self._step(lambda active: active.tick(now))

    def begin_next(self) -> None:
        """Go on with a session of an earlier process, if there is one; else analysts that wait may begin."""
        if self._unfinished and not self._stopping:
            self.begin(self._unfinished.popleft())
        self._connected.notify()

    def begin(self, session: ActiveSession) -> None:
        """Make a session the active one."""
        self.active = session
        self._step(lambda active: active.start(self._connected.names, time.monotonic()))

    def _step(self, step: Callable[[ActiveSession], None]) -> None:
        """Let the active session take a step; begin the next when it is over."""
        active = self.active
        if active is None or self.fatal:
            return
        turn = active.session.turn
        try:
            step(active)
        except DurabilityError as error:
            advice = "put that right and start the aggregator again: the session goes on where it was"
            self.fatal = f"{error}; {advice}"
            self._log.error("cannot go on", reason=self.fatal)
            self.ended.set()
            return
        if self._stopping and (active.session.turn != turn or not active.in_a_turn):
            self._turned.set()
        if active.over:
            self.active = None
            self._finished[active.analyst, active.terms.digest] = active
            while len(self._finished) > MAX_UNDELIVERED:
                self._finished.pop(next(iter(self._finished)))
            self.on_end(active)
            self.begin_next()

    def _send(self, outbox: Outbox) -> None:
        if self._stopping and self._folder is not None:  # the next process asks the next question
            outbox = [
                (party, message)
                for party, message in outbox
                if isinstance(message, OpenRequest | Relay | SessionEnded)
            ]
        self._connected.send(outbox, None if self.active is None else self.active.meter)

    # ---- an analyst's session -------------------------------------------------------------------------

    def find(self, analyst: str, digest: str) -> ActiveSession | None:
        """The session of this analyst under the terms with this digest: active, waiting, or with a model that
        was not delivered.

        The key that began a session counts: another analyst's is never found, whatever name they go by.
        """
        sessions = [self.active, *self._unfinished, *self._finished.values()]
        key = analyst, digest
        return next((s for s in sessions if s and (s.analyst, s.terms.digest) == key), None)

    def stop_session(self, session: ActiveSession) -> None:
        """End a session that its analyst wants no more."""
        if session is self.active:
            self._step(lambda active: active.fail("the analyst stopped it"))
            return
        session.forget()
        if session in self._unfinished:
            self._unfinished.remove(session)

    def delivered(self, analyst: str, digest: str) -> None:
        """Drop a finished session whose analyst knows its end."""
        self._finished.pop((analyst, digest), None)

    def program(self, terms: Terms) -> Program:
        """The program of the terms, kept within this aggregator's memory."""
        return memory.within(program_of(terms, self._config.programs), self.memory)

    def new(self, terms: Terms, program: Program, analyst: str, request: Request | None) -> ActiveSession:
        """A new session with a journal of its own. Raises Refused if it cannot be recorded."""
        name = f"session-{secrets.token_hex(8)}"
        journal: Journal | None = None
        if self._folder is not None:
            try:
                journal = self._folder.begin(name)
                journal.append(Begun(name, terms, analyst, request))
            except (DurabilityError, ConfigError) as error:
                self._log.error("cannot begin a session", reason=str(error))
                raise Refused("the aggregator cannot write to its state folder: tell its operator") from None
        session = AggregatorSession(
            name,
            terms,
            program,
            NOTHING_YET,
            journal.collect if journal else lambda record: None,
            trust=self.trust,
            draw=secrets.token_bytes,
            request=request,
        )
        return ActiveSession(session, analyst, journal, self._send, self._log, self.metrics)

    def _resume(self, journal: Journal) -> ActiveSession:
        """The session of a journal. ConfigError that names the file."""
        begun, *past = journal.past
        try:
            if not isinstance(begun, Begun):
                raise ConfigError("it does not begin with its terms")
            program = self.program(begun.terms)
            if not begun.terms.parties:
                raise ConfigError("its terms name no parties")
            session = AggregatorSession(
                begun.session,
                begun.terms,
                program,
                NOTHING_YET,
                journal.collect,
                past,
                self.trust,
                secrets.token_bytes,
                request=begun.request,
            )
        except FedboostError as error:
            raise ConfigError(f"{journal.path}: {error}; move the file away to go on without it") from None
        except Exception as error:  # noqa: BLE001 - sums that cannot be may do anything to a program
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ConfigError(
                f"{journal.path}: the program fails over these sums: {what}; move the file away to go on "
                f"without it"
            ) from None
        return ActiveSession(session, begun.analyst, journal, self._send, self._log, self.metrics)
