"""What an aggregator writes down, so that a restart finds the session where it was: the terms, and every sum
that was opened, in order. The program is a function of these; it is run again over them.

Promises: `decode(encode(r))` is the record; a record is written before anything that follows from it is said.
Refuses: bytes that are no record (ConfigError: the file is the user's).
"""

from dataclasses import dataclass, field

import numpy as np

from fedboost.errors import ConfigError, FedboostError
from fedboost.fixedpoint import Int64
from fedboost.privacy import fields
from fedboost.protocol.terms import Terms


@dataclass(frozen=True)
class Begun:
    """A session of this name began under these terms, for this analyst."""

    session: str
    terms: Terms
    analyst: str


@dataclass(frozen=True)
class Gathered:
    """This roster was called together for the attempt-th time."""

    attempt: int
    roster: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """The sum of a query (by its digest) was opened."""

    query: bytes
    total: Int64 = field(repr=False)


@dataclass(frozen=True)
class Cut:
    """The tree that grows was cut short: no sum came for the last query."""


Record = Begun | Gathered | Opened | Cut


def encode(record: Record) -> bytes:
    """Bytes of a record."""
    match record:
        case Begun(session, terms, analyst):
            return fields.pack(b"begun", session.encode(), terms.canonical().encode(), analyst.encode())
        case Gathered(attempt, roster):
            return fields.pack(b"gathered", fields.number(attempt), *(party.encode() for party in roster))
        case Opened(query, total):
            return fields.pack(b"opened", query, total.astype("<i8").tobytes())
        case Cut():
            return fields.pack(b"cut")


def decode(data: bytes) -> Record:
    """The record in these bytes; ConfigError if they are none."""
    try:
        match fields.unpack(data):
            case [b"begun", session, terms, analyst]:
                return Begun(session.decode(), Terms.from_canonical(terms.decode()), analyst.decode())
            case [b"gathered", attempt, *roster]:
                return Gathered(
                    int.from_bytes(attempt, signed=True), tuple(party.decode() for party in roster)
                )
            case [b"opened", query, total]:
                return Opened(query, np.frombuffer(total, "<i8").astype(np.int64))
            case [b"cut"]:
                return Cut()
    except (FedboostError, ValueError) as error:
        raise ConfigError(f"not a record of a session: {error}") from None
    raise ConfigError("not a record of a session of this version of fedboost")
