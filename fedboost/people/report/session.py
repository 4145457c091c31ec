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

_UNITS = ("bytes", 1.0), ("kilobytes", 1e3), ("megabytes", 1e6), ("gigabytes", 1e9)


def turns(session: SessionFacts, terms: Terms) -> Markup:
    """Return the time and bytes of each round, where there are any, and the bytes of each party."""
    return joined(
        paragraph(_said(session)),
        element("div", *_by_round(session), class_="charts"),
        _rounds(session),
        _by_party(session, terms),
    )


def _said(session: SessionFacts) -> str:
    seconds = [row["seconds"] for row in session.rounds]
    said = size(sum(map(sum, session.traffic.values())))
    said += " since the aggregator was restarted" if session.since_restart else " in all"
    if seconds:
        said += f"; {counted(len(seconds), 'round')} in {duration(sum(seconds))}"
    if len(seconds) > 1:
        said += (
            f": the first, with what comes before it (keys, counts, cut points, compiling), took "
            f"{duration(seconds[0])}, the median of the others {median(seconds[1:]):.3g} s"
        )
    return f"{said}. Bytes are those of the messages between parties and aggregator, both ways."


def _by_round(session: SessionFacts) -> Iterator[Markup]:
    later = [*enumerate(session.rounds, 1)][1:]
    if len(later) < 2:
        return
    words, scale = _unit([row["bytes"] for _, row in later])
    for key, unit, factor in (("seconds", "seconds", 1.0), ("bytes", words, scale)):
        series = Series(key, [(number, row[key] / factor) for number, row in later])
        yield lines(f"{_capital(unit)} of each round after the first", [series], "round", unit, whole=True)


def _rounds(session: SessionFacts) -> Markup:
    if not session.rounds:
        return Markup("")
    rows = (
        (str(number), f"{row['seconds']:.3g}", size(row["bytes"]))
        for number, row in enumerate(session.rounds, 1)
    )
    return table("Time and traffic of each round", ["round", "seconds", "bytes"], rows, folded=True)


def _by_party(session: SessionFacts, terms: Terms) -> Markup:
    if not session.traffic:
        return left_out("No bytes were counted.")
    order = {party: number for number, party in enumerate(terms.parties)}
    parties = sorted(session.traffic, key=lambda party: order.get(party, len(order)))
    rows: list[Sequence[str]] = [(party, *map(size, session.traffic[party])) for party in parties]
    unit, scale = _unit([session.traffic[party][0] for party in parties])
    chosen = ends([(party, session.traffic[party][0] / scale) for party in parties])
    title = f"{_capital(unit)} sent by each party"
    title += f", the {MAX_BARS} that sent most and least of {len(parties)}" if len(parties) > MAX_BARS else ""
    return joined(
        bars(title, chosen, f"{unit} sent"),
        table("Traffic of each party", ["party", "sent", "received"], rows),
    )


def _unit(values: Sequence[float]) -> tuple[str, float]:
    """The largest unit of which the largest value has one at least, and its bytes."""
    largest = max(values, default=0.0)
    return next(((unit, scale) for unit, scale in reversed(_UNITS) if largest >= scale), _UNITS[0])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
