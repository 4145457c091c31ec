"""The evaluation of a model on all parties' rows, as an analyst asks for it and gets it.

Promises: counts of fewer rows than `min_count` are None.
Refuses: files that are no model, and models without terms (ConfigError); what is no evaluation (PeerError).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedboost.errors import ConfigError, PeerError
from fedboost.people.report.facts import ResultFacts, SessionFacts
from fedboost.people.report.results import evaluation_page
from fedboost.people.results import rows_in_words
from fedboost.runtime.continuation import read_file, text_of
from fedboost.runtime.files import saved
from fedboost.runtime.model_file import Model
from fedboost.runtime.party_model import PartyModel
from fedboost.runtime.signed_model import SignedModel
from fedboost.runtime.summaries import is_evaluation
from fedboost.terms.session import TO_EVALUATE
from fedboost.terms.tasks import terms_to_evaluate
from fedboost.terms.terms import Terms


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics of a model over the rows of all parties.

    rows: how many; about: which they are; metrics: name to value; summary: all there is, as JSON: for two
    classes also `auc`, `confusion`, `rates`, `roc` and `bins`, for several `confusion`, and `subgroups` and
    `sites` where they were asked for (docs/lifecycle-evaluate.md). Figures are coarse, and None where there
    are too few rows. signed_by: parties that signed what they were asked; the aggregator computes the
    figures, and no signature covers them; traffic: party to (bytes sent, bytes received).
    """

    terms: Terms = field(repr=False)
    rows: int
    min_count: int
    metrics: Mapping[str, float | None]
    summary: Mapping[str, Any] = field(repr=False)
    signed_by: tuple[str, ...] = field(repr=False)
    traffic: Mapping[str, tuple[int, int]] = field(repr=False)

    @classmethod
    def of(cls, model: SignedModel, traffic: Mapping[str, tuple[int, int]]) -> "Evaluation":
        """The evaluation that a session ended with. PeerError if it is none."""
        summary = model.summary
        if not is_evaluation(summary, model.terms):
            raise PeerError("the aggregator ended the session without an evaluation under these terms")
        known: dict[str, Any] = {key: summary[key] for key in ("rows", "min_count", "metrics")}
        signed_by = tuple(model.attestations)
        return cls(model.terms, **known, summary=summary, signed_by=signed_by, traffic=traffic)

    @property
    def subgroups(self) -> Mapping[str, Any]:
        """For each column of subgroups `sets` (level to its rows, metrics and rates), `gaps`, `left_out`."""
        found: Mapping[str, Any] = self.summary.get("subgroups", {})
        return found

    @property
    def sites(self) -> Mapping[str, Any]:
        """The same by site: `sets`, `gaps`, `left_out`; empty where no site's own was asked for."""
        found: Mapping[str, Any] = self.summary.get("sites", {})
        return found

    @property
    def about(self) -> str:
        """Which rows these are, such as "held-out rows" or "80% training rows"."""
        return rows_in_words(self.summary)

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self.metrics.items())
        return f"Evaluation({self.rows} rows, {self.about}: {figures})"

    def report(self, path: Path | str | None = None) -> str:
        """The report of the evaluation, a page of HTML, which is also written to `path` if one is given."""
        session = SessionFacts(self.traffic)
        return saved(evaluation_page(ResultFacts(self.summary, self.terms, self.signed_by, session)), path)


def evaluation_terms(
    model: Model | Path | str,
    terms: Terms | None = None,
    by: Iterable[str] = (),
    by_site: bool = False,
    threshold: float | None = None,
    min_count: int | None = None,
    rows: str | None = None,
) -> Terms:
    """The terms of an evaluation. model: or the path of its file, of fedboost or XGBoost; terms: those that
    say columns and parties, in place of those in the model; the others in place of those of the terms."""
    if isinstance(model, PartyModel):
        raise ConfigError("a part of a model: put the parts together (fedboost assemble)")
    own: Terms | None
    if isinstance(model, Model):
        text, own = str(text_of(model, task=TO_EVALUATE)), model.terms
    else:
        text, own = read_file(Path(model), str(model), TO_EVALUATE)
        if own is None and terms is None:
            raise ConfigError(
                f"{model}: an XGBoost model without fedboost's terms: give terms with its columns (--terms)"
            )
    given = terms or own
    assert given is not None
    return terms_to_evaluate(given, text, by, by_site, threshold, min_count, rows)
