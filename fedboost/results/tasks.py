"""Results of sessions that do not train a model: evaluation, description of rows, drift and tuning."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, Strict, ValidationError, field_validator

from fedboost.boosting.programs.rounding import rows_of_bin, unit_of
from fedboost.errors import PeerError
from fedboost.fixedpoint import Int64
from fedboost.gbdt.drift import by_chance, joined, runs, stability_index
from fedboost.gbdt.metrics import grows, own_name, time_of
from fedboost.gbdt.survival import CINDEX
from fedboost.results.base import Count, Ended, Number, Numbers, Part, Result, Share
from fedboost.terms import tasks
from fedboost.terms.hiding import BINS
from fedboost.terms.terms import Terms

# ---- The evaluation of a model on the rows of all parties ----------------------------------------------


Fewer = Count | None
"""A number of rows; None if it is too small to be reported."""


class Outcomes(Part):
    """Number of rows by label and prediction, for two classes."""

    tn: Fewer
    fp: Fewer
    fn: Fewer
    tp: Fewer


class Rates(Part):
    """Rates computed from the outcomes; None if there are too few rows to determine them."""

    positive_rate: Number | None
    selection_rate: Number | None
    true_positive_rate: Number | None
    false_positive_rate: Number | None
    precision: Number | None


class SetFigures(Part):
    """Metrics and other figures for a set of rows. resolution: for each metric, the maximum difference from
    its value without rounding; mean_prediction, rates: only for two classes; confusion: rows by outcome for
    two classes, or by class and predicted class for more."""

    rows: Annotated[Count, Field(gt=0)]
    metrics: Numbers
    resolution: Numbers
    mean_prediction: Number = 0.0
    confusion: Outcomes | list[list[Fewer]] | None = None
    rates: Rates | None = None

    @property
    def figures(self) -> Numbers:
        """Metrics and rates, by name."""
        return {**self.metrics, **(self.rates.model_dump() if self.rates else {})}

    def has_figures_of(self, terms: Terms, of_group: bool = True) -> bool:
        """Return whether the figures are exactly those that the terms require. of_group: False for all rows,
        whose figures include those of survival times."""
        due = {name for name in terms.metrics if not of_group or time_of(name) is None}
        if not due == self.metrics.keys() <= self.resolution.keys():
            return False
        if tasks.is_binary(terms):
            of_two = self.rates is not None and "mean_prediction" in self.model_fields_set
            return of_two and isinstance(self.confusion, Outcomes)
        return not {"mean_prediction", "rates"} & self.model_fields_set


class Split(Part):
    """Figures by level or by site. gaps: maps figure -> difference between its largest and smallest value, if
    the difference exceeds the rounding; left_out: names of sets with too few rows."""

    sets: dict[str, SetFigures]
    gaps: dict[str, Number]
    left_out: list[str]

    def fits(self, names: Sequence[str], terms: Terms) -> bool:
        """Return whether `names` has every set, and every set has the figures that the terms require."""
        known = {*self.sets, *self.left_out} <= {*names}
        whole = (
            each.has_figures_of(terms) and (each.confusion is None) != tasks.is_binary(terms)
            for each in self.sets.values()
        )
        return known and all(whole)


class Shares(Part):
    """Fractions of the evaluated rows: on which the model was trained, and for which this is unknown."""

    trained: Share
    unknown: Share


class Area(Part):
    """Area under the ROC curve, and the maximum difference from its value without rounding."""

    value: Number
    resolution: Number


class RocPoint(Part):
    """A point on the ROC curve."""

    threshold: Number
    false_positive_rate: Number
    true_positive_rate: Number


class ScoreBin(Part):
    """Rows with a predicted probability between `low` and `high`."""

    low: Number
    high: Number
    rows: Annotated[Count, Field(gt=0)]
    positives: Count
    mean_prediction: Number
    rate: Number


class SurvivalPoint(Part):
    """A point of a Kaplan-Meier curve. at_risk: number of rows with a later time; survival: share of rows
    without an event until then."""

    time: Number
    at_risk: Count
    survival: Share


class SurvivalCurve(Part):
    """Kaplan-Meier curve of all rows with a known time, or of a third by predicted risk, up to the time from
    which too few rows are at risk. rows, events: their numbers."""

    name: Literal["all", "low", "middle", "high"]
    rows: Count
    events: Count
    points: Annotated[list[SurvivalPoint], Field(min_length=1)]


class Evaluation(Result, SetFigures):
    """Metrics of a model over the rows of all parties.

    The figures are computed by the aggregator, and no signature covers them. Counts are rounded to multiples
    of `unit`; other figures are rounded so that `min_count` rows can change only the last digit. A figure is
    None if there are too few rows to determine it.

    Attributes:
        noise: if the terms add noise, its standard deviation in a count, in rows. Then counts are not
            rounded, and `resolution` has the standard errors of metrics and rates that come from the noise.
        of: the rows that were evaluated: `held-out`, `all` or `new`.
        caps: maps metric -> upper limit of a single row's loss.
        auc, roc, bins: only for two classes; missing if one of the labels has too few rows.
        survival: for survival times, the curves of all rows and of thirds by predicted risk.
        classes: class names, if there are more than two.
        subgroups, sites: figures by column and by site, if the terms request them.
        shares: fractions of the rows on which the model was trained, and for which this is unknown.
    """

    task: ClassVar[str] = "evaluate"
    min_count: Count
    unit: Count
    noise: Number | None = None
    objective: str = ""
    threshold: Number = 0.5
    caps: dict[str, Number]
    auc: Area | None = None
    roc: list[RocPoint] = Field(default=[])
    bins: list[ScoreBin] = Field(default=[])
    survival: list[SurvivalCurve] = Field(default=[])
    classes: list[str] = Field(default=[])
    subgroups: dict[str, Split] = Field(default={})
    sites: Split | None = None
    of: Literal["held-out", "all", "new"]
    shares: Shares

    def fits(self, terms: Terms) -> bool:
        """Return whether the result has the metrics, classes, levels and parties in the terms."""
        asked, size = terms.evaluation, tasks.class_count(terms)
        levels = {column: [each.level for each in sets] for column, sets in tasks.level_sets(terms).items()}
        sites, given = tasks.sites_of(terms), self.model_fields_set
        of_two = {"threshold", "auc", "roc", "bins"} & given
        return (
            self.has_figures_of(terms, of_group=False)
            and bool(self.survival) == (CINDEX in terms.metrics)
            and (self.noise is None) == (terms.noise is None)
            and self.min_count == asked.min_count
            and self.unit == (unit_of(asked.min_count) if self.noise is None else 1)
            and self.of == asked.evaluate_rows
            and self.caps.keys() <= {*terms.metrics}
            and len(of_two) == (4 if tasks.is_binary(terms) else 0)
            and (not of_two or self.threshold == asked.threshold)
            and self._has_classes(tasks.class_names(terms) if size else ())
            and self.subgroups.keys() == levels.keys()
            and all(self.subgroups[column].fits(names, terms) for column, names in levels.items())
            and (self.sites is not None) == bool(sites)
            and (self.sites is None or self.sites.fits(sites, terms))
        )

    def _has_classes(self, names: Sequence[str]) -> bool:
        matrix = self.confusion if isinstance(self.confusion, list) else []
        return self.classes == [*names] and [len(row) for row in matrix] == [len(names)] * len(names)

    @property
    def outcomes(self) -> Outcomes | None:
        """Number of rows by label and prediction; None unless there are two classes."""
        return self.confusion if isinstance(self.confusion, Outcomes) else None

    @property
    def splits(self) -> Mapping[str, Split]:
        """Maps subgroup column or `site` -> figures."""
        return {**self.subgroups, **({} if self.sites is None else {"site": self.sites})}

    @property
    def about(self) -> str:
        """The rows that were evaluated, in words, e.g. "held-out rows" or "80% training rows"."""
        if self.of != "all":
            return f"{self.of} rows"
        known = ((self.shares.trained, "training rows"), (self.shares.unknown, "of unknown use"))
        return ", ".join(f"{share:.0%} {words}" for share, words in known if share) or "no training rows"

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self.metrics.items())
        return f"Evaluation({self.rows} rows, {self.about}: {figures})"


# ---- The description of the rows of all parties: counts and quantiles ----------------------------------


Interval = list[Number]
"""Two numbers, [low, high]."""


class Column(Part):
    """Description of a column or of the label.

    Attributes:
        missing: number of rows without a value.
        undeclared: number of rows with a level that the terms do not declare.
        levels: maps level -> number of rows.
        quantiles: maps fraction -> interval that contains the quantile; None if too few rows lie beyond the
            quantile.
        constant: True if all values are equal.
        gap: interval between two groups of values, if they are so far apart that their units may differ.
        survival: curve of all rows, if the label is a survival time.
    """

    name: str
    kind: Literal["numeric", "categorical"] | None = None
    missing: Count | None = 0
    undeclared: Count | None = 0
    levels: dict[str, Count | None] = Field(default={})
    quantiles: dict[str, Interval | None] = Field(default={})
    constant: Annotated[bool, Strict()] = False
    gap: Interval | None = None
    survival: SurvivalCurve | None = None

    @field_validator("gap")
    @classmethod
    def _is_interval(cls, value: Interval | None) -> Interval | None:
        if value is not None and (len(value) != 2 or value[0] > value[1]):
            raise ValueError("not an interval")
        return value

    @field_validator("quantiles")
    @classmethod
    def _are_intervals(cls, value: dict[str, Interval | None]) -> dict[str, Interval | None]:
        for each in value.values():
            cls._is_interval(each)
        return value

    @property
    def is_numeric(self) -> bool:
        """True if the column has quantiles."""
        return bool(self.quantiles)

    def fits(self, name: str, levels: Sequence[str] | None, is_exact: bool) -> bool:
        """Return whether this describes the column with this name. levels: levels of a categorical column,
        None for a numeric one; is_exact: True if no noise was added to the counts."""
        if self.name != name or (is_exact and None in (self.missing, self.undeclared, *self.levels.values())):
            return False
        if levels is not None:
            return not self.quantiles and not self.constant and self.levels.keys() == {*levels}
        numbers = {"constant", "gap"} if is_exact else {"constant"}
        is_whole = self.quantiles.keys() == {f"{share:g}" for share in tasks.SHARES}
        return is_whole and not self.levels and numbers <= self.model_fields_set


class SiteRows(Part):
    """A site's own rows: their number, rounded down, and for each feature those without a declared value."""

    rows: Count
    missing: dict[str, Count]


