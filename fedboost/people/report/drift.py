"""The page of a drift: the columns that moved, the furthest first, and where their rows went.

Promises: nothing but what the result says.
Refuses: nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from fedboost.people.drift import MOVED_BY_CHANCE, most_moved, values_of
from fedboost.people.report.charts import MAX_BARS, bars, pairs
from fedboost.people.report.facts import ResultFacts
from fedboost.people.report.markup import Markup, element, joined, paragraph, table
from fedboost.people.report.result import result_page, warned
from fedboost.people.report.skeleton import Sections
from fedboost.people.text import counted

MAX_CHARTS = 8
"""Columns whose bins are drawn."""
FAR = "moved", "shifted"


def drift_page(facts: ResultFacts) -> str:
    """Return the page."""
    summary = facts.summary
    *columns, score = summary["columns"]
    ranked = [*sorted(columns, key=lambda each: -(each["psi"] or 0)), score]
    sections: Sections = {
        "warnings": ("Warnings", warned([*_moved(ranked)], facts)),
        "columns": ("How far each column moved", _columns(ranked, summary["min_count"])),
        "bins": ("Where the rows went", _bins(ranked)),
    }
    lead = f"{summary['rows']:,} rows of all parties, against {summary['reference_rows']:,} of the training"
    return result_page(facts, "Drift of the rows", lead, "drift", sections)


def _moved(columns: Sequence[Any]) -> Iterator[str]:
    far = [each["name"] for each in columns[:-1] if each["verdict"] in FAR]
    if far:
        more = f" and {len(far) - MAX_BARS} more" if len(far) > MAX_BARS else ""
        yield (
            f"{counted(len(far), 'column')} moved since the training: {', '.join(far[:MAX_BARS])}{more}. "
            "That alone does not say that the model is worse: evaluate it where labels are known."
        )
    if columns[-1]["verdict"] in FAR:
        yield "The score of the model moved: it predicts otherwise than for the rows of its training."


def _columns(columns: Sequence[Any], floor: int) -> Markup:
    lines = (
        (
            each["name"],
            "…" if each["psi"] is None else f"{each['psi']:.3f}",
            f"{each['by_chance']:.3f}",
            each["verdict"],
            most_moved(each),
        )
        for each in columns
    )
    known = [(each["name"], each["psi"]) for each in columns if each["psi"] is not None]
    few = f", the first {MAX_BARS} of {len(known)}" if len(known) > MAX_BARS else ""
    headings = ["column", "psi", "by chance", "verdict", "most moved"]
    return joined(
        bars(f"Population stability index{few}", known, "population stability index"),
        table("Columns, the furthest first, and the score", headings, lines, (1, 2)),
        paragraph(
            f"psi: population stability index. {MOVED_BY_CHANCE} Bins of fewer than {floor} rows are merged."
        ),
    )


def _bins(columns: Sequence[Any]) -> Markup:
    told = [each for each in columns if each["psi"] is not None]
    drawn = [each for each in told[:-1] if each["verdict"] != "stable"][:MAX_CHARTS] + told[-1:]
    lines = (
        (
            each["name"],
            values_of(one),
            f"{one['reference']:,}",
            f"{before:.1%}",
            f"{one['rows']:,}",
            f"{after:.1%}",
        )
        for each in told
        for one, before, after in _shares(each)
    )
    headings = ["column", "values", "rows of the training", "share", "rows today", "share today"]
    return joined(
        paragraph(
            f"Drawn are the columns that moved by more than chance, at most {MAX_CHARTS}, and the score."
        ),
        element("div", *map(_chart, drawn), class_="charts"),
        table("Rows by bin of each column", headings, lines, range(2, 6), folded=True),
    )


def _chart(column: Any) -> Markup:
    values = [(_short(one), 100 * before, 100 * after) for one, before, after in _shares(column)]
    few = f", the first {MAX_BARS} of {len(values)} bins" if len(values) > MAX_BARS else ""
    return pairs(
        f"Percent of the rows by {column['name']}{few}", values, ("training", "today"), "percent of the rows"
    )


def _short(one: Any) -> str:
    """The values of a bin in few characters."""
    ends = one.get("low"), one.get("high")
    if None in ends:
        return values_of(one)
    return f"{ends[0]:.4g} to {ends[1]:.4g}" + (" or missing" if one.get("missing") else "")


def _shares(column: Any) -> Iterator[tuple[Any, float, float]]:
    """Yield each bin with its share of the rows then and now."""
    sums = [max(sum(one[key] for one in column["bins"]), 1) for key in ("reference", "rows")]
    for one in column["bins"]:
        yield one, one["reference"] / sums[0], one["rows"] / sums[1]
