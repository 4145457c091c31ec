"""Sessions that are over, with their models: what the console shows of the past.

Each session has a file NAME.json with its facts, and NAME.model with its model if it has one, in the folder
`ended` of the state folder. Beyond MAX_ENDED of those that are done, and MAX_FAILED of the others, the
oldest of the analyst who has most is deleted: no analyst takes the place of another's, nor a failure that of
a model.

Promises: files are for the aggregator's user alone; what cannot be written or read is one line in the log,
and the session is in memory all the same.
Refuses: nothing: a session never fails for its record.
"""

import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from fedboost.errors import FedboostError
from fedboost.people.console.shell import EndedFacts
from fedboost.protocol.messages import Request
from fedboost.runtime.aggregator.active_session import ActiveSession
from fedboost.runtime.files import write_atomically
from fedboost.runtime.signed_model import PART_BEGINS
from fedboost.terms.session import TO_DESCRIBE, TO_EVALUATE, TO_TRAIN

MAX_ENDED = 64
"""Sessions that are kept of those that are done."""
MAX_FAILED = 64
"""Sessions that are kept of those that failed."""
MAX_IN_MEMORY = 4
"""Models that are kept in memory: those that are not on the disk."""
FOLDER = "ended"
REPORTED = TO_TRAIN, TO_DESCRIBE, TO_EVALUATE
"""Sessions of whose end there is a report."""
_NAME = re.compile(r"session-[0-9a-f]{16}")


class Archive:
    """The sessions that ended, the latest first. state: the aggregator's state folder; None: they end with
    the process."""

    def __init__(self, state: Path | None, log: Any) -> None:
        self.ended: list[EndedFacts] = []
        self._folder = None if state is None else state / FOLDER
        self._log = log
        self._models: dict[str, bytes] = {}
        """Models that are not on the disk, or not yet."""
        self._writing: set[asyncio.Task[None]] = set()
        self._disk = asyncio.Lock()
        """Held by who writes: one after the other, so that nothing is written after it was dropped."""

    def open(self) -> None:
        """Read what earlier processes kept."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            files = [path for path in self._folder.glob("*.json") if _NAME.fullmatch(path.stem)]
        except OSError as error:
            self._log.error("sessions that ended are not kept", folder=str(self._folder), reason=str(error))
            self._folder = None
            return
        found = [facts for path in files if (facts := self._read(path)) is not None]
        self.ended = sorted(found, key=lambda facts: -facts.ended)

    def add(self, session: ActiveSession) -> None:
        """Keep a session that has just ended."""
        try:
            facts, model = facts_of(session)
            if self.find(facts.name) is not None:  # it ended in an earlier process, which counted all of it
                return
            self.ended.insert(0, facts)
            dropped = self._make_room()
            if model:
                self._models[facts.name] = model
            for name in [*dropped, *[*self._models][:-MAX_IN_MEMORY]]:
                self._models.pop(name, None)
            if self._folder is not None:
                task = asyncio.create_task(self._store(self._folder, facts, model, dropped))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)
        except Exception as error:  # noqa: BLE001 - a record that cannot be made ends no session
            self._log.error("a session is not kept", reason=f"{type(error).__name__}: {error}")

    def find(self, name: str) -> EndedFacts | None:
        """The session of this name."""
        return next((facts for facts in self.ended if facts.name == name), None)

    def model(self, name: str) -> bytes | None:
        """The model file of a session of this name; None if it is not kept. Reads the disk."""
        try:
            with self.model_file(name) or BytesIO() as opened:
                return opened.read() or None
        except OSError:
            return None

    def model_file(self, name: str) -> BinaryIO | None:
        """The same, to be read in parts."""
        if self.find(name) is None:
            return None
        model = self._models.get(name)
        if model is not None or self._folder is None:
            return None if model is None else BytesIO(model)
        try:
            return (self._folder / f"{name}.model").open("rb")
        except OSError:
            return None

    async def is_kept(self, name: str) -> bool:
        """Tell if a session of this name outlives the process; waits until it is written."""
        await self.close()
        return self._folder is not None and (self._folder / f"{name}.json").exists()

    async def close(self) -> None:
        """Wait until all is written."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _make_room(self) -> list[str]:
        """Drop sessions while there are too many, and return their names."""
        dropped = []
        for failed, most in ((False, MAX_ENDED), (True, MAX_FAILED)):
            alike = [facts for facts in reversed(self.ended) if bool(facts.reason) is failed]
            while len(alike) > most:
                ((analyst, _),) = Counter(facts.analyst for facts in alike).most_common(1)
                oldest = next(facts for facts in alike if facts.analyst == analyst)
                alike.remove(oldest)
                self.ended.remove(oldest)
                dropped.append(oldest.name)
        return dropped

    async def _store(self, folder: Path, facts: EndedFacts, model: bytes, dropped: list[str]) -> None:
        async with self._disk:
            if await asyncio.to_thread(self._write, folder, facts, model, dropped):
                self._models.pop(facts.name, None)

    def _write(self, folder: Path, facts: EndedFacts, model: bytes, dropped: list[str]) -> bool:
        """Write a session to the disk, and delete others there; False if that fails."""
        try:
            if model:
                write_atomically(folder / f"{facts.name}.model", model, 0o600)
            write_atomically(folder / f"{facts.name}.json", json.dumps(asdict(facts)).encode(), 0o600)
            for name in dropped:
                (folder / f"{name}.json").unlink(missing_ok=True)
                (folder / f"{name}.model").unlink(missing_ok=True)
        except (FedboostError, OSError) as error:
            self._log.error("a session is not kept", session=facts.name, reason=str(error))
            return False
        return True

    def _read(self, path: Path) -> EndedFacts | None:
        try:
            values = json.loads(path.read_bytes())
            values |= {"parties": tuple(values["parties"])}
            values["traffic"] = {name: (int(a), int(b)) for name, (a, b) in values["traffic"].items()}
            values["rounds"] = [{str(k): float(v) for k, v in row.items()} for row in values["rounds"]]
            facts = EndedFacts(**values)
            return facts if facts.name == path.stem and type(facts.ended) is int else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self._log.warning("not the record of a session", file=str(path), reason=type(error).__name__)
            return None


def nonce_of(request: Request | None) -> str:
    """What tells a signed request from all others; '' where nothing is signed."""
    return "" if request is None else request.nonce.hex()


def facts_of(session: ActiveSession) -> tuple[EndedFacts, bytes]:
    """The facts of a session that is over, and its model file, empty if it has none."""
    terms, model = session.terms, session.model
    whole = bool(model) and not model.startswith(PART_BEGINS.encode())
    facts = EndedFacts(
        name=session.session.name,
        analyst=session.analyst_name,
        terms=terms.digest,
        program=terms.session.program,
        protection=terms.hiding.protection,
        parties=terms.parties,
        ended=int(time.time()),
        seconds=session.meter.seconds,
        reason=session.failure,
        rounds=[*session.meter.history],
        traffic=dict(session.meter.traffic),
        model_bytes=len(model),
        has_report=whole and terms.task in REPORTED,
        request=nonce_of(session.session.request),
    )
    return facts, model