class NamedLevels(Part):
    """Frequent levels of a column with their number of rows. others: number of rows with other levels."""

    levels: dict[str, Count]
    others: Count


class Description(Result):
    """Counts and quantiles over the rows of all parties.

    Counts are rounded to multiples of `unit`, the smallest of 1, 2, 5, 10, 20, ... that is at least
    `min_count`. If the terms add noise, `noise` is the standard deviation of the noise in a count, in rows.
    Counts are then not rounded, and a count that is too small compared with the noise is None. sites: the
    rows of each site; level_names: the levels of all sites, if the terms request them.
    """

    task: ClassVar[str] = "describe"
    rows: Count
    min_count: Count
    noise: Number | None = None
    columns: tuple[Column, ...] = Field(repr=False)
    label: Column = Field(repr=False)
    sites: dict[str, SiteRows] = Field(default={}, repr=False)
    level_names: dict[str, NamedLevels] = Field(default={}, repr=False)

    @property
    def unit(self) -> int:
        """Number of rows to whose multiples counts are rounded; 1 if noise was added."""
        return 1 if self.noise is not None else unit_of(self.min_count)

    def fits(self, terms: Terms) -> bool:
        """Return whether the result has the columns and levels in the terms."""
        schema, is_exact = terms.columns, terms.noise is None
        levels = {**dict.fromkeys(schema.numeric), **schema.categorical}
        classes = tasks.class_names(terms)
        told = classes or (is_exact and len(tasks.gridded(terms)) > len(schema.numeric))
        return (
            (self.noise is None) == is_exact
            and (not is_exact or (self.rows > 0 and self.min_count == terms.evaluation.min_count))
            and len(self.columns) == len(levels)
            and all(
                each.fits(name, own, is_exact)
                and each.kind == ("numeric" if own is None else "categorical")
                and {"missing", *(["undeclared"] if own is not None else [])} <= each.model_fields_set
                for each, (name, own) in zip(self.columns, levels.items(), strict=True)
            )
            and (self.label.survival is not None) == (is_exact and terms.objective.loss.risk_sign != 0)
            and self.label.fits(schema.label, None if told and not classes else classes, is_exact)
            and [*self.sites] == [*tasks.sites_of(terms)]
            and all(each.missing.keys() == levels.keys() for each in self.sites.values())
            and [*self.level_names] == [*terms.evaluation.level_names]
        )


