"""Facts that text and JSON are made from: plain values, which commands fill.

Promises: nothing here reads, trains or formats.
Refuses: nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedboost.results.base import Traffic
from fedboost.results.model import ModelSummary


@dataclass(frozen=True)
class TrainingFacts:
    """A finished training. file: of the model, if it was saved; since_restart: traffic is known only since
    the aggregator was restarted; shares: party to its share of the gains, where parties keep parts of the
    model, and the file has its structure alone."""

    model: ModelSummary
    traffic: Traffic
    file: str | None
    since_restart: bool = False
    shares: Mapping[str, float] | None = None


@dataclass(frozen=True)
class DemoFacts:
    """A finished demo. scores: metrics on the held-out rows by model, none where it cannot train; equal: the
    federated model is the pooled one; log: the audit log of the first site, quoted for a shell."""

    training: TrainingFacts
    scores: Mapping[str, Mapping[str, float]]
    equal: bool
    log: str


@dataclass(frozen=True)
class EstimateFacts:
    """The estimate of a training under one protection, with all processes on this machine: seconds of a
    round, and of the training with its start; megabytes a party sends in a round; round trips of a round;
    seconds of a round where each process has a machine of its own, without the network. A round's megabytes
    and round trips are the mean, with those before the first."""

    protection: str
    seconds_a_round: float
    seconds: float
    megabytes: float
    round_trips: float
    seconds_apart: float


@dataclass(frozen=True)
class WorkersFacts:
    """The estimate for a site whose rows are on workers of one thread each: how many; rows of one; bytes of
    memory that it needs while it loads them, and while trees grow; bytes a round between all workers and the
    site's own process, and seconds until that has its answers."""

    workers: int
    rows: int
    loading_bytes: int
    growing_bytes: int
    bytes_a_round: float
    seconds_a_round: float
