"""Creating, restoring and backing up a site's memory, and reading its privacy budget.

Guarantees: when a party starts, it logs the path of its memory and the number of sessions in it. If a
restored copy lacks entries, a person must accept the loss, and the audit log records it.
Raises: ConfigError, whose message says what to do, if a memory is older than its counter file. The same error
is raised if a memory is missing and must not be created, because there is a privacy budget or the counter
file shows that a memory existed.
"""

import hashlib
import io
import math
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedboost.errors import ConfigError
from fedboost.privacy.noise import epsilon_of
from fedboost.protocol.site import KEY_BYTES
from fedboost.results.audit import Admitted, Released
from fedboost.results.site import ChargedRelease, SiteBudget, Spent
from fedboost.runtime.files import file_errors, write_atomically
from fedboost.runtime.signed_model import PartyModel
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.config import PartyConfig, state_folder
from fedboost.runtime.site.memory import (
    FileMemory,
    check_alone,
    check_dataset,
    known_session,
    known_sessions,
    read_spent,
    spent_in,
    spent_under,
    take_over,
)
from fedboost.runtime.site.models import FILE_NAME, PartFolder
from fedboost.runtime.site.store import (
    NAME,
    NO_ENTRY,
    Counter,
    Decided,
    Head,
    Kept,
    Store,
    Value,
    follows,
    head_of,
    lacking,
    make_file,
    make_folder,
    now,
    open_database,
    parties_of,
    reading,
)
from fedboost.system import OWNER_ALONE, lock, sync_folder
from fedboost.terms.reading import Frozen, Name
from fedboost.terms.terms import Terms
from fedboost.version import VERSION
from fedboost.views.words import counted, moment

OLDER = "an older copy of this site's memory was restored"


def memory_path(config: PartyConfig) -> Path:
    return state_folder(config) / NAME


def open_memory(config: PartyConfig, log: Any, names: Callable[[Terms], Mapping[str, str]]) -> FileMemory:
    """Open a party's memory, or create it if that is safe. names: as in `FileMemory`. Raises ConfigError if
    the memory cannot be used, or if a person must decide (see the module docstring)."""
    path = memory_path(config)
    make_folder(path.parent)
    check_alone(path, config.party)
    new = begin_store(config)
    memory = FileMemory(path, config.party, config.rows_name, config.policy.budget, names)
    event = "created a new memory of sessions" if new else "opened the memory of sessions"
    log.info(event, path=str(path), sessions=memory.sessions)
    return memory


def begin_store(config: PartyConfig) -> bool:
    """Create the store if it is missing. Returns True if it was created. Raises ConfigError if a person must
    decide whether to create it."""
    path = memory_path(config)
    if os.path.lexists(path):
        return False
    if fault := _missing(config):
        raise fault
    make_file(path, config.rows_name)
    return True


@dataclass(frozen=True)
class Begun:
    """Facts about a created or restored memory: the number of sessions and releases that it contains, and the
    number of log entries that were lost."""

    path: Path
    sessions: int
    releases: int
    lost: int

    @property
    def loss(self) -> str:
        """Message for the user about the log entries that a restored memory has lost."""
        if self.lost:
            return (
                f"{counted(self.lost, 'entry', 'entries')} of its log are lost, and the log now records "
                f"this. Later sessions and charges were restored from its counter file."
            )
        return (
            "Its counter file has no later entries. If this file may also be an older copy, and the party "
            "has run after the copy was made, treat the privacy budget as spent."
        )


def init_memory(config: PartyConfig) -> Begun:
    """Create an empty memory for a site. Raises ConfigError if a memory exists, or if the counter file shows
    that one existed before."""
    path = memory_path(config)
    if os.path.lexists(path):
        open_database(path).close()
        raise ConfigError(
            "memory-exists",
            f"{path} already exists and was not changed; to use a memory that was restored from a backup, "
            f"run `fedboost privacy init --restored --config {config.file}`",
        )
    make_folder(path.parent)
    check_alone(path, config.party, "; stop the party first")
    if _counted(config) != NO_ENTRY:
        raise _gone(config)
    make_file(path, config.rows_name)
    return _begun(path, 0)


