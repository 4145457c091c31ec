"""The journal of one session in a file: what was recorded is found again after a crash.

Promises: a record is on the disk when `append` returns, and one that was collected when `sync` does, several
of them after one wait for the disk; a record that was being written when the process died is dropped, and
nothing else; the file appears with its first record.
Refuses: files that are no journal, of another version, or changed within (ConfigError by name); a second
process with the same folder; a disk that is full (DurabilityError: nothing that follows may be done).

A file is a line that names its version, then records: four bytes of length and four of CRC-32, both
big-endian, then the record as `protocol.journal` writes it.
"""

import contextlib
import fcntl
import os
import struct
import zlib
from pathlib import Path

from fedboost.errors import ConfigError, DurabilityError
from fedboost.protocol import run
from fedboost.protocol.run import Record

VERSION_LINE = b"fedboost journal 3\n"
SUFFIX = ".journal"
_HEAD = struct.Struct(">II")


class Journal:
    """The journal of one session, open for appending."""

    def __init__(self, path: Path, past: tuple[Record, ...] = (), size: int = 0) -> None:
        self.path = path
        self.past = past
        """What was recorded before this process."""
        self._collected: list[bytes] = []
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._file, size)  # what a crash left half-written
        except OSError as error:
            raise ConfigError(f"{path}: cannot write the journal: {error.strerror}") from None
        self._size = size
        if size == 0:
            self._write(VERSION_LINE)
            sync_folder(path.parent)

    def append(self, record: Record) -> None:
        """Write a record, and sync it to the disk."""
        self.collect(record)
        self.sync()

    def collect(self, record: Record) -> None:
        """Write a record with the next `sync`."""
        data = run.encode(record)
        self._collected += [_HEAD.pack(len(data), zlib.crc32(data)), data]

    def sync(self) -> None:
        """Write what was collected, in one piece, and sync it to the disk."""
        if self._collected:
            data, self._collected = b"".join(self._collected), []
            self._write(data)

    def close(self) -> None:
        """Keep the file."""
        os.close(self._file)

    def delete(self) -> None:
        """Delete the file: the session is over, and its analyst knows."""
        self.close()
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _write(self, data: bytes) -> None:
        try:
            rest, position = memoryview(data), self._size
            while rest:
                count = os.pwrite(self._file, rest, position)
                rest, position = rest[count:], position + count
            os.fdatasync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise DurabilityError(f"{self.path}: cannot be written: {error.strerror}") from None
        self._size += len(data)


def read_journal(path: Path) -> tuple[tuple[Record, ...], int]:
    """The records in a file, and the bytes they fill. Raises ConfigError that names the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the journal: {error.strerror}") from None
    if VERSION_LINE.startswith(data):  # died before the first record
        return (), 0
    if not data.startswith(VERSION_LINE):
        raise ConfigError(
            f"{path}: not a journal of this version of fedboost; move it away to go on without it"
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
            break  # after a power cut the end of a file may be zeros
        if zlib.crc32(body) != crc:
            if end == len(data):
                break  # the last one, half-written
            raise ConfigError(
                f"{path}: record {len(records) + 1} was changed after it was written; move the file away to "
                f"go on without that session"
            )
        try:
            records.append(run.decode(body))
        except ConfigError as error:
            raise ConfigError(f"{path}: record {len(records) + 1}: {error}") from None
        position = end
    return tuple(records), position


class Folder:
    """The folder with the journals of sessions that are not over. ConfigError if it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{path}: another aggregator keeps its sessions here; give each a `state` folder of its own"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be used: {error.strerror}; name a folder by `state` that this user can write"
            ) from None

    def begin(self, session: str) -> Journal:
        """A new journal. DurabilityError if there cannot be one."""
        path = self._path / f"{session}{SUFFIX}"
        try:
            return Journal(path)
        except OSError as error:
            raise DurabilityError(f"{path}: cannot be written: {error.strerror}") from None

    def unfinished(self) -> list[Journal]:
        """The journals of an earlier process, oldest first."""
        journals = []
        for path in sorted(self._path.glob(f"*{SUFFIX}"), key=lambda path: path.lstat().st_mtime):
            past, size = read_journal(path)
            if past:
                journals.append(Journal(path, past, size))
            else:
                path.unlink()
        return journals

    def close(self) -> None:
        """Release the folder to another process."""
        os.close(self._lock)


def sync_folder(path: Path) -> None:
    """Sync the names of a folder's files to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
