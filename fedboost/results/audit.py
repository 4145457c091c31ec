"""The audit log of a site as people and scripts read it: its entries, the sessions they are of, warnings.

The types of entries are also the lines of the log: each is one field of an `Entry`, as canonical JSON.
"""

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass

from fedboost.privacy.noise import epsilon_of
from fedboost.protocol.site import HELP, OPENINGS, THRESHOLDS
from fedboost.results.base import Part
from fedboost.terms.reading import Frozen
from fedboost.terms.session import TASKS

STOPPED, EXPIRED = "this site stopped", "this site's certificate expired"
"""Reasons for a pause."""
UNASKED = frozenset({HELP, OPENINGS, THRESHOLDS})
"""The names of releases that answer no question."""
Size = Annotated[int, Field(ge=0)]


# ---- Entries of a log -----------------------------------------------------------------------------------


class Admitted(Frozen):
    """Agreement of a process of this site to take part in a session, or to go on with it.

    terms: their digest; columns: what they name, label first; epsilon, delta, placement: of the noise, where
    there is some; attempt: the one that was offered;
    analyst and request: who signed the terms, and the nonce of that signature, where they are signed; party
    and dataset: the names of this site and of its rows; names: by its name in the terms
    the name of each column in this site's table, where that is another; task: what the session does where
    nothing is trained.
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

    @property
    def does(self) -> str:
        """What the session does (`Terms.task`)."""
        return self.task or TASKS["train"].name


class Released(Frozen):
    """A release of this site: the integers in it and their bytes, added to those of the roster.

    charge, cost: where it got noise, its name in the site's memory and the mu squared it was charged there,
    once however often the name is here; question, position: hashes of the question and of where the session
    stood, missing for what answers no question.
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
    """Bytes of this site for other parties, which the aggregator passed on and cannot read. what: their kind;
    rows: the rows they tell of."""

    kind: Literal["relayed"] = "relayed"
    session: str
    turn: Size
    attempt: Size
    what: str
    to: tuple[str, ...]
    rows: Size
    bytes: Size


class Ended(Frozen):
    """End of a session for this site; an empty reason means that the model was made. Where this site left,
    it is what the others were told, without the values and rows that its own log may name. paused: it is not
    over, and goes on when this site is there again. analyst: who signed the terms of a session that was
    refused, so that no agreement says it."""

    kind: Literal["ended"] = "ended"
    session: str
    reason: str
    paused: Literal[True] | None = None
    analyst: str | None = None


class Checked(Frozen):
    """A check of terms, without a session: their digest, the analyst who signed them, and whether this site
    would take part. No row was read for it. The same answer is here once a day."""

    kind: Literal["checked"] = "checked"
    terms: str
    would: bool
    analyst: str | None = None


# ---- Sessions -------------------------------------------------------------------------------------------


class Run(BaseModel):
    """A session from its admission by one process of the site to the last entry of that process."""

    begin: str
    end: str
    admitted: Admitted | None = None
    ended: Ended | None = None
    releases: list[Released] = []
    relays: list[Sent] = []

    @property
    def answers(self) -> list[Released]:
        """The answers to questions: all releases but those that answer none."""
        return [release for release in self.releases if release.what not in UNASKED]

    @property
    def attempt(self) -> int | None:
        """The attempt it began with, or the first it answered in; None if neither is known."""
        if self.admitted is not None:
            return self.admitted.attempt
        return min((release.attempt for release in self.releases), default=None)

    @property
    def over(self) -> bool:
        """True if the session ended, and did not pause."""
        return self.ended is not None and not self.ended.paused


class Own(Part):
    """What a site has that others do not. columns: its own, by the names of the terms; has_labels: it is the
    label holder; both None where the log does not name the site, or its terms are missing. names: those of
    its table, where they differ; hides: the terms hide columns and labels; in_common: its rows that all
    parties have, where the log says so."""

    columns: tuple[str, ...] | None = None
    names: Mapping[str, str] = {}
    has_labels: bool | None = None
    hides: bool = False
    in_common: int | None = None


