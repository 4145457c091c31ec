"""The privacy of a site's rows that sessions spent, its budget, and each release that was charged to it."""

import math

from fedboost.privacy.noise import epsilon_of
from fedboost.results.base import Part

USUAL_DELTA = 1e-5
"""At which spending is shown where neither budget nor session has another."""


class Spent(Part):
    """The privacy of a dataset that sessions have spent; its JSON is a line of `fedboost privacy budget`.

    own: of this site's present rows; sessions: all that its memory knows; never_began: those of them in which
    the parties never met; with_noise: those with noise; cost: mu squared of all releases; spent: the same as
    an epsilon at delta; budget, left: epsilons, where the site has a budget for these rows.
    """

    dataset: str
    own: bool = False
    sessions: int = 0
    took_part: int = 0
    never_began: int = 0
    with_noise: int = 0
    releases: int = 0
    cost: float = 0.0
    delta: float = USUAL_DELTA
    spent: float = 0.0
    budget: float | None = None
    left: float | None = None

    def epsilon(self, delta: float) -> float:
        """What was spent as an epsilon at some delta."""
        return epsilon_of(math.sqrt(self.cost), delta)


class Charged(Part):
    """A release that was charged to the budget. at: when, UTC; epsilon: of it alone, at its delta."""

    session: str
    release: str
    at: str
    epsilon: float


class SiteBudget(Part):
    """The budget of a site.

    epsilon, delta: what it lets be spent, if it has a limit; datasets: what was spent of each, its present
    rows first; charges: their latest releases, latest first; None where they were not read.
    """

    name: str
    max_sessions: int
    epsilon: float | None = None
    delta: float | None = None
    datasets: tuple[Spent, ...]
    charges: tuple[Charged, ...] | None = None

    @property
    def own(self) -> Spent:
        """What was spent of the site's present rows."""
        return next(each for each in self.datasets if each.own)
