"""The learning curves of a report.

Promises: metrics as the model file has them; those of single sites only where it has any.
Refuses: nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from fedboost.gbdt.metrics.registry import OF_PARTY, TRAIN, VALIDATION
from fedboost.people.report.charts import MAX_SERIES, Series, lines
from fedboost.people.report.facts import ReportFacts
from fedboost.people.report.markup import Markup, element, joined, left_out, paragraph, table
from fedboost.people.training import ACCOUNTED

MAX_CHARTS = 12
"""Metrics that are drawn."""


@dataclass(frozen=True)
class Curve:
    """Values of one metric, by the number of the round from 1. party: '' for all rows; rows: the set."""

    party: str
    rows: str
    metric: str
    values: Mapping[int, float]


def curves_of(rounds: Sequence[Mapping[str, float]]) -> list[Curve]:
    """Return the curves in a history."""
    names = dict.fromkeys(name for row in rounds for name in row if name not in ACCOUNTED)
    out = []
    for name in names:
        party, _, own = name.rpartition(OF_PARTY)
        held_out = own.startswith(f"{VALIDATION}-")
        metric = own.removeprefix(f"{VALIDATION}-")
        values = {number: row[name] for number, row in enumerate(rounds, 1) if name in row}
        out.append(Curve(party, VALIDATION if held_out else TRAIN, metric, values))
    return out


def learning_curves(facts: ReportFacts) -> Markup:
    """Return a chart of each metric over all rows, of each metric by site, and tables of both."""
    curves = curves_of(facts.rounds)
    if not curves:
        return left_out(
            "The model file has no metrics of rounds: its terms asked for none, or no set of rows had ten."
        )
    whole = [curve for curve in curves if not curve.party]
    own = [curve for curve in curves if curve.party]
    kinds = dict.fromkeys(curve.metric for curve in whole)
    drawn = [_chart(facts, [c for c in whole if c.metric == kind], kind) for kind in [*kinds][:MAX_CHARTS]]
    more = len(kinds) - MAX_CHARTS
    return joined(
        paragraph(
            "Over the rows of all parties, after each round, to four significant digits. Nobody signs these "
            "numbers."
        ),
        element("div", *drawn, class_="charts"),
        left_out(f"{more} more metrics stand in the table alone.") if more > 0 else "",
        _rounds(whole, len(facts.rounds)) if whole else "",
        _by_site(facts, own),
    )


def _chart(facts: ReportFacts, curves: Iterable[Curve], metric: str) -> Markup:
    series = [Series(curve.rows, [*curve.values.items()]) for curve in curves]
    model = facts.model
    mark = (model.kept, f"kept up to round {model.kept}") if model.kept < model.trained else None
    return lines(f"{metric} by round", series, "round", metric, mark=mark, whole=True)


def _rounds(curves: Sequence[Curve], rounds: int) -> Markup:
    headings = ["round", *(f"{c.rows} {c.metric}" for c in curves)]
    rows = ([str(n), *(_value(c.values.get(n)) for c in curves)] for n in range(1, rounds + 1))
    return table("Metrics of each round", headings, rows)


def _by_site(facts: ReportFacts, curves: Sequence[Curve]) -> Markup:
    if not curves:
        return left_out(
            "By site: the terms did not ask for metrics of single sites (party_metrics), so there are none."
        )
    kinds = dict.fromkeys((curve.rows, curve.metric) for curve in curves)
    drawn = []
    for rows, metric in [*kinds][:MAX_CHARTS]:
        own = [curve for curve in curves if (curve.rows, curve.metric) == (rows, metric)]
        title = f"{metric} by round, {rows} rows of each site"
        if len(own) > MAX_SERIES:
            title = f"{metric} by round, {rows} rows of {len(own)} sites: lowest, median, highest"
        drawn.append(lines(title, _of_sites(own), "round", metric, whole=True))
    last: dict[str, dict[tuple[str, str], float]] = {curve.party: {} for curve in curves}
    for curve in curves:
        if facts.model.kept in curve.values:
            last[curve.party][curve.rows, curve.metric] = curve.values[facts.model.kept]
    headings = ["site", *(f"{rows} {metric}" for rows, metric in kinds)]
    lines_of_sites = ([party, *(_value(own.get(kind)) for kind in kinds)] for party, own in last.items())
    return joined(
        element("h3", "By site"),
        paragraph("Over the rows of one site alone, which its policy allowed. The aggregator saw them, too."),
        element("div", *drawn, class_="charts"),
        table("Metrics of each site after the last round of the model", headings, lines_of_sites),
    )


def _of_sites(curves: Sequence[Curve]) -> list[Series]:
    """A line for each site; where they are many, of all of them the lowest, the median and the highest."""
    if len(curves) <= MAX_SERIES:
        return [Series(curve.party, [*curve.values.items()]) for curve in curves]
    rounds = sorted({number for curve in curves for number in curve.values})
    values = {n: [c.values[n] for c in curves if n in c.values] for n in rounds}
    return [
        Series("highest", [(n, max(values[n])) for n in rounds]),
        Series("median", [(n, median(values[n])) for n in rounds]),
        Series("lowest", [(n, min(values[n])) for n in rounds]),
    ]


def best_round(curve: Curve, grows: bool) -> int | None:
    """Return the round in which a metric was best, the first of equal ones; None where it has no number."""
    known = {number: value for number, value in curve.values.items() if math.isfinite(value)}
    return (max if grows else min)(known, key=known.__getitem__) if known else None


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
