"""An aggregator's sessions: the current one, those that ended, and how the HTTP API represents them.

In a list, each session is sent as a `Session`, even if more is known about it; subclasses add fields. The
archive, the web pages and the HTTP API use the same objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, WithJsonSchema, model_validator

from fedboost.results.base import Part
from fedboost.terms.session import TASKS, task_of
from fedboost.wire.messages import Member, SessionState, SessionStatus, Status

RECENT = 10
"""Number of recent rounds whose median duration is used to estimate the remaining time."""

Time = Annotated[int, Field(description="seconds since 1970 (UTC); 0 means never")]
Digest = Annotated[str, Field(description="digest of the terms")]
_Task = Annotated[str, Field(pattern=f"^({'|'.join(TASKS)})$")]
State = Literal["waiting", "running", "done", "failed"]
_Metric = Annotated[int | float, WithJsonSchema({"type": "number"})]
_PAIR = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_Bytes = Annotated[tuple[int, int], WithJsonSchema(_PAIR)]
_STATES: dict[SessionState, State] = {
    SessionState.WAITING: "waiting",
    SessionState.RUNNING: "running",
    SessionState.FINISHED: "done",
}


class Error(Part):
    """Response to a refused request."""

    error: str


class Health(Part):
    """State of the aggregator's process."""

    status: str
    version: str
    since: Time


class Site(Part):
    """A party that is or was connected."""

    name: str
    connected: bool
    since: Time
    seen: Time
    version: str

    @classmethod
    def of(cls, member: Member) -> Self:
        """Create an instance from a member in the aggregator's status."""
        here, since, seen = bool(member.since), member.since, member.seen
        return cls(name=member.name, connected=here, since=since, seen=seen, version=member.version)


class Session(Part):
    """A session in a list. name: '' while the session waits to start; analyst: '' if analysts have no
    keys."""

    name: str
    state: State
    analyst: str
    terms: Digest
    program: str
    protection: str
    parties: tuple[str, ...]
    rounds_done: int

    @classmethod
    def of(cls, status: SessionStatus, /, **more: Any) -> Self:
        """Create an instance from a session in the aggregator's status. more: values of the additional fields
        of a subclass."""
        known = {name: getattr(status, name) for name in _SAME}
        return cls(state=_STATES[status.state], rounds_done=status.done, **known, **more)


_SAME = "name", "analyst", "terms", "program", "protection", "parties"


class SessionDetail(Session):
    """A session with its rounds. reason: why it failed, '' if it did not fail; model: True if it produced a
    model or a result."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=True)

    rounds: list[dict[str, _Metric]] = Field(repr=False)
    traffic: dict[str, _Bytes] = Field(repr=False, description="maps party to bytes sent and received")
    reason: str
    model: bool


class LiveSession(SessionDetail):
    """The session in progress. phase: what the session is doing; turn: number of the current turn, i.e.
    query; seconds: time since it started, or since the aggregator was restarted; slowest: the party for which
    the others waited longest, the number of turns in which it was the last to answer, and the seconds waited;
    None if there is none."""

    reason: str = ""
    model: bool = False
    status: SessionStatus
    task: _Task
    phase: str
    turn: int
    seconds: float
    slowest: tuple[str, int, float] | None = None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds for the remaining rounds, if they take as long as recent ones. None before the
        second round. If training stops early, it takes less time."""
        if len(self.rounds) < 2:
            return None
        recent = sorted(row["seconds"] for row in self.rounds[1:][-RECENT:])
        return recent[len(recent) // 2] * max(self.status.rounds - len(self.rounds), 0)


class Model(Part):
    """The model or result file of a session. model_bytes: size of the file; has_report: True if a report can
    be created from the file."""

    name: str
    ended: Time
    analyst: str
    terms: str
    model_bytes: int = Field(serialization_alias="bytes")
    has_report: bool = Field(serialization_alias="report")


class EndedSession(SessionDetail, Model):
    """A session that ended, as stored in the archive. seconds: its duration; model_bytes: 0 if there is no
    model or result; request: nonce of its signed request, '' if the request is not signed."""

    state: State = "done"
    rounds_done: int = 0
    model: bool = False
    task: _Task = "train"
    seconds: float
    request: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """Unique key of the session, because names can repeat."""
        return self.name, self.ended

    @model_validator(mode="before")
    @classmethod
    def _with_state(cls, values: Any) -> Any:
        """Add fields that older versions did not write, derived from the other fields."""
        if type(values) is not dict or type(values.get("rounds")) is not list:
            return values
        return {
            "task": task_of(values.get("program")).name,
            **values,
            "state": "failed" if values.get("reason") else "done",
            "rounds_done": len(values["rounds"]),
            "model": bool(values.get("model_bytes")),
        }


class Submitted(Part):
    """A session that was submitted. name: '' while it waits to start; missing: parties that are not
    connected."""

    terms: str
    state: str
    name: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class AggregatorState:
    """Snapshot of an aggregator. live: the session in progress, if any; ended: finished sessions, most recent
    first."""

    status: Status
    live: LiveSession | None
    ended: Sequence[EndedSession]

    @property
    def queue(self) -> list[SessionStatus]:
        return [session for session in self.status.sessions if session.state is SessionState.WAITING]

    @property
    def sessions(self) -> list[Session]:
        """All sessions. Ended sessions come last."""
        known = {ended.name for ended in self.ended}
        others = [Session.of(each) for each in self.status.sessions if each.name not in known]
        return [*others, *self.ended]
