"""The archive of ended sessions and their models, the queue of submitted sessions, and the status of an
aggregator.

In the folder `ended` of the state folder, each ended session has a file NAME.json with its facts, and a file
NAME.model if it has a model. At most MAX_ENDED finished and MAX_FAILED failed sessions are kept. Beyond that,
the oldest session of the analyst with the most sessions is deleted. Therefore, no analyst displaces another's
sessions, and no failed session displaces a model.

Only the aggregator's user can read the files. If a file cannot be written, this is logged and the session
stays in memory. If a file cannot be read, this is logged and the file is skipped.
"""

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import ValidationError

from fedboost.errors import ConfigError, FedboostError, Refused, quoted
from fedboost.privacy.identity import Identified, identify, key_fingerprint
from fedboost.protocol import key_exchange
from fedboost.protocol.contracts import Program
from fedboost.protocol.messages import Request
from fedboost.results.session import EndedSession, Submitted
from fedboost.runtime.aggregator import parties
from fedboost.runtime.aggregator.analysts import MAX_WAITING, Analysts, named
from fedboost.runtime.aggregator.limits import Peer
from fedboost.runtime.aggregator.sessions import CANNOT_WRITE, ActiveSession, Sessions
from fedboost.runtime.files import write_atomically
from fedboost.runtime.signed_model import PART_BEGINS, from_json
from fedboost.system import sync_folder
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.views.results import RESULTS
from fedboost.wire import messages as wire
from fedboost.wire.messages import Member, SessionState, SessionStatus, Status, encode_status

MAX_ENDED = 64
"""Maximum number of finished sessions that are kept."""
MAX_FAILED = 64
"""Maximum number of failed sessions that are kept."""
MAX_IN_MEMORY = 4
"""Maximum number of models kept in memory because they are not on disk."""
FOLDER = "ended"
_NAME = re.compile(r"session-[0-9a-f]{16}")


class Archive:
    """Stores ended sessions, most recent first, with their models. state: the aggregator's state folder, or
    None to store them in memory only."""

    def __init__(self, state: Path | None, log: Any) -> None:
        self.ended: list[EndedSession] = []
        self._folder = None if state is None else state / FOLDER
        self._log = log
        self._models: dict[str, bytes] = {}
        """Session name -> model file that is not, or not yet, on disk."""
        self._writing: set[asyncio.Task[None]] = set()
        self._disk = asyncio.Lock()
        """Held while writing, so that files are written in sequence and no session is written after it was
        dropped."""

    def open(self) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            files = [path for path in self._folder.glob("*.json") if _NAME.fullmatch(path.stem)]
        except OSError as error:
            self._log.error("ended sessions cannot be stored", folder=str(self._folder), reason=str(error))
            self._folder = None
            return
        found = [facts for path in files if (facts := self._read(path)) is not None]
        self.ended = sorted(found, key=lambda facts: -facts.ended)

    def add(self, session: ActiveSession) -> None:
        try:
            facts, model = facts_of(session)
            # If it ended in an earlier process, that process recorded all its counts.
            if self.find(facts.name) is not None:
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
        except Exception as error:  # noqa: BLE001 - a failure to make a record ends no session
            self._log.error("the session cannot be stored", reason=f"{type(error).__name__}: {error}")

    def find(self, name: str) -> EndedSession | None:
        return next((facts for facts in self.ended if facts.name == name), None)

    def model(self, name: str) -> bytes | None:
        """Return the content of a session's model file, or None if the file is not kept. Reads from disk."""
        try:
            with self.model_file(name) or BytesIO() as opened:
                return opened.read() or None
        except OSError:
            return None

    def model_file(self, name: str) -> BinaryIO | None:
        """Open the model file of a session, for reading in chunks. Returns None if the file is not kept."""
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
        """Wait until a session has been written. Returns True if it is on disk and thus survives a
        restart."""
        await self.close()
        return self._folder is not None and (self._folder / f"{name}.json").exists()

    async def close(self) -> None:
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _make_room(self) -> list[str]:
        """Drop sessions until no limit is exceeded. Returns the names of the dropped sessions."""
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

    async def _store(self, folder: Path, facts: EndedSession, model: bytes, dropped: list[str]) -> None:
        async with self._disk:
            if await asyncio.to_thread(self._write, folder, facts, model, dropped):
                self._models.pop(facts.name, None)

    def _write(self, folder: Path, facts: EndedSession, model: bytes, dropped: list[str]) -> bool:
        """Write a session to disk, and delete the files of dropped sessions. Returns False if that fails."""
        try:
            if model:
                write_atomically(folder / f"{facts.name}.model", model, 0o600)
            record = json.dumps(facts.model_dump()).encode()
            write_atomically(folder / f"{facts.name}.json", record, 0o600)
            for name in dropped:
                (folder / f"{name}.json").unlink(missing_ok=True)
                (folder / f"{name}.model").unlink(missing_ok=True)
        except (FedboostError, OSError) as error:
            self._log.error("the session cannot be stored", session=facts.name, reason=str(error))
            return False
        return True

    def _read(self, path: Path) -> EndedSession | None:
        try:
            facts = EndedSession.model_validate_json(path.read_bytes())
            return facts if facts.name == path.stem else None
        except (OSError, ValidationError) as error:
            self._log.warning(
                "the file is not a record of a session", file=str(path), reason=type(error).__name__
            )
            return None


