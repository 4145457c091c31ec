"""Rows held against those that a model was trained on, as an analyst asks for it and gets it.

Promises: counts of fewer rows than `min_count` are not in it; columns stand in the order of the features.
Refuses: models without a reference (ConfigError); what is no such result (PeerError).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedboost.boosting.programs.tasks import rows_of_bin, unit_of
from fedboost.errors import ConfigError, PeerError
from fedboost.gbdt.drift import by_chance, joined, runs, stability_index
from fedboost.people.report.facts import ResultFacts, SessionFacts
from fedboost.people.report.results import drift_page
from fedboost.runtime.continuation import read_file, text_of
from fedboost.runtime.files import saved
from fedboost.runtime.model_file import Model
from fedboost.runtime.party_model import PartyModel
from fedboost.runtime.signed_model import SignedModel
from fedboost.runtime.summaries import is_counted
from fedboost.terms.session import TO_DRIFT
from fedboost.terms.tasks import terms_to_drift
from fedboost.terms.terms import Terms

STABLE, SLIGHT, MOVED, SHIFTED, UNKNOWN = "stable", "slight", "moved", "shifted", "unknown"
LIMITS = (0.1, 0.25)
"""Stability indices from which rows moved, and shifted (Siddiqi, Credit Risk Scorecards, Wiley 2006)."""
SCORE = "score"


@dataclass(frozen=True)
class Drift:
    """Where the rows of all parties lie, against those that a model was trained on.

    rows, reference_rows: their numbers; columns: for each feature in order and last the score `name`, `kind`
    (numeric, categorical or score), `psi` (population stability index, None where nothing but one bin has
    rows enough), `by_chance` (what draws of so many of the same rows stay below 999 times in 1,000),
    `verdict` (stable below `by_chance`, slight below 0.1, moved, shifted from 0.25 on), and `bins`: each with
    `edges` or `levels`, `reference` and `rows`. signed_by: parties that signed what they were asked;
    traffic: party to (bytes sent, bytes received).
    """

    terms: Terms = field(repr=False)
    rows: int
    reference_rows: int
    columns: tuple[Mapping[str, Any], ...] = field(repr=False)
    signed_by: tuple[str, ...] = field(repr=False)
    traffic: Mapping[str, tuple[int, int]] = field(repr=False)

    @classmethod
    def of(
        cls, model: SignedModel, reference: Mapping[str, Any], traffic: Mapping[str, tuple[int, int]]
    ) -> "Drift":
        """The result that a session ended with. reference: of the model. PeerError if it is none."""
        present: Any = model.summary.get("present")
        if model.terms.task != TO_DRIFT or not is_counted(present, model.terms):
            raise PeerError("the aggregator ended the session without counts of these bins")
        columns, signed_by = tuple(_columns(reference, present)), tuple(model.attestations)
        return cls(model.terms, present["rows"], reference["rows"], columns, signed_by, traffic)

    @property
    def moved(self) -> tuple[str, ...]:
        """The names of the columns that moved or shifted, and `score`."""
        return tuple(str(each["name"]) for each in self.columns if each["verdict"] in (MOVED, SHIFTED))

    @property
    def summary(self) -> dict[str, Any]:
        """The result as JSON."""
        head = {"rows": self.rows, "reference_rows": self.reference_rows}
        return {**head, "min_count": self.terms.evaluation.min_count, "columns": [*self.columns]}

    def report(self, path: Path | str | None = None) -> str:
        """The report of the result, a page of HTML, which is also written to `path` if one is given."""
        session = SessionFacts(self.traffic)
        return saved(drift_page(ResultFacts(self.summary, self.terms, self.signed_by, session)), path)


def _columns(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Each column, then the score."""
    least = rows_of_bin(unit_of(max(before["min_count"], after["min_count"])))
    for then, now in zip(before["columns"], after["columns"], strict=True):
        kind = "numeric" if "edges" in then else "categorical"
        yield {"name": str(then["name"]), "kind": kind, **_compared(then, now, least)}
    yield {"name": SCORE, "kind": SCORE, **_compared(before["score"], after["score"], least)}


def _compared(then: Mapping[str, Any], now: Mapping[str, Any], least: int) -> dict[str, Any]:
    """The stability index of a column, over groups of bins that have `least` rows, or should have them by the
    shares of then: counts are coarse, and an index of fewer would be that of their rounding."""
    groups = joined(then["groups"], now["groups"])
    before, after = (_by_group(each, groups) for each in (then, now))
    expected = before * (after.sum() / before.sum())
    wide = runs(np.maximum(after, expected).astype(np.int64), least, empty=False)
    groups = [[place for number in run for place in groups[number]] for run in wide]
    counts = [_by_group(each, groups) for each in (then, now)]
    chance = by_chance(int(counts[0].sum()), int(counts[1].sum()), len(groups))
    psi = stability_index(*counts) if len(groups) > 1 else None
    verdict = UNKNOWN
    if psi is not None:
        passed = sum(psi >= limit for limit in LIMITS)
        verdict = STABLE if psi < chance else (SLIGHT, MOVED, SHIFTED)[passed]
    names = [_name(then, group) for group in groups]
    pairs = zip(names, *(each.tolist() for each in counts), strict=True)
    bins = [{**name, "reference": first, "rows": second} for name, first, second in pairs]
    return {"psi": psi, "by_chance": chance, "verdict": verdict, "bins": bins}


def _by_group(counted: Mapping[str, Any], groups: list[list[int]]) -> Any:
    """The rows of each of these groups, each of which has whole groups of the column."""
    at = {place: number for number, group in enumerate(groups) for place in group}
    out = np.zeros(len(groups), np.int64)
    for group, rows in zip(counted["groups"], counted["counts"], strict=True):
        out[at[group[0]]] += int(rows)
    return out


def _name(column: Mapping[str, Any], group: list[int]) -> dict[str, Any]:
    """The values in a group: `levels`, or `low` and `high`, None where there is no end; and `missing`."""
    if "edges" not in column:
        levels = [*column["levels"], "missing"]
        return {"levels": [levels[place] for place in group]}
    ends, missing = [None, *column["edges"], None], len(column["edges"]) + 1
    places = [place for place in group if place != missing]
    known = {"missing": True} if missing in group else {}
    if not places:
        return known
    return {"low": ends[min(places)], "high": ends[max(places) + 1], **known}


def drift_terms(
    model: Model | Path | str, terms: Terms | None = None, min_count: int | None = None
) -> tuple[Terms, Mapping[str, Any]]:
    """The terms by which rows are held against the reference of a model, and that reference. model: or the
    path of its file; terms: those that say columns and parties, in place of those in the model."""
    if isinstance(model, PartyModel):
        raise ConfigError("a part of a model: put the parts together (fedboost assemble)")
    if not isinstance(model, Model):
        read_file(Path(model), str(model), TO_DRIFT)  # says what is wrong with other files
        model = Model.load(model)
    agreed = terms_to_drift(terms or model.terms, str(text_of(model, task=TO_DRIFT)), min_count)
    if not is_counted(model.summary["reference"], agreed):
        raise ConfigError("the model's reference is not of its columns, or was changed")
    return agreed, model.summary["reference"]
