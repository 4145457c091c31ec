"""The page of an evaluation: metrics, curves, and results by subgroup and site.

Promises: nothing but what the evaluation says.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fedboost.people.evaluation import rows_in_words, said_of_rows, why_left_out
from fedboost.people.report.charts import MAX_BARS, ends, points
from fedboost.people.report.facts import ResultFacts
from fedboost.people.report.markup import Markup, element, joined, left_out, names, paragraph, table
from fedboost.people.report.result import result_page, warned
from fedboost.people.report.rows import measured, number, share
from fedboost.people.report.skeleton import Sections

_RATES = {
    "selection_rate": "predicted 1",
    "true_positive_rate": "recall",
    "false_positive_rate": "false positive rate",
    "positive_rate": "label 1",
}
Split = Mapping[str, Any]


def evaluation_page(facts: ResultFacts) -> str:
    """Return the page."""
    summary, rows = facts.summary, facts.summary["rows"]
    about = rows_in_words(summary)
    sections: Sections = {
        "warnings": ("Warnings", warned([*said_of_rows(summary)], facts)),
        "quality": ("Quality", measured(summary, f"On {rows:,} rows of all parties: {about}.")),
        **{
            f"subgroups-{place}": (f"By {column}", _split(column, split, summary))
            for place, (column, split) in enumerate(summary.get("subgroups", {}).items())
        },
    }
    if "sites" in summary:
        sections = {**sections, "sites": ("By site", _split("site", summary["sites"], summary))}
    lead = f"{rows:,} rows of all parties ({about}); nothing was trained"
    return result_page(facts, "Evaluation of a model", lead, "evaluate", sections)


def _split(title: str, split: Split, summary: Mapping[str, Any]) -> Markup:
    unit, about = summary["unit"], rows_in_words(summary)
    sets = split["sets"]
    if not sets:
        return left_out(f"No group has {unit} rows.")
    metrics = [*dict.fromkeys(name for one in sets.values() for name in one["metrics"])]
    rates = {key: words for key, words in _RATES.items() if any("rates" in one for one in sets.values())}
    rows = (
        (
            name,
            f"{known['rows']:,}",
            *(number(known["metrics"].get(key)) for key in metrics),
            *(share(known.get("rates", {}).get(key)) for key in rates),
        )
        for name, known in sets.items()
    )
    headings = [title, "rows", *metrics, *rates.values()]
    return joined(
        element("div", *_charts(sets, metrics, rates), class_="charts"),
        table(f"Figures by {title} ({about})", headings, rows),
        _gaps(split["gaps"], metrics, rates),
        _absent(split["left_out"], unit),
    )


def _charts(sets: Split, metrics: list[str], rates: Mapping[str, str]) -> Iterator[Markup]:
    """Yield the first metric, and the share that is predicted 1."""
    figures = [
        (metric, {name: known["metrics"].get(metric) for name, known in sets.items()})
        for metric in metrics[:1]
    ]
    if rates:
        selected = {name: known.get("rates", {}).get("selection_rate") for name, known in sets.items()}
        figures.append(("share predicted 1", selected))
    for words, values in figures:
        known = [(name, value) for name, value in values.items() if value is not None]
        few = f", the {MAX_BARS} highest and lowest of {len(known)}" if len(known) > MAX_BARS else ""
        yield points(f"{words[0].upper()}{words[1:]}{few}", ends(known), words)


def _gaps(gaps: Mapping[str, float], metrics: list[str], rates: Mapping[str, str]) -> Markup:
    """The largest less the smallest of each figure."""
    if not gaps:
        return Markup("")
    rows = [(key, number(gaps[key])) for key in metrics if key in gaps]
    rows += [(words, share(gaps[key])) for key, words in rates.items() if key in gaps]
    return joined(
        table("Largest less smallest", ["figure", "gap"], rows, folded=False),
        paragraph(
            "A gap between groups of few rows may be chance. Gaps that rounding may make are left out."
        ),
    )


def _absent(absent: list[str], unit: int) -> Markup:
    if not absent:
        return Markup("")
    return element(
        "div",
        f"Left out, {why_left_out(unit)}: ",
        names(absent),
        class_="left-out",
    )
