"""The costs of a training over links, by layout: histograms of all features, votes, rows in one place.

Promises: arithmetic on estimates (`estimate`), whose questions and round trips are those of the program and
the protection. A round takes the time of the machines, its round trips, and its bytes through a party's link.
Refuses: links that cannot be (ConfigError).
"""

import math
from dataclasses import dataclass
from typing import Any

from fedboost.errors import ConfigError
from fedboost.people.estimates import LayoutFacts, LayoutsFacts
from fedboost.people.facts import EstimateFacts
from fedboost.privacy.protections import PROTECTIONS
from fedboost.runtime.local.estimate import MESSAGE_SECONDS, estimate
from fedboost.terms.terms import Terms

HISTOGRAMS, VOTES, ONE_PLACE = "histograms", "votes", "one place"
USUAL_VOTES = 20
"""`vote_top_k` of the layout with votes, where the terms have none."""
VALUE_BYTES = 4
"""Bytes of a value of a row that is shipped."""
MAX_RTT_MS = 60_000
MIN_BANDWIDTH_MBIT, MAX_BANDWIDTH_MBIT = 0.001, 1_000_000
MBIT = 1e6 / 8


@dataclass(frozen=True)
class Link:
    """The link between a party and the aggregator: milliseconds of a round trip; megabits a second, infinite
    where any number of bytes pass at once."""

    rtt_ms: float = 0.0
    bandwidth_mbit: float = math.inf

    @classmethod
    def of(cls, rtt: float | None, bandwidth: float | None) -> "Link | None":
        """The link of two options; None if neither was given."""
        if rtt is None and bandwidth is None:
            return None
        link = cls(0.0 if rtt is None else rtt, math.inf if bandwidth is None else bandwidth)
        if not 0 <= link.rtt_ms <= MAX_RTT_MS:
            raise ConfigError(f"--rtt is {rtt:g}; give milliseconds from 0 to {MAX_RTT_MS:,}")
        if bandwidth is not None and not MIN_BANDWIDTH_MBIT <= bandwidth <= MAX_BANDWIDTH_MBIT:
            limits = f"from {MIN_BANDWIDTH_MBIT} to {MAX_BANDWIDTH_MBIT:,}"
            raise ConfigError(f"--bandwidth is {bandwidth:g}; give Mbit/s {limits}")
        return link

    def seconds(self, round_trips: float, megabytes: float) -> float:
        """Seconds of so many round trips, one after the other, and of these bytes in one direction."""
        return round_trips * self.rtt_ms / 1e3 + megabytes * 1e6 / (self.bandwidth_mbit * MBIT)


def over_link(layout: str, facts: EstimateFacts, rounds: int, link: Link) -> LayoutFacts:
    """A training over a link, each party and the aggregator on a machine of its own."""
    a_round = facts.seconds_apart + link.seconds(facts.round_trips, facts.megabytes)
    sent = facts.megabytes * rounds
    return LayoutFacts(layout, facts.protection, a_round, a_round * rounds, sent, facts.round_trips)


def in_one_place(terms: Terms, rows: int, parties: int, plain: EstimateFacts, link: Link) -> LayoutFacts:
    """The same trees over rows that all parties sent to one place, for comparison. plain: their estimate."""
    values = len(terms.columns.features) + len(terms.columns.others)
    sent = rows / parties * values * VALUE_BYTES / 1e6
    a_round = plain.seconds_a_round - plain.round_trips * parties * MESSAGE_SECONDS
    seconds = link.seconds(1, sent) + a_round * terms.trees.rounds
    return LayoutFacts(ONE_PLACE, "", a_round, seconds, sent, 1 / terms.trees.rounds)


def layouts(
    terms: Terms, rows: int, parties: int, table: Any, estimates: list[EstimateFacts], link: Link
) -> LayoutsFacts:
    """Each layout over a link. estimates: those of the terms as they are."""
    rounds, top_k = terms.trees.rounds, terms.histograms.vote_top_k
    usual, other = (VOTES, HISTOGRAMS) if top_k else (HISTOGRAMS, VOTES)
    every, missing = [over_link(usual, facts, rounds, link) for facts in estimates], ""
    if not top_k and len(terms.columns.features) <= 2 * USUAL_VOTES:
        missing = f"they spare bytes with more than {2 * USUAL_VOTES} features"
    else:
        try:
            changed = terms.changed(vote_top_k=0 if top_k else USUAL_VOTES)
        except ConfigError as error:
            missing = f"not under these terms: {error}"
        else:
            further = estimate(changed, rows, parties, table)
            every += [over_link(other, facts, rounds, link) for facts in further]
    plain = next(facts for facts in estimates if not PROTECTIONS[facts.protection].hides)
    every.append(in_one_place(terms, rows, parties, plain, link))
    tried = terms.hiding.protection in {facts.protection for facts in every}
    protection = terms.hiding.protection if tried else plain.protection
    own = [facts for facts in every if facts.protection == protection]
    fastest = min(own, key=lambda facts: facts.seconds)
    return LayoutsFacts(every, link.rtt_ms, link.bandwidth_mbit, missing, protection, fastest.layout)
