"""What a training takes whose parties hold different columns: facts in, text out.

Promises: tables of at most 80 columns, and what they assume.
Refuses: nothing.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fedboost.views.words import Block, cell, duration, size


@dataclass(frozen=True)
class PartyFacts:
    """Megabytes that a party sends and receives in a round, and once, to match rows; megabytes of memory."""

    sent: float
    received: float
    sent_to_match: float
    received_to_match: float
    memory: float


@dataclass(frozen=True)
class ColumnsFacts:
    """The estimate under one protection, with all processes on this machine, one thread each: seconds of a
    round, of the training, and of matching rows before it; seconds of a round where each process has a
    machine of its own, without the network; round trips of a round; of a round, the seconds of what
    encryption adds; each party. A round's figures are the mean, with what comes before the first."""

    protection: str
    seconds_a_round: float
    seconds: float
    seconds_to_match: float
    seconds_apart: float
    round_trips: float
    stages: dict[str, float]
    by_party: dict[str, PartyFacts]

    def sent(self, party: str, rounds: int) -> tuple[float, float]:
        """Megabytes that a party sends and receives in all."""
        facts = self.by_party[party]
        return (
            facts.sent * rounds + facts.sent_to_match,
            facts.received * rounds + facts.received_to_match,
        )


def estimates(
    by_protection: list[ColumnsFacts], missing: Mapping[str, str], rounds: int, rows: int, matches: bool
) -> Iterator[Block]:
    """Yield tables of estimates; missing: protections without one -> the reason; matches: rows are matched by
    their ids."""
    from rich.table import Table
    from rich.text import Text

    lines = Table()
    for heading in ("protection", "a round", f"{rounds} rounds", "apart, a round", "trips"):
        lines.add_column(heading, justify="left" if heading == "protection" else "right")
    for facts in by_protection:
        times = (facts.seconds_a_round, facts.seconds, facts.seconds_apart)
        lines.add_row(facts.protection, *map(duration, times), f"{facts.round_trips:.0f}")
    yield lines
    for facts in by_protection:
        yield _parties(facts, rounds)
        if facts.stages:
            texts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in facts.stages.items())
            yield Text(f"what {facts.protection} adds to a round: {texts}")
    yield Text(_assumed(by_protection[0], rows, matches))
    for name, advice in missing.items():
        yield Text(f"{name}: {advice}")


def _parties(facts: ColumnsFacts, rounds: int) -> Block:
    from rich.table import Table

    lines = Table()
    headings = (facts.protection, "sends a round", "gets a round", "sends", "gets", "memory")
    for heading in headings:
        lines.add_column(heading, justify="left" if heading == facts.protection else "right")
    for party, own in facts.by_party.items():
        figures = own.sent, own.received, *facts.sent(party, rounds), own.memory
        lines.add_row(cell(party), *(size(figure * 1e6) for figure in figures))
    return lines


def _assumed(facts: ColumnsFacts, rows: int, matches: bool) -> str:
    matched = (
        f" Rows are matched in {duration(facts.seconds_to_match)}, if no party enters more ids than these."
        if matches
        else ""
    )
    return (
        f"{rows:,} rows in common, all parties and the aggregator on this machine, one thread each.{matched} "
        f"Apart: each on a machine like this one, without the network; a round waits for its round trips "
        f"(trips), and for its bytes through a party's link. Memory is about what a party's process takes."
    )


# ---- What a training takes over links, by layout: facts in, text out ------------------------------------
# Promises: a table of at most 80 columns, and what its columns mean.


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
