"""A site's memory, in its store: its sessions and their state, the privacy spent on them, and the audit log.

Guarantees: `FileMemory` implements `SiteMemory` (fedboost/protocol/site.py) and keeps its records across
restarts. A recorded turn survives the end of the process; a session's start, end, signature and charges also
survive a power failure. No session is charged more than its terms plan, so the privacy statement of the terms
holds whatever the aggregator requests. A repeated release is charged only once, and no two processes spend
the same part of the budget. A session's secret and questions are deleted when it ends. An admission, an
answer or a session's end is recorded in the same transaction as its entry in the audit log.
Raises: Refused if a session violates the rules between sessions or the budget; ConfigError if another process
of the same party is running; DurabilityError if a write fails. Nothing may leave the site after that, and the
process must end.

The privacy that a session plans to spend is not reserved. Each concurrent session is admitted if its own plan
fits within the budget. A session that later finds the budget exhausted is refused midway.
"""

import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from fedboost.errors import ConfigError, LocalProtocolError, Refused, quoted
from fedboost.privacy.pairwise import derive
from fedboost.protocol import site
from fedboost.protocol.contracts import HeldTable, Position
from fedboost.results.audit import Admitted, Checked, Ended
from fedboost.results.site import USUAL_DELTA, Spent
from fedboost.runtime.files import file_errors, folder_name
from fedboost.runtime.site.store import DurableRow, Store, Value, dataset_of, now, put, reading
from fedboost.system import lock
from fedboost.terms.terms import Terms
from fedboost.views.approval import columns_of

# ---- What sessions cost ---------------------------------------------------------------------------------


def spent_under(spent: Spent, budget: site.Budget | None, own: bool) -> Spent:
    """Return the privacy spent on a dataset, expressed as an epsilon, and the budget that remains. budget:
    budget for the site's current dataset; own: True if `spent` is about that dataset."""
    limit = budget if own else None
    delta = spent.delta if limit is None else limit.delta
    allowed = {} if limit is None else {"budget": limit.epsilon, "left": limit.left(spent.cost)}
    return spent.model_copy(update={"own": own, "delta": delta, "spent": spent.epsilon(delta), **allowed})


def costs(file: sqlite3.Connection, *session: str) -> float:
    """Return the total cost (mu squared) of all charges, or of the charges of one party and session."""
    where = "WHERE (party, session) = (?, ?)" if session else ""
    return math.fsum(cost for (cost,) in file.execute(f"SELECT cost FROM charges {where}", session))


def read_spent(path: Path) -> Spent:
    """Read the privacy spent on a dataset from its memory file. Raises ConfigError if it cannot be read."""
    with reading(path) as file:
        assert file is not None
        return spent_in(file)


