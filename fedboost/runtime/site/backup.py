"""A site's memory at its start, its backup and restore, and the parts of models that it keeps.

Promises: a party says at its start where its memory lies and how many sessions it knows; a new memory, or one
from a backup, knows the sessions and charges that the audit log has.
Refuses (ConfigError, one line with what a person has to do): to begin a memory where there is a budget or an
audit log that is not empty; to go on with a copy that is older than the audit log.
"""

import fcntl
import hashlib
import io
import json
import math
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, assert_never

from pydantic import Field, ValidationError

from fedboost.errors import ConfigError, DurabilityError, Refused, quoted
from fedboost.gbdt.booster import Booster
from fedboost.privacy.noise import epsilon_of
from fedboost.privacy.pairwise import Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.parts import Part
from fedboost.protocol.site import Standing, colluding_of, predicted_by
from fedboost.results.audit import Admitted, Checked, Ended, Event, Released, Sent
from fedboost.results.site import Charged, SiteBudget, Spent
from fedboost.runtime.files import write_atomically
from fedboost.runtime.signed_model import PartyModel, terms_to_predict
from fedboost.runtime.site.audit import (
    NO_LOG,
    OWNER_ALONE,
    TERMS,
    AuditLog,
    Entry,
    LogEnd,
    checked_entries,
    end_of,
    entries_after,
    lines_of,
    older_files,
    owner_of,
    read_admitted,
    read_log,
    terms_file,
)
from fedboost.runtime.site.config import PartyConfig, state_folder
from fedboost.runtime.site.memory import (
    NAME,
    FileMemory,
    as_row,
    charges_of,
    check_alone,
    check_dataset,
    known_session,
    logged,
    make_file,
    make_folder,
    now,
    open_database,
    put,
    put_told,
    read_spent,
    reading,
)
from fedboost.runtime.site.policy_keys import spent_under
from fedboost.terms.reading import Frozen, Name
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.views.words import moment

MIB = 1 << 20
EARLIER = "it was held before this memory was made"
OLDER = "an older copy of this site's memory was put back"


def memory_path(config: PartyConfig) -> Path:
    """The file of a site's memory."""
    return state_folder(config) / NAME


def open_log(config: PartyConfig, remedy: str = "") -> AuditLog | None:
    """The site's audit log, in its state folder unless the config names another. ConfigError, which says so
    with the remedy where another process of this party has it."""
    make_folder(state_folder(config))
    check_alone(memory_path(config), config.party, remedy)
    if config.audit is None:
        return None
    log = AuditLog(config.audit, int(config.audit_size * MIB))
    try:
        _check_owner(config)
    except BaseException:
        log.close()
        raise
    return log


def _check_owner(config: PartyConfig) -> None:
    """Raise ConfigError if the audit log is of another party, or of other rows."""
    assert config.audit is not None
    party, dataset = owner_of(config.audit)
    for owner, name, what in ((party, config.party, "party"), (dataset, config.rows_name, "the rows")):
        if owner not in (None, name):
            raise ConfigError(
                f"{config.audit}: is the audit log of {what} {owner!r}, not of {name!r}; name another "
                f"file as `audit` in {config.file}, or take that key away: it then lies beside the memory"
            )


def open_memory(config: PartyConfig, audit: AuditLog | None, log: Any) -> FileMemory:
    """The memory that a party goes on with. ConfigError as the module says."""
    path = memory_path(config)
    new = not os.path.lexists(path)
    if new:
        if fault := _missing(config, audit is not None and audit.last != NO_LOG):
            raise fault
        make_file(path, config.rows_name)
    memory = _open(config, audit)
    try:
        if audit is not None:
            since = audit.after(memory.logged)
            if since is None:
                warning = "the audit log is not the one that this memory was kept beside"
                log.warning(warning, audit=str(config.audit))
            with memory.file.transaction(durable=False) as file:
                _check_age(config, file, since or ())
        event = "a new memory of this site's sessions was begun" if new else "memory of this site's sessions"
        log.info(event, path=str(path), sessions=memory.sessions)
    except BaseException:
        memory.close()
        raise
    return memory


@dataclass(frozen=True)
class Begun:
    """A memory that was made: what it knows."""

    path: Path
    sessions: int
    releases: int