# ---- Drift: rows compared with the training rows of a model, by bin of each column and of the score ----


Kind = Literal["numeric", "categorical", "score"]
Verdict = Literal["stable", "slight", "moved", "shifted", "unknown"]
LIMITS = (0.1, 0.25)
"""Population stability indices from which on a column is reported as moved and as shifted (Siddiqi, Credit
Risk Scorecards, Wiley 2006)."""
SCORE = "score"


# ---- Rows by bin, as a session counts them --------------------------------------------------------------


class Counted(Part):
    """Number of rows by bin of a numeric column (with `edges`) or a categorical one (with `levels`). groups:
    bins that are counted together because each has few rows; counts: number of rows per group."""

    name: str = ""
    edges: list[Number] | None = None
    levels: list[str] | None = None
    groups: list[list[Count]]
    counts: list[Count]

    def fits(self, name: str, values: Sequence[float] | Sequence[str], size: int, rows: int) -> bool:
        """Return whether these are the counts of the column with this name, and each row is counted exactly
        once. values: its edges or levels; size: number of its bins."""
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
        """Return the rows in each of these groups, int64 [groups]: unions of the column's own groups."""
        at = {place: number for number, group in enumerate(groups) for place in group}
        out = np.zeros(len(groups), np.int64)
        for group, rows in zip(self.groups, self.counts, strict=True):
            out[at[group[0]]] += rows
        return out

    def values(self, group: list[int]) -> dict[str, Any]:
        """Return the values in a group of bins: `levels`, or `low` and `high` (None for an open end).
        `missing` is True if the group contains missing values."""
        if self.edges is None:
            levels = [*(self.levels or ()), "missing"]
            return {"levels": [levels[place] for place in group]}
        ends, missing = [None, *self.edges, None], len(self.edges) + 1
        places = [place for place in group if place != missing]
        known = {"missing": True} if missing in group else {}
        return {"low": ends[min(places)], "high": ends[max(places) + 1], **known} if places else known


