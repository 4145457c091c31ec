"""A model: its signatures and report, its training, what one would take, and comparisons of models."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, InstanceOf, model_serializer

from fedboost.fixedpoint import Float64
from fedboost.gbdt import metrics
from fedboost.results.base import Ended, Part, Row, Traffic
from fedboost.results.tasks import Evaluation
from fedboost.terms.terms import Terms

# ---- A model, its signatures, and what a report says of it ---------------------------------------------


class ModelSummary(Part, allow_inf_nan=True):  # a file from elsewhere may have any metrics
    """A trained model. signed_by: parties that signed it; rosters: by the first round of each, where it
    changed; trained, kept: rounds, and those whose trees the model has; last_row: the history's row of the
    last kept round; shares: party to its share of the gains, where parties keep parts of the model."""

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
    """The signatures of a model file. faults: by party that signed what is wrong with its signature, nothing
    if it holds; needed: signatures that a model under these terms has at least; analyst, asked: who requested
    the session, and when; request_fault: what is wrong with the request, nothing if it holds."""

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
        """The parties whose signatures hold."""
        return tuple(party for party, fault in self.faults.items() if not fault)

    @property
    def holds(self) -> bool:
        """True if there are signatures, enough of them, and nothing is wrong with any."""
        sound = not self.request_fault and len(self.signed) == len(self.faults)
        return sound and len(self.signed) >= max(self.needed, 1)

    @property
    def conclusion(self) -> str:
        """The outcome in one sentence."""
        if not self.faults:
            return "nobody signed this model: anybody may have made it"
        if wrong := [fault for fault in (*self.faults.values(), self.request_fault) if fault]:
            return wrong[0]
        parties = f"{len(self.signed)} of {len(self.terms.parties)} parties"
        if len(self.signed) < self.needed:
            return f"{parties} signed; {self.needed} are needed"
        return f"{parties} signed these trees, under these terms"

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome as JSON."""
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


# ---- What a report shows of a model ---------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnTree:
    """A tree of the model. title: which one it is; leaves: how many it has; picture: SVG for a page, ''
    where the tree is too large for one."""

    title: str
    leaves: int
    picture: str


@dataclass(frozen=True)
class Dependence:
    """Partial dependence on one feature. grid: numbers, or categories; means: float64 [grid, outputs]."""

    feature: str
    is_categorical: bool
    grid: Sequence[Any]
    means: Float64


@dataclass(frozen=True)
class GivenRows:
    """The model on rows that were given for a report. source: the name of their table; dependence: on the
    features of the highest gains."""

    source: str
    evaluation: Evaluation
    dependence: Sequence[Dependence]


@dataclass(frozen=True)
class ModelReport:
    """A model, and what a report says of it. rounds: the metrics of each round, as in the model file;
    importance: feature to its IMPORTANCES, the highest gain first; trees: the first ones; classes: of a label
    of classes; made: when the session was requested, UTC, if that is known; training_rows: of all parties, if
    that is known; verification: None where signatures could not be checked; rows: None where no table was
    given; session: None where the model file is all there is."""

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


# ---- What a training would take, and the end of a training and of a demo -------------------------------


ACCOUNTED = ("round", "seconds", "bytes")
"""Values of a row of the history that are not metrics."""


def metrics_of(row: Row) -> dict[str, float]:
    """Return the metrics of a row of the history, over the rows of all parties."""
    return metrics.of_all({name: value for name, value in row.items() if name not in ACCOUNTED})


class Moved(Part):
    """Bytes of a party."""

    sent: int
    received: int


class Ending(Part):
    """The end of a training. model: the file, if it was saved."""

    model_config = ConfigDict(allow_inf_nan=True)

    event: Literal["done"]
    model: str | None
    protection: str
    signed_by: tuple[str, ...]
    traffic: dict[str, Moved]
    outline: InstanceOf[ModelSummary] = Field(exclude=True, repr=False)

    @classmethod
    def of(cls, outline: ModelSummary, traffic: Traffic, file: str | None, **more: Any) -> Self:
        """The end of the training of this model. more: the fields of the class itself."""
        return cls(
            event="done",
            model=file,
            protection=outline.terms.hiding.protection,
            signed_by=outline.signed_by,
            traffic={party: Moved(sent=sent, received=got) for party, (sent, got) in traffic.items()},
            outline=outline,
            **more,
        )


class Training(Ending):
    """The end of a training. terms: the digest; traffic_since_restart: traffic is known only since the
    aggregator was restarted."""

    fingerprint: str
    terms: str
    metrics: dict[str, float]
    party_metrics: dict[str, dict[str, float]] = Field(default_factory=dict)
    traffic_since_restart: bool = False

    @classmethod
    def of(cls, outline: ModelSummary, traffic: Traffic, file: str | None, **more: Any) -> Self:
        """The end of the training of this model. more: the last field."""
        own: dict[str, Any] = {"fingerprint": outline.fingerprint, "terms": outline.terms.digest}
        own |= {"metrics": metrics_of(outline.last_row), "party_metrics": metrics.by_party(outline.last_row)}
        return super().of(outline, traffic, file, **own, **more)


