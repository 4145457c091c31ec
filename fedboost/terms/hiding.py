"""Settings that hide the parties' answers: the protection, and the noise in a session."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fedboost.errors import quoted
from fedboost.gbdt.objectives.objective import MAX_LABEL, UNITS, LabelKind, Objective
from fedboost.gbdt.objectives.registry import OBJECTIVES
from fedboost.privacy import noise as accounting
from fedboost.privacy.pairwise import MAX_GRAPH_PARTIES
from fedboost.privacy.pairwise import Group as PairGroup
from fedboost.privacy.protections import PROTECTIONS, Protection, check_name
from fedboost.terms.columns import Schema
from fedboost.terms.reading import MAX_CHARS, Frozen, Group, Name, OrNone, nearest
from fedboost.terms.session import Task

ProtectionName = Annotated[str, AfterValidator(check_name)]


MAX_LACKING = 256  # distinct sets of parties that lack a column, which sites remember


class Hiding(Group):
    """Protection of the parties' answers, and its settings."""

    protection: ProtectionName = Field(
        default="masked",
        description="How answers are protected from the aggregator. `masked`: it sees only sums over all "
        "parties. `plain`: it sees each party's sums; use it for tests, or if all parties trust the "
        "aggregator. `paillier`: masked and also [encrypted](encrypted.md), for cases where a regulation "
        "requires encryption. With `label_holder`, only `plain` and `paillier` are available; `paillier` "
        "then keeps feature holders from reading gradients ([vertical](vertical.md#hidden-gradients)).",
    )
    keyholder: OrNone[Name] = Field(
        description="Party that decrypts blinded sums. Required for `paillier`, except with `label_holder`: "
        "then the label holder is the key holder, and this key must be omitted.",
    )
    keyholder_rows: bool = Field(
        default=True,
        description="Whether the key holder has rows, like the other parties. Set it to false if the key "
        "holder has only the key.",
    )
    key_bits: int = Field(
        default=3072,
        ge=2048,
        le=8192,
        description="Length of a `paillier` key in bits. Longer keys are slower; raise it only if a "
        "regulation requires it.",
    )
    colluding: OrNone[int] = Field(
        ge=0,
        le=MAX_GRAPH_PARTIES - 2,
        description="Number of parties that may collude with a curious aggregator and still learn nothing. "
        "The default is 1 for four or more parties, otherwise 0.",
    )
    allow_two_parties: bool = Field(
        default=False,
        description="Whether `masked` or `paillier` may be used with only two parties that have rows. Each "
        "of them can subtract its own answer from the sum and learn the other's, so answers are hidden only "
        "from the aggregator.",
    )

    @property
    def row(self) -> Protection:
        """The row for this protection in the table of protections."""
        return PROTECTIONS[self.protection]

    @property
    def uses_key_holder(self) -> bool:
        """True if sums are encrypted and a key holder decrypts them."""
        return self.row.uses_key_holder

    def group(self, parties: tuple[str, ...]) -> PairGroup:
        """Return the group of these parties, including the number that may collude."""
        return PairGroup.of(parties, self.colluding)

    def holders(self, parties: tuple[str, ...]) -> tuple[str, ...]:
        """Return the parties with rows, i.e. all except a key holder without rows."""
        if self.keyholder_rows:
            return parties
        return tuple(party for party in parties if party != self.keyholder)

    def signers(self, parties: tuple[str, ...]) -> int:
        """Return the minimum number of party signatures on a valid model. It equals the minimum number of
        parties in a sum."""
        return self.row.min_signers(self.group(parties))

    def faults(self, parties: tuple[str, ...], noise_is_shared: bool, shrinks: bool) -> Iterator[str]:
        """Yield an error message for each reason why this protection cannot be used. noise_is_shared: True if
        each party draws a share of the noise; shrinks: True if the roster may shrink."""
        if self.row.hides and parties:
            yield from self._faults_of_among(parties, noise_is_shared)
        yield from self._faults_of_number(parties, shrinks)
        if self.uses_key_holder:
            yield from self._faults_of_keyholder(parties, shrinks)

    def faults_of_absent(self, columns: Schema, parties: tuple[str, ...], shrinks: bool) -> Iterator[str]:
        """Yield an error message for each party in `columns.absent` that cannot lack columns, and for each
        column that too few parties have: its sums are over these parties. shrinks: as in `faults`."""
        if shrinks and self.row.hides:
            yield 'columns.absent with on_loss = "shrink": those left may lack a column; set wait or stop'
        holders, lacking = self.holders(parties), columns.lacking()
        for party in sorted({*columns.absent} - {*holders}) if parties else ():
            why = "has no rows" if party in parties else f"is not one of the parties{nearest(party, parties)}"
            yield f"columns.absent: {party[:MAX_CHARS]!r} {why}"
        have = len(holders) - max(map(len, lacking), default=0)
        fewest = self.group(parties).colluding + 2 if self.row.hides else 1
        if parties and have < fewest:
            hides = f", but protection {self.protection} needs {fewest} to hide its sums" if have else ""
            yield f"columns.absent leaves {have} of {len(holders)} parties with a column{hides}; remove it"
        if len(lacking) > MAX_LACKING:
            yield f"columns.absent: {len(lacking)} sets of parties lack a column; at most {MAX_LACKING} may"

    def _faults_of_among(self, parties: tuple[str, ...], noise_is_shared: bool) -> Iterator[str]:
        """Yield an error message unless each party hides among parties with rows that do not collude."""
        holders, smallest = len(self.holders(parties)), 2 if self.allow_two_parties else self.row.min_parties
        if holders < smallest:
            hint = "" if holders < 2 else " (each of two parties can subtract its own answer from the sum)"
            plain = 'protection = "plain"' + (' with noise.placement = "local"' if noise_is_shared else "")
            two = (
                "allow_two_parties = true, which hides only from the aggregator, or " if holders == 2 else ""
            )
            needed = f"{smallest} parties with rows" if self.uses_key_holder else f"{smallest} parties"
            name = "" if self.keyholder is None else f" {quoted(self.keyholder)}"
            beside = "" if self.keyholder_rows else f" in addition to key holder{name}"
            yield (
                f"protection {self.protection} needs {needed}, but the terms name only {holders}{beside}"
                f"{hint}; add parties, or set {two}{plain}"
            )
        colluding = self.group(parties).colluding
        if colluding > holders - 2:
            rows, counted = (
                (" with rows", " (including the key holder)") if self.uses_key_holder else ("", "")
            )
            yield (
                f"protection {self.protection} hides no one if {colluding} of {holders} parties{rows} collude"
                f"{counted}: at least two must not collude, so set colluding to at most {holders - 2}"
            )

    def _faults_of_number(self, parties: tuple[str, ...], shrinks: bool) -> Iterator[str]:
        max_parties, max_shrinking, name = self.row.max_parties, self.row.max_shrinking, self.protection
        if shrinks and max_shrinking is not None and len(parties) > max_shrinking:
            yield (
                f'protection {name} with on_loss = "shrink" allows at most {max_shrinking} parties, because '
                f'any two share masks; the terms name {len(parties)}, so set on_loss = "wait" or "stop"'
            )
        if max_parties is not None and len(parties) > max_parties:
            yield (
                f"protection {name} allows at most {max_parties} parties, but the terms name {len(parties)}: "
                f'let several sites train as one party, or set protection = "plain" (fedboost terms '
                f"--protection plain). Then the aggregator sees each party's sums "
                f'(noise.placement = "local" adds noise to them first)'
            )

    def _faults_of_keyholder(self, parties: tuple[str, ...], shrinks: bool) -> Iterator[str]:
        if self.keyholder is None and parties:
            yield f"protection {self.protection} needs keyholder: set it to the party that decrypts sums"
        if parties and self.keyholder not in parties:
            name = str(self.keyholder)[:MAX_CHARS]
            yield f"keyholder {name!r} is not one of the parties{nearest(name, parties)}"
        if shrinks and not self.row.may_shrink:
            yield (
                f'on_loss = "shrink" with protection {self.protection}: sums of one turn over two rosters '
                f'cannot be kept apart; set on_loss = "wait" or "stop"'
            )

    def _faults(self) -> Iterator[str]:
        if not self.uses_key_holder:
            for name, value in (("keyholder", None), ("keyholder_rows", True)):
                if getattr(self, name) != value:
                    yield f"{name} is only for protection paillier, not {self.protection}"


