"""A site's store: an SQLite file per dataset, with the audit log, the decisions and the parties' memory.

The site names its datasets. Rows that are copied, moved or extended under the same name remain the same
dataset. Several parties may share a file; each party has its own chain of log entries and its own counter
file.

Guarantees: a file is created completely or not at all, readable by its owner only. A transaction is atomic
and excludes other processes. A finished transaction survives a kill of the process; a durable transaction
also survives a power failure. Deleted content is overwritten. The counter file next to the store reveals
whether the store was replaced by an older copy.
Raises: ConfigError for a file with a different schema, an altered file, or a file that does not match its
counter file; DurabilityError if a write fails. After a DurabilityError, nothing may leave the site and the
process must end.
"""

import errno
import hashlib
import json
import os
import re
import sqlite3
import tempfile
import time
from ast import literal_eval
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal
from urllib.parse import quote

from pydantic import Field, ValidationError

from fedboost.errors import ConfigError, DurabilityError
from fedboost.privacy import packing
from fedboost.protocol.site import KEY_BYTES, Charge, Relayed, Release
from fedboost.results.audit import Admitted, Checked, Ended, Released, Sent
from fedboost.runtime.files import folder_name
from fedboost.system import OWNER_ALONE, lock, open_private, sync_folder
from fedboost.terms.reading import Frozen

# ---- The entries of an audit log: the content of each line, as canonical JSON with a hash ---------------
# A line is an `Entry` as canonical JSON: keys in field order, no spaces, ASCII, missing values left out. Its
# hash is the SHA-256 of that JSON without the hash.
# The invariant of a party's chain: its entries are numbered n, n + 1, ... without gaps, and each contains the
# hash of the entry before it. The first is entry 1, or an "exported" entry that names the last removed one.


BEFORE_THE_FIRST = "0" * 64
"""Value of `previous` in the first entry."""
Head = tuple[int, str]
"""Number and hash of a log's last entry."""
NO_ENTRY: Head = 0, BEFORE_THE_FIRST


class Decided(Frozen):
    """Log event: a person approved or refused terms, or withdrew an approval. terms: digest of the terms.
    analysts: analysts to whom the decision now applies. content: SHA-256 of the stored decision; '' if it was
    withdrawn."""

    kind: Literal["approved", "refused", "withdrawn"]
    terms: str
    analysts: tuple[str, ...]
    content: str


class Kept(Frozen):
    """Log event: a person restored this store from a copy ("restored"), or wrote its entries to a file and
    removed them ("exported"). known, last: number and hash of the last entry before this event."""

    kind: Literal["restored", "exported"]
    known: Annotated[int, Field(ge=0)]
    last: str


Noted = Admitted | Ended | Checked | Decided | Kept
Event = Annotated[Noted | Released | Sent, Field(discriminator="kind")]


class Entry(Frozen):
    """An entry, i.e. one line, of the audit log. time: time in UTC. previous: hash of the previous entry."""

    n: Annotated[int, Field(ge=1)]
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    event: Event
    previous: str
    hash: str = ""

    @property
    def due_hash(self) -> str:
        """Hash that the entry must have: SHA-256 of everything else in it, as 64 hex digits."""
        return hashlib.sha256(_canonical(self._values(exclude={"hash"}))).hexdigest()

    @property
    def line(self) -> bytes:
        """The entry as canonical JSON with a final line feed."""
        return _canonical(self._values()) + b"\n"

    def _values(self, exclude: set[str] | None = None) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude=exclude, exclude_none=True)


_BEGINNING = b'{"n":'
"""First bytes of each line."""


def canonical_event(event: Noted | Release | Relayed) -> str:
    """Return an event as the canonical JSON that its entry contains. Missing values are omitted."""
    if not isinstance(event, Release | Relayed):
        return _canonical(event.model_dump(mode="json", exclude_none=True)).decode()
    values: dict[str, Any] = {"kind": "relayed" if isinstance(event, Relayed) else "released"}
    for name, value in vars(event).items():
        if isinstance(value, Charge):
            values |= {"charge": value.name, "cost": float(value.cost)}
        elif value or name not in ("charge", "question", "position"):
            values["bytes" if name == "size" else name] = value
    return _canonical(values).decode()


