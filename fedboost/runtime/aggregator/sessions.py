"""The sessions of an aggregator, and the journal of each session: a file from which it is resumed after a
crash.

Guarantees: `Journal.append` returns only after its record is on disk. `Journal.sync` writes all collected
records together, and returns only after they are on disk. If the process dies, at most the record being
written is lost. A journal without a complete first record is deleted.

Raises:
    ConfigError: a journal has an unknown format or version or was altered (the message names the file), or
        another process is using the folder.
    DurabilityError: a write failed. The caller must then not do anything that depends on the record.

A journal starts with a line that contains its version. Each record has its length (four bytes) and its CRC-32
(four bytes), both big-endian, followed by the record as encoded by `protocol.run`.
"""

import asyncio
import contextlib
import os
import secrets
import struct
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedboost.boosting import state
from fedboost.boosting.state import INITIAL_STATE
from fedboost.errors import ConfigError, DurabilityError, FedboostError, PeerError, Refused
from fedboost.gbdt.metrics import of_all
from fedboost.protocol import run
from fedboost.protocol.adding import RegionSum
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.contracts import Program
from fedboost.protocol.key_exchange import Trust
from fedboost.protocol.messages import (
    Attest,
    Connected,
    Disconnected,
    FromParty,
    Join,
    OpenRequest,
    OpenShare,
    Outbox,
    Relay,
    Report,
    Request,
    SessionEnded,
    Summed,
)
from fedboost.protocol.run import Begun, Opened, Record
from fedboost.runtime.aggregator.limits import Unawaited
from fedboost.runtime.aggregator.parties import ConnectedParties
from fedboost.runtime.aggregator.programs import program_of
from fedboost.runtime.config import AggregatorConfig
from fedboost.runtime.files import file_errors
from fedboost.runtime.metrics import AggregatorMetrics
from fedboost.runtime.signed_model import trained_model_of
from fedboost.runtime.telemetry import Event, Kind, Meter, Observer
from fedboost.system import lock, open_private, sync_folder
from fedboost.terms.terms import Terms
from fedboost.wire.messages import (
    MODEL_PART,
    Failed,
    ModelPart,
    RoundDone,
    TrainEvent,
    Waiting,
    decode_from_party,
)

# ---- The journal of a session ---------------------------------------------------------------------------


VERSION_LINE = b"fedboost journal 3\n"
SUFFIX = ".journal"
_HEAD = struct.Struct(">II")


class Journal:
    """The journal of one session, open for appending. past: records written by earlier processes; size:
    number of bytes of the file up to the end of these records."""

    def __init__(self, path: Path, past: tuple[Record, ...] = (), size: int = 0) -> None:
        self.path = path
        self.past = past
        """The records written by earlier processes."""
        self._collected: list[bytes] = []
        with file_errors(path, "cannot write the journal"):
            self._file = open_private(path)
            os.ftruncate(self._file, size)  # removes what a crash left half-written
        self._size = size
        if size == 0:
            self._write(VERSION_LINE, names=True)

    def append(self, record: Record) -> None:
        """Write a record and wait until it is on disk. Raises DurabilityError if that fails."""
        self.collect(record)
        self.sync()

    def collect(self, record: Record) -> None:
        """Keep a record in memory until the next `sync`."""
        data = run.encode(record)
        self._collected += [_HEAD.pack(len(data), zlib.crc32(data)), data]

    def sync(self) -> None:
        """Write the collected records at once and wait until they are on disk. Raises DurabilityError if that
        fails."""
        if self._collected:
            data, self._collected = b"".join(self._collected), []
            self._write(data)

    def close(self) -> None:
        os.close(self._file)

    def delete(self) -> None:
        """Delete the file, after the session has ended and its analyst knows the outcome."""
        self.close()
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _write(self, data: bytes, names: bool = False) -> None:
        try:
            os.lseek(self._file, self._size, os.SEEK_SET)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            getattr(os, "fdatasync", os.fsync)(self._file)  # macOS and Windows lack the first
            if names:
                sync_folder(self.path.parent)
        except OSError as error:
            # Truncate to the last complete record, from which a later process resumes.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise DurabilityError(f"{self.path} cannot be written: {error.strerror}") from None
        self._size += len(data)


