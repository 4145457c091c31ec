"""Rows held against those that a model was trained on, by bin of each column and of the score."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, ValidationError

from fedboost.boosting.programs.tasks import rows_of_bin, unit_of
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.drift import by_chance, joined, runs, stability_index
from fedboost.results.base import Count, Ended, Number, Part, Result
from fedboost.terms.tasks import bins_in, class_names
from fedboost.terms.terms import Terms

Kind = Literal["numeric", "categorical", "score"]
Verdict = Literal["stable", "slight", "moved", "shifted", "unknown"]
LIMITS = (0.1, 0.25)
"""Stability indices from which rows moved, and shifted (Siddiqi, Credit Risk Scorecards, Wiley 2006)."""
SCORE = "score"


# ---- Rows by bin, as a session counts them --------------------------------------------------------------


class Counted(Part):
    """Rows by bin of a column of numbers (edges) or of categories (levels). groups: bins that are counted
    together, as few rows need; counts: rows of each group."""

    name: str = ""
    edges: list[Number] | None = None
    levels: list[str] | None = None
    groups: list[list[Count]]
    counts: list[Count]

    def fits(self, name: str, values: Sequence[float] | Sequence[str], size: int, rows: int) -> bool:
        """True for the column of this name, all rows of which are in groups of its bins. values: its edges
        or levels; size: number of its bins."""
        places = sorted(place for group in self.groups for place in group)
        return (
            self.name == name
            and [*(self.edges or self.levels or ())] == [*values]
            and (self.edges is None) != (self.levels is None)
            and places == [*range(size)]
            and all(self.groups)
            and len(self.counts) == len(self.groups)
            and sum(self.counts) == rows
        )

    def by_group(self, groups: list[list[int]]) -> Int64:
        """The rows of each of these groups, each of which has whole groups of the column."""
        at = {place: number for number, group in enumerate(groups) for place in group}
        out = np.zeros(len(groups), np.int64)
        for group, rows in zip(self.groups, self.counts, strict=True):
            out[at[group[0]]] += rows
        return out

    def values(self, group: list[int]) -> dict[str, Any]:
        """The values in a group: `levels`, or `low` and `high`, None where there is no end; and `missing`."""
        if self.edges is None:
            levels = [*(self.levels or ()), "missing"]
            return {"levels": [levels[place] for place in group]}
        ends, missing = [None, *self.edges, None], len(self.edges) + 1
        places = [place for place in group if place != missing]
        known = {"missing": True} if missing in group else {}
        return {"low": ends[min(places)], "high": ends[max(places) + 1], **known} if places else known


class BinCounts(Part):
    """Rows by bin of each feature and of the score."""

    rows: Count
    min_count: Count
    columns: list[Counted]
    score: Counted

    def fits(self, terms: Terms) -> bool:
        """True if the bins are those of the model in the terms."""
        bins, schema = bins_in(terms), terms.columns
        known: list[tuple[str, Any, int]] = [
            (name, edges.tolist(), edges.size + 2)
            for name, edges in zip(schema.ordered, bins.numeric, strict=True)
        ]
        known += [(name, levels, len(levels) + 1) for name, levels in schema.categorical.items()]
        score = class_names(terms) if bins.classes else bins.score.tolist()
        return (
            self.rows > 0
            and len(known) == len(self.columns)
            and all(each.fits(*own, self.rows) for each, own in zip(self.columns, known, strict=True))
            and self.score.fits("", score, bins.of_score, self.rows)
        )


# ---- What is said of them -------------------------------------------------------------------------------


class DriftBin(Part):
    """A bin: its levels, or its values from `low` to `high` (None: no end); missing: rows without a value are
    in it, too; reference, rows: of the training, and now."""

    low: Number | None = None
    high: Number | None = None
    levels: list[str] = Field(default=[])
    missing: bool = False
    reference: Count
    rows: Count


class DriftColumn(Part):
    """A column, or the score. psi: population stability index, None where only one bin has rows enough;
    by_chance: draws of so many of the same rows stay below it 999 times in 1,000; verdict: stable below
    `by_chance`, slight below 0.1, moved, shifted from 0.25 on."""

    name: str
    kind: Kind
    psi: Number | None
    by_chance: Number
    verdict: Verdict
    bins: list[DriftBin]

    @property
    def has_moved(self) -> bool:
        """True for a column that moved or shifted."""
        return self.verdict in ("moved", "shifted")


class Drift(Result):
    """Where the rows of all parties lie, against those that a model was trained on.

    columns: of each feature in order, and last the score. Bins of fewer than `min_count` rows are merged.
    """

    task: ClassVar[str] = "drift"
    rows: Count
    reference_rows: Count
    min_count: Count
    columns: tuple[DriftColumn, ...] = Field(repr=False)

    @classmethod
    def compared(cls, summary: Any, reference: BinCounts, session: Ended) -> Self:
        """The result of a session, from what its aggregator sent. reference: of the model. Raises PeerError
        unless it has counts of the model's bins."""
        try:
            present = BinCounts.model_validate(summary.get("present") if type(summary) is dict else None)
        except ValidationError:
            present = None
        if session.terms.task.name != cls.task or present is None or not present.fits(session.terms):
            raise PeerError("the aggregator ended the session without counts of these bins")
        known = {"rows": present.rows, "reference_rows": reference.rows}
        columns = tuple(_compared(reference, present))
        result = cls(**known, min_count=session.terms.evaluation.min_count, columns=columns)
        result._session = session
        return result

    @property
    def moved(self) -> tuple[str, ...]:
        """The names of the columns that moved or shifted, and `score`."""
        return tuple(each.name for each in self.columns if each.has_moved)


def _compared(before: BinCounts, after: BinCounts) -> Iterator[DriftColumn]:
    """Each column, then the score."""
    least = rows_of_bin(unit_of(max(before.min_count, after.min_count)))
    for then, now in zip((*before.columns, before.score), (*after.columns, after.score), strict=True):
        kind: Kind = "score" if then is before.score else "categorical" if then.edges is None else "numeric"
        yield DriftColumn(name=then.name or SCORE, kind=kind, **_index(then, now, least))


def _index(then: Counted, now: Counted, least: int) -> dict[str, Any]:
    """The stability index of a column, over groups of bins that have `least` rows, or should have them by the
    shares of then: counts are coarse, and an index of fewer would be that of their rounding."""
    groups = joined(then.groups, now.groups)
    before, after = then.by_group(groups), now.by_group(groups)
    expected = before * (after.sum() / before.sum())
    wide = runs(np.maximum(after, expected).astype(np.int64), least, empty=False)
    groups = [[place for number in run for place in groups[number]] for run in wide]
    counts = then.by_group(groups), now.by_group(groups)
    chance = by_chance(int(counts[0].sum()), int(counts[1].sum()), len(groups))
    psi = stability_index(*counts) if len(groups) > 1 else None
    verdict: Verdict = "unknown"
    if psi is not None:
        passed = sum(psi >= limit for limit in LIMITS)
        verdict = "stable" if psi < chance else ("slight", "moved", "shifted")[passed]
    pairs = zip(groups, counts[0].tolist(), counts[1].tolist(), strict=True)
    bins = [DriftBin(**then.values(group), reference=first, rows=second) for group, first, second in pairs]
    return {"psi": psi, "by_chance": chance, "verdict": verdict, "bins": bins}
