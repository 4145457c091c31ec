"""Results about terms with noise: the privacy card, the plan of releases, and the outlook for a model."""

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
    "the names, ranges and categories of the columns, and the range of the labels: they are in the terms, "
    "and must not have been derived from the rows",
    "that a site takes part, and when; how long it takes to answer",
    "a person with several rows: for k rows, epsilon is about k times as large",
    "a site as a whole: what the sums reveal about all its rows together is not hidden",
    "other trainings on the same rows, including trials of settings: their costs add up, and each site's "
    "memory keeps count",
    "choices made by looking at the rows, or at results on them, outside this session",
)
UNITS = {**dict.fromkeys((CUT_POINTS, SUMMARY), "rows"), **dict.fromkeys((LEVELS, START, TREES), "gradients")}
"""Maps release -> unit of its noise."""
_TOTAL = ("epsilon", "delta", "cost", "epsilon_spent", "zcdp_epsilon", "honest")
"""Fields of the card that a plan repeats."""


class Released(Part):
    """Releases of one kind. sigma: standard deviation of the noise in the sum; share: that of one party's
    noise, both in the integers of the sum; cost: mu squared of one release."""

    what: str
    times: int
    sensitivity: float
    share: int
    sigma: float
    cost: float


class PrivacyCard(Part):
    """The privacy that a model of these terms promises. It follows from the terms, which the parties sign.
    epsilon: as agreed; epsilon_spent: of the noise that is drawn, which is rounded up; cost: mu squared of
    all releases; zcdp_epsilon: looser bound that holds for discrete noise as it is."""

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
        """Return the card of a model of these terms. ConfigError if the terms have no noise."""
        noise = terms.noise
        if noise is None:
            raise ConfigError(
                "privacy-no-noise",
                "the terms have no noise: nothing bounds what the sums and the model reveal about a row",
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
    """Return against whom the promise holds."""
    assert terms.noise is not None
    outside = "anyone who sees the opened sums and the model"
    if terms.noise.placement == "central":
        return f"{outside}, but not against the aggregator, which sees the sums before noise is added"
    if terms.noise.placement == "local":
        return f"{outside}, including the aggregator and all other parties: each party draws all the noise"
    together = max(1, Group.of(terms.parties, terms.hiding.colluding).colluding)
    several = "one other party" if together == 1 else f"up to {together} other parties"
    return f"{outside}, including the aggregator and {several} together, if the rest draw their noise"


class Planned(Part):
    """Planned releases of one kind. noise: standard deviation of the noise in the sum, in `unit`."""

    event: Literal["release"]
    what: str
    times: int
    cost: float
    noise: float
    unit: str


class Outlook(Part):
    """The effect of noise on a model that is trained on `rows` rows. leaf_rows: rows per leaf if they are
    spread evenly; by_noise, by_chance: standard deviation of such a leaf's value, as a margin before the
    learning rate, due to noise and due to the sample of rows; worth: number of rows without noise that would
    determine the value as well."""

    event: Literal["outlook"]
    rows: int
    leaf_rows: float
    by_noise: float
    by_chance: float
    worth: float

    @classmethod
    def of(cls, terms: Terms, rows: int) -> Self:
        """Return the outlook for typical rows: undecided predictions, equally frequent classes, or labels
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
    """The planned releases of terms with noise, and the outlook for the model."""

    card: PrivacyCard
    releases: tuple[Planned, ...]
    outlooks: tuple[Outlook, ...]

    @classmethod
    def of(cls, terms: Terms, rows: Sequence[int]) -> "Plan":
        """Return the plan of these terms, with an outlook for each number of rows."""
        return cls(
            card=PrivacyCard.of(terms),
            releases=tuple(_planned(terms, release) for release in terms.plan.releases.values()),
            outlooks=tuple(Outlook.of(terms, count) for count in rows),
        )

    @property
    def lines(self) -> Iterator[Mapping[str, Any]]:
        """JSON of each release and outlook, then of the total."""
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