def nonce_of(request: Request | None) -> str:
    """Return the nonce that identifies a signed request, or an empty string if there is no request."""
    return "" if request is None else request.nonce.hex()


def facts_of(session: ActiveSession) -> tuple[EndedSession, bytes]:
    """Return the record of an ended session, and its model file (empty if it has none)."""
    terms, model = session.terms, session.model
    whole = bool(model) and not model.startswith(PART_BEGINS.encode())
    task = terms.task
    is_shown = task.makes_model or (task.name in RESULTS and task.stands_alone)
    facts = EndedSession(
        name=session.session.name,
        task=task.name,
        analyst=session.analyst_name,
        terms=terms.digest,
        program=terms.session.program,
        protection=terms.hiding.protection,
        parties=terms.parties,
        ended=int(time.time()),
        seconds=session.meter.seconds,
        reason=session.failure,
        rounds=session.meter.history,
        traffic=session.meter.traffic,
        model_bytes=len(model),
        has_report=whole and is_shown,
        request=nonce_of(session.session.request),
    )
    return facts, model


# ---- Sessions requested by a file of signed terms, without a call that waits for their end --------------
# Promises: a session begins when its parties are connected, and only under the terms that the analyst signed.
# Submitting the same terms again leads to the same session. An analyst who stops training also withdraws the
# submission that waits under its terms. Each submission has a file in the folder `submitted` of the state
# folder, as written by `fedboost sign`. It exists from before the analyst gets an answer until the session is
# over, so that the next process can resume the submission. That process checks the signature again.


WAIT_SECONDS = 24 * 3600.0
"""Maximum number of seconds that a submitted session waits for its parties and for other sessions to end."""
MAX_SUBMITTED = 4
"""Maximum number of submitted sessions per analyst, including a running one."""
SUBMITTED = "submitted"
NOT_BEGUN = "a submitted session cannot start"


