"""Audit logs, and what is wrong with them."""

import dataclasses
from contextlib import closing

from sites import terms

from fedboost.protocol.site import Release, SessionOffer
from fedboost.runtime.site.audit import read_log
from fedboost.runtime.site.memory import FileMemory, admission
from fedboost.runtime.site.store import NO_ENTRY, Counter, head_of, make_file, open_database, put

PAIR = ("north", "south")
RELEASE = Release("s", 1, 1, "RowsQuery", 385, 3080, "plain", PAIR)
PLACE = {"question": "ab" * 32, "position": "cd" * 32}


class AuditLog:
    """The log of the party that a store is named after; the store is made if there is none, and taken away if
    nothing was written."""

    def __init__(self, path):
        self.path, party = path, path.name.partition(".")[0]
        if not path.exists():
            make_file(path, "rows")
            Counter(path, party).path.unlink(missing_ok=True)
        self.memory = FileMemory(path, party, "rows")
        self.record, self.ended, self.checked = self.memory.record, self.memory.ended, self.memory.checked

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        empty = self.last == NO_ENTRY
        self.memory.close()
        if empty:
            self.path.unlink(missing_ok=True)

    @property
    def last(self):
        """Number and hash of its last entry."""
        with self.memory.transaction(durable=False) as file:
            return head_of(file, self.memory.party)

    def admitted(self, session, terms, analyst="", request="", attempt=1, **about):
        offer = SessionOffer(session, terms, attempt, analyst)
        event = admission(offer, **about).model_copy(update={"request": request or None})
        with self.memory.transaction() as file:
            put(file, "terms", terms.digest, terms.canonical())
            self.memory.append(file, event)


def written(path, releases=3):
    """A log of one session: its lines."""
    with AuditLog(path) as log:
        log.admitted("s", terms(PAIR))
        for turn in range(1, releases + 1):
            log.record(dataclasses.replace(RELEASE, turn=turn))
        log.ended("s", "")
    return [entry.line for entry in read_log(path)]


def change_terms(path, digest, text):
    """Put another text in the place of terms in a store; none to remove them."""
    with closing(open_database(path)) as file:
        if text is None:
            file.execute("DELETE FROM terms WHERE digest = ?", (digest,))
        else:
            put(file, "terms", digest, text)
