"""The description of all parties' rows, as an analyst gets it.

Promises: nothing but what the session ended with.
Refuses: models, which are no description (PeerError).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedboost.errors import PeerError
from fedboost.people.report.facts import ResultFacts, SessionFacts
from fedboost.people.report.results import description_page
from fedboost.people.results import advice
from fedboost.runtime.files import saved
from fedboost.runtime.signed_model import SignedModel
from fedboost.runtime.summaries import is_description
from fedboost.terms.terms import Terms


@dataclass(frozen=True)
class Description:
    """Counts and quantiles over the rows of all parties.

    rows: their number; columns: for each feature in order `name`, `kind` and `missing`, for a numeric one
    `quantiles` (share to the interval [low, high] that it lies in), `constant` and `gap`, for a categorical
    one `levels` (level to rows) and `undeclared`; label: `name`, and `levels` or `quantiles`. A count is
    to the nearest unit, the smallest of 1, 2, 5, 10, 20, ... that is not less than `min_count`. signed_by:
    parties that signed what they were asked; traffic: party to (bytes sent, bytes received); noise: the
    standard deviation of the noise in a count, in rows, where the terms have noise: then counts are not
    rounded, and None stands for what is lost in it.
    """

    terms: Terms = field(repr=False)
    rows: int
    min_count: int
    columns: tuple[Mapping[str, Any], ...] = field(repr=False)
    label: Mapping[str, Any] = field(repr=False)
    signed_by: tuple[str, ...] = field(repr=False)
    traffic: Mapping[str, tuple[int, int]] = field(repr=False)
    noise: float | None = None

    @classmethod
    def of(cls, model: SignedModel, traffic: Mapping[str, tuple[int, int]]) -> "Description":
        """The description that a session ended with. PeerError if it is none."""
        summary = model.summary
        if not is_description(summary, model.terms):
            raise PeerError("the aggregator ended the session without a description of these columns")
        rows, floor = summary["rows"], summary["min_count"]
        columns, label = tuple(summary["columns"]), summary["label"]
        known = columns, label, tuple(model.attestations), traffic
        return cls(model.terms, rows, floor, *known, summary.get("noise"))

    @property
    def advice(self) -> tuple[str, ...]:
        """What to change in the terms or the tables, a sentence each."""
        return tuple(advice(self.summary))

    @property
    def summary(self) -> dict[str, Any]:
        """The description as JSON."""
        head: dict[str, Any] = {"rows": self.rows, "min_count": self.min_count}
        head |= {} if self.noise is None else {"noise": self.noise}
        return {**head, "columns": [*self.columns], "label": self.label}

    def report(self, path: Path | str | None = None) -> str:
        """The report of the description, a page of HTML, which is also written to `path` if one is given."""
        session = SessionFacts(self.traffic)
        return saved(description_page(ResultFacts(self.summary, self.terms, self.signed_by, session)), path)
