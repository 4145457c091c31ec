"""The noise of a session: what the terms say of it, and what follows for every release.

A release is one opened sum of one question. Its noise is a discrete Gaussian in the unit of the sum; the
honest parties' shares of it alone have at least the variance that the terms' epsilon and delta ask for.

Promises: the cost of all releases of a session, each asked once of the whole roster, is at most what epsilon
and delta allow (`accounting`: costs add); both ends compute the same shares from the terms alone.
Refuses: terms with noise that release what has no bound.
"""

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from fedboost.gbdt.objectives.objective import UNITS, LabelKind, Objective
from fedboost.privacy import noise as accounting
from fedboost.terms.columns import Schema
from fedboost.terms.reading import Frozen

MIN_EPSILON, MAX_EPSILON = 0.01, 16.0
MAX_DELTA = 1e-3
"""A delta of one in the number of rows would permit to publish a row; tables have a thousand rows or more."""
COUNTING = 0.04
"""Share of the whole cost for the counts behind the cut points."""
SUMMING_LEVELS = 0.5
"""Share of the whole cost for the sums by level that target means are of (decision 0031)."""
ROWS = 1 << 40
"""Stands for the secret number of rows: larger than any table."""

TREES_A_FEATURE, HIST_TREES = 4, 10
"""Rounds of a session with noise, unless the terms say otherwise."""
DEPTH = 3
"""Depth of trees with noise, unless the terms say otherwise."""

Placement = Literal["distributed", "local", "central"]
Method = Literal["additive", "hist"]


class Noise(Frozen):
    """(epsilon, delta)-differential privacy of single rows (add or remove one), and the placement of
    noise."""

    epsilon: float = Field(
        ge=MIN_EPSILON,
        le=MAX_EPSILON,
        description="Bound on what the model and all sums tell of any one row: 1 is strong, 8 is weak. "
        "Lower is more private and less accurate.",
    )
    delta: float = Field(
        gt=0,
        le=MAX_DELTA,
        description="Probability that the bound does not hold, such as 1e-6; far below one in the number of "
        "rows.",
    )
    placement: Placement = Field(
        default="distributed",
        description="Who draws the noise: `distributed`, each party a share, and the sum has enough even if "
        "parties that collude subtract theirs; `local`, each party all of it; `central`, the aggregator, "
        "which sees the exact sums.",
    )
    method: Method = Field(
        default="additive",
        description="Trees that grow: `additive`, one feature each; `hist`, histograms of all features, for "
        "millions of rows.",
    )

    def tree_defaults(self, columns: Schema) -> dict[str, int]:
        """Settings of trees that have other defaults with noise."""
        trees = HIST_TREES if self.method == "hist" else TREES_A_FEATURE * len(columns.features)
        return {"rounds": trees, "max_depth": DEPTH}


@dataclass(frozen=True)
class Release:
    """Releases of one kind: their number in a session, the sensitivity of one in integers of its sum, and the
    standard deviation of a share of its noise. `drawn` shares are in a sum; `honest` of them, which no
    coalition can subtract, are enough."""

    what: str
    times: int
    sensitivity: float
    share: int
    honest: int
    drawn: int

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in the sum, in its integers."""
        return self.share * math.sqrt(self.drawn)

    @property
    def cost(self) -> float:
        """Cost of one release: mu squared, for the honest shares alone."""
        return self.sensitivity**2 / (self.share**2 * self.honest)


CUT_POINTS, START, TREES = "counts behind the cut points", "sums of all rows", "sums of a tree"
SUMMARY = "counts of missing values, levels and labels"
LEVELS = "sums of labels by level"


@dataclass(frozen=True)
class Plan:
    """Releases of a session without faults, by kind."""

    releases: dict[str, Release]

    @property
    def cost(self) -> float:
        """Cost of all releases: mu squared."""
        return math.fsum(release.cost * release.times for release in self.releases.values())


def plan_of(
    noise: Noise,
    counted: int,
    about_trees: tuple[int, float],
    sensitivity: float,
    honest: int,
    parties: int,
    summed: int = 0,
) -> Plan:
    """Plan the releases of a session. counted: features whose values are counted; about_trees: the number of
    queries about trees, and the norm of a row's part of an answer in units of sensitivity; sensitivity: of a
    sum of gradients, 1 for a gradient of 1; honest: of the parties, at least; summed: features whose labels
    are summed by level, where a row is in one sum of each."""
    times, norm = about_trees
    shares = _shares(noise, honest, parties)
    cost = accounting.mu_of(noise.epsilon, noise.delta) ** 2
    count_cost = COUNTING * cost if counted else 0.0
    releases = {}
    if counted:
        releases[CUT_POINTS] = _release(CUT_POINTS, 1, math.sqrt(counted), count_cost, shares)
    level_cost = SUMMING_LEVELS * cost if summed else 0.0
    if summed:
        levels = math.sqrt(summed) * sensitivity * UNITS
        releases[LEVELS] = _release(LEVELS, 1, levels, level_cost, shares)
    gradient_cost = (cost - count_cost - level_cost) / (times + 1)
    releases[START] = _release(START, 1, sensitivity * UNITS, gradient_cost, shares)
    releases[TREES] = _release(TREES, times, norm * sensitivity * UNITS, gradient_cost, shares)
    return Plan(releases)


def _shares(noise: Noise, honest: int, parties: int) -> tuple[int, int]:
    """The shares of noise that have to be enough, and those that are in a sum."""
    return {"distributed": (honest, parties), "local": (1, parties), "central": (1, 1)}[noise.placement]


def _release(what: str, times: int, sensitivity: float, cost: float, shares: tuple[int, int]) -> Release:
    """A kind of releases, its noise rounded up: a little more than the cost allows."""
    share = math.ceil(sensitivity / math.sqrt(cost * shares[0]))
    return Release(what, times, sensitivity, share, *shares)


def plan_of_counts(noise: Noise, columns: Schema, loss: Objective, honest: int, parties: int) -> Plan:
    """The releases of a description: half of the cost each where numbers are counted by value, too."""
    has_classes = loss.xgboost_equivalent.label_kind is LabelKind.CLASS
    shares = _shares(noise, honest, parties)
    cost = accounting.mu_of(noise.epsilon, noise.delta) ** 2
    cells = 1 + len(columns.features) + has_classes  # a row is in one count of each
    numeric = len(columns.numeric)
    own = cost / 2 if numeric else cost
    releases = {SUMMARY: _release(SUMMARY, 1, math.sqrt(cells), own, shares)}
    if numeric:
        releases[CUT_POINTS] = _release(CUT_POINTS, 1, math.sqrt(numeric), cost - own, shares)
    return Plan(releases)
