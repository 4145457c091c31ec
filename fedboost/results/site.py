"""Results about a site: analysts' requests, the facts that a person needs to decide about them, and the
privacy budget."""

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
    """Status of a request at this site. The values are shown to people."""

    APPROVED = "approved"
    REFUSED = "refused here by a person"
    ALLOWED = "allowed by the policy"
    OPEN = "not approved"
    OUTDATED = "approved, and refused since"

    @property
    def is_open(self) -> bool:
        """True if a person may still need to decide."""
        return self in (Standing.OPEN, Standing.OUTDATED)


class StoredRequest(Frozen):
    """An analyst's request for a session or a preflight check, as stored on disk.

    Attributes:
        digest, bytes: digest of its terms, and their size in bytes.
        analyst: the analyst who signed the request, '' if analysts have no keys.
        first, last: times at which the request first and last arrived, in seconds since 1970.
        session: name of the session, '' for a preflight check.
        answer: why this site did not (or would not) take part; '' if it did (or would).
        lacks_approval: True if the only reason for the refusal was that the terms are not approved.
    """

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
        """Name used in URLs and on disk, derived from digest and analyst."""
        return hashlib.sha256(f"{self.digest} {self.analyst}".encode()).hexdigest()[:32]


class Request(StoredRequest):
    """A request and its status. decided: time of a person's decision, '' if there is none; approved_since:
    True if the terms were approved after the site had answered."""

    standing: Standing
    decided: str = ""
    approved_since: bool = False


class Rule(Part):
    """A rule of a site's policy.

    Attributes:
        key, value: as in the site's file.
        is_set: True if the file sets the rule.
        reason: a sentence that says how the terms violate the rule.
        instead: change to the terms that would satisfy the rule; "" if no approval can allow the terms.
        loud: an additional warning, which is highlighted.
        names: all names in the terms that the rule does not allow, if the reason does not list them all.
    """

    key: str
    value: str
    purpose: str
    is_set: bool = True
    reason: str = ""
    instead: str = ""
    loud: str = ""
    names: tuple[str, ...] = ()


class ModelOrigin(Part):
    """Origin of the model that a session evaluates or checks for drift.

    Attributes:
        own: True if this site signed the model.
        others: other parties whose signatures this site accepts.
        unknown: why no signature could be verified.
        rows: minimum number of training rows in each leaf.
        readable: maximum number of individual rows whose values the analyst can learn, if leaves can have a
            single row.
    """

    own: bool
    others: tuple[str, ...]
    unknown: str
    rows: int
    readable: int


class Counts(Part):
    """Counts of a site's rows under given terms.

    Attributes:
        file: the source of the rows.
        categories: maps column -> category -> number of rows, for categorical columns and for a label with
            classes or two values. None if only the columns were checked.
        undeclared: maps column -> number of rows with a category that the terms do not declare.
        few: categories with fewer rows than this are marked.
    """

    rows: int
    file: str = ""
    categories: Mapping[str, Mapping[str, int]] | None = None
    undeclared: Mapping[str, int] = {}
    few: int = 0


class ApprovalView(Part):
    """Terms as shown to the person at a site who approves or refuses them.

    Attributes:
        analysts: analysts for whose requests an approval would be valid.
        rules: policy rules that the terms violate.
        fault: why no approval can allow the terms.
        earlier: time and analysts of an existing approval.
        origin: origin of the model in the terms, if there is one.
        counts: counts of this site's rows, if it has any.
        renamed: sentence about columns that have different names in the terms.
        adders: adders through which the site may be connected.
        sessions: number of sessions that count towards `max_sessions`, and this limit.
        predicted: number of rows that count towards `max_predicted_rows`, and this limit; None unless the
            session predicts.
        budget: for terms with noise, the remaining epsilon, and the budget's epsilon and delta.
        notes: further remarks.
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
    adders: tuple[str, ...] = ()
    sessions: tuple[int, int] = (0, 0)
    predicted: tuple[int, int] | None = None
    budget: tuple[float, float, float] | None = None
    notes: tuple[str, ...] = ()


class Decision(Part):
    """A request, with the view on which a person bases a decision. seen: hash of what an approval would
    allow."""

    request: Request
    view: ApprovalView
    seen: str


# ---- The privacy that sessions spent, the budget, and the releases charged to it ------------------------


USUAL_DELTA = 1e-5
"""Delta at which spending is shown if neither the budget nor a session sets one."""


class Spent(Part):
    """Privacy that sessions have spent on a dataset. Its JSON is one line of `fedboost privacy budget`.

    Attributes:
        own: True for this site's current dataset.
        took_part, never_began: number of sessions in which all parties connected at least once, and number of
            sessions in which they never did.
        with_noise: number of sessions with noise.
        cost: total privacy cost of all releases, as mu squared.
        spent: the cost as an epsilon at delta.
        budget, left: total and remaining epsilon, if the site has a budget for the dataset.
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
        """Return the privacy spent so far, expressed as an epsilon at the given delta."""
        return epsilon_of(math.sqrt(self.cost), delta)


class ChargedRelease(Part):
    """A release charged to the budget. at: time in UTC; epsilon: cost of this release alone, at the delta of
    `Spent`."""

    session: str
    release: str
    at: str
    epsilon: float


class SiteBudget(Part):
    """Privacy budget of a site. epsilon, delta: limit of the budget, if any; datasets: budget spent on each
    dataset, the current one first; charges: latest charges for releases from the current dataset, most
    recent first, or None if they were not read."""

    name: str
    max_sessions: int
    epsilon: float | None = None
    delta: float | None = None
    datasets: tuple[Spent, ...]
    charges: tuple[ChargedRelease, ...] | None = None

    @property
    def own(self) -> Spent:
        """Privacy budget spent on the site's current dataset."""
        return next(each for each in self.datasets if each.own)


# ---- A site now -----------------------------------------------------------------------------------------


@dataclass
class LiveSession:
    """The session in progress. since: time of the start, in seconds since 1970; rounds: number of completed
    rounds; answers, bytes: number of answers and of bytes that this site has sent."""

    name: str
    analyst: str
    terms: Terms
    since: float
    rounds: int = 0
    answers: int = 0
    bytes: int = 0


@dataclass
class Activity:
    """What this site is doing now. connected: True if it is connected to the aggregator."""

    connected: bool = False
    session: LiveSession | None = None


class Overview(Part):
    """Current state of a site.

    Attributes:
        aggregator: address of the aggregator.
        rows: number of rows and name of their table, as text; '' for a key holder.
        requests: analysts' requests, most recent first.
        nothing_yet: True if the site does not allow any terms yet.
        fault: why the privacy budget is unknown, if `budget` is None.
    """

    party: str
    aggregator: str
    rows: str
    live: Activity
    requests: tuple[Request, ...]
    budget: SiteBudget | None
    fault: str
    nothing_yet: bool
    time: float