def accept_restored(config: PartyConfig, of_all_parties: bool = False) -> Begun:
    """Accept a restored memory that is older than its counter file, or create an empty one if it is missing.
    Sessions and charges are added from the counter file, open sessions end, and the log records what is
    missing. of_all_parties: do this for all parties that share the memory. Raises ConfigError if the memory
    cannot be used."""
    path = memory_path(config)
    make_folder(path.parent)
    check_alone(path, config.party, "; stop the party first")
    if not os.path.lexists(path):
        if _counted(config) == NO_ENTRY:
            raise ConfigError("memory-missing", f"{path}: there is no memory; restore it, or omit --restored")
        make_file(path, config.rows_name)
    with closing(open_database(path)) as file:
        check_dataset(path, file, config.rows_name)
        parties = parties_of(file)
    # A party that began to share the memory after the copy was made has only a counter file.
    others = Counter.others(path, parties)
    later = {str(row[0]) for counter in others for _, row in counter.promises()}
    sharing = sorted({*parties, *later} - {config.party}) if of_all_parties else []
    return _begun(path, [_accept(path, party) for party in (*sharing, config.party)][-1])


def _accept(path: Path, party: str) -> int:
    """End a party's open sessions, add the durable rows from its counter file, and continue the log after the
    store's last entry. Returns the number of entries that are only in the counter file."""
    counter = Counter(path, party)
    known, promises = counter.last() or NO_ENTRY, [*counter.promises()]
    with closing(Store(path, party, restored=True)) as store:
        with store.transaction() as file:
            head = head_of(file, party)
            ahead = head > known and follows(file, party, known)
            take_over(file, party, lacking(file, promises, ahead), OLDER)
            number, digest = max(known, head)
            store.append(file, Kept(kind="restored", known=number, last=digest))
        store.overwrite()
    return max(known[0] - head[0], 0)


def site_budget(config: PartyConfig, charges: int = 0) -> SiteBudget:
    """Return the privacy spent on a site's rows. charges: number of most recent releases to list, for the
    current dataset only. With 0, all datasets in the state folder are listed instead, the current one first.
    Raises ConfigError if the party could not start with its memory, because the memory is missing or older
    than its counter file."""
    policy, path, own = config.policy, memory_path(config), config.rows_name
    last = "SELECT session, release, at, cost FROM charges ORDER BY at DESC, release DESC LIMIT ?"
    with reading(path) as file:
        if file is not None:
            check_dataset(path, file, own)
        elif not charges and (fault := _missing(config)):
            raise fault
        spent = Spent(dataset=own) if file is None else spent_in(file)
        rows = [] if file is None else file.execute(last, (charges,)).fetchall()
    present = spent_under(spent, policy.budget, own=True)
    charged = tuple(
        ChargedRelease(
            session=session, release=release, at=at, epsilon=epsilon_of(math.sqrt(cost), present.delta)
        )
        for session, release, at, cost in rows
    )
    others = [] if charges else sorted(other for other in config.state.glob(f"*/{NAME}") if other != path)
    return SiteBudget(
        name=own,
        max_sessions=policy.max_sessions,
        epsilon=policy.epsilon,
        delta=policy.delta,
        datasets=(present, *(spent_under(read_spent(other), None, own=False) for other in others)),
        charges=charged if charges else None,
    )


def _counted(config: PartyConfig) -> Head:
    return Counter(memory_path(config), config.party).last() or NO_ENTRY


def _gone(config: PartyConfig) -> ConfigError:
    path = memory_path(config)
    return ConfigError(
        "memory-gone",
        f"this site's memory {path} is missing, although {Counter(path, config.party).path.name} shows that "
        f"it had {_counted(config)[0]} entries. Restore it from a backup. If you have no backup, run "
        f"`fedboost privacy init --restored --config {config.file}` to rebuild it from the counter file",
    )


def _missing(config: PartyConfig) -> ConfigError | None:
    """Return the error for a missing memory; None if a new memory may be created."""
    path, command = memory_path(config), f"`fedboost privacy init --config {config.file}`"
    if _counted(config) != NO_ENTRY:
        return _gone(config)
    if config.policy.budget is not None:
        return ConfigError(
            "memory-not-begun",
            f"{path}: there is no memory of dataset {config.rows_name!r}, which is needed to record the "
            f"privacy budget; run {command} to create one (if it was moved or renamed, correct `state` or "
            f"`dataset`)",
        )
    return None