def entry_line(n: int, time: str, event: str, previous: str) -> tuple[bytes, str]:
    """Return the line of an entry, and its hash. event: canonical JSON (`canonical_event`). previous: hash of
    the previous entry."""
    content = f'{{"n":{n},"time":"{time}","event":{event},"previous":"{previous}"'
    digest = hashlib.sha256(f"{content}}}".encode()).hexdigest()
    return f'{content},"hash":"{digest}"}}\n'.encode(), digest


def parse_entry(line: bytes) -> Entry:
    """Parse a line of the log. Raises ValueError if it is incomplete or was changed."""
    if not line.endswith(b"\n") and line.startswith(_BEGINNING[: len(line)]):
        raise ValueError("the line is incomplete: its writer was stopped, or is still writing it")
    try:
        entry = Entry.model_validate_json(line, strict=True)
        whole = entry.line == line
    except ValidationError:
        raise ValueError(
            "the line is not an entry of an audit log, or was changed after it was written"
        ) from None
    if not whole or entry.hash != entry.due_hash:
        raise ValueError("the entry was changed after it was written: its hash does not match its content")
    return entry


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _canonical(values: Any) -> bytes:
    return _encode(values).encode()


def now() -> str:
    """Return the current time in UTC, in the format of an entry."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# ---- The counter of a party: number and hash of each of its entries, in a file that only grows ----------
# A line may also contain "promises": durable rows, which must survive the loss of the store, i.e. sessions,
# whether their parties met, charges, noise on labels and decisions.
# The counter is written after the store's commit. What a crash or a power failure leaves:
# - before the commit: neither has the transaction. Nothing left the site.
# - between commit and counter: the store is ahead. Nothing left the site; the next start counts the entry.
# - after the counter: both have the transaction, and the answer may have left. A power failure may still undo
#   a transaction that did not wait for the disk. If only the counter lost it, the store is ahead. If both
#   lost it, nothing here can notice. If only the store lost it, the counter is ahead.
# Written in this order, a counter is ahead only if the store lost an entry: by a power failure, or because an
# older copy was put back. These look alike, so both are refused until a person decides. In the reverse
# order, a mere kill between the two writes would look the same.


_RECORD = re.compile(rb"(\d+) ([0-9a-f]{64})(?: (.+))?")
_TAIL_BYTES = 1 << 12
Value = str | float | bytes | None
DurableRow = tuple[str, tuple[Value, ...]]
"""Name of a table, and one of its rows."""


class Counter:
    """The counter file of a party, next to the store: an append-only list with the number and hash of every
    log entry. file: name of the file, if it is not derived from the party's name."""

    def __init__(self, store: Path, party: str, file: str = "") -> None:
        self.path = store.parent / (file or f"{folder_name(party)}.counter")

    @classmethod
    def others(cls, store: Path, parties: Iterable[str]) -> list["Counter"]:
        """Return the counter files next to a store that belong to parties other than these."""
        own = {cls(store, party).path for party in parties}
        return [
            cls(store, "", path.name) for path in sorted(store.parent.glob("*.counter")) if path not in own
        ]

    def last(self) -> Head | None:
        """Return the log entry in the last record; None if there is no counter file, `NO_ENTRY` if it has no
        record. Raises ConfigError if the counter file cannot be read."""
        with self._reading() as file:
            if file is None:
                return None
            # Read from the end in growing steps: a counter has a line for each entry ever written.
            # The first line of a tail may have lost its beginning, so it is dropped unless the tail is the
            # whole file.
            size, step = file.seek(0, os.SEEK_END), _TAIL_BYTES
            while True:
                start = file.seek(max(size - step, 0))
                tail = file.read() if start == 0 else file.read().partition(b"\n")[2]
                if records := _records(tail):
                    return _head(records[-1])
                if start == 0:
                    return NO_ENTRY
                step *= 8

    def heads(self) -> set[Head]:
        """Return the number and hash of every recorded entry. Raises ConfigError for a bad counter file."""
        return set(map(_head, self._all()))

    def promises(self) -> Iterator[DurableRow]:
        """Yield the durable rows in the counter file, in the order of writing. These rows must survive the
        loss of the store. Raises ConfigError if the counter file cannot be read."""
        for record in self._all():
            with suppress(ValueError, SyntaxError):  # a line that a crash cut short
                yield from literal_eval((record[3] or b"[]").decode())

    def _all(self) -> list[re.Match[bytes]]:
        with self._reading() as file:
            return [] if file is None else _records(file.read())

    @contextmanager
    def _reading(self) -> Iterator[BinaryIO | None]:
        try:
            file = self.path.open("rb")
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        except OSError as error:
            raise ConfigError(
                "counter-unreadable", f"{self.path}: cannot read this counter file: {error.strerror}"
            ) from None
        with file:
            yield file

    @contextmanager
    def held(self) -> Iterator[int]:
        """Context manager that locks the counter file and yields its descriptor. A missing file is created.
        Raises DurabilityError if the file cannot be opened or locked."""
        with ExitStack() as opened:
            with self.written():
                # Next to it: where locks are mandatory, one on the counter would keep this process from it.
                unlock = lock(self.path.with_suffix(".counter-lock"))
                assert unlock is not None  # it waits
                opened.callback(unlock)
                file = open_private(self.path, os.O_APPEND)
                opened.callback(os.close, file)
            yield file

    def count(self, file: int, head: Head, promises: Sequence[DurableRow], durable: bool) -> None:
        """Append a record to the locked counter file. Raises DurabilityError if the file cannot be written.

        Args:
            file: descriptor from `held`.
            head: the store's last entry.
            promises: durable rows of the transaction.
            durable: whether to wait until the record is on the disk.
        """
        with self.written():
            # A record that a crash cut short stays as an invalid line; the new one begins on its own line.
            if torn := os.fstat(file).st_size > 0:
                os.lseek(file, -1, os.SEEK_END)
                torn = os.read(file, 1) != b"\n"
            rows = f" {[*promises]!r}" if promises else ""
            record = f"{chr(10) if torn else ''}{head[0]} {head[1]}{rows}\n".encode()
            if os.write(file, record) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                os.fsync(file)

    @contextmanager
    def written(self) -> Iterator[None]:
        """Context manager that converts an OSError about the counter file to a DurabilityError."""
        try:
            yield
        except OSError as error:
            raise DurabilityError(
                f"{error.filename or self.path}: cannot write this counter file: {error.strerror}; "
                f"fix the cause and restart this party: its session then continues"
            ) from None


