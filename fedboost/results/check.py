"""A table that was checked: what is odd in a column, and what to do about it.

Promises: every kind of oddity has its severity, its sentence and its advice in `KINDS`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from pydantic import Field

from fedboost.results.base import Part

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = ERROR, WARNING, NOTE
"""Stops a training; spoils it, or costs it a column; good to know."""


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
class Oddity:
    """An oddity of a column. kind: its key in `KINDS`; rows: those that it concerns, of this many; values:
    examples, in words; figure: the measure of the kind, if it has one; left_out: a draft has no such feature
    for this reason."""

    kind: str
    column: str
    rows: int = 0
    of: int = 0
    values: tuple[str, ...] = ()
    figure: float = 0.0
    left_out: bool = False

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

    def _fill(self, template: str) -> str:
        return template.format(
            rows=self.rows, of=self.of, values=", ".join(self.values), figure=self.figure,
            first=self.values[0] if self.values else "",
        )  # fmt: skip

    @property
    def is_worth_a_line(self) -> bool:
        """True if it is reported even where no check was requested: more than a note, or decided."""
        return self.severity != NOTE or self.left_out or self.kind in _DECIDED

    @property
    def summary(self) -> dict[str, Any]:
        """The JSON."""
        return {
            "event": "oddity",
            **asdict(self),
            "severity": self.severity,
            "left_out": self.left_out or self.kind == "left out",
            "sentence": self.sentence,
            "advice": self.advice,
        }


def by_severity(oddities: Iterable[Oddity]) -> list[Oddity]:
    """Return oddities with the worst first, by kind."""
    kinds = list(KINDS)
    return sorted(oddities, key=lambda odd: (SEVERITIES.index(odd.severity), kinds.index(odd.kind)))


class Checked(Part):
    """A table that was checked. rows, rows_checked: of the table, and those of them that were looked at;
    label: its sentence, "" without one; workers: what workers looked at, a sentence, where the rows are on
    some."""

    event: Literal["checked"]
    table: str
    rows: int
    rows_checked: int
    columns: int
    label: str = Field(default="", exclude=True)
    oddities: Sequence[Oddity] = Field(default=(), exclude=True)
    workers: str = Field(default="", exclude=True)

    @classmethod
    def of(cls, table: str, rows: int, rows_checked: int, columns: int, **more: Any) -> Self:
        """The result on a table. more: the fields that its JSON leaves out."""
        return cls(
            event="checked", table=table, rows=rows, rows_checked=rows_checked, columns=columns, **more
        )

    def number(self, severity: str) -> int:
        """The number of oddities of a severity."""
        return sum(oddity.severity == severity for oddity in self.oddities)

    @property
    def is_serious(self) -> bool:
        """True if a training would be stopped or spoilt."""
        return self.number(ERROR) + self.number(WARNING) > 0

    @property
    def lines(self) -> Iterator[dict[str, Any]]:
        """The JSON of each oddity, the worst first, and of the table."""
        yield from (oddity.summary for oddity in by_severity(self.oddities))
        yield {**self.summary, **{f"{severity}s": self.number(severity) for severity in SEVERITIES}}
