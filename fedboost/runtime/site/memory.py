"""A site's memory on disk: its sessions, where they stand and what was spent on them, in one file a dataset.

A dataset is a name that the site gives: rows that were copied, moved or added to are the same dataset under
the same name. Several parties may share a file, each in one process.

Promises: what `SiteMemory` does (fedboost/protocol/site.py), over restarts. A turn that was noted
survives the end of the process; a session's start, end, signature and each charge also survive a power
failure. No session is charged more than its terms plan, so what they state of privacy is true whatever the
aggregator asks; a charge is there once however often a release is named; of several processes no two spend
the same rest. A session's secret and questions are gone with its end. Each note holds how long the party's
audit log was, by which a copy that is older than the log is found.
Refuses: what the rules between sessions refuse, and what does not fit the budget (Refused); a second process
of the same party (ConfigError); what cannot be written (DurabilityError: nothing leaves, and the process must
end).

What is planned is not set aside: of sessions that run at the same time each is admitted if its own plan fits,
and the one that comes too late for the last of it is refused in the middle.
"""

import fcntl
import hashlib
import json
import math
import os
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fedboost.errors import ConfigError, DurabilityError, LocalProtocolError, Refused, quoted
from fedboost.holders.other_tasks import TrainingTable
from fedboost.privacy import packing
from fedboost.privacy.pairwise import derive
from fedboost.protocol.contracts import HeldTable, Position
from fedboost.protocol.site import (
    KEY_BYTES,
    Known,
    Limits,
    Question,
    SessionOffer,
    Standing,
    check_chosen,
    check_others,
    colluding_of,
    judge,
    predicted_by,
    splits_by,
)
from fedboost.results.site import USUAL_DELTA, Spent
from fedboost.runtime.files import folder_name, sync_folder
from fedboost.runtime.signed_model import session_of
from fedboost.runtime.site.audit import NO_LOG, OWNER_ALONE, LogEnd
from fedboost.runtime.site.policy_keys import ROUNDING, Budget
from fedboost.terms import continuation
from fedboost.terms.terms import Terms

# ---- The file of a site's memory: an SQLite database, each row of it sealed by a hash -------------------
# Promises: a file is made whole or not at all, for its owner alone; a transaction is whole or not there, and
# no other process is in it; one that ended is there after the process is killed, and a durable one after a
# power failure; what was deleted is overwritten.


NAME = "memory.sqlite"
VERSION = 3
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
        *("party", "session", "terms", "analyst", "request", "holders", "hides", "colluding", "delta"),
        *("planned", "begun"),
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
the rows that a session was about, or held out."""
_KEYS = {
    "site": "dataset",
    "questions": "party, session, turn",
    "charges": "party, session, release",
    "labels": "party, label",
    "logs": "party",
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
        sync_folder(folder)
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


def open_database(path: Path) -> sqlite3.Connection:
    """The database in a file that is there, every row of it checked. ConfigError if it is another file."""
    try:
        if path.stat().st_size == 0:
            raise ConfigError(f"{path}: {_damaged('is an empty file')}")
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
        _check(path, file)
    except sqlite3.OperationalError as error:
        file.close()
        raise ConfigError(f"{path}: cannot read this memory: {error}") from None
    except (sqlite3.Error, UnicodeDecodeError):
        file.close()
        raise ConfigError(f"{path}: {_damaged('is damaged, or another kind of file')}") from None
    except ConfigError:
        file.close()
        raise
    return file


def _check(path: Path, file: sqlite3.Connection) -> None:
    file.execute("PRAGMA synchronous = FULL")
    file.execute("PRAGMA secure_delete = ON")
    file.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    (application,), (written,) = (
        file.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    if (application, written) != (APPLICATION, VERSION):
        raise ConfigError(f"{path}: {_damaged('is not of this version of fedboost')}")
    intact = [row for (row,) in file.execute("PRAGMA integrity_check")] == ["ok"]
    for table, columns in TABLES.items():
        rows = file.execute(f"SELECT {', '.join(columns)}, seal FROM {table}")
        intact = intact and all(_seal(row[:-1]) == row[-1] for row in rows)
    if not intact:
        raise ConfigError(f"{path}: {_damaged('was changed after it was written')}")


def _damaged(fault: str) -> str:
    """The fault of a file that cannot be used, and the remedy."""
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


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A memory that a party may be writing, to read from. ConfigError."""
    with closing(open_database(path)) as file:
        try:
            yield file
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot read this memory: {error}") from None


