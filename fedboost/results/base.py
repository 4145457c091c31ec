"""What results have in common: numbers within bounds, and the session that a result is of.

A result is one pydantic model. `summary` is its JSON, `--json` prints that, and the JSON schema follows from
the fields. A result comes from an aggregator, so it is checked against the terms before anybody reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, Strict, ValidationError

from fedboost.boosting.queries.base import MAX_ROWS
from fedboost.errors import PeerError
from fedboost.terms.terms import Terms

Count = Annotated[int, Strict(), Field(ge=0, le=MAX_ROWS)]
"""A number of rows."""
Number = Annotated[float, Strict(), Field(gt=-1e300, lt=1e300)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Numbers = dict[str, Number | None]
"""Numbers by name; None where too few rows decide one."""
Traffic = Mapping[str, tuple[int, int]]
"""Bytes sent and received, by party."""
Row = Mapping[str, float]
"""A round: `round`, metrics by name, `seconds`, and `bytes` of all parties, both ways."""


@dataclass(frozen=True)
class Ended:
    """The session that a result is of. signed_by: parties that signed what they were sent; rounds: of a
    training; since_restart: traffic is known only since the aggregator was restarted."""

    terms: Terms
    signed_by: Sequence[str] = ()
    traffic: Traffic = field(default_factory=dict)
    rounds: Sequence[Row] = ()
    since_restart: bool = False


class Part(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @property
    def summary(self) -> dict[str, Any]:
        """The JSON: every field but those that have their defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Result(Part):
    """A result of a session that trains no model."""

    task: ClassVar[str]
    """Name of the task whose sessions have this result."""
    _session: Ended = PrivateAttr()

    @classmethod
    def read(cls, summary: Any, session: Ended) -> Self:
        """The result of a session, from what its aggregator sent. Raises PeerError unless it is one under
        the terms of the session."""
        try:
            result = cls.model_validate(summary)
        except ValidationError:
            result = None
        is_another = session.terms.task.name != cls.task
        if result is None or is_another or not result.fits(session.terms):
            kind = cls.__name__.lower()
            article = "an" if kind[0] in "aeiou" else "a"
            raise PeerError(f"the aggregator ended the session without {article} {kind} under its terms")
        result._session = session
        return result

    def fits(self, terms: Terms) -> bool:
        """True if the result has the columns, levels and parties of the terms; False if it is never sent."""
        return False

    @property
    def summary(self) -> dict[str, Any]:
        """The result as JSON."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def session(self) -> Ended:
        """The session that the result is of."""
        return self._session

    @property
    def terms(self) -> Terms:
        """The terms of the session."""
        return self._session.terms

    @property
    def signed_by(self) -> Sequence[str]:
        """The parties that signed what they were sent; no signature covers the figures."""
        return self._session.signed_by

    @property
    def traffic(self) -> Traffic:
        """Party to (bytes sent, bytes received)."""
        return self._session.traffic
