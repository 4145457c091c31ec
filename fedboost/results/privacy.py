"""What terms with noise promise and release: the privacy card, the plan, and the outlook for a model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from fedboost.errors import ConfigError
from fedboost.privacy import noise as accounting
from fedboost.privacy.pairwise import Group
from fedboost.results.base import Part
from fedboost.terms.hiding import CUT_POINTS, LEVELS, START, SUMMARY, TREES, Release
from fedboost.terms.terms import Terms

ADJACENCY = "add or remove one row"
NOT_COVERED = (
    "the names, ranges and categories of the columns, and the range of the labels: they stand in the terms, "
    "and must not have been looked up in the rows",
    "that a site takes part, and when; how long it takes to answer",
    "a person who has several rows: with k rows it is about k times this epsilon",
    "a site as a whole: what the sums tell of all its rows together is not hidden",
    "other trainings on the same rows, trials of settings among them: each adds, as the memory of each site "
    "keeps count",
    "what was chosen by a look at the rows, or at results on them, outside of this session",
)
UNITS = {**dict.fromkeys((CUT_POINTS, SUMMARY), "rows"), **dict.fromkeys((LEVELS, START, TREES), "gradients")}
"""The unit that the noise of a release is stated in, by release."""
_TOTAL = ("epsilon", "delta", "cost", "epsilon_spent", "zcdp_epsilon", "honest")
"""What a plan repeats of the card."""


class Released(Part):
    """Releases of one kind. sigma: standard deviation of the noise in the sum; share: that of one party's,
    both in the integers of the sum; cost: mu squared of one release."""

    what: str
    times: int
    sensitivity: float
    share: int
    sigma: float
    cost: float


class PrivacyCard(Part):
    """What a model of these terms promises: it follows from the terms only, which the parties sign.

    epsilon: as agreed; epsilon_spent: of the noise drawn, which is rounded up; cost: mu squared of all
    releases; zcdp_epsilon: the looser figure that needs no Gaussian.
    """

    epsilon: float
    delta: float
    adjacency: str
    epsilon_spent: float
    cost: float
    zcdp_epsilon: float
    noise: str
    placement: str
    method: str
    against: str
    honest: int
    roster: tuple[str, ...]
    protection: str
    terms: str
    releases: tuple[Released, ...]
    not_covered: tuple[str, ...]

    @classmethod
    def of(cls, terms: Terms) -> "PrivacyCard":
        """The card of a model of these terms. ConfigError for terms without noise."""
        noise = terms.noise
        if noise is None:
            raise ConfigError(
                "the terms have no noise: nothing bounds what the sums and the model tell of a row"
            )
        cost = terms.plan.cost
        return cls(
            epsilon=noise.epsilon,
            delta=noise.delta,
            adjacency=ADJACENCY,
            epsilon_spent=accounting.epsilon_of(math.sqrt(cost), noise.delta),
            cost=cost,
            zcdp_epsilon=accounting.zcdp_epsilon(cost, noise.delta),
            noise="discrete Gaussian",
            placement=noise.placement,
            method=noise.method,
            against=_against(terms),
            honest=max(terms.honest, 1) if noise.placement == "distributed" else 1,
            roster=terms.parties,
            protection=terms.hiding.protection,
            terms=terms.digest,
            releases=tuple(
                Released.model_validate(release, from_attributes=True)
                for release in terms.plan.releases.values()
            ),
            not_covered=NOT_COVERED,
        )


def _against(terms: Terms) -> str:
    """The ends that the promise holds against."""
    assert terms.noise is not None
    outside = "anyone who sees the opened sums and the model"
    if terms.noise.placement == "central":
        return f"{outside}, but not against the aggregator, which sees the sums before they get noise"
    if terms.noise.placement == "local":
        return f"{outside}, the aggregator and all other parties among them: each party draws all the noise"
    together = max(1, Group.of(terms.parties, terms.hiding.colluding).colluding)
    several = "one other party" if together == 1 else f"up to {together} other parties"
    return f"{outside}, the aggregator and {several} together among them, if the rest draw their noise"


class Planned(Part):
    """Releases of one kind that terms plan. noise: in the sum, in `unit`."""

    event: Literal["release"]
    what: str
    times: int
    cost: float
    noise: float
    unit: str


class Outlook(Part):
    """The effect of noise on a model of that many rows. All figures are standard deviations.

    leaf_rows: the rows of a leaf, were they spread evenly; by_noise, by_chance: how far noise, and the chance
    of which rows there are, move the value of such a leaf before the learning rate, in margins; worth: how
    many rows without noise would be as sure.
    """

    event: Literal["outlook"]
    rows: int
    leaf_rows: float
    by_noise: float
    by_chance: float
    worth: float

    @classmethod
    def of(cls, terms: Terms, rows: int) -> Self:
        """For a typical row: an undecided prediction, classes that are equally frequent, labels that are
        spread evenly over their range."""
        spread, hessian = terms.objective.loss.typical_row(terms.bound)
        leaf_rows = rows / 2.0**terms.trees.max_depth
        by_noise = terms.bound.gradient(terms.plan.releases[TREES].sigma) / (leaf_rows * hessian)
        by_chance = spread / (math.sqrt(leaf_rows) * hessian)
        return cls(
            event="outlook",
            rows=rows,
            leaf_rows=leaf_rows,
            by_noise=by_noise,
            by_chance=by_chance,
            worth=leaf_rows * by_chance**2 / (by_chance**2 + by_noise**2),
        )


class Plan(Part):
    """What terms with noise would release, and what to expect of the model."""

    card: PrivacyCard
    releases: tuple[Planned, ...]
    outlooks: tuple[Outlook, ...]

    @classmethod
    def of(cls, terms: Terms, rows: Sequence[int]) -> "Plan":
        """The plan of these terms, with an outlook for each number of rows."""
        return cls(
            card=PrivacyCard.of(terms),
            releases=tuple(_planned(terms, release) for release in terms.plan.releases.values()),
            outlooks=tuple(Outlook.of(terms, count) for count in rows),
        )

    @property
    def lines(self) -> Iterator[Mapping[str, Any]]:
        """The JSON of each release and outlook, and of what they come to."""
        yield from (each.summary for each in (*self.releases, *self.outlooks))
        yield {"event": "total", **self.card.model_dump(mode="json", include={*_TOTAL})}


def _planned(terms: Terms, release: Release) -> Planned:
    unit = UNITS[release.what]
    return Planned(
        event="release",
        what=release.what,
        times=release.times,
        cost=release.cost,
        noise=release.sigma if unit == "rows" else terms.bound.gradient(release.sigma),
        unit=unit,
    )
