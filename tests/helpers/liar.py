"""An aggregator that lies: honest parties, and a hand that says what a test wants to them."""

import dataclasses

import numpy as np
from inprocess import randomly, shard_of, sites_of, terms_of

from fedboost.boosting.programs import boosting
from fedboost.boosting.queries.trees import EndRoundQuery, HistogramQuery
from fedboost.boosting.state import INITIAL_STATE
from fedboost.privacy.pairwise import AggregatorSetup, Group
from fedboost.privacy.protections import PROTECTIONS
from fedboost.protocol.key_exchange import Attempt, session_digest
from fedboost.protocol.messages import (
    Ask,
    Introduce,
    Leave,
    Offer,
    OpenRequest,
    digest_of_roster,
    first_transcript,
    next_transcript,
    tag_of,
)
from fedboost.protocol.party import PartySession

ROWS = 120
RNG = np.random.default_rng(8)
X = RNG.normal(size=(ROWS, 2)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(np.float32)
SMALL = {"rounds": 3, "max_depth": 2, "max_bin": 8}


class Left(Exception):
    """An honest party left, with this reason."""


def agreed(parties=4, protection="masked", on_loss="wait", **settings):
    return terms_of(X, parties, protection=protection, on_loss=on_loss, **{**SMALL, **settings})


def places(terms):
    parts = randomly(ROWS, len(terms.parties))
    return sites_of(
        terms, {n: shard_of(X, Y, rows=part) for n, part in zip(terms.parties, parts, strict=True)}
    )


class Liar:
    """An aggregator that says what the test wants to honest parties, and opens what they let it open."""

    def __init__(self, **settings):
        self.terms = agreed(**settings)
        self.recorded = []
        sites = places(self.terms)
        self.sites = {
            n: dataclasses.replace(site, record=lambda release, n=n: self.recorded.append((n, release.what)))
            for n, site in sites.items()
        }
        self.ends = {n: PartySession(site) for n, site in self.sites.items()}
        self.attempt, self.turn = 0, 0
        self.state = INITIAL_STATE
        self.asked = self.last_end = None

    def say(self, party, message):
        replies = list(self.ends[party].handle(message))
        if replies and isinstance(replies[-1], Leave):
            raise Left(replies[-1].reason)
        return replies

    def gather(self, state=None, roster=None, attempt=None):
        self.attempt = attempt or self.attempt + 1
        self.state = self.state if state is None else state
        self.roster = roster or self.terms.parties
        joins = [self.say(p, Offer("s", self.terms, self.attempt))[0] for p in self.roster]
        greetings = tuple(join.greeting for join in joins)
        certificates = tuple(join.certificate for join in joins if join.certificate)
        for party in self.roster:
            self.say(party, Introduce(greetings, self.state, certificates))
        self.digest = session_digest(Attempt("s", self.attempt, self.terms), greetings)
        self.transcript = first_transcript(self.digest, self.state)

    def ask(self, query, turn=None, opened=True):
        """The sum of a question, or Left."""
        self.turn = turn or self.turn + 1
        self.transcript = next_transcript(self.transcript, query)
        self.asked = Ask(self.turn, self.attempt, digest_of_roster(self.roster), query)
        self.last_end = next((q for q in query.parts if isinstance(q, EndRoundQuery)), self.last_end)
        group = Group.of(self.terms.parties, self.terms.hiding.colluding)
        setup = AggregatorSetup(group, self.digest, shrinks=self.terms.session.on_loss == "shrink")
        opener = PROTECTIONS["masked"].opener(tag_of(self.asked, self.roster, self.transcript), setup)
        for party in self.roster:
            for report in self.say(party, self.asked):
                opener.add(party, report.part, report.cells)
            opener.note(party, report.note)
        if not opened:
            return None
        self.requests = opener.requests()
        for party, request in self.requests.items():
            (help,) = self.say(party, OpenRequest(self.turn, self.attempt, request))
            opener.assist(party, help.answer)
        self.state = self.state.after(query)
        return query.from_cells(opener.open())

    def train(self, until, before=lambda query: False):
        """Honestly: gather, and go on until a question was opened (or comes, that is not asked)."""
        self.gather()
        program = boosting.train(self.terms, [])
        query = next(program)
        while True:
            if before(query):
                return query
            total = self.ask(query)
            if until(query):
                return query
            query = program.send(total)

    def forget(self):
        self.ends = {n: PartySession(site) for n, site in self.sites.items()}


def never(query):
    return False


def root_of(tree):
    """True for a question with the root of a tree."""
    return lambda query: any(
        isinstance(part, HistogramQuery) and (part.tree, part.nodes) == (tree, (0,)) for part in query.parts
    )


def end_of(tree):
    """True for a question with the end of a tree."""
    return lambda query: any(isinstance(part, EndRoundQuery) and part.tree == tree for part in query.parts)