def spent_in(file: sqlite3.Connection) -> Spent:
    sessions, never_began, with_noise = file.execute(
        "SELECT count(*), coalesce(sum(attempt = 0), 0), coalesce(sum(delta > 0), 0) FROM "
        "(SELECT max(attempt) AS attempt, max(delta) AS delta FROM sessions JOIN standings USING "
        "(party, session) WHERE json_extract(known, '$[0].predicted') IS NULL "
        "OR json_extract(known, '$[0].splits') > 0 GROUP BY session)"
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


# ---- A site's memory on disk: its sessions, their state and the privacy spent on them -------------------


_ABOUT = (
    "SELECT party, known, attempt, ended, julianday(?) - julianday(begun) "
    "FROM sessions JOIN standings USING (party, session)"
)
_OF_ONE = "WHERE (party, session) = (?, ?)"
Write = Callable[[sqlite3.Connection], None]
"""Function that writes within a transaction."""

T = TypeVar("T")


class Json(Generic[T]):
    """Converts values of a class to and from JSON for a table's column. Bytes become hex digits."""

    def __init__(self, kind: type[T]) -> None:
        config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
        self._adapter = TypeAdapter(tuple[kind], config=config)  # type: ignore[valid-type]

    def of(self, value: T) -> str:
        return self._adapter.dump_json((value,)).decode()

    def read(self, text: str) -> T:
        (value,) = self._adapter.validate_json(text)
        return value


KNOWN, STANDING, QUESTION = Json(site.KnownSession), Json(site.Standing), Json(site.Question)


def admission(
    offer: site.SessionOffer,
    party: str = "",
    dataset: str = "",
    names: Mapping[str, str] | None = None,
    adder: str = "",
) -> Admitted:
    """Return the audit entry for a session that a site takes part in.

    Args:
        offer: the session.
        party: the site's name.
        dataset: name of the site's dataset.
        names: names of columns in the site's table, by name in the terms, where the two differ.
        adder: adder through which the site is connected, if any.
    """
    terms, noise = offer.terms, offer.terms.noise
    return Admitted(
        session=offer.session,
        terms=terms.digest,
        protection=terms.protection.name,
        parties=terms.parties,
        objective=terms.objective.name,
        rounds=terms.trees.rounds if terms.task.trains else 0,
        task=None if terms.task.makes_model else terms.task.name,
        columns=columns_of(terms),
        epsilon=None if noise is None else noise.epsilon,
        delta=None if noise is None else noise.delta,
        placement=None if noise is None else noise.placement,
        attempt=offer.attempt,
        analyst=offer.analyst or None,
        request=offer.request.hex() or None,
        party=party or None,
        dataset=dataset or None,
        names=dict(names or {}) or None,
        adder=adder or None,
    )


class FileMemory(Store):
    """The SQLite record of one party's sessions with one dataset. Implements `protocol.site.SiteMemory`."""

    def __init__(
        self,
        path: Path,
        party: str,
        dataset: str,
        budget: site.Budget | None = None,
        names: Callable[[Terms], Mapping[str, str]] = lambda terms: {},
        clock: Callable[[], str] = now,
    ) -> None:
        """Open an existing memory file. Raises ConfigError if the file cannot be used, e.g. because another
        process is using it.

        Args:
            dataset: name of the dataset.
            budget: privacy budget; None to count without a limit.
            names: returns the argument `names` of `admission` for given terms.
            clock: returns the current time, in the format of a log entry.
        """
        self.dataset, self.budget = dataset, budget
        self.adder = ""
        """Adder through which the party is connected now, or '' if it is connected to the aggregator."""
        self._names, self._clock = names, clock
        self._later: list[tuple[Write, bool]] | None = None
        """Collected writes of the session's thread, True for durable ones. None outside of `together`."""
        self.just_ended = ""
        """Name of the session that has just recorded its own end; '' once `ended` has been called."""
        self._unlock = _locked(path, party)
        with ExitStack() as opened:
            opened.callback(self._unlock)
            super().__init__(path, party)
            opened.callback(super().close)
            with self.transaction(durable=False) as file:
                check_dataset(path, file, dataset)
                self._key = dataset_of(file)[1]
            opened.pop_all()

    def close(self) -> None:
        super().close()
        self._unlock()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context manager that collects the writes of the session's thread and runs them in one transaction
        at its end. After an error, no write is run. Raises Refused if a write is refused, DurabilityError if
        a write fails."""
        # Only the session's thread uses `write`; entries of other threads are transactions of their own.
        # Collected writes run at the end, and a refusal by one of them undoes all. `FileSession` has recorded
        # the new standing in RAM by then. That is harmless: a refusal ends the session, and no answer is made
        # from the standing again.
        self._later = later = list[tuple[Write, bool]]()
        try:
            yield
        finally:
            self._later = None
        if later:
            with self.transaction(any(durable for _, durable in later)) as file:
                for write, _ in later:
                    write(file)

    def write(self, write: Write, durable: bool = False) -> None:
        """Run a write, or collect it within `together`. Raises DurabilityError if it fails."""
        if self._later is not None:
            self._later.append((write, durable))
            return
        with self.transaction(durable) as file:
            write(file)

    def record(self, release: site.Release | site.Relayed) -> None:
        """Record a release or relay before it leaves the site. After a DurabilityError, it must not leave."""
        # Without waiting for the disk, a kill loses nothing, and a power failure may lose the last entries. A
        # lost charge could be spent again, so a charge always waits.
        charged = isinstance(release, site.Release) and release.charge is not None
        self.write(lambda file: self.append(file, release), durable=charged)

    def ended(self, session: str, reason: str, paused: bool = False, analyst: str = "") -> None:
        """Record the end of a session in the audit log, unless the session has just recorded it. Raises
        DurabilityError if it cannot be written.

        Args:
            reason: why it ended; '' if it ended with a model.
            paused: record a pause until this site returns, instead of an end.
            analyst: analyst of a refused session.
        """
        by_itself, self.just_ended = self.just_ended, ""
        if session != by_itself:
            with self.transaction() as file:
                self.append(file, _end(session, reason, paused, analyst))

    def checked(self, terms: str, analyst: str, would: bool) -> None:
        """Record an analyst's preflight check of terms before it is answered. May be called from any thread.
        terms: digest of the terms; would: True if this site would take part. Raises DurabilityError if the
        check cannot be recorded."""
        with self.transaction(durable=False) as file:
            self.append(file, Checked(terms=terms, would=would, analyst=analyst or None))

    @property
    def sessions(self) -> int:
        """Number of sessions of all parties in the memory."""
        with self.transaction(durable=False) as file:
            (count,) = file.execute("SELECT count(DISTINCT session) FROM sessions").fetchone()
        return int(count)

    def spent(self) -> Spent:
        """Return the privacy that all parties have spent on the dataset."""
        with self.transaction(durable=False) as file:
            return spent_in(file)

    def begin(self, offer: site.SessionOffer, limits: site.Limits) -> "FileSession":
        """Start a session, or continue it after a restart. Raises Refused if the session violates a rule or
        the budget, DurabilityError if it cannot be recorded."""
        name, terms = (self.party, offer.session), offer.terms
        with self.transaction() as file:
            known, others = self.known(file, offer)
            site.judge(offer, known, others, limits, self.party)
            if terms.noise is not None and self.budget is not None:
                self.budget.check_session(self.party, terms, costs(file), costs(file, *name))
            if known is None:
                delta, planned = (terms.noise.delta, terms.plan.cost) if terms.noise else (0.0, 0.0)
                about = site.KnownSession.begun(
                    offer.session, terms, offer.request, self.party, offer.analyst
                )
                row = terms.digest, offer.request, KNOWN.of(about), delta, planned, self._clock()
                self.promise(file, "sessions", *name, *row)
                put(file, "secrets", *name, os.urandom(site.KEY_BYTES))
                self.promise(file, "standings", *name, *as_row(b"", site.Standing()), None)
                put(file, "terms", terms.digest, terms.canonical())
            own = self.party, self.dataset, self._names(terms), self.adder
            self.append(file, admission(offer, *own))
            # Within the transaction, so that it reads the rows written above.
            return FileSession(self, offer, limits, file)

    def key_for(self, what: bytes, about: bytes) -> bytes:
        """Return a 32-byte secret for one purpose, the same for the lifetime of this memory."""
        return derive(self._key, what, about)

    def hash_rows(self, rows: Callable[[bytes], bytes]) -> bytes:
        """Return the hash of rows under this memory's secret key. rows: computes the hash from the key."""
        return rows(self._key)

    def table_of(self, terms: Terms, request: bytes) -> tuple[int, bytes] | None:
        """Return the number of rows and the hash of the table that this party used in a training session;
        None if unknown. request: nonce of the analyst's request for that session."""
        query = (
            "SELECT rows, hash FROM tables JOIN sessions USING (party, session) "
            "WHERE party = ? AND terms = ? AND request = ? ORDER BY begun DESC"
        )
        with self.transaction(durable=False) as file:
            found = file.execute(query, (self.party, terms.digest, request)).fetchone()
        return None if found is None else (int(found[0]), bytes(found[1]))

    def known(
        self, file: sqlite3.Connection, offer: site.SessionOffer
    ) -> tuple[site.KnownSession | None, list[site.KnownSession]]:
        """Return the offered session (None if it is new), and all other sessions of the dataset. A session
        that several parties share is listed once. Requests that other parties received are omitted."""
        own = known_session(file, self.party, offer.session)
        offered = offer.session, offer.terms.digest
        known = known_sessions(file, self.party, self._clock())
        return own, [other for other in known if (other.session, other.digest) != offered]


class FileSession:
    """One session in a `FileMemory`: its secret, state, questions and charges. Implements
    `protocol.site.SessionMemory`."""

    def __init__(
        self, memory: FileMemory, offer: site.SessionOffer, limits: site.Limits, file: sqlite3.Connection
    ) -> None:
        self._memory = memory
        self._offer, self._limits = offer, limits
        self._session = offer.session
        self._name = memory.party, offer.session
        self._ended = False
        ((self._secret,),) = file.execute(f"SELECT secret FROM secrets {_OF_ONE}", self._name)
        query = f"SELECT rows, standing FROM standings {_OF_ONE}"
        ((self._rows, text),) = file.execute(query, self._name)
        query = f"SELECT question FROM questions {_OF_ONE} ORDER BY turn"
        questions = tuple(QUESTION.read(text) for (text,) in file.execute(query, self._name))
        self._standing = standing = replace(STANDING.read(text), questions=questions)
        if questions:
            # Within a tree, `ask` writes the question alone, so the stored `reached` lags behind that of the
            # last question.
            self._standing = replace(standing, reached=questions[-1].after)

    @property
    def standing(self) -> site.Standing:
        return self._standing

    @property
    def secret(self) -> bytes:
        """Secret of this session, 32 bytes. It stays the same across restarts."""
        self._check_lives()
        return bytes(self._secret)

    def together(self) -> AbstractContextManager[None]:
        """See `FileMemory.together`."""
        return self._memory.together()

    def bind(self, rows: Callable[[bytes], bytes], table: HeldTable | None = None) -> None:
        """Bind the session to the keyed hash of its rows. Raises Refused if it was bound to different rows,
        with nothing about the rows in the public part. rows: computes the hash of the rows from a key; table:
        facts about the table to store for later sessions."""
        digest = self._memory.hash_rows(rows)
        if self._rows and self._rows != digest:
            raise Refused(
                "session-other-rows",
                f"party {self._memory.party} does not continue session {quoted(self._session)}; train again",
                "its rows differ from those that the session started with; restore them, or train again",
            )

        # Not within the transaction: hashing may read the table again, and its noise's key from the memory.
        hashed = None if table is None else self._memory.hash_rows(table.hashed)

        def write(file: sqlite3.Connection) -> None:
            put(file, "standings", *self._name, *as_row(digest, self._standing), None)
            if table is not None and hashed is not None:
                self._keep(file, table, hashed)

        if not self._rows or table is not None:
            self._write(write, durable=True)
            self._rows = digest

    def _keep(self, file: sqlite3.Connection, table: HeldTable, hashed: bytes) -> None:
        """Store the facts about a table that later sessions need. Raises Refused if the chosen rows differ
        from another session's in only a few rows."""
        if (chosen := table.chosen) is not None:
            sets = file.execute("SELECT DISTINCT rows, bits FROM row_sets").fetchall()
            others = (np.unpackbits(np.frombuffer(bits, np.uint8), count=rows) != 0 for rows, bits in sets)
            site.check_chosen(chosen, others, self._limits, self._memory.party)
            put(file, "row_sets", *self._name, table.rows, np.packbits(chosen).tobytes())
        put(file, "tables", *self._name, table.rows, hashed)

    def meet(self, attempt: int) -> None:
        """Record that all parties have joined this attempt. From then on, predicted rows and splits count
        towards their limits. Raises Refused if the session conflicts with others."""
        standing = replace(self._standing, attempt=attempt)

        def write(file: sqlite3.Connection) -> None:
            if not self._standing.attempt:
                # Sessions admitted since this one was offered may have met first: check again.
                known, others = self._memory.known(file, self._offer)
                assert known is not None
                site.check_others(known, others, self._limits, self._memory.party)
            row = *self._name, *as_row(self._rows, standing), None
            self._memory.promise(file, "standings", *row)

        # With different columns a meeting charges splits or predicted rows: no power failure may undo it.
        self._write(write, durable=bool(self._offer.terms.blocks))
        self._standing = standing

    def ask(self, question: site.Question, base: Position, reached: Position) -> None:
        """Record a question before it is answered. base, reached: positions before and after the question."""
        standing, other_tree = self._standing.after(question, base, reached), base != self._standing.base

        def write(file: sqlite3.Connection) -> None:
            if other_tree:
                file.execute(f"DELETE FROM questions {_OF_ONE}", self._name)
                put(file, "standings", *self._name, *as_row(self._rows, standing), None)
            put(file, "questions", *self._name, question.turn, QUESTION.of(question))

        self._write(write)
        self._standing = standing

    def help(self, stage: int, roster: tuple[str, ...]) -> None:
        """Record that this party is about to help open a sum. stage: rank of the query in the session
        (`BaseQuery.stage`); roster: parties whose vectors are in the sum."""
        self._stand(replace(self._standing, helped=(stage, roster)))

    def sign(self) -> None:
        """Record that this party is about to sign the model."""
        self._stand(replace(self._standing, signed=True), durable=True)

    def charge(self, release: str, cost: float) -> None:
        """Charge the cost (mu squared) of a release to the session. A repeated release is charged only once.
        Raises Refused if the total cost would exceed the site's budget or the cost planned in the terms."""
        party, session = self._name

        def write(file: sqlite3.Connection) -> None:
            query = f"SELECT 1 FROM charges {_OF_ONE} AND release = ?"
            if file.execute(query, (*self._name, release)).fetchone() is not None:
                return
            ((planned,),) = file.execute(f"SELECT planned FROM sessions {_OF_ONE}", self._name)
            if costs(file, *self._name) + cost > planned * (1.0 + site.ROUNDING):
                raise Refused(
                    "session-over-plan",
                    f"party {party}: session {quoted(session)} requests more releases than its terms plan, "
                    f"which would make it less private than the terms state",
                )
            if self._memory.budget is not None:
                wanted, budget = f"session {quoted(session)} requests one more release", self._memory.budget
                budget.check(party, wanted, budget.delta, costs(file), cost)
            self._memory.promise(file, "charges", *self._name, release, float(cost), now())

        self._write(write, durable=True)

    def end(self, reason: str) -> None:
        """Mark the session as ended. Its name, terms and privacy charges are kept; its secret and recorded
        questions are deleted. reason: text for the audit log."""
        if self._ended:
            return
        store = self._memory
        with store.transaction() as file:
            # Noise follows from this secret and the exact integers. With it, a reader of the file could check
            # guesses of the integers of every answer.
            file.execute(f"DELETE FROM secrets {_OF_ONE}", self._name)
            file.execute(f"DELETE FROM questions {_OF_ONE}", self._name)
            ended = _end(self._session, reason)
            put(file, "standings", *self._name, *as_row(self._rows, self._standing), ended.reason)
            store.append(file, ended)
        self._ended, self._secret = True, b""
        self._memory.just_ended = self._session
        store.overwrite()

    def _stand(self, standing: site.Standing, durable: bool = False) -> None:
        self._write(
            lambda file: put(file, "standings", *self._name, *as_row(self._rows, standing), None), durable
        )
        self._standing = standing

    def _write(self, write: Write, durable: bool = False) -> None:
        self._check_lives()
        self._memory.write(write, durable)

    def _check_lives(self) -> None:
        if self._ended:
            raise LocalProtocolError("session-ended", f"session {quoted(self._session)} has ended")


def _end(session: str, reason: str, paused: bool = False, analyst: str = "") -> Ended:
    reason = reason.encode(errors="replace").decode()
    return Ended(session=session, reason=reason, paused=True if paused else None, analyst=analyst or None)


def take_over(file: sqlite3.Connection, party: str, forgotten: Iterable[DurableRow], reason: str) -> None:
    """Add the durable rows that a restored memory lacks, and end the party's open sessions, because their
    latest answers are unknown. forgotten: these rows, from the counter file; reason: why sessions end."""
    for table in ("secrets", "questions"):
        file.execute(f"DELETE FROM {table} WHERE party = ?", (party,))
    for table, row in forgotten:
        put(file, table, *row)
    query = "SELECT party, session, attempt, rows, standing FROM standings WHERE party = ? AND ended IS NULL"
    for row in file.execute(query, (party,)).fetchall():
        put(file, "standings", *row, reason)


def check_alone(path: Path, party: str, remedy: str = "") -> None:
    """Raise ConfigError if another process of this party uses the memory. remedy: end of the message."""
    _locked(path, party, remedy)()


def check_dataset(path: Path, file: sqlite3.Connection, dataset: str) -> None:
    """Raise ConfigError if a memory file belongs to a different dataset."""
    name, _ = dataset_of(file)
    if name != dataset:
        raise ConfigError(
            "memory-other-dataset",
            f"{path} is the memory of dataset {name!r}, not of {dataset!r}; use a separate folder for each",
        )


def _locked(path: Path, party: str, remedy: str = "") -> Callable[[], None]:
    """Lock a party's lock file, and return the function that unlocks it. Raises ConfigError if another
    process holds the lock."""
    file = path.parent / f"{folder_name(party)}.lock"
    with file_errors(file, "cannot lock this file"):
        unlock = lock(file, 0)
    if unlock is None:
        raise ConfigError(
            "memory-in-use", f"{path}: another process of party {party!r} is using this memory{remedy}"
        )
    return unlock


def known_session(file: sqlite3.Connection, party: str, session: str) -> site.KnownSession | None:
    """Return a party's session by name; None if unknown."""
    row = file.execute(f"{_ABOUT} {_OF_ONE}", (now(), party, session)).fetchone()
    return None if row is None else _known(*row[1:])


def known_sessions(file: sqlite3.Connection, party: str, at: str = "") -> list[site.KnownSession]:
    """Return all sessions of the dataset, without the requests that other parties received. at: time for
    which to compute the sessions' age; '' for the current time."""
    sessions: dict[tuple[str, str], site.KnownSession] = {}
    for name, *row in file.execute(_ABOUT, (at or now(),)):
        known, mine = _known(*row), name == party
        if mine or (known.session, known.digest) not in sessions:
            sessions[known.session, known.digest] = known if mine else replace(known, request=b"")
    return [*sessions.values()]


def _known(text: str, attempt: int, ended: str | None, days: float | None) -> site.KnownSession:
    return replace(KNOWN.read(text), attempt=attempt, ended=ended, days=days or 0.0)


def as_row(rows: bytes, standing: site.Standing) -> tuple[Value, ...]:
    """Return the values of the columns `attempt`, `rows` and `standing`; questions have a table."""
    return standing.attempt, rows, STANDING.of(replace(standing, questions=()))


# ---- The key for noise on labels: one per label column, kept with the site's memory ---------------------
# Guarantees: a label has the same noise in every session; two draws would reveal more than one.


_WHAT = b"fedboost/1/labels"


def label_key(memory: FileMemory, terms: Terms) -> bytes:
    """Return the 32-byte key from which noise on the terms' label is drawn. Raises Refused if different noise
    was drawn before, DurabilityError if the use of the key cannot be recorded."""
    columns, epsilon = terms.columns, terms.vertical.label_epsilon
    name = memory.party, columns.label
    key = memory.key_for(_WHAT, columns.label.encode())
    classes = json.dumps([terms.objective.num_class, columns.positive, columns.classes])
    row = epsilon, classes, hashlib.sha256(key).digest()
    with memory.transaction() as file:
        query = "SELECT epsilon, classes, mark FROM labels WHERE (party, label) = (?, ?)"
        known = file.execute(query, name).fetchone()
        if known is None:
            # The counter file keeps the hash of the key, too. A new memory copies the hash from there but has
            # another key, and the difference is found below before the same labels get other noise.
            memory.promise(file, "labels", *name, *row)
    if known is not None and known[2] != row[2]:
        raise Refused(
            "label-noise-lost",
            f"party {memory.party}: the memory that determined the noise on its labels is missing, and new "
            f"noise would reveal more about the labels; restore the memory, or remove label_epsilon from "
            f"the terms",
        )
    if known is not None and known != row:
        raise Refused(
            "label-noise-changed",
            f"party {memory.party}: noise was already added to its labels {quoted(columns.label)!r} with "
            f"label_epsilon = {known[0]:g}; different noise or classes would reveal more about them; set "
            f"label_epsilon and classes as they were before",
        )
    return key
