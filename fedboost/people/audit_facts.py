"""Facts of an audit, which its text and JSON are made from.

Promises: nothing here reads or formats.
Refuses: nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedboost.people.words import UNASKED
from fedboost.protocol.site import Relayed
from fedboost.terms.session import TO_TRAIN


@dataclass(frozen=True)
class AgreementFacts:
    """The agreement of a site to take part in a session. Missing in old logs: attempt, analyst, request.
    rounds: 0 where nothing is trained; task: what the session does."""

    terms: str
    parties: tuple[str, ...]
    objective: str
    rounds: int
    columns: tuple[str, ...]
    epsilon: float | None
    delta: float | None
    placement: str | None
    attempt: int | None
    analyst: str | None
    request: str | None
    task: str


@dataclass(frozen=True)
class OwnFacts:
    """A site whose columns others do not have. columns: its own, in words, with their names in its table
    where those are others; has_labels: it is the label holder; hides: the terms hide columns and labels;
    in_common: its rows that all parties have that hold columns of the same rows, where the log says so. None
    of the first two where the log does not name the site, or its terms are not there."""

    columns: Sequence[str] | None = None
    has_labels: bool | None = None
    hides: bool = False
    in_common: int | None = None


@dataclass(frozen=True)
class ReleaseFacts:
    """A release of a site, as its log has it: integers (cells) in bytes. what: the name of its query; again:
    the same answer left before."""

    session: str
    turn: int
    attempt: int
    what: str
    cells: int
    bytes: int
    protection: str
    roster: tuple[str, ...]
    charge: str | None
    cost: float | None
    question: str | None
    position: str | None
    again: bool


@dataclass(frozen=True)
class SessionRank:
    """A session among the others of its log. number, total: its rank among sessions of this name, and how
    many there are; after_end: an earlier session under its terms had ended; under_terms: sessions under its
    terms from which something left; warnings: numbers of those about it."""

    number: int
    total: int
    after_end: bool
    under_terms: int
    warnings: tuple[int, ...]


@dataclass(frozen=True)
class SessionEnd:
    """The end of a session. state: in words; closed: why there is no model ("" with a model), None if that is
    not recorded; analyst: who asked for one that was refused."""

    state: str
    over: bool
    closed: str | None
    analyst: str | None = None


@dataclass(frozen=True)
class SessionFacts:
    """A session of a site's audit log.

    allowed: questions of each kind by its terms, if these are known; taken_up: how often this site took it
    up; again_elsewhere: answers that left again for a sum over other parties; own: what this site had, where
    the parties held different columns.
    """

    name: str
    rank: SessionRank
    begin: str
    end: str
    allowed: Mapping[str, int]
    agreement: AgreementFacts | None
    attempts: tuple[int, int] | None
    taken_up: int
    releases: Sequence[ReleaseFacts]
    relays: Sequence[Relayed]
    again_elsewhere: int
    protections: Sequence[str]
    own: OwnFacts | None
    cost: float | None
    epsilon: float | None
    ending: SessionEnd

    @property
    def task(self) -> str:
        """What the session does."""
        return self.agreement.task if self.agreement else TO_TRAIN

    @property
    def answers(self) -> list[ReleaseFacts]:
        """The answers to questions: all releases but those that answer none."""
        return [release for release in self.releases if release.what not in UNASKED]

    @property
    def again(self) -> list[ReleaseFacts]:
        """The answers that had left before."""
        return [release for release in self.releases if release.again]

    @property
    def by_query(self) -> dict[str, list[ReleaseFacts]]:
        """The releases by query, in the order of the first of each."""
        kinds: dict[str, list[ReleaseFacts]] = {}
        for release in self.releases:
            kinds.setdefault(release.what, []).append(release)
        return kinds

    @property
    def by_receivers(self) -> dict[tuple[str, tuple[str, ...]], list[Relayed]]:
        """The relays by kind and receivers, in the order of the first of each."""
        kinds: dict[tuple[str, tuple[str, ...]], list[Relayed]] = {}
        for relay in self.relays:
            kinds.setdefault((relay.what, relay.to), []).append(relay)
        return kinds

    @property
    def smallest_roster(self) -> tuple[str, ...]:
        """The fewest parties that a sum is over."""
        return min((release.roster for release in self.releases), key=len, default=())

    @property
    def unrecorded(self) -> bool:
        """True if the log does not say which questions were asked."""
        return any(answer.question is None for answer in self.answers)

    @property
    def without_terms(self) -> bool:
        """True for a session that an old version recorded, which kept no terms."""
        return bool(self.answers) and (self.agreement is None or self.agreement.attempt is None)


@dataclass(frozen=True)
class WarningFacts:
    """A warning of an audit. kind: as people read it; name: as scripts do; meaning: that of the kind."""

    kind: str
    name: str
    kind_meaning: str
    rule: str
    sessions: tuple[str, ...]
    seen: str
    meaning: str
    action: str


@dataclass(frozen=True)
class ChecksFacts:
    """The checks of an analyst on a day, without sessions. terms: how many different; would: under how many
    of them the site would take part."""

    day: str
    analyst: str
    terms: int
    would: int


@dataclass(frozen=True)
class AuditFacts:
    """An audit of a log. expected: the number of the entry with the hash that was expected, None where none
    was; sessions: those to print; listed: with each answer; earlier: sessions before them that were not asked
    for; checks: by day and analyst, where all sessions are printed."""

    log: str
    entries: int
    last_hash: str
    expected: int | None
    parties: Sequence[str]
    warnings: Sequence[WarningFacts]
    sessions: Sequence[SessionFacts]
    listed: bool
    earlier: int = 0
    checks: Sequence[ChecksFacts] = ()
