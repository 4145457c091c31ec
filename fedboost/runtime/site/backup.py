"""Backups of a site: its memory, its audit log, the terms of its sessions and its parts of models in one
file; and their return.

A backup is a gzipped tar archive. It has no key of a bundle and no approval; its memory has the secrets that
noise is drawn from, so it is for its owner's eyes alone.

Promises: a backup may be made while the party runs, and can be restored: the memory is copied as SQLite does
it, the audit log after it, and both are checked. Sessions that were under way are over in a restored memory,
and it knows what an audit log that is still in its place has since. What was in its place is kept.
Refuses (ConfigError, one line with what to do): to back up what is not there; a file that is no backup, is
damaged, or of another party or other rows; a memory, another audit log or another part of a model that is in
the way, unless it is forced; to restore while a party works with the memory.
"""

import fcntl
import hashlib
import io
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from fedboost.errors import ConfigError
from fedboost.people.text import moment
from fedboost.runtime.files import write_atomically
from fedboost.runtime.party_model import PartyModel
from fedboost.runtime.site.audit import TERMS, checked_entries, read_log, terms_file
from fedboost.runtime.site.audit_entry import Entry
from fedboost.runtime.site.audit_files import NO_LOG, LogEnd, end_of, lines_of, older_files
from fedboost.runtime.site.config import PartyConfig, state_folder
from fedboost.runtime.site.memory_file import OWNER_ALONE, make_folder, now, open_database
from fedboost.runtime.site.memory_start import Begun, accept_restored, memory_path
from fedboost.runtime.site.models import FILE_NAME, PartFolder
from fedboost.terms.reading import Frozen, Name
from fedboost.version import VERSION

ABOUT, MEMORY, LOG = "backup.json", "memory.sqlite", "audit.jsonl"
"""Members of a backup, besides the terms and the parts of models."""
PARTS = "models"
_TERMS = re.compile(rf"{TERMS}/[0-9a-f]{{64}}\.json")
_PARTS = re.compile(rf"{PARTS}/{FILE_NAME.pattern}")
MAX_BYTES = 4 << 30
"""Bytes of all members: more is read of no archive, however small it is."""


class About(Frozen):
    """The facts of a backup: of which party and rows, when it was made (UTC), by which version."""

    format: Literal["fedboost backup 1"] = "fedboost backup 1"
    party: Name
    dataset: Name
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    version: str


@dataclass(frozen=True)
class Backup:
    """A backup that was read and checked."""

    about: About
    memory: bytes
    log: bytes
    terms: dict[str, bytes]
    """By digest."""
    parts: dict[str, bytes]
    """By the names of their files."""
    entries: list[Entry]

    @property
    def log_end(self) -> LogEnd:
        """The end of its audit log."""
        return (self.entries[-1].n, self.entries[-1].hash) if self.entries else NO_LOG


@dataclass(frozen=True)
class Restored:
    """A memory that was put back. newer: entries that the audit log in its place has beyond the backup's,
    None where that was put back, too; parts: how many parts of models were put back; aside: the folder with
    what was there before, None if nothing was."""

    begun: Begun
    time: str
    newer: int | None
    parts: int
    aside: Path | None


def write_backup(config: PartyConfig, out: Path) -> About:
    """Back up a site's memory, audit log, terms and parts of models into a file. ConfigError."""
    path, log = memory_path(config), config.audit
    assert log is not None
    if not os.path.lexists(path):
        raise ConfigError(
            f"{path}: there is no memory to back up: start the party first, or put `state` and `dataset` of "
            f"{config.file} right"
        )
    about = About(party=config.party, dataset=config.rows_name, time=now(), version=VERSION)
    members = {ABOUT: about.model_dump_json().encode(), MEMORY: _copy_of(path)}
    lines = list(lines_of(log)) if end_of(log) != NO_LOG else []  # after the memory: it has what that knows
    if lines and not lines[-1].data.endswith(b"\n"):
        lines.pop()  # the party is writing it
    members[LOG] = b"".join(line.data for line in lines)
    for digest in sorted({e.event.terms for e in checked_entries(log, lines) if e.event.kind == "admitted"}):
        terms = terms_file(log, digest)
        if terms.is_file():
            members[f"{TERMS}/{terms.name}"] = terms.read_bytes()
    for part in PartFolder(config).files():
        members[f"{PARTS}/{part.name}"] = part.read_bytes()
        _check_part(part.name, members[f"{PARTS}/{part.name}"], str(part))
    write_atomically(out, _archive(members), OWNER_ALONE)
    return about


