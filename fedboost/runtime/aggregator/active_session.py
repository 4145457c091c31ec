"""A session under way at the aggregator: its state machine, its journal, and the events for its analyst.

Promises: an analyst gets every event from the beginning, however late they come; a defect of a program ends
its session with one sentence, and nothing else; no step is taken that the journal cannot hold.
Refuses: to go on when the journal cannot be written (DurabilityError).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fedboost.errors import DurabilityError, FedboostError
from fedboost.gbdt.metrics.registry import of_all
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.messages import (
    Attest,
    Connected,
    Disconnected,
    FromParty,
    Join,
    OpenShare,
    Outbox,
    Relay,
    Report,
    SessionEnded,
)
from fedboost.protocol.run import Opened
from fedboost.runtime.aggregator.pace import Pace
from fedboost.runtime.aggregator.store import Journal
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.party_model import trained_model_of
from fedboost.runtime.telemetry import Meter, Row
from fedboost.terms.terms import Terms
from fedboost.wire.services import MODEL_PART, Failed, ModelPart, RoundDone, TrainEvent, Waiting


class ActiveSession:
    """A session under way. `send` takes its outbox; without a journal it does not outlive the process."""

    def __init__(
        self,
        session: AggregatorSession,
        analyst: str,
        journal: Journal | None,
        send: Callable[[Outbox], None],
        log: Any,
        metrics: AggregatorMetrics,
    ) -> None:
        self.session = session
        self.analyst = analyst
        self.meter = Meter(session.terms.parties, metrics.moved)
        self._metrics = metrics
        self.over = False
        self._journal = journal
        self._send = send
        self.since = int(time.time() if session.request is None else session.request.time)
        """When it was asked for, seconds since 1970."""
        self.pace = Pace()
        name = {"analyst": self.analyst_name} if analyst else {}
        self._log = log.bind(session=session.name, **name)
        self._joined: set[str] = set()
        self._events: list[TrainEvent] = []
        self._changed = asyncio.Event()

    @property
    def terms(self) -> Terms:
        """The terms of the session."""
        return self.session.terms

    @property
    def analyst_name(self) -> str:
        """The name of its analyst; '' where analysts have no keys."""
        return self.analyst.rpartition("#")[0]

    @property
    def failed(self) -> bool:
        """True if the session ended without a model."""
        return self.over and isinstance(self._events[-1], Failed)

    @property
    def failure(self) -> str:
        """The reason for which it ended without a model; '' if it did not."""
        last = self._events[-1] if self.over else None
        return last.reason if isinstance(last, Failed) else ""

    @property
    def model(self) -> bytes:
        """The model file of a session that is over; nothing if it has none."""
        return b"".join(event.data for event in self._events if isinstance(event, ModelPart))

    @property
    def has_opened(self) -> bool:
        """True if an earlier process opened a sum of this session."""
        return self._journal is not None and any(isinstance(past, Opened) for past in self._journal.past)

    @property
    def in_a_turn(self) -> bool:
        """True while a question is asked whose sum is not open yet."""
        return self.session.phase in ("asking", "opening")

    def start(self, here: set[str], now: float) -> None:
        """Begin, or go on from the journal, with the parties that are connected."""
        resumed = bool(self._journal and len(self._journal.past) > 1)
        self._log.info(
            "session goes on" if resumed else "session begins",
            parties=list(self.terms.parties),
            terms=self.terms.digest[:12],
        )
        self._metrics.begun()
        self.session.tick(now)
        self._take(lambda: self.session.start(here), begins=True)

    def handle(self, party: str, event: FromParty | Connected | Disconnected) -> None:
        """Take a party's message, or a change of its connection."""
        if self.over or party not in self.terms.parties:
            return
        match event:
            case Join(name) if name == self.session.name:
                self._joined.add(party)
            case Join() | Relay() | Report() | OpenShare() | Attest() if party not in self._joined:
                return  # its last words in the session before this one
            case Disconnected(reason):
                self._joined.discard(party)
                self._log.info("party lost", party=party, reason=reason, then=self._then)
        turn = self.session.turn
        self._take(lambda: self.session.handle(party, event))
        if isinstance(event, Report):
            self.pace.heard(party, time.monotonic(), self.session.turn != turn)

    def tick(self, now: float) -> None:
        """Let time pass: look at deadlines, and name the parties that are slow."""
        if self.over:
            return
        attempt, late, seconds = self.session.attempt, list(self.session.awaited), self.session.seconds
        self._take(lambda: self.session.tick(now))
        if self.session.attempt != attempt and self.session.phase == "joining":
            self._log.info("late", parties=late, turn=self.session.turn, seconds=seconds, then=self._then)
        if self.pace.look(self.session.awaited, now):
            if slow := self.pace.slow:
                self._log.info("waiting", parties=list(slow), turn=self.session.turn)
                self._tell(Waiting(slow))
            else:
                self._log.info("goes on", turn=self.session.turn)

    def awaits(self, party: str, message: FromParty) -> bool:
        """Tell if the session waits for this message of this party."""
        awaited = party in self.session.roster and self.session.awaits(party)
        return awaited and (party in self._joined or isinstance(message, Join))

    def fail(self, reason: str) -> None:
        """End the session for a reason that is no party's."""
        self._send([(party, SessionEnded(reason)) for party in self.terms.parties])
        self._end(Failed(reason))

    def finish(self) -> None:
        """End the session with the round under way."""
        self.session.finish()
        self._log.info("the analyst wants no more rounds", turn=self.session.turn)

    async def follow(self) -> AsyncIterator[TrainEvent]:
        """Yield every event, from the first to the last."""
        position = 0
        while True:
            while position < len(self._events):
                event, position = self._events[position], position + 1
                if not isinstance(event, Waiting) or position == len(self._events):  # who was slow is no news
                    yield event
            if self.over:
                return
            await self._changed.wait()

    def forget(self) -> None:
        """Delete the journal: the analyst knows how the session ended."""
        if self._journal is not None:
            self._journal.delete()
            self._journal = None

    def pause(self) -> None:
        """Keep the journal for the next process."""
        if self._journal is not None:
            self._journal.close()

    @property
    def _then(self) -> str:
        """The consequence of a lost party under the terms."""
        seconds = f"unless it is back within {self.terms.session.rejoin_timeout:g} s"
        match self.terms.session.on_loss:
            case "wait":
                return "the session waits for it"
            case "shrink":
                return f"the session goes on without it {seconds}"
            case "stop":
                return f"the session ends {seconds}"

    def _take(self, step: Callable[[], Outbox], begins: bool = False) -> None:
        try:
            outbox = step()
            if self._journal is not None:
                self._journal.sync()  # before anything that follows from it is said
            for row in self.meter.rows(self.session.history):
                metrics = {k: v for k, v in row.items() if k not in ("round", "seconds", "bytes")}
                traffic = dict(self.meter.traffic)
                self._tell(RoundDone(int(row["round"]), metrics, self.meter.seconds, traffic))
                if not begins:  # those of an earlier process are in its log
                    self._log_round(row, of_all(metrics))
            self._metrics.turn_is(self.session.turn)
            self._send(outbox)
        except DurabilityError:
            raise
        except Exception as error:  # noqa: BLE001 - a program's defect ends its session, nothing else
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            self.fail(f"program {self.terms.session.program!r} failed: {what}")
            return
        if self.session.phase == "done":
            self._end(None)
        elif self.session.phase == "failed":
            self._end(Failed(str(self.session.error)))

    def _log_round(self, row: Row, metrics: dict[str, float]) -> None:
        number, seconds = int(row["round"]) + 1, row["seconds"]
        self._metrics.round(number, seconds)
        self._metrics.results(metrics)
        rounds, size = self.terms.trees.rounds, int(row["bytes"])
        self._log.info("round", round=number, of=rounds, **metrics, seconds=round(seconds, 3), bytes=size)

    def _end(self, failed: Failed | None) -> None:
        """End the session: with a model, unless it failed."""
        if self.over:
            return
        self.over = True
        try:
            model = None if failed else trained_model_of(self.session).to_bytes()
        except FedboostError as error:
            failed = Failed(str(error))
        if failed is not None:
            self._metrics.ended("failed")
            self._log.warning("session failed", reason=failed.reason)
            self._tell(failed)
            self.forget()
            return
        assert model is not None
        self._metrics.ended("done")
        self._log.info("session done", rounds=len(self.session.history), seconds=round(self.meter.seconds, 2))
        for start in range(0, len(model), MODEL_PART):
            last = start + MODEL_PART >= len(model)
            self._tell(ModelPart(model[start : start + MODEL_PART], last, self.meter.traffic if last else {}))

    def _tell(self, event: TrainEvent) -> None:
        self._events.append(event)
        self._changed.set()
        self._changed = asyncio.Event()
