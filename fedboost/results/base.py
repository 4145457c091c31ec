"""Base classes of results: bounded numbers, and the session that produced a result.

A result is a pydantic model. `summary` is its JSON, as printed by `--json`; the JSON schema follows from the
fields. Results are received from an aggregator, so each is checked against the terms before it is shown.
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
"""Maps name -> number; None if there are too few rows to determine it."""
Traffic = Mapping[str, tuple[int, int]]
"""Maps party -> (bytes sent, bytes received)."""
Row = Mapping[str, float]
"""One round of the history: `round`, `seconds`, `bytes` (total of all parties, both directions) and metrics
by name."""


@dataclass(frozen=True)
class Ended:
    """The session that produced a result.

    Attributes:
        terms: terms of the session.
        signed_by: parties that signed what they received.
        traffic: maps party -> (bytes sent, bytes received).
        rounds: history of the training rounds.
        since_restart: True if the traffic before a restart of the aggregator is not included.
    """

    terms: Terms
    signed_by: Sequence[str] = ()
    traffic: Traffic = field(default_factory=dict)
    rounds: Sequence[Row] = ()
    since_restart: bool = False


class Part(BaseModel):
    """Base class of results and of their nested objects."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @property
    def summary(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as JSON."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Result(Part):
    """Base class of the results of sessions that do not train a model."""

    task: ClassVar[str]
    """Name of the task whose sessions have this result."""
    _session: Ended = PrivateAttr()

    @classmethod
    def read(cls, summary: Any, session: Ended) -> Self:
        """Parse a result that was received from an aggregator. session: the session that produced the result.
        Raises PeerError if the result is malformed or does not match the session's terms."""
        try:
            result = cls.model_validate(summary)
        except ValidationError:
            result = None
        is_another = session.terms.task.name != cls.task
        if result is None or is_another or not result.fits(session.terms):
            kind = cls.__name__.lower()
            article = "an" if kind[0] in "aeiou" else "a"
            raise PeerError(
                "result-invalid",
                f"the aggregator's result is not {article} {kind} that matches the session's terms",
            )
        result._session = session
        return result

    def fits(self, terms: Terms) -> bool:
        """Return whether the result has the columns, levels and parties in the terms. The base class always
        returns False; subclasses override this method."""
        return False

    @property
    def summary(self) -> dict[str, Any]:
        """The fields that the aggregator set, as JSON."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def session(self) -> Ended:
        """The session that produced the result."""
        return self._session

    @property
    def terms(self) -> Terms:
        """Terms of the session."""
        return self._session.terms

    @property
    def signed_by(self) -> Sequence[str]:
        """Parties that signed what they received. Their signatures do not cover the figures in the result."""
        return self._session.signed_by

    @property
    def traffic(self) -> Traffic:
        """Maps party -> (bytes sent, bytes received)."""
        return self._session.traffic