def read_spent(path: Path) -> Spent | None:
    """The privacy that was spent on the dataset of a memory; None where there is no file. ConfigError."""
    if not os.path.lexists(path):
        return None
    with reading(path) as file:
        return spent_in(file)


def charges_of(path: Path, most: int) -> list[tuple[str, str, str, float]]:
    """The releases that were charged last, at most so many, the latest first: session, release, time and
    cost. Empty where there is no memory. ConfigError."""
    if not os.path.lexists(path):
        return []
    with reading(path) as file:
        rows = "SELECT session, release, at, cost FROM charges ORDER BY at DESC, release DESC LIMIT ?"
        return [(str(s), str(r), str(at), float(cost)) for s, r, at, cost in file.execute(rows, (most,))]


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
    return Spent(
        dataset=dataset_of(file)[0],
        sessions=sessions,
        took_part=sessions - never_began,
        never_began=never_began,
        with_noise=with_noise,
        releases=releases,
        cost=costs(file),
        delta=delta or USUAL_DELTA,
    )


def _schema() -> str:
    tables = " ".join(
        f"CREATE TABLE {table} ({', '.join(columns)}, seal, "
        f"PRIMARY KEY ({_KEYS.get(table, 'party, session')})) WITHOUT ROWID;"
        for table, columns in TABLES.items()
    )
    return f"{tables} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"


def _seal(row: tuple[Value, ...]) -> bytes:
    """A hash of a row, by which one that was changed by accident is found."""
    parts = (value if isinstance(value, bytes) else repr(value).encode() for value in row)
    return hashlib.sha256(packing.pack(*parts)).digest()


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def now() -> str:
    """The time, UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- A site's memory on disk: its sessions, where they stand and what was spent on them -----------------


HASH_BYTES = 32
_POSITION = struct.Struct(">I?III32s32s")
_KNOWN = (
    "SELECT party, session, terms, attempt, holders, hides, request, ended, colluding, predicted, splits, "
    "julianday(?) - julianday(begun), analyst FROM sessions JOIN standings USING (party, session) "
    "LEFT JOIN by_columns USING (party, session)"
)
_STANDING = "SELECT rows, attempt, base, reached, helped, signed FROM standings"
_QUESTIONS = "SELECT turn, digest, of_tree, before, after FROM questions"
_OF_ONE = "WHERE (party, session) = (?, ?)"


class FileMemory:
    """The memory of one dataset for one party: a `protocol.site.SiteMemory`."""

    def __init__(
        self,
        path: Path,
        party: str,
        dataset: str,
        budget: Budget | None = None,
        log_end: Callable[[], LogEnd] = lambda: NO_LOG,
        clock: Callable[[], str] = now,
    ) -> None:
        """Open a file that is there. ConfigError if it cannot be used.

        budget: None to keep count without a limit; log_end: of the party's audit log, at any time.
        """
        self.party, self.budget, self._log_end, self._clock = party, budget, log_end, clock
        self._lock = _locked(path, party)
        try:
            self.file = MemoryFile(path)
            try:
                with self.file.transaction(durable=False) as file:
                    check_dataset(path, file, dataset)
                    self._key = dataset_of(file)[1]
            except BaseException:
                self.file.close()
                raise
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        os.close(self._lock)

    @property
    def sessions(self) -> int:
        """The number of sessions in it, of all parties."""
        with self.file.transaction(durable=False) as file:
            (count,) = file.execute("SELECT count(DISTINCT session) FROM sessions").fetchone()
        return int(count)

    @property
    def logged(self) -> LogEnd:
        """The end of the party's audit log when this memory was written last."""
        with self.file.transaction(durable=False) as file:
            return logged(file, self.party)

    def spent(self) -> Spent:
        """The privacy that was spent on these rows, by all parties."""
        with self.file.transaction(durable=False) as file:
            return spent_in(file)

    def begin(self, offer: SessionOffer, limits: Limits) -> "FileSession":
        """Take part in a session, or go on with it. Refused, DurabilityError."""
        name, terms = (self.party, offer.session), offer.terms
        with self.transaction() as file:
            known, others = self.known(file, offer)
            judge(offer, known, others, limits, self.party)
            if terms.noise is not None and self.budget is not None:
                self.budget.check_session(self.party, terms, costs(file), costs(file, *name))
            if known is None:
                delta, planned = 0.0, 0.0
                if terms.noise is not None:
                    # Where the aggregator draws the noise, what leaves has none and is not charged.
                    central = terms.noise.placement == "central"
                    delta, planned = terms.noise.delta, 0.0 if central else terms.plan.cost
                group = json.dumps(terms.holders), int(terms.protection.hides), colluding_of(terms)
                about = terms.digest, offer.analyst, offer.request, *group
                put(file, "sessions", *name, *about, delta, planned, self._clock())
                put(file, "secrets", *name, os.urandom(KEY_BYTES))
                put(file, "standings", *name, *as_row(b"", Standing()), None)
                put_told(file, name, terms)
            return FileSession(self, offer, limits, file)

    @contextmanager
    def transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction that also notes where the audit log ends."""
        with self.file.transaction(durable) as file:
            yield file
            put(file, "logs", self.party, *self._log_end())

    def key_for(self, what: bytes, about: bytes) -> bytes:
        """A secret of this memory for one use, 32 bytes: the same as long as the memory is there."""
        return derive(self._key, what, about)

    def hash_rows(self, rows: Callable[[bytes], bytes]) -> bytes:
        """The hash of rows under this memory's secret."""
        return rows(self._key)

    def table_of(self, terms: Terms, request: bytes) -> tuple[int, bytes] | None:
        """The number of rows and the hash of the table of a training that this party took part in; None where
        it is not known. request: the nonce of the analyst's request for it."""
        query = (
            "SELECT rows, hash FROM tables JOIN sessions USING (party, session) "
            "WHERE party = ? AND terms = ? AND request = ? ORDER BY begun DESC"
        )
        with self.file.transaction(durable=False) as file:
            found = file.execute(query, (self.party, terms.digest, request)).fetchone()
        return None if found is None else (int(found[0]), bytes(found[1]))

    def known(self, file: sqlite3.Connection, offer: SessionOffer) -> tuple[Known | None, list[Known]]:
        """The session that is offered, and all others of the dataset. One session at several parties is one;
        requests are each party's."""
        own = known_session(file, self.party, offer.session)
        offered = offer.session, offer.terms.digest
        known = known_sessions(file, self.party, self._clock())
        return own, [other for other in known if (other.session, other.digest) != offered]


