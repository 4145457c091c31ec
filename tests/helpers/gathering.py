"""Sessions whose parties gather again, as several tests play them."""

from collections import deque

from liar import Liar, agreed, places

from fedboost.boosting.programs import boosting
from fedboost.boosting.state import INITIAL_STATE
from fedboost.protocol import run
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.party import PartySession


def begun():
    """An aggregator of a session that goes on without those who are lost: one that comes back has to believe
    where the others stand."""
    liar = Liar(on_loss="shrink")
    liar.gather()
    return liar


class Together:
    """A whole session whose party p3 may do what the test wants: `change(message)` is what it does when the
    aggregator tells it something (messages, Disconnected and Connected), None for what an honest one does."""

    def __init__(self, change, trust=None, sites=None, **settings):
        self.terms = agreed(**settings)
        self.change = change
        self.sites = sites or places(self.terms)
        self.ends = {n: PartySession(site) for n, site in self.sites.items()}
        self.written = []
        self.session = AggregatorSession(
            "s",
            self.terms,
            boosting.train,
            INITIAL_STATE,
            lambda record: self.written.append(run.encode(record)),
            trust=trust,
        )
        self.now = 0.0

    def play(self, most=20_000, may_wait=False):
        """To the end. With may_wait, or to where p3 is waited for again and again."""
        waiting = deque(self.session.start())
        for _ in range(most):
            if self.session.phase in ("done", "failed"):
                return self.session
            if not waiting:
                self.now += 300.0
                waiting.extend(self.session.tick(self.now))
                continue
            party, message = waiting.popleft()
            does = self.change(message) if party == "p3" else None
            for event in self.ends[party].handle(message) if does is None else does:
                waiting.extend(self.session.handle(party, event))
        assert may_wait, f"no end: {self.session.phase}, turn {self.session.turn}"
        return self.session


def reason_of(session):
    return str(session.error or "")