def restore(file: Path, config: PartyConfig, force: bool) -> Restored:
    """Put a backup in the place of a memory that is gone. force: also of one that is there. ConfigError."""
    backup, path, log = _read(file), memory_path(config), config.audit
    assert log is not None
    for name, own, what in (
        (backup.about.party, config.party, "party"),
        (backup.about.dataset, config.rows_name, "the rows"),
    ):
        if name != own:
            raise ConfigError(f"{file}: is a backup of {what} {name!r}, and {config.file} is of {own!r}")
    folder = state_folder(config)
    make_folder(folder)
    make_folder(log.parent)
    _check_nobody_works(folder)
    there = [file for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")) if os.path.lexists(file)]
    newer = _newer_entries(log, backup)
    when = moment(backup.about.time) + " UTC"
    if there and not force:
        raise ConfigError(
            f"{there[0]}: there is a memory already, and it stays as it is; --force puts the one of {when} "
            f"in its place, and keeps this one in a folder beside it"
        )
    if newer is None and end_of(log) != NO_LOG:
        if not force:
            raise ConfigError(
                f"{log}: there is an audit log that does not go on from the backup of {when}, and it stays "
                f"as it is; --force puts that one in its place, and keeps this one in a folder beside it"
            )
        there += [*(older.path for older in older_files(log)), *([log] if log.exists() else [])]
    lost, other = _parts_to_put_back(backup, config)
    if other and not force:
        raise ConfigError(
            f"{other[0]}: is another part of this model than that of {when}, and it stays as it is; --force "
            f"puts that one in its place, and keeps this one in a folder beside the memory"
        )
    there += other
    aside = _put_aside(there, folder)
    if newer is None and backup.log:
        write_atomically(log, backup.log, OWNER_ALONE)
    for digest, text in backup.terms.items():
        kept = terms_file(log, digest)
        if not kept.exists():
            make_folder(kept.parent)
            write_atomically(kept, text, OWNER_ALONE)
    for part, content in lost.items():
        make_folder(part.parent)
        write_atomically(part, content, OWNER_ALONE)
    write_atomically(path, backup.memory, OWNER_ALONE)
    return Restored(accept_restored(config, of_all_parties=True), when, newer, len(lost), aside)


def _parts_to_put_back(backup: Backup, config: PartyConfig) -> tuple[dict[Path, bytes], list[Path]]:
    """The files of parts that are not as in a backup, with their contents there; and those of them that are
    something else."""
    assert config.models is not None
    lost, other = dict[Path, bytes](), list[Path]()
    for name, content in backup.parts.items():
        file = config.models / name
        if file.exists():
            if file.read_bytes() == content:
                continue
            other.append(file)
        lost[file] = content
    return lost, other


def _check_part(name: str, content: bytes, source: str) -> None:
    """Raise ConfigError for a file that is not the part that its name says."""
    if not PartyModel.from_bytes(content, source).id.startswith(Path(name).stem):
        raise ConfigError(f"{source}: is the part of another model than its name says; give it its name back")


def _copy_of(path: Path) -> bytes:
    """A memory, which a party may be writing, as one file."""
    with closing(open_database(path)) as source, tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / MEMORY
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL, OWNER_ALONE))
        try:
            with closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            return copy.read_bytes()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"{path}: cannot copy this memory: {error}") from None


def _archive(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(content), OWNER_ALONE, time.time()
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _read(file: Path) -> Backup:
    """Read a backup and check all that is in it. ConfigError."""
    try:
        with tarfile.open(file, "r:gz") as archive:
            members = dict(_contents(archive))
        about = About.model_validate_json(members[ABOUT])
        memory, log = members[MEMORY], members[LOG]
    except OSError as error:
        if isinstance(error, tarfile.TarError) or error.errno is None:
            raise ConfigError(f"{file}: {_NO_BACKUP}") from None
        raise ConfigError(f"{file}: cannot read: {error.strerror}") from None
    except (tarfile.TarError, EOFError, zlib.error, KeyError, ValidationError):
        raise ConfigError(f"{file}: {_NO_BACKUP}") from None
    with tempfile.TemporaryDirectory() as folder:
        copies = Path(folder) / MEMORY, Path(folder) / LOG
        for copy, content in zip(copies, (memory, log), strict=True):
            copy.write_bytes(content)
        try:
            open_database(copies[0]).close()
            entries = read_log(copies[1])
        except ConfigError as error:
            fault = str(error).replace(f"{folder}/", "").partition(";")[0]
            raise ConfigError(f"{file}: is damaged: {fault}; take another backup") from None
    terms = {Path(name).stem: text for name, text in members.items() if _TERMS.fullmatch(name)}
    if other := next((d for d, text in terms.items() if hashlib.sha256(text).hexdigest() != d), None):
        raise ConfigError(f"{file}: is damaged: {TERMS}/{other}.json was changed; take another backup")
    parts = {Path(name).name: part for name, part in members.items() if _PARTS.fullmatch(name)}
    for name, part in parts.items():
        try:
            _check_part(name, part, f"{PARTS}/{name}")
        except ConfigError as error:
            fault = str(error).partition(";")[0]
            raise ConfigError(f"{file}: is damaged: {fault}; take another backup") from None
    return Backup(about, memory, log, terms, parts, entries)


_NO_BACKUP = "is no backup, or is damaged; give a file that `fedboost backup` of this version wrote"


def _contents(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """The plain files of an archive. ReadError for any that is in no backup."""
    left = MAX_BYTES
    for member in archive:
        left -= member.size
        name = member.name
        known = name in (ABOUT, MEMORY, LOG) or _TERMS.fullmatch(name) or _PARTS.fullmatch(name)
        file = archive.extractfile(member) if known and member.isreg() and left >= 0 else None
        if file is None:
            raise tarfile.ReadError
        yield name, file.read()


def _newer_entries(log: Path, backup: Backup) -> int | None:
    """The number of entries that an audit log has beyond the backup's; None if it does not go on from there.
    ConfigError if it was changed."""
    if end_of(log) == NO_LOG:
        return None
    number, digest = backup.log_end
    entries = read_log(log)
    ends = [NO_LOG[1], *(entry.hash for entry in entries)]
    return len(entries) - number if number < len(ends) and ends[number] == digest else None


def _check_nobody_works(folder: Path) -> None:
    """Raise ConfigError if a process of any party works with the memory in a folder."""
    for lock in folder.glob("*.lock"):
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{folder}: party {lock.stem!r} works with the memory there; stop it first"
                ) from None


def _put_aside(paths: list[Path], folder: Path) -> Path | None:
    """Move files into a new folder; None where there are none."""
    if not paths:
        return None
    aside = Path(tempfile.mkdtemp(dir=folder, prefix=f"before-{now().replace(':', '')}-"))
    for path in paths:
        shutil.move(path, aside / path.name)
    return aside
