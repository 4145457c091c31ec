"""The audit log of a site: one JSON line for each thing that leaves, chained by hashes.

Its lines are the entries of `audit_entry`. The terms of a session are in a file beside the log,
`terms/DIGEST.json`.

Promises: an entry is with the operating system before its bytes leave, so that it outlives the process. It is
on the disk when a session was admitted, with the terms, at each release that was charged, and when a session
has ended: a power failure can lose the lines since the last of these. What cannot be recorded raises, so that
it does not leave; one process at a time writes a log.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from fedboost.errors import ConfigError, DurabilityError, Refused
from fedboost.people.summary import columns_of
from fedboost.protocol.site import Release
from fedboost.runtime.aggregator.store import sync_folder
from fedboost.runtime.files import write_atomically
from fedboost.runtime.site.audit_entry import BEFORE_THE_FIRST, Admitted, Ended, Entry, Released, parse_entry
from fedboost.terms.terms import Terms

OWNER_ALONE, FOLDER_OF_OWNER = 0o600, 0o700
STOPPED, EXPIRED = "this site stopped", "this site's certificate expired"
"""Reasons for a pause."""
TERMS = "terms"
"""The folder beside a log with the terms of its sessions."""


class AuditLog:
    """The log of one site, open for appending. Close it, or use it in `with`."""

    def __init__(self, path: Path) -> None:
        """Open the log, or make it for its owner's eyes alone. ConfigError if it cannot be continued."""
        self._path = path
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
            self._last = self._read_last()
            self._named = self._last is not None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def last(self) -> tuple[int, str]:
        """Number and hash of the last entry; 0 and `BEFORE_THE_FIRST` in an empty log."""
        return (0, BEFORE_THE_FIRST) if self._last is None else (self._last.n, self._last.hash)

    def after(self, end: tuple[int, str]) -> list[Entry] | None:
        """The entries since the log ended so; None if it never did. ConfigError."""
        return entries_after(self._path, end, os.fstat(self._file).st_size)

    def close(self) -> None:
        """Let another process write the log. One in which nothing was written is taken away."""
        if os.fstat(self._file).st_size == 0:
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
    ) -> None:
        """Record that this site takes part in a session; puts terms and log on the disk. Raises as `record`
        does."""
        self._keep(terms)
        noise = terms.noise
        self._append(
            Admitted(
                session=session,
                terms=terms.digest,
                protection=terms.hiding.protection,
                parties=terms.parties,
                objective=terms.objective.name,
                rounds=terms.trees.rounds,
                columns=columns_of(terms),
                epsilon=None if noise is None else noise.epsilon,
                delta=None if noise is None else noise.delta,
                placement=None if noise is None else noise.placement,
                attempt=attempt,
                analyst=analyst or None,
                request=request or None,
                party=party or None,
            )
        )
        self._sync()

    def record(self, release: Release) -> None:
        """Record a release that is about to leave. If it cannot be recorded, it must not leave: raises
        DurabilityError when the disk does not take it, Refused when somebody else has changed the log."""
        charge = release.charge
        self._append(
            Released(
                session=release.session,
                turn=release.turn,
                attempt=release.attempt,
                what=release.what,
                cells=release.cells,
                bytes=release.size,
                protection=release.protection,
                roster=release.roster,
                charge=None if charge is None else charge.name,
                cost=None if charge is None else charge.cost,
                question=release.question or None,
                position=release.position or None,
            )
        )
        if charge is not None:
            self._sync()

    def ended(self, session: str, reason: str, paused: bool = False, analyst: str = "") -> None:
        """Record that a session is over, '' with a model, or `paused` until this site is there again; puts
        the log on the disk. analyst: who asked for a session that was refused. Raises as `record` does."""
        reason = reason.encode(errors="replace").decode()
        self._append(
            Ended(session=session, reason=reason, paused=True if paused else None, analyst=analyst or None)
        )
        self._sync()

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

    def _append(self, event: Admitted | Released | Ended) -> None:
        n, previous = (self._last.n + 1, self._last.hash) if self._last else (1, BEFORE_THE_FIRST)
        entry = Entry(n=n, time=_now(), event=event, previous=previous)
        entry = entry.model_copy(update={"hash": entry.due_hash})
        line = entry.line
        try:
            status = os.fstat(self._file)
            if status.st_size != self._size or not status.st_nlink:
                raise self._refusal("it was changed or removed by somebody else while this site runs")
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)  # a line is written whole or not at all
            raise self._full(error) from None
        self._size += len(line)
        self._last = entry

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

    def _read_last(self) -> Entry | None:
        """The entry to go on from; None in an empty log. It alone is checked: a log may be long."""
        if not self._size:
            return None
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as whole:
            last = whole[whole.rfind(b"\n", 0, self._size - 1) + 1 :]
        try:
            return parse_entry(last)
        except ValueError as error:
            raise ConfigError(
                f"{self._path}, last line: {error}; nothing can be appended: move the file away and keep it, "
                f"a new one is then begun"
            ) from None


def entries_after(path: Path, end: tuple[int, str], size: int) -> list[Entry] | None:
    """The entries in the first bytes of a log since it ended so; None if it never did. ConfigError."""
    entries = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                size -= len(line)
                if size < 0:
                    break
                if number >= end[0]:
                    entries.append(parse_entry(line))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}: {error}") from None
    if end[0] == 0:
        return entries
    if not entries or (entries[0].n, entries[0].hash) != end:
        return None
    return entries[1:]


def read_log(path: Path) -> list[Entry]:
    """The entries of a log. Raises ConfigError naming the first line that does not fit."""
    entries: list[Entry] = []
    previous = BEFORE_THE_FIRST
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    entry = parse_entry(line)
                    if entry.n != number:
                        raise ValueError(
                            f"entry {entry.n} stands where {number} is due: lines were removed or moved"
                        )
                    if entry.previous != previous:
                        raise ValueError("does not follow from the line before: one of them was replaced")
                except ValueError as error:
                    raise ConfigError(f"{path}, line {number}: {error}") from None
                entries.append(entry)
                previous = entry.hash
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    return entries


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


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
