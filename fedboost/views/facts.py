"""Facts that text and JSON are made from: plain values, which commands fill.

Promises: nothing here reads, trains or formats.
Refuses: nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedboost.terms.terms import Terms

Traffic = Mapping[str, tuple[int, int]]
"""Bytes sent and received, by party."""


@dataclass(frozen=True)
class ModelFacts:
    """A trained model. signed_by: parties that signed it; rosters: by the first round of each, where it
    changed; trained, kept: rounds, and those whose trees the model has; last_row: the history's row of the
    last kept round."""

    terms: Terms
    fingerprint: str
    trees: int
    trained: int
    kept: int
    last_row: Mapping[str, float]
    signed_by: tuple[str, ...]
    rosters: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True)
class TrainingFacts:
    """A finished training. file: of the model, if it was saved; since_restart: traffic is known only since
    the aggregator was restarted; shares: party to its share of the gains, where parties keep parts of the
    model, and the file has its structure alone."""

    model: ModelFacts
    traffic: Traffic
    file: str | None
    since_restart: bool = False
    shares: Mapping[str, float] | None = None


@dataclass(frozen=True)
class DemoFacts:
    """A finished demo. scores: metrics on the held-out rows by model, none where it cannot train; equal: the
    federated model is the pooled one; log: the audit log of the first site, quoted for a shell."""

    training: TrainingFacts
    scores: Mapping[str, Mapping[str, float]]
    equal: bool
    log: str


@dataclass(frozen=True)
class RuleFacts:
    """A rule of a site's policy that terms break. key, value: as its file has it; reason: a sentence about
    the terms; purpose: of the rule; instead: a change of the terms that would do, "" where no yes helps;
    loud: a sentence besides; names: all those that the terms name and the rule does not, where the reason has
    not all of them."""

    key: str
    value: str
    reason: str
    purpose: str
    instead: str
    loud: str
    names: Sequence[str] = ()


@dataclass(frozen=True)
class SiteFacts:
    """A site and its policy. rows: the name of its rows, and the file and number of them where it was read;
    took_part: sessions that count against max_sessions; epsilon, delta: its budget, if it has one; renamed:
    its columns that the terms call otherwise, in words; predicted: rows that it helped to predict, and most
    that it does, None where the terms train."""

    name: str
    max_sessions: int
    took_part: int
    epsilon: float | None = None
    delta: float | None = None
    file: str | None = None
    rows: int = 0
    renamed: str = ""
    predicted: tuple[int, int] | None = None


@dataclass(frozen=True)
class OriginFacts:
    """Where the model that a session measures comes from. own: this site signed it; others: parties that did,
    of those whose signature this site accepts; unknown: why none could be checked; rows: the fewest rows of
    its training in each leaf; readable: the most values of single rows that the analyst gets if leaves have
    one."""

    own: bool
    others: Sequence[str]
    unknown: str
    rows: int
    readable: int


@dataclass(frozen=True)
class ApprovalFacts:
    """Terms that a site's person decides on. impossible: no yes can allow them; earlier: the time of an
    approval that they have, and the analysts it is for; analysts: whom a yes would allow."""

    rules: Sequence[RuleFacts]
    impossible: bool
    analysts: Sequence[str]
    earlier: tuple[str, Sequence[str]] | None


@dataclass(frozen=True)
class PrivacyFacts:
    """The privacy of a dataset that sessions have spent. own: of this site's present rows; spent: an epsilon
    at delta; budget, left: epsilons, where the site has a budget for these rows."""

    dataset: str
    own: bool
    sessions: int
    took_part: int
    never_began: int
    with_noise: int
    releases: int
    cost: float
    delta: float
    spent: float
    budget: float | None
    left: float | None


@dataclass(frozen=True)
class VerificationFacts:
    """The signatures of a model file. faults: party that signed -> what is wrong with its signature, nothing
    if it holds; needed: signatures that a model under these terms has at least; analyst, asked: who asked for
    the session, and when; request_fault: what is wrong with the request, nothing if it holds."""

    file: str
    terms: Terms
    fingerprint: str
    trees: int
    faults: Mapping[str, str]
    needed: int
    analyst: str
    asked: str
    request_fault: str

    @property
    def signed(self) -> tuple[str, ...]:
        """The parties whose signatures hold."""
        return tuple(party for party, fault in self.faults.items() if not fault)

    @property
    def holds(self) -> bool:
        """True if there are signatures, enough of them, and nothing is wrong with any."""
        sound = not self.request_fault and len(self.signed) == len(self.faults)
        return sound and len(self.signed) >= max(self.needed, 1)

    @property
    def conclusion(self) -> str:
        """The outcome in one sentence."""
        if not self.faults:
            return "nobody signed this model: anybody may have made it"
        if wrong := [fault for fault in (*self.faults.values(), self.request_fault) if fault]:
            return wrong[0]
        parties = f"{len(self.signed)} of {len(self.terms.parties)} parties"
        if len(self.signed) < self.needed:
            return f"{parties} signed; {self.needed} are needed"
        return f"{parties} signed these trees, under these terms"


@dataclass(frozen=True)
class EstimateFacts:
    """The estimate of a training under one protection, with all processes on this machine: seconds of a
    round, and of the training with its start; megabytes a party sends in a round; round trips of a round;
    seconds of a round where each process has a machine of its own, without the network. A round's megabytes
    and round trips are the mean, with those before the first."""

    protection: str
    seconds_a_round: float
    seconds: float
    megabytes: float
    round_trips: float
    seconds_apart: float


@dataclass(frozen=True)
class WorkersFacts:
    """The estimate for a site whose rows are on workers of one thread each: how many; rows of one; bytes of
    memory that it needs while it loads them, and while trees grow; bytes a round between all workers and the
    site's own process, and seconds until that has its answers."""

    workers: int
    rows: int
    loading_bytes: int
    growing_bytes: int
    bytes_a_round: float
    seconds_a_round: float


