"""The evaluation of a model on the rows of all parties."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedboost.boosting.programs.tasks import unit_of
from fedboost.results.base import Count, Number, Numbers, Part, Result, Share
from fedboost.terms.tasks import class_count, class_names, is_binary, level_sets, sites_of
from fedboost.terms.terms import Terms

Fewer = Count | None
"""A number of rows; None where it is too small."""


class Outcomes(Part):
    """Rows by label and prediction, of two classes."""

    tn: Fewer
    fp: Fewer
    fn: Fewer
    tp: Fewer


class Rates(Part):
    """Rates of the outcomes; None where too few rows decide one."""

    positive_rate: Number | None
    selection_rate: Number | None
    true_positive_rate: Number | None
    false_positive_rate: Number | None
    precision: Number | None


class SetFigures(Part):
    """Figures of a set of rows. resolution: how far each metric may be from that of the exact sums;
    mean_prediction, rates: of two classes; confusion: of two classes rows by outcome, of several by class and
    predicted class."""

    rows: Annotated[Count, Field(gt=0)]
    metrics: Numbers
    resolution: Numbers
    mean_prediction: Number = 0.0
    confusion: Outcomes | list[list[Fewer]] | None = None
    rates: Rates | None = None

    @property
    def figures(self) -> Numbers:
        """Metrics and rates by name."""
        return {**self.metrics, **(self.rates.model_dump() if self.rates else {})}

    def has_figures_of(self, terms: Terms) -> bool:
        """True if all figures of the terms are there, and no others."""
        if not {*terms.metrics} == self.metrics.keys() == self.resolution.keys():
            return False
        if is_binary(terms):
            of_two = self.rates is not None and "mean_prediction" in self.model_fields_set
            return of_two and isinstance(self.confusion, Outcomes)
        return not {"mean_prediction", "rates"} & self.model_fields_set


class Split(Part):
    """Figures by level or site. gaps: the largest less the smallest of each figure, where it is more than
    rounding; left_out: sets of too few rows."""

    sets: dict[str, SetFigures]
    gaps: dict[str, Number]
    left_out: list[str]

    def fits(self, names: Sequence[str], terms: Terms) -> bool:
        """True if the sets are of these names."""
        known = {*self.sets, *self.left_out} <= {*names}
        whole = (
            each.has_figures_of(terms) and (each.confusion is None) != is_binary(terms)
            for each in self.sets.values()
        )
        return known and all(whole)


class Shares(Part):
    """Shares of the rows: those that trees were grown on, and those of which that is not known."""

    trained: Share
    unknown: Share


class Area(Part):
    """The area under the ROC curve, and how far that of unrounded scores may be from it."""

    value: Number
    resolution: Number


class RocPoint(Part):
    """A point of the ROC curve."""

    threshold: Number
    false_positive_rate: Number
    true_positive_rate: Number


class ScoreBin(Part):
    """Rows of neighbouring predicted probabilities, from `low` to `high`."""

    low: Number
    high: Number
    rows: Annotated[Count, Field(gt=0)]
    positives: Count
    mean_prediction: Number
    rate: Number


class Evaluation(Result, SetFigures):
    """Metrics of a model over the rows of all parties.

    Figures are coarse, and None where too few rows decide them: counts are told to the nearest `unit`, and
    `min_count` rows move the last digit of the others. of: the rows that were measured (`held-out`, `all`,
    `new`); caps: by metric the most that the loss of a row counts; auc, roc, bins: of two classes, none where
    a label has too few rows; classes: of several; subgroups, sites: by column and by site, where the terms
    have them. The aggregator computes the figures, and no signature covers them.
    """

    task: ClassVar[str] = "evaluate"
    min_count: Count
    unit: Count
    objective: str = ""
    threshold: Number = 0.5
    caps: dict[str, Number]
    auc: Area | None = None
    roc: list[RocPoint] = Field(default=[])
    bins: list[ScoreBin] = Field(default=[])
    classes: list[str] = Field(default=[])
    subgroups: dict[str, Split] = Field(default={})
    sites: Split | None = None
    of: Literal["held-out", "all", "new"]
    shares: Shares

    def fits(self, terms: Terms) -> bool:
        """True if the result has the metrics, classes, levels and parties of the terms."""
        asked, size = terms.evaluation, class_count(terms)
        levels = {column: [each.level for each in sets] for column, sets in level_sets(terms).items()}
        sites, given = sites_of(terms), self.model_fields_set
        of_two = {"threshold", "auc", "roc", "bins"} & given
        return (
            self.has_figures_of(terms)
            and (self.min_count, self.unit) == (asked.min_count, unit_of(asked.min_count))
            and self.of == asked.evaluate_rows
            and self.caps.keys() <= {*terms.metrics}
            and len(of_two) == (4 if is_binary(terms) else 0)
            and (not of_two or self.threshold == asked.threshold)
            and self._has_classes(class_names(terms) if size else ())
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
        """Rows by label and prediction, of two classes."""
        return self.confusion if isinstance(self.confusion, Outcomes) else None

    @property
    def splits(self) -> Mapping[str, Split]:
        """The figures by column of subgroups, and by `site`."""
        return {**self.subgroups, **({} if self.sites is None else {"site": self.sites})}

    @property
    def about(self) -> str:
        """Which rows these are, such as "held-out rows" or "80% training rows"."""
        if self.of != "all":
            return f"{self.of} rows"
        known = ((self.shares.trained, "training rows"), (self.shares.unknown, "of unknown use"))
        return ", ".join(f"{share:.0%} {words}" for share, words in known if share) or "no training rows"

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self.metrics.items())
        return f"Evaluation({self.rows} rows, {self.about}: {figures})"
