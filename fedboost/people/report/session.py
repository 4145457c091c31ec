"""Traffic and time of a session in a report.

Promises: bytes and seconds as they were counted where the session was followed.
Refuses: nothing.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from fedboost.people.report.charts import MAX_BARS, Series, bars, ends, lines
from fedboost.people.report.facts import SessionFacts
from fedboost.people.report.markup import Markup, element, joined, left_out, paragraph, table
from fedboost.people.text import counted, duration, size
from fedboost.terms.terms import Terms

MEGABYTE = 1e6


def turns(session: SessionFacts, terms: Terms) -> Markup:
    """Return the time and bytes of each round, where there are any, and the bytes of each party."""
    rounds = session.rounds
    seconds = [row["seconds"] for row in rounds]
    total = sum(map(sum, session.traffic.values()))
    since = ", since the aggregator was restarted" if session.since_restart else ""
    said = [f"{size(total)} in all{since}"]
    if rounds:
        said.append(f"{counted(len(rounds), 'round')} in {duration(sum(seconds))}")
        said.append(f"the median round took {median(seconds):.3g} seconds")
    return joined(
        paragraph(f"{'; '.join(said)}. Bytes are those of messages between parties and aggregator."),
        element("div", *_by_round(session), class_="charts"),
        _rounds(session),
        _by_party(session, terms),
    )


def _by_round(session: SessionFacts) -> Iterator[Markup]:
    if len(session.rounds) < 2:
        return
    for key, title, scale in (
        ("seconds", "Seconds of each round", 1.0),
        ("bytes", "Megabytes of each round, all parties", MEGABYTE),
    ):
        points = [(number, row[key] / scale) for number, row in enumerate(session.rounds, 1)]
        yield lines(title, [Series(key, points)], "round", title.split(" of ")[0].lower(), whole=True)


def _rounds(session: SessionFacts) -> Markup:
    if not session.rounds:
        return Markup("")
    rows = (
        (str(number), f"{row['seconds']:.3g}", size(row["bytes"]))
        for number, row in enumerate(session.rounds, 1)
    )
    return joined(
        table("Time and traffic of each round", ["round", "seconds", "bytes"], rows, folded=True),
        paragraph("The first round includes what comes before it: keys, counts, cut points, and compiling."),
    )


def _by_party(session: SessionFacts, terms: Terms) -> Markup:
    if not session.traffic:
        return left_out("No bytes were counted.")
    order = {party: number for number, party in enumerate(terms.parties)}
    parties = sorted(session.traffic, key=lambda party: order.get(party, len(order)))
    rows: list[Sequence[str]] = [(party, *map(size, session.traffic[party])) for party in parties]
    sent = [(party, session.traffic[party][0] / MEGABYTE) for party in parties]
    chosen = ends(sent)
    title = "Megabytes sent by each party"
    title += f", the {len(chosen)} that sent most and least of {len(sent)}" if len(sent) > MAX_BARS else ""
    return joined(
        bars(title, chosen, "megabytes sent"),
        table("Traffic of each party", ["party", "sent", "received"], rows),
    )
