"""What a site does now, and what was asked of it, for the page of the site.

Promises: nothing is kept on the disk unless the site has a page; whatever cannot be kept ends no session.
Refuses: nothing.
"""

import time
from collections.abc import Sequence
from typing import Any

from fedboost.people.console.site import LiveFacts, LiveSession
from fedboost.protocol.messages import Offer
from fedboost.runtime.site.asked import ANSWERING, AskedFolder
from fedboost.runtime.site.config import PartyConfig
from fedboost.terms.terms import Terms


class PageState:
    """Told by a party's watch and its answers to checks, asked by its page. requests: None without a page."""

    def __init__(self, config: PartyConfig, log: Any) -> None:
        self.live = LiveFacts()
        self.requests = AskedFolder(config, log) if config.console else None
        self._party = config.party
        self._signs = config.keys is not None

    @property
    def is_busy(self) -> bool:
        """True while a session is under way."""
        return self.live.session is not None

    def connected(self, here: bool) -> None:
        """The aggregator was reached, or lost."""
        self.live.connected = here

    def checked(self, terms: Terms, analyst: str, reasons: Sequence[str]) -> None:
        """Terms were checked without a session, from any thread."""
        if self.requests is not None:
            self.requests.note(terms, analyst, "", "; ".join(reasons))

    def offered(self, offer: Offer, analyst: str) -> None:
        """A session was offered. analyst: who signed it, '' where nobody did, or without keys."""
        self.live.session = LiveSession(offer.session, analyst, offer.terms, time.time())
        self._note(ANSWERING)

    def sent(self, size: int) -> None:
        """So many bytes left for the aggregator."""
        if self.live.session is not None:
            self.live.session.bytes += size

    def answered(self) -> None:
        """A question was answered."""
        if self.live.session is not None:
            self.live.session.answers += 1

    def round(self, done: int) -> None:
        """A round ended."""
        if self.live.session is not None:
            self.live.session.rounds = done

    def ended(self, answer: str) -> None:
        """The session is over. answer: why this site left it, '' if it did not."""
        self._note(answer)
        self.live.session = None

    def closed(self, paused: bool) -> None:
        """The session is over, or only paused: then it may be offered again."""
        if paused:
            self.live.session = None

    def _note(self, answer: str) -> None:
        """Keep with the request for the session under way how this site answered it; nothing of a request
        that nobody signed, where analysts sign."""
        session = self.live.session
        if session is None or self.requests is None or self._party not in session.terms.parties:
            return
        if session.analyst or not self._signs:
            self.requests.note(session.terms, session.analyst, session.name, answer)
