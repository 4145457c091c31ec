"""Results about a site: analysts' requests, the facts for a person's decision, and the spent privacy
budget."""

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
    """Status of a request at this site; the values are shown to people."""

    APPROVED = "approved"
    REFUSED = "refused here by a person"
    ALLOWED = "allowed by the policy"
    OPEN = "not approved"
    OUTDATED = "approved, and refused since"

    @property
    def is_open(self) -> bool:
        """True if a person may want to decide."""
        return self in (Standing.OPEN, Standing.OUTDATED)


class StoredRequest(Frozen):
    """A request as stored in its file. digest: of its terms; bytes: size of its terms; analyst: signer, ''
    without keys; first, last: time of its first and last arrival, in seconds since 1970; session: name of the
    session, '' for a check; answer: why this site did not or would not take part, '' if it did or would;
    lacks_approval: it was refused, and an approval would have changed that."""

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
        """Name in URLs and on disk, derived from digest and analyst."""
        return hashlib.sha256(f"{self.digest} {self.analyst}".encode()).hexdigest()[:32]


class Request(StoredRequest):
    """A request and its status. decided: time of a person's decision, '' without one; approved_since: the
    answer is from before the approval."""

    standing: Standing
    decided: str = ""
    approved_since: bool = False


class Rule(Part):
    """A rule of a site's policy. key, value: as in the site's file; is_set: the file sets the rule; reason:
    sentence about terms that break it; instead: change of the terms that would satisfy it, "" if no approval
    helps; loud: additional warning; names: all names in the terms that the rule lacks, if the reason does not
    list them all."""

    key: str
    value: str
    purpose: str
    is_set: bool = True
    reason: str = ""
    instead: str = ""
    loud: str = ""
    names: tuple[str, ...] = ()


class ModelOrigin(Part):
    """Origin of the model that a session measures. own: this site signed it; others: other signers whose
    signature this site accepts; unknown: why no signature could be checked; rows: least number of training
    rows in each leaf; readable: most values of single rows that the analyst can get if leaves have one
    row."""

    own: bool
    others: tuple[str, ...]
    unknown: str
    rows: int
    readable: int


class Counts(Part):
    """Row counts of a site under given terms. file: source of the rows; categories: rows by declared category
    of each categorical column, and by value of a label of two values or of classes; None if only the columns
    were checked; undeclared: rows with another category, by column; few: values with fewer rows than this are
    marked."""

    rows: int
    file: str = ""
    categories: Mapping[str, Mapping[str, int]] | None = None
    undeclared: Mapping[str, int] = {}
    few: int = 0


class ApprovalView(Part):
    """Terms as a person at a site sees them when deciding.

    analysts: analysts that an approval allows; rules: rules that the terms break; fault: why no approval can
    allow them; earlier: time and analysts of an existing approval; counts: this site's rows, if it has any;
    renamed: sentence about columns that have other names in the terms; sessions: sessions that count against
    max_sessions, and max_sessions; predicted: the same for rows and max_predicted_rows, None if the terms
    train; budget: for terms with noise, the epsilon left, and the epsilon and delta of the budget; notes:
    further remarks.
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
    """A request with the view to decide on. seen: hash of what an approval would allow."""

    request: Request
    view: ApprovalView
    seen: str


# ---- The privacy that sessions spent, the budget, and the releases charged to it ------------------------


USUAL_DELTA = 1e-5
"""Delta at which spending is shown if neither the budget nor a session has one."""


class Spent(Part):
    """Privacy of a dataset that sessions have spent; its JSON is a line of `fedboost privacy budget`. own:
    the dataset is this site's current one; sessions: sessions in the site's memory; never_began: those in
    which the parties never met; with_noise: those with noise; cost: mu squared of all releases; spent: the
    cost as an epsilon at delta; budget, left: epsilons, if the site has a budget for these rows."""

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
        """Return the spent privacy as an epsilon at the given delta."""
        return epsilon_of(math.sqrt(self.cost), delta)


class ChargedRelease(Part):
    """A release charged to the budget. at: time in UTC; epsilon: of this release only, at the delta of
    `Spent`."""

    session: str
    release: str
    at: str
    epsilon: float


class SiteBudget(Part):
    """Privacy budget of a site. epsilon, delta: limit of the budget, if any; datasets: spending by dataset,
    the current one first; charges: latest releases of the current dataset, the latest first; None if they
    were not read."""

    name: str
    max_sessions: int
    epsilon: float | None = None
    delta: float | None = None
    datasets: tuple[Spent, ...]
    charges: tuple[ChargedRelease, ...] | None = None

    @property
    def own(self) -> Spent:
        """Spending on the site's current dataset."""
        return next(each for each in self.datasets if each.own)


# ---- A site now -----------------------------------------------------------------------------------------


@dataclass
class LiveSession:
    """The current session. since: seconds since 1970; rounds: completed rounds; answers, bytes: sent by this
    site."""

    name: str
    analyst: str
    terms: Terms
    since: float
    rounds: int = 0
    answers: int = 0
    bytes: int = 0


@dataclass
class Activity:
    """Current activity of this site. connected: it is connected to the aggregator."""

    connected: bool = False
    session: LiveSession | None = None


class Overview(Part):
    """Current state of a site. rows: number of rows and their table, '' for a key holder; aggregator: address
    of the aggregator; requests: the latest first; nothing_yet: no terms are allowed yet; fault: why the
    budget is unknown, if `budget` is None."""

    party: str
    aggregator: str
    rows: str
    live: Activity
    requests: tuple[Request, ...]
    budget: SiteBudget | None
    fault: str
    nothing_yet: bool
    time: float
