"""Facts that the pages of a site are made from: plain values, which the runtime fills.

Promises: nothing here reads, draws or formats.
Refuses: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from fedboost.people.facts import ApprovalFacts, PrivacyFacts, SiteFacts
from fedboost.terms.terms import Terms

Lines = Sequence[tuple[str, str]]
"""Keys, each with the words about it; one without a key goes on with the one before."""


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
class LiveFacts:
    """What this site does now. connected: the aggregator is at hand."""

    connected: bool = False
    session: LiveSession | None = None


@dataclass(frozen=True)
class RequestFacts:
    """A request of an analyst. name: in addresses; analyst: '' without keys; first, last: when it was asked,
    seconds since 1970; session: '' of a check; answer: why this site did not take part, or would not, ''
    where it did, or would; decided: when a person decided on it, '' if nobody did;
    approved_since: the answer is from before the approval."""

    name: str
    digest: str
    analyst: str
    task: str
    parties: int
    first: float
    last: float
    session: str
    answer: str
    standing: Standing
    decided: str
    approved_since: bool = False


@dataclass(frozen=True)
class DecisionFacts:
    """A request with all that a person decides on. terms: in words; fault: why no yes can allow them; seen: a
    hash of what a yes would allow; notes: what else is to be known; file: of the approval, if there is
    one."""

    request: RequestFacts
    site: SiteFacts
    terms: Lines
    rules: ApprovalFacts
    fault: str
    seen: str
    notes: Sequence[str]
    file: str = ""


@dataclass(frozen=True)
class ChargeFacts:
    """A release that was charged to the budget. at: when, UTC; epsilon: of it alone, at its delta."""

    session: str
    release: str
    at: str
    epsilon: float


@dataclass(frozen=True)
class BudgetFacts:
    """What sessions spent of the privacy of this site's rows. charges: the latest first, of so many."""

    site: SiteFacts
    spent: PrivacyFacts
    charges: Sequence[ChargeFacts]
    charged: int


@dataclass(frozen=True)
class RuleOfPolicy:
    """A key of the policy. value: as the file has it, or its default; is_set: the file has it."""

    key: str
    value: str
    is_set: bool
    purpose: str


@dataclass(frozen=True)
class OverviewFacts:
    """A site now. rows: how many it has, and of which table, '' for a key holder; aggregator: its address;
    requests: the latest first; nothing_yet: no terms are allowed yet; fault: why the budget
    cannot be told, where `budget` is None."""

    party: str
    aggregator: str
    rows: str
    live: LiveFacts
    requests: Sequence[RequestFacts]
    budget: BudgetFacts | None
    fault: str
    nothing_yet: bool
    time: float


@dataclass(frozen=True)
class Reader:
    """Who reads a page. name: of the token; may_decide: it is an officer's; form_key: what a form of a page
    for this reader carries, '' where no form is for it."""

    name: str
    may_decide: bool
    form_key: str
