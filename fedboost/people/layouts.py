"""What a training takes over links, by layout: facts in, text out.

Promises: a table of at most 80 columns, and what its columns mean.
Refuses: nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedboost.people.text import Block, duration, size


@dataclass(frozen=True)
class LayoutFacts:
    """The estimate of a training in one layout over links: its protection, empty where rows are shipped;
    seconds of a round and of the training; megabytes a party sends in all; round trips of a round."""

    layout: str
    protection: str
    seconds_a_round: float
    seconds: float
    megabytes: float
    round_trips: float


@dataclass(frozen=True)
class LayoutsFacts:
    """The layouts over a link; why there is none with votes, or empty; the fastest one under that protection:
    of the terms, or plain where that one could not be tried."""

    layouts: list[LayoutFacts]
    rtt_ms: float
    bandwidth_mbit: float
    no_votes: str
    protection: str
    fastest: str


def layouts(facts: LayoutsFacts, rounds: int) -> Iterator[Block]:
    """Yield a table of layouts over links."""
    from rich.table import Table
    from rich.text import Text

    lines = Table()
    for heading in ("layout", "protection", "a round", f"{rounds} rounds", "sent", "trips"):
        lines.add_column(heading, justify="left" if heading in ("layout", "protection") else "right")
    for layout in facts.layouts:
        times = duration(layout.seconds_a_round), duration(layout.seconds)
        trips = f"{layout.round_trips:.1f}" if layout.protection else ""
        lines.add_row(layout.layout, layout.protection, *times, size(layout.megabytes * 1e6), trips)
    yield Text("")
    yield lines
    wide = f" and {facts.bandwidth_mbit:g} Mbit/s" if math.isfinite(facts.bandwidth_mbit) else ""
    yield Text(
        f"Over links of {facts.rtt_ms:g} ms{wide}, each party and the aggregator on a machine of its own: a "
        f"round is its round trips (trips), its bytes through a party's link, and the time of the machines; "
        f"sent is what a party sends in all. Under {facts.protection}, {facts.fastest} take least time. With "
        f"all rows in one place it would be the last line, for comparison: no row leaves its site here."
    )
    if facts.no_votes:
        yield Text(f"votes: {facts.no_votes}")