class Session(BaseModel):
    """A session, by all that a log says of it.

    number, total: its rank among the sessions of its name, and how many there are; after_end: an earlier
    session under its terms had ended; under_terms: sessions under its terms from which something left;
    warnings: numbers of those about it; allowed: questions of each kind by its terms, if these are known;
    protection: of its terms, for a prediction, where nothing is sealed; own: where the parties held different
    columns.
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
    own: Own | None = None

    @property
    def begin(self) -> str:
        """The time of its first entry."""
        return self.parts[0].begin

    @property
    def end(self) -> str:
        """The time of its last entry."""
        return self.parts[-1].end

    @property
    def admitted(self) -> Admitted | None:
        """Its first admission; None if it was refused."""
        return next((part.admitted for part in self.parts if part.admitted), None)

    @property
    def does(self) -> str:
        """What the session does (`Terms.task`)."""
        return self.admitted.does if self.admitted else TASKS["train"].name

    @property
    def digest(self) -> str | None:
        """The digest of its terms; None if it was refused."""
        return None if self.admitted is None else self.admitted.terms

    @property
    def ended(self) -> Ended | None:
        """The last end that the log has; None if there is none."""
        return self.parts[-1].ended

    @property
    def over(self) -> bool:
        """True if it ended."""
        return self.parts[-1].over

    @property
    def releases(self) -> list[Released]:
        """All that left, in order."""
        return [release for part in self.parts for release in part.releases]

    @property
    def relays(self) -> list[Sent]:
        """All that was relayed to other parties, in order."""
        return [relay for part in self.parts for relay in part.relays]

    @property
    def answers(self) -> list[Released]:
        """The answers to questions, in order."""
        return [release for part in self.parts for release in part.answers]

    @property
    def without_terms(self) -> bool:
        """True if the log does not have the agreement to a session that was answered."""
        return bool(self.answers) and self.admitted is None

    @property
    def by_kind(self) -> dict[str, list[Released]]:
        """The releases by query, in the order of the first of each."""
        kinds: dict[str, list[Released]] = {}
        for release in self.releases:
            kinds.setdefault(release.what, []).append(release)
        return kinds

    @property
    def by_receivers(self) -> dict[tuple[str, tuple[str, ...]], list[Sent]]:
        """The relays by kind and receivers, in the order of the first of each."""
        kinds: dict[tuple[str, tuple[str, ...]], list[Sent]] = {}
        for relay in self.relays:
            kinds.setdefault((relay.what, relay.to), []).append(relay)
        return kinds

    @property
    def again(self) -> list[tuple[Released, Released]]:
        """The answers that left before, each with the first: the same question, asked at the same place of
        the training. A log that does not record both has none."""
        firsts: dict[object, Released] = {}
        again = []
        for answer in self.answers:
            if answer.question and answer.position:
                charge = None if self.admitted and self.admitted.placement == "central" else answer.charge
                key = answer.turn, answer.what, answer.cells, answer.question, answer.position, charge
                first = firsts.setdefault(key, answer)
                if first is not answer:
                    again.append((answer, first))
        return again

    @property
    def by_turn(self) -> dict[int, list[Released]]:
        """The answers of each turn, in the order of turns."""
        turns: dict[int, list[Released]] = {}
        for release in sorted(self.answers, key=lambda release: release.turn):
            turns.setdefault(release.turn, []).append(release)
        return turns

    @property
    def attempts(self) -> tuple[int, int] | None:
        """The first and the last attempt that is known."""
        attempts = [part.attempt for part in self.parts if part.attempt is not None]
        attempts += [release.attempt for release in self.releases]
        return (min(attempts), max(attempts)) if attempts else None

    @property
    def protections(self) -> list[str]:
        """The protections under which something left; the agreed one if nothing did."""
        if self.protection is not None:
            return [self.protection]
        agreed = [self.admitted.protection] if self.admitted else []
        return sorted({release.protection for release in self.releases}) or agreed

    @property
    def smallest_roster(self) -> tuple[str, ...]:
        """The fewest parties that a sum is over."""
        return min((release.roster for release in self.releases), key=len, default=())

    @property
    def cost(self) -> float | None:
        """Mu squared of all that left with noise, what left again counted once; None where nothing did."""
        charges = {release.charge: release.cost for release in self.releases if release.cost is not None}
        return math.fsum(charges.values()) if charges else None

    @property
    def epsilon(self) -> float | None:
        """The cost as an epsilon, at the delta of the terms."""
        if self.cost is None or self.admitted is None or self.admitted.delta is None:
            return None
        return epsilon_of(math.sqrt(self.cost), self.admitted.delta)

    @property
    def summary(self) -> dict[str, Any]:
        """The session as JSON."""
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
    """The kinds of warnings, the most serious first, as people read them."""

    ABUSE = "ABUSE?"
    CHECK = "CHECK"
    WEAK = "WEAK PROTECTION"


_ABUSE = (
    *("after-end", "other-terms", "other-question", "other-position", "other-roster", "small-roster"),
    *("too-many", "request-again"),
)
KINDS = {
    **dict.fromkeys(_ABUSE, Kind.ABUSE),
    **dict.fromkeys(
        ("first-attempt", "attempt-again", "other-answer", "similar-groups", "terms"), Kind.CHECK
    ),
    "central-noise": Kind.WEAK,
}
"""The kind of each rule."""


@dataclass(frozen=True)
class AuditWarning:
    """A warning. rule: its name, for scripts; sessions: those it is about; seen: what the log has; meaning,
    action: what follows from that, and what to do. Sentences without a capital and a full stop."""

    rule: str
    sessions: tuple[str, ...]
    seen: str
    meaning: str
    action: str

    @property
    def kind(self) -> Kind:
        """The severity of the warning."""
        return KINDS[self.rule]

    @property
    def sentences(self) -> tuple[str, str, str]:
        """Three sentences: the observation, its meaning, the next step."""
        seen, meaning, action = (
            f"{text[0].upper()}{text[1:]}." for text in (self.seen, self.meaning, self.action)
        )
        return seen, meaning, action

    @property
    def summary(self) -> dict[str, Any]:
        """The warning as JSON."""
        words = dict(zip(("seen", "meaning", "action"), self.sentences, strict=True))
        about = {"rule": self.rule, "sessions": self.sessions}
        return {"event": "warning", "kind": self.kind.name.lower(), **about, **words}


class Checks(Part):
    """The checks of an analyst on a day, without sessions. terms: how many different; would: under how many
    of them the site would take part."""

    day: str
    analyst: str
    terms: int
    would: int


class Audit(Part):
    """An audit of a log. last: the number of its last entry; expected: that of the entry with the hash that
    was expected, None where none was; sessions: those to print; listed: with each answer; earlier: sessions
    before them that were not asked for; checks: by day and analyst, where all sessions are printed;
    decisions: of persons, each with its time."""

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
        """Yield the audit as JSON, one object a line."""
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
