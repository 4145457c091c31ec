"""The file of a site's memory: an SQLite database, each row of it sealed by a hash.

Promises: a file is made whole or not at all, for its owner alone; a transaction is whole or not there, and no
other process is in it; one that ended is there after the process is killed, and a durable one after a power
failure; what was deleted is overwritten.
Refuses: a file that is no memory, is cut short or was changed by accident (ConfigError, when it is opened); a
disk that is full, a file that is removed, replaced or held by another process (DurabilityError).
"""

import hashlib
import math
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from fedboost.errors import ConfigError, DurabilityError
from fedboost.privacy import fields
from fedboost.protocol.site import KEY_BYTES, predicted_by, splits_by
from fedboost.runtime.site.budget import USUAL_DELTA, Spent
from fedboost.terms.terms import Terms

NAME = "memory.sqlite"
OWNER_ALONE = 0o600
VERSION = 3
LEDGER = 2
"""The version of files that kept what was spent and nothing else."""
APPLICATION = 0x46424C31
"""Whose file it is, by SQLite's header."""
LOG_PAGES = 4000
"""Pages of 4 KiB in the write-ahead log before they are put into the file, which waits for the disk: those of
a thousand turns."""
PATIENCE = 20.0
"""Seconds for which another process may hold the file."""

Value = str | float | bytes | None
TABLES = {
    "site": ("dataset", "secret"),
    "sessions": (
        "party",
        "session",
        "terms",
        "analyst",
        "request",
        "holders",
        "hides",
        "colluding",
        "delta",
        "planned",
        "begun",
    ),
    "standings": ("party", "session", "rows", "attempt", "base", "reached", "helped", "signed", "ended"),
    "secrets": ("party", "session", "secret"),
    "questions": ("party", "session", "turn", "digest", "of_tree", "before", "after"),
    "charges": ("party", "session", "release", "cost", "at"),
    "by_columns": ("party", "session", "predicted", "splits"),
    "labels": ("party", "label", "epsilon", "classes", "mark"),
    "tables": ("party", "session", "rows", "hash"),
    "row_sets": ("party", "session", "rows", "bits"),
    "logs": ("party", "entry", "hash"),
}
"""Columns of each table. What changes with each turn stands apart from what does not, and so does what is
deleted at a session's end. `by_columns` has what other parties are told of own columns, `labels` the epsilon
of noise on labels and a hash of what it is drawn from, `tables` the number of rows and their hash, `row_sets`
the rows that a session was about, or held out; older files get these when they are opened."""
_KEYS = {
    "site": "dataset",
    "questions": "party, session, turn",
    "charges": "party, session, release",
    "labels": "party, label",
    "logs": "party",
}
LEDGER_TABLES = {
    "sessions": ("dataset", "party", "session", "terms", "delta", "planned", "begun", "secret"),
    "charges": ("dataset", "party", "session", "release", "cost", "at"),
}
_PUT_BACK = (
    "put back the newest copy that you have (docs/operations.md, The site's memory); if there is none, move "
    "it away, then `fedboost privacy init --config FILE` begins one that knows what the audit log has"
)
_PUTS = {
    table: f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * (len(columns) + 1))})"
    for table, columns in TABLES.items()
}


