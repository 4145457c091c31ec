"""The audit log of a site: one JSON line for each thing that leaves, and for checks, chained by hashes.

Its lines are the entries of `audit_entry`. The terms of a session are in a file beside the log,
`terms/DIGEST.json`. A file that is full is put aside, and the chain goes on in the next one (`audit_files`).

Promises: an entry is with the operating system before its bytes leave, so that it outlives the process. It is
on the disk when a session was admitted, with the terms, at each release that was charged, and when a session
has ended: a power failure can lose the lines since the last of these. What cannot be recorded raises, so that
it does not leave; one process at a time writes a log. A crash while a file is put aside loses no entry.
`read_log` finds every change but two: entries cut off at the end, and a log rewritten from some line on.
Both change the hash of the last entry, so a reader who kept that hash finds them too.
Refuses: to append to a log whose last line is half-written or changed, and to read past the first line that
does not fit (ConfigError with the file, the line and what to do).
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

from pydantic import Field, ValidationError

from fedboost.errors import ConfigError, DurabilityError, Refused
from fedboost.protocol.site import Relayed, Release
from fedboost.results.audit import Admitted, Checked, Ended, Event
from fedboost.runtime.files import sync_folder, write_atomically
from fedboost.terms.reading import Frozen
from fedboost.terms.terms import Terms
from fedboost.views.approval import columns_of

# ---- The entries of an audit log: what each line of it says, as canonical JSON with a hash --------------
# A line is an `Entry` as canonical JSON (keys in the order of the fields, no spaces, ASCII; what is
# missing is left out). Its hash is the SHA-256 of that JSON without the hash, and each entry holds the hash
# of the one before.


BEFORE_THE_FIRST = "0" * 64
"""The previous hash of the first entry."""


class Entry(Frozen):
    """A line of the log. `time` is UTC."""

    n: Annotated[int, Field(ge=1)]
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    event: Event
    previous: str
    hash: str = ""

    @property
    def due_hash(self) -> str:
        """The hash of all but the hash, 64 hex digits."""
        return hashlib.sha256(_canonical(self._values(exclude={"hash"}))).hexdigest()

    @property
    def line(self) -> bytes:
        """Canonical JSON and a line feed."""
        return _canonical(self._values()) + b"\n"

    def _values(self, exclude: set[str] | None = None) -> dict[str, Any]:
        """The values in the line: optional ones only if they are set."""
        return self.model_dump(mode="json", exclude=exclude, exclude_none=True)


_BEGINNING = b'{"n":'
"""Each line's first bytes."""


def canonical_event(event: Admitted | Ended | Checked | Release | Relayed) -> str:
    """The JSON of an event in its entry. That of a release, of which there is one a turn, is put together
    from the JSON of its texts, which were seen before."""
    if isinstance(event, Relayed):
        content = {"kind": "relayed", **vars(event)}
        content["bytes"] = content.pop("size")
        return _canonical(content).decode()
    if not isinstance(event, Release):
        return _canonical(event.model_dump(mode="json", exclude_none=True)).decode()
    charge = event.charge
    return "".join(
        (
            f'{{"kind":"released","session":{_text(event.session)},"turn":{event.turn},'
            f'"attempt":{event.attempt},"what":{_text(event.what)},"cells":{event.cells},'
            f'"bytes":{event.size},"protection":{_text(event.protection)},"roster":{_text(event.roster)}',
            "" if charge is None else f',"charge":"{charge.name}","cost":{float(charge.cost)!r}',
            f',"question":"{event.question}"' if event.question else "",
            f',"position":"{event.position}"' if event.position else "",
            "}",
        )
    )


def entry_line(n: int, time: str, event: str, previous: str) -> tuple[bytes, str]:
    """The line of an entry with this canonical event, and its hash."""
    content = f'{{"n":{n},"time":"{time}","event":{event},"previous":"{previous}"'
    digest = hashlib.sha256(f"{content}}}".encode()).hexdigest()
    return f'{content},"hash":"{digest}"}}\n'.encode(), digest


