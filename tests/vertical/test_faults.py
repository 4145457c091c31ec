"""Seeds of the simulator of faults where parties hold different columns (tests/helpers/faults_apart.py):
whatever goes wrong while they train, sign parts of a model or predict, the outcome is the same."""

import collections
import itertools
import os
import random
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest

import fedboost as fb
from fedboost.boosting.programs import initialisation
from fedboost.holders.column_rows import PAIR_BYTES
from fedboost.holders.columns import holder_for
from fedboost.privacy.identity import in_memory
from fedboost.privacy.pairwise import seal
from fedboost.protocol.key_exchange import Credentials
from fedboost.protocol.messages import Ask, Leave, Relay, Report
from fedboost.protocol.relaying import max_relayed
from fedboost.protocol.site import Site
from fedboost.runtime.data.shard import to_shard
from fedboost.runtime.signed_model import PartyModel, trained_model_of
from tests.helpers.columns_apart import LAYOUTS, terms_of
from tests.helpers.faults_apart import (
    DRAWN,
    LAYOUT_NAMES,
    LEFT,
    REPEATED,
    REPEATED_LEFT,
    ROWS,
    TIMES,
    World,
    apart,
    play,
)
from tests.helpers.predictions import due, models_of, tables_of, terms_for

FAST, SEEDS = 40, 130
COUNTED = [*range(FAST, 80), 124]
"""Seeds of which it is counted what goes wrong; in the last one messages are swapped."""
AT_A_RELAY = {f"{kind} at a relay" for kind in ("drop", "twice", "restart", "restart two", "crash")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FAST))
def test_a_seed(seed):
    play(seed)


@pytest.mark.slow
def test_the_seeds_have_every_fault_every_end_and_every_layout():
    outcomes = [play(seed) for seed in COUNTED]
    faults = sum((outcome.faults for outcome in outcomes), collections.Counter())
    assert {"drop", "twice", "swap", "back", "restart", "blackout", "crash", "tick", *AT_A_RELAY} <= set(
        faults
    )
    assert {outcome.model is None for outcome in outcomes} == {True, False}
    worlds = [World(seed) for seed in COUNTED]
    assert {world.layout for world in worlds} == set(LAYOUT_NAMES)
    assert {world.setting for world in worlds} == set(DRAWN)
    assert {(world.layout, world.by_id) for world in worlds} == {
        (layout, by_id) for layout in LAYOUT_NAMES for by_id in (True, False)
    }


@pytest.mark.slow
@pytest.mark.long
def test_more_seeds():
    for seed in {*range(FAST, SEEDS)} - {*COUNTED}:
        play(seed)


class Continuing(World):
    """A model is continued: a label holder that loses the earlier margins gets the leaf bits again."""

    def choose(self, seed):
        self.by_id = (False, True, LEFT, REPEATED, REPEATED_LEFT)[seed % 5]
        layouts = LAYOUT_NAMES if self.by_id in (False, True) else LAYOUT_NAMES[:2]
        self.layout, self.setting, self.aim = self.draw.choice(layouts), "continued", 0.1
        return apart(self.layout, self.setting, "wait", self.by_id)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_a_seed_that_continues_a_model(seed):
    play(seed, Continuing)


# ---- rows that are matched by their ids -----------------------------------------------------------------


class Matching(World):
    """Rows are matched by their ids; nothing goes wrong by itself."""

    def choose(self, seed):
        self.layout, self.setting, self.aim, self.by_id = LAYOUT_NAMES[seed % 4], "logistic", 0.0, True
        return apart(self.layout, self.setting, "wait", True)

    def goes_on(self):
        """True while something may go wrong."""
        return self.session.turn <= MATCHED

    def deliver_until(self, number):
        """So many messages arrive. False if it is too late before that."""
        for _ in range(number):
            if not self.goes_on():
                return False
            self.deliver(*self.draw.choice(self.lines()))
        return self.goes_on()

    @classmethod
    def hit(cls, seed, number, what):
        """The session, done, in which this goes wrong once, after so many messages; None if it is too late by
        then."""
        world = cls(seed)
        if not world.deliver_until(number):
            return None
        parties = sorted(world.sites)
        world.go_wrong(what, parties[number % len(parties)])
        world.calm()
        assert world.session.phase == "done", world.session.error
        world.check_end()
        return world

    def check_end(self):
        """The model is that of pooled rows."""
        assert self.session.booster.to_xgboost() == self.due_model

    def go_wrong(self, what, party):
        lines = self.lines()
        match what:
            case "aggregator killed":
                self.crash()
            case "all killed":
                self.blackout()
            case "party killed":
                self.restart(party)
            case "cut":
                self.drop(party)
            case "twice":
                for _, line in lines:
                    line.appendleft(line[0])
            case "late":
                self.tick(10 * TIMES["turn_timeout"])


