"""The page of a description: rows, columns, levels and the label, and what to change.

Promises: nothing but what the description says.
Refuses: nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from fedboost.people.description import advice, hidden, quantile, share_of
from fedboost.people.report.charts import MAX_BARS, bars
from fedboost.people.report.facts import ResultFacts
from fedboost.people.report.markup import Markup, element, joined, left_out, paragraph, table
from fedboost.people.report.result import result_page, warned
from fedboost.people.report.skeleton import Sections
from fedboost.people.text import counted

MAX_CHARTS = 6
"""Columns whose levels are drawn."""


def description_page(facts: ResultFacts) -> str:
    """Return the page."""
    summary = facts.summary
    numeric = [column for column in summary["columns"] if column["kind"] == "numeric"]
    categorical = [column for column in summary["columns"] if column["kind"] == "categorical"]
    sections: Sections = {
        "warnings": ("Warnings", warned((), facts)),
        "advice": ("What to change", _advice(facts)),
        "missing": ("Missing values", _missing(facts)),
        "numbers": ("Numbers", _numbers(numeric, summary["rows"])),
        "levels": ("Levels", _levels(categorical, summary["rows"])),
        "label": ("The label", _label(summary["label"], summary["rows"])),
    }
    lead = f"{summary['rows']:,} rows of all parties, {counted(len(summary['columns']), 'column')}"
    return result_page(facts, "Description of the rows", lead, "describe", sections)


def _advice(facts: ResultFacts) -> Markup:
    lines = [
        line[0].upper() + line[1:] + ("" if line.endswith("?") else ".") for line in advice(facts.summary)
    ]
    said = element("ul", *(element("li", line) for line in lines), class_="warnings") if lines else None
    return joined(said or paragraph("Nothing."), paragraph(hidden(facts.summary).replace("...", "…")))


def _missing(facts: ResultFacts) -> Markup:
    rows = max(facts.summary["rows"], 1)
    counts = [(each["name"], each["missing"]) for each in facts.summary["columns"]]
    known = sorted(((name, count) for name, count in counts if count), key=lambda pair: -pair[1])
    if not known:
        return paragraph("No column has missing values, as far as it is told.")
    title = "Percent of the rows without a value"
    title += f", the first {MAX_BARS} of {len(known)} columns" if len(known) > MAX_BARS else ""
    return bars(title, [(name, 100 * count / rows) for name, count in known], "percent of the rows")


def _numbers(columns: Sequence[Any], rows: int) -> Markup:
    if not columns:
        return left_out("The terms have no numeric features.")
    return joined(
        table("Quantiles of each numeric feature", _headings(columns), _quantiles(columns, rows)),
        paragraph("Quantiles are rounded as their intervals allow; missing is a share of all rows."),
    )


def _headings(columns: Sequence[Any]) -> list[str]:
    return ["column", "missing", *(f"{float(share):.0%}" for share in columns[0]["quantiles"])]


def _quantiles(columns: Sequence[Any], rows: int) -> Iterator[Sequence[str]]:
    for column in columns:
        values = (_shown(quantile(value)) for value in column["quantiles"].values())
        yield column["name"], _shown(share_of(column.get("missing", 0), rows)), *values


def _levels(columns: Sequence[Any], rows: int) -> Markup:
    if not columns:
        return left_out("The terms have no categorical features.")
    drawn = [_chart(column["name"], column["levels"]) for column in columns[:MAX_CHARTS]]
    lines = (
        (column["name"], level, _count(count), _shown(share_of(count, rows)))
        for column in columns
        for level, count in [
            *column["levels"].items(),
            ("(other levels)", column["undeclared"]),
            ("(missing)", column["missing"]),
        ]
    )
    headings = ["column", "level", "rows", "share"]
    return joined(
        element("div", *drawn, class_="charts"),
        left_out(f"Drawn are the first {MAX_CHARTS} of {len(columns)} columns; the table has all.")
        if len(columns) > MAX_CHARTS
        else "",
        table("Rows of each level", headings, lines, (2, 3)),
    )


def _chart(name: str, levels: Any) -> Markup:
    known = [(level, float(count)) for level, count in levels.items() if count is not None]
    ranked = sorted(known, key=lambda pair: -pair[1])
    few = f", the first {MAX_BARS} of {len(ranked)} levels" if len(ranked) > MAX_BARS else ""
    return bars(f"Rows by {name}{few}", ranked, "rows")


def _label(label: Any, rows: int) -> Markup:
    if "levels" in label:
        lines = (
            (name, _count(count), _shown(share_of(count, rows))) for name, count in label["levels"].items()
        )
        return joined(
            _chart(label["name"], label["levels"]),
            table(f"Rows by {label['name']}", ["label", "rows", "share"], lines),
        )
    if "quantiles" in label:
        return table(f"Quantiles of {label['name']}", _headings([label]), _quantiles([label], rows))
    return left_out(f"Nothing is told of the values of {label['name']}.")


def _count(count: int | None) -> str:
    return "…" if count is None else f"{count:,}"


def _shown(text: str) -> str:
    return "…" if text == "..." else text
