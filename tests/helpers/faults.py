"""The simulator of faults: the real sessions and journal, a clock that is moved by hand, and a seed that says
what goes wrong when.

Each step does one of these: delivers a message, drops a connection, says a message twice, swaps two, lets a
party leave, come back or be restarted, kills the aggregator or everybody, lets time pass. Then all is calm:
everybody comes back and every message arrives.

What must hold, whatever happens: every sum that is opened is exactly the sum over its roster of what the
parties' rows give, and the noise that each has charged; no question is opened over two rosters; with the full
roster the model is the fault-free one byte for byte, with noise or without, and no ledger is charged more
than was planned; what does not end with a model ends with a sentence; nothing goes on for ever.
"""

import collections
import math
import os
import random
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from inprocess import randomly, run, session_of, shard_of, sites_of, terms_of

from fedboost.boosting.programs import boosting, private
from fedboost.boosting.state import INITIAL_STATE
from fedboost.privacy.protection import Tag
from fedboost.protocol import run as journal
from fedboost.protocol.aggregator import AggregatorSession
from fedboost.protocol.messages import Connected, Disconnected, Leave, Offer
from fedboost.protocol.party import PartySession
from fedboost.protocol.site import Limits, SessionOffer, Spending, TransientMemory
from fedboost.terms import continuation
from fedboost.wire.messages import decode_from_party, decode_to_party, encode_from_party, encode_to_party

ROWS, FEATURES = 60, 2
MAX_STEPS = 20_000
"""Deliveries after which a session that is not over hangs: a whole one without faults takes about 300."""
STEPS_OF_FAULTS = 400
REFRESHED = 1_000_000
"""From this seed on leaves are refreshed: reg:absoluteerror, which asks for residuals."""
CONTINUED = 2_000_000
"""From this seed on a model is continued."""
NOISY = 3_000_000
"""From this seed on answers get noise. The secrets it is drawn from are the same whenever a site is made, so
that faults change nothing of it either."""


@lru_cache
def rows(objective):
    """The same few rows for every seed: features with missing values, a label that depends on them."""
    draw = np.random.default_rng(11)
    X = draw.normal(size=(ROWS, FEATURES)).astype(np.float32)
    X[draw.random(X.shape) < 0.1] = np.nan
    score = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) ** 2
    return X, (score if objective == "reg:absoluteerror" else score > 0.6).astype(np.float32)


SMALL = {"rounds": 3, "max_depth": 2, "max_bin": 8}


def noise_of(protection, seed):
    """Settings of the terms with noise, and the program."""
    noise = {"epsilon": 4.0, "delta": 1e-5, "placement": "distributed" if protection == "masked" else "local"}
    if seed % 2:
        noise["pairs"] = 0
    return {"noise": noise, "ranges": [(-3, 3)] * FEATURES}


@lru_cache
def earlier_model(objective):
    """The settings that continue a model of one round."""
    X, y = rows(objective)
    session = run(X, y, randomly(ROWS, 3), objective=objective, **{**SMALL, "rounds": 1})
    return {"xgb_model": continuation.written(session.booster, session.terms.columns)}


@lru_cache
def consortium(parties, protection, on_loss, votes, objective, continued, noisy):
    """Terms, and a place for each party to run at."""
    X, y = rows(objective)
    times = {"turn_timeout": 50.0, "rejoin_timeout": 20.0}
    own = {"vote_top_k": votes, "objective": objective, **times, **SMALL}
    own |= earlier_model(objective) if continued else {}
    own |= {} if noisy is None else noise_of(protection, noisy)
    terms = terms_of(X, parties, protection=protection, on_loss=on_loss, **own)
    parts = zip(terms.parties, randomly(ROWS, parties), strict=True)
    return terms, sites_of(terms, {name: shard_of(X, y, rows=part) for name, part in parts})


@lru_cache
def fault_free(parties, votes, objective, continued):
    """The model without any fault: the same for every protection, and for every number of parties if none
    vote."""
    X, y = rows(objective)
    settings = {"vote_top_k": votes, "objective": objective, **SMALL}
    settings |= earlier_model(objective) if continued else {}
    return run(X, y, randomly(ROWS, parties), **settings).booster.to_xgboost()


@lru_cache
def fault_free_with_noise(terms):
    """The same with noise, which all of the terms decide on."""
    X, y = rows(terms.objective.name)
    parts = zip(terms.parties, randomly(ROWS, len(terms.parties)), strict=True)
    sites = sites_of(terms, {name: shard_of(X, y, rows=part) for name, part in parts}, bytes)
    return session_of(terms, sites, private.train).booster.to_xgboost()


@dataclass
class Outcome:
    """How one seed came out."""

    seed: int
    terms: object = field(repr=False)
    error: str | None
    model: str | None = field(repr=False)
    rosters: tuple
    faults: collections.Counter