class BinCounts(Part):
    """Number of rows by bin of each feature and of the score."""

    rows: Count
    min_count: Count
    columns: list[Counted]
    score: Counted

    def fits(self, terms: Terms) -> bool:
        """Return whether the bins are the same as in the model in the terms."""
        bins, schema = tasks.bins_in(terms), terms.columns
        known: list[tuple[str, Any, int]] = [
            (name, edges.tolist(), edges.size + 2)
            for name, edges in zip(schema.ordered, bins.numeric, strict=True)
        ]
        known += [(name, levels, len(levels) + 1) for name, levels in schema.categorical.items()]
        score = tasks.class_names(terms) if bins.classes else bins.score.tolist()
        return (
            self.rows > 0
            and len(known) == len(self.columns)
            and all(each.fits(*own, self.rows) for each, own in zip(self.columns, known, strict=True))
            and self.score.fits("", score, bins.of_score, self.rows)
        )


# ---- The comparison of the bins, and its verdicts -------------------------------------------------------


class DriftBin(Part):
    """A bin of a column: its levels, or its values from `low` to `high` (None for an open end). missing: True
    if it includes rows without a value; reference, rows: number of rows at the time of training, and now."""

    low: Number | None = None
    high: Number | None = None
    levels: list[str] = Field(default=[])
    missing: bool = False
    reference: Count
    rows: Count


class DriftColumn(Part):
    """Drift of a column or of the score.

    Attributes:
        psi: population stability index; None if only one bin has enough rows.
        by_chance: without any drift, the index stays below this value in 999 of 1,000 samples of this size.
        verdict: "stable" below `by_chance`; otherwise "slight" below 0.1, "moved" below 0.25, else "shifted".
            "unknown" if there is no index.
    """

    name: str
    kind: Kind
    psi: Number | None
    by_chance: Number
    verdict: Verdict
    bins: list[DriftBin]

    @property
    def has_moved(self) -> bool:
        """True if the verdict is "moved" or "shifted"."""
        return self.verdict in ("moved", "shifted")


class Drift(Result):
    """Drift of all parties' rows since a model was trained. columns: each feature in order, then the score.
    Bins with fewer than `min_count` rows are merged. noise: standard deviation of the noise in a count."""

    task: ClassVar[str] = "drift"
    rows: Count
    reference_rows: Count
    min_count: Count
    noise: Number | None = None
    columns: tuple[DriftColumn, ...] = Field(repr=False)

    @classmethod
    def compared(cls, summary: Any, reference: BinCounts, session: Ended) -> Self:
        """Compare the row counts received from an aggregator with the model's reference. summary: the
        received counts; session: the session that produced them. Raises PeerError if they are not counts for
        the model's bins."""
        try:
            present = BinCounts.model_validate(summary.get("present") if type(summary) is dict else None)
        except ValidationError:
            present = None
        if session.terms.task.name != cls.task or present is None or not present.fits(session.terms):
            raise PeerError(
                "result-invalid", "the aggregator's result does not have row counts for the model's bins"
            )
        terms, known = session.terms, {"rows": present.rows, "reference_rows": reference.rows}
        least = max(terms.evaluation.min_count, present.min_count)
        noise = 0.0 if terms.noise is None else terms.plan.releases[BINS].sigma
        result = cls(**known, min_count=least, columns=tuple(_compared(reference, present, noise)))
        result = result.model_copy(update={"noise": noise}) if noise else result
        result._session = session
        return result

    @property
    def moved(self) -> tuple[str, ...]:
        """Names of the columns that moved or shifted, including `score`."""
        return tuple(each.name for each in self.columns if each.has_moved)


