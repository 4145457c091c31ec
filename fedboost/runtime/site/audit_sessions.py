"""The sessions of an audit log, as facts: what an auditor counts, compares and prints.

Promises: every entry of the log but checks belongs to one session; a session that goes on after a restart of
the site is one, and a name that is used again, after its session ended or under other terms, is another.
Refuses: nothing.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile

from fedboost.errors import ConfigError
from fedboost.privacy.noise import epsilon_of
from fedboost.runtime.site.audit import (
    EXPIRED,
    STOPPED,
    Admitted,
    Checked,
    Ended,
    Entry,
    OfSession,
    Released,
    Sent,
)
from fedboost.terms.session import TASKS
from fedboost.terms.terms import Terms
from fedboost.views.approval import MADE, UNASKED
from fedboost.views.words import shown


@dataclass
class Part:
    """A session from its admission by one process of the site to that process's last word on it."""

    begin: str
    end: str
    admitted: Admitted | None = None
    ended: Ended | None = None
    releases: list[Released] = field(default_factory=list)
    relays: list[Sent] = field(default_factory=list)

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
        if self.ended is None or self.ended.paused:
            return False
        old = self.admitted is None or self.admitted.attempt is None  # such a log does not know of pauses
        return not (old and self.ended.reason in (STOPPED, EXPIRED))


@dataclass
class Session:
    """A session, by all that a log says of it."""

    name: str
    parts: list[Part] = field(default_factory=list)

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
    def digest(self) -> str | None:
        """The digest of its terms; None if it was refused."""
        return None if self.admitted is None else self.admitted.terms

    @property
    def ended(self) -> Ended | None:
        """The last word on it; None if there is none."""
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
    def by_kind(self) -> dict[str, list[Released]]:
        """The releases by kind, in the order of the first of each."""
        kinds: dict[str, list[Released]] = {}
        for release in self.releases:
            kinds.setdefault(release.what, []).append(release)
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
        agreed = [self.admitted.protection] if self.admitted else []
        return sorted({release.protection for release in self.releases}) or agreed

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
    def state(self) -> str:
        """The end of the session in words."""
        if self.ended is None:
            return (
                "no end recorded: it still runs, or this site was stopped; by itself this is no sign of abuse"
            )
        if not self.over:
            return f"not yet: {self.ended.reason}, the session may go on"
        made = MADE[self.admitted.does if self.admitted else TASKS["train"].name]
        made = f"an {made}" if made.startswith("e") else f"a {made}"
        if not self.ended.reason:
            return f"with {made}, the aggregator says"
        return f"without {made}: {self.ended.reason}"


def is_after_end(session: Session, sessions: list[Session]) -> bool:
    """Return whether something was answered in a session although an earlier one of these has its name and
    its terms: that one had ended."""
    earlier = takewhile(lambda other: other is not session, sessions)
    same = [other for other in earlier if (other.name, other.digest) == (session.name, session.digest)]
    return bool(session.answers) and any(other.answers for other in same)


def sessions_of(entries: Iterable[Entry]) -> list[Session]:
    """The sessions of a log, in the order in which they began."""
    sessions: list[Session] = []
    running: dict[str, Session] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, Checked):
            continue
        session = running.get(event.session)
        if session is None or isinstance(event, Admitted) or session.ended is not None:
            if session is None or session.over or _is_under_others(event, session):
                session = running[event.session] = Session(event.session)
                sessions.append(session)
            session.parts.append(Part(entry.time, entry.time))
        part = session.parts[-1]
        part.end = entry.time
        match event:
            case Admitted():
                part.admitted = event
            case Released():
                part.releases.append(event)
            case Sent():
                part.relays.append(event)
            case Ended():
                part.ended = event
    return sessions


def _is_under_others(event: OfSession, session: Session) -> bool:
    """Return whether an event admits a name under other terms than its session has."""
    known = session.admitted
    return isinstance(event, Admitted) and known is not None and known.terms != event.terms


# ---- A warning about an audit log: how serious it is, what was seen, what it means and what to do -------
# Promises: every rule has one kind; a list of names in a sentence is short.
# Refuses: a rule that has no kind (KeyError).


MAX_LISTED = 5
ASK = "Keep this log, and ask the operator of the aggregator"


class Kind(Enum):
    """The kinds of warnings, the most serious first, as people read them."""

    ABUSE = "ABUSE?"
    CHECK = "CHECK"
    WEAK = "WEAK PROTECTION"


MEANINGS = {
    Kind.ABUSE: "no training that keeps its terms leaves this behind",
    Kind.CHECK: "it may be innocent: find out",
    Kind.WEAK: "within the terms, but weaker than it looks",
}
"""What each kind says."""

KINDS = {
    "after-end": Kind.ABUSE,
    "other-terms": Kind.ABUSE,
    "other-question": Kind.ABUSE,
    "other-position": Kind.ABUSE,
    "other-roster": Kind.ABUSE,
    "small-roster": Kind.ABUSE,
    "too-many": Kind.ABUSE,
    "request-again": Kind.ABUSE,
    "first-attempt": Kind.CHECK,
    "attempt-again": Kind.CHECK,
    "other-answer": Kind.CHECK,
    "similar-groups": Kind.CHECK,
    "terms": Kind.CHECK,
    "central-noise": Kind.WEAK,
}
"""The kind of each rule."""


@dataclass(frozen=True)
class AuditWarning:
    """A warning. rule: its name, for scripts; sessions: those it is about; seen: what stands in the log."""

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


AdmittedTerms = Mapping[str, Terms | ConfigError]
"""The terms of a log by their digest, or why they cannot be read."""


def listed(names: list[str]) -> str:
    """Names from outside, the first ones of many."""
    more = len(names) - MAX_LISTED
    names = [shown(name) for name in (names[:MAX_LISTED] if more > 1 else names)]
    if more > 1:
        return f"{', '.join(names)} and {more} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def lower(text: str) -> str:
    """A sentence as the rest of one."""
    return text[0].lower() + text[1:]