@dataclass(frozen=True)
class Figure:
    """A mean over splits, and the interval it lies in with the rows that might have been held out; NaN where
    there is none."""

    value: float
    low: float
    high: float

    def as_json(self) -> dict[str, float | None]:
        """The figures by name; null where there is none."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


ALONE, FEDERATED, POOLED = "alone", "federated", "pooled"
WORTH, NOT_WORTH, UNTOLD = "worth it", "not worth it", "cannot be told"
ONLY_JOINED, TOO_FEW = "cannot train alone", "too few rows"
VERDICTS = WORTH, NOT_WORTH, UNTOLD, ONLY_JOINED, TOO_FEW
MIN_ROWS = 10
"""Fewer different rows than this say nothing of a site, whatever they are."""


@dataclass(frozen=True)
class SiteComparison:
    """The models compared on one site's rows. held_out: rows in each split; different: rows that were held
    out in any; models: name to metric to figure; better_by: by metric, how much better the federated model is
    than the site's own, below 0 where it is worse; cannot: why it cannot train alone, if it cannot."""

    site: str
    rows: int
    held_out: int
    different: int
    models: Mapping[str, Mapping[str, Figure]]
    better_by: Mapping[str, Figure]
    cannot: str

    @property
    def verdict(self) -> str:
        """The verdict by the first metric."""
        if self.different < MIN_ROWS:
            return TOO_FEW
        if self.cannot:
            return ONLY_JOINED
        gain = next(iter(self.better_by.values()))
        return WORTH if gain.low > 0 else NOT_WORTH if gain.high < 0 else UNTOLD


@dataclass(frozen=True)
class ComparisonFacts:
    """A comparison of all sites. together: all that can train alone as one, each site counted by its rows;
    metrics: the deciding one first; share: of the rows that are held out; equal: the federated model was the
    pooled one in every split; site_column: the column that names the sites, if it could be a feature and is
    none."""

    sites: Sequence[SiteComparison]
    together: SiteComparison
    metrics: tuple[str, ...]
    splits: int
    share: float
    equal: bool
    site_column: str | None = None
