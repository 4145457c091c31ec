"""A site's privacy budget: what its rows' privacy may be spent on, over all sessions, and what was spent.

Promises: costs (mu squared) add, epsilons do not; a refusal names the epsilon that would fit.
Refuses: what does not fit what is left (Refused).
"""

import math
from dataclasses import dataclass

from fedboost.errors import Refused
from fedboost.privacy import noise
from fedboost.terms.noise import MIN_EPSILON
from fedboost.terms.terms import Terms
from fedboost.views.facts import PrivacyFacts

ROUNDING = 1e-12
"""Of sums of costs, relative to the budget."""
USUAL_DELTA = 1e-5
"""At which spending is shown where neither budget nor session has another."""


@dataclass(frozen=True)
class Budget:
    """The privacy of its rows that a site lets be spent: (epsilon, delta) over all sessions."""

    epsilon: float
    delta: float

    @property
    def cost(self) -> float:
        """The same as a cost, mu squared."""
        return noise.mu_of(self.epsilon, self.delta) ** 2

    def left(self, spent: float) -> float:
        """The epsilon that a session at this delta may have, once that was spent. Epsilons do not add:
        it is more than the difference of two."""
        return noise.epsilon_of(math.sqrt(max(self.cost - spent, 0.0)), self.delta)

    def check_session(self, party: str, terms: Terms, spent: float, charged: float) -> None:
        """Raise Refused unless what a session still plans to release fits. spent: by all sessions; charged:
        by this one."""
        assert terms.noise is not None
        if terms.noise.placement == "central":
            raise Refused(
                f'party {party}: with placement = "central" nothing hides its sums from the aggregator, so '
                f"no such session fits the budget of these rows, epsilon {self.epsilon:g} at delta "
                f'{self.delta:g}; use placement = "distributed" or "local"'
            )
        wanted = f"the terms ask for epsilon {terms.noise.epsilon:g} at delta {terms.noise.delta:g}"
        self._check(party, wanted, terms.noise.delta, spent, max(terms.plan.cost - charged, 0.0), charged)

    def check_release(self, party: str, session: str, spent: float, cost: float) -> None:
        """Raise Refused unless one more release fits."""
        self._check(party, f"session {session} asks for one more release", self.delta, spent, cost, 0.0)

    def _check(
        self, party: str, wanted: str, delta: float, spent: float, cost: float, charged: float
    ) -> None:
        if spent + cost <= self.cost * (1.0 + ROUNDING):
            return
        room = math.sqrt(max(self.cost - spent + charged, 0.0))
        fits = _rounded_down(noise.epsilon_of(room, delta))
        remedy = (
            f"lower the epsilon of the noise to {fits:g} at most at delta {delta:g}"
            if fits >= MIN_EPSILON
            else "no session with noise fits"
        )
        raise Refused(
            f"party {party}: {wanted}, and its budget for these rows, epsilon {self.epsilon:g} "
            f"at delta {self.delta:g}, has {_rounded_down(self.left(spent)):g} left; {remedy}, unless the "
            f"site raises `epsilon` in its policy"
        )


@dataclass(frozen=True)
class Spent:
    """The privacy spent of one dataset. sessions: all that its memory knows; never_began: those of them in
    which the parties never met; with_noise: those with noise; delta: the largest that one of them had."""

    dataset: str
    sessions: int = 0
    never_began: int = 0
    with_noise: int = 0
    releases: int = 0
    cost: float = 0.0
    delta: float = USUAL_DELTA

    @property
    def took_part(self) -> int:
        """Sessions in which the parties met."""
        return self.sessions - self.never_began

    def epsilon(self, delta: float) -> float:
        """The same as an epsilon at some delta."""
        return noise.epsilon_of(math.sqrt(self.cost), delta)


def facts_of(spent: Spent, budget: Budget | None, own: bool) -> PrivacyFacts:
    """Return the facts of what was spent. budget: that of the site's present rows, which are this dataset if
    it is its own."""
    limit = budget if own else None
    delta = spent.delta if limit is None else limit.delta
    return PrivacyFacts(
        dataset=spent.dataset,
        own=own,
        sessions=spent.sessions,
        took_part=spent.took_part,
        never_began=spent.never_began,
        with_noise=spent.with_noise,
        releases=spent.releases,
        cost=spent.cost,
        delta=delta,
        spent=spent.epsilon(delta),
        budget=None if limit is None else limit.epsilon,
        left=None if limit is None else limit.left(spent.cost),
    )


def _rounded_down(epsilon: float) -> float:
    return math.floor(epsilon * 1e4) / 1e4
