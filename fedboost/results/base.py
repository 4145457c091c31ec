"""Base classes of results: bounded numbers, and the session that produced a result.

A result is a pydantic model. `summary` is its JSON, which `--json` prints; the JSON schema follows from the
fields. Results arrive from an aggregator, so each is checked against the terms before anyone reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, Strict, ValidationError

from fedboost.boosting.queries.base import MAX_ROWS
from fedboost.errors import PeerError
from fedboost.terms.terms import Terms

Count = Annotated[int, Strict(), Field(ge=0, le=MAX_ROWS)]
"""Number of rows."""
Number = Annotated[float, Strict(), Field(gt=-1e300, lt=1e300)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Numbers = dict[str, Number | None]
"""Numbers by name; None where too few rows determine a number."""
Traffic = Mapping[str, tuple[int, int]]
"""Maps party -> (bytes sent, bytes received)."""
Row = Mapping[str, float]
"""One round of the history: `round`, `seconds`, `bytes` of all parties in both directions, metrics by
name."""


@dataclass(frozen=True)
class Ended:
    """The session that produced a result. signed_by: parties that signed what they received; rounds: history
    of a training; since_restart: traffic covers only the time since the aggregator was restarted."""

    terms: Terms
    signed_by: Sequence[str] = ()
    traffic: Traffic = field(default_factory=dict)
    rounds: Sequence[Row] = ()
    since_restart: bool = False


class Part(BaseModel):
    """Base class of results and their parts."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @property
    def summary(self) -> dict[str, Any]:
        """JSON of every field that differs from its default."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Result(Part):
    """Result of a session that does not train a model."""

    task: ClassVar[str]
    """Name of the task whose sessions have this result."""
    _session: Ended = PrivateAttr()

    @classmethod
    def read(cls, summary: Any, session: Ended) -> Self:
        """Parse the summary that an aggregator sent. PeerError unless it is a result under the session's
        terms."""
        try:
            result = cls.model_validate(summary)
        except ValidationError:
            result = None
        is_another = session.terms.task.name != cls.task
        if result is None or is_another or not result.fits(session.terms):
            kind = cls.__name__.lower()
            article = "an" if kind[0] in "aeiou" else "a"
            raise PeerError(
                "result-invalid", f"the aggregator ended the session without {article} {kind} under its terms"
            )
        result._session = session
        return result

    def fits(self, terms: Terms) -> bool:
        """Return whether the result has the columns, levels and parties of the terms. The base class returns
        False: such a result is never sent."""
        return False

    @property
    def summary(self) -> dict[str, Any]:
        """JSON of the fields that the sender set."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def session(self) -> Ended:
        """The session that produced the result."""
        return self._session

    @property
    def terms(self) -> Terms:
        """The session's terms."""
        return self._session.terms

    @property
    def signed_by(self) -> Sequence[str]:
        """Parties that signed what they received; no signature covers the figures."""
        return self._session.signed_by

    @property
    def traffic(self) -> Traffic:
        """Maps party -> (bytes sent, bytes received)."""
        return self._session.traffic
