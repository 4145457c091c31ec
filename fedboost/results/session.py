"""An aggregator's sessions: the current one, those that ended, and their form in the HTTP API.

The types extend each other: a list of sessions is sent as `Session`, even if more is known of each. So one
object serves as the archive's record, as the content of pages and, with its schema, as the API's answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, WithJsonSchema, model_validator

from fedboost.results.base import Part
from fedboost.terms.session import TASKS, task_of
from fedboost.wire.messages import Member, SessionState, SessionStatus, Status

RECENT = 10
"""Number of recent rounds whose median duration estimates the remaining time."""

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
    """The answer to a refused request."""

    error: str


class Health(Part):
    """State of the aggregator's process."""

    status: str
    version: str
    since: Time


class Site(Part):
    """A party, connected or not."""

    name: str
    connected: bool
    since: Time
    seen: Time
    version: str

    @classmethod
    def of(cls, member: Member) -> Self:
        """Convert a member of the status."""
        here, since, seen = bool(member.since), member.since, member.seen
        return cls(name=member.name, connected=here, since=since, seen=seen, version=member.version)


class Session(Part):
    """A session in a list. name: '' while it waits to begin; analyst: '' if analysts have no keys."""

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
        """Convert a session of the status. more: fields of a subclass."""
        known = {name: getattr(status, name) for name in _SAME}
        return cls(state=_STATES[status.state], rounds_done=status.done, **known, **more)


_SAME = "name", "analyst", "terms", "program", "protection", "parties"


class SessionDetail(Session):
    """A session with its rounds. reason: of its failure, '' if it did not fail; model: it left a model or a
    result."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=True)

    rounds: list[dict[str, _Metric]] = Field(repr=False)
    traffic: dict[str, _Bytes] = Field(repr=False, description="maps party to bytes sent and received")
    reason: str
    model: bool


class LiveSession(SessionDetail):
    """The current session. phase: what the session is doing; turn: current turn of the protocol; seconds:
    since it began, or since the aggregator was restarted; slowest: party that the others waited for most,
    turns in which it was last, and seconds waited; None if the others waited for no party."""

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
        """Estimated seconds for the remaining rounds, if they take as long as recent ones; None before the
        second round. A training that stops early takes less."""
        if len(self.rounds) < 2:
            return None
        recent = sorted(row["seconds"] for row in self.rounds[1:][-RECENT:])
        return recent[len(recent) // 2] * max(self.status.rounds - len(self.rounds), 0)


class Model(Part):
    """A model or result file of a session. bytes: its size; report: a report of it can be made."""

    name: str
    ended: Time
    analyst: str
    terms: str
    model_bytes: int = Field(serialization_alias="bytes")
    has_report: bool = Field(serialization_alias="report")


class EndedSession(SessionDetail, Model):
    """A session that ended, as the archive keeps it. seconds: its duration; model_bytes: 0 without a model or
    result; request: nonce of its signed request, '' without keys."""

    state: State = "done"
    rounds_done: int = 0
    model: bool = False
    task: _Task = "train"
    seconds: float
    request: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """Unique key of the session: names can repeat."""
        return self.name, self.ended

    @model_validator(mode="before")
    @classmethod
    def _with_state(cls, values: Any) -> Any:
        """Add fields that follow from the record: older versions did not write them."""
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
    """A submitted session. name: '' while it waits; missing: parties that are not connected."""

    terms: str
    state: str
    name: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class AggregatorState:
    """The current state of an aggregator. ended: sessions that ended, the latest first."""

    status: Status
    live: LiveSession | None
    ended: Sequence[EndedSession]

    @property
    def queue(self) -> list[SessionStatus]:
        return [session for session in self.status.sessions if session.state is SessionState.WAITING]

    @property
    def sessions(self) -> list[Session]:
        """All sessions; those that ended come last."""
        known = {ended.name for ended in self.ended}
        others = [Session.of(each) for each in self.status.sessions if each.name not in known]
        return [*others, *self.ended]