class MemoryFile:
    """The file, open for one process."""

    def __init__(self, path: Path) -> None:
        """Open a file that is there, and check it. ConfigError if it cannot be used."""
        self.path = path
        self._file = open_database(path)
        self._durable = True
        self._inodes = self._now()
        self._to_overwrite = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextmanager
    def transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction that no other process is in; undone by an error. DurabilityError."""
        if self._inodes != self._now():
            raise DurabilityError(
                f"{self.path}: this memory was removed or replaced while the party runs; put it back and "
                f"start this party again"
            )
        try:
            if durable != self._durable:
                self._file.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield self._file
                self._file.execute("COMMIT")
            finally:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._cannot(error) from None
        if self._to_overwrite:
            self.overwrite()

    def overwrite(self) -> None:
        """Overwrite on the disk what was deleted, at once or, while somebody reads the file, with a later
        transaction."""
        try:
            ((busy, *_),) = self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._to_overwrite = bool(busy)
        except sqlite3.Error as error:
            raise self._cannot(error) from None

    def _cannot(self, error: sqlite3.Error) -> DurabilityError:
        return DurabilityError(
            f"{self.path}: cannot write this memory: {error}; put that right and start this party again: the "
            f"session goes on with it"
        )

    def _now(self) -> tuple[tuple[int, int] | None, ...]:
        """The identities of the files that exist."""
        return _inode(f"{self.path}"), _inode(f"{self.path}-wal")


def make_file(path: Path, dataset: str) -> None:
    """Make an empty memory of a dataset: whole, or not at all. ConfigError, also where there is one."""
    folder, left = path.parent, Path(f"{path}-wal")
    if left.exists():
        raise ConfigError(
            f"{left}: is the rest of a memory that was moved away, and would be taken for a part of the new "
            f"one; move it away, too"
        )
    try:
        make_folder(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{path.name}.") as apart:
            new = Path(apart) / "new"
            os.close(os.open(new, os.O_CREAT | os.O_EXCL, OWNER_ALONE))
            with closing(sqlite3.connect(new, isolation_level=None)) as file:
                file.execute("PRAGMA synchronous = EXTRA")
                file.executescript(f"BEGIN; {_schema()} COMMIT;")
                put(file, "site", dataset, os.urandom(KEY_BYTES))
                (mode,) = file.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise ConfigError(
                    f"{path}: SQLite keeps no write-ahead log there (a network file system?); give a `state` "
                    f"folder on a local disk"
                )
            os.link(new, path)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(handle)
        os.close(handle)
    except FileExistsError:
        raise ConfigError(f"{path}: there is a memory already; it stays as it is") from None
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot begin this memory: {why}") from None


def make_folder(folder: Path) -> None:
    """Make a folder for its owner alone, unless there is one. ConfigError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot make this state folder: {error.strerror}; "
            "name one by `state` that this user can write"
        ) from None


def open_database(
    path: Path, version: int = VERSION, tables: Mapping[str, tuple[str, ...]] = TABLES
) -> sqlite3.Connection:
    """The database in a file that is there, every row of it checked. ConfigError if it is another file."""
    try:
        if path.stat().st_size == 0:
            raise ConfigError(f"{path}: {_damaged(version, 'is an empty file')}")
        file = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",
            uri=True,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,  # a session is computed in one thread at a time
        )
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this memory: {error.strerror}") from None
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: cannot open this memory: {error}") from None
    try:
        _check(path, file, version, tables)
    except sqlite3.OperationalError as error:
        file.close()
        raise ConfigError(f"{path}: cannot read this memory: {error}") from None
    except (sqlite3.Error, UnicodeDecodeError):
        file.close()
        raise ConfigError(f"{path}: {_damaged(version, 'is damaged, or another kind of file')}") from None
    except ConfigError:
        file.close()
        raise
    return file


