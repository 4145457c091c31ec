"""Sights of a party from outside: rounds and matched rows in its log, and its metrics.

Promises: nothing of the rows but how many were matched; the metrics of a round are the aggregator's and the
analyst's, no party is told them.
Refuses: an address for the metrics that cannot be listened on (ConfigError).
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedboost.boosting.queries.ids import UNKNOWN, PlacesQuery
from fedboost.protocol.messages import Ask, Offer
from fedboost.runtime.metrics import MetricsPage, PartyMetrics
from fedboost.runtime.site.budget import Spent, facts_of
from fedboost.runtime.site.config import PartyConfig
from fedboost.runtime.site.live import PartyProgress
from fedboost.runtime.site.page_state import PageState
from fedboost.runtime.site.terminal import terminal_ask


class Watch:
    """The watch over one party. spent: the privacy that was spent on its rows, at any time."""

    def __init__(self, config: PartyConfig, log: Any, spent: Callable[[], Spent]) -> None:
        self.metrics = PartyMetrics("keyholder" if config.data is None else "party")
        self.progress = PartyProgress(config)
        self.ask = terminal_ask
        """What a question to the person at the terminal is asked with."""
        self.page_state = PageState(config, log)
        self._log, self._config, self._spent = log, config, spent
        self._session, self._rounds, self._round, self._since = "", 0, 0, 0.0
        self._asked: tuple[Ask, float] | None = None
        """The question that came last, and when."""
        self._gives_all = False
        """True if all its rows take part, since it has the labels."""
        self._spends = False
        """True if the session's answers get noise."""
        self._page = MetricsPage(self.metrics, config.metrics, log) if config.metrics else None
        self._look_at_budget()

    def close(self) -> None:
        """Serve metrics no more."""
        if self._page is not None:
            self._page.close()

    def connected(self, here: bool) -> None:
        """The aggregator is at hand, or was lost."""
        self.metrics.connected(here)
        self.progress.connected(here)
        self.page_state.connected(here)

    def offered(self, offer: Offer, analyst: str) -> None:
        """A session was offered, or is offered again."""
        self.metrics.begun()
        self.progress.offered(offer, analyst)
        self.page_state.offered(offer, analyst)
        self._session, self._rounds = offer.session, offer.terms.trees.rounds
        terms = offer.terms
        self._spends = terms.noise is not None
        self._gives_all = terms.vertical.takes_all_rows and terms.blocks.has_labels(self._config.party)
        self._round, self._since = 0, time.monotonic()

    def received(self, size: int) -> None:
        """Count a message of the aggregator."""
        self.metrics.received(size)
        self.progress.moved(size, 0)

    def sent(self, data: bytes) -> bytes:
        """Count a message to the aggregator, and return it."""
        self.metrics.sent(len(data))
        self.progress.moved(0, len(data))
        self.page_state.sent(len(data))
        return data

    def asked(self, ask: Ask) -> None:
        """A question came, for the first time or again."""
        self._asked = ask, time.monotonic()
        self.progress.asked(ask)

    def answered(self) -> None:
        """The question was answered: at once, or with what others relayed for it."""
        assert self._asked is not None
        ask, since = self._asked
        self.metrics.turn(time.monotonic() - since)
        self.progress.answered()
        self.page_state.answered()
        if isinstance(ask.query, PlacesQuery):
            known = np.count_nonzero(ask.query.places != UNKNOWN)
            rows = ask.query.total if self._gives_all else int(known)
            self._log.info("rows matched", session=self._session, rows=rows)
        done = ask.query.tree + 1 if ask.query.ends_tree else 0
        if done > self._round:
            now = time.monotonic()
            self.metrics.round(done, now - self._since)
            self.progress.round(done, now - self._since)
            self.page_state.round(done)
            about = {"round": done, "of": self._rounds, "seconds": round(now - self._since, 3)}
            self._log.info("round", session=self._session, **about)
            self._round, self._since = done, now
            if self._spends:
                self._look_at_budget()

    def ended(self, session: str, reason: str, left: bool) -> None:
        """A session is over: with a model if there is no reason, else it failed, or this party left it."""
        state = "" if not reason else "left" if left else "failed"
        self.metrics.ended(state or "done")
        event = "left the session" if left else f"session {state or 'done'}"
        self.progress.ended(event)
        self.page_state.ended(reason if left else "")
        if reason:
            self._log.warning(event, session=session, reason=reason)
        else:
            self._log.info(event, session=session)
        self._look_at_budget()

    def _look_at_budget(self) -> None:
        facts = facts_of(self._spent(), self._config.policy.budget, own=True)
        self.metrics.budget(facts.spent, facts.left, facts.delta)
