"""Results about models: signatures, reports, trainings, estimates and comparisons."""

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

# ---- A model and its signatures ------------------------------------------------------------------------


class ModelSummary(Part, allow_inf_nan=True):  # a file from elsewhere may have any metrics
    """A trained model. trained, kept: rounds that were trained, and rounds whose trees the model has;
    last_row: history of the last kept round; signed_by: parties that signed the model; rosters: maps first
    round -> roster, if the roster changed; shares: maps party -> share of the gain, if the parties keep parts
    of the model."""

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
    """Verification of a model file's signatures. faults: maps party that signed -> fault of its signature, ""
    if valid; needed: least number of signatures under these terms; analyst, asked: analyst who requested the
    session, and the time of the request; request_fault: fault of the request's signature, "" if valid."""

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
        """True if there are enough signatures, at least one, and all are valid."""
        sound = not self.request_fault and len(self.signed) == len(self.faults)
        return sound and len(self.signed) >= max(self.needed, 1)

    @property
    def conclusion(self) -> str:
        """Outcome in one sentence."""
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
    """A tree of the model. leaves: number of leaves; picture: SVG for a page, '' if the tree is too large."""

    title: str
    leaves: int
    picture: str


@dataclass(frozen=True)
class Dependence:
    """Partial dependence on one feature. grid: its numbers or categories; means: float64 [grid, outputs]."""

    feature: str
    is_categorical: bool
    grid: Sequence[Any]
    means: Float64


@dataclass(frozen=True)
class GivenRows:
    """The model on a table that was given for a report. source: name of the table; dependence: partial
    dependence on the features with the highest gain."""

    source: str
    evaluation: Evaluation
    dependence: Sequence[Dependence]


@dataclass(frozen=True)
class ModelReport:
    """A model and the contents of its report.

    rounds: metrics of each round, as in the model file; importance: maps feature -> its IMPORTANCES, the
    highest gain first; trees: the first trees; classes: names of the label's classes, if it has any; made:
    time of the session's request (UTC), if known; training_rows: rows of all parties, if known; verification:
    None if the signatures could not be checked; rows: None without a table; session: None if only the model
    file is available.
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
"""Values in a row of the history that are not metrics."""


def metrics_of(row: Row) -> dict[str, float]:
    """Return the metrics in a row of the history that are over the rows of all parties."""
    return metrics.of_all({name: value for name, value in row.items() if name not in ACCOUNTED})


class PartyTraffic(Part):
    """Traffic of a party, in bytes."""

    sent: int
    received: int


class TrainingEnd(Part):
    """The end of a training or a demo. model: name of the model file, if the model was saved."""

    model_config = ConfigDict(allow_inf_nan=True)

    event: Literal["done"]
    model: str | None
    protection: str
    signed_by: tuple[str, ...]
    traffic: dict[str, PartyTraffic]
    outline: InstanceOf[ModelSummary] = Field(exclude=True, repr=False)

    @classmethod
    def of(cls, outline: ModelSummary, traffic: Traffic, file: str | None, **more: Any) -> Self:
        """Return the end of this model's training. more: fields of the subclass."""
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
    """The end of a training. terms: digest of the terms; traffic_since_restart: traffic covers only the time
    since the aggregator was restarted."""

    fingerprint: str
    terms: str
    metrics: dict[str, float]
    party_metrics: dict[str, dict[str, float]] = Field(default_factory=dict)
    traffic_since_restart: bool = False

    @classmethod
    def of(cls, outline: ModelSummary, traffic: Traffic, file: str | None, **more: Any) -> Self:
        """Return the end of this model's training. more: traffic_since_restart."""
        own: dict[str, Any] = {"fingerprint": outline.fingerprint, "terms": outline.terms.digest}
        own |= {"metrics": metrics_of(outline.last_row), "party_metrics": metrics.by_party(outline.last_row)}
        return super().of(outline, traffic, file, **own, **more)


class Demo(TrainingEnd):
    """The end of a demo. held_out: metrics on the held-out rows by model, without models that cannot be
    trained; equal: the federated model equals the pooled one; log: audit log of a site, quoted for a
    shell."""

    equal: bool
    held_out: dict[str, dict[str, float]]
    log: str = Field(exclude=True)


