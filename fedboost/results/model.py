"""Results about models: verified signatures, reports, training results, cost estimates and comparisons."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, InstanceOf, model_serializer

from fedboost.fixedpoint import Float64
from fedboost.gbdt import metrics
from fedboost.results.base import Ended, Part, Row, Traffic
from fedboost.results.tasks import Evaluation
from fedboost.terms.terms import Terms

# ---- A model and its signatures ------------------------------------------------------------------------


class ModelSummary(Part, allow_inf_nan=True):  # a file from elsewhere may have any metrics
    """Summary of a trained model, for printing.

    Attributes:
        trained, kept: number of rounds trained, and number of rounds whose trees the model contains.
        last_row: the history row of the last kept round.
        signed_by: parties that signed the model.
        rosters: maps round -> parties included in the sums from then on, for rounds in which these parties
            changed.
        shares: maps party -> share of the total gain, if the parties keep parts of the model.
    """

    terms: Terms
    fingerprint: str
    trees: int
    trained: int
    kept: int
    last_row: Row
    signed_by: tuple[str, ...]
    rosters: Mapping[int, tuple[str, ...]]
    shares: Mapping[str, float] | None = None


class Verification(Part):
    """The result of verifying the signatures in a model file.

    Attributes:
        faults: maps each party that signed -> what is wrong with its signature, "" if the signature is valid.
        needed: minimum number of signatures under these terms.
        analyst, asked: the analyst who requested the session, and the time of the request.
        request_fault: what is wrong with the signature of the request, "" if the signature is valid.
    """

    file: str
    terms: Terms
    fingerprint: str
    trees: int
    faults: Mapping[str, str]
    needed: int
    analyst: str
    asked: str
    request_fault: str

    @property
    def signed(self) -> tuple[str, ...]:
        """Parties with a valid signature."""
        return tuple(party for party, fault in self.faults.items() if not fault)

    @property
    def holds(self) -> bool:
        """True if all signatures are valid, and the required number of parties, but at least one, have
        signed."""
        sound = not self.request_fault and len(self.signed) == len(self.faults)
        return sound and len(self.signed) >= max(self.needed, 1)

    @property
    def conclusion(self) -> str:
        """The outcome of the verification, as one sentence."""
        if not self.faults:
            return "no party signed this model: anyone could have made it"
        if wrong := [fault for fault in (*self.faults.values(), self.request_fault) if fault]:
            return wrong[0]
        parties = f"{len(self.signed)} of {len(self.terms.parties)} parties"
        if len(self.signed) < self.needed:
            return f"{parties} signed; {self.needed} are needed"
        return f"{parties} signed these trees, under these terms"

    @property
    def summary(self) -> dict[str, Any]:
        return {
            "model": self.file,
            "holds": self.holds,
            "conclusion": self.conclusion,
            "fingerprint": self.fingerprint,
            "terms": self.terms.digest,
            "protection": self.terms.hiding.protection,
            "parties": list(self.terms.parties),
            "signatures": {
                party: {"holds": not fault, **({"fault": fault} if fault else {})}
                for party, fault in self.faults.items()
            },
            "needed": self.needed,
            "analyst": self.analyst or None,
            "asked": self.asked or None,
        }


# ---- The report of a model ------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnTree:
    """A tree of the model, for its report. leaves: number of leaves; picture: SVG, '' if the tree is too
    large."""

    title: str
    leaves: int
    picture: str


@dataclass(frozen=True)
class Dependence:
    """Partial dependence on one feature. grid: numbers or categories; means: mean predictions, float64 [grid,
    outputs]."""

    feature: str
    is_categorical: bool
    grid: Sequence[Any]
    means: Float64


@dataclass(frozen=True)
class GivenRows:
    """The model's results on a table that the user supplied for the report. source: name of the table;
    dependence: partial dependence on the features with the highest gain."""

    source: str
    evaluation: Evaluation
    dependence: Sequence[Dependence]


@dataclass(frozen=True)
class ModelReport:
    """The contents of a model's report.

    Attributes:
        rounds: metrics of each round, as in the model file.
        importance: maps feature -> its value for each measure in IMPORTANCES, highest gain first.
        trees: the first trees.
        classes: class names, if the label has classes.
        made: time at which the session was requested (UTC), if known.
        training_rows: total number of training rows, if known.
        verification: None if the signatures were not verified.
        rows: None if the user supplied no table.
        session: None if only the model file is available.
    """

    model: ModelSummary
    rounds: Sequence[Row]
    importance: Mapping[str, Sequence[float]]
    trees: Sequence[DrawnTree]
    classes: Sequence[str] = ()
    made: str = ""
    training_rows: int | None = None
    verification: Verification | None = None
    rows: GivenRows | None = field(default=None, repr=False)
    session: Ended | None = field(default=None, repr=False)


# ---- The end of a training, and of a demo ---------------------------------------------------------------


ACCOUNTED = ("round", "seconds", "bytes")
"""Names of the values in a history row that are not metrics."""


def metrics_of(row: Row) -> dict[str, float]:
    """Return the metrics in a history row that cover the rows of all parties."""
    return metrics.of_all({name: value for name, value in row.items() if name not in ACCOUNTED})


class PartyTraffic(Part):
    """A party's traffic in bytes."""

    sent: int
    received: int