def init_memory(config: PartyConfig) -> Begun:
    """Make a memory that knows what the audit log has. ConfigError."""
    path = memory_path(config)
    if os.path.lexists(path):
        open_database(path).close()
        raise ConfigError(
            f"{path}: there is a memory already, and it stays as it is (one that was put back from a backup: "
            f"`fedboost privacy init --restored --config {config.file}`)"
        )
    with _log_of(config) as audit:
        entries = audit.after(NO_LOG) or []
        make_file(path, config.rows_name)
        with closing(_open(config, audit)) as memory, memory.transaction() as file:
            _take_over(file, config, entries)
    return _begun(path)


def accept_restored(config: PartyConfig, of_all_parties: bool = False) -> Begun:
    """Use a memory that is older than the audit log: sessions that it knows as under way are over, those of
    this party or of all that share it, and what the audit log has since is taken over. ConfigError."""
    path = memory_path(config)
    if not os.path.lexists(path):
        raise ConfigError(f"{path}: there is no memory; put it back first")
    with _log_of(config) as audit, closing(_open(config, audit)) as memory:
        since = audit.after(memory.logged)
        entries = audit.after(NO_LOG) or [] if since is None else since
        with memory.transaction() as file:
            parties = file.execute("SELECT DISTINCT party FROM sessions").fetchall()
            for party in [party for (party,) in parties] if of_all_parties else [config.party]:
                _end_open_sessions(file, party)
            _take_over(file, config, entries)
        memory.file.overwrite()
    return _begun(path)


def _end_open_sessions(file: sqlite3.Connection, party: str) -> None:
    """End a party's sessions that an older memory knows as under way: nobody knows what it answered since."""
    for table in ("secrets", "questions"):
        file.execute(f"DELETE FROM {table} WHERE party = ?", (party,))
    for row in file.execute(
        "SELECT party, session, rows, attempt, base, reached, helped, signed FROM standings "
        "WHERE party = ? AND ended IS NULL",
        (party,),
    ).fetchall():
        put(file, "standings", *row, OLDER)


def spent_of(config: PartyConfig) -> list[Spent]:
    """The privacy spent of each dataset in a site's state folder, its own first if there is a memory of it.
    ConfigError also where its memory is gone, or older than its audit log, so that the party does not start
    with it."""
    path = memory_path(config)
    end = NO_LOG if config.audit is None else end_of(config.audit)
    if os.path.lexists(path):
        _check_beside_log(config, end)
    elif fault := _missing(config, end != NO_LOG):
        raise fault
    assert config.state is not None
    others = sorted(other for other in config.state.glob(f"*/{NAME}") if other != path)
    return [spent for memory in (path, *others) if (spent := read_spent(memory)) is not None]


def site_budget(config: PartyConfig, charges: int = 0) -> SiteBudget:
    """What was spent of the site's present rows, with its last releases, where so many are wanted; else of
    every dataset. ConfigError, as `spent_of` then."""
    policy, limit, path, own = config.policy, config.policy.budget, memory_path(config), config.rows_name
    known = filter(None, [read_spent(path)]) if charges else spent_of(config)
    datasets = [spent_under(spent, limit, bool(charges) or spent.dataset == own) for spent in known]
    if not any(spent.own for spent in datasets):
        datasets = [spent_under(Spent(dataset=own), limit, own=True), *datasets]
    delta = datasets[0].delta
    charged = tuple(
        Charged(session=session, release=release, at=at, epsilon=epsilon_of(math.sqrt(cost), delta))
        for session, release, at, cost in (charges_of(path, charges) if charges else ())
    )
    return SiteBudget(
        name=own,
        max_sessions=policy.max_sessions,
        epsilon=policy.epsilon,
        delta=policy.delta,
        datasets=tuple(datasets),
        charges=charged if charges else None,
    )


def _check_beside_log(config: PartyConfig, end: LogEnd) -> None:
    """Compare a memory, which a party may be writing, with the entries that its audit log had before.
    ConfigError."""
    path = memory_path(config)
    with reading(path) as file:
        file.execute("BEGIN")
        check_dataset(path, file, config.rows_name)
        if config.audit is not None and end != NO_LOG:
            since = entries_after(config.audit, logged(file, config.party), end[0])
            _check_age(config, file, since or ())


