"""A table that was checked: an oddity that many columns share takes a few lines, not one for each."""

from collections.abc import Iterable, Iterator, Sequence

from fedboost.results.check import ERROR, SEVERITIES, WARNING, Checked, Oddity, by_severity
from fedboost.views.document import Block, Document, Entries, State, Verdict
from fedboost.views.words import capital, counted, delimited

MAX_ALIKE = 5
"""Columns of one kind of oddity that are described one by one."""


def grouped(oddities: Iterable[Oddity]) -> Iterator[tuple[Oddity, str]]:
    """Yield oddities, the worst first; the last that is described of a kind comes with a sentence on the
    other columns of it."""
    by_kind: dict[str, list[Oddity]] = {}
    for oddity in by_severity(oddities):
        by_kind.setdefault(oddity.kind, []).append(oddity)
    for alike in by_kind.values():
        shown, rest = alike[:MAX_ALIKE], alike[MAX_ALIKE:]
        yield from ((oddity, "") for oddity in shown[:-1])
        yield shown[-1], _others([oddity.column for oddity in rest]) if rest else ""


def _others(columns: Sequence[str]) -> str:
    names = ", ".join(map(delimited, columns[:MAX_ALIKE])) + (", …" if len(columns) > MAX_ALIKE else "")
    return f"the same of {counted(len(columns), 'more column')}: {names}"


def notices(oddities: Iterable[Oddity]) -> Iterator[str]:
    """Yield a line for each oddity that is worth one, or for several columns with the same."""
    for oddity, others in grouped(each for each in oddities if each.is_worth_a_line):
        advice = f"; {oddity.advice}" if oddity.advice else ""
        yield f"{delimited(oddity.column)}: {oddity.sentence}{advice}"
        if others:
            yield others


def check(table: Checked) -> Document:
    """Return what is odd in a table as people read it."""
    part = (
        f", of which the first {table.rows_checked:,} were checked"
        if 0 < table.rows_checked < table.rows
        else ""
    )
    rows = f"{table.table}: {table.rows:,} rows{part}, {counted(table.columns, 'column')}"
    numbers = [counted(table.number(severity), severity) for severity in SEVERITIES if table.number(severity)]
    state: State = "bad" if table.number(ERROR) else "unclear" if table.number(WARNING) else "good"
    about = {"table": rows, "label": table.label, "workers": table.workers}
    blocks: list[Block] = [Verdict(capital(", ".join(numbers)) or "Nothing is odd", state)]
    blocks.append(Entries([(key, text) for key, text in about.items() if text]))
    if table.oddities:
        blocks.append(Entries([*_entries(table.oddities)]))
    return Document("Check of a table", rows, blocks, "the table")


def _entries(oddities: Iterable[Oddity]) -> Iterator[tuple[str, str]]:
    for oddity, others in grouped(oddities):
        yield oddity.severity, f"{delimited(oddity.column)}: {oddity.sentence}"
        if oddity.advice:
            yield "", f"-> {oddity.advice}"
        if others:
            yield "", capital(others)
