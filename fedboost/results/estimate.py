"""What a training would take: seconds, bytes and memory."""

from collections.abc import Iterator
from typing import Any, Literal

from fedboost.results.base import Part


class Estimate(Part):
    """Under one protection, with all processes on this machine: seconds of a round, and of the training with
    its start; megabytes a party sends in a round; round trips of a round; seconds of a round where each
    process has a machine of its own, without the network. A round's megabytes and round trips are the mean,
    with those before the first."""

    protection: str
    seconds_a_round: float
    seconds: float
    megabytes: float
    round_trips: float
    seconds_apart: float
    rows: int
    parties: int


class Layout(Part):
    """In one layout over links: its protection, empty where rows are shipped; seconds of a round and of the
    training; megabytes a party sends in all; round trips of a round; the links, without a bandwidth where any
    number of bytes pass at once."""

    layout: str
    protection: str
    seconds_a_round: float
    seconds: float
    megabytes: float
    round_trips: float
    rtt_ms: float
    bandwidth_mbit: float | None = None
    rows: int
    parties: int


class Layouts(Part):
    """The layouts over a link. no_votes: why there is none with votes, or empty; fastest: under the
    protection of the terms, or plain where that one could not be tried."""

    layouts: tuple[Layout, ...]
    no_votes: str
    protection: str
    fastest: str


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


class ColumnsEstimate(Part):
    """Where parties hold different columns, under one protection, with all processes on this machine, one
    thread each: seconds of a round, of the training, and of matching rows before it; seconds of a round where
    each process has a machine of its own, without the network; round trips of a round; of a round, the
    seconds of what encryption adds; each party. A round's figures are the mean, with what comes before the
    first. rows: that the parties have in common."""

    protection: str
    seconds_a_round: float
    seconds: float
    seconds_to_match: float
    seconds_apart: float
    round_trips: float
    stages: dict[str, float]
    by_party: dict[str, PartyCosts]
    rows: int


class Estimates(Part):
    """The estimates of a training. protection: of its terms; missing: protections without an estimate, and
    the reason of each; matches: rows are matched by their ids."""

    protection: str
    rounds: int
    missing: dict[str, str]
    by_rows: tuple[Estimate, ...] = ()
    by_columns: tuple[ColumnsEstimate, ...] = ()
    matches: bool = False
    layouts: Layouts | None = None
    workers: Workers | None = None

    @property
    def lines(self) -> Iterator[dict[str, Any]]:
        """The JSON of each."""
        layouts = () if self.layouts is None else self.layouts.layouts
        workers = () if self.workers is None else (self.workers,)
        yield from (each.summary for each in (*self.by_rows, *self.by_columns, *layouts, *workers))
