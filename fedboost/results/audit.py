"""A site's audit log, prepared for people and scripts: entries, the sessions to which they belong, and
warnings.

The entry types also define the lines of the log. Each line is the canonical JSON of one field of an `Entry`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass

from fedboost.privacy.noise import epsilon_of
from fedboost.protocol.site import HELP, OPENINGS, THRESHOLDS
from fedboost.results.base import Part
from fedboost.terms.reading import Frozen
from fedboost.terms.session import TASKS

K = TypeVar("K")
V = TypeVar("V")
STOPPED, EXPIRED = "this site stopped", "this site's certificate expired"
"""Reasons why a session was paused."""
UNASKED = frozenset({HELP, OPENINGS, THRESHOLDS})
"""Names of the releases (integers that leave a site) that do not answer a query."""
Size = Annotated[int, Field(ge=0)]


# ---- Entries of a log -----------------------------------------------------------------------------------


class Admitted(Frozen):
    """Log entry: a process of this site agreed to take part in a session, or to continue it.

    Attributes:
        terms: digest of the terms.
        columns: columns named in the terms, label first.
        epsilon, delta, placement: privacy parameters, if the terms add noise.
        attempt: number of the attempt to run the session that the aggregator offered.
        analyst, request: if the terms are signed, the analyst who signed them, and the nonce of the
            signature.
        party, dataset: name of this site, and name of its dataset.
        names: maps column in the terms -> column in this site's table, where the names differ.
        task: the session's task, if it is not training.
        adder: adder through which the site was connected, if any.
    """

    kind: Literal["admitted"] = "admitted"
    session: str
    terms: str
    protection: str
    parties: tuple[str, ...]
    objective: str
    rounds: Size
    columns: tuple[str, ...]
    epsilon: float | None = None
    delta: float | None = None
    placement: str | None = None
    attempt: Size
    analyst: str | None = None
    request: str | None = None
    party: str | None = None
    dataset: str | None = None
    names: dict[str, str] | None = None
    task: str | None = None
    adder: str | None = None

    @property
    def does(self) -> str:
        """Task of the session (`Terms.task`)."""
        return self.task or TASKS["train"].name


class Released(Frozen):
    """Log entry: integers that left this site and are added to the integers of the other parties in the
    roster.

    Attributes:
        cells, bytes: number of integers, and their size in bytes.
        charge: if noise was added, the name of the charge to the privacy budget in the site's memory file. It
            counts once, however often its name occurs in the log.
        cost: privacy cost of the charge, as mu squared.
        question, position: hashes of the query and of the session's state; None if the release does not
            answer a query.
    """

    kind: Literal["released"] = "released"
    session: str
    turn: Size
    attempt: Size
    what: str
    cells: Size
    bytes: Size
    protection: str
    roster: tuple[str, ...]
    charge: str | None = None
    cost: Annotated[float, Field(ge=0)] | None = None
    question: str | None = None
    position: str | None = None


class Sent(Frozen):
    """Log entry: bytes that this site sent to other parties through the aggregator, which cannot read them.
    what: kind of content; to: parties that receive the bytes; rows: number of rows to which the content
    refers."""

    kind: Literal["relayed"] = "relayed"
    session: str
    turn: Size
    attempt: Size
    what: str
    to: tuple[str, ...]
    rows: Size
    bytes: Size


class Ended(Frozen):
    """Log entry: a session ended or paused at this site.

    Attributes:
        reason: why the session ended without a model, '' if it produced one. If this site left, the reason is
            as sent to the other parties, without values and rows that the site's own log may contain.
        paused: True if the session continues when this site reconnects.
        analyst: the analyst who signed the terms, if this site refused the session without having agreed to
            it.
    """

    kind: Literal["ended"] = "ended"
    session: str
    reason: str
    paused: Literal[True] | None = None
    analyst: str | None = None


class Checked(Frozen):
    """Log entry: an analyst's preflight check of terms, which reads no rows. The same answer is logged at
    most once a day. terms: digest of the terms; would: True if this site would take part; analyst: the
    analyst who signed the terms."""

    kind: Literal["checked"] = "checked"
    terms: str
    would: bool
    analyst: str | None = None


# ---- Sessions -------------------------------------------------------------------------------------------


class Run(BaseModel):
    """The part of a session in one process of the site, from its agreement to its last log entry."""

    begin: str
    end: str
    admitted: Admitted | None = None
    ended: Ended | None = None
    releases: list[Released] = []
    relays: list[Sent] = []

    @property
    def answers(self) -> list[Released]:
        """Releases (integers that left this site) that answer a query."""
        return [release for release in self.releases if release.what not in UNASKED]

    @property
    def attempt(self) -> int | None:
        """The attempt in which the process started or first answered. None if neither is known."""
        if self.admitted is not None:
            return self.admitted.attempt
        return min((release.attempt for release in self.releases), default=None)

    @property
    def over(self) -> bool:
        """True if the session ended rather than paused."""
        return self.ended is not None and not self.ended.paused


class SiteShare(Part):
    """A site's own share of the columns in a session in which parties hold different columns.

    Attributes:
        columns: its columns, named as in the terms; None if the log lacks the site's name or the terms.
        names: maps column in the terms -> column in the site's table, where the names differ.
        has_labels: True if the site is the label holder; None under the same conditions as `columns`.
        hides: True if the terms hide columns and labels.
        in_common: number of matched rows, if the log contains it.
    """

    columns: tuple[str, ...] | None = None
    names: Mapping[str, str] = {}
    has_labels: bool | None = None
    hides: bool = False
    in_common: int | None = None


def grouped(items: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in order. items: pairs (key, value)."""
    groups: dict[K, list[V]] = {}
    for key, value in items:
        groups.setdefault(key, []).append(value)
    return groups


