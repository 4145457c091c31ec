"""The files of an audit log: the one that is written, and older ones, which were full.

An older file lies beside it and is named after the entries in it: `north.1-24017.audit.jsonl` beside
`north.audit.jsonl`. It is never written again.

Promises: entries come in order, whichever file they are in; a reader sees each once, also when the writer
puts a file aside meanwhile.
Refuses: a log that is not there, or cannot be read (ConfigError).
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedboost.errors import ConfigError
from fedboost.runtime.site.audit_entry import BEFORE_THE_FIRST, Admitted, Entry, parse_entry

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