class FileSession:
    """A session of a FileMemory: a `protocol.site.SessionMemory`."""

    def __init__(
        self, memory: FileMemory, offer: SessionOffer, limits: Limits, file: sqlite3.Connection
    ) -> None:
        self._memory = memory
        self._offer, self._limits = offer, limits
        self._session = offer.session
        self._name = memory.party, offer.session
        self._ended = False
        ((self._secret,),) = file.execute(f"SELECT secret FROM secrets {_OF_ONE}", self._name)
        ((self._rows, *row),) = file.execute(f"{_STANDING} {_OF_ONE}", self._name)
        questions = file.execute(f"{_QUESTIONS} {_OF_ONE} ORDER BY turn", self._name)
        self._standing = _from_row(row, questions)

    @property
    def standing(self) -> Standing:
        """The state of the session."""
        return self._standing

    @property
    def secret(self) -> bytes:
        """A secret of this session, 32 bytes, the same over restarts."""
        self._check_lives()
        return bytes(self._secret)

    def bind(self, rows: Callable[[bytes], bytes], table: HeldTable | None = None) -> None:
        """Hold the session to its rows. Refused, without a word about the rows outside."""
        digest = self._memory.hash_rows(rows)
        if not self._rows:
            with self._turn(durable=True) as file:
                put(file, "standings", *self._name, *as_row(digest, self._standing), None)
                if table is not None:
                    self._keep(file, table)
            self._rows = digest
        elif self._rows != digest:
            raise Refused(
                f"party {self._memory.party} does not go on with session {quoted(self._session)}; "
                f"train again",
                "its rows are not those that the session began with; put them back, or train again",
            )

    def _keep(self, file: sqlite3.Connection, table: HeldTable) -> None:
        """Keep what later sessions may need to know of a table."""
        if (chosen := table.chosen) is not None:
            sets = file.execute("SELECT DISTINCT rows, bits FROM row_sets").fetchall()
            others = (np.unpackbits(np.frombuffer(bits, np.uint8), count=rows) != 0 for rows, bits in sets)
            check_chosen(chosen, others, self._limits, self._memory.party)
            put(file, "row_sets", *self._name, table.rows, np.packbits(chosen).tobytes())
        put(file, "tables", *self._name, table.rows, self._memory.hash_rows(table.hashed))

    def meet(self, attempt: int) -> None:
        """Record that the parties met in this attempt: with it predicted rows and splits are charged.
        Refused where sessions do not go together."""
        standing = replace(self._standing, attempt=attempt)
        with self._turn(durable=bool(self._offer.terms.blocks)) as file:
            if not self._standing.attempt:
                known, others = self._memory.known(file, self._offer)
                assert known is not None
                check_others(known, others, self._limits, self._memory.party)
            put(file, "standings", *self._name, *as_row(self._rows, standing), None)
        self._standing = standing

    def ask(self, question: Question, base: Position, reached: Position) -> None:
        """Record a question that is about to be answered."""
        standing = self._standing.after(question, base, reached)
        with self._turn() as file:
            if base != self._standing.base:
                file.execute(f"DELETE FROM questions {_OF_ONE}", self._name)
                put(file, "standings", *self._name, *as_row(self._rows, standing), None)
            hashes = b"".join((question.digest, *question.received))
            shape = question.turn, hashes, int(question.of_tree)
            put(file, "questions", *self._name, *shape, _packed(question.before), _packed(question.after))
        self._standing = standing

    def help(self, stage: int, roster: tuple[str, ...]) -> None:
        """Record a sum of this stage, over this roster, that is about to be opened."""
        self._write(replace(self._standing, helped=(stage, roster)))

    def sign(self) -> None:
        """Record that a model is about to be signed."""
        self._write(replace(self._standing, signed=True), durable=True)

    def charge(self, release: str, cost: float) -> None:
        """Charge a release once, however often it is named. Refused if it does not fit what is left, or is
        more than the terms plan."""
        party, session = self._name
        with self._turn(durable=True) as file:
            query = f"SELECT 1 FROM charges {_OF_ONE} AND release = ?"
            if file.execute(query, (*self._name, release)).fetchone() is not None:
                return
            ((planned,),) = file.execute(f"SELECT planned FROM sessions {_OF_ONE}", self._name)
            if costs(file, *self._name) + cost > planned * (1.0 + ROUNDING):
                raise Refused(
                    f"party {party}: session {quoted(session)} asks for more releases than its terms plan, "
                    f"by which it would be less private than they say"
                )
            if self._memory.budget is not None:
                self._memory.budget.check_release(party, quoted(session), costs(file), cost)
            put(file, "charges", *self._name, release, float(cost), now())

    def end(self, reason: str) -> None:
        """End the session for this site: its name, terms and charges stay."""
        if self._ended:
            return
        reason = reason.encode(errors="replace").decode()
        with self._turn(durable=True) as file:
            file.execute(f"DELETE FROM secrets {_OF_ONE}", self._name)
            file.execute(f"DELETE FROM questions {_OF_ONE}", self._name)
            put(file, "standings", *self._name, *as_row(self._rows, self._standing), reason)
        self._ended, self._secret = True, b""
        self._memory.file.overwrite()

    def _write(self, standing: Standing, durable: bool = False) -> None:
        with self._turn(durable) as file:
            put(file, "standings", *self._name, *as_row(self._rows, standing), None)
        self._standing = standing

    @contextmanager
    def _turn(self, durable: bool = False) -> Iterator[sqlite3.Connection]:
        self._check_lives()
        with self._memory.transaction(durable) as file:
            yield file

    def _check_lives(self) -> None:
        if self._ended:
            raise LocalProtocolError(f"session {quoted(self._session)} has ended")