def _compared(before: BinCounts, after: BinCounts, noise: float) -> Iterator[DriftColumn]:
    """Yield the drift of each column, then of the score. noise: standard deviation of each count of today."""
    least = rows_of_bin(unit_of(max(before.min_count, after.min_count)))
    for then, now in zip((*before.columns, before.score), (*after.columns, after.score), strict=True):
        kind: Kind = "score" if then is before.score else "categorical" if then.edges is None else "numeric"
        yield DriftColumn(name=then.name or SCORE, kind=kind, **_index(then, now, least, noise))


def _index(then: Counted, now: Counted, least: int, noise: float) -> dict[str, Any]:
    """Return the stability index of a column, and its bins. Bins are merged until each group has at least
    `least` rows now, or would have so many without drift. Counts are rounded, so an index computed from
    smaller groups would mostly measure the rounding."""
    groups = joined(then.groups, now.groups)
    before, after = then.by_group(groups), now.by_group(groups)
    expected = before * (after.sum() / before.sum())
    wide = runs(np.maximum(after, expected).astype(np.int64), least, empty=False)
    groups = [[place for number in run for place in groups[number]] for run in wide]
    counts = then.by_group(groups), now.by_group(groups)
    # Noise makes counts vary as much as those of fewer rows do.
    today = zip(groups, counts[1].tolist(), strict=True)
    more = max(noise**2 * len(group) / max(rows, least) for group, rows in today)
    chance = by_chance(int(counts[0].sum()), max(int(counts[1].sum() / (1.0 + more)), 1), len(groups))
    psi = stability_index(*counts) if len(groups) > 1 else None
    verdict: Verdict = "unknown"
    if psi is not None:
        passed = sum(psi >= limit for limit in LIMITS)
        verdict = "stable" if psi < chance else ("slight", "moved", "shifted")[passed]
    pairs = zip(groups, counts[0].tolist(), counts[1].tolist(), strict=True)
    bins = [DriftBin(**then.values(group), reference=first, rows=second) for group, first, second in pairs]
    return {"psi": psi, "by_chance": chance, "verdict": verdict, "bins": bins}


# ---- Trials of settings side by side, and the best of them ---------------------------------------------


class Trial(Part):
    """A candidate that was tried: its settings, the number of rounds trained and the best round. An extra
    field, which has the name of the metric, contains its value in the best round."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Number | None]

    settings: dict[str, Annotated[int, Strict()] | Number]
    rounds: Count
    best_round: Count

    def value(self, metric: str) -> float | None:
        """Return the metric in the best round; None if it is not a finite number."""
        return (self.__pydantic_extra__ or {}).get(metric)


class Tuning(Result):
    """Result of a tuning session: the trial of each candidate. metric: name of the metric by which candidates
    are ranked, computed on the validation rows; best: index of the best trial among those that were trained
    longest."""

    task: ClassVar[str] = "tune"
    metric: str
    best: Count
    trials: tuple[Trial, ...] = Field(repr=False)

    def fits(self, terms: Terms) -> bool:
        """Return whether the trials match the candidates in the terms."""
        candidates, metric = terms.objective.candidates, own_name(terms.metrics[-1])
        if self.metric != metric:
            return False
        if not len(self.trials) == len(candidates) > self.best:
            return False
        best = self.trials[self.best]
        return (
            all(each.settings == dict(own) for each, own in zip(self.trials, candidates, strict=True))
            and all(each.best_round <= each.rounds <= terms.trees.rounds for each in self.trials)
            and all({*(each.model_extra or {})} == {metric} for each in self.trials)
            and best.best_round >= 1
            and best.value(metric) is not None
        )

    @property
    def ranked(self) -> list[int]:
        """Indices of the trials: first the best one, then the others by number of rounds trained and by
        metric."""
        sign = -1.0 if grows(self.metric) else 1.0
        return sorted(
            range(len(self.trials)),
            key=lambda n: (
                n != self.best,
                -self.trials[n].rounds,
                sign * (self.trials[n].value(self.metric) or 0.0),
            ),
        )