def _records(data: bytes) -> list[re.Match[bytes]]:
    """Return the complete, well-formed lines; a line that a crash has truncated is skipped."""
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return [record for record in map(_RECORD.fullmatch, lines) if record]


def _head(record: re.Match[bytes]) -> Head:
    return int(record[1]), record[2].decode()


def head_of(file: sqlite3.Connection, party: str) -> Head:
    """Return the number and hash of a party's last log entry; `NO_ENTRY` if it has no entries."""
    query = "SELECT n, hash FROM entries WHERE party = ? ORDER BY n DESC LIMIT 1"
    return file.execute(query, (party,)).fetchone() or NO_ENTRY


def follows(file: sqlite3.Connection, party: str, head: Head) -> bool:
    """Return whether a party's chain contains this entry, or begins after it since it was exported."""
    if head == NO_ENTRY:
        return True
    query = "SELECT n, hash, line FROM entries WHERE party = ? AND n IN (?, ?) ORDER BY n"
    rows = file.execute(query, (party, head[0], head[0] + 1)).fetchall()
    # Row n is the entry itself. If it was exported, row n + 1 is the first one left, and names n's hash.
    if not rows or rows[0][0] == head[0]:
        return bool(rows) and rows[0][1] == head[1]
    with suppress(ValueError):
        return parse_entry(rows[0][2]).previous == head[1]
    return False


def check_counter(path: Path, file: sqlite3.Connection, party: str, may_lack: bool = False) -> None:
    """Raise ConfigError unless the store contains the last entry in the party's counter file. may_lack:
    accept a missing counter file, as for other parties that share the store."""
    counter = Counter(path, party)
    known = counter.last()  # first: another process may append entries between the two reads
    if known is not None and not follows(file, party, known):
        raise _older(path, counter, f"entry {known[0]}")
    if known is None and not may_lack and head_of(file, party) != NO_ENTRY:
        raise ConfigError(
            "memory-counter-missing",
            f"{path}: there is no {counter.path.name} next to this memory, which was copied without its "
            f"counter file; {_PUT_BACK}",
        )


