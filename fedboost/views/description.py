"""The description of the rows of all parties: what to change, then the columns, levels and label."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedboost.results.description import Column, Description, Interval
from fedboost.views.charts import MAX_BARS
from fedboost.views.document import (
    Bars,
    Beside,
    Block,
    Document,
    Figure,
    Figures,
    Line,
    Section,
    Table,
    Verdict,
    note,
    warnings,
)
from fedboost.views.evaluation import count
from fedboost.views.session import result_document, session_warnings
from fedboost.views.words import capital, counted, delimited

MUCH_MISSING = 0.5
"""Share of missing values from which a column is named."""
SHOWN_LEVELS = 6
"""Levels that a hint names."""
MAX_CHARTS = 6
"""Columns whose levels are drawn."""
_QUANTILES = ("0.05", "0.25", "0.5", "0.75", "0.95")


def description(result: Description) -> Document:
    """Return the description as people read it."""
    rows, found = result.rows, [*hints(result)]
    numbers = [column for column in result.columns if column.is_numeric]
    groups = [column for column in result.columns if not column.is_numeric]
    missing = [column for column in result.columns if column.missing]
    figures = [
        Figure("rows", f"{rows:,}", "of all parties"),
        Figure("columns", f"{len(result.columns)}", f"{len(numbers)} numeric, {len(groups)} categorical"),
        Figure("columns with missing values", f"{len(missing)}"),
    ]
    blocks = (
        _verdict(result, len(found)),
        Figures(figures),
        *warnings([*session_warnings(result.session)]),
        *([_hints(found)] if found else []),
        Section("columns", "Columns", [*_columns(numbers, groups, missing, result)]),
        Section("label", "The label", [*_label(result.label, rows)]),
        note(hidden(result)),
    )
    lead = f"{rows:,} rows of all parties, {counted(len(result.columns), 'column')}"
    return result_document(result, "Description of the rows", lead, blocks)


def _verdict(result: Description, hints: int) -> Verdict:
    if not hints:
        return Verdict("Nothing in these rows needs a change of the terms or the tables.", "good")
    them = "1 thing to look at" if hints == 1 else f"{hints} things to look at"
    return Verdict(f"{them} before a training on these rows.", "unclear")


def hidden(result: Description) -> str:
    """Return what of the rows is left out, in a sentence or two."""
    if result.noise:
        return (
            f"“…” stands for what is lost in the noise, whose standard deviation is {result.noise:.3g} rows."
        )
    unit = result.unit
    rounded = f"Counts are rounded to {unit} rows. " if unit > 1 else ""
    return f"{rounded}“…” stands for quantiles beyond which lie fewer than {result.min_count} rows."


# ---- What to change in the terms or the tables ----------------------------------------------------------


@dataclass(frozen=True)
class Hint:
    """Something to look at. what: `column` or `label`; name: of it; remedy: what to do, or to ask."""

    what: str
    name: str
    finding: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {delimited(self.name)} {self.finding}: {self.remedy}"


def _hints(found: Sequence[Hint]) -> Section:
    rows = [
        (
            each.name if each.what == "column" else f"{each.name} (label)",
            capital(each.finding),
            capital(each.remedy),
        )
        for each in found
    ]
    return Section(
        "advice",
        "What to change",
        [Table("Hints", ["column", "finding", "what to do"], rows, (), folded=False)],
    )


def hints(result: Description) -> Iterator[Hint]:
    """Yield what to change in the terms or the tables."""
    rows, least = result.rows, result.unit
    for column in result.columns:
        missing = column.missing
        is_empty = missing is not None and rows - missing < least
        if is_empty:
            held = "no value in any row" if least == 1 else f"a value in fewer than {least} rows"
            yield Hint("column", column.name, f"has {held}", "take it out of the terms")
        elif missing is not None and missing > MUCH_MISSING * rows:
            part = f"is missing in {missing / max(rows, 1):.0%} of the rows"
            yield Hint("column", column.name, part, "is it named alike at all sites?")
        if not column.is_numeric:
            yield from _hints_on_levels(column, result)
        elif column.constant and not is_empty:
            one = "has one value in all rows that have any"
            yield Hint("column", column.name, one, "take it out of the terms")
        elif column.gap is not None:
            low, high = (float(f"{end:.2g}") for end in column.gap)
            far = f"has values up to about {low:g} and from about {high:g} on, and few between"
            yield Hint("column", column.name, far, "do all sites use the same unit?")
    label = result.label
    if empty := [level for level, rows_of in label.levels.items() if rows_of == 0]:
        yield Hint("label", label.name, _hardly(least, ", ".join(map(delimited, empty))), "is it spelled so?")
    if label.constant:
        yield Hint("label", label.name, "is the same in every row", "there is nothing to learn")


def _hardly(least: int, levels: str) -> str:
    return f"never has {levels}" if least == 1 else f"has {levels} in fewer than {(least + 1) // 2} rows"


def _hints_on_levels(column: Column, result: Description) -> Iterator[Hint]:
    undeclared, least = column.undeclared, result.unit
    if result.noise is not None and undeclared is None:
        return
    if undeclared != 0:
        about = "" if least == 1 else "about "
        number = "some rows" if undeclared is None else f"{about}{undeclared:,} rows"
        yield Hint(
            "column",
            column.name,
            f"has other levels than those declared in {number}, which count as missing",
            "declare them under [columns.categorical], or correct the tables (`fedboost check` at each site "
            "names them)",
        )
    if empty := [level for level, rows in column.levels.items() if rows == 0]:
        shown, more = empty[:SHOWN_LEVELS], len(empty) - SHOWN_LEVELS
        rest = f" and {counted(more, 'more level')}" if more > 0 else ""
        levels = ", ".join(map(delimited, shown)) + rest
        yield Hint("column", column.name, _hardly(least, levels), "take them away, or correct them")
    present = [rows for rows in column.levels.values() if rows != 0]
    if len(present) == 1 and undeclared == 0:
        all_rows = "all rows" if least == 1 else "nearly all rows"
        one = f"has one level in {all_rows} that have any"
        yield Hint("column", column.name, one, "take it out of the terms")


# ---- Columns and the label ------------------------------------------------------------------------------


def _columns(
    numbers: Sequence[Column], groups: Sequence[Column], missing: Sequence[Column], result: Description
) -> Iterator[Block]:
    rows = result.rows
    if numbers:
        yield _quantiles("Quantiles of each numeric feature", numbers, rows)
        yield note("Quantiles are rounded as their intervals allow; missing is a share of all rows.")
    else:
        yield note("The terms have no numeric features.")
    charts: list[Block] = []
    if known := sorted(
        ((c.name, 100 * (c.missing or 0) / max(rows, 1)) for c in missing), key=lambda p: -p[1]
    ):
        title = "Percent of the rows without a value" + _first(len(known), "columns")
        charts.append(Bars(title, known, "percent of the rows"))
    charts += [_levels(column) for column in groups[:MAX_CHARTS]]
    yield Beside(charts)
    if len(groups) > MAX_CHARTS:
        yield note(f"Drawn are the first {MAX_CHARTS} of {len(groups)} columns; the table has all.")
    if groups:
        lines = [line for column in groups for line in _rows_of_levels(column, rows)]
        yield Table("Rows of each level", ["column", "level", "rows", "share"], lines, (2, 3))
    else:
        yield note("The terms have no categorical features.")


def _first(number: int, what: str) -> str:
    return f", the first {MAX_BARS} of {number} {what}" if number > MAX_BARS else ""


def _quantiles(caption: str, columns: Sequence[Column], rows: int) -> Table:
    lines = [
        (column.name, share_of(column.missing, rows), *(quantile(column.quantiles[q]) for q in _QUANTILES))
        for column in columns
    ]
    return Table(caption, ["column", "missing", *(f"{float(q):.0%}" for q in _QUANTILES)], lines)


def _levels(column: Column) -> Bars:
    known = [(level, float(rows)) for level, rows in column.levels.items() if rows is not None]
    ranked = sorted(known, key=lambda pair: -pair[1])
    return Bars(f"Rows by {column.name}{_first(len(ranked), 'levels')}", ranked, "rows")


def _rows_of_levels(column: Column, rows: int) -> Iterator[Sequence[Line]]:
    others = {"(other levels)": column.undeclared, "(missing)": column.missing}
    for level, known in (*column.levels.items(), *((n, c) for n, c in others.items() if c != 0)):
        yield column.name, level, count(known), share_of(known, rows)


def _label(label: Column, rows: int) -> Iterator[Block]:
    if label.levels:
        lines = [(name, count(known), share_of(known, rows)) for name, known in label.levels.items()]
        yield Table(f"Rows by {label.name}", ["label", "rows", "share"], lines)
    elif label.is_numeric:
        yield _quantiles(f"Quantiles of {label.name}", [label], rows)
    else:
        yield note(f"The values of {label.name} are left out.")


def quantile(interval: Interval | None) -> str:
    """Return a quantile, an interval, to the digits that its interval has."""
    if interval is None:
        return "…"
    low, high = interval
    middle = (low + high) / 2
    for digits in range(1, 8):
        text = f"{middle:.{digits}g}"
        if low <= float(text) <= high:
            return f"{float(text):g}"
    return f"{low:g}"


def share_of(known: int | None, rows: int) -> str:
    """Return a count as a share of rows."""
    return "…" if known is None else "0" if not known else f"{max(known / max(rows, 1), 0.001):.1%}"