class Session(BaseModel):
    """A session, reconstructed from a log.

    Attributes:
        parts: one `Run` per process that took part.
        number, total: position among the sessions with the same name, starting at 1, and the number of these
            sessions.
        after_end: True if an earlier session under the same terms had already ended.
        under_terms: number of sessions under the same terms in which integers left this site.
        warnings: numbers of the audit's warnings about the session.
        allowed: maps query -> number of answers that the terms allow, if the terms are known.
        protection: for a prediction session, the protection in its terms, although such a session itself
            masks or encrypts nothing.
        own: this site's share, if the parties hold different columns.
    """

    name: str
    parts: list[Run] = []
    number: int = 1
    total: int = 1
    after_end: bool = False
    under_terms: int = 0
    warnings: tuple[int, ...] = ()
    allowed: Mapping[str, int] = {}
    protection: str | None = None
    own: SiteShare | None = None

    @property
    def begin(self) -> str:
        return self.parts[0].begin

    @property
    def end(self) -> str:
        return self.parts[-1].end

    @property
    def admitted(self) -> Admitted | None:
        """The first admission of the session; None if it was refused."""
        return next((part.admitted for part in self.parts if part.admitted), None)

    @property
    def does(self) -> str:
        """Task of the session (`Terms.task`)."""
        return self.admitted.does if self.admitted else TASKS["train"].name

    @property
    def digest(self) -> str | None:
        """Digest of the terms; None if the session was refused."""
        return None if self.admitted is None else self.admitted.terms

    @property
    def ended(self) -> Ended | None:
        """The last end or pause in the log; None if there is none."""
        return self.parts[-1].ended

    @property
    def over(self) -> bool:
        return self.parts[-1].over

    @property
    def releases(self) -> list[Released]:
        return [release for part in self.parts for release in part.releases]

    @property
    def relays(self) -> list[Sent]:
        """All bytes sent to other parties through the aggregator, in order."""
        return [relay for part in self.parts for relay in part.relays]

    @property
    def answers(self) -> list[Released]:
        """Releases (integers that left this site) that answer a query, in order."""
        return [release for part in self.parts for release in part.answers]

    @property
    def without_terms(self) -> bool:
        """True if this site answered although the log does not contain its agreement to the session."""
        return bool(self.answers) and self.admitted is None

    @property
    def by_kind(self) -> dict[str, list[Released]]:
        """Maps name of a query or other release -> its releases by the site, ordered by first release."""
        return grouped((release.what, release) for release in self.releases)

    @property
    def by_receivers(self) -> dict[tuple[str, tuple[str, ...]], list[Sent]]:
        """Maps (kind of content, receivers) -> bytes sent through the aggregator, by first occurrence."""
        return grouped(((relay.what, relay.to), relay) for relay in self.relays)

    @property
    def again(self) -> list[tuple[Released, Released]]:
        """Repeated answers, each paired with the first answer to the same query at the same position in the
        training. Empty if the log contains no hashes of queries and states."""
        firsts: dict[object, Released] = {}
        again = []
        for answer in self.answers:
            if answer.question and answer.position:
                key = answer.turn, answer.what, answer.cells, answer.question, answer.position, answer.charge
                first = firsts.setdefault(key, answer)
                if first is not answer:
                    again.append((answer, first))
        return again

    @property
    def by_turn(self) -> dict[int, list[Released]]:
        answers = sorted(self.answers, key=lambda release: release.turn)
        return grouped((release.turn, release) for release in answers)

    @property
    def attempts(self) -> tuple[int, int] | None:
        """The first and the last known attempt; None if none is known."""
        attempts = [part.attempt for part in self.parts if part.attempt is not None]
        attempts += [release.attempt for release in self.releases]
        return (min(attempts), max(attempts)) if attempts else None

    @property
    def protections(self) -> list[str]:
        """Protections that hid this site's releases, e.g. "masked"; if there are none, the agreed one."""
        if self.protection is not None:
            return [self.protection]
        agreed = [self.admitted.protection] if self.admitted else []
        return sorted({release.protection for release in self.releases}) or agreed

    @property
    def smallest_roster(self) -> tuple[str, ...]:
        """Smallest set of parties whose integers were added in one sum; empty if there is no release."""
        return min((release.roster for release in self.releases), key=len, default=())

    @property
    def cost(self) -> float | None:
        """Total cost of the releases with noise, as mu squared of Gaussian differential privacy. Repeated
        releases count once. None if no release has noise."""
        charges = {release.charge: release.cost for release in self.releases if release.cost is not None}
        return math.fsum(charges.values()) if charges else None

    @property
    def epsilon(self) -> float | None:
        """Epsilon that corresponds to the cost, at the delta of the terms."""
        if self.cost is None or self.admitted is None or self.admitted.delta is None:
            return None
        return epsilon_of(math.sqrt(self.cost), self.admitted.delta)

    @property
    def summary(self) -> dict[str, Any]:
        agreed, ended = self.admitted, self.ended
        named = ("terms", "analyst", "request", "parties", "columns", "placement")
        of_terms = {name: getattr(agreed, name) if agreed else None for name in named}
        if agreed is None and ended is not None:
            of_terms["analyst"] = ended.analyst
        answers = {
            query: {
                "times": len(releases),
                "integers": sum(release.cells for release in releases),
                "bytes": sum(release.bytes for release in releases),
            }
            for query, releases in self.by_kind.items()
        }
        relayed = [
            {
                "what": what,
                "to": receivers,
                "times": len(relays),
                "rows": max(relay.rows for relay in relays),
                "bytes": sum(relay.bytes for relay in relays),
            }
            for (what, receivers), relays in self.by_receivers.items()
        ]
        return {
            "event": "session",
            "session": self.name,
            "begin": self.begin,
            "end": self.end,
            **{name: of_terms[name] for name in ("terms", "analyst", "request")},
            "attempts": self.attempts,
            "taken_up": len(self.parts),
            **{name: of_terms[name] for name in ("parties", "columns")},
            "protections": self.protections,
            "placement": of_terms["placement"],
            "released": answers,
            **({"relayed": relayed} if relayed else {}),
            "cost": self.cost,
            "epsilon": self.epsilon,
            "smallest_roster": len(self.smallest_roster) if self.releases else None,
            "ended": ended.reason if ended and self.over else None,
        }