def _missing(config: PartyConfig, audited: bool) -> ConfigError | None:
    """The error where there is no memory; None if one may be begun."""
    path, command = memory_path(config), f"`fedboost privacy init --config {config.file}`"
    if audited:
        return ConfigError(
            f"{path}: the memory of this site is gone, and {config.audit} has what left it: restore the "
            f"memory from a backup, or, if nobody can, {command} begins a new one, which knows of the "
            f"sessions so far what that log has"
        )
    if config.policy.budget is not None:
        return ConfigError(
            f"{path}: there is no memory of the rows {config.rows_name!r}, in which what is spent of the "
            f"budget is kept; {command} begins one (renamed or moved: put `state`, `dataset` right)"
        )
    return None


def _open(config: PartyConfig, audit: AuditLog | None) -> FileMemory:
    log_end: Callable[[], tuple[int, str]] = (lambda: NO_LOG) if audit is None else (lambda: audit.last)
    return FileMemory(memory_path(config), config.party, config.rows_name, config.policy.budget, log_end)


def _begun(path: Path) -> Begun:
    with closing(open_database(path)) as file:
        (sessions,) = file.execute("SELECT count(DISTINCT session) FROM sessions").fetchone()
        (releases,) = file.execute("SELECT count(*) FROM charges").fetchone()
    return Begun(path, sessions, releases)


def _check_age(config: PartyConfig, file: sqlite3.Connection, since: Iterable[Entry]) -> None:
    """Raise ConfigError if the audit log has what this memory does not know. Each entry stands there after
    the memory's own note, so a process that was killed leaves none of which there is no note.

    since: the entries after the last one that the memory noted.
    """
    if any(_is_unknown(file, config.party, entry.event) for entry in since):
        raise ConfigError(
            f"{memory_path(config)}: this memory is older than {config.audit}: a copy was put back, or the "
            f"power failed; put the newest one there, or `fedboost privacy init --restored --config "
            f"{config.file}` goes on with this one (its open sessions are then over, and what the log has "
            f"since is added)"
        )


def _is_unknown(file: sqlite3.Connection, party: str, event: Event) -> bool:
    """Tell if a memory does not know of an entry of the audit log. Of checks it knows nothing."""
    if isinstance(event, Checked):
        return False
    session = known_session(file, party, event.session)
    match event:
        case Admitted():
            return session is None
        case Ended():
            return session is not None and session.ended is None and not event.paused
        case Sent():
            return session is None
        case Released():
            name = party, event.session
            if event.charge is not None:
                query = "SELECT 1 FROM charges WHERE (party, session, release) = (?, ?, ?)"
                if file.execute(query, (*name, event.charge)).fetchone() is None:
                    return True
            if not event.question or session is None or session.ended is not None:
                return session is None
            query = "SELECT substr(digest, 1, ?) = ? FROM questions WHERE (party, session, turn) = (?, ?, ?)"
            digest = bytes.fromhex(event.question)  # hashes of what was received for it follow
            row = file.execute(query, (len(digest), digest, *name, event.turn)).fetchone()
            return row is None or not row[0]
        case _:
            assert_never(event)


def _take_over(file: sqlite3.Connection, config: PartyConfig, entries: Iterable[Entry]) -> None:
    """Take over what an audit log has into the memory: its sessions as ended, its charges."""
    entries = list(entries)
    answered = {entry.event.session for entry in entries if isinstance(entry.event, Released)}
    for entry in entries:
        event, party = entry.event, config.party
        if isinstance(event, Admitted) and known_session(file, party, event.session) is None:
            terms = _terms_of(event, config)
            name, signed = (party, event.session), (event.analyst or "", bytes.fromhex(event.request or ""))
            times = event.delta or 0.0, 0.0, entry.time
            predicted = None if terms is None else predicted_by(terms, party)
            met = event.session in answered or predicted is not None  # what is relayed is no release
            put(file, "sessions", *name, event.terms, *signed, *_group(event, terms), *times)
            put(file, "standings", *name, *as_row(b"", Standing(attempt=int(met))), EARLIER)
            if terms is not None:
                put_told(file, name, terms)
            if terms is not None and terms.vertical.label_epsilon and terms.blocks.has_labels(party):
                put(file, "labels", party, terms.columns.label, terms.vertical.label_epsilon, "", b"")
        elif isinstance(event, Released) and event.charge is not None and event.cost is not None:
            put(file, "charges", party, event.session, event.charge, event.cost, entry.time)


def _terms_of(event: Admitted, config: PartyConfig) -> Terms | None:
    """The terms of a session, which lie beside the log; None if they are gone. It then counts as a
    training."""
    assert config.audit is not None
    try:
        return read_admitted(config.audit, event.terms)
    except ConfigError:
        return None