def read_journal(path: Path) -> tuple[tuple[Record, ...], int]:
    """Return the complete records in a journal file, and the number of bytes up to their end. Raises
    ConfigError, naming the file, if it is not a journal of this version or was altered."""
    with file_errors(path, "cannot read the journal"):
        data = path.read_bytes()
    if VERSION_LINE.startswith(data):  # the process died before the first record
        return (), 0
    if not data.startswith(VERSION_LINE):
        raise ConfigError(
            "journal-version",
            f"{path} is not a journal of this version; move the file aside to continue without it",
        )
    records: list[Record] = []
    position = len(VERSION_LINE)
    while position + _HEAD.size <= len(data):
        size, crc = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + size
        body = data[position + _HEAD.size : end]
        if end > len(data):
            break
        if size == 0 and not any(data[position:]):
            break  # a power failure may leave zeros at the end of a file
        if zlib.crc32(body) != crc:
            if end == len(data):
                break  # the last record is half-written
            raise ConfigError(
                "journal-altered",
                f"{path}: record {len(records) + 1} was changed after it was written; move the file aside "
                f"to continue without that session",
            )
        try:
            records.append(run.decode(body))
        except ConfigError as error:
            raise ConfigError(
                "journal-unreadable", f"{path}: record {len(records) + 1} cannot be read: {error}"
            ) from None
        position = end
    return tuple(records), position