# ---- Warnings, checks, and all of a log -----------------------------------------------------------------


class Kind(Enum):
    """Severities of warnings, most serious first. The values are shown to people."""

    ABUSE = "ABUSE?"
    CHECK = "CHECK"


ABUSES = (
    *("after-end", "other-terms", "other-question", "other-position", "other-roster", "small-roster"),
    *("too-many", "request-again"),
)
"""Audit rules whose warnings have the severity ABUSE. All others have CHECK."""


@dataclass(frozen=True)
class AuditWarning:
    """A warning of an audit. rule: name of the audit rule, for scripts; sessions: names of the sessions
    concerned; seen, meaning, action: what was found in the log, what it means and what to do next, each as a
    sentence without initial capital and full stop."""

    rule: str
    sessions: tuple[str, ...]
    seen: str
    meaning: str
    action: str

    @property
    def kind(self) -> Kind:
        return Kind.ABUSE if self.rule in ABUSES else Kind.CHECK

    @property
    def sentences(self) -> tuple[str, str, str]:
        """Three sentences: what was found, what it means and what to do next."""
        seen, meaning, action = (
            f"{text[0].upper()}{text[1:]}." for text in (self.seen, self.meaning, self.action)
        )
        return seen, meaning, action

    @property
    def summary(self) -> dict[str, Any]:
        words = dict(zip(("seen", "meaning", "action"), self.sentences, strict=True))
        about = {"rule": self.rule, "sessions": self.sessions}
        return {"event": "warning", "kind": self.kind.name.lower(), **about, **words}


class Checks(Part):
    """An analyst's preflight checks on one day. terms: number of different terms checked; would: number of
    these under which the site would take part."""

    day: str
    analyst: str
    terms: int
    would: int


class Audit(Part):
    """The result of auditing a log.

    Attributes:
        entries: number of entries.
        last, last_hash: number and hash of the last entry.
        expected: number of the entry with the hash that the user expected; None if no hash was specified.
        parties: parties that write to the log.
        sessions: the sessions to print.
        listed: True if each answer is also printed.
        earlier: number of earlier sessions, which are not printed.
        checks: preflight checks by day and analyst, if all sessions are printed.
        decisions: time and text of each decision by a person.
    """

    log: str
    entries: int
    last: int
    last_hash: str
    expected: int | None = None
    parties: tuple[str, ...] = ()
    warnings: tuple[AuditWarning, ...] = ()
    sessions: tuple[Session, ...] = ()
    listed: bool = False
    earlier: int = 0
    checks: tuple[Checks, ...] = ()
    decisions: tuple[tuple[str, str], ...] = ()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the audit as JSON objects, one per line of output."""
        yield from (warning.summary for warning in self.warnings)
        for session in self.sessions:
            yield session.summary
            for release in session.releases if self.listed else ():
                yield {"event": "released", **release.model_dump(exclude={"kind"})}
        for asked in self.checks:
            yield {"event": "checked", **asked.model_dump()}
        yield from ({"event": "decision", "time": time, "what": what} for time, what in self.decisions)
        verified = {"entries": self.entries, "warnings": len(self.warnings), "hash": self.last_hash}
        more = {"expected": self.expected} if self.expected is not None else {}
        yield {"event": "verified", **verified, **more, **({"earlier": self.earlier} if self.earlier else {})}