# ---- The noise of a session -----------------------------------------------------------------------------
# A release is the opened sum of one query. Its noise is a discrete Gaussian in the units of the sum. The
# honest parties' shares of it alone have at least the variance that epsilon and delta of the terms require.
# Costs can be added: all releases of a session, each asked once of the whole roster, cost at most what
# epsilon and delta allow. Aggregator and parties compute the same shares from the terms alone.

MIN_EPSILON, MAX_EPSILON = 0.01, 16.0
MAX_DELTA = 1e-3
"""Upper limit of delta. Even publishing one random row would satisfy delta = 1 / rows; tables are assumed to
have at least 1,000 rows."""
COUNTING = 0.06
"""Fraction of the total cost that is spent on counts for finding cut points."""
SUMMING_LEVELS = 0.5
"""Fraction of the total cost that is spent on label sums by level, for target means (decision 0031)."""
ROWS = 1 << 40
"""Placeholder for the secret number of rows; larger than any table."""

ROUNDS_A_FEATURE, ROUNDS_A_PAIR = 4, 2
"""Default number of rounds with noise, for each feature and for each pair of features."""
NOISY_DEPTH, LOPSIDED = 7, 3
"""Default max_depth with noise, which limits the bins of a feature to 2**max_depth, and how much deeper a
leaf may be."""
MAX_NOISY_BINS = 64
"""Maximum number of bins per numeric feature with noise."""
MIN_GROUPS, GROUP_SIGMAS = 3, 4.0
"""Least number of groups of a numeric feature whose rows are summed together with noise, and the sum of
hessians in one, in standard deviations of its noise. Bins with more are not joined."""
MAX_GROUPS = 1 << 16
"""Maximum number of groups. It may exceed that of bins, since groups of equally many rows leave few groups to
bins with few rows. But a party can report any sum of hessians."""
PAIRS, PAIRS_OF_LITTLE_NOISE, LITTLE_NOISE = 10, 20, 4.0
"""Default number of pairs of features, and that from this epsilon on."""


