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
import mmap
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from fedboost.errors import ConfigError, DurabilityError, Refused
from fedboost.people.summary import columns_of
from fedboost.protocol.site import Relayed, Release
from fedboost.runtime.aggregator.store import sync_folder
from fedboost.runtime.files import write_atomically
from fedboost.runtime.site.audit_entry import (
    BEFORE_THE_FIRST,
    Admitted,
    Checked,
    Ended,
    Entry,
    canonical_event,
    entry_line,
    parse_entry,
)
from fedboost.runtime.site.audit_files import (
    NO_LOG,
    Line,
    LogEnd,
    OlderFile,
    entries_after,
    lines_of,
    log_of,
    older_file,
    older_files,
    put_back,
)
from fedboost.terms.session import TO_TRAIN, TRAINING
from fedboost.terms.terms import Terms

OWNER_ALONE, FOLDER_OF_OWNER = 0o600, 0o700
STOPPED, EXPIRED = "this site stopped", "this site's certificate expired"
"""Reasons for a pause."""
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
                rounds=terms.trees.rounds if terms.task in TRAINING else 0,
                task=None if terms.task == TO_TRAIN else terms.task,
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
        first = self._older[-1].last + 1 if self._older else self._begins_with()
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

    def _begins_with(self) -> int:
        """The number of the first entry of a file, which is not 1 where older files were moved away."""
        return next(lines_of(self._path)).due

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
