"""What a party does now, for the display on its terminal.

Promises: what its log and its metrics say, and the kind of the question that was asked last; nothing of rows,
and no metric, for a party is told none.
Refuses: nothing.
"""

import time

from fedboost.people.live import PATIENCE_SECONDS, Curve, LiveFacts, passed
from fedboost.people.summary import QUERIES, queries_of
from fedboost.people.text import counted, delimited
from fedboost.protocol.messages import Ask, Offer
from fedboost.runtime.site.config import PartyConfig
from fedboost.terms.session import TRAINING


class PartyProgress:
    """What a party's own process sees of itself: told by its watch, asked by its display."""

    def __init__(self, config: PartyConfig) -> None:
        role = "key holder" if config.data is None else "party"
        self._title = f"{role} {delimited(config.party)}"
        self._aggregator = delimited(config.aggregator)
        self._here = False
        self._session = ""
        self._rounds = 0
        self._received = self._sent = 0
        self._seconds: list[float] = []
        """Of each round that was seen to end in this session."""
        self._done = 0
        self._now, self._since = "", time.monotonic()
        self._ended = "no session so far"
        self._sessions = 0

    def connected(self, here: bool) -> None:
        """The aggregator was reached, or lost."""
        self._here = here

    def moved(self, received: int, sent: int) -> None:
        """So many bytes came from the aggregator, or left for it."""
        self._received += received
        self._sent += sent

    def offered(self, offer: Offer, analyst: str) -> None:
        """A session was offered, or is offered again."""
        terms = offer.terms
        of = f" of {delimited(analyst)}" if analyst else ""
        parties = counted(len(terms.parties), "party", "parties")
        session = f"{offer.session}{of}, {parties}, terms {terms.digest[:12]}, {terms.hiding.protection}"
        if session != self._session:
            self._received = self._sent = self._done = 0
            self._seconds.clear()
        self._session = session
        self._rounds = terms.trees.rounds if terms.task in TRAINING else 0
        self._is("holds the terms to its rules")

    def asked(self, ask: Ask) -> None:
        """A question came."""
        words = (QUERIES.get(name, name) for name in queries_of(ask.query.name))
        self._is(f"answers: {', '.join(words)}")

    def answered(self) -> None:
        """The question was answered."""
        self._is("answered; the others have not, or the aggregator computes")

    def round(self, done: int, seconds: float) -> None:
        """A round ended, which took so long here."""
        self._done = done
        self._seconds.append(seconds)

    def ended(self, event: str) -> None:
        """The session is over."""
        self._sessions += 1
        self._session = ""
        self._ended = f"{counted(self._sessions, 'session')} so far; the last: {event}"

    def facts(self) -> LiveFacts:
        """What the party does now."""
        where = f"{'connected to' if self._here else 'dials'} {self._aggregator}"
        seconds = time.monotonic() - self._since
        so_long = f" ({passed(seconds)})" if seconds > PATIENCE_SECONDS else ""
        now = self._now + so_long if self._session else self._ended
        return LiveFacts(
            self._title,
            where,
            self._session,
            self._done,
            self._rounds,
            Curve("seconds a round", tuple(self._seconds[1:])) if len(self._seconds) > 1 else None,
            tuple(self._seconds),
            self._received,
            self._sent,
            now,
            "" if self._here else f"the aggregator at {self._aggregator}",
        )

    def _is(self, now: str) -> None:
        self._now, self._since = now, time.monotonic()