class Folder:
    """Folder that stores the journals of unfinished sessions, locked by this process. Raises ConfigError if
    it cannot be created or locked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            unlock = lock(path / "lock", 0)
        except OSError as error:
            raise ConfigError(
                "state-folder-unwritable",
                f"{path} cannot be used: {error.strerror}; set `state` to a folder that this user can "
                "write to",
            ) from None
        if unlock is None:
            raise ConfigError(
                "state-folder-in-use",
                f"{path} is in use by another aggregator; set a different `state` folder for each aggregator",
            )
        self.close = unlock

    def begin(self, session: str) -> Journal:
        """Create a journal for a new session. Raises ConfigError or DurabilityError if it cannot be
        created."""
        return Journal(self._path / f"{session}{SUFFIX}")

    def unfinished(self) -> list[Journal]:
        """Open the journals that earlier processes left, oldest first. Raises ConfigError if one cannot be
        read. Journals without a complete record are deleted."""
        journals = []
        for path in sorted(self._path.glob(f"*{SUFFIX}"), key=lambda path: path.lstat().st_mtime):
            past, size = read_journal(path)
            if past:
                journals.append(Journal(path, past, size))
            else:
                path.unlink()
        return journals


# ---- The pace of a session's parties: who is slow now, and for whom the others waited most --------------
# Awaited parties are slow once they have been the same for a while. For each turn, the party that answered
# last is recorded, and by how much. There is no clock here: callers pass the time.


STRAGGLER_SECONDS = 10.0
"""Seconds after which parties that a session waits for are reported as slow."""


@dataclass
class Waits:
    """How often a party was the last to answer in a turn, and for how many seconds in total the others waited
    for it."""

    turns: int = 0
    seconds: float = 0.0


@dataclass
class Pace:
    """Records which parties slow down one session. slow: parties that have been waited for longer than
    `STRAGGLER_SECONDS`; waits: party -> how often and for how long the others waited for it."""

    slow: tuple[str, ...] = ()
    waits: dict[str, Waits] = field(default_factory=dict)
    _standing: object = None
    _since: float = 0.0
    _last: str = ""
    _heard: float = 0.0
    """Time of the last answer of party `_last`."""
    _others: float = 0.0
    """Time of the last answer of another party."""

    def look(self, standing: object, awaited: Callable[[], tuple[str, ...]], now: float) -> bool:
        """Record what the session waits for (`AggregatorSession.standing`). awaited: returns the parties.
        Returns True if the set of slow parties changed."""
        if standing != self._standing:
            self._standing, self._since = standing, now
        slow = awaited() if now - self._since >= STRAGGLER_SECONDS else ()
        changed, self.slow = slow != self.slow, slow
        return changed

    def heard(self, party: str, now: float, ends_turn: bool) -> None:
        """Record that part of an answer arrived from a party. `ends_turn` is True for the last part of the
        turn."""
        if party != self._last:
            self._last, self._others = party, self._heard
        self._heard = now
        if ends_turn:
            waits = self.waits.setdefault(party, Waits())
            waits.turns += 1
            waits.seconds += now - self._others if self._others else 0.0

    @property
    def slowest(self) -> str:
        """The party for which the others waited longest in total, or an empty string."""
        return max(self.waits, key=lambda party: self.waits[party].seconds, default="")


# ---- A session under way at the aggregator --------------------------------------------------------------
# Its state machine, its journal, and the events for its analyst.
# Promises: an analyst gets every event from the first on, however late. A defect of a program ends only its
# session, with one sentence. No step has an effect outside before the journal has it.
# All methods run in the event loop. Only `follow` awaits, so a step is never interleaved with another one.


class ActiveSession:
    """A session of the aggregator: its state machine, its journal, and the events for its analyst.

    Args:
        analyst: name and key of the analyst, or "" if the aggregator runs without keys.
        journal: its journal, or None if the session does not survive this process.
        send: function that sends the messages of an outbox.
        observer: receives the events that are counted in metrics.
    """

    def __init__(
        self,
        session: AggregatorSession,
        analyst: str,
        journal: Journal | None,
        send: Callable[[Outbox], None],
        log: Any,
        observer: Observer,
    ) -> None:
        self.session = session
        self.analyst = analyst
        self.meter = Meter(
            session.terms.parties, lambda **moved: self._observer.observe(Event("bytes", **moved))
        )
        self._observer = observer
        self.over = False
        self._journal = journal
        self._send = send
        self.since = int(time.time() if session.request is None else session.request.time)
        """Time of the analyst's request, in seconds since 1970."""
        self.pace = Pace()
        name = {"analyst": self.analyst_name} if analyst else {}
        self._log = log.bind(session=session.name, **name)
        self._joined: set[str] = set()
        self._events: list[TrainEvent] = []
        self._changed = asyncio.Event()

    @property
    def terms(self) -> Terms:
        return self.session.terms

    @property
    def analyst_name(self) -> str:
        """Name of the analyst, or an empty string if the aggregator runs without keys."""
        return self.analyst.rpartition("#")[0]

    @property
    def failed(self) -> bool:
        """True if the session ended without a result."""
        return self.over and isinstance(self._events[-1], Failed)

    @property
    def failure(self) -> str:
        """Reason why the session ended without a result, or an empty string."""
        last = self._events[-1] if self.over else None
        return last.reason if isinstance(last, Failed) else ""

    @property
    def model(self) -> bytes:
        """The model file of a finished session. Empty if there is none."""
        return b"".join(event.data for event in self._events if isinstance(event, ModelPart))

    @property
    def in_a_turn(self) -> bool:
        """True from the time a query is sent until the sum of its answers is known."""
        return self.session.phase in ("asking", "opening")

    def start(self, here: set[str], now: float) -> None:
        """Start the session, or continue it from the journal. here: the connected parties; now: current
        time."""
        resumed = bool(self._journal and len(self._journal.past) > 1)
        kind: Kind = "session goes on" if resumed else "session begins"
        self._report(kind, parties=[*self.terms.parties], terms=self.terms)
        self.session.tick(now)
        self._take(lambda: self.session.start(here), begins=True)

    def handle(self, party: str, event: FromParty | Connected | Disconnected) -> None:
        if self.over or party not in self.terms.parties:
            return
        match event:
            case Join(name) if name == self.session.name:
                self._joined.add(party)
            case Join() | Relay() | Report() | OpenShare() | Attest() if party not in self._joined:
                return  # left over from the previous session
            case Disconnected(reason):
                self._joined.discard(party)
                self._log.info("party lost", party=party, reason=reason, then=self._then)
        turn = self.session.turn
        self._take(lambda: self.session.handle(party, event))
        if isinstance(event, Report):
            self.pace.heard(party, time.monotonic(), self.session.turn != turn)

    def tick(self, now: float) -> None:
        """Check deadlines at time `now`, and report slow parties."""
        if self.over:
            return
        session, attempt, seconds = self.session, self.session.attempt, self.session.seconds
        late = session.awaited if now >= session.deadline else ()
        self._take(lambda: self.session.tick(now))
        if self.session.attempt != attempt and self.session.phase == "joining":
            self._log.info(
                "late", parties=list(late), turn=self.session.turn, seconds=seconds, then=self._then
            )
        if self.pace.look(session.standing, lambda: session.awaited, now):
            if slow := self.pace.slow:
                self._log.info("waiting", parties=list(slow), turn=self.session.turn)
                self._tell(Waiting(slow))
            else:
                self._log.info("goes on", turn=self.session.turn)

    def handle_sum(self, frame: RegionSum, sizes: dict[str, int], last: str) -> None:
        """Handle a part of an adder's sum.

        Args:
            frame: the sum.
            sizes: party -> bytes of its report, for all parties of the sum.
            last: the party that completed the part.

        Raises PeerError, which concerns the adder, if the sum must not be added."""
        if self.over or not self._joined.issuperset(sizes):
            return  # left over from the previous session
        for party, size in sizes.items():
            self.meter.count(party, sent=size)
        report = Report(frame.turn, frame.attempt, frame.part, frame.cells, ctx=frame.ctx)
        turn = self.session.turn
        self._take(lambda: self.session.handle_sum(Summed(tuple(sizes), report)))
        self.pace.heard(last, time.monotonic(), self.session.turn != turn)

    def awaits(self, party: str, message: FromParty) -> bool:
        """Return whether the session is waiting for this message from this party."""
        awaited = party in self.session.roster and self.session.awaits(party)
        return awaited and (party in self._joined or isinstance(message, Join))

    def fail(self, reason: str) -> None:
        """End the session for a reason not caused by a party, and notify the parties."""
        self._send([(party, SessionEnded(reason)) for party in self.terms.parties])
        self._end(Failed(reason))

    def finish(self) -> None:
        """End the session after the current round, at the analyst's request."""
        self.session.finish()
        self._log.info("the analyst requested no further rounds", turn=self.session.turn)

    async def follow(self) -> AsyncIterator[TrainEvent]:
        """Yield all events of the session from the first on, and wait for new events until the session is
        over."""
        # No event is missed: between the check of the position and `wait` nothing else runs, and `_tell` adds
        # the event before it wakes the waiters. `over` is set together with the last events, so an empty rest
        # after it is the end.
        position = 0
        while True:
            while position < len(self._events):
                event, position = self._events[position], position + 1
                if not isinstance(event, Waiting) or position == len(self._events):  # old ones are outdated
                    yield event
            if self.over:
                return
            await self._changed.wait()

    def forget(self) -> None:
        """Delete the journal, because the analyst knows how the session ended."""
        if self._journal is not None:
            self._journal.delete()
            self._journal = None

    def pause(self) -> None:
        """Close the journal and leave it to the next process."""
        if self._journal is not None:
            self._journal.close()

    @property
    def _then(self) -> str:
        """Text for the log that describes what happens after a party is lost."""
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
                # Before any effect: otherwise, after a crash, parties or the analyst would know of a step
                # that the resumed session has not taken, and may take differently.
                self._journal.sync()
            for row in self.meter.rows(self.session.history):
                metrics = {k: v for k, v in row.items() if k not in ("round", "seconds", "bytes")}
                traffic = dict(self.meter.traffic)
                self._tell(RoundDone(int(row["round"]), metrics, self.meter.seconds, traffic))
                if not begins:  # earlier processes have logged theirs
                    number, size = int(row["round"]) + 1, int(row["bytes"])
                    about = {"round": number, "of": self.terms.trees.rounds, "bytes": size}
                    self._report("round", **about, metrics=of_all(metrics), seconds=row["seconds"])
            self._report("turn", turn=self.session.turn)
            self._send(outbox)
        except (DurabilityError, PeerError):  # of the journal; of an adder, before its sum has any effect
            raise
        except Exception as error:  # noqa: BLE001 - a program's defect ends its session only
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            self.fail(f"program {self.terms.session.program!r} failed: {what}")
            return
        if self.session.phase == "done":
            self._end(None)
        elif self.session.phase == "failed":
            self._end(Failed(str(self.session.error)))

    def _end(self, failed: Failed | None) -> None:
        """End the session with a model, or as failed if `failed` is given."""
        if self.over:
            return
        self.over = True
        self.meter.report()
        try:
            model = None if failed else trained_model_of(self.session).to_bytes()
        except FedboostError as error:
            failed = Failed(str(error))
        if failed is not None:
            self._report("session failed", reason=failed.reason)
            self._tell(failed)
            self.forget()
            return
        assert model is not None
        self._report("session done", rounds=len(self.session.history), seconds=self.meter.seconds)
        for start in range(0, len(model), MODEL_PART):
            last = start + MODEL_PART >= len(model)
            self._tell(ModelPart(model[start : start + MODEL_PART], last, self.meter.traffic if last else {}))

    def _report(self, kind: Kind, **values: Any) -> None:
        self._observer.observe(Event(kind, self.session.name, self.analyst_name, **values))

    def _tell(self, event: TrainEvent) -> None:
        self._events.append(event)
        # Wakes the waiters of this event. Later waiters wait on a new event, so no reset is needed.
        self._changed.set()
        self._changed = asyncio.Event()