MATCHED = 3
"""The turn in which rows are matched."""
WRONG = ("aggregator killed", "all killed", "party killed", "cut", "twice", "late")


# ---- parts of a model, and predictions ------------------------------------------------------------------


class Keeping(Matching):
    """Nothing goes wrong by itself; `kept` has the parts as they were kept, party after party."""

    def choose(self, seed):
        self.layout, self.setting, self.aim, self.by_id = "three holders", "logistic", 0.0, True
        self.kept = []
        terms, sites = apart(self.layout, self.setting, "wait", True, model="parties")
        return terms, {name: replace(site, keep=self.kept.append) for name, site in sites.items()}

    def goes_on(self):
        signed = {name: attest.part for name, attest in self.session.attestations.items()}
        assert {(part.party, part.digest) for part in self.kept} >= {*signed.items()}
        return not self.over()

    def deliver_until(self, number):
        """So many messages arrive once parties are asked to sign."""
        while self.session.phase != "closing":
            self.deliver(*self.draw.choice(self.lines()))
        return super().deliver_until(number)

    def check_end(self):
        """The parts are the same, and make the model of pooled rows."""
        parts = {(part.party, PartyModel.of(part).to_bytes()) for part in self.kept}
        assert len(parts) == len(self.sites)
        analysts = PartyModel.from_bytes(trained_model_of(self.session).to_bytes())
        files = [PartyModel.from_bytes(data) for _, data in parts]
        assert {part.id for part in files} == {analysts.id}
        assert fb.assemble([analysts, *files]).booster.to_xgboost() == self.due_model


OF_PREDICTION = "three holders", "classes"


@cache
def predicting():
    tables = tables_of(OF_PREDICTION[0])
    terms = terms_for(*OF_PREDICTION, tables, **TIMES, on_loss="wait")
    return terms, tables, models_of(terms, OF_PREDICTION[1])


class Predicting(Matching):
    """Nothing goes wrong by itself. made: the holders of the label holder."""

    def choose(self, seed):
        self.aim, self.made = 0.0, []
        terms, tables, models = predicting()
        now = datetime.now(UTC)
        signers, roots = in_memory(terms.parties, now)
        return terms, {
            name: Site(
                name,
                self.keeping(name, to_shard(tables[name], terms, name), models[name]),
                os.urandom,
                Credentials(signers[name], roots, (), lambda: now),
            )
            for name in terms.parties
        }

    def keeping(self, name, shard, model):
        make = holder_for(lambda terms: shard, name, model_of=lambda terms: model)

        def hold(terms, secret):
            holder = make(terms, secret)
            if name == "bank":
                self.made.append(holder)
            return holder

        return hold

    @property
    def program(self):
        return initialisation.predict

    def holders(self):
        return {}

    def check(self, session):
        """Sums are not those of anybody's rows."""

    def goes_on(self):
        return not self.over()

    def check_end(self):
        """Each prediction is that of the whole model."""
        predictions = [holder.prediction for holder in self.made if holder.prediction is not None]
        margins, known = due(*OF_PREDICTION, predicting()[1])
        assert predictions
        for prediction in predictions:
            assert prediction.margins.tobytes() == margins.tobytes()
            assert np.array_equal(prediction.known, known)


OFTEN = {Matching: (7, 17), Keeping: (0, 3), Predicting: (9, 22, 36, 50)}


@pytest.mark.parametrize(("world", "number"), [(world, number) for world in OFTEN for number in OFTEN[world]])
@pytest.mark.parametrize("what", WRONG)
def test_whatever_goes_wrong_the_outcome_is_the_same(world, number, what):
    assert world.hit(0, number, what)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "step", "more_than"), [(Matching, 6, 5), (Predicting, 3, 15)])
@pytest.mark.parametrize("what", WRONG)
def test_at_every_message(world, step, more_than, what):
    worlds = map(partial(world.hit, 1, what=what), itertools.count(0, step))
    assert sum(1 for _ in itertools.takewhile(lambda world: world is not None, worlds)) > more_than


# ---- in the middle of an answer -------------------------------------------------------------------------


def in_an_answer():
    """A session in the middle of an answer: the party whose answer waits, its query, and the next relay to
    arrive there, of the second turn or a later one."""
    world, asked = World(0), {}
    assert not world.encoded
    for _ in range(10_000):
        name, line = world.lines()[0]
        message = line[0]
        if line is world.down[name]:
            asked |= {name: message} if isinstance(message, Ask) else {}
            if isinstance(message, Relay) and message.turn > 1:
                return world, name, asked[name], line.popleft()
        world.deliver(name, line)
    raise AssertionError("nothing is relayed")


@pytest.fixture
def waiting():
    return in_an_answer()


def test_a_query_that_is_repeated_while_its_answer_waits_is_answered_once(waiting):
    world, name, ask, relay = waiting
    assert list(world.ends[name].handle(ask)) == []
    replies = list(world.ends[name].handle(relay))
    assert sum(isinstance(reply, Report) for reply in replies) == 1


