"""A site's memory: its sessions, where they stand, what was spent on them, and its audit log, in its store.

Promises: what `SiteMemory` does (fedboost/protocol/site.py), over restarts. A turn that was noted
survives the end of the process; a session's start, end, signature and each charge also survive a power
failure. No session is charged more than its terms plan, so what they state of privacy is true whatever the
aggregator asks; a charge is there once however often a release is named; of several processes no two spend
the same rest. A session's secret and questions are gone with its end. An admission, an answer and an end are
in the audit log by the same transaction.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from fedboost.errors import ConfigError, LocalProtocolError, Refused, quoted
from fedboost.privacy.pairwise import derive
from fedboost.protocol.contracts import HeldTable, Position
from fedboost.protocol.site import (
    KEY_BYTES,
    ROUNDING,
    Budget,
    Known,
    Limits,
    Question,
    Relayed,
    Release,
    SessionOffer,
    Standing,
    check_chosen,
    check_others,
    judge,
)
from fedboost.results.audit import Admitted, Checked, Ended
from fedboost.results.site import USUAL_DELTA, Spent
from fedboost.runtime.files import file_errors, folder_name
from fedboost.runtime.site.store import OWNER_ALONE, Promise, Store, Value, dataset_of, now, put, reading
from fedboost.terms.terms import Terms
from fedboost.views.approval import columns_of

# ---- What sessions cost ---------------------------------------------------------------------------------


def spent_under(spent: Spent, budget: Budget | None, own: bool) -> Spent:
    """What was spent of a dataset, as an epsilon, and what is left of it. budget: that of the site's present
    rows, which are this dataset if it is its own."""
    limit = budget if own else None
    delta = spent.delta if limit is None else limit.delta
    allowed = {} if limit is None else {"budget": limit.epsilon, "left": limit.left(spent.cost)}
    return spent.model_copy(update={"own": own, "delta": delta, "spent": spent.epsilon(delta), **allowed})


def costs(file: sqlite3.Connection, *session: str) -> float:
    """The sum of all charges, or of those of one party and session."""
    where = "WHERE (party, session) = (?, ?)" if session else ""
    return math.fsum(cost for (cost,) in file.execute(f"SELECT cost FROM charges {where}", session))


def read_spent(path: Path) -> Spent:
    """The privacy that was spent on the dataset of a memory. ConfigError."""
    with reading(path) as file:
        assert file is not None
        return spent_in(file)


def spent_in(file: sqlite3.Connection) -> Spent:
    """The privacy that was spent on the dataset of a memory."""
    sessions, never_began, with_noise = file.execute(
        "SELECT count(*), coalesce(sum(attempt = 0), 0), coalesce(sum(delta > 0), 0) FROM "
        "(SELECT max(attempt) AS attempt, max(delta) AS delta FROM sessions JOIN standings USING "
        "(party, session) WHERE json_extract(known, '$[0].predicted') IS NULL GROUP BY session)"
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


# ---- A site's memory on disk: its sessions, where they stand and what was spent on them -----------------


_ABOUT = (
    "SELECT party, known, attempt, ended, julianday(?) - julianday(begun) "
    "FROM sessions JOIN standings USING (party, session)"
)
_OF_ONE = "WHERE (party, session) = (?, ?)"
Write = Callable[[sqlite3.Connection], None]
"""What is written in a transaction."""

T = TypeVar("T")


class Json(Generic[T]):
    """Values of a class in the columns of a table, bytes as hex digits."""

    def __init__(self, kind: type[T]) -> None:
        config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
        self._adapter = TypeAdapter(tuple[kind], config=config)  # type: ignore[valid-type]

    def of(self, value: T) -> str:
        """The text of a value."""
        return self._adapter.dump_json((value,)).decode()

    def read(self, text: str) -> T:
        """The value of a text."""
        (value,) = self._adapter.validate_json(text)
        return value


KNOWN, STANDING, QUESTION = Json(Known), Json(Standing), Json(Question)


def admission(
    offer: SessionOffer, party: str = "", dataset: str = "", names: Mapping[str, str] | None = None
) -> Admitted:
    """The entry of a session that a site takes part in. names: in its table, of the columns that the terms
    call otherwise."""
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
    )


def keep_terms(file: sqlite3.Connection, terms: Terms) -> None:
    """Keep the terms of an admission, by their digest."""
    put(file, "terms", terms.digest, terms.canonical())


class FileMemory(Store):
    """The memory of one dataset for one party: a `protocol.site.SiteMemory`."""

    def __init__(
        self,
        path: Path,
        party: str,
        dataset: str,
        budget: Budget | None = None,
        names: Callable[[Terms], Mapping[str, str]] = lambda terms: {},
        clock: Callable[[], str] = now,
    ) -> None:
        """Open a file that is there. ConfigError if it cannot be used.

        budget: None to keep count without a limit; names: see `admission`.
        """
        self.dataset, self.budget = dataset, budget
        self._names, self._clock = names, clock
        self._later: list[tuple[Write, bool]] | None = None
        """What the session's thread writes together, and if it has to wait for the disk."""
        self.just_ended = ""
        """The session whose end its own memory has written, until `ended` asks."""
        self._lock = _locked(path, party)
        with ExitStack() as opened:
            opened.callback(os.close, self._lock)
            super().__init__(path, party)
            opened.callback(super().close)
            with self.transaction(durable=False) as file:
                check_dataset(path, file, dataset)
                self._key = dataset_of(file)[1]
            opened.pop_all()

    def close(self) -> None:
        """Close the file."""
        super().close()
        os.close(self._lock)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write what the session's thread notes meanwhile in one transaction, at the end: nothing of it after
        an error. Refused, DurabilityError."""
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
        """Write what the session's thread notes. DurabilityError."""
        if self._later is not None:
            self._later.append((write, durable))
            return
        with self.transaction(durable) as file:
            write(file)

    def record(self, release: Release | Relayed) -> None:
        """Record a release or a relay that is about to leave. DurabilityError: then it must not leave."""
        charged = isinstance(release, Release) and release.charge is not None
        self.write(lambda file: self.append(file, release), durable=charged)

    def ended(self, session: str, reason: str, paused: bool = False, analyst: str = "") -> None:
        """Record that a session is over, '' with a model, or `paused` until this site is there again; nothing
        where it has just ended by itself. analyst: who asked for one that was refused. DurabilityError."""
        by_itself, self.just_ended = self.just_ended, ""
        if session != by_itself:
            with self.transaction() as file:
                self.append(file, _end(session, reason, paused, analyst))

    def checked(self, terms: str, analyst: str, would: bool) -> None:
        """Record that a check of the terms with this digest is about to be answered: whether this site would
        take part. From any thread. DurabilityError."""
        with self.transaction(durable=False) as file:
            self.append(file, Checked(terms=terms, would=would, analyst=analyst or None))

    @property
    def sessions(self) -> int:
        """The number of sessions in it, of all parties."""
        with self.transaction(durable=False) as file:
            (count,) = file.execute("SELECT count(DISTINCT session) FROM sessions").fetchone()
        return int(count)

    def spent(self) -> Spent:
        """The privacy that was spent on these rows, by all parties."""
        with self.transaction(durable=False) as file:
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
                about = Known.begun(offer.session, terms, offer.request, self.party, offer.analyst)
                row = terms.digest, offer.request, KNOWN.of(about), delta, planned, self._clock()
                self.promise(file, "sessions", *name, *row)
                put(file, "secrets", *name, os.urandom(KEY_BYTES))
                self.promise(file, "standings", *name, *as_row(b"", Standing()), None)
                keep_terms(file, terms)
            self.append(file, admission(offer, self.party, self.dataset, self._names(terms)))
            return FileSession(self, offer, limits, file)

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
        with self.transaction(durable=False) as file:
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
        query = f"SELECT rows, standing FROM standings {_OF_ONE}"
        ((self._rows, text),) = file.execute(query, self._name)
        query = f"SELECT question FROM questions {_OF_ONE} ORDER BY turn"
        questions = tuple(QUESTION.read(text) for (text,) in file.execute(query, self._name))
        self._standing = standing = replace(STANDING.read(text), questions=questions)
        if questions:
            self._standing = replace(standing, reached=questions[-1].after)

    @property
    def standing(self) -> Standing:
        """The state of the session."""
        return self._standing

    @property
    def secret(self) -> bytes:
        """A secret of this session, 32 bytes, the same over restarts."""
        self._check_lives()
        return bytes(self._secret)

    def together(self) -> AbstractContextManager[None]:
        """See `FileMemory.together`."""
        return self._memory.together()

    def bind(self, rows: Callable[[bytes], bytes], table: HeldTable | None = None) -> None:
        """Hold the session to its rows. Refused, without a word about the rows outside."""
        digest = self._memory.hash_rows(rows)
        if self._rows and self._rows != digest:
            raise Refused(
                f"party {self._memory.party} does not go on with session {quoted(self._session)}; "
                f"train again",
                "its rows are not those that the session began with; put them back, or train again",
            )

        def write(file: sqlite3.Connection) -> None:
            put(file, "standings", *self._name, *as_row(digest, self._standing), None)
            if table is not None:
                self._keep(file, table)

        if not self._rows:
            self._write(write, durable=True)
            self._rows = digest

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

        def write(file: sqlite3.Connection) -> None:
            if not self._standing.attempt:
                known, others = self._memory.known(file, self._offer)
                assert known is not None
                check_others(known, others, self._limits, self._memory.party)
            row = *self._name, *as_row(self._rows, standing), None
            self._memory.promise(file, "standings", *row)

        self._write(write, durable=bool(self._offer.terms.blocks))
        self._standing = standing

    def ask(self, question: Question, base: Position, reached: Position) -> None:
        """Record a question that is about to be answered."""
        standing, other_tree = self._standing.after(question, base, reached), base != self._standing.base

        def write(file: sqlite3.Connection) -> None:
            if other_tree:
                file.execute(f"DELETE FROM questions {_OF_ONE}", self._name)
                put(file, "standings", *self._name, *as_row(self._rows, standing), None)
            put(file, "questions", *self._name, question.turn, QUESTION.of(question))

        self._write(write)
        self._standing = standing

    def help(self, stage: int, roster: tuple[str, ...]) -> None:
        """Record a sum of this stage, over this roster, that is about to be opened."""
        self._stand(replace(self._standing, helped=(stage, roster)))

    def sign(self) -> None:
        """Record that a model is about to be signed."""
        self._stand(replace(self._standing, signed=True), durable=True)

    def charge(self, release: str, cost: float) -> None:
        """Charge a release once, however often it is named. Refused if it does not fit what is left, or is
        more than the terms plan."""
        party, session = self._name

        def write(file: sqlite3.Connection) -> None:
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
                wanted, budget = f"session {quoted(session)} asks for one more release", self._memory.budget
                budget.check(party, wanted, budget.delta, costs(file), cost)
            self._memory.promise(file, "charges", *self._name, release, float(cost), now())

        self._write(write, durable=True)

    def end(self, reason: str) -> None:
        """End the session for this site: its name, terms and charges stay."""
        if self._ended:
            return
        store = self._memory
        with store.transaction() as file:
            file.execute(f"DELETE FROM secrets {_OF_ONE}", self._name)
            file.execute(f"DELETE FROM questions {_OF_ONE}", self._name)
            ended = _end(self._session, reason)
            put(file, "standings", *self._name, *as_row(self._rows, self._standing), ended.reason)
            store.append(file, ended)
        self._ended, self._secret = True, b""
        self._memory.just_ended = self._session
        store.overwrite()

    def _stand(self, standing: Standing, durable: bool = False) -> None:
        """Record where the session stands."""
        self._write(
            lambda file: put(file, "standings", *self._name, *as_row(self._rows, standing), None), durable
        )
        self._standing = standing

    def _write(self, write: Write, durable: bool = False) -> None:
        self._check_lives()
        self._memory.write(write, durable)

    def _check_lives(self) -> None:
        if self._ended:
            raise LocalProtocolError(f"session {quoted(self._session)} has ended")