def parse_entry(line: bytes) -> Entry:
    """The entry on a line; ValueError if it is not as it was written."""
    if not line.endswith(b"\n") and line.startswith(_BEGINNING[: len(line)]):
        raise ValueError("half-written; the writer was stopped in the middle (or is writing it right now)")
    try:
        entry = Entry.model_validate_json(line, strict=True)
        whole = entry.line == line
    except ValidationError:
        raise ValueError("not an entry of an audit log, or changed after it was written") from None
    if not whole or entry.hash != entry.due_hash:
        raise ValueError("changed after it was written: its hash is not the one of its content")
    return entry


def _canonical(values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


@lru_cache
def _text(value: str | tuple[str, ...]) -> str:
    return _canonical(value).decode()


# ---- The files of an audit log: the one that is written, and older ones, which were full ----------------
# An older file lies beside it and is named after the entries in it: `north.1-24017.audit.jsonl` beside
# `north.audit.jsonl`. It is never written again.
# Promises: entries come in order, whichever file they are in; a reader sees each once, also when the writer
# puts a file aside meanwhile.


LogEnd = tuple[int, str]
"""The number and the hash of an audit log's last entry."""
NO_LOG: LogEnd = 0, BEFORE_THE_FIRST
TAIL_BYTES = 1 << 16
"""Bytes that are read at a time to find the beginning of the last line."""


@dataclass(frozen=True)
class OlderFile:
    """A file that was full, with its first and last entry."""

    first: int
    last: int
    path: Path


@dataclass(frozen=True)
class Line:
    """A line of a file, by its number there, and the number of the entry that is due in it."""

    path: Path
    number: int
    due: int
    data: bytes

    @property
    def entry(self) -> Entry:
        """The entry. ConfigError that names the line."""
        try:
            return parse_entry(self.data)
        except ValueError as error:
            raise ConfigError(f"{self.path}, line {self.number}: {error}") from None


def older_file(log: Path, first: int, last: int) -> Path:
    """The path that a full file of a log gets."""
    name, dot, kind = log.name.partition(".")
    return log.with_name(f"{name}.{first}-{last}{dot}{kind}")


def older_files(log: Path) -> list[OlderFile]:
    """The older files of a log, in order. ConfigError."""
    name, dot, kind = log.name.partition(".")
    pattern = re.compile(rf"{re.escape(name)}\.([0-9]+)-([0-9]+){re.escape(dot + kind)}")
    try:
        matches = [(pattern.fullmatch(path.name), path) for path in log.parent.iterdir()]
    except OSError as error:
        raise ConfigError(f"{log}: cannot read: {error.strerror}") from None
    return sorted(
        (OlderFile(int(match[1]), int(match[2]), path) for match, path in matches if match),
        key=lambda older: older.first,
    )


def log_of(older: Path) -> Path | None:
    """The path of the log that a file is an older one of, by its name; None if it is none."""
    match = re.fullmatch(r"([^.]*)\.[0-9]+-[0-9]+(\..*)?", older.name)
    return older.with_name(f"{match[1]}{match[2] or ''}") if match else None


def lines_of(log: Path, after: int = 0) -> Iterator[Line]:
    """The lines of a log, from the file on that has the entry of this number. ConfigError."""
    with ExitStack() as stack:
        newest = _open(log, stack)  # before the others are listed: one that is put aside meanwhile is known
        older = older_files(log)
        if newest is None and not older:
            raise ConfigError(f"{log}: cannot read: No such file or directory")
        same = None if newest is None else os.fstat(newest.fileno())
        for known in older:
            if known.last < after or (same and os.path.samestat(same, known.path.stat())):
                continue
            with known.path.open("rb") as file:
                for number, data in enumerate(file):
                    yield Line(known.path, number + 1, known.first + number, data)
        if newest is None:
            return
        due = 1
        for number, data in enumerate(newest):
            if number == 0:
                due = _number(data) or (older[-1].last + 1 if older else 1)
            yield Line(log, number + 1, due + number, data)


def entries_after(log: Path, end: LogEnd, last: int) -> list[Entry] | None:
    """The entries up to number `last` since the log ended so; None if it never did. ConfigError."""
    entries = []
    try:
        for line in lines_of(log, end[0]) if last else ():
            if line.due > last:
                break
            if line.due >= end[0]:
                entries.append(line.entry)
    except OSError as error:
        raise ConfigError(f"{log}: cannot read: {error.strerror}") from None
    if end == NO_LOG:
        if entries and entries[0].n != 1:
            raise ConfigError(
                f"{log}: begins with entry {entries[0].n}: {put_back(log, 1, entries[0].n - 1)}"
            )
        return entries
    if not entries or (entries[0].n, entries[0].hash) != end:
        return None
    return entries[1:]


def put_back(log: Path, first: int, last: int) -> str:
    """The remedy where entries are missing that were in an older file."""
    missing = older_file(log, first, last).name
    return f"if an older file ({missing}, or several) was moved away, put it back beside this one"


def end_of(log: Path) -> LogEnd:
    """The end of a log, which somebody may be writing; NO_LOG where there is none. ConfigError."""
    if not log.parent.is_dir():
        return NO_LOG
    with ExitStack() as stack:
        newest = _open(log, stack)
        files = [(older.path, stack.enter_context(older.path.open("rb"))) for older in older_files(log)[-1:]]
        for path, file in [*([(log, newest)] if newest else []), *files]:
            if last := _last_line(file):
                entry = Line(path, 0, 0, last).entry
                return entry.n, entry.hash
    return NO_LOG


def owner_of(log: Path) -> tuple[str | None, str | None]:
    """The party and the dataset that the first session of a log was admitted for, each None where it does
    not say. ConfigError."""
    if end_of(log) != NO_LOG:
        for line in lines_of(log):
            event = line.entry.event
            if isinstance(event, Admitted):
                return event.party, event.dataset
    return None, None


def _open(log: Path, stack: ExitStack) -> BinaryIO | None:
    """The file that is written, open; None while there is none."""
    try:
        return stack.enter_context(log.open("rb"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{log}: cannot read: {error.strerror}") from None


def _number(line: bytes) -> int | None:
    """The number of the entry on a line; None if it cannot be read."""
    try:
        return parse_entry(line).n
    except ValueError:
        return None


def _last_line(file: BinaryIO) -> bytes:
    """The last whole line of a file; nothing if it has none."""
    position, tail = file.seek(0, os.SEEK_END), b""
    while position and tail.rstrip(b"\n").count(b"\n") < 2:
        step = min(position, TAIL_BYTES)
        position -= step
        file.seek(position)
        tail = file.read(step) + tail
    whole = tail[: tail.rfind(b"\n") + 1]
    return whole[whole.rfind(b"\n", 0, len(whole) - 1) + 1 :]


# ---- The audit log of a site: one JSON line for each thing that leaves, and for checks ------------------


OWNER_ALONE, FOLDER_OF_OWNER = 0o600, 0o700
MAX_FILE_BYTES = 64 << 20
TERMS = "terms"
"""The folder beside a log with the terms of its sessions."""


class AuditLog:
    """The log of one site, open for appending. Close it, or use it in `with`."""

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Open the log, or make it for its owner's eyes alone. ConfigError if it cannot be continued.

        max_bytes: of a file, before it is put aside.
        """
        self._path, self._max_bytes = path, max_bytes
        self._second, self._time = 0, ""
        self._appending = threading.Lock()
        """Held while an entry is written: checks are answered beside a session."""
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, OWNER_ALONE)
        except OSError as error:
            raise ConfigError(f"{path}: cannot write this audit log: {error.strerror}") from None
        try:
            self._lock()
            status = os.fstat(self._file)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: is not a plain file; the audit log must be one")
            self._size = status.st_size
            self._named = self._size > 0
            self._older = older_files(path)
            self.last = self._read_last()
            """Number and hash of the last entry; 0 and `BEFORE_THE_FIRST` in an empty log."""
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def after(self, end: LogEnd) -> list[Entry] | None:
        """The entries since the log ended so; None if it never did. ConfigError."""
        return entries_after(self._path, end, self.last[0])

    def close(self) -> None:
        """Let another process write the log. One in which nothing was written is taken away."""
        if os.fstat(self._file).st_size == 0 and not older_files(self._path):
            self._path.unlink(missing_ok=True)
        os.close(self._file)

    def admitted(
        self,
        session: str,
        terms: Terms,
        analyst: str = "",
        request: str = "",
        attempt: int = 1,
        party: str = "",
        dataset: str = "",
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Record that this site takes part in a session; puts terms and log on the disk. Raises as `record`
        does. names: in its table, of the columns that the terms call otherwise."""
        self._keep(terms)
        noise = terms.noise
        self._append(
            Admitted(
                session=session,
                terms=terms.digest,
                protection=terms.protection.name,
                parties=terms.parties,
                objective=terms.objective.name,
                rounds=terms.trees.rounds if terms.task.trains else 0,
                task=None if terms.task.makes_model else terms.task.name,
                columns=columns_of(terms),
                epsilon=None if noise is None else noise.epsilon,
                delta=None if noise is None else noise.delta,
                placement=None if noise is None else noise.placement,
                attempt=attempt,
                analyst=analyst or None,
                request=request or None,
                party=party or None,
                dataset=dataset or None,
                names=dict(names or {}) or None,
            )
        )
        self._sync()

    def record(self, release: Release | Relayed) -> None:
        """Record a release or a relay that is about to leave. If it cannot be recorded, it must not leave:
        raises DurabilityError when the disk does not take it, Refused when somebody else has changed the
        log."""
        self._append(release)
        if isinstance(release, Release) and release.charge is not None:
            self._sync()

    def ended(self, session: str, reason: str, paused: bool = False, analyst: str = "") -> None:
        """Record that a session is over, '' with a model, or `paused` until this site is there again; puts
        the log on the disk. analyst: who asked for a session that was refused. Raises as `record` does."""
        reason = reason.encode(errors="replace").decode()
        self._append(
            Ended(session=session, reason=reason, paused=True if paused else None, analyst=analyst or None)
        )
        self._sync()

    def checked(self, terms: str, analyst: str, would: bool) -> None:
        """Record that a check of the terms with this digest is about to be answered: whether this site would
        take part. Raises as `record` does."""
        self._append(Checked(terms=terms, would=would, analyst=analyst or None))

    def _keep(self, terms: Terms) -> None:
        """Write the terms to their file, once."""
        path, text = terms_file(self._path, terms.digest), terms.canonical().encode()
        try:
            if path.is_file() and path.read_bytes() == text:
                return
            path.parent.mkdir(FOLDER_OF_OWNER, exist_ok=True)
            write_atomically(path, text, OWNER_ALONE)
            sync_folder(path.parent)
        except OSError as error:
            raise self._full(error, path) from None
        except ConfigError as error:
            raise DurabilityError(str(error)) from None

    def _sync(self) -> None:
        """Sync every line to the disk, and with the first ones the log's name."""
        try:
            os.fsync(self._file)
            if not self._named:
                sync_folder(self._path.parent)
        except OSError as error:
            raise self._full(error) from None
        self._named = True

    def _append(self, event: Admitted | Checked | Release | Relayed | Ended) -> None:
        with self._appending:
            self._append_alone(event)

    def _append_alone(self, event: Admitted | Checked | Release | Relayed | Ended) -> None:
        number, previous = self.last[0] + 1, self.last[1]
        line, digest = entry_line(number, self._now(), canonical_event(event), previous)
        try:
            status = os.fstat(self._file)
            if status.st_size != self._size or not self._is_in_place(status):
                raise self._refusal(
                    "it was changed or removed by somebody else while this site runs (by a tool that rotates "
                    "logs? Leave that to the party)"
                )
            if self._size and self._size + len(line) > self._max_bytes:
                self._put_aside()
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)  # a line is written whole or not at all
            raise self._full(error) from None
        self._size += len(line)
        self.last = number, digest

    def _now(self) -> str:
        """The time, UTC, which has the same text for a second."""
        second = int(time.time())
        if second != self._second:
            self._second, self._time = second, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))
        return self._time

    def _is_in_place(self, status: os.stat_result) -> bool:
        try:
            return os.path.samestat(status, os.stat(self._path))
        except FileNotFoundError:
            return False

    def _put_aside(self) -> None:
        """Give the full file the name of an older one, and begin the next. Whenever this is interrupted, the
        entries are all there, and who opens the log goes on after the last."""
        # The first entry of the file is not 1 where older files were moved away.
        first = self._older[-1].last + 1 if self._older else next(lines_of(self._path)).due
        last = self.last[0]
        full = OlderFile(first, last, older_file(self._path, first, last))
        if full.path.exists():
            raise FileExistsError(errno.EEXIST, f"{full.path.name} exists")
        new = self._path.with_name(f".{self._path.name}.new")
        handle = os.open(new, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC, OWNER_ALONE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fsync(self._file)
            os.rename(self._path, full.path)
            os.rename(new, self._path)
            sync_folder(self._path.parent)
        except BaseException:
            os.close(handle)
            raise
        os.close(self._file)
        self._file, self._size = handle, 0
        self._older.append(full)

    def _refusal(self, why: str) -> Refused:
        return Refused("this site cannot write its audit log", f"{self._path}: {why}")

    def _full(self, error: OSError, path: Path | None = None) -> DurabilityError:
        what = f"{self._path}: cannot write this audit log" if path is None else f"{path}: cannot write"
        return DurabilityError(
            f"{what}: {error.strerror}; put that right and start this party again: the session goes on "
            f"with it"
        )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self._path}: another process writes this audit log; give each party a log of its own"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be locked: {error.strerror}") from None

    def _read_last(self) -> LogEnd:
        """The end to go on from. The last entry alone is checked: a log may be long."""
        if not self._size:
            if not self._older:
                return NO_LOG
            entry = [line.entry for line in lines_of(self._older[-1].path)][-1]
            return entry.n, entry.hash
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as whole:
            last = whole[whole.rfind(b"\n", 0, self._size - 1) + 1 :]
        try:
            entry = parse_entry(last)
            return entry.n, entry.hash
        except ValueError as error:
            raise ConfigError(
                f"{self._path}, last line: {error}; nothing can be appended: move the file away and keep it, "
                f"a new one is then begun"
            ) from None


