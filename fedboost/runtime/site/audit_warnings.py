"""A warning about an audit log: how serious it is, what was seen, what it means and what to do.

Promises: every rule has one kind; a list of names in a sentence is short.
Refuses: a rule that has no kind (KeyError).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fedboost.errors import ConfigError
from fedboost.people.text import shown
from fedboost.terms.terms import Terms

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
