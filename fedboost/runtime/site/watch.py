"""Sights of a party from outside: rounds and matched rows in its log, and its metrics.

Promises: nothing of the rows but how many were matched; the metrics of a round are the aggregator's and the
analyst's, no party is told them.
Refuses: an address for the metrics that cannot be listened on (ConfigError).
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedboost.boosting.queries.alignment import UNKNOWN, PlacesQuery
from fedboost.people.console.site.facts import LiveFacts, LiveSession
from fedboost.protocol.messages import Ask, Offer
from fedboost.runtime.metrics import MetricsPage, PartyMetrics
from fedboost.runtime.site.asked import ANSWERING, AskedFolder
from fedboost.runtime.site.budget import Spent, facts_of
from fedboost.runtime.site.config import PartyConfig
from fedboost.terms.terms import Terms


class Watch:
    """The watch over one party. spent: the privacy that was spent on its rows, at any time."""

    def __init__(self, config: PartyConfig, log: Any, spent: Callable[[], Spent]) -> None:
        self.metrics = PartyMetrics("keyholder" if config.data is None else "party")
        self._log, self._budget, self._spent = log, config.policy.budget, spent
        self._session, self._rounds, self._round, self._since = "", 0, 0, 0.0
        self._asked: tuple[Ask, float] | None = None
        """The question that came last, and when."""
        self._party, self._gives_all = config.party, False
        """The party, and True if all its rows take part, since it has the labels."""
        self._spends = False
        """True if the session's answers get noise."""
        self._page = MetricsPage(self.metrics, config.metrics, log) if config.metrics else None
        self.live = LiveFacts()
        self.requests = AskedFolder(config, log) if config.console else None
        self._look_at_budget()

    def close(self) -> None:
        """Serve metrics no more."""
        if self._page is not None:
            self._page.close()

    def is_busy(self) -> bool:
        """Tell if a session is under way."""
        return self.live.session is not None

    def connected(self, is_connected: bool) -> None:
        """The aggregator let this party in, or was lost."""
        self.metrics.connected(is_connected)
        self.live.connected = is_connected

    def checked(self, terms: Terms, analyst: str, reasons: Sequence[str]) -> None:
        """Terms were checked without a session, from any thread."""
        if self.requests is not None:
            self.requests.note(terms, analyst, "", "; ".join(reasons))

    def offered(self, offer: Offer, analyst: str, signed: bool) -> None:
        """A session was offered, or is offered again. signed: its analyst is known, or there are no keys."""
        self.metrics.begun()
        self.live.session = LiveSession(offer.session, analyst, offer.terms, time.time())
        if signed and self.requests is not None and self._party in offer.terms.parties:
            self.requests.note(offer.terms, analyst, offer.session, ANSWERING)
        self._session, self._rounds = offer.session, offer.terms.trees.rounds
        terms = offer.terms
        self._spends = terms.noise is not None
        self._gives_all = terms.vertical.takes_all_rows and terms.blocks.has_labels(self._party)
        self._round, self._since = 0, time.monotonic()

    def sent(self, data: bytes) -> bytes:
        """Count a message to the aggregator, and return it."""
        self.metrics.sent(len(data))
        if self.live.session is not None:
            self.live.session.bytes += len(data)
        return data

    def asked(self, ask: Ask) -> None:
        """A question came, for the first time or again."""
        self._asked = ask, time.monotonic()

    def answered(self) -> None:
        """The question was answered: at once, or with what others relayed for it."""
        assert self._asked is not None
        ask, since = self._asked
        self.metrics.turn(time.monotonic() - since)
        if isinstance(ask.query, PlacesQuery):
            known = np.count_nonzero(ask.query.places != UNKNOWN)
            rows = ask.query.total if self._gives_all else int(known)
            self._log.info("rows matched", session=self._session, rows=rows)
        if self.live.session is not None:
            self.live.session.answers += 1
        done = ask.query.tree + 1 if ask.query.ends_tree else 0
        if done > self._round:
            now = time.monotonic()
            self.metrics.round(done, now - self._since)
            if self.live.session is not None:
                self.live.session.rounds = done
            about = {"round": done, "of": self._rounds, "seconds": round(now - self._since, 3)}
            self._log.info("round", session=self._session, **about)
            self._round, self._since = done, now
            if self._spends:
                self._look_at_budget()

    def ended(self, session: str, reason: str, left: bool) -> None:
        """A session is over: with a model if there is no reason, else it failed, or this party left it."""
        self._answered_request(reason if left else "")
        self.live.session = None
        state = "" if not reason else "left" if left else "failed"
        self.metrics.ended(state or "done")
        event = "left the session" if left else f"session {state or 'done'}"
        if reason:
            self._log.warning(event, session=session, reason=reason)
        else:
            self._log.info(event, session=session)
        self._look_at_budget()

    def _answered_request(self, answer: str) -> None:
        """Keep with the request for the session under way how this site answered it."""
        session = self.live.session
        kept = None if session is None or self.requests is None else self.requests.of_session(session.name)
        if session is not None and kept is not None and self.requests is not None:
            self.requests.note(session.terms, session.analyst, session.name, answer)

    def _look_at_budget(self) -> None:
        facts = facts_of(self._spent(), self._budget, own=True)
        self.metrics.budget(facts.spent, facts.left, facts.delta)
