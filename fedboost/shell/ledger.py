"""The ledger of a site: what the privacy of its rows was spent on, over all sessions, in a file.

A file is an SQLite database. It holds for each session of a party and dataset a secret, from which noise is
drawn, and the cost (mu squared, which adds) of each release. A dataset is a name that the site gives: rows
that were copied, moved or added to are the same dataset under the same name.

Promises: no session is charged more than its terms plan, so what they state of privacy is true whatever the
aggregator asks (where that draws the noise, a question asked again is charged again); a charge is on the disk
when `charge` returns, and is there once however often a release is named; a process that dies at any moment
leaves the charges that were made, whole; of several processes with one file no two spend the same rest. A
session's secret is the same after a restart.
Refuses: what does not fit what is left (Refused); a file that is no ledger, is cut short or was changed by
accident (ConfigError, when it is opened); a disk that is full, a file that is taken away or held by somebody
else (CannotRecord: nothing leaves, and the process must end). A file that exists is never begun anew.

What is planned is not set aside: of sessions that run at the same time each is admitted if its own plan fits,
and the one that comes too late for the last of it is refused in the middle.
"""

import hashlib
import math
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from fedboost.errors import ConfigError, Refused, quoted
from fedboost.privacy import accounting, fields
from fedboost.protocol.noise import SMALLEST_EPSILON
from fedboost.protocol.site_memory import KEY_BYTES
from fedboost.protocol.terms import Terms
from fedboost.shell.store import CannotRecord

OWNER_ALONE = 0o600
VERSION = 2
APPLICATION = 0x46424C31
"""What SQLite's header says of whose file it is."""
PATIENCE = 20.0
"""Seconds for which another process may hold the file."""
ROUNDING = 1e-12
"""Of sums of costs, relative to the budget."""
USUAL_DELTA = 1e-5
"""At which spending is told where neither budget nor session says another."""

_TABLES = f"""
CREATE TABLE sessions (
    dataset TEXT NOT NULL, party TEXT NOT NULL, session TEXT NOT NULL,
    terms TEXT NOT NULL, delta REAL NOT NULL, planned REAL NOT NULL, begun TEXT NOT NULL,
    secret BLOB NOT NULL, seal BLOB NOT NULL,
    PRIMARY KEY (dataset, party, session, terms)
);
CREATE TABLE rows (
    dataset TEXT NOT NULL, party TEXT NOT NULL, session TEXT NOT NULL,
    terms TEXT NOT NULL, hash BLOB NOT NULL, seal BLOB NOT NULL,
    PRIMARY KEY (dataset, party, session, terms)
);
CREATE TABLE charges (
    dataset TEXT NOT NULL, party TEXT NOT NULL, session TEXT NOT NULL,
    release TEXT NOT NULL, cost REAL NOT NULL, at TEXT NOT NULL, seal BLOB NOT NULL,
    PRIMARY KEY (dataset, party, session, release)
);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""
_SESSION = "dataset, party, session, terms, delta, planned, begun, secret"
_ROWS = "dataset, party, session, terms, hash"
_CHARGE = "dataset, party, session, release, cost, at"
_COSTS = "SELECT cost FROM charges WHERE dataset = ?"
_OF_ONE = "AND (party, session) = (?, ?)"
_PLANS = "SELECT planned FROM sessions WHERE dataset = ?"


@dataclass(frozen=True)
class Budget:
    """What a site lets its rows' privacy be spent: (epsilon, delta) over all sessions."""

    epsilon: float
    delta: float

    @property
    def cost(self) -> float:
        """The same as a cost, mu squared."""
        return accounting.mu_of(self.epsilon, self.delta) ** 2

    def left(self, spent: float) -> float:
        """The epsilon that a session at this delta may have, once so much was spent. Epsilons do not add:
        it is more than the difference of two."""
        return accounting.epsilon_of(math.sqrt(max(self.cost - spent, 0.0)), self.delta)


@dataclass(frozen=True)
class Spent:
    """What was spent of one dataset. delta: the largest that a session on it had."""

    dataset: str
    sessions: int
    releases: int
    cost: float
    delta: float

    def epsilon(self, delta: float) -> float:
        """What that is at some delta."""
        return accounting.epsilon_of(math.sqrt(self.cost), delta)


