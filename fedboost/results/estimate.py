"""What a training would take: seconds, bytes and memory."""

from collections.abc import Iterator
from typing import Any, Literal

from fedboost.results.base import Part


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
