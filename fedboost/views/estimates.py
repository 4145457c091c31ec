"""What a training would take: by protection, over links, at the workers of a site, with columns apart."""

from collections.abc import Iterator, Sequence

from fedboost.results.estimate import ColumnsEstimate, Estimate, Estimates, Workers
from fedboost.views.document import Block, Document, Entries, Items, Section, Table, Verdict, note
from fedboost.views.words import duration, size


def estimates(result: Estimates) -> Document:
    """Return the estimates of a training as people read them."""
    known: Sequence[Estimate | ColumnsEstimate] = result.by_rows or result.by_columns
    own = next((each for each in known if each.protection == result.protection), known[0])
    takes = f"{result.rounds} rounds take about {duration(own.seconds)} on this machine."
    blocks: list[Block] = [Verdict(f"Under {own.protection}, {takes}")]
    blocks += _by_rows(result) if result.by_rows else _by_columns(result)
    if result.missing:
        blocks.append(Items([f"{name}: {reason}" for name, reason in result.missing.items()]))
    if result.layouts:
        blocks.append(_layouts(result))
    if result.workers is not None:
        blocks.append(_workers(result.workers))
    return Document("Estimate", "", blocks)


def _by_rows(result: Estimates) -> Iterator[Block]:
    first, rounds = result.by_rows[0], result.rounds
    rows = [
        (
            each.protection,
            *(duration(each.seconds_a_round), duration(each.seconds)),
            *(size(each.megabytes * 1e6), size(each.megabytes * 1e6 * rounds)),
            f"{each.round_trips:.0f}",
        )
        for each in result.by_rows
    ]
    headings = ["protection", "a round", f"{rounds} rounds", "a party sends a round", "in all", "trips"]
    yield Table("By protection", headings, rows)
    yield note(
        f"{first.rows:,} rows at {first.parties} parties, all of them and the aggregator on this machine. On "
        "machines of their own parties work at the same time, and each round waits for the network: its "
        "round trips (trips)."
    )


def _by_columns(result: Estimates) -> Iterator[Block]:
    first, rounds = result.by_columns[0], result.rounds
    rows = [
        (
            each.protection,
            *map(duration, (each.seconds_a_round, each.seconds, each.seconds_apart)),
            f"{each.round_trips:.0f}",
        )
        for each in result.by_columns
    ]
    headings = ["protection", "a round", f"{rounds} rounds", "apart, a round", "trips"]
    yield Table("By protection", headings, rows)
    for each in result.by_columns:
        yield _parties(each, rounds)
        if each.stages:
            texts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in each.stages.items())
            yield note(f"What {each.protection} adds to a round: {texts}")
    matched = (
        f" Rows are matched in {duration(first.seconds_to_match)}, if no party enters more ids than these."
    )
    yield note(
        f"{first.rows:,} rows in common, all parties and the aggregator on this machine, one thread each."
        f"{matched if result.matches else ''} Apart: each on a machine like this one, without the network; a "
        "round waits for its round trips (trips), and for its bytes through a party's link. Memory is about "
        "what a party's process takes."
    )


def _parties(each: ColumnsEstimate, rounds: int) -> Table:
    """The megabytes of each party, in a round and in all, and its memory."""
    rows = []
    for party, own in each.by_party.items():
        in_all = own.sent * rounds + own.sent_to_match, own.received * rounds + own.received_to_match
        rows.append((party, *(size(mb * 1e6) for mb in (own.sent, own.received, *in_all, own.memory))))
    return Table(
        f"Parties under {each.protection}",
        ["party", "sends a round", "gets a round", "sends", "gets", "memory"],
        rows,
    )


def _layouts(result: Estimates) -> Section:
    link, of_terms = result.layouts[0], result.protection
    tried = of_terms in {each.protection for each in result.layouts}
    protection = of_terms if tried else link.protection
    own = (each for each in result.layouts if each.protection == protection)
    fastest = min(own, key=lambda each: each.seconds).layout
    rows = [
        (
            each.layout,
            each.protection,
            *(duration(each.seconds_a_round), duration(each.seconds), size(each.megabytes * 1e6)),
            f"{each.round_trips:.1f}" if each.protection else "",
        )
        for each in result.layouts
    ]
    wide = "" if link.bandwidth_mbit is None else f" and {link.bandwidth_mbit:g} Mbit/s"
    headings = ["layout", "protection", "a round", f"{result.rounds} rounds", "sent", "trips"]
    blocks: list[Block] = [
        Verdict(f"Under {protection}, {fastest} take least time."),
        Table(f"Over links of {link.rtt_ms:g} ms{wide}", headings, rows, range(2, 6)),
        note(
            "Each party and the aggregator on a machine of its own: a round is its round trips (trips), its "
            "bytes through a party's link, and the time of the machines; sent is what a party sends in all. "
            "With all rows in one place it would be the last line, for comparison: no row leaves its site "
            "here."
        ),
    ]
    if result.no_votes:
        blocks.append(Items([f"votes: {result.no_votes}"]))
    return Section("layouts", "Layouts", blocks)


def _workers(result: Workers) -> Section:
    memory = f"{size(result.loading_bytes)} to load its rows, {size(result.growing_bytes)} to grow trees"
    inside = f"{size(result.bytes_a_round)} a round, in {duration(result.seconds_a_round)}"
    entries = [
        ("workers", f"{result.workers} of one thread, each with {result.rows:,} rows and a core of its own"),
        ("memory", f"of one: {memory}"),
        ("inside", f"between them and the site's own process: {inside}, without the network"),
    ]
    about = note(
        "What is inside does not leave the site: what leaves is what a party sends, as without workers."
    )
    return Section("workers", "Workers of a site", [Entries(entries), about])