class SiteLedger:
    """The ledger of one dataset: a `protocol.ledger.Ledger`. The file appears with the first session."""

    def __init__(self, path: Path, party: str, dataset: str, budget: Budget | None = None) -> None:
        """Check a file that is there. ConfigError if it cannot be gone on with.

        party: who refuses; budget: None to keep count without a limit.
        """
        self._path, self._party, self._dataset, self._budget = path, party, dataset, budget
        self._file: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        if os.path.lexists(path):
            self._open()
        elif not path.parent.is_dir():
            raise ConfigError(f"{path}: no ledger can be made there: no folder {path.parent}")
        elif budget is not None and not os.access(path.parent, os.W_OK):
            raise ConfigError(f"{path}: no ledger can be made there: {path.parent} cannot be written")

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    @property
    def begun(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def admit(self, session: str, terms: Terms) -> bytes:
        """The secret of a session under these terms, 32 bytes. Refused if what it plans to release, and was
        not charged for yet, does not fit what is left. CannotRecord if the ledger cannot be kept."""
        assert terms.noise is not None
        if self._file is None:
            self._begin()
        with self._alone() as file:
            self._check(file, session, terms)
            known = file.execute(
                "SELECT secret FROM sessions WHERE (dataset, party, session, terms) = (?, ?, ?, ?)",
                (self._dataset, self._party, session, terms.digest),
            ).fetchone()
            if known is not None:
                return bytes(known[0])
            secret = os.urandom(KEY_BYTES)
            planned = math.inf if terms.noise.placement == "central" else terms.plan.cost
            of = self._dataset, self._party, session, terms.digest, terms.noise.delta, planned, _now(), secret
            _insert(file, "sessions", _SESSION, of)
            return secret

    def bind(self, session: str, terms: Terms, rows: bytes) -> None:
        """Hold an admitted session to rows of this hash. Refused if it began with others; raises as `admit`
        does."""
        of = self._dataset, self._party, session, terms.digest
        with self._alone() as file:
            known = file.execute(
                "SELECT hash FROM rows WHERE (dataset, party, session, terms) = (?, ?, ?, ?)", of
            ).fetchone()
            if known is None:
                _insert(file, "rows", _ROWS, (*of, rows))
            elif known[0] != rows:
                raise Refused(
                    f"party {self._party}: its rows are not those that session {quoted(session)} began with, "
                    f"and noise does not hide what changed; put them back, or train anew"
                )

    def charge(self, session: str, release: str, cost: float) -> None:
        """Charge a release of an admitted session, unless it was charged before. Refused if it is more than
        the session's terms plan; raises as `admit` does."""
        with self._alone() as file:
            known = file.execute(
                "SELECT 1 FROM charges WHERE (dataset, party, session, release) = (?, ?, ?, ?)",
                (self._dataset, self._party, session, release),
            ).fetchone()
            if known is None:
                of = self._dataset, self._party, session
                planned, charged = (_sum(file, f"{costs} {_OF_ONE}", *of) for costs in (_PLANS, _COSTS))
                if charged + cost > planned * (1.0 + ROUNDING):
                    raise Refused(
                        f"party {self._party}: session {quoted(session)} asks for more releases than its "
                        f"terms plan, by which it would be less private than they say"
                    )
                self._check(file, session, cost)
                _insert(file, "charges", _CHARGE, (*of, release, float(cost), _now()))

    def _check(self, file: sqlite3.Connection, session: str, asked: Terms | float) -> None:
        """Raise Refused if a release of this cost, or what is to come under the terms, does not fit."""
        if self._budget is None:
            return
        spent = _sum(file, _COSTS, self._dataset)
        if isinstance(asked, Terms):
            assert asked.noise is not None
            charged = _sum(file, f"{_COSTS} {_OF_ONE}", self._dataset, self._party, session)
            cost = max(asked.plan.cost - charged, 0.0)
            what = f"the terms ask for epsilon {asked.noise.epsilon:g} at delta {asked.noise.delta:g}"
            charged_again, delta = charged, asked.noise.delta
        else:
            cost, what = asked, f"session {quoted(session)} asks for one more release"
            charged_again, delta = 0.0, self._budget.delta
        if spent + cost <= self._budget.cost * (1.0 + ROUNDING):
            return
        left = self._budget.left(spent)
        room = math.sqrt(max(self._budget.cost - spent + charged_again, 0.0))
        fits = _rounded_down(accounting.epsilon_of(room, delta))
        do = (
            f"lower the epsilon of the noise to {fits:g} at most at delta {delta:g}"
            if fits >= SMALLEST_EPSILON
            else "no session with noise fits"
        )
        raise Refused(
            f"party {self._party}: {what}, and its budget for these rows, epsilon {self._budget.epsilon:g} "
            f"at delta {self._budget.delta:g}, has {_rounded_down(left):g} left; {do}, unless the "
            f"site raises `epsilon` in its policy"
        )

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other process is in; undone by an error, on the disk at its end."""
        assert self._file is not None
        try:
            if self._place != _place(self._path):
                raise CannotRecord(
                    f"{self._path}: this ledger was removed or replaced while the party runs; put it back "
                    f"and start this party again"
                )
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield self._file
                self._file.execute("COMMIT")
            finally:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise CannotRecord(
                f"{self._path}: cannot write this ledger: {error}; put that right and start this party "
                f"again: the session goes on with it"
            ) from None

    def _open(self) -> None:
        self._file = open_ledger(self._path)
        self._place = _place(self._path)

    def _begin(self) -> None:
        """Make the file: whole, or not at all."""
        folder = self._path.parent
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix=f".{self._path.name}.") as apart:
                new = Path(apart) / "new"
                os.close(os.open(new, os.O_CREAT | os.O_EXCL, OWNER_ALONE))
                with closing(sqlite3.connect(new, isolation_level=None)) as file:
                    file.execute("PRAGMA synchronous = EXTRA")
                    file.executescript(f"BEGIN; {_TABLES} COMMIT;")
                with suppress(FileExistsError):  # another process was quicker
                    os.link(new, self._path)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(handle)
            os.close(handle)
            self._open()
        except (OSError, sqlite3.Error, ConfigError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise CannotRecord(f"{self._path}: cannot begin this ledger: {why}") from None


def open_ledger(path: Path) -> sqlite3.Connection:
    """The database in a file that is there, every row of it checked. ConfigError if it is no ledger."""
    try:
        if path.stat().st_size == 0:
            raise ConfigError(f"{path}: this ledger is empty, which none ever is; {_PUT_BACK}")
        file = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",
            uri=True,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,  # a session is computed in one thread at a time
        )
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this ledger: {error.strerror}") from None
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: cannot open this ledger: {error}") from None
    try:
        file.execute("PRAGMA synchronous = EXTRA")
        (application,), (version,) = (
            file.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        if (application, version) != (APPLICATION, VERSION):
            raise ConfigError(f"{path}: not a ledger of this version of fedboost; {_PUT_BACK}")
        found = [row for (row,) in file.execute("PRAGMA integrity_check")]
        rows = [*file.execute(f"SELECT {_SESSION}, seal FROM sessions")]
        rows += file.execute(f"SELECT {_ROWS}, seal FROM rows")
        rows += file.execute(f"SELECT {_CHARGE}, seal FROM charges")
        if found != ["ok"] or any(_seal(row[:-1]) != row[-1] for row in rows):
            raise ConfigError(f"{path}: this ledger was changed after it was written; {_PUT_BACK}")
    except sqlite3.OperationalError as error:
        file.close()
        raise ConfigError(f"{path}: cannot read this ledger: {error}") from None
    except (sqlite3.Error, UnicodeDecodeError):
        file.close()
        raise ConfigError(f"{path}: this ledger is damaged or none; {_PUT_BACK}") from None
    except ConfigError:
        file.close()
        raise
    return file


_PUT_BACK = (
    "put back the newest copy, if nothing was released since it was made; only whoever answers for these "
    "rows can decide to begin anew, by moving it away"
)


def read_ledger(path: Path) -> list[Spent]:
    """What was spent of each dataset in a ledger, by name; nothing where there is no file. Raises as
    `open_ledger` does."""
    if not os.path.lexists(path):
        return []
    with closing(open_ledger(path)) as file:
        try:
            sessions = file.execute(
                "SELECT dataset, count(DISTINCT session), max(delta) FROM sessions "
                "GROUP BY dataset ORDER BY dataset"
            ).fetchall()
            costs = {name: [of for (of,) in file.execute(_COSTS, (name,))] for name, *_ in sessions}
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot read this ledger: {error}") from None
    return [
        Spent(name, count, len(costs[name]), math.fsum(costs[name]), delta) for name, count, delta in sessions
    ]


def _rounded_down(epsilon: float) -> float:
    return math.floor(epsilon * 1e4) / 1e4


def _sum(file: sqlite3.Connection, query: str, *values: str) -> float:
    return math.fsum(cost for (cost,) in file.execute(query, values))


def _insert(file: sqlite3.Connection, table: str, columns: str, row: tuple[str | float | bytes, ...]) -> None:
    places = ", ".join("?" * (len(row) + 1))
    file.execute(f"INSERT INTO {table} ({columns}, seal) VALUES ({places})", (*row, _seal(row)))


def _seal(row: tuple[str | float | bytes, ...]) -> bytes:
    """A hash of a row, by which one that was changed by accident is found."""
    parts = (one if isinstance(one, bytes) else repr(one).encode() for one in row)
    return hashlib.sha256(fields.pack(*parts)).digest()


def _place(path: Path) -> tuple[int, int] | None:
    """Which file is there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
