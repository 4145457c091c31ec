"""Facts that text and JSON are made from: plain values, which commands fill.

Promises: nothing here reads, trains or formats.
Refuses: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass


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