def check_alone(path: Path, party: str, remedy: str = "") -> None:
    """Raise ConfigError if another process of this party works with the memory, with what to do about it."""
    os.close(_locked(path, party, remedy))


def check_dataset(path: Path, file: sqlite3.Connection, dataset: str) -> None:
    """Raise ConfigError if it is the memory of other rows."""
    name, _ = dataset_of(file)
    if name != dataset:
        raise ConfigError(
            f"{path}: is the memory of the rows {name!r}, not of {dataset!r}; put each in its own folder"
        )


def logged(file: sqlite3.Connection, party: str) -> LogEnd:
    """The end of a party's audit log when the memory was written last."""
    row = file.execute("SELECT entry, hash FROM logs WHERE party = ?", (party,)).fetchone()
    return NO_LOG if row is None else (row[0], row[1])


def _locked(path: Path, party: str, remedy: str = "") -> int:
    """A lock that one process of this party has. ConfigError."""
    lock = path.parent / f"{folder_name(party)}.lock"
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ALONE)
    except OSError as error:
        raise ConfigError(f"{lock}: cannot write this lock: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise ConfigError(
                f"{path}: another process of party {party!r} works with this memory{remedy}"
            ) from None
        raise ConfigError(f"{lock}: cannot be locked: {error.strerror}") from None
    return handle


def known_session(file: sqlite3.Connection, party: str, session: str) -> Known | None:
    """A session of a party, by name; None if it is not known."""
    row = file.execute(f"{_KNOWN} {_OF_ONE}", (now(), party, session)).fetchone()
    return None if row is None else _known(row[1:])


