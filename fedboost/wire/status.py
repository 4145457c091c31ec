"""The status of an aggregator to bytes and back: who is connected, and which sessions there are.

Promises: decoding is total: any bytes give a status or a PeerError.
Refuses: bytes that are no message of this version, and more of anything than there can be (PeerError).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fedboost.terms.session import MAX_PARTIES
from fedboost.wire.bounds import MAX_FROM_AGGREGATOR, bounded, parsed, require, serialised
from fedboost.wire.v1 import fedboost_pb2 as pb

MAX_MEMBERS = 8192
"""Members in a status: those connected, and those remembered."""
MAX_SESSIONS = 64
"""Sessions in a status: one is active, some wait, some are finished."""


@dataclass(frozen=True)
class Member:
    """A party or an analyst. since: connected since, 0 if it is not; seen: when it was connected last, 0 for
    a party that never was; times are seconds since 1970. version: of its software, as it says, '' where it
    says none."""

    role: str
    name: str
    since: int = 0
    seen: int = 0
    version: str = ""


class SessionState(Enum):
    """The state of a session: it waits to begin; it runs; it is over, and its analyst has not fetched the
    end."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


@dataclass(frozen=True)
class SessionStatus:
    """A session. name: '' while it waits to begin; analyst: '' where analysts have no keys; terms: their
    digest; done: finished rounds; since: when it was asked for; awaited: the parties that it waits for, and
    none of a waiting session if another one runs."""

    state: SessionState
    name: str
    analyst: str
    terms: str
    program: str
    protection: str
    done: int
    rounds: int
    since: int
    parties: tuple[str, ...]
    awaited: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """The status of an aggregator, as one of its callers may see it. version: of its software; since: when it
    was started; now: its clock; others: sessions that the caller may not see."""

    version: str
    since: int
    now: int
    members: tuple[Member, ...]
    sessions: tuple[SessionStatus, ...]
    others: int = 0


def encode_status(status: Status) -> bytes:
    """Bytes of a status."""
    members: Sequence[Any] = [pb.Member(**vars(member)) for member in status.members]
    sessions = [_session_to_pb(session) for session in status.sessions]
    out = pb.StatusReply(members=members, sessions=sessions, others=status.others)
    out.version, out.since, out.now = status.version, status.since, status.now
    return serialised(out)


def decode_status(data: bytes) -> Status:
    """The status in these bytes, or PeerError."""
    message = parsed(pb.StatusReply, data, MAX_FROM_AGGREGATOR)
    return Status(
        message.version,
        message.since,
        message.now,
        tuple(
            Member(member.role, member.name, member.since, member.seen, member.version)
            for member in bounded(message.members, MAX_MEMBERS, "members")
        ),
        tuple(map(_session_from_pb, bounded(message.sessions, MAX_SESSIONS, "sessions"))),
        message.others,
    )


def _session_to_pb(session: SessionStatus) -> Any:
    return pb.SessionStatus(**{**vars(session), "state": session.state.name})


def _session_from_pb(session: Any) -> SessionStatus:
    require(session.state in (state.value for state in SessionState), f"state {session.state}")
    return SessionStatus(
        SessionState(session.state),
        session.name,
        session.analyst,
        session.terms,
        session.program,
        session.protection,
        session.done,
        session.rounds,
        session.since,
        bounded(session.parties, MAX_PARTIES, "parties"),
        bounded(session.awaited, MAX_PARTIES, "parties"),
    )
