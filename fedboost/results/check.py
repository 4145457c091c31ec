"""The result of checking a table: the oddities of its columns, and advice for each.

Promises: `KINDS` has the severity, the sentence and the advice of every kind of oddity.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from pydantic import Field

from fedboost.results.base import Part

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = ERROR, WARNING, NOTE
"""An error stops a training, a warning spoils it or loses a column, and a note is good to know."""


@dataclass(frozen=True)
class Kind:
    """A kind of oddity: its severity, and templates for its sentence and its advice."""

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
        "fill in the labels, or drop these rows",
    ),
    "absent": Kind(
        ERROR,
        "the terms name this column, but the table does not have it",
        "{first}rename it in the table, or map its name in the file that names in the site's file refers to; "
        "if the site does not have it at all, remove it from the terms",
    ),
    "unfit": Kind(ERROR, "{first}"),
    "words": Kind(
        WARNING,
        "words among numbers, in {rows:,} of {of:,} values: {values}",
        "if they mean missing values, declare them: --na WORD, or na under [read] in the site's file",
    ),
    "decimal commas": Kind(
        WARNING,
        "{rows:,} of {of:,} values have a decimal comma: {values}",
        'read them as numbers: --decimal ",", or decimal under [read] in the site\'s file',
    ),
    "mixed decimals": Kind(
        WARNING,
        "{rows:,} of {of:,} values have a decimal comma or point, and the column mixes both: {values}",
        "use only one of them in the table, so that the values are numbers",
    ),
    "decimal points": Kind(
        NOTE,
        "{rows:,} of {of:,} values are text with a point, which is read as a decimal point: {values}",
        "if it separates thousands, remove it from the table",
    ),
    "thousands": Kind(
        WARNING,
        "{rows:,} of {of:,} values have commas or points between thousands: {values}",
        "remove these from the table, so that the values are numbers",
    ),
    "signs": Kind(
        WARNING,
        "{rows:,} of {of:,} values have signs next to the number: {values}",
        "remove the signs from the table, so that the values are numbers",
    ),
    "spelling": Kind(
        WARNING,
        "{rows:,} of {of:,} values differ from another only in blanks or case: {values}",
        "spell them the same; otherwise they are different categories, classes or sites",
    ),
    "sites": Kind(
        WARNING,
        "the names of this site and of site {first} differ only in blanks or case",
        "spell them the same if they are one site",
    ),
    "date": Kind(
        WARNING,
        "dates or times ({first}), which cannot be a feature as they are",
        "turn them into numbers in the table, such as days since a fixed date, month, weekday or hour, or "
        "leave them out",
    ),
    "identifier": Kind(
        WARNING,
        "{rows:,} distinct values in {of:,} rows ({values}): an identifier or a row number",
        f"{_LEAVE}: with it, a model memorises rows",
    ),
    "distinct": Kind(
        NOTE,
        "each of the {of:,} rows has a different whole number ({values})",
        f"if it identifies rows, {_LEAVE}",
    ),
    "categories": Kind(
        WARNING,
        "{rows:,} categories; a column can have at most {figure:.0f}",
        "group the rare ones in the table, or leave the column out",
    ),
    "left out": Kind(WARNING, "is left out, because it {first}", "change it in the table to use it"),
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
        WARNING, "gives the label away: by itself it determines the class of {figure:.1%} of the rows", _ASK
    ),
    "rounded": Kind(
        WARNING,
        "{rows:,} of {of:,} distinct whole numbers ({values}) become equal to another as 32-bit floats, "
        "which are exact only up to 16,777,216",
        "if they are codes, convert them to text or leave them out",
    ),
    "undeclared": Kind(
        WARNING,
        "{rows:,} of {of:,} rows have a category that the terms do not declare ({values}): it is treated as "
        "missing",
        "tell the analyst, or spell it as the terms do",
    ),
    "empty": Kind(NOTE, "has no values"),
    "nearly empty": Kind(
        NOTE,
        "{rows:,} of {of:,} values are missing",
        "if other sites have values, check that this site names and fills in the column as they do",
    ),
    "constant": Kind(NOTE, "{first} in every row: no tree can split on it here"),
    "nearly constant": Kind(NOTE, "{first} in all but {figure:,.0f} of {of:,} rows"),
    "positive": Kind(
        NOTE,
        "{first}, in {rows:,} of {of:,} rows, is label 1 because it is the rarer value: predictions are its "
        "probability",
        "to choose the other value, set positive under [columns]",
    ),
    "few numbers": Kind(
        NOTE,
        "{rows} distinct whole numbers, treated as amounts",
        "if they are classes, set objective to multi:softprob",
    ),
}  # fmt: skip
"""All kinds of oddity. "gives away", "predicts" and "tells classes" are the same for three kinds of label."""

_DECIDED = {"positive", "few numbers"}
"""Kinds that report a choice of a draft."""


@dataclass(frozen=True)
class Oddity:
    """An oddity of a column. kind: its key in `KINDS`; rows, of: number of rows or values that it concerns,
    and their total; values: examples, as text; figure: the measure of the kind, if it has one; left_out: a
    draft omits the column for this reason."""

    kind: str
    column: str
    rows: int = 0
    of: int = 0
    values: tuple[str, ...] = ()
    figure: float = 0.0
    left_out: bool = False

    @property
    def severity(self) -> str:
        return KINDS[self.kind].severity

    @property
    def sentence(self) -> str:
        """Description of the oddity, without the column name."""
        return self._fill(KINDS[self.kind].sentence) + ("; it is left out" if self.left_out else "")

    @property
    def advice(self) -> str:
        """Advice; "" if there is nothing to do."""
        return self._fill(KINDS[self.kind].advice)

    def _fill(self, template: str) -> str:
        return template.format(
            rows=self.rows, of=self.of, values=", ".join(self.values), figure=self.figure,
            first=self.values[0] if self.values else "",
        )  # fmt: skip

    @property
    def is_worth_a_line(self) -> bool:
        """True if it is reported even without a check: it is more than a note, or reports a draft's
        choice."""
        return self.severity != NOTE or self.left_out or self.kind in _DECIDED

    @property
    def summary(self) -> dict[str, Any]:
        return {
            "event": "oddity",
            **asdict(self),
            "severity": self.severity,
            "left_out": self.left_out or self.kind == "left out",
            "sentence": self.sentence,
            "advice": self.advice,
        }


def by_severity(oddities: Iterable[Oddity]) -> list[Oddity]:
    """Return the oddities sorted by severity, the worst first, then by kind."""
    kinds = list(KINDS)
    return sorted(oddities, key=lambda odd: (SEVERITIES.index(odd.severity), kinds.index(odd.kind)))


class Checked(Part):
    """Result of checking a table. rows, rows_checked: rows of the table, and those of them that were checked;
    label: sentence about the label, "" without one; workers: sentence about what workers checked, if they
    hold the rows."""

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
        """Return the result for a table. more: fields that are not part of its JSON."""
        return cls(
            event="checked", table=table, rows=rows, rows_checked=rows_checked, columns=columns, **more
        )

    def number(self, severity: str) -> int:
        """Return the number of oddities of a severity."""
        return sum(oddity.severity == severity for oddity in self.oddities)

    @property
    def is_serious(self) -> bool:
        """True if the oddities would stop or spoil a training."""
        return self.number(ERROR) + self.number(WARNING) > 0

    @property
    def lines(self) -> Iterator[dict[str, Any]]:
        """JSON of each oddity, the worst first, then of the table."""
        yield from (oddity.summary for oddity in by_severity(self.oddities))
        yield {**self.summary, **{f"{severity}s": self.number(severity) for severity in SEVERITIES}}
