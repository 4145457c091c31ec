"""Rows held against those of a training: whether anything moved, what did, and where its rows went."""

from collections.abc import Iterator, Sequence

from fedboost.results.drift import Drift, DriftBin, DriftColumn
from fedboost.views.charts import MAX_BARS
from fedboost.views.document import (
    Beside,
    Block,
    Document,
    Figure,
    Figures,
    Pairs,
    Section,
    Table,
    Verdict,
    note,
    unless_empty,
    warnings,
)
from fedboost.views.session import result_document, session_warnings
from fedboost.views.words import counted, delimited, listed

MAX_CHARTS = 8
"""Columns whose bins are drawn."""
MAX_NAMED = 5
"""Columns that the verdict names."""
MOVED_BY_CHANCE = (
    "By chance: draws of so many of the same rows stay below it 999 times in 1,000. A column is stable below "
    "that, slight below 0.1, moved below 0.25, and shifted from there on."
)
"""The verdicts in words."""


def drift(result: Drift) -> Document:
    """Return the result as people read it."""
    *columns, score = result.columns
    ranked = [*sorted(columns, key=lambda each: -(each.psi or 0)), score]
    far = [each for each in ranked if each.verdict != "stable" and each.psi is not None]
    others = [each for each in ranked if each not in far]
    blocks = (
        verdict(result),
        Figures(
            [
                Figure("rows", f"{result.rows:,}", "of all parties, now"),
                Figure("rows of the training", f"{result.reference_rows:,}"),
                Figure(
                    "columns that moved", f"{len([c for c in columns if c.has_moved])}", f"of {len(columns)}"
                ),
                Figure("score of the model", "…" if score.psi is None else f"{score.psi:.3f}", score.verdict),
            ]
        ),
        *warnings([*session_warnings(result.session)]),
        *([Section("columns", "What moved", [*_moved(far)])] if far else []),
        note(
            f"PSI is the population stability index. {MOVED_BY_CHANCE} Bins of fewer than "
            f"{result.min_count} rows are merged."
        ),
        Section("others", f"Stable columns ({len(others)})", unless_empty(_indices(others)), folded=True),
        Section("bins", "Rows by bin of each column", [_bins(ranked)], folded=True),
    )
    lead = f"{result.rows:,} rows of all parties, against {result.reference_rows:,} of the training"
    return result_document(result, "Drift since the training", lead, blocks)


def verdict(result: Drift) -> Verdict:
    """Return whether anything moved, in a sentence."""
    *columns, score = result.columns
    moved = [each.name for each in columns if each.has_moved]
    slight = [each.name for each in columns if each.verdict == "slight"]
    if moved:
        more = f" and {len(moved) - MAX_NAMED} more" if len(moved) > MAX_NAMED else ""
        text = f"{counted(len(moved), 'column')} moved since the training: {listed(moved[:MAX_NAMED])}{more}."
    elif slight:
        text = f"{counted(len(slight), 'column')} moved slightly, and none far: {listed(slight[:MAX_NAMED])}."
    elif all(each.psi is None for each in columns):
        text = "Whether a column moved cannot be decided: too few rows lie outside one bin."
    else:
        text = "No column moved by more than chance."
    of_score = {
        "moved": "The score of the model moved: look at its predictions before you use them.",
        "shifted": "The score of the model moved far: look at its predictions before you use them.",
        "slight": "The score of the model moved slightly.",
        "stable": "The score of the model did not move.",
    }
    state = (
        "bad" if moved or score.has_moved else "unclear" if slight or score.verdict == "slight" else "good"
    )
    return Verdict(text, state, [*filter(None, [of_score.get(score.verdict)])])  # type: ignore[arg-type]


def _moved(columns: Sequence[DriftColumn]) -> Iterator[Block]:
    yield _indices(columns)
    yield Beside([_chart(each) for each in columns[:MAX_CHARTS]])
    if len(columns) > MAX_CHARTS:
        yield note(f"Drawn are the {MAX_CHARTS} that moved furthest.")


def _indices(columns: Sequence[DriftColumn]) -> Table:
    rows = [
        (
            each.name,
            "…" if each.psi is None else f"{each.psi:.3f}",
            f"{each.by_chance:.3f}",
            each.verdict,
            most_moved(each),
        )
        for each in columns
    ]
    headings = ["column", "psi", "by chance", "verdict", "most moved"]
    return Table("How far each column moved", headings, rows, (1, 2))


def _chart(column: DriftColumn) -> Pairs:
    values = [(_short(one), 100 * before, 100 * after) for one, before, after in _shares(column)]
    few = f", the first {MAX_BARS} of {len(values)} bins" if len(values) > MAX_BARS else ""
    title = f"Percent of the rows by {column.name}{few}"
    return Pairs(title, values, ("training", "today"), "percent of the rows")


def _bins(columns: Sequence[DriftColumn]) -> Table:
    rows = [
        (each.name, values_of(one), f"{one.reference:,}", f"{before:.1%}", f"{one.rows:,}", f"{after:.1%}")
        for each in columns
        for one, before, after in _shares(each)
    ]
    headings = ["column", "values", "rows of the training", "share", "rows today", "share today"]
    return Table("Rows by bin of each column", headings, rows, range(2, 6), folded=True)


def _shares(column: DriftColumn) -> Iterator[tuple[DriftBin, float, float]]:
    """Yield each bin with its share of the rows then and now."""
    before, after = (
        max(sum(each), 1) for each in zip(*((b.reference, b.rows) for b in column.bins), strict=True)
    )
    for one in column.bins:
        yield one, one.reference / before, one.rows / after


def most_moved(column: DriftColumn) -> str:
    """Return the bin whose share of rows changed most, if any changed."""
    if column.psi is None:
        return ""
    one, before, after = max(_shares(column), key=lambda share: abs(share[2] - share[1]))
    shown = f"{before:.1%}", f"{after:.1%}"
    return "" if shown[0] == shown[1] else f"{values_of(one)}: {' to '.join(shown)}"


def values_of(one: DriftBin) -> str:
    """Return the values that a bin has, in words."""
    if one.levels:
        return " or ".join(map(delimited, one.levels[:3])) + (" ..." if len(one.levels) > 3 else "")
    if "low" not in one.model_fields_set:
        return "missing"
    ends = [f"from {one.low:.4g}"] if one.low is not None else []
    ends += [f"below {one.high:.4g}"] if one.high is not None else []
    return " ".join(ends or ["any value"]) + (" or missing" if one.missing else "")


def _short(one: DriftBin) -> str:
    """The values of a bin in few characters."""
    if one.low is None or one.high is None:
        return values_of(one)
    return f"{one.low:.4g} to {one.high:.4g}" + (" or missing" if one.missing else "")