def _older(path: Path, counter: Counter, lacks: str) -> ConfigError:
    return ConfigError(
        "memory-behind-counter",
        f"{path}: this memory is older than {counter.path.name}: an older copy was restored, or the power "
        f"failed. It lacks {lacks}; {_PUT_BACK}",
    )


def lacking(file: sqlite3.Connection, promises: Iterable[DurableRow], ahead: bool) -> list[DurableRow]:
    """Return the durable rows that a store does not have. promises: rows in a counter file. ahead: True if
    the store has entries after the last one in the counter file; the store's decisions are then newer than
    those in the counter file."""

    def is_there(table: str, row: tuple[Value, ...]) -> bool:
        keys = _keys(table)
        query = f"SELECT {', '.join(TABLES[table])} FROM {table} WHERE ({', '.join(keys)}) = "
        found = file.execute(f"{query}({', '.join('?' * len(keys))})", row[: len(keys)]).fetchone()
        if found is None or table == "standings":  # a standing promises only the highest attempt that met
            return found is not None and bool(found[2] >= row[2])
        return bool(found == row) or (ahead and table == "decisions")

    latest = {(table, *row[: len(_keys(table))]): (table, row) for table, row in promises}
    return [promise for promise in latest.values() if not is_there(*promise)]


def _keys(table: str) -> list[str]:
    return _KEYS.get(table, "party, session").split(", ")


# ---- The file -------------------------------------------------------------------------------------------


NAME = "memory.sqlite"
VERSION = 5
APPLICATION = 0x46424C31
"""Application id in the header of the SQLite file."""
LOG_PAGES = 4000
"""Size of the write-ahead log, in pages of 4 KiB, at which SQLite writes it back to the file (about a
thousand turns). This checkpoint waits for the disk."""
PATIENCE = 20.0
"""Seconds to wait for a lock that another process has on the file."""

TABLES = {
    "site": ("dataset", "secret"),
    "entries": ("party", "n", "hash", "line"),
    "terms": ("digest", "text"),
    "decisions": ("party", "digest", "kind", "content"),
    "requests": ("party", "name", "content", "terms"),
    "sessions": ("party", "session", "terms", "request", "known", "delta", "planned", "begun"),
    "standings": ("party", "session", "attempt", "rows", "standing", "ended"),
    "secrets": ("party", "session", "secret"),
    "questions": ("party", "session", "turn", "question"),
    "charges": ("party", "session", "release", "cost", "at"),
    "labels": ("party", "label", "epsilon", "classes", "mark"),
    "tables": ("party", "session", "rows", "hash"),
    "row_sets": ("party", "session", "rows", "bits"),
}
"""Columns of each table. Values that change in each turn, and values that are deleted at a session's end,
have their own tables. `known`, `standing` and `question` are JSON of classes in `fedboost.protocol.site`.
`decisions` contains approvals and refusals; a withdrawn one is empty. `labels` contains the epsilon of noise
on labels and a hash of the noise's key, `tables` contains the number of rows and their hash, and `row_sets`
contains the rows that a session measured or held out."""
_KEYS = {
    "site": "dataset",
    "entries": "party, n",
    "terms": "digest",
    "decisions": "party, digest, kind",
    "requests": "party, name",
    "questions": "party, session, turn",
    "charges": "party, session, release",
    "labels": "party, label",
}
PROMISED = ("sessions", "standings", "charges", "labels", "decisions")
"""Tables with durable rows, which must survive the loss of the store: an ended session stays ended, spent
privacy stays spent, and withdrawn or refused terms stay disallowed."""
MEMORY = frozenset(TABLES) - {"entries", "terms", "requests"}
"""Tables that every reader checks: all but the large ones, whose rows have their own hashes."""
_PUT_BACK = (
    "restore the newest copy that you have (docs/operations.md, The site's memory), or run `fedboost privacy "
    "init --restored --config FILE` to continue with this one"
)
_PUTS = {
    table: f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * (len(columns) + 1))})"
    for table, columns in TABLES.items()
}
_SCHEMA = {
    table: f"CREATE TABLE {table} ({', '.join(columns)}, seal, "
    f"PRIMARY KEY ({', '.join(_keys(table))})) WITHOUT ROWID"
    for table, columns in TABLES.items()
}