def _end(session: str, reason: str, paused: bool = False, analyst: str = "") -> Ended:
    """The entry of a session's end."""
    reason = reason.encode(errors="replace").decode()
    return Ended(session=session, reason=reason, paused=True if paused else None, analyst=analyst or None)


def take_over(file: sqlite3.Connection, party: str, forgotten: Iterable[Promise], reason: str) -> None:
    """Put into a memory what it has forgotten, and end the party's sessions that were under way: nobody knows
    what it answered since. reason: of these ends."""
    for table in ("secrets", "questions"):
        file.execute(f"DELETE FROM {table} WHERE party = ?", (party,))
    for table, row in forgotten:
        put(file, table, *row)
    query = "SELECT party, session, attempt, rows, standing FROM standings WHERE party = ? AND ended IS NULL"
    for row in file.execute(query, (party,)).fetchall():
        put(file, "standings", *row, reason)


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


def _locked(path: Path, party: str, remedy: str = "") -> int:
    """A lock that one process of this party has. ConfigError."""
    lock = path.parent / f"{folder_name(party)}.lock"
    with file_errors(lock, "cannot write this lock"):
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ALONE)
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
    row = file.execute(f"{_ABOUT} {_OF_ONE}", (now(), party, session)).fetchone()
    return None if row is None else _known(*row[1:])


def known_sessions(file: sqlite3.Connection, party: str, at: str = "") -> list[Known]:
    """All sessions of the dataset, as this party looks at them. at: the time, if not now."""
    sessions: dict[tuple[str, str], Known] = {}
    for name, *row in file.execute(_ABOUT, (at or now(),)):
        known, mine = _known(*row), name == party
        if mine or (known.session, known.digest) not in sessions:
            sessions[known.session, known.digest] = known if mine else replace(known, request=b"")
    return [*sessions.values()]


def _known(text: str, attempt: int, ended: str | None, days: float | None) -> Known:
    return replace(KNOWN.read(text), attempt=attempt, ended=ended, days=days or 0.0)


def as_row(rows: bytes, standing: Standing) -> tuple[Value, ...]:
    """The columns of a standing, from `attempt` to `standing`; its questions have rows of their own."""
    return standing.attempt, rows, STANDING.of(replace(standing, questions=()))


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
            memory.promise(file, "labels", *name, *row)
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
