"""Rows held against those of a model, in words: a line for each column.

Promises: nothing but what the result says.
Refuses: nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fedboost.people.text import Block, cell, delimited, paragraph, table

MOVED_BY_CHANCE = (
    "By chance: what draws of so many of the same rows stay below 999 times in 1,000, stable. Above that: "
    "slight below 0.1, moved to 0.25, shifted from there on."
)
"""The verdicts in words."""


def drifted(summary: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a table of the columns, the furthest first but for the score, and where most rows went."""
    yield f"{summary['rows']:,} rows of all parties, against {summary['reference_rows']:,} of the training\n"
    *columns, score = summary["columns"]
    lines = table("column", "psi", "by chance", "verdict", "most moved", numbers=(1, 2))
    for column in [*sorted(columns, key=lambda each: -(each["psi"] or 0)), score]:
        psi = "..." if column["psi"] is None else f"{column['psi']:.3f}"
        chance = f"{column['by_chance']:.3f}"
        lines.add_row(cell(column["name"]), psi, chance, column["verdict"], cell(most_moved(column)))
    yield lines
    yield ""
    yield paragraph(
        f"psi: population stability index. {MOVED_BY_CHANCE} Bins of fewer than {summary['min_count']} rows "
        "are merged."
    )


def most_moved(column: Any) -> str:
    """Return the bin whose share of rows changed most, if any changed."""
    if column["psi"] is None:
        return ""
    bins = column["bins"]
    sums = [sum(each[key] for each in bins) for key in ("reference", "rows")]
    shares = [(each["reference"] / sums[0], each["rows"] / sums[1], each) for each in bins]
    before, after, each = max(shares, key=lambda share: abs(share[1] - share[0]))
    shown = f"{before:.1%}", f"{after:.1%}"
    return "" if shown[0] == shown[1] else f"{values_of(each)}: {' to '.join(shown)}"


def values_of(each: Any) -> str:
    """Return the values that a bin has, in words."""
    if "levels" in each:
        return " or ".join(map(delimited, each["levels"][:3])) + (" ..." if len(each["levels"]) > 3 else "")
    if "low" not in each:
        return "missing"
    low, high = each["low"], each["high"]
    ends = [f"from {low:.4g}"] if low is not None else []
    ends += [f"below {high:.4g}"] if high is not None else []
    return " ".join(ends or ["any value"]) + (" or missing" if each.get("missing") else "")