def read_log(path: Path) -> list[Entry]:
    """The entries of a log, those of its older files first. Raises ConfigError naming the first line that
    does not fit."""
    try:
        return checked_entries(path, lines_of(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None


def checked_entries(path: Path, lines: Iterable[Line]) -> list[Entry]:
    """The entries on the lines of a log. Raises ConfigError naming the first one that does not fit."""
    entries: list[Entry] = []
    previous = BEFORE_THE_FIRST
    for line in lines:
        entry, due = line.entry, len(entries) + 1
        where = f"{line.path}, line {line.number}"
        if entry.n != due:
            raise ConfigError(f"{where}: {_gap(path, line, entry.n, due)}")
        if entry.previous != previous:
            raise ConfigError(f"{where}: does not follow from the line before: one of them was replaced")
        entries.append(entry)
        previous = entry.hash
    return entries


def _gap(path: Path, line: Line, n: int, due: int) -> str:
    """The fault of an entry that is not due, and what to do."""
    if log := log_of(path):
        return f"begins with entry {n}: it is an older file; give the log itself, {log}, and it is read, too"
    fault = f"entry {n} stands where {due} is due: lines were removed or moved"
    if n > due and line.number == 1:
        return f"{fault}; {put_back(path, due, n - 1)}"
    return fault


def terms_file(log: Path, digest: str) -> Path:
    """The path of the terms with a digest, beside a log."""
    return log.parent / TERMS / f"{digest}.json"


def read_admitted(log: Path, digest: str) -> Terms:
    """The terms with a digest, which were admitted in a log. ConfigError if they are not there as they were
    written."""
    path = terms_file(log, digest)
    try:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise OSError(errno.EINVAL, "no digest")
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    if hashlib.sha256(text).hexdigest() != digest:
        raise ConfigError(f"{path}: changed after it was written: its SHA-256 is not its name")
    try:
        return Terms.from_canonical(text.decode())
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read by this version of fedboost: {error}") from None
