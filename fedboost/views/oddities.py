"""Oddities of a table in words: what is odd in a column, and what to do about it.

Promises: every kind of oddity has its severity, its sentence and its advice in `KINDS`; an oddity that many
columns share takes a few lines, not one for each.
Refuses: nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedboost.views.words import Block, counted, delimited, entry, one_line

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = ERROR, WARNING, NOTE
"""Stops a training; spoils it, or costs it a column; good to know."""
MAX_ALIKE = 5
"""Columns of one kind of oddity that are described one by one."""


@dataclass(frozen=True)
class Oddity:
    """An oddity of a column. kind: its key in `KINDS`; rows: those that it concerns, of this many; values:
    examples, in words; figure: the measure of the kind, if it has one."""

    kind: str
    column: str
    rows: int = 0
    of_rows: int = 0
    values: tuple[str, ...] = ()
    figure: float = 0.0
    left_out: bool = False
    """True if a draft has no such feature for this reason."""

    @property
    def severity(self) -> str:
        """The severity of its kind."""
        return KINDS[self.kind].severity

    @property
    def sentence(self) -> str:
        """The description, without the column."""
        return self._fill(KINDS[self.kind].sentence) + ("; it is left out" if self.left_out else "")

    @property
    def advice(self) -> str:
        """The advice, "" where nothing is to be done."""
        return self._fill(KINDS[self.kind].advice)

    @property
    def line(self) -> str:
        """The column, the description and the advice, on one line."""
        return f"{delimited(self.column)}: {self.sentence}" + (f"; {self.advice}" if self.advice else "")

    def _fill(self, template: str) -> str:
        values = ", ".join(self.values)
        first = self.values[0] if self.values else ""
        return template.format(
            rows=self.rows, of=self.of_rows, values=values, first=first,
            figure=self.figure,
        )  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of oddity: its severity, and the templates of its sentence and its advice."""

    severity: str
    sentence: str
    advice: str = ""


_ASK = "is it known before the label is? If not, leave it out"
_LEAVE = "leave it out (--exclude, when terms are drafted)"
KINDS = {
    "undraftable": Kind(ERROR, "{first}"),
    "unlabelled": Kind(
        ERROR,
        "the label is missing in {rows:,} of {of:,} rows, and a party refuses to train with them",
        "fill them in, or drop these rows",
    ),
    "absent": Kind(
        ERROR,
        "the terms name this column, and the table does not have it",
        "{first}name it so in the table, or in a file that the site's file has as names; where it is not at "
        "all, take it out of the terms",
    ),
    "unfit": Kind(ERROR, "{first}"),
    "words": Kind(
        WARNING,
        "words stand among numbers, in {rows:,} of {of:,} values: {values}",
        "if they stand for missing values, read them as such: --na WORD, na under [read] in the site's file",
    ),
    "decimal commas": Kind(
        WARNING,
        "{rows:,} of {of:,} values have a decimal comma: {values}",
        'read them as numbers: --decimal ",", or decimal under [read] in the site\'s file',
    ),
    "mixed decimals": Kind(
        WARNING,
        "{rows:,} of {of:,} values have a decimal comma or point, and both stand in the column: {values}",
        "write all with the same one in the table, so that they are numbers",
    ),
    "decimal points": Kind(
        NOTE,
        "{rows:,} of {of:,} values are text with a point, which is read as that of decimals: {values}",
        "if it stands between thousands, take it out of the table",
    ),
    "thousands": Kind(
        WARNING,
        "{rows:,} of {of:,} values have commas or points between thousands: {values}",
        "take them out of the table, so that they are numbers",
    ),
    "signs": Kind(
        WARNING,
        "{rows:,} of {of:,} values have signs beside the number: {values}",
        "take the signs out of the table, so that they are numbers",
    ),
    "spelling": Kind(
        WARNING,
        "{rows:,} of {of:,} values differ from another in blanks or case alone: {values}",
        "spell them the same, else they count as different categories, classes or sites",
    ),
    "sites": Kind(
        WARNING,
        "a site of this name and one called {first} differ in blanks or case alone",
        "spell them the same if they are one",
    ),
    "date": Kind(
        WARNING,
        "dates or times ({first}), which can be no feature as they are",
        "make numbers of them in the table, such as days since a fixed day, month, weekday or hour, or leave "
        "them out",
    ),
    "identifier": Kind(
        WARNING,
        "{rows:,} distinct values in {of:,} rows ({values}): an identifier or a row number",
        f"{_LEAVE}: a model learns rows by heart from it",
    ),
    "distinct": Kind(
        NOTE,
        "each of {of:,} rows has a whole number of its own ({values})",
        f"if it identifies rows, {_LEAVE}",
    ),
    "categories": Kind(
        WARNING,
        "{rows:,} categories, and a column can have {figure:.0f}",
        "group the rare ones in the table, or leave it out",
    ),
    "left out": Kind(WARNING, "is left out, for it {first}", "change it in the table to use it"),
    "infinite": Kind(
        WARNING,
        "{rows:,} of {of:,} values are infinite or too large for a 32-bit float",
        "replace them, or leave them empty: a party refuses rows with them",
    ),
    "gives away": Kind(
        WARNING,
        "gives the label away: one split by it has an AUC of {figure:.3f}",
        _ASK,
    ),
    "predicts": Kind(
        WARNING, "gives the label away: its rank correlation with it is {figure:.3f}", _ASK
    ),
    "tells classes": Kind(
        WARNING, "gives the label away: it alone tells the class of {figure:.1%} of the rows", _ASK
    ),
    "rounded": Kind(
        WARNING,
        "{rows:,} of {of:,} distinct whole numbers ({values}) become equal to another as 32-bit floats, "
        "which are exact to 16,777,216",
        "if they are codes, make them text or leave them out",
    ),
    "undeclared": Kind(
        WARNING,
        "{rows:,} of {of:,} rows have a category that the terms do not declare ({values}): it counts as "
        "missing",
        "tell the analyst, or spell it as the terms do",
    ),
    "empty": Kind(NOTE, "has no values"),
    "nearly empty": Kind(
        NOTE,
        "{rows:,} of {of:,} values are missing",
        "if other sites have it filled in, is it named and filled in alike here?",
    ),
    "constant": Kind(NOTE, "{first} in every row: no tree can split on it here"),
    "nearly constant": Kind(NOTE, "{first} in all but {figure:,.0f} of {of:,} rows"),
    "positive": Kind(
        NOTE,
        "{first}, in {rows:,} of {of:,} rows, counts as 1 because it is the rarer value: predictions are its "
        "probability",
        "set positive under [columns] for the other",
    ),
    "few numbers": Kind(
        NOTE,
        "{rows} distinct whole numbers, taken for amounts",
        "if they stand for classes: objective multi:softprob",
    ),
}  # fmt: skip
"""Every kind of oddity. "gives away", "predicts" and "tells classes" are one, for three kinds of label."""