def _group(event: Admitted, terms: Terms | None) -> tuple[str, int, int]:
    """The parties with rows of a session, whether their vectors were hidden, and how many may collude.
    Without its terms nobody knows which party of an encrypted session has no rows, and it is not compared."""
    if terms is None:
        colluding, protection = Group.of(event.parties).colluding, PROTECTIONS.get(event.protection)
        hides = protection is not None and protection.hides and not protection.uses_key_holder
        return json.dumps(event.parties), int(hides), colluding
    return json.dumps(terms.holders), int(terms.protection.hides), colluding_of(terms)


@contextmanager
def _log_of(config: PartyConfig) -> Iterator[AuditLog]:
    audit = open_log(config, "; stop the party first")
    assert audit is not None
    with audit:
        yield audit


# ---- The parts of models that a site keeps, each in a file of its own -----------------------------------
# Promises: a part is on the disk before this site signs it.


NAME_CHARS = 16
"""Characters of a model's id in the name of its file: 64 bits."""
FILE_NAME = re.compile(rf"[0-9a-f]{{{NAME_CHARS}}}\.json")


class PartFolder:
    """The folder of the parts of a site. It is made when the first part is kept."""

    def __init__(self, config: PartyConfig) -> None:
        self._folder, self._party = config.models, config.party

    def file(self, id: str) -> Path:
        """The file of a model."""
        assert self._folder is not None
        return self._folder / f"{id[:NAME_CHARS]}.json"

    def files(self) -> list[Path]:
        """The files of all parts."""
        assert self._folder is not None
        try:
            return sorted(file for file in self._folder.iterdir() if FILE_NAME.fullmatch(file.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{self._folder}: cannot read this folder: {error.strerror}") from None

    def keep(self, part: Part) -> Path:
        """Write a part to its file; returns that. A file with another part stays as it is."""
        model = PartyModel.of(part)
        file = self.file(model.id)
        try:
            make_folder(file.parent)
            self._check_free(file, model)
            write_atomically(file, model.to_bytes(), OWNER_ALONE)
        except (ConfigError, OSError) as error:
            raise DurabilityError(str(error)) from None
        return file

    def model_of(self, terms: Terms) -> Booster:
        """The part of the model that these terms predict with. Refused if it is not here."""
        id = terms.vertical.predict_with
        assert id is not None
        file, name = self.file(id), f"model {id[:NAME_CHARS]}"
        try:
            if not file.exists():
                raise Refused(
                    f"party {self._party} has no part of {name}: it did not train it, or its folder of "
                    f"models was moved"
                )
            model = PartyModel.load(file)
        except (ConfigError, OSError) as error:
            raise Refused(f"party {self._party} cannot read its part of {name}", str(error)) from None
        if model.id != id or model.party != self._party:
            raise Refused(f"party {self._party}: its file of model {id[:NAME_CHARS]} is that of another one")
        vertical = terms.vertical
        rows, fewest = vertical.predict_rows or 0, vertical.min_common_rows
        if terms_to_predict(model, rows, fewest) != terms:
            raise Refused(f"the terms are not those that model {id[:NAME_CHARS]} was trained under")
        return model.booster

    def _check_free(self, file: Path, model: PartyModel) -> None:
        """ConfigError if this file has another part: of another party with the same folder, say."""
        if not file.exists():
            return
        there = PartyModel.load(file)
        if (there.id, there.party) != (model.id, model.party):
            raise ConfigError(
                f"{file}: has the part of party {quoted(there.party)!r} of model {there.id[:NAME_CHARS]}, "
                f"which would be lost: give this site a folder of its own by `models`"
            )


# ---- Backups of a site: its memory, its audit log -------------------------------------------------------
# The terms of its sessions and its parts of models in one file; and their return.
# A backup is a gzipped tar archive. It has no key of a bundle and no approval; its memory has the secrets
# that noise is drawn from, so it is for its owner's eyes alone.
# Promises: a backup may be made while the party runs, and can be restored: the memory is copied as SQLite
# does it, the audit log after it, and both are checked. Sessions that were under way are over in a restored
# memory, and it knows what an audit log that is still in its place has since. What was in its place is
# kept. Refuses (ConfigError, one line with what to do): to back up what is not there; a file that is no
# backup, is damaged, or of another party or other rows; a memory, another audit log or another part of a
# model that is in the way, unless it is forced; to restore while a party works with the memory.


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
