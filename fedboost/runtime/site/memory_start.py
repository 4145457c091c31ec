"""The start of a site's memory: whether a party may go on with the one that is there, or begin another.

Promises: a party says at its start where its memory lies and how many sessions it knows; a new memory, or one
from a backup, knows the sessions and charges that the audit log has, and those of a ledger of an earlier
version.
Refuses (ConfigError, one line with what a person has to do): to begin a memory where there is a budget, an
audit log that is not empty or a ledger of an earlier version; to go on with a copy that is older than the
audit log.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from fedboost.errors import ConfigError
from fedboost.privacy.masked.keys import Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.site import Standing, colluding_of, predicted_by
from fedboost.runtime.site.audit import AuditLog, read_admitted
from fedboost.runtime.site.audit_entry import Admitted, Checked, Ended, Entry, Event, Released, Sent
from fedboost.runtime.site.audit_files import NO_LOG, LogEnd, end_of, entries_after, owner_of
from fedboost.runtime.site.budget import Spent
from fedboost.runtime.site.config import PartyConfig, state_folder
from fedboost.runtime.site.memory import (
    FileMemory,
    as_row,
    check_alone,
    check_dataset,
    known_session,
    logged,
)
from fedboost.runtime.site.memory_file import (
    LEDGER,
    LEDGER_TABLES,
    NAME,
    Value,
    make_file,
    make_folder,
    open_database,
    put,
    put_told,
    read_ledger,
    read_spent,
)
from fedboost.terms.terms import Terms

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


def init_memory(config: PartyConfig, ledger: Path | None = None) -> Begun:
    """Make a memory that knows what the audit log and a ledger of an earlier version have. ConfigError."""
    path, earlier = memory_path(config), _ledgers(config)
    if os.path.lexists(path):
        open_database(path).close()
        raise ConfigError(
            f"{path}: there is a memory already, and it stays as it is (one that was put back from a backup: "
            f"`fedboost privacy init --restored --config {config.file}`)"
        )
    if ledger is None and earlier:
        raise _unmoved(config, earlier[0])
    sessions, charges = ([], []) if ledger is None else read_ledger(ledger, config.rows_name)
    with _log_of(config) as audit:
        entries = audit.after(NO_LOG) or []
        make_file(path, config.rows_name)
        with closing(_open(config, audit)) as memory, memory.transaction() as file:
            for party, session, terms, *rest in sessions:
                _put_ended(file, (str(party), str(session)), True, terms, "", b"", "[]", 0, 0, *rest)
            for row in charges:
                put(file, "charges", *row)
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


def _check_beside_log(config: PartyConfig, end: LogEnd) -> None:
    """Compare a memory, which a party may be writing, with the entries that its audit log had before.
    ConfigError."""
    path = memory_path(config)
    with closing(open_database(path)) as file:
        try:
            file.execute("BEGIN")
            check_dataset(path, file, config.rows_name)
            if config.audit is not None and end != NO_LOG:
                since = entries_after(config.audit, logged(file, config.party), end[0])
                _check_age(config, file, since or ())
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot read this memory: {error}") from None


def _missing(config: PartyConfig, audited: bool) -> ConfigError | None:
    """The error where there is no memory; None if one may be begun."""
    path, command = memory_path(config), f"`fedboost privacy init --config {config.file}`"
    if earlier := _ledgers(config):
        return _unmoved(config, earlier[0])
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


def _unmoved(config: PartyConfig, ledger: Path) -> ConfigError:
    return ConfigError(
        f"{ledger}: is a ledger of an earlier version, with what was spent of the rows {config.rows_name!r}; "
        f"`fedboost privacy init --from {ledger} --config {config.file}` moves it into the site's memory"
    )


def _ledgers(config: PartyConfig) -> list[Path]:
    """Ledgers of an earlier version that have these rows, beside the config or in the state folder."""
    ledgers = []
    for folder in (config.file.parent, state_folder(config)):
        for path in sorted(folder.glob("*.ledger.sqlite")):
            with closing(open_database(path, LEDGER, LEDGER_TABLES)) as file:
                rows = file.execute("SELECT 1 FROM sessions WHERE dataset = ?", (config.rows_name,))
                if rows.fetchone() is not None:
                    ledgers.append(path)
    return ledgers


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
            about = (
                event.terms,
                event.analyst or "",
                bytes.fromhex(event.request or ""),
                *_group(event, terms),
            )
            times = event.delta or 0.0, 0.0, entry.time
            predicted = None if terms is None else predicted_by(terms, party)
            met = event.session in answered or predicted is not None  # what is relayed is no release
            _put_ended(file, (party, event.session), met, *about, *times)
            if terms is not None:
                put_told(file, (party, event.session), terms)
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


def _put_ended(file: sqlite3.Connection, name: tuple[str, str], met: bool, *about: Value) -> None:
    """Write a session that is over. met: whether its parties met; about: its terms, and the columns after."""
    put(file, "sessions", *name, *about)
    put(file, "standings", *name, *as_row(b"", Standing(attempt=int(met))), EARLIER)


@contextmanager
def _log_of(config: PartyConfig) -> Iterator[AuditLog]:
    audit = open_log(config, "; stop the party first")
    assert audit is not None
    with audit:
        yield audit