class ColumnsDemo(Demo):
    """The end of a demo in which parties hold different columns. columns, rows: each party's features, and
    its number of rows; parts: file of each party's part of the model."""

    columns: dict[str, tuple[str, ...]]
    rows: dict[str, int]
    rows_in_common: int
    rows_held_out: int
    parts: dict[str, str]
    shares: dict[str, float] | None


# ---- Estimates: seconds, bytes and memory ---------------------------------------------------------------


class Costs(Part):
    """Estimate under one protection. Figures of a round are means that include the start of the training.
    seconds: of the whole training, start included; round_trips: per round; rows: rows of all parties, or rows
    that they have in common."""

    protection: str
    seconds_a_round: float
    seconds: float
    round_trips: float
    rows: int


class Estimate(Costs):
    """Estimate with all processes on this machine. megabytes: sent by a party per round; seconds_apart: of a
    round with a separate machine for each process, excluding the network."""

    megabytes: float
    seconds_apart: float
    parties: int


class Layout(Costs):
    """Estimate of one layout over network links. protection: "" if rows are shipped; megabytes: sent by a
    party in total; bandwidth_mbit: None if it is unlimited."""

    layout: str
    megabytes: float
    parties: int
    rtt_ms: float
    bandwidth_mbit: float | None = None


class Workers(Part):
    """Estimate for a site whose rows are on single-threaded workers. workers: number of workers; rows: rows
    per worker; loading_bytes, growing_bytes: memory of a worker while it loads its rows, and while trees
    grow; bytes_a_round, seconds_a_round: traffic between all workers and the site's own process, and the time
    until that process has its answers."""

    event: Literal["workers"]
    workers: int
    rows: int
    loading_bytes: int
    growing_bytes: int
    bytes_a_round: float
    seconds_a_round: float


class PartyCosts(Part):
    """Megabytes that a party sends and receives per round and once to match rows; its memory in megabytes."""

    sent: float
    received: float
    sent_to_match: float
    received_to_match: float
    memory: float


class ColumnsEstimate(Costs):
    """Estimate where parties hold different columns, with all processes on this machine, one thread each.
    seconds_to_match: time to match rows before the training; seconds_apart: time of a round with a separate
    machine for each process, excluding the network; stages: seconds that each step of the encryption adds to
    a round."""

    seconds_to_match: float
    seconds_apart: float
    stages: dict[str, float]
    by_party: dict[str, PartyCosts]


class Estimates(Part):
    """Estimates of a training. protection: that of its terms; missing: maps protection without an estimate ->
    reason; matches: rows are matched by their ids; layouts: estimates over a link; no_votes: why no layout
    uses votes."""

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
        workers = () if self.workers is None else (self.workers,)
        every = (*self.by_rows, *self.by_columns, *self.layouts, *workers)
        yield from (each.summary for each in every)


# ---- Models compared on held-out rows: each site's own, the federated and the pooled one ---------------


ALONE, FEDERATED, POOLED = "alone", "federated", "pooled"
Verdict = Literal["worth it", "not worth it", "cannot be told", "cannot train alone", "too few rows"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
MIN_ROWS = 10
"""A site with fewer different held-out rows than this gets no verdict."""


class Figure(Part):
    """Mean over splits, and its interval over other choices of held-out rows. NaN if there are no figures,
    which is null in JSON."""

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
    """Models compared on the rows of one site. held_out: rows held out in each split; different_held_out:
    rows held out in any split; models: figures by model; better_by: gain of the federated model over the
    site's own, negative if it is worse; cannot: why the site cannot train alone, "" if it can."""

    site: str
    rows: int
    held_out: int
    different_held_out: int
    models: dict[str, Figures]
    better_by: Figures
    cannot: str = ""

    @property
    def verdict(self) -> Verdict:
        """Verdict by the first metric."""
        if self.different_held_out < MIN_ROWS:
            return "too few rows"
        if self.cannot:
            return "cannot train alone"
        gain = next(iter(self.better_by.values()))
        return "worth it" if gain.low > 0 else "not worth it" if gain.high < 0 else "cannot be told"


class Comparison(Part):
    """Comparison of all sites, or of one label holder with and without the columns of others.

    together: all sites that can train alone as one, weighted by rows; metrics: the deciding one first; share:
    share of rows held out; equal: the federated model equalled the pooled one in every split; site_column:
    column that names the sites, if it could be a feature; tables: rows of each party's table, if columns are
    joined; protection: that of the terms, if it hides anything.
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