class Demo(Ending):
    """The end of a demo. held_out: metrics on the held-out rows by model, none where it cannot train; equal:
    the federated model is the pooled one; log: the audit log of a site, quoted for a shell."""

    equal: bool
    held_out: dict[str, dict[str, float]]
    log: str = Field(exclude=True)


class ColumnsDemo(Demo):
    """The end of a demo of parties with different columns. columns, rows: their features, and how many rows
    each has; parts: the files of the parts of the model, by party."""

    columns: dict[str, tuple[str, ...]]
    rows: dict[str, int]
    rows_in_common: int
    rows_held_out: int
    parts: dict[str, str]
    shares: dict[str, float] | None


# ---- Estimates: seconds, bytes and memory ---------------------------------------------------------------


class Costs(Part):
    """Under one protection: seconds of a round and of the training with its start; round trips of a round;
    rows of all parties, or that they have in common. A round's figures are the mean, with what comes before
    the first."""

    protection: str
    seconds_a_round: float
    seconds: float
    round_trips: float
    rows: int


class Estimate(Costs):
    """With all processes on this machine: megabytes a party sends in a round; seconds of a round where each
    process has a machine of its own, without the network."""

    megabytes: float
    seconds_apart: float
    parties: int


class Layout(Costs):
    """In one layout over links, without a protection where rows are shipped: megabytes a party sends in all;
    no bandwidth where any number of bytes pass at once."""

    layout: str
    megabytes: float
    parties: int
    rtt_ms: float
    bandwidth_mbit: float | None = None


class Workers(Part):
    """For a site whose rows are on workers of one thread each: how many; rows of one; bytes of memory that it
    needs while it loads them, and while trees grow; bytes a round between all workers and the site's own
    process, and seconds until that has its answers."""

    event: Literal["workers"]
    workers: int
    rows: int
    loading_bytes: int
    growing_bytes: int
    bytes_a_round: float
    seconds_a_round: float


class PartyCosts(Part):
    """Megabytes that a party sends and receives in a round, and once, to match rows; megabytes of memory."""

    sent: float
    received: float
    sent_to_match: float
    received_to_match: float
    memory: float


class ColumnsEstimate(Costs):
    """Where parties hold different columns, with all processes on this machine, one thread each: seconds of
    matching rows before the training; seconds of a round where each process has a machine of its own, without
    the network; of a round, the seconds of what encryption adds; each party."""

    seconds_to_match: float
    seconds_apart: float
    stages: dict[str, float]
    by_party: dict[str, PartyCosts]


class Estimates(Part):
    """The estimates of a training. protection: of its terms; missing: protections without an estimate, and
    the reason of each; matches: rows are matched by their ids; layouts: over a link; no_votes: why there is
    no layout with votes."""

    protection: str
    rounds: int
    missing: dict[str, str]
    by_rows: tuple[Estimate, ...] = ()
    by_columns: tuple[ColumnsEstimate, ...] = ()
    matches: bool = False
    layouts: tuple[Layout, ...] = ()
    no_votes: str = ""
    workers: Workers | None = None

    @property
    def lines(self) -> Iterator[dict[str, Any]]:
        """The JSON of each."""
        workers = () if self.workers is None else (self.workers,)
        every = (*self.by_rows, *self.by_columns, *self.layouts, *workers)
        yield from (each.summary for each in every)


# ---- Models compared on held-out rows: each site's alone, the federated and the pooled one -------------


ALONE, FEDERATED, POOLED = "alone", "federated", "pooled"
Verdict = Literal["worth it", "not worth it", "cannot be told", "cannot train alone", "too few rows"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
MIN_ROWS = 10
"""Fewer different rows than this decide nothing about a site."""


class Figure(Part):
    """A mean over splits, and the interval it lies in with the rows that might have been held out; NaN where
    there is none, which is null in JSON."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=True)

    value: float
    low: float
    high: float

    @model_serializer
    def _as_json(self) -> dict[str, float | None]:
        return {name: None if math.isnan(value) else value for name, value in self.__dict__.items()}


Figures = dict[str, Figure]
"""Figures by metric."""


class SiteComparison(Part):
    """The models compared on the rows of one site. held_out: rows in each split; different_held_out: those
    that were held out in any; models: figures by model; better_by: how much better the federated model is
    than the site's own, below 0 where it is worse; cannot: why the site cannot train alone."""

    site: str
    rows: int
    held_out: int
    different_held_out: int
    models: dict[str, Figures]
    better_by: Figures
    cannot: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict by the first metric."""
        if self.different_held_out < MIN_ROWS:
            return "too few rows"
        if self.cannot:
            return "cannot train alone"
        gain = next(iter(self.better_by.values()))
        return "worth it" if gain.low > 0 else "not worth it" if gain.high < 0 else "cannot be told"


class Comparison(Part):
    """A comparison of all sites, or of one label holder with and without the columns of others.

    together: all sites that can train alone as one, each counted by its rows; metrics: the deciding one
    first; share: of the rows that are held out; equal: the federated model was the pooled one in every split;
    site_column: the column that names the sites, if it could be a feature; tables: where columns are joined,
    the rows of each party's table; protection: of the terms, if it hides anything.
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
        """True where parties hold different columns."""
        return bool(self.tables)
