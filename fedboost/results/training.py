"""The end of a training, and of a demo."""

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
