"""What hides rows: the protection of the parties' vectors, and the noise of a session."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from fedboost.errors import quoted
from fedboost.gbdt.objectives.objective import UNITS, LabelKind, Objective
from fedboost.privacy import noise as accounting
from fedboost.privacy.pairwise import MAX_GRAPH_PARTIES
from fedboost.privacy.pairwise import Group as PairGroup
from fedboost.privacy.protections import PROTECTIONS, Protection, check_name
from fedboost.terms.columns import Schema
from fedboost.terms.reading import MAX_CHARS, Frozen, Group, Name, nearest

ProtectionName = Annotated[str, AfterValidator(check_name)]


class Hiding(Group):
    """The protection and its settings."""

    protection: ProtectionName = Field(
        default="masked",
        description="`masked`: the aggregator sees sums over all parties alone. `plain`: it sees the sums of "
        "each party; for tests, or an aggregator that all trust. `paillier`: as `masked`, and "
        "[encrypted](encrypted.md) besides, where a rule asks for that. With `label_holder` only `plain` "
        "and `paillier`: feature holders do not read gradients ([vertical](vertical.md#hidden-gradients)).",
    )
    keyholder: Name | None = Field(
        default=None,
        description="Party that decrypts blinded sums, for `paillier`, which needs it. With `label_holder` "
        "it is that party, and not given.",
    )
    keyholder_rows: bool = Field(
        default=True,
        description="The key holder has rows as every other party. Set it to false for a party that only "
        "holds the key.",
    )
    key_bits: int = Field(
        default=3072,
        ge=2048,
        le=8192,
        description="Bits of a key of `paillier`. Longer keys are slower; raise it where a rule asks for "
        "more.",
    )
    colluding: int | None = Field(
        default=None,
        ge=0,
        le=MAX_GRAPH_PARTIES - 2,
        description="Number of parties that may work together with a curious aggregator and still learn "
        "nothing. The default is 1 from four parties on, and 0 below.",
    )
    allow_two_parties: bool = Field(
        default=False,
        description="Allow two parties with rows under a protection that hides: each can subtract its own "
        "vector from the sum, so only the aggregator is kept from seeing.",
    )

    @property
    def row(self) -> Protection:
        """The protection itself."""
        return PROTECTIONS[self.protection]

    @property
    def uses_key_holder(self) -> bool:
        """True if sums are encrypted, and a key holder opens them."""
        return self.row.uses_key_holder

    def group(self, parties: tuple[str, ...]) -> PairGroup:
        """The group of these parties and the number that may collude."""
        return PairGroup.of(parties, self.colluding)

    def holders(self, parties: tuple[str, ...]) -> tuple[str, ...]:
        """The parties that hold rows: all but a key holder without any."""
        if self.keyholder_rows:
            return parties
        return tuple(party for party in parties if party != self.keyholder)

    def signers(self, parties: tuple[str, ...]) -> int:
        """Fewest signatures of parties on a valid model: as many as a sum needs."""
        return self.row.min_signers(self.group(parties))

    def faults(self, parties: tuple[str, ...], noise_is_shared: bool, shrinks: bool) -> Iterator[str]:
        """Yield a fault unless these parties can be hidden. noise_is_shared: each draws a share of the
        noise; shrinks: the roster may."""
        if self.row.hides and parties:
            yield from self._faults_of_among(parties, noise_is_shared)
        yield from self._faults_of_number(parties, shrinks)
        if self.uses_key_holder:
            yield from self._faults_of_keyholder(parties, shrinks)

    def _faults_of_among(self, parties: tuple[str, ...], noise_is_shared: bool) -> Iterator[str]:
        """Yield a fault unless these parties can hide each other: a party is hidden among those with rows
        that do not collude."""
        holders, smallest = len(self.holders(parties)), 2 if self.allow_two_parties else self.row.min_parties
        if holders < smallest:
            hint = "" if holders < 2 else " (a party can subtract itself from the sum of two)"
            plain = 'protection = "plain"' + (' with noise.placement = "local"' if noise_is_shared else "")
            two = (
                "allow_two_parties = true, which hides from the aggregator alone, or " if holders == 2 else ""
            )
            needed = f"{smallest} parties with rows" if self.uses_key_holder else f"{smallest} parties"
            name = "" if self.keyholder is None else f" {quoted(self.keyholder)}"
            beside = "" if self.keyholder_rows else f" beside the key holder{name}"
            yield (
                f"protection {self.protection} needs {needed}, the terms name {holders}{beside}{hint}; "
                f"add parties, or set {two}{plain}"
            )
        colluding = self.group(parties).colluding
        if colluding > holders - 2:
            rows, counted = (
                (" with rows", ", the key holder counted first,") if self.uses_key_holder else ("", "")
            )
            yield (
                f"protection {self.protection} with {holders} parties{rows} of which {colluding} collude"
                f"{counted} hides nobody: it takes two that do not, so colluding is at most {holders - 2}"
            )

    def _faults_of_number(self, parties: tuple[str, ...], shrinks: bool) -> Iterator[str]:
        """Yield a fault for more parties than the protection takes."""
        max_parties, max_shrinking, name = self.row.max_parties, self.row.max_shrinking, self.protection
        if shrinks and max_shrinking is not None and len(parties) > max_shrinking:
            yield (
                f'protection {name} with on_loss = "shrink" takes {max_shrinking} parties at most, as any '
                f'two share masks; the terms name {len(parties)}: set on_loss = "wait" or "stop"'
            )
        if max_parties is not None and len(parties) > max_parties:
            yield (
                f"protection {name} takes {max_parties} parties at most; the terms name {len(parties)}: let "
                f'neighbouring sites train as one party, or set protection = "plain" (fedboost terms '
                f"--protection plain), with which the aggregator sees the sums of each party "
                f'(noise.placement = "local" puts noise on them first)'
            )

    def _faults_of_keyholder(self, parties: tuple[str, ...], shrinks: bool) -> Iterator[str]:
        """Yield a fault unless one of these parties can decrypt."""
        if self.keyholder is None and parties:
            yield f"protection {self.protection} needs keyholder, the party that decrypts sums it cannot read"
        if parties and self.keyholder not in parties:
            name = str(self.keyholder)[:MAX_CHARS]
            yield f"keyholder {name!r} is not one of the parties{nearest(name, parties)}"
        if shrinks and not self.row.may_shrink:
            yield (
                f'on_loss = "shrink" with protection {self.protection}: nothing holds two rosters of one '
                f"turn apart; set wait or stop"
            )

    def _faults(self) -> Iterator[str]:
        if not self.uses_key_holder:
            for name, value in (("keyholder", None), ("keyholder_rows", True)):
                if getattr(self, name) != value:
                    yield f"{name} is for protection paillier, not {self.protection}"


# ---- The noise of a session -----------------------------------------------------------------------------
# A release is one opened sum of one question. Its noise is a discrete Gaussian in the unit of the sum; the
# honest parties' shares of it alone have at least the variance that the terms' epsilon and delta ask for.
# The cost of all releases of a session, each asked once of the whole roster, is at most what epsilon and
# delta allow (costs add); both ends compute the same shares from the terms alone.


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
METHODS: tuple[str, ...] = get_args(Method)


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