class Submissions:
    """Sessions submitted as a file of signed terms, from submission until they are over. state: the
    aggregator's state folder, or None if submissions are lost when this process ends."""

    def __init__(self, analysts: Analysts, archive: Archive, state: Path | None, log: Any) -> None:
        self._analysts = analysts
        self._sessions = analysts.sessions
        self._connected = analysts.connected
        self._archive = archive
        self._folder = None if state is None else state / SUBMITTED
        self._log = log
        self._waiting: dict[tuple[str, str], asyncio.Task[None]] = {}
        analysts.on_stop = self.withdraw

    async def open(self) -> None:
        """Resume the submissions that an earlier process left, in the order in which they were submitted."""
        files = [] if self._folder is None else [*self._folder.glob("*.json")]
        for path in sorted(files, key=lambda path: path.lstat().st_mtime):
            try:
                since, data = path.lstat().st_mtime, path.read_bytes()
            except OSError as error:
                self._log.error("submitted terms cannot be read", file=str(path), reason=str(error))
                continue
            try:
                asked = await self._read(data, None)
                if path != self._file(asked.analyst, asked.terms.digest):
                    raise ConfigError("submitted-misnamed", "the file name does not match the content")
                self._check_room(asked.terms, asked.analyst)
            except FedboostError as error:
                self._log.warning(NOT_BEGUN, file=str(path), reason=quoted(str(error)))
                self._drop(path)
            else:
                self._log.info("submitted terms resumed", terms=asked.terms.digest[:12])
                self._wait(asked, since)

    async def submit(self, data: bytes, name: str) -> Submitted:
        """Request a session under signed terms. Submitting the same terms again returns the same session.
        Raises FedboostError if the terms are invalid, or if too many sessions are waiting. data: file of
        signed terms; name: name of the analyst who submits it."""
        asked = await self._read(data, name)
        terms, analyst = asked.terms, asked.analyst
        if (session := self._analysts.begun(analyst, terms)) is not None:
            name = session.session.name
            return Submitted(terms=terms.digest, state="running", name=name, missing=())
        missing = tuple(self._connected.absent(terms.parties))
        if (analyst, terms.digest) not in self._waiting:
            self._check_room(terms, analyst)
            self._keep(self._file(analyst, terms.digest), data)
            self._log.info("terms submitted", analyst=name, terms=terms.digest[:12], missing=list(missing))
            self._wait(asked, time.time())
        return Submitted(terms=terms.digest, state="waiting", name="", missing=missing)

    def withdraw(self, analyst: str, digest: str) -> None:
        """Withdraw the analyst's session under these terms if it is waiting."""
        key, begun = (analyst, digest), self._sessions.find(analyst, digest)
        if key in self._waiting and (begun is None or begun.failed):
            self._waiting.pop(key).cancel()
            self._drop(self._file(*key))
            about = named(analyst.rpartition("#")[0])
            self._log.info("submitted terms withdrawn", **about, terms=digest[:12])

    async def close(self) -> None:
        """Leave waiting sessions to the next process, and wait until ended sessions are written."""
        tasks = [*self._waiting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._archive.close()

    async def _read(self, data: bytes, name: str | None) -> "_Asked":
        """Parse a file of signed terms. Raises FedboostError if the terms or the signature are invalid. name:
        name of the analyst who submits the file, or None to use the signer's name, for a file that was
        checked when it was submitted."""
        caller, trust = f"analyst {name or 'that submitted'!r}", self._sessions.trust
        text, request = await self._analysts.reader.run(caller, len(data), lambda: from_json(data))
        if name is None:
            name = self._signer(request)[0]
        terms = await self._analysts.read(caller, text, request, name)
        if not terms.task.by_analyst:
            raise Refused(
                "not-label-holder",
                "only the label holder can request a prediction; use fedboost predict --party",
            )
        parties.check_signed(trust, terms, request, name, key_exchange.SESSION)
        if trust is not None and request is not None:
            key_exchange.check_age(request, trust.clock())
        self._check_unused(nonce_of(request))
        return _Asked(terms, self._sessions.program(terms), self._signer(request)[1], request)

    def _wait(self, asked: "_Asked", since: float) -> None:
        """Start a task that begins the session when possible. The file is deleted when the session is over or
        fails to start."""
        key = asked.analyst, asked.terms.digest

        def over(task: asyncio.Task[None]) -> None:
            if self._waiting.get(key) is task:
                del self._waiting[key]
                if not task.cancelled():  # otherwise the next process resumes it
                    self._drop(self._file(*key))

        self._waiting[key] = task = asyncio.create_task(self._run(asked, since), name="submission")
        task.add_done_callback(over)

    def _file(self, analyst: str, digest: str) -> Path | None:
        name = hashlib.sha256(f"{analyst} {digest}".encode()).hexdigest()[:32]
        return None if self._folder is None else self._folder / f"{name}.json"

    def _keep(self, path: Path | None, data: bytes) -> None:
        """Write a file to disk, unless `path` is None. Raises Refused if that fails."""
        if path is None:
            return
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, data, 0o600)
            sync_folder(path.parent)
        except (ConfigError, OSError) as error:
            self._log.error("submitted terms cannot be kept", reason=str(error))
            raise Refused("aggregator-cannot-write", CANNOT_WRITE) from None

    def _drop(self, path: Path | None) -> None:
        if path is None:
            return
        try:
            path.unlink(missing_ok=True)
            sync_folder(path.parent)
        except OSError as error:
            self._log.error("submitted terms cannot be deleted", file=str(path), reason=str(error))

    def _check_room(self, terms: Terms, analyst: str) -> None:
        """Raise Refused if the analyst has too many submitted sessions, or if the session would have to wait
        and too many sessions are already waiting."""
        if sum(owner == analyst for owner, _ in self._waiting) >= MAX_SUBMITTED:
            raise Refused(
                "submitted-too-many",
                f"{MAX_SUBMITTED} sessions of this analyst are already running or waiting; to withdraw one, "
                f"press Ctrl-C in `fedboost train` with its terms",
            )
        if len(self._analysts.waiters) >= MAX_WAITING and not self._analysts.is_ready(terms, analyst):
            raise Refused("sessions-waiting", f"{MAX_WAITING} sessions are already waiting; try again later")

    def _check_unused(self, nonce: str) -> None:
        """Raise Refused if the request was already used for a session that has ended, because every party
        would refuse it."""
        over = [each.session for each in self._sessions.finished.values()]
        finished = {each.name: nonce_of(each.request) for each in over}
        ended = {each.name: each.request for each in self._archive.ended}
        used = [name for name, request in (finished | ended).items() if nonce and request == nonce]
        if used:
            raise Refused(
                "request-used",
                f"these signed terms were already used for {used[0]}; sign them again with `fedboost sign`",
            )

    def _signer(self, request: Request | None) -> tuple[str, str]:
        """Return the name of the analyst whose certificate is in a request, and the name and key by which
        `Sessions` identifies the analyst. Both are "" if the aggregator runs without keys. Raises
        FedboostError if the certificate is invalid."""
        trust = self._sessions.trust
        if trust is None or request is None:
            return "", ""
        signer = identify(request.certificate, trust.roots, trust.clock(), trust.denied)
        return signer.name, f"{signer.name}#{key_fingerprint(signer.public_key)}"

    async def _run(self, asked: "_Asked", since: float) -> None:
        """Start a session when possible, and wait for its end. Once the session has been written to disk, the
        copy kept in memory for the analyst is dropped."""
        terms, program, analyst, request = asked
        left = min(max(since + WAIT_SECONDS - time.time(), 0.0), WAIT_SECONDS)
        try:
            async with asyncio.timeout(left):
                async with aclosing(self._analysts.until_ready(terms, analyst, since)) as missing:
                    async for _ in missing:
                        pass
            session = self._analysts.begun(analyst, terms)
            if session is None:
                session = self._sessions.new(terms, program, analyst, request)
                self._sessions.begin(session)
                self._connected.notify()
            elif request is None or session.session.request != request:
                return  # another call of this analyst follows the session
            async for _ in session.follow():
                pass
            if await self._archive.is_kept(session.session.name):
                self._sessions.delivered(analyst, terms.digest)
                session.forget()
        except (FedboostError, TimeoutError) as error:
            reason = str(error) or f"its parties did not all connect within {WAIT_SECONDS / 3600:g} hours"
            self._log.warning(NOT_BEGUN, terms=terms.digest[:12], reason=reason)


