"""What a training would take, and the end of a training and of a demo."""

from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, InstanceOf

from fedboost.gbdt import metrics
from fedboost.results.base import Part, Row, Traffic
from fedboost.results.model import ModelSummary

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
    def ended(
        cls, outline: ModelSummary, traffic: Traffic, file: str | None, since_restart: bool
    ) -> "Training":
        """The end of the training of this model."""
        return cls.of(
            outline,
            traffic,
            file,
            fingerprint=outline.fingerprint,
            terms=outline.terms.digest,
            metrics=metrics_of(outline.last_row),
            party_metrics=metrics.by_party(outline.last_row),
            traffic_since_restart=since_restart,
        )


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
