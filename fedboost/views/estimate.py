"""What people see of an estimate: the least layout, then seconds, bytes and memory of all."""

from collections.abc import Sequence

from fedboost.results.estimate import BLOCKS, COLUMNS, ONE_PLACE, VOTES, Case, Cost, least_of
from fedboost.views.document import Block, Document, Entries, Items, Line, Section, Table, Verdict, note
from fedboost.views.words import counted, duration, size

PARTS = {
    "rows": "reading rows and making reports",
    "masks": "masks or encryption",
    "aggregator": "the aggregator's work",
    "round trips": "waiting for round trips",
    "links": "bytes on links",
}


def estimate(
    case: Case, layouts: Sequence[Cost], protections: Sequence[Cost], saved: tuple[float, float]
) -> Document:
    """Return what `fedboost estimate` prints.

    Args:
        case: the training.
        layouts: costs of all layouts.
        protections: costs of all protections under the least layout.
        saved: bytes of a party and seconds per round that histogram subtraction saves.
    """
    least = least_of([*layouts])
    takes = (
        f"{duration(least.seconds)} per round, {duration(least.total)} for {counted(case.rounds, 'round')}"
    )
    blocks: list[Block] = [
        Verdict(f"Least under {case.name}: {least.layout}, {takes}."),
        note(why(case, layouts)),
        _costs("Layouts", "layout", [(each.layout, each) for each in layouts], case.rounds),
        _parts(layouts),
        note(
            "Seconds per round. Links and the aggregator work at the same time. Memory is of one party and "
            "of the aggregator. “One place” is a comparison: it moves all rows, and fedboost never does."
        ),
        note(
            f"Subtraction (only the smaller of two siblings is requested) saves {size(saved[0])} of a party "
            f"and {duration(saved[1])} per round."
        ),
    ]
    if protections:
        pairs = [(each.protection, each) for each in protections]
        blocks.append(_costs(f"Protections ({least.layout})", "protection", pairs, case.rounds))
    reasons = [f"{each.layout}: {each.reason}" for each in layouts if each.reason]
    reasons += [f"{each.protection}: {each.reason}" for each in protections if each.reason]
    return Document("Estimate", "", [*blocks, *([Items(reasons)] if reasons else [])])


def why(case: Case, layouts: Sequence[Cost]) -> str:
    """Return why a layout takes the least time, in one or two sentences."""
    least = least_of([*layouts])
    others = [each for each in layouts if each.layout not in (least.layout, ONE_PLACE) and not each.reason]
    histograms = f"histograms of {case.features:,} features"
    reason = f"bytes do not grow with rows, and {histograms} are small"
    if least.layout == VOTES:
        reason = f"below the root, {2 * case.vote_top_k} of {case.features:,} features are sent at most"
    if least.layout in (COLUMNS, BLOCKS):
        reason = f"each party sends only its own columns' part of the {histograms}"
    rest = ", ".join(f"{each.layout} {duration(each.seconds)}" for each in others)
    compared = f" Others take longer: {rest}." if rest else ""
    return f"Most of it is {PARTS[least.most]}. Reason: {reason}.{compared}"


def _costs(title: str, heading: str, costs: Sequence[tuple[str, Cost]], rounds: int) -> Table:
    rows = [
        (
            name,
            duration(each.seconds),
            duration(each.total),
            size(each.sent),
            size(each.total_sent),
            size(each.aggregator),
        )
        if not each.reason
        else (name, "not possible", "", "", "", "")
        for name, each in costs
    ]
    return Table(title, [heading, "a round", f"{rounds} rounds", "party sends", "in all", "aggregator"], rows)


def _parts(layouts: Sequence[Cost]) -> Table:
    rows: list[Sequence[Line]] = [
        (
            each.layout,
            *(f"{seconds:.2f}" for seconds in each.parts.values()),
            f"{size(each.memory)}, {size(each.aggregator_memory)}",
        )
        for each in layouts
        if not each.reason
    ]
    return Table("Parts", ["layout", "rows", "masks", "aggr.", "trips", "links", "memory"], rows)


def workers(facts: dict[str, float]) -> Section:
    """Return what a site's workers take. facts: as `fedboost estimate --json` prints them."""
    memory = f"{size(facts['loading_bytes'])} to load its rows, {size(facts['growing_bytes'])} to train"
    inside = f"{size(facts['bytes_a_round'])} and {duration(facts['seconds_a_round'])} per round"
    entries = [
        ("workers", f"{facts['workers']} of one thread, each with {facts['rows']:,} rows and its own core"),
        ("memory", f"of each worker: {memory}"),
        ("inside", f"between the workers and the site's own process: {inside}; it does not leave the site"),
    ]
    return Section("workers", "Workers of a site", [Entries(entries)])