def known_sessions(file: sqlite3.Connection, party: str, at: str = "") -> list[Known]:
    """All sessions of the dataset, as this party looks at them. at: the time, if not now."""
    sessions: dict[tuple[str, str], Known] = {}
    for name, *row in file.execute(_KNOWN, (at or now(),)):
        known, mine = _known(row), name == party
        if mine or (known.session, known.digest) not in sessions:
            sessions[known.session, known.digest] = known if mine else replace(known, request=b"")
    return [*sessions.values()]


def _known(row: Sequence[Any]) -> Known:
    session, terms, attempt, holders, hides, request, ended, colluding, predicted, splits, days, analyst = row
    group = tuple(json.loads(holders)), bool(hides)
    rest: tuple[Any, ...] = ended, colluding, predicted, splits or 0, days or 0.0, analyst or ""
    return Known(session, terms, attempt, *group, request, *rest)


def as_row(rows: bytes, standing: Standing) -> tuple[Value, ...]:
    """The columns of a standing, from `rows` to `signed`."""
    base, reached = _packed(standing.base), _packed(standing.reached)
    helped = "null" if standing.helped is None else json.dumps(standing.helped)
    return rows, standing.attempt, base, reached, helped, int(standing.signed)


def _from_row(row: Sequence[Any], questions: Iterable[Sequence[Any]]) -> Standing:
    attempt, base, reached, helped, signed = row
    stage = json.loads(helped)
    known = tuple(
        Question(turn, digest, bool(of_tree), _unpacked(before), _unpacked(after), tuple(received))
        for turn, (digest, *received), of_tree, before, after in (
            (turn, _hashes(hashes), *shape) for turn, hashes, *shape in questions
        )
    )
    return Standing(
        attempt,
        _unpacked(base),
        known[-1].after if known else _unpacked(reached),
        known,
        None if stage is None else (stage[0], tuple(stage[1])),
        bool(signed),
    )


def _hashes(joined: bytes) -> list[bytes]:
    """The hash of a question, and those of what was relayed for it."""
    return [joined[start : start + HASH_BYTES] for start in range(0, len(joined), HASH_BYTES)]


def _packed(position: Position) -> bytes:
    """A position as 81 bytes."""
    counts = position.grids, position.started, position.rounds, position.splits, position.levels
    return _POSITION.pack(*counts, position.model, position.tree)


def _unpacked(data: bytes) -> Position:
    return Position(*_POSITION.unpack(data))


# ---- The table that the model in terms was trained on, as a site's memory knows it ----------------------


def training_table(memory: FileMemory, terms: Terms) -> TrainingTable | None:
    """The table of the training of the model in these terms; None where this site took no part in it, or has
    another memory."""
    if terms.xgb_model is None or terms.trained is None:
        return None
    try:
        request = session_of(continuation.facts_of(terms.xgb_model)).request
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    known = memory.table_of(terms.trained, b"" if request is None else request.nonce)
    if known is None:
        return None
    rows, digest = known
    return TrainingTable(rows, lambda hashed: memory.hash_rows(hashed) == digest)


# ---- What noise on labels is drawn from: one secret a label column, kept with the site's memory ---------
# Promises: the noise of a label is the same in every session: two draws for a label would tell more than one.


_WHAT = b"fedboost/1/labels"


def label_key(memory: FileMemory, terms: Terms) -> bytes:
    """The secret that noise on the label of these terms is drawn from: 32 bytes. DurabilityError where it
    cannot be written down that it was."""
    columns, epsilon = terms.columns, terms.vertical.label_epsilon
    name = memory.party, columns.label
    key = memory.key_for(_WHAT, columns.label.encode())
    classes = json.dumps([terms.objective.num_class, columns.positive, columns.classes])
    row = epsilon, classes, hashlib.sha256(key).digest()
    with memory.transaction() as file:
        query = "SELECT epsilon, classes, mark FROM labels WHERE (party, label) = (?, ?)"
        known = file.execute(query, name).fetchone()
        if known is None:
            put(file, "labels", *name, *row)
    if known is not None and known[2] != row[2]:
        raise Refused(
            f"party {memory.party}: its labels got noise from a memory that is gone, and noise that is drawn "
            f"anew would tell more of them: put that memory back, or leave label_epsilon out of the terms"
        )
    if known is not None and known != row:
        raise Refused(
            f"party {memory.party}: its labels {quoted(columns.label)!r} got noise of label_epsilon = "
            f"{known[0]:g} before, and other noise, or of other classes, would tell more of them: set "
            f"label_epsilon and classes as they were"
        )
    return key
