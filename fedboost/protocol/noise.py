"""The noise of a session: what the terms say of it, and what follows for every release.

A release is one opened sum of one question. Its noise is a discrete Gaussian in the unit of the sum; the
honest parties' shares of it alone have at least the variance that the terms' epsilon and delta ask for.

Promises: the cost of all releases of a session, each asked once of the whole roster, is at most what epsilon
and delta allow (`accounting`: costs add); both ends compute the same shares from the terms alone.
Refuses: nothing itself; the terms refuse what has no bound.
"""

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fedboost.gbdt.objectives.sensitivity import UNITS
from fedboost.privacy.noise import accounting

SMALLEST_EPSILON, LARGEST_EPSILON = 0.01, 16.0
LARGEST_DELTA = 1e-3
"""A delta of one in the number of rows would allow to publish a row; nobody has fewer than a thousand."""
COUNTING = 0.04
"""Of the whole cost, what the counts behind the cut points take."""
ROWS = 1 << 40
"""What stands for the number of rows, which nobody may know: more than anyone has."""
HIST_BELOW = 4.0
"""Epsilon below which noisy histograms are worse than trees of random structure."""

Placement = Literal["distributed", "local", "central"]
Method = Literal["additive", "random", "staged", "hist"]


class Noise(BaseModel):
    """What the terms say: (epsilon, delta)-differential privacy of single rows, add or remove one.

    placement: who draws it. `distributed`: each party a share, so that the sum of all has enough even if
    those that collude subtract theirs; `local`: each party all of it; `central`: the aggregator, which sees
    the exact sums. method: what trees grow; see boosting/programs/dp_random_trees.py.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epsilon: float = Field(ge=SMALLEST_EPSILON, le=LARGEST_EPSILON)
    delta: float = Field(gt=0, le=LARGEST_DELTA)
    placement: Placement = "distributed"
    method: Method = "additive"


@dataclass(frozen=True)
class Release:
    """Releases of one kind: how many a session has, the sensitivity of one in integers of its sum, and the
    standard deviation of a share of its noise. `drawn` shares are in a sum; `honest` of them, which nobody
    can subtract, are enough."""

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
        """Of one: mu squared, for the honest shares alone."""
        return self.sensitivity**2 / (self.share**2 * self.honest)


CUT_POINTS, START, TREES = "counts behind the cut points", "sums of all rows", "sums of a tree"


@dataclass(frozen=True)
class Plan:
    """What a session releases if nothing goes wrong, by kind."""

    releases: dict[str, Release]

    @property
    def cost(self) -> float:
        """Of all of them: mu squared."""
        return math.fsum(release.cost * release.times for release in self.releases.values())


def plan_of(
    noise: Noise, counted: int, about_trees: tuple[int, float], sensitivity: float, honest: int, parties: int
) -> Plan:
    """The releases of a session that counts values of so many features (0: none) and has so many parties, of
    which so many are honest at least; sensitivity: of a sum of gradients, 1 for a gradient of 1; about_trees:
    how many questions, and how many times that a row's part of an answer is."""
    times, norm = about_trees
    shares = {"distributed": (honest, parties), "local": (1, parties), "central": (1, 1)}[noise.placement]
    cost = accounting.mu_of(noise.epsilon, noise.delta) ** 2
    for_counts = COUNTING * cost if counted else 0.0
    found = {}
    if counted:
        found[CUT_POINTS] = _release(CUT_POINTS, 1, math.sqrt(counted), for_counts, shares)
    of_gradients = (cost - for_counts) / (times + 1)
    found[START] = _release(START, 1, sensitivity * UNITS, of_gradients, shares)
    found[TREES] = _release(TREES, times, norm * sensitivity * UNITS, of_gradients, shares)
    return Plan(found)


def _release(what: str, times: int, sensitivity: float, cost: float, shares: tuple[int, int]) -> Release:
    """Rounded up: a little more noise than the cost allows."""
    share = math.ceil(sensitivity / math.sqrt(cost * shares[0]))
    return Release(what, times, sensitivity, share, *shares)
