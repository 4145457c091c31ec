"""What an aggregator writes down, so that a restart finds the session where it was: the terms, the trees, and
the sums that were opened but those within a tree, in order. The program is run again over them; the tree that
was growing is asked for again from its root, or from the level below where the root shared a turn.

Promises: `decode(encode(r))` is the record; a record is written before anything that follows from it is said.
Refuses: bytes that are no record (ConfigError: the file is the user's).
"""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedboost.errors import ConfigError, FedboostError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.tree import Split, Splits, Tree
from fedboost.privacy import fields
from fedboost.protocol.messages import Request
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class Begun:
    """A session of this name began under these terms, for this analyst (NAME#FINGERPRINT, by the key in the
    certificate, '' without keys); request: the signed one, where there is any."""

    session: str
    terms: Terms
    analyst: str
    request: Request | None = None


@dataclass(frozen=True)
class Gathered:
    """This roster was called together for the attempt-th time."""

    attempt: int
    roster: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """The sum of a query (by its digest), which was not within a tree, was opened in this turn."""

    turn: int
    query: bytes
    total: Int64 = field(repr=False)


@dataclass(frozen=True)
class TreeGrown:
    """A tree grew, and is to end in this turn: the tree, the splits no party has heard of yet, and what the
    parties know of it (`contracts.State.to_record`)."""

    turn: int
    tree: Tree = field(repr=False)
    last: Splits = field(repr=False)
    known: list[Any] = field(repr=False)


@dataclass(frozen=True)
class Stopped:
    """No more rounds are wanted after the one that ends in this turn."""

    turn: int


Record = Begun | Gathered | Opened | TreeGrown | Stopped


def encode(record: Record) -> bytes:
    """Bytes of a record."""
    match record:
        case Begun(session, terms, analyst, request):
            who = session.encode(), terms.canonical().encode(), analyst.encode()
            return fields.pack(b"begun", *who, *(() if request is None else _packed(request)))
        case Gathered(attempt, roster):
            return fields.pack(b"gathered", fields.number(attempt), *(party.encode() for party in roster))
        case Opened(turn, query, total):
            return fields.pack(b"opened", fields.number(turn), query, total.astype("<i8").tobytes())
        case TreeGrown(turn, tree, last, known):
            content = [vars(tree), [[*vars(split).values()] for split in last], *known]
            return fields.pack(b"grew", fields.number(turn), json.dumps(content).encode())
        case Stopped(turn):
            return fields.pack(b"stopped", fields.number(turn))


def decode(data: bytes) -> Record:
    """The record in these bytes; ConfigError if they are none."""
    try:
        match fields.unpack(data):
            case [b"begun", session, terms, analyst, *request]:
                agreed = Terms.from_canonical(terms.decode())
                return Begun(session.decode(), agreed, analyst.decode(), _request(request))
            case [b"gathered", attempt, *roster]:
                return Gathered(_number(attempt), tuple(party.decode() for party in roster))
            case [b"opened", turn, query, total]:
                return Opened(_number(turn), query, np.frombuffer(total, "<i8").astype(np.int64))
            case [b"grew", turn, content]:
                tree, last, *known = json.loads(content)
                return TreeGrown(
                    _number(turn), Tree(**tree), Splits.of(Split(*split) for split in last), known
                )
            case [b"stopped", turn]:
                return Stopped(_number(turn))
    except (FedboostError, TypeError, ValueError) as error:
        raise ConfigError(f"not a record of a session: {error}") from None
    raise ConfigError("not a record of a session of this version of fedboost")


def _packed(request: Request) -> tuple[bytes, ...]:
    return request.nonce, fields.number(request.time), request.certificate, request.signature


def _request(parts: list[bytes]) -> Request | None:
    if not parts:
        return None
    nonce, time, certificate, signature = parts
    return Request(nonce, _number(time), certificate, signature)


def _number(field: bytes) -> int:
    return int.from_bytes(field, signed=True)