def _begun(path: Path, lost: int) -> Begun:
    with reading(path) as file:
        assert file is not None
        (sessions,) = file.execute("SELECT count(DISTINCT session) FROM sessions").fetchone()
        (releases,) = file.execute("SELECT count(*) FROM charges").fetchone()
    return Begun(path, sessions, releases, lost)


# ---- Backups of a site (its store and model parts in one file), and how they are restored ---------------
# A backup is a gzipped tar archive. It contains no private keys, but its memory has the secrets from which
# noise is drawn, so it is readable by its owner only.
# Guarantees: a backup may be made while the party runs, and can be restored: SQLite copies the store, which
# is then checked. Sessions in progress at that time are ended in a restored memory. Replaced files are kept.
# Rejects (ConfigError): backing up a missing memory; a file that is not a backup, is damaged, or belongs to a
# different party or dataset; a backup whose rows differ from its log, or of which the counter has no record;
# replacing an intact memory that continues from the backup, since that would only lose entries; without
# `force`, replacing a damaged memory or a different model part; restoring while a party uses the memory.


ABOUT, MEMORY, PARTS = "backup.json", "memory.sqlite", "models"
"""Names of the members of a backup archive; PARTS is a folder."""
_PARTS = re.compile(rf"{PARTS}/{FILE_NAME.pattern}")
MAX_BYTES = 4 << 30
"""Maximum total size of the unpacked members in bytes; even a small archive may contain huge ones."""


class About(Frozen):
    """Facts about a backup: party, dataset, time of creation (UTC), and version of fedboost."""

    format: Literal["fedboost backup 2"] = "fedboost backup 2"
    party: Name
    dataset: Name
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    version: str


@dataclass(frozen=True)
class Backup:
    """A backup that was read and checked. head: the party's last log entry; decisions: the party's rows of
    approvals and refusals; parts: contents of the model parts, by file name."""

    about: About
    memory: bytes
    parts: dict[str, bytes]
    head: Head
    decisions: set[tuple[Value, ...]]


@dataclass(frozen=True)
class Restored:
    """A restored memory. parts: number of restored model parts; aside: folder to which the replaced files
    were moved, or None if no files were replaced."""

    begun: Begun
    time: str
    parts: int
    aside: Path | None


def write_backup(config: PartyConfig, out: Path) -> About:
    """Write a site's store and model parts to a backup. Raises ConfigError without an intact memory."""
    path = memory_path(config)
    if not os.path.lexists(path):
        raise ConfigError(
            "backup-nothing",
            f"{path}: there is no memory to back up; start the party first, or correct `state` and `dataset` "
            f"in {config.file}",
        )
    about = About(party=config.party, dataset=config.rows_name, time=now(), version=VERSION)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / MEMORY
        _copy(path, copy)
        _check_rows(copy, config.party)
        members = {ABOUT: about.model_dump_json().encode(), MEMORY: copy.read_bytes()}
    for part in PartFolder(config).files():
        members[f"{PARTS}/{part.name}"] = part.read_bytes()
        _check_part(part.name, members[f"{PARTS}/{part.name}"], str(part))
    write_atomically(out, _archive(members), OWNER_ALONE)
    return about


