"""A site: requests of analysts, all that a person decides on, and the privacy of its rows that was spent."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fedboost.privacy.noise import epsilon_of
from fedboost.results.base import Part
from fedboost.terms.reading import Frozen
from fedboost.terms.terms import Terms


class Standing(Enum):
    """What holds for a request at this site, in words."""

    APPROVED = "approved"
    REFUSED = "refused here by a person"
    ALLOWED = "allowed by the policy"
    OPEN = "not approved"
    OUTDATED = "approved, and refused since"

    @property
    def is_open(self) -> bool:
        """Tell if a person may want to decide."""
        return self in (Standing.OPEN, Standing.OUTDATED)


class Asked(Frozen):
    """A request as its file has it. analyst: who signed it, '' without keys; first, last: when, seconds since
    1970; session: its name, '' of a check; answer: why this site did not take part, or would not; '' where it
    did, or would; bytes: of its terms; lacks_approval: it was refused, and an approval would have changed
    that."""

    digest: str
    analyst: str
    task: str
    parties: int
    first: float
    last: float
    session: str
    answer: str
    bytes: int
    lacks_approval: bool

    @property
    def name(self) -> str:
        """Its name in addresses and on the disk: of its digest and analyst."""
        return hashlib.sha256(f"{self.digest} {self.analyst}".encode()).hexdigest()[:32]


class Request(Asked):
    """A request, and what holds for it. decided: when a person decided on it, '' if nobody did;
    approved_since: the answer is from before the approval."""

    standing: Standing
    decided: str = ""
    approved_since: bool = False


class Rule(Part):
    """A rule of a site's policy. key, value: as its file has it; is_set: the file has it; reason: a sentence
    about terms that break it; instead: a change of the terms that would do, "" where no approval helps; loud:
    a sentence besides; names: all those that the terms name and the rule does not, where the reason has not
    all of them."""

    key: str
    value: str
    purpose: str
    is_set: bool = True
    reason: str = ""
    instead: str = ""
    loud: str = ""
    names: tuple[str, ...] = ()


class ModelOrigin(Part):
    """Where the model that a session measures comes from. own: this site signed it; others: parties that did,
    of those whose signature this site accepts; unknown: why none could be checked; rows: the fewest rows of
    its training in each leaf; readable: the most values of single rows that the analyst gets if leaves have
    one."""

    own: bool
    others: tuple[str, ...]
    unknown: str
    rows: int
    readable: int


class Counts(Part):
    """The rows of a site under some terms.

    rows: how many; file: where they were read; categories: for each categorical column the rows that each
    declared category has, and for the label those that each of its values has, where it is of two values or
    of classes; None where only the columns were looked at; undeclared: for each categorical column that has
    other categories, the rows with one; few: what has fewer rows is marked.
    """

    rows: int
    file: str = ""
    categories: Mapping[str, Mapping[str, int]] | None = None
    undeclared: Mapping[str, int] = {}
    few: int = 0


class ApprovalView(Part):
    """Terms that a person at a site decides on.

    analysts: whom an approval allows; rules: those that the terms break; fault: why no approval can allow
    them; earlier: the time of an approval that they have, and its analysts; counts: rows of this site, where
    there are any; renamed: its columns that the terms call otherwise, in words; sessions: those that count
    against max_sessions, and that; predicted: the same of rows and max_predicted_rows, None where the terms
    train; budget: for terms with noise the epsilon left of the site's budget, and its epsilon and delta;
    notes: what else is to be known.
    """

    party: str
    terms: Terms
    analysts: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    fault: str = ""
    earlier: tuple[str, tuple[str, ...]] | None = None
    origin: ModelOrigin | None = None
    counts: Counts | None = None
    renamed: str = ""
    sessions: tuple[int, int] = (0, 0)
    predicted: tuple[int, int] | None = None
    budget: tuple[float, float, float] | None = None
    notes: tuple[str, ...] = ()


class Decision(Part):
    """A request with all that a person decides on. seen: a hash of what an approval would allow."""

    request: Request
    view: ApprovalView
    seen: str


# ---- The privacy of a site's rows that sessions spent, its budget, and each release charged to it -------


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


# ---- A site now -----------------------------------------------------------------------------------------


@dataclass
class LiveSession:
    """The session under way. since: seconds since 1970; rounds: those that ended; answers, bytes: that left
    this site."""

    name: str
    analyst: str
    terms: Terms
    since: float
    rounds: int = 0
    answers: int = 0
    bytes: int = 0


@dataclass
class Live:
    """What this site does now. connected: to the aggregator."""

    connected: bool = False
    session: LiveSession | None = None


class Overview(Part):
    """A site now. rows: how many it has, and of which table, '' for a key holder; aggregator: its address;
    requests: the latest first; nothing_yet: no terms are allowed yet; fault: why the budget is not known,
    where `budget` is None."""

    party: str
    aggregator: str
    rows: str
    live: Live
    requests: tuple[Request, ...]
    budget: SiteBudget | None
    fault: str
    nothing_yet: bool
    time: float
