"""The description of all parties' rows, in words: a table, and what to change.

Promises: nothing but what the description says; lines of advice name the column and the remedy.
Refuses: nothing.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from fedboost.boosting.programs.tasks import unit_of
from fedboost.people.text import WIDTH, Block, cell, counted, delimited, paragraph, table

MUCH_MISSING = 0.5
"""Share of missing values from which a column is named."""
SHOWN_LEVELS = 6
_QUANTILES = ("0.05", "0.25", "0.5", "0.75", "0.95")

Summary = Mapping[str, Any]


def describe(summary: Summary) -> Iterator[Block]:
    """Yield the rows, a line for each column, and what to change."""
    rows = summary["rows"]
    yield f"{rows:,} rows of all parties\n"
    numbers = [column for column in summary["columns"] if column["kind"] == "numeric"]
    label = summary["label"]
    if "quantiles" in label:
        numbers.append({**label, "missing": 0})
    if numbers:
        yield _numbers(numbers, rows)
    groups = [column for column in summary["columns"] if column["kind"] == "categorical"]
    if "levels" in label:
        groups.append({**label, "missing": 0, "undeclared": 0})
    if groups:
        yield ""
        yield from (_levels(column, rows) for column in groups)
    yield ""
    yield paragraph(
        f"quantiles are rounded as their intervals allow; missing is a share of all rows. {hidden(summary)}"
    )
    for line in advice(summary):
        yield ""
        yield paragraph(line)


def unit(summary: Summary) -> int:
    """Return the rows that a count is told to the nearest of."""
    return 1 if "noise" in summary else unit_of(summary["min_count"])


def hidden(summary: Summary) -> str:
    """Return what of the rows is not told, in a sentence or two."""
    if noise := summary.get("noise"):
        return f"... stands for what is lost in the noise, whose standard deviation is {noise:.3g} rows."
    told = f"Counts are told to the nearest {unit(summary)} rows. " if unit(summary) > 1 else ""
    return f"{told}... stands for quantiles beyond which lie fewer than {summary['min_count']} rows."


def _numbers(columns: list[Any], rows: int) -> Block:
    lines = table("column", "missing", *(f"{float(share):.0%}" for share in _QUANTILES))
    for column in columns:
        known = (column["quantiles"][share] for share in _QUANTILES)
        lines.add_row(cell(column["name"]), share_of(column["missing"], rows), *map(quantile, known))
    return lines


def quantile(interval: list[float] | None) -> str:
    """Return a quantile, an interval, to the digits that its interval has."""
    if interval is None:
        return "..."
    low, high = interval
    middle = (low + high) / 2
    for digits in range(1, 8):
        text = f"{middle:.{digits}g}"
        if low <= float(text) <= high:
            return f"{float(text):g}"
    return f"{low:g}"


def share_of(count: int | None, rows: int) -> str:
    """Return a count as a share of rows."""
    return "..." if count is None else "0" if not count else f"{max(count / max(rows, 1), 0.001):.1%}"


def _levels(column: Any, rows: int) -> str:
    counts = [*column["levels"].items(), ("undeclared", column["undeclared"]), ("missing", column["missing"])]
    counts = [(name, rows_of) for name, rows_of in counts if rows_of != 0 or name in column["levels"]]
    known = sorted(counts, key=lambda pair: -(pair[1] or 0))
    words = [f"{delimited(name)} {share_of(count, rows)}" for name, count in known[:SHOWN_LEVELS]]
    further = len(known) - SHOWN_LEVELS
    words += [f"{further} more"] if further > 0 else []
    return textwrap.fill(f"{delimited(column['name'])}: {', '.join(words)}", WIDTH, subsequent_indent="  ")


def advice(summary: Summary) -> Iterator[str]:
    """Yield what to change in the terms or the tables, a sentence each."""
    rows, least = summary["rows"], unit(summary)
    for column in summary["columns"]:
        name, missing = delimited(column["name"]), column["missing"]
        is_empty = missing is not None and rows - missing < least
        if is_empty:
            held = "no value in any row" if least == 1 else f"a value in fewer than {least} rows"
            yield f"column {name} has {held}: take it out of the terms"
        elif missing is not None and missing > MUCH_MISSING * rows:
            share = f"{missing / max(rows, 1):.0%}"
            yield f"column {name} is missing in {share} of the rows: is it named alike at all sites?"
        if column["kind"] == "categorical":
            yield from _advice_on_levels(column, name, summary)
        elif column["constant"] and not is_empty:
            yield f"column {name} has one value in all rows that have any: take it out of the terms"
        elif (gap := column.get("gap")) is not None:
            low, high = (float(f"{end:.2g}") for end in gap)
            yield (
                f"column {name} has values up to about {low:g} and from about {high:g} on, and few between: "
                f"do all sites use the same unit?"
            )
    label = summary["label"]
    levels = label.get("levels", {})
    if empty := [level for level, count in levels.items() if count == 0]:
        listed = ", ".join(map(delimited, empty))
        yield f"label {delimited(label['name'])} {_hardly(least, listed)}: is it spelled so?"
    if label.get("constant"):
        yield f"label {delimited(label['name'])} is the same in every row: there is nothing to learn"


def _hardly(least: int, levels: str) -> str:
    return f"never has {levels}" if least == 1 else f"has {levels} in fewer than {(least + 1) // 2} rows"


def _advice_on_levels(column: Any, name: str, summary: Summary) -> Iterator[str]:
    if "noise" in summary and column["undeclared"] is None:
        return
    least = unit(summary)
    undeclared, empty = column["undeclared"], [key for key, count in column["levels"].items() if count == 0]
    if undeclared != 0:
        about = "" if least == 1 else "about "
        number = "some rows" if undeclared is None else f"{about}{undeclared:,} rows"
        yield (
            f"column {name} has other levels than those declared in {number}, which count as missing: "
            f"declare them under [columns.categorical], or correct the tables (`fedboost check` at each site "
            f"names them)"
        )
    if empty:
        shown, more = empty[:SHOWN_LEVELS], len(empty) - SHOWN_LEVELS
        rest = f" and {counted(more, 'more level')}" if more > 0 else ""
        listed = ", ".join(map(delimited, shown))
        yield f"column {name} {_hardly(least, listed + rest)}: take them away, or correct them"
    present = [count for count in column["levels"].values() if count != 0]
    if len(present) == 1 and undeclared == 0:
        all_rows = "all rows" if least == 1 else "nearly all rows"
        yield f"column {name} has one level in {all_rows} that have any: take it out of the terms"
