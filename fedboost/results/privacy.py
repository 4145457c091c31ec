"""Results about terms with differential privacy: the privacy card, the planned releases, and the effect of
the noise on a model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from fedboost.errors import ConfigError
from fedboost.privacy import noise as accounting
from fedboost.privacy.pairwise import Group
from fedboost.results.base import Part
from fedboost.terms.hiding import BINS, CUT_POINTS, LEVELS, SCORES, START, SUMMARY, TREES, Release
from fedboost.terms.terms import Terms

ADJACENCY = "add or remove one row"
NOT_COVERED = (
    "the names, ranges and categories of the columns, and the range of the labels: they are in the terms, "
    "and must not have been derived from the rows",
    "that a site takes part, and when; how long it takes to answer",
    "a person with several rows: for k rows, epsilon is about k times as large",
    "a site as a whole: what the sums reveal about all its rows together is not hidden",
    "other trainings on the same rows, including trials of settings: their costs add up, and each site's "
    "memory keeps count",
    "choices made by looking at the rows, or at results on them, outside this session",
)
UNITS = dict.fromkeys((CUT_POINTS, SUMMARY, SCORES, BINS), "rows")
UNITS |= dict.fromkeys((LEVELS, START, TREES), "gradients")
"""Maps kind of noisy release -> unit in which its noise is measured: rows or gradients."""
_TOTAL = ("epsilon", "delta", "cost", "epsilon_spent", "honest")
"""Fields of the card that are repeated in a plan."""


class Released(Part):
    """All releases of one kind, i.e. noisy sums that are revealed.

    Attributes:
        times: number of releases.
        sensitivity: maximum change of the sum if one row is added or removed.
        share: standard deviation of one party's noise, in the integer units of the sum.
        sigma: standard deviation of the noise in the sum, in the same units.
        cost: privacy cost of one release, as mu squared.
    """

    what: str
    times: int
    sensitivity: float
    share: int
    sigma: float
    cost: float


class PrivacyCard(Part):
    """The privacy guarantee of a model trained under given terms. It follows from the terms, which the
    parties sign.

    Attributes:
        epsilon, delta: the guarantee as agreed.
        adjacency: the change to the rows that the guarantee covers.
        epsilon_spent: epsilon of the noise that is actually added (the noise is rounded up).
        cost: total cost of all releases, as mu squared of Gaussian differential privacy.
        against: a sentence that says against whom the guarantee protects.
        honest: minimum number of parties that are assumed to be honest.
        releases: what is revealed.
        not_covered: what the guarantee does not cover.
    """

    epsilon: float
    delta: float
    adjacency: str
    epsilon_spent: float
    cost: float
    noise: str
    placement: str
    against: str
    honest: int
    roster: tuple[str, ...]
    protection: str
    terms: str
    releases: tuple[Released, ...]
    not_covered: tuple[str, ...]

    @classmethod
    def of(cls, terms: Terms) -> "PrivacyCard":
        """Create the card for these terms. Raises ConfigError if the terms do not add noise."""
        noise = terms.noise
        if noise is None:
            raise ConfigError(
                "privacy-no-noise",
                "the terms do not add noise: nothing limits what the sums and the model reveal about a row",
            )
        cost = terms.plan.cost
        return cls(
            epsilon=noise.epsilon,
            delta=noise.delta,
            adjacency=ADJACENCY,
            epsilon_spent=accounting.epsilon_of(math.sqrt(cost), noise.delta),
            cost=cost,
            noise="discrete Gaussian",
            placement=noise.placement,
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
    """Return a sentence that says against whom the privacy guarantee holds."""
    assert terms.noise is not None
    outside = "anyone who sees the opened sums and the model"
    if terms.noise.placement == "local":
        return f"{outside}, including the aggregator and all other parties: each party draws all the noise"
    together = max(1, Group.of(terms.parties, terms.hiding.colluding).colluding)
    several = "one other party" if together == 1 else f"up to {together} other parties"
    return f"{outside}, including the aggregator and {several} together, if the rest draw their noise"


class Planned(Part):
    """Planned releases of one kind. noise: standard deviation of the noise in the sum, in units of `unit`."""

    event: Literal["release"]
    what: str
    times: int
    cost: float
    noise: float
    unit: str


class Outlook(Part):
    """The expected effect of noise on a model.

    Attributes:
        rows: number of training rows.
        leaf_rows: rows per leaf, if they are distributed evenly.
        by_noise, by_chance: standard deviation of such a leaf's value due to noise, and due to the random
            choice of rows. The unit is that of margins; the learning rate is not applied.
        worth: number of rows per leaf that would determine the value equally well without noise.
    """

    event: Literal["outlook"]
    rows: int
    leaf_rows: float
    by_noise: float
    by_chance: float
    worth: float

    @classmethod
    def of(cls, terms: Terms, rows: int) -> Self:
        """Estimate the effect for typical rows: undecided predictions, equally frequent classes, or labels
        distributed evenly over their range."""
        spread, hessian = terms.objective.loss.typical_row(terms.bound)
        sigma = terms.plan.releases[TREES].sigma
        leaf_rows = rows / terms.groups_of_bins(rows)
        by_noise = terms.bound.gradient(sigma) / (leaf_rows * hessian)
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
    """The planned releases under terms with differential privacy, and the expected effect of the noise on a
    model."""

    card: PrivacyCard
    releases: tuple[Planned, ...]
    outlooks: tuple[Outlook, ...]

    @classmethod
    def of(cls, terms: Terms, rows: Sequence[int]) -> "Plan":
        """Create the plan for these terms, with an outlook for each number of rows. Raises ConfigError if the
        terms do not add noise."""
        return cls(
            card=PrivacyCard.of(terms),
            releases=tuple(_planned(terms, release) for release in terms.plan.releases.values()),
            outlooks=tuple(Outlook.of(terms, count) for count in rows if terms.task.trains),
        )

    @property
    def lines(self) -> Iterator[Mapping[str, Any]]:
        """JSON of each planned release and each outlook, then of the total."""
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
