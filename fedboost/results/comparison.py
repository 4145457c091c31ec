"""Models compared on held-out rows: each site's alone, the federated and the pooled one."""

import math
from typing import Literal, get_args

from pydantic import ConfigDict, Field, model_serializer

from fedboost.results.base import Part

ALONE, FEDERATED, POOLED = "alone", "federated", "pooled"
Verdict = Literal["worth it", "not worth it", "cannot be told", "cannot train alone", "too few rows"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
MIN_ROWS = 10
"""Fewer different rows than this decide nothing about a site."""


class Figure(Part):
    """A mean over splits, and the interval it lies in with the rows that might have been held out; NaN where
    there is none, which is null in JSON."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=True)

    value: float
    low: float
    high: float

    @model_serializer
    def _as_json(self) -> dict[str, float | None]:
        return {name: None if math.isnan(value) else value for name, value in self.__dict__.items()}


Figures = dict[str, Figure]
"""Figures by metric."""


class SiteComparison(Part):
    """The models compared on the rows of one site. held_out: rows in each split; different_held_out: those
    that were held out in any; models: figures by model; better_by: how much better the federated model is
    than the site's own, below 0 where it is worse; cannot: why the site cannot train alone."""

    site: str
    rows: int
    held_out: int
    different_held_out: int
    models: dict[str, Figures]
    better_by: Figures
    cannot: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict by the first metric."""
        if self.different_held_out < MIN_ROWS:
            return "too few rows"
        if self.cannot:
            return "cannot train alone"
        gain = next(iter(self.better_by.values()))
        return "worth it" if gain.low > 0 else "not worth it" if gain.high < 0 else "cannot be told"


class Comparison(Part):
    """A comparison of all sites, or of one label holder with and without the columns of others.

    together: all sites that can train alone as one, each counted by its rows; metrics: the deciding one
    first; share: of the rows that are held out; equal: the federated model was the pooled one in every split;
    site_column: the column that names the sites, if it could be a feature; tables: where columns are joined,
    the rows of each party's table; protection: of the terms, if it hides anything.
    """

    sites: tuple[SiteComparison, ...]
    together: SiteComparison
    metrics: tuple[str, ...]
    splits: int
    share: float
    equal: bool
    site_column: str | None = None
    tables: dict[str, int] = Field(default={})
    protection: str = ""

    @property
    def is_of_columns(self) -> bool:
        """True where parties hold different columns."""
        return bool(self.tables)