class _Asked(NamedTuple):
    terms: Terms
    program: Program
    analyst: str
    """Name and key of the analyst, as in `Sessions`."""
    request: Request | None


# ---- The status of an aggregator ------------------------------------------------------------------------
# An analyst sees all members and sessions. A party sees itself, the sessions whose terms name
# it, and the members of these sessions. Nothing here is derived from rows.


@dataclass(eq=False)
class StatusService:
    """Handler of the RPC `Status`, which reports the members and sessions of an aggregator."""

    _admission: parties.Admission
    _sessions: Sessions
    _connected: parties.ConnectedParties
    _analysts: Analysts
    _since: int = field(default_factory=lambda: int(time.time()))

    async def answer(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        await self._admission.only_message(requests, context, peer)
        try:
            parties.check_version(context, "caller")
            caller = self._admission.caller(context)
            if caller is not None and caller.role == "adder":
                raise Refused("certificate-wrong-role", "an adder may not query the status")
        except FedboostError as error:
            await parties.refuse(context, error)
        await context.write(encode_status(self.seen_by(caller)))

    def seen_by(self, caller: Identified | None) -> Status:
        """Return the status as this caller may see it. An analyst sees all members and sessions. A party sees
        itself, the sessions whose terms name it, and the members of these sessions. If the aggregator runs
        without keys, every caller sees everything."""
        sessions = [*self._all_sessions()][: wire.MAX_SESSIONS]
        members = [*self._all_members(sessions)]
        others = 0
        if caller is not None and caller.role == "party":
            own = [session for session in sessions if caller.name in session.parties]
            known = {("party", caller.name)}
            known |= {("party", party) for session in own for party in session.parties}
            known |= {("analyst", session.analyst) for session in own}
            members = [member for member in members if (member.role, member.name) in known]
            sessions, others = own, len(sessions) - len(own)
        about = VERSION, self._since, int(time.time())
        return Status(*about, tuple(members[: wire.MAX_MEMBERS]), tuple(sessions), others)

    def _all_members(self, sessions: Iterable[SessionStatus]) -> Iterator[Member]:
        """Yield the parties that are or were connected, the parties that a session waits for, and the
        analysts who follow a session or wait for one."""
        connected = self._connected
        for party, arrival in connected.arrivals.items():
            yield Member("party", party, arrival.since, arrival.since, arrival.version, arrival.adder)
        awaited = (party for session in sessions for party in session.parties)
        for party in sorted({*connected.seen.times, *awaited} - connected.names):
            yield Member("party", party, 0, connected.seen.last(party))
        for analyst, arrival in self._analysts.here.values():
            yield Member("analyst", analyst, arrival.since, arrival.since, arrival.version)

    def _all_sessions(self) -> Iterator[SessionStatus]:
        sessions = self._sessions
        if sessions.active is not None:
            yield self.of(sessions.active, SessionState.RUNNING)
        for session in sessions.unfinished:
            yield self.of(session, SessionState.WAITING)
        for waiter in self._analysts.waiters:
            absent = self._connected.absent(waiter.terms.parties)
            yield _status(SessionState.WAITING, "", waiter.analyst, waiter.terms, 0, waiter.since, absent)
        for session in sessions.finished.values():
            yield self.of(session, SessionState.FINISHED)

    def of(self, session: ActiveSession, state: SessionState) -> SessionStatus:
        late = session.session.awaited if state is SessionState.RUNNING else ()
        absent = {*self._connected.absent(late), *session.pace.slow}
        name, done = session.session.name, len(session.session.history)
        awaited = [party for party in late if party in absent]
        return _status(state, name, session.analyst_name, session.terms, done, session.since, awaited)


def _status(
    state: SessionState,
    name: str,
    analyst: str,
    terms: Terms,
    done: int,
    since: int,
    awaited: Iterable[str],
) -> SessionStatus:
    about = terms.digest, terms.session.program, terms.hiding.protection, done, terms.trees.rounds, since
    return SessionStatus(state, name, analyst, *about, terms.parties, tuple(awaited))