class Store:
    """An open store (the SQLite file of a dataset), to which one party writes."""

    def __init__(self, path: Path, party: str, restored: bool = False) -> None:
        """Open and check an existing file. restored: accept a file that is older than its counter file; the
        next entry records this. Raises ConfigError if the file cannot be used."""
        self.path, self.party = path, party
        self._counter = Counter(path, party)
        self._appended: Head | None = None
        """Last entry appended in the current transaction, if any."""
        self._promises: list[DurableRow] = []
        """Durable rows written in the current transaction."""
        self._before = NO_ENTRY
        """Last entry before the current transaction."""
        self._file = open_database(path)
        self._durable = True
        self._inodes = self._now()
        # A process that was killed before it could overwrite deleted content left it in this log.
        self._to_overwrite = os.path.getsize(f"{path}-wal") > 0
        self._counted: tuple[tuple[int, ...], Head] | None = None
        """Device, inode and size of the counter file after this process's last write, and the entry."""
        try:
            if not restored:
                self._catch_up()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _catch_up(self) -> None:
        """Check all counter files, and count the party's entries that a crash left uncounted. Raises
        ConfigError if a counter file does not match the store, DurabilityError if it cannot be written."""
        check_counters(self.path, self._file)
        check_counter(self.path, self._file, self.party)
        with self._counter.held() as counter:
            head = head_of(self._file, self.party)
            ahead = head != self._counter.last()
            # The last entry alone proves little: with an older file under a newer write-ahead log, that entry
            # may be there while pages with earlier rows are old. So every promised row is looked up.
            if forgotten := lacking(self._file, self._counter.promises(), ahead):
                raise _older(self.path, self._counter, f"one of its {forgotten[0][0]}")
            if ahead:
                self._counter.count(counter, head, self._all_promises(), durable=True)
            with self._counter.written():
                sync_folder(self.path.parent)

    def _all_promises(self) -> list[DurableRow]:
        """Return all durable rows of the party; the counter file may lack some."""
        return [
            (table, row)
            for table in PROMISED
            for row in self._file.execute(
                f"SELECT {', '.join(TABLES[table])} FROM {table} WHERE party = ?", (self.party,)
            )
        ]

    @contextmanager
    def transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Context manager for a transaction that excludes other processes and is rolled back on error.
        durable: wait for the disk. Raises DurabilityError if the transaction cannot be written."""
        # The lock orders this party's writers, threads of this process included: entries are chained and
        # counted in the same order.
        # A crash between COMMIT and the count leaves the store ahead:
        #
        #     lock the counter -> BEGIN -> writes -> COMMIT -> count -> unlock -> bytes may leave
        with self._counter.held() as counter:
            # SQLite would go on writing to the file that was removed: the entries would end with this
            # process, while the counter, which is opened by its name each time, would keep them.
            if self._inodes != self._now():
                raise DurabilityError(
                    f"{self.path}: this memory was removed or replaced while the party was running; put it "
                    f"back and restart this party"
                )
            self._appended, self._promises = None, []
            try:
                with self._begun(durable) as file:
                    yield file
            except sqlite3.Error as error:
                raise self._cannot(error) from None
            # After the commit, never before it: see the section on the counter.
            if self._appended or self._promises:
                head = self._appended or self._before
                # Another process may have committed entries that it could not count, e.g. on a full disk.
                # This record's head then covers those, too, so it repeats all promises.
                is_whole = self._counted == (_extent(counter), self._before) or (
                    self._counter.last() == self._before
                )
                promises = self._promises if is_whole else self._all_promises()
                self._counter.count(counter, head, promises, durable)
                self._counted = _extent(counter), head
            if self._to_overwrite:
                self.overwrite()

    @contextmanager
    def _begun(self, durable: bool) -> Iterator[sqlite3.Connection]:
        if durable != self._durable:
            self._file.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        # IMMEDIATE takes the write lock now. A transaction that becomes a writer later could find that
        # another process has appended since it read the head, and would have to fail.
        self._file.execute("BEGIN IMMEDIATE")
        try:
            self._before = head_of(self._file, self.party)
            yield self._file
            self._file.execute("COMMIT")
        finally:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")

    def append(self, file: sqlite3.Connection, event: Noted | Release | Relayed) -> None:
        """Append an entry to the party's log, within a transaction."""
        n, previous = self._appended or self._before
        line, digest = entry_line(n + 1, now(), canonical_event(event), previous)
        put(file, "entries", self.party, n + 1, digest, line)
        self._appended = n + 1, digest

    def promise(self, file: sqlite3.Connection, table: str, *row: Value) -> None:
        """Write a durable row within a transaction. It is also written to the counter file, so that it
        survives the loss of the store."""
        put(file, table, *row)
        self._promises.append((table, row))

    def overwrite(self) -> None:
        """Overwrite deleted content on the disk: immediately or, if another process is reading the file,
        after a later transaction. Raises DurabilityError if the disk cannot be written."""
        try:
            # secure_delete overwrites deleted rows in their pages, but the write-ahead log still has older
            # copies of these pages. The checkpoint writes all pages to the file and cuts the log to nothing.
            ((busy, *_),) = self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._to_overwrite = bool(busy)
        except sqlite3.Error as error:
            raise self._cannot(error) from None

    def _cannot(self, error: sqlite3.Error) -> DurabilityError:
        return DurabilityError(
            f"{self.path}: cannot write this memory: {error}; fix the cause and restart this party: its "
            f"session then continues"
        )

    def _now(self) -> tuple[tuple[int, int] | None, ...]:
        """Return the device and inode of the file and of its write-ahead log; None for a missing file."""
        return _inode(f"{self.path}"), _inode(f"{self.path}-wal")


