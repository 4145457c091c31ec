"""The result of checking a table: findings about its columns, with advice for each.

Guarantees: `KINDS` defines the severity, message text and advice for every kind of finding.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from pydantic import Field

from fedboost.results.base import Part

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = ERROR, WARNING, NOTE
"""An error prevents training. A warning means that training would be harmed or a column would be omitted. A
note is only for information."""


@dataclass(frozen=True)
class Kind:
    """A kind of finding: its severity, and templates for its message and its advice."""

    severity: str
    sentence: str
    advice: str = ""


_ASK = "exclude the column, unless its values are known before the label"
_LEAVE = "exclude the column (with --exclude when you draft terms)"
KINDS = {
    "undraftable": Kind(ERROR, "{first}"),
    "unlabelled": Kind(
        ERROR,
        "the label is missing in {rows:,} of {of:,} rows, which a party rejects",
        "fill in the labels, or drop these rows",
    ),
    "absent": Kind(
        ERROR,
        "the terms name this column, but the table does not have it",
        "{first}rename it in the table, or map its name under [columns] of the site's file; if the site does "
        "not have this column, ask the analyst to add it to columns.absent in the terms",
    ),
    "declared absent": Kind(
        NOTE,
        "the terms declare the column absent at this site, so its values count as missing",
        "if the values may be used, ask the analyst to remove it from columns.absent",
    ),
    "unfit": Kind(ERROR, "{first}"),
    "refused": Kind(WARNING, "{first}"),
    "words": Kind(
        WARNING,
        "{rows:,} of {of:,} values in a numeric column are text: {values}",
        "if they stand for missing values, declare them with --na, or with na under [read] in the site's "
        "file",
    ),
    "decimal commas": Kind(
        WARNING,
        "{rows:,} of {of:,} values have a decimal comma: {values}",
        'read them as numbers with --decimal ",", or with decimal under [read] in the site\'s file',
    ),
    "mixed decimals": Kind(
        WARNING,
        "{rows:,} of {of:,} values have a decimal comma or point, and the column mixes both: {values}",
        "use the same decimal separator in the whole column, so that the values are numbers",
    ),
    "decimal points": Kind(
        NOTE,
        "{rows:,} of {of:,} values are text with a point, which is read as a decimal point: {values}",
        "if the point separates thousands, remove it from the table",
    ),
    "thousands": Kind(
        WARNING,
        "{rows:,} of {of:,} values have thousands separators: {values}",
        "remove the separators from the table, so that the values are numbers",
    ),
    "signs": Kind(
        WARNING,
        "{rows:,} of {of:,} values have a symbol next to the number: {values}",
        "remove the symbols from the table, so that the values are numbers",
    ),
    "spelling": Kind(
        WARNING,
        "{rows:,} of {of:,} values differ from another value only in whitespace or case: {values}",
        "use one spelling for them; otherwise they are different categories, classes or sites",
    ),
    "sites": Kind(
        WARNING,
        "the names of this site and of site {first} differ only in whitespace or case",
        "use one spelling if both names are for the same site",
    ),
    "date": Kind(
        WARNING,
        "the values are dates or times ({first}), which cannot be used as features directly",
        "convert the values to numbers in the table, e.g. days since a fixed date, month, weekday or hour, "
        "or exclude the column",
    ),
    "identifier": Kind(
        WARNING,
        "there are {rows:,} distinct values in {of:,} rows ({values}), as in an identifier or row number",
        f"{_LEAVE}, because a model would use it to memorise rows",
    ),
    "distinct": Kind(
        NOTE,
        "each of the {of:,} rows has a different integer ({values})",
        f"if the column identifies rows, {_LEAVE}",
    ),
    "categories": Kind(
        WARNING,
        "there are {rows:,} categories, but a column can have at most {figure:.0f}",
        "merge rare categories in the table, or exclude the column",
    ),
    "left out": Kind(
        WARNING, "the column is omitted, because it {first}", "to use the column, change it in the table"
    ),
    "infinite": Kind(
        WARNING,
        "{rows:,} of {of:,} values are infinite or too large for a 32-bit float",
        "replace these values, or leave them empty, because a party rejects rows with such values",
    ),
    "gives away": Kind(
        WARNING,
        "the column reveals the label: a single split on it has an AUC of {figure:.3f}",
        _ASK,
    ),
    "predicts": Kind(
        WARNING, "the column reveals the label: their rank correlation is {figure:.3f}", _ASK
    ),
    "tells classes": Kind(
        WARNING,
        "the column reveals the label: it alone determines the class of {figure:.1%} of the rows",
        _ASK,
    ),
    "rounded": Kind(
        WARNING,
        "{rows:,} of {of:,} distinct integers ({values}) become equal to another one when they are "
        "converted to 32-bit floats, which are exact only up to 16,777,216",
        "if they are codes, convert them to text or exclude the column",
    ),
    "undeclared": Kind(
        WARNING,
        "{rows:,} of {of:,} rows have a category that the terms do not declare ({values}); it is treated as "
        "missing",
        "ask the analyst to declare the category, or map it to a level of the terms under [columns] of the "
        "site's file",
    ),
    "empty": Kind(NOTE, "the column has no values"),
    "nearly empty": Kind(
        NOTE,
        "{rows:,} of {of:,} values are missing",
        "if other sites have values, check that the column has the same name and content at this site",
    ),
    "constant": Kind(NOTE, "the value is {first} in every row, so this site's rows cannot be split on it"),
    "nearly constant": Kind(NOTE, "the value is {first} in all but {figure:,.0f} of {of:,} rows"),
    "positive": Kind(
        NOTE,
        "{first} ({rows:,} of {of:,} rows) is label 1, because it is the rarer value: predictions are its "
        "probability",
        "to choose the other value, set positive under [columns]",
    ),
    "few numbers": Kind(
        NOTE,
        "there are {rows} distinct integers, which are treated as numeric (regression)",
        "if they are classes, set objective to multi:softprob",
    ),
}  # fmt: skip
"""All kinds of findings. "gives away", "predicts" and "tells classes" all report label leakage; each applies
to a different kind of label."""

_DECIDED = {"positive", "few numbers"}
"""Kinds that report a choice made while drafting terms."""


@dataclass(frozen=True)
class Oddity:
    """A finding about a column.

    Attributes:
        kind: the kind of finding, a key of `KINDS`.
        column: name of the column.
        rows, of: number of rows or values affected, and their total.
        values: examples of values, formatted for display.
        figure: measured value, if this kind of finding has one.
        left_out: True if drafted terms omit the column for this reason.
    """

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
        """The finding as a sentence, without the column name."""
        return self._fill(KINDS[self.kind].sentence) + ("; the column is omitted" if self.left_out else "")

    @property
    def advice(self) -> str:
        """What to do about the finding, or "" if nothing needs to be done."""
        return self._fill(KINDS[self.kind].advice)

    def _fill(self, template: str) -> str:
        return template.format(
            rows=self.rows, of=self.of, values=", ".join(self.values), figure=self.figure,
            first=self.values[0] if self.values else "",
        )  # fmt: skip

    @property
    def is_worth_a_line(self) -> bool:
        """True if commands other than `fedboost check` also report the finding: if it is an error or a
        warning, or reports a choice made while drafting terms."""
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
    """Return the findings sorted by severity (most severe first), then by kind."""
    kinds = list(KINDS)
    return sorted(oddities, key=lambda odd: (SEVERITIES.index(odd.severity), kinds.index(odd.kind)))


class Checked(Part):
    """The result of checking a table. rows, rows_checked: number of rows in the table, and number of rows
    that were checked; label: sentence about the label, "" if there is no label; workers: sentence about what
    the workers checked, if workers hold the rows."""

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
        """Create the result for a table. more: fields that are not part of its JSON."""
        return cls(
            event="checked", table=table, rows=rows, rows_checked=rows_checked, columns=columns, **more
        )

    def number(self, severity: str) -> int:
        """Return the number of findings of this severity."""
        return sum(oddity.severity == severity for oddity in self.oddities)

    @property
    def is_serious(self) -> bool:
        """True if there is a finding that would prevent or harm training."""
        return self.number(ERROR) + self.number(WARNING) > 0

    @property
    def lines(self) -> Iterator[dict[str, Any]]:
        """JSON of each finding, most severe first, and finally of the table."""
        yield from (oddity.summary for oddity in by_severity(self.oddities))
        yield {**self.summary, **{f"{severity}s": self.number(severity) for severity in SEVERITIES}}
