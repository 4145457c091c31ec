"""The description of the rows of all parties: counts and quantiles."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict, field_validator

from fedboost.boosting.programs.tasks import unit_of
from fedboost.results.base import Count, Number, Part, Result
from fedboost.terms.tasks import SHARES, class_names, gridded
from fedboost.terms.terms import Terms

Interval = list[Number]
"""Low and high."""


class Column(Part):
    """A column, or the label. missing, undeclared: rows without a value, and with a level that the terms do
    not declare; levels: rows by level; quantiles: by share the interval that the quantile lies in, None where
    too few rows lie beyond it; constant: all values are the same; gap: the interval between two groups of
    values, if it is so wide that they may have different units."""

    name: str
    kind: Literal["numeric", "categorical"] | None = None
    missing: Count | None = 0
    undeclared: Count | None = 0
    levels: dict[str, Count | None] = Field(default={})
    quantiles: dict[str, Interval | None] = Field(default={})
    constant: Annotated[bool, Strict()] = False
    gap: Interval | None = None

    @field_validator("gap")
    @classmethod
    def _is_interval(cls, value: Interval | None) -> Interval | None:
        if value is not None and (len(value) != 2 or value[0] > value[1]):
            raise ValueError("not an interval")
        return value

    @field_validator("quantiles")
    @classmethod
    def _are_intervals(cls, value: dict[str, Interval | None]) -> dict[str, Interval | None]:
        for each in value.values():
            cls._is_interval(each)
        return value

    @property
    def is_numeric(self) -> bool:
        """True if there are quantiles."""
        return bool(self.quantiles)

    def fits(self, name: str, levels: Sequence[str] | None, is_exact: bool) -> bool:
        """True for the column of this name. levels: of a category, None of a number; is_exact: no noise."""
        if self.name != name or (is_exact and None in (self.missing, self.undeclared, *self.levels.values())):
            return False
        if levels is not None:
            return not self.quantiles and not self.constant and self.levels.keys() == {*levels}
        numbers = {"constant", "gap"} if is_exact else {"constant"}
        is_whole = self.quantiles.keys() == {f"{share:g}" for share in SHARES}
        return is_whole and not self.levels and numbers <= self.model_fields_set


class Description(Result):
    """Counts and quantiles over the rows of all parties.

    A count is told to the nearest unit, the smallest of 1, 2, 5, 10, 20, ... that is not less than
    `min_count`. noise: where the terms have noise, the standard deviation of the noise in a count, in rows:
    then counts are not rounded, and None stands for what is lost in it.
    """

    task: ClassVar[str] = "describe"
    rows: Count
    min_count: Count
    noise: Number | None = None
    columns: tuple[Column, ...] = Field(repr=False)
    label: Column = Field(repr=False)

    @property
    def unit(self) -> int:
        """Rows that a count is told to the nearest of."""
        return 1 if self.noise is not None else unit_of(self.min_count)

    def fits(self, terms: Terms) -> bool:
        """True if the result has the columns and levels of the terms."""
        schema, is_exact = terms.columns, terms.noise is None
        levels = {**dict.fromkeys(schema.numeric), **schema.categorical}
        classes = class_names(terms)
        told = classes or (is_exact and len(gridded(terms)) > len(schema.numeric))
        return (
            (self.noise is None) == is_exact
            and (not is_exact or (self.rows > 0 and self.min_count == terms.evaluation.min_count))
            and len(self.columns) == len(levels)
            and all(
                each.fits(name, own, is_exact)
                and each.kind == ("numeric" if own is None else "categorical")
                and {"missing", *(["undeclared"] if own is not None else [])} <= each.model_fields_set
                for each, (name, own) in zip(self.columns, levels.items(), strict=True)
            )
            and self.label.fits(schema.label, None if told and not classes else classes, is_exact)
        )