class World:
    """One session, its parties, and the lines between them."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.noisy = seed >= NOISY
        self.terms, sites = self.choose(seed)
        self.memories = {name: TransientMemory(bytes, name) for name in sites}
        self.sites = {name: replace(site, memory=self.memories[name]) for name, site in sites.items()}
        self.encoded = self.draw.random() < 0.2
        self.disorder = self.draw.random() < 0.1
        self.eager = self.draw.choice([1.0, 10.0])
        """How soon those who are away come back."""
        self.seed = seed
        self.now = 0.0
        self.written = []
        self.begun = 0
        self.faults = collections.Counter()
        self.references = self.holders()
        self.rosters = {}
        self.ends = {name: PartySession(site) for name, site in self.sites.items()}
        self.heard = dict.fromkeys(sites, "")
        """The session that each party was offered last."""
        self.up = {name: collections.deque() for name in self.sites}
        self.down = {name: collections.deque() for name in self.sites}
        self.connected = set(self.sites)
        self.session = self.aggregator()

    def choose(self, seed):
        """Terms, and a place for each party to run at."""
        parties = self.draw.choice([3, 3, 4, 5])
        protection = self.draw.choice(["plain", "masked"])
        on_loss = self.draw.choice(["wait", "wait", "shrink", "stop"])
        objective = "reg:absoluteerror" if REFRESHED <= seed < CONTINUED else "binary:logistic"
        if objective == "reg:absoluteerror" and on_loss == "shrink":
            on_loss = "wait"  # signs would show the difference of two rosters
        if on_loss == "shrink" and parties == 3:
            parties = 4  # three masked ones cannot shrink
        if self.noisy and on_loss == "shrink":
            on_loss = "stop"
        votes, noisy = int(seed % 4 == 3 and not self.noisy), seed % 2 if self.noisy else None
        kind = votes, objective, CONTINUED <= seed < NOISY, noisy
        return consortium(parties, protection, on_loss, *kind)

    @property
    def due_model(self):
        """The model without any fault."""
        if self.noisy:
            return fault_free_with_noise(self.terms)
        votes, continued = self.terms.histograms.vote_top_k, self.terms.xgb_model is not None
        return fault_free(len(self.terms.parties), votes, self.terms.objective.name, continued)

    # ---- the aggregator -----------------------------------------------------------------------------

    @property
    def name(self):
        return f"s{self.begun}"

    @property
    def program(self):
        return private.train if self.noisy else boosting.train

    def aggregator(self):
        past = [journal.decode(data) for data in self.written]
        if not any(
            isinstance(record, journal.Opened) for record in past
        ):  # it begins anew, as the server has it
            self.written, past = [], []
            self.begun += 1
        draw = os.urandom if self.terms.protection.uses_key_holder else None
        settings = self.program, INITIAL_STATE, self.record, past
        session = AggregatorSession(self.name, self.terms, *settings, draw=draw)
        self.check(session)
        session.tick(self.now)
        self.session = session
        self.send(session.start(self.connected))
        return session

    def check(self, session):
        """Look at every sum that is opened."""
        run, take = session.run, session.run.take

        def checked(total):
            query, turn = run.pending, run.turn
            assert (total == self.due_sum(run, session.roster)).all(), (
                f"seed {self.seed}: a sum of something else"
            )
            # A tree that grows again after a crash may be cut short earlier: another question in that turn.
            opened = turn, query.digest
            roster = self.rosters.setdefault(opened, session.roster)
            assert roster == session.roster, f"seed {self.seed}: two rosters"
            take(total)

        run.take = checked

    def holders(self):
        """Who says what a sum has to be: the parties' rows, without faults."""
        return {name: site.holder(self.terms, bytes(32)) for name, site in self.sites.items()}

    def due_sum(self, run, roster):
        """The sum over these parties that the aggregator has to open now."""
        for party in self.references.values():
            party.go_to(run.state)
        parts = {name: self.noised(run.pending, name, party) for name, party in self.references.items()}
        return sum(parts[name] for name in roster)

    def noised(self, query, name, party):
        """What a party's answer has to be, and that it was charged."""
        state = party.state
        values = party.answer(query)
        if not self.noisy:
            return values
        memory, charged = TransientMemory(bytes), self.memories[name].charged
        tag = Tag(0, 0, self.terms.parties, b"", query.segments)
        session = memory.begin(SessionOffer(self.name, self.terms), Limits())
        values = Spending(self.terms, session).release(query, state, tag, values)[0]
        assert memory.charged.items() <= charged.items(), f"seed {self.seed}: a release that was not charged"
        return values

    def record(self, record):
        self.written.append(journal.encode(record))

    def send(self, outbox):
        for name, message in outbox:
            if name in self.connected:
                self.down[name].append(encode_to_party(message) if self.encoded else message)

    def over(self):
        return self.session.phase in ("done", "failed")

    # ---- what can happen ----------------------------------------------------------------------------

    def deliver(self, name, line):
        message = line.popleft()
        if line is self.down[name]:
            message = decode_to_party(message) if self.encoded else message
            if isinstance(message, Offer) and message.session != self.heard[name]:  # as the node has it
                self.heard[name], self.ends[name] = message.session, PartySession(self.sites[name])
            if self.ends[name].ended is not None:
                return
            replies = list(self.ends[name].handle(message))
            self.up[name].extend(map(encode_from_party, replies) if self.encoded else replies)
        else:
            message = decode_from_party(message) if self.encoded else message
            self.send(self.session.handle(name, message))

    def lines(self):
        names = sorted(self.connected)
        return [(name, line[name]) for name in names for line in (self.down, self.up) if line[name]]

    def spoilt(self):
        """The lines whose messages may come twice, or in another order."""
        return self.lines()

    def drop(self, name):
        self.connected.discard(name)
        self.up[name].clear()
        self.down[name].clear()
        self.ends[name].hang_up()
        self.send(self.session.handle(name, Disconnected("its connection closed")))

    def back(self, name):
        self.connected.add(name)
        if self.ends[name].ended is not None:
            self.ends[name] = PartySession(self.sites[name])
        self.send(self.session.handle(name, Connected()))

    def restart(self, name):
        """A party's process dies; its site remembers."""
        self.drop(name)
        self.ends[name] = PartySession(self.sites[name])

    def blackout(self):
        """Every process of the session dies, and comes back with what was written down."""
        self.ends = {name: PartySession(site) for name, site in self.sites.items()}
        self.crash()

    def crash(self):
        """The aggregator's process dies: every connection is gone, and what was not written down."""
        for name in self.sites:
            self.up[name].clear()
            self.down[name].clear()
            self.ends[name].hang_up()
        self.aggregator()

    def leave(self, name):
        self.up[name].clear()
        self.ends[name].ended = "it has had enough"
        self.send(self.session.handle(name, Leave("it has had enough", self.name)))

    def step(self):
        """One step of what the seed says."""
        away = sorted(set(self.sites) - self.connected)
        lines, spoilt = self.lines(), self.spoilt()
        kind = self.draw.choices(
            ["deliver", "drop", "twice", "swap", "leave", "back", "restart", "blackout", "crash", "tick"],
            [100, 1.5, 1, 0.3 * self.disorder, 0.03, self.eager if away else 0, 0.7, 0.2, 0.5, 2],
        )[0]
        if kind == "deliver" or (kind in ("twice", "swap") and not spoilt):
            if lines:
                self.deliver(*self.draw.choice(lines))
            return
        self.faults[kind] += 1
        match kind:
            case "twice":
                _, line = self.draw.choice(spoilt)
                place = self.draw.randrange(len(line))
                line.insert(place, line[place])
            case "swap":
                _, line = self.draw.choice(spoilt)
                line.rotate(1)
            case "back":
                self.back(self.draw.choice(away))
            case "crash":
                self.crash()
            case "blackout":
                self.blackout()
            case "tick":
                self.tick(self.draw.choice([1.0, 10.0, 30.0, 60.0]))
            case _:
                if self.connected:
                    getattr(self, kind)(self.draw.choice(sorted(self.connected)))

    def tick(self, seconds):
        self.now += seconds
        self.send(self.session.tick(self.now))

    def calm(self):
        """Everybody comes back, and everything arrives; time passes only when nothing else does."""
        for name in sorted(set(self.sites) - self.connected):
            self.back(name)
        for _ in range(MAX_STEPS):
            if self.over():
                return
            lines = self.lines()
            if lines:
                self.deliver(*self.draw.choice(lines))
            else:
                for name in sorted(self.sites):
                    if self.ends[name].ended is not None:
                        self.restart(name)
                        self.back(name)
                self.tick(10.0)
        raise AssertionError(f"seed {self.seed} hangs: {self.session.phase} awaits {self.session.awaited}")