# ---- The sessions of an aggregator: one is active, others wait in their journals ------------------------
# The last finished ones are kept until their analysts have the models.
# Promises: a session of an earlier process continues where its journal ends. If a journal cannot be written,
# the process ends: no session continues without its journal.


MAX_UNDELIVERED = 16
"""Maximum number of finished sessions kept in memory for their analysts. Of older sessions, only the journal
is kept."""
CANNOT_WRITE = "the aggregator cannot write to its state folder; contact its operator"
TURN_SECONDS = 20.0
"""Seconds to wait for the current turn before the process ends."""


class Sessions:
    """All sessions of an aggregator process: the active one, those waiting to be resumed, and those whose
    result has not been fetched. The event `ended` is set when the process is stopped or must end."""

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
        self.memory = int(config.memory * state.GIB)
        """Maximum number of bytes for the sums of a session."""
        self.active: ActiveSession | None = None
        self.ended = asyncio.Event()
        self.fatal = ""
        """Reason why the process must end, or an empty string."""
        self.on_end: Callable[[ActiveSession], None] = lambda session: None
        """Called with each session that ends in this process. It must not raise."""
        self._stopping = False
        self._turned = asyncio.Event()
        self._config = config
        self._connected = connected
        self._log = log
        self._observer = connected.observer
        self._folder: Folder | None = None
        self.unfinished: deque[ActiveSession] = deque()
        """Sessions of an earlier process that wait until the active one ends."""
        self.finished: dict[tuple[str, str], ActiveSession] = {}
        """Sessions whose outcome has not reached the analyst, by analyst and digest of the terms."""

    def open(self) -> None:
        """Lock the state folder and load its sessions. Raises ConfigError, naming the file, if one cannot be
        resumed."""
        if self._config.state is None:
            return
        self._folder = Folder(self._config.state)
        self._connected.seen.open(self._config.state)
        for journal in self._folder.unfinished():
            session = self._resume(journal)
            if any(isinstance(past, Opened) for past in journal.past):
                self.unfinished.append(session)
            else:  # a party may not know it yet, and refuses a later attempt of an unknown session
                self._log.info("session dropped: no sum was opened", session=session.session.name)
                session.forget()

    async def stop(self) -> None:
        """Finish the current turn. Without a state folder, the active session fails instead."""
        self._stopping = True
        active = self.active
        waits = active is not None and self._folder is not None
        self._log.info("stopping", **({"goes_on": "when the aggregator is restarted"} if waits else {}))
        if active is not None and self._folder is None:
            active.fail("the aggregator was stopped")
            await asyncio.sleep(0.1)  # lets the last messages leave
        elif active is not None and active.in_a_turn and not self.fatal:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._turned.wait(), TURN_SECONDS)

    def close(self) -> None:
        """Release the state folder, so that another process can use it."""
        self._connected.seen.write(time.monotonic(), at_once=True)
        if self._folder is not None:
            self._folder.close()
        self.ended.set()

    # ---- the active session ---------------------------------------------------------------------------

    @property
    def may_begin(self) -> bool:
        """True if no session is active, so that one may start now."""
        return self.active is None and not self._stopping

    def handle(self, party: str, event: FromParty | Connected | Disconnected) -> None:
        """Pass a message of a party, or a change of its connection, to the active session."""
        self._step(lambda active: active.handle(party, event))

    def handle_sum(self, frame: RegionSum, sizes: dict[str, int], last: str) -> None:
        """Pass a part of an adder's sum to the active session, as `ActiveSession.handle_sum`."""
        self._step(lambda active: active.handle_sum(frame, sizes, last))

    def hold(self, turn: int, attempt: int, parties: Iterable[str]) -> None:
        """Record that an adder has these parties' whole reports, while it waits for others."""
        if self.active is not None:
            self.active.session.hold(turn, attempt, parties)

    async def hear(self, party: str, data: bytes, unawaited: Unawaited) -> None:
        """Pass a party's message to the active session; a relay waits until its receivers have read most of
        what came before. Raises PeerError if it is malformed, or one too many that is not awaited."""
        active = self.active
        if active is not None and party in active.terms.parties:
            active.meter.count(party, sent=len(data))
        message = decode_from_party(data)
        unawaited.note(active is not None and active.awaits(party, message), time.monotonic())
        if isinstance(message, Relay):
            await self._connected.room(message.to)
        self.handle(party, message)

    def tick(self, now: float) -> None:
        self._connected.seen.write(now)
        self._step(lambda active: active.tick(now))

    def begin_next(self) -> None:
        """Continue a session of an earlier process, if there is one, and wake the analysts who wait to start
        a session."""
        if self.unfinished and not self._stopping:
            self.begin(self.unfinished.popleft())
        self._connected.notify()

    def begin(self, session: ActiveSession) -> None:
        """Make a session the active one and start it."""
        self.active = session
        self._step(lambda active: active.start(self._connected.names, time.monotonic()))

    def _step(self, step: Callable[[ActiveSession], None]) -> None:
        """Apply a step to the active session. If the session is then over, start the next one."""
        active = self.active
        if active is None or self.fatal:
            return
        turn = active.session.turn
        try:
            step(active)
        except DurabilityError as error:
            advice = "fix this and restart the aggregator; the session will continue where it stopped"
            self.fatal = f"{error}; {advice}"
            self._log.error("cannot go on", reason=self.fatal)
            self.ended.set()
            return
        if self._stopping and (active.session.turn != turn or not active.in_a_turn):
            self._turned.set()
        # Cleared before the next one begins: that may take a step, and end, within this very call.
        if active.over:
            self.active = None
            self.finished[active.analyst, active.terms.digest] = active
            while len(self.finished) > MAX_UNDELIVERED:
                self.finished.pop(next(iter(self.finished)))
            self.on_end(active)
            self.begin_next()

    def _send(self, outbox: Outbox) -> None:
        # A stopping process only finishes the current turn. The next process sends the next query.
        if self._stopping and self._folder is not None:
            outbox = [
                (party, message)
                for party, message in outbox
                if isinstance(message, OpenRequest | Relay | SessionEnded)
            ]
        if self.active is None:
            self._connected.send(outbox, None)
        elif outbox:  # most reports lead to no message
            self._connected.send(outbox, self.active.meter, self.active.session.addition)

    # ---- an analyst's session -------------------------------------------------------------------------

    def find(self, analyst: str, digest: str) -> ActiveSession | None:
        """Return the session of this analyst under the terms with this digest, or None. It may be active,
        waiting to be resumed, or finished but not delivered. analyst: name and key; a session that was
        started with another key is never found."""
        sessions = [self.active, *self.unfinished, *self.finished.values()]
        key = analyst, digest
        return next((s for s in sessions if s and (s.analyst, s.terms.digest) == key), None)

    def stop_session(self, session: ActiveSession) -> None:
        """End a session at its analyst's request, without a model."""
        if session is self.active:
            self._step(lambda active: active.fail("the analyst stopped it"))
            return
        session.forget()
        if session in self.unfinished:
            self.unfinished.remove(session)

    def delivered(self, analyst: str, digest: str) -> None:
        """Drop a finished session after its analyst has received the outcome."""
        self.finished.pop((analyst, digest), None)

    def program(self, terms: Terms) -> Program:
        """Return the program for the terms. The program raises Refused if it needs more memory than this
        aggregator allows."""
        return state.within(program_of(terms, self._config.programs), self.memory)

    def new(self, terms: Terms, program: Program, analyst: str, request: Request | None) -> ActiveSession:
        """Create a session and its journal. Raises Refused if the journal cannot be written."""
        name = f"session-{secrets.token_hex(8)}"
        begun = Begun(name, terms, analyst, request)
        journal: Journal | None = None
        if self._folder is not None:
            try:
                journal = self._folder.begin(name)
                journal.append(begun)
            except (DurabilityError, ConfigError) as error:
                self._log.error("cannot begin a session", reason=str(error))
                raise Refused("aggregator-cannot-write", CANNOT_WRITE) from None
        return self._active(begun, program, journal)

    def _resume(self, journal: Journal) -> ActiveSession:
        """Resume the session that a journal records. Raises ConfigError, naming the file, if that is not
        possible."""
        begun, *past = journal.past
        try:
            if not isinstance(begun, Begun):
                raise ConfigError("journal-without-terms", "the first record does not contain the terms")
            program = self.program(begun.terms)
            if not begun.terms.parties:
                raise ConfigError("terms-no-parties", "the terms do not name any parties")
            return self._active(begun, program, journal, past)
        except FedboostError as error:
            raise ConfigError(
                "journal-not-resumed", f"{journal.path}: {error}; move the file aside to continue without it"
            ) from None
        except Exception as error:  # noqa: BLE001 - inconsistent sums may break a program in any way
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ConfigError(
                "journal-program-failed",
                f"{journal.path}: the program failed on the recorded sums: {what}; move the file aside to "
                f"continue without it",
            ) from None

    def _active(
        self, begun: Begun, program: Program, journal: Journal | None, past: Sequence[Record] = ()
    ) -> ActiveSession:
        session = AggregatorSession(
            begun.session,
            begun.terms,
            program,
            INITIAL_STATE,
            journal.collect if journal else None,
            past,
            self.trust,
            secrets.token_bytes,
            request=begun.request,
        )
        return ActiveSession(session, begun.analyst, journal, self._send, self._log, self._observer)