_DECIDED = {"positive", "few numbers"}
"""Kinds that a draft decided by itself."""


@dataclass(frozen=True)
class CheckFacts:
    """A table that was checked. rows, total: those looked at, of all; label: its sentence, "" without one;
    workers: what workers looked at, a sentence, where the rows are on some."""

    source: str
    rows: int
    total: int
    columns: int
    label: str
    oddities: Sequence[Oddity]
    workers: str = ""

    def number(self, severity: str) -> int:
        """The number of oddities of a severity."""
        return sum(oddity.severity == severity for oddity in self.oddities)

    @property
    def serious(self) -> bool:
        """True if a training would be stopped or spoilt."""
        return self.number(ERROR) + self.number(WARNING) > 0


def worth_a_line(oddity: Oddity) -> bool:
    """Tell if an oddity is said by itself where a table was not asked about: more than a note, or decided."""
    return oddity.severity != NOTE or oddity.left_out or oddity.kind in _DECIDED


def by_severity(oddities: Iterable[Oddity]) -> list[Oddity]:
    """Return oddities with the worst first, by kind."""
    kinds = list(KINDS)
    return sorted(oddities, key=lambda odd: (SEVERITIES.index(odd.severity), kinds.index(odd.kind)))


def grouped(oddities: Iterable[Oddity]) -> Iterator[tuple[Oddity, tuple[str, ...]]]:
    """Yield oddities, the worst first; the last that is described of a kind comes with the other columns of
    it."""
    by_kind: dict[str, list[Oddity]] = {}
    for oddity in by_severity(oddities):
        by_kind.setdefault(oddity.kind, []).append(oddity)
    for alike in by_kind.values():
        shown, rest = alike[:MAX_ALIKE], alike[MAX_ALIKE:]
        for oddity in shown:
            others = tuple(odd.column for odd in rest) if oddity is shown[-1] else ()
            yield oddity, others


def lines(oddities: Iterable[Oddity]) -> Iterator[str]:
    """Yield a line for each oddity, or for several columns with the same."""
    for oddity, others in grouped(oddities):
        yield oddity.line
        if others:
            yield f"the same of {_others(others)}"


def _others(columns: Sequence[str]) -> str:
    names = ", ".join(map(delimited, columns[:MAX_ALIKE]))
    return f"{counted(len(columns), 'more column')}: {names}" + (", …" if len(columns) > MAX_ALIKE else "")


def check(facts: CheckFacts) -> Iterator[Block]:
    """Yield the text about a table."""
    part = f", of which the first {facts.rows:,} were checked" if 0 < facts.rows < facts.total else ""
    yield f"{one_line(facts.source)}: {facts.total:,} rows{part}, {counted(facts.columns, 'column')}"
    if facts.label:
        yield entry("label", facts.label)
    if facts.workers:
        yield entry("workers", facts.workers)
    yield ""
    for oddity, others in grouped(facts.oddities):
        yield entry(oddity.severity, f"{delimited(oddity.column)}: {oddity.sentence}")
        if oddity.advice:
            yield entry("", f"-> {oddity.advice}")
        if others:
            yield entry("", f"The same of {_others(others)}")
    if facts.oddities:
        yield ""
    numbers = [counted(facts.number(severity), severity) for severity in SEVERITIES if facts.number(severity)]
    yield ", ".join(numbers) or "nothing odd"


def as_json(facts: CheckFacts) -> Iterator[Mapping[str, Any]]:
    """Yield an object for each oddity, the worst first, and one of the table."""
    for oddity in by_severity(facts.oddities):
        yield {
            "event": "oddity",
            "severity": oddity.severity,
            "kind": oddity.kind,
            "column": oddity.column,
            "rows": oddity.rows,
            "of": oddity.of_rows,
            "values": list(oddity.values),
            "figure": oddity.figure,
            "left_out": oddity.left_out or oddity.kind == "left out",
            "sentence": oddity.sentence,
            "advice": oddity.advice,
        }
    yield {
        "event": "checked",
        "table": facts.source,
        "rows": facts.total,
        "rows_checked": facts.rows,
        "columns": facts.columns,
        **{f"{severity}s": facts.number(severity) for severity in SEVERITIES},
    }