class TrainingEnd(Part):
    """Base class of the results of `fedboost train` and `fedboost demo`. model: path of the model file, if it
    was saved."""

    model_config = ConfigDict(allow_inf_nan=True)

    event: Literal["done"]
    model: str | None
    protection: str
    signed_by: tuple[str, ...]
    traffic: dict[str, PartyTraffic]
    outline: InstanceOf[ModelSummary] = Field(exclude=True, repr=False)

    @classmethod
    def of(cls, outline: ModelSummary, traffic: Traffic, file: str | None, **more: Any) -> Self:
        """Create the result from the summary of the trained model. file: path of the model file, if any;
        more: fields of the subclass."""
        return cls(
            event="done",
            model=file,
            protection=outline.terms.hiding.protection,
            signed_by=outline.signed_by,
            traffic={party: PartyTraffic(sent=sent, received=got) for party, (sent, got) in traffic.items()},
            outline=outline,
            **more,
        )


class Training(TrainingEnd):
    """The result of training. terms: digest of the terms; traffic_since_restart: True if the traffic before a
    restart of the aggregator is not included."""

    fingerprint: str
    terms: str
    metrics: dict[str, float]
    party_metrics: dict[str, dict[str, float]] = Field(default_factory=dict)
    traffic_since_restart: bool = False

    @classmethod
    def of(cls, outline: ModelSummary, traffic: Traffic, file: str | None, **more: Any) -> Self:
        """Create the result from the summary of the trained model. file: path of the model file, if any;
        more: the field `traffic_since_restart`."""
        own: dict[str, Any] = {"fingerprint": outline.fingerprint, "terms": outline.terms.digest}
        own |= {"metrics": metrics_of(outline.last_row), "party_metrics": metrics.by_party(outline.last_row)}
        return super().of(outline, traffic, file, **own, **more)


class Demo(TrainingEnd):
    """The result of a demo. equal: True if the federated model equals the pooled one; held_out: maps model ->
    metrics on the held-out rows, for each model that could be trained; log: path of a site's audit log,
    quoted for use in a shell."""

    equal: bool
    held_out: dict[str, dict[str, float]]
    log: str = Field(exclude=True)


class ColumnsDemo(Demo):
    """The result of a demo in which parties hold different columns. columns: maps party -> its features;
    rows: maps party -> its number of rows; parts: maps party -> path of its part of the model; shares: maps
    party -> share of the total gain."""

    columns: dict[str, tuple[str, ...]]
    rows: dict[str, int]
    rows_in_common: int
    rows_held_out: int
    parts: dict[str, str]
    shares: dict[str, float] | None


# ---- Models compared on held-out rows: each site's own, the federated and the pooled one ---------------


ALONE, FEDERATED, POOLED = "alone", "federated", "pooled"
Verdict = Literal["worth it", "not worth it", "cannot be told", "cannot train alone", "too few rows"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
MIN_ROWS = 10
"""Minimum number of distinct held-out rows for which a site gets a verdict."""


class Figure(Part):
    """Mean of a metric over splits, and an interval in which the mean would be expected with other choices of
    held-out rows. All three numbers are NaN (null in JSON) if the metric cannot be computed."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=True)

    value: float
    low: float
    high: float

    @model_serializer
    def _as_json(self) -> dict[str, float | None]:
        return {name: None if math.isnan(value) else value for name, value in self.__dict__.items()}


Figures = dict[str, Figure]
"""Maps metric -> its mean and interval."""


class SiteComparison(Part):
    """Comparison of models on the rows of one site.

    Attributes:
        held_out: number of rows held out in each split.
        different_held_out: number of distinct rows held out by at least one split.
        models: maps model -> its figures.
        better_by: difference by which the federated model is better than the site's own; negative if it is
            worse.
        cannot: why the site cannot train a model alone, "" if it can.
    """

    site: str
    rows: int
    held_out: int
    different_held_out: int
    models: dict[str, Figures]
    better_by: Figures
    cannot: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict according to the first metric."""
        if self.different_held_out < MIN_ROWS:
            return "too few rows"
        if self.cannot:
            return "cannot train alone"
        gain = next(iter(self.better_by.values()))
        return "worth it" if gain.low > 0 else "not worth it" if gain.high < 0 else "cannot be told"


class Comparison(Part):
    """Comparison of models at all sites, or of a label holder's models with and without other parties'
    columns.

    Attributes:
        together: mean of the comparisons at all sites that can train a model alone, weighted by their rows.
        metrics: names of the metrics; the first one decides.
        share: fraction of rows held out.
        equal: True if the federated model equalled the pooled one in every split.
        site_column: column that contains the names of the sites, if the column could also be a feature.
        tables: maps party -> number of rows in its table, if parties hold different columns.
        protection: protection in the terms, if it hides anything.
    """

    sites: tuple[SiteComparison, ...]
    together: SiteComparison
    metrics: tuple[str, ...]
    splits: int
    share: float
    equal: bool
    site_column: str | None = None
    tables: dict[str, int] = Field(default={})
    protection: str = ""

    @property
    def is_of_columns(self) -> bool:
        """True if the parties hold different columns."""
        return bool(self.tables)