def _check(path: Path, file: sqlite3.Connection, version: int, tables: Mapping[str, tuple[str, ...]]) -> None:
    file.execute("PRAGMA synchronous = FULL")
    file.execute("PRAGMA secure_delete = ON")
    file.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    (application,), (written,) = (
        file.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    if (application, written) == (APPLICATION, LEDGER) != (APPLICATION, version):
        raise ConfigError(
            f"{path}: is a ledger of an earlier version; move it away, then `fedboost privacy init --from "
            f"LEDGER --config FILE` takes over what was spent"
        )
    if version == LEDGER and (application, written) == (APPLICATION, VERSION):
        raise ConfigError(
            f"{path}: is a site's memory of this version; --from wants a ledger of an earlier version, which "
            f"kept the budget alone (a memory from a backup: put it in its place, and run `fedboost privacy "
            f"init --restored`)"
        )
    if (application, written) != (APPLICATION, version):
        raise ConfigError(f"{path}: {_damaged(version, 'is not of this version of fedboost')}")
    if version == VERSION:
        for table in ("by_columns", "labels", "tables", "row_sets"):
            file.execute(_create(table, "IF NOT EXISTS "))
    intact = [row for (row,) in file.execute("PRAGMA integrity_check")] == ["ok"]
    for table, columns in tables.items():
        rows = file.execute(f"SELECT {', '.join(columns)}, seal FROM {table}")
        intact = intact and all(_seal(row[:-1]) == row[-1] for row in rows)
    if not intact:
        raise ConfigError(f"{path}: {_damaged(version, 'was changed after it was written')}")


def _damaged(version: int, fault: str) -> str:
    """The fault of a file that cannot be used, and the remedy."""
    if version == LEDGER:
        return f"is no ledger of an earlier version of fedboost: it {fault}"
    return f"this memory {fault}; {_PUT_BACK}"


def put(file: sqlite3.Connection, table: str, *row: Value) -> None:
    """Write a row, instead of the one with its key."""
    file.execute(_PUTS[table], (*row, _seal(row)))


def put_told(file: sqlite3.Connection, name: tuple[str, str], terms: Terms) -> None:
    """Write what other parties are told of a party's columns in a session; nothing where all have all."""
    if terms.blocks:
        put(file, "by_columns", *name, predicted_by(terms, name[0]), splits_by(terms, name[0]))


def costs(file: sqlite3.Connection, *session: str) -> float:
    """The sum of all charges, or of those of one party and session."""
    where = "WHERE (party, session) = (?, ?)" if session else ""
    return math.fsum(cost for (cost,) in file.execute(f"SELECT cost FROM charges {where}", session))


def dataset_of(file: sqlite3.Connection) -> tuple[str, bytes]:
    """The dataset of a memory, and the secret under which its rows are hashed."""
    ((name, secret),) = file.execute("SELECT dataset, secret FROM site")
    return name, secret


def read_spent(path: Path) -> Spent | None:
    """The privacy that was spent on the dataset of a memory; None where there is no file. ConfigError."""
    if not os.path.lexists(path):
        return None
    with closing(open_database(path)) as file:
        try:
            return spent_in(file)
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot read this memory: {error}") from None


def charges_of(path: Path, most: int) -> list[tuple[str, str, str, float]]:
    """The releases that were charged last, at most so many, the latest first: session, release, time and
    cost. Empty where there is no memory. ConfigError."""
    if not os.path.lexists(path):
        return []
    with closing(open_database(path)) as file:
        try:
            rows = "SELECT session, release, at, cost FROM charges ORDER BY at DESC, release DESC LIMIT ?"
            return [(str(s), str(r), str(at), float(cost)) for s, r, at, cost in file.execute(rows, (most,))]
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot read this memory: {error}") from None


def spent_in(file: sqlite3.Connection) -> Spent:
    """The privacy that was spent on the dataset of a memory."""
    sessions, never_began, with_noise = file.execute(
        "SELECT count(*), coalesce(sum(attempt = 0), 0), coalesce(sum(delta > 0), 0) FROM "
        "(SELECT max(attempt) AS attempt, max(delta) AS delta FROM sessions "
        "JOIN standings USING (party, session) LEFT JOIN by_columns USING (party, session) "
        "WHERE predicted IS NULL GROUP BY session)"
    ).fetchone()
    (delta,) = file.execute("SELECT max(delta) FROM sessions").fetchone()
    (releases,) = file.execute("SELECT count(*) FROM charges").fetchone()
    counts = int(sessions), int(never_began), int(with_noise), int(releases)
    return Spent(dataset_of(file)[0], *counts, costs(file), delta or USUAL_DELTA)


def read_ledger(path: Path, dataset: str) -> tuple[list[tuple[Value, ...]], list[tuple[Value, ...]]]:
    """The sessions and the charges of a dataset in a ledger of an earlier version. ConfigError."""
    with closing(open_database(path, LEDGER, LEDGER_TABLES)) as file:
        sessions = file.execute(
            "SELECT party, session, min(terms), max(delta), sum(planned), min(begun) FROM sessions "
            "WHERE dataset = ? GROUP BY party, session",
            (dataset,),
        ).fetchall()
        charges = file.execute(
            "SELECT party, session, release, cost, at FROM charges WHERE dataset = ?", (dataset,)
        ).fetchall()
    return sessions, charges


def _schema() -> str:
    tables = " ".join(_create(table) for table in TABLES)
    return f"{tables} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"


def _create(table: str, condition: str = "") -> str:
    return (
        f"CREATE TABLE {condition}{table} ({', '.join(TABLES[table])}, seal, "
        f"PRIMARY KEY ({_KEYS.get(table, 'party, session')})) WITHOUT ROWID;"
    )


def _seal(row: tuple[Value, ...]) -> bytes:
    """A hash of a row, by which one that was changed by accident is found."""
    parts = (value if isinstance(value, bytes) else repr(value).encode() for value in row)
    return hashlib.sha256(fields.pack(*parts)).digest()


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def now() -> str:
    """The time, UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