@pytest.mark.parametrize("changes", [{"turn": -1}, {"attempt": -1}, {"turn": 5, "attempt": -1}])
def test_what_was_relayed_for_an_earlier_turn_or_attempt_is_ignored(waiting, changes):
    world, name, _, relay = waiting
    earlier = {field: getattr(relay, field) + by for field, by in changes.items()}
    assert list(world.ends[name].handle(replace(relay, **earlier))) == []
    replies = list(world.ends[name].handle(relay))
    assert any(isinstance(reply, Report) for reply in replies)


@pytest.mark.parametrize("field", ["turn", "attempt"])
def test_what_is_relayed_for_a_later_turn_or_attempt_is_refused(waiting, field):
    world, name, _, relay = waiting
    (reply,) = world.ends[name].handle(replace(relay, **{field: getattr(relay, field) + 1}))
    assert isinstance(reply, Leave)
    assert "relayed unexpected bytes" in reply.reason


def test_what_is_relayed_twice_counts_once(waiting):
    world, name, _, relay = waiting
    replies = list(world.ends[name].handle(relay))
    assert list(world.ends[name].handle(relay)) == []
    assert any(isinstance(reply, Report) for reply in replies)


BINNED = SimpleNamespace(relayed_bytes=lambda terms: 0, position=SimpleNamespace(started=True))


@pytest.mark.parametrize("rows", [1, 60, 5000])
def test_all_row_sets_of_a_long_training_may_be_relayed_again_in_one_turn(rows):
    layout = LAYOUTS["one a column"]
    parties = [party for _, others in layout.blocks for party in others]
    terms = terms_of(layout, rounds=1000, max_depth=6).with_parties(["bank", *parties])
    keys = {party: bytes(32) for party in parties}
    sealed = seal(bytes(-(-rows // 8)), "bank", keys, b"", os.urandom)
    relays = 2 * (terms.trees.rounds + 1) * terms.trees.max_depth
    query = SimpleNamespace(relayed_bytes=lambda terms: 0, stage=0)
    assert relays * len(sealed) <= max_relayed(terms, "bank", query, rows, BINNED)


def odd(draw, relay, names):
    """A relay that is right but for some of its fields."""
    numbers = (0, 1, 2, 3, 7, 2**32 - 1)
    fields = {
        "turn": draw.choice([relay.turn, relay.turn, *numbers]),
        "attempt": draw.choice([relay.attempt, relay.attempt, *numbers]),
        "number": draw.choice([relay.number, *numbers]),
        "content": draw.choice([relay.content, b"", draw.randbytes(40), relay.content[:-1]]),
        "last": draw.random() < 0.7,
    }
    return {**fields, "sender": draw.choice(names), "to": (draw.choice(names), *draw.choices(names, k=1))}


@pytest.mark.parametrize("seed", range(15))
def test_whatever_is_relayed_to_a_party_it_says_why_it_leaves_or_goes_on(seed):
    world, name, _, relay = in_an_answer()
    draw, names = random.Random(seed), [*world.sites, "nobody"]
    for _ in range(20):
        about = odd(draw, relay, names)
        replies = list(world.ends[name].handle(replace(relay, **{**about, "to": ()})))
        assert all(isinstance(reply, Relay | Report | Leave) for reply in replies)
        if world.ends[name].ended is not None:
            assert replies[-1].reason == world.ends[name].ended
            return


@pytest.mark.parametrize("seed", range(15))
def test_whatever_a_party_relays_the_session_goes_on_or_names_it(seed):
    world, name, _, relay = in_an_answer()
    draw, names = random.Random(seed), [*world.sites, "nobody"]
    for _ in range(20):
        about = odd(draw, relay, names)
        world.session.handle(name, replace(relay, **{**about, "sender": ""}))
        if world.over():
            assert str(world.session.error).startswith(f"party {name} broke the protocol: it ")
            return


def relays_until_the_end(cut=None):
    """The number of relays that arrive in a session of twelve trees. cut: the connection of a party is cut
    once, when so many gradients have arrived."""
    world, relays, gradients = Long(0), 0, 0
    while not world.over():
        name, line = world.lines()[0]
        if line is world.down[name] and isinstance(line[0], Relay):
            relays += 1
            gradients += len(line[0].content) > ROWS * PAIR_BYTES
            if gradients == cut:
                cut = None
                world.drop(name)
                world.back(name)
                continue
        world.deliver(name, line)
    assert world.session.phase == "done"
    return relays


class Long(World):
    def choose(self, seed):
        self.layout, self.setting, self.aim, self.by_id = "two holders", "long", 0.0, False
        return apart(self.layout, self.setting, "wait")


def test_a_cut_while_gradients_are_relayed_costs_no_finished_tree():
    again = relays_until_the_end(cut=12) - relays_until_the_end()
    assert 0 < again <= 8