def play(seed, begin=World):
    """One seed to its end; the invariants hold or raise AssertionError."""
    world = begin(seed)
    for _ in range(world.draw.choice([0, 100, 200])):
        if lines := world.lines():  # without faults
            world.deliver(*world.draw.choice(lines))
    for _ in range(world.draw.randrange(20, STEPS_OF_FAULTS)):
        if world.over():
            break
        world.step()
    world.calm()
    session = world.session
    rosters = tuple(dict.fromkeys(world.rosters.values()))
    error = None if session.error is None else str(session.error)
    model = None if session.booster is None else session.booster.to_xgboost()
    spent = [
        math.fsum(cost for (session, _), cost in memory.charged.items() if session == name)
        for memory in world.memories.values()
        for name in memory.sessions
    ]
    most = world.terms.plan.cost if world.noisy else 0.0
    assert max(spent, default=0.0) <= most * (1 + 1e-12), f"seed {seed}: charged more than was planned"
    whole = all(set(roster) == set(world.terms.parties) for roster in rosters)
    if session.phase == "done":
        assert error is None
        if whole:
            assert model == world.due_model, f"seed {seed}: another model"
        else:
            assert world.terms.session.on_loss == "shrink"
    else:
        assert error, f"seed {seed}: failed without a word"
        excused = world.terms.session.on_loss != "wait" or world.faults["leave"] or world.faults["swap"]
        assert excused, f"seed {seed}: {error}"
        named = any(error.startswith(f"party {name} ") for name in world.terms.parties)
        assert named, f"seed {seed}: names nobody: {error}"
    return Outcome(
        seed, world.terms, error, model if session.phase == "done" else None, rosters, world.faults
    )