def make_file(path: Path, dataset: str) -> None:
    """Create an empty memory for a dataset, or none. Raises ConfigError if one exists, or on failure."""
    folder, left = path.parent, Path(f"{path}-wal")
    if left.exists():
        raise ConfigError(
            "memory-wal-left",
            f"{left} was left behind by a memory that was moved, and SQLite would read it as part of the new "
            f"memory; move this file, too",
        )
    try:
        make_folder(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{path.name}.") as apart:
            new = Path(apart) / "new"
            os.close(os.open(new, os.O_CREAT | os.O_EXCL, OWNER_ALONE))
            # Complete before the link below gives it its name, which fails if there is a file by then.
            with closing(sqlite3.connect(new, isolation_level=None)) as file:
                file.execute("PRAGMA synchronous = EXTRA")
                tables = " ".join(f"{table};" for table in _SCHEMA.values())
                about = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
                file.executescript(f"BEGIN; {tables} {about} COMMIT;")
                put(file, "site", dataset, os.urandom(KEY_BYTES))
                (mode,) = file.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise ConfigError(
                    "memory-no-wal",
                    f"{path}: SQLite cannot use a write-ahead log in this folder (is it on a network file "
                    f"system?); set `state` to a folder on a local disk",
                )
            os.link(new, path)
        sync_folder(folder)
    except FileExistsError:
        raise ConfigError("memory-exists", f"{path} already exists and was not changed") from None
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError("memory-not-created", f"{path}: cannot create this memory: {why}") from None


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner can access, unless it exists. Raises ConfigError on failure."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            "state-folder-unwritable",
            f"{folder}: cannot create this state folder: {error.strerror}; "
            "set `state` to a folder that this user can write to",
        ) from None


def open_database(path: Path, tables: Collection[str] = frozenset(TABLES)) -> sqlite3.Connection:
    """Open an existing memory, and check every row of these tables. Raises ConfigError if the file is
    damaged, altered or not a memory."""
    try:
        if path.stat().st_size == 0:
            raise ConfigError("memory-damaged", f"{path}: {_damaged('is an empty file')}")
        file = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",
            uri=True,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,  # the counter's lock keeps threads apart
        )
    except OSError as error:
        raise ConfigError("memory-unreadable", f"{path}: cannot read this memory: {error.strerror}") from None
    except sqlite3.Error as error:
        raise ConfigError("memory-unreadable", f"{path}: cannot open this memory: {error}") from None
    try:
        _check(path, file, tables)
    except sqlite3.OperationalError as error:
        file.close()
        raise ConfigError("memory-unreadable", f"{path}: cannot read this memory: {error}") from None
    except (sqlite3.Error, UnicodeDecodeError):
        file.close()
        raise ConfigError(
            "memory-damaged", f"{path}: {_damaged('is damaged or not a memory file')}"
        ) from None
    except ConfigError:
        file.close()
        raise
    return file