def groups_of(hessian: float, sigma: float) -> int:
    """Return into how many groups a feature divides rows with this sum of hessians, if it has enough bins.
    sigma: of its noise."""
    return int(min(max(hessian / (GROUP_SIGMAS * sigma), MIN_GROUPS), MAX_GROUPS))


class Noise(Frozen):
    """(epsilon, delta)-differential privacy for individual rows (adding or removing one row)."""

    epsilon: float = Field(
        ge=MIN_EPSILON,
        le=MAX_EPSILON,
        description="Limit on what the model and all sums reveal about any single row: 1 is strong "
        "protection, 8 is weak. Lower values are more private and less accurate.",
    )
    delta: float = Field(
        gt=0,
        le=MAX_DELTA,
        description="Probability that the limit fails, e.g. 1e-6. Choose it far below 1 / number of rows.",
    )
    placement: Literal["distributed", "local"] = Field(
        default="distributed",
        description="Who draws the noise. `distributed`: each party draws a share, and the sum has enough "
        "noise even if colluding parties subtract their shares. `local`: each party draws all of it.",
    )
    pairs: OrNone[int] = Field(
        ge=0,
        le=1000,
        description="Number of pairs of features whose joint effects the last rounds fit, two rounds "
        "each. Pairs are chosen from what was released before. The default is 10, or 20 from epsilon "
        "4 on.",
    )

    def pairs_among(self, features: int) -> int:
        """Return the number of pairs if there are this many features."""
        default = PAIRS if self.epsilon < LITTLE_NOISE else PAIRS_OF_LITTLE_NOISE
        wanted = default if self.pairs is None else self.pairs
        return min(wanted, features * (features - 1) // 2)


@dataclass(frozen=True)
class Release:
    """All releases of one kind in a session. A release is a noisy sum that the aggregator learns.

    Args:
        what: name of the kind.
        times: number of releases.
        sensitivity: maximum L2 norm of a row's contribution, in the integer units of the sum.
        share: standard deviation of one share of the noise, in the same units.
        honest: number of shares that no group of colluding parties can subtract; these alone must provide
            enough noise.
        drawn: number of shares in a sum."""

    what: str
    times: int
    sensitivity: float
    share: int
    honest: int
    drawn: int

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in the sum, in its integer units."""
        return self.share * math.sqrt(self.drawn)

    @property
    def cost(self) -> float:
        """Privacy cost of one release (mu squared), counting only honest shares."""
        return self.sensitivity**2 / (self.share**2 * self.honest)


CUT_POINTS, START, TREES = "counts behind the cut points", "sums of all rows", "sums by groups of rows"
SUMMARY = "counts of missing values, levels and labels"
LEVELS = "sums of labels by level"
SCORES, BINS = "counts of rows by prediction and label", "counts of rows by bin of columns and score"


@dataclass(frozen=True)
class Plan:
    """All releases of a session by kind, provided that no query is repeated."""

    releases: dict[str, Release]

    @property
    def cost(self) -> float:
        return math.fsum(release.cost * release.times for release in self.releases.values())


def plan_of(
    noise: Noise, counted: int, times: int, sensitivity: float, shares: tuple[int, int], summed: int = 0
) -> Plan:
    """Plan the releases of a training session.

    Args:
        counted: number of features for which rows are counted by value to find cut points.
        summed: number of features for which labels are summed by level.
        times: number of queries about trees.
        sensitivity: largest contribution of a row to a gradient sum (1 for gradients of at most 1).
        shares: how many shares of noise must suffice on their own, and how many there are in a sum."""
    cost = accounting.mu_of(noise.epsilon, noise.delta) ** 2
    releases = {}
    if counted:
        releases[CUT_POINTS] = _release(CUT_POINTS, 1, math.sqrt(counted), COUNTING * cost, shares)
    if summed:
        levels = math.sqrt(summed) * sensitivity * UNITS
        releases[LEVELS] = _release(LEVELS, 1, levels, SUMMING_LEVELS * cost, shares)
    # The noise of counts is a small whole number: what rounding it up has saved is left to the trees.
    gradient_cost = (cost - math.fsum(release.cost for release in releases.values())) / (times + 1)
    releases[START] = _release(START, 1, sensitivity * UNITS, gradient_cost, shares)
    releases[TREES] = _release(TREES, times, sensitivity * UNITS, gradient_cost, shares)
    return Plan(releases)


def _release(what: str, times: int, sensitivity: float, cost: float, shares: tuple[int, int]) -> Release:
    """Return the releases of one kind. The noise is rounded up, so that each release costs at most `cost`."""
    share = math.ceil(sensitivity / math.sqrt(cost * shares[0]))
    return Release(what, times, sensitivity, share, *shares)


def plan_of_counts(
    noise: Noise, task: Task, columns: Schema, loss: Objective, shares: tuple[int, int]
) -> Plan:
    """Plan the releases of a session that describes rows, or measures a model. If numeric values are also
    counted, each of the two releases is allotted half the cost."""
    has_classes = loss.xgboost_equivalent.label_kind is LabelKind.CLASS
    cost = accounting.mu_of(noise.epsilon, noise.delta) ** 2
    if task.measures:  # cells that a row is in: two for several classes, as it is also counted by its own
        of_model = SCORES, 1 + (loss.outputs > 1)
        what, cells = (BINS, len(columns.features) + 1) if task.uses_reference else of_model
        return Plan({what: _release(what, 1, math.sqrt(cells), cost, shares)})
    cells = 1 + len(columns.features) + has_classes  # a row is in one cell of each of these counts
    numeric = len(columns.numeric)
    own = cost / 2 if numeric else cost
    releases = {SUMMARY: _release(SUMMARY, 1, math.sqrt(cells), own, shares)}
    if numeric:
        releases[CUT_POINTS] = _release(CUT_POINTS, 1, math.sqrt(numeric), cost - own, shares)
    return Plan(releases)


# ---- The ranges that noise needs ------------------------------------------------------------------------


def faults_of_ranges(objective: str, columns: Schema, measures: bool) -> Iterator[str]:
    """Yield an error message for each missing range that noise requires. Gradients are clipped to the label's
    range, boosting starts from the middle of this range, and cut points lie within the ranges of the
    columns. measures: True if a model is measured: its errors are counted in parts of the label's range."""
    kind = OBJECTIVES.get(objective)
    if kind is None or kind.sensitivity is None:
        bounds = ((name, kind.sensitivity) for name, kind in OBJECTIVES.items())
        ranges = {name: bound.needs_label_range for name, bound in bounds if bound is not None}
        known = ", ".join(sorted(ranges, key=ranges.__getitem__))
        yield f"objective {objective} does not limit a row's influence; with noise, use one of: {known}"
        return
    if kind.sensitivity.needs_label_range:
        if columns.label_range is None:
            yield (
                f"{objective} with noise needs the label range: set e.g. columns.label_range = [0, 100], "
                f"using publicly known limits and not those of the rows"
            )
            return
        low, high = columns.label_range
        if high - low < 1.0 / MAX_LABEL:
            yield "label_range is too narrow to scale gradients; widen it"
        if kind.label_kind is LabelKind.COUNT and low < 0.0:
            yield f"label_range starts at {low:g}, but labels of {objective} cannot be negative"
    missing = [name for name in columns.numeric if name not in columns.ranges and not measures]
    if missing:
        yield (
            f"noise needs the range of every numeric column, but {missing[0]!r} has none: set e.g. "
            f"columns.ranges = {{ {missing[0][:MAX_CHARS]!r} = [0, 100] }}, using publicly known limits and "
            f"not those of the rows"
        )