def restore(file: Path, config: PartyConfig, force: bool) -> Restored:
    """Restore a site's memory and model parts from a backup file. force: also replace an existing memory or
    model part, and accept a backup whose last entry the counter file does not contain. Raises ConfigError if
    the backup is invalid or must not be restored (see the comment above)."""
    backup, path = _read(file), memory_path(config)
    for name, own, what in (
        (backup.about.party, config.party, "party"),
        (backup.about.dataset, config.rows_name, "dataset"),
    ):
        if name != own:
            raise ConfigError(
                "backup-of-other", f"{file} is a backup of {what} {name!r}, but {config.file} is for {own!r}"
            )
    folder = state_folder(config)
    make_folder(folder)
    _check_nobody_works(folder)
    there = [file for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")) if os.path.lexists(file)]
    when = moment(backup.about.time) + " UTC"
    if path in there and _is_newer(path, backup):
        raise ConfigError(
            "restore-not-newer",
            f"{path} is intact and no older than the backup of {when}, so replacing it would only lose "
            f"entries; the memory was not replaced",
        )
    if there and not force:
        raise ConfigError(
            "restore-memory-exists",
            f"{there[0]} already exists and was not replaced; use --force to replace it with the backup of "
            f"{when} and move the existing file to a folder next to it",
        )
    counter = Counter(path, config.party)
    heads = {NO_ENTRY, *counter.heads()}
    if counter.last() not in (None, NO_ENTRY) and backup.head not in heads and not force:
        raise ConfigError(
            "backup-not-counted",
            f"{file}: {counter.path} has no record of the backup's last entry, {backup.head[0]}. The backup "
            f"is older than the last export that removed entries, or forged; use --force to restore it "
            f"anyway",
        )
    counted = {row for table, row in counter.promises() if table == "decisions"}
    if backup.head in heads - {NO_ENTRY} and backup.decisions - counted:
        raise ConfigError(
            "backup-decisions-forged",
            f"{file} contains approvals or refusals of which {counter.path} has no record, so they are "
            f"forged; use another backup",
        )
    lost, other = _parts_to_put_back(backup, config)
    if other and not force:
        raise ConfigError(
            "restore-part-exists",
            f"{other[0]} differs from the model part in the backup of {when}, and was not replaced; use "
            f"--force to replace it and move the existing part to a folder next to the memory",
        )
    aside = _put_aside([*there, *other], folder)
    for part, content in lost.items():
        make_folder(part.parent)
        write_atomically(part, content, OWNER_ALONE)
    write_atomically(path, backup.memory, OWNER_ALONE)
    sync_folder(folder)
    return Restored(accept_restored(config, of_all_parties=True), when, len(lost), aside)


def _is_newer(path: Path, backup: Backup) -> bool:
    """Return whether a store is intact and its log contains, or follows on, a backup's last entry."""
    try:
        with closing(open_database(path)) as file:
            return follows(file, backup.about.party, backup.head)
    except ConfigError:
        return False


def _copy(path: Path, copy: Path) -> None:
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL, OWNER_ALONE))
    try:
        with closing(open_database(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except (sqlite3.Error, OSError) as error:
        raise ConfigError("backup-not-copied", f"{path}: cannot copy this memory: {error}") from None


def _check_rows(path: Path, party: str) -> Head:
    """Check that the rows of a store match its logs, and return a party's last entry. Raises ConfigError if
    they do not, e.g. because someone removed a session or a charge, or added an approval."""
    with closing(open_database(path)) as file:
        if file.execute(_NEVER_WRITTEN).fetchone():
            raise ValueError
        heads = {each: _check_rows_of(path, file, each) for each in {party, *parties_of(file)}}
    return heads[party]


_NEVER_WRITTEN = (
    "SELECT 1 FROM charges WHERE typeof(cost) != 'real' OR cost NOT BETWEEN 0 AND 1e300 "
    "UNION ALL SELECT 1 FROM sessions WHERE typeof(delta) != 'real' "
    "UNION ALL SELECT 1 FROM standings WHERE typeof(attempt) != 'integer' "
    f"UNION ALL SELECT 1 FROM site WHERE typeof(secret) != 'blob' OR length(secret) != {KEY_BYTES} "
    "OR (SELECT count(*) FROM site) != 1"
)
"""SQL query for values that affect budgets, but have a type or size that no party would write."""


def _check_rows_of(path: Path, file: sqlite3.Connection, party: str) -> Head:
    """Like `_check_rows`, but for the rows of one party."""
    entries = read_log(path, party)
    last = (entries[-1].n, entries[-1].hash) if entries else NO_ENTRY
    if head_of(file, party) != last:
        raise ConfigError(
            "backup-log-mismatch", f"{path}: the numbers of its log entries do not match their content"
        )
    known_sessions(file, party)  # raises if they cannot be read
    decided = dict[tuple[str, str], str]()
    charges = "SELECT 1 FROM charges WHERE (party, session, release, cost) = (?, ?, ?, ?)"
    for entry in entries:
        lacking = f"{path} lacks the row for entry {entry.n} of its log"
        match event := entry.event:
            case Admitted() if known_session(file, party, event.session) is None:
                raise ConfigError("backup-row-missing", lacking)
            case Released(charge=str()):
                if not file.execute(charges, (party, event.session, event.charge, event.cost)).fetchone():
                    raise ConfigError("backup-row-missing", lacking)
            case Kept(kind="restored"):  # decisions may be the counter's
                decided = {}
            case Decided():
                kind = "refused" if event.kind == "refused" else "approved"
                decided[event.terms, kind] = event.content
    query = "SELECT digest, kind, content FROM decisions WHERE party = ?"
    rows = {(d, k): c and hashlib.sha256(c.encode()).hexdigest() for d, k, c in file.execute(query, (party,))}
    is_whole = not any(isinstance(entry.event, Kept) for entry in entries)  # the log has all decisions
    others = rows.keys() - decided.keys() if is_whole else set[tuple[str, str]]()
    if others or any(rows.get(key, "") != content for key, content in decided.items()):
        raise ConfigError("decisions-altered", f"{path}: its approvals and refusals do not match its log")
    return last


def _parts_to_put_back(backup: Backup, config: PartyConfig) -> tuple[dict[Path, bytes], list[Path]]:
    """Return the contents, by path, of a backup's model parts that are missing or different at the site, and
    the paths of the different ones."""
    lost, other = dict[Path, bytes](), list[Path]()
    for name, content in backup.parts.items():
        file = PartFolder(config).folder / name
        if file.exists():
            if file.read_bytes() == content:
                continue
            other.append(file)
        lost[file] = content
    return lost, other


def _check_part(name: str, content: bytes, source: str) -> None:
    if not PartyModel.from_bytes(content, source).id.startswith(Path(name).stem):
        raise ConfigError(
            "part-misnamed",
            f"{source} belongs to a different model from the one in its file name; rename the file back",
        )


def _archive(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(content), OWNER_ALONE, time.time()
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _read(file: Path) -> Backup:
    try:
        with tarfile.open(file, "r:gz") as archive:
            members = dict(_contents(archive))
        about = About.model_validate_json(members[ABOUT])
        memory = members[MEMORY]
    except OSError as error:
        if isinstance(error, tarfile.TarError) or error.errno is None:
            raise ConfigError("backup-unreadable", f"{file} {_NO_BACKUP}") from None
        raise ConfigError("backup-unreadable", f"{file}: cannot read: {error.strerror}") from None
    except (tarfile.TarError, EOFError, zlib.error, KeyError, ValueError, RecursionError):
        raise ConfigError("backup-unreadable", f"{file} {_NO_BACKUP}") from None
    parts = {Path(name).name: part for name, part in members.items() if _PARTS.fullmatch(name)}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / MEMORY
        with file_errors(copy, "cannot write this file, to check the backup"):
            copy.write_bytes(memory)
        try:
            head = _check_rows(copy, about.party)
            with closing(open_database(copy, ("site", "decisions"))) as store:
                check_dataset(copy, store, about.dataset)
                query = "SELECT party, digest, kind, content FROM decisions WHERE party = ?"
                decisions = {*store.execute(query, (about.party,))}
            for name, part in parts.items():
                _check_part(name, part, f"{PARTS}/{name}")
        except (sqlite3.Error, AttributeError, TypeError, ValueError):  # rows with other types
            raise ConfigError(
                "backup-damaged", f"{file} is damaged: it has values of the wrong type"
            ) from None
        except ConfigError as error:
            fault = str(error).replace(f"{folder}/", "").partition(";")[0]
            raise ConfigError("backup-damaged", f"{file} is damaged: {fault}; use another backup") from None
    return Backup(about, memory, parts, head, decisions)


_NO_BACKUP = (
    "is not a backup or is damaged; use a file written by `fedboost backup` of the same fedboost version"
)


def _contents(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file in an archive. Raises ReadError if the archive is too large, or
    contains files that do not belong in a backup."""
    left = MAX_BYTES
    for member in archive:
        left -= member.size
        name = member.name
        known = name in (ABOUT, MEMORY) or _PARTS.fullmatch(name)
        file = archive.extractfile(member) if known and member.isreg() and left >= 0 else None
        if file is None:
            raise tarfile.ReadError
        yield name, file.read()


def _check_nobody_works(folder: Path) -> None:
    """Raise ConfigError if a process of any party is using the memory in a folder."""
    for file in folder.glob("*.lock"):
        with file_errors(file, "cannot lock this file"):
            unlock = lock(file, 0)
        if unlock is None:
            raise ConfigError(
                "memory-in-use", f"{folder}: party {file.stem!r} is using this memory; stop this party first"
            )
        unlock()


def _put_aside(paths: list[Path], folder: Path) -> Path | None:
    if not paths:
        return None
    aside = Path(tempfile.mkdtemp(dir=folder, prefix=f"before-{now().replace(':', '')}-"))
    for path in paths:
        shutil.move(path, aside / path.name)
    return aside