def _check(path: Path, file: sqlite3.Connection, tables: Collection[str]) -> None:
    """Check a database without executing anything in it. The file may come from a stranger's backup, so its
    schema must be identical to this version's, without views or triggers. Raises ConfigError if it is not."""
    for setting in ("trusted_schema = OFF", "synchronous = FULL", "secure_delete = ON"):
        file.execute(f"PRAGMA {setting}")
    file.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    about = tuple(file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    # Names and definitions, because a trigger may have a table's name.
    schema = file.execute("SELECT name, sql FROM sqlite_schema").fetchall()
    if about != (APPLICATION, VERSION) or sorted(schema) != sorted(_SCHEMA.items()):
        raise ConfigError(
            "memory-version", f"{path}: {_damaged('was not written by this version of fedboost')}"
        )
    parts = [""] if len(tables) == len(TABLES) else [f"({table})" for table in tables]
    intact = all(file.execute(f"PRAGMA integrity_check{part}").fetchall() == [("ok",)] for part in parts)
    for table in {*tables} - {"entries"}:
        rows = file.execute(f"SELECT {', '.join(TABLES[table])}, seal FROM {table}")
        intact = intact and all(_seal(row[:-1]) == row[-1] for row in rows)
    if not intact:
        raise ConfigError("memory-altered", f"{path}: {_damaged('was changed after it was written')}")


def _damaged(fault: str) -> str:
    return (
        f"this memory {fault}; restore the newest copy that you have (docs/operations.md, The site's "
        f"memory). If you have none, move this memory aside and run `fedboost privacy init --restored "
        f"--config FILE` to create an empty one"
    )


def put(file: sqlite3.Connection, table: str, *row: Value) -> None:
    """Write a row in place of one with its key. Log entries have a hash chain and no checksum (`_seal`)."""
    file.execute(_PUTS[table], (*row, b"" if table == "entries" else _seal(row)))


def dataset_of(file: sqlite3.Connection) -> tuple[str, bytes]:
    """Return the name of a memory's dataset, and the secret key (32 bytes) that hashes its rows."""
    ((name, secret),) = file.execute("SELECT dataset, secret FROM site")
    return name, secret


def parties_of(file: sqlite3.Connection) -> list[str]:
    """Return the parties with log entries, using only the index."""
    found: list[str] = []
    while True:
        query = "SELECT min(party) FROM entries WHERE party > ?"
        ((party,),) = file.execute(query, (found[-1] if found else "",))
        if party is None:
            return found
        found.append(party)


def check_counters(path: Path, file: sqlite3.Connection) -> None:
    """Raise ConfigError if the counter file of any party does not match the store. Another party that shares
    the store may have counted entries that the store has lost."""
    counted = {counter.path: counter.last() or NO_ENTRY for counter in Counter.others(path, ())}
    parties = parties_of(file)  # only now: another process may write the first entry of a party meanwhile
    for party in parties:
        check_counter(path, file, party, may_lack=True)
    for counter in Counter.others(path, parties):
        if (known := counted.get(counter.path, NO_ENTRY)) != NO_ENTRY:
            raise _older(path, counter, f"entry {known[0]}")


@contextmanager
def reading(path: Path, tables: Collection[str] = MEMORY) -> Iterator[sqlite3.Connection | None]:
    """Context manager that opens a memory to read these tables, even while a party writes to it. Yields None
    if there is no memory. Raises ConfigError if the memory cannot be read."""
    if not os.path.lexists(path):
        yield None
        return
    with closing(open_database(path, tables)) as file:
        try:
            check_counters(path, file)
            yield file
        except sqlite3.Error as error:
            raise ConfigError("memory-unreadable", f"{path}: cannot read this memory: {error}") from None


def _seal(row: tuple[Value, ...]) -> bytes:
    """Return the SHA-256 of a row, which reveals accidental changes."""
    parts = (value if isinstance(value, bytes) else repr(value).encode() for value in row)
    return hashlib.sha256(packing.pack(*parts)).digest()


def _extent(file: int) -> tuple[int, ...]:
    """Return the device, inode and size in bytes of an open file."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size


def _inode(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None
