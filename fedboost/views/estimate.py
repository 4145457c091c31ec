"""What people see of an estimate: the least layout, then seconds, bytes and memory of all."""

from collections.abc import Mapping, Sequence

from fedboost.results.estimate import BLOCKS, COLUMNS, ONE_PLACE, VOTES, Case, Cost, least_of
from fedboost.views.document import Block, Document, Entries, Items, Section, Table, Verdict, note
from fedboost.views.words import counted, duration, size

Facts = Mapping[str, float]
PARTS = {
    "rows": "reading rows and making reports",
    "masks": "masks or encryption",
    "aggregator": "the aggregator's work",
    "round trips": "waiting for round trips",
    "links": "bytes on links",
}


def estimate(
    case: Case, layouts: Sequence[Cost], protections: Sequence[Cost], saved: Facts, inside: Facts | None
) -> Document:
    """Return what `fedboost estimate` prints: costs of all layouts, and of all protections under the least
    layout. saved, inside: what subtraction saves and a site's workers take, as --json prints them."""
    least = least_of([*layouts])
    reasons = [f"{each.layout}: {each.reason}" for each in layouts if each.reason]
    reasons += [f"{each.protection}: {each.reason}" for each in protections if each.reason]
    title = f"Protections ({least.layout})"
    blocks: list[Block] = [
        Verdict(
            f"Least under {case.name}: {least.layout}, {duration(least.seconds)} per round, "
            f"{duration(least.total)} for {counted(case.rounds, 'round')}."
        ),
        note(why(case, layouts)),
        _costs("Layouts", "layout", layouts, case.rounds),
        _parts(layouts),
        note(
            "Seconds per round. Links and the aggregator work at the same time. Memory is of one party and "
            "of the aggregator. “One place” is a comparison: it moves all rows, and fedboost never does."
        ),
        note(
            "Subtraction (only the smaller of two siblings is requested) saves "
            f"{size(saved['saved_bytes'])} of a party and {duration(saved['saved_seconds'])} per round."
        ),
        *([_costs(title, "protection", protections, case.rounds)] if protections else []),
        *([Items(reasons)] if reasons else []),
        *([_workers(inside)] if inside else []),
    ]
    return Document("Estimate", "", blocks)


def why(case: Case, layouts: Sequence[Cost]) -> str:
    """Return why a layout takes the least time, in one or two sentences."""
    least = least_of([*layouts])
    others = [each for each in layouts if each.layout not in (least.layout, ONE_PLACE) and not each.reason]
    histograms = f"histograms of {case.features:,} features"
    apart = f"each party sends only its own columns' part of the {histograms}"
    votes = f"below the root, {2 * case.vote_top_k} of {case.features:,} features are sent at most"
    reasons = {VOTES: votes, COLUMNS: apart, BLOCKS: apart}
    reason = reasons.get(least.layout, f"bytes do not grow with rows, and {histograms} are small")
    rest = ", ".join(f"{each.layout} {duration(each.seconds)}" for each in others)
    compared = f" Others take longer: {rest}." if rest else ""
    return f"Most of it is {PARTS[least.most]}. Reason: {reason}.{compared}"


def _costs(title: str, heading: str, costs: Sequence[Cost], rounds: int) -> Table:
    none = ("not possible", "", "", "", "")
    rows = [(str(getattr(one, heading)), *(none if one.reason else _cells(one))) for one in costs]
    return Table(title, [heading, "a round", f"{rounds} rounds", "party sends", "in all", "aggregator"], rows)


def _cells(one: Cost) -> tuple[str, ...]:
    return duration(one.seconds), duration(one.total), *map(size, (one.sent, one.total_sent, one.aggregator))


def _parts(layouts: Sequence[Cost]) -> Table:
    known = [(each, map(size, (each.memory, each.aggregator_memory))) for each in layouts if not each.reason]
    rows = [
        (each.layout, *map("{:.2f}".format, each.parts.values()), ", ".join(both)) for each, both in known
    ]
    return Table("Parts", ["layout", "rows", "masks", "aggr.", "trips", "links", "memory"], rows)


def _workers(facts: Facts) -> Section:
    memory = f"{size(facts['loading_bytes'])} to load its rows, {size(facts['growing_bytes'])} to train"
    inside = f"{size(facts['bytes_a_round'])} and {duration(facts['seconds_a_round'])} per round"
    entries = [
        ("workers", f"{facts['workers']} of one thread, each with {facts['rows']:,} rows and its own core"),
        ("memory", f"of each worker: {memory}"),
        ("inside", f"between the workers and the site's own process: {inside}; it does not leave the site"),
    ]
    return Section("workers", "Workers of a site", [Entries(entries)])
